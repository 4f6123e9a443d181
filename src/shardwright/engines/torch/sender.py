"""Steps over processes: every one is a native collective or an exchange with exact sizes among the processes of one group."""

from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any

import numpy as np
import torch

import shardwright.engines.torch.transport as transport
from shardwright.engines.calls import move_call, step_call
from shardwright.engines.torch.convert import torch_dtype
from shardwright.engines.torch.member import Member
from shardwright.engines.torch.own import Absent
from shardwright.engines.torch.ownership import GIVEN, is_alone
from shardwright.engines.torch.routes import Route, elements, route_of, taken
from shardwright.mesh import Mesh
from shardwright.plan import (
    Fetch,
    Fused,
    Move,
    Reduce,
    Regroup,
    Step,
    group_of,
    move_steps,
)
from shardwright.sharding import REDUCTIONS, Layout

Tensor = torch.Tensor


class Sender(Member):
    """Runs the part of this process in steps."""

    def step(self, step: Step, data: Any) -> Any:
        """One step."""
        self.note(*self.route(("call", step), lambda: step_call(step)))
        return self.run_step(step, data)

    def run_step(self, step: Step, data: Any, spare: bool = False) -> Any:
        """One step of a call that was noted. The data of a `spare` tensor are read by nothing else, and may be overwritten."""
        if isinstance(step, Reduce):
            return self._reduced(step, data, spare)
        if isinstance(step, Regroup):
            return data.reshape(step.there.at(self.place(step.result.mesh)).local_shape)
        assert isinstance(step, Move), step
        if step.name == "all_gather" and step.is_even and isinstance(data, Tensor):
            return self._all_gather(step, data)
        made = self.routed(step, self.route(step, lambda: route_of(step, self.world.rank)), data)
        if made is None:
            return Absent(step.result.mesh, step.dtype)
        held = step.source.partial if step.result.mesh == step.source.mesh else ()
        kept = step.result.mesh.cut(held, by=step.there.lanes)
        new = tuple(lane for lane in step.there.partial_lanes if step.there.lanes[lane] not in kept)
        return self.apart(made, step.there, new)

    def routed(self, step: Any, route: Route, data: Any, keep: bool = False) -> Tensor | None:
        """What messages make of a shard; with `keep` what none brings stays as it was, else it is the step's fill."""
        if len(route.ranks) == 1:
            parts = [taken(data, box) for box in route.sends[0]]
            if route.is_complete and len(parts) == 1 and not keep:
                return parts[0]
            return self._unpacked(step, route, data, parts, keep)
        sizes = [sum(count for _, count in some) for some in route.comes]
        flat: Tensor = self.guarded(step, self.exchange, route.ranks, self._packed(step, route, data), sizes)
        if route.is_stacked and not keep:
            assert route.shape is not None
            return flat.reshape(route.shape)
        if route.unpacking is None:
            parts = list(torch.split(flat, [count for some in route.comes for _, count in some]))
            return self._unpacked(step, route, data, parts, keep)
        made = data.clone() if keep else self._blank(step, route)
        view = route.unpacking.view(made)
        view.copy_(flat.view(view.shape))
        return made

    def _unpacked(self, step: Any, route: Route, data: Any, parts: Sequence[Tensor], keep: bool) -> Tensor | None:
        """The result of messages that arrive one by one."""
        if route.shape is None:
            return None
        made: Tensor = data.clone() if keep else self._blank(step, route)
        for (target, _), part in zip((box for some in route.comes for box in some), parts, strict=True):
            made[target] = part.reshape(made[target].shape)
        return made

    def _packed(self, step: Any, route: Route, data: Any) -> list[Tensor]:
        """What each member gets, flat; boxes of a grid are packed by one copy."""
        if route.packing is not None:
            sizes = [sum(map(elements, boxes)) for boxes in route.sends]
            return list(torch.split(route.packing.view(data).reshape(-1), sizes))
        empty = torch.empty(0, dtype=torch_dtype(step.dtype), device=self.device)
        return [_flat([taken(data, box) for box in boxes], empty) for boxes in route.sends]

    def _blank(self, step: Any, route: Route) -> Tensor:
        assert route.shape is not None
        if route.is_complete:
            return torch.empty(route.shape, dtype=torch_dtype(step.dtype), device=self.device)
        fill = step.fill if isinstance(step, Fetch) else 0
        return self.xp.full(route.shape, fill, dtype=step.dtype)

    def exchange(self, ranks: tuple[int, ...], sends: list[Tensor], sizes: list[int]) -> Tensor:
        """What some ranks send to this process, flat."""
        return transport.exchange(self.world.group(ranks, self._device), sends, sizes, self.tag)

    def _all_gather(self, step: Move, data: Tensor) -> Tensor:
        ranks = self._ranks(step)
        made: Tensor = self.guarded(
            step, lambda: transport.all_gather(self.world.group(ranks, self._device), data, self.tag)
        )
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

        return self.route(("ranks", mesh, step.pieces), members)

    def fused(self, fused: Fused, data: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Several reductions as one message."""
        whole = self._reduced(fused.steps[0], torch.cat([x.reshape(-1) for x in data]), spare=True)
        pieces = torch.split(whole, [x.numel() for x in data])
        return tuple(piece.view(x.shape) for piece, x in zip(pieces, data, strict=True))

    def _combine(self, op: str, carrier: "np.dtype[Any]") -> Callable[[Tensor, Tensor], Tensor]:
        """The function that combines what two devices hold."""
        xp = self.xp
        pairwise = getattr(xp, REDUCTIONS[op].ufunc or "add")
        return lambda a, b: xp.astype(pairwise(a, b), carrier)

    def _reduced(self, step: Reduce, data: Tensor, spare: bool = False) -> Tensor:
        chunks = (
            [tuple(box) for box in step.chunks(self.place(step.source.mesh))] if step.name == "reduce_scatter" else None
        )
        op, dtype = step.source.reduction, self.xp.dtype(data)
        return self.combined(step, self._ranks(step), data, op, step.carrier, dtype, chunks, spare)

    def combined(
        self,
        what: Any,
        ranks: tuple[int, ...],
        data: Tensor,
        op: str,
        carrier: "np.dtype[Any]",
        dtype: "np.dtype[Any]",
        chunks: Sequence[Any] | None,
        spare: bool = False,
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
                is_own = spare or work.data_ptr() != data.data_ptr()
                return transport.all_reduce(group, work, native, combine, is_own, self.tag)
            return transport.reduce_scatter(group, [work[chunk] for chunk in chunks], native, combine, self.tag)

        total = self.guarded(what, communicate)
        if op == "average":
            total = xp.divide(total, xp.asarray(len(ranks)))
        return xp.astype(total, dtype)

    def move(self, data: Any, source: Layout, target: Layout) -> Any:
        """A change of sharding, step by step."""
        spare = bool(source.partial_lanes) and getrefcount(data) == GIVEN and is_alone(data)
        dtype = data.dtype if isinstance(data, Absent) else self.xp.dtype(data)
        self.note(*self.route((source, target, dtype), lambda: move_call(source, target, dtype)))
        return self.moved(data, source, target, spare)

    def moved(self, data: Any, source: Layout, target: Layout, spare: bool = False) -> Any:
        """A change of sharding in a call that was noted. The data of a `spare` tensor may be overwritten."""
        dtype = data.dtype if isinstance(data, Absent) else self.xp.dtype(data)
        for step in move_steps(source.sharding, target.sharding, source.shape, dtype):
            data, spare = self.run_step(step, data, spare), False
        return data

    def apart(self, part: Tensor, layout: Layout, lanes: Sequence[int]) -> Tensor:
        """A shard of a value as one that is partial along some lanes: the first of a group keeps it."""
        if not lanes:
            return part
        rest = REDUCTIONS[layout.sharding.reduction].neutral(self.xp.dtype(part))
        coords = np.unravel_index(self.place(layout.mesh), layout.full_shape)
        if rest is None or all(int(coords[lane]) == 0 for lane in lanes):
            return part
        return self.xp.full(part.shape, rest, dtype=rest.dtype)


def _flat(parts: list[Tensor], empty: Tensor) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part.reshape(-1) for part in parts]) if parts else empty
