"""octavo::float8_experts against the operators it stands for, bit for bit; opcheck and compile."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck

from gradients import assert_same, results

octavo = torch.ops.octavo
RECIPES = ["rowwise", "rowwise(flavour=fnuz)", "rowwise_with_gw_hp",
           "rowwise_with_gw_hp(flavour=fnuz)", "blockwise", "blockwise(flavour=fnuz)", "mxfp8",
           "mxfp8(gw_high_precision=true)"]
PLAIN = ["rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"]
GROUPINGS = [[17, 0, 70, 3], [16, 16, 0], [0, 0, 0, 0], [5]]


def operands(sizes, d=40, f=136, out=24, past=0, dtype=torch.float32, requires_grad=True):
    torch.manual_seed(0)
    m, experts = sum(sizes) + past, len(sizes)
    tensors = [torch.randn(s).to(dtype).requires_grad_(requires_grad)
               for s in [(m, d), (experts, 2 * f, d), (experts, out, f)]]
    return tensors, torch.tensor(sizes).cumsum(0).to(torch.int32)


def separate(x, w_gate_up, w_down, offs, recipe):
    gate_up = octavo.float8_grouped_linear(x, w_gate_up, offs, recipe)
    return octavo.float8_grouped_linear(octavo.swiglu(gate_up), w_down, offs, recipe)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_two_grouped_linears_and_a_swiglu(recipe, dtype):
    for sizes in GROUPINGS:
        for past in [0, 3]:
            tensors, offs = operands(sizes, past=past, dtype=dtype)
            want = results(lambda *t: separate(*t, offs, recipe), tensors)
            for keep in ["on", "off"]:
                got = results(lambda *t: octavo.float8_experts(*t, offs, recipe, keep), tensors)
                assert_same(got, want)


@pytest.mark.parametrize("recipe", PLAIN)
def test_frozen_inputs_and_no_gradients(recipe):
    tensors, offs = operands([17, 0, 20, 3])
    for frozen in range(3):
        some = [t.detach().requires_grad_(i != frozen) for i, t in enumerate(tensors)]
        assert_same(results(lambda *t: octavo.float8_experts(*t, offs, recipe), some),
                    results(lambda *t: separate(*t, offs, recipe), some))
    with torch.no_grad():
        assert torch.equal(octavo.float8_experts(*tensors, offs, recipe),
                           separate(*tensors, offs, recipe))


@pytest.mark.parametrize("recipe", PLAIN + ["mxfp8(gw_high_precision=true)"])
def test_opcheck(recipe):
    tensors, offs = operands([17, 0, 20, 3], past=2)
    opcheck(octavo.float8_experts.default, (*tensors, offs, recipe))
    plain = [t.detach() for t in tensors]
    forward = octavo.float8_experts_forward.default
    for flags in [(True, True, True), (False, True, True), (True, False, False)]:
        opcheck(forward, (*plain, offs, recipe, *flags))
    _, saved = forward(*plain, offs, recipe, True, True, True)
    gate_up, x, x_scale, h, h_scale, *weights = saved
    dy = torch.randn(42, 24)
    hp = "hp" in recipe or "gw_high" in recipe
    kept = (plain[0], None, h, None) if hp else (x, x_scale, h, h_scale)
    backward = octavo.float8_experts_backward.default
    opcheck(backward, (dy, gate_up, *kept, *weights, offs, recipe, True, torch.float32))
    unkept = [t for w in plain[1:] for t in (w, None)]
    opcheck(backward, (dy, gate_up, *kept, *unkept, offs, recipe, False, torch.bfloat16))
    opcheck(backward, (dy, gate_up, None, None, None, None, *unkept, offs, recipe, True,
                       torch.float32))


@pytest.mark.parametrize("recipe", PLAIN)
def test_one_graph_serves_every_length(recipe):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    (_, *weights), _ = operands([1, 1, 1])
    run = torch.compile(lambda x, offs: octavo.float8_experts(x, *weights, offs, recipe),
                        backend=counter, fullgraph=True)
    for sizes in [[5, 0, 12], [100, 30, 3], [1, 1, 0], [64, 64, 64]]:
        offs = torch.tensor(sizes).cumsum(0).to(torch.int32)
        x = torch.randn(sum(sizes), 40, requires_grad=True)
        torch._dynamo.mark_dynamic(x, 0)
        got = run(x, offs)
        got.square().sum().backward()
        again = x.detach().clone().requires_grad_()
        want = octavo.float8_experts(again, *weights, offs, recipe)
        want.square().sum().backward()
        assert torch.equal(got, want) and torch.equal(x.grad, again.grad)
    assert counter.frame_count == 1


def test_errors_name_what_is_wrong():
    (x, w_gate_up, w_down), offs = operands([5, 7], requires_grad=False)
    with pytest.raises(RuntimeError, match=r"w_gate_up \(E, 2F, D\).*stack gate and up"):
        octavo.float8_experts(x, w_gate_up[:, :136], w_down, offs)
    with pytest.raises(RuntimeError, match="weights of one dtype"):
        octavo.float8_experts(x, w_gate_up, w_down.bfloat16(), offs)
    with pytest.raises(RuntimeError, match="rowwise"):
        octavo.float8_experts(x, w_gate_up, w_down, offs, "tensorwise")
