"""The MLIR front end: reading and verifying 10,000 operations, and a local-view program against the NumPy calls it comes to."""

import time

import numpy as np
from harness import ratio, report

import shardwright as sw

LAYER = """
mesh.mesh @m(shape = 2x4)
func.func @layer(%x: tensor<{n}x{k}xf32>, %w: tensor<{k}x{k}xf32>, %b: tensor<{n}x{k}xf32>) -> tensor<{m}x{k}xf32> {{
  %e = tensor.empty() : tensor<{n}x{k}xf32>
  %p = linalg.matmul ins(%x, %w : tensor<{n}x{k}xf32>, tensor<{k}x{k}xf32>) outs(%e : tensor<{n}x{k}xf32>)
    -> tensor<{n}x{k}xf32>
  %s = mesh.all_reduce %p on @m mesh_axes = [1] : tensor<{n}x{k}xf32> -> tensor<{n}x{k}xf32>
  %a = arith.addf %s, %b : tensor<{n}x{k}xf32>
  %z = arith.constant dense<0.0> : tensor<{n}x{k}xf32>
  %r = arith.maximumf %a, %z : tensor<{n}x{k}xf32>
  %y = mesh.all_gather %r on @m mesh_axes = [0] gather_axis = 0 : tensor<{n}x{k}xf32> -> tensor<{m}x{k}xf32>
  return %y : tensor<{m}x{k}xf32>
}}"""


def long_text(count: int) -> str:
    """A function of about as many operations."""
    lines = ["mesh.mesh @m(shape = 2x4)", "func.func @f(%x0: tensor<8x8xf32>) -> tensor<8x8xf32> {"]
    kind, last = "tensor<8x8xf32>", 0
    for at in range(count // 3):
        lines += [
            f"  %y{at} = mesh.all_reduce %x{at} on @m mesh_axes = [1] : {kind} -> {kind}",
            f"  %z{at} = arith.addf %y{at}, %x{at} : {kind}",
            f"  %x{at + 1} = mesh.all_to_all %z{at} on @m mesh_axes = [0] split_axis = 0 concat_axis = 0 : {kind} -> {kind}",
        ]
        last = at + 1
    return "\n".join([*lines, f"  return %x{last} : {kind}", "}"])


def numpy_layer(xs: list, ws: list, bs: list) -> list:
    """What the layer's operations come to on 8 devices of a 2 × 4 mesh, in NumPy."""
    products = [x @ w for x, w in zip(xs, ws, strict=True)]
    sums = [np.sum(products[4 * row : 4 * row + 4], axis=0) for row in range(2)]
    made = [np.maximum(sums[place // 4] + b, np.float32(0)) for place, b in enumerate(bs)]
    return [np.concatenate([made[column], made[4 + column]]) for column in range(4)]


def main() -> None:
    text = long_text(10_000)
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        assert sw.mlir.verify(text) == []
        best = min(best, time.perf_counter() - start)
    report("mlir: parsing and verifying 10,000 operations", best, 5, "s")
    for n, k in ((128, 256), (512, 512)):
        fn = sw.mlir.loads(LAYER.format(n=n, m=2 * n, k=k))["layer"]
        rng = np.random.default_rng(0)
        given = [[rng.normal(size=shape).astype(np.float32) for _ in range(8)] for shape in ((n, k), (k, k), (n, k))]
        values = [sw.PerDevice(fn.mesh, tensors) for tensors in given]
        for ours, theirs in zip(fn(*values).values()[:4], numpy_layer(*given), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
        ratio(
            f"mlir: a layer of {n}×{k} on 8 devices against NumPy's calls",
            lambda fn=fn, values=values: fn(*values),
            lambda given=given: numpy_layer(*given),
            2,
            rounds=15,
        )


if __name__ == "__main__":
    main()
