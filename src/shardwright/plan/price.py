"""What a move costs, without a plan: for those who choose among many."""

from collections.abc import Sequence
from functools import lru_cache

from shardwright.collectives import Cost, cost_of
from shardwright.plan.route import Change, Move
from shardwright.plan.volume import Shape, halo_rows, received
from shardwright.sharding import Sharding


@lru_cache(maxsize=65536)
def move_costs(source: Sharding, target: Sharding, shape: Shape, itemsize: int) -> tuple[Cost, ...]:
    """The collectives that turn one sharding into another, priced for even shards and without building a plan.

    >>> from shardwright.mesh import Mesh
    >>> from shardwright.sharding import P
    >>> mesh = Mesh(x=2, y=4)
    >>> [cost[:3] for cost in move_costs(Sharding(mesh, P("y")), Sharding(mesh, P(None, "y")), (8, 8), 4)]
    [('all_to_all', ('y',), 48)]
    """
    source, target = source.for_shape(shape), target.for_shape(shape)
    if source is target:
        return ()
    change = Change(source, target)
    local = float(source.local_size(shape) * itemsize)
    if not change.possible:  # no common pieces: all that is partial is reduced, then shards are exchanged
        axes = tuple(axis for axes in source.dims for axis in axes)
        costs = [cost_of("all_reduce", change.mesh, source.partial, local)] if source.partial else []
        lacking = int(received(source, target, shape).max(initial=0)) * itemsize
        return (*costs, cost_of("exchange", change.mesh, axes, lacking))
    cuts = source.offsets != target.offsets and any(change.becomes)
    found = [] if cuts else [(chain_costs(change, moves, local), len(moves)) for moves in change.chains()]
    chain, count = min(found, key=lambda entry: _time(entry[0]), default=(None, 0))
    if chain is not None and (count <= 1 or not _time(chain)) and not target.halo:
        return tuple(chain)
    after = _direct_costs(change, source, target, shape, itemsize, local, cuts)
    best = after if chain is None or _time(after) < _time(chain) else chain
    halo = halo_rows(target, shape) if target.halo else 0
    if halo:
        best.append(
            cost_of("update_halo", change.mesh, tuple(a for axes in target.dims for a in axes), halo * itemsize)
        )
    return tuple(best)


def _time(costs: Sequence[Cost]) -> float:
    return sum(cost.time for cost in costs)


def chain_costs(change: Change, moves: Sequence[Move], local: float) -> list[Cost]:
    """What the moves of a chain cost, from shards of `local` bytes."""
    costs = []
    for move in moves:
        costs.append(cost_of(move.name, change.mesh, move.axes, local))
        group = change.product(move.axes)
        if move.name in ("all_slice", "reduce_scatter"):
            local /= group
        elif move.name == "all_gather":
            local *= group
    return [cost for cost in costs if cost.bytes or len(costs) == 1]


def _direct_costs(
    change: Change, source: Sharding, target: Sharding, shape: Shape, itemsize: int, local: float, cuts: bool
) -> list[Cost]:
    """Reductions, if any, then one exchange."""
    costs = []
    if change.reduced:
        scattered = tuple(piece for piece in change.reduced if piece in change.wanted)
        summed = tuple(piece for piece in change.reduced if piece not in change.wanted)
        local /= change.product([piece for piece in change.wanted - change.held if piece not in change.reduced])
        if scattered:
            costs.append(cost_of("reduce_scatter", change.mesh, scattered, local))
            local /= change.product(scattered)
        if summed:
            costs.append(cost_of("all_reduce", change.mesh, summed, local))
    if cuts:
        axes = tuple(axis for axes in source.dims for axis in axes)
        lacking = float(received(source, target, shape).max(initial=0)) * itemsize
    else:
        axes, lacking = change.crossed, target.local_size(shape) * itemsize * (1 - change.overlap)
    if axes and lacking:
        costs.append(cost_of("exchange", change.mesh, axes, lacking))
    return costs


@lru_cache(maxsize=65536)
def _gathered_dims(source: Sharding, target: Sharding) -> tuple[int, ...]:
    change = Change(source, target)
    if change.possible:
        return tuple(change.lost_dims)
    return tuple(dim for dim, axes in enumerate(source.dims) if axes)


def gathered_dims(source: Sharding, target: Sharding) -> list[int]:
    """The dims that a move brings together: axes split them before and split nothing afterwards."""
    return list(_gathered_dims(source, target))
