"""torch's flop counter counts a converted model as it counts the model, forward and backward."""

import octavo
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def flops(function):
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 32, bias=False))


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise_with_gw_hp", "mxfp8"])
@pytest.mark.parametrize("keep", ["on", "off"])
def test_linears(recipe, keep):
    x = torch.randn(2, 20, 64)
    model = octavo.convert_to_float8_training(mlp(), recipe=recipe, keep_weight_transposed=keep)
    assert all(m.keep_weight_transposed == keep for m in model if isinstance(m, octavo.Float8Linear))
    for gradient in (True, False):
        def step(model):
            with torch.set_grad_enabled(gradient):
                y = model(x.detach().requires_grad_(gradient))
                if gradient:
                    y.sum().backward()

        got, want = flops(lambda: step(model)), flops(lambda: step(mlp()))
        assert got == want == (2 * 40 * (64 * 96 + 96 * 32) * (3 if gradient else 1))
    frozen = mlp().requires_grad_(False)
    octavo.convert_to_float8_training(frozen, recipe=recipe)
    got = flops(lambda: frozen(x.detach().requires_grad_()).sum().backward())
    assert got == 2 * 40 * (64 * 96 + 96 * 32) * 2


def test_a_network_as_one_operator_and_experts():
    d, f, m = 64, 128, 48
    x = torch.randn(m, d, requires_grad=True)
    gate, up, down = (nn.Linear(*sizes, bias=False) for sizes in ((d, f), (d, f), (f, d)))
    network = octavo.SwiGLUMLP(gate, up, down)
    once = 2 * m * d * f * 3
    assert flops(lambda: network(x)) == once
    assert flops(lambda: network(x).sum().backward()) == 3 * once
    w = torch.randn(4, 32, d, requires_grad=True)
    offs = torch.tensor([16, 16, 32, 48], dtype=torch.int32)
    once = 2 * m * d * 32
    assert flops(lambda: octavo.grouped_linear(x, w, offs)) == once
    assert flops(lambda: octavo.grouped_linear(x, w, offs).sum().backward()) == 3 * once


def test_products_by_themselves():
    a, b = octavo.quantize(torch.randn(16, 64)), octavo.quantize(torch.randn(24, 64))
    assert flops(lambda: octavo.scaled_mm(a, b)) == 2 * 16 * 64 * 24
