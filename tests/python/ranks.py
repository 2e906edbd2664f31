"""Several gloo ranks on this machine, forked: torch is imported once."""

import multiprocessing
import os
import pickle
import tempfile
import traceback

import torch
import torch.distributed as dist


def _rank(function, rank, world, folder, arguments):
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
        answer = ("ok", function(rank, world, *arguments))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:  # what failed is told to the parent, with where
        answer = ("error", traceback.format_exc())
    with open(os.path.join(folder, f"{rank}.tmp"), "wb") as file:
        pickle.dump(answer, file)
    os.rename(os.path.join(folder, f"{rank}.tmp"), os.path.join(folder, str(rank)))
    os._exit(0)  # no clean-up of a forked parent's state


def run_ranks(world, function, *arguments, timeout=120):
    """function(rank, world, *arguments) on every rank; the list of what they return."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("fork")
        processes = [context.Process(target=_rank, args=(function, r, world, folder, arguments))
                     for r in range(world)]
        for process in processes:
            process.start()
        errors, results = [], []
        for rank, process in enumerate(processes):
            process.join(timeout)
            if process.is_alive():
                process.kill()
            path = os.path.join(folder, str(rank))
            kind, value = pickle.load(open(path, "rb")) if os.path.exists(path) else ("error", "no answer")
            (errors if kind == "error" else results).append(value if kind == "ok" else f"rank {rank}: {value}")
        assert not errors, "\n".join(errors)
        return results
