"""What it costs to lay a tensor out anew: the collectives between two shardings, priced without being run."""

import math
from functools import lru_cache

from shardwright.collectives import Cost, cost_of
from shardwright.sharding import Layout, Sharding, layout_of


@lru_cache(maxsize=65536)
def move_costs(source: Sharding, target: Sharding, shape: tuple[int, ...], itemsize: int) -> tuple[Cost, ...]:
    """The collectives that turn one sharding into another, with their costs.

    Partial axes are reduced, or reduced and scattered where the target splits a dim by them; axes that change dim are an
    all_to_all, those that change place within a dim a permute, those that go a gather; other offsets an exchange.
    """
    if source is target:
        return ()
    mesh = source.mesh
    here, there = layout_of(source, shape), layout_of(target, shape)
    local = _local_bytes(here, itemsize)
    everything = (*source.axes, *target.axes)
    if not mesh.share_a_cut(everything):  # nothing can stay in place: gather all, then slice
        local *= mesh.axis_size(source.axes) / max(mesh.axis_size(source.partial), 1)
        return (cost_of("exchange", mesh, source.axes, local),)
    was = [mesh.cut(axes, by=everything) for axes in here.sharding.dims]
    becomes = [mesh.cut(axes, by=everything) for axes in there.sharding.dims]
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
        costs.append(cost_of("all_to_all", mesh, moved, max(local, 0 if gone else _local_bytes(there, itemsize))))
    if swapped:
        costs.append(cost_of("permute", mesh, swapped, local))
    if gone:
        costs.append(cost_of("all_gather", mesh, gone, local))
    if not costs and _other_cuts(here, there):
        axes = tuple(axis for dim in here.sharding.dims for axis in dim)
        costs.append(cost_of("exchange", mesh, axes, local))
    return tuple(costs)


def _local_bytes(layout: Layout, itemsize: int) -> float:
    return math.prod(dim.block for dim in layout.dims) * itemsize


def _other_cuts(here: Layout, there: Layout) -> bool:
    return here.sharding.offsets != there.sharding.offsets or here.sharding.halo != there.sharding.halo
