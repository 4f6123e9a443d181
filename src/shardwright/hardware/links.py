"""`Link`: what connects the devices along an axis."""

import math
from dataclasses import dataclass, fields

from shardwright.errors import MeshError
from shardwright.hardware.checks import as_number

KINDS = ("ring", "line", "switch", "torus", "full")
_OTHER_NAMES = {"all_to_all": "full"}


@dataclass(frozen=True, slots=True)
class Link:
    """What connects the devices along an axis: its kind, the bytes per second it attains one way, its latencies in seconds.

    >>> Link("line", bandwidth=50e9)
    Link(kind='line', bandwidth=50000000000.0, latency=1e-06)
    >>> Link("switch", 370e9, efficiency=370 / 450).peak
    450000000000.0

    In a ring, a line, a torus and a full mesh `bandwidth` is that of the link to one neighbour, in a switch that of a device.
    `latency` is what it takes to launch a collective, `hop` what each message on its way adds. `bandwidth` is attained:
    `efficiency` of the peak. A switch that `reduces_in_network` adds up what devices send. "all_to_all" is another name of
    "full".
    """

    kind: str = "ring"
    bandwidth: float = 100e9
    latency: float = 1e-6
    hop: float = 1e-6
    efficiency: float = 1.0
    reduces_in_network: bool = False

    def __post_init__(self) -> None:
        kind = _OTHER_NAMES.get(self.kind, self.kind) if isinstance(self.kind, str) else self.kind
        if kind not in KINDS:
            raise MeshError(f"Link kind {self.kind!r} is unknown. Use one of {', '.join(KINDS)}.")
        object.__setattr__(self, "kind", KINDS[KINDS.index(kind)])
        fill = object.__setattr__
        fill(self, "bandwidth", as_number(self.bandwidth, "A link's bandwidth", above=True, finite=False))
        for name in ("latency", "hop"):
            fill(self, name, as_number(getattr(self, name), f"A link's {name}"))
        fill(self, "efficiency", as_number(self.efficiency, "A link's efficiency", above=True))
        if self.efficiency > 1:
            raise MeshError(
                f"A link's efficiency is {self.efficiency}; it is the part of the peak that its bandwidth is, so give more "
                f"than 0 and at most 1."
            )
        if not isinstance(self.reduces_in_network, bool):
            raise MeshError(f"A link's reduces_in_network is {self.reduces_in_network!r}; give True or False.")

    @property
    def peak(self) -> float:
        """The line rate: bytes per second one way that the link never exceeds."""
        return self.bandwidth / self.efficiency

    def __repr__(self) -> str:
        shown = [f"kind={self.kind!r}", f"bandwidth={_number(self.bandwidth)}", f"latency={_number(self.latency)}"]
        for field in fields(self)[3:]:
            value = getattr(self, field.name)
            if value != field.default:
                shown.append(f"{field.name}={value if isinstance(value, bool) else _number(value)}")
        return f"Link({', '.join(shown)})"


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
