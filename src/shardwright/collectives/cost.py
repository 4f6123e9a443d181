"""What collectives cost: bytes that a device receives, and seconds by the α-β model over the links of the mesh."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from shardwright.mesh import Mesh

_SPEED = {"ring": 1.0, "line": 0.5, "torus": 2.0, "all_to_all": 1.0}  # of the link's bandwidth, for a whole group


class Cost(NamedTuple):
    """One collective: its name, its axes, the bytes a device receives, the seconds it takes."""

    name: str
    axes: tuple[str, ...]
    bytes: int
    time: float


def cost_of(name: str, mesh: Mesh, axes: Sequence[str], local_bytes: float) -> Cost:
    """The cost of a collective whose operand has `local_bytes` on each device; of those that move only some, these bytes.

    >>> cost_of("all_gather", Mesh(x=4), ("x",), 1000).bytes
    3000
    """
    group = mesh.axis_size(axes)
    share = (group - 1) / group
    received = {
        "all_gather": (group - 1) * local_bytes,
        "all_reduce": 2 * share * local_bytes,
        "reduce_scatter": share * local_bytes,
        "all_to_all": share * local_bytes,
        "permute": local_bytes,
        "exchange": local_bytes,
        "update_halo": local_bytes,
        "all_slice": 0.0,
    }[name]
    if group == 1 or not received:
        return Cost(name, tuple(axes), 0, 0.0)
    rounds = 2 if name == "all_reduce" else 1
    links = [mesh.links[mesh.axis(axis).name] for axis in axes]
    straight = name == "update_halo"  # neighbours only
    steps = sum(link.latency if straight else latency(mesh, axis) for axis, link in zip(axes, links, strict=True))
    return Cost(name, tuple(axes), math.ceil(received), rounds * steps + received * seconds_per_byte(mesh, axes))


def latency(mesh: Mesh, axis: str) -> float:
    """The seconds before the first byte of a collective along an axis has reached every member."""
    piece = mesh.axis(axis)
    link = mesh.links[piece.name]
    return link.latency * (math.ceil(math.log2(piece.size)) if link.kind == "all_to_all" else piece.size - 1)


def seconds_per_byte(mesh: Mesh, axes: Sequence[str]) -> float:
    """What a byte takes along axes: the slowest of their links sets the pace."""
    links = (mesh.links[mesh.axis(axis).name] for axis in axes)
    return max(1 / (link.bandwidth * _SPEED[link.kind]) for link in links)
