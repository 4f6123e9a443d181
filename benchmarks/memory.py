"""Memory over 100,000 calls with ever new shapes, bounds and numbers: what is held beyond the arrays levels off."""

import gc
import sys
import warnings
from collections.abc import Callable
from itertools import cycle, islice

import numpy as np
from harness import MISSED, report

import shardwright as sw
import shardwright.numpy as snp
from shardwright import P, nn

CALLS = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
MESH = sw.Mesh(data=2, model=4)
SPECS = (P("data", "model"), P("model"), P(None, "data"), P(("data", "model")))
RNG = np.random.default_rng(0)
BIG = sw.shard(RNG.standard_normal((1024, 1024), np.float32), MESH, P("data", "model"))
WEIGHTS = sw.shard(RNG.standard_normal((48, 48), np.float32), MESH, P("model", "data"))
HOST = np.ones((4000, 48), np.float32)


def resident() -> float:
    """MB of memory that the process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


def rows() -> sw.Array:
    """An array of one of 16,000 kinds."""
    size, spec = RNG.integers(1, len(HOST)), SPECS[RNG.integers(len(SPECS))]
    return sw.shard(HOST[:size], MESH, spec, copy=False)


def a_slice() -> sw.Array:
    low, high = sorted(map(int, RNG.integers(0, 1025, 2)))
    return BIG[low:high, int(RNG.integers(512)) :]


def a_reshape() -> sw.Array:
    x = rows()
    return snp.reshape(x, (x.shape[0] * 4, 12))


def a_reshard() -> sw.Array:
    return rows().reshard(SPECS[RNG.integers(len(SPECS))])


@sw.sjit
def update(w: sw.Array, gradient: sw.Array, rate: float) -> sw.Array:
    return w - gradient * rate


@sw.sjit
def forward(x: sw.Array, w: sw.Array) -> sw.Array:
    return nn.softmax(nn.relu(x @ w) + 1.0)


def some() -> sw.Array:
    """Of few rows, as many programs as an application with batches of all sizes has."""
    return sw.shard(HOST[: RNG.integers(1, 500)], MESH, SPECS[RNG.integers(len(SPECS))], copy=False)


def a_program() -> sw.Array:
    """One call in two is a program for a new rate, the others are programs for new shapes and old ones."""
    return update(WEIGHTS, WEIGHTS, float(RNG.random())) if RNG.integers(2) else forward(some(), WEIGHTS)


WORK: tuple[Callable[[], object], ...] = (
    a_slice,
    lambda: rows() @ WEIGHTS,
    lambda: snp.sum(rows(), axis=int(RNG.integers(2))),
    lambda: nn.softmax(rows()),
    a_reshape,
    a_reshard,
    lambda: rows() * float(RNG.random()) + rows().shape[0],
    a_program,
    lambda: snp.concat([rows(), WEIGHTS]),
    lambda: BIG[int(RNG.integers(1024))],
)


def main() -> int:
    warnings.simplefilter("ignore", sw.errors.RetraceWarning)  # new rates are what this is about
    for work in WORK:
        work()
    gc.collect()
    start, calls, held = resident(), cycle(WORK), []
    print(f"{start:.0f} MB with all imports and arrays, before the calls; then beyond these:")
    for done in range(CALLS // 10, CALLS + 1, CALLS // 10):
        for work in islice(calls, CALLS // 10):
            work()
        held.append(resident() - start)
        print(f"       after {done:7,} calls {held[-1]:6.0f} MB", flush=True)
    report(f"memory beyond the arrays after {CALLS:,} calls", held[-1], 200, "MB")
    report("what the second half of the calls added to it", held[-1] - held[len(held) // 2 - 1], 20, "MB")
    return 1 if MISSED else 0


if __name__ == "__main__":
    sys.exit(main())
