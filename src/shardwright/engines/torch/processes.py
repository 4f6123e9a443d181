"""The processes that share the work: their group is found, or made from torchrun's variables, when data is first placed.

Every process is a device of the mesh, the one whose id is its rank. Groups are our own, so that collectives of the user's code
never mix with ours and our time-out holds.
"""

import atexit
import contextlib
import os
import time
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from shardwright.engines.coherence import Reports, default_timeout
from shardwright.errors import CoherenceError, EngineError
from shardwright.lines import source_line
from shardwright.mesh import Mesh

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # that torchrun sets
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def is_distributed() -> bool:
    """Whether this process is one of several: a process group exists, or torchrun's variables are set."""
    return dist.is_available() and (dist.is_initialized() or all(name in os.environ for name in VARIABLES))


def has_group() -> bool:
    """Whether this process belongs to a process group; under torchrun the group is made if there is none yet."""
    if not is_distributed():
        return False
    if not dist.is_initialized():
        _initialise(default_timeout())
    return True


class Group(NamedTuple):
    """A process group whose members are in the mesh's order."""

    handle: Any  # a torch.distributed.ProcessGroupGloo or ProcessGroupNCCL
    ranks: tuple[int, ...]
    own: int  # the position of this process


class World:
    """All processes. There is one object a process, made by `World.current`."""

    _only: "World | None" = None

    def __init__(self, timeout: float) -> None:
        made = not dist.is_initialized()
        if made:
            _initialise(timeout)
        self.rank, self.size, self.timeout = dist.get_rank(), dist.get_world_size(), timeout
        self._groups: dict[tuple[tuple[int, ...], str], Group] = {}
        store: Any = dist.distributed_c10d._get_default_store()
        self._store = store
        self.reports = Reports(store.clone(), self.rank, self.size)
        self.reports.start()
        atexit.register(self._ended, made)

    @staticmethod
    def current(timeout: float | None = None) -> "World":
        """The processes that this one works with."""
        if World._only is None:
            World._only = World(timeout or default_timeout())
        return World._only

    def _ended(self, made: bool) -> None:
        """At the end of the process: others are told, and a process group of our own is closed."""
        self.reports.close()
        if made and dist.is_initialized() and not self.reports.is_over:
            with contextlib.suppress(RuntimeError):  # another process has gone: there is nothing left to close
                dist.destroy_process_group()

    def group(self, ranks: tuple[int, ...], device: str = "cpu") -> Group:
        """The group of some ranks, in their order; only its members may ask."""
        backend = "nccl" if device.startswith("cuda") else "gloo"
        found = self._groups.get((ranks, backend))
        if found is None:
            found = self._groups[ranks, backend] = self._new(ranks, backend, backend)
        return found

    def control(self, ranks: tuple[int, ...]) -> Group:
        """The group of some ranks that only compares calls."""
        found = self._groups.get((ranks, "control"))
        if found is None:
            found = self._groups[ranks, "control"] = self._new(ranks, "gloo", "control")
        return found

    def _new(self, ranks: tuple[int, ...], backend: str, name: str) -> Group:
        """A new group. `dist.new_group` would sort the ranks, and names groups by how many a process has made before."""
        key = f"{name}/{'-'.join(map(str, ranks))}"
        self.reports.meet(key, ranks, self.timeout)  # torch would wait without hearing that one is gone
        store = dist.distributed_c10d.PrefixStore(f"shardwright/{key}", self._store)
        own, wait = ranks.index(self.rank), timedelta(seconds=self.timeout)
        if backend == "gloo":
            return Group(dist.ProcessGroupGloo(store, own, len(ranks), wait), ranks, own)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = wait
        return Group(dist.ProcessGroupNCCL(store, own, len(ranks), options), ranks, own)

    def check(self, mesh: Mesh) -> None:
        """Refuse a mesh of other devices than there are processes."""
        ids = mesh.device_ids
        most = max(ids)
        if most >= self.size:
            raise EngineError(
                f"{mesh} needs a process for each of its {mesh.size} devices, and device {most} is rank {most}, but there are "
                f"only {self.size} processes. Start it with torchrun --nproc-per-node {most + 1}, or use a smaller mesh."
            )
        if self.rank not in ids:
            raise EngineError(f"rank {self.rank} is not part of {mesh}, which uses the {ranks_in_use(mesh)}.")

    def local_device(self, device: str) -> torch.device:
        """The device of this process: of several GPUs the one of its local rank."""
        made = torch.device(device)
        if made.type == "cuda" and made.index is None:
            return torch.device("cuda", int(os.environ.get("LOCAL_RANK", self.rank)))
        return made


def ranks_in_use(mesh: Mesh) -> str:
    """The ranks that hold a mesh, for messages."""
    ids = list(mesh.device_ids)
    if ids == list(range(len(ids))):
        return f"ranks 0 to {len(ids) - 1}"
    return f"ranks {', '.join(map(str, sorted(ids)[:16]))}{', …' if len(ids) > 16 else ''}"


def _initialise(timeout: float) -> None:
    missing = [name for name in VARIABLES if name not in os.environ]
    if missing:
        raise EngineError(
            f"There is no process group, and {', '.join(missing)} are not set. Start the script with torchrun "
            f"--nproc-per-node 4 script.py, or a function with sw.launch(fn, processes=4)."
        )
    if os.environ["MASTER_ADDR"] in LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", os.environ["RANK"])) % torch.cuda.device_count())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = _joined_store(rank, size, timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))


def _joined_store(rank: int, size: int, timeout: float) -> Any:
    """The store of all processes, once all have come; CoherenceError names those that have not. Torch would name none."""
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun keeps the store
    deadline, pause, line = time.monotonic() + timeout, 0.002, source_line()
    where = f" ({line})" if line else ""
    try:
        store: Any = torch.distributed.TCPStore(  # type: ignore[attr-defined]
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, rank == 0 and not has_agent,
            timeout=timedelta(seconds=timeout), wait_for_workers=False, multi_tenant=True,
        )  # fmt: skip
        if has_agent:
            store = dist.distributed_c10d.PrefixStore(
                f"/worker/attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store
            )
        store.set(f"shardwright/here/{rank}", b"here")
        while missing := [other for other in range(size) if not store.check([f"shardwright/here/{other}"])]:
            if time.monotonic() > deadline or store.check(["shardwright/missing"]):
                break
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        else:
            return store
        store.set("shardwright/missing", b"some")
    except RuntimeError as error:
        text = f"rank 0, which keeps the store of the processes, does not answer{where}: {str(error).splitlines()[0]}"
        raise CoherenceError(f"{text} Start all processes again.", (0,)) from error
    if rank == 0:
        time.sleep(0.5)  # the store ends with this process: others read first that some are missing
    named = " and ".join(f"rank {other}" for other in missing)
    raise CoherenceError(
        f"{named} did not join the other processes within {timeout:g} s, or has ended before. rank {rank} waited in placing "
        f"data for the first time{where}. Start all processes again.",
        tuple(missing),
    )
