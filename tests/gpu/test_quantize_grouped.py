"""Operands of grouped products on an NVIDIA GPU: bytes, scales and ends are the CPU's."""

import pytest
import torch

octavo = torch.ops.octavo

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")

FORMATS = ["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"]


def random(*sizes, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(sizes))
    return torch.randn(*sizes, generator=generator).to(dtype)


def same_bits(a, b):
    a, b = a.cpu().contiguous(), b.cpu().contiguous()
    if a.dtype == torch.float32:  # NaN payloads are the machine's own affair
        a, b = a.nan_to_num(7), b.nan_to_num(7)
    as_int = {1: torch.uint8, 4: torch.int32}[a.element_size()]
    return a.shape == b.shape and torch.equal(a.view(as_int), b.view(as_int))


def poison():
    """Fills freed memory with NaN, for whoever gets it next."""
    for size in (1 << 26, 1 << 20, 1 << 14, 1 << 10):
        torch.full((size,), float("nan"), device="cuda")


def ends_of(*sizes):
    return torch.tensor(sizes).cumsum(0).to(torch.int32)


GROUPS = {
    "uneven": (ends_of(162, 0, 2577, 446, 0, 83), 3268),
    "rows of no group": (ends_of(16, 0, 33), 80),
    "no multiple of 32": (ends_of(44, 0, 20), 64),
    "empty": (ends_of(0, 0, 0, 0), 0),
    "no tokens": (ends_of(0, 0, 0, 0), 48),
    "many": (ends_of(*[(7 * i) % 41 for i in range(256)]), 5200),
}


@pytest.mark.parametrize("granularity", ["rowwise", "1x128", "mx1x32"])
@pytest.mark.parametrize("layout", ["rows", "transposed"])
def test_groups_have_the_cpus_bytes(granularity, layout):
    for number, (name, (offs, rows)) in enumerate(GROUPS.items()):
        for k in (7, 136, 0):
            element = FORMATS[(number + k) % (2 if granularity == "mx1x32" else 4)]
            dtype = (torch.bfloat16, torch.float16, torch.float32)[number % 3]
            x = random(rows, k, dtype=dtype)
            if x.numel() > 100:
                x[rows // 3, k // 2], x[rows // 2, 0] = float("nan"), float("inf")
            for view in (x, x.t().contiguous().t(), x[:, ::2]):
                want = octavo.quantize_grouped(view, offs, element, granularity, layout=layout)
                cuda = torch.empty_strided(view.shape, view.stride(), dtype=dtype, device="cuda")
                cuda.copy_(view)
                poison()
                got = octavo.quantize_grouped(cuda, offs.cuda(), element, granularity,
                                              layout=layout)
                for g, w in zip(got, want):
                    assert same_bits(g, w), (name, k, element, dtype, view.stride())


@pytest.mark.parametrize("offs", [[16, 8, 32], [-1, 16, 20], [16, 1 << 30, 3]])
def test_bad_ends_are_clamped(offs):
    x = random(48, 136)
    good, before = [], 0
    for end in offs:
        before = min(max(end, before), 48)
        good.append(before)
    for layout in ("rows", "transposed"):
        want = octavo.quantize_grouped(x, torch.tensor(good, dtype=torch.int32), layout=layout)
        got = octavo.quantize_grouped(x.cuda(), torch.tensor(offs, dtype=torch.int32).cuda(),
                                      layout=layout)
        for g, w in zip(got, want):
            assert same_bits(g, w)


@pytest.mark.parametrize("granularity", ["tensorwise", "rowwise", "128x128", "mx1x32"])
@pytest.mark.parametrize("layout", ["rows", "transposed"])
def test_experts_weights_have_the_cpus_bytes(granularity, layout):
    for number, sizes in enumerate([(3, 144, 264), (2, 33, 127), (4, 16, 8), (1, 128, 256),
                                    (5, 1, 1), (0, 16, 16), (2, 0, 16), (2, 16, 0)]):
        element = FORMATS[number % (2 if granularity == "mx1x32" else 4)]
        dtype = (torch.bfloat16, torch.float16, torch.float32)[number % 3]
        w = random(*sizes, dtype=dtype)
        if w.numel() > 100:
            w[0, 5, 7] = float("nan")
        for view in (w, w.transpose(1, 2).contiguous().transpose(1, 2), w[:, :, ::2], w[:, 1:]):
            want = octavo.quantize_expert_weights(view, element, granularity, layout=layout)
            cuda = torch.empty_strided(view.shape, view.stride(), dtype=dtype, device="cuda")
            cuda.copy_(view)
            poison()
            got = octavo.quantize_expert_weights(cuda, element, granularity, layout=layout)
            for g, v in zip(got, want):
                assert same_bits(g, v), (sizes, element, dtype, view.stride())
