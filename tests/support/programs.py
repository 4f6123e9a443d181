"""Random typed programs over the table: the same steps on NumPy's arrays and on ours."""

import math
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

import shardwright as sw
import shardwright.numpy as snp
from strategies import meshes, shardings

UNARY = ["tanh", "negative", "abs", "square", "sin", "cos"]  # continuous: rounding differs with the order of sums
BINARY = ["add", "subtract", "multiply", "maximum", "minimum"]
REDUCTIONS = ["sum", "mean", "max", "min"]
CONTROL = ["scan", "while", "cond", "nested"]


@dataclass
class RandomProgram:
    """Steps, each a name, the numbers of its operands and its parameters; hosts are the inputs."""

    mesh: sw.Mesh
    hosts: list
    specs: list  # the inputs' shardings
    steps: list = field(default_factory=list)
    outputs: list = field(default_factory=list)

    def run(self, values, xp, constrain=lambda x, sharding: x):
        """The outputs, computed with NumPy's functions or ours."""
        made = list(values)
        for name, operands, params in self.steps:
            made.append(step(xp, name, [made[i] for i in operands], params, constrain))
        return [made[i] for i in self.outputs]

    def on_hosts(self):
        with np.errstate(all="ignore"):
            return self.run(self.hosts, np)

    def on_arrays(self, *arrays):
        return self.run(arrays, snp, lambda x, sharding: x.reshard(sharding))

    def arrays(self):
        return [sw.shard(host, spec) for host, spec in zip(self.hosts, self.specs, strict=True)]


def step(xp, name, operands, params, constrain):
    x = operands[0]
    if name == "constrain":
        return constrain(x, params)
    if name in UNARY:
        return getattr(xp, name)(x)
    if name in BINARY:
        return getattr(xp, name)(*operands)
    if name in REDUCTIONS:
        return getattr(xp, name)(x, **params)
    if name == "slice":
        return x[params]
    if name == "scale":
        return x * params
    if name == "where":
        return xp.where(x > 0.3137, x, operands[1])
    if name == "tile":
        return xp.tile(x, params)
    if name == "repeat":
        return xp.repeat(x, params["repeats"], axis=params["axis"])
    if name == "roll":
        return xp.roll(x, params["shift"], axis=params["axis"])
    if name in CONTROL:
        return controlled(xp, name, x, params)
    return getattr(xp, name)(*operands, **params) if name != "concat" else xp.concat(operands, **params)


def controlled(xp, name, x, params):
    """Loops and choices: in a program sw's own, on hosts Python's."""
    if name == "cond":
        test = xp.max(xp.abs(x)) > params

        def yes(x):
            return xp.tanh(x) * 0.5

        def no(x):
            return xp.flip(x, axis=0)

        return (yes(x) if test else no(x)) if xp is np else sw.cond(test, yes, no, x)
    if name == "nested":
        return nested(xp, x, params)
    if name == "while":

        def body(state):
            count, x = state
            return count + 1, xp.roll(x, 1, axis=0) * 0.5

        state = (0, x)
        if xp is np:
            while state[0] < params:
                state = body(state)
            return state[1]
        return sw.while_loop(lambda state: state[0] < params, body, state)[1]

    def row_body(carry, row):
        carry = xp.tanh(carry + row)
        return carry, xp.cumulative_sum(carry, axis=0) if params and carry.ndim else carry

    start = xp.sum(x, axis=0) * 0.0
    if xp is np:
        rows = []
        for row in x:
            start, y = row_body(start, row)
            rows.append(y)
        return np.stack(rows) + start
    last, ys = sw.scan(row_body, start, x)
    return ys + last


def nested(xp, x, limit):
    """A loop whose rounds the data says, with a choice in it, with a scan in a branch that reads what is outside."""
    total = xp.sum(x, axis=0)

    def rows(v):
        if xp is np:
            carry = v
            for row in x:
                carry = carry * 0.5 + row
            return carry
        return sw.scan(lambda carry, row: (carry * 0.5 + row, None), v, x)[0]

    def body(state):
        count, v = state
        if xp is np:
            return count * 2, (rows(v) if np.max(v) > 0.25 else v + total)
        return count * 2, sw.cond(xp.max(v) > 0.25, rows, lambda v: v + total, v)

    state = (xp.max(xp.abs(x)) * 0.0 + 1.0, total * 0.5)
    if xp is np:
        while state[0] < limit:
            state = body(state)
        return state[1] + x
    return sw.while_loop(lambda state: state[0] < limit, body, state)[1] + x


@st.composite
def programs(draw, max_steps=12, constraints=True, control=False):
    """With `control` the first step is a loop or a choice."""
    mesh = draw(meshes(max_axes=3, max_devices=12))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    hosts, specs = [], []
    for _ in range(draw(st.integers(1, 3))):
        shape = draw(st.sampled_from([(4,), (4, 6), (6, 4), (4, 4), (5, 4), (2, 4, 6)]))
        hosts.append(np.round(rng.standard_normal(shape), 2))
        specs.append(draw(shardings(mesh, shape)).for_shape(shape))
    program = RandomProgram(mesh, hosts, specs)
    shapes = [host.shape for host in hosts]
    for number in range(draw(st.integers(1, max_steps))):
        only = draw(st.sampled_from(CONTROL)) if control and not number else None
        name, operands, params = draw(steps(mesh, shapes, constraints, only))
        with np.errstate(all="ignore"):
            blank = [np.ones(shapes[i]) for i in operands]
            made = step(np, name, blank, params, lambda x, sharding: x)
        program.steps.append((name, operands, params))
        shapes.append(made.shape)
    last = len(shapes) - 1
    program.outputs = sorted({last, max(last - 1, 0), max(last - 2, 0), draw(st.integers(0, last))})
    return program


@st.composite
def steps(draw, mesh, shapes, constraints, only=None):
    """A step that fits the values there are, perhaps of one kind; the later ones are the likelier operands."""
    at = draw(st.integers(max(0, len(shapes) - 4), len(shapes) - 1))
    shape = shapes[at]
    rank = len(shape)
    kinds = ["unary", "binary", "scale"]
    kinds += ["reduce", "permute", "slice", "flip", "cumulative", "sort"] if rank and all(shape) else []
    kinds += (
        ["roll", "tile", "repeat", "scan", "while", "cond"] if rank and all(shape) and math.prod(shape) < 99 else []
    )
    kinds += ["matmul"] if rank == 2 else []
    kinds += ["constrain", "constrain"] if constraints else []
    kind = only or draw(st.sampled_from(kinds))
    dim = draw(st.integers(0, rank - 1)) if rank else 0
    if kind == "constrain":
        return (
            "constrain",
            [at],
            draw(shardings(mesh, shape, partial=False, halo=False, offsets=False)).for_shape(shape),
        )
    if kind == "reduce":
        return draw(st.sampled_from(REDUCTIONS)), [at], {"axis": dim, "keepdims": draw(st.booleans())}
    if kind == "permute":
        return "permute_dims", [at], {"axes": tuple(draw(st.permutations(range(rank))))}
    if kind == "slice":
        return "slice", [at], tuple(slice(draw(st.integers(0, n - 1)), None) for n in shape)
    if kind in ("flip", "sort"):
        return kind, [at], {"axis": dim}
    if kind == "cumulative":
        return "cumulative_sum", [at], {"axis": dim}
    if kind == "roll":
        return kind, [at], {"shift": draw(st.integers(-7, 7)), "axis": dim}
    if kind == "tile":
        return kind, [at], tuple(draw(st.sampled_from([1, 2])) for _ in shape)
    if kind == "repeat":
        return kind, [at], {"repeats": draw(st.sampled_from([1, 2, 3])), "axis": dim}
    if kind == "cond":
        return kind, [at], draw(st.sampled_from([-1.0, 1e9]))
    if kind == "while":
        return kind, [at], draw(st.integers(0, 3))
    if kind == "scan":
        return kind, [at], draw(st.booleans())
    if kind == "nested":
        return kind, [at], draw(st.sampled_from([0.5, 2.0, 5.0]))
    if kind == "scale":
        return "scale", [at], draw(st.sampled_from([2.0, -0.5, 0.0]))
    if kind == "matmul":
        fits = [i for i, other in enumerate(shapes) if len(other) == 2 and other[0] == shape[1]]
        if fits:
            return "matmul", [at, draw(st.sampled_from(fits))], {}
    fits = [i for i, other in enumerate(shapes) if _broadcasts(shape, other)]
    if kind == "binary" and fits:
        return draw(st.sampled_from([*BINARY, "where"])), [at, draw(st.sampled_from(fits))], {}
    return draw(st.sampled_from(UNARY)), [at], {}


def _broadcasts(a, b):
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True
