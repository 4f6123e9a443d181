"""Tensors per device over processes: each process has its own, and knows the shapes of all."""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardwright.collectives import AllReduce, Collective, ReduceScatter, UpdateHalo
from shardwright.engines.calls import each_call, view_call
from shardwright.engines.coherence import key_of
from shardwright.engines.mailbox import step_of
from shardwright.engines.torch.convert import from_host, to_host
from shardwright.engines.torch.own import Own
from shardwright.engines.torch.routes import local_route
from shardwright.engines.torch.sender import Sender
from shardwright.engines.views import check_sums, checksum
from shardwright.errors import ArrayError, CollectiveError
from shardwright.mesh import Mesh
from shardwright.plan import (
    LocalShapes,
    LocalStep,
    local_shapes,
)
from shardwright.sharding import Layout

Tensor = torch.Tensor


class OwnViews(Sender):
    """What a process does with its tensor of a tensor per device."""

    def lanes(self, data: Tensor, layout: Layout) -> Own:
        """The shards as a tensor per device."""
        return Own(self.held(data), local_shapes(layout))

    def from_lanes(self, view: Own, layout: Layout) -> Tensor:
        """Data from a tensor per device."""
        return view.tensor

    def view(self, mesh: Mesh, tensors: Sequence[NDArray[Any]]) -> Own:
        """A tensor per device, given for all of them: this process keeps its own."""
        self.check(mesh)
        self.note(*view_call(mesh, tensors))
        mine = from_host(np.array(tensors[self.place(mesh)]), self.device)
        return Own(mine, LocalShapes.of(mesh, [tuple(tensor.shape) for tensor in tensors]))

    def everywhere(self, mesh: Mesh, tensor: NDArray[Any]) -> Own:
        """The same tensor on every device."""
        self.check(mesh)
        self.note(*view_call(mesh, [tensor]))
        return Own(from_host(np.array(tensor), self.device), LocalShapes(mesh, (tensor.shape,)))

    def values(self, view: Own) -> list[NDArray[Any]]:
        """The tensors of all devices, in their order. A collective: every process gets them."""
        text = f"reading a tensor per device of {view.mesh}"
        self.note(view.mesh, key_of(text), text)
        self.compare(view.mesh, text)
        shapes = [view.local_shapes.at(place) for place in range(view.mesh.size)]
        sizes = [math.prod(shape) for shape in shapes]
        ranks = tuple(map(int, view.mesh.device_ids))
        sends = [view.tensor.reshape(-1)] * len(ranks)
        parts = torch.split(self.guarded(text, self.exchange, ranks, sends, sizes), sizes)
        return [to_host(part.reshape(shape)) for part, shape in zip(parts, shapes, strict=True)]

    def value(self, view: Own, place: int) -> NDArray[Any]:
        """The tensor of one device. A collective."""
        return self.values(view)[place]

    def each(self, function: Callable[..., NDArray[Any]], views: Sequence[Own]) -> Own:
        """A function on every device of its tensors; processes tell one another the shapes of the results."""
        mesh = views[0].mesh
        self.note(*each_call(mesh, getattr(function, "__name__", "a function"), list(map(_worded, views)), {}))
        return self.told(mesh, {self.place(mesh): function(*(to_host(v.tensor) for v in views))})

    def told(self, mesh: Mesh, tensors: Mapping[int, NDArray[Any]]) -> Own:
        """A tensor per device from what each process has for its own; they tell one another the shapes."""
        (made,) = tensors.values()
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
        worded = [_worded(x) if isinstance(x, Own) else x for x in operands]
        self.note(*each_call(mesh, ufunc.__name__, worded, options))
        made = ufunc(*(to_host(x.tensor) if isinstance(x, Own) else x for x in operands), **options)
        each = made if isinstance(made, tuple) else (made,)
        return tuple(Own(from_host(np.asarray(x), self.device), LocalShapes.of(mesh, shapes)) for x in each)

    def check_shared(self, view: Own, layout: Layout, name: str) -> None:
        """Refuse tensors that differ where a layout says devices hold the same: processes compare their checksums."""
        if layout.lane_shape == layout.full_shape:
            return
        told = self.agreed(layout.mesh, {self.place(layout.mesh): [checksum(to_host(view.tensor))]})
        check_sums([own for (own,) in told], layout, name)

    def run(self, collective: Collective, view: Own) -> Own:
        """A collective on a tensor per device."""
        step, view = step_of(self._mailbox, collective, view)
        if step is None:
            return view
        mesh, bound = view.mesh, step.collective
        self.note(mesh, key_of(f"{step.name} {bound} {view.local_shapes.shapes} {view.dtype}"), step.name)
        if step.reduces:
            return self._around(step, view)
        route = self.route(step, lambda: local_route(step, self.world.rank))
        made = self.routed(step, route, view.tensor, keep=isinstance(bound, UpdateHalo))
        assert made is not None
        return Own(made, step.results)

    def _around(self, step: LocalStep, view: Own) -> Own:
        """Tensors combined around every group; of a reduce only the root keeps the result."""
        place = self.place(step.mesh)
        ranks = tuple(int(step.mesh.device_ids[p]) for p in step.members(place))
        data = self.xp.astype(view.tensor, step.result_dtype)
        chunks = step.chunks(place) if isinstance(step.collective, ReduceScatter) else None
        made = self.combined(step, ranks, data, step.collective.op, step.carrier, step.result_dtype, chunks)
        if not isinstance(step.collective, AllReduce | ReduceScatter) and step.root(place) != place:
            made = self.xp.zeros_like(made)
        return Own(made, step.results)

    def check_sends(self, mesh: Mesh, when: str) -> None:
        """Refuse to go on while a send has no matching recv."""
        self._mailbox.check(mesh, when)

    def forget_sends(self, mesh: Mesh) -> None:
        """Drop open sends, after an error."""
        self._mailbox.forget(mesh)


def _worded(view: Own) -> str:
    """A tensor per device, as every process describes it."""
    return f"{view.dtype} on every device, {sorted(set(view.local_shapes.shapes))}"
