"""The engine over processes: one device a process, which holds its own shards as torch tensors.

Every step is a native collective or an exchange with exact sizes, among the processes of one group. All processes make the same
calls; `coherence.py` notices where they do not.
"""

import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import shardwright.engines.torch.transport as transport
from shardwright.caches import MIB, Cache
from shardwright.collectives import AllReduce, Collective, Recv, ReduceScatter, Scatter, Send, UpdateHalo
from shardwright.engines.checks import is_checked
from shardwright.engines.compiled import Compiler
from shardwright.engines.mailbox import Mailbox, received
from shardwright.engines.torch.coherence import Calls, key_of
from shardwright.engines.torch.convert import from_host, to_host, torch_dtype
from shardwright.engines.torch.own import Absent, Own
from shardwright.engines.torch.processes import World, ranks_in_use
from shardwright.engines.torch.routes import Route, local_route, place_in, route_of, taken
from shardwright.engines.torch.space import TorchSpace
from shardwright.engines.views import Shards
from shardwright.engines.whole import computation, kinds_of, operand_kinds
from shardwright.errors import ArrayError, CoherenceError, CollectiveError, EngineError
from shardwright.lines import source_line
from shardwright.mesh import Mesh
from shardwright.plan import (
    Code,
    Fetch,
    Fused,
    Local,
    LocalShapes,
    LocalStep,
    Move,
    OperationPlan,
    Reduce,
    Regroup,
    Slot,
    Step,
    group_of,
    move_steps,
)
from shardwright.sharding import REDUCTIONS, Layout, Sharding, describe, layout_of

Tensor = torch.Tensor
FULLY_COMPARED = 65536  # bytes of a host tensor whose elements are part of the digest


class Distributed:
    """One device a process."""

    name = "torch"
    fuses = False
    keeps_host = False

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
        for x in scalars:
            if not isinstance(x, Tensor):
                key ^= key_of(repr(x))
        reports = self.world.reports
        if reports.error is not None:
            raise CoherenceError(str(reports.error), reports.error.ranks)
        calls = self._calls.get(mesh) or self.calls(mesh)
        reports.calls = calls
        calls.add(key, text)
        if is_checked():
            self._compare(mesh, text)

    def _compare(self, mesh: Mesh, what: Any, detail: Sequence[str] = ()) -> None:
        """Refuse to go on unless all processes of a mesh have made the same calls."""
        calls, world = self.calls(mesh), self.world
        signed = calls.digest - 2**64 if calls.digest >= 2**63 else calls.digest
        mine = torch.tensor([calls.count, signed])
        table = self._guarded(what, lambda: transport.all_gather(world.control(calls.ranks), mine))
        pairs = [(int(count), int(digest)) for count, digest in table.tolist()]
        if len(set(pairs)) > 1:
            raise world.reports.diverged(pairs, str(what), detail)

    def _guarded(self, what: Any, function: Callable[..., Any], *args: Any) -> Any:
        """A function that waits for other processes; if they don't come, the error says which."""
        reports = self.world.reports
        if reports.error is not None:
            raise CoherenceError(str(reports.error), reports.error.ranks)
        calls = reports.calls
        calls.waits = True
        try:
            return function(*args)
        except RuntimeError as error:
            raise reports.lost(error, f"{what}{self._line()}") from error
        finally:
            calls.waits = False

    def _line(self) -> str:
        line = source_line()
        return f" ({line})" if line else ""

    def agree(self, mesh: Mesh, steps: tuple[str, ...]) -> None:
        """Refuse to go on unless every process holds the same program; names the first step that differs."""
        self.note(mesh, key_of("\n".join(steps)), f"a program of {len(steps)} steps")
        self._compare(mesh, f"the program's first run{self._line()}", steps)

    # -- host tensors -------------------------------------------------------------------------------------------------

    def native(self, value: object) -> bool:
        """Torch tensors are cut as they are."""
        return isinstance(value, Tensor)

    def put(self, host: Any, layout: Layout) -> Tensor:
        """Every process cuts its own part, from the tensor that all of them have."""
        self.check(layout.mesh)
        text = f"placing {describe(layout.sharding, layout.shape, np.dtype(np.uint8))[2:]} of {host.dtype}"
        size = math.prod(layout.shape) * host.dtype.itemsize
        known = zlib.crc32(_bytes(host)) if size <= FULLY_COMPARED or is_checked() else 0
        self.note(layout.mesh, key_of(f"{text} {known}"), text)
        return self._apart(self._cut(host, layout), layout, layout.partial_lanes)

    def _cut(self, host: Any, layout: Layout) -> Tensor:
        """This device's part of a host tensor, in memory of its own; halos beyond the border are zeros."""
        view = layout.at(self.place(layout.mesh))
        source, target = [], []
        for dim, (low, high), size in zip(view.dims, view.offsets, host.shape, strict=True):
            first, last = max(low - dim.low, 0), min(high + dim.high, size)
            source.append(slice(first, max(last, first)))
            target.append(slice(first - low + dim.low, max(last, first) - low + dim.low))
        part = host[tuple(source)]
        part = (
            part.detach().to(self.device, copy=True)
            if isinstance(part, Tensor)
            else from_host(np.array(part, order="C"), self.device)
        )
        part = part.resolve_conj().contiguous()
        if part.shape == view.local_shape:
            return part
        made = torch.zeros(view.local_shape, dtype=part.dtype, device=self.device)
        made[tuple(target)] = part
        return made

    def _apart(self, part: Tensor, layout: Layout, lanes: Sequence[int]) -> Tensor:
        """A shard of a value as one that is partial along some lanes: the first of a group keeps it."""
        if not lanes:
            return part
        rest = REDUCTIONS[layout.sharding.reduction].neutral(self.xp.dtype(part))
        coords = np.unravel_index(self.place(layout.mesh), layout.full_shape)
        if rest is None or all(int(coords[lane]) == 0 for lane in lanes):
            return part
        return self.xp.full(part.shape, rest, dtype=rest.dtype)

    def whole(self, data: Tensor, layout: Layout) -> NDArray[Any]:
        """The tensor on the host, reduced. A collective: every process gets it."""
        dtype = self.xp.dtype(self._held(data))
        mesh, key, text = self._route(("reading", layout, dtype), lambda: _read_call(layout, dtype))
        self.note(mesh, key, text)
        self._compare(layout.mesh, text)
        target = layout_of(Sharding(layout.mesh), layout.shape)
        return to_host(self._moved(data, layout, target))

    def shard(self, data: Tensor, layout: Layout, place: int) -> NDArray[Any]:
        """What the device at a place holds; an error if that is another process's."""
        if place != self.place(layout.mesh):
            raise EngineError(
                f"This shard is on rank {layout.mesh.device_ids[place]}, and this is rank {self.world.rank}: a process sees "
                f"only its own. Use np.asarray(x) for the whole tensor, on all ranks together."
            )
        return to_host(self._held(data))

    def assemble(self, shards: Shards, layout: Layout) -> Tensor:
        """Data from the tensors of devices: this process keeps its own."""
        self.check(layout.mesh)
        return from_host(np.array(shards[self.place(layout.mesh)]), self.device)

    def _held(self, data: Any) -> Tensor:
        if isinstance(data, Absent):
            raise EngineError(
                f"rank {self.world.rank} has no part of this array: it is on the {ranks_in_use(data.mesh)}."
            )
        return data

    def astype(self, data: Tensor, dtype: Any) -> Tensor:
        """Elements converted to a dtype."""
        return self.xp.astype(self._held(data), dtype)

    def copy(self, data: Tensor) -> Tensor:
        """The same shard in memory of its own."""
        return data.clone() if isinstance(data, Tensor) else data

    def row(self, data: Tensor, layout: Layout, at: int) -> Tensor:
        """One row of a table whose first dim is whole."""
        return data[at]

    def stack(self, rows: Sequence[Tensor], layout: Layout, dtype: Any) -> Tensor:
        """Rows as a table."""
        if not rows:
            return self.xp.zeros(layout.at(self.place(layout.mesh)).local_shape, dtype)
        return torch.stack(list(rows))

    def agreed(self, mesh: Mesh, numbers: Mapping[int, Sequence[int]]) -> list[list[int]]:
        """Integers that each device knows, those of all devices in their order."""
        (mine,) = numbers.values()
        self.note(mesh, key_of(f"{len(mine)} integers of each of {mesh.size}"), "sizes that all processes tell")
        ranks = tuple(map(int, mesh.device_ids))
        given = torch.tensor(list(mine), dtype=torch.int64)
        table: list[list[int]] = self._guarded("telling sizes", self._gathered, ranks, given).tolist()
        return table

    def _gathered(self, ranks: tuple[int, ...], tensor: Tensor) -> Tensor:
        return transport.all_gather(self.world.group(ranks), tensor)

    # -- local computations -------------------------------------------------------------------------------------------

    def operation(self, plan: OperationPlan) -> Callable[..., Any] | None:
        """The operation on this process's shards, where they are in place and nothing is sent."""
        if any(plan.moves) or len(plan.instructions) != 1:
            return None
        ((what, inputs, _, _),) = plan.instructions
        if not isinstance(what, Local) or [x.number for x in inputs] != list(range(len(plan.kinds))):
            return None
        function, note = self.computation(what, operand_kinds(plan, what, inputs)), self.note
        mesh = plan.problem.mesh
        text = _described(plan)
        key = key_of(text)
        if any(not isinstance(kind, tuple) for kind in plan.kinds):

            def with_scalars(*data: Any) -> Any:
                note(mesh, key, text, data)
                return function(*data)

            return with_scalars

        def alone(*data: Any) -> Any:
            note(mesh, key, text)
            return function(*data)

        return alone

    def computation(self, local: Local, kinds: tuple[Any, ...]) -> Callable[..., Any]:
        """A kernel as a function of this process's shards: one result bare, several as a tuple."""
        made = local.call.made
        if ("here", kinds) not in made:
            mesh = (*local.operands, *local.results)[0].mesh
            made["here", kinds] = computation(local.call.at(self.place(mesh)), kinds, self.xp)
        found: Callable[..., Any] = made["here", kinds]
        return found

    def local(self, local: Local, data: Sequence[Any]) -> tuple[Tensor, ...]:
        """A kernel on this process's shards."""
        mesh, key, text = self._route(local, lambda: _local_call(local))
        self.note(mesh, key, text, data)
        held = [self._held(x) for x in data]
        kinds = kinds_of(local.call, [None if isinstance(x, Tensor) else x for x in held])
        made = self.computation(local, kinds)(*held)
        return made if isinstance(made, tuple) else (made,)

    # -- steps ----------------------------------------------------------------------------------------------------------

    def step(self, step: Step, data: Any) -> Any:
        """One step."""
        self.note(*self._route(("call", step), lambda: _step_call(step)))
        return self.run_step(step, data)

    def run_step(self, step: Step, data: Any) -> Any:
        """One step of a call that was noted."""
        if isinstance(step, Reduce):
            return self._reduce((step,), (data,))[0]
        if isinstance(step, Regroup):
            return data.reshape(step.there.at(self.place(step.result.mesh)).local_shape)
        assert isinstance(step, Move), step
        if step.name == "all_gather" and step._even and isinstance(data, Tensor):
            return self._all_gather(step, data)
        made = self._routed(step, self._route(step, lambda: route_of(step, self.world.rank)), data)
        if made is None:
            return Absent(step.result.mesh, step.dtype)
        held = step.source.partial if step.result.mesh == step.source.mesh else ()
        kept = step.result.mesh.cut(held, by=step.there.lanes)
        new = tuple(lane for lane in step.there.partial_lanes if step.there.lanes[lane] not in kept)
        return self._apart(made, step.there, new)

    def _route(self, step: Any, make: Callable[[], Any]) -> Any:
        found = self._routes.get(step)
        if found is None:
            found = make()
            self._routes.put(step, found)
        return found

    def _routed(self, step: Any, route: Route, data: Any, keep: bool = False) -> Tensor | None:
        """What messages make of a shard; with `keep` what none brings stays as it was, else it is the step's fill."""
        sends = [[taken(data, box) for box in boxes] for boxes in route.sends]
        if len(route.ranks) == 1:
            if route.is_complete and len(sends[0]) == 1 and not keep:
                return sends[0][0]
            parts = sends[0]
        else:
            empty = torch.empty(0, dtype=torch_dtype(step.dtype), device=self.device)
            sizes = [sum(count for _, count in some) for some in route.comes]
            flat = self._guarded(step, self._exchange, route.ranks, [_flat(some, empty) for some in sends], sizes)
            if route.is_stacked and not keep:
                return flat.reshape(route.shape)
            parts = list(torch.split(flat, [count for some in route.comes for _, count in some]))
        if route.shape is None:
            return None
        made = data.clone() if keep else self._blank(step, route)
        for (target, _), part in zip((box for some in route.comes for box in some), parts, strict=True):
            made[target] = part.reshape(made[target].shape)
        return made

    def _blank(self, step: Any, route: Route) -> Tensor:
        assert route.shape is not None
        if route.is_complete:
            return torch.empty(route.shape, dtype=torch_dtype(step.dtype), device=self.device)
        fill = step.fill if isinstance(step, Fetch) else 0
        return self.xp.full(route.shape, fill, dtype=step.dtype)

    def _exchange(self, ranks: tuple[int, ...], sends: list[Tensor], sizes: list[int]) -> Tensor:
        return transport.exchange(self.world.group(ranks, self._device), sends, sizes)

    def _all_gather(self, step: Move, data: Tensor) -> Tensor:
        ranks = self._ranks(step)
        made: Tensor = self._guarded(step, lambda: transport.all_gather(self.world.group(ranks, self._device), data))
        dim = step.other
        if dim:
            made = made.movedim(0, dim)
        return made.reshape(step.there.at(self.place(step.result.mesh)).local_shape)

    def _ranks(self, step: Any) -> tuple[int, ...]:
        """The ranks of this process's group in a step, in group order."""
        mesh: Mesh = step.source.mesh

        def members() -> tuple[int, ...]:
            place = self.place(mesh)
            return tuple(int(mesh.device_ids[p]) for p in group_of(mesh, step.pieces, place))

        return self._route(("ranks", mesh, step.pieces), members)

    def fused(self, fused: Fused, data: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Several reductions as one message."""
        return tuple(self._reduce(fused.steps, data))

    def _reduce(self, steps: Sequence[Reduce], data: Sequence[Tensor]) -> list[Tensor]:
        """Reductions of one kind over the same groups; several all_reduces are one message."""
        if len(steps) == 1:
            return [self._reduced(steps[0], data[0])]
        whole = self._reduced(steps[0], torch.cat([x.reshape(-1) for x in data]))
        pieces = torch.split(whole, [x.numel() for x in data])
        return [piece.view(x.shape) for piece, x in zip(pieces, data, strict=True)]

    def _combine(self, op: str, carrier: "np.dtype[Any]") -> Callable[[Tensor, Tensor], Tensor]:
        """The function that combines what two devices hold."""
        xp = self.xp
        pairwise = getattr(xp, REDUCTIONS[op].ufunc or "add")
        return lambda a, b: xp.astype(pairwise(a, b), carrier)

    def _reduced(self, step: Reduce, data: Tensor) -> Tensor:
        chunks = (
            [tuple(box) for box in step.chunks(self.place(step.source.mesh))] if step.name == "reduce_scatter" else None
        )
        op, dtype = step.source.reduction, self.xp.dtype(data)
        return self._combined(step, self._ranks(step), data, op, step.carrier, dtype, chunks)

    def _combined(
        self,
        what: Any,
        ranks: tuple[int, ...],
        data: Tensor,
        op: str,
        carrier: "np.dtype[Any]",
        dtype: "np.dtype[Any]",
        chunks: Sequence[Any] | None,
    ) -> Tensor:
        """What the members of a group hold, combined: all of it, or this process's chunk."""
        xp = self.xp
        work = xp.astype(data, carrier)
        combine, native = self._combine(op, carrier), "sum" if op == "average" else op

        def communicate() -> Tensor:
            if len(ranks) == 1:
                return work if chunks is None else work[chunks[0]]
            group = self.world.group(ranks, self._device)
            if chunks is None:
                return transport.all_reduce(group, work, native, combine)
            return transport.reduce_scatter(group, [work[chunk] for chunk in chunks], combine)

        total = self._guarded(what, communicate)
        if op == "average":
            total = xp.divide(total, xp.asarray(len(ranks)))
        return xp.astype(total, dtype)

    def move(self, data: Any, source: Layout, target: Layout) -> Any:
        """A change of sharding, step by step."""
        dtype = data.dtype if isinstance(data, Absent) else self.xp.dtype(data)
        self.note(*self._route((source, target, dtype), lambda: _move_call(source, target, dtype)))
        return self._moved(data, source, target)

    def _moved(self, data: Any, source: Layout, target: Layout) -> Any:
        dtype = data.dtype if isinstance(data, Absent) else self.xp.dtype(data)
        for step in move_steps(source.sharding, target.sharding, source.shape, dtype):
            data = self.run_step(step, data)
        return data

    # -- programs -------------------------------------------------------------------------------------------------------

    def compile(self, code: Code, mesh: Mesh, label: str = "program") -> Callable[..., tuple[Any, ...]]:
        """One generated Python function; a call of it is one call of this process."""
        function, key, note = _Lines(self).function(code), key_of(label), self.note
        text = f"the program {label.partition(chr(10))[0]}"

        def call(*data: Any) -> tuple[Any, ...]:
            note(mesh, key, text)
            made: tuple[Any, ...] = function(*data)
            return made

        return call

    # -- a tensor per device --------------------------------------------------------------------------------------------

    def lanes(self, data: Tensor, layout: Layout) -> Own:
        """The shards as a tensor per device."""
        return Own(self._held(data), _shapes_of(layout))

    def from_lanes(self, view: Own, layout: Layout) -> Tensor:
        """Data from a tensor per device."""
        return view.tensor

    def view(self, mesh: Mesh, tensors: Sequence[NDArray[Any]]) -> Own:
        """A tensor per device, given for all of them: this process keeps its own."""
        self.check(mesh)
        mine = from_host(np.array(tensors[self.place(mesh)]), self.device)
        return Own(mine, LocalShapes.of(mesh, [tuple(tensor.shape) for tensor in tensors]))

    def everywhere(self, mesh: Mesh, tensor: NDArray[Any]) -> Own:
        """The same tensor on every device."""
        self.check(mesh)
        return Own(from_host(np.array(tensor), self.device), LocalShapes(mesh, (tensor.shape,)))

    def values(self, view: Own) -> list[NDArray[Any]]:
        """The tensors of all devices, in their order. A collective: every process gets them."""
        text = f"reading a tensor per device of {view.mesh}"
        self.note(view.mesh, key_of(text), text)
        self._compare(view.mesh, text)
        shapes = [view.local_shapes.at(place) for place in range(view.mesh.size)]
        sizes = [math.prod(shape) for shape in shapes]
        ranks = tuple(map(int, view.mesh.device_ids))
        sends = [view.tensor.reshape(-1)] * len(ranks)
        parts = torch.split(self._guarded(text, self._exchange, ranks, sends, sizes), sizes)
        return [to_host(part.reshape(shape)) for part, shape in zip(parts, shapes, strict=True)]

    def value(self, view: Own, place: int) -> NDArray[Any]:
        """The tensor of one device. A collective."""
        return self.values(view)[place]

    def each(self, function: Callable[..., NDArray[Any]], views: Sequence[Own]) -> Own:
        """A function on every device of its tensors; processes tell one another the shapes of the results."""
        return self.told(views[0].mesh, function(*(to_host(v.tensor) for v in views)))

    def told(self, mesh: Mesh, tensor: NDArray[Any]) -> Own:
        """A tensor per device from what each process has for its own; they tell one another the shapes."""
        made = tensor
        kind = zlib.crc32(str(made.dtype).encode())
        told = self.agreed(mesh, {self.place(mesh): [kind, made.ndim, *made.shape, *(0,) * (64 - made.ndim)]})
        if len({tuple(row[:2]) for row in told}) > 1:
            raise ArrayError(
                f"The tensors of the devices differ in rank or dtype: rank {self.world.rank} has {made.dtype} with {made.ndim} "
                f"dims, others do not."
            )
        shapes = [tuple(row[2 : 2 + made.ndim]) for row in told]
        return Own(from_host(np.array(made), self.device), LocalShapes.of(mesh, shapes))

    def elementwise(self, ufunc: np.ufunc, operands: Sequence[Any], options: Mapping[str, Any]) -> tuple[Own, ...]:
        """A function of NumPy, element by element, on this process's tensors."""
        views = [x for x in operands if isinstance(x, Own)]
        mesh = views[0].mesh
        count = max(len(v.local_shapes.shapes) for v in views)
        try:
            shapes = [np.broadcast_shapes(*(v.local_shapes.at(place) for v in views)) for place in range(count)]
        except ValueError as error:
            raise CollectiveError(
                f"{ufunc.__name__}: the operands have different sizes on some device: {error}"
            ) from error
        made = ufunc(*(to_host(x.tensor) if isinstance(x, Own) else x for x in operands), **options)
        each = made if isinstance(made, tuple) else (made,)
        return tuple(Own(from_host(np.asarray(x), self.device), LocalShapes.of(mesh, shapes)) for x in each)

    def check_shared(self, view: Own, layout: Layout, name: str) -> None:
        """Refuse tensors that differ where a layout says devices hold the same: processes compare their checksums."""
        if layout.lane_shape == layout.full_shape:
            return
        host = to_host(view.tensor)
        sums = zlib.crc32(np.ascontiguousarray(host + 0 if host.dtype.kind in "fc" else host).tobytes())
        told = self.agreed(layout.mesh, {self.place(layout.mesh): [sums]})
        first: dict[tuple[int, ...], int] = {}
        shared = [i for i, n in enumerate(layout.lane_shape) if n == 1 and layout.full_shape[i] > 1]
        for place, (own,) in enumerate(told):
            coords = np.unravel_index(place, layout.full_shape)
            key = tuple(int(c) for i, c in enumerate(coords) if i not in shared)
            if first.setdefault(key, own) != own:
                axes = ", ".join(repr(layout.lanes[i]) for i in shared)
                raise ArrayError(
                    f"{name}: {layout.sharding} says devices along {axes} hold the same, but the elements of rank "
                    f"{layout.mesh.device_ids[place]} differ from the first device's. Name the axis in a dim, make it partial, "
                    f"or broadcast the values first."
                )

    def run(self, collective: Collective, view: Own) -> Own:
        """A collective on a tensor per device."""
        mesh = view.mesh
        if isinstance(collective, Send | Recv):
            bound: Any = collective.bind(mesh, view.local_shapes.shapes[0], view.dtype)
            if isinstance(bound, Send):
                self._mailbox.send(mesh, bound, view)
                return view
            view, collective = received(self._mailbox, bound, view)
        else:
            self.check_sends(mesh, f"before {collective.name}")
        for shape in dict.fromkeys(view.local_shapes.shapes):
            bound = collective.bind(mesh, shape, view.dtype, uneven=isinstance(collective, Scatter))
        step = LocalStep(bound, view.local_shapes, view.dtype)
        step.check()
        self.note(mesh, key_of(f"{step.name} {bound} {view.local_shapes.shapes} {view.dtype}"), step.name)
        if step.reduces:
            return self._around(step, view)
        route = self._route(step, lambda: local_route(step, self.world.rank))
        made = self._routed(step, route, view.tensor, keep=isinstance(bound, UpdateHalo))
        assert made is not None
        return Own(made, step.results)

    def _around(self, step: LocalStep, view: Own) -> Own:
        """Tensors combined around every group; of a reduce only the root keeps the result."""
        place = self.place(step.mesh)
        ranks = tuple(int(step.mesh.device_ids[p]) for p in step.members(place))
        data = self.xp.astype(view.tensor, step.result_dtype)
        chunks = step.chunks(place) if isinstance(step.collective, ReduceScatter) else None
        made = self._combined(step, ranks, data, step.collective.op, step.carrier, step.result_dtype, chunks)
        if not isinstance(step.collective, AllReduce | ReduceScatter) and step.root(place) != place:
            made = self.xp.zeros_like(made)
        return Own(made, step.results)

    def check_sends(self, mesh: Mesh, when: str) -> None:
        """Refuse to go on while a send has no matching recv."""
        self._mailbox.check(mesh, when)

    def forget_sends(self, mesh: Mesh) -> None:
        """Drop open sends, after an error."""
        self._mailbox.forget(mesh)


class _Lines(Compiler):
    """Code for one process: functions worked out once."""

    engine: Distributed

    def _local(self, what: Local, inputs: Sequence[Any]) -> Callable[..., Any]:
        return self.engine.computation(what, kinds_of(what.call, [None if isinstance(x, Slot) else x for x in inputs]))

    def _step(self, what: Step) -> Callable[..., Any]:
        engine = self.engine
        return lambda data: engine.run_step(what, data)


def wider(one: Mesh, other: Mesh) -> Mesh:
    """The mesh whose processes all take part in a move between two."""
    if one == other or set(other.device_ids) <= set(one.device_ids):
        return one
    if set(one.device_ids) <= set(other.device_ids):
        return other
    ids = sorted({*one.device_ids, *other.device_ids})
    return Mesh({"process": len(ids)}, devices=ids, engine=one.engine, device=one.device)


# What a call is in all processes alike: the mesh whose processes make it, 64 bits that stand for it, and words.


def _local_call(local: Local) -> tuple[Mesh, int, str]:
    pairs = zip(local.operands, local.call.dtypes, strict=True)
    shown = ", ".join(describe(at.sharding, at.shape, dtype) for at, dtype in pairs)
    text = f"{local.name} of {shown}" if shown else f"{local.name} of {local.results[0].shape}"
    return (*local.operands, *local.results)[0].mesh, key_of(f"{text} {_attrs(local.call.attrs)}"), text


def _step_call(step: Step) -> tuple[Mesh, int, str]:
    text = f"{step} of {describe(step.source, step.shape, step.dtype)}"
    key = key_of(f"{text} to {describe(step.result, step.result_shape, step.dtype)}")
    return wider(step.source.mesh, step.result.mesh), key, text


def _move_call(source: Layout, target: Layout, dtype: "np.dtype[Any]") -> tuple[Mesh, int, str]:
    text = f"moving {describe(source.sharding, source.shape, dtype)}"
    key = key_of(f"{text} to {describe(target.sharding, target.shape, dtype)} on {target.mesh}")
    return wider(source.mesh, target.mesh), key, text


def _read_call(layout: Layout, dtype: "np.dtype[Any]") -> tuple[Mesh, int, str]:
    text = f"reading {describe(layout.sharding, layout.shape, dtype)}"
    return layout.mesh, key_of(text), text


def _flat(parts: list[Tensor], empty: Tensor) -> Tensor:
    if len(parts) == 1:
        return parts[0].reshape(-1)
    return torch.cat([part.reshape(-1) for part in parts]) if parts else empty


def _bytes(host: Any) -> bytes:
    array = to_host(host) if isinstance(host, Tensor) else host
    return np.ascontiguousarray(array).tobytes()


def _shapes_of(layout: Layout) -> LocalShapes:
    even = all(extent is None for extent in layout.extents)
    count = 1 if even else layout.mesh.size
    return LocalShapes.of(layout.mesh, [layout.at(place).local_shape for place in range(count)])


def _described(plan: OperationPlan) -> str:
    """An operation with its operands and attributes: equal in all processes that make the same call."""
    kinds = [
        describe(k[0].sharding, k[0].shape, k[1]) if isinstance(k, tuple) else type(k).__name__ for k in plan.kinds
    ]
    return f"{plan.title} of {', '.join(kinds)}{_attrs(plan.attrs)}"


def _attrs(attrs: Mapping[str, Any]) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", f" {dict(attrs)!r}") if attrs else ""
