"""Element-wise operations of the table, conversions and reshapes as operations of arith, math, tensor and linalg.

MLIR's element-wise operations neither promote nor broadcast, so operands are converted and broadcast first. Those of arith
take integers without a sign, so unsigned tensors are reinterpreted around them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardwright.errors import MLIRError
from shardwright.mlir.text import Bits, Known, Reshaped, Text, Typed
from shardwright.mlir.types import tensor_name
from shardwright.ops import OPS, Attrs
from shardwright.xla import folded

FLOATS = {
    "add": "arith.addf", "subtract": "arith.subf", "multiply": "arith.mulf", "divide": "arith.divf",
    "maximum": "arith.maximumf", "minimum": "arith.minimumf", "fmax": "arith.maxnumf", "fmin": "arith.minnumf",
    "pow": "math.powf", "atan2": "math.atan2", "copysign": "math.copysign", "negative": "arith.negf", "abs": "math.absf",
    "rint": "math.roundeven", "round": "math.roundeven", "fmod": "arith.remf",
    **{name: f"math.{name}" for name in """acos acosh asin asinh atan atanh cbrt ceil cos cosh erf exp exp2 expm1 floor log
       log10 log1p log2 sin sinh sqrt tan tanh trunc""".split()},
}  # fmt: skip
INTEGERS = {
    "add": "addi", "subtract": "subi", "multiply": "muli", "maximum": "maxsi", "minimum": "minsi",
    "floor_divide": "floordivsi", "bitwise_and": "andi", "bitwise_or": "ori", "bitwise_xor": "xori",
    "bitwise_left_shift": "shli", "bitwise_right_shift": "shrsi", "fmax": "maxsi", "fmin": "minsi",
}  # fmt: skip
UNSIGNED = {"maximum": "maxui", "minimum": "minui", "floor_divide": "divui", "bitwise_right_shift": "shrui"}
BOOLEANS = {
    "add": "ori", "multiply": "andi", "maximum": "ori", "minimum": "andi", "bitwise_and": "andi", "bitwise_or": "ori",
    "bitwise_xor": "xori", "logical_and": "andi", "logical_or": "ori", "logical_xor": "xori", "not_equal": "xori",
}  # fmt: skip
COMPARED = {
    "equal": ("oeq", "eq"), "not_equal": ("une", "ne"), "less": ("olt", "slt"), "less_equal": ("ole", "sle"),
    "greater": ("ogt", "sgt"), "greater_equal": ("oge", "sge"),
}  # fmt: skip


def _remainder(row: Any, test: Any, full: Any, x: Typed, y: Typed) -> Typed:
    """With the sign of the divisor, exact."""
    rest = row("fmod", x, y)
    apart = test("not_equal", test("less", rest, full(0)), test("less", y, full(0)))
    wrong = test("logical_and", test("not_equal", rest, full(0)), apart)
    return row("where", wrong, row("add", rest, y), rest)


def _floor_divide(row: Any, test: Any, full: Any, x: Typed, y: Typed) -> Typed:
    """What is left without the remainder is a multiple: floor(1 / 0.1) would be 10."""
    whole = row("rint", row("divide", row("subtract", x, _remainder(row, test, full, x, y)), y))
    return row("where", test("equal", y, full(0)), row("divide", x, y), whole)


def _hypot(row: Any, test: Any, full: Any, x: Typed, y: Typed) -> Typed:
    """Scaled by the larger, so that squares don't overflow."""
    one, two = row("abs", x), row("abs", y)
    large, small = row("maximum", one, two), row("minimum", one, two)
    part = row("divide", small, large)
    made = row("multiply", large, row("sqrt", row("add", full(1), row("multiply", part, part))))
    plain = test("logical_or", test("equal", large, full(0)), test("isinf", large))
    return row("where", plain, row("fmax", one, two), made)


def _logaddexp(row: Any, test: Any, full: Any, x: Typed, y: Typed) -> Typed:
    apart = row("negative", row("abs", row("subtract", x, y)))
    made = row("add", row("maximum", x, y), row("log1p", row("exp", apart)))
    return row("where", test("equal", x, y), row("add", x, full(math.log(2))), made)


def _gelu(row: Any, test: Any, full: Any, x: Typed) -> Typed:
    tail = row("add", full(1), row("erf", row("multiply", x, full(math.sqrt(0.5)))))
    return row("multiply", row("multiply", x, full(0.5)), tail)


_FORMULAS: dict[str, Any] = {
    "reciprocal": lambda row, test, full, x: row("divide", full(1), x),
    "degrees": lambda row, test, full, x: row("multiply", x, full(180 / math.pi)),
    "radians": lambda row, test, full, x: row("multiply", x, full(math.pi / 180)),
    "sigmoid": lambda row, test, full, x: row("divide", full(1), row("add", full(1), row("exp", row("negative", x)))),
    "remainder": _remainder, "floor_divide": _floor_divide, "hypot": _hypot, "logaddexp": _logaddexp, "gelu": _gelu,
}  # fmt: skip

FOLDED = (
    "rows",
    "astype",
    "permute_dims",
    "einsum",
    "sum",
    "prod",
    "max",
    "min",
    "all",
    "any",
)  # beside element-wise rows


class Elements:
    """Writes element-wise operations, conversions and changes of shape."""

    def __init__(self, text: Text) -> None:
        self.text = text

    def write(self, name: str, attrs: Mapping[str, Any], operands: Sequence[Any], result: tuple[Any, Any]) -> Typed:
        """An operation on values and Python scalars; `result` is its shape and dtype."""
        known = self._known(name, attrs, operands)
        if known is not None:
            return known
        rule = getattr(self, f"_{name}", None)
        if rule is not None:
            made: Typed = rule(attrs, operands, *result)
            return made
        if name not in ("sigmoid", "gelu", "erf") and not (name in OPS and OPS[name].elementwise):
            raise self._refuse(attrs.get("name", name))
        return self._elementwise(name, operands, *result)

    def _known(self, name: str, attrs: Mapping[str, Any], operands: Sequence[Any]) -> Typed | None:
        """What an operation on constants gives, as the reader works it out too; None if one is not known."""
        if not (name in FOLDED or OPS[name].elementwise) or not all(isinstance(x, Known) for x in operands):
            return None
        made = folded(name, [np.broadcast_to(x.array, x.shape) for x in operands], Attrs(**attrs)) if operands else None
        return None if made is None else self.text.constant(made, made.shape, made.dtype)

    def _refuse(self, name: str, why: str = "has no operation in MLIR that stands for it") -> MLIRError:
        return MLIRError(f"{name} can't be written: it {why}. Write the program with other operations.")

    # -- element-wise -------------------------------------------------------------------------------------------------

    def fitted(self, operand: Any, shape: Sequence[int], dtype: Any) -> Typed:
        """An operand converted and broadcast."""
        if not isinstance(operand, Typed):
            return self.text.constant(operand, shape, dtype)
        return self.broadcast(self.cast(operand, dtype), shape)

    def _same(self, op: str, operands: Sequence[Typed]) -> Typed:
        kind, given = operands[0].dtype, [self.signless(x) for x in operands]
        names = ", ".join(x.name for x in given)
        return self.signed_as(self.text.op(f"{op} {names}", given[0].shape, given[0].dtype), kind)

    def signless(self, x: Typed) -> Typed:
        """The same bits as integers that arith takes; everything that is not unsigned as it is."""
        if x.dtype.kind != "u":
            return x
        kind = np.dtype(f"i{x.dtype.itemsize}")
        if isinstance(x, Known):
            return self.text.constant(x.array.astype(kind), x.shape, kind)
        return x.base if isinstance(x, Bits) else self._bitcast(x, kind)

    def signed_as(self, x: Typed, dtype: Any) -> Typed:
        """The same bits with the sign of a dtype; written when they are first read."""
        return x if x.dtype == dtype else Bits(x, dtype, self._bitcast)

    def _bitcast(self, x: Typed, dtype: Any) -> Typed:
        return self.text.op(
            f"tensor.bitcast {x.name}", x.shape, dtype, f"{x.type} to {tensor_name(x.shape, np.dtype(dtype))}"
        )

    def _elementwise(self, name: str, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        if name in COMPARED:
            return self.compared(name, operands, shape)
        if name in ("logical_and", "logical_or", "logical_xor"):
            return self._same(f"arith.{BOOLEANS[name]}", [self.fitted(x, shape, bool) for x in operands])
        given = [self.fitted(x, shape, dtype) for x in operands]
        kind = np.dtype(dtype)
        if kind.kind == "b" and name in BOOLEANS:
            return self._same(f"arith.{BOOLEANS[name]}", given)
        if kind.kind == "u" and name in UNSIGNED:
            return self._same(f"arith.{UNSIGNED[name]}", given)
        if kind.kind in "iu" and name in INTEGERS:
            return self._same(f"arith.{INTEGERS[name]}", given)
        if kind.kind in "fV" and name in FLOATS:
            return self._same(FLOATS[name], given)
        return self._composed(name, given)

    def _composed(self, name: str, given: Sequence[Typed]) -> Typed:
        """Operations that take several of MLIR's."""
        x, is_float = given[0], given[0].dtype.kind in "fV"

        def full(value: Any) -> Typed:
            return self.text.constant(value, x.shape, x.dtype)

        def row(other: str, *values: Typed) -> Typed:
            return self.write(other, {}, values, (x.shape, x.dtype))

        def test(other: str, *values: Typed) -> Typed:
            return self.write(other, {}, values, (x.shape, bool))

        if name == "positive" or (not is_float and name in ("floor", "ceil", "trunc", "round", "rint")):
            return x
        if name == "negative":
            return row("subtract", full(0), x)
        if name == "square":
            return row("multiply", x, x)
        if name == "abs" and x.dtype.kind == "i":
            return self._same("math.absi", [x])
        if name == "abs" and x.dtype.kind == "u":
            return x
        if name == "pow" and x.dtype.kind in "iu":
            return self._same("math.ipowi", given)
        if name == "sign":
            signs = row("where", test("less", x, full(0)), full(-1), x) if x.dtype.kind != "u" else x
            return row(
                "where", test("greater", x, full(0)), full(1), row("where", test("equal", x, full(0)), full(0), signs)
            )
        if name == "remainder" and not is_float:
            return row("subtract", x, row("multiply", row("floor_divide", *given), given[1]))
        if is_float and name in _FORMULAS:
            return _FORMULAS[name](row, test, full, *given)
        raise self._refuse(f"{name} of {x.dtype.name}")

    def compared(self, name: str, operands: Sequence[Any], shape: Any) -> Typed:
        dtypes = [x.dtype if isinstance(x, Typed) else x for x in operands]
        kind = np.result_type(*dtypes)
        given = [self.signless(self.fitted(x, shape, kind)) for x in operands]
        floats, integers = COMPARED[name]
        predicate = floats if kind.kind in "fV" else integers
        if kind.kind in "ub" and predicate[0] == "s":
            predicate = f"u{predicate[1:]}"
        op = "arith.cmpf" if kind.kind in "fV" else "arith.cmpi"
        return self.text.op(f"{op} {predicate}, {given[0].name}, {given[1].name}", shape, bool, given[0].type)

    def _logical_not(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        return self._same("arith.xori", [self.fitted(operands[0], shape, bool), self.text.constant(True, shape, bool)])

    def _bitwise_invert(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        ones = True if np.dtype(dtype) == bool else -1 if np.dtype(dtype).kind == "i" else np.iinfo(dtype).max
        return self._same(
            "arith.xori", [self.fitted(operands[0], shape, dtype), self.text.constant(ones, shape, dtype)]
        )

    def _isnan(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        (x,) = operands
        if x.dtype.kind not in "fV":
            return self.text.constant(False, shape, bool)
        return self.text.op(f"arith.cmpf uno, {x.name}, {x.name}", shape, bool, x.type)

    def _isinf(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        return self._magnitude("equal", operands[0], False)

    def _isfinite(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        return self._magnitude("less", operands[0], True)

    def _magnitude(self, test: str, x: Typed, otherwise: bool) -> Typed:
        """A comparison of magnitudes with infinity; integers have none."""
        if x.dtype.kind not in "fV":
            return self.text.constant(otherwise, x.shape, bool)
        size = self.write("abs", {}, [x], (x.shape, x.dtype))
        return self.compared(test, [size, self.text.constant(math.inf, x.shape, x.dtype)], x.shape)

    def _signbit(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        (x,) = operands
        if x.dtype.kind in "fV":
            x = self.write("copysign", {}, [self.text.constant(1, shape, x.dtype), x], (shape, x.dtype))
        return self.compared("less", [x, self.text.constant(0, shape, x.dtype)], shape)

    def _clip(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        made, *bounds = operands
        for name, given in (("maximum", attrs["low"]), ("minimum", attrs["high"])):
            if given:
                made = self.write(name, {}, [made, bounds.pop(0)], (shape, dtype))
        return self.fitted(made, shape, dtype)

    def _in_range(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        return operands[0]  # the check of the data is not written

    def _fill(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        x, mask, value = operands
        return self._where(attrs, [mask, value, x], shape, dtype)

    def _where(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        test = self.fitted(operands[0], shape, bool)
        one, two = (self.fitted(x, shape, dtype) for x in operands[1:])
        types = f"{test.type}, {one.type}"
        return self.text.op(f"arith.select {test.name}, {one.name}, {two.name}", shape, dtype, types)

    def _astype(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        return self.cast(operands[0], dtype)

    def cast(self, x: Typed, dtype: Any) -> Typed:
        """Elements converted."""
        old, new = x.dtype, np.dtype(dtype)
        if old == new:
            return x
        if new.kind == "b":
            return self.compared("not_equal", [x, self.text.constant(0, x.shape, old)], x.shape)
        kinds = {"f": "f", "V": "f", "i": "i", "u": "u", "b": "u"}
        if old.kind not in kinds or new.kind not in kinds:
            raise self._refuse(f"A conversion from {old.name} to {new.name}")
        op = {"ff": "extf" if new.itemsize > old.itemsize else "truncf", "if": "sitofp", "uf": "uitofp", "fi": "fptosi",
              "fu": "fptoui"}.get(kinds[old.kind] + kinds[new.kind])  # fmt: skip
        bits, target = self.signless(x), np.dtype(f"i{new.itemsize}") if new.kind == "u" else new
        if op is None:
            widths = [1 if kind.kind == "b" else kind.itemsize * 8 for kind in (old, new)]
            op = "trunci" if widths[1] < widths[0] else "extsi" if old.kind == "i" else "extui"
            if widths[0] == widths[1]:
                return self.signed_as(bits, new)
        made = self.text.op(
            f"arith.{op} {bits.name}", x.shape, target, f"{bits.type} to {tensor_name(x.shape, target)}"
        )
        return self.signed_as(made, new)

    # -- shapes -------------------------------------------------------------------------------------------------------

    def broadcast(self, x: Typed, shape: Sequence[int]) -> Typed:
        """Elements repeated along new dims and dims of size 1."""
        new = tuple(shape)
        if x.shape == new:
            return x
        lead = len(new) - len(x.shape)
        added = [d for d in range(len(new)) if d < lead or x.shape[d - lead] == 1]
        if isinstance(x, Known) and not x.array.ndim:
            return self.text.constant(x.array, new, x.dtype)
        if math.prod(new) == math.prod(x.shape):
            return self.reshaped(x, new)
        base = self.reshape(x, [n for d, n in enumerate(new) if d not in added])
        name, out = base.name, self.text.empty(new, x.dtype)
        text = f"linalg.broadcast ins({name} : {base.type}) outs({out.name} : {out.type}) dimensions = {added}"
        return self.text.pure(text, new, x.dtype)

    def _broadcast_to(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        return self.broadcast(operands[0], shape)

    def _reshape(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        return self.reshaped(operands[0], shape)

    def reshaped(self, x: Typed, shape: Sequence[int]) -> Typed:
        """The same elements in another shape, written when they are first read."""
        if isinstance(x, Known):
            return self.reshape(x, shape)
        base = x.base if isinstance(x, Reshaped) else x
        return base if base.shape == tuple(shape) else Reshaped(base, shape, self.reshape)

    def reshape(self, x: Typed, shape: Sequence[int]) -> Typed:
        """The same elements in another shape: dims joined, dims split, or joined to one and split again."""
        if x.shape == tuple(shape):
            return x
        x = x.base if isinstance(x, Reshaped) else x
        if isinstance(x, Known):
            return self.text.constant(x.array.reshape(shape) if x.array.ndim else x.array, shape, x.dtype)
        old, new = x.shape, tuple(map(int, shape))
        if old == new:
            return x
        joined = reassociation(old, new)
        if joined is not None:
            return self.text.op(
                f"tensor.collapse_shape {x.name} {joined}", new, x.dtype, f"{x.type} into {tensor_name(new, x.dtype)}"
            )
        split = reassociation(new, old)
        if split is not None:
            sizes = list(new)
            return self.text.op(
                f"tensor.expand_shape {x.name} {split} output_shape {sizes}", new, x.dtype,
                f"{x.type} into {tensor_name(new, x.dtype)}",
            )  # fmt: skip
        return self.reshape(self.reshape(x, (math.prod(old),)), new)


def reassociation(fine: Sequence[int], coarse: Sequence[int]) -> list[list[int]] | None:
    """Which dims are joined to give a shape with fewer dims; None if joining alone does not.

    >>> reassociation((2, 3, 4), (6, 4)), reassociation((2, 3), (3, 2)), reassociation((1, 1), ())
    ([[0, 1], [2]], None, [])
    """
    if len(fine) <= len(coarse):
        return None
    if not coarse:
        return [] if all(n == 1 for n in fine) else None
    groups: list[list[int]] = []
    at = 0
    for position, size in enumerate(coarse):
        group: list[int] = []
        product = 1
        left = len(coarse) - position - 1
        while at < len(fine) - left and (not group or product != size or fine[at] == 1):
            product *= fine[at]
            group.append(at)
            at += 1
            if product > size > 0:
                return None
        if product != size:
            return None
        groups.append(group)
    if at != len(fine):
        return None
    return groups
