"""Operations on sharded arrays, against the same work in plain NumPy."""

import time
import tracemalloc

import numpy as np
from harness import best_of, ratio, report

import shardwright as sw
import shardwright.numpy as snp
from shardwright import P, nn

MESH = sw.Mesh(data=2, model=4)


def overhead() -> None:
    """What a warm eager operation adds to NumPy's own time for the same lanes."""
    x = sw.shard(np.random.default_rng(0).standard_normal((64, 64)), MESH, P("data", "model"))
    y = sw.shard(np.random.default_rng(1).standard_normal((64, 64)), MESH, P("data", "model"))
    a, b = x.data, y.data
    ours, numpys = best_of(lambda: x + y, lambda: np.add(a, b), number=5000, rounds=15)
    report(
        "warm x + y of 64×64, added to NumPy's time",
        (ours - numpys) * 1e6,
        3,
        "µs",
        f"{ours * 1e6:.2f} against {numpys * 1e6:.2f}",
    )
    rows = sw.shard(np.ones((64, 64)), MESH, P(("data", "model")))
    whole = sw.replicate(np.ones((64, 64)), MESH)
    a, b = rows.data.reshape(64, 64), whole.data.reshape(64, 64)
    ours, numpys = best_of(lambda: rows @ whole, lambda: np.matmul(a, b), number=2000, rounds=15)
    report(
        "warm x @ y of 64×64, added to NumPy's time",
        (ours - numpys) * 1e6,
        3,
        "µs",
        f"{ours * 1e6:.2f} against {numpys * 1e6:.2f}",
    )


def large() -> None:
    rng = np.random.default_rng(0)
    A, B = (rng.standard_normal((2048, 2048), np.float32) for _ in range(2))
    goal = 1 / 0.9
    for name, left, right in (
        ("row-sharded", P(("data", "model")), P()),
        ("column-sharded", P(), P(None, ("data", "model"))),
        ("2-D", P("data", None), P(None, "model")),
        ("2-D × 2-D", P("data", "model"), P("data", "model")),
        ("inner-sharded, reduced", P(None, ("data", "model")), P(("data", "model"))),
    ):
        x, y = sw.shard(A, MESH, left), sw.shard(B, MESH, right)
        ratio(f"matmul 2048² float32, {name}", lambda x=x, y=y: np.asarray(x @ y), lambda: A @ B, goal, rounds=11)
    big = rng.standard_normal((4096, 4096), np.float32)
    for spec in (P("data"), P("data", "model"), P(("model", "data"))):
        x = sw.shard(big, MESH, spec, copy=False)
        ratio(f"sum of 64 MiB, {spec}", lambda x=x: float(snp.sum(x)), lambda: float(np.sum(big)), goal)
    x = sw.shard(big, MESH, P("data", "model"), copy=False)

    def chain(v: object) -> object:
        for _ in range(5):
            v = v * 1.5 + 0.25  # type: ignore[operator]
        return v

    ratio("a chain of 10 operations on 64 MiB", lambda: chain(x), lambda: chain(big), goal, rounds=5)


def devices() -> None:
    """The same network on meshes of 1 to 4096 devices: time and memory stay flat."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((4096, 1024), np.float32)
    up, down = rng.standard_normal((1024, 4096), np.float32), rng.standard_normal((4096, 1024), np.float32)
    expected = np.maximum(inputs @ up, 0) @ down
    times, peaks, runs = {}, {}, {}
    for count, shape in ((1, (1, 1)), (8, (2, 4)), (64, (8, 8)), (512, (16, 32)), (4096, (64, 64))):
        mesh = sw.Mesh(shape, ("data", "model"))
        x = sw.shard(inputs, mesh, P("data"), copy=False)
        w1, w2 = sw.shard(up, mesh, P(None, "model"), copy=False), sw.shard(down, mesh, P("model"), copy=False)
        runs[count] = lambda x=x, w1=w1, w2=w2: np.asarray(nn.relu(x @ w1) @ w2)
        tracemalloc.start()
        result = runs[count]()
        peaks[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        np.testing.assert_allclose(result, expected, rtol=2e-3, atol=2e-2)
    for count, seconds in zip(runs, best_of(*runs.values(), rounds=5), strict=True):
        times[count] = seconds
    for count in (8, 64, 512, 4096):
        report(
            f"an MLP on {count} devices, time against 1 device",
            times[count] / times[1],
            1.5,
            "×",
            f"{times[count] * 1e3:.0f} ms",
        )
        report(f"an MLP on {count} devices, memory against 1 device", peaks[count] / peaks[1], 1.5, "×")


def cold() -> None:
    """The first use of operations on three axes of 512 devices; the best of several meshes, each met for the first time."""
    cases = {
        "x + y": (lambda x, y: x + y, "a|b", "a|b"),
        "x @ y, no conflict": (lambda x, y: x @ y, "a|", "|b"),
        "x @ y, two operands split three ways": (lambda x, y: x @ y, "a|b", "c|a"),
        "sum": (lambda x, y: snp.sum(x, axis=0), "ab|c", "|"),
        "reshape": (lambda x, y: snp.reshape(x, (8, 8, 64)), "a|b", "|"),
    }
    for name, (run, left, right) in cases.items():
        best = float("inf")
        for turn in range(15):
            mesh = sw.Mesh({f"{axis}{turn}": 8 for axis in "abc"})
            x, y = (
                sw.shard(np.ones((64, 64)), mesh, P(*([f"{axis}{turn}" for axis in dim] for dim in spec.split("|"))))
                for spec in (left, right)
            )
            start = time.perf_counter()
            run(x, y)
            best = min(best, time.perf_counter() - start)
        report(f"cold {name} on 512 devices", best * 1e3, 2, "ms")


def main() -> None:
    overhead()
    large()
    devices()
    cold()


if __name__ == "__main__":
    main()
