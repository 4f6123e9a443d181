"""`Sharding`: which device holds which part of a tensor. Frozen, interned, canonical: equal shardings are one object."""

import math
import operator
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any
from weakref import WeakValueDictionary

from shardwright.caches import MIB, kept
from shardwright.errors import ShardingError
from shardwright.mesh import Axes, Mesh, SubAxis, as_axes, as_ints, overlap
from shardwright.sharding.cuts import Cuts, Nested
from shardwright.sharding.reductions import REDUCTIONS
from shardwright.sharding.spec import Dims, P, as_spec

Halo = tuple[tuple[int, int], ...]
Offsets = tuple[Cuts, ...]


class Sharding:
    """Which mesh axes split each dim of a tensor (outermost first), and which have a pending reduction.

    >>> mesh = Mesh(data=2, model=4)
    >>> Sharding(mesh, P("data", None))
    Sharding(Mesh(data=2, model=4), P('data', None))
    >>> Sharding(mesh, P(None, "data"), partial="model")  # each device along model holds a summand
    Sharding(Mesh(data=2, model=4), P(None, 'data'), partial=('model',))

    - `partial`, `reduction`: axes along which the value is the sum (or maximum, …) of what the devices hold.
    - `halo`: {dim: (low, high)} rows of the neighbours that a shard also holds; an int means the same on both sides.
    - `offsets`: {dim: offsets} where the shards begin, then the dim's size; by default blocks of ceil(size / shards).
    """

    __slots__ = ("__weakref__", "dims", "halo", "mesh", "offsets", "partial", "reduction")

    mesh: Mesh
    dims: Dims  # () is "whole"
    partial: tuple[str, ...]
    reduction: str
    halo: Halo  # () or one (low, high) per dim
    offsets: Offsets  # () or one sequence per dim, () for the default blocks

    def __new__(
        cls,
        mesh: Mesh,
        spec: object = P(),  # P is immutable
        *,
        partial: Axes = (),
        reduction: str = "sum",
        halo: Mapping[int, int | tuple[int, int]] | None = None,
        offsets: Mapping[int, Sequence[int]] | None = None,
    ) -> "Sharding":
        if halo is None and offsets is None and type(spec) is P and isinstance(partial, tuple | str):
            return _plain(mesh, spec, partial, reduction)
        return _build(mesh, as_spec(spec), as_axes(partial), reduction, halo or {}, offsets or {})

    @staticmethod
    def fitted(mesh: Mesh, dims: Dims, partial: tuple[str, ...], reduction: str, shape: tuple[int, ...]) -> "Sharding":
        """A sharding for a shape from axes that are already valid: the fast constructor for planners."""
        sizes = mesh.sizes
        for axis in chain(*dims, partial):
            if axis not in sizes:
                return Sharding(mesh, P(*dims), partial=partial, reduction=reduction).for_shape(shape)
        order = tuple([axis for axis in mesh.axis_names if axis in partial]) if partial else ()
        return _canonical(mesh, dims, order, reduction if order else "sum", (), ())

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"A Sharding is immutable; use .replace({name}=…) for a changed one.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"A Sharding is immutable; {name!r} can't be deleted.")

    def __reduce__(self) -> tuple[Any, ...]:
        return _canonical, (self.mesh, self.dims, self.partial, self.reduction, self.halo, self.offsets)

    def __copy__(self) -> "Sharding":
        return self

    def __deepcopy__(self, memo: object) -> "Sharding":
        return self

    def __repr__(self) -> str:
        parts = [repr(self.mesh), repr(self.spec)]
        if self.partial:
            parts.append(f"partial={self.partial}")
            if self.reduction != "sum":
                parts.append(f"reduction={self.reduction!r}")
        if self.halo:
            parts.append(f"halo={ {d: pair for d, pair in enumerate(self.halo) if pair != (0, 0)} }")
        if self.offsets:
            parts.append(f"offsets={ {d: list(cuts) for d, cuts in enumerate(self.offsets) if cuts} }")
        return f"Sharding({', '.join(parts)})"

    @property
    def spec(self) -> P:
        """The dims alone, as a `P`."""
        return P(*self.dims)

    @property
    def ndim(self) -> int:
        """The number of dims that this sharding mentions."""
        return len(self.dims)

    @property
    def axes(self) -> tuple[str, ...]:
        """Every axis in use: the axes that split a dim, then the partial axes."""
        return (*chain(*self.dims), *self.partial)

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds the whole value."""
        return not any(self.mesh.axis(axis).size > 1 for axis in self.axes)

    def parts(self, dim: int) -> int:
        """The number of shards of a dim."""
        return self.mesh.axis_size(self.dims[dim])

    def local_size(self, shape: tuple[int, ...]) -> int:
        """The number of elements in the largest shard for a shape, without halos."""
        total = 1
        for dim, (size, axes) in enumerate(zip(shape, self.dims, strict=False)):
            cuts = self.offsets_of(dim)
            parts = self.mesh.axis_size(axes) if axes else 1
            total *= largest(cuts) if cuts else block_size(size, parts)
        return total * math.prod(shape[len(self.dims) :])

    def halo_of(self, dim: int) -> tuple[int, int]:
        """The halo of a dim: rows held from the shard below, and from the shard above."""
        return self.halo[dim] if self.halo else (0, 0)

    def offsets_of(self, dim: int) -> Cuts:
        """The explicit offsets of a dim, or () for the default blocks."""
        return self.offsets[dim] if self.offsets else ()

    def replace(self, **changes: Any) -> "Sharding":
        """The same sharding with some of its arguments changed.

        >>> Sharding(Mesh(x=2), P(None), partial="x").replace(partial=())
        Sharding(Mesh(x=2), P(None))
        """
        if changes == _REDUCED:
            return _canonical(self.mesh, self.dims, (), "sum", self.halo, self.offsets)
        known: dict[str, Any] = {
            "mesh": self.mesh,
            "spec": self.spec,
            "partial": self.partial,
            "reduction": self.reduction,
            "halo": {dim: pair for dim, pair in enumerate(self.halo) if pair != (0, 0)},
            "offsets": {dim: cuts for dim, cuts in enumerate(self.offsets) if cuts},
        }
        known.update(changes)
        return Sharding(known.pop("mesh"), known.pop("spec"), **known)

    def for_shape(self, shape: tuple[int, ...]) -> "Sharding":
        """This sharding checked against a shape, with an entry for every dim.

        >>> Sharding(Mesh(x=2), P("x"), offsets={0: (0, 3, 6)}).for_shape((6, 4))
        Sharding(Mesh(x=2), P('x', None))
        """
        return _cut_for_shape(self, shape) if self.offsets else _for_shape(self, shape)

    @property
    def footprint(self) -> int:
        """About how many bytes it takes: offsets that are listed have an integer for each shard."""
        return 500 + 40 * sum([len(cuts) for cuts in self.offsets if not isinstance(cuts, Nested)])


_REDUCED = {"partial": ()}  # what is changed most often: needs no checks


def block_size(size: Any, parts: int) -> Any:
    """The rows of a default block: ceil(size / parts), so that only the last blocks are short or empty.

    Works on an array of sizes too.
    """
    return -(-size // parts)


def usual_offsets(size: int, parts: int) -> tuple[int, ...]:
    """Where the default blocks begin: ceil(size / parts) rows each, the last blocks short or empty.

    >>> usual_offsets(10, 4), usual_offsets(2, 4)
    ((0, 3, 6, 9, 10), (0, 1, 2, 2, 2))
    """
    block = block_size(size, parts)
    return tuple(min(i * block, size) for i in range(parts + 1))


def largest(cuts: Cuts) -> int:
    """The rows of the largest shard between explicit offsets; there may be a million of them."""
    return cuts.largest if isinstance(cuts, Nested) else max(map(operator.sub, cuts[1:], cuts))


def are_blocks(cuts: Cuts, block: int) -> bool:
    """Whether explicit offsets are those of equal blocks of a size, the last ones short or empty.

    >>> are_blocks((0, 4, 8, 10, 10), 4), are_blocks((0, 4, 7, 10, 10), 4)
    (True, False)
    """
    if not block or cuts[1] != min(block, cuts[-1]):
        return not cuts[-1]
    if isinstance(cuts, Nested):
        return cuts.are_blocks(block)
    full = cuts[-1] // block + 1
    if cuts[full // 2] != full // 2 * block or cuts[full - 1] != (full - 1) * block:
        return False  # most that are not are found without looking at all of them
    return cuts[:full] == tuple(range(0, full * block, block)) and cuts[full:] == cuts[-1:] * (len(cuts) - full)


_lock = threading.Lock()
_interned: WeakValueDictionary[tuple[Any, ...], Sharding] = WeakValueDictionary()


@lru_cache(maxsize=4096)
def _plain(mesh: Mesh, spec: P, partial: Axes, reduction: str) -> Sharding:
    return _build(mesh, spec, as_axes(partial), reduction, {}, {})


def _canonical(
    mesh: Mesh, dims: Dims, partial: tuple[str, ...], reduction: str, halo: Halo, offsets: Offsets
) -> Sharding:
    """The interned object for fields that are already canonical."""
    key = (mesh, dims, partial, reduction, halo, offsets)
    found = _interned.get(key)
    if found is not None:
        return found
    with _lock:  # two threads must not make two objects
        found = _interned.get(key)
        if found is None:
            found = object.__new__(Sharding)
            for name, value in zip(("mesh", "dims", "partial", "reduction", "halo", "offsets"), key, strict=True):
                object.__setattr__(found, name, value)
            _interned[key] = found
    return found


def _build(
    mesh: Mesh,
    spec: P,
    partial: tuple[str, ...],
    reduction: str,
    halo: Mapping[int, int | tuple[int, int]],
    offsets: Mapping[int, Sequence[int]],
) -> Sharding:
    if not isinstance(mesh, Mesh):
        raise ShardingError(f"A Sharding begins with a Mesh; got {mesh!r}. Write Sharding(mesh, {spec!r}).")
    if reduction not in REDUCTIONS:
        raise ShardingError(f"Reduction {reduction!r} is unknown. Use one of {', '.join(REDUCTIONS)}.")
    _check_axes(mesh, spec, partial)
    dims = tuple(_merged(mesh, axes) for axes in spec)
    order = mesh.axis_names
    pieces = sorted(map(mesh.axis, partial), key=lambda axis: (order.index(axis.name), axis.pre))
    kept = _merged(mesh, [piece.text(mesh.sizes[piece.name]) for piece in pieces])
    return _canonical(
        mesh,
        dims,
        kept,
        reduction if kept else "sum",
        _checked_halo(spec, dims, halo),
        _checked_offsets(mesh, spec, dims, offsets),
    )


def _check_axes(mesh: Mesh, spec: P, partial: tuple[str, ...]) -> None:
    used = [*chain(*spec), *partial]
    if len(names := set(used)) == len(used) and names <= mesh.sizes.keys():
        return
    for axis in used:
        mesh_axis = axis.split(":", 1)[0]
        if mesh_axis not in mesh.sizes:
            raise ShardingError(
                f"{_shown(spec, partial)} names axis {axis!r}; {mesh} has only {', '.join(map(repr, mesh.sizes))}. "
                f"Use one of those."
            )
    pieces = [mesh.axis(axis) for axis in used]
    for i, piece in enumerate(pieces):
        uses = 1 + sum(overlap(piece, other) for other in pieces[:i] + pieces[i + 1 :])
        if uses > 1:
            raise ShardingError(
                f"{_shown(spec, partial)} uses axis {piece.name!r} {uses} times. "
                f"An axis splits one dim or is partial, not both: keep one use."
            )
    mesh.lanes(used)  # pieces of one axis must share a common cut


def _shown(spec: P, partial: tuple[str, ...]) -> str:
    return f"{spec} with partial={partial}" if partial else f"{spec}"


def _merged(mesh: Mesh, axes: Iterable[str]) -> tuple[str, ...]:
    """Merges consecutive pieces of one axis: ('x:(1)2', 'x:(2)4') is 'x'."""
    result: list[SubAxis] = []
    for axis in map(mesh.axis, axes):
        if result and result[-1].name == axis.name and result[-1].pre * result[-1].size == axis.pre:
            axis = SubAxis(axis.name, result[-1].pre, result[-1].size * axis.size)
            result.pop()
        result.append(axis)
    return tuple([axis.text(mesh.sizes[axis.name]) for axis in result])


def _dim_of(dim: int, spec: P, what: str) -> int:
    if not -len(spec) <= dim < len(spec):
        raise ShardingError(
            f"{what} are given for dim {dim}, but {spec} has {len(spec)} dims. Name a dim that the spec mentions."
        )
    return dim % len(spec)


def _checked_halo(spec: P, dims: Dims, halo: Mapping[int, int | tuple[int, int]]) -> Halo:
    pairs = [(0, 0)] * len(dims)
    for dim, given in halo.items():
        at = _dim_of(dim, spec, "Halo sizes")
        pair = as_ints(given if isinstance(given, Iterable) else (given, given), "Halo sizes")
        if len(pair) != 2 or pairs[at] != (0, 0):
            raise ShardingError(f"The halo {given!r} of dim {dim} is not one (low, high) pair for that dim.")
        low, high = pair
        if low < 0 or high < 0:
            raise ShardingError(f"Halo sizes ({low}, {high}) of dim {dim} are negative; a halo has 0 or more rows.")
        if (low or high) and not dims[at]:
            raise ShardingError(
                f"Dim {dim} of {spec} is whole, so no device has a neighbour along it and a halo of ({low}, {high}) "
                f"has no source. Split the dim, or leave its halo out."
            )
        pairs[at] = (low, high)
    return tuple(pairs) if any(pair != (0, 0) for pair in pairs) else ()


def _checked_offsets(mesh: Mesh, spec: P, dims: Dims, offsets: Mapping[int, Sequence[int]]) -> Offsets:
    cuts: list[Cuts] = [()] * len(dims)
    for dim, given in offsets.items():
        at = _dim_of(dim, spec, "Offsets")
        numbers = given if isinstance(given, Nested) else as_ints(given, "Offsets")
        parts = math.prod(mesh.axis(axis).size for axis in dims[at])
        if len(numbers) != parts + 1:
            raise ShardingError(
                f"Dim {dim} of {spec} is cut into {parts} shards, so it needs {parts + 1} offsets, the last one the "
                f"dim's size; got {len(numbers)}: {_few(numbers)}."
            )
        if isinstance(numbers, tuple) and (numbers[0] != 0 or any(map(operator.gt, numbers, numbers[1:]))):
            raise ShardingError(
                f"The offsets {_few(numbers)} of dim {dim} must begin at 0 and never decrease, up to the dim's size."
            )
        cuts[at] = numbers
    return tuple(cuts) if any(cuts) else ()


@lru_cache(maxsize=4096)
def _for_shape(sharding: Sharding, shape: tuple[int, ...]) -> Sharding:
    more = len(shape) - len(sharding.dims)
    if more < 0:
        raise ShardingError(
            f"{sharding.spec} has {len(sharding.dims)} entries, but the tensor of shape {shape} has {len(shape)} "
            f"dim{'s' * (len(shape) != 1)}. Give at most one entry per dim."
        )
    dims = (*sharding.dims, *((),) * more)
    halo = (*sharding.halo, *((0, 0),) * more) if sharding.halo else ()
    cuts = tuple(_cuts_for(sharding, dim, size) for dim, size in enumerate(shape)) if sharding.offsets else ()
    result = _canonical(sharding.mesh, dims, sharding.partial, sharding.reduction, halo, cuts if any(cuts) else ())
    for dim, size in enumerate(shape):
        _check_halo_fits(result, dim, size)
    return result


_cut_for_shape = kept(limit=4 * MIB, size=lambda sharding: sharding.footprint, least=8)(_for_shape.__wrapped__)


def _cuts_for(sharding: Sharding, dim: int, size: int) -> Cuts:
    cuts = sharding.offsets_of(dim) if dim < len(sharding.dims) else ()
    if cuts and cuts[-1] != size:
        raise ShardingError(
            f"The offsets {_few(cuts)} of dim {dim} end at {cuts[-1]}, but the dim has size {size}. "
            f"The last offset is the dim's size."
        )
    return () if not cuts or are_blocks(cuts, block_size(size, len(cuts) - 1)) else cuts


def _check_halo_fits(sharding: Sharding, dim: int, size: int) -> None:
    low, high = sharding.halo_of(dim)
    if not (low or high):
        return
    parts, cuts = sharding.parts(dim), sharding.offsets_of(dim)
    block = block_size(size, parts)
    short = size // block if block else 0  # the first that is; before it all are alike
    for shard in range(parts) if cuts else sorted({0, 1, short, short + 1, parts - 1}):
        if shard >= parts:
            break
        rows = cuts[shard + 1] - cuts[shard] if cuts else min(max(size - shard * block, 0), block)
        wanted = max(low if shard + 1 < parts else 0, high if shard > 0 else 0)
        if rows < wanted:
            raise ShardingError(
                f"Dim {dim} of size {size} in {parts} shards has a halo of ({low}, {high}), wider than a "
                f"neighbour's shard: shard {shard} holds {rows} rows and a neighbour needs {wanted} of them. "
                f"Use fewer shards, a smaller halo, or offsets= that give every shard at least {max(low, high)} rows."
            )


def _few(numbers: Cuts) -> str:
    return str(list(numbers)) if len(numbers) <= 12 else f"[{', '.join(map(str, numbers[:10]))}, …, {numbers[-1]}]"
