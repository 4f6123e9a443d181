"""`measure`: all-reduces of several sizes, timed on the devices at hand: the processes of torch, or the devices of JAX."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from shardwright.errors import MeshError
from shardwright.hardware.calibration import Calibration, Measured, fitted
from shardwright.hardware.checks import as_count

SIZES = tuple(4**n for n in range(5, 16))  # 1 KiB to 1 GiB
# Seconds: a size that takes so long shows the bandwidth, larger ones are left out unless they are asked for.
ENOUGH = 0.05
ROUNDS = 3  # through all sizes: what else the machine does then slows some repeats of a size, not all


def measure(sizes: Sequence[int] | None = None, repeats: int = 9) -> Calibration:
    """The machine of this process's devices, its link fitted to all-reduces of some sizes in bytes.

    Of several repeats, in three rounds through all sizes, the least counts, each as long as the slowest process takes. Buffers
    are used again, so that no time goes to new memory. Without `sizes` they grow from 1 KiB until one takes 50 ms, up to 1 GiB.
    What is printed has the error of the fit: on CPUs times grow faster than bytes once the caches are full, and no latency and
    bandwidth give that. Under torchrun or in `sw.launch` all processes must call it, and all get the same; otherwise it takes
    the devices of JAX, if there are several.
    """
    if sizes is not None:
        if not isinstance(sizes, Sequence) or isinstance(sizes, str) or not sizes:
            raise MeshError(f"The sizes to measure are {sizes!r}; give several in bytes, such as [1024, 1 << 20].")
        sizes = [as_count(size, f"A size of {sizes!r}, in bytes,", 1) for size in sizes]
    as_count(repeats, "The number of repeats", 1)
    if "RANK" in os.environ:
        return _on_torch(sizes, repeats)
    if "jax" in sys.modules and sys.modules["jax"].device_count() > 1:
        return _on_jax(sizes, repeats)
    raise MeshError(
        "There is nothing to measure: this is one process, and JAX has not been imported or has one device. Call "
        "sw.hardware.measure() in all processes under torchrun, or after `import jax` on several devices."
    )


def _on_torch(sizes: Sequence[int] | None, repeats: int) -> Calibration:
    import torch
    import torch.distributed as dist

    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    def reduced(tensor: Any) -> None:
        dist.all_reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize()

    def least(size: int, repeats: int) -> Measured:
        tensor = torch.zeros(max(size // 4, 1), dtype=torch.float32, device=device)
        times = torch.tensor(
            _times(partial(reduced, tensor), repeats, before=dist.barrier), dtype=torch.float64, device=device
        )
        dist.all_reduce(times, op=dist.ReduceOp.MAX)  # the same on all processes
        return Measured("all_reduce", 4 * tensor.numel(), float(times.min()))

    name = torch.cuda.get_device_name() if device.type == "cuda" else ""
    return fitted(_measured(least, sizes, repeats), dist.get_world_size(), name)


def _on_jax(sizes: Sequence[int] | None, repeats: int) -> Calibration:
    jax: Any = sys.modules["jax"]
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    total = jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=spec, out_specs=spec)
    reduce = jax.jit(total, donate_argnums=0)

    def least(size: int, repeats: int) -> Measured:
        count = max(size // 4, 1)
        shards = jax.numpy.zeros((jax.device_count() * count,), "float32", device=jax.NamedSharding(mesh, spec))

        def run() -> None:
            nonlocal shards
            shards = reduce(shards).block_until_ready()

        return Measured("all_reduce", 4 * count, min(_times(run, repeats)))

    return fitted(_measured(least, sizes, repeats), jax.device_count(), jax.devices()[0].device_kind)


def _measured(least: Callable[[int, int], Measured], sizes: Sequence[int] | None, repeats: int) -> list[Measured]:
    """The least time of each size; those of `SIZES` until one takes long enough."""
    rounds = min(ROUNDS, repeats)
    found: list[Measured] = []
    for size in sizes or SIZES:
        found.append(least(size, -(-repeats // rounds)))
        if sizes is None and found[-1].seconds > ENOUGH:
            break
    for turn in range(1, rounds):
        count = (repeats + rounds - 1 - turn) // rounds
        found = [min(one, least(one.nbytes, count), key=lambda some: some.seconds) for one in found]
    return found


def _times(run: Callable[[], object], repeats: int, before: Callable[[], object] = lambda: None) -> list[float]:
    """Seconds of several runs, after one that does not count."""
    run()
    times = []
    for _ in range(repeats):
        before()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times
