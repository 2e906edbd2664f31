"""octavo::float8_swiglu_mlp against the operators it stands for, bit for bit; opcheck and compile."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck

from gradients import assert_same, results

octavo = torch.ops.octavo
RECIPES = [
    "tensorwise",
    "tensorwise(flavour=fnuz)",
    "rowwise",
    "rowwise(flavour=fnuz)",
    "rowwise_with_gw_hp",
    "rowwise_with_gw_hp(flavour=fnuz)",
    "blockwise",
    "blockwise(flavour=fnuz)",
    "mxfp8",
    "mxfp8(gw_high_precision=true)",
]
PLAIN = ["tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"]


def operands(m=40, d=136, f=72, out=56, dtype=torch.float32, requires_grad=True):
    torch.manual_seed(m + f)
    sizes = [(m, d), (f, d), (f, d), (out, f)]
    return [torch.randn(s).to(dtype).requires_grad_(requires_grad) for s in sizes]


def separate(x, w_gate, w_up, w_down, recipe):
    gate = octavo.float8_linear(x, w_gate, None, recipe)
    up = octavo.float8_linear(x, w_up, None, recipe)
    return octavo.float8_linear(octavo.swiglu(gate, up), w_down, None, recipe)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_three_linears_and_a_swiglu(recipe, dtype):
    for sizes in [(40, 136, 72, 56), (33, 17, 9, 5), (1, 8, 300, 130), (256, 64, 128, 64)]:
        tensors = operands(*sizes, dtype=dtype)
        want = results(lambda *t: separate(*t, recipe), tensors)
        for keep in ["on", "off"]:
            for fuse in [True, False]:
                got = results(lambda *t: octavo.float8_swiglu_mlp(*t, recipe, keep, fuse), tensors)
                assert_same(got, want)


@pytest.mark.parametrize("recipe", PLAIN)
def test_leading_sizes_and_frozen_inputs(recipe):
    x, *weights = operands()
    for frozen in range(4):
        tensors = [t.detach().requires_grad_(i != frozen) for i, t in enumerate([x, *weights])]
        assert_same(results(lambda *t: octavo.float8_swiglu_mlp(*t, recipe), tensors),
                    results(lambda *t: separate(*t, recipe), tensors))
    only_x = [x, *[w.detach() for w in weights]]
    assert_same(results(lambda *t: octavo.float8_swiglu_mlp(*t, recipe), only_x),
                results(lambda *t: separate(*t, recipe), only_x))
    cube = [x.detach().view(2, 4, 5, 136).requires_grad_(), *weights]
    assert_same(results(lambda *t: octavo.float8_swiglu_mlp(*t, recipe), cube),
                results(lambda *t: separate(*t, recipe), cube))
    with torch.no_grad():
        assert torch.equal(octavo.float8_swiglu_mlp(x, *weights, recipe), separate(x, *weights, recipe))


@pytest.mark.parametrize("sizes", [(0, 16, 8, 4), (5, 16, 0, 4), (5, 16, 8, 0)])
def test_empty(sizes):
    for recipe in PLAIN:
        tensors = operands(*sizes)
        assert_same(results(lambda *t: octavo.float8_swiglu_mlp(*t, recipe), tensors),
                    results(lambda *t: separate(*t, recipe), tensors))


def test_special_numbers_change_no_other_token():
    for recipe in ["rowwise", "blockwise", "mxfp8"]:
        tensors = operands(requires_grad=False)
        tensors[0][3, 7], tensors[0][20, 0] = float("nan"), float("inf")
        got = octavo.float8_swiglu_mlp(*tensors, recipe)
        want = separate(*tensors, recipe)
        assert torch.equal(got.isnan(), want.isnan()) and got[3].isnan().any()
        assert torch.equal(got.nan_to_num(7), want.nan_to_num(7))
        assert got[0].isfinite().all()


@pytest.mark.parametrize("recipe", PLAIN + ["mxfp8(gw_high_precision=true)"])
def test_opcheck(recipe):
    tensors = operands()
    opcheck(octavo.float8_swiglu_mlp.default, (*tensors, recipe))
    plain = [t.detach() for t in tensors]
    opcheck(octavo.float8_swiglu_mlp.default, (plain[0].view(2, 20, 136), *tensors[1:], recipe, "off"))
    forward = octavo.float8_swiglu_mlp_forward.default
    for flags in [(True, True, True), (False, True, True), (True, False, False)]:
        opcheck(forward, (*plain, recipe, *flags))
    _, saved = forward(*plain, recipe, True, True, True)
    gate, up, x, x_scale, h, h_scale, *weights = saved
    dy = torch.randn(40, 56)
    hp = "hp" in recipe or "gw_high" in recipe
    kept = (plain[0], None, h, None) if hp else (x, x_scale, h, h_scale)
    assert (x.numel() == 0) == hp
    backward = octavo.float8_swiglu_mlp_backward.default
    opcheck(backward, (dy, gate, up, *kept, *weights, recipe, True, torch.float32))
    unkept = [t for w in plain[1:] for t in (w, None)]
    opcheck(backward, (dy, gate, up, *kept, *unkept, recipe, False, torch.bfloat16))
    opcheck(backward, (dy, gate, up, None, None, None, None, *unkept, recipe, True, torch.float32))


@pytest.mark.parametrize("recipe", PLAIN)
def test_one_graph_serves_every_length(recipe):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    weights = operands()[1:]
    run = torch.compile(lambda x: octavo.float8_swiglu_mlp(x, *weights, recipe), backend=counter,
                        fullgraph=True)
    for m in [40, 7, 133, 300, 2, 64]:
        x = torch.randn(m, 136, requires_grad=True)
        torch._dynamo.mark_dynamic(x, 0)
        got = run(x)
        got.square().sum().backward()
        again = x.detach().clone().requires_grad_()
        want = octavo.float8_swiglu_mlp(again, *weights, recipe)
        want.square().sum().backward()
        assert torch.equal(got, want) and torch.equal(x.grad, again.grad)
    assert counter.frame_count == 1


def test_autocast_casts_x_alone():
    tensors = operands()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = octavo.float8_swiglu_mlp(*tensors, "rowwise")
    y.sum().backward()
    assert y.dtype == torch.bfloat16 and tensors[0].grad.dtype == torch.float32
    assert tensors[1].grad.dtype == torch.float32
    want = octavo.float8_swiglu_mlp(tensors[0].bfloat16(), *tensors[1:], "rowwise")
    assert torch.equal(y, want)


def test_errors_name_what_is_wrong():
    x, w_gate, w_up, w_down = operands(requires_grad=False)
    call = octavo.float8_swiglu_mlp
    with pytest.raises(RuntimeError, match=r"w_gate and w_up \(F, D\).*transpose"):
        call(x, w_gate.t().contiguous(), w_up, w_down)
    with pytest.raises(RuntimeError, match="weights of one dtype"):
        call(x, w_gate, w_up.bfloat16(), w_down)
    with pytest.raises(RuntimeError, match="nearest|did you mean|rowwise"):
        call(x, w_gate, w_up, w_down, "rowise")
    x.requires_grad_()
    y = call(x, w_gate, w_up, w_down)
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="has no derivative"):
        dx.sum().backward()
