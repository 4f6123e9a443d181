"""`Link`, the connection between the devices along an axis, and the α-β price of sending bytes over several of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

from shardwright.errors import MeshError

_SPEED = {"ring": 1.0, "line": 0.5, "torus": 2.0, "all_to_all": 1.0}  # of the link's bandwidth, for a whole group
KINDS = tuple(_SPEED)


@dataclass(frozen=True, slots=True)
class Link:
    """The connection between neighbours along one mesh axis: its kind, bytes per second each way, seconds of latency.

    >>> Link("line", bandwidth=50e9)
    Link(kind='line', bandwidth=50000000000.0, latency=1e-06)
    """

    kind: str = "ring"
    bandwidth: float = 100e9
    latency: float = 1e-6

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise MeshError(f"Link kind {self.kind!r} is unknown. Use one of {', '.join(KINDS)}.")
        for name in ("bandwidth", "latency"):
            if not isinstance(getattr(self, name), Real):
                raise MeshError(f"A link's {name} is a number; got {getattr(self, name)!r}.")
        if not self.bandwidth > 0 or not self.latency >= 0:
            raise MeshError(
                f"A link of bandwidth {self.bandwidth} B/s and latency {self.latency} s can't be: "
                f"give a positive bandwidth and a latency of at least 0."
            )
        object.__setattr__(self, "kind", KINDS[KINDS.index(self.kind)])
        object.__setattr__(self, "bandwidth", float(self.bandwidth))
        object.__setattr__(self, "latency", float(self.latency))

    def __repr__(self) -> str:
        return f"Link(kind={self.kind!r}, bandwidth={_number(self.bandwidth)}, latency={_number(self.latency)})"


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"float({str(value)!r})"


Group = Sequence[tuple[int, Link]]  # per axis that a collective runs along: how many devices, and what connects them


def latency(size: int, link: Link) -> float:
    """Seconds before the first byte of a collective along one axis has reached every member."""
    return link.latency * (math.ceil(math.log2(size)) if link.kind == "all_to_all" else size - 1)


def seconds_per_byte(group: Group) -> float:
    """Seconds that a byte takes along axes: the slowest of their links sets the pace."""
    return max(1 / (link.bandwidth * _SPEED[link.kind]) for _, link in group)


def seconds(group: Group, received: float, rounds: int = 1, neighbours: bool = False) -> float:
    """Seconds until the busiest device has received its bytes, `rounds` times around the group.

    >>> round(seconds([(4, Link())], 3_000_000) * 1e6)  # µs: three hops of a ring, then 3 MB at 100 GB/s
    33

    `neighbours` is for messages that only go to the next device.
    """
    if not received:
        return 0.0
    hops = sum(link.latency if neighbours else latency(size, link) for size, link in group)
    return rounds * hops + received * seconds_per_byte(group)
