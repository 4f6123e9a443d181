"""Operations of the table as operations of arith, math, tensor and linalg.

MLIR's element-wise operations neither promote nor broadcast, so operands are converted and broadcast first.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardwright.errors import MLIRError
from shardwright.mlir.text import Known, Reshaped, Text, Typed
from shardwright.mlir.types import tensor_name, type_name
from shardwright.ops import OPS

FLOATS = {
    "add": "arith.addf", "subtract": "arith.subf", "multiply": "arith.mulf", "divide": "arith.divf",
    "maximum": "arith.maximumf", "minimum": "arith.minimumf", "fmax": "arith.maxnumf", "fmin": "arith.minnumf",
    "pow": "math.powf", "atan2": "math.atan2", "copysign": "math.copysign", "negative": "arith.negf", "abs": "math.absf",
    "rint": "math.roundeven", "round": "math.roundeven",
    **{name: f"math.{name}" for name in """acos acosh asin asinh atan atanh cbrt ceil cos cosh exp exp2 expm1 floor log log10
       log1p log2 sin sinh sqrt tan tanh trunc""".split()},
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
NAMED = {
    "ac,cb->ab": "matmul",
    "abd,adc->abc": "batch_matmul",
    "ab,b->a": "matvec",
    "b,ba->a": "vecmat",
    "a,a->": "dot",
}
STARTS = {"sum": 0, "prod": 1, "all": True, "any": False}


class Rows:
    """Writes operations of the table."""

    def __init__(self, text: Text) -> None:
        self.text = text

    def write(self, name: str, attrs: Mapping[str, Any], operands: Sequence[Any], result: tuple[Any, Any]) -> Typed:
        """An operation on values and Python scalars; `result` is its shape and dtype."""
        rule = getattr(self, f"_{name}", None)
        if rule is not None:
            made: Typed = rule(attrs, operands, *result)
            return made
        if name in ("sum", "prod", "max", "min", "all", "any"):
            return self._reduced(name, attrs, operands[0], *result)
        if name != "sigmoid" and not (name in OPS and OPS[name].elementwise):
            raise self._refuse(attrs.get("name", name))
        return self._elementwise(name, operands, *result)

    def _refuse(self, name: str, why: str = "has no operation in MLIR that stands for it") -> MLIRError:
        return MLIRError(f"{name} can't be written: it {why}. Write the program with other operations.")

    # -- element-wise -------------------------------------------------------------------------------------------------

    def fitted(self, operand: Any, shape: Sequence[int], dtype: Any) -> Typed:
        """An operand converted and broadcast."""
        if not isinstance(operand, Typed):
            return self.text.constant(operand, shape, dtype)
        return self.broadcast(self.cast(operand, dtype), shape)

    def _same(self, op: str, operands: Sequence[Typed]) -> Typed:
        names = ", ".join(x.name for x in operands)
        return self.text.op(f"{op} {names}", operands[0].shape, operands[0].dtype)

    def _elementwise(self, name: str, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        if name in COMPARED:
            return self._compared(name, operands, shape)
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

        if name == "positive":
            return x
        if name == "negative":
            return row("subtract", full(0), x)
        if name == "square":
            return row("multiply", x, x)
        if name == "abs" and x.dtype.kind == "i":
            return self._same("math.absi", [x])
        if name == "pow" and x.dtype.kind == "i":
            return self._same("math.ipowi", given)
        if name == "reciprocal" and is_float:
            return row("divide", full(1), x)
        if name == "floor_divide" and is_float:
            return row("floor", row("divide", *given))
        if name == "remainder":
            return row("subtract", x, row("multiply", row("floor_divide", *given), given[1]))
        if name == "sigmoid" and is_float:
            return row("divide", full(1), row("add", full(1), row("exp", row("negative", x))))
        raise self._refuse(f"{name} of {x.dtype.name}")

    def _compared(self, name: str, operands: Sequence[Any], shape: Any) -> Typed:
        dtypes = [x.dtype if isinstance(x, Typed) else x for x in operands]
        kind = np.result_type(*dtypes)
        given = [self.fitted(x, shape, kind) for x in operands]
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
            return self._compared("not_equal", [x, self.text.constant(0, x.shape, old)], x.shape)
        kinds = {"f": "f", "V": "f", "i": "i", "u": "u", "b": "u"}
        if old.kind not in kinds or new.kind not in kinds:
            raise self._refuse(f"A conversion from {old.name} to {new.name}")
        op = {"ff": "extf" if new.itemsize > old.itemsize else "truncf", "if": "sitofp", "uf": "uitofp", "fi": "fptosi",
              "fu": "fptoui"}.get(kinds[old.kind] + kinds[new.kind])  # fmt: skip
        if op is None:
            widths = [1 if kind.kind == "b" else kind.itemsize * 8 for kind in (old, new)]
            if widths[0] == widths[1]:
                raise self._refuse(f"A conversion from {old.name} to {new.name}", "changes only the sign of the type")
            op = "trunci" if widths[1] < widths[0] else "extsi" if old.kind == "i" else "extui"
        types = f"{x.type} to {tensor_name(x.shape, new)}"
        return self.text.op(f"arith.{op} {x.name}", x.shape, new, types)

    # -- shapes -------------------------------------------------------------------------------------------------------

    def broadcast(self, x: Typed, shape: Sequence[int]) -> Typed:
        """Elements repeated along new dims and dims of size 1."""
        new = tuple(shape)
        if x.shape == new:
            return x
        lead = len(new) - len(x.shape)
        added = [d for d in range(len(new)) if d < lead or (x.shape[d - lead] == 1 and new[d] != 1)]
        if isinstance(x, Known) and not x.array.ndim:
            return self.text.constant(x.array, new, x.dtype)
        base = self.reshape(x, [n for d, n in enumerate(new) if d not in added])
        name, out = base.name, self.text.empty(new, x.dtype)
        text = f"linalg.broadcast ins({name} : {base.type}) outs({out.name} : {out.type}) dimensions = {added}"
        return self.text.pure(text, new, x.dtype)

    def _broadcast_to(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        return self.broadcast(operands[0], shape)

    def _reshape(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        base = operands[0].base if isinstance(operands[0], Reshaped) else operands[0]
        return base if base.shape == tuple(shape) else Reshaped(base, shape, self.reshape)

    def reshape(self, x: Typed, shape: Sequence[int]) -> Typed:
        """The same elements in another shape: dims joined, dims split, or joined to one and split again."""
        if x.shape == tuple(shape):
            return x
        x = x.base if isinstance(x, Reshaped) else x
        if isinstance(x, Known):
            return self.text.constant(x.array.reshape(shape) if x.array.ndim else x.array, shape, x.dtype)
        old, new = x.shape, tuple(shape)
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

    def _permute_dims(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        (x,) = operands
        if list(attrs["axes"]) == sorted(attrs["axes"]):
            return x
        _ = x.name  # written before what it is written to
        out = self.text.empty(shape, dtype)
        order = list(attrs["axes"])
        text = f"linalg.transpose ins({x.name} : {x.type}) outs({out.name} : {out.type}) permutation = {order}"
        return self.text.pure(text, shape, dtype)

    def _rows(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        (x,) = operands
        maps = attrs["maps"]
        for each in maps:
            if each is not None and (
                each.stride < 1 or each.width > 1 or each.every > 1 or each.wrap or each.start < 0
            ):
                raise self._refuse(attrs.get("name", "rows"), "reads rows in an order that no slice has")
        if tuple(shape) == x.shape:
            return x  # every row, in order
        starts = [0 if each is None else each.start for each in maps]
        steps = [1 if each is None else each.stride for each in maps]
        text = f"tensor.extract_slice {x.name}{starts} {list(shape)} {steps}"
        return self.text.op(text, shape, dtype, f"{x.type} to {tensor_name(tuple(shape), x.dtype)}")

    def _concat(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        names, types = ", ".join(x.name for x in operands), ", ".join(x.type for x in operands)
        text = f"tensor.concat dim({attrs['axis']}) {names}"
        return self.text.op(text, shape, dtype, f"({types}) -> {tensor_name(tuple(shape), np.dtype(dtype))}")

    # -- reductions and products --------------------------------------------------------------------------------------

    def _reduced(self, name: str, attrs: Any, x: Typed, shape: Any, dtype: Any) -> Typed:
        kind = np.dtype(dtype)
        value = self.cast(x, kind)
        dims = sorted(attrs["axis"])
        kept = [n for d, n in enumerate(x.shape) if d not in dims]
        if not dims:
            return value
        first = STARTS[name] if name in STARTS else _extreme(kind, name == "max")
        out = self.text.filled(first, kept, kind)
        row = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum", "all": "multiply", "any": "add"}[
            name
        ]
        combine = self._scalar_op(row, kind)
        element = type_name(kind)
        made = self.text.pure(
            f"linalg.reduce ins({value.name} : {value.type}) outs({out.name} : {out.type}) dimensions = {dims} "
            f"(%in: {element}, %init: {element}) {{ %r = {combine} %in, %init : {element} linalg.yield %r : {element} }}",
            kept,
            kind,
        )
        return self._reshape({}, [made], shape, kind)

    def _scalar_op(self, row: str, kind: Any) -> str:
        if kind.kind == "b":
            return f"arith.{BOOLEANS[row]}"
        if kind.kind in "fV":
            return FLOATS[row]
        return f"arith.{UNSIGNED.get(row, INTEGERS[row]) if kind.kind == 'u' else INTEGERS[row]}"

    def _einsum(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        if len(operands) != 2:
            raise self._refuse("einsum", f"has {len(operands)} operands")
        left, _, last = attrs["text"].partition("->")
        *terms, right = (
            _expanded(term.split(), rank)
            for term, rank in zip(
                (*left.split(","), last), (*(len(x.shape) for x in operands), len(shape)), strict=True
            )
        )
        letters = list(dict.fromkeys([*right, *(x for term in terms for x in term)]))
        sizes = {
            (x, n) for term, value in zip(terms, operands, strict=True) for x, n in zip(term, value.shape, strict=True)
        }
        if len(sizes) > len(letters):
            raise self._refuse("einsum", "broadcasts dims of size 1")
        given = [self.cast(x, dtype) for x in operands]
        out = self.text.filled(0, shape, dtype)
        spelled = ["".join(chr(97 + letters.index(x)) for x in term) for term in (*terms, right)]
        named = NAMED.get(f"{spelled[0]},{spelled[1]}->{spelled[2]}")
        types = ", ".join(x.type for x in given)
        ins = f"ins({given[0].name}, {given[1].name} : {types}) outs({out.name} : {out.type})"
        if named is not None:
            return self.text.pure(f"linalg.{named} {ins} -> {out.type}", shape, dtype)
        return self.text.pure(self._generic([*terms, right], letters, ins, out), shape, dtype)

    def _generic(self, terms: Sequence[Sequence[str]], letters: list[str], ins: str, out: Typed) -> str:
        """A sum of products over the letters that the last term lacks."""
        loops = ", ".join(f"d{at}" for at in range(len(letters)))
        maps = [f"affine_map<({loops}) -> ({', '.join(f'd{letters.index(x)}' for x in term)})>" for term in terms]
        kinds = ", ".join('"parallel"' if x in terms[-1] else '"reduction"' for x in letters)
        element = type_name(out.dtype)
        add, multiply = (self._scalar_op(row, out.dtype) for row in ("add", "multiply"))
        lines = [
            f"linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{kinds}]}} {ins} {{",
            f"^bb0(%in: {element}, %in_0: {element}, %out: {element}):",
            f"  %p = {multiply} %in, %in_0 : {element}",
            f"  %s = {add} %out, %p : {element}",
            f"  linalg.yield %s : {element}",
            f"}} -> {out.type}",
        ]
        return "\n".join(lines)


def _expanded(term: Sequence[str], rank: int) -> list[str]:
    """A term of einsum with letters for its ellipsis, which is aligned at its end.

    >>> _expanded(["...", "m", "k"], 4)
    ['...1', '...0', 'm', 'k']
    """
    missing = rank - sum(x != "..." for x in term)
    return [y for x in term for y in ([f"...{n}" for n in reversed(range(missing))] if x == "..." else [x])]


def _extreme(kind: Any, lowest: bool) -> Any:
    """What a maximum or a minimum begins with."""
    if kind.kind == "b":
        return not lowest
    if kind.kind in "fV":
        return -math.inf if lowest else math.inf
    return np.iinfo(kind).min if lowest else np.iinfo(kind).max


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
