"""Shardings that StableHLO text has: Shardy's `sdy.sharding` on its meshes, and the strings of `mhlo.sharding`."""

import itertools
import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from shardwright.errors import ShardingError
from shardwright.mesh import Mesh
from shardwright.sharding import P

_AXIS = re.compile(r'"([^"]+)"=(\d+)')
_USED = re.compile(r'"([^"]+)"(?::\((\d+)\)(\d+))?')
_DIM = re.compile(r"\{([^}]*)\}")
_TILES = re.compile(r"devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))")


def shardy_mesh(attribute: Any) -> dict[str, int]:
    """The axes of a mesh: `#sdy.mesh<["dp"=2, "tp"=4]>`."""
    text = str(attribute)
    axes = {name: int(size) for name, size in _AXIS.findall(text)}
    ids = re.search(r"device_ids=\[([\d, ]*)\]", text)
    if ids is not None and [int(n) for n in ids.group(1).split(",")] != list(range(math.prod(axes.values()))):
        raise ShardingError(
            f"The mesh {text} has devices in an order of its own, which is not supported. Leave it out."
        )
    return axes


def shardy_spec(attribute: Any) -> P | None:
    """The spec of `#sdy.sharding<@mesh, [{"dp"}, {}]>`; None if all dims are open and no axis is named."""
    text = str(attribute)
    if "unreduced=" in text:
        raise ShardingError(f"The sharding {text} leaves a sum unreduced, which is not supported.")
    dims = _DIM.findall(text[text.index("[") : text.rindex("]") + 1]) if "[" in text else []
    entries = []
    for dim in dims:
        used = [name if not size else f"{name}:({pre}){size}" for name, pre, size in _USED.findall(dim)]
        entries.append(tuple(used) if used else None)
    if not any(entries) and dims and all("?" in dim for dim in dims):
        return None
    return P(*entries)


# -- mhlo.sharding: tiles of a list of devices -------------------------------------------------------------------------------


def hlo_mesh(texts: Iterable[str], devices: int) -> dict[str, int]:
    """The coarsest mesh whose axes all shardings are along, of a number of devices."""
    cuts = {1, devices}
    for text in texts:
        found = _TILES.search(text)
        if found is None:
            continue
        for sizes in (found.group(2) if found.group(3) else None, None if found.group(3) else found.group(1)):
            below = 1
            for size in reversed([int(n) for n in sizes.split(",")] if sizes else []):
                below *= size
                cuts.add(below)
    order = sorted(cuts, reverse=True)
    pairs = list(itertools.pairwise(order))
    if any(a % b for a, b in pairs):
        raise ShardingError(f"The shardings cut {devices} devices in ways that no mesh has: blocks of {order}.")
    return {f"a{i}": a // b for i, (a, b) in enumerate(pairs)} or {"a0": 1}


def hlo_spec(text: str, rank: int, mesh: Mesh) -> P:
    """The spec that a string such as `{devices=[2,1]<=[2]}` is on a mesh."""
    found = _TILES.search(text)
    if found is None:
        if "replicated" in text or "maximal" in text:
            return P()
        raise ShardingError(f"The sharding {text!r} is not supported. Use tiles of devices, or {{replicated}}.")
    if "last_tile_dims" in text and "manual" in text:
        raise ShardingError(f"The sharding {text!r} is manual, for tensors per device, which is not supported here.")
    tiles = [int(n) for n in found.group(1).split(",")]
    if found.group(4):
        order = np.array([int(n) for n in found.group(4).split(",")])
    else:
        shape = [int(n) for n in found.group(2).split(",")]
        turn = [int(n) for n in found.group(3).split(",")] if found.group(3) else range(len(shape))
        order = np.arange(math.prod(shape)).reshape(shape).transpose(list(turn)).reshape(-1)
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))  # of each device among the tiles
    coords = np.stack(np.unravel_index(places, tiles), axis=-1)[:, :rank].reshape(*mesh.shape, rank)
    return P(*(_axes_of(coords[..., dim], mesh, tiles[dim], text) for dim in range(rank)))


def _axes_of(coords: Any, mesh: Mesh, parts: int, text: str) -> tuple[str, ...] | None:
    """The axes that a tile's coordinate runs along, the outermost first; an error if it is along none."""
    origin = (0,) * len(mesh.shape)
    steps = {}
    for at, (name, size) in enumerate(mesh.sizes.items()):
        if size > 1:
            step = int(coords[tuple(int(i == at) for i in range(len(origin)))] - coords[origin])
            if step:
                steps[name] = step
    axes = sorted(steps, key=lambda name: -steps[name])
    grids = dict(zip(mesh.sizes, np.indices(mesh.shape), strict=True))
    total, below = np.zeros(mesh.shape, np.int64), parts
    for name in axes:
        below //= mesh.sizes[name]
        total = total + grids[name] * below
    if not (total == coords).all():
        raise ShardingError(f"The sharding {text!r} is not along axes of {mesh}.")
    return tuple(axes) or None
