"""Other processes: waiting for them, and several that work together."""

import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def wait_for(condition, process=None):
    """Wait until a condition holds, at most until pytest-timeout ends the test; fail if a process ends before."""
    while not condition():
        assert process is None or process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.002)


def together(function, folder, *args, world=2):
    """Run ``function(rank, world, folder, *args)`` in each of several processes of one group."""
    mp.spawn(_member, args=(function, world, folder, args), nprocs=world)


def _member(rank, function, world, folder, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    function(rank, world, folder, *args)
    dist.barrier()
    os._exit(0)  # with threads of gloo in it, an orderly exit hangs (torch 2.6) or aborts, once in a while
