"""`Member`: this process as one of several. It knows its place, and what it calls is what all of them call."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

import shardwright.engines.torch.transport as transport
from shardwright.caches import MIB, Cache
from shardwright.engines.checks import is_checked
from shardwright.engines.coherence import Calls, key_of, with_values
from shardwright.engines.mailbox import Mailbox
from shardwright.engines.torch.own import Absent
from shardwright.engines.torch.processes import World, ranks_in_use
from shardwright.engines.torch.routes import place_in
from shardwright.engines.torch.space import TorchSpace
from shardwright.errors import CoherenceError, EngineError
from shardwright.lines import source_line
from shardwright.mesh import Mesh

Tensor = torch.Tensor


class Member:
    """One process of several, which holds one device of a mesh."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._mailbox = Mailbox()
        self._calls: dict[Mesh, Calls] = {}
        self._routes: Cache[Any, Any] = Cache(limit=16 * MIB, size=lambda route: 2000)

    @cached_property
    def world(self) -> World:
        """The processes; found or made when data is first placed."""
        return World.current()

    @cached_property
    def xp(self) -> Any:
        """Torch's functions, on this process's device."""
        return TorchSpace(self.device)

    @cached_property
    def device(self) -> torch.device:
        """This process's device."""
        return self.world.local_device(self._device)

    @property
    def processes(self) -> int:
        """How many processes there are."""
        return self.world.size

    def check(self, mesh: Mesh) -> None:
        """Refuse a mesh that the processes can't hold."""
        if "world" not in self.__dict__:
            self.__dict__["world"] = World.current(mesh.timeout)
        self.world.check(mesh)

    def place(self, mesh: Mesh) -> int:
        """The place of this process's device."""
        found = place_in(mesh, self.world.rank)
        if found is None:
            raise EngineError(f"rank {self.world.rank} is not part of {mesh}, which uses the {ranks_in_use(mesh)}.")
        return found

    def places(self, mesh: Mesh) -> Sequence[int]:
        """The devices of this process: one."""
        return (self.place(mesh),)

    # -- the same calls everywhere ------------------------------------------------------------------------------------

    def calls(self, mesh: Mesh) -> Calls:
        """The calls on meshes of these processes, which all of them must make alike."""
        found = self._calls.get(mesh)
        if found is None:
            found = self._calls[mesh] = self.world.reports.calls_of(tuple(sorted(map(int, mesh.device_ids))))
        return found

    def note(self, mesh: Mesh, key: int, text: Any, scalars: Sequence[Any] = ()) -> None:
        """Part of what all processes of a mesh must do alike: a call, and the scalars among its operands."""
        if scalars:
            key = with_values(key, (x for x in scalars if not isinstance(x, Tensor)))
        self.noting(mesh, key, text, _nothing)()

    def noting(self, mesh: Mesh, key: int, text: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that notes a call before it runs: the path of a warm operation."""
        reports, calls = self.world.reports, self.calls(mesh)
        add, compare = calls.add, self.compare

        def noted(*data: Any) -> Any:
            if reports.error is not None:
                raise CoherenceError(str(reports.error), reports.error.ranks)
            reports.calls = calls
            add(key, text)
            if is_checked():
                compare(mesh, text)
            return function(*data)

        return noted

    @property
    def tag(self) -> int:
        """31 bits of what this process has called so far on the mesh of the call that is running. Messages have them, so that
        those of processes that have gone another way do not meet."""
        return self.world.reports.calls.digest >> 33

    def compare(self, mesh: Mesh, what: Any, detail: Sequence[str] = ()) -> None:
        """Refuse to go on unless all processes of a mesh have made the same calls."""
        calls, world = self.calls(mesh), self.world
        signed = calls.digest - 2**64 if calls.digest >= 2**63 else calls.digest
        mine = torch.tensor([calls.count, signed])
        table = self.guarded(what, lambda: transport.all_gather(world.control(calls.ranks), mine))
        pairs = [(int(count), int(digest)) for count, digest in table.tolist()]
        if len(set(pairs)) > 1:
            raise world.reports.diverged(pairs, str(what), detail)

    def guarded(self, what: Any, function: Callable[..., Any], *args: Any) -> Any:
        """A function that waits for other processes; if they don't come, the error says which."""
        reports = self.world.reports
        if reports.error is not None:
            raise CoherenceError(str(reports.error), reports.error.ranks)
        calls = reports.calls
        calls.waits = True
        try:
            return function(*args)
        except RuntimeError as error:
            raise reports.lost(error, f"{what}{self.line()}") from error
        finally:
            calls.waits = False

    def line(self) -> str:
        """The user's line, for messages."""
        line = source_line()
        return f" ({line})" if line else ""

    def agree(self, mesh: Mesh, steps: tuple[str, ...]) -> None:
        """Refuse to go on unless every process holds the same program; names the first step that differs."""
        self.note(mesh, key_of("\n".join(steps)), f"a program of {len(steps)} steps")
        self.compare(mesh, f"the program's first run{self.line()}", steps)

    def held(self, data: Any) -> Tensor:
        """Data that is here; an error on a process that has no part of it."""
        if isinstance(data, Absent):
            raise EngineError(
                f"rank {self.world.rank} has no part of this array: it is on the {ranks_in_use(data.mesh)}."
            )
        return data

    def agreed(self, mesh: Mesh, numbers: Mapping[int, Sequence[int]]) -> list[list[int]]:
        """Integers that each device knows, those of all devices in their order."""
        (mine,) = numbers.values()
        self.note(mesh, key_of(f"{len(mine)} integers of each of {mesh.size}"), "sizes that all processes tell")
        ranks = tuple(map(int, mesh.device_ids))
        given = torch.tensor(list(mine), dtype=torch.int64)
        table: list[list[int]] = self.guarded("telling sizes", self.gathered, ranks, given).tolist()
        return table

    def gathered(self, ranks: tuple[int, ...], tensor: Tensor) -> Tensor:
        """The tensors of some ranks, in their order."""
        return transport.all_gather(self.world.group(ranks), tensor, self.tag)

    def route(self, step: Any, make: Callable[[], Any]) -> Any:
        """What a step is for this process, worked out once."""
        found = self._routes.get(step)
        if found is None:
            found = make()
            self._routes.put(step, found)
        return found


def _nothing() -> None:
    """What a call runs that is only noted."""
