"""torch.ops.octavo's grouped operators: opcheck, gradients of an expert FFN, field cases, compile."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck

octavo = torch.ops.octavo
RECIPES = [
    "rowwise",
    "rowwise(flavour=fnuz)",
    "rowwise_with_gw_hp",
    "rowwise_with_gw_hp(flavour=fnuz)",
    "blockwise",
    "blockwise(flavour=fnuz)",
    "mxfp8",
    "mxfp8(mx_rounding=floor)",
    "mxfp8(gw_high_precision=true)",
]
OPCHECKED = ["rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8", "mxfp8(gw_high_precision=true)"]
GRANULARITIES = ["rowwise", "1x128", "mx1x32"]
GROUPINGS = [[17, 0, 70, 3], [16, 16, 0], [0, 32], [0, 0, 16], [44, 0, 20], [0, 0, 0, 0]]


def ends_of(sizes):
    return torch.tensor(sizes).cumsum(0).to(torch.int32)


def poison():
    """Leaves freed blocks of NaN, which an operator that forgets to write would hand out."""
    blocks = [torch.full((2**n,), float("nan")) for n in range(4, 20) for _ in range(3)]
    del blocks


def operands(sizes, k=136, n=72, past=0, dtype=torch.float32, requires_grad=True):
    torch.manual_seed(0)
    m, experts = sum(sizes) + past, len(sizes)
    x = torch.randn(m, k).to(dtype).requires_grad_(requires_grad)
    w = torch.randn(experts, n, k).to(dtype).requires_grad_(requires_grad)
    return x, w, ends_of(sizes)


def snr(got, want):
    want = want.double()
    return (10 * torch.log10(want.square().sum() / (got.double() - want).square().sum())).item()


@pytest.fixture
def compare_fp8_bytes(monkeypatch):
    """As in test_operators.py: torch.allclose has no FP8 kernel."""
    allclose = torch.allclose

    def compare(a, b, *args, **kwargs):
        if a.element_size() == 1 and a.is_floating_point():
            return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
        return allclose(a, b, *args, **kwargs)

    monkeypatch.setattr(torch, "allclose", compare)


@pytest.mark.parametrize("recipe", OPCHECKED)
def test_opcheck_float8_grouped_linear(recipe):
    x, w, offs = operands([17, 0, 20, 3], past=2)
    opcheck(octavo.float8_grouped_linear.default, (x, w, offs, recipe))
    opcheck(octavo.float8_grouped_linear.default, (x.detach(), w, offs, recipe, "off"))


@pytest.mark.parametrize("recipe", OPCHECKED)
def test_opcheck_forward_and_backward(recipe):
    x, w, offs = operands([17, 0, 20, 3], past=2, requires_grad=False)
    forward = octavo.float8_grouped_linear_forward.default
    for flags in [(True, True, True), (False, True, False)]:
        opcheck(forward, (x, w, offs, recipe, *flags))
    _, xb, xs, wb, ws = forward(x, w, offs, recipe, True, True, True)
    x_saved = (xb, xs) if xb.numel() else (x, None)
    assert (xb.numel() == 0) == ("hp" in recipe or "gw_high" in recipe)
    dy = torch.randn(42, 72)
    backward = octavo.float8_grouped_linear_backward.default
    opcheck(backward, (dy, *x_saved, wb, ws, offs, recipe, torch.float32))
    opcheck(backward, (dy, *x_saved, w, None, offs, recipe, torch.bfloat16))
    opcheck(backward, (dy, None, None, None, None, offs, recipe, torch.float32))


@pytest.mark.parametrize("recipe", OPCHECKED)
def test_weights_quantised_once_change_no_bit(recipe):
    x, w, offs = operands([17, 0, 20, 3], past=2)
    opcheck(octavo.quantize_weight.default, (w, recipe))
    given = octavo.quantize_weight(w, recipe)
    opcheck(octavo.float8_grouped_linear.default, (x, w, offs, recipe, "auto", *given))
    opcheck(octavo.float8_grouped_linear_forward.default,
            (x.detach(), w.detach(), offs, recipe, True, True, True, *given[:2]))
    dy = torch.randn(42, 72)
    want = run(x, w, offs, recipe, dy)
    x.grad = w.grad = None
    y = octavo.float8_grouped_linear(x, w, offs, recipe, "auto", *given)
    y.backward(dy)
    assert all(torch.equal(g, v) for g, v in zip((y.detach(), x.grad, w.grad), want))
    with torch.no_grad():  # the given layouts are what counts, not w
        assert torch.equal(octavo.float8_grouped_linear(x, torch.zeros_like(w), offs, recipe, "auto",
                                                        *given), want[0])


def test_weights_quantised_elsewhere_are_errors():
    x, w, offs = operands([17, 0, 20, 3])
    rows, rows_scale, transposed, transposed_scale = octavo.quantize_weight(w, "rowwise")
    for given, message in [((rows,), "together"), ((rows[:3], rows_scale), "expected a contiguous"),
                           ((rows, rows_scale[1:]), "scales of"),
                           ((rows.float(), rows_scale), "bytes with flat"),
                           ((rows, rows_scale, transposed), "together"),
                           ((rows, rows_scale.to(torch.uint8)), "same recipe")]:
        with pytest.raises(RuntimeError, match=message):
            octavo.float8_grouped_linear(x, w, offs, "rowwise", "auto", *given)
    with pytest.raises(RuntimeError, match="rowwise"):
        octavo.quantize_weight(w, "tensorwise")


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_opcheck_quantize_grouped(granularity):
    x, _, offs = operands([17, 0, 20, 3], past=2, requires_grad=False)
    for layout in ["rows", "transposed"]:
        opcheck(octavo.quantize_grouped.default, (x, offs, "e4m3fn", granularity), {"layout": layout})


@pytest.mark.parametrize("granularity", ["tensorwise", "rowwise", "128x128", "mx1x32"])
def test_opcheck_quantize_expert_weights(granularity):
    w = torch.randn(3, 40, 200)
    for layout in ["rows", "transposed"]:
        opcheck(octavo.quantize_expert_weights.default, (w, "e5m2", granularity), {"layout": layout})


@pytest.mark.parametrize("pair", [("rowwise", "rowwise"), ("1x128", "128x128"), ("mx1x32", "mx1x32")])
def test_opcheck_scaled_grouped_mm(pair, compare_fp8_bytes):
    x, w, offs = operands([17, 0, 20, 3], past=2, requires_grad=False)
    a, a_scale, ends = octavo.quantize_grouped(x, offs, "e4m3fn", pair[0])
    b = octavo.quantize_expert_weights(w, "e4m3fn", pair[1])
    opcheck(octavo.scaled_grouped_mm.default, (a, a_scale, pair[0], *b, pair[1], ends))
    columns = [octavo.quantize_grouped(t, offs, "e4m3fn", pair[0], layout="transposed")
               for t in (x, torch.randn(42, 72))]
    (a, a_scale, ends), (b, b_scale, _) = columns
    opcheck(octavo.scaled_grouped_mm.default, (a, a_scale, pair[0], b, b_scale, pair[0], ends))


def test_every_operator_has_the_kernels_of_its_keys():
    for name in ["float8_grouped_linear", "float8_grouped_linear_forward",
                 "float8_grouped_linear_backward", "quantize_grouped", "quantize_expert_weights",
                 "scaled_grouped_mm"]:
        for key in ["CPU", "Meta", "Autograd", "AutocastCPU", "AutocastCUDA"]:
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"octavo::{name}", key), (name, key)


def run(x, w, offs, recipe, dy, keep="auto"):
    x.grad = w.grad = None
    poison()
    y = octavo.float8_grouped_linear(x, w, offs, recipe, keep)
    poison()
    y.backward(dy)
    return y.detach(), x.grad, w.grad


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("sizes", GROUPINGS)
def test_equals_a_loop_of_float8_linear(recipe, sizes):
    """The same bits in y and dx; dw sums the same products, in groups padded with zeros."""
    x, w, offs = operands(sizes, past=5)
    with torch.no_grad():
        x[sum(sizes):] = float("nan")  # belongs to no expert, never read
    dy = torch.randn(x.shape[0], 72)
    dy[sum(sizes):] = float("nan")
    y, dx, dw = run(x, w, offs, recipe, dy)
    begin = 0
    for e, size in enumerate(sizes):
        rows = slice(begin, begin + size)
        begin += size
        if size == 0:
            assert not dw[e].view(torch.uint8).any()
            continue
        xe = x[rows].detach().requires_grad_()
        we = w[e].detach().requires_grad_()
        ye = octavo.float8_linear(xe, we, None, recipe)
        ye.backward(dy[rows])
        assert torch.equal(y[rows], ye) and torch.equal(dx[rows], xe.grad)
        assert snr(dw[e], we.grad) >= 120 or torch.equal(dw[e], we.grad)
    for tensor in (y, dx):
        assert not tensor[begin:].view(torch.uint8).any()


def test_empty_groups_far_from_the_average():
    sizes = [162, 0, 2577, 446, 0, 83]
    x, w, offs = operands(sizes, k=2048, n=768, dtype=torch.bfloat16)
    _, _, dw = run(x, w, offs, "rowwise", torch.randn(sum(sizes), 768).bfloat16())
    for e, size in enumerate(sizes):
        assert bool(dw[e].view(torch.uint8).any()) == (size > 0)
    assert dw.isfinite().all()


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_tokens_at_all(recipe):
    x, w, offs = operands([0, 0, 0, 0])
    y, dx, dw = run(x, w, offs, recipe, torch.randn(0, 72))
    assert y.shape == (0, 72) and dx.shape == (0, 136)
    assert torch.equal(dw, torch.zeros(4, 72, 136))


def ffn(x, w_gate_up, w_down, linear):
    gate, up = linear(x, w_gate_up).chunk(2, dim=-1)
    return linear(torch.nn.functional.silu(gate) * up, w_down)


# One e4m3 operand keeps 31.5 dB; three products in a row lose about 9 dB. MX FLOOR clips the largest
# value of many blocks.
@pytest.mark.parametrize("recipe", RECIPES)
def test_expert_ffn_against_fp64(recipe):
    sizes, d, f = [150, 0, 77, 200], 256, 320
    torch.manual_seed(3)
    values = [torch.randn(sum(sizes), d), torch.randn(4, 2 * f, d) / d**0.5,
              torch.randn(4, d, f) / f**0.5]
    dy = torch.randn(sum(sizes), d)
    offs = ends_of(sizes)

    def loop(x, w):
        parts = x.split(sizes)
        return torch.cat([part @ we.t() for part, we in zip(parts, w)])

    def evaluate(dtype, linear):
        leaves = [v.to(dtype).requires_grad_() for v in values]
        y = ffn(*leaves, linear)
        y.backward(dy.to(dtype))
        return [y.detach()] + [leaf.grad for leaf in leaves]

    exact = evaluate(torch.float64, loop)
    got = evaluate(torch.float32, lambda x, w: octavo.float8_grouped_linear(x, w, offs, recipe))
    bound = 21 if "floor" in recipe else 22
    for name, a, b in zip(["y", "dx", "dw_gate_up", "dw_down"], got, exact):
        decibels = snr(a, b)
        assert bound <= decibels <= 33, (name, decibels)


def test_gate_and_up_stacked_equal_two_calls():
    sizes, f = [30, 0, 50], 128
    x, w, offs = operands(sizes, n=2 * f, requires_grad=False)
    for recipe in RECIPES:
        both = octavo.float8_grouped_linear(x, w, offs, recipe)
        gate = octavo.float8_grouped_linear(x, w[:, :f], offs, recipe)
        up = octavo.float8_grouped_linear(x, w[:, f:], offs, recipe)
        assert snr(both, torch.cat([gate, up], 1)) >= 120 or torch.equal(both, torch.cat([gate, up], 1))


@pytest.mark.parametrize("recipe", ["rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"])
def test_gradients_not_asked_for(recipe):
    sizes = [17, 0, 70]
    x, w, offs = operands(sizes)
    dy = torch.randn(87, 72)
    y, dx, dw = run(x, w, offs, recipe, dy)
    for keep in ["on", "off"]:
        same = run(x, w, offs, recipe, dy, keep)
        assert all(torch.equal(a, b) for a, b in zip(same, (y, dx, dw)))
    for need_x, need_w in [(True, False), (False, True)]:
        a, b = x.detach().requires_grad_(need_x), w.detach().requires_grad_(need_w)
        octavo.float8_grouped_linear(a, b, offs, recipe).backward(dy)
        assert (a.grad is not None) == need_x and (b.grad is not None) == need_w
        assert not need_x or torch.equal(a.grad, dx)
        assert not need_w or torch.equal(b.grad, dw)
    with torch.no_grad():
        assert torch.equal(octavo.float8_grouped_linear(x, w, offs, recipe), y)
    with torch.inference_mode():
        assert torch.equal(octavo.float8_grouped_linear(x, w, offs, recipe), y)


def test_saved_for_backward_is_fp8_only():
    sizes = [400, 0, 112]
    x, w, offs = operands(sizes, k=256, n=64, dtype=torch.bfloat16)
    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = octavo.float8_grouped_linear(x, w, offs, "rowwise", "on")
    assert x.data_ptr() not in saved and w.data_ptr() not in saved
    fp8 = 256 * (512 + 16 * 3) + 3 * 64 * 256
    assert fp8 <= sum(saved.values()) <= fp8 + 4 * (3 * 256 + 3 * 256) + offs.nbytes
    y.sum().backward()


def test_auto_keeps_the_weights_where_m_is_at_least_n():
    for m, n, kept in [(64, 64, True), (63, 64, False)]:
        x, w, offs = operands([m - 3, 3], k=32, n=n)
        saved = set()
        with torch.autograd.graph.saved_tensors_hooks(
                lambda t: saved.add(t.untyped_storage().data_ptr()) or t, lambda t: t):
            octavo.float8_grouped_linear(x, w, offs)
        assert (w.data_ptr() not in saved) == kept


def test_autocast_casts_only_x():
    x, w, offs = operands([17, 3])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = octavo.float8_grouped_linear(x, w, offs, "rowwise")
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert x.grad.dtype == torch.float32 and w.grad.dtype == torch.float32


def test_second_derivatives_are_an_error():
    x, w, offs = operands([17, 3])
    y = octavo.float8_grouped_linear(x, w, offs)
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="float8_grouped_linear's backward has no derivative"):
        dx.square().sum().backward()


def test_errors_name_the_argument_and_the_repair():
    x, w, offs = operands([16, 16], requires_grad=False)
    linear = octavo.float8_grouped_linear
    for call, message in [
        (lambda: linear(x, w, offs, "tensorwise"), "use rowwise for experts"),
        (lambda: linear(x, w, offs, "rowise"), "did you mean 'rowwise'"),
        (lambda: linear(x, w, offs.long()), "offs: expected int32, got Long"),
        (lambda: linear(x, w, offs[:1]), "each of 2 groups"),
        (lambda: linear(x, w, torch.tensor([16, 8], dtype=torch.int32)), "never decrease"),
        (lambda: linear(x, w, torch.tensor([-1, 16], dtype=torch.int32)), "-1 after 0"),
        (lambda: linear(x, w, torch.tensor([16, 33], dtype=torch.int32)), "32 rows there are, got 33"),
        (lambda: linear(x, w[0], offs), "w must be"),
        (lambda: linear(x[None], w, offs), "x must be"),
        (lambda: linear(x[:, :8], w, offs), "must agree in K"),
        (lambda: linear(x.double(), w, offs), "x must be float32"),
        (lambda: linear(x, w, offs, "mxfp8(flavour=fnuz)"), "rowwise"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            call()


class Experts(torch.nn.Module):
    def __init__(self, recipe, experts=3, d=64, f=48):
        super().__init__()
        torch.manual_seed(0)
        self.gate_up = torch.nn.Parameter(torch.randn(experts, 2 * f, d) / d**0.5)
        self.down = torch.nn.Parameter(torch.randn(experts, d, f) / f**0.5)
        self.recipe = recipe

    def forward(self, x, offs):
        return ffn(x, self.gate_up, self.down,
                   lambda x, w: octavo.float8_grouped_linear(x, w, offs, self.recipe))


def step(model, run, x, offs):
    model.zero_grad(set_to_none=True)
    x = x.detach().clone().requires_grad_(True)
    torch._dynamo.mark_dynamic(x, 0)
    y = run(x, offs)
    y.square().sum().backward()
    return [y.detach(), x.grad] + [p.grad for p in model.parameters()]


@pytest.mark.parametrize("recipe", ["rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"])
def test_one_graph_serves_every_length_and_grouping(recipe):
    torch._dynamo.reset()
    model = Experts(recipe)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for sizes in [[17, 0, 23], [3, 4, 0], [0, 133, 1], [100, 100, 100], [1, 1, 1]]:
        x, offs = torch.randn(sum(sizes) + 1, 64), ends_of(sizes)
        for got, want in zip(step(model, compiled, x, offs), step(model, model, x, offs)):
            assert torch.equal(got, want)
    assert counter.frame_count == 1
