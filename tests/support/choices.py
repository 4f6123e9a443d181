"""Random operations on random meshes, drawn from a seed: what there is to choose, without any data."""

import math
import random

import shardwright as sw
import shardwright.numpy as snp
from shardwright import P, nn
from shardwright.hardware import Hardware, Level, Link, presets
from shardwright.plan import operation
from shardwright.plan.problem import Problem

KINDS = ("ring", "line", "switch", "full", "torus")
SIZES = {"tiny": (1, 1, 2, 3, 4, 5, 7, 8, 16), "middle": (1, 4, 8, 12, 33, 64), "large": (64, 1000, 1024, 8192)}


def machine(rng, devices):
    """A preset with room for so many devices, or a machine of two levels."""
    if rng.random() < 0.7:
        return rng.choice([preset for preset in presets().values() if not preset.size or preset.size % devices == 0])
    latency = rng.choice([0.0, 1e-6, 1e-3])
    inner, outer = (
        Link(rng.choice(KINDS[:4]), rng.choice([1e3, 1e6, 1e9, 1e11]), latency * scale, rng.choice([0.0, latency]))
        for scale in (1, rng.choice([1, 10]))
    )
    return Hardware(
        "drawn", rng.choice(list(presets().values())).chip, (Level(inner, rng.choice([2, 4])), Level(outer))
    )


def mesh_from(rng):
    """One to three axes, up to 64 devices, some axes of size 1 and some with links of their own."""
    sizes, room = {}, 64
    for name in "abc"[: rng.choice([1, 2, 2, 3])]:
        sizes[name] = rng.choice([n for n in (1, 2, 2, 3, 4, 4, 5, 6, 8, 16) if n <= room])
        room //= sizes[name]
    links = {name: Link(rng.choice(KINDS), rng.choice([1e4, 1e9])) for name in sizes if rng.random() < 0.15}
    return sw.Mesh(sizes, hardware=machine(rng, math.prod(sizes.values())), links=links)


def pieces_of(rng, mesh):
    """The axes in any order, some cut in two."""
    pieces = []
    for name, size in mesh.sizes.items():
        divisors = [n for n in range(2, size) if size % n == 0]
        outer = rng.choice(divisors) if divisors and rng.random() < 0.2 else 0
        pieces += [f"{name}:(1){outer}", f"{name}:({outer}){size // outer}"] if outer else [name]
    rng.shuffle(pieces)
    return pieces


def sharding(rng, mesh, shape):
    """Axes dealt out to dims; what is left may be partial, and some dims are cut anywhere."""
    dims, partial, cuts = [[] for _ in shape], [], {}
    for piece in pieces_of(rng, mesh):
        dim = rng.randint(-1, len(shape) - 1)
        if dim >= 0:
            dims[dim].append(piece)
        elif rng.random() < 0.3:
            partial.append(piece)
    for dim, axes in enumerate(dims):
        parts = mesh.axis_size(tuple(axes))
        if parts > 1 and rng.random() < 0.05:
            cuts[dim] = [0, *sorted(rng.randint(0, shape[dim]) for _ in range(parts - 1)), shape[dim]]
    return sw.Sharding(mesh, P(*dims), partial=tuple(partial), offsets=cuts)


def call(rng):
    """A function and the shapes of its operands."""
    sizes = SIZES[rng.choice(["tiny", "tiny", "middle", "large"])]
    b, m, n, k = (rng.choice(sizes) for _ in range(4))
    axis, axes = rng.choice([0, 1]), rng.choice([0, 1, (0, 2), None])
    return rng.choice(
        [
            (lambda x, y: x @ y, [(m, k), (k, n)]),
            (lambda x, y: x @ y, [(b, m, k), (b, k, n)]),
            (lambda x, y: snp.einsum("mk,nk->nm", x, y), [(m, k), (n, k)]),
            (lambda x, y: snp.einsum("mkb,kbn->mn", x, y), [(m, k, b), (k, b, n)]),
            (lambda x, y, z: snp.exp(x @ y) @ z, [(m, k), (k, n), (n, k)]),
            (lambda x, y: x + y, [(m, n), (m, n)]),
            (lambda x, y: x * y, [(b, m, n), (n,)]),
            (snp.exp, [(m, n)]),
            (lambda x: snp.sum(x, axis=axes), [(m, k, n)]),
            (lambda x: snp.max(x, axis=axes), [(m, k, n)]),
            (lambda x: nn.softmax(x, axis=axis), [(m, n)]),
            (lambda x: snp.cumulative_sum(x, axis=axis), [(m, n)]),
            (lambda x: snp.top_k(x, 1), [(m, n)]),
            (lambda x: snp.permute_dims(x, (2, 0, 1)), [(m, n, k)]),
            (lambda x: snp.reshape(x, (m * n, k)), [(m, n, k)]),
            (lambda x, y: snp.concat([x, y], axis=axis), [(m, n), (m, n)]),
            (lambda x, w: nn.conv1d(x, w), [(b, m + 4, 4), (3, 4, 8)]),
            (lambda x, w: nn.conv2d(x, w), [(b, m + 4, 9, 4), (3, 3, 4, 8)]),
        ]
    )


def problems(seed, patch):
    """What there is to choose in one call, with and without wanted results."""
    rng, found = random.Random(seed), []
    mesh = mesh_from(rng)
    function, shapes = call(rng)
    dtype = rng.choice(["float32", "float64", "bfloat16"])
    operands = [sw.ShapeDtype(shape, dtype, sharding(rng, mesh, shape)) for shape in shapes]
    choose = operation.choose
    with patch.context() as patched:
        patched.setattr(operation, "choose", lambda problem: found.append(problem) or choose(problem))
        sw.explain(function, *operands)
    plain = [Problem(p.rule, p.given, p.shapes, p.dtypes, (), p.op) for p in found if any(p.asked)]
    return [*found, *plain]
