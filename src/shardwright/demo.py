"""`shardwright demo`: a two-layer network over a virtual 2×4 mesh, its shards, every step with its bytes, a check."""

import numpy as np

from shardwright import nn
from shardwright.arrays import shard
from shardwright.mesh import Mesh
from shardwright.program import measure
from shardwright.sharding import P
from shardwright.viz import picture


def demo() -> int:
    """Print the demo; 0 if the sharded result equals NumPy's."""
    mesh = Mesh(data=2, model=4)
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((10, 16), np.float32)
    up = rng.standard_normal((16, 30), np.float32)  # 30 does not divide by 4: the last shards are short
    down = rng.standard_normal((30, 8), np.float32)
    x = shard(inputs, mesh, P("data", None))
    w1 = shard(up, mesh, P(None, "model"))
    w2 = shard(down, mesh, P("model", None))
    y = nn.relu(x @ w1) @ w2

    print(f"A two-layer network on {mesh}: batch over data, hidden units over model.\n")
    for name, array in (("inputs", x), ("first weights", w1), ("second weights", w2), ("outputs", y)):
        print(f"{name}: {picture(array)}\n")
    print(
        "Every step that runs: the bytes that the busiest device receives as predicted (bytes), the least that any way needs"
    )
    print("(bound), and as counted when each message was sent between separate arrays, one a device (counted):\n")
    measured = measure(lambda x, w1, w2: nn.relu(x @ w1) @ w2, x, w1, w2)
    print(measured)
    truthful = all(row.counted == row.bytes for row in measured.rows)
    expected = np.maximum(inputs @ up, 0) @ down
    error = float(np.max(np.abs(np.asarray(y) - expected)))
    right = error < 1e-4 and truthful
    print(f"\nLargest difference from plain NumPy: {error:.1e}. {'The result is right.' if right else 'WRONG.'}")
    return 0 if right else 1
