"""torch.ops.octavo from Python: opcheck, saved bytes, autocast, words and errors."""

import pytest
import torch
from torch.library import opcheck

RECIPES = [
    "tensorwise",
    "rowwise",
    "rowwise(flavour=fnuz)",
    "rowwise_with_gw_hp",
    "blockwise",
    "mxfp8",
    "mxfp8_cublas",
    "mxfp8_rceil_wgrad_with_hp",
]
GRANULARITIES = ["tensorwise", "rowwise", "colwise", "1x128", "128x1", "128x128", "mx1x32"]
octavo = torch.ops.octavo


def operands(m=40, k=136, n=72, dtype=torch.float32, requires_grad=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(size, generator=generator).to(dtype) for size in [(m, k), (n, k), (n,)]]
    return [t.requires_grad_(requires_grad) for t in tensors]


@pytest.fixture
def compare_fp8_bytes(monkeypatch):
    """opcheck's test_schema compares inputs with torch.allclose, which torch 2.11 has no FP8 kernel
    for. Compare the bytes of FP8 tensors instead."""
    allclose = torch.allclose

    def compare(a, b, *args, **kwargs):
        if a.element_size() == 1 and a.is_floating_point():
            return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
        return allclose(a, b, *args, **kwargs)

    monkeypatch.setattr(torch, "allclose", compare)


@pytest.mark.parametrize("recipe", RECIPES)
def test_opcheck_float8_linear(recipe):
    x, w, bias = operands()
    opcheck(octavo.float8_linear.default, (x, w, bias, recipe))
    opcheck(octavo.float8_linear.default, (x.detach().view(2, 20, 136), w, None, recipe, "off"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_opcheck_forward_and_backward(recipe):
    x, w, bias = operands(requires_grad=False)
    hp = "hp" in recipe
    for flags in [(True, True, True), (False, True, False)]:
        opcheck(octavo.float8_linear_forward.default, (x, w, bias, recipe, *flags))
    _, xb, xs, wb, ws = octavo.float8_linear_forward(x, w, bias, recipe, True, True, True)
    x_saved = (x, None) if hp else (xb, xs)
    dy = torch.randn(40, 72)
    backward = octavo.float8_linear_backward.default
    opcheck(backward, (dy, *x_saved, wb, ws, recipe, torch.float32, torch.float32))
    opcheck(backward, (dy, *x_saved, w, None, recipe, torch.bfloat16, None))
    opcheck(backward, (dy, None, None, None, None, recipe, torch.float32, torch.bfloat16))


@pytest.mark.parametrize("recipe", RECIPES)
def test_opcheck_with_a_quantised_weight(recipe):
    x, w, bias = operands()
    opcheck(octavo.quantize_weight.default, (w, recipe))
    given = octavo.quantize_weight(w, recipe)
    assert not any(t.requires_grad for t in given)
    opcheck(octavo.float8_linear.default, (x, w, bias, recipe, "auto", *given))
    x, w = x.detach(), w.detach()
    opcheck(octavo.float8_linear_forward.default,
            (x, w, None, recipe, True, True, True, given[0], given[1]))


@pytest.mark.parametrize("recipe", RECIPES)
def test_opcheck_with_a_quantised_input(recipe):
    x, w, bias = operands(requires_grad=False)
    x = x.view(2, 20, 136)
    for need_dw in (True, False):
        opcheck(octavo.quantize_input.default, (x, recipe, need_dw))
    rows, rows_scale, x_bytes, x_scale = octavo.quantize_input(x, recipe, True)
    arguments = (x, w, bias, recipe, True, False, True, None, None, rows, rows_scale)
    opcheck(octavo.float8_linear_forward.default, arguments)
    got = octavo.float8_linear_forward(*arguments)
    want = octavo.float8_linear_forward(x, w, bias, recipe, True, True, True)
    for given, expected in zip((got[0], x_bytes, x_scale, *got[3:]), want):
        assert torch.equal(given, expected)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("parts", ["both", "rows", "transposed"])
def test_a_quantised_weight_changes_no_bit(recipe, parts):
    x, w, bias = operands()
    rows, rows_scale, transposed, transposed_scale = octavo.quantize_weight(w, recipe)
    given = {}
    if parts != "transposed":
        given |= dict(w_rows=rows, w_rows_scale=rows_scale)
    if parts != "rows":
        given |= dict(w_transposed=transposed, w_transposed_scale=transposed_scale)

    def results(**options):
        x.grad = w.grad = bias.grad = None
        y = octavo.float8_linear(x, w, bias, recipe, **options)
        y.backward(torch.linspace(-1, 1, y.numel()).view_as(y))
        return y.detach(), x.grad, w.grad, bias.grad

    for got, want in zip(results(**given), results()):
        assert torch.equal(got, want)
    with torch.no_grad():
        assert torch.equal(octavo.float8_linear(x, w, bias, recipe, **given),
                           octavo.float8_linear(x, w, bias, recipe))
        # It is the bytes that are multiplied, not w.
        zero = {k: torch.zeros_like(v) if k == "w_rows" else v for k, v in given.items()}
        if "w_rows" in zero:
            assert torch.equal(octavo.float8_linear(x, w, None, recipe, **zero), torch.zeros(40, 72))


def test_a_quantised_weight_is_checked():
    x, w, _ = operands(requires_grad=False)
    rows, rows_scale, transposed, transposed_scale = octavo.quantize_weight(w, "rowwise")
    for given, message in [
        (dict(w_rows=rows), "w_rows and w_rows_scale together"),
        (dict(w_transposed=transposed), "w_transposed and w_transposed_scale together"),
        (dict(w_rows=w, w_rows_scale=rows_scale), "w_rows must be a matrix of bytes"),
        (dict(w_rows=transposed, w_rows_scale=rows_scale), "w_rows: expected a contiguous"),
        (dict(w_rows=rows, w_rows_scale=transposed_scale), "w_rows_scale: expected the 72"),
        (dict(w_rows=rows, w_rows_scale=rows_scale.byte()), "same recipe"),
        (dict(w_rows=rows.to("meta"), w_rows_scale=rows_scale), "device"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            octavo.float8_linear(x, w, None, "rowwise", **given)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_opcheck_quantize(granularity):
    opcheck(octavo.quantize.default, (torch.randn(40, 200), "e4m3fn", granularity))
    x = torch.randn(200, 40, dtype=torch.bfloat16).t()
    opcheck(octavo.quantize.default, (x, "e5m2", granularity), {"layout": "transposed"})


PRODUCTS = [
    ("tensorwise", "tensorwise"),
    ("rowwise", "rowwise"),
    ("rowwise", "tensorwise"),
    ("1x128", "128x128"),
    ("1x128", "1x128"),
    ("mx1x32", "mx1x32"),
]


@pytest.mark.parametrize("granularities", PRODUCTS)
def test_opcheck_scaled_mm(granularities, compare_fp8_bytes):
    a, b, bias = operands(requires_grad=False)
    args = []
    for matrix, granularity in zip((a, b), granularities):
        args += [*octavo.quantize(matrix, "e4m3fn", granularity), granularity]
    opcheck(octavo.scaled_mm.default, (*args, bias), {"out_dtype": torch.float32})


@pytest.mark.parametrize("granularities", PRODUCTS)
def test_quantize_and_scaled_mm_make_a_linear(granularities):
    a, b, bias = operands(requires_grad=False)
    args = []
    for matrix, granularity in zip((a, b), granularities):
        args += [*octavo.quantize(matrix, "e4m3fn", granularity), granularity]
    y = octavo.scaled_mm(*args, bias, out_dtype=torch.float32)
    want = a.double() @ b.double().t() + bias.double()
    noise = (y - want).square().sum() / want.square().sum()
    assert 10 * torch.log10(noise) < -27


def test_every_operator_has_the_kernels_of_its_keys():
    for name in ["float8_linear", "float8_linear_forward", "float8_linear_backward",
                 "quantize_input", "quantize_weight", "quantize", "scaled_mm"]:
        for key in ["CPU", "Meta", "Autograd", "AutocastCPU", "AutocastCUDA"]:
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"octavo::{name}", key), (name, key)


def saved_bytes(function):
    """Runs function() and counts the distinct bytes its graph saves for backward."""
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return saved


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_backward_keeps_fp8_operands_only(recipe, dtype):
    m, k, n = 512, 256, 384
    x, w, bias = operands(m, k, n, dtype)
    saved = saved_bytes(lambda: octavo.float8_linear(x, w, bias, recipe, "on"))
    kept = dict(saved)
    x_bytes = kept.pop(x.data_ptr(), 0)
    assert w.data_ptr() not in kept
    if "hp" in recipe:
        assert x_bytes == x.nbytes  # the recipe keeps dw in high precision
        fp8, rows = k * n, k
    else:
        assert x_bytes == 0
        fp8, rows = k * m + k * n, 2 * k
    scales = {"tensor": 8, "row": 4 * rows, "block": fp8 // 128 * 4 + 64, "mx": fp8 // 32}
    extra = next(size for name, size in scales.items() if recipe.startswith(name))
    assert fp8 <= sum(kept.values()) <= fp8 + extra

    # Not kept: the parameter itself, which is no copy.
    saved = saved_bytes(lambda: octavo.float8_linear(x, w, bias, recipe, "off"))
    assert w.data_ptr() in saved
    del saved[w.data_ptr()]
    assert sum(saved.values()) <= (x.nbytes if "hp" in recipe else k * m + extra)

    # Nothing is kept for a gradient that is not wanted.
    frozen = w.detach()
    saved = saved_bytes(lambda: octavo.float8_linear(x, frozen, bias, recipe, "on"))
    assert x.data_ptr() not in saved and sum(saved.values()) <= k * n + extra
    saved = saved_bytes(lambda: octavo.float8_linear(x.detach(), frozen, bias, recipe, "on"))
    assert sum(saved.values()) == 0


def test_auto_keeps_the_weight_where_m_is_at_least_n():
    for m, n, kept in [(64, 64, True), (63, 64, False), (65, 64, True)]:
        x, w, bias = operands(m, 32, n)
        saved = saved_bytes(lambda: octavo.float8_linear(x, w, bias))
        assert (w.data_ptr() not in saved) == kept


def test_autocast_casts_only_x():
    x, w, bias = operands()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = octavo.float8_linear(x, w, bias, "rowwise")
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert (x.grad.dtype, w.grad.dtype, bias.grad.dtype) == (torch.float32,) * 3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        data, scale = octavo.quantize(x.detach())
        out = octavo.scaled_mm(data, scale, "rowwise", data, scale, "rowwise", out_dtype=torch.float32)
    plain = octavo.scaled_mm(data, scale, "rowwise", data, scale, "rowwise", out_dtype=torch.float32)
    assert torch.equal(out, plain)


def test_meta_tensors():
    x, w = torch.empty(3, 5, 8, device="meta"), torch.empty(6, 8, device="meta")
    y = octavo.float8_linear(x, w, None, "mxfp8")
    assert y.shape == (3, 5, 6) and y.device.type == "meta"


def test_non_differentiable_operators_say_so():
    x, w, _ = operands()
    data, _ = octavo.quantize(x)
    with pytest.raises(RuntimeError, match="quantize has no derivative"):
        data.float().sum().backward()
    y = octavo.float8_linear_forward(x, w, None, "rowwise", True, True, True)[0]
    with pytest.raises(RuntimeError, match="call float8_linear"):
        y.sum().backward()
    y = octavo.float8_linear(x, w, None, "rowwise")
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="float8_linear's backward has no derivative"):
        dx.square().sum().backward()


def test_words_are_checked():
    x, w, _ = operands()
    for call, message in [
        (lambda: octavo.float8_linear(x, w, None, "rowise"), "did you mean 'rowwise'"),
        (lambda: octavo.float8_linear(x, w, None, "rowwise", "yes"), "auto, on, off"),
        (lambda: octavo.quantize(x.detach(), "e4m3"), "e4m3fn, e5m2"),
        (lambda: octavo.quantize(x.detach(), "e4m3fn", "row"), "granularity: expected one of"),
        (lambda: octavo.quantize(x.detach(), layout="columns"), "rows, transposed"),
        (lambda: octavo.quantize(x.detach(), scale_rounding="pow2"), "none, power_of_two"),
        (lambda: octavo.quantize(x.detach(), mx_rounding="flor"), "did you mean 'floor'"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            call()


def calls_of_three_operands():
    x, w = torch.randn(4, 8), torch.randn(6, 8)
    offs = torch.tensor([1, 4], dtype=torch.int32)
    gate, up, down = torch.randn(6, 8), torch.randn(6, 8), torch.randn(8, 6)
    experts, stacked, downs = torch.randn(2, 6, 8), torch.randn(2, 12, 8), torch.randn(2, 8, 6)
    return [
        ("float8_linear", {"x": x, "w": w}, lambda **a: octavo.float8_linear(**a, recipe="rowwise")),
        ("quantize_input", {"x": x}, lambda **a: octavo.quantize_input(**a, recipe="rowwise", need_dw=True)),
        ("quantize_weight", {"w": w}, lambda **a: octavo.quantize_weight(**a, recipe="rowwise")),
        ("quantize_weight", {"w": experts}, lambda **a: octavo.quantize_weight(**a, recipe="rowwise")),
        ("float8_grouped_linear", {"x": x, "w": experts},
         lambda **a: octavo.float8_grouped_linear(**a, offs=offs, recipe="rowwise")),
        ("float8_swiglu_mlp", {"x": x, "w_gate": gate, "w_up": up, "w_down": down},
         lambda **a: octavo.float8_swiglu_mlp(**a, recipe="rowwise")),
        ("float8_experts", {"x": x, "w_gate_up": stacked, "w_down": downs},
         lambda **a: octavo.float8_experts(**a, offs=offs, recipe="rowwise")),
    ]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_messages_name_the_operator_and_the_argument(device):
    for operator, operands, call in calls_of_three_operands():
        call(**operands)
        if device == "meta":
            operands = {name: tensor.to("meta") for name, tensor in operands.items()}
            if "offs" in str(getattr(octavo, operator).default._schema):
                continue  # offsets on the CPU are another error
        for name, tensor in operands.items():
            for bad in (tensor.double(), tensor.sum()):
                with pytest.raises(RuntimeError) as raised:
                    call(**{**operands, name: bad})
                message = str(raised.value)
                assert message.startswith(f"{operator}: {name} must be") and ";" in message, message


def test_messages_of_backward_name_the_operator():
    dy, x, w = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8, 8)
    gate, offs = torch.randn(4, 8), torch.tensor([4], dtype=torch.int32)
    three, two = torch.randn(1, 8, 8), torch.randn(1, 16, 8)
    with pytest.raises(RuntimeError, match="float8_swiglu_mlp_backward: this recipe needs h as bytes"):
        rows, scale = octavo.quantize_input(x, "rowwise", True)[2:]
        octavo.float8_swiglu_mlp_backward(dy, gate, gate, rows, scale, x, None, w, None, w, None, w, None, "rowwise",
                                          True, torch.float32, True)
    with pytest.raises(RuntimeError, match="float8_experts_backward: this recipe needs x as bytes"):
        octavo.float8_experts_backward(dy, torch.randn(4, 16), x, None, x, None, two, None, three, None, offs, "rowwise",
                                       True, torch.float32, True)


def test_any_parseable_recipe_is_accepted():
    x, w, _ = operands()
    want = octavo.float8_linear(x, w, None, "mxfp8(mx_rounding=floor)")
    for text in ["mxfp8_cublas", " mxfp8 ( mx_rounding = floor ) "]:
        assert torch.equal(octavo.float8_linear(x, w, None, text), want)


def test_forward_mode_is_refused():
    x, w, bias = torch.randn(8, 16), torch.randn(8, 16), torch.randn(8)
    calls = {
        "float8_linear": lambda d: octavo.float8_linear(x, w, d(bias)),
        "quantize": lambda d: octavo.quantize(d(x)),
        "float8_linear_forward": lambda d: octavo.float8_linear_forward(d(x), w, None, "rowwise", True,
                                                                        True, True),
    }
    for name, call in calls.items():
        with torch.autograd.forward_ad.dual_level():
            with pytest.raises(RuntimeError, match=f"{name}: forward-mode"):
                call(lambda t: torch.autograd.forward_ad.make_dual(t, torch.ones_like(t)))


def test_one_argument_on_the_meta_device_is_refused():
    (a, a_scale), (b, b_scale) = octavo.quantize(torch.randn(8, 16)), octavo.quantize(torch.randn(8, 16))
    for i in range(4):
        tensors = [a, a_scale, b, b_scale]
        tensors[i] = tensors[i].to("meta")
        with pytest.raises(RuntimeError, match="device"):
            octavo.scaled_mm(tensors[0], tensors[1], "rowwise", tensors[2], tensors[3], "rowwise")
    x, w, dy = torch.randn(8, 16), torch.randn(8, 16), torch.randn(8, 8)
    saved = octavo.float8_linear_forward(x, w, None, "rowwise", True, True, True)[1:]
    for i in range(4):
        tensors = list(saved)
        tensors[i] = tensors[i].to("meta")
        with pytest.raises(RuntimeError, match="device"):
            octavo.float8_linear_backward(dy, *tensors, "rowwise", torch.float32)
