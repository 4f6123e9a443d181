"""Work that once was much slower than plain NumPy on whole tensors, or than torch: ratios against both in one run."""

import gc
import time
import tracemalloc

import numpy as np
import torch
from harness import best_of, ratio, report

import shardwright as sw
import shardwright.numpy as snp
from programs import transformer
from shardwright import P, nn
from shardwright.program import lower, trace

MESH = sw.Mesh(data=2, model=4)
RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


# -- the same network in plain NumPy ----------------------------------------------------------------------------------------


def np_softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def np_norm(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(1e-5))


def np_block(x: np.ndarray, p: dict, heads: int) -> np.ndarray:
    batch, length, width = x.shape
    h = np_norm(x)
    q, k, v = ((h @ p[n]).reshape(batch, length, heads, -1).transpose(0, 2, 1, 3) for n in "qkv")
    a = np_softmax(q @ k.swapaxes(-1, -2) / np.float32(np.sqrt(width // heads))) @ v
    x = x + a.transpose(0, 2, 1, 3).reshape(batch, length, width) @ p["o"]
    return x + np.maximum(np_norm(x) @ p["up"], 0) @ p["down"]


def our_block(x: sw.Array, p: dict, heads: int) -> sw.Array:
    batch, length, width = x.shape
    h = nn.layer_norm(x)
    q, k, v = (
        snp.permute_dims(snp.reshape(h @ p[n], (batch, length, heads, width // heads)), (0, 2, 1, 3)) for n in "qkv"
    )
    a = nn.softmax(q @ snp.matrix_transpose(k) / float(np.sqrt(width // heads))) @ v
    x = x + snp.reshape(snp.permute_dims(a, (0, 2, 1, 3)), (batch, length, width)) @ p["o"]
    return x + nn.relu(nn.layer_norm(x) @ p["up"]) @ p["down"]


SPECS = {"q": P(None, "model"), "k": P(None, "model"), "v": P(None, "model"), "o": P("model"), "up": P(None, "model"),
         "down": P("model")}  # fmt: skip


def block_case(mesh: sw.Mesh, batch: int, length: int, width: int) -> tuple:
    shapes = dict.fromkeys("qkvo", (width, width)) | {"up": (width, 4 * width), "down": (4 * width, width)}
    host = {name: floats(*shape) / np.float32(np.sqrt(width)) for name, shape in shapes.items()}
    x = floats(batch, length, width)
    p = {name: sw.shard(value, mesh, SPECS[name], copy=False) for name, value in host.items()}
    return x, host, sw.shard(x, mesh, P("data"), copy=False), p


def blocks() -> None:
    for kind, (batch, length, width), heads, goal in (
        ("even", (8, 256, 512), 8, 1.05),
        ("prime", (7, 251, 509), 1, 1.25),
    ):
        x, host, ours, p = block_case(MESH, batch, length, width)
        step = sw.sjit(our_block, static_argnums=2)
        np.testing.assert_allclose(np.asarray(step(ours, p, heads)), np_block(x, host, heads), rtol=1e-2, atol=1e-2)
        for how, run in (("eager", our_block), ("sjit", step)):
            name = f"transformer block {batch}×{length}×{width}, {kind} shapes, {how}"
            case = (x, host, ours, p, heads)
            ratio(
                name,
                lambda run=run, case=case: run(*case[2:]).numpy(),
                lambda case=case: np_block(case[0], case[1], case[4]),
                goal,
                rounds=15,
            )


def many_devices() -> None:
    peaks: dict[tuple[str, int], int] = {}
    runs = {}
    for shape in ((2, 4), (8, 8), (64, 64), (256, 256)):
        mesh = sw.Mesh(shape, ("data", "model"))
        _, _, ours, p = block_case(mesh, 8, 256, 512)
        for how, run in (("eager", our_block), ("sjit", sw.sjit(our_block, static_argnums=2))):
            runs[how, mesh.size] = lambda run=run, ours=ours, p=p: run(ours, p, 8).numpy()
            runs[how, mesh.size]()
            tracemalloc.start()
            runs[how, mesh.size]()
            peaks[how, mesh.size] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    times = dict(zip(runs, best_of(*runs.values(), rounds=5), strict=True))
    for how in ("eager", "sjit"):
        for size in (64, 4096, 65536):
            name = f"the block on {size} devices, {how}, against 8"
            report(f"{name}: time", times[how, size] / times[how, 8], 1.25, "×", f"{times[how, size] * 1e3:.0f} ms")
            report(f"{name}: memory", peaks[how, size] / peaks[how, 8], 1.25, "×")
    mesh = sw.Mesh(x=512)
    host = floats(8, 1 << 16)
    few = sw.shard(host, mesh, P("x"))
    ratio("fewer rows than devices, 8 over 512: x * 2 + 1", lambda: few * 2 + 1, lambda: host * 2 + 1, 2)


# -- one operation ----------------------------------------------------------------------------------------------------------


def gelu() -> None:
    host = floats(4 << 20)
    x, t = sw.shard(host, MESH, P(("data", "model"))), torch.from_numpy(host)
    torch.set_num_threads(1)
    ratio("gelu (exact) of 4M float32, against torch on one thread", lambda: nn.gelu(x).numpy(),
          lambda: torch.nn.functional.gelu(t), 3, rounds=40)  # fmt: skip
    wide = host.astype(np.float64)
    exact = torch.nn.functional.gelu(torch.from_numpy(wide)).numpy()
    report("its largest error", float(np.abs(np.asarray(nn.gelu(x)) - exact).max()) * 1e6, 1, "ppm")


def chains() -> None:
    big = floats(4096, 4096)
    x = sw.shard(big, MESH, P("data", "model"), copy=False)

    def chain(v):
        for _ in range(5):
            v = v * 1.5 + 0.25
        return v

    step = sw.sjit(chain)
    ratio("a chain of 10 element-wise operations on 64 MiB, sjit", lambda: step(x), lambda: chain(big), 0.35, rounds=5)


def prime_shapes() -> None:
    host = floats(4093, 4099)
    x = sw.shard(host, MESH, P("data", "model"))
    ratio("sum of a prime shape", lambda: float(snp.sum(x)), lambda: float(np.sum(host)), 1.5)
    rows = floats(1021, 4099)
    y = sw.shard(rows, MESH, P("data", "model"))
    ratio("softmax of a prime shape", lambda: nn.softmax(y).numpy(), lambda: np_softmax(rows), 1.3)
    ratio("layer_norm of a prime shape", lambda: nn.layer_norm(y).numpy(), lambda: np_norm(rows), 1.3)


def single() -> None:
    host = floats(2048, 2048)
    x = sw.shard(host, MESH, P("data", "model"))
    ratio("argmax along a split dim", lambda: snp.argmax(x, axis=1).numpy(), lambda: np.argmax(host, axis=1), 4)
    ratio("sort along a split dim", lambda: snp.sort(x, axis=1).numpy(), lambda: np.sort(host, axis=1), 1.3, rounds=3)
    ratio("silu", lambda: nn.silu(x).numpy(), lambda: host / (1 + np.exp(-host)), 1.5)
    labels = RNG.integers(0, 2048, 2048)

    def np_entropy() -> np.ndarray:
        shifted = host - host.max(1, keepdims=True)
        return (np.log(np.exp(shifted).sum(1)) - np.take_along_axis(shifted, labels[:, None], 1)[:, 0]).mean()

    there = sw.shard(labels, MESH, P("data"))
    ratio("cross_entropy, 2048 classes split", lambda: float(nn.cross_entropy(x, there)), np_entropy, 1.3)
    tokens = RNG.integers(0, 2048, (64, 512))
    ids, table = sw.shard(tokens, MESH, P("data")), sw.shard(host, MESH, P("model"))
    ratio("embedding, rows of the table split", lambda: nn.embedding(table, ids).numpy(), lambda: host[tokens], 1.3)
    for name, ours, numpys in (
        ("a slice", lambda: x[100:1900].numpy() + 0, lambda: host[100:1900] + 0),
        ("a roll", lambda: snp.roll(x, 100, axis=0).numpy(), lambda: np.roll(host, 100, axis=0)),
        ("a flip", lambda: snp.flip(x, axis=0).numpy() + 0, lambda: np.flip(host, axis=0) + 0),
    ):
        ratio(f"{name} along a split dim", ours, numpys, 1.5)


def added() -> None:
    """Microseconds that a small eager operation adds to NumPy's own.

    Some processors copy ten times more slowly where a few bytes lie between source and target modulo a page, so ours and
    NumPy's are the best of arrays at several addresses.
    """
    best: dict[str, list[float]] = {}
    padding = []
    for trial in range(4):
        padding.append(np.empty(1000 + 700 * trial))
        host = RNG.standard_normal((64, 64))
        x = sw.shard(host, MESH, P("data", "model"))
        for name, ours, numpys in (
            ("softmax", lambda: nn.softmax(x), lambda: np_softmax(host)),  # noqa: B023
            ("layer_norm", lambda: nn.layer_norm(x), lambda: np_norm(host)),  # noqa: B023
            ("x[3]", lambda: x[3], lambda: host[3]),  # noqa: B023
            ("x[8:40]", lambda: x[8:40], lambda: host[8:40]),  # noqa: B023
            ("sum", lambda: snp.sum(x), lambda: np.sum(host)),  # noqa: B023
            ("concat", lambda: snp.concat([x, x]), lambda: np.concatenate([host, host])),  # noqa: B023
        ):
            times = best_of(ours, numpys, number=1000, rounds=4)
            best[name] = [*map(min, times, best.get(name, times))]
    for name, goal in (("softmax", 25), ("layer_norm", 30), ("x[3]", 8), ("x[8:40]", 8), ("sum", 5), ("concat", 8)):
        a, b = best[name]
        report(f"eager {name} of 64×64, added", (a - b) * 1e6, goal, "µs", f"{a * 1e6:.1f} against {b * 1e6:.1f}")


# -- programs ---------------------------------------------------------------------------------------------------------------


def mixed() -> None:
    """Microseconds that a program of nine operations adds to the same calls of NumPy on whole tensors."""
    a, b = RNG.standard_normal((2, 64, 64))
    x, w = sw.shard(a, MESH, P("data", "model")), sw.shard(b, MESH, P("model", "data"))

    def nine(x, w, xp=np):
        h = x @ w
        h = xp.maximum(h + 1.0, 0.0)
        h = h.mT * 2.0
        h = xp.reshape(h, (32, 128))
        h = xp.sum(h, axis=0)
        h = xp.reshape(h, (64, 2))
        return xp.permute_dims(h, (1, 0)) @ x

    step = sw.sjit(lambda x, w: nine(x, w, snp))
    np.testing.assert_allclose(np.asarray(step(x, w)), nine(a, b))
    ours, numpys = best_of(lambda: step(x, w), lambda: nine(a, b), number=20, rounds=300)
    detail = f"{ours * 1e6:.1f} against {numpys * 1e6:.1f}"
    report("sjit of 9 mixed operations with moves, warm, added", (ours - numpys) * 1e6, 5, "µs", detail)


def leaves() -> None:
    for count, warm_goal, first_goal in ((1000, 0.3, 0.1), (10_000, 3, 0.6)):
        tree = {f"layer{i}": sw.shard(np.ones((2, 4)), MESH, P("data", "model")) for i in range(count)}

        def fn(tree):
            return tree["layer0"] + tree["layer1"]

        first = float("inf")
        for _ in range(3):
            step = sw.sjit(fn)
            gc.collect()
            start = time.perf_counter()
            step(tree)
            first = min(first, time.perf_counter() - start)
        (warm,) = best_of(lambda step=step, tree=tree: step(tree), number=20)
        report(f"sjit with {count:,} leaves, warm", warm * 1e3, warm_goal, "ms")
        report(f"sjit with {count:,} leaves, first call", first, first_goal, "s")


def layers() -> None:
    times = {}
    for count in (24, 96):
        best = float("inf")
        for number in range(3):
            mesh = sw.Mesh(data=8, fsdp=8, model=8, links=sw.Link(bandwidth=1e11 + number))
            forward, types, shardings = transformer(count, mesh)
            gc.collect()
            start = time.perf_counter()
            program, _ = trace(forward, types, mesh, [f"input {i}" for i in range(len(types))])
            lower(program, shardings)
            best = min(best, time.perf_counter() - start)
        times[count] = best
    report("96 layers of a transformer, traced to final", times[96], 1, "s")
    report("96 layers against 4 × 24", times[96] / times[24] / 4, 1.2, "×")


def main() -> None:
    blocks()
    many_devices()
    gelu()
    chains()
    prime_shapes()
    single()
    added()
    mixed()
    leaves()
    layers()


if __name__ == "__main__":
    main()
