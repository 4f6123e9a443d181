"""`shardwright demo`: a two-layer network over a virtual 2×4 mesh, what lies where, and a check against NumPy."""

import numpy as np

from shardwright import collectives as c
from shardwright.array import shard
from shardwright.mesh import Mesh
from shardwright.per_device import PerDevice
from shardwright.shard_map import shard_map
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

    def layer(x: PerDevice, w1: PerDevice, w2: PerDevice) -> PerDevice:
        hidden = x.map(np.matmul, w1).map(lambda h: np.maximum(h, 0))
        return c.all_reduce(hidden.map(np.matmul, w2), "model")

    specs = (P("data", None), P(None, "model"), P("model", None))
    y = shard_map(layer, mesh, specs, P("data", None))(x, w1, w2)

    print(f"A two-layer network on {mesh}: batch over data, hidden units over model.\n")
    for name, array in (("inputs", x), ("first weights", w1), ("second weights", w2), ("outputs", y)):
        print(f"{name}: {picture(array)}\n")
    expected = np.maximum(inputs @ up, 0) @ down
    error = float(np.max(np.abs(np.asarray(y) - expected)))
    right = error < 1e-4
    print(
        f"Each device multiplied its own shards; one all_reduce over model added {mesh.sizes['model']} partial results."
    )
    print(f"Largest difference from plain NumPy: {error:.1e}. {'The result is right.' if right else 'WRONG.'}")
    return 0 if right else 1
