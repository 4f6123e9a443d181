"""This process as one of several that share JAX's devices: they make the same calls, which they compare before each runs.

Runs of XLA that wait for a process which never comes can't be ended. So processes meet before every run, through the key-value
store of JAX's coordination service, and only go on if all have come to the same call.
"""

import atexit
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from shardwright.engines.coherence import Calls, Reports, default_timeout
from shardwright.engines.jax.devices import devices_of
from shardwright.errors import CoherenceError, EngineError
from shardwright.lines import source_line
from shardwright.mesh import Mesh


class Store:
    """The key-value store of JAX's coordination service, as `Reports` uses one."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def set(self, key: str, value: "str | bytes") -> None:
        """Write a value, over an older one."""
        text = value.decode() if isinstance(value, bytes) else value
        self._client.key_value_set(key, text, allow_overwrite=True)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys have values."""
        return all(self._find(key) is not None for key in keys)

    def get(self, key: str) -> bytes:
        """A value that is there."""
        found = self._find(key)
        assert found is not None, key
        return found.encode()

    def _find(self, key: str) -> str | None:
        try:
            found: str = self._client.key_value_try_get(key)
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" in str(error):
                return None
            raise
        return found


class Member:
    """One process of several."""

    def __init__(self) -> None:
        from jax._src.distributed import global_state  # JAX has no public way to its store

        if global_state.client is None:
            raise EngineError(
                f"JAX runs in {jax.process_count()} processes without its coordination service, so they can't compare their "
                f"calls. Start them with jax.distributed.initialize(…)."
            )
        self.rank = jax.process_index()
        self.reports = Reports(Store(global_state.client), self.rank, jax.process_count())
        self._store = Store(global_state.client)
        self._ranks: dict[Mesh, tuple[int, ...]] = {}
        self._meetings: dict[tuple[int, ...], int] = {}
        self.reports.start()
        atexit.register(self.reports.close)

    def calls(self, mesh: Mesh) -> Calls:
        """The calls on meshes of the same processes."""
        if mesh not in self._ranks:
            self._ranks[mesh] = tuple(sorted({device.process_index for device in devices_of(mesh)}))
        if self.rank not in self._ranks[mesh]:
            named = ", ".join(map(str, self._ranks[mesh]))
            raise EngineError(f"rank {self.rank} has no device of {mesh}: it is on the processes {named}.")
        return self.reports.calls_of(self._ranks[mesh])

    def note(self, mesh: Mesh, key: int, text: str) -> None:
        """Part of what all processes of a mesh must do alike."""
        self._refuse_if_over()
        calls = self.reports.calls = self.calls(mesh)
        calls.add(key, text)

    def compare(self, mesh: Mesh, what: str, detail: Sequence[str] = ()) -> None:
        """Refuse to go on unless all processes of a mesh have made the same calls."""
        calls = self.reports.calls = self.calls(mesh)
        told = self.gathered(mesh, [calls.count, calls.digest], what)
        pairs = [(int(count), int(digest)) for count, digest in told]
        if len(set(pairs)) > 1:
            raise self.reports.diverged(pairs, what, detail)

    def gathered(self, mesh: Mesh, own: Any, what: str) -> list[Any]:
        """What each process of a mesh tells, in the order of their ranks."""
        self._refuse_if_over()
        calls = self.calls(mesh)
        number = self._meetings[calls.ranks] = self._meetings.get(calls.ranks, 0) + 1
        name = f"{calls.key}/{number}"
        calls.waits = True
        try:
            self._store.set(f"shardwright/told/{name}/{self.rank}", json.dumps(own))
            self.reports.meet(name, calls.ranks, mesh.timeout or default_timeout())
            return [json.loads(self._store.get(f"shardwright/told/{name}/{rank}")) for rank in calls.ranks]
        except RuntimeError as error:
            raise self.reports.lost(error, f"{what}{self._line()}") from error
        finally:
            calls.waits = False

    def agreed(self, mesh: Mesh, numbers: Mapping[int, Sequence[int]]) -> list[list[int]]:
        """Integers that each device knows, those of all devices in their order."""
        told = self.gathered(mesh, [[place, *map(int, some)] for place, some in numbers.items()], "telling sizes")
        found = {row[0]: row[1:] for rows in told for row in rows}
        return [found[place] for place in range(mesh.size)]

    def _refuse_if_over(self) -> None:
        if self.reports.error is not None:
            raise CoherenceError(str(self.reports.error), self.reports.error.ranks)

    def _line(self) -> str:
        line = source_line()
        return f" ({line})" if line else ""
