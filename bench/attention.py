"""Which of LibTorch's attention backends a training step should use: causal, grouped heads, forward and backward.

usage: python bench/attention.py [repetitions]

One line for each backend and shape: milliseconds forward, and forward with backward, medians between CUDA
events; backends take turns. TFLOP/s count the causal half: 2 products forward, 5 backward. k and v are given
with their own few heads (enable_gqa); "expanded" repeats them in memory first, which a backend without grouped
heads needs. "default" is what scaled_dot_product_attention chooses by itself.
"""

import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = [(1, 8192, 32, 8, 128), (4, 2048, 32, 8, 128), (1, 8192, 12, 2, 128), (1, 8192, 16, 16, 128)]
BACKENDS = {"flash": [SDPBackend.FLASH_ATTENTION], "cudnn": [SDPBackend.CUDNN_ATTENTION], "default": None}


def attend(q, k, v, backends, expanded):
    if expanded:
        repeat = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    run = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not expanded)
    if backends is None:
        return run()
    with sdpa_kernel(backends):
        return run()


def milliseconds(work):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def main():
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "cudnn", torch.backends.cudnn.version())
    for b, t, h, kv, p in SHAPES:
        q, k, v = (torch.randn(b, t, n, p, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
                   for n in (h, kv, kv))
        dy = torch.randn(b, t, h, p, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        cases = {name: (backends, False) for name, backends in BACKENDS.items()}
        if h != kv:
            cases |= {f"{name}, expanded": (BACKENDS[name], True) for name in ("flash", "cudnn")}
        forward = {name: [] for name in cases}
        both = {name: [] for name in cases}
        for repetition in range(repetitions + 2):
            for name, (backends, expanded) in list(cases.items()):
                try:
                    with torch.no_grad():
                        f = milliseconds(lambda: attend(q, k, v, backends, expanded))
                    fb = milliseconds(lambda: attend(q, k, v, backends, expanded).backward(dy))
                except RuntimeError as error:
                    print(f"{name}: {str(error).splitlines()[0]}")
                    del cases[name]
                    continue
                if repetition >= 2:
                    forward[name].append(f)
                    both[name].append(fb)
        half = 2 * b * h * p * t * (t + 1) / 2
        for name in cases:
            f, fb = statistics.median(forward[name]), statistics.median(both[name])
            print(f"B {b} T {t} H {h}/{kv} P {p}  {name:16}  forward {f:7.3f} ms {2 * half / f / 1e9:5.0f} TFLOP/s  "
                  f"with backward {fb:7.3f} ms {7 * half / fb / 1e9:5.0f} TFLOP/s", flush=True)


if __name__ == "__main__":
    main()
