"""Global arrays from the rows that each process has loaded."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from shardwright.errors import ArrayError
from shardwright.jax.paths import leaves_with_paths
from shardwright.jax.rules import partition_spec
from shardwright.jax.streaming import from_parts
from shardwright.sharding import P


def global_arrays(tree: Any, mesh: Mesh, batch_axis: int, axes: Sequence[str]) -> Any:
    """A pytree of global arrays: rows of the processes one after the other along `batch_axis`, split over `axes`."""
    for axis in axes:
        if axis not in mesh.shape:
            raise ArrayError(
                f"mesh_axis_subset names {axis!r}; the mesh has only {', '.join(map(repr, mesh.shape))}. Use some of those."
            )
    paths, leaves = leaves_with_paths(tree)
    arrays = [
        _global_array(leaf, path, mesh, batch_axis, tuple(axes)) for path, leaf in zip(paths, leaves, strict=True)
    ]
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(tree), arrays)


def _global_array(value: Any, path: str, mesh: Mesh, batch_axis: int, axes: tuple[str, ...]) -> jax.Array:
    local = value if isinstance(value, jax.Array) else np.asarray(value)
    where = f"local_data_to_global_array, leaf {path!r}" if path else "local_data_to_global_array"
    if not -local.ndim <= batch_axis < local.ndim:
        raise ArrayError(f"{where}: batch_axis={batch_axis} is not a dim of an array of shape {local.shape}.")
    dim = batch_axis % local.ndim
    processes = sorted({device.process_index for device in mesh.devices.flat})
    if jax.process_index() not in processes:
        raise ArrayError(
            f"{where}: process {jax.process_index()} has no device in the mesh, whose processes are {processes}."
        )
    rows, parts = local.shape[dim], math.prod(mesh.shape[axis] for axis in axes)
    total = rows * len(processes)
    if total % parts:
        source = f" ({rows} from each of {len(processes)} processes)" if len(processes) > 1 else ""
        raise ArrayError(
            f"{where}: {total} rows{source} are not divisible by the {parts} parts along {', '.join(axes)}. Pad or cut the "
            f"batch, or name fewer axes in mesh_axis_subset."
        )
    shape = (*local.shape[:dim], total, *local.shape[dim + 1 :])
    target = NamedSharding(mesh, partition_spec(P(*[()] * dim, axes)))
    first = processes.index(jax.process_index()) * rows
    if _is_own(target, shape, dim, processes, rows):
        return _placed(local, shape, target, dim, first)
    return jax.device_put(_placed(local, shape, _by_process(mesh, processes, dim, rows), dim, first), target)


def _is_own(target: NamedSharding, shape: tuple[int, ...], dim: int, processes: Sequence[int], rows: int) -> bool:
    """Whether all devices, those of other processes too, hold only rows that their process has loaded."""
    places: dict[Any, Any] = dict(target.devices_indices_map(shape))
    for device, index in places.items():
        start, stop, _ = index[dim].indices(shape[dim])
        first = processes.index(device.process_index) * rows
        if start < first or stop > first + rows:
            return False
    return True


def _placed(local: Any, shape: tuple[int, ...], target: NamedSharding, dim: int, first: int) -> jax.Array:
    """The array whose parts for this process's devices are all among its rows, which begin at `first`."""
    if isinstance(local, jax.Array) and shape == local.shape:
        return jax.device_put(local, target)  # one process, from device to devices

    def part(index: tuple[slice, ...]) -> Any:
        start, stop, _ = index[dim].indices(shape[dim])
        return local[(*index[:dim], slice(start - first, stop - first), *index[dim + 1 :])]

    return from_parts(shape, target, part)


def _by_process(mesh: Mesh, processes: Sequence[int], dim: int, rows: int) -> NamedSharding:
    """A sharding of the same devices in which every process has its own rows, whatever the order of the mesh."""
    own = [[device for device in mesh.devices.flat if device.process_index == process] for process in processes]
    if len({len(devices) for devices in own}) > 1:
        raise ArrayError(
            f"The processes of the mesh have {', '.join(str(len(some)) for some in own)} devices in it, and rows must move "
            f"between them: give every process as many, or order the mesh so that each needs its own rows only."
        )
    split = ("process", "device") if rows % len(own[0]) == 0 else ("process",)
    return NamedSharding(Mesh(np.array(own), ("process", "device")), partition_spec(P(*[()] * dim, split)))
