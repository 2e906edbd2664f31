"""SwiGLUMLP and RMSNormLinear beside the modules they stand for."""

import copy

import octavo
import pytest
import torch
from octavo import recipes
from torch import nn

RECIPES = recipes.names()


class Mlp(nn.Module):
    def __init__(self, d=64, f=96, bias=False):
        super().__init__()
        torch.manual_seed(0)
        self.gate_proj, self.up_proj = nn.Linear(d, f, bias=bias), nn.Linear(d, f, bias=bias)
        self.down_proj = nn.Linear(f, d, bias=bias)

    def forward(self, x):
        return self.down_proj(torch.ops.octavo.swiglu(self.gate_proj(x), self.up_proj(x)))


def step(model, tokens=40):
    torch.manual_seed(1)
    x = torch.randn(2, tokens // 2, 64, requires_grad=True)
    model.zero_grad()
    y = model(x)
    y = torch.cat(y, -1) if isinstance(y, tuple) else y
    y.square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("recipe", RECIPES)
def test_swiglu_mlp_is_its_three_linears(recipe, bias):
    parts = octavo.convert_to_float8_training(Mlp(bias=bias), recipe=recipe)
    mlp = Mlp(bias=bias)
    keys = list(mlp.state_dict())
    fused = octavo.SwiGLUMLP(mlp.gate_proj, mlp.up_proj, mlp.down_proj, recipe=recipe)
    assert list(fused.state_dict()) == keys and fused.gate_proj.weight is mlp.gate_proj.weight
    for got, want in zip(step(fused), step(parts)):
        assert torch.equal(got, want)
    with octavo.WeightCache(fused):
        for got, want in zip(step(fused), step(parts)):
            assert torch.equal(got, want)
    with octavo.high_precision(fused):
        y = fused(torch.ones(1, 64))
        want = Mlp(bias=bias)
        h = nn.functional.silu(want.gate_proj(torch.ones(1, 64))) * want.up_proj(torch.ones(1, 64))
        assert torch.equal(y, want.down_proj(h))


@pytest.mark.parametrize("recipe", ["rowwise", "mxfp8"])
def test_rms_norm_linear(recipe):
    torch.manual_seed(0)
    norm, q, k = nn.RMSNorm(64, eps=1e-5), nn.Linear(64, 32), nn.Linear(64, 16, bias=False)
    block = octavo.RMSNormLinear(norm, recipe=recipe, q_proj=q, k_proj=k)
    assert block.q_proj.weight is q.weight

    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = copy.deepcopy(norm)
            self.q_proj, self.k_proj = (octavo.Float8Linear.from_float(copy.deepcopy(m), recipe=recipe) for m in (q, k))

        def forward(self, x):
            h = self.norm(x)
            return self.q_proj(h), self.k_proj(h)

    for got, want in zip(step(block), step(Parts())):
        # torch's norm may differ in the last bit, and FP8 makes a step of an ulp at times.
        assert (got - want).norm() <= 0.01 * want.norm()
    assert octavo.RMSNormLinear(norm, q_proj=q)(torch.ones(3, 64)).shape == (3, 32)
    with pytest.raises(ValueError, match="by name"):
        octavo.RMSNormLinear(norm)


def test_sizes_that_do_not_go_together_are_errors_at_construction():
    def linear(n, k):
        return nn.Linear(k, n, bias=False)

    for linears, message in [
        ((linear(96, 64), linear(95, 64), linear(64, 96)), r"up_proj: expected .*\(96, 64\), got \(95, 64\); pass both"),
        ((linear(96, 64), linear(96, 32), linear(64, 96)), r"up_proj: expected .*\(96, 64\), got \(96, 32\)"),
        ((linear(96, 64), linear(96, 64), linear(96, 64)), r"down_proj: .*F = 96, .*got \(96, 64\); pass the projection"),
    ]:
        with pytest.raises(ValueError, match=f"SwiGLUMLP: {message}"):
            octavo.SwiGLUMLP(*linears)
    octavo.SwiGLUMLP(linear(96, 64), linear(96, 64), linear(32, 96))  # another width may leave it
    for linears, got in [((nn.ReLU(), linear(96, 64), linear(64, 96)), "gate_proj: .*got ReLU; pass the linear"),
                         ((linear(96, 64), linear(96, 64), nn.Linear), "down_proj: .*got the class Linear; pass an inst")]:
        with pytest.raises(TypeError, match=f"SwiGLUMLP: {got}"):
            octavo.SwiGLUMLP(*linears)
    norm = nn.RMSNorm(64)
    with pytest.raises(ValueError, match=r"RMSNormLinear: q_proj: expected a weight \(N, 64\).*got \(16, 32\); pass"):
        octavo.RMSNormLinear(norm, q_proj=linear(16, 32))
    for name in ("forward", "eps"):
        with pytest.raises(ValueError, match=f"RMSNormLinear: {name}: expected a name of .*pass it as {name}_proj="):
            octavo.RMSNormLinear(norm, **{name: linear(16, 64)})
    for wrong in (nn.RMSNorm(64, elementwise_affine=False), nn.Identity(), 5):
        with pytest.raises(TypeError, match="RMSNormLinear: norm: expected a module with a weight .*elementwise_affine"):
            octavo.RMSNormLinear(wrong, q_proj=linear(16, 64))
    with pytest.raises(TypeError, match="RMSNormLinear: q_proj: expected a torch.nn.Linear, got ReLU"):
        octavo.RMSNormLinear(norm, q_proj=nn.ReLU())


def test_both_compile():
    torch._dynamo.reset()
    mlp = Mlp()
    block = nn.Sequential(
        octavo.RMSNormLinear(nn.RMSNorm(64), proj=nn.Linear(64, 64)),
        octavo.SwiGLUMLP(mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    run = torch.compile(block, backend="aot_eager", fullgraph=True)
    results = []
    for function in (run, block):
        block.zero_grad()
        function(torch.linspace(-1, 1, 40 * 64).view(40, 64)).square().sum().backward()
        results.append([p.grad.clone() for p in block.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results))
