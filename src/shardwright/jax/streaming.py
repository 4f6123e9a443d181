"""Host arrays to devices and back, shard by shard: at no time is there a second full copy of an array."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from numpy.typing import NDArray

_ALIGNED = 64  # bytes: what JAX takes without a copy
Transfer = Callable[[Any], Any]


def shard_function(sharding: Any) -> Transfer:
    """A function that puts an array on devices as a sharding says: each device is sent its own part only.

    It takes whatever has a shape and gives its parts by `x[slices]`, such as an open file. Without a sharding the value
    stays as it is.
    """

    def place(value: Any) -> Any:
        if sharding is None:
            return value
        if isinstance(value, jax.Array):
            return jax.device_put(value, sharding).block_until_ready()
        host = value if hasattr(value, "__getitem__") and hasattr(value, "shape") else np.asarray(value)
        return from_parts(tuple(host.shape), sharding, lambda index: host[index]).block_until_ready()

    return place


def from_parts(shape: tuple[int, ...], sharding: Any, part: Callable[[tuple[slice, ...]], Any]) -> jax.Array:
    """The array of which `part(slices)` gives the parts for this process's devices; each is copied, once."""
    devices = sharding.addressable_devices_indices_map(shape)
    placed = [jax.device_put(_own(part(index), device), device) for device, index in devices.items()]
    return jax.make_array_from_single_device_arrays(shape, sharding, placed)


def _own(part: Any, device: jax.Device) -> Any:
    """A part of a host array that may change later, for a device. Device arrays don't, and what is sent elsewhere is copied.

    On the CPU JAX uses aligned memory of the host as it is, whatever `may_alias` says: this copy is then its buffer.
    """
    if isinstance(part, jax.Array) or device.platform != "cpu":
        return part
    source = np.asarray(part)
    memory = np.empty(source.nbytes + _ALIGNED, np.uint8)
    start = -memory.ctypes.data % _ALIGNED
    copy = memory[start : start + source.nbytes].view(source.dtype).reshape(source.shape)
    copy[...] = source
    return copy


def gather_function(sharding: Any) -> Transfer:
    """A function that brings an array to the host; values without a sharding stay as they are."""
    return (lambda value: value) if sharding is None else gathered


def gathered(x: Any) -> NDArray[Any]:
    """The whole array on the host, filled part by part. With several processes all must call it."""
    if not isinstance(x, jax.Array):
        return np.array(x)
    if not x.is_fully_addressable:
        return np.asarray(multihost_utils.process_allgather(x, tiled=True))
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):  # random keys: NumPy has no such dtype
        return jax.device_get(x)
    whole = np.empty(x.shape, x.dtype)
    for part in x.addressable_shards:
        if part.replica_id == 0:
            whole[part.index] = part.data
    return whole
