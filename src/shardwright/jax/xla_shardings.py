"""XLA's own shardings as shardings of a mesh, where its text says where every element is."""

import math
import re

import numpy as np
from numpy.typing import NDArray

from shardwright.jax.devices import Devices
from shardwright.jax.replica_groups import axes_along, iota, merged, numbers, xla_axes, xla_mesh
from shardwright.jax.text import split
from shardwright.mesh import Mesh
from shardwright.sharding import P, Sharding, layout_of

_TILED = re.compile(
    r"devices=\[(?P<tiles>[\d,]+)\](?:<=(?P<iota>\[[\d,]+\](?:T\([\d,]+\))?)|(?P<ids>[\d,]+))"
    r"(?P<last> last_tile_dim_replicate| last_tile_dims=\{replicated\})?"
)
_NAMED = re.compile(
    r"mesh\[(?P<sizes>.*?)\](?:, device_ids=\((?P<ids>[\d,]+|\[[\d,]+\](?:T\([\d,]+\))?)\))?, (?P<dims>.+)"
)
_OTHER_AXES = re.compile(r", replicated=\{[^{}]*\}$")


def sharding_of(text: str, rank: int, devices: Devices) -> Sharding | None:
    """The sharding that XLA's text gives to an array of a rank; None if it is unknown, manual, or not along axes."""
    mesh, body = devices.mesh, text.strip()
    if mesh is None or not (body.startswith("{") and body.endswith("}")):
        return None
    body = re.sub(r",?\s*metadata=\{.*\}$", "", body[1:-1]).strip()
    if body == "replicated":
        return Sharding(mesh, P(*[None] * rank))
    tiled = _TILED.fullmatch(body)
    if tiled:
        tiles = numbers(tiled["tiles"])
        order = iota(tiled["iota"]) if tiled["iota"] else np.array(numbers(tiled["ids"]), np.int64)
        extra = 1 if tiled["last"] else 0
        if len(tiles) != rank + extra or math.prod(tiles) != devices.count or len(order) != devices.count:
            return None
        return _tiled(order.reshape(tiles), rank, devices, mesh)
    named = _NAMED.fullmatch(body)
    return _named(named, rank, devices) if named else None


def elements(text: str) -> list[str]:
    """The shardings of a tuple's elements."""
    inner = text.strip()[1:-1].strip()
    return split(inner) if inner.startswith("{") else []


def _tiled(partitions: NDArray[np.int64], rank: int, devices: Devices, mesh: Mesh) -> Sharding | None:
    """The sharding whose tile (i, j, …) has the partitions at [i, j, …]; further dims are copies."""
    places = np.array(devices.places, np.int64)[partitions]
    dims = []
    for dim in range(rank):
        first = tuple(slice(None) if at == dim else 0 for at in range(places.ndim))
        axes = axes_along(places[first].tolist(), mesh)
        if axes is None:
            return None
        dims.append(axes)
    named = [axis for axes in dims for axis in axes]
    if not mesh.share_a_cut(named) or len(merged(named, mesh)) > len(named):
        return None
    sharding = Sharding(mesh, P(*dims))
    layout = layout_of(sharding, partitions.shape[:rank])
    for tile in np.ndindex(partitions.shape):
        if layout.shard_numbers(int(places[tile])) != tile[:rank]:
            return None
    return sharding


def _named(found: re.Match[str], rank: int, devices: Devices) -> Sharding | None:
    """The sharding that names axes of a mesh of XLA's: which partition has which tile, then as of tiles."""
    mesh, names = xla_mesh(found["sizes"], found["ids"])
    if mesh.size != devices.count or devices.mesh is None:
        return None
    text = _OTHER_AXES.sub("", found["dims"])
    if text == "replicated":
        return Sharding(devices.mesh, P(*[None] * rank))
    if not re.fullmatch(r"\[.*\]", text):
        return None
    dims = [xla_axes(part, names) for part in split(text[1:-1])]
    if len(dims) != rank:
        return None
    split_axes = [axis for axes in dims for axis in axes]
    groups = mesh.groups(*split_axes)
    tiles = [mesh.axis_size(axes) for axes in dims]
    copies = len(groups)
    partitions = np.array(groups, np.int64).T.reshape(*tiles, copies)
    return _tiled(partitions, rank, devices, devices.mesh)
