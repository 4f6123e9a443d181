"""Real processes for tests: a pool of processes in one gloo group on loopback, kept alive across tests.

They are forked from a server that has only imported torch: four imports of it take longer than the tests.

`pool.run(body, *args)` calls a function of a test file on every process and returns their results in the order of ranks.
An error in a process is raised with its rank and traceback. Nothing outlives the time limit.
"""

import importlib.util
import inspect
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import wait
from pathlib import Path

LIMIT = 120.0  # seconds for one call, a safeguard against hangs: far more than any takes, on a busy machine too


def _module(path, cache):
    if path not in cache:
        name = f"_worker_{Path(path).stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        cache[path] = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(cache[path])
    return cache[path]


def _work(rank, world, store, first, pipe):
    """The loop of one process: read (file, function, arguments), answer (whether it worked, result or traceback)."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    cache = {}
    _module(first, cache)  # while the others do the same
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        path, name, args = job
        try:
            pipe.send((True, getattr(_module(path, cache), name)(*args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


class Pool:
    """Processes that run functions of a test file; a context manager. After an error it starts new ones."""

    def __init__(self, world, file):
        self.world, self.file = world, file
        self.processes, self.pipes = [], []

    def _start(self):
        self.folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["shardwright.torch", "torch._dynamo", "pytest"])  # DTensor imports it late
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        for rank in range(self.world):
            own, other = context.Pipe()
            args = (rank, self.world, f"{self.folder.name}/store", self.file, other)
            process = context.Process(target=_work, args=args, daemon=True)
            process.start()
            other.close()
            self.processes.append(process)
            self.pipes.append(own)

    def run(self, body, *args):
        """The results of `body(*args)` on every process."""
        if not self.processes:
            self._start()
        for pipe in self.pipes:
            pipe.send((inspect.getsourcefile(body), body.__name__, args))
        end = time.monotonic() + LIMIT
        results, waiting = {}, dict(zip(self.pipes, range(self.world), strict=True))
        while waiting:
            ready = wait(list(waiting), timeout=max(end - time.monotonic(), 0))
            if not ready:
                self.close()
                raise TimeoutError(
                    f"{body.__name__}: ranks {sorted(waiting.values())} gave no answer in {LIMIT:.0f} s."
                )
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    worked, result = pipe.recv()
                except EOFError:
                    worked, result = False, "the process ended"
                if not worked:
                    self.close()  # the others may be waiting for it in a collective
                    raise AssertionError(f"{body.__name__} on rank {rank}:\n{result}")
                results[rank] = result
        return [results[rank] for rank in range(self.world)]

    def close(self):
        """End all processes at once; they hold nothing that needs a farewell."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        for pipe in self.pipes:
            pipe.close()
        if self.processes:
            self.folder.cleanup()
        self.processes, self.pipes = [], []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()
