"""A link fitted to measured times: latency and bandwidth, with the error that is left; the text output of nccl-tests read."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from shardwright.errors import MeshError
from shardwright.hardware.asking import received_bytes
from shardwright.hardware.checks import as_count
from shardwright.hardware.fabric import COLLECTIVES, Fabric
from shardwright.hardware.levels import Hardware, Level
from shardwright.hardware.links import Link
from shardwright.hardware.presets import GENERIC, presets

HOP = 3.4 / 8.4  # of the latency to launch, as NCCL has it: one group size can't tell them apart
_TESTS = {"sendrecv": "permute", "alltoall": "all_to_all"}  # tests of nccl-tests that have other names here

_Point = tuple[float, list[tuple[float, float]]]  # measured seconds; per algorithm latencies, and seconds at 1 B/s
_OUTLIER = 0.4  # errors of logarithms beyond this count by their size, not by its square


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

    @property
    def worst(self) -> Measured:
        """The measurement that the fit is furthest from, by the ratio of both."""
        return max(self.measurements, key=lambda one: abs(math.log(self.predicted(one) / one.seconds)))

    def __str__(self) -> str:
        link, worst = self.link, self.worst
        lines = [f"{'collective':<16}{'bytes':>14}{'measured':>14}{'model':>14}{'error':>8}"]
        for one in self.measurements:
            model = self.predicted(one)
            times = f"{one.seconds * 1e6:>11.1f} µs{model * 1e6:>11.1f} µs"
            lines.append(f"{one.collective:<16}{one.nbytes:>14,}{times}{model / one.seconds - 1:>+8.0%}")
        return "\n".join(
            [
                *lines,
                f"{self.members} devices: {link.latency * 1e6:.3g} µs to launch, {link.hop * 1e6:.3g} µs a hop, "
                f"{link.bandwidth / 1e9:.4g} GB/s; {self.error:.0%} error in the geometric mean, at most "
                f"{self.predicted(worst) / worst.seconds - 1:+.0%} at {worst.nbytes:,} bytes",
                f"hardware = {self.hardware!r}",
            ]
        )


def fitted(measurements: Sequence[Measured], members: int, device: str = "") -> Calibration:
    """The machine with the latency and bandwidth that are nearest to measured times, by the logarithms of both.

    A few outliers don't matter. The bandwidth is at most what some size shows: its bytes over the time that it took beyond the
    quickest, or over all of it if that is less than twice the quickest. If it is for the largest size, a note says that the
    bandwidth is only what was observed. `device` is what drivers call the chip; if it has the name of a preset the machine has
    its chip.
    """
    if not isinstance(measurements, Sequence) or not all(isinstance(one, Measured) for one in measurements):
        raise MeshError(f"A link is fitted to a list of Measured(collective, nbytes, seconds); got {measurements!r}.")
    for one in measurements:
        if not isinstance(one.nbytes, int) or not isinstance(one.seconds, float | int):
            raise MeshError(f"{one!r} is not a measurement: its bytes and seconds are numbers.")
    as_count(members, "The number of devices", 1)
    known = tuple(one for one in measurements if one.nbytes > 0 and 0 < one.seconds < math.inf)
    sizes = {one.nbytes for one in known}
    if len(sizes) < 2 or members < 2:
        raise MeshError(
            f"{len(known)} measurements of {len(sizes)} sizes over {members} devices are too few: a latency and a bandwidth "
            f"need at least two sizes over at least two devices."
        )
    points = [_point(one, members) for one in known]
    latency, pace, seen = _best(points)
    named = next((m for name, m in presets().items() if name in device.lower() and m is not GENERIC), GENERIC)
    link = Link("switch", 1 / pace, latency, HOP * latency)
    notes = ["links fitted to measurements", *([] if named is not GENERIC else ["a generic chip"])]
    if not seen:
        notes.append("the largest size takes less than twice the quickest: its bandwidth is only what was observed")
    found = Calibration(Hardware("measured", named.chip, (Level(link),)), members, known)
    notes[0] += f" with {found.error:.0%} error"
    return replace(found, hardware=replace(found.hardware, note=", ".join(notes)))


def _point(one: Measured, members: int) -> _Point:
    """A measurement as the algorithms that it may have been: latencies and seconds at 1 B/s."""
    received = received_bytes(one.collective, one.nbytes, members)
    lines = Fabric(((members, Link("switch", 1.0, 1.0, HOP)),)).lines(one.collective)
    return one.seconds, [(start, pace * received) for start, pace in lines]


def _best(points: Sequence[_Point]) -> tuple[float, float, bool]:
    """The latency and the seconds a byte that fit best, and whether the sizes show a bandwidth; from several to begin with."""
    quick = min(seconds for seconds, _ in points)
    paces = [(s - quick if s >= 2 * quick else s) / min(b for _, b in lines) for s, lines in points]
    most, lines = max(points, key=lambda point: min(b for _, b in point[1]))
    seen = most >= 2 * quick
    least = min(paces) if seen else most / min(b for _, b in lines)
    starts = ((part * quick, max(pace, least)) for part in (1.0, 0.1, 0.01) for pace in (min(paces), max(paces)))
    _, latency, pace = min(_improved(points, latency, pace, least) for latency, pace in starts)
    return latency, pace, seen


def _improved(points: Sequence[_Point], latency: float, pace: float, least: float) -> tuple[float, float, float]:
    """The error, the latency and the pace after steps up and down, in logarithms, that get ever smaller."""
    step, error = 1.0, _error(points, latency, pace)
    while step > 1e-3:
        sides = [
            (latency * math.exp(i * step), max(pace * math.exp(j * step), least))
            for i, j in product((-1, 0, 1), repeat=2)
        ]
        nearby, *figures = min((_error(points, *side), *side) for side in sides)
        if nearby < error - 1e-9:
            error, (latency, pace) = nearby, figures
        else:
            step /= 2
    return error, latency, pace


def _error(points: Sequence[_Point], latency: float, pace: float) -> float:
    """The squares of logarithms of predicted over measured times, those of outliers less."""
    total = 0.0
    for seconds, lines in points:
        off = abs(math.log(min(start * latency + size * pace for start, size in lines) / seconds))
        total += off * off if off < _OUTLIER else _OUTLIER * (2 * off - _OUTLIER)
    return total


def _seconds(link: Link, members: int, one: Measured) -> float:
    received = received_bytes(one.collective, one.nbytes, members)
    return Fabric(((members, link),)).seconds(one.collective, received)


# -- nccl-tests --------------------------------------------------------------------------------------------------------


def read_nccl_tests(text: str) -> Calibration:
    """The calibration of the text output of nccl-tests, such as all_reduce_perf; out-of-place times count.

    A log may have the output of several tests, if they ran on as many devices.
    """
    if not isinstance(text, str):
        raise MeshError(f"The text output of nccl-tests is a string; got {text!r}.")
    rows: list[Measured] = []
    members: list[int] = []
    names: list[str] = []
    ranks: dict[int, str] = {}
    test = ""
    for line in text.splitlines():
        if (name := re.search(r"(\w+?)_perf\b", line)) is not None:
            names.append(name[0])
            test = _TESTS.get(name[1], name[1])
        elif (rank := re.search(r"\bRank\s+(\d+)\b.*\bdevice\b[^\[]*\[[^\]]*\]\s*(.*)", line)) is not None:
            if int(rank[1]) == 0:
                ranks = {}
            ranks[int(rank[1])] = rank[2].strip()
        elif test in COLLECTIVES and (row := _row(line, test)) is not None:
            rows.append(row)
            members.append(len(ranks))
    if not any(_TESTS.get(name.removesuffix("_perf"), name.removesuffix("_perf")) in COLLECTIVES for name in names):
        raise MeshError(
            f"The log names {names[0] if names else 'no test'} of nccl-tests that has a model; it should have a line with "
            f"all_reduce_perf, all_gather_perf, reduce_scatter_perf, alltoall_perf, broadcast_perf or sendrecv_perf."
        )
    if not rows:
        raise MeshError(
            f"The log of {names[0]} has no line with a size, a time, and the algorithm bandwidth that follows from both, in "
            f"the columns of nccl-tests. Give the text that the test prints."
        )
    if not all(members):
        raise MeshError(
            f"The log of {names[0]} has no lines '# Rank 0 … device 0 [0x07] NVIDIA …' above its times: they say how many "
            f"devices took part. Give all that the test prints."
        )
    if len(set(members)) > 1:
        counts = " and ".join(map(str, sorted(set(members))))
        raise MeshError(f"The log has tests over {counts} devices. Calibrate them one by one: a file for each number.")
    return fitted(rows, members[0], ranks.get(0, ""))


def _row(line: str, test: str) -> Measured | None:
    """size, count, type, redop and root, then time, algbw, busbw and errors, out of place and in place."""
    cells = re.sub(r"\[[^\]]*\](<\w+>:?)?", " ", line).split()  # mpirun may put the rank before each part of a line
    if len(cells) < 7 or not (cells[0].isdigit() and cells[1].isdigit()):
        return None
    first = -8 if len(cells) >= 11 else -4
    try:
        micros, rate = float(cells[first]), float(cells[first + 1])
    except ValueError:
        return None  # a line of something else
    size = int(cells[0])
    if not 0 < micros < math.inf or abs(rate - size / micros / 1e3) > 0.02 * rate + 0.011:  # both are rounded
        return None  # other columns, or a line that was cut
    return Measured(test, size, micros * 1e-6)
