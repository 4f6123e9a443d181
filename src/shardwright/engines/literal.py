"""The literal engine: one NumPy array a device, and no device sees another's.

Every step runs by its messages, each of them copied and its bytes counted by the one function that may read another device's
array. It is the rehearsal for real processes, and the proof that what `explain` says is what happens.
"""

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.collectives import (
    Collective,
    ReduceScatter,
    UpdateHalo,
)
from shardwright.collectives import Reduce as CollectiveReduce
from shardwright.engines.compiled import scanned
from shardwright.engines.deciding import choose, repeat
from shardwright.engines.lanes import Lanes, stack, tensors
from shardwright.engines.mailbox import Mailbox, step_of
from shardwright.engines.parts import apart, cut, join
from shardwright.engines.views import LaneViews, Shards
from shardwright.errors import EngineError
from shardwright.kernels import NUMPY, run
from shardwright.mesh import Mesh
from shardwright.plan import (
    Choice,
    Code,
    Each,
    Fetch,
    FromLocal,
    Fused,
    Instruction,
    Local,
    LocalStep,
    Move,
    OperationPlan,
    Reduce,
    Regroup,
    Scan,
    Slot,
    Step,
    ToLocal,
    While,
    move_steps,
)
from shardwright.sharding import REDUCTIONS, Layout

Array = NDArray[Any]
MOST_DEVICES = 4096


class Store:
    """The shards of a tensor, one array a device."""

    __slots__ = ("dtype", "parts")

    def __init__(self, parts: Sequence[Array], dtype: "np.dtype[Any] | None" = None) -> None:
        self.parts = tuple(np.asarray(part) for part in parts)
        self.dtype = dtype or self.parts[0].dtype


class Tally:
    """Bytes that devices received, by place."""

    def __init__(self) -> None:
        self.received: dict[int, int] = {}

    def add(self, place: int, count: int) -> None:
        """A device received some bytes."""
        self.received[place] = self.received.get(place, 0) + count

    @property
    def busiest(self) -> int:
        """What the device that received most did."""
        return max(self.received.values(), default=0)


class Literal(LaneViews):
    """One array a device; every byte that moves is counted."""

    name = "literal"
    xp = NUMPY
    processes = 1
    fuses = False
    keeps_host = False

    def __init__(self) -> None:
        self._local = threading.local()
        self._mailbox = Mailbox()

    def check(self, mesh: Mesh) -> None:
        """Refuse more devices than one process can hold one by one."""
        if mesh.size > MOST_DEVICES:
            raise EngineError(
                f"The literal engine holds an array for every device and runs every message: {mesh.size:,} devices of {mesh} "
                f"are more than its {MOST_DEVICES:,}. Use a smaller mesh, or engine='numpy'."
            )

    def agree(self, mesh: Mesh, steps: tuple[str, ...]) -> None:
        """There is one process."""

    # -- counting -----------------------------------------------------------------------------------------------------

    @contextmanager
    def counting(self) -> Iterator[Tally]:
        """Inside, the bytes of every message are counted."""
        before = getattr(self._local, "tally", None)
        self._local.tally = tally = Tally()
        try:
            yield tally
        finally:
            self._local.tally = before

    def _receive(self, parts: "Sequence[Array] | Mapping[int, Array]", sender: int, receiver: int, where: Any) -> Array:
        """A part of another device's array, copied: the only place where one device sees another's elements."""
        data = parts[sender][where].copy()
        tally = getattr(self._local, "tally", None)
        if tally is not None:
            tally.add(receiver, data.nbytes)
        return data

    # -- host tensors -------------------------------------------------------------------------------------------------

    def put(self, host: Array, layout: Layout) -> Store:
        """Every device cuts its own part."""
        self.check(layout.mesh)
        places = range(layout.mesh.size)
        parts = [apart(cut(host, layout, place), layout, place, layout.partial_lanes) for place in places]
        return Store(parts, host.dtype)

    def whole(self, data: Store, layout: Layout) -> Array:
        """The tensor on the host, reduced."""
        sharding = layout.sharding
        if sharding.partial:
            done = sharding.replace(partial=()).for_shape(layout.shape)
            data = self.step(Reduce("all_reduce", sharding.partial, sharding, done, layout.shape, data.dtype), data)
        host = np.zeros(layout.shape, data.dtype)
        for place, part in enumerate(data.parts):
            join(host, part, layout, place)
        return host

    def shard(self, data: Store, layout: Layout, place: int) -> Array:
        """What the device at a place holds."""
        return data.parts[place].view()

    def assemble(self, shards: Shards, layout: Layout) -> Store:
        """Data from the tensor of every device, in their order."""
        self.check(layout.mesh)
        return Store([np.array(shards[place]) for place in range(layout.mesh.size)])

    def astype(self, data: Store, dtype: Any) -> Store:
        """Elements converted to a dtype."""
        return Store([part.astype(dtype) for part in data.parts])

    def copy(self, data: Store) -> Store:
        """The same shards in memory of their own."""
        return Store([part.copy() for part in data.parts])

    def row(self, data: Store, layout: Layout, at: int) -> Store:
        """One row of a table whose first dim is whole."""
        return Store([part[at] for part in data.parts], data.dtype)

    def stack(self, rows: Sequence[Store], layout: Layout, dtype: Any) -> Store:
        """Rows as a table."""
        if not rows:
            return Store([np.zeros(layout.at(place).local_shape, dtype) for place in range(layout.mesh.size)], dtype)
        return Store([np.stack(parts) for parts in zip(*(row.parts for row in rows), strict=True)], rows[0].dtype)

    # -- local computations and steps -----------------------------------------------------------------------------------

    def local(self, local: Local, data: Sequence[Any]) -> tuple[Store, ...]:
        """A kernel on every device's own shards, one device after the other."""
        call, mesh = local.call, (*local.operands, *local.results)[0].mesh
        self.check(mesh)
        made = []
        for place in range(mesh.size):
            shards = [x.parts[place] if isinstance(x, Store) else x for x in data]
            made.append(run(call.at(place), shards))
        return tuple(
            Store(parts, dtype) for parts, dtype in zip(zip(*made, strict=True), call.result_dtypes, strict=True)
        )

    def operation(self, plan: OperationPlan) -> None:
        """Every operation runs instruction by instruction."""

    def step(self, step: Step, data: Store) -> Store:
        """One step, message by message."""
        if isinstance(step, Reduce):
            return self._reduced((step,), (data,))[0]
        if isinstance(step, Regroup):
            views = map(step.there.at, range(len(data.parts)))
            return Store([x.reshape(view.local_shape) for x, view in zip(data.parts, views, strict=True)], data.dtype)
        assert isinstance(step, Move), step
        fill = step.fill if isinstance(step, Fetch) else 0
        parts = []
        own = {device: place for place, device in enumerate(step.source.mesh.device_ids)}
        for place, device in enumerate(step.result.mesh.device_ids):
            made = np.full(step.there.at(place).local_shape, fill, data.dtype)
            for message in step.messages(place):
                if own.get(device) == message.sender:
                    made[message.target] = data.parts[message.sender][message.source]
                elif message.elements:
                    made[message.target] = self._receive(data.parts, message.sender, place, message.source)
            parts.append(made)
        held = step.source.partial if step.result.mesh == step.source.mesh else ()
        kept = step.result.mesh.cut(held, by=step.there.lanes)
        new = tuple(lane for lane in step.there.partial_lanes if step.there.lanes[lane] not in kept)
        return Store([apart(part, step.there, place, new) for place, part in enumerate(parts)], data.dtype)

    def move(self, data: Store, source: Layout, target: Layout) -> Store:
        """A change of sharding, step by step."""
        for step in move_steps(source.sharding, target.sharding, source.shape, data.dtype):
            data = self.step(step, data)
        return data

    def _reduced(self, steps: Sequence[Reduce], values: Sequence[Store]) -> list[Store]:
        """Rings over each group; those of several steps would run in one message a hop."""
        made = []
        for step, data in zip(steps, values, strict=True):
            parts: list[Array | None] = [None] * step.source.mesh.size
            for place in range(step.source.mesh.size):
                if parts[place] is None:
                    members = step.members(place)
                    for member, result in zip(members, self._ring(step, data, members), strict=True):
                        parts[member] = result
            made.append(Store([part for part in parts if part is not None], data.dtype))
        return made

    def _ring(self, step: Reduce, data: Store, members: Sequence[int]) -> list[Array]:
        chunks: list[Any] = list(step.chunks(members[0]))
        if step.name != "reduce_scatter":
            chunks = [slice(*chunk) for chunk in chunks]
        own = {member: data.parts[member] for member in members}
        return self._reduce_around(
            own, members, step.source.reduction, step.carrier, chunks, step.name == "reduce_scatter"
        )

    def _reduce_around(
        self,
        parts: Mapping[int, Array],
        members: Sequence[int],
        op: str,
        carrier: "np.dtype[Any]",
        chunks: Sequence[Any],
        scatters: bool,
    ) -> list[Array]:
        """A ring over one group: chunk i starts at member i + 1, is combined at every member on its way, and ends at i."""
        count, dtype = len(members), parts[members[0]].dtype
        work = {m: parts[m].astype(carrier) if scatters else parts[m].astype(carrier).reshape(-1) for m in members}
        finished: list[Array] = []
        for at, chunk in enumerate(chunks):
            first = members[(at + 1) % count]
            total = {first: work[first][chunk]}
            for hop in range(1, count):
                sender, receiver = members[(at + hop) % count], members[(at + hop + 1) % count]
                came = self._receive(total, sender, receiver, ...)
                total = {receiver: _combined(op, came, work[receiver][chunk])}
            finished.append(_finished(op, total[members[at]], count, dtype))
        if scatters:
            return finished
        return [self._handed_on(finished, chunks, parts[m], members, at, carrier) for at, m in enumerate(members)]

    def _handed_on(
        self,
        finished: Sequence[Array],
        chunks: Sequence[slice],
        own: Array,
        members: Sequence[int],
        at: int,
        carrier: "np.dtype[Any]",
    ) -> Array:
        """The second round of an all_reduce, as one member sees it: finished chunks come from the member before."""
        result = np.empty(math.prod(own.shape), own.dtype)
        before = members[at - 1]
        for number, chunk in enumerate(chunks):
            if number == at:
                result[chunk] = finished[number]
            else:
                came = self._receive({before: finished[number].astype(carrier)}, before, members[at], ...)
                result[chunk] = came.astype(own.dtype)
        return result.reshape(own.shape)

    # -- programs -----------------------------------------------------------------------------------------------------

    def compile(self, code: Code, mesh: Mesh, label: str = "") -> Callable[..., tuple[Any, ...]]:
        """A function that runs the code one instruction after the other."""
        return self.interpreter(code, None)

    def interpreter(
        self, code: Code, watch: "Callable[[Instruction, Tally], None] | None"
    ) -> Callable[..., tuple[Any, ...]]:
        """The same; `watch` is told of every instruction that ran, with the bytes that devices received in it."""

        def execute(*data: Any) -> tuple[Any, ...]:
            values: dict[Slot, Any] = dict(zip(code.inputs, data, strict=True))
            last = code.last_uses()
            for at, line in enumerate(code.instructions):
                inputs = [values[x] if isinstance(x, Slot) else x for x in line.inputs]
                with self.counting() as tally:
                    made = self._execute(line.what, inputs, watch)
                if watch is not None:
                    watch(line, tally)
                values.update(zip(line.outputs, made, strict=True))
                for x in {x for x in line.inputs if isinstance(x, Slot)}:
                    if last[x] == at and x not in code.outputs:
                        del values[x]
            return tuple(values[x] for x in code.outputs)

        return execute

    def _execute(self, what: Any, data: Sequence[Any], watch: Any) -> Sequence[Any]:
        if isinstance(what, Local):
            return self.local(what, data)
        if isinstance(what, Step):
            return (self.step(what, data[0]),)
        if isinstance(what, Fused):
            return self._reduced(what.steps, data)
        if isinstance(what, ToLocal):
            return (self.lanes(data[0], what.layout),)
        if isinstance(what, FromLocal):
            return (self.from_lanes(data[0], what.layout),)
        if isinstance(what, LocalStep):
            return (self.run(what.collective, data[0]),)
        if isinstance(what, Each):
            return (what.run(self, *data),)
        if isinstance(what, Choice):
            return choose(self, what, self.interpreter(what.true, watch), self.interpreter(what.false, watch))(*data)
        if isinstance(what, While):
            return repeat(self, what, self.interpreter(what.condition, watch), self.interpreter(what.body, watch))(
                *data
            )
        assert isinstance(what, Scan), what
        made = scanned(self, what, self.interpreter(what.body, watch))(*data)
        return made if isinstance(made, tuple) else (made,)

    def lanes(self, data: Store, layout: Layout) -> Lanes:
        """The shards as a tensor per device."""
        return stack(layout.mesh, data.parts)

    def from_lanes(self, lanes: Lanes, layout: Layout) -> Store:
        """Data from a tensor per device."""
        return Store(tensors(lanes))

    # -- a tensor per device --------------------------------------------------------------------------------------------

    def run(self, collective: Collective, lanes: Lanes) -> Lanes:
        """A collective on a tensor per device, message by message."""
        step, lanes = step_of(self._mailbox, collective, lanes)
        if step is None:
            return lanes
        parts = tensors(lanes)
        return stack(lanes.mesh, self._around(step, parts) if step.reduces else self._passed(step, parts))

    def _passed(self, step: LocalStep, parts: Sequence[Array]) -> list[Array]:
        """Tensors put together from messages; zeros, or of a halo what was there, where none arrives."""
        made = []
        for place, own in enumerate(parts):
            halo = isinstance(step.collective, UpdateHalo)
            result = own.copy() if halo else np.zeros(step.result_at(place), own.dtype)
            for sender, source, target in step.messages(place):
                if sender == place:
                    result[target] = own[source]
                elif all(part.stop > part.start for part in source):
                    result[target] = self._receive(parts, sender, place, source)
            made.append(result)
        return made

    def _around(self, step: LocalStep, parts: Sequence[Array]) -> list[Array]:
        """Tensors combined around every group."""
        given = {place: part.astype(step.result_dtype) for place, part in enumerate(parts)}
        made: dict[int, Array] = {}
        for place in range(step.mesh.size):
            if place in made:
                continue
            members = step.members(place)
            if isinstance(step.collective, CollectiveReduce):
                made |= self._to_root(step, given, members)
                continue
            scatters = isinstance(step.collective, ReduceScatter)
            own = {member: given[member] for member in members}
            results = self._reduce_around(own, members, step.collective.op, step.carrier, step.chunks(place), scatters)
            made |= dict(zip(members, results, strict=True))
        return [made[place] for place in range(step.mesh.size)]

    def _to_root(self, step: LocalStep, parts: Mapping[int, Array], members: Sequence[int]) -> dict[int, Array]:
        """A chain around the group that ends at the root; zeros elsewhere."""
        root = members.index(step.root(members[0]))
        order = [members[(root + 1 + at) % len(members)] for at in range(len(members))]
        total = {order[0]: parts[order[0]].astype(step.carrier)}
        for sender, receiver in pairwise(order):
            came = self._receive(total, sender, receiver, ...)
            total = {receiver: _combined(step.collective.op, came, parts[receiver].astype(step.carrier))}
        (sum_of_all,) = total.values()
        result = _finished(step.collective.op, sum_of_all, len(members), step.result_dtype)
        return {m: result if m == order[-1] else np.zeros_like(result) for m in members}

    def check_sends(self, mesh: Mesh, when: str) -> None:
        """Refuse to go on while a send has no matching recv."""
        self._mailbox.check(mesh, when)

    def forget_sends(self, mesh: Mesh) -> None:
        """Drop open sends, after an error."""
        self._mailbox.forget(mesh)


def _combined(op: str, one: Array, other: Array) -> Array:
    combine = getattr(np, REDUCTIONS[op].ufunc or "add")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(combine(one, other)).astype(one.dtype, copy=False)


def _finished(op: str, total: Array, count: int, dtype: "np.dtype[Any]") -> Array:
    """A reduction's result from what came of the last hop."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(total / np.int64(count) if op == "average" else total).astype(dtype)
