"""Resharding: planning, and running on the default engine against the one transposing copy it amounts to."""

import operator
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from harness import microseconds, ratio, report

import shardwright as sw
from shardwright import P
from shardwright.plan import move_costs
from shardwright.plan.search import states_between

CHANGES = {
    "3 axes of 512": (
        {"a": 8, "b": 8, "c": 8},
        1.0,
        [
            (P("a", "b", "c"), P("c", "a", "b")),
            (P(("a", "b"), "c"), P(None, "c", ("b", "a"))),
            (P("a", "b"), P()),
            (P("a"), P("a", "b")),
        ],
    ),
    "4 axes of 4096": (
        {"a": 8, "b": 8, "c": 8, "d": 8},
        5.0,
        [
            (P("a", "b", "c"), P("c", "a", ("b", "d"))),
            (P(("a", "b"), "c", "d"), P("d", "c", ("b", "a"))),
            (P(("a", "b", "c", "d")), P()),
        ],
    ),
}
SHAPE = (4096, 4096, 4096)
MILLION = [  # devices
    ({"a": 128, "b": 128, "c": 64}, P(("a", "b", "c")), P(None, ("c", "b", "a"))),
    ({"a": 128, "b": 128, "c": 64}, P("a", "b", "c"), P("c", "a", "b")),
    ({"x": 1024, "y": 1024}, P(("x", "y")), P(("y", "x"))),
    ({"x": 1024, "y": 1024}, P(("x", "y")), P()),
    ({"x": 1024, "y": 1024}, P(("x", "y")), P("y", "x")),
    ({"x": 1024, "y": 1024}, P(("x", "y")), P("x")),
    ({"x": 1024, "y": 1024}, P("x"), P(("y", "x"))),
    ({"x": 1024, "y": 1024}, P("x"), P("y")),
    ({"a": 128, "b": 128, "c": 64}, P(("a", "b"), "c"), P("c", "a")),
]


def cold(make: Callable[[int], Callable[[], object]]) -> float:
    """The best of seven first calls, each on a new mesh, in milliseconds."""
    best = float("inf")
    for number in range(7):
        call = make(number)
        states_between.cache_clear()  # chains are kept for all meshes of one pattern
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def planning() -> None:
    for name, (sizes, goal, changes) in CHANGES.items():
        for at, (source, target) in enumerate(changes):

            def make(number: int, source: P = source, target: P = target, at: int = at, sizes: dict = sizes):
                mesh = sw.Mesh(sizes, links=sw.Link(bandwidth=100e9 + 100 * at + number))
                return lambda: sw.plan_reshard(SHAPE, np.float32, mesh, source, target)

            report(f"plan {source} → {target}, {name}", cold(make), goal, "ms")
        mesh = sw.Mesh(sizes)
        source, target = changes[-1]
        args = SHAPE, np.float32, mesh, source, target
        microseconds(f"warm plan, {name}", partial(sw.plan_reshard, *args), 5)
        here, there = (sw.Sharding(mesh, spec).for_shape(SHAPE) for spec in (source, target))
        microseconds(
            f"warm cost without a plan, {name}", partial(move_costs, here, there, SHAPE, np.dtype(np.float32)), 20
        )


def many_devices() -> None:
    for size in (2**20, 2**20 + 7):
        for at, (sizes, source, target) in enumerate(MILLION):

            def make(
                number: int, source: P = source, target: P = target, at: int = at, sizes: dict = sizes, size: int = size
            ):
                mesh = sw.Mesh(sizes, links=sw.Link(bandwidth=100e9 + 100 * at + number))
                return lambda: sw.plan_reshard((size,) * 3, np.float32, mesh, source, target).explain()

            report(f"plan and explain {source} → {target}, 1 M devices, size {size}", cold(make), 5, "ms")


def many_offsets() -> None:
    """A million offsets given one by one: set against checking that they are integers that never decrease."""
    size = 3 * 2**20 + 5
    inner = np.random.default_rng(0).integers(0, size, 2**20 - 1)
    cuts = (0, *np.sort(inner).tolist(), size)
    number = iter(range(100))

    def planned() -> object:
        mesh = sw.Mesh(x=1024, y=1024, links=sw.Link(bandwidth=100e9 + next(number)))
        source = sw.Sharding(mesh, P(("x", "y")), offsets={0: cuts})
        return sw.plan_reshard((size,), np.float32, mesh, source, P(("x", "y")))

    def read() -> object:
        return set(map(type, cuts)) == {int} and any(map(operator.gt, cuts, cuts[1:]))

    ratio("plan from a million given offsets, against reading them once", planned, read, 20, rounds=3)


def over_slow_links() -> None:
    mesh = sw.Mesh(node=4, g=8, links={"node": sw.Link(bandwidth=12.5e9)})
    plan = sw.plan_reshard((2**28,), np.float32, mesh, P(("node", "g")), P())
    report("predicted time of gathering 1 GiB over a slow outer axis", plan.time * 1e3, 18, "ms")

    def make(number: int) -> Callable[[], object]:
        mesh = sw.Mesh(node=4, g=8, links={"node": sw.Link(bandwidth=12.5e9 + 1 + number)})
        return lambda: sw.plan_reshard((2**28,), np.float32, mesh, P(("node", "g")), P())

    report("its plan", cold(make), 1, "ms")


def running() -> None:
    host = np.random.default_rng(0).standard_normal((4096, 4096), np.float32)
    mesh = sw.Mesh(x=2, y=4)
    x = sw.shard(host, mesh, P("x", "y"), copy=False)

    def transposed() -> object:  # each device's blocks in the other order
        return np.ascontiguousarray(host.reshape(4, 1024, 2, 2048).transpose(0, 2, 1, 3))

    ratio("(x, y) → (y, x) of 64 MiB, against one transposing copy", lambda: x.reshard(P("y", "x")), transposed, 1.3)

    def laid_out() -> object:  # ours too, with every shard contiguous
        return np.ascontiguousarray(x.reshard(P("y", "x")).data)

    ratio("the same with contiguous shards", laid_out, transposed, 1.3)
    whole = sw.replicate(host, mesh, copy=False)
    shared = np.shares_memory(whole.reshard(P("x", "y")).data, host)
    report("bytes copied by slices of replicated data", 0 if shared else host.nbytes, 0, "B")


def main() -> None:
    planning()
    many_devices()
    many_offsets()
    over_slow_links()
    running()


if __name__ == "__main__":
    main()
