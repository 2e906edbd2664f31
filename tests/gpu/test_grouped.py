"""The grouped operators on an NVIDIA GPU against the same operators on the CPU, in poisoned memory."""

import os
import subprocess
import sys

import pytest
import torch

octavo = torch.ops.octavo

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")

RECIPES = ["rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8", "mxfp8(mx_rounding=floor)",
           "rowwise(flavour=fnuz)", "mxfp8(gw_high_precision=true)"]
GRANULARITIES = ["rowwise", "1x128", "mx1x32"]
GROUPINGS = [[162, 0, 2577, 446, 0, 83], [16, 16, 0], [0, 32], [0, 0, 16], [44, 0, 20], [1],
             [0, 0, 0, 0], [130, 128, 1, 127, 129], [e * 7 % 19 * (e % 3) for e in range(256)]]


def ends_of(sizes):
    return torch.tensor(sizes).cumsum(0).to(torch.int32)


def poison():
    """Leaves the allocator's free blocks full of NaN."""
    blocks = [torch.full((2**n,), float("nan"), device="cuda") for n in range(8, 24) for _ in range(2)]
    torch.cuda.synchronize()
    del blocks


def random(*sizes, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(sizes))
    return (torch.randn(*sizes, generator=generator)).to(dtype)


def snr(got, want):
    got, want = got.double().cpu(), want.double().cpu()
    noise = (got - want).square().sum()
    return 10 * torch.log10(want.square().sum() / noise).item() if noise > 0 else 1e9


def same_bits(a, b):
    a, b = a.cpu().contiguous(), b.cpu().contiguous()
    as_int = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.element_size()]
    return a.shape == b.shape and torch.equal(a.view(as_int), b.view(as_int))


def all_zero(t):
    return not t.contiguous().view(torch.uint8).any()


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("layout", ["rows", "transposed"])
def test_quantised_bytes_are_the_cpus(granularity, layout):
    for sizes in GROUPINGS:
        for k, past, dtype, element in [(272, 0, torch.bfloat16, "e4m3fn"),
                                        (33, 5, torch.float32, "e5m2"),
                                        (128, 16, torch.float16, "e4m3fn"),
                                        (64, 7, torch.bfloat16, "e4m3fnuz")]:
            if granularity == "mx1x32" and "fnuz" in element:
                continue
            x = random(sum(sizes) + past, k, dtype=dtype)
            x[sum(sizes):] = float("nan")  # belongs to no group
            poison()
            got = octavo.quantize_grouped(x.cuda(), ends_of(sizes).cuda(), element, granularity,
                                          layout=layout)
            want = octavo.quantize_grouped(x, ends_of(sizes), element, granularity, layout=layout)
            for name, g, w in zip(["data", "scale", "ends"], got, want):
                assert same_bits(g, w), (sizes[:6], k, dtype, name)


@pytest.mark.parametrize("granularity", ["tensorwise", "rowwise", "128x128", "mx1x32"])
@pytest.mark.parametrize("layout", ["rows", "transposed"])
def test_expert_weights_are_the_cpus(granularity, layout):
    for e, n, k in [(3, 256, 128), (1, 17, 33), (64, 48, 96), (4, 130, 272)]:
        for dtype in (torch.bfloat16, torch.float32):
            w = random(e, n, k, dtype=dtype) * torch.arange(1, e + 1).view(e, 1, 1)
            for view in (w, w.transpose(1, 2).contiguous().transpose(1, 2)):
                poison()
                on_gpu = view.cuda() if view.is_contiguous() else \
                    view.transpose(1, 2).cuda().transpose(1, 2)
                got = octavo.quantize_expert_weights(on_gpu, "e4m3fn", granularity, layout=layout)
                want = octavo.quantize_expert_weights(view, "e4m3fn", granularity, layout=layout)
                assert all(same_bits(g, w) for g, w in zip(got, want)), (e, n, k, dtype)


PAIRS = [("rowwise", "rowwise", "auto"), ("rowwise", "rowwise", "octavo"),
         ("rowwise", "rowwise", "aten"), ("rowwise", "rowwise", "emulated"),
         ("rowwise", "tensorwise", "auto"), ("1x128", "128x128", "auto"), ("1x128", "128x128", "octavo"),
         ("1x128", "128x128", "emulated"), ("mx1x32", "mx1x32", "auto")]


@pytest.mark.parametrize("pair", PAIRS)
def test_products_agree_with_the_reference(pair):
    rows, weights, backend = pair
    for sizes in GROUPINGS[:-1] + [[5] * 64]:
        for n, k, past in [(96, 160, 0), (48, 33, 5), (768, 64, 16), (200, 400, 1)]:
            m, e = sum(sizes) + past, len(sizes)
            x, w = random(m, k), random(e, n, k) * torch.arange(1, e + 1).view(e, 1, 1)
            a, a_scale, _ = octavo.quantize_grouped(x, ends_of(sizes), "e4m3fn", rows)
            b, b_scale = octavo.quantize_expert_weights(w, "e4m3fn", weights)
            want = octavo.scaled_grouped_mm(a, a_scale, rows, b, b_scale, weights, ends_of(sizes),
                                            out_dtype=torch.float32)
            poison()
            got = octavo.scaled_grouped_mm(a.cuda(), a_scale.cuda(), rows, b.cuda(), b_scale.cuda(),
                                           weights, ends_of(sizes).cuda(), backend=backend)
            assert got.dtype == torch.bfloat16 and got.shape == want.shape
            assert sum(sizes) == 0 or snr(got, want) >= 45, (sizes[:6], n, k)
            assert all_zero(got[sum(sizes):])


@pytest.mark.parametrize("granularity,backend",
                         [("rowwise", b) for b in ["auto", "octavo", "aten", "emulated"]] +
                         [("1x128", b) for b in ["auto", "octavo", "emulated"]] + [("mx1x32", "auto")])
def test_weight_gradients_agree_with_the_reference(granularity, backend):
    for sizes in GROUPINGS[:-1] + [[5] * 64]:
        for n, k, past in [(96, 160, 0), (40, 33, 5), (768, 64, 16)]:
            m = sum(sizes) + past
            x, dy = random(m, k, seed=1), random(m, n, seed=2)
            (a, a_scale, ends), (b, b_scale, _) = [
                octavo.quantize_grouped(t, ends_of(sizes), "e4m3fn", granularity, layout="transposed")
                for t in (dy, x)]
            args = (granularity, b, b_scale, granularity, ends)
            want = octavo.scaled_grouped_mm(a, a_scale, *args, out_dtype=torch.float32)
            args = (granularity, b.cuda(), b_scale.cuda(), granularity, ends.cuda())
            poison()
            got = octavo.scaled_grouped_mm(a.cuda(), a_scale.cuda(), *args, backend=backend)
            assert got.shape == want.shape
            assert sum(sizes) == 0 or snr(got, want) >= 45, (sizes[:6], n, k)
            assert all(all_zero(got[e]) for e, size in enumerate(sizes) if size == 0)


def run(x, w, offs, recipe, dy):
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = octavo.float8_grouped_linear(x, w, offs, recipe)
    if x.is_cuda:
        poison()
    y.backward(dy)
    return y.detach(), x.grad, w.grad


@pytest.mark.parametrize("recipe", RECIPES)
def test_grouped_linear_is_the_cpus(recipe):
    for sizes in GROUPINGS[:-1]:
        x, w, dy = random(sum(sizes) + 3, 272), random(len(sizes), 96, 272), random(sum(sizes) + 3, 96)
        x[sum(sizes):], dy[sum(sizes):] = float("nan"), float("nan")
        want = run(x, w, ends_of(sizes), recipe, dy)
        poison()
        got = run(x.cuda(), w.cuda(), ends_of(sizes).cuda(), recipe, dy.cuda())
        for name, g, w_ in zip(["y", "dx", "dw"], got, want):
            assert g.isfinite().all(), (name, sizes)
            assert sum(sizes) == 0 or snr(g, w_) >= 40, (name, sizes, snr(g, w_))
        assert all_zero(got[0][sum(sizes):]) and all_zero(got[1][sum(sizes):])
        assert all(all_zero(got[2][e]) for e, size in enumerate(sizes) if size == 0)


# Inputs that broke other libraries (tests/field_cases.md), at their own sizes.
@pytest.mark.parametrize("recipe", ["rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"])
@pytest.mark.parametrize("sizes,n,k", [
    ([162, 0, 2577, 446, 0, 83], 768, 2048), ([0, 1, 0], 24576, 1536), ([0, 0, 0, 0], 96, 160),
    ([5, 63, 1, 17], 768, 256), ([3] * 64, 64, 128), ([2, 0] * 64, 64, 128), ([1] * 255 + [900], 64, 128)])
def test_field_cases(recipe, sizes, n, k):
    x, w, dy = random(sum(sizes), k), random(len(sizes), n, k), random(sum(sizes), n)
    offs = ends_of(sizes).cuda()
    poison()
    got = run(x.cuda(), w.cuda(), offs, recipe, dy.cuda())
    exact = [[], [], []]
    for part, w_e, dy_e in zip(x.cuda().float().split(sizes), w.cuda().float(),
                               dy.cuda().float().split(sizes)):
        for values, value in zip(exact, (part @ w_e.t(), dy_e @ w_e, dy_e.t() @ part)):
            values.append(value)
    exact = [torch.cat(exact[0]), torch.cat(exact[1]), torch.stack(exact[2])]
    for name, g, want in zip(["y", "dx", "dw"], got, exact):
        assert g.shape == want.shape and g.isfinite().all(), name
        # Two operands of e4m3 leave 28 dB.
        assert sum(sizes) == 0 or snr(g, want) >= 25, (name, snr(g, want))
    assert all(all_zero(got[2][e]) for e, size in enumerate(sizes) if size == 0)


@pytest.mark.parametrize("recipe", ["rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"])
def test_weights_quantised_once_change_no_bit(recipe):
    sizes = [100, 0, 57]
    x, w, dy = random(157, 128).cuda(), random(3, 96, 128).cuda(), random(157, 96).cuda()
    want = run(x, w, ends_of(sizes).cuda(), recipe, dy)
    given = octavo.quantize_weight(w, recipe)
    assert all(same_bits(g, v) for g, v in zip(given, octavo.quantize_weight(w.cpu(), recipe)))
    leaves = [t.detach().requires_grad_() for t in (x, w)]
    y = octavo.float8_grouped_linear(*leaves, ends_of(sizes).cuda(), recipe, "auto", *given)
    y.backward(dy)
    assert all(torch.equal(g, v) for g, v in zip((y, leaves[0].grad, leaves[1].grad), want))


def test_products_on_many_streams_do_not_share_their_counter():
    """Tiles are handed out by a counter on the device, one for each stream."""
    x, w, offs = random(3000, 512).cuda(), random(7, 768, 512).cuda(), ends_of([900, 1, 0, 99, 1000, 1000, 0]).cuda()
    want = octavo.float8_grouped_linear(x, w, offs)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    got = []
    for _ in range(25):
        for stream in streams:
            with torch.cuda.stream(stream):
                got.append(octavo.float8_grouped_linear(x, w, offs))
    torch.cuda.synchronize()
    assert all(torch.equal(g, want) for g in got)


@pytest.mark.parametrize("recipe", RECIPES)
def test_expert_ffn_against_fp32(recipe):
    sizes, d, f = [300, 0, 77, 1200, 131], 512, 640
    values = [random(sum(sizes), d), random(5, 2 * f, d) / d**0.5, random(5, d, f) / f**0.5]
    dy = random(sum(sizes), d)
    offs = ends_of(sizes).cuda()

    def evaluate(leaves, linear, act):
        leaves = [leaf.requires_grad_() for leaf in leaves]
        y = linear(act(linear(leaves[0], leaves[1])), leaves[2])
        y.backward(dy.to(y))
        return [y.detach()] + [leaf.grad for leaf in leaves]

    def loop(x, w):
        return torch.cat([part @ we.t() for part, we in zip(x.split(sizes), w)])

    exact = evaluate([v.cuda().double() for v in values], loop,
                     lambda h: torch.nn.functional.silu(h[:, :f]) * h[:, f:])
    got = evaluate([v.cuda() for v in values],
                   lambda x, w: octavo.float8_grouped_linear(x, w, offs, recipe), octavo.swiglu)
    bound = 21 if "floor" in recipe else 22
    for name, g, w in zip(["y", "dx", "dw_gate_up", "dw_down"], got, exact):
        assert snr(g, w) >= bound, (name, snr(g, w))


# field_cases: kernels clamp each end to [previous end, M], never read or write outside, never hang.
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("bad,clamped", [([16, 8, 32], [16, 16, 32]), ([-1, 16, 20], [0, 16, 20]),
                                         ([8, 2**30, 40], [8, 40, 40]), ([48, 60, 70], [40, 40, 40])])
def test_bad_offsets_are_clamped(recipe, bad, clamped):
    x, w, dy = random(40, 128).cuda(), random(3, 64, 128).cuda(), random(40, 64).cuda()
    offs = [torch.tensor(o, dtype=torch.int32).cuda() for o in (bad, clamped)]
    poison()
    got, want = [run(x, w, o, recipe, dy) for o in offs]
    assert all(torch.equal(g, v) for g, v in zip(got, want))


def test_types_of_offsets_are_errors_and_values_where_asked():
    x, w = random(32, 128).cuda(), random(2, 64, 128).cuda()
    for offs, message in [(torch.tensor([16, 32]).cuda(), "int32"),
                          (torch.tensor([32], dtype=torch.int32).cuda(), "2 groups"),
                          (torch.tensor([16, 32], dtype=torch.int32), "device")]:
        with pytest.raises(RuntimeError, match=message):
            octavo.float8_grouped_linear(x, w, offs)
    code = ("import os, torch; torch.ops.load_library(os.environ['OCTAVO_BUILD_DIR'] + "
            "'/octavo/liboctavo.so'); offs = torch.tensor([16, 8], dtype=torch.int32).cuda()\n"
            "try: torch.ops.octavo.quantize_grouped(torch.ones(32, 32).cuda(), offs)\n"
            "except RuntimeError as e: print('never decrease' in str(e))")
    if "OCTAVO_BUILD_DIR" in os.environ:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              env={**os.environ, "OCTAVO_CHECK_OFFSETS": "1"})
        assert done.stdout.strip() == "True", done.stderr


@pytest.mark.parametrize("recipe", ["rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8"])
def test_no_host_synchronisation_and_one_cuda_graph_for_all_groupings(recipe):
    groupings = [[100, 0, 28, 128], [1, 2, 3, 250], [256, 0, 0, 0], [0, 0, 0, 10]]
    x, w, dy = random(256, 128).cuda(), random(4, 64, 128).cuda(), random(256, 64).cuda()
    offs = ends_of(groupings[0]).cuda()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run_once = lambda: octavo.float8_grouped_linear_forward(x, w, offs, recipe, True, True, True)
        for _ in range(2):
            run_once()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.set_sync_debug_mode("error")
    try:
        y, x_bytes, x_scale, w_bytes, w_scale = run_once()
        saved = (x_bytes, x_scale) if x_bytes.numel() else (x, None)
        octavo.float8_grouped_linear_backward(dy, *saved, w_bytes, w_scale, offs, recipe,
                                              torch.bfloat16)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, x_bytes, x_scale, w_bytes, w_scale = run_once()
        saved = (x_bytes, x_scale) if x_bytes.numel() else (x, None)
        dx, dw = octavo.float8_grouped_linear_backward(dy, *saved, w_bytes, w_scale, offs, recipe,
                                                       torch.bfloat16)
    for sizes in groupings:
        offs.copy_(ends_of(sizes))
        graph.replay()
        for got, want in zip((y, dx, dw), run(x, w, ends_of(sizes).cuda(), recipe, dy)):
            assert torch.equal(got, want), sizes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_swiglu_and_permute_are_the_cpus(dtype):
    for rows, f in [(300, 1408), (7, 33), (128, 8)]:
        both = random(rows, 2 * f, dtype=dtype)
        dh = random(rows, f, dtype=dtype, seed=3)
        results = []
        for device in ["cpu", "cuda"]:
            leaf = both.detach().clone().to(device).requires_grad_()
            h = octavo.swiglu(leaf)
            h.backward(dh.to(device))
            parts = [t.clone().to(device).requires_grad_() for t in both.chunk(2, 1)]
            octavo.swiglu(*parts).backward(dh.to(device))
            apart = torch.cat([p.grad for p in parts], 1)
            if device == "cuda":
                assert same_bits(apart, leaf.grad)
            else:  # LibTorch's exp has other last bits in rows that are not contiguous
                torch.testing.assert_close(apart, leaf.grad, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
            results.append((h.detach(), leaf.grad))
        for want, got in zip(*results):
            assert snr(got, want) >= {2: 50, 4: 110}[dtype.itemsize]
    for tokens, k, d in [(300, 6, 2048), (9, 1, 33), (17, 3, 64)]:
        choice = torch.rand(tokens, 8).argsort(1)[:, :k].flatten().sort(stable=True).indices
        row = torch.empty_like(choice).scatter_(0, choice, torch.arange(tokens * k)).view(tokens, k)
        x, rows_ = random(tokens, d, dtype=dtype), random(tokens * k, d, dtype=dtype)
        weights, dout = torch.rand(tokens, k), random(tokens, d, dtype=dtype, seed=5)
        results = []
        for device in ["cpu", "cuda"]:
            leaves = [t.clone().to(device).requires_grad_() for t in (x, rows_, weights)]
            c, r = choice.to(device), row.to(device)
            y = octavo.permute(leaves[0], c, r)
            y.backward(rows_.to(device))
            out = octavo.unpermute(leaves[1], c, r, leaves[2])
            out.backward(dout.to(device))
            results.append([y.detach(), out.detach()] + [leaf.grad for leaf in leaves])
        assert same_bits(results[1][0], results[0][0])
        for want, got in zip(*results):
            assert snr(got, want) >= {2: 50, 4: 110}[dtype.itemsize]
