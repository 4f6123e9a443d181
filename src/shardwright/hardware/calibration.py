"""A link fitted to measured times: latency and bandwidth, with the error that is left; the text output of nccl-tests read."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardwright.errors import MeshError
from shardwright.hardware.asking import received_bytes
from shardwright.hardware.fabric import COLLECTIVES, Fabric
from shardwright.hardware.levels import Hardware, Level
from shardwright.hardware.links import Link
from shardwright.hardware.presets import GENERIC, presets

HOP = 3.4 / 8.4  # of the latency to launch, as NCCL has it: one group size can't tell them apart
_TESTS = {"sendrecv": "permute", "alltoall": "all_to_all"}  # tests of nccl-tests that have other names here


_Point = tuple[float, list[tuple[float, float]]]  # measured seconds; per algorithm latencies, and seconds at 1 B/s


class Measured(NamedTuple):
    """A collective of some bytes, counted as in `sw.hardware.time`, and the seconds that it took."""

    collective: str
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class Calibration:
    """A machine whose link was fitted to measurements, and how far the fit is from them."""

    hardware: Hardware
    members: int
    measurements: tuple[Measured, ...]

    @property
    def link(self) -> Link:
        """The link that was fitted."""
        return self.hardware.levels[0].link

    def predicted(self, one: Measured) -> float:
        """Seconds of a measured collective by the fitted link."""
        return _seconds(self.link, self.members, one)

    @property
    def error(self) -> float:
        """The geometric mean of the ratios of predicted and measured times, less 1."""
        logs = [abs(math.log(self.predicted(one) / one.seconds)) for one in self.measurements]
        return math.exp(sum(logs) / len(logs)) - 1

    def __str__(self) -> str:
        link = self.link
        lines = [f"{'collective':<16}{'bytes':>14}{'measured':>14}{'model':>14}{'error':>8}"]
        for one in self.measurements:
            model = self.predicted(one)
            times = f"{one.seconds * 1e6:>11.1f} µs{model * 1e6:>11.1f} µs"
            lines.append(f"{one.collective:<16}{one.nbytes:>14,}{times}{model / one.seconds - 1:>+8.0%}")
        return "\n".join(
            [
                *lines,
                f"{self.members} devices: {link.latency * 1e6:.3g} µs to launch, {link.hop * 1e6:.3g} µs a hop, "
                f"{link.bandwidth / 1e9:.4g} GB/s; {self.error:.0%} error in the geometric mean",
                f"hardware = {self.hardware!r}",
            ]
        )


def fitted(measurements: Sequence[Measured], members: int, device: str = "") -> Calibration:
    """The machine with the latency and bandwidth that are nearest to measured times, by the mean square of their logarithms.

    `device` is what drivers call the chip; if it has the name of a preset the machine has its chip.
    """
    known = tuple(one for one in measurements if one.nbytes > 0 and one.seconds > 0)
    if len(known) < 2 or members < 2:
        raise MeshError(
            f"{len(known)} measurements over {members} devices are too few: a latency and a bandwidth need at least two sizes "
            f"over at least two devices."
        )
    points = [_point(one, members) for one in known]
    bandwidth = 10 ** _least(lambda b: _best_latency(points, 10**b)[1], 6.0, 14.0)
    latency = _best_latency(points, bandwidth)[0]
    named = next((m for name, m in presets().items() if name in device.lower() and m is not GENERIC), GENERIC)
    link = Link("switch", bandwidth, latency, HOP * latency)
    note = "links fitted to measurements" if named is not GENERIC else "links fitted to measurements, a generic chip"
    return Calibration(Hardware("measured", named.chip, (Level(link),), note), members, known)


def _point(one: Measured, members: int) -> _Point:
    """A measurement as the algorithms that it may have been: latencies and seconds at 1 B/s."""
    received = received_bytes(one.collective, one.nbytes, members)
    lines = Fabric(((members, Link("switch", 1.0, 1.0, HOP)),)).lines(one.collective)
    return one.seconds, [(start, pace * received) for start, pace in lines]


def _best_latency(points: Sequence[_Point], bandwidth: float) -> tuple[float, float]:
    """The latency that fits best with a bandwidth, and the square error."""

    def error(exponent: float) -> float:
        latency = 10**exponent
        models = ((s, min(start * latency + b / bandwidth for start, b in lines)) for s, lines in points)
        return sum(math.log(model / seconds) ** 2 for seconds, model in models)

    best = _least(error, -9.0, 0.0)
    return 10**best, error(best)


def _least(error: Callable[[float], float], low: float, high: float) -> float:
    """Where a function is least: the best of a grid, then of ever finer ones around it."""
    while high - low > 1e-4:
        points = [low + (high - low) * i / 12 for i in range(13)]
        best = min(range(13), key=lambda i: error(points[i]))
        low, high = points[max(best - 1, 0)], points[min(best + 1, 12)]
    return (low + high) / 2


def _seconds(link: Link, members: int, one: Measured) -> float:
    received = received_bytes(one.collective, one.nbytes, members)
    return Fabric(((members, link),)).seconds(one.collective, received)


# -- nccl-tests --------------------------------------------------------------------------------------------------------


def read_nccl_tests(text: str) -> Calibration:
    """The calibration of the text output of one of nccl-tests, such as all_reduce_perf; out-of-place times count."""
    name = re.search(r"(\w+?)_perf\b", text)
    test = "" if name is None else _TESTS.get(name[1], name[1])
    if test not in COLLECTIVES:
        raise MeshError(
            f"The log names {'no test' if name is None else name[0]} of nccl-tests that has a model; it should have a line "
            f"with all_reduce_perf, all_gather_perf, reduce_scatter_perf, alltoall_perf, broadcast_perf or sendrecv_perf."
        )
    ranks = {int(rank): device.strip() for rank, device in re.findall(r"#\s+Rank\s+(\d+).*\[[^\]]*\]\s*(.*)", text)}
    rows = [row for line in text.splitlines() if (row := _row(line, test)) is not None]
    if not rows:
        raise MeshError(f"The log of {test} has no line with sizes and times. Give the text that the test prints.")
    return fitted(rows, len(ranks), ranks.get(0, ""))


def _row(line: str, test: str) -> Measured | None:
    """size, count, type, redop and root, then time, algbw, busbw and errors, out of place and in place."""
    cells = re.sub(r"^\s*\[[^\]]*\]", "", line).split()  # mpirun may begin lines with the rank
    if len(cells) < 7 or not (cells[0].isdigit() and cells[1].isdigit()):
        return None
    time = cells[-8] if len(cells) >= 11 else cells[-4]
    try:
        return Measured(test, int(cells[0]), float(time) * 1e-6)
    except ValueError:
        return None  # a line of something else
