"""amax, quantize with an amax that is given, and transpose_bytes on a GPU against the CPU, and shards of a weight
as FP8 all-gather casts them."""

import pytest
import torch

octavo = torch.ops.octavo
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")

SPANS = ["tensorwise", "rowwise", "colwise"]
# Whole and cut threads (16 x 8) and tiles (128 x 128), none at all, and more than fits the registers.
SIZES = [(1, 1), (16, 32), (17, 33), (130, 272), (144, 264), (0, 8), (8, 0), (300, 1000), (2048, 4096), (1025, 4096)]


def random(m, k, dtype=torch.bfloat16, special=True):
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(m + k)).to(dtype)
    if special and m > 3 and k > 4:
        x[m // 2, k // 2] = 900
        x[2, 3], x[1, 4], x[3] = float("nan"), -float("inf"), 0
    return x


def same(got, want):
    got = got.cpu()
    if got.element_size() == 1:
        return torch.equal(got.view(torch.uint8), want.view(torch.uint8))
    return torch.equal(got.isnan(), want.isnan()) and torch.equal(got.nan_to_num(7), want.nan_to_num(7))


def views(x):
    """The same view of x on the CPU and on the GPU."""
    yield x, x.cuda()
    yield x.t(), x.cuda().t()
    if x.shape[1] > 1:
        yield x[:, 1:], x.cuda()[:, 1:]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_amax_is_the_cpus(dtype):
    for size in SIZES:
        for host, device in views(random(*size, dtype=dtype)):
            for asked in (["tensorwise"], ["rowwise"], ["colwise"], ["colwise", "rowwise", "tensorwise"]):
                assert same(octavo.amax(device, asked), octavo.amax(host, asked)), (size, asked)


@pytest.mark.parametrize("granularity", SPANS)
@pytest.mark.parametrize("layout", ["rows", "transposed"])
def test_casts_by_a_given_amax_are_the_cpus(granularity, layout):
    for dtype in (torch.bfloat16, torch.float32):
        for size in SIZES:
            for host, device in views(random(*size, dtype=dtype)):
                along = granularity
                if layout == "transposed" and granularity != "tensorwise":
                    along = {"rowwise": "colwise", "colwise": "rowwise"}[granularity]
                amax = octavo.amax(host, [along]) * 1.5
                small = host.numel() < 1e6
                for format in ("e4m3fn", "e5m2", "e4m3fnuz") if small else ("e4m3fn",):
                    for rounding in ("none", "power_of_two") if small else ("none",):
                        words = dict(layout=layout, scale_rounding=rounding)
                        want = octavo.quantize(host, format, granularity, amax=amax, **words)
                        got = octavo.quantize(device, format, granularity, amax=amax.cuda(), **words)
                        for g, w in zip(got, want):
                            assert same(g, w), (size, format, host.stride())


@pytest.mark.parametrize("granularity", SPANS)
def test_shards_cast_by_the_whole_amax_are_the_whole(granularity):
    x = random(1024, 768).cuda()
    data, scale = octavo.quantize(x, granularity=granularity)
    amax = octavo.amax(x, [granularity])
    for ranks in (2, 3, 7):
        shards = [octavo.quantize(rows, granularity=granularity,
                                  amax=amax[start : start + len(rows)] if granularity == "rowwise" else amax)
                  for start, rows in ((i * -(-1024 // ranks), rows) for i, rows in enumerate(x.chunk(ranks)))]
        assert same(torch.cat([d for d, _ in shards]), data.cpu())
        scales = torch.cat([s for _, s in shards]) if granularity == "rowwise" else shards[0][1]
        assert same(scales, scale.cpu())


def test_transpose_bytes_is_the_cpus():
    for size in SIZES + [(4096, 14336), (112, 240), (31, 65)]:
        x = torch.randint(0, 256, size, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        for host, device in views(x):
            assert torch.equal(octavo.transpose_bytes(device).cpu(), host.t())


def test_a_shard_takes_few_launches():
    """A cast by a known amax is one launch, and so is one of rows by themselves; an amax is two, one of which
    clears the result."""
    shard = random(2048, 4096, special=False).cuda()
    amax = octavo.amax(shard, ["colwise"])

    def launches(function):
        function()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            function()
            torch.cuda.synchronize()
        return sum(row.count for row in profile.key_averages() if row.device_time_total > 0)

    for granularity, given in (("tensorwise", amax[:1]), ("colwise", amax), ("rowwise", None)):
        assert launches(lambda: octavo.quantize(shard, granularity=granularity, amax=given)) == 1
    for granularity in SPANS:
        assert launches(lambda: octavo.amax(shard, [granularity])) == 2
    bytes = octavo.quantize(shard)[0].view(torch.uint8)
    assert launches(lambda: octavo.transpose_bytes(bytes)) == 1
