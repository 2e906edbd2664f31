"""The operators around a model's linears: rms_norm, add_rms_norm, rope, linear_cross_entropy.

Against fp64 formulas written here, on the CPU and, where there is one, on a GPU.
"""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# One rounding, relative to the largest result; for fp32 the sums' own rounding.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-11}
ops = torch.ops.octavo


def close(actual, expected, tolerance, scale=1.0):
    if actual.numel() == 0:
        return
    difference = (actual.double() - expected).abs().max().item()
    bound = tolerance * scale * max(1.0, expected.abs().max().item())
    assert difference <= bound, (difference, bound)  # NaN fails


def norm_reference(h, w, eps):
    return h * (h.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * w


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
# 20: no multiple of 8; 2048, 2056: one and two items a thread; 8200: four; 17000: beyond a block.
@pytest.mark.parametrize("features", [8, 20, 64, 2048, 2056, 8200, 17000])
@pytest.mark.parametrize("rows", [(0,), (3,), (2, 515)])
@pytest.mark.parametrize("residual", [False, True])
def test_rms_norm(device, dtype, features, rows, residual):
    if features > 4096 and len(rows) == 2:
        rows = (37,)
    torch.manual_seed(0)
    x, r, dy, dh = (torch.randn(*rows, features, device=device, dtype=dtype) for _ in range(4))
    w = (torch.rand(features, device=device) + 0.5).to(dtype if features != 64 else torch.float32)
    x, r, w = (t.requires_grad_() for t in (x, r, w))
    x64, w64 = (t.detach().double().requires_grad_() for t in (x, w))
    if residual:
        h, y = ops.add_rms_norm(x, r, w, 1e-5)
        assert torch.equal(h, x + r)
        # What is normalised is h as it was rounded.
        h64 = h.detach().double().requires_grad_()
        torch.autograd.backward([h, y], [dh, dy])
    else:
        y = ops.rms_norm(x, w, 1e-5)
        h64 = x64
        y.backward(dy)
    y64 = norm_reference(h64, w64, 1e-5)
    y64.backward(dy.double())
    tolerance = TOLERANCE[dtype]
    close(y, y64, tolerance)
    assert y.dtype == dtype and w.grad.dtype == w.dtype
    close(x.grad, h64.grad + (dh.double() if residual else 0.0), tolerance * (2 if residual else 1),
          scale=2.0)
    if residual:
        assert torch.equal(x.grad, r.grad)
    # A sum over rows, rounded once.
    close(w.grad, w64.grad, TOLERANCE[w.dtype], scale=2.0)


@pytest.mark.parametrize("device", DEVICES)
def test_rms_norm_keeps_a_nan_in_its_row_and_reads_views(device):
    x = torch.randn(5, 64, device=device, dtype=torch.bfloat16)
    w = torch.ones(64, device=device)
    clean = ops.rms_norm(x, w, 1e-5)
    x[2, 7] = float("nan")
    y = ops.rms_norm(x, w, 1e-5)
    assert y[2].isnan().all()
    keep = [0, 1, 3, 4]
    assert torch.equal(y[keep], clean[keep])
    wide = torch.randn(64, 5, device=device, dtype=torch.bfloat16)
    assert torch.equal(ops.rms_norm(wide.t(), w, 1e-5), ops.rms_norm(wide.t().contiguous(), w, 1e-5))


@pytest.mark.parametrize("device", DEVICES)
def test_rms_norm_without_gradients_of_h(device):
    """Only y is used, or only h: the other's gradient is absent, not zeros."""
    x, r = (torch.randn(4, 64, device=device, requires_grad=True) for _ in range(2))
    w = torch.ones(64, device=device, requires_grad=True)
    h, y = ops.add_rms_norm(x, r, w, 1e-5)
    (dx,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    expected = torch.autograd.grad(ops.rms_norm(x + r, w, 1e-5).sum(), x)[0]
    close(dx, expected.double(), 1e-6)
    (dx,) = torch.autograd.grad(h.sum(), x)
    assert torch.equal(dx, torch.ones_like(x))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(2, 5, 3, 64), (1, 7, 1, 20), (0, 4, 2, 32), (3, 130, 4, 128)])
def test_rope(device, dtype, sizes):
    torch.manual_seed(0)
    batch, sequence, heads, features = sizes
    x = torch.randn(sizes, device=device, dtype=dtype, requires_grad=True)
    angle = torch.rand(sequence, 1, features // 2, device=device) * 6
    cosine = torch.cat([angle.cos()] * 2, -1)
    sine = torch.cat([-angle.sin(), angle.sin()], -1)
    y = ops.rope(x, cosine, sine)
    first, second = x.detach().double().chunk(2, -1)
    c, s = angle.cos().double(), angle.sin().double()
    close(y, torch.cat([first * c - second * s, second * c + first * s], -1), TOLERANCE[dtype])
    dy = torch.randn_like(y)
    y.backward(dy)
    first, second = dy.double().chunk(2, -1)
    close(x.grad, torch.cat([first * c + second * s, second * c - first * s], -1), TOLERANCE[dtype])
    close(ops.rope(y.detach(), cosine, sine, True), x.detach().double(), 2 * TOLERANCE[dtype], 2.0)
    keys = torch.randn(batch, sequence, 2, features, device=device, dtype=dtype, requires_grad=True)
    pair = ops.rope_query_key(x, keys, cosine, sine)
    assert torch.equal(pair[0], y) and torch.equal(pair[1], ops.rope(keys, cosine, sine))
    dk = torch.randn_like(keys)
    gradients = torch.autograd.grad(pair, (x, keys), (dy, dk))
    assert torch.equal(gradients[0], x.grad) and torch.equal(gradients[1], ops.rope(dk, cosine, sine, True))
    turned = torch.randn(batch, heads, sequence, features, device=device, dtype=dtype)
    assert torch.equal(ops.rope(turned.transpose(1, 2), cosine, sine),
                       ops.rope(turned.transpose(1, 2).contiguous(), cosine, sine))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens,vocabulary", [(1, 1), (7, 13), (300, 1000), (257, 5003), (3, 40008), (5, 130008)])
@pytest.mark.parametrize("chunk_bytes", [1 << 30, 1 << 19])
def test_linear_cross_entropy(device, dtype, tokens, vocabulary, chunk_bytes):
    torch.manual_seed(0)
    x = torch.randn(tokens, 64, device=device, dtype=dtype, requires_grad=True)
    w = (torch.randn(vocabulary, 64, device=device) * 0.3).to(dtype).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,), device=device)
    loss = ops.linear_cross_entropy(x, w, targets, chunk_bytes)
    (3 * loss).backward()
    x64, w64 = (t.detach().double().requires_grad_() for t in (x, w))
    logits = x64 @ w64.t()
    expected = torch.nn.functional.cross_entropy(logits, targets)
    (3 * expected).backward()
    # Logits of order 10 are rounded once to dtype: each softmax carries that relative error.
    error = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    close(loss, expected, error, )
    assert loss.dtype == torch.float32
    for actual, exact in ((x.grad, x64.grad), (w.grad, w64.grad)):
        size = exact.abs().max().item() + 1e-6
        close(actual / size, exact / size, 4 * error)
    with torch.no_grad():
        close(ops.linear_cross_entropy(x, w, targets, chunk_bytes), loss.double(), 1e-6, 10.0)
    with pytest.raises(RuntimeError):
        loss.backward()


def test_what_has_no_meaning_is_refused():
    x, table = torch.randn(1, 6, 2, 8), torch.rand(6, 1, 8)
    for bad_x, bad_table in ((x[..., :7], table[..., :7]), (x.int(), table), (x, table.expand(6, 2, 8))):
        with pytest.raises(RuntimeError, match="rope: x is"):
            ops.rope(bad_x, bad_table, bad_table)
    ints = torch.ones(3, 8, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="linear_cross_entropy: expected x and w in float32"):
        ops.linear_cross_entropy(ints, ints, torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("eps", [-1e-6, float("nan"), float("inf")])
@pytest.mark.parametrize("device", ["cpu", "meta", *DEVICES[1:]])
def test_an_epsilon_that_is_none(device, eps):
    x, w = torch.randn(3, 8, device=device), torch.ones(8, device=device)
    for call in (lambda: ops.rms_norm(x, w, eps), lambda: ops.add_rms_norm(x, x, w, eps)):
        with pytest.raises(RuntimeError, match=r"eps: expected a finite number, 0 or more, got .*; models have"):
            call()


def test_linear_cross_entropy_compiles_for_every_length():
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(lambda *a: ops.linear_cross_entropy(*a), backend=counter, fullgraph=True, dynamic=True)
    w = torch.randn(5, 8)
    for tokens in (3, 7, 12):
        x, targets = torch.randn(tokens, 8, requires_grad=True), torch.randint(5, (tokens,))
        loss = run(x, w, targets)
        loss.backward()
        again = x.detach().clone().requires_grad_()
        expected = ops.linear_cross_entropy(again, w, targets)
        expected.backward()
        assert torch.equal(loss, expected) and torch.equal(x.grad, again.grad)
    assert counter.frame_count == 1


def test_linear_cross_entropy_of_a_bad_target():
    x, w = torch.randn(3, 8), torch.randn(5, 8)
    for bad in (5, -1):
        with pytest.raises(IndexError, match=rf"targets: expected tokens of \[0, 5\), .*, got {bad}; use data"):
            ops.linear_cross_entropy(x, w, torch.tensor([-100, bad, 1]))
    ignored = ops.linear_cross_entropy(x, w, torch.tensor([0, -100, 1]))
    assert torch.equal(ignored, ops.linear_cross_entropy(x[[0, 2]], w, torch.tensor([0, 1])))
    with pytest.raises(RuntimeError, match="targets"):
        ops.linear_cross_entropy(x, w, torch.tensor([0, 1]))
    if torch.cuda.is_available():
        loss = ops.linear_cross_entropy(x.cuda(), w.cuda(), torch.tensor([0, 5, 1]).cuda())
        assert loss.isnan()


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck(device):
    x = torch.randn(2, 6, 64, device=device, requires_grad=True)
    w = torch.ones(64, device=device, requires_grad=True)
    utils = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(ops.rms_norm_forward.default, (x.detach(), None, w.detach(), 1e-5),
                          test_utils=utils[:2])
    torch.library.opcheck(ops.rms_norm_forward.default,
                          (x.detach(), x.detach() * 2, w.detach(), 1e-5), test_utils=utils[:2])
    table = torch.rand(6, 1, 16, device=device)
    torch.library.opcheck(ops.rope.default, (x.view(2, 6, 4, 16), table, table), test_utils=utils)
    torch.library.opcheck(ops.rope_query_key.default, (x.view(2, 6, 4, 16), x.view(2, 6, 4, 16)[:, :, :1], table, table),
                          test_utils=utils)
    with pytest.raises(RuntimeError, match="rope_query_key: k is"):
        ops.rope_query_key(x.view(2, 6, 4, 16), x.view(2, 6, 4, 16)[:1], table, table)
