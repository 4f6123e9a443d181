"""What it costs to lay a tensor out anew: the collectives between two shardings, priced without being run."""

from functools import lru_cache

from shardwright.collectives import Cost, cost_of
from shardwright.sharding import Sharding


@lru_cache(maxsize=65536)
def move_costs(source: Sharding, target: Sharding, shape: tuple[int, ...], itemsize: int) -> tuple[Cost, ...]:
    """The collectives that turn one sharding into another, with their costs.

    Partial axes are reduced, or reduced and scattered where the target splits a dim by them; axes that change dim are an
    all_to_all, those that change place within a dim a permute, those that go a gather; other offsets an exchange.
    """
    if source is target:
        return ()
    mesh = source.mesh
    local = float(source.local_size(shape) * itemsize)
    everything = (*source.axes, *target.axes)
    if not mesh.share_a_cut(everything):  # nothing can stay in place: gather all, then slice
        dims = tuple(axis for axes in source.dims for axis in axes)
        reduced = (cost_of("all_reduce", mesh, source.partial, local),) if source.partial else ()
        return (*reduced, cost_of("all_gather", mesh, dims, local))
    was = [mesh.cut(axes, by=everything) for axes in source.dims]
    becomes = [mesh.cut(axes, by=everything) for axes in target.dims]
    new_home = {axis: dim for dim, axes in enumerate(becomes) for axis in axes}
    costs: list[Cost] = []
    partial = mesh.cut(source.partial, by=everything)
    stays = mesh.cut(target.partial, by=everything) if source.reduction == target.reduction else ()
    scattered = tuple(axis for axis in partial if axis in new_home)
    summed = tuple(axis for axis in partial if axis not in new_home and axis not in stays)
    if scattered:
        costs.append(cost_of("reduce_scatter", mesh, scattered, local))
        local /= mesh.axis_size(scattered)
    if summed:
        costs.append(cost_of("all_reduce", mesh, summed, local))
    moved: list[str] = []
    swapped: list[str] = []
    gone: list[str] = []
    for dim, axes in enumerate(was):
        for place, axis in enumerate(axes):
            if axis not in new_home:
                gone.append(axis)
            elif new_home[axis] != dim:
                moved.append(axis)
            elif becomes[dim][: place + 1] != axes[: place + 1]:
                swapped.append(axis)
    sliced = [axis for axis in new_home if axis not in partial and not any(axis in axes for axes in was)]
    if sliced:
        costs.append(cost_of("all_slice", mesh, sliced, local))
        local /= mesh.axis_size(sliced)
    if moved:
        costs.append(cost_of("all_to_all", mesh, moved, max(local, 0 if gone else target.local_size(shape) * itemsize)))
    if swapped:
        costs.append(cost_of("permute", mesh, swapped, local))
    if gone:
        costs.append(cost_of("all_gather", mesh, gone, local))
    if not costs and (source.offsets != target.offsets or source.halo != target.halo):
        axes = tuple(axis for dim in source.dims for axis in dim)
        costs.append(cost_of("exchange", mesh, axes, local))
    return tuple(costs)
