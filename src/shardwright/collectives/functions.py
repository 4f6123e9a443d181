"""The public functions: each makes the value of a collective and passes it to its operand.

`axes` is a name or a number of a mesh axis, or a sequence of them, outermost first; `root`, `destination` and `source` are
coordinates within the group, in the order of `axes`. Operands are `PerDevice` values, or an `Array` where the result is an
array again.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from shardwright.collectives.values import (
    AllGather,
    AllReduce,
    AllSlice,
    AllToAll,
    Broadcast,
    Collective,
    Coords,
    Gather,
    Permute,
    Recv,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
    Shift,
    UpdateHalo,
)
from shardwright.errors import CollectiveError
from shardwright.mesh import Axes, as_axes
from shardwright.sharding import is_number


class Operand(Protocol):
    """A type that collectives can be applied to."""

    def apply_collective(self, collective: Collective) -> Any: ...


V = TypeVar("V", bound=Operand)
AxisNumber = str | int
AxesNumbers = Axes | int | Sequence[AxisNumber]


def _apply(v: V, collective: Collective) -> V:
    if not hasattr(v, "apply_collective"):
        raise CollectiveError(
            f"{collective.name} takes a PerDevice or an Array; got {type(v).__name__}. "
            f"Make one with sw.PerDevice(mesh, values) or sw.shard(host, mesh, P(…))."
        )
    return v.apply_collective(collective)


def _axes(v: Any, axes: Any) -> tuple[str, ...]:
    """Axes by name; those given by number are counted from the first of the mesh."""
    given = (axes,) if isinstance(axes, str | int | np.integer) else axes
    if not isinstance(given, tuple | list) or not any(isinstance(axis, int | np.integer) for axis in given):
        return as_axes(axes)
    names: tuple[str, ...] = v.mesh.axis_names if hasattr(v, "mesh") else ()
    for axis in given:
        if isinstance(axis, bool) or (isinstance(axis, int | np.integer) and not 0 <= axis < len(names)):
            raise CollectiveError(
                f"Axis {axis!r} is out of range: the mesh has {len(names)} axes, {names}. Use 0 to {len(names) - 1}."
            )
    return as_axes([names[int(axis)] if isinstance(axis, int | np.integer) else axis for axis in given])


def _coords(coords: Coords) -> tuple[int, ...]:
    if isinstance(coords, int | np.integer):
        return (int(coords),)
    if not isinstance(coords, Iterable):
        raise CollectiveError(
            f"{coords!r} is not a valid position in a group. Give one coordinate per axis, or an integer."
        )
    return tuple(coords)


def _dtype(dtype: Any) -> "np.dtype[Any] | None":
    if dtype is None:
        return None
    try:
        kind = np.dtype(dtype).newbyteorder("=")
    except TypeError as error:
        raise CollectiveError(f"dtype={dtype!r} is not a valid NumPy dtype. Give one such as np.float32.") from error
    if not is_number(kind):
        raise CollectiveError(f"dtype={dtype!r} can't be reduced. Use a numeric or boolean dtype.")
    return kind


def all_gather(v: V, axes: AxesNumbers, dim: int) -> V:
    """Join the tensors of each group along a dim, for every member."""
    return _apply(v, AllGather(_axes(v, axes), dim))


def all_reduce(v: V, axes: AxesNumbers, op: str = "sum", dtype: Any = None) -> V:
    """Reduce the tensors of each group, for every member; `dtype` converts them first."""
    return _apply(v, AllReduce(_axes(v, axes), op, _dtype(dtype)))


def all_slice(v: V, axes: AxesNumbers, dim: int) -> V:
    """Keep each member's own piece of a dim; nothing is sent."""
    return _apply(v, AllSlice(_axes(v, axes), dim))


def all_to_all(v: V, axes: AxesNumbers, split_dim: int, concat_dim: int) -> V:
    """Send piece p of `split_dim` to member p; join what arrives along `concat_dim`, in the order of the senders."""
    return _apply(v, AllToAll(_axes(v, axes), split_dim, concat_dim))


def broadcast(v: V, axes: AxesNumbers, root: Coords) -> V:
    """Give every member the root's tensor."""
    return _apply(v, Broadcast(_axes(v, axes), _coords(root)))


def gather(v: V, axes: AxesNumbers, dim: int, root: Coords) -> V:
    """Join the tensors of each group along a dim on the root; zeros elsewhere."""
    return _apply(v, Gather(_axes(v, axes), dim, _coords(root)))


def reduce(v: V, axes: AxesNumbers, root: Coords, op: str = "sum", dtype: Any = None) -> V:
    """Reduce the tensors of each group on the root; zeros elsewhere."""
    return _apply(v, Reduce(_axes(v, axes), _coords(root), op, _dtype(dtype)))


def reduce_scatter(v: V, axes: AxesNumbers, dim: int, op: str = "sum", dtype: Any = None) -> V:
    """Reduce the tensors of each group and give every member its piece along a dim."""
    return _apply(v, ReduceScatter(_axes(v, axes), dim, op, _dtype(dtype)))


def scatter(v: V, axes: AxesNumbers, dim: int, root: Coords) -> V:
    """Give every member its piece, along a dim, of the root's tensor."""
    return _apply(v, Scatter(_axes(v, axes), dim, _coords(root)))


def shift(v: V, axes: AxesNumbers, shift_axis: AxisNumber, offset: int, rotate: bool = False) -> V:
    """Move tensors up by `offset` positions along `shift_axis`, around the end if `rotate`; zeros where nothing arrives."""
    (axis,) = _axes(v, shift_axis)
    return _apply(v, Shift(_axes(v, axes), axis, offset, rotate))


def send(v: V, axes: AxesNumbers, destination: Coords) -> V:
    """In each group, send to a member; the matching `recv` names the sender. Returns its input."""
    return _apply(v, Send(_axes(v, axes), _coords(destination)))


def recv(v: V, axes: AxesNumbers, source: Coords | None = None) -> V:
    """Receive what `source` sent: on the destination of the oldest open `send` over these axes; zeros elsewhere.

    `v` gives the expected shape and dtype. Without `source` the group must have exactly one other member.
    """
    return _apply(v, Recv(_axes(v, axes), None if source is None else _coords(source)))


def update_halo(v: V, split_axes: Sequence[AxesNumbers | None], halo_sizes: Sequence[tuple[int, int] | int]) -> V:
    """Refresh halo rows from the neighbours, corners included; cells beyond the border stay as they are.

    `split_axes` has the axes of each dim (or None), `halo_sizes` a (low, high) pair for each dim that is split, or the same
    flat: low, high, low, high. The tensors already include their halos: a dim of size n has n - low - high rows of its own.
    """
    split = tuple(_axes(v, () if axes is None else axes) for axes in split_axes)
    together = tuple(axis for axes in split for axis in axes)
    return _apply(v, UpdateHalo(together, split, _pairs(halo_sizes)))


def _pairs(sizes: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """Halo sizes as pairs, also where they are given flat."""
    if not all(isinstance(size, int | np.integer) for size in sizes):
        return tuple((int(low), int(high)) for low, high in sizes)
    if len(sizes) % 2:
        raise CollectiveError(
            f"update_halo: {len(sizes)} halo sizes {list(sizes)} are not pairs. Give low and high for each dim that is split."
        )
    return tuple((int(low), int(high)) for low, high in zip(sizes[::2], sizes[1::2], strict=True))


def permute(v: V, axes: AxesNumbers, pairs: Sequence[tuple[Coords, Coords]]) -> V:
    """For each (source, target) in each group, give the target the source's tensor; zeros where nothing arrives."""
    return _apply(v, Permute(_axes(v, axes), tuple(pairs)))
