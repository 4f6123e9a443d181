"""Collectives, and questions about the mesh, from operations of the mesh and shard dialects."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation

from shardwright import collectives as c
from shardwright.errors import ShardwrightError
from shardwright.mesh import Mesh
from shardwright.mlir.dialects import REDUCTIONS
from shardwright.mlir.fields import (
    axes,
    axis_lists,
    field,
    integer,
    integers,
    mixed,
    scatter_dim,
    short_name,
)
from shardwright.mlir.types import dtype_of, element_of
from shardwright.mlir.values import LocalView, Value
from shardwright.sharding import P, Sharding
from shardwright.xla import is_known

COLLECTIVES = frozenset(
    "all_gather all_reduce all_slice all_to_all broadcast gather recv reduce reduce_scatter scatter send shift "
    "update_halo".split()
)
LOCAL = COLLECTIVES | {"process_multi_index", "process_linear_index", "neighbors_linear_indices"}
DEVICES = {"broadcast": "root", "gather": "root", "reduce": "root", "scatter": "root", "recv": "source"}
DEVICES["send"] = "destination"


class QueryKey(NamedTuple):
    """A question about the mesh in a program: the name of the operation, and its axes, dims or sizes."""

    name: str
    arguments: tuple[Any, ...]
    result: int = 0


@dataclass(frozen=True)
class Request:
    """A collective that a path of a function has come to."""

    op: Operation
    collective: Any
    value: Value

    @property
    def signature(self) -> Any:
        """Equal for collectives that devices on different paths can take part in together."""
        return self.collective, tuple(self.value.shape), self.value.dtype


def axis_names(mesh: Mesh, numbers: Sequence[int]) -> tuple[str, ...]:
    """The names of axes given by number."""
    return tuple(mesh.axis_names[number] for number in numbers)


def device_coords(op: Operation, name: str, values: Sequence[Value], view: LocalView) -> tuple[int, ...] | None:
    """The coordinates of an in-group device; None if the operation names none."""
    given = field(op, name)
    if given is None:
        return None
    coords = []
    for entry in mixed(given, values):
        if isinstance(entry, int):
            coords.append(entry)
            continue
        known = view.per_device(entry)
        if known is None:
            raise ShardwrightError(
                f"The {name} depends on data, so it is not known before the program runs. Use a constant."
            )
        numbers = {int(x) for x in known}
        if len(numbers) > 1:
            raise ShardwrightError(
                f"The {name} differs between devices: {sorted(numbers)}. All devices of a group must name the same one. To "
                f"pass tensors on by one place, use shift."
            )
        coords.append(numbers.pop())
    return tuple(coords)


def collective_of(op: Operation, mesh: Mesh, device: tuple[int, ...] | None, dtype: "np.dtype[Any]") -> Any:
    """The collective that an operation is."""
    name, over = short_name(op), axis_names(mesh, axes(op))
    kind = field(op, "reduction")
    reduction = "sum" if kind is None else kind.kind.data
    if reduction == "generic":
        raise ShardwrightError("The reduction generic says not what it does. Use sum, max, min or another by name.")
    result = dtype_of(element_of(op.results[0].type))
    into = None if result == dtype else result
    simple: dict[str, Any] = {
        "all_gather": lambda: c.AllGather(over, integer(field(op, "gather_axis"))),
        "all_reduce": lambda: c.AllReduce(over, reduction, into),
        "all_slice": lambda: c.AllSlice(over, integer(field(op, "slice_axis"))),
        "all_to_all": lambda: c.AllToAll(over, integer(field(op, "split_axis")), integer(field(op, "concat_axis"))),
        "broadcast": lambda: c.Broadcast(over, device),  # type: ignore[arg-type]
        "gather": lambda: c.Gather(over, integer(field(op, "gather_axis")), device),  # type: ignore[arg-type]
        "recv": lambda: c.Recv(over, device),
        "reduce": lambda: c.Reduce(over, device, reduction, into),  # type: ignore[arg-type]
        "reduce_scatter": lambda: c.ReduceScatter(over, scatter_dim(op), reduction, into),
        "scatter": lambda: c.Scatter(over, scatter_dim(op), device),  # type: ignore[arg-type]
        "send": lambda: c.Send(over, device),  # type: ignore[arg-type]
        "shift": lambda: c.Shift(
            over, mesh.axis_names[integer(field(op, "shift_axis"))], integer(field(op, "offset")),
            field(op, "rotate") is not None,
        ),
    }  # fmt: skip
    return simple[name]()


def halo_update(op: Operation, mesh: Mesh, sizes: Sequence[int]) -> c.UpdateHalo:
    """The collective of an update_halo; sizes are low and high of each split dim."""
    split = tuple(axis_names(mesh, some) for some in axis_lists(field(op, "split_axes")))
    together = tuple(axis for some in split for axis in some)
    return c.UpdateHalo(together, split, tuple(zip(sizes[::2], sizes[1::2], strict=True)))


def is_alone(op: Operation) -> bool:
    """Whether a collective names no axes: every group is one device."""
    return short_name(op) != "update_halo" and not axes(op)


# -- shardings -------------------------------------------------------------------------------------------------------


def sharding_from_attribute(attribute: Any, mesh: Mesh) -> Sharding:
    """The sharding of `<@mesh, [[0]], partial = sum[1]>`."""
    spec = P(*(axis_names(mesh, some) for some in axis_lists(attribute)))
    partial = axis_names(mesh, integers(attribute.partial))
    return Sharding(mesh, spec, partial=partial, reduction=attribute.kind.data)


def sharding_from_operation(op: Operation, mesh: Mesh, offsets: Sequence[int], halos: Sequence[int]) -> Sharding:
    """The sharding of a sharding operation; its offsets and halos are given as numbers."""
    lists = axis_lists(field(op, "split_axes"))
    spec = P(*(axis_names(mesh, some) for some in lists))
    split = [dim for dim, some in enumerate(lists) if some]
    halo = {dim: (halos[2 * at], halos[2 * at + 1]) for at, dim in enumerate(split)} if halos else None
    cuts: dict[int, Sequence[int]] = {}
    start = 0
    for dim in split if offsets else ():
        count = mesh.axis_size(axis_names(mesh, lists[dim])) + 1
        cuts[dim] = offsets[start : start + count]
        start += count
    partial, reduction = partial_of(op)
    return Sharding(
        mesh,
        spec,
        partial=axis_names(mesh, partial),
        reduction=reduction,
        halo=halo,
        offsets=cuts or None,
    )


_PARTIAL = re.compile(r"([a-z_]+)\[(\d+(?:, *\d+)*)\]")


def partial_of(op: Operation) -> tuple[tuple[int, ...], str]:
    """The partial axes of a sharding operation, and their reduction: as LLVM 20 writes them, or as the attribute
    `partial = "sum[1]"`, which LLVM 22 keeps and does not look at."""
    attribute = op.attributes.get("partial")
    if isinstance(attribute, StringAttr):
        found = _PARTIAL.fullmatch(attribute.data)
        if found is None or found[1] not in REDUCTIONS:
            raise ShardwrightError(f'partial is {attribute.data!r}; write it as "sum[1]" or "max[0, 1]".')
        return tuple(map(int, found[2].split(","))), found[1]
    kind = field(op, "partial_type")
    return axes(op, "partial_axes"), "sum" if kind is None else kind.kind.data


# -- questions -------------------------------------------------------------------------------------------------------


def shard_sizes(sharding: Sharding, dims: Sequence[int], coords: Sequence[int]) -> list[int]:
    """The sizes of the shard of a device: n // k, plus 1 on the trailing shards; with offsets their differences.

    >>> mesh = Mesh(x=2, y=3)
    >>> [shard_sizes(Sharding(mesh, P("y")), [11], (0, j)) for j in range(3)]
    [[3], [4], [4]]
    >>> [shard_sizes(Sharding(mesh, P(("x", "y"))), [13], (i, j)) for i in range(2) for j in range(3)]
    [[2], [2], [2], [2], [2], [3]]
    """
    mesh, result = sharding.mesh, []
    for dim, n in enumerate(dims):
        split = sharding.dims[dim] if dim < len(sharding.dims) else ()
        number, count = 0, 1
        for axis in split:
            size = mesh.sizes[axis]
            number, count = number * size + int(coords[mesh.axis_names.index(axis)]), count * size
        cuts = sharding.offsets_of(dim) if dim < len(sharding.dims) else ()
        low, high = sharding.halo_of(dim) if split else (0, 0)
        own = cuts[number + 1] - cuts[number] if cuts else n // count + (number >= count - n % count)
        result.append(own + low + high)
    return result


def neighbours(mesh: Mesh, coords: Sequence[int], over: Sequence[int]) -> tuple[int, int]:
    """The row-major numbers of the devices before and after one along axes; -1 at the border."""
    sizes = [mesh.shape[axis] for axis in over]
    place = int(np.ravel_multi_index([int(coords[axis]) for axis in over], sizes)) if over else 0
    found = []
    for other in (place - 1, place + 1):
        if not 0 <= other < (int(np.prod(sizes)) if over else 1):
            found.append(-1)
            continue
        moved = [int(x) for x in coords]
        for axis, at in zip(over, np.unravel_index(other, sizes), strict=True):
            moved[axis] = int(at)
        found.append(int(np.ravel_multi_index(moved, mesh.shape)))
    return found[0], found[1]


def known_number(value: Value) -> int | None:
    """A known value as a Python integer."""
    return int(value) if is_known(value) and value.ndim == 0 else None
