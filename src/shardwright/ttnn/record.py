"""What ran on a mesh device, judged as it runs: the points of the multi-device checklist."""

from dataclasses import dataclass

SHAPE, WEIGHTS, INPUTS, BATCH, OUTPUTS, SYNCHRONIZED, CLOSED, OPERANDS = range(8)
POINTS = (
    "mesh device opened with the right shape",
    "weights replicated to all devices",
    "inputs sharded along the batch",
    "batch divisible by the devices",
    "outputs gathered with a matching composer",
    "all devices synchronized before results are read",
    "mesh device closed",
    "no operation on host tensors",
)


@dataclass(frozen=True)
class Point:
    """One point of the list: True if kept, False if broken, None if the run did not reach it."""

    name: str
    kept: bool | None = None
    why: str = ""
    line: str = ""

    def __str__(self) -> str:
        mark = {True: "[x]", False: "[!]", None: "[ ]"}[self.kept]
        return f"{mark} {self.name}{f': {self.why}' if self.why else ''}{f' ({self.line})' if self.line else ''}"


class Record:
    """The points of one run. It has no reference to the device, so that unused submeshes are freed at once."""

    def __init__(self) -> None:
        self.points = [Point(name) for name in POINTS]

    def say(self, at: int, kept: bool, why: str, line: str = "") -> None:
        """Judges a point; a broken point stays broken."""
        if self.points[at].kept is not False:
            self.points[at] = Point(POINTS[at], kept, why, line)
