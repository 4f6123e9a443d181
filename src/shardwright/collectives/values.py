"""The collectives as values: their attributes, the checks of their operand, the sharding of their result.

`bind` fits a collective to tensors of one shape per device: axes checked, dims counted from the front, roots in range,
sizes divisible. `on` gives the sharding of the result when the operand is one sharded tensor.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from shardwright.errors import CollectiveError, MeshError
from shardwright.mesh import Mesh, overlap
from shardwright.sharding import REDUCTIONS, Cuts, Sharding, block_size, joined, layout_of, sliced

Shape = tuple[int, ...]
Coords = int | Sequence[int]
C = TypeVar("C", bound="Collective")


@dataclass(frozen=True, slots=True)
class Collective:
    """One operation of a device group; the groups run along `axes`, the first outermost."""

    axes: tuple[str, ...]
    name: ClassVar[str] = "collective"

    def bind(self: C, mesh: Mesh, shape: Shape, dtype: "np.dtype[Any]", uneven: bool = False) -> C:
        """This collective for tensors of a shape on a mesh: checked and in canonical form.

        The shape is that of every device's tensor; with `uneven`, that of one sharded tensor, whose pieces may differ.
        """
        try:
            axes = mesh.group_axes(self.axes)
        except MeshError as error:
            raise CollectiveError(f"{self.name}: {error}") from error
        return replace(self, axes=axes)._bind(mesh, shape, dtype, 1 if uneven else mesh.axis_size(axes))

    def _bind(self: C, mesh: Mesh, shape: Shape, dtype: "np.dtype[Any]", group: int) -> C:
        return self

    def on(self, sharding: Sharding, shape: Shape) -> Sharding:
        """The sharding of the result, for a sharded tensor."""
        raise CollectiveError(
            f"{self.name} moves the tensors of single devices and has no meaning for one sharded tensor ({sharding}). "
            f"Use it on PerDevice values, for example inside sw.shard_map."
        )

    def on_copies(self, sharding: Sharding, shape: Shape) -> tuple[Sharding, Shape] | None:
        """The sharding and shape of the result if the members of a group hold the same data.

        None if the results are not the shards of one tensor.
        """
        return None

    # -- shared checks ------------------------------------------------------------------------------------------------

    def _dim(self, dim: int, shape: Shape, what: str = "dim") -> int:
        if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or not -len(shape) <= dim < len(shape):
            have = f"dims 0 to {len(shape) - 1}" if shape else "no dims"
            raise CollectiveError(
                f"{self.name}: {what}={dim!r} is out of range; the tensor of shape {shape} has {have}. "
                f"Name one of its dims."
            )
        return int(dim) % len(shape)

    def _divide(self, shape: Shape, dim: int, group: int) -> None:
        if shape[dim] % group:
            raise CollectiveError(
                f"{self.name}: dim {dim} of size {shape[dim]} is not divisible by the {group} devices of a group "
                f"along {self.axes}. Pad it to {block_size(shape[dim], group) * group}, or shard the tensor with sw.shard, "
                f"which accepts uneven sizes."
            )

    def _member(self, coords: Coords, mesh: Mesh, what: str) -> tuple[int, ...]:
        try:
            return mesh.check_coords(coords, self.axes)
        except MeshError as error:
            raise CollectiveError(
                f"{self.name}: {what} {coords!r} is not in a group along {self.axes}. {error}"
            ) from error

    def _ends(self, coords: Any, mesh: Mesh, what: str) -> tuple[Any, ...]:
        """The other end of a transfer, or that of every device."""
        if not is_per_device(coords):
            return self._member(coords, mesh, what)
        if len(coords) != mesh.size:
            raise CollectiveError(f"{self.name}: {len(coords)} {what}s for {mesh.size} devices. Give one a device.")
        return tuple(self._member(own, mesh, f"{what} of device {place}") for place, own in enumerate(coords))

    def _reducible(self, op: str, dtype: "np.dtype[Any]") -> None:
        if op not in REDUCTIONS:
            raise CollectiveError(f"{self.name}: reduction {op!r} is unknown. Use one of {', '.join(REDUCTIONS)}.")
        if not REDUCTIONS[op].accepts(dtype):
            raise CollectiveError(
                f"{self.name}: {op} works on the bits of integers and booleans; {dtype.name} is neither. "
                f"Convert with dtype=, or choose another reduction."
            )


def is_per_device(coords: Any) -> bool:
    """Whether the end of a transfer is given for each device."""
    return isinstance(coords, tuple) and len(coords) > 0 and isinstance(coords[0], tuple)


def _without_partial(collective: "AllReduce | ReduceScatter", sharding: Sharding) -> Sharding:
    """The sharding after the reduction over the collective's axes."""
    partial = sharding.mesh.cut(sharding.partial, by=collective.axes)
    reduced = sharding.mesh.cut(collective.axes, by=sharding.partial)
    if not set(reduced) <= set(partial) or collective.op != sharding.reduction:
        state = f"partial over {sharding.partial} by {sharding.reduction}" if sharding.partial else "not partial"
        raise CollectiveError(
            f"{collective.name} over {collective.axes} by {collective.op}: the tensor is {state}. "
            f"Reduce over axes it is partial over, by the same reduction."
        )
    return sharding.replace(partial=tuple(axis for axis in partial if axis not in reduced))


def _gathered(collective: Collective, sharding: Sharding, shape: Shape, dim: int) -> Sharding:
    """The sharding without the collective's axes, which must be the innermost axes of a dim."""
    axes = sharding.mesh.cut(sharding.dims[dim], by=collective.axes)
    gathered = sharding.mesh.cut(collective.axes, by=sharding.dims[dim])
    keep = len(axes) - len(gathered)
    if keep < 0 or axes[keep:] != gathered:
        raise CollectiveError(
            f"{collective.name} over {collective.axes}: dim {dim} is split by {sharding.dims[dim] or 'no axis'}; only "
            f"its innermost axes can be gathered, in their order. Use x.reshard(…) for other changes."
        )
    if sharding.halo_of(dim) != (0, 0):
        raise CollectiveError(
            f"{collective.name}: dim {dim} has a halo of {sharding.halo_of(dim)}. Remove it with x.reshard(…) first."
        )
    group = sharding.mesh.axis_size(collective.axes)
    held = layout_of(sharding, shape).dims[dim]
    cuts = joined(sharding.offsets_of(dim), shape[dim], held.parts, group)
    return _with_dim(sharding, shape, dim, axes[:keep], cuts)


def _sliced(collective: Collective, sharding: Sharding, shape: Shape, dim: int) -> Sharding:
    """The sharding with the collective's axes as the innermost axes of a dim: every shard is cut locally."""
    mesh = sharding.mesh
    taken = [a for a in collective.axes if any(overlap(mesh.axis(a), mesh.axis(b)) for b in sharding.axes)]
    if taken:
        raise CollectiveError(
            f"{collective.name} over {collective.axes}: the tensor's sharding {sharding} already uses {taken}. "
            f"Slice along axes over which it is replicated."
        )
    if sharding.halo_of(dim) != (0, 0):
        raise CollectiveError(
            f"{collective.name}: dim {dim} has a halo of {sharding.halo_of(dim)}. Remove it with x.reshard(…) first."
        )
    group = mesh.axis_size(collective.axes)
    held = layout_of(sharding, shape).dims[dim]
    axes = (*sharding.dims[dim], *collective.axes)
    cuts = () if held.parts == 1 else sliced(sharding.offsets_of(dim), shape[dim], held.parts, group)
    return _with_dim(sharding, shape, dim, axes, cuts)


def _with_dim(sharding: Sharding, shape: Shape, dim: int, axes: tuple[str, ...], cuts: Cuts) -> Sharding:
    spec = (*sharding.dims[:dim], axes, *sharding.dims[dim + 1 :])
    offsets = {at: given for at, given in enumerate(sharding.offsets) if given and at != dim}
    return sharding.replace(spec=spec, offsets=offsets | ({dim: cuts} if cuts else {})).for_shape(shape)


@dataclass(frozen=True, slots=True)
class AllGather(Collective):
    """Every member gets the members' tensors joined along a dim, in group order."""

    dim: int
    name: ClassVar[str] = "all_gather"

    def _bind(self, mesh: Mesh, shape: Shape, dtype: "np.dtype[Any]", group: int) -> "AllGather":
        return replace(self, dim=self._dim(self.dim, shape))

    def on_copies(self, sharding: Sharding, shape: Shape) -> tuple[Sharding, Shape] | None:
        dim, group = self.dim % len(shape), sharding.mesh.axis_size(self.axes)
        grown = tuple(n * group if d == dim else n for d, n in enumerate(shape))
        return (sharding, grown) if not sharding.dims[dim] else None

    def on(self, sharding: Sharding, shape: Shape) -> Sharding:
        return _gathered(self, sharding, shape, self.dim)


@dataclass(frozen=True, slots=True)
class AllReduce(Collective):
    """Every member gets the reduction of the members' tensors, converted to `dtype` first."""

    op: str = "sum"
    dtype: "np.dtype[Any] | None" = None
    name: ClassVar[str] = "all_reduce"

    def _bind(self, mesh: Mesh, shape: Shape, dtype: "np.dtype[Any]", group: int) -> "AllReduce":
        self._reducible(self.op, self.dtype or dtype)
        return self

    def on(self, sharding: Sharding, shape: Shape) -> Sharding:
        return _without_partial(self, sharding)

    def on_copies(self, sharding: Sharding, shape: Shape) -> tuple[Sharding, Shape] | None:
        return sharding, shape


@dataclass(frozen=True, slots=True)
class AllSlice(Collective):
    """Every member keeps its piece of a dim of its own tensor; nothing is sent."""

    dim: int
    name: ClassVar[str] = "all_slice"

    def _bind(self, mesh: Mesh, shape: Shape, dtype: "np.dtype[Any]", group: int) -> "AllSlice":
        dim = self._dim(self.dim, shape)
        self._divide(shape, dim, group)
        return replace(self, dim=dim)

    def on(self, sharding: Sharding, shape: Shape) -> Sharding:
        return _sliced(self, sharding, shape, self.dim)


@dataclass(frozen=True, slots=True)
class AllToAll(Collective):
    """Piece p of every member's `split_dim` goes to member p, which joins what it gets along `concat_dim`."""

    split_dim: int
    concat_dim: int
    name: ClassVar[str] = "all_to_all"

    def _bind(self, mesh: Mesh, shape: Shape, dtype: "np.dtype[Any]", group: int) -> "AllToAll":
        split = self._dim(self.split_dim, shape, "split_dim")
        self._divide(shape, split, group)
        return replace(self, split_dim=split, concat_dim=self._dim(self.concat_dim, shape, "concat_dim"))

    def on(self, sharding: Sharding, shape: Shape) -> Sharding:
        if self.split_dim == self.concat_dim:
            raise CollectiveError(
                f"all_to_all with split_dim = concat_dim = {self.split_dim} does not give a sharding of the tensor. "
                f"Name two different dims, or use x.reshard(…)."
            )
        return _sliced(self, _gathered(self, sharding, shape, self.concat_dim), shape, self.split_dim)


@dataclass(frozen=True, slots=True)
class Broadcast(Collective):
    """Every member gets the root's tensor."""

    root: tuple[int, ...]
    name: ClassVar[str] = "broadcast"

    def _bind(self, mesh: Mesh, shape: Shape, dtype: "np.dtype[Any]", group: int) -> "Broadcast":
        return replace(self, root=self._member(self.root, mesh, "root"))

    def on_copies(self, sharding: Sharding, shape: Shape) -> tuple[Sharding, Shape] | None:
        return sharding, shape


@dataclass(frozen=True, slots=True)
class Exchange(Collective):
    """Every device receives only the missing parts of its shard of `target`, directly from devices that hold them."""

    target: Sharding
    name: ClassVar[str] = "exchange"

    def on(self, sharding: Sharding, shape: Shape) -> Sharding:
        return self.target.for_shape(shape)


@dataclass(frozen=True, slots=True)
class Gather(Collective):
    """The root gets the members' tensors joined along a dim; the others get zeros."""

    dim: int
    root: tuple[int, ...]
    name: ClassVar[str] = "gather"

    def _bind(self, mesh: Mesh, shape: Shape, dtype: "np.dtype[Any]", group: int) -> "Gather":
        return replace(self, dim=self._dim(self.dim, shape), root=self._member(self.root, mesh, "root"))


@dataclass(frozen=True, slots=True)
class Reduce(Collective):
    """The root gets the reduction of the members' tensors; the others get zeros."""

    root: tuple[int, ...]
    op: str = "sum"
    dtype: "np.dtype[Any] | None" = None
    name: ClassVar[str] = "reduce"

    def _bind(self, mesh: Mesh, shape: Shape, dtype: "np.dtype[Any]", group: int) -> "Reduce":
        self._reducible(self.op, self.dtype or dtype)
        return replace(self, root=self._member(self.root, mesh, "root"))


@dataclass(frozen=True, slots=True)
class ReduceScatter(Collective):
    """Every member gets its piece, along a dim, of the reduction of the members' tensors."""

    dim: int
    op: str = "sum"
    dtype: "np.dtype[Any] | None" = None
    name: ClassVar[str] = "reduce_scatter"

    def _bind(self, mesh: Mesh, shape: Shape, dtype: "np.dtype[Any]", group: int) -> "ReduceScatter":
        self._reducible(self.op, self.dtype or dtype)
        dim = self._dim(self.dim, shape)
        self._divide(shape, dim, group)
        return replace(self, dim=dim)

    def on(self, sharding: Sharding, shape: Shape) -> Sharding:
        return _sliced(self, _without_partial(self, sharding), shape, self.dim)


@dataclass(frozen=True, slots=True)
class Scatter(Collective):
    """Every member gets its piece, along a dim, of the root's tensor."""

    dim: int
    root: tuple[int, ...]
    name: ClassVar[str] = "scatter"

    def _bind(self, mesh: Mesh, shape: Shape, dtype: "np.dtype[Any]", group: int) -> "Scatter":
        dim = self._dim(self.dim, shape)
        self._divide(shape, dim, group)
        return replace(self, dim=dim, root=self._member(self.root, mesh, "root"))


@dataclass(frozen=True, slots=True)
class Send(Collective):
    """In every group one member sends its tensor to `destination`; the matching recv names the sender.

    With one destination for each device of the mesh, every device sends to its own.
    """

    destination: tuple[Any, ...]  # coordinates in the group, or those for each place of the mesh
    name: ClassVar[str] = "send"

    def _bind(self, mesh: Mesh, shape: Shape, dtype: "np.dtype[Any]", group: int) -> "Send":
        return replace(self, destination=self._ends(self.destination, mesh, "destination"))


@dataclass(frozen=True, slots=True)
class Recv(Collective):
    """The destination of the matching send gets the source's tensor; the others get zeros."""

    source: tuple[Any, ...] | None = None  # coordinates in the group, or those for each place of the mesh
    name: ClassVar[str] = "recv"

    def _bind(self, mesh: Mesh, shape: Shape, dtype: "np.dtype[Any]", group: int) -> "Recv":
        return self if self.source is None else replace(self, source=self._ends(self.source, mesh, "source"))


@dataclass(frozen=True, slots=True)
class Permute(Collective):
    """For each (source, target) the target gets the source's tensor; members that are not a target get zeros."""

    pairs: tuple[tuple[Any, Any], ...]
    name: ClassVar[str] = "permute"

    def _bind(self, mesh: Mesh, shape: Shape, dtype: "np.dtype[Any]", group: int) -> "Permute":
        for pair in self.pairs:
            if not isinstance(pair, Sequence) or len(pair) != 2:
                raise CollectiveError(f"permute: {pair!r} is not a (source, target) pair.")
        pairs = tuple((self._member(a, mesh, "source"), self._member(b, mesh, "target")) for a, b in self.pairs)
        for what, members in (("source", [a for a, _ in pairs]), ("target", [b for _, b in pairs])):
            (member, times), *_ = Counter(members).most_common(1) or [((), 0)]
            if times > 1:
                raise CollectiveError(
                    f"permute: {member} is a {what} {times} times. A permutation names each source and each target at "
                    f"most once."
                )
        return replace(self, pairs=pairs)


@dataclass(frozen=True, slots=True)
class Shift(Collective):
    """Tensors move up by `offset` positions along `shift_axis`, around the end if `rotate`; zeros where nothing arrives."""

    shift_axis: str
    offset: int
    rotate: bool = False
    name: ClassVar[str] = "shift"

    def _bind(self, mesh: Mesh, shape: Shape, dtype: "np.dtype[Any]", group: int) -> "Shift":
        if self.shift_axis not in self.axes:
            raise CollectiveError(
                f"shift: shift_axis {self.shift_axis!r} is not one of the group's axes {self.axes}. Name one of them."
            )
        if not isinstance(self.offset, int | np.integer):
            raise CollectiveError(f"shift: offset {self.offset!r} is not an integer.")
        return self


@dataclass(frozen=True, slots=True)
class UpdateHalo(Collective):
    """Halo rows are refreshed from the neighbours, corners included; cells beyond the tensor's border stay as they are.

    `split_axes` has the axes of each dim; `halo_sizes` one (low, high) per dim that is split. `axes` follows from them.
    """

    split_axes: tuple[tuple[str, ...], ...]
    halo_sizes: tuple[tuple[int, int], ...]
    name: ClassVar[str] = "update_halo"

    def _bind(self, mesh: Mesh, shape: Shape, dtype: "np.dtype[Any]", group: int) -> "UpdateHalo":
        self._check_counts(shape)
        for dim, _, low, high in self.dims():
            core = shape[dim] - low - high
            if low < 0 or high < 0 or core < 0:
                raise CollectiveError(
                    f"update_halo: a halo of ({low}, {high}) does not fit dim {dim} of size {shape[dim]}. "
                    f"The size counts the halo too, and a halo has 0 or more rows."
                )
        return self

    def _check_counts(self, shape: Shape) -> None:
        if len(self.split_axes) > len(shape):
            raise CollectiveError(
                f"update_halo: split_axes has {len(self.split_axes)} entries, but the tensor of shape {shape} has "
                f"{len(shape)} dims. Give at most one entry per dim."
            )
        split = [dim for dim, axes in enumerate(self.split_axes) if axes]
        if len(self.halo_sizes) != len(split):
            raise CollectiveError(
                f"update_halo: {len(self.halo_sizes)} halo sizes {self.halo_sizes} for {len(split)} split dims "
                f"{split}. Give one (low, high) pair for each dim that split_axes splits."
            )

    def dims(self) -> list[tuple[int, tuple[str, ...], int, int]]:
        """The split dims: (dim, axes, low, high)."""
        split = [(dim, axes) for dim, axes in enumerate(self.split_axes) if axes]
        return [(dim, axes, *halo) for (dim, axes), halo in zip(split, self.halo_sizes, strict=True)]

    def on(self, sharding: Sharding, shape: Shape) -> Sharding:
        fitted = sharding.for_shape(shape)
        self._check_counts(shape)
        given = dict.fromkeys(range(len(shape)), ((), 0, 0)) | {d: (axes, lo, hi) for d, axes, lo, hi in self.dims()}
        for dim in range(len(shape)):
            halo = fitted.halo_of(dim)
            if given[dim] != (fitted.dims[dim], *halo) and (halo != (0, 0) or given[dim][0]):
                raise CollectiveError(
                    f"update_halo: split_axes and halo_sizes give {given[dim][0]} and {given[dim][1:]} for dim {dim}, "
                    f"but the tensor has {fitted.dims[dim]} with {halo}. Use the tensor's own sharding, {fitted}."
                )
        return sharding
