"""Planning whole decoders: seconds from trace to plan; why_not; the certificate; growth with layers; memory that binds."""

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from harness import MISSED, report

import shardwright as sw
from shardwright import P

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import decoder


def planned(layers: int, mesh: sw.Mesh, memory: float | None = None) -> tuple[float, sw.planner.Plan]:
    """Seconds of planning, and the plan."""
    decoder.LAYERS = layers
    args = sw.ShapeDtype((decoder.BATCH, decoder.LENGTH), np.int32), decoder.parameters()
    return timed(lambda: sw.auto(decoder.decoder, mesh, *args, memory=memory))


def timed(run: Callable[[], sw.planner.Plan]) -> tuple[float, sw.planner.Plan]:
    """Seconds that something takes, and what it gives."""
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def row(layers: int, sizes: tuple[int, ...], goal: float, check: float = 0.1) -> float:
    """The first plan of such a mesh in this process, and what can be asked of it; seconds of another plan."""
    mesh = sw.Mesh(sizes, ("dp", "tp", "pp")[: len(sizes)], hardware="h100")
    first, _ = planned(layers, mesh)
    again, plan = planned(layers, mesh)
    name = f"{layers} layers on {'×'.join(map(str, sizes))}"
    report(f"{name}: trace to plan", first, goal, "s", f"again {again:.2f} s, gap {plan.gap:.0e}")
    report(f"{name}: why_not", timed(lambda: plan.why_not("params/layers/0/out", P("tp")))[0], 0.5, "s")
    certificate = plan.certificate
    report(f"{name}: first check", timed(certificate.check)[0], check, "s")
    report(f"{name}: check again", timed(certificate.check)[0], 0.1, "s")
    return again


def many_axes(layers: int, sizes: tuple[int, ...]) -> None:
    """A mesh on which most moves count with floors."""
    mesh = sw.Mesh(sizes, tuple("abcd"), hardware="h100")
    took, plan = planned(layers, mesh)
    name = f"{layers} layer on {'×'.join(map(str, sizes))}"
    report(f"{name}: trace to plan", took, 30, "s", f"gap {plan.gap:.0e}")
    report(f"{name}: first check", timed(plan.certificate.check)[0], 30, "s")


def within(layers: int, sizes: tuple[int, ...]) -> None:
    """Parts of the memory that the best plan takes."""
    mesh = sw.Mesh(sizes, ("dp", "tp"), hardware="h100")
    most = planned(layers, mesh)[1].memory
    for part in (0.75, 0.5, 0.25):
        took, plan = planned(layers, mesh, part * most)
        name = f"{layers} layers on {'×'.join(map(str, sizes))} in {part} of its memory"
        report(name, took, 5, "s", f"gap {plan.gap:.1e}")


def main() -> None:
    row(12, (8, 8), 0.3)
    times = {layers: row(layers, (64, 8), 1.5) for layers in (25, 50, 100)}
    report("growth with layers: exponent", math.log(times[100] / times[25]) / math.log(4), 1.2, "")
    row(100, (8, 8, 8), 4, check=0.5)
    row(100, (2, 2, 2), 4, check=0.5)
    within(100, (64, 8))
    many_axes(1, (2, 8, 8, 4))


if __name__ == "__main__":
    main()
    sys.exit(1 if MISSED else 0)
