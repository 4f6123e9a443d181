"""Between dims and factors: which axes an operand has on each factor of a rule, and the shardings that a choice of axes for
factors gives operands and results."""

from collections.abc import Mapping, Sequence

import numpy as np

from shardwright.mesh import Mesh
from shardwright.ops import Dims, Rule
from shardwright.sharding import Cuts, P, Sharding, block_size, usual_offsets

PARTIAL = "partial"
Placement = dict[str, str | None]  # axis -> factor, None or PARTIAL
Shape = tuple[int, ...]


def homes(
    rule: Rule,
    dims: Dims,
    mesh: Mesh,
    axes_by_dim: Sequence[tuple[str, ...]],
    shape: Shape,
    offsets: tuple[Cuts, ...] = (),
) -> dict[str, tuple[str, ...]]:
    """Which axes an operand or result has on each factor; a product dim hands its axes to its factors, outermost first."""
    result: dict[str, tuple[str, ...]] = {}
    for at, (dim, axes) in enumerate(zip(dims, axes_by_dim, strict=True)):
        if len(dim) == 1:
            result[dim[0]] = axes
        elif len(dim) > 1 and shape[at] % mesh.axis_size(axes) == 0 and not (offsets and offsets[at]):
            result.update(_deal(rule, mesh, dim, axes))
    return result


def _deal(rule: Rule, mesh: Mesh, dim: tuple[str, ...], axes: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Axes of a product dim, dealt to its factors; an axis that fills one factor and more is cut in two."""
    pending = [mesh.axis(axis) for axis in axes]
    result: dict[str, tuple[str, ...]] = {}
    for factor in dim:
        room = rule.sizes[factor]
        taken: list[str] = []
        while pending and room > 1:
            axis = pending[0]
            if room % axis.size == 0:
                pending.pop(0)
            elif axis.size % room == 0:
                axis, rest = axis._replace(size=room), axis._replace(pre=axis.pre * room, size=axis.size // room)
                pending[0] = rest
            else:
                return result | {factor: tuple(taken)}
            taken.append(axis.text(mesh.sizes[axis.name]))
            room //= axis.size
        result[factor] = tuple(taken)
        if room > 1:
            break  # factors further in would not be contiguous
    return result


def pieces_of(
    mesh: Mesh, operands: Sequence[Sharding], homes: Sequence[Mapping[str, tuple[str, ...]]]
) -> tuple[str, ...]:
    """The axes in use, cut wherever any operand or factor cuts them."""
    used = list(dict.fromkeys(axis for sharding in operands for axis in sharding.axes if mesh.axis(axis).size > 1))
    cuts = [axis for home in homes for axes in home.values() for axis in axes]
    return tuple(dict.fromkeys(mesh.cut(used, by=(*used, *cuts))))


def overlaps(mesh: Mesh, piece: str, axes: Sequence[str]) -> bool:
    return piece in axes or (bool(axes) and piece in mesh.cut(tuple(axes), by=(piece,)))


def factors_with(mesh: Mesh, piece: str, home: Mapping[str, tuple[str, ...]]) -> list[str | None]:
    return [factor for factor, axes in home.items() if overlaps(mesh, piece, axes)]


def cut_together(mesh: Mesh, operands: Sequence[Sharding]) -> list[Sharding]:
    """The operands without those pieces of axes that share no cut with the pieces of operands before them."""
    result: list[Sharding] = []
    used: list[str] = []
    for sharding in operands:
        lost = [axis for axis in sharding.axes if not mesh.share_a_cut((*used, axis))]
        if lost:
            dims = [tuple(axis for axis in axes if axis not in lost) for axes in sharding.dims]
            kept = {
                d: sharding.offsets_of(d)
                for d in range(len(dims))
                if dims[d] == sharding.dims[d] and sharding.offsets_of(d)
            }
            partial = tuple(axis for axis in sharding.partial if axis not in lost)
            sharding = Sharding(mesh, dims, partial=partial, reduction=sharding.reduction, offsets=kept)
        used += sharding.axes
        result.append(sharding)
    return result


def ordered(
    mesh: Mesh, placement: Placement, homes: Sequence[Mapping[str, tuple[str, ...]]]
) -> dict[str, tuple[str, ...]]:
    """The axes of each factor, in the order that the first operand which has them there has; new ones innermost."""
    axes_by_factor: dict[str, list[str]] = {}
    for home in homes:
        for factor, axes in home.items():
            for piece in mesh.cut(axes, by=tuple(placement)):
                if placement.get(piece) == factor and piece not in axes_by_factor.setdefault(factor, []):
                    axes_by_factor[factor].append(piece)
    for piece, where in placement.items():
        if where is not None and where != PARTIAL and piece not in axes_by_factor.setdefault(where, []):
            axes_by_factor[where].append(piece)
    return {factor: tuple(axes) for factor, axes in axes_by_factor.items()}


def explicit_cuts(
    rule: Rule, axes_by_factor: Mapping[str, tuple[str, ...]], operands: Sequence[Sharding]
) -> dict[str, Cuts]:
    """Explicit offsets that an operand already has along a factor, if its axes there are those of the strategy."""
    cuts: dict[str, Cuts] = {}
    if not any(sharding.offsets for sharding in operands):
        return cuts
    blocks = {f for dims in (*rule.inputs, *rule.outputs) for dim in dims if len(dim) > 1 for f in dim}  # must be even
    for dims, sharding in list(zip(rule.inputs, operands, strict=True))[: 1 if rule.keeps else None]:
        for at, dim in enumerate(dims):
            given = sharding.offsets_of(at)
            if given and len(dim) == 1 and dim[0] not in cuts and dim[0] not in blocks:
                mesh = sharding.mesh
                axes = axes_by_factor.get(dim[0], ())
                if mesh.cut(sharding.dims[at], by=axes) == mesh.cut(axes, by=sharding.dims[at]):
                    cuts[dim[0]] = given
    return cuts


def owned_cuts(
    rule: Rule, mesh: Mesh, axes_by_factor: Mapping[str, tuple[str, ...]], cuts_by_factor: Mapping[str, Cuts]
) -> dict[str, tuple[int, ...]]:
    """Where the rows begin, on every shard, that go to the owners of other rows."""
    result = {}
    for factor, (other, row_map) in rule.owners.items():
        parts = mesh.axis_size(axes_by_factor.get(other, ()))
        if parts > 1:
            bounds = np.asarray(cuts_by_factor.get(other) or usual_offsets(rule.sizes[other], parts))
            first = -((row_map.start - bounds) // row_map.stride)  # the first row at or behind each bound
            result[factor] = tuple(np.clip(first, 0, row_map.size).tolist())
    return result


def dims_of(
    mesh: Mesh,
    dims: tuple[tuple[str, ...], ...],
    axes_by_factor: Mapping[str, tuple[str, ...]],
    sizes: Mapping[str, int],
) -> list[tuple[str, ...]] | None:
    """The axes of each dim, or None where a product dim would not be cut in contiguous blocks."""
    result = []
    for dim in dims:
        axes: list[str] = []
        for place, factor in enumerate(dim):
            mine = axes_by_factor.get(factor, ())
            if mine and len(dim) > 1:
                outer = dim[:place]
                if any(mesh.axis_size(axes_by_factor.get(f, ())) != sizes[f] for f in outer if sizes[f] > 1):
                    return None
                if sizes[factor] % mesh.axis_size(mine):
                    return None
            axes += mine
        result.append(tuple(axes))
    return result


def kept_of_operand(
    rule: Rule, mesh: Mesh, kept: tuple[str, ...], operands: Sequence[Sharding], at: int
) -> tuple[str, ...] | None:
    """The partial axes an operand has in a strategy that keeps some; None where that would not be linear."""
    if not kept:
        return ()
    if at in rule.constants:
        return None if any(axis in mesh.cut(operands[at].partial, by=kept) for axis in kept) else ()
    if rule.linear not in ("mul", "first", "over"):
        return kept
    if rule.linear != "mul" and at > 0 and any(axis in mesh.cut(operands[at].partial, by=kept) for axis in kept):
        return None
    own = mesh.cut(operands[at].partial, by=kept)
    for axis in kept:
        holders = [i for i, sharding in enumerate(operands) if axis in mesh.cut(sharding.partial, by=kept)]
        if len(holders) > 1:
            return None
    return tuple(axis for axis in kept if axis in own)


def fitted(
    mesh: Mesh,
    dims: Sequence[tuple[str, ...]],
    partial: tuple[str, ...],
    reduction: str,
    offsets: Mapping[int, Sequence[int]],
    shape: Shape,
) -> Sharding:
    if not offsets:
        return Sharding.fitted(mesh, tuple(dims), partial, reduction, shape)
    return Sharding(mesh, P(*dims), partial=partial, reduction=reduction, offsets=offsets).for_shape(shape)


def leaves_idle(
    rule: Rule, mesh: Mesh, factor: str, axes: tuple[str, ...], homes: Sequence[Mapping[str, tuple[str, ...]]]
) -> bool:
    """Whether axes are put to a factor too small for them, where no operand has them already."""
    if mesh.axis_size(axes) <= rule.sizes[factor]:
        return False
    return not set(axes) <= {p for home in homes for p in mesh.cut(home.get(factor, ()), by=axes)}


def result_cuts(
    rule: Rule,
    mesh: Mesh,
    at: int,
    axes_by_factor: Mapping[str, tuple[str, ...]],
    cuts_by_factor: Mapping[str, Cuts],
) -> dict[int, Sequence[int]]:
    offsets: dict[int, Sequence[int]] = {}
    for d, dim in enumerate(rule.outputs[at]):
        if len(dim) != 1 or not axes_by_factor.get(dim[0]):
            continue
        factor = dim[0]
        if factor in rule.rows:
            cuts = _owned_cuts(rule, factor, mesh.axis_size(axes_by_factor[factor]), cuts_by_factor.get(factor))
            if cuts is not None:
                offsets[d] = cuts
        elif factor in cuts_by_factor:
            offsets[d] = cuts_by_factor[factor]
    return offsets


def _owned_cuts(rule: Rule, factor: str, parts: int, cuts: Cuts | None) -> list[int] | None:
    """Where the result's shards begin if every row is made by the owner of the row it comes from."""
    size, row_map = rule.sizes[factor], rule.rows[factor]
    block = max(int(block_size(size, parts)), 1)
    bounds = np.asarray(cuts) if cuts else np.minimum(np.arange(parts + 1) * block, size)
    several = int(np.count_nonzero(np.diff(bounds))) > 1
    if row_map.every == 1 and row_map.stride > 0 and not row_map.wrap and size:  # rows keep their order
        center = row_map.start + (row_map.span - 1) // 2
        first = np.clip(
            -((center - bounds[:-1]) // row_map.stride), 0, row_map.size
        )  # made by this shard or a later one
        first = np.where(bounds[:-1] <= 0, 0, np.where(bounds[:-1] >= size, row_map.size, first))
        return [*first.tolist(), row_map.size]
    if row_map.every == 1 and row_map.stride < 0 and not row_map.wrap and size and row_map.size:  # in reverse order
        ends = row_map.start + np.array([0, row_map.size - 1]) * row_map.stride + (row_map.span - 1) // 2
        one, last = (np.searchsorted(bounds, np.clip(ends, 0, size - 1), side="right") - 1).tolist()
        return None if one != last else [0 if shard <= one else row_map.size for shard in range(parts)] + [row_map.size]
    if row_map.wrap == size and row_map.size == size and row_map.start % max(size, 1) and several:
        return None  # a roll: rows change their order
    anchors = row_map.anchors(size)
    owners = np.searchsorted(bounds, anchors, side="right") - 1
    if len(owners) and bool((np.diff(owners) < 0).any()):
        return None  # rows change their order: the default blocks do
    return [int(n) for n in np.searchsorted(owners, np.arange(parts), side="left")] + [row_map.size]
