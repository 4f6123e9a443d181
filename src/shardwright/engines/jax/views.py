"""Tensors per device on JAX's devices: rows of one array, with the shapes of all."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from shardwright.collectives import Collective
from shardwright.engines.calls import Called, program_call
from shardwright.engines.jax.forms import assembled, form_of, gathered_rows, shards_of, unpadded
from shardwright.engines.jax.processes import Member
from shardwright.engines.mailbox import Mailbox, step_of
from shardwright.engines.views import check_sums, checksum
from shardwright.errors import ArrayError, CollectiveError
from shardwright.mesh import Mesh
from shardwright.plan import Code, FromLocal, Instruction, LocalShapes, Slot, ToLocal
from shardwright.sharding import Layout

Host = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A tensor per device: a `jax.Array` with a padded row for each, and their shapes."""

    array: Any
    local_shapes: LocalShapes

    @property
    def mesh(self) -> Mesh:
        """The mesh whose devices hold the tensors."""
        return self.local_shapes.mesh

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The dtype of every device's tensor."""
        dtype: np.dtype[Any] = self.array.dtype
        return dtype

    @property
    def ndim(self) -> int:
        """The dims of one device's tensor."""
        return int(self.array.ndim) - 1

    def shapes(self) -> list[tuple[int, ...]]:
        """The different shapes that devices hold."""
        return sorted(set(self.local_shapes.shapes))


class DeviceViews:
    """What the engine does with tensors per device. Functions of Python run on the host, on NumPy arrays."""

    def __init__(self) -> None:
        self._mailbox = Mailbox()

    @cached_property
    def processes(self) -> int:
        """How many processes share the devices."""
        return jax.process_count()

    @cached_property
    def member(self) -> Member:
        """This process, where there are several."""
        return Member()

    def called(self, call: Callable[[], Called], detail: Sequence[str] = ()) -> None:
        """Where there are several processes: refuse to go on unless all make this call."""
        if self.processes > 1:
            mesh, key, text = call()
            self.member.note(mesh, key, text)
            self.member.compare(mesh, text, detail)

    def _run(self, key: Any, code: Callable[..., Code], kinds: Sequence[Any], data: Sequence[Any], call: Any) -> Any:
        raise TypeError("DeviceViews is abstract: use the engine.")

    def places(self, mesh: Mesh) -> Sequence[int]:
        """The devices of this process."""
        raise TypeError("DeviceViews is abstract: use the engine.")

    def agreed(self, mesh: Mesh, numbers: Mapping[int, Sequence[int]]) -> list[list[int]]:
        """Integers that each device of this process knows, those of all devices in their order."""
        if self.processes > 1:
            return self.member.agreed(mesh, numbers)
        return [list(numbers[place]) for place in range(mesh.size)]

    def lanes(self, data: Any, layout: Layout) -> Rows:
        """The shards as a tensor per device."""
        code = Code((Slot(0),), (Instruction(ToLocal(layout), (Slot(0),), (Slot(1),)),), (Slot(1),), (layout,))
        (made,) = self._run(("lanes", layout), lambda kinds: code, (layout,), (data,), partial(_view_call, layout.mesh))
        assert isinstance(made, Rows)
        return made

    def from_lanes(self, view: Rows, layout: Layout) -> Any:
        """Data from a tensor per device."""
        shapes = view.local_shapes
        code = Code((Slot(0),), (Instruction(FromLocal(layout), (Slot(0),), (Slot(1),)),), (Slot(1),), (shapes,))
        (made,) = self._run(
            ("from lanes", layout), lambda kinds: code, (shapes,), (view,), partial(_view_call, layout.mesh)
        )
        return made

    def view(self, mesh: Mesh, tensors: Sequence[Host]) -> Rows:
        """A tensor per device, given for all of them."""
        shapes = LocalShapes.of(mesh, [tuple(tensor.shape) for tensor in tensors])
        parts = {place: tensors[place] for place in self.places(mesh)}
        return Rows(assembled(form_of(shapes), parts, tensors[0].dtype), shapes)

    def everywhere(self, mesh: Mesh, tensor: Host) -> Rows:
        """The same tensor on every device."""
        return self.view(mesh, [tensor] * mesh.size)

    def told(self, mesh: Mesh, own: Mapping[int, Host]) -> Rows:
        """A tensor per device from those of this process; processes tell one another the shapes."""
        kinds = {
            place: [zlib.crc32(str(x.dtype).encode()), x.ndim, *x.shape, *(0,) * (64 - x.ndim)]
            for place, x in own.items()
        }
        told = self.agreed(mesh, kinds)
        first = next(iter(own.values()))
        if len({tuple(row[:2]) for row in told}) > 1:
            raise ArrayError(
                f"The tensors of the devices differ in rank or dtype: one has {first.dtype} with {first.ndim} dims, others do "
                f"not."
            )
        shapes = LocalShapes.of(mesh, [tuple(row[2 : 2 + first.ndim]) for row in told])
        return Rows(assembled(form_of(shapes), own, first.dtype), shapes)

    def _own(self, view: Rows) -> dict[int, Host]:
        """The tensors of this process's devices, without padding."""
        rows = shards_of(form_of(view.local_shapes), view.array)
        return {place: unpadded(row, view.local_shapes.at(place)) for place, row in rows.items()}

    def values(self, view: Rows) -> list[Host]:
        """The tensors of all devices, in their order. A collective: every process gets them."""
        self.called(partial(_view_call, view.mesh))
        if self.processes > 1:
            rows = np.asarray(gathered_rows(form_of(view.local_shapes), view.array))
            return [unpadded(row, view.local_shapes.at(place)) for place, row in enumerate(rows)]
        found = self._own(view)
        return [found[place] for place in range(view.mesh.size)]

    def value(self, view: Rows, place: int) -> Host:
        """The tensor of one device."""
        return self.values(view)[place]

    def each(self, function: Callable[..., Host], views: Sequence[Rows]) -> Rows:
        """A function of Python on every device's tensors, on the host."""
        owned = [self._own(view) for view in views]
        places = self.places(views[0].mesh)
        return self.told(views[0].mesh, {place: function(*(some[place] for some in owned)) for place in places})

    def elementwise(self, ufunc: np.ufunc, operands: Sequence[Any], options: Mapping[str, Any]) -> tuple[Rows, ...]:
        """A function of NumPy, element by element, on every device's tensors; scalars among the operands as they are."""
        views = [x for x in operands if isinstance(x, Rows)]
        owned = iter([self._own(view) for view in views])
        given = [next(owned) if isinstance(x, Rows) else x for x in operands]
        made: dict[int, Any] = {}
        for place in self.places(views[0].mesh):
            tensors = [x[place] if isinstance(x, dict) else x for x in given]
            try:
                made[place] = ufunc(*tensors, **options)
            except ValueError as error:
                raise CollectiveError(
                    f"{ufunc.__name__}: the operands have different sizes on some device: {error}"
                ) from error
        if ufunc.nout == 1:
            return (self.told(views[0].mesh, {place: np.asarray(x) for place, x in made.items()}),)
        each = [{place: np.asarray(x[at]) for place, x in made.items()} for at in range(ufunc.nout)]
        return tuple(self.told(views[0].mesh, some) for some in each)

    def check_shared(self, view: Rows, layout: Layout, name: str) -> None:
        """Refuse tensors that differ where a layout says devices hold the same."""
        if layout.lane_shape != layout.full_shape:
            told = self.agreed(layout.mesh, {place: [checksum(x)] for place, x in self._own(view).items()})
            check_sums([own for (own,) in told], layout, name)

    def run(self, collective: Collective, view: Rows) -> Rows:
        """A collective on a tensor per device."""
        step, view = step_of(self._mailbox, collective, view)
        if step is None:
            return view
        mesh, bound = view.mesh, step.collective
        line = Instruction(step, (Slot(0),), (Slot(1),))
        code = Code((Slot(0),), (line,), (Slot(1),), (view.local_shapes,))
        text = f"{step.name} {bound} {view.local_shapes.shapes} {view.dtype}"
        call = partial(program_call, mesh, text, step.name)
        (made,) = self._run(step, lambda kinds: code, (view.local_shapes,), (view,), call)
        assert isinstance(made, Rows)
        return made

    def check_sends(self, mesh: Mesh, when: str) -> None:
        """Refuse to go on while a send has no matching recv."""
        self._mailbox.check(mesh, when)

    def forget_sends(self, mesh: Mesh) -> None:
        """Drop open sends, after an error."""
        self._mailbox.forget(mesh)


def _view_call(mesh: Mesh) -> Called:
    return program_call(mesh, f"a tensor per device of {mesh}", "a tensor per device")
