"""amax, quantize with an amax that is given, and transpose_bytes: what ranks that hold rows of a weight do."""

import pytest
import torch
from torch.library import opcheck

octavo = torch.ops.octavo
SPANS = ["tensorwise", "rowwise", "colwise"]
SIZES = [(1, 1), (16, 32), (17, 33), (130, 272), (0, 8), (8, 0), (0, 0)]


def random(*sizes, dtype=torch.float32, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def special(m=24, k=40, dtype=torch.float32):
    """NaN, both infinities, -0, a row and a column of zeros."""
    x = random(m, k, dtype=dtype)
    x[3, 5], x[7, 11], x[9, 13], x[1, 1] = float("nan"), float("inf"), -float("inf"), -0.0
    x[12], x[:, 20] = 0, 0
    return x


def reference(x, granularity):
    """fp32 largest magnitudes; torch's maximum keeps NaN."""
    m, k = x.shape
    magnitude = x.float().abs()
    if granularity == "tensorwise":
        return magnitude.max().view(1) if x.numel() else torch.zeros(1)
    axis, lines = (1, m) if granularity == "rowwise" else (0, k)
    return magnitude.amax(axis) if x.numel() else torch.zeros(lines)


def same(a, b):
    """Equal bits; NaN is NaN."""
    return a.shape == b.shape and torch.equal(a.isnan(), b.isnan()) and torch.equal(
        a.nan_to_num(7.0), b.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", SIZES)
def test_amax_is_the_largest_magnitude(size, dtype):
    x = random(*size, dtype=dtype)
    for view in (x, x.t(), random(*size, dtype=dtype).repeat(1, 2)[:, ::2]):
        for granularity in SPANS:
            assert same(octavo.amax(view, [granularity]), reference(view, granularity))
        for asked in (["rowwise", "colwise"], ["colwise", "tensorwise", "rowwise"]):  # in the order asked
            assert same(octavo.amax(view, asked), torch.cat([reference(view, g) for g in asked]))


def test_amax_keeps_nan_and_inf():
    x = special()
    for view in (x, x.t()):
        for granularity in SPANS:
            assert same(octavo.amax(view, [granularity]), reference(view, granularity))
    assert octavo.amax(x, ["rowwise"])[3].isnan() and octavo.amax(x, ["rowwise"])[7].isinf()
    assert octavo.amax(x[:3], ["tensorwise"]).isfinite()


def whole_amax(x, granularity, layout):
    """What scales of x's layout follow from."""
    if layout == "transposed" and granularity != "tensorwise":
        granularity = {"rowwise": "colwise", "colwise": "rowwise"}[granularity]
    return octavo.amax(x, [granularity]), granularity


@pytest.mark.parametrize("layout", ["rows", "transposed"])
@pytest.mark.parametrize("granularity", SPANS)
@pytest.mark.parametrize("format", ["e4m3fn", "e5m2", "e4m3fnuz"])
def test_shards_cast_by_the_whole_amax_are_the_whole(format, granularity, layout):
    """Even, uneven and empty shards of rows, alone or as views, with NaN and Inf in some."""
    for x in (random(24, 40), special(), special(dtype=torch.bfloat16), random(7, 33, dtype=torch.float16)):
        x = x * torch.linspace(0.1, 9, x.shape[0]).to(x.dtype).view(-1, 1)  # every shard has another amax
        for rounding in ("none", "power_of_two"):
            words = dict(layout=layout, scale_rounding=rounding)
            data, scale = octavo.quantize(x, format, granularity, **words)
            data = data.view(torch.uint8)
            amax, along = whole_amax(x, granularity, layout)
            for starts in ([0, 8, 16], [0, 1, 17], [0, 0, 5, x.shape[0]]):
                for start, end in zip(starts, [*starts[1:], x.shape[0]]):
                    mine = amax[start:end] if along == "rowwise" else amax
                    for rows in (x[start:end], x.t().contiguous().t()[start:end]):
                        got, got_scale = octavo.quantize(rows, format, granularity, amax=mine, **words)
                        got = got.view(torch.uint8)
                        assert torch.equal(got, data[start:end] if layout == "rows" else data[:, start:end])
                        want = scale
                        if along == "rowwise":
                            want = scale[start:end] if layout == "rows" else scale[:, start:end]
                        assert same(got_scale, want)


def test_an_amax_that_is_given_is_what_scales_follow_from():
    x = random(5, 16)
    for granularity, lines in (("tensorwise", 1), ("rowwise", 5), ("colwise", 16)):
        amax = torch.linspace(20, 40, lines)
        data, scale = octavo.quantize(x, granularity=granularity, amax=amax)
        assert torch.equal(scale.flatten(), 1 / (448 / amax.double()).float())
        value = data.float() * scale
        # e4m3: half a step of 2^-3 relative, of 2^-9 of the scale below its normal numbers.
        assert ((value - x).abs() <= x.abs() / 16 + scale * 2**-10).all()
        assert not torch.equal(scale, octavo.quantize(x, granularity=granularity)[1])
    # Scales of rows that are elsewhere.
    amax = torch.tensor([0.0, 1.0, float("nan"), float("inf")])
    data, scale = octavo.quantize(x.new_empty(4, 0), amax=amax, scale_rounding="power_of_two")
    filled, want = octavo.quantize(amax.view(4, 1), scale_rounding="power_of_two")
    assert data.shape == (4, 0) and same(scale, want)


@pytest.mark.parametrize("size", SIZES + [(64, 48), (500, 3)])
def test_transpose_bytes(size):
    x = torch.randint(0, 256, size, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for view in (x, x.t(), x.repeat(1, 2)[:, : size[1]], x.repeat(1, 2)[:, ::2]):
        y = octavo.transpose_bytes(view)
        assert y.is_contiguous() and torch.equal(y, view.t()) and y.data_ptr() != x.data_ptr() or not x.numel()
    y = octavo.transpose_bytes(x.view(torch.float8_e4m3fn))
    assert y.dtype == torch.float8_e4m3fn and torch.equal(y.view(torch.uint8), x.t())


def test_opcheck():
    x = random(12, 40)
    opcheck(octavo.amax.default, (x, ["rowwise", "tensorwise"]))
    for granularity in SPANS:
        for layout in ("rows", "transposed"):
            amax, _ = whole_amax(x, granularity, layout)
            opcheck(octavo.quantize.default, (x, "e4m3fn", granularity), {"layout": layout, "amax": amax})
    opcheck(octavo.transpose_bytes.default, (torch.randint(0, 255, (12, 40), dtype=torch.uint8),))
    for name in ("amax", "transpose_bytes"):
        for key in ("CPU", "Meta", "Autograd", "AutocastCPU", "AutocastCUDA"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"octavo::{name}", key), (name, key)


def test_no_derivative():
    x = random(4, 8).requires_grad_()
    with pytest.raises(RuntimeError, match="amax has no derivative"):
        octavo.amax(x, ["rowwise"]).sum().backward()
    data, _ = octavo.quantize(x, amax=torch.ones(4))
    with pytest.raises(RuntimeError, match="quantize has no derivative"):
        data.float().sum().backward()


def test_errors_say_what_to_do():
    x = random(5, 16)
    for call, message in [
        (lambda: octavo.quantize(x, amax=torch.ones(4)), r"amax: expected 5 float32 numbers.*got.*\[4\]"),
        (lambda: octavo.quantize(x, amax=torch.ones(5).double()), r"amax: expected 5 float32 numbers.*Double"),
        (lambda: octavo.quantize(x, layout="transposed", amax=torch.ones(5)), "amax: expected 16 float32"),
        (lambda: octavo.quantize(x, granularity="1x128", amax=torch.ones(5)), "tensorwise, rowwise or colwise.*leave"),
        (lambda: octavo.quantize(x, granularity="tensorwise", amax=torch.ones(1, device="meta")), "device"),
        (lambda: octavo.amax(x, ["1x128"]), "tensorwise, rowwise or colwise.*1x128"),
        (lambda: octavo.amax(x, ["row"]), "expected one of"),
        (lambda: octavo.amax(x, []), "at least one"),
        (lambda: octavo.amax(x, ["rowwise", "rowwise"]), "once"),
        (lambda: octavo.amax(x[0], ["rowwise"]), "matrix"),
        (lambda: octavo.amax(x.double(), ["rowwise"]), "float32, bfloat16 or float16"),
        (lambda: octavo.transpose_bytes(x), "one byte"),
        (lambda: octavo.transpose_bytes(x[0].byte()), "matrix"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            call()


def test_meta_tensors_have_the_sizes():
    x = torch.empty(5, 16, device="meta")
    assert octavo.amax(x, ["rowwise", "colwise", "tensorwise"]).shape == (22,)
    data, scale = octavo.quantize(x, granularity="colwise", amax=torch.empty(16, device="meta"))
    assert data.shape == (5, 16) and scale.shape == (1, 16)
    assert octavo.transpose_bytes(torch.empty(3, 4, dtype=torch.uint8, device="meta")).shape == (4, 3)
