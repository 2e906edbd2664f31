"""DDP, FSDP2 with FP8 all-gather, tensor parallelism and distributed checkpoints, on gloo ranks."""

import copy
import functools

import octavo
import pytest
import torch
import torch.distributed.checkpoint as dcp
from octavo.distributed import float8_all_gather, precompute_float8_scales
from octavo.distributed import gathered as gathered_weights
from octavo.distributed.gathered import GatheredWeight
from octavo.distributed.sharded import ShardedWeight
from ranks import run_ranks
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

STEPS = 10


class Mlp(nn.Module):
    def __init__(self, k=64, h=96, out=64, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down = nn.Linear(k, h), nn.Linear(h, out)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def batch(step, tokens=16):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(tokens, 64, generator=generator), torch.randn(tokens, 64, generator=generator)


def train(model, steps=STEPS, rank=0, world=1, after_step=lambda: None, tokens=16):
    """Losses of SGD steps; with several ranks, each on its own slice of the tokens."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    losses = []
    for step in range(steps):
        x, target = (t.chunk(world)[rank] for t in batch(step, tokens))
        loss = (model(x) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        after_step()
        losses.append(loss.item())
    return losses


def full(model):
    return {n: p.full_tensor().detach() if hasattr(p, "full_tensor") else p.detach()
            for n, p in model.named_parameters()}


def difference(a, b):
    """The largest relative difference of two models' parameters, as norms."""
    return max(((a[n] - b[n]).norm() / b[n].norm()).item() for n in b)


def ddp(rank, world, recipe):
    model = octavo.convert_to_float8_training(Mlp(), recipe=recipe)
    parallel = nn.parallel.DistributedDataParallel(model)
    train(parallel, rank=rank, world=world)
    return full(model)


@pytest.mark.parametrize("recipe", ["rowwise", "mxfp8"])
def test_ddp(recipe):
    results = run_ranks(2, ddp, recipe)
    assert all(torch.equal(results[0][n], results[1][n]) for n in results[0])
    one = octavo.convert_to_float8_training(Mlp(), recipe=recipe)
    train(one)
    # dw's operands are scaled along the tokens, which are other blocks on half of them.
    assert difference(results[0], full(one)) < 5e-3


def fsdp(rank, world, recipe, precompute, same_tokens):
    model = octavo.convert_to_float8_training(Mlp(h=100), recipe=recipe)
    float8_all_gather(model)
    for layer in (model.up, model.down):
        fully_shard(layer, reshard_after_forward=True)
    fully_shard(model, reshard_after_forward=True)
    assert isinstance(model.up.weight._local_tensor, ShardedWeight)
    kinds = []
    model.up.register_forward_pre_hook(lambda module, args: kinds.append(type(module.weight)))
    after = (lambda: precompute_float8_scales(model)) if precompute else (lambda: None)
    tokens = dict(rank=0, world=1) if same_tokens else dict(rank=rank, world=world)
    losses = train(model, after_step=after, tokens=24, **tokens)
    assert kinds == [GatheredWeight] * STEPS
    return losses, full(model)


def gathered(rank, world, recipe, k, out, both):
    """What a rank's linear gets in forward and in backward, of a weight with an outlier, and whether its
    results are those of the whole weight."""
    torch.manual_seed(0)
    linear = nn.Linear(k, out, bias=False)
    with torch.no_grad():
        linear.weight[out // 2, k // 2] = 37.0
    model = nn.Sequential(octavo.convert_to_float8_training(linear, recipe=recipe))
    float8_all_gather(model, activation_checkpointing=both)
    fully_shard(model[0], reshard_after_forward=True)
    seen = []

    def look(w):
        seen.append((w._row_bytes.clone(), w._row_scale.clone(), w._column_bytes.clone(), w._column_scale.clone()))

    model[0].register_forward_pre_hook(lambda module, args: look(module.weight))
    x = torch.randn(8, k, requires_grad=True)
    y = model(x)
    original = gathered_weights._backward

    def spy(dy, xb, xs, w, *rest):
        look(w)
        return original(dy, xb, xs, w, *rest)

    gathered_weights._backward = spy
    y.sum().backward()
    gathered_weights._backward = original
    gradient = model[0].weight.grad.full_tensor()
    reference = octavo.convert_to_float8_training(copy.deepcopy(linear), recipe=recipe)
    x2 = x.detach().clone().requires_grad_()
    y2 = reference(x2)
    y2.sum().backward()
    return (seen, octavo._library.ops.quantize_weight(linear.weight, recipe), torch.equal(y, y2),
            torch.equal(x.grad, x2.grad), difference({"w": gradient}, {"w": reference.weight.grad}))


@pytest.mark.parametrize("recipe,both", [
    ("tensorwise", False), ("rowwise", False), ("rowwise(flavour=fnuz)", False), ("rowwise", True)])
@pytest.mark.parametrize("world,k,out", [(2, 64, 32), (3, 1024, 4096), (8, 32, 4)])
def test_gathered_bytes_are_those_of_the_whole_weight(recipe, both, world, k, out):
    if out == 4096 and (recipe != "rowwise" or both):
        world, k, out = 3, 128, 512  # the same unevenness, less work
    for seen, (rows, row_scale, transposed, column_scale), y, dx, dw in run_ranks(
            world, gathered, recipe, k, out, both):
        (data, scale, _, other), (data1, other1, data2, scale2) = seen
        assert torch.equal(data, rows) and torch.equal(scale, row_scale)
        assert torch.equal(data2.t(), transposed) and torch.equal(scale2, column_scale)
        if both:  # forward's, again
            assert torch.equal(data1, rows) and torch.equal(other1, row_scale) and other.isnan().all()
        elif recipe != "tensorwise":  # the other pass's scales cannot be used by mistake
            assert other.isnan().all() and other1.isnan().all()
        assert y and dx and dw < 1e-6  # dw: an average over ranks of equal numbers


class Operators(TorchDispatchMode):
    """The names of the operators that work: those that are no views and allocate nothing alone."""

    VIEWS = {"view", "t", "detach", "slice", "alias", "as_strided", "empty", "new_empty", "split"}

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name not in self.VIEWS:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def operators_of_a_cast(rank, world, recipe, precompute, k, out):
    """What a shard is given to FSDP2 with, in forward and in backward, and the bytes' numbers of NaN."""
    linear = nn.Linear(k, out, bias=False)
    with torch.no_grad():
        linear.weight[out - 1, 3], linear.weight[0, 5] = float("nan"), float("inf")
    model = nn.Sequential(octavo.convert_to_float8_training(linear, recipe=recipe))
    float8_all_gather(model)
    fully_shard(model[0], reshard_after_forward=True)
    calls, original = [], ShardedWeight.fsdp_pre_all_gather

    @functools.wraps(original)  # FSDP2 asks for its signature
    def spy(self, *arguments):
        with Operators() as operators:
            result = original(self, *arguments)
        calls.append(operators.names)
        return result

    ShardedWeight.fsdp_pre_all_gather = spy
    gathered = []
    model[0].register_forward_pre_hook(lambda module, args: gathered.append(module.weight._row_scale.clone()))
    for _ in range(2):  # at the first step the recipe's format is asked for, and nothing is known
        calls.clear()
        model(torch.randn(8, k, requires_grad=True)).sum().backward()
        if precompute:
            with Operators() as operators:
                precompute_float8_scales(model)
    ShardedWeight.fsdp_pre_all_gather = original
    return calls, operators.names if precompute else None, gathered[-1]


def values_after_a_change(rank, world, recipe):
    """What forward gathers, dequantised, of a weight that shrank after its scales were found; and that weight."""
    model = nn.Sequential(octavo.convert_to_float8_training(nn.Linear(64, 32, bias=False), recipe=recipe))
    with torch.no_grad():
        model[0].weight.copy_(torch.linspace(-1, 1, 32 * 64).view(32, 64))
    weight = model[0].weight.detach() / 4
    float8_all_gather(model)
    fully_shard(model[0], reshard_after_forward=True)
    model(torch.randn(8, 64, requires_grad=True)).sum().backward()
    precompute_float8_scales(model)
    with torch.no_grad():
        model[0].weight.mul_(0.25)  # and no precompute_float8_scales
    gathered = []
    model[0].register_forward_pre_hook(lambda module, args: gathered.append(
        (module.weight._row_bytes.clone(), module.weight._row_scale.clone())))
    model(torch.randn(8, 64))
    data, scale = gathered[0]
    return data.view(torch.float8_e4m3fn).float() * scale.view(-1, 1), weight


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_bytes_and_scales_follow_from_one_amax(recipe):
    """Amaxes of a larger weight cost precision, not a factor: e4m3 has steps of 2^-3, halved by rounding."""
    for values, weight in run_ranks(2, values_after_a_change, recipe):
        assert (values - weight).abs().max() <= weight.abs().max() * 2**-4


@pytest.mark.parametrize("world,k,out", [(2, 64, 32), (3, 64, 32), (8, 32, 4)])
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
@pytest.mark.parametrize("precompute", [False, True])
def test_a_cast_is_one_operator(recipe, precompute, world, k, out):
    """One pass of octavo's own over a shard, with its amax two; what was ten operators of torch's. A shard that is
    shorter than the others, or empty, is padded by torch's. NaN and Inf reach every rank's scales."""
    for rank, (calls, found, row_scale) in enumerate(run_ranks(world, operators_of_a_cast, recipe, precompute, k, out)):
        forward, backward = ([name for name in names if name not in ("new_zeros", "cat")] for names in calls)
        one, collective = ["quantize"], ["_allgather_base_" if recipe == "rowwise" else "allreduce_"]
        if precompute:
            assert forward == backward == one
            assert found.count("amax") == 1 and found.count("allreduce_") == 1
            assert found.count("quantize") == (recipe == "rowwise")
        elif recipe == "tensorwise":
            assert forward == backward == ["amax", *collective, *one]
        else:
            assert forward == [*one, *collective]  # a row finds its amax in its cast
            assert backward == ["amax", "allreduce_", *one]
        padded = -(-out // world)
        if len(range(rank * padded, min(out, (rank + 1) * padded))) == padded:
            assert len(forward) == len(calls[0])  # nothing to pad
        if recipe == "tensorwise":
            assert row_scale.isnan().all()
        else:
            assert row_scale[-1].isnan() and row_scale[0].isinf() and row_scale[1:-1].isfinite().all()


@pytest.mark.parametrize("recipe,world,precompute", [
    ("tensorwise", 2, False), ("rowwise", 2, True), ("tensorwise", 3, True), ("rowwise", 3, False)])
def test_ten_steps_with_fp8_all_gather(recipe, world, precompute):
    results = run_ranks(world, fsdp, recipe, precompute, True)
    one = octavo.convert_to_float8_training(Mlp(h=100), recipe=recipe)
    losses = train(one, tokens=24)
    for got, parameters in results:
        if world == 2:  # averages of two equal gradients are exact: the bits of one process
            assert got == losses and difference(parameters, full(one)) == 0
        else:  # a third of a sum rounds, and FP8 makes a step of an ulp at times
            assert difference(parameters, full(one)) < 1e-3
    slices = run_ranks(world, fsdp, recipe, precompute, False)
    assert difference(slices[0][1], full(one)) < 2e-2  # other blocks along the tokens, as for DDP


def mixed(rank, world, recipe):
    model = octavo.convert_to_float8_training(Mlp(h=100), recipe=recipe)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    fully_shard(float8_all_gather(model), mp_policy=policy, reshard_after_forward=True)
    dtypes = []
    model.up.register_forward_pre_hook(lambda m, args: dtypes.append((m.weight.dtype, args[0].dtype)))
    losses = train(model)
    assert set(dtypes) == {(torch.bfloat16, torch.bfloat16)}
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())
    return losses


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_fp8_all_gather_under_mixed_precision(recipe):
    """Activations in bf16; what is gathered is cast from the fp32 shards themselves."""
    one = octavo.convert_to_float8_training(Mlp(h=100), recipe=recipe)
    want = train(one)
    for losses in run_ranks(2, mixed, recipe):
        assert max(abs(a - b) / b for a, b in zip(losses, want)) < 1e-2  # bf16 instead of fp32 activations


def compiled(rank, world, recipe):
    model = octavo.convert_to_float8_training(Mlp(h=100), recipe=recipe)
    fully_shard(float8_all_gather(model), reshard_after_forward=True)
    model.compile(backend="aot_eager")
    return train(model), full(model)


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_compiled_with_fp8_all_gather_is_eager_to_the_bit(recipe):
    one = octavo.convert_to_float8_training(Mlp(h=100), recipe=recipe)
    want = train(one)
    for losses, parameters in run_ranks(2, compiled, recipe):
        assert losses == want and difference(parameters, full(one)) == 0


def checkpointed(rank, world, recipe, where, compiled, declared):
    """Losses and weights, or the error's text, with activation checkpointing within FSDP2's module (as
    torchtitan has it), around it, or the old kind around it."""
    model = octavo.convert_to_float8_training(Mlp(h=100), recipe=recipe)
    float8_all_gather(model, activation_checkpointing=declared)
    kind = CheckpointImpl.REENTRANT if where == "reentrant" else CheckpointImpl.NO_REENTRANT
    wrapped = checkpoint_wrapper(model, kind)
    fully_shard(wrapped if where == "within" else model, reshard_after_forward=True)
    if compiled:
        (wrapped if where == "within" else model).compile(backend="aot_eager")
    first = nn.Identity() if where != "reentrant" else Anchor()
    whole = fully_shard(nn.Sequential(first, wrapped), reshard_after_forward=True)
    try:
        losses = train(whole)
    except RuntimeError as error:
        return str(error)
    return losses, full(model)


class Anchor(nn.Module):
    """Makes its result need a gradient, without which checkpointing of the old kind gives none."""

    def forward(self, x):
        return x.requires_grad_() * 1.0


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("where", ["within", "around", "reentrant"])
def test_fp8_all_gather_under_activation_checkpointing(where, compiled):
    """Declared, it is one process without checkpointing, to the bit. Rowwise without the word is an error that
    has the word, and no loss that is NaN."""
    for recipe, declared in (("rowwise", True), ("tensorwise", False)):
        one = octavo.convert_to_float8_training(Mlp(h=100), recipe=recipe)
        want = train(one)
        for losses, parameters in run_ranks(2, checkpointed, recipe, where, compiled, declared):
            assert losses == want and difference(parameters, full(one)) == 0
    for message in run_ranks(2, checkpointed, "rowwise", where, compiled, False):
        assert "float8_all_gather(model, activation_checkpointing=True)" in message


def converted_again(rank, world):
    """float8_all_gather for one recipe, then a conversion to another: what FSDP2 gathers is the other's."""
    model = octavo.convert_to_float8_training(Mlp(h=100), recipe="tensorwise")
    float8_all_gather(model)
    for refused in ("mxfp8", "rowwise_with_gw_hp"):
        with pytest.raises(ValueError, match="up: expected a recipe whose weights FSDP2 can gather.*for tensorwise"):
            octavo.convert_to_float8_training(model, recipe=refused)
        with pytest.raises(ValueError, match="expected a recipe whose weights FSDP2 can gather"):
            octavo.Float8Linear.from_float(model.up, recipe=refused)
    assert model.up.recipe == "tensorwise"
    octavo.convert_to_float8_training(model, recipe="rowwise")
    for layer in (model.up, model.down):
        fully_shard(layer, reshard_after_forward=True)
    fully_shard(model, reshard_after_forward=True)
    losses = train(model, tokens=24)
    with pytest.raises(ValueError, match="has gathered this weight in FP8, got tensorwise; build the model anew"):
        octavo.convert_to_float8_training(model, recipe="tensorwise")
    octavo.convert_to_float8_training(model, recipe="rowwise")  # which it is
    return losses, full(model)


def test_converting_again_gathers_for_the_new_recipe():
    one = octavo.convert_to_float8_training(Mlp(h=100), recipe="rowwise")
    want = train(one, tokens=24)
    for losses, parameters in run_ranks(2, converted_again):
        assert losses == want and difference(parameters, full(one)) == 0


def wrong_uses(rank, world):
    messages = []

    def fails(action):
        try:
            action()
        except (RuntimeError, ValueError) as error:
            messages.append(str(error))
        else:
            messages.append("no error")

    def sharded(recipe, reshard):
        model = octavo.convert_to_float8_training(Mlp(), recipe=recipe)
        fully_shard(float8_all_gather(model), reshard_after_forward=reshard)
        return model

    model = sharded("rowwise", False)
    fails(lambda: model(batch(0)[0]).sum().backward())
    model = sharded("rowwise", False)
    model.compile(backend="aot_eager")
    fails(lambda: model(batch(0)[0]).sum().backward())
    model = sharded("tensorwise", False)
    model(batch(0)[0]).sum().backward()  # its bytes serve both passes

    model = octavo.convert_to_float8_training(Mlp())
    body = fully_shard(nn.Sequential(float8_all_gather(model)), reshard_after_forward=True)
    body.forward = lambda x: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
    fails(lambda: body(batch(0)[0].requires_grad_()).sum().backward())
    fails(lambda: float8_all_gather(octavo.convert_to_float8_training(Mlp(), recipe="mxfp8")))
    fails(lambda: float8_all_gather(Mlp()))
    tied = Mlp(64, 64, 64)
    tied.down.weight = tied.up.weight
    fails(lambda: float8_all_gather(octavo.convert_to_float8_training(tied)))
    late = octavo.convert_to_float8_training(Mlp())
    fully_shard(late)
    fails(lambda: float8_all_gather(late))
    model = sharded("tensorwise", True)
    with octavo.high_precision(model):
        fails(lambda: model(batch(0)[0]))
    return messages


def test_wrong_uses_are_errors_that_say_what_to_do():
    for messages in run_ranks(2, wrong_uses):
        for message, expected in zip(messages, [
            "reshard_after_forward=True", "reshard_after_forward=True", "activation_checkpointing=True", "tensorwise or rowwise", "convert first",
            "another module shares", "before fully_shard", "gathered in high precision"], strict=True):
            assert expected in message


def tensor_parallel(rank, world, recipe, with_fsdp):
    model = octavo.convert_to_float8_training(Mlp(), recipe=recipe)
    if with_fsdp:
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    else:
        mesh = init_device_mesh("cpu", (1, world), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if with_fsdp:
        if recipe == "tensorwise":
            float8_all_gather(model)
        fully_shard(model, mesh=mesh["dp"])
    losses = train(model)
    return losses, full(model)


@pytest.mark.parametrize("recipe,world,with_fsdp", [
    ("rowwise", 2, False), ("mxfp8", 2, False), ("tensorwise", 3, False), ("tensorwise", 4, True),
    ("rowwise", 4, True)])
def test_tensor_parallel_plans(recipe, world, with_fsdp):
    one = octavo.convert_to_float8_training(Mlp(), recipe=recipe)
    want = train(one)
    for losses, parameters in run_ranks(world, tensor_parallel, recipe, with_fsdp):
        # Scales are of a shard: FP8 rounds other values another way.
        assert difference(parameters, full(one)) < 3e-2
        assert max(abs(a - b) / b for a, b in zip(losses, want)) < 1e-2


def save(rank, world, folder):
    model = octavo.convert_to_float8_training(Mlp(h=100))
    float8_all_gather(model)
    fully_shard(model, reshard_after_forward=True)
    train(model, 2, after_step=lambda: precompute_float8_scales(model))
    state = get_model_state_dict(model)
    assert all(type(getattr(v, "_local_tensor", v)) in (torch.Tensor, nn.Parameter) for v in state.values())
    dcp.save({"model": state}, checkpoint_id=folder)
    return full(model)


def load(rank, world, folder, convert):
    model = Mlp(h=100, seed=1)
    if convert:
        float8_all_gather(octavo.convert_to_float8_training(model))
    fully_shard(model, reshard_after_forward=True)
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state["model"])
    before = full(model)
    train(model, 1)
    return before


def test_a_checkpoint_of_four_ranks_loads_on_two_and_unconverted(tmp_path):
    saved = run_ranks(4, save, str(tmp_path))[0]
    for convert in (True, False):
        for loaded in run_ranks(2, load, str(tmp_path), convert):
            assert loaded.keys() == saved.keys() and all(torch.equal(loaded[n], saved[n]) for n in saved)


def test_opcheck_of_the_gathered_products():
    ops = torch.ops.octavo
    x, w, dy, valid = torch.randn(16, 64), torch.randn(32, 64), torch.randn(16, 32), torch.tensor(3)
    rows, row_scale, transposed, scale = ops.quantize_weight(w, "rowwise")
    arguments = (x, w, None, "rowwise", True, True, rows, row_scale, valid)
    torch.library.opcheck(ops.float8_linear_forward_gathered.default, arguments)
    forward = ops.float8_linear_forward_gathered(*arguments)
    for got, expected in zip(forward, ops.float8_linear_forward(x, w, None, "rowwise", True, True, False)):
        assert torch.equal(got, expected)
    _, x_bytes, x_scale, *_ = forward
    rest = ("rowwise", torch.float32, torch.float32)
    arguments = (dy, x_bytes, x_scale, transposed.t().contiguous(), scale, valid, *rest)
    torch.library.opcheck(ops.float8_linear_backward_gathered.default, arguments)
    want = ops.float8_linear_backward(dy, x_bytes, x_scale, transposed, scale, *rest)
    for got, expected in zip(ops.float8_linear_backward_gathered(*arguments), want):
        assert torch.equal(got, expected)
