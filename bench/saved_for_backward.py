"""What a compiled Llama block keeps from forward to backward, in bytes, without a GPU.

    PYTHONPATH=python OCTAVO_BUILD_DIR=build python bench/saved_for_backward.py bf16 octavo:rowwise torchao:rowwise
        [--tokens 8192] [--memory-budget 0.9] [--verbose]

The block and the conversions are bench/llama.py's. The graph is traced with fake tensors of the full sizes and cut
into forward and backward as Inductor cuts it; what the forward graph returns beside its result is counted, without
parameters and the block's own input, which is counted as what the block before returns.
"""

import argparse

import llama
import torch
import torch._functorch.config
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import CheckpointPolicy


def cut(contender, tokens):
    """The forward and the backward graph, and the nodes kept between them that are made by forward."""
    torch._dynamo.reset()
    parts = {}

    def partition(graph, inputs, *, num_fwd_outputs, **rest):
        joint_graph_passes(graph)
        for node in graph.graph.find_nodes(
                op="call_function", target=torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE  # torch takes the CPU's attention for cheap, not a GPU's
        parts["graphs"] = min_cut_rematerialization_partition(
            graph, inputs, compiler="inductor", num_fwd_outputs=num_fwd_outputs, **rest)
        kept = parts["graphs"][0].graph.find_nodes(op="output")[0].args[0][num_fwd_outputs:]
        parts["kept"] = [node for node in kept
                         if node.op != "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)]
        return parts["graphs"]

    def as_it_is(graph, inputs):
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=as_it_is, bw_compiler=as_it_is, partition_fn=partition,
                           decompositions=select_decomp_table())
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    torch.set_default_dtype(torch.bfloat16)
    with fake:
        model = nn.ModuleDict({"block": llama.Block(), "lm_head": nn.Linear(1, 1)})
    torch.set_default_dtype(torch.float32)
    llama.converted(model, contender)
    with fake:
        x = torch.empty(1, tokens, llama.D, dtype=torch.bfloat16, requires_grad=True)
        angles = torch.empty(1, tokens, 1, llama.HEAD // 2)
        torch.compile(model["block"], backend=backend, fullgraph=True)(x, angles, angles)
    return *parts["graphs"], parts["kept"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contenders", nargs="+", help="as bench/llama.py's")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--memory-budget", type=float, default=1.0)
    parser.add_argument("--verbose", action="store_true", help="every tensor, too")
    args = parser.parse_args()
    torch._functorch.config.activation_memory_budget = args.memory_budget
    torch._functorch.config.is_non_builtin_to_include = args.memory_budget < 1
    for contender in args.contenders:
        forward, backward, kept = cut(contender, args.tokens)
        sizes = {"high precision": 0, "FP8": 0}
        for node in kept:
            value = node.meta["val"]
            sizes["FP8" if value.itemsize == 1 else "high precision"] += value.numel() * value.itemsize
        again = [name for node in backward.graph.nodes for name in ("linear_forward", "attention")
                 if name in str(node.target) and "backward" not in str(node.target)]
        print(f"{contender:28} {sum(sizes.values()) / 2**20:7.1f} MiB: high precision "
              f"{sizes['high precision'] / 2**20:7.1f}, FP8 {sizes['FP8'] / 2**20:6.1f}; run again "
              f"in backward: {', '.join(again) or 'no product'}", flush=True)
        if args.verbose:
            for node in kept:
                value = node.meta["val"]
                print(f"    {str(value.dtype)[6:]:9} {str(tuple(value.shape)):22} "
                      f"{value.numel() * value.itemsize / 2**20:7.1f}  {node.name}")


if __name__ == "__main__":
    main()
