"""The torchtitan converters: convert() and the hooks, on torchtitan's own debug models on the CPU."""

import dataclasses
import functools
import logging

import octavo
import pytest
import torch

pytest.importorskip("torchtitan")
pytest.importorskip("torchtitan.protocols.model_converter", reason="the protocol of torchtitan 0.2")
import octavo.torchtitan as ours  # noqa: E402
from torchtitan.config import ConfigManager  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402
from torchtitan.models.llama3 import llama3_args  # noqa: E402
from torchtitan.models.llama3.model.model import Transformer  # noqa: E402
from torchtitan.models.moe import utils as moe_utils  # noqa: E402
from torchtitan.models.moe.moe import GroupedExperts  # noqa: E402
from torchtitan.protocols.model_converter import build_model_converters  # noqa: E402


def config(*flags):
    """A configuration as torchtitan's command line makes it."""
    return ConfigManager().parse_args(["--job.custom_config_module=octavo.torchtitan", *flags])


def dims(dp_shard=1, world=1):
    return ParallelDims(dp_replicate=1, dp_shard=dp_shard, cp=1, tp=1, pp=1, ep=1, etp=1, world_size=world)


def llama(convert=lambda model: None):
    """In torchtitan's order: built on the meta device, converted, allocated, initialised."""
    arguments = dataclasses.replace(llama3_args["debugmodel"], n_layers=2, vocab_size=256)
    with torch.device("meta"):
        model = Transformer(arguments)
    convert(model)
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        model.init_weights()
    return model


def converted(model):
    return {n: m.recipe for n, m in model.named_modules() if isinstance(m, octavo.Float8Linear)}


def step(model):
    tokens = torch.arange(32).view(1, 32)
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    return loss.item()


@pytest.mark.parametrize("flags,recipe,count", [
    ([], "tensorwise", 15),
    (["--quantize.linear.float8.recipe_name=rowwise", "--quantize.linear.float8.filter_fqns=output"], "rowwise", 14),
    (["--quantize.linear.float8.filter_fqns=attention.wq,attention.wk"], "tensorwise", 11),
    (["--octavo.recipe=blockwise"], "blockwise", 15),
])
def test_the_flags_convert_and_the_model_trains(flags, recipe, count):
    converters = build_model_converters(config("--model.converters=octavo.linear.float8", *flags), dims())
    model = llama(converters.convert)
    assert len(converted(model)) == count and set(converted(model).values()) == {recipe}
    loss = step(model)
    with octavo.high_precision(model):
        model.zero_grad()
        assert abs(step(model) - loss) < 0.02 * loss
    converters.post_optimizer_hook([model])  # nothing to precompute: no error


def test_torchtitans_rules(caplog):
    names = "--quantize.linear.float8.filter_fqns=auto_filter_small_kn,wrong_name"
    job = config("--model.converters=octavo.linear.float8", names)
    with caplog.at_level(logging.WARNING):
        model = llama(build_model_converters(job, dims()).convert)
    assert "wrong_name" in caplog.text  # torchtitan warns where octavo itself raises
    assert "auto_filter_small_kn" in job.quantize.linear.float8.filter_fqns  # the job's list is not ours
    assert 0 < len(converted(model)) <= 15
    # Sizes that are no multiples of 16 are never converted.
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(32, 32), "b": torch.nn.Linear(32, 40)})
    build_model_converters(config("--model.converters=octavo.linear.float8"), dims()).convert(model)
    assert list(converted(model)) == ["a"]
    # MX leaves the head alone by default, and rounds by FLOOR as the recipe of that name does.
    model = llama(build_model_converters(config("--model.converters=octavo.linear.mx"), dims()).convert)
    assert len(converted(model)) == 14 and set(converted(model).values()) == {"mxfp8(mx_rounding=floor)"}


def test_fsdp_flags_switch_the_fp8_all_gather_on():
    flags = ["--model.converters=octavo.linear.float8",
             "--quantize.linear.float8.enable_fsdp_float8_all_gather",
             "--quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp"]
    for shards in (1, 2):
        converters = build_model_converters(config(*flags), dims(shards, shards))
        model = llama(converters.convert)
        kind = type(model.layers["0"].attention.wq.weight).__name__
        assert kind == ("ShardedWeight" if shards == 2 else "Parameter")
        converters.post_optimizer_hook([model])


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_fp8_all_gather_knows_of_activation_checkpointing(mode):
    """A rowwise weight's backward then gathers the bytes of both passes."""
    flags = ["--model.converters=octavo.linear.float8", "--quantize.linear.float8.recipe_name=rowwise",
             "--quantize.linear.float8.enable_fsdp_float8_all_gather", f"--activation_checkpoint.mode={mode}"]
    model = llama(build_model_converters(config(*flags), dims(2, 2)).convert)
    assert model.layers["0"].attention.wq.weight._casts.forward_in_backward == (mode != "none")


@pytest.mark.parametrize("grouped_mm", [True, False])
@pytest.mark.parametrize("name,recipe", [("octavo.grouped_mm.float8", "rowwise"), ("octavo.grouped_mm.mx", "mxfp8")])
def test_experts(name, recipe, grouped_mm, monkeypatch):
    # torchtitan pads the groups by a Triton kernel; it has another way for the CPU.
    indices = functools.partial(moe_utils.generate_permute_indices, use_cpu=True)
    monkeypatch.setattr(moe_utils, "generate_permute_indices", indices)
    torch.manual_seed(0)
    experts = GroupedExperts(dim=64, hidden_dim=96, num_experts=4, use_grouped_mm=grouped_mm)
    with torch.no_grad():
        experts.init_weights(0.5)
    model = torch.nn.ModuleDict({"experts": experts})
    section = name.split(".", 1)[1]
    job = config(f"--model.converters={name}", f"--quantize.{section}.fqns=experts")
    build_model_converters(job, dims()).convert(model)
    assert model["experts"].recipe == recipe
    x, counts = torch.randn(40, 64), torch.tensor([9, 0, 20, 11])
    y = experts(x, counts)
    y.square().sum().backward()
    assert (experts.w1.grad[1] == 0).all() and experts.w1.grad[0].abs().sum() > 0
    with octavo.high_precision(model):
        plain = experts(x, counts)
    assert 1e-3 < (y - plain).norm() / plain.norm() < 0.12
