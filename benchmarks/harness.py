"""Timing side by side: ours and the peer's take turns, the best of each counts, and the ratio is printed."""

import time
from collections.abc import Callable

MISSED: list[str] = []


def best_of(*functions: Callable[[], object], rounds: int = 7, number: int = 1) -> list[float]:
    """The best time of each function in seconds per call, measured in turns so that all meet the same machine."""
    times = [float("inf")] * len(functions)
    for function in functions:
        function()
    for _ in range(rounds):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            for _ in range(number):
                function()
            times[i] = min(times[i], (time.perf_counter() - start) / number)
    return times


def report(name: str, value: float, goal: float, unit: str, detail: str = "") -> None:
    """Print a figure against its goal; smaller is better."""
    kept = value <= goal
    if not kept:
        MISSED.append(name)
    print(f"{'ok    ' if kept else 'MISSED'} {name:<64} {value:8.2f} {unit:<4} (goal ≤ {goal:g}) {detail}", flush=True)


def ratio(name: str, ours: Callable[[], object], theirs: Callable[[], object], goal: float, **options: int) -> None:
    """Print our time as a multiple of the peer's."""
    a, b = best_of(ours, theirs, **options)
    report(name, a / b, goal, "×", f"{a * 1e3:.3f} ms against {b * 1e3:.3f} ms")


def microseconds(name: str, ours: Callable[[], object], goal: float, number: int = 1000) -> None:
    """Print the time of one call."""
    (a,) = best_of(ours, number=number)
    report(name, a * 1e6, goal, "µs")
