"""What a call is, in all processes alike: the mesh whose processes make it, 64 bits that stand for it, and words."""

import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.engines.checks import is_checked
from shardwright.engines.coherence import key_of, with_values
from shardwright.mesh import Mesh
from shardwright.plan import Local, OperationPlan, Step
from shardwright.sharding import Layout, describe

FULLY_COMPARED = 65536  # bytes of a host tensor whose elements are part of the digest


class Called(NamedTuple):
    """A call."""

    mesh: Mesh
    key: int
    text: str


def _called(mesh: Mesh, content: str, text: str) -> Called:
    """A call by its content and its mesh: meshes of other names or orders of devices cut tensors in another way."""
    return Called(mesh, with_values(key_of(content), (_devices(mesh),)), text)


@lru_cache(maxsize=256)
def _devices(mesh: Mesh) -> tuple[Any, ...]:
    """The axes of a mesh and the devices along them."""
    return (*mesh.sizes.items(), *map(int, mesh.device_ids))


def put_call(layout: Layout, dtype: Any, content: Callable[[], bytes]) -> Called:
    """Placing a host tensor; its elements count if they are few, or where every call is checked."""
    text = f"placing {describe(layout.sharding, layout.shape, np.dtype(np.uint8))[2:]} of {dtype}"
    size = math.prod(layout.shape) * dtype.itemsize
    known = zlib.crc32(content()) if size <= FULLY_COMPARED or is_checked() else 0
    text += f" with checksum {known:08x}" if known else ""
    return _called(layout.mesh, text, text)


def read_call(layout: Layout, dtype: "np.dtype[Any]") -> Called:
    """Reading a tensor's elements."""
    text = f"reading {describe(layout.sharding, layout.shape, dtype)}"
    return _called(layout.mesh, text, text)


def local_call(local: Local) -> Called:
    """A local computation."""
    pairs = zip(local.operands, local.call.dtypes, strict=True)
    shown = ", ".join(describe(at.sharding, at.shape, dtype) for at, dtype in pairs)
    text = f"{local.name} of {shown}" if shown else f"{local.name} of {local.results[0].shape}"
    mesh = (*local.operands, *local.results)[0].mesh
    return _called(mesh, f"{text} {_attrs(local.call.attrs)}", text)


def plan_call(plan: OperationPlan) -> Called:
    """An operation with its operands and attributes."""
    kinds = [
        describe(k[0].sharding, k[0].shape, k[1]) if isinstance(k, tuple) else type(k).__name__ for k in plan.kinds
    ]
    text = f"{plan.title} of {', '.join(kinds)}{_attrs(plan.attrs)}"
    return _called(plan.problem.mesh, text, text)


def step_call(step: Step) -> Called:
    """One step, with all of its fields: the rows of a fetch too."""
    text = f"{step} of {describe(step.source, step.shape, step.dtype)}"
    return _called(wider(step.source.mesh, step.result.mesh), repr(step), text)


def move_call(source: Layout, target: Layout, dtype: "np.dtype[Any]") -> Called:
    """A change of sharding."""
    text = f"moving {describe(source.sharding, source.shape, dtype)}"
    content = f"{text} to {describe(target.sharding, target.shape, dtype)} on {_devices(target.mesh)}"
    return _called(wider(source.mesh, target.mesh), content, text)


def program_call(mesh: Mesh, content: str, text: str) -> Called:
    """A program, by its content."""
    return _called(mesh, content, text)


def view_call(mesh: Mesh, tensors: Sequence[NDArray[Any]]) -> Called:
    """A tensor per device from host tensors, which count as in `put_call`."""
    text = f"placing a tensor per device, {tensors[0].dtype} of shape {tensors[0].shape}"
    sums = [zlib.crc32(x.tobytes()) for x in tensors if x.nbytes <= FULLY_COMPARED or is_checked()]
    return _called(mesh, f"{text} {[x.shape for x in tensors]} {sums}", text)


def each_call(mesh: Mesh, name: str, operands: Sequence[Any], options: Mapping[str, Any]) -> Called:
    """A function on each device's own tensors; `operands` has words in place of these."""
    text = f"{name} of {', '.join(x if isinstance(x, str) else type(x).__name__ for x in operands)}"
    given = [zlib.crc32(x.tobytes()) if isinstance(x, np.ndarray) else repr(x) for x in operands]
    return _called(mesh, f"{text} {given}{_attrs(options)}", text)


def with_scalars(call: Called, data: Sequence[Any]) -> Called:
    """A call with the Python scalars among its operands."""
    scalars = [x for x in data if isinstance(x, bool | int | float | complex)]
    return call._replace(key=with_values(call.key, scalars))


def wider(one: Mesh, other: Mesh) -> Mesh:
    """The mesh whose processes all take part in a move between two."""
    if one == other or set(other.device_ids) <= set(one.device_ids):
        return one
    if set(one.device_ids) <= set(other.device_ids):
        return other
    ids = sorted({*one.device_ids, *other.device_ids})
    return Mesh({"process": len(ids)}, devices=ids, engine=one.engine, device=one.device)


def _attrs(attrs: Mapping[str, Any]) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", f" {dict(attrs)!r}") if attrs else ""
