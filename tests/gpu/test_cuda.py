"""The operators on an NVIDIA GPU against the same operators on the CPU."""

import pytest
import torch

octavo = torch.ops.octavo

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")

RECIPES = ["tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"]
FORMATS = ["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"]
GRANULARITIES = ["tensorwise", "rowwise", "colwise", "1x128", "128x1", "128x128", "mx1x32"]
SIZES = [(1, 1), (16, 32), (17, 33), (128, 256), (130, 272), (300, 1000)]


def random(*sizes, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(sizes))
    return torch.randn(*sizes, generator=generator).to(dtype)


def snr(got, want):
    got, want = got.double().cpu(), want.double().cpu()
    noise = (got - want).square().sum()
    return 10 * torch.log10(want.square().sum() / noise).item() if noise > 0 else 1e9


def same_bits(a, b):
    a, b = a.cpu().contiguous(), b.cpu().contiguous()
    as_int = {1: torch.uint8, 4: torch.int32}[a.element_size()]
    return a.shape == b.shape and torch.equal(a.view(as_int), b.view(as_int))


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("layout", ["rows", "transposed"])
def test_quantised_bytes_are_the_cpus(granularity, layout):
    for element in FORMATS:
        if granularity == "mx1x32" and "fnuz" in element:
            continue
        for m, k in SIZES:
            for dtype in (torch.bfloat16, torch.float16, torch.float32):
                x = random(m, k, dtype=dtype)
                x[m // 2, k // 2] *= 1000
                for view in (x, x.t().contiguous().t(), x[:, ::2] if k > 1 else x):
                    want = octavo.quantize(view, element, granularity, layout=layout)
                    got = octavo.quantize(view.cuda() if view.is_contiguous() else
                                          x.cuda().t().contiguous().t() if view.stride(0) == 1 else
                                          x.cuda()[:, ::2], element, granularity, layout=layout)
                    for g, w in zip(got, want):
                        assert same_bits(g, w), (element, m, k, dtype, view.stride())


@pytest.mark.parametrize("rows", [8448, 8464])  # on an H200 the last that fits registers, the first not
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_operands_that_just_fit_the_registers(rows, dtype):
    x = random(rows if dtype == torch.bfloat16 else rows // 2 // 16 * 16, 1024, dtype=dtype)
    x[rows // 5, 700] = float("nan")
    for granularity in ("tensorwise", "rowwise"):
        for layout in ("rows", "transposed"):
            want = octavo.quantize(x, "e4m3fn", granularity, layout=layout)
            got = octavo.quantize(x.cuda(), "e4m3fn", granularity, layout=layout)
            assert same_bits(got[0], want[0])
            assert torch.equal(got[1].cpu().nan_to_num(7), want[1].nan_to_num(7))


def test_special_values_are_the_cpus():
    for granularity in GRANULARITIES:
        x = random(64, 256, dtype=torch.float32)
        x[3, 5], x[40, 200], x[10, 64] = float("nan"), float("inf"), -float("inf")
        x[20] = 0
        for layout in ("rows", "transposed"):
            want = octavo.quantize(x, "e4m3fn", granularity, layout=layout)
            got = octavo.quantize(x.cuda(), "e4m3fn", granularity, layout=layout)
            assert same_bits(got[0], want[0]) and same_bits(got[1].nan_to_num(7) if
                got[1].dtype == torch.float32 else got[1], want[1].nan_to_num(7) if
                want[1].dtype == torch.float32 else want[1]), (granularity, layout)


PAIRS = [("tensorwise", "tensorwise"), ("rowwise", "rowwise"), ("rowwise", "tensorwise"),
         ("1x128", "1x128"), ("1x128", "128x128"), ("mx1x32", "mx1x32")]


def product(a, b, pair, device, formats=("e4m3fn", "e4m3fn"), **options):
    qa = octavo.quantize(a.to(device), formats[0], pair[0])
    qb = octavo.quantize(b.to(device), formats[1], pair[1])
    return octavo.scaled_mm(*qa, pair[0], *qb, pair[1], **options)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("size", [(1, 1, 1), (16, 16, 16), (17, 33, 65), (128, 256, 512),
                                  (130, 144, 1040), (256, 192, 16384)])
@pytest.mark.parametrize("fast", [False, True])
def test_products(pair, size, fast):
    m, n, k = size
    a, b = random(m, k, seed=1), random(n, k, seed=2)
    want = product(a, b, pair, "cpu", out_dtype=torch.float32)
    for dtype in (torch.bfloat16, torch.float32, torch.float16):
        for bias in (None, torch.bfloat16, torch.float32):
            bias = None if bias is None else random(n, dtype=bias, seed=3)
            got = product(a, b, pair, "cuda", out_dtype=dtype, fast_accumulation=fast,
                          bias=None if bias is None else bias.cuda())
            assert got.dtype == dtype and got.shape == (m, n)
            expected = want if bias is None else want + bias.float()
            # FP8 tensor cores on Hopper keep fewer bits of a sum than fp32; bf16 rounding: 54 dB.
            assert snr(got, expected) >= (45 if fast else 50), (dtype, bias is not None)


@pytest.mark.parametrize("formats", [("e4m3fnuz", "e4m3fnuz"), ("e5m2", "e4m3fn"),
                                     ("e4m3fnuz", "e5m2fnuz")])
def test_products_of_other_formats(formats):
    a, b = random(64, 96, seed=1), random(48, 96, seed=2)
    a[5, 7] = 300.0  # the amax element, where a wrong flavour's maximum shows
    for pair in (("tensorwise", "tensorwise"), ("rowwise", "rowwise"), ("1x128", "1x128")):
        want = product(a, b, pair, "cpu", formats, out_dtype=torch.float32)
        got = product(a, b, pair, "cuda", formats, out_dtype=torch.float32)
        assert snr(got, want) >= 50, pair


def test_backends():
    a, b = random(64, 96, seed=1), random(48, 96, seed=2)
    for pair in (("tensorwise", "tensorwise"), ("rowwise", "rowwise")):
        want = product(a, b, pair, "cpu", out_dtype=torch.float32)
        for backend in ("cublaslt", "aten", "emulated"):
            got = product(a, b, pair, "cuda", out_dtype=torch.bfloat16, backend=backend)
            assert snr(got, want) >= 50, (pair, backend)
    with pytest.raises(RuntimeError, match="emulated"):
        product(a, b, ("mx1x32", "mx1x32"), "cuda", out_dtype=torch.float32, backend="cublaslt")
    with pytest.raises(RuntimeError, match="reference"):
        product(a, b, ("rowwise", "rowwise"), "cuda", out_dtype=torch.float32, backend="reference")


def gradients(recipe, device, dtype, size=(160, 96, 144), keep="auto"):
    m, k, n = size
    x = random(m, k, dtype=dtype, seed=1).to(device).requires_grad_(True)
    w = random(n, k, dtype=dtype, seed=2).to(device).requires_grad_(True)
    bias = random(n, dtype=dtype, seed=3).to(device).requires_grad_(True)
    y = octavo.float8_linear(x, w, bias, recipe, keep)
    y.backward(random(m, n, dtype=dtype, seed=4).to(device))
    return [y.detach(), x.grad, w.grad, bias.grad]


@pytest.mark.parametrize("recipe", RECIPES + [r + "(flavour=fnuz)" for r in RECIPES[:4]])
@pytest.mark.parametrize("keep", ["on", "off"])
def test_linear_is_the_cpus(recipe, keep):
    for dtype in (torch.bfloat16, torch.float32):
        for size in ((160, 96, 144), (7, 40, 24), (256, 512, 128)):
            want = gradients(recipe, "cpu", dtype, size, keep)
            got = gradients(recipe, "cuda", dtype, size, keep)
            for name, g, w in zip(("y", "dx", "dw", "dbias"), got, want):
                assert g.dtype == w.dtype
                assert snr(g, w) >= 45, (name, dtype, size)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_quantised_weight_is_the_cpus_and_changes_no_bit(recipe):
    x, w = random(130, 272, seed=1), random(192, 272, seed=2)
    want = octavo.quantize_weight(w, recipe)
    x, w = x.cuda().requires_grad_(True), w.cuda().requires_grad_(True)
    given = octavo.quantize_weight(w, recipe)
    for got, expected in zip(given, want):
        assert same_bits(got, expected)
    results = []
    for options in ((), given):
        x.grad = w.grad = None
        y = octavo.float8_linear(x, w, None, recipe, "auto", *options)
        y.backward(torch.ones_like(y))
        results.append((y.detach(), x.grad, w.grad))
    for got, expected in zip(*results):
        assert torch.equal(got, expected)


def test_empty():
    for recipe in RECIPES:
        for size in ((0, 32, 16), (16, 32, 0), (16, 0, 32)):
            for g, w in zip(gradients(recipe, "cuda", torch.bfloat16, size),
                            gradients(recipe, "cpu", torch.bfloat16, size)):
                assert torch.equal(g.cpu(), w)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_cuda_graph_holds_forward_and_backward(recipe):
    x = random(256, 128, seed=1).cuda().requires_grad_(True)
    w = random(192, 128, seed=2).cuda().requires_grad_(True)
    dy = random(256, 192, seed=3).cuda()

    def step():
        y = octavo.float8_linear(x, w, None, recipe)
        return (y.detach(),) + torch.autograd.grad(y, (x, w), dy)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        x.copy_(random(256, 128, seed=5))
    graph.replay()
    torch.cuda.synchronize()
    for got, want in zip(captured, step()):
        assert torch.equal(got, want)


def test_capturing_an_untuned_shape_says_what_to_do():
    x, w = random(48, 112).cuda(), random(80, 112).cuda()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="run one step"):
        with torch.cuda.graph(graph):
            octavo.float8_linear(x, w, None, "rowwise")
    torch.cuda.synchronize()
    assert torch.isfinite(octavo.float8_linear(x, w, None, "rowwise")).all()


def test_errors_name_the_argument():
    x, w = random(32, 64).cuda(), random(16, 64)
    with pytest.raises(RuntimeError, match="x and w"):
        octavo.float8_linear(x, w, None, "rowwise")
    with pytest.raises(RuntimeError, match="x must be"):
        octavo.float8_linear(x.double(), w.cuda(), None, "rowwise")
    with pytest.raises(RuntimeError, match="granularity"):
        octavo.quantize(x, "e4m3fn", "3x5")
    with pytest.raises(RuntimeError, match="flavour"):
        qa, qb = octavo.quantize(x, "e4m3fn", "rowwise"), octavo.quantize(x, "e4m3fnuz", "rowwise")
        octavo.scaled_mm(*qa, "rowwise", *qb, "rowwise", out_dtype=torch.float32)


def test_out_of_memory_leaves_the_process_usable():
    free, _ = torch.cuda.mem_get_info()
    rows = int(free * 0.6) // 2 // 4096
    x = torch.empty(rows, 4096, dtype=torch.bfloat16, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        octavo.quantize(x, "e4m3fn", "rowwise"), octavo.quantize(x, "e4m3fn", "rowwise")
    del x
    torch.cuda.empty_cache()
    assert octavo.quantize(random(32, 64).cuda(), "e4m3fn", "rowwise")[0].shape == (32, 64)
