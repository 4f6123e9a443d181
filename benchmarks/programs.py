"""Programs: what a warm call adds to NumPy's own, what lowering a transformer costs, how that grows."""

import gc
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from harness import best_of, report

import shardwright as sw
import shardwright.numpy as snp
from shardwright import P, nn
from shardwright.program import Type, lower, trace

MESH = sw.Mesh(data=2, model=4)


def ten(x, y):
    a = x + y
    b = a * x
    c = b - y
    d = c * 2.0
    e = d + a
    f = e * e
    g = f - x
    h = g + 1.0
    i = h * y
    return i - a


def warm() -> None:
    x, y = (sw.shard(np.ones((8, 8)), MESH, P("data", "model")) for _ in range(2))
    step = sw.sjit(ten)
    a, b = x.data, y.data
    ours, numpys = best_of(lambda: step(x, y), lambda: ten(a, b), number=2000, rounds=15)
    detail = f"{ours * 1e6:.2f} against {numpys * 1e6:.2f}"
    report("warm sjit of 10 operations on 8×8, added to NumPy's time", (ours - numpys) * 1e6, 15, "µs", detail)


def block(x, p):
    """One layer of a transformer: attention and an MLP, with their norms."""
    batch, length, width = x.shape
    heads = 16
    h = nn.layer_norm(x, p["n1"], p["b1"])
    q, k, v = (
        snp.permute_dims(snp.reshape(h @ p[name], (batch, length, heads, width // heads)), (0, 2, 1, 3))
        for name in ("q", "k", "v")
    )
    a = nn.scaled_dot_product_attention(q, k, v, causal=True)
    x = x + snp.reshape(snp.permute_dims(a, (0, 2, 1, 3)), (batch, length, width)) @ p["o"]
    h = nn.layer_norm(x, p["n2"], p["b2"])
    return x + nn.gelu(h @ p["up"]) @ p["down"]


SPECS = {
    "n1": P(), "b1": P(), "n2": P(), "b2": P(),
    "q": P("fsdp", "model"), "k": P("fsdp", "model"), "v": P("fsdp", "model"), "o": P("model", "fsdp"),
    "up": P("fsdp", "model"), "down": P("model", "fsdp"),
}  # fmt: skip


def transformer(layers: int, mesh: sw.Mesh, width: int = 1024, length: int = 512, batch: int = 64):
    """The inputs' types and shardings, and the function."""
    shapes = {"n1": (width,), "b1": (width,), "n2": (width,), "b2": (width,), "up": (width, 4 * width)}
    shapes |= dict.fromkeys("qkvo", (width, width)) | {"down": (4 * width, width)}
    names = sorted(shapes)
    types = [Type((batch, length, width), np.dtype(np.float32))]
    shardings = [sw.Sharding(mesh, P(("data", "fsdp")))]
    for _ in range(layers):
        types += [Type(shapes[name], np.dtype(np.float32)) for name in names]
        shardings += [sw.Sharding(mesh, SPECS[name]) for name in names]

    def forward(x, *weights):
        for at in range(layers):
            x = block(x, dict(zip(names, weights[at * len(names) :], strict=False)))
        return [x]

    return forward, types, shardings


def lowering() -> None:
    best, nodes = float("inf"), 0
    for number in range(3):
        mesh = sw.Mesh(data=8, fsdp=8, model=8, links=sw.Link(bandwidth=1e11 + number))
        forward, types, shardings = transformer(12, mesh)
        start = time.perf_counter()
        program, _ = trace(forward, types, mesh, [f"input {i}" for i in range(len(types))])
        final = lower(program, shardings)
        best = min(best, time.perf_counter() - start)
        nodes = len(program.nodes)
    detail = f"{nodes} nodes traced, {len(final.nodes)} final"
    report("12-layer transformer on 512 devices, traced to final", best, 1, "s", detail)


def explaining() -> None:
    """An 8B decoder on 64 devices from its shapes to its table, in a process of its own."""
    example = Path(__file__).parents[1] / "examples" / "decoder.py"
    code = f"""
import resource, runpy, time
import shardwright
example = runpy.run_path({str(example)!r})
start = time.perf_counter()
text = str(example["main"]())
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    seconds, gigabytes = min(tuple(map(float, run.stdout.split())) for run in runs)
    report("32-layer 8B decoder on 64 devices, explained", seconds, 1.5, "s")
    report("memory of the process that explains it", gigabytes, 1, "GiB")


def growth() -> None:
    """Seconds a node for a long chain, against those for a short one."""
    per_node = []
    for count in (1000, 10_000):
        x = Type((64, 64), np.dtype(np.float64))

        def chain(x, count=count):
            for at in range(count // 4):
                x = snp.tanh(x @ x) + x * float(at)
            return [x]

        best = float("inf")
        for _ in range(4):
            gc.collect()
            start = time.perf_counter()
            program, _ = trace(chain, [x], MESH, ["x"])
            lower(program, [sw.Sharding(MESH, P("data", "model"))])
            best = min(best, (time.perf_counter() - start) / len(program.nodes))
        per_node.append(best)
    report(
        "time a node at 10,000 nodes against 1,000", per_node[1] / per_node[0], 1.5, "×", f"{per_node[1] * 1e6:.0f} µs"
    )


def main() -> None:
    warm()
    lowering()
    explaining()
    growth()


if __name__ == "__main__":
    main()
