"""convert_to_float8_training and what it promises of names, ties, state dicts and errors."""

import copy

import octavo
import octavo.compat.torchao
import octavo.distributed
import pytest
import torch
from octavo import recipes
from octavo.names import hugging_face_name, torchtitan_name
from torch import nn

RECIPES = recipes.names()


class Block(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.self_attn = nn.ModuleDict({n: nn.Linear(d, d, bias=False) for n in ("q_proj", "o_proj")})
        self.mlp = nn.ModuleDict({"up_proj": nn.Linear(d, 2 * d), "down_proj": nn.Linear(2 * d, d)})

    def forward(self, x):
        x = x + self.self_attn["o_proj"](torch.tanh(self.self_attn["q_proj"](x)))
        return x + self.mlp["down_proj"](nn.functional.silu(self.mlp["up_proj"](x)))


class Model(nn.Module):
    """A decoder without attention, with Hugging Face's names and a tied head."""

    def __init__(self, d=64, v=48, tied=True):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(v, d)
        self.layers = nn.ModuleList(Block(d) for _ in range(2))
        self.lm_head = nn.Linear(d, v, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


IDS = torch.arange(32).view(2, 16) % 48


def converted(model):
    return [name for name, m in model.named_modules() if isinstance(m, octavo.Float8Linear)]


def test_two_lines_convert_every_linear_in_place():
    model = Model()
    before = {name: p.data_ptr() for name, p in model.named_parameters()}
    keys = list(model.state_dict())
    assert octavo.convert_to_float8_training(model) is model
    assert len(converted(model)) == 9
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == before
    assert list(model.state_dict()) == keys
    assert model.lm_head.weight is model.embed.weight
    assert model.lm_head.recipe == "rowwise"
    model(IDS).square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_an_optimiser_made_before_steps_the_converted_model():
    model = Model()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    octavo.convert_to_float8_training(model, recipe="mxfp8")
    losses = []
    for _ in range(5):
        loss = nn.functional.cross_entropy(model(IDS).flatten(0, 1), IDS.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_strict_state_dicts_both_ways():
    plain, fp8 = Model(), octavo.convert_to_float8_training(Model())
    state = fp8.state_dict()
    assert {k: (type(v), v.dtype) for k, v in state.items()} == {
        k: (type(v), v.dtype) for k, v in plain.state_dict().items()}
    plain.load_state_dict(state, strict=True)
    fp8.load_state_dict(plain.state_dict(), strict=True)


def test_a_root_linear_is_returned_converted():
    linear = nn.Linear(16, 32)
    fp8 = octavo.convert_to_float8_training(linear)
    assert isinstance(fp8, octavo.Float8Linear) and fp8.weight is linear.weight


def test_a_module_registered_twice_stays_one():
    shared = nn.Linear(16, 16)
    model = octavo.convert_to_float8_training(nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)}))
    assert model["a"] is model["b"][0] and isinstance(model["a"], octavo.Float8Linear)


def test_from_float_on_the_meta_device_and_with_hooks():
    with torch.device("meta"):
        linear = nn.Linear(16, 32)
    fp8 = octavo.Float8Linear.from_float(linear, recipe="mxfp8_cublas")
    assert fp8.weight is linear.weight and fp8.weight.is_meta
    assert fp8.recipe == "mxfp8(mx_rounding=floor)"
    assert fp8(torch.empty(3, 16, device="meta")).shape == (3, 32)

    linear, calls = nn.Linear(16, 32).eval(), []
    linear.register_forward_hook(lambda module, args, y: calls.append(module))
    fp8 = octavo.Float8Linear.from_float(linear)
    fp8(torch.randn(2, 16))
    assert calls == [fp8] and not fp8.training
    fp8.register_buffer("mine", torch.zeros(1))
    assert "mine" not in dict(linear.named_buffers())  # dictionaries are its own


def test_filters_know_both_names():
    for entries, left in [
        (["lm_head"], {"lm_head"}),
        (["output"], {"lm_head"}),  # torchtitan's
        (["attention.wq"], {"layers.0.self_attn.q_proj", "layers.1.self_attn.q_proj"}),
        (["layers.0"], {n for n in converted(octavo.convert_to_float8_training(Model())) if "s.0" in n}),
    ]:
        model = octavo.convert_to_float8_training(Model(), filter_fqns=entries)
        linears = {n for n, m in model.named_modules() if isinstance(m, nn.Linear)}
        assert linears - set(converted(model)) == left
    assert torchtitan_name("model.layers.3.mlp.down_proj") == "layers.3.feed_forward.w2"
    assert hugging_face_name("layers.3.feed_forward.w2") == "layers.3.mlp.down_proj"


def test_filter_function_and_small_layers():
    model = octavo.convert_to_float8_training(
        Model(), module_filter_fn=lambda module, name: module.out_features == 128)
    assert converted(model) == ["layers.0.mlp.up_proj", "layers.1.mlp.up_proj"]
    # The head 768 -> 2 and the gate with 12 inputs of the field's bug reports.
    model = nn.ModuleDict({"body": nn.Linear(768, 768), "head": nn.Linear(768, 2), "gate": nn.Linear(12, 768)})
    assert converted(octavo.convert_to_float8_training(model, auto_filter_small=True)) == ["body"]


class WithOwnForward(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


def test_errors_come_before_any_change():
    cases = [
        (dict(filter_fqns=["q_prj"]), "did you mean 'q_proj'"),
        (dict(filter_fqns=[""]), "empty entry"),
        (dict(recipe="rowise"), "did you mean 'rowwise'"),
        (dict(recipe="mxfp8(flavour=fnuz)"), "rowwise"),
        (dict(recipe="rowwise", config=octavo.convert), "got both"),
        (dict(filter_fqns=["proj", "lm_head"]), "nothing to convert"),
    ]
    for arguments, message in cases:
        model = Model()
        with pytest.raises(ValueError, match=message):
            octavo.convert_to_float8_training(model, **arguments)
        assert converted(model) == []
    with pytest.raises(TypeError, match="list of names"):
        octavo.convert_to_float8_training(Model(), filter_fqns="lm_head")
    with pytest.raises(ValueError, match="no torch.nn.Linear"):
        octavo.convert_to_float8_training(nn.LayerNorm(3))
    octavo.convert_to_float8_training(Model(), filter_fqns=["q_prj"], allow_unmatched=True)

    model = nn.Sequential(nn.Linear(16, 16), WithOwnForward(16, 16))
    with pytest.raises(ValueError, match="1: expected torch.nn.Linear's forward, got that of WithOwnForward"):
        octavo.convert_to_float8_training(model)
    assert converted(octavo.convert_to_float8_training(model, filter_fqns=["1"])) == ["0"]
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))
    with pytest.raises(ValueError, match="parametri"):
        octavo.convert_to_float8_training(normed)
    with pytest.raises(ValueError, match="no sizes yet"):
        octavo.convert_to_float8_training(nn.LazyLinear(16))
    # torch's attention multiplies by this weight itself: converting it would do nothing.
    attention = nn.MultiheadAttention(16, 2)
    with pytest.raises(ValueError, match="nothing to convert"):
        octavo.convert_to_float8_training(attention)


def test_what_is_no_model_name_or_function_is_an_error_that_says_so():
    """Not the first AttributeError on the way."""
    for function, name in [
        (octavo.convert_to_float8_training, "convert_to_float8_training: module"),
        (octavo.compat.torchao.convert_to_float8_training, "convert_to_float8_training: module"),
        (octavo.convert_moe_training, "convert_moe_training: module"),
        (octavo.distributed.float8_all_gather, "float8_all_gather: module"),
        (octavo.distributed.precompute_float8_scales, "precompute_float8_scales: module"),
        (octavo.WeightCache, "WeightCache: model"),
        (lambda model: octavo.high_precision(model).__enter__(), "high_precision: model"),
    ]:
        with pytest.raises(TypeError, match=f"{name}: expected a torch.nn.Module, got int; pass the model"):
            function(5)
        with pytest.raises(TypeError, match=r"got the class Linear; pass an instance of it: Linear\(...\)"):
            function(nn.Linear)
    with pytest.raises(ValueError, match=r"expected a torch.nn.Linear, got the class Linear; pass an instance"):
        octavo.Float8Linear.from_float(nn.Linear)
    for entries, message in [
        ([3], "filter_fqns: expected names, got 3 of type int; write the layer's name"),
        (3, "filter_fqns: expected a list of names, got int; leave it out"),
        (None, "filter_fqns: expected a list of names, got NoneType; leave it out"),
    ]:
        for convert in (octavo.convert_to_float8_training, octavo.convert_moe_training):
            with pytest.raises(TypeError, match=message):
                convert(Model(), filter_fqns=entries)
    for convert in (octavo.convert_to_float8_training, octavo.convert_moe_training):
        with pytest.raises(TypeError, match="module_filter_fn: expected a function .*, got str; leave it out"):
            convert(Model(), module_filter_fn="lm_head")
    for word in ("yes", True, None):
        with pytest.raises(ValueError, match="keep_weight_transposed: expected auto, on or off, got .*; leave it out"):
            octavo.convert_to_float8_training(Model(), keep_weight_transposed=word)
    with pytest.raises(TypeError, match="recipe: expected a name such as 'rowwise', got int"):
        octavo.convert_to_float8_training(Model(), recipe=8)


def test_every_alias_of_torchao_and_torchtitan_is_a_recipe():
    expected = {
        "fp8_rowwise": "rowwise", "mxfp8_rceil": "mxfp8",
        "mxfp8_rceil_wgrad_with_hp": "mxfp8(gw_high_precision=true)",
        "mxfp8_cublas": "mxfp8(mx_rounding=floor)", "mxfp8_cublas_rceil": "mxfp8",
    }  # fmt: skip
    assert expected.items() <= recipes.aliases().items()
    for alias, canonical in recipes.aliases().items():
        assert octavo.Float8Linear(8, 8, recipe=alias).recipe == recipes.canonical(canonical)


def test_high_precision_is_the_plain_model():
    plain = Model()
    model = octavo.convert_to_float8_training(copy.deepcopy(plain))
    fp8 = model(IDS)
    with octavo.high_precision(model):
        assert torch.equal(model(IDS), plain(IDS))
        with octavo.high_precision(model.layers[0]):
            pass
        assert torch.equal(model(IDS), plain(IDS))  # scopes nest
    assert torch.equal(model(IDS), fp8) and not torch.equal(fp8, plain(IDS))
    with pytest.raises(ValueError, match="convert it first"), octavo.high_precision(plain):
        pass


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_weight_cache_changes_no_bit_and_must_be_refreshed(recipe):
    model = octavo.convert_to_float8_training(Model(tied=False), recipe=recipe)

    def results():
        model.zero_grad()
        y = model(IDS)
        y.square().mean().backward()
        return [y.detach(), *(p.grad for p in model.parameters())]

    want = results()
    with octavo.WeightCache(model) as cache:
        for got, expected in zip(results(), want):
            assert torch.equal(got, expected)
        with torch.no_grad():
            model.lm_head.weight.mul_(2)
        assert torch.equal(results()[0], want[0])  # nobody has looked at the weight
        cache.refresh()
        assert not torch.equal(results()[0], want[0])
        with pytest.raises(ValueError, match="refresh"), octavo.WeightCache(model):
            pass
    assert not model.lm_head.quantised_weight


def test_grad_inference_and_no_grad_give_the_same_bits():
    model, x = octavo.convert_to_float8_training(nn.Linear(64, 32)), torch.randn(3, 5, 64)
    want = model(x)
    with torch.no_grad():
        assert torch.equal(model(x), want)
    with torch.inference_mode():
        assert torch.equal(model(x), want)


def test_quantize_and_scaled_mm():
    a, b = torch.randn(33, 48), torch.randn(15, 48)
    qa, qb = octavo.quantize(a), octavo.quantize(b)
    assert qa.data.dtype == torch.float8_e4m3fn and qa.data.shape == a.shape
    y = octavo.scaled_mm(qa, qb, out_dtype=torch.float32)
    want = (qa.data.float() * qa.scale.view(-1, 1)) @ (qb.data.float() * qb.scale.view(-1, 1)).t()
    assert torch.allclose(y, want, rtol=1e-5, atol=1e-5)  # fp32 sums in another order
    shards = [octavo.quantize(rows, amax=torch.ops.octavo.amax(rows, ["rowwise"])) for rows in a.split(20)]
    assert all(torch.equal(torch.cat([s[i].view(torch.uint8) for s in shards]), qa[i].view(torch.uint8)) for i in (0, 1))
    q = octavo.quantize(torch.tensor([[0.5, 1, 3, -6]]), granularity="tensorwise")
    assert q.data.view(torch.uint8).tolist() == [[0x61, 0x69, 0x76, 0xFE]]
    assert abs(q.scale.item() - 0.013392857) < 1e-9


def test_deep_copies_and_pickles():
    model = octavo.convert_to_float8_training(Model())
    twin = copy.deepcopy(model)
    assert torch.equal(twin(IDS), model(IDS)) and twin.lm_head.weight is twin.embed.weight
    assert twin.lm_head.weight is not model.lm_head.weight
