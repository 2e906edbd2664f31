"""Fused FP8 operations on a GPU: the bits of the unfused ones, in fewer launches."""

import pytest
import torch
from test_train import train

octavo = torch.ops.octavo

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")

RECIPES = ["tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8",
           "mxfp8(gw_high_precision=true)", "tensorwise(flavour=fnuz)", "rowwise(flavour=fnuz)",
           "blockwise(flavour=fnuz)"]
# h of the first two does not fit a GPU's registers at once; the others are small, odd, or empty.
SIZES = [(1024, 512, 8704, 256), (8208, 64, 1064, 64), (128, 256, 384, 128), (33, 48, 72, 40),
         (0, 64, 128, 64)]


def operands(m, d, f, out, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(m + f)
    sizes = [(m, d), (f, d), (f, d), (out, f)]
    tensors = [torch.randn(s, generator=generator) * s[1] ** -0.25 for s in sizes]
    return [t.to(dtype).cuda().requires_grad_() for t in tensors]


def results(function, tensors):
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    y = function(*leaves)
    generator = torch.Generator().manual_seed(3)
    y.backward(torch.randn(y.shape, generator=generator).to(y.dtype).cuda())
    return [y.detach()] + [leaf.grad for leaf in leaves]


def launched(function):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        function()
        torch.cuda.synchronize()
    return [(row.key, row.count) for row in profile.key_averages() if row.device_time_total > 0]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_fused_equals_written(recipe, sizes):
    for dtype in [torch.bfloat16, torch.float32] if sizes[2] < 1000 else [torch.bfloat16]:
        tensors = operands(*sizes, dtype=dtype)
        fused = results(lambda *t: octavo.float8_swiglu_mlp(*t, recipe), tensors)
        written = results(lambda *t: octavo.float8_swiglu_mlp(*t, recipe, "auto", False), tensors)
        for i, (got, want) in enumerate(zip(fused, written)):
            assert torch.equal(got, want), (i, dtype)
        kept = octavo.float8_swiglu_mlp_forward(*[t.detach() for t in tensors], recipe, True, True,
                                                True, True)
        plain = octavo.float8_swiglu_mlp_forward(*[t.detach() for t in tensors], recipe, True, True,
                                                 True, False)
        for got, want in zip(kept[1], plain[1]):
            assert torch.equal(got, want)


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"])
def test_mlp_equals_three_linears_but_for_dx(recipe):
    tensors = operands(*SIZES[0])

    def separate(x, w_gate, w_up, w_down):
        gate, up = (octavo.float8_linear(x, w, None, recipe) for w in (w_gate, w_up))
        return octavo.float8_linear(octavo.swiglu(gate, up), w_down, None, recipe)

    got = results(lambda *t: octavo.float8_swiglu_mlp(*t, recipe), tensors)
    want = results(separate, tensors)
    for i in (0, 2, 3, 4):
        assert torch.equal(got[i], want[i]), i
    # One rounding to bf16 fewer of a sum of two.
    error = (got[1].float() - want[1].float()).square().sum().sqrt()
    assert error <= 2**-8 * want[1].float().square().sum().sqrt()


# Scales of whole tensors, rows and columns take two passes: SwiGLU is written, with the amaxes that
# three passes would find.
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise",
                                    "mxfp8"])
def test_fused_launches_less(recipe):
    tensors = operands(*SIZES[0])

    def step(fuse):
        return lambda: octavo.float8_swiglu_mlp(*tensors, recipe, "auto", fuse).sum().backward()

    for fuse in (True, False):  # products are measured at their first use
        step(fuse)()
    fused, written = launched(step(True)), launched(step(False))
    assert sum(n for _, n in fused) == sum(n for _, n in written) - 3
    if recipe in ("tensorwise", "rowwise"):
        amaxes = [sum(n for name, n in each if "amax_kernel" in name and "swiglu" not in name)
                  for each in (fused, written)]
        assert amaxes[0] == amaxes[1] - 3
        assert sum(n for name, n in fused if "swiglu_amax_kernel" in name) == 2
    else:
        assert not any("swiglu_kernel" in name for name, _ in fused)
        assert any("FromSwigluGradients" in name for name, _ in fused)


@pytest.mark.parametrize("recipe", ["high_precision", "tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise",
                                    "mxfp8"])
def test_a_fused_model_trains_as_layer_by_layer(tmp_path, recipe):
    """Norms, q, k and v, residuals: the same first loss by its bits, then sums of gradients that are rounded once
    less. At a size whose operands do not fit a GPU's registers."""
    options = ("--dtype", "bfloat16", "--deterministic", "true", "--gemm-tuning", "heuristic", "--steps", 3, "--batch", 12,
               "--sequence", 1024, "--validation-batches", 1, "--checkpoint-every", 0)
    fused, _ = train(tmp_path / "fused", recipe, "cuda", *options, preset="100m")
    apart, _ = train(tmp_path / "apart", recipe, "cuda", *options, "--fusion", "false", preset="100m")
    assert fused[0] == apart[0]
    assert max(abs(a / b - 1) for a, b in zip(fused, apart)) < 5e-3
    assert fused != apart


def test_special_numbers_stay_in_their_rows():
    tensors = operands(*SIZES[0])
    with torch.no_grad():
        tensors[0][3, 7], tensors[0][20, 0] = float("nan"), float("inf")
        for recipe in ["rowwise", "blockwise", "mxfp8"]:
            fused = octavo.float8_swiglu_mlp(*tensors, recipe, "auto", True)
            written = octavo.float8_swiglu_mlp(*tensors, recipe, "auto", False)
            assert fused[3].isnan().any() and fused[0].isfinite().all()
            assert torch.equal(fused.nan_to_num(7), written.nan_to_num(7))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_swiglu_is_the_cpus_to_one_rounding(dtype):
    generator = torch.Generator().manual_seed(0)
    gate, up, dh = (torch.randn(64, 136, generator=generator).mul(4).to(dtype) for _ in range(3))
    wide = torch.linspace(-100, 100, 136).to(dtype).expand(64, 136)
    bound = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2e-6}[dtype]
    smallest = 2**-24 if dtype == torch.float16 else 1e-30  # fp16's last step; AMD flushes fp32's
    for g in (gate, wide):
        want = octavo.swiglu(g.double().float(), up.float())
        got = octavo.swiglu(g.cuda(), up.cuda()).float().cpu()
        assert ((got - want).abs() <= bound * want.abs() + smallest).all()
        exact = octavo.swiglu_backward(dh.float(), g.float(), up.float())
        got = octavo.swiglu_backward(dh.cuda(), g.cuda(), up.cuda())
        for a, b in zip(got, exact):
            # Where silu's derivative nearly vanishes, fp32 cancels: hence the absolute part.
            assert ((a.float().cpu() - b).abs() <= bound * b.abs() + 1e-5).all()
