"""Programs for tests of plans: a few small ones by name, and random ones written for NumPy and for ours."""

import math

import numpy as np

import shardwright as sw
import shardwright.numpy as snp
from shardwright import P, nn

# -- by name ------------------------------------------------------------------------------------------------------------


def two_products(x, v, w):
    return snp.tanh(x @ v) @ w


def shared(x, w):
    h = x @ w
    return h + snp.sum(h, axis=0), snp.max(h, axis=1)


def normal(x, w):
    return nn.softmax(x @ w, axis=-1)


def shaped(x):
    return snp.cumulative_sum(snp.reshape(x, (-1, 3)), axis=0)[1:]


def several(x, y):
    return snp.concat([snp.sort(x, axis=0), y], axis=1)


PROGRAMS = {
    "product": (lambda x, w: x @ w, (8, 6), (6, 4)),
    "two products": (two_products, (8, 6), (6, 8), (8, 4)),
    "uneven": (two_products, (5, 3), (3, 7), (7, 2)),
    "shared": (shared, (8, 6), (6, 4)),
    "softmax": (normal, (6, 4), (4, 8)),
    "shaped": (shaped, (4, 6)),
    "several": (several, (4, 2), (4, 3)),
    "square": (lambda x: x * x + snp.mean(x), (4, 6)),
    "taken": (lambda x, i: snp.take(x, i, axis=0), (6, 4), (4,)),
}
MESHES = {
    "x=2": sw.Mesh(x=2, hardware="h100"),
    "x=3": sw.Mesh(x=3, links={"x": sw.Link("line", 1e9, 1e-9)}),
    "x=2, y=2": sw.Mesh(x=2, y=2, links={"x": sw.Link("line", 1e8, 1e-9), "y": sw.Link("switch", 1e9, 1e-8)}),
}


def planned(name, mesh, **options):
    fn, *shapes = PROGRAMS[name]
    kinds = ["int64" if name == "taken" and at == 1 else "float32" for at in range(len(shapes))]
    args = [sw.ShapeDtype(shape, kind) for shape, kind in zip(shapes, kinds, strict=True)]
    return sw.auto(fn, mesh, *args, **options)


# -- random -------------------------------------------------------------------------------------------------------------

# Small tensors on slow chips with slower links: bytes and work decide as they do for large tensors on real machines.
SLOW = sw.hardware.Chip({"float64": 1e9, "float32": 2e9}, 1e9, 1e9)
KINDS = {"cheap": (1e8, 1e-9), "dear": (1e5, 1e-8), "far": (1e7, 1e-4)}  # bandwidth, latency


def random_mesh(rng, engine):
    """Up to three axes, each with links of some kind; sizes that seldom divide."""
    names = [str(name) for name in rng.permutation(list("abc"))[: rng.integers(1, 4)]]
    sizes = dict(
        zip(names, ([2, 3, 1] if len(names) == 3 else [int(n) for n in rng.choice([2, 3, 4], 2)]), strict=False)
    )
    kinds = [KINDS[str(rng.choice(list(KINDS)))] for _ in names]
    links = {name: sw.Link("switch", rate, late, 0.0) for name, (rate, late) in zip(names, kinds, strict=True)}
    hardware = sw.hardware.Hardware("slow", SLOW, (sw.hardware.Level(sw.Link()),), "for tests")
    return sw.Mesh(sizes, hardware=hardware, links=links, engine=engine)


def places_of(mesh, shape, rng):
    """A placement that plans choose from: each axis, whole, on a dim or on none, no device without elements."""
    dims = [[] for _ in shape]
    for axis, n in mesh.sizes.items():
        at = int(rng.integers(-1, len(shape)))
        if at >= 0 and n > 1 and math.prod(mesh.sizes[a] for a in dims[at]) * n <= shape[at]:
            dims[at].append(axis)
    return P(*dims)


def softmax(xp, x):
    if xp is snp:
        return nn.softmax(x, axis=-1)
    raised = np.exp(x - x.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def cond(xp, x):
    test = xp.max(xp.abs(x)) > 1.0
    if xp is np:
        return np.tanh(x) if test else np.flip(x, axis=0)
    return sw.cond(test, snp.tanh, lambda x: snp.flip(x, axis=0), x)


def scan(xp, x):
    def body(carry, row):
        carry = xp.tanh(carry + row)
        return carry, carry * 2.0

    start = xp.sum(x, axis=0) * 0.0
    if xp is snp:
        last, rows = sw.scan(body, start, x)
        return rows + last
    rows = []
    for row in x:
        start, made = body(start, row)
        rows.append(made)
    return np.stack(rows) + start


def loop(xp, x):
    state = (0, x)
    if xp is snp:
        return sw.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, snp.roll(s[1], 1, axis=0) * 0.5), state)[1]
    return np.roll(x, 2, axis=0) * 0.25


def mapped(mesh, spec):
    def halved(xp, x):
        return x * 0.5 if xp is np else sw.shard_map(lambda v: v.map(lambda t: t * 0.5), mesh, spec, spec)(x)

    return halved


CONTROL = {"cond": cond, "scan": scan, "loop": loop}


class RandomProgram:
    """A function of arrays, written for NumPy and for ours."""

    def __init__(self, seed, engine="numpy", control=True):
        self.rng = rng = np.random.default_rng(seed)
        self.mesh = random_mesh(rng, engine)
        self.steps, self.controlled = [], False
        n, d, e = (int(k) for k in rng.choice([4, 5, 6, 8, 12], 3))
        shapes = [(n, d), (d, e), (e, d), (n, 2, d), ()]
        self.hosts = [np.round(rng.standard_normal(shape), 2) for shape in shapes]
        self.hosts.append(rng.integers(0, n, 6))
        values = list(self.hosts)
        for _ in range(int(rng.integers(3, 8))):
            used, step = self.random_step(values, control)
            self.steps.append((used, step))
            values.append(step(np, *[values[i] for i in used]))
        last = len(values) - 1
        self.outputs = sorted({last, last - 1, int(rng.integers(0, last)), max(last - 3, 0)})

    def random_step(self, values, control):
        rng = self.rng
        at = int(rng.choice([i for i, v in enumerate(values) if v.dtype.kind == "f"][-6:]))
        x = values[at]
        kinds = ["tanh", "scalar", "binary", "constrain"]
        if x.ndim:
            kinds += ["sum", "max", "softmax", "slice", "cumulative", "sort", "concat", "reshape", "mapped"]
            kinds += ["permute", "roll", "matmul", "matmul", "matmul"] if x.ndim > 1 else []
            kinds += ["take"] if x.shape[0] >= len(self.hosts[0]) else []
            kinds += [*CONTROL] if control and x.ndim > 1 else []
        kind = str(rng.choice(kinds))
        dim = int(rng.integers(0, x.ndim)) if x.ndim else 0
        if kind in CONTROL:
            self.controlled = True
            return [at], CONTROL[kind]
        if kind == "mapped":
            return [at], mapped(self.mesh, places_of(self.mesh, x.shape, rng))
        if kind == "constrain":
            there = sw.Sharding(self.mesh, places_of(self.mesh, x.shape, rng))
            return [at], lambda xp, x: x + 0 if xp is np else sw.with_sharding_constraint(x, there) + 0
        if kind == "matmul":
            fits = [
                i for i, v in enumerate(values) if v.ndim == 2 and v.shape[0] == x.shape[-1] and v.dtype.kind == "f"
            ]
            if fits:
                return [at, int(rng.choice(fits))], lambda xp, x, w: x @ w
        if kind in ("binary", "concat"):
            return self.pair(kind, at, values, dim)
        if kind == "take":
            return [at, 5], lambda xp, x, i: xp.take(x, i, axis=0)
        if kind == "reshape":
            shape = (math.prod(x.shape[:-1]), x.shape[-1]) if x.ndim > 2 else (-1,) if x.ndim == 2 else (1, *x.shape)
            return [at], lambda xp, x: xp.reshape(x, shape)
        if kind == "slice":
            cut = tuple(
                slice(int(rng.integers(0, 2)) if n > 2 else 0, None, 1 + int(rng.integers(0, 2))) for n in x.shape
            )
            return [at], lambda xp, x: x[cut]
        return [at], {
            "scalar": lambda xp, x: x * 0.5 + 1,
            "sum": lambda xp, x: xp.sum(x, axis=dim),
            "max": lambda xp, x: xp.max(x, axis=dim, keepdims=True),
            "softmax": softmax,
            "cumulative": lambda xp, x: xp.cumulative_sum(x, axis=dim),
            "sort": lambda xp, x: xp.sort(x, axis=dim),
            "permute": lambda xp, x: xp.permute_dims(x, tuple(range(x.ndim))[::-1]),
            "roll": lambda xp, x: xp.roll(x, 1, axis=dim),
        }.get(kind, lambda xp, x: xp.tanh(x))

    def pair(self, kind, at, values, dim):
        shape = values[at].shape

        def fits(other):
            if other.dtype.kind != "f":
                return False
            if kind == "concat":
                rest = [n for i, n in enumerate(shape) if i != dim]
                return other.ndim == len(shape) and rest == [n for i, n in enumerate(other.shape) if i != dim]
            return all(1 in pair or len(set(pair)) == 1 for pair in zip(shape[::-1], other.shape[::-1], strict=False))

        other = int(self.rng.choice([i for i, value in enumerate(values) if fits(value)]))
        if kind == "concat":
            return [at, other], lambda xp, x, y: xp.concat([x, y], axis=dim)
        name = str(self.rng.choice(["add", "multiply", "maximum"]))
        return [at, other], lambda xp, x, y: getattr(xp, name)(x, y)

    def __call__(self, *values):
        return self.run(snp, values)

    def run(self, xp, values):
        made = list(values)
        for used, step in self.steps:
            made.append(step(xp, *[made[i] for i in used]))
        return [made[i] for i in self.outputs]

    def function(self):
        return lambda x, v, w, y, s, ids: self(x, v, w, y, s, ids)

    def abstract(self):
        return [sw.ShapeDtype(host.shape, host.dtype) for host in self.hosts]

    def some_places(self, part):
        names = [name for name in ("x", "v", "w", "y", "s", "ids") if self.rng.random() < part]
        shapes = dict(zip(("x", "v", "w", "y", "s", "ids"), (host.shape for host in self.hosts), strict=True))
        return {name: places_of(self.mesh, shapes[name], self.rng) for name in names}
