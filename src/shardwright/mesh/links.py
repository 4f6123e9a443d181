"""What connects the devices along an axis: the numbers every cost estimate starts from."""

from dataclasses import dataclass

from shardwright.errors import MeshError

KINDS = ("ring", "line", "torus", "all_to_all")


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
        if not self.bandwidth > 0 or not self.latency >= 0:
            raise MeshError(
                f"A link of bandwidth {self.bandwidth} B/s and latency {self.latency} s can't be: "
                f"give a positive bandwidth and a latency of at least 0."
            )
