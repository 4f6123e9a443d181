"""`from_process_local`: global arrays from the parts that processes loaded, each its own."""

import operator
from typing import Any

from numpy.typing import NDArray

from shardwright.arrays.array import Array, shard
from shardwright.arrays.hosts import host_array
from shardwright.arrays.local import joined_layout
from shardwright.engines import engine_of
from shardwright.errors import ArrayError
from shardwright.mesh import Axes, Mesh
from shardwright.plan import sub_blocks
from shardwright.sharding import P, Sharding, layout_of
from shardwright.trees import flatten, unflatten


def from_process_local(tree: Any, mesh: Mesh, batch_dim: int = 0, axes: Axes | None = None) -> Any:
    """A tree of arrays from a tree of tensors of which each process has its own part of the batch.

    >>> import numpy as np
    >>> from_process_local({"x": np.zeros((6, 2))}, Mesh(data=2), axes="data")["x"].sharding.spec
    P('data', None)

    The parts follow one another along `batch_dim` in the order of the devices along `axes`, by default all of them; they
    need not be equally long. A process with several devices along them cuts its part into one for each. Processes along other
    axes must give the same part, which is checked. In one process, which has all devices, the part is the whole batch.
    """
    names = mesh.axis_names if axes is None else mesh.group_axes(axes)
    leaves, structure = flatten(tree)
    return unflatten(structure, [_joined(leaf, mesh, batch_dim, names) for leaf in leaves])


def _joined(part: Any, mesh: Mesh, batch_dim: int, axes: tuple[str, ...]) -> Array:
    if isinstance(part, Array):
        raise ArrayError(f"from_process_local takes host tensors; this is an Array already: {part.summary()}.")
    host, engine = host_array(part), engine_of(mesh)
    try:
        dim = operator.index(batch_dim)
    except TypeError:
        raise ArrayError(f"from_process_local: batch_dim={batch_dim!r}; give an integer.") from None
    if not -host.ndim <= dim < host.ndim:
        hint = "" if host.ndim else " A number has none, and a list of numbers is a tree of them: pass np.asarray(…)."
        raise ArrayError(f"batch_dim={batch_dim} is not a dim of a part of shape {host.shape}.{hint}")
    spec = P(*((),) * (dim % host.ndim), axes)
    engine.check(mesh)
    if engine.processes == 1:
        return shard(host, mesh, spec)
    view = engine.told(mesh, _own_parts(host, mesh, dim % host.ndim, axes))
    layout = joined_layout(Sharding(mesh, spec), view.local_shapes, "from_process_local")
    engine.check_shared(view, layout, "from_process_local")
    return Array.of(layout, engine.from_lanes(view, layout))


def _own_parts(host: NDArray[Any], mesh: Mesh, dim: int, axes: tuple[str, ...]) -> dict[int, NDArray[Any]]:
    """A process's part, cut for each of its devices by their order along some axes."""
    layout = layout_of(Sharding(mesh, P(axes)), (mesh.axis_size(axes),))
    numbers = {place: layout.shard_numbers(place)[0] for place in engine_of(mesh).places(mesh)}
    order = sorted(set(numbers.values()))
    blocks = list(sub_blocks(host.shape[dim], len(order)))
    cuts = {number: (*(slice(None),) * dim, slice(*blocks[at])) for at, number in enumerate(order)}
    return {place: host[cuts[number]] for place, number in numbers.items()}
