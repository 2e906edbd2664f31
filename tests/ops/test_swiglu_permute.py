"""octavo::swiglu, permute and unpermute: values and gradients against fp64, opcheck, compile."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck

octavo = torch.ops.octavo
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# One rounding of the result, and fp32's few ulps before it.
BOUND = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def close(got, want, dtype):
    assert got.dtype == dtype and got.shape == want.shape
    error = (got.double() - want).abs()
    assert (error <= BOUND[dtype] * want.abs() + BOUND[dtype] * 1e-3).all(), error.max()


def swiglu64(gate, up):
    return torch.nn.functional.silu(gate) * up


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("sizes", [(7, 24), (2, 3, 40), (33, 1), (0, 8), (5, 0), (17, 131)])
def test_swiglu(dtype, stacked, sizes):
    torch.manual_seed(0)
    values = [(torch.randn(sizes) * 4).to(dtype) for _ in range(2)]
    dh = torch.randn(sizes).to(dtype)
    exact = [v.double().requires_grad_() for v in values]
    want = swiglu64(*exact)
    want.backward(dh.double())
    if stacked:
        both = torch.cat(values, -1).requires_grad_()
        h = octavo.swiglu(both)
        h.backward(dh)
        got = both.grad.chunk(2, -1)
    else:
        leaves = [v.clone().requires_grad_() for v in values]
        h = octavo.swiglu(*leaves)
        h.backward(dh)
        got = [leaf.grad for leaf in leaves]
    close(h.detach(), want.detach(), dtype)
    for gradient, e in zip(got, exact):
        # Where gate makes the derivative of silu nearly zero, fp32 cancels: hence the absolute part.
        error = (gradient.double() - e.grad).abs()
        assert gradient.dtype == dtype
        assert (error <= BOUND[dtype] * e.grad.abs() + 4e-7 * (1 + 20 * dh.double().abs())).all()


def test_swiglu_of_large_and_special_numbers():
    gate = torch.tensor([200.0, -200.0, 0.0, -0.0, float("nan"), float("inf")])
    h = octavo.swiglu(gate, torch.full_like(gate, 2.0))
    assert h[0] == 400 and h[1] == 0 and h[2] == 0 and h[4].isnan() and h[5] == float("inf")


def test_swiglu_strides_and_frozen_inputs():
    gate = torch.randn(8, 48)[:, 4:20].requires_grad_()
    up = torch.randn(16, 8).t()
    h = octavo.swiglu(gate, up)
    # LibTorch's exp has other last bits at the ends of rows and in rows that are not contiguous.
    torch.testing.assert_close(h, octavo.swiglu(gate.detach().contiguous(), up.contiguous()),
                               rtol=4e-7, atol=4e-7)
    h.sum().backward()
    with torch.no_grad():
        assert not octavo.swiglu(gate, up).requires_grad


def moves(tokens, k, experts, seed=0):
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(tokens, experts, generator=generator).argsort(1)[:, :k]
    choice = chosen.flatten().sort(stable=True).indices
    row = torch.empty_like(choice).scatter_(0, choice, torch.arange(tokens * k)).view(tokens, k)
    return choice, row


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens,k,d", [(9, 1, 16), (30, 3, 40), (1, 2, 5), (0, 2, 8), (13, 8, 33)])
def test_permute_and_unpermute(dtype, tokens, k, d):
    torch.manual_seed(1)
    choice, row = moves(tokens, k, 8)
    x = torch.randn(tokens, d).to(dtype).requires_grad_()
    y = octavo.permute(x, choice, row)
    assert torch.equal(y, x[choice // k])
    dy = torch.randn(tokens * k, d).to(dtype)
    y.backward(dy)
    want = dy.double()[row].sum(1)
    assert ((x.grad.double() - want).abs() <= BOUND[dtype] * want.abs() + 1e-6 * k).all()
    if k == 1:
        assert torch.equal(octavo.unpermute(y.detach(), choice, row), x)

    rows = torch.randn(tokens * k, d).to(dtype).requires_grad_()
    weights = torch.rand(tokens, k).requires_grad_()
    out = octavo.unpermute(rows, choice, row, weights)
    exact_rows, exact_weights = rows.detach().double(), weights.detach().double()
    exact_rows.requires_grad_(), exact_weights.requires_grad_()
    want = (exact_rows[row] * exact_weights[:, :, None]).sum(1)
    dout = torch.randn(tokens, d).to(dtype)
    want.backward(dout.double())
    out.backward(dout)
    error = (out.double() - want).abs()
    assert (error <= BOUND[dtype] * want.abs() + 1e-6 * k).all()
    close(rows.grad, exact_rows.grad, dtype)
    assert weights.grad.dtype == torch.float32
    assert torch.allclose(weights.grad.double(), exact_weights.grad, rtol=1e-5, atol=1e-5)
    # A frozen weight: x is not kept, the rest is the same.
    again = rows.detach().requires_grad_()
    octavo.unpermute(again, choice, row, weights.detach()).backward(dout)
    assert torch.equal(again.grad, rows.grad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens,k,d", [(9, 1, 16), (30, 3, 40), (0, 2, 8), (13, 8, 33)])
def test_permute_with_weights(dtype, tokens, k, d):
    torch.manual_seed(1)
    choice, row = moves(tokens, k, 8)
    x = torch.randn(tokens, d).to(dtype).requires_grad_()
    weights = torch.rand(tokens, k).requires_grad_()
    y = octavo.permute(x, choice, row, weights)
    exact_x, exact_weights = x.detach().double(), weights.detach().double()
    exact_x.requires_grad_(), exact_weights.requires_grad_()
    want = exact_x[choice // k] * exact_weights.flatten()[choice, None]
    dy = torch.randn(tokens * k, d).to(dtype)
    want.backward(dy.double())
    y.backward(dy)
    assert y.dtype == dtype
    close(y, want, dtype)
    assert ((x.grad.double() - exact_x.grad).abs() <= BOUND[dtype] * exact_x.grad.abs() + 1e-6 * k).all()
    assert weights.grad.dtype == torch.float32
    assert torch.allclose(weights.grad.double(), exact_weights.grad, rtol=1e-5, atol=1e-5)
    # What is frozen has no gradient, the rest is the same.
    for leaves in [(x.detach().requires_grad_(), weights.detach()), (x.detach(), weights.detach().requires_grad_())]:
        octavo.permute(leaves[0], choice, row, leaves[1]).backward(dy)
        for leaf, whole in zip(leaves, (x, weights)):
            assert leaf.grad is None or torch.equal(leaf.grad, whole.grad)
            assert (leaf.grad is None) != leaf.requires_grad


def test_opcheck():
    choice, row = moves(12, 2, 4)
    x, rows = torch.randn(12, 8, requires_grad=True), torch.randn(24, 8, requires_grad=True)
    weights = torch.rand(12, 2, requires_grad=True)
    opcheck(octavo.permute.default, (x, choice, row))
    opcheck(octavo.permute.default, (x, choice, row, weights))
    opcheck(octavo.permute_backward.default,
            (rows.detach(), x.detach(), choice, row, weights.detach()))
    opcheck(octavo.permute_backward.default, (rows.detach(), None, choice, row, None))
    opcheck(octavo.unpermute.default, (rows, choice, row))
    opcheck(octavo.unpermute.default, (rows, choice, row, weights))
    plain = (torch.randn(12, 8), rows.detach(), choice, row, weights.detach())
    opcheck(octavo.unpermute_backward.default, plain)
    opcheck(octavo.unpermute_backward.default, (plain[0], None, choice, row, None))
    opcheck(octavo.swiglu.default, (x, x.detach().clone()))
    opcheck(octavo.swiglu.default, (x,))
    opcheck(octavo.swiglu_backward.default, (torch.randn(12, 4), x.detach(), None))
    opcheck(octavo.swiglu_backward.default, (torch.randn(12, 8), x.detach(), x.detach()))


def test_errors():
    choice, row = moves(12, 2, 4)
    x = torch.randn(12, 8)
    for call, message in [
        (lambda: octavo.swiglu(torch.randn(3, 5)), "must hold both"),
        (lambda: octavo.swiglu(x, x.bfloat16()), "must be alike"),
        (lambda: octavo.swiglu(x, x[:, :4]), "equal sizes"),
        (lambda: octavo.swiglu(x.double()), "float32, bfloat16 or float16"),
        (lambda: octavo.permute(x[:5], choice, row), "x must have 12 rows"),
        (lambda: octavo.permute(x, choice.int(), row), "int64"),
        (lambda: octavo.unpermute(x, choice, row), "x must have 24 rows"),
        (lambda: octavo.unpermute(torch.randn(24, 8), choice, row, torch.rand(12, 1)), "row's sizes"),
        (lambda: octavo.unpermute(torch.randn(24, 8), choice, row, torch.rand(12, 2).double()),
         "float32"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            call()
    y = octavo.swiglu(x.clone().requires_grad_())
    with pytest.raises(RuntimeError, match="has no derivative"):
        leaf = x.clone().requires_grad_()
        (dx,) = torch.autograd.grad(octavo.swiglu(leaf).sum(), leaf, create_graph=True)
        dx.sum().backward()
    assert y.requires_grad


def test_one_graph_serves_every_length():
    torch._dynamo.reset()
    w = torch.randn(16, 8)

    def block(x, choice, row, weights):
        h = octavo.swiglu(octavo.permute(x, choice, row) @ w.t())
        return octavo.unpermute(h, choice, row, weights)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(block, backend=counter, fullgraph=True)
    for tokens in [12, 5, 40, 3]:
        choice, row = moves(tokens, 2, 4)
        for tensor in (choice, row):
            torch._dynamo.mark_dynamic(tensor, 0)
        results = []
        for run in (block, compiled):
            torch.manual_seed(2)
            x, weights = torch.randn(tokens, 8).requires_grad_(), torch.rand(tokens, 2).requires_grad_()
            for tensor in (x, weights):
                torch._dynamo.mark_dynamic(tensor, 0)
            y = run(x, choice, row, weights)
            y.square().sum().backward()
            results.append((y.detach(), x.grad, weights.grad))
        assert all(torch.equal(a, b) for a, b in zip(*results))
    assert counter.frame_count == 1
