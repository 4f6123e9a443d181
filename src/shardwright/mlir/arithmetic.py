"""Element-wise operations of arith, math and tosa, each by operations of the table."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from xdsl.ir import Operation

from shardwright.errors import ShardwrightError
from shardwright.mlir.fields import integer
from shardwright.mlir.named import PREDICATES
from shardwright.mlir.types import dtype_of, element_of
from shardwright.mlir.values import Value, View
from shardwright.xla import is_known, splat

Rule = Callable[..., Value]  # of the view, the operation and its operands' values


def _row(name: str) -> Rule:
    return lambda view, op, *values: view.row(name, *values)


def unsigned(view: View, value: Value) -> Value:
    kind = value.dtype
    return view.cast(value, np.dtype(f"u{kind.name}")) if kind.kind == "i" else value


def _as_unsigned(name: str) -> Rule:
    """An operation on the bits of integers as numbers without a sign."""

    def run(view: View, op: Operation, *values: Value) -> Value:
        made = view.row(name, *(unsigned(view, x) for x in values))
        return made if made.dtype.kind == "b" else view.cast(made, values[0].dtype)

    return run


def _of_bits(name: str, of_booleans: str) -> Rule:
    """Addition and the like: of i1 they are modulo 2."""

    def run(view: View, op: Operation, *values: Value) -> Value:
        return view.row(of_booleans if values[0].dtype.kind == "b" else name, *values)

    return run


def _truncated_division(view: View, a: Value, b: Value) -> Value:
    """Towards zero, where NumPy's // goes down."""
    down = view.row("floor_divide", a, b)
    exact = view.row("equal", view.row("multiply", down, b), a)
    apart = view.row("not_equal", view.row("less", a, _like(a, 0)), view.row("less", b, _like(b, 0)))
    wrong = view.row("logical_and", apart, view.row("logical_not", exact))
    return view.row("add", down, view.cast(wrong, down.dtype))


def _like(value: Value, element: Any) -> Value:
    return splat(element, value.shape, value.dtype)


def _divsi(view: View, op: Operation, a: Value, b: Value) -> Value:
    return _truncated_division(view, a, b)


def _remsi(view: View, op: Operation, a: Value, b: Value) -> Value:
    return view.row("subtract", a, view.row("multiply", _truncated_division(view, a, b), b))


def _ceildiv(view: View, op: Operation, a: Value, b: Value) -> Value:
    return view.row("negative", view.row("floor_divide", view.row("negative", a), b))


def _ceildivui(view: View, op: Operation, a: Value, b: Value) -> Value:
    one, two = unsigned(view, a), unsigned(view, b)
    rest = view.row("not_equal", view.row("remainder", one, two), _like(one, 0))
    return view.cast(view.row("add", view.row("floor_divide", one, two), view.cast(rest, one.dtype)), a.dtype)


def _result_dtype(op: Operation) -> "np.dtype[Any]":
    dtype = dtype_of(element_of(op.results[0].type))
    assert dtype is not None, "types are checked before operations run"
    return dtype


def _cast(view: View, op: Operation, value: Value) -> Value:
    """To the result's element type."""
    return view.cast(value, _result_dtype(op))


def _cast_signed(view: View, op: Operation, value: Value) -> Value:
    """To a wider type; the only bit of an i1 is its sign, so true is -1."""
    made = _cast(view, op, value)
    return view.row("negative", made) if value.dtype.kind == "b" and made.dtype.kind != "b" else made


def _cast_unsigned(view: View, op: Operation, value: Value) -> Value:
    return _cast(view, op, unsigned(view, value))


def _fptoui(view: View, op: Operation, value: Value) -> Value:
    """Numbers beyond the signed range have their bits."""
    dtype = _result_dtype(op)
    wide = np.dtype(f"u{dtype.name}") if dtype.kind == "i" else dtype
    return view.cast(view.cast(value, wide), dtype)


def _trunci(view: View, op: Operation, value: Value) -> Value:
    """The lowest bits."""
    if _result_dtype(op).kind == "b" and value.dtype.kind != "b":
        value = view.row("bitwise_and", value, _like(value, 1))
    return _cast(view, op, value)


# -- bits ------------------------------------------------------------------------------------------------------------


def _ones(view: View, x: Value) -> Value:
    """How many bits are 1, of integers without a sign: sums of neighbours of 1, 2, 4, … bits."""
    width = x.dtype.itemsize * 8
    step = 1
    while step < width:
        mask = _like(x, sum(((1 << step) - 1) << at for at in range(0, width, 2 * step)))
        high = view.row("bitwise_right_shift", x, _like(x, step))
        x = view.row("add", view.row("bitwise_and", x, mask), view.row("bitwise_and", high, mask))
        step *= 2
    return x


def _ctpop(view: View, op: Operation, a: Value) -> Value:
    return view.cast(_ones(view, unsigned(view, a)), a.dtype)


def _cttz(view: View, op: Operation, a: Value) -> Value:
    """The ones below the lowest 1: of x - 1 and not x."""
    x = unsigned(view, a)
    below = view.row("bitwise_and", view.row("subtract", x, _like(x, 1)), view.row("bitwise_invert", x))
    return view.cast(_ones(view, below), a.dtype)


def _ctlz(view: View, op: Operation, a: Value) -> Value:
    """Zeros left of the highest 1, once all bits right of it are set."""
    x = unsigned(view, a)
    step = 1
    while step < x.dtype.itemsize * 8:
        x = view.row("bitwise_or", x, view.row("bitwise_right_shift", x, _like(x, step)))
        step *= 2
    return view.cast(_ones(view, view.row("bitwise_invert", x)), a.dtype)


# -- comparisons -----------------------------------------------------------------------------------------------------

_ORDERED = {"eq": "equal", "gt": "greater", "ge": "greater_equal", "lt": "less", "le": "less_equal", "ne": "not_equal"}
_OPPOSITE = {"eq": "one", "gt": "ole", "ge": "olt", "lt": "oge", "le": "ogt"}  # u…: not (o… of the opposite)


def _compared(view: View, name: str, a: Value, b: Value) -> Value:
    """A comparison of floats; `o` is false and `u` true where one is NaN."""
    if name in ("true", "false"):
        return splat(name == "true", np.broadcast_shapes(a.shape, b.shape), np.dtype(bool))
    if name in ("ord", "uno"):
        unordered = view.row("isnan", a)
        if b is not a:
            unordered = view.row("logical_or", unordered, view.row("isnan", b))
        return unordered if name == "uno" else view.row("logical_not", unordered)
    if name == "one":
        return view.row("logical_or", view.row("less", a, b), view.row("greater", a, b))
    if name == "une" or name[0] == "o":
        return view.row(_ORDERED[name[1:]], a, b)
    return view.row("logical_not", _compared(view, _OPPOSITE[name[1:]], a, b))


def _cmpf(view: View, op: Operation, a: Value, b: Value) -> Value:
    return _compared(view, PREDICATES["cmpf"][integer(op.properties["predicate"])], a, b)


def _cmpi(view: View, op: Operation, a: Value, b: Value) -> Value:
    name = PREDICATES["cmpi"][integer(op.properties["predicate"])]
    if name[0] == "u":
        a, b = unsigned(view, a), unsigned(view, b)
    elif name[0] == "s" and a.dtype.kind == "b":
        a, b = b, a  # true is -1
    return view.row(_ORDERED[name if name in ("eq", "ne") else name[1:]], a, b)


def _select(view: View, op: Operation, test: Value, a: Value, b: Value) -> Value:
    return view.row("where", test, a, b)


def _fma(view: View, op: Operation, a: Value, b: Value, c: Value) -> Value:
    return view.row("add", view.row("multiply", a, b), c)


def _rsqrt(view: View, op: Operation, a: Value) -> Value:
    return view.row("divide", _like(a, 1), view.row("sqrt", a))


def _reciprocal(view: View, op: Operation, a: Value) -> Value:
    return view.row("divide", _like(a, 1), a)


def _round(view: View, op: Operation, a: Value) -> Value:
    """Halves away from zero. Adding a half first would round 0.49999997 up."""
    down = view.row("trunc", a)
    far = view.row("greater_equal", view.row("abs", view.row("subtract", a, down)), _like(a, 0.5))
    return view.row("where", far, view.row("add", down, view.row("copysign", _like(a, 1), a)), down)


def _clampf(view: View, op: Operation, a: Value, low: Value, high: Value) -> Value:
    return view.row("minimum", view.row("maximum", a, low), high)


def _isnormal(view: View, op: Operation, a: Value) -> Value:
    large = view.row("greater_equal", view.row("abs", a), _like(a, np.finfo(a.dtype).tiny))
    return view.row("logical_and", view.row("isfinite", a), large)


def _div(view: View, op: Operation, a: Value, b: Value) -> Value:
    return view.row("divide", a, b) if a.dtype.kind not in "iu" else _truncated_division(view, a, b)


def _clamp(view: View, op: Operation, a: Value) -> Value:
    """tosa.clamp: bounds as attributes, as LLVM 20 on has them, or as integers and floats beside each other."""
    known: dict[str, Any] = {**op.attributes, **op.properties}
    kind = "int" if a.dtype.kind in "iu" else "fp"
    low, high = (known[f"{end}_val"] if f"{end}_val" in known else known[f"{end}_{kind}"] for end in ("min", "max"))
    return _clampf(view, op, a, _like(a, low.value.data), _like(a, high.value.data))


def _ipow(view: View, op: Operation, a: Value, b: Value) -> Value:
    return view.row("pow", a, view.cast(b, a.dtype))


# -- tosa -------------------------------------------------------------------------------------------------------------


def amount(view: View, op: Operation, name: str, values: Sequence[Value], dtype: Any, rank: int) -> Value | None:
    """A shift or zero point: an attribute, or in later versions an operand with one element; None if it is 0."""
    attribute = {**op.attributes, **op.properties}.get(name)
    value = values[0] if values else None if attribute is None else np.asarray(integer(attribute))
    if value is None or (is_known(value) and not value.any()):
        return None
    if np.dtype(dtype).kind not in "iu":
        if is_known(value):
            raise ShardwrightError(f"{name} is {value.ravel()[0]}, but elements are not integers. It must be 0.")
        return None  # by definition it is 0
    return view.cast(view.reshaped(value, (1,) * rank), np.dtype(np.int64))


def _mul(view: View, op: Operation, a: Value, b: Value, *shift: Value) -> Value:
    """A product; with a shift of half its bits and more, rounded."""
    dtype = _result_dtype(op)
    by = amount(view, op, "shift", shift, dtype, len(a.shape))
    wide = dtype if by is None else np.dtype(np.int64)
    made = view.row("multiply", view.cast(a, wide), view.cast(b, wide))
    if by is None:
        return made
    half = view.row("bitwise_right_shift", view.row("bitwise_left_shift", _like(by, 1), by), _like(by, 1))
    return view.cast(view.row("bitwise_right_shift", view.row("add", made, half), by), dtype)


def _negate(view: View, op: Operation, a: Value, *zero_points: Value) -> Value:
    """With zero points that of the input and of the output less the element, as near as its type has it."""
    names = ("input1_zp", zero_points[:1]), ("output_zp", zero_points[1:])
    total = [amount(view, op, name, values, a.dtype, len(a.shape)) for name, values in names]
    points = [point for point in total if point is not None]
    if not points:
        return view.row("negative", a)
    limits = np.iinfo(a.dtype)
    made = view.row("negative", view.cast(a, np.dtype(np.int64)))
    for point in points:
        made = view.row("add", made, point)
    return view.cast(_clampf(view, op, made, _like(made, limits.min), _like(made, limits.max)), a.dtype)


def _named(dialect: str, names: str, rule: Callable[[str], Rule] = _row) -> dict[str, Rule]:
    """`absf=abs` is the operation absf by the row abs; `exp` alone has the row's name."""
    pairs = [entry.split("=") for entry in names.split()]
    return {f"{dialect}.{pair[0]}": rule(pair[-1]) for pair in pairs}


RULES: dict[str, Rule] = {
    **_named("arith", """addf=add subf=subtract mulf=multiply divf=divide negf=negative maximumf=maximum minimumf=minimum
        maxnumf=fmax minnumf=fmin remf=fmod floordivsi=floor_divide shli=bitwise_left_shift
        shrsi=bitwise_right_shift andi=bitwise_and ori=bitwise_or xori=bitwise_xor"""),
    **_named("arith", """divui=floor_divide remui=remainder maxui=maximum minui=minimum shrui=bitwise_right_shift""",
             _as_unsigned),
    "arith.addi": _of_bits("add", "bitwise_xor"),
    "arith.subi": _of_bits("subtract", "bitwise_xor"),
    "arith.muli": _of_bits("multiply", "bitwise_and"),
    "arith.maxsi": _of_bits("maximum", "bitwise_and"),  # of i1 true is -1
    "arith.minsi": _of_bits("minimum", "bitwise_or"),
    "arith.divsi": _divsi, "arith.remsi": _remsi, "arith.ceildivsi": _ceildiv, "arith.ceildivui": _ceildivui,
    "arith.cmpf": _cmpf, "arith.cmpi": _cmpi, "arith.select": _select,
    **dict.fromkeys(["arith.extf", "arith.truncf", "arith.fptosi"], _cast),
    **dict.fromkeys(["arith.sitofp", "arith.extsi", "arith.index_cast"], _cast_signed),
    **dict.fromkeys(["arith.extui", "arith.uitofp", "arith.index_castui"], _cast_unsigned),
    "arith.trunci": _trunci, "arith.fptoui": _fptoui,
    **_named("math", """absf=abs absi=abs acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh exp exp2 expm1
        erf floor isfinite isinf isnan log log10 log1p log2 powf=pow roundeven=rint sin sinh sqrt tan tanh trunc"""),
    "math.clampf": _clampf, "math.isnormal": _isnormal, "math.ctpop": _ctpop, "math.ctlz": _ctlz, "math.cttz": _cttz,
    "math.fma": _fma, "math.rsqrt": _rsqrt, "math.round": _round, "math.fpowi": _ipow, "math.ipowi": _ipow,
    **_named("tosa", """add sub=subtract maximum minimum pow exp log tanh sigmoid abs floor ceil sin cos greater greater_equal
        equal select=where logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor
        bitwise_not=bitwise_invert erf identity=positive"""),
    "tosa.clamp": _clamp,
    "tosa.mul": _mul, "tosa.negate": _negate, "tosa.rsqrt": _rsqrt, "tosa.reciprocal": _reciprocal, "tosa.cast": _cast,
    **_named("linalg", """add sub=subtract mul=multiply max=maximum min=minimum powf=pow abs ceil erf exp floor log
        negf=negative sqrt square tanh copy=positive select=where"""),
    "linalg.div": _div,
    "linalg.round": _round, "linalg.rsqrt": _rsqrt, "linalg.reciprocal": _reciprocal,
    "linalg.div_unsigned": _as_unsigned("floor_divide"),
}  # fmt: skip

REDUCING = {  # how a body combines two elements, and the row that does so over a dim
    "arith.addf": "sum", "arith.addi": "sum", "arith.mulf": "prod", "arith.muli": "prod",
    "arith.maximumf": "max", "arith.maxnumf": "fmax", "arith.maxsi": "max",
    "arith.minimumf": "min", "arith.minnumf": "fmin", "arith.minsi": "min",
    "arith.maxui": "umax", "arith.minui": "umin", "arith.andi": "all", "arith.ori": "any",
}  # fmt: skip
