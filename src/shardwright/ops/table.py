"""THE TABLE: one row an operation. All that is known about sharding an operation is its row.

A row has a factor rule, fitted to the operands' shapes and the call's attributes, and the local computation. What a
strategy may do, what it costs, where results lie: all of that is derived from the rule, elsewhere and once.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import shardwright.ops.kernels as k
import shardwright.ops.special as special
from shardwright.errors import OperationError
from shardwright.ops.call import Call
from shardwright.ops.contraction import contract
from shardwright.ops.rule import Rule, Shape, rule

Attrs = Mapping[str, Any]
Shapes = Sequence[Shape]
RuleMaker = Callable[[Shapes, Attrs], Rule]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One row: an operation's name, how it may be sharded, what a device computes.

    `contracts` marks kernels that can sum over partial lanes in the same call; `dynamic` results have shapes that only
    the data tells.
    """

    name: str
    rule: RuleMaker
    kernel: Callable[..., Any]
    contracts: bool = False
    dynamic: bool = False
    plain: Callable[..., Any] | None = None  # element by element: the function itself


# -- rules by family ----------------------------------------------------------------------------------------------------


def _same(name: str, linear: str = "") -> RuleMaker:
    """Element by element, broadcasting."""

    def make(shapes: Shapes, attrs: Attrs) -> Rule:
        side = attrs.get("scalars")  # x + 1 is not linear in a partial x, nor is 1 / x
        kind = "" if (side and linear == "add") or (side == "left" and linear == "first") else linear
        return rule(name, ", ".join(["..."] * len(shapes)) + " -> ...", shapes, linear=kind)

    return make


def _names(rank: int) -> list[str]:
    return [f"d{i}" for i in range(rank)]


def _reduced(name: str, reduction: str, linear: str = "") -> RuleMaker:
    """Over some dims."""

    def make(shapes: Shapes, attrs: Attrs) -> Rule:
        names = _names(len(shapes[0]))
        gone = set(attrs["axis"])
        kept = ["()" if i in gone else n for i, n in enumerate(names) if i not in gone or attrs.get("keepdims")]
        sums = {names[i]: reduction for i in gone}
        return rule(name, f"{' '.join(names)} -> {' '.join(kept)}", shapes, sums=sums, linear=linear)

    return make


def _whole(name: str, key: str = "axis", linear: str = "") -> RuleMaker:
    """Along one dim, or several, that must be whole; the others pass."""

    def make(shapes: Shapes, attrs: Attrs) -> Rule:
        names = _names(len(shapes[0]))
        axis = attrs[key]
        whole = [names[i] for i in ((axis,) if isinstance(axis, int) else axis)]
        text = " ".join(names)
        new = attrs.get("sizes")  # an fft may change the length
        if new is None:
            return rule(name, f"{text} -> {text}", shapes, whole=whole, linear=linear)
        result = [f"{n}'" if n in whole else n for n in names]
        sizes = {f"{w}'": size for w, size in zip(whole, new, strict=True)}
        return rule(name, f"{text} -> {' '.join(result)}", shapes, whole=[*whole, *sizes], sizes=sizes, linear=linear)

    return make


def _text(name: str, text: str, sums: str = "", whole: str = "", linear: str = "") -> RuleMaker:
    """A rule that is its text."""

    def make(shapes: Shapes, attrs: Attrs) -> Rule:
        sizes = attrs.get("sizes")
        return rule(
            name,
            text,
            shapes,
            sums=dict.fromkeys(sums.split(), "sum"),
            whole=whole,
            linear=linear,
            sizes=dict(sizes) if sizes else None,
        )

    return make


def _tolerant(name: str, result: str) -> RuleMaker:
    """Matrices, and perhaps a tolerance for each."""
    return lambda shapes, attrs: rule(name, f"... m n{', ...' * (len(shapes) - 1)} -> {result}", shapes, whole="m n")


def _einsum(shapes: Shapes, attrs: Attrs) -> Rule:
    left, right = attrs["text"].split("->")
    used = dict.fromkeys(left.replace(",", " ").split())
    sums = {factor: "sum" for factor in used if factor != "..." and factor not in right.split()}
    return rule(attrs["name"], attrs["text"], shapes, sums=sums, linear="mul")


def _permute_dims(shapes: Shapes, attrs: Attrs) -> Rule:
    names = _names(len(shapes[0]))
    return rule(
        "permute_dims", f"{' '.join(names)} -> {' '.join(names[i] for i in attrs['axes'])}", shapes, linear="move"
    )


def _reshape(shapes: Shapes, attrs: Attrs) -> Rule:
    """Dims that end at the same element form a block; inside a block dims are products of common factors."""
    old, new = shapes[0], attrs["shape"]
    if math.prod(old) != math.prod(new):
        raise OperationError(
            f"reshape: a tensor of shape {old} has {math.prod(old)} elements, the shape {new} {math.prod(new)}."
        )
    sizes: dict[str, int] = {}
    whole: list[str] = []
    dims_old: list[tuple[str, ...]] = [()] * len(old)
    dims_new: list[tuple[str, ...]] = [()] * len(new)
    i = j = 0
    while i < len(old) or j < len(new):
        if i < len(old) and j < len(new) and old[i] == new[j]:
            sizes[f"r{len(sizes)}"] = old[i]
            dims_old[i] = dims_new[j] = (f"r{len(sizes) - 1}",)
            i, j = i + 1, j + 1
            continue
        start_i, start_j = i, j
        a, b = 1, 1
        while (i, j) == (start_i, start_j) or a != b:  # grow the smaller side until both hold the same elements
            if not math.prod(old):
                i, j = len(old), len(new)  # no elements: what follows is one block
                break
            if i < len(old) and (a <= b or j == len(new)):
                a, i = a * old[i], i + 1
            else:
                b, j = b * new[j], j + 1
        _factor_block(old[start_i:i], new[start_j:j], dims_old, dims_new, start_i, start_j, sizes, whole)
    return Rule((tuple(dims_old),), (tuple(dims_new),), sizes, whole=frozenset(whole), linear="move")


def _factor_block(
    old: Shape,
    new: Shape,
    dims_old: list[tuple[str, ...]],
    dims_new: list[tuple[str, ...]],
    at_old: int,
    at_new: int,
    sizes: dict[str, int],
    whole: list[str],
) -> None:
    """Cut the elements of a block at the boundaries of the dims of both sides, where these divide one another."""

    def ends(shape: Shape) -> list[int]:
        total, result = 1, []
        for size in reversed(shape):
            total *= size
            result.append(total)
        return result

    total = math.prod(old)
    marks = sorted({1, *ends(old), *ends(new)}, reverse=True)
    nested = 0 < total == math.prod(new) and all(a % b == 0 for a, b in itertools.pairwise(marks))
    for shape, dims, at in ((old, dims_old, at_old), (new, dims_new, at_new)):
        below = total
        for place, size in enumerate(shape):
            if not nested:
                name = f"r{len(sizes)}"
                sizes[name] = size
                whole.append(name)
                dims[at + place] = (name,)
                continue
            outer, below = below, below // size
            inside = [m for m in marks if below <= m <= outer]
            dims[at + place] = tuple(_block_factor(at_old, a, b, sizes) for a, b in itertools.pairwise(inside))


def _block_factor(block: int, high: int, low: int, sizes: dict[str, int]) -> str:
    name = f"r{block}:{high}:{low}"
    sizes[name] = high // low
    return name


def _broadcast_to(shapes: Shapes, attrs: Attrs) -> Rule:
    new = attrs["shape"]
    names = [f"b{i}" for i in range(len(new))]
    lead = len(new) - len(shapes[0])
    dims, whole = [], []
    for at, size in enumerate(new):
        own = shapes[0][at - lead] if at >= lead else None
        if own is None or own != size:
            if own not in (None, 1):
                raise OperationError(
                    f"broadcast_to: shape {shapes[0]} does not broadcast to {new}: {own} meets {size}."
                )
            whole.append(names[at])
        if own is not None:
            dims.append((names[at],) if own == size else ())
    sizes = dict(zip(names, new, strict=True))
    return Rule((tuple(dims),), (tuple((n,) for n in names),), sizes, whole=frozenset(whole), linear="move")


def _rows(name: str) -> RuleMaker:
    """Dims whose rows come from known places; attrs: maps, one RowMap or None per dim."""

    def make(shapes: Shapes, attrs: Attrs) -> Rule:
        names = _names(len(shapes[0]))
        rows = {n: m for n, m in zip(names, attrs["maps"], strict=True) if m is not None}
        return rule(name, f"{' '.join(names)} -> {' '.join(names)}", shapes, rows=rows, linear="move")

    return make


def _prefix(name: str) -> RuleMaker:
    """Along one dim, each row with all before it."""

    def make(shapes: Shapes, attrs: Attrs) -> Rule:
        names = _names(len(shapes[0]))
        return rule(name, f"{' '.join(names)} -> {' '.join(names)}", shapes, prefix=names[attrs["axis"]])

    return make


def _concat(shapes: Shapes, attrs: Attrs) -> Rule:
    axis = attrs["axis"]
    names = _names(len(shapes[0]))
    texts = [" ".join(f"{n}.{i}" if at == axis else n for at, n in enumerate(names)) for i in range(len(shapes))]
    whole = [f"{names[axis]}.{i}" for i in range(len(shapes))] + [names[axis]]
    sizes = {names[axis]: sum(shape[axis] for shape in shapes)}
    return rule("concat", f"{', '.join(texts)} -> {' '.join(names)}", shapes, whole=whole, sizes=sizes, linear="add")


def _take(shapes: Shapes, attrs: Attrs) -> Rule:
    names, axis = _names(len(shapes[0])), attrs["axis"]
    numbers = [f"i{n}" for n in range(len(shapes[1]))]
    result = [*names[:axis], *numbers, *names[axis + 1 :]]
    # Rows absent from a shard count as zero, so rows that are split leave a sum over the devices.
    return rule(
        "take",
        f"{' '.join(names)}, {' '.join(numbers)} -> {' '.join(result)}",
        shapes,
        sums={names[axis]: "sum"},
        linear="first",
    )


def _take_along_axis(shapes: Shapes, attrs: Attrs) -> Rule:
    axis, names = attrs["axis"], _names(len(shapes[0]))
    other = [f"{n}'" if at == axis else n for at, n in enumerate(names)]
    for at, (a, b) in enumerate(zip(*shapes, strict=True)):
        if at != axis and a != b:  # a broadcast dim must be whole on both sides
            other[at] = f"{names[at]}'"
    result = [
        a if b == a or (shapes[0][i] != 1 and i != axis) else b
        for i, (a, b) in enumerate(zip(names, other, strict=True))
    ]
    whole = [n for pair in zip(names, other, strict=True) if pair[0] != pair[1] for n in pair]
    return rule("take_along_axis", f"{' '.join(names)}, {' '.join(other)} -> {' '.join(result)}", shapes, whole=whole)


def _windows(name: str) -> RuleMaker:
    """`b spatial… c`, and for a convolution `window… c o`; attrs: maps, one RowMap per spatial dim; groups."""

    def make(shapes: Shapes, attrs: Attrs) -> Rule:
        maps = attrs["maps"]
        places = [f"s{i}" for i in range(len(maps))]
        rows = dict(zip(places, maps, strict=True))
        text = f"b {' '.join(places)} c"
        if len(shapes) == 1:
            return rule(name, f"{text} -> {text}", shapes, rows=rows)
        offsets = [f"w{i}" for i in range(len(maps))]
        if attrs["groups"] > 1:
            return rule(
                name,
                f"{text}, {' '.join(offsets)} i o -> b {' '.join(places)} o",
                shapes,
                rows=rows,
                whole=[*offsets, "c", "i", "o"],
            )
        return rule(
            name,
            f"{text}, {' '.join(offsets)} c o -> b {' '.join(places)} o",
            shapes,
            rows=rows,
            whole=offsets,
            sums={"c": "sum"},
            linear="mul",
        )

    return make


def _made(name: str) -> RuleMaker:
    """From nothing but the place of each element."""

    def make(shapes: Shapes, attrs: Attrs) -> Rule:
        names = _names(len(attrs["shape"]))
        return Rule((), (tuple((n,) for n in names),), dict(zip(names, attrs["shape"], strict=True)))

    return make


def _unshaped(shapes: Shapes, attrs: Attrs) -> Rule:
    """The whole operand, for a result whose shape only the data tells."""
    names = [f"{i}.{d}" for i, shape in enumerate(shapes) for d in range(len(shape))]
    sizes = {f"{i}.{d}": n for i, shape in enumerate(shapes) for d, n in enumerate(shape)}
    inputs = tuple(tuple((f"{i}.{d}",) for d in range(len(shape))) for i, shape in enumerate(shapes))
    return Rule(inputs, (), sizes, whole=frozenset(names))


# -- the rows -----------------------------------------------------------------------------------------------------------

_LINEAR = {
    "add": "add", "subtract": "add", "negative": "add", "positive": "move", "conj": "add", "real": "add", "imag": "add",
    "multiply": "mul", "divide": "first",
}  # fmt: skip

_ELEMENTWISE = """
abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_invert bitwise_or
bitwise_right_shift bitwise_xor ceil conj copysign cos cosh divide equal exp expm1 floor floor_divide greater
greater_equal hypot imag isfinite isinf isnan less less_equal log log1p log2 log10 logaddexp logical_and logical_not
logical_or logical_xor maximum minimum multiply negative nextafter not_equal positive pow real reciprocal remainder
round sign signbit sin sinh square sqrt subtract tan tanh trunc where fmax fmin exp2 cbrt rint degrees radians
""".split()


_STANDARD: dict[str, Callable[..., Any]] = {
    "floor_divide": special.floor_divide,
    "expm1": special.expm1,
    "tanh": special.tanh,
}


def _ufunc_row(name: str) -> Op:
    function: Callable[..., Any] = _STANDARD.get(name) or getattr(np, name)
    return Op(name, _same(name, _LINEAR.get(name, "")), k.elementwise(function), plain=function)


def _astype(x: Any, dtype: Any) -> Any:
    return x.astype(dtype) if isinstance(x, np.ndarray) else np.asarray(x, dtype)


def _clip(x: Any, *bounds: Any, low: bool, high: bool) -> Any:
    """Bounds follow x in the operands: the lower if `low`, the upper if `high`."""
    given = list(bounds)
    least = given.pop(0) if low else None
    return np.clip(x, least, given.pop(0) if high else None)


def _isin(call: Call, x: Any, values: Any) -> Any:
    return np.isin(x, values.ravel(), invert=call.attrs["invert"])


def _searchsorted(call: Call, x: Any, values: Any) -> Any:
    return np.searchsorted(x.ravel(), values, side=call.attrs["side"])


def _sort(x: Any, axis: int, descending: bool, stable: bool) -> Any:
    result = np.sort(x, axis=axis, stable=stable)
    return np.flip(result, axis=axis) if descending else result


def _argsort(x: Any, axis: int, descending: bool, stable: bool) -> Any:
    if not descending:
        return np.argsort(x, axis=axis, stable=stable)
    order = np.flip(np.argsort(np.flip(x, axis=axis), axis=axis, stable=stable), axis=axis)
    return x.shape[axis] - 1 - order


def _fft(name: str) -> Callable[..., Any]:
    function = getattr(np.fft, name)

    def transform(x: Any, axis: Any, norm: str, length: Any) -> Any:
        if isinstance(axis, int):
            return function(x, n=length, axis=axis, norm=norm)
        return function(x, s=length, axes=axis, norm=norm)

    return transform


def _shifted(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis: function(x, axes=axis)


def _norm2(x: Any, ord: Any, keepdims: bool) -> Any:
    return np.linalg.norm(x, ord=ord, axis=(-2, -1), keepdims=keepdims)


def _rows_of(*rows: Op) -> dict[str, Op]:
    return {row.name: row for row in rows}


OPS: dict[str, Op] = _rows_of(
    # element by element
    *map(_ufunc_row, _ELEMENTWISE),
    Op("erf", _same("erf"), k.elementwise(special.erf)),
    Op("astype", _same("astype"), k.elementwise(_astype)),
    Op("clip", _same("clip"), k.elementwise(_clip)),
    Op("isin", _text("isin", "..., s -> ...", whole="s"), _isin),
    # over dims
    Op("sum", _reduced("sum", "sum", linear="add"), k.reduction(np.sum)),
    Op("prod", _reduced("prod", "product"), k.reduction(np.prod)),
    Op("max", _reduced("max", "max"), k.reduction(np.max, k.lowest)),
    Op("min", _reduced("min", "min"), k.reduction(np.min, k.highest)),
    Op("all", _reduced("all", "bitwise_and"), k.reduction(np.all)),
    Op("any", _reduced("any", "bitwise_or"), k.reduction(np.any)),
    # products
    Op("einsum", _einsum, contract, contracts=True),
    # moves
    Op("permute_dims", _permute_dims, k.permute_dims),
    Op("reshape", _reshape, k.reshape),
    Op("broadcast_to", _broadcast_to, k.broadcast_to),
    Op("rows", _rows("rows"), k.fetch_rows),
    Op("concat", _concat, k.concat),
    Op("take", _take, k.take),
    Op("take_along_axis", _take_along_axis, k.take_along_axis),
    Op("triangle", _text("triangle", "... m n -> ... m n", linear="add"), k.triangle),
    Op("diagonal", _text("diagonal", "... m n -> ... d", whole="m n d", linear="move"), k.stacked_matrices(np.linalg.diagonal)),
    # along dims
    Op("cumulative_sum", _prefix("cumulative_sum"), k.cumulative(np.add, 0)),
    Op("cumulative_prod", _prefix("cumulative_prod"), k.cumulative(np.multiply, 1)),
    Op("sort", _whole("sort"), k.along(_sort)),
    Op("argsort", _whole("argsort"), k.along(_argsort)),
    Op("searchsorted", _text("searchsorted", "s, ... -> ...", whole="s"), _searchsorted),
    *(Op(name, _whole(name, linear="add"), k.along(_fft(name)))
      for name in ("fft", "ifft", "fftn", "ifftn", "rfft", "irfft", "rfftn", "irfftn", "hfft", "ihfft")),
    Op("fftshift", _whole("fftshift", linear="move"), k.along(_shifted(np.fft.fftshift))),
    Op("ifftshift", _whole("ifftshift", linear="move"), k.along(_shifted(np.fft.ifftshift))),
    # matrices, whole on each device; batch dims pass
    Op("cholesky", _text("cholesky", "... m n -> ... m n", whole="m n"), k.stacked_matrices(np.linalg.cholesky)),
    Op("det", _text("det", "... m n -> ...", whole="m n"), k.stacked_matrices(np.linalg.det)),
    Op("inv", _text("inv", "... m n -> ... m n", whole="m n"), k.stacked_matrices(np.linalg.inv)),
    Op("pinv", _tolerant("pinv", "... n m"), k.tolerant(np.linalg.pinv)),
    Op("matrix_norm", _text("matrix_norm", "... m n -> ...", whole="m n"), k.stacked_matrices(_norm2)),
    Op("matrix_power", _text("matrix_power", "... m n -> ... m n", whole="m n"), k.stacked_matrices(np.linalg.matrix_power)),
    Op("matrix_rank", _tolerant("matrix_rank", "..."), k.tolerant(np.linalg.matrix_rank)),
    Op("qr", _text("qr", "... m n -> ... m q, ... q n", whole="m n q"), k.stacked_matrices(np.linalg.qr)),
    Op("qr_complete", _text("qr_complete", "... m n -> ... m m, ... m n", whole="m n"), k.stacked_matrices(np.linalg.qr)),
    Op("slogdet", _text("slogdet", "... m n -> ..., ...", whole="m n"), k.stacked_matrices(np.linalg.slogdet)),
    Op("solve", _text("solve", "... m m, ... m n -> ... m n", whole="m n"), k.stacked_matrices(np.linalg.solve)),
    Op("svd", _text("svd", "... m n -> ... m q, ... q, ... q n", whole="m n q"), k.stacked_matrices(np.linalg.svd)),
    Op("svd_full", _text("svd_full", "... m n -> ... m m, ... q, ... n n", whole="m n q"), k.stacked_matrices(np.linalg.svd)),
    Op("svdvals", _text("svdvals", "... m n -> ... q", whole="m n q"), k.stacked_matrices(np.linalg.svdvals)),
    Op("eigh", _text("eigh", "... m n -> ... m, ... m n", whole="m n"), k.stacked_matrices(np.linalg.eigh)),
    Op("eigvalsh", _text("eigvalsh", "... m n -> ... m", whole="m n"), k.stacked_matrices(np.linalg.eigvalsh)),
    Op("eig", _text("eig", "... m n -> ... m, ... m n", whole="m n"), k.stacked_matrices(np.linalg.eig)),
    Op("eigvals", _text("eigvals", "... m n -> ... m", whole="m n"), k.stacked_matrices(np.linalg.eigvals)),
    # windows
    Op("convolution", _windows("convolution"), k.convolution),
    Op("max_pool", _windows("max_pool"), k.pooling(np.max, k.lowest)),
    Op("avg_pool", _windows("avg_pool"), k.pooling(np.mean, lambda dtype: 0)),
    # from nothing but places
    Op("places", _made("places"), k.places),
    Op("random_bits", _made("random_bits"), k.random_bits),
    # shapes that only the data tells
    Op("nonzero", _unshaped, lambda call, x: np.nonzero(x), dynamic=True),
    Op("unique_all", _unshaped, lambda call, x: tuple(np.unique_all(x)), dynamic=True),
    Op("unique_counts", _unshaped, lambda call, x: tuple(np.unique_counts(x)), dynamic=True),
    Op("unique_inverse", _unshaped, lambda call, x: tuple(np.unique_inverse(x)), dynamic=True),
    Op("unique_values", _unshaped, lambda call, x: (np.unique_values(x),), dynamic=True),
    Op("index", _unshaped, lambda call, x, *keys: (x[_key(call, keys)],), dynamic=True),
    Op("update", _unshaped, lambda call, x, value, *keys: (_updated(call, x, value, keys),), dynamic=True),
    Op("repeat", _unshaped, lambda call, x, n: (np.repeat(x, n, axis=call.attrs["axis"]),), dynamic=True),
)  # fmt: skip


def _key(call: Call, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """An index whose arrays, marked by None in the pattern, come as operands."""
    given = iter(arrays)
    return tuple(next(given) if entry == "array" else _entry(entry) for entry in call.attrs["pattern"])


def _entry(entry: Any) -> Any:
    """Slices are not hashable in Python 3.11, so a pattern has them as tuples."""
    return slice(*entry[1:]) if isinstance(entry, tuple) else (Ellipsis if entry == "..." else entry)


def _updated(call: Call, x: Any, value: Any, arrays: Sequence[Any]) -> Any:
    result = x.copy()
    result[_key(call, arrays)] = value
    return result
