"""`Form`: the shards of a tensor as one `jax.Array`.

Its dims are the tensor's, each as long as all shards of the dim together, padded to the largest. So the shards of an even
tensor are that tensor, with a NamedSharding that JAX knows. Summands of a partial tensor follow one another in a dim of their
own, in front. Tensors per device are rows of one array.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from shardwright.engines.jax.devices import devices_of, jax_mesh, own_places
from shardwright.mesh import Mesh
from shardwright.plan import LocalShapes
from shardwright.sharding import Layout

Host = NDArray[Any]
Shape = tuple[int, ...]


class Form(NamedTuple):
    """How a tensor lies on JAX's devices."""

    mesh: Mesh
    shape: Shape  # of the jax.Array
    local: Shape  # of the shard that a device computes with, padded
    front: bool  # whether the array has one more dim, in front
    axes: tuple[tuple[str, ...], ...]  # that split each dim of the jax.Array
    lanes: tuple[str, ...]  # the mesh's axes, cut as fine as these need

    def spec(self, lanes: tuple[str, ...]) -> PartitionSpec:
        """JAX's specification over lanes that are cut as fine, or finer."""
        return PartitionSpec(*(self.mesh.cut(axes, by=lanes) or None for axes in self.axes))

    @property
    def sharding(self) -> NamedSharding:
        """JAX's sharding of the array."""
        return _sharding(self)


@lru_cache(maxsize=4096)
def _sharding(form: Form) -> NamedSharding:
    return NamedSharding(jax_mesh(form.mesh, form.lanes), form.spec(form.lanes))


@lru_cache(maxsize=8192)
def form_of(kind: "Layout | LocalShapes") -> Form:
    """The form of a sharded tensor, or of a tensor per device."""
    if isinstance(kind, LocalShapes):
        mesh, shape = kind.mesh, kind.largest
        axes: tuple[tuple[str, ...], ...] = (mesh.axis_names, *((),) * len(shape))
        return Form(mesh, (mesh.size, *shape), shape, True, axes, mesh.axis_names)
    sharding = kind.sharding
    if not sharding.partial:
        return Form(kind.mesh, kind.padded_shape, kind.local_shape, False, sharding.dims, kind.lanes)
    count = math.prod(kind.full_shape[lane] for lane in kind.partial_lanes)
    axes = (sharding.partial, *sharding.dims)
    return Form(kind.mesh, (count, *kind.padded_shape), kind.local_shape, True, axes, kind.lanes)


def rows_of(form: Form) -> Form:
    """The same shards as rows of one array, a row for each device."""
    axes = (form.mesh.axis_names, *((),) * len(form.local))
    return Form(form.mesh, (form.mesh.size, *form.local), form.local, True, axes, form.mesh.axis_names)


def reformed(data: Any, source: Form, target: Form) -> Any:
    """The same shards in another form: each device reshapes its own."""
    if source == target:
        return data
    with jax.enable_x64(True):
        shape = (1, *target.local) if target.front else target.local
        shards = [shard.data.reshape(shape) for shard in data.addressable_shards]
        return jax.make_array_from_single_device_arrays(target.shape, target.sharding, shards, dtype=data.dtype)


def assembled(form: Form, parts: Mapping[int, Host], dtype: Any) -> Any:
    """The array whose shards are given, for each place of this process; short ones are padded with zeros."""
    devices = devices_of(form.mesh)
    with jax.enable_x64(True):
        shards = []
        for place, part in parts.items():
            padded = _padded(part, form.local, dtype)
            shards.append(jax.device_put(padded[None] if form.front else padded, devices[place]))
        return jax.make_array_from_single_device_arrays(form.shape, form.sharding, shards, dtype=np.dtype(dtype))


def _padded(part: Host, shape: Shape, dtype: Any) -> Host:
    if part.shape == shape:
        return part
    padded = np.zeros(shape, dtype)
    padded[tuple(map(slice, part.shape))] = part
    return padded


def shards_of(form: Form, data: Any) -> dict[int, Host]:
    """The padded shards of this process's devices, by their places; views where JAX has them on the host."""
    if 0 in form.shape:  # JAX may give each device all of nothing
        return {place: np.zeros(form.local, data.dtype) for place in own_places(form.mesh)}
    places = {device: place for place, device in enumerate(devices_of(form.mesh))}
    found = ((places[shard.device], np.asarray(shard.data)) for shard in data.addressable_shards)
    return {place: part[0] if form.front else part for place, part in found}


def unpadded(part: Host, shape: Shape) -> Host:
    """A shard without its padding; a view."""
    box: tuple[Any, ...] = (*map(slice, shape), ...)
    return part[box]


def gathered_rows(form: Form, data: Any) -> Any:
    """An array with all of it on every device, on the host of every process."""
    whole = NamedSharding(jax_mesh(form.mesh, form.lanes), PartitionSpec())
    with jax.enable_x64(True):
        made = jax.jit(lambda x: x, out_shardings=whole)(data)
    return made.addressable_shards[0].data
