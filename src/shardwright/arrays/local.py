"""`shard_map`: from the global view to the local one and back."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from shardwright.arrays.array import Array, as_sharding, shard
from shardwright.arrays.per_device import PerDevice, same_mesh
from shardwright.engines import engine_of
from shardwright.errors import ArrayError, TreeError
from shardwright.mesh import Mesh
from shardwright.plan import LocalShapes
from shardwright.sharding import Layout, P, Sharding, check_partial, layout_of
from shardwright.trees import flatten, unflatten, with_prefix


def shard_map(fn: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """A function of arrays from a function of each device's tensors.

    >>> from shardwright import collectives as c
    >>> mesh = Mesh(x=4)
    >>> total = shard_map(lambda v: c.all_reduce(v, "x"), mesh, P("x"), P(None))
    >>> np.asarray(total(np.arange(8)))
    array([12, 16])

    `in_specs` is one spec for all arguments, or a tuple of one per argument; each a `P`, a `Sharding`, or a tree of
    them over a tree of arrays. Arguments are resharded to it. `out_specs` likewise says how the results make arrays
    again; along axes that it does not name the devices must hold the same, which is checked.
    """

    @functools.wraps(fn)
    def mapped(*args: Any) -> Any:
        specs = (in_specs,) * len(args) if isinstance(in_specs, P | Sharding) else tuple(in_specs)
        if len(specs) != len(args):
            raise ArrayError(f"shard_map: {len(args)} arguments but {len(specs)} in_specs: give one spec per argument.")
        local = [_map_prefix(lambda spec, x: _to_local(x, mesh, spec), s, a) for s, a in zip(specs, args, strict=True)]
        sends = _sends(local, mesh)
        try:
            results = fn(*local)
        except BaseException:
            sends.forget_sends(mesh)
            raise
        sends.check_sends(mesh, "by the end of shard_map")
        return _map_prefix(lambda spec, v: _to_array(v, mesh, spec), out_specs, results)

    return mapped


def _sends(local: Any, mesh: Mesh) -> Any:
    """Who keeps open sends: the trace that is recording, or the engine."""
    traced = next((v for v in flatten(local)[0] if isinstance(v, PerDevice) and v.traces), None)
    return engine_of(mesh) if traced is None else traced.recorder()  # type: ignore[attr-defined]


def _map_prefix(function: Callable[[Any, Any], Any], prefix: Any, tree: Any) -> Any:
    """Apply a function to each leaf of a tree with its spec from a tree of specs that may stop higher up."""
    try:
        pairs, structure = with_prefix(prefix, tree)
    except TreeError:
        raise
    except ValueError as error:
        raise ArrayError(f"shard_map: the specs {prefix!r} don't fit the tree of arrays: {error}") from error
    return unflatten(structure, [function(spec, x) for spec, x in pairs])


def _to_local(x: object, mesh: Mesh, spec: Any) -> PerDevice:
    sharding = as_sharding(mesh, spec)
    if isinstance(x, Array) and x.mesh != mesh:
        raise ArrayError(
            f"shard_map runs on {mesh}, but an argument lies on {x.mesh}. "
            f"Reshard it first: x.reshard(Sharding(mesh, P(…)))."
        )
    array = x.reshard(sharding) if isinstance(x, Array) else shard(x, sharding)
    if array.traces:
        return array.to_local(sharding)  # type: ignore[attr-defined]  # of a traced array
    return PerDevice.of(array.lanes)


def _to_array(v: object, mesh: Mesh, spec: Any) -> Array:
    if not isinstance(v, PerDevice):
        raise ArrayError(f"shard_map: the function gave a {type(v).__name__}; it must give PerDevice values.")
    same_mesh(mesh, v.mesh)
    sharding = as_sharding(mesh, spec)
    if v.traces:
        return v.to_array(sharding)  # type: ignore[attr-defined]  # of a traced value
    if len(sharding.dims) > v.ndim:
        sharding.for_shape(v.local_shapes.largest)  # raises: the spec is longer than the rank
    layout, engine = joined_layout(sharding, v.local_shapes), engine_of(mesh)
    check_partial(sharding, v.dtype, ArrayError)
    engine.check_shared(v.lanes, layout, "shard_map")
    return Array.of(layout, engine.from_lanes(v.lanes, layout))


def joined_layout(sharding: Sharding, shapes: LocalShapes, name: str = "shard_map") -> Layout:
    """The layout of the array whose shards have some shapes."""
    mesh = sharding.mesh
    lanes = mesh.lanes(sharding.axes)
    full = [mesh.axis(lane).size for lane in lanes]
    table = np.array(shapes.shapes, np.int64).reshape(len(shapes.shapes), -1)
    shape, offsets = [], {}
    for dim in range(table.shape[1]):
        own = table[:, dim].reshape(full if len(table) > 1 else [1] * len(full))
        axes = sharding.dims[dim] if dim < len(sharding.dims) else ()
        splits = [lanes.index(axis) for axis in axes]
        low, high = sharding.halo_of(dim) if axes else (0, 0)
        held = np.broadcast_to(own, full)
        first = held[tuple(slice(None) if i in splits else slice(0, 1) for i in range(held.ndim))]
        if not bool((held == first).all()):
            raise ArrayError(
                f"{name}: {sharding.spec} splits dim {dim} by {axes or 'no axis'}, but devices along "
                f"other axes hold different sizes {sorted(set(held.ravel().tolist()))} of it."
            )
        order = [*splits, *(i for i in range(held.ndim) if i not in splits)]
        cuts = [0, *np.cumsum(first.transpose(order).ravel() - low - high).tolist()]
        shape.append(cuts[-1])
        if axes:
            offsets[dim] = cuts
            if tuple(sharding.offsets_of(dim)) not in ((), tuple(cuts)):
                raise ArrayError(f"{name}: the shards of dim {dim} begin at {cuts}, but {sharding} says otherwise.")
    return layout_of(sharding.replace(offsets=offsets), tuple(shape))
