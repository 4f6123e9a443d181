"""For every exported operation a case: operands that fit it, the call, and what NumPy says about the whole tensors.

A case draws its shapes and attributes; the property test lays the operands out at random and compares. `exact` cases are
integers or moves; the others are compared within the rounding of float sums.
"""

import math
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

import shardwright.numpy as snp
from shardwright import nn
from shardwright.eager import apply
from shardwright.numpy import fft, linalg
from shardwright.ops import Attrs
from strategies import host_arrays, shapes

UNARY = """
abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor imag isfinite isinf
isnan log log1p log2 log10 logical_not negative positive real reciprocal round sign signbit sin sinh square
sqrt tan tanh trunc exp2 cbrt rint degrees radians
""".split()
BINARY = """
add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign divide equal
floor_divide greater greater_equal hypot less less_equal logaddexp logical_and logical_or logical_xor maximum
minimum multiply nextafter not_equal pow remainder subtract fmax fmin fmod
""".split()
INTEGERS = "bitwise_invert bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift".split()
ABOVE_ONE = ("acosh",)


@dataclass
class Case:
    hosts: list[Any]
    ours: Any  # of arrays
    numpys: Any  # of host tensors
    exact: bool = False
    partial: bool = True  # whether operands may be partial


def floats(shape, seed, low=0.1, high=0.9):
    return np.random.default_rng(seed).uniform(low, high, shape)


def ints(shape, seed):
    return host_arrays(shape, np.int64, seed)


@st.composite
def broadcastable(draw, count):
    shape = draw(shapes(max_dims=3, max_size=5))
    result = []
    for _ in range(count):
        some = tuple(1 if draw(st.integers(0, 4)) == 0 else n for n in shape)
        result.append(some[draw(st.integers(0, len(some))) :] if draw(st.integers(0, 3)) == 0 else some)
    return result


def unary(name):
    def make(draw, seed):
        shape = draw(shapes(max_dims=3, max_size=6))
        host = ints(shape, seed) if name in INTEGERS else floats(shape, seed) + (name in ABOVE_ONE)
        return Case([host], getattr(snp, name), getattr(np, name), exact=name in INTEGERS)

    return make


def binary(name):
    def make(draw, seed):
        some = draw(broadcastable(2))
        if name in INTEGERS:
            hosts = [np.abs(ints(shape, seed + i)) for i, shape in enumerate(some)]
        elif name in ("add", "subtract", "multiply", "maximum", "equal") and draw(st.booleans()):
            hosts = [ints(shape, seed + i) for i, shape in enumerate(some)]
        else:
            hosts = [floats(shape, seed + i) for i, shape in enumerate(some)]
        return Case(hosts, getattr(snp, name), getattr(np, name), exact=hosts[0].dtype.kind == "i")

    return make


def reduction(name, theirs=None, integers=True):
    def make(draw, seed):
        least = 1 if name in ("max", "min", "argmax", "argmin") else 0
        shape = tuple(max(n, least) for n in draw(shapes(min_dims=1, max_dims=3, max_size=7)))
        host = ints(shape, seed) if integers and draw(st.booleans()) else floats(shape, seed)
        one = name in ("argmax", "argmin")
        dims = draw(st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1, max_size=1 if one else 3))
        axis = draw(st.sampled_from([None, dims[0] if one or draw(st.booleans()) else tuple(dims)]))
        keep = draw(st.booleans())
        if name in ("mean", "var", "std") and not host.size:
            host = floats((2,) * len(shape), seed)
        function = theirs or getattr(np, name)
        return Case(
            [host],
            lambda x: getattr(snp, name)(x, axis=axis, keepdims=keep),
            lambda x: np.asarray(function(x, axis=axis, keepdims=keep)),
            exact=host.dtype.kind == "i" and name not in ("mean", "var", "std"),
        )

    return make


def along(name, theirs=None, module=snp, complex_input=False, **options):
    """A function of one tensor and an axis."""

    def make(draw, seed):
        shape = tuple(max(n, 2) for n in draw(shapes(min_dims=1, max_dims=3, max_size=6)))
        axis = draw(st.integers(-len(shape), len(shape) - 1))
        host = floats(shape, seed) + (1j * floats(shape, seed + 1) if complex_input else 0)
        function = theirs or getattr(np, name)
        return Case(
            [host],
            lambda x: getattr(module, name)(x, axis=axis, **options),
            lambda x: function(x, axis=axis, **options),
        )

    return make


def moves(name, arguments, theirs=None):
    """A function that moves elements; `arguments(draw, shape)` gives (args, options)."""

    def make(draw, seed):
        shape = draw(shapes(min_dims=1, max_dims=3, max_size=6))
        args, options = arguments(draw, shape)
        function = theirs or getattr(np, name)
        return Case(
            [ints(shape, seed)],
            lambda x: getattr(snp, name)(x, *args, **options),
            lambda x: function(x, *args, **options),
            exact=True,
        )

    return make


def an_axis(draw, shape):
    return [], {"axis": draw(st.integers(-len(shape), len(shape) - 1))}


def some_axes(draw, shape):
    dims = draw(st.lists(st.integers(0, len(shape) - 1), unique=True, max_size=3))
    return [], {"axis": draw(st.sampled_from([None, tuple(dims)]))}


def another_shape(draw, shape):
    total = int(np.prod(shape))
    choices = [(total,), (-1,) if total else (0,), (*shape, 1), (1, *shape), shape[::-1]]
    for k in (2, 3, 4):
        if total and total % k == 0:
            choices += [(k, total // k), (total // k, k), (k, 1, -1)]
    if len(shape) > 1:
        choices.append((shape[0] * shape[1], *shape[2:]))
    return [draw(st.sampled_from(choices))], {}


def rolled(draw, shape):
    if draw(st.booleans()):
        return [draw(st.integers(-9, 9))], {}
    dims = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=2))
    return [tuple(draw(st.integers(-9, 9)) for _ in dims)], {"axis": tuple(dims)}


def repeated(draw, shape):
    axis = draw(st.sampled_from([None, *range(len(shape))]))
    count = int(np.prod(shape)) if axis is None else shape[axis]
    if draw(st.booleans()):
        return [draw(st.integers(0, 3))], {"axis": axis}
    return [np.array([draw(st.integers(0, 2)) for _ in range(count)], int)], {"axis": axis}


def tiled(draw, shape):
    return [tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))], {}


def moved(draw, shape):
    count = draw(st.integers(1, len(shape)))
    return [
        tuple(draw(st.permutations(range(len(shape))))[:count]),
        tuple(draw(st.permutations(range(len(shape))))[:count]),
    ], {}


def permuted(draw, shape):
    return [tuple(draw(st.permutations(range(len(shape)))))], {}


def expanded(draw, shape):
    return [], {"axis": draw(st.integers(-len(shape) - 1, len(shape)))}


def broadcast(draw, shape):
    new = tuple(draw(st.integers(1, 4)) if n == 1 else n for n in shape)
    return [(*draw(st.lists(st.integers(0, 3), max_size=2)), *new)], {}


def squeezed(draw, seed):
    shape = list(draw(shapes(max_dims=2, max_size=6)))
    at = draw(st.integers(0, len(shape)))
    shape.insert(at, 1)
    return Case([ints(tuple(shape), seed)], lambda x: snp.squeeze(x, at), lambda x: np.squeeze(x, at), exact=True)


def joined(name):
    def make(draw, seed):
        shape = list(draw(shapes(min_dims=1, max_dims=3, max_size=5)))
        axis = draw(st.integers(0, len(shape) - 1))
        hosts = []
        for i in range(draw(st.integers(1, 3))):
            if name == "concat":
                shape[axis] = draw(st.integers(0, 4))
            hosts.append(ints(tuple(shape), seed + i))
        return Case(
            hosts,
            lambda *xs: getattr(snp, name)(xs, axis=axis),
            lambda *xs: getattr(np, name)(xs, axis=axis),
            exact=True,
        )

    return make


def matmul(draw, seed):
    m, k, n = (draw(st.integers(0, 6)) for _ in range(3))
    batch = [(), (), (2,), (3, 1)]
    left = draw(st.sampled_from([(k,), *((*b, m, k) for b in batch)]))
    right = draw(st.sampled_from([(k,), *((*b, k, n) for b in (*batch, (3,)[:0]))]))
    hosts = (
        [ints(left, seed), ints(right, seed + 1)]
        if draw(st.booleans())
        else [floats(left, seed), floats(right, seed + 1)]
    )
    return Case(hosts, lambda a, b: a @ b, lambda a, b: np.asarray(a @ b), exact=hosts[0].dtype.kind == "i")


def einsum(draw, seed):
    size = {c: draw(st.integers(1, 5)) for c in "abcd"}
    text = draw(
        st.sampled_from(
            ["ab,bc->ac", "abc,cd->abd", "ab,ab->a", "ab->ba", "ab,cd->abcd", "abc->c", "ab,bc,cd->ad", "aa->a", "ab,b"]
        )
    )
    hosts = [floats(tuple(size[c] for c in term), seed + i) for i, term in enumerate(text.split("->")[0].split(","))]
    return Case(hosts, lambda *xs: snp.einsum(text, *xs), lambda *xs: np.einsum(text, *xs))


def tensordot(draw, seed):
    a, b, c, d = (draw(st.integers(1, 4)) for _ in range(4))
    axes = draw(st.sampled_from([2, ((1, 2), (0, 1)), ((2, 1), (1, 0))]))
    return Case(
        [floats((a, b, c), seed), floats((b, c, d), seed + 1)],
        lambda x, y: snp.tensordot(x, y, axes=axes),
        lambda x, y: np.tensordot(x, y, axes=axes),
    )


def two(function, theirs, *texts, sizes=(1, 5), **options):
    """Operands whose dims are letters."""

    def make(draw, seed):
        size = {c: draw(st.integers(*sizes)) for c in "bmnks3"} | {"3": 3}
        hosts = [floats(tuple(size[c] for c in text), seed + i, -1, 1) for i, text in enumerate(texts)]
        return Case(hosts, lambda *xs: function(*xs, **options), lambda *xs: theirs(*xs, **options))

    return make


def positive(function, theirs, **options):
    """Matrices that can be decomposed and inverted."""

    def make(draw, seed):
        n, b = draw(st.integers(1, 4)), draw(st.integers(1, 5))
        host = floats((b, n, n), seed, -1, 1)
        host = host @ host.swapaxes(-1, -2) + 2 * np.eye(n)
        return Case([host], lambda x: function(x, **options), lambda x: theirs(x, **options))

    return make


def rebuilt(function, join):
    """Decompositions are compared by what their factors multiply to."""

    def make(draw, seed):
        host = floats((draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 4))), seed, -1, 1)
        return Case([host], lambda x: join(*function(x)), lambda x: x)

    return make


def symmetric(function, join):
    def make(draw, seed):
        n = draw(st.integers(1, 4))
        host = floats((draw(st.integers(1, 5)), n, n), seed, -1, 1)
        return Case([host + host.swapaxes(-1, -2)], lambda x: join(*function(x)), lambda x: x)

    return make


def solve(draw, seed):
    n, b = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    left = floats((*draw(st.sampled_from([(), (b,), (2, b)])), n, n), seed, -1, 1) + 3 * np.eye(n)
    right = floats((*draw(st.sampled_from([(), (b,), (2, b)])), n, 2), seed + 1, -1, 1)
    if draw(st.integers(0, 3)) == 0:
        right = right.reshape(-1)[:n]
    return Case([left, right], linalg.solve, np.linalg.solve)


def several(name):
    def make(draw, seed):
        shape = tuple(max(n, 2) for n in draw(shapes(min_dims=1, max_dims=3, max_size=5)))
        axes = tuple(draw(st.permutations(range(len(shape))))[: draw(st.integers(1, len(shape)))])
        host = floats(shape, seed)
        host = host if name == "rfftn" else host + 1j * floats(shape, seed + 1)
        s = draw(st.sampled_from([None, tuple(draw(st.integers(2, 5)) for _ in axes)]))
        return Case(
            [host], lambda x: getattr(fft, name)(x, s=s, axes=axes), lambda x: getattr(np.fft, name)(x, s=s, axes=axes)
        )

    return make


def shifted(name):
    def make(draw, seed):
        shape = draw(shapes(min_dims=1, max_dims=3, max_size=6))
        axes = tuple(draw(st.permutations(range(len(shape))))[: draw(st.integers(1, len(shape)))])
        return Case(
            [ints(shape, seed)],
            lambda x: getattr(fft, name)(x, axes=axes),
            lambda x: getattr(np.fft, name)(x, axes=axes),
            exact=True,
        )

    return make


def where(draw, seed):
    a, b, c = draw(broadcastable(3))
    return Case(
        [ints(a, seed) > 0, ints(b, seed + 1), ints(c, seed + 2)], snp.where, np.where, exact=True, partial=False
    )


def clip(draw, seed):
    shape = draw(shapes(max_dims=3, max_size=5))
    low, high = draw(st.sampled_from([(0.2, 0.6), (None, 0.5), (0.3, None)]))
    return Case([floats(shape, seed)], lambda x: snp.clip(x, low, high), lambda x: np.clip(x, low, high))


def isin(draw, seed):
    invert = draw(st.booleans())
    hosts = [ints(draw(shapes(max_dims=3, max_size=5)), seed), ints(draw(shapes(max_dims=2, max_size=3)), seed + 1)]
    return Case(
        hosts, lambda x, y: snp.isin(x, y, invert=invert), lambda x, y: np.isin(x, y, invert=invert), exact=True
    )


def take(draw, seed):
    shape = tuple(max(n, 1) for n in draw(shapes(min_dims=1, max_dims=3, max_size=6)))
    axis = draw(st.integers(0, len(shape) - 1))
    index = np.random.default_rng(seed).integers(
        -shape[axis], shape[axis], draw(shapes(min_dims=1, max_dims=2, max_size=4))
    )
    return Case(
        [ints(shape, seed), index],
        lambda x, i: snp.take(x, i, axis=axis),
        lambda x, i: np.take(x, i, axis=axis),
        exact=True,
    )


def take_along_axis(draw, seed):
    shape = tuple(max(n, 1) for n in draw(shapes(min_dims=1, max_dims=3, max_size=5)))
    axis = draw(st.integers(0, len(shape) - 1))
    other = tuple(draw(st.integers(0, 4)) if d == axis else n for d, n in enumerate(shape))
    index = np.random.default_rng(seed).integers(0, shape[axis], other)
    return Case(
        [ints(shape, seed), index],
        lambda x, i: snp.take_along_axis(x, i, axis=axis),
        lambda x, i: np.take_along_axis(x, i, axis=axis),
        exact=True,
    )


def searchsorted(draw, seed):
    rows = np.sort(ints((draw(st.integers(0, 8)),), seed))
    side = draw(st.sampled_from(["left", "right"]))
    return Case(
        [rows, ints(draw(shapes(max_dims=2, max_size=5)), seed + 1)],
        lambda x, v: snp.searchsorted(x, v, side=side),
        lambda x, v: np.asarray(np.searchsorted(x, v, side=side)),
        exact=True,
    )


def sorts(name):
    def make(draw, seed):
        shape = draw(shapes(min_dims=1, max_dims=3, max_size=6))
        axis, descending = draw(st.integers(0, len(shape) - 1)), draw(st.booleans())

        def reference(x):
            if name == "sort":
                return np.flip(np.sort(x, axis=axis), axis) if descending else np.sort(x, axis=axis)
            return np.argsort(-x if descending else x, axis=axis, stable=True)

        return Case(
            [ints(shape, seed)],
            lambda x: getattr(snp, name)(x, axis=axis, descending=descending),
            reference,
            exact=True,
        )

    return make


def plain(function, theirs, exact=True, min_dims=1):
    def make(draw, seed):
        return Case(
            [ints(draw(shapes(min_dims=min_dims, max_dims=3, max_size=6)), seed)], function, theirs, exact=exact
        )

    return make


def prefix(name):
    def make(draw, seed):
        shape = draw(shapes(min_dims=1, max_dims=3, max_size=7))
        axis, initial = draw(st.integers(0, len(shape) - 1)), draw(st.booleans())
        return Case(
            [ints(shape, seed)],
            lambda x: getattr(snp, name)(x, axis=axis, include_initial=initial),
            lambda x: getattr(np, name)(x, axis=axis, include_initial=initial),
            exact=True,
        )

    return make


def diff(draw, seed):
    shape = tuple(max(n, 1) for n in draw(shapes(min_dims=1, max_dims=3, max_size=7)))
    axis, n = draw(st.integers(0, len(shape) - 1)), draw(st.integers(0, 2))
    return Case(
        [ints(shape, seed)], lambda x: snp.diff(x, axis=axis, n=n), lambda x: np.diff(x, axis=axis, n=n), exact=True
    )


def triangle(name):
    def make(draw, seed):
        shape, k = draw(shapes(min_dims=2, max_dims=3, max_size=5)), draw(st.integers(-3, 3))
        return Case(
            [ints(shape, seed)], lambda x: getattr(snp, name)(x, k=k), lambda x: getattr(np, name)(x, k=k), exact=True
        )

    return make


def diagonals(name):
    def make(draw, seed):
        shape, k = draw(shapes(min_dims=2, max_dims=3, max_size=5)), draw(st.integers(-3, 3))
        shape = (*shape[:-2], max(shape[-2], 1), max(shape[-1], 1))
        return Case(
            [ints(shape, seed)],
            lambda x: getattr(linalg, name)(x, offset=k),
            lambda x: np.asarray(getattr(np.linalg, name)(x, offset=k)),
            exact=True,
        )

    return make


def windows(draw, dims, least):
    sizes = [draw(st.integers(least, 9)) for _ in range(dims)]
    window = [draw(st.integers(1, 3)) for _ in range(dims)]
    stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    pads = [(draw(st.integers(0, 1)), draw(st.integers(0, 1))) for _ in range(dims)]
    return sizes, window, stride, dilation, pads


def naive_windows(x, window, stride, dilation, pads, fill):
    """Every window of `b spatial… c`, one by one: b rows… c window…"""
    widths = [(0, 0), *pads, (0, 0)]
    x = np.pad(x, widths, constant_values=fill)
    rows = [(n - (w - 1) * dilation - 1) // stride + 1 for n, w in zip(x.shape[1:-1], window, strict=True)]
    out = np.zeros((x.shape[0], *rows, x.shape[-1], *window))
    for place in np.ndindex(*rows):
        for offset in np.ndindex(*window):
            at = tuple(p * stride + o * dilation for p, o in zip(place, offset, strict=True))
            out[(slice(None), *place, slice(None), *offset)] = x[(slice(None), *at, slice(None))]
    return out


def convolution(dims):
    def make(draw, seed):
        sizes, window, stride, dilation, pads = windows(draw, dims, 5)
        if dims == 3:
            sizes = [min(n, 5) for n in sizes]
        groups = draw(st.sampled_from([1, 1, 2]))
        c_in, c_out = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 2))
        x, w = (
            floats((draw(st.integers(1, 3)), *sizes, c_in), seed, -1, 1),
            floats((*window, c_in // groups, c_out), seed + 1, -1, 1),
        )

        def reference(x, w):
            seen = naive_windows(x, window, stride, dilation, pads, 0)
            parts = []
            for g in range(groups):
                c, o = c_in // groups, c_out // groups
                part = seen[(*(slice(None),) * (1 + dims), slice(g * c, g * c + c))]
                parts.append(
                    np.tensordot(
                        part,
                        w[..., g * o : g * o + o],
                        axes=([*range(dims + 2, 2 * dims + 2), dims + 1], [*range(dims), dims]),
                    )
                )
            return np.concatenate(parts, axis=-1)

        run = getattr(nn, f"conv{dims}d")
        return Case(
            [x, w], lambda x, w: run(x, w, stride=stride, padding=pads, dilation=dilation, groups=groups), reference
        )

    return make


def pool(name):
    def make(draw, seed):
        dims = draw(st.integers(1, 2))
        sizes, window, stride, _, pads = windows(draw, dims, 3)
        pads = [(min(a, w // 2), min(b, w // 2)) for (a, b), w in zip(pads, window, strict=True)]
        host = floats((draw(st.integers(1, 3)), *sizes, draw(st.integers(1, 3))), seed, -1, 1)
        reduce, fill = (np.max, -np.inf) if name == "max_pool" else (np.mean, 0)

        def reference(x):
            return reduce(naive_windows(x, window, stride, 1, pads, fill), axis=tuple(range(-dims, 0)))

        return Case([host], lambda x: getattr(nn, name)(x, window, stride, pads), reference)

    return make


UNIQUE = {
    "unique_values": np.unique,  # the standard leaves the order open; ours is sorted
    "unique_counts": lambda x: np.concatenate([np.ravel(r) for r in np.unique_counts(x)]),
    "unique_inverse": lambda x: np.concatenate([np.ravel(r) for r in np.unique_inverse(x)]),
    "unique_all": lambda x: np.concatenate([np.ravel(r) for r in np.unique_all(x)]),
}


def unique(name):
    def ours(x):
        result = getattr(snp, name)(x)
        return result if name == "unique_values" else snp.concat([snp.reshape(r, -1) for r in result])

    return plain(ours, UNIQUE[name], min_dims=0)


def flat(function):
    return lambda x: np.concatenate([np.ravel(r) for r in function(x)])


def dotted(draw, rng, shape):
    """Integers, slices, arrays and new dims around '...', which may stand for no dims."""

    def entry(n):
        choices = draw(st.integers(-n, n - 1)), slice(1, None), rng.integers(0, n, 2)
        return choices[draw(st.integers(0, 2))]

    left = draw(st.integers(0, len(shape)))
    right = draw(st.integers(left, len(shape)))
    new = [None] * draw(st.integers(0, 1))
    return (*map(entry, shape[:left]), ..., *new, *map(entry, shape[right:]))


def indexed(draw, seed):
    shape = tuple(max(n, 1) for n in draw(shapes(min_dims=1, max_dims=3, max_size=6)))
    host = ints(shape, seed)
    rng = np.random.default_rng(seed)
    kind = draw(st.sampled_from(["mask", "rows", "pairs", "mixed", "slices", "dots"]))
    index = {
        "mask": lambda: host > 0,
        "rows": lambda: (rng.integers(-shape[0], shape[0], (2, 3)),),
        "pairs": lambda: tuple(rng.integers(0, n, 3) for n in shape),
        "mixed": lambda: (*(rng.integers(0, n, 2) for n in shape[:-1]), draw(st.slices(shape[-1]))),
        "slices": lambda: tuple(draw(st.slices(n)) for n in shape),
        "dots": lambda: dotted(draw, rng, shape),
    }[kind]()
    return Case([host], lambda x: x[index], lambda x: x[index], exact=True)


@st.composite
def indices(draw, shape):
    """An index of any form, with at least one index array."""
    block = draw(st.sampled_from([(), (1,), (3,), (2, 3)]))
    first = draw(st.integers(0, len(shape) - 1))
    entries = []
    for at, n in enumerate(shape):
        kind = draw(st.sampled_from(["slice", "whole", "integer", "array", "mask"])) if at != first else "array"
        if draw(st.integers(0, 9)) == 0:
            entries.append(None)
        if kind == "array":
            own = tuple(draw(st.sampled_from([1, size])) for size in block[draw(st.integers(0, len(block))) :])
            numbers = st.lists(st.integers(-n, n - 1), min_size=prod(own), max_size=prod(own))
            entries.append(np.array(draw(numbers)).reshape(own))
        elif kind == "mask":
            entries.append(np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n))))
        else:
            choices = {"slice": st.slices(n), "whole": st.just(slice(None)), "integer": st.integers(-n, n - 1)}
            entries.append(draw(choices[kind]))
    return tuple(entries)


def updated(*kinds):
    """Elements replaced, by an index of some kind, with a value that broadcasts."""

    def make(draw, seed):
        shape = tuple(max(n, 1) for n in draw(shapes(min_dims=1, max_dims=3, max_size=6)))
        host = ints(shape, seed)
        kind = draw(st.sampled_from(kinds))
        index = {
            "slices": lambda: tuple(draw(st.slices(n)) for n in shape),
            "mask": lambda: host > 1,
            "rows": lambda: host.reshape(shape[0], -1)[:, 0] > 0,
            "arrays": lambda: draw(indices(shape)),
        }[kind]()
        try:
            replaced = host[index].shape
        except IndexError:  # masks and arrays that don't broadcast together
            index, replaced = (slice(None, None, 2),), host[::2].shape
        ones = draw(st.lists(st.booleans(), min_size=len(replaced), max_size=len(replaced)))
        value = ints(tuple(1 if one else n for one, n in zip(ones, replaced, strict=True)), seed + 1) + 50

        def assigned(x, *value):
            x = x + 0
            x[index] = value[0] if value else 77
            return x

        return Case([host, value] if draw(st.booleans()) else [host], assigned, assigned, exact=True)

    return make


def like(function, theirs):
    def make(draw, seed):
        return Case([floats(draw(shapes(min_dims=1, max_dims=3, max_size=6)), seed, -2, 2)], function, theirs)

    return make


COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def scattered(draw, seed):
    """Updates combined at indices of one dim or of several."""
    shape = tuple(max(n, 1) for n in draw(shapes(min_dims=1, max_dims=3, max_size=6)))
    rng, op = np.random.default_rng(seed), draw(st.sampled_from(sorted(COMBINE)))
    dims = draw(st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1, max_size=2))
    points = draw(shapes(max_dims=2, max_size=5))
    places = [rng.integers(-shape[dim], shape[dim], points) for dim in dims]
    host = ints(shape, seed)
    index = tuple(places[dims.index(d)] if d in dims else slice(None) for d in range(len(shape)))
    ones = [draw(st.integers(0, 4)) == 0 for _ in host[index].shape]
    updates = ints([1 if one else n for one, n in zip(ones, host[index].shape, strict=True)], seed + 1)
    updates = updates.reshape(
        updates.shape[draw(st.integers(0, next((i for i, one in enumerate(ones) if not one), len(ones)))) :]
    )
    one = len(dims) == 1 and draw(st.booleans())

    def ours(x, u, *i):
        return nn.scatter_reduce(x, i[0] if one else i, u, op, dims[0] if one else dims)

    def numpys(x, u, *i):
        x = x.copy()
        COMBINE[op].at(x, index, u)
        return x

    return Case([host, updates, *places], ours, numpys, exact=True)


def scattered_along(draw, seed):
    shape = tuple(max(n, 1) for n in draw(shapes(min_dims=1, max_dims=3, max_size=5)))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    op = draw(st.sampled_from(sorted(COMBINE)))
    short = draw(st.booleans())
    other = tuple(
        draw(st.integers(0, 4)) if d == axis % len(shape) else draw(st.integers(0, n)) if short else n
        for d, n in enumerate(shape)
    )
    index = np.random.default_rng(seed).integers(-shape[axis], shape[axis], other)

    def numpys(x, u, i):
        x = x.copy()
        grid = list(np.indices(other))
        grid[axis] = i
        COMBINE[op].at(x, tuple(grid), u)
        return x

    return Case(
        [ints(shape, seed), ints(other, seed + 1), index],
        lambda x, u, i: nn.scatter_along_axis(x, i, u, axis, op),
        numpys,
        exact=True,
    )


def put_along(draw, seed):
    shape = tuple(max(n, 1) for n in draw(shapes(min_dims=1, max_dims=3, max_size=5)))
    axis = draw(st.integers(0, len(shape) - 1))
    other = tuple(draw(st.integers(1, 4)) if d == axis else n for d, n in enumerate(shape))
    index = np.random.default_rng(seed).integers(0, shape[axis], other)

    def of(module):
        def put(x, i, v):
            x = x + 0
            module.put_along_axis(x, i, v, axis)
            return x

        return put

    return Case([ints(shape, seed), index, ints(other, seed + 1)], of(snp), of(np), exact=True)


def selected(draw, seed):
    """Few different values, so that there are ties; NaNs now and then."""
    shape = tuple(max(n, 1) for n in draw(shapes(min_dims=1, max_dims=3, max_size=20)))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    k, largest, which = draw(st.integers(0, shape[axis])), draw(st.booleans()), draw(st.integers(0, 1))
    host = ints(shape, seed) if draw(st.booleans()) else np.round(floats(shape, seed, -2, 2))
    if host.dtype.kind == "f" and draw(st.booleans()):
        host[np.random.default_rng(seed).random(shape) < 0.2] = np.nan

    def numpys(x):
        keys = np.where(np.isnan(x), np.inf, x) if x.dtype.kind == "f" else x
        order = np.argsort(-keys if largest else keys, axis=axis, kind="stable")
        order = np.take(order, np.arange(k), axis=axis)
        return order if which else np.take_along_axis(x, order, axis=axis)

    return Case([host], lambda x: snp.top_k(x, k, axis=axis, largest=largest)[which], numpys, exact=True)


def counted(draw, seed):
    size = draw(st.integers(1, 6))
    numbers = np.random.default_rng(seed).integers(0, size, draw(st.integers(0, 12)))
    weights = [ints(numbers.shape, seed + 1).astype(float)] if numbers.size and draw(st.booleans()) else []
    length = draw(st.sampled_from([None, size, size + 3]))
    least = draw(st.integers(0, size))
    return Case(
        [numbers, *weights],
        lambda x, *w: snp.bincount(x, *w, minlength=least, length=length),
        lambda x, *w: np.bincount(x, *w, minlength=least if length is None else length),
        exact=True,
    )


def binned(draw, seed):
    shape = draw(shapes(max_dims=3, max_size=6))
    host = ints(shape, seed) if draw(st.booleans()) else floats(shape, seed, -4, 4)
    bins = draw(st.sampled_from([1, 4, 7, (-3.0, 0.0, 0.5, 4.0)]))
    limits = draw(st.sampled_from([None, (-4, 4), (-1.5, 2)])) if isinstance(bins, int) else None
    density, which = draw(st.booleans()), draw(st.integers(0, 1))
    weights = [floats(shape, seed + 1)] if draw(st.booleans()) else []

    def of(module):
        return lambda x, *w: module.histogram(x, bins, limits, density=density, weights=w[0] if w else None)[which]

    return Case([host, *weights], of(snp), of(np), exact=not (density or weights))


def grouped(draw, seed):
    """Groups of any sizes, empty ones included; rows behind the last are zeros."""
    tokens, k, n, groups = draw(st.integers(0, 12)), *(draw(st.integers(1, 5)) for _ in range(3))
    ends = sorted(draw(st.lists(st.integers(0, tokens), min_size=groups, max_size=groups)))
    x, w, sizes = ints((tokens, k), seed), ints((groups, k, n), seed + 1), np.diff([0, *ends])
    if draw(st.booleans()):
        x, w = x.astype(np.float64), w.astype(np.float64)

    def numpys(x, w, sizes):
        which = np.searchsorted(np.cumsum(sizes), np.arange(tokens), side="right")
        inside = which < groups
        made = np.zeros((tokens, n), x.dtype)
        made[inside] = np.einsum("tk,tkn->tn", x[inside], w[which[inside]])
        return made

    return Case([x, w, sizes], nn.grouped_matmul, numpys, exact=True)


def attention(draw, seed):
    """Grouped heads, masks and biases of any rank, keys split or not; blocks are small so that there are several."""
    batch = draw(shapes(max_dims=2, max_size=2))
    heads, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    queries, keys, width, out = (draw(st.integers(1, n)) for n in (7, 9, 3, 3))
    q, k, v = (
        floats((*batch, h, n, w), seed + i, -2, 2)
        for i, (h, n, w) in enumerate(((heads * groups, queries, width), (heads, keys, width), (heads, keys, out)))
    )
    causal, kind = draw(st.booleans()), draw(st.sampled_from(["", "mask", "bias"]))
    full = (*batch, heads * groups, queries, keys)
    shape = tuple(1 if draw(st.integers(0, 2)) == 0 else n for n in full[draw(st.integers(0, len(full))) :])
    masks = {"": [], "mask": [floats(shape, seed + 3) > 0.3], "bias": [floats(shape, seed + 3, -2, 2)]}[kind]

    def numpys(q, k, v, *masks):
        k, v = (np.repeat(x, groups, axis=-3) for x in (k, v))
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(width)
        if causal:
            scores = np.where(np.tri(queries, keys, keys - queries, dtype=bool), scores, -np.inf)
        for mask in masks:
            scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
        top = scores.max(-1, keepdims=True, initial=-np.inf)
        powers = np.exp(scores - np.where(np.isfinite(top), top, 0))
        total = powers.sum(-1, keepdims=True)
        return powers / np.where(total == 0, 1, total) @ v

    return Case(
        [q, k, v, *masks], lambda q, k, v, *m: nn.scaled_dot_product_attention(q, k, v, *m, causal=causal), numpys
    )


def row_of(name, numpys, count=1, **attrs):
    """A row that has no function of its own in the namespaces."""

    def make(draw, seed):
        hosts = [floats(shape, seed + i, -3, 3) for i, shape in enumerate(draw(broadcastable(count)))]
        return Case(hosts, lambda *xs: apply(name, xs, Attrs(**attrs)), numpys)

    return make


def complex_of(real, imag):
    real, imag = np.broadcast_arrays(real, imag)
    return real + 1j * imag


CASES = {
    "erf": row_of("erf", lambda x: np.vectorize(math.erf, otypes=[float])(x)),
    "erfc": row_of("erfc", lambda x: np.vectorize(math.erfc, otypes=[float])(x)),
    "bitcast": row_of("bitcast", lambda x: x.view(np.int64), dtype=np.dtype(np.int64)),
    "make_complex": row_of("make_complex", complex_of, 2),
    **{name: unary(name) for name in UNARY},
    **{name: binary(name) for name in BINARY},
    **{name: reduction(name) for name in ("sum", "prod", "max", "min", "all", "any", "mean", "var", "std")},
    "count_nonzero": reduction("count_nonzero"),
    "argmax": reduction("argmax"),
    "argmin": reduction("argmin"),
    "astype": plain(lambda x: snp.astype(x, np.float32), lambda x: x.astype(np.float32)),
    "where": where,
    "clip": clip,
    "isin": isin,
    "matmul": matmul,
    "einsum": einsum,
    "tensordot": tensordot,
    "vecdot": two(snp.vecdot, np.vecdot, "bk", "bk"),
    "linalg.outer": two(linalg.outer, np.linalg.outer, "m", "n"),
    "linalg.cross": two(linalg.cross, np.linalg.cross, "b3", "b3"),
    "linalg.cholesky": positive(linalg.cholesky, np.linalg.cholesky),
    "linalg.det": positive(linalg.det, np.linalg.det),
    "linalg.inv": positive(linalg.inv, np.linalg.inv),
    "linalg.pinv": positive(linalg.pinv, np.linalg.pinv),
    "linalg.matrix_norm": positive(linalg.matrix_norm, np.linalg.matrix_norm, keepdims=True),
    "linalg.matrix_power": positive(lambda x: linalg.matrix_power(x, 2), lambda x: np.linalg.matrix_power(x, 2)),
    "linalg.matrix_rank": positive(linalg.matrix_rank, np.linalg.matrix_rank),
    "linalg.slogdet": positive(lambda x: linalg.slogdet(x).logabsdet, lambda x: np.linalg.slogdet(x).logabsdet),
    "linalg.eigvalsh": positive(linalg.eigvalsh, np.linalg.eigvalsh),
    "linalg.eigvals": positive(lambda x: snp.sort(snp.real(linalg.eigvals(x))), lambda x: np.sort(np.linalg.eigvals(x).real)),
    "linalg.eig": positive(lambda x: snp.sort(snp.real(linalg.eig(x)[0])), lambda x: np.sort(np.linalg.eigvals(x).real)),
    "linalg.eigh": symmetric(linalg.eigh, lambda w, v: (v * snp.expand_dims(w, -2)) @ v.mT),
    "linalg.qr": rebuilt(linalg.qr, lambda q, r: q @ r),
    "linalg.qr complete": rebuilt(lambda x: linalg.qr(x, mode="complete"), lambda q, r: q @ r),
    "linalg.svd": rebuilt(lambda x: linalg.svd(x, full_matrices=False), lambda u, s, v: (u * snp.expand_dims(s, -2)) @ v),
    "linalg.svd full": positive(lambda x: linalg.svd(x).S, lambda x: np.linalg.svd(x)[1]),
    "linalg.svdvals": positive(linalg.svdvals, np.linalg.svdvals),
    "linalg.solve": solve,
    "linalg.vector_norm": like(linalg.vector_norm, np.linalg.vector_norm),
    "linalg.diagonal": diagonals("diagonal"),
    "linalg.trace": diagonals("trace"),
    "reshape": moves("reshape", another_shape),
    "permute_dims": moves("permute_dims", permuted, np.transpose),
    "matrix_transpose": plain(snp.matrix_transpose, np.matrix_transpose, min_dims=2),
    "moveaxis": moves("moveaxis", moved),
    "expand_dims": moves("expand_dims", expanded),
    "squeeze": squeezed,
    "broadcast_to": moves("broadcast_to", broadcast),
    "concat": joined("concat"),
    "stack": joined("stack"),
    "unstack": plain(lambda x: snp.stack(snp.unstack(x)[::-1]) if x.shape[0] else x, lambda x: x[::-1]),
    "flip": moves("flip", some_axes),
    "roll": moves("roll", rolled),
    "repeat": moves("repeat", repeated),
    "tile": moves("tile", tiled),
    "take": take,
    "take_along_axis": take_along_axis,
    "searchsorted": searchsorted,
    "sort": sorts("sort"),
    "argsort": sorts("argsort"),
    "nonzero": plain(lambda x: snp.concat(snp.nonzero(x)), flat(np.nonzero)),
    **{name: unique(name) for name in UNIQUE},
    "cumulative_sum": prefix("cumulative_sum"),
    "cumulative_prod": prefix("cumulative_prod"),
    "diff": diff,
    "tril": triangle("tril"),
    "triu": triangle("triu"),
    "meshgrid": two(lambda a, b: snp.meshgrid(a, b)[1], lambda a, b: np.meshgrid(a, b)[1], "m", "n"),
    "broadcast_arrays": two(lambda a, b: snp.broadcast_arrays(a, b)[0], lambda a, b: np.broadcast_arrays(a, b)[0], "m", "bm"),
    **{f"fft.{name}": along(name, getattr(np.fft, name), fft, complex_input=name in ("fft", "ifft", "irfft", "hfft"))
       for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{f"fft.{name}": several(name) for name in ("fftn", "ifftn", "rfftn", "irfftn")},
    **{f"fft.{name}": shifted(name) for name in ("fftshift", "ifftshift")},
    "index": indexed,
    "assign": updated("slices"),
    "fill": updated("mask", "rows"),
    "scatter": updated("arrays"),
    "put_along_axis": put_along,
    "top_k": selected,
    "bincount": counted,
    "histogram": binned,
    "nn.grouped_matmul": grouped,
    "nn.scaled_dot_product_attention": attention,
    "nn.scatter_reduce": scattered,
    "nn.scatter_along_axis": scattered_along,
    "nn.conv1d": convolution(1),
    "nn.conv2d": convolution(2),
    "nn.conv3d": convolution(3),
    "nn.max_pool": pool("max_pool"),
    "nn.avg_pool": pool("avg_pool"),
}  # fmt: skip
