"""Tensors per device on engines that have all devices in one process: they lie in lanes."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.engines.lanes import Lanes, aligned, common_extents, lanes_from, relane, spread, stack, tensor_at
from shardwright.errors import ArrayError
from shardwright.kernels.call import padding_mask
from shardwright.mesh import Mesh
from shardwright.sharding import Layout

Data = NDArray[Any]
Shards = Sequence[Data] | Mapping[int, Data]  # tensors of devices, by their places


class LaneViews:
    """What every engine of one process does with tensors per device."""

    def places(self, mesh: Mesh) -> Sequence[int]:
        """The devices of this process: all."""
        return range(mesh.size)

    def native(self, value: object) -> bool:
        """Whether `put` takes a tensor of this kind as it is."""
        return False

    def agreed(self, mesh: Mesh, numbers: Mapping[int, Sequence[int]]) -> list[list[int]]:
        """Integers that each device of this process knows, those of all devices in their order."""
        return [list(numbers[place]) for place in range(mesh.size)]

    def view(self, mesh: Mesh, tensors: Sequence[Data]) -> Lanes:
        """A tensor per device, given for all of them."""
        return stack(mesh, tensors)

    def told(self, mesh: Mesh, tensors: Mapping[int, Data]) -> Lanes:
        """A tensor per device; this process has all of them."""
        return self.view(mesh, [tensors[place] for place in range(mesh.size)])

    def everywhere(self, mesh: Mesh, tensor: Data) -> Lanes:
        """The same tensor on every device."""
        data = tensor.reshape((*(1,) * len(mesh.axis_names), *tensor.shape))
        return Lanes(mesh, mesh.axis_names, data, (None,) * tensor.ndim)

    def values(self, view: Lanes) -> list[Data]:
        """The tensors of all devices, in their order; views."""
        return [tensor_at(view, coords) for coords in np.ndindex(*view.full_shape)]

    def value(self, view: Lanes, place: int) -> Data:
        """The tensor of one device; a view."""
        return tensor_at(view, tuple(int(n) for n in np.unravel_index(place, view.full_shape)))

    def each(self, function: Callable[..., Data], views: Sequence[Lanes]) -> Lanes:
        """A function on every device of its tensors."""
        rows = zip(*map(self.values, views), strict=True)
        return stack(views[0].mesh, [function(*row) for row in rows])

    def elementwise(self, ufunc: np.ufunc, operands: Sequence[Any], options: Mapping[str, Any]) -> tuple[Lanes, ...]:
        """A function of NumPy, element by element, on all devices at once; scalars among the operands as they are."""
        views = iter(aligned([x for x in operands if isinstance(x, Lanes)]))
        given = [next(views) if isinstance(x, Lanes) else x for x in operands]
        lanes = [x for x in given if isinstance(x, Lanes)]
        extents = common_extents(lanes, ufunc.__name__)
        made = ufunc(*(x.data if isinstance(x, Lanes) else x for x in given), **options)
        each = made if isinstance(made, tuple) else (made,)
        return tuple(lanes_from(lanes[0].mesh, lanes[0].axes, x, extents) for x in each)

    def check_shared(self, view: Lanes, layout: Layout, name: str) -> None:
        """Refuse tensors that differ where a layout says devices hold the same."""
        mesh, sharding = layout.mesh, layout.sharding
        lanes = relane(view, mesh.lanes(sharding.axes))
        lanes = spread(lanes, [i for i, axis in enumerate(lanes.axes) if axis in sharding.axes])
        _same_where_shared(lanes.data, layout, name)


def _same_where_shared(data: Data, layout: Layout, name: str) -> None:
    shared = [i for i, n in enumerate(layout.lane_shape) if n == 1 and data.shape[i] > 1]
    if not shared:
        return
    first = data[tuple(slice(0, 1) if i in shared else slice(None) for i in range(data.ndim))]
    alike = (data == first) | ((data != data) & (first != first))  # NaN is the same as NaN here
    real = padding_mask(layout, range(len(layout.shape)))
    if real is not None:
        alike |= ~real
    if not bool(alike.all()):
        axes = ", ".join(repr(layout.lanes[i]) for i in shared)
        count = data.size - int(np.count_nonzero(alike))
        raise ArrayError(
            f"{name}: {layout.sharding} says devices along {axes} hold the same, but {count} of {data.size} elements "
            f"differ from the first device's. Name the axis in a dim, make it partial, or broadcast the values first."
        )


def checksum(tensor: Data) -> int:
    """A number that stands for a tensor's elements; both zeros count as one."""
    return zlib.crc32(np.ascontiguousarray(tensor + 0 if tensor.dtype.kind in "fc" else tensor).tobytes())


def check_sums(sums: Sequence[int], layout: Layout, name: str) -> None:
    """Refuse devices whose tensors have different checksums where a layout says they hold the same."""
    first: dict[tuple[int, ...], int] = {}
    shared = [i for i, n in enumerate(layout.lane_shape) if n == 1 and layout.full_shape[i] > 1]
    for place, own in enumerate(sums):
        coords = np.unravel_index(place, layout.full_shape)
        key = tuple(int(c) for i, c in enumerate(coords) if i not in shared)
        if first.setdefault(key, own) != own:
            axes = ", ".join(repr(layout.lanes[i]) for i in shared)
            raise ArrayError(
                f"{name}: {layout.sharding} says devices along {axes} hold the same, but the elements of rank "
                f"{layout.mesh.device_ids[place]} differ from the first device's. Name the axis in a dim, make it partial, "
                f"or broadcast the values first."
            )
