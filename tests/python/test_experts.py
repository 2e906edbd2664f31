"""grouped_linear and convert_moe_training: whatever way a model multiplies by its experts' weights."""

import octavo
import pytest
import torch
import torch.nn.functional as F
from torch import nn

RECIPES = ["rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"]
E, D, H = 4, 32, 64


class Experts(nn.Module):
    """SwiGLU experts on tokens that are sorted already, in five ways of writing the products."""

    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.w1 = nn.Parameter(torch.randn(E, 2 * H, D) * D**-0.5)
        self.w2 = nn.Parameter(torch.randn(E, D, H) * H**-0.5)

    def product(self, x, w, counts):
        if self.way == "grouped_mm":
            offs = counts.cumsum(0).to(torch.int32)
            return torch._grouped_mm(x.bfloat16(), w.bfloat16().transpose(-2, -1), offs=offs).to(x.dtype)
        if self.way == "batched":
            return torch.bmm(x.view(E, -1, x.shape[-1]), w.transpose(-2, -1)).view(x.shape[0], -1)
        parts = x.split(counts.tolist())
        if self.way == "linear":
            return torch.cat([F.linear(part, w[i]) for i, part in enumerate(parts)])
        if self.way == "matmul":
            return torch.cat([part @ w[i].transpose(-2, -1) for i, part in enumerate(parts)])
        return torch.einsum("mk,enk->men", x, w).reshape(-1, w.shape[1])[: x.shape[0]]

    def forward(self, x, counts):
        gate, up = self.product(x, self.w1, counts).chunk(2, -1)
        return self.product(F.silu(gate) * up, self.w2, counts)


class Moe(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.experts, self.out = Experts(way), nn.Linear(D, D)

    def forward(self, x, counts):
        return self.out(self.experts(x, counts))


COUNTS = torch.tensor([8, 8, 8, 8])


def reference(model, x, counts, recipe, dtype=torch.float32):
    offs = counts.cumsum(0).to(torch.int32)
    gate, up = octavo.grouped_linear(x.to(dtype), model.w1.to(dtype), offs, recipe).float().chunk(2, -1)
    return octavo.grouped_linear((F.silu(gate) * up).to(dtype), model.w2.to(dtype), offs, recipe).float()


@pytest.mark.parametrize("way", ["grouped_mm", "batched", "linear", "matmul"])
@pytest.mark.parametrize("recipe", ["rowwise", "mxfp8"])
def test_every_way_of_writing_the_products_runs_in_fp8(way, recipe):
    model = octavo.convert_moe_training(nn.ModuleDict({"experts": Experts(way)}), recipe=recipe)["experts"]
    x = torch.randn(32, D)
    y = model(x, COUNTS)
    dtype = torch.bfloat16 if way == "grouped_mm" else torch.float32  # as torchtitan casts
    assert torch.equal(y, reference(model, x, COUNTS, recipe, dtype))
    with octavo.high_precision(model):
        plain = model(x, COUNTS)
    assert 1e-3 < (plain - y).norm() / plain.norm() < 0.1
    y.square().sum().backward()
    assert model.w1.grad.shape == model.w1.shape and model.w1.grad.abs().sum() > 0


def test_a_forward_without_products_is_an_error():
    model = octavo.convert_moe_training(Moe("einsum"))
    with pytest.raises(RuntimeError, match="nothing ran in FP8"):
        model(torch.randn(32, D), COUNTS)


def test_dense_and_experts_in_either_order():
    def count(model):
        return [type(m).__name__ for m in model.modules() if hasattr(type(m), "high_precision")]

    a = octavo.convert_moe_training(octavo.convert_to_float8_training(Moe("linear")))
    b = octavo.convert_to_float8_training(octavo.convert_moe_training(Moe("linear")))
    assert count(a) == count(b) == ["Float8Experts", "Float8Linear"]
    assert isinstance(a.experts, Experts) and list(a.state_dict()) == list(Moe("linear").state_dict())
    a.load_state_dict(Moe("linear").state_dict(), strict=True)
    # "experts" is a name for both conversions' filters.
    octavo.convert_to_float8_training(Moe("linear"), filter_fqns=["experts"])
    with pytest.raises(ValueError, match="nothing to convert"):
        octavo.convert_moe_training(Moe("linear"), filter_fqns=["experts"])


def test_errors():
    for arguments, message in [
        (dict(recipe="tensorwise"), "use rowwise"),
        (dict(recipe="rowise"), "did you mean"),
        (dict(target_fqns=["exprts"]), "did you mean 'experts'"),
    ]:
        with pytest.raises(ValueError, match=message):
            octavo.convert_moe_training(Moe("linear"), **arguments)
    with pytest.raises(ValueError, match="nothing to convert"):
        octavo.convert_moe_training(nn.Conv1d(4, 4, 3), allow_unmatched=True)
    for wrong in (8, ["rowwise"]):
        with pytest.raises(TypeError, match="recipe: expected a name such as 'rowwise', got"):
            octavo.convert_moe_training(Moe("linear"), recipe=wrong)
    with pytest.raises(ValueError, match="use rowwise"):
        octavo.grouped_linear(torch.randn(8, D), torch.randn(E, H, D), COUNTS.int(), "tensorwise")


def test_experts_without_tokens_and_rows_past_the_end():
    x = torch.randn(40, D, requires_grad=True)
    w = torch.randn(E, H, D, requires_grad=True)
    y = octavo.grouped_linear(x, w, torch.tensor([16, 16, 30, 30], dtype=torch.int32))
    y.sum().backward()
    assert (y[30:] == 0).all() and (x.grad[30:] == 0).all()
    assert (w.grad[1] == 0).all() and (w.grad[3] == 0).all() and (w.grad[0] != 0).any()


def test_compiled_experts_equal_eager():
    model = octavo.convert_moe_training(Moe("grouped_mm"))
    x = torch.randn(32, D)
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    y = run(x, COUNTS)
    assert torch.equal(y, model(x, COUNTS))
    with octavo.high_precision(model):
        assert not torch.equal(y, model(x, COUNTS))
    model.zero_grad()
    run(x, COUNTS).square().sum().backward()
    compiled = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x, COUNTS).square().sum().backward()
    for got, p in zip(compiled, model.parameters()):
        assert torch.equal(got, p.grad)
    with octavo.high_precision(model):
        assert torch.equal(run(x, COUNTS), model(x, COUNTS))


def test_transformers_mixtral_in_fp8():
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2)
    ids = torch.arange(32).view(2, 16)
    logits = {}
    for implementation in ("eager", "grouped_mm"):
        torch.manual_seed(0)
        model = transformers.MixtralForCausalLM._from_config(config, experts_implementation=implementation)
        plain = model(ids).logits
        octavo.convert_moe_training(octavo.convert_to_float8_training(model, filter_fqns=["lm_head"]))
        out = model(ids, labels=ids)
        out.loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        logits[implementation] = out.logits
        assert 1e-3 < (out.logits - plain).norm() / plain.norm() < 0.1
        with octavo.high_precision(model):
            assert torch.equal(model(ids).logits, plain)
    # The same products; tokens of one expert are summed in another order.
    assert (logits["eager"] - logits["grouped_mm"]).norm() < 0.02 * logits["eager"].norm()
