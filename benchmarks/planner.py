"""Planning whole decoders: seconds from trace to plan, of which search; why_not; the certificate; growth with layers."""

import math
import sys
import time
from pathlib import Path

import numpy as np

import shardwright as sw
from shardwright import P

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import decoder


def planned(layers: int, mesh: sw.Mesh, memory: float | None = None) -> tuple[float, sw.planner.Plan]:
    """Seconds of planning, and the plan."""
    decoder.LAYERS = layers
    args = sw.ShapeDtype((decoder.BATCH, decoder.LENGTH), np.int32), decoder.parameters()
    start = time.perf_counter()
    plan = sw.auto(decoder.decoder, mesh, *args, memory=memory)
    return time.perf_counter() - start, plan


def row(layers: int, sizes: tuple[int, ...], goal: float) -> float:
    """One line: the first plan of such a mesh in this process, and what can be asked of it."""
    mesh = sw.Mesh(sizes, ("dp", "tp", "pp")[: len(sizes)], hardware="h100")
    cold, plan = planned(layers, mesh)
    warm, plan = planned(layers, mesh)
    start = time.perf_counter()
    plan.why_not("params/layers/0/out", P("tp"))
    why = time.perf_counter() - start
    certificate = plan.certificate
    start = time.perf_counter()
    certificate.check()
    check = time.perf_counter() - start
    name = "×".join(map(str, sizes))
    print(
        f"{layers:4} layers on {name:8} first {cold:6.2f} s (goal {goal}), again {warm:6.2f} s, "
        f"why_not {why:5.2f} s (goal 0.5), check {check:5.2f} s (goal 0.1), gap {plan.gap:.1e}"
    )
    return warm


def within(layers: int, sizes: tuple[int, ...]) -> None:
    """Lines for parts of the memory that the best plan takes."""
    mesh = sw.Mesh(sizes, ("dp", "tp"), hardware="h100")
    most = planned(layers, mesh)[1].memory
    for part in (0.75, 0.5, 0.25):
        took, plan = planned(layers, mesh, part * most)
        print(
            f"{layers:4} layers on {'×'.join(map(str, sizes)):8} in {part} of its memory {took:6.2f} s, gap {plan.gap:.1e}"
        )


def main() -> None:
    """All lines of the issue."""
    row(12, (8, 8), 0.3)
    times = {layers: row(layers, (64, 8), 1.5) for layers in (25, 50, 100)}
    print(f"growth with layers: exponent {math.log(times[100] / times[25]) / math.log(4):.2f}")
    if "--all" in sys.argv:
        within(100, (64, 8))
        row(100, (8, 8, 8), 4)
        row(100, (2, 2, 2), 4)


if __name__ == "__main__":
    main()
