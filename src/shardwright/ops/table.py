"""THE TABLE: one row per operation. The row has everything about how the operation may be sharded.

A row has a factor rule, fitted to the operands' shapes and the call's attributes, the dtypes of its results and its
floating-point work. Strategies, costs and the shardings of results are all derived from the rule, in one place each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

import shardwright.ops.dtypes as dt
import shardwright.ops.families as f
import shardwright.ops.work as w
from shardwright.ops.attrs import Attrs
from shardwright.ops.rule import Rule, Shape


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One row: an operation's name, how it may be sharded, its results' dtypes, its work.

    `contracts` marks products that can be summed over devices in the same call. Results of `dynamic` operations have
    data-dependent shapes.
    """

    name: str
    rule: f.RuleMaker
    dtypes: dt.Dtypes = dt.first
    work: w.Work = w.ONE
    contracts: bool = False
    dynamic: bool = False
    elementwise: bool = False  # one NumPy function of all operands, without attributes

    def fitted(self, shapes: tuple[Shape, ...], attrs: Attrs, scalars: str = "") -> Rule:
        """The rule for operands of shapes; made once. `scalars` says on which side scalars stand, "left" or "right": adding
        one to a partial value is not linear."""
        return _fitted(self, shapes, attrs.key, scalars)


@lru_cache(maxsize=4096)
def _fitted(op: Op, shapes: tuple[Shape, ...], attrs: tuple[tuple[str, Any], ...], scalars: str) -> Rule:
    return op.rule(shapes, {**dict(attrs), "scalars": scalars} if scalars else dict(attrs))


# -- the rows -----------------------------------------------------------------------------------------------------------

_LINEAR = {
    "add": "add", "subtract": "add", "negative": "add", "positive": "move", "conj": "add", "real": "add", "imag": "add",
    "multiply": "mul", "divide": "over",
}  # fmt: skip

_ELEMENTWISE = """
abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_invert bitwise_or
bitwise_right_shift bitwise_xor ceil conj copysign cos cosh divide equal exp expm1 floor floor_divide greater
greater_equal hypot imag isfinite isinf isnan less less_equal log log1p log2 log10 logaddexp logical_and logical_not
logical_or logical_xor maximum minimum multiply negative nextafter not_equal positive pow real reciprocal remainder
round sign signbit sin sinh square sqrt subtract tan tanh trunc where fmax fmin fmod exp2 cbrt rint degrees radians
""".split()


def _elementwise(name: str) -> Op:
    return Op(name, f.elementwise(name, _LINEAR.get(name, "")), dt.as_ran(getattr(np, name)), elementwise=True)


def _clip_tried(x: Any, *bounds: Any) -> Any:
    if dt.is_small(x.dtype) and all(bound.dtype == x.dtype for bound in bounds):
        return x  # NumPy's clip of small floats of ml_dtypes is float32
    return np.clip(x, bounds[0], bounds[-1]) if bounds else x


def _complex_tried(real: Any, imag: Any) -> Any:
    return (real + imag).astype(np.result_type(real, imag, np.complex64))


def _fft_dtypes(name: str) -> dt.Dtypes:
    """NumPy's, which for irfftn of float16 differ between one dim and several."""

    def tried(name: str) -> dt.Dtypes:
        return dt.as_ran(lambda x: getattr(np.fft, name)(np.tile(x, (2, 2) if name.endswith("n") else 2)))

    one, several = tried(name.removesuffix("n")), tried(name)
    return lambda kinds, attrs: (one if np.size(attrs["axis"]) == 1 else several)(kinds, attrs)


def _pinv_tried(x: Any, *rtol: Any) -> Any:
    return np.linalg.pinv(x)


def _power_dtypes(kinds: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    return dt.as_ran(np.linalg.inv, 2)(kinds, attrs) if attrs["n"] < 0 else dt.first(kinds, attrs)


def _matrices(name: str, text: str, whole: str, dtypes: dt.Dtypes | None = None) -> Op:
    """A function of matrices that are not split; batch dims may be."""
    function = getattr(np.linalg, name.split("_")[0], None)
    return Op(name, f.as_text(name, text, whole=whole), dtypes or dt.as_ran(function, 2), w.matrices)  # type: ignore[arg-type]


def _moves(name: str, rule: f.RuleMaker, dtypes: dt.Dtypes = dt.first, **options: Any) -> Op:
    return Op(name, rule, dtypes, w.NONE, **options)


def _rows_of(*rows: Op) -> dict[str, Op]:
    return {row.name: row for row in rows}


OPS: dict[str, Op] = _rows_of(
    # element by element
    *map(_elementwise, _ELEMENTWISE),
    Op("sigmoid", f.elementwise("sigmoid"), dt.floats, w.points(4)),
    Op("gelu", f.elementwise("gelu"), dt.floats, w.points(20)),
    Op("erf", f.elementwise("erf"), dt.floats, w.points(30)),
    Op("erfc", f.elementwise("erfc"), dt.floats, w.points(30)),
    Op("astype", f.elementwise("astype"), dt.given),
    Op("bitcast", f.elementwise("bitcast"), dt.given, w.NONE),
    Op("make_complex", f.elementwise("make_complex", "add"), dt.as_ran(_complex_tried), w.NONE),
    _moves("in_range", f.checked("in_range")),
    Op("clip", f.elementwise("clip"), dt.as_ran(_clip_tried)),
    Op("isin", f.as_text("isin", "..., s -> ...", whole="s"), dt.always(bool)),
    # over dims
    Op("sum", f.reduced("sum", "sum", linear="add"), dt.given),
    Op("prod", f.reduced("prod", "product"), dt.given),
    Op("max", f.reduced("max", "max")),
    Op("min", f.reduced("min", "min")),
    Op("all", f.reduced("all", "bitwise_and"), dt.always(bool)),
    Op("any", f.reduced("any", "bitwise_or"), dt.always(bool)),
    Op("first_true", f.reduced("first_true", "min"), dt.always(np.int64)),
    # products
    Op("einsum", f.einsum, dt.promoted, w.TWO, contracts=True),
    Op("grouped_matmul", f.as_text("grouped_matmul", "t k, g k n, s -> t n", sums="k g", whole="s"), dt.first, w.grouped),
    Op("attention", f.attention, dt.first, w.attention),
    # moves
    _moves("permute_dims", f.permute_dims),
    _moves("reshape", f.reshape),
    _moves("broadcast_to", f.broadcast_to),
    _moves("rows", f.moved_rows("rows")),
    _moves("concat", f.concat, dt.promoted),
    _moves("take", f.take),
    _moves("take_along_axis", f.take_along_axis),
    _moves("pick", f.pick),
    _moves("assign", f.assign),
    _moves("scatter", f.scatter),
    Op("scatter_reduce", f.scatter_reduce, work=w.of_operand(2)),
    _moves("fill", f.kept("fill")),
    _moves("triangle", f.as_text("triangle", "... m n -> ... m n", linear="add")),
    _moves("diagonal", f.as_text("diagonal", "... m n -> ... d", whole="m n d", linear="move")),
    # along dims
    Op("cumulative_sum", f.prefix("cumulative_sum"), dt.given),
    Op("cumulative_prod", f.prefix("cumulative_prod"), dt.given),
    Op("sort", f.along_whole("sort"), work=w.sorting),
    Op("argsort", f.along_whole("argsort"), dt.always(np.int64), w.sorting),
    Op("top_k", f.top_k, dt.with_places, w.selecting),
    Op("searchsorted", f.as_text("searchsorted", "s, ... -> ...", whole="s"), dt.always(np.int64), w.sorting),
    *(Op(name, f.along_whole(name, linear="add"), _fft_dtypes(name), w.sorting)
      for name in ("fft", "ifft", "fftn", "ifftn", "rfft", "irfft", "rfftn", "irfftn", "hfft", "ihfft")),
    _moves("fftshift", f.along_whole("fftshift", linear="move")),
    _moves("ifftshift", f.along_whole("ifftshift", linear="move")),
    # matrices that are not split; batch dims may be
    _matrices("cholesky", "... m n -> ... m n", "m n"),
    _matrices("det", "... m n -> ...", "m n"),
    _matrices("inv", "... m n -> ... m n", "m n"),
    Op("pinv", f.tolerant("pinv", "... n m"), dt.as_ran(_pinv_tried, 2), w.matrices),
    _matrices("matrix_norm", "... m n -> ...", "m n", dt.as_ran(np.linalg.matrix_norm, 2)),
    _matrices("matrix_power", "... m n -> ... m n", "m n", _power_dtypes),
    Op("matrix_rank", f.tolerant("matrix_rank", "..."), dt.always(np.int64), w.matrices),
    _matrices("qr", "... m n -> ... m q, ... q n", "m n q"),
    _matrices("qr_complete", "... m n -> ... m m, ... m n", "m n"),
    _matrices("slogdet", "... m n -> ..., ...", "m n"),
    _matrices("solve", "... m m, ... m n -> ... m n", "m n"),
    _matrices("svd", "... m n -> ... m q, ... q, ... q n", "m n q"),
    _matrices("svd_full", "... m n -> ... m m, ... q, ... n n", "m n q"),
    _matrices("svdvals", "... m n -> ... q", "m n q"),
    _matrices("eigh", "... m n -> ... m, ... m n", "m n"),
    _matrices("eigvalsh", "... m n -> ... m", "m n"),
    _matrices("eig", "... m n -> ... m, ... m n", "m n", dt.complexes(2)),
    _matrices("eigvals", "... m n -> ... m", "m n", dt.complexes(1)),
    # windows
    Op("convolution", f.windows("convolution"), dt.promoted, w.TWO),
    Op("max_pool", f.windows("max_pool"), work=w.ONE),
    Op("avg_pool", f.windows("avg_pool"), dt.as_ran(np.mean), w.ONE),
    # computed from indices only
    Op("places", f.from_places("places"), dt.always(np.uint64), w.NONE),
    Op("random_bits", f.from_places("random_bits"), dt.always(np.uint64)),
    # data-dependent shapes
    Op("nonzero", f.elements_alike, dynamic=True),
    Op("unique", f.elements_alike, work=w.sorting, dynamic=True),
    Op("masked", f.elements_alike, dynamic=True),
    Op("index", f.whole_operands, dynamic=True),
    Op("repeat", f.whole_operands, dynamic=True),
)  # fmt: skip
