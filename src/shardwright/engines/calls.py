"""What a call is, in all processes alike: the mesh whose processes make it, 64 bits that stand for it, and words."""

import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardwright.engines.checks import is_checked
from shardwright.engines.coherence import key_of
from shardwright.mesh import Mesh
from shardwright.plan import Local, OperationPlan, Step
from shardwright.sharding import Layout, describe

FULLY_COMPARED = 65536  # bytes of a host tensor whose elements are part of the digest


class Called(NamedTuple):
    """A call."""

    mesh: Mesh
    key: int
    text: str


def put_call(layout: Layout, dtype: Any, content: Callable[[], bytes]) -> Called:
    """Placing a host tensor; its elements count if they are few, or where every call is checked."""
    text = f"placing {describe(layout.sharding, layout.shape, np.dtype(np.uint8))[2:]} of {dtype}"
    size = math.prod(layout.shape) * dtype.itemsize
    known = zlib.crc32(content()) if size <= FULLY_COMPARED or is_checked() else 0
    text += f" with checksum {known:08x}" if known else ""
    return Called(layout.mesh, key_of(text), text)


def read_call(layout: Layout, dtype: "np.dtype[Any]") -> Called:
    """Reading a tensor's elements."""
    text = f"reading {describe(layout.sharding, layout.shape, dtype)}"
    return Called(layout.mesh, key_of(text), text)


def local_call(local: Local) -> Called:
    """A local computation."""
    pairs = zip(local.operands, local.call.dtypes, strict=True)
    shown = ", ".join(describe(at.sharding, at.shape, dtype) for at, dtype in pairs)
    text = f"{local.name} of {shown}" if shown else f"{local.name} of {local.results[0].shape}"
    mesh = (*local.operands, *local.results)[0].mesh
    return Called(mesh, key_of(f"{text} {_attrs(local.call.attrs)}"), text)


def plan_call(plan: OperationPlan) -> Called:
    """An operation with its operands and attributes."""
    kinds = [
        describe(k[0].sharding, k[0].shape, k[1]) if isinstance(k, tuple) else type(k).__name__ for k in plan.kinds
    ]
    text = f"{plan.title} of {', '.join(kinds)}{_attrs(plan.attrs)}"
    return Called(plan.problem.mesh, key_of(text), text)


def step_call(step: Step) -> Called:
    """One step."""
    text = f"{step} of {describe(step.source, step.shape, step.dtype)}"
    key = key_of(f"{text} to {describe(step.result, step.result_shape, step.dtype)}")
    return Called(wider(step.source.mesh, step.result.mesh), key, text)


def move_call(source: Layout, target: Layout, dtype: "np.dtype[Any]") -> Called:
    """A change of sharding."""
    text = f"moving {describe(source.sharding, source.shape, dtype)}"
    key = key_of(f"{text} to {describe(target.sharding, target.shape, dtype)} on {target.mesh}")
    return Called(wider(source.mesh, target.mesh), key, text)


def program_call(mesh: Mesh, content: str, text: str) -> Called:
    """A program, by its content."""
    return Called(mesh, key_of(content), text)


def with_scalars(call: Called, data: Sequence[Any]) -> Called:
    """A call with the Python scalars among its operands."""
    key = call.key
    for x in data:
        if isinstance(x, bool | int | float | complex):
            key ^= key_of(repr(x))
    return call._replace(key=key)


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
