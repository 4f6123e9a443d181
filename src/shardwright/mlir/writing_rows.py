"""Operations of the table as operations of arith, math, tensor and linalg."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardwright.mlir.maps import ends_of
from shardwright.mlir.text import Known, Reshaped, Typed
from shardwright.mlir.types import tensor_name, type_name
from shardwright.mlir.writing_elements import BOOLEANS, FLOATS, INTEGERS, UNSIGNED, Elements
from shardwright.ops import RowMap

NAMED = {
    "ac,cb->ab": "matmul",
    "abd,adc->abc": "batch_matmul",
    "ab,b->a": "matvec",
    "b,ba->a": "vecmat",
    "a,a->": "dot",
}
REDUCED = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum", "all": "multiply", "any": "add"}
STARTS = {"sum": 0, "prod": 1, "all": True, "any": False}


_KEEPING = frozenset(  # operations whose elements are some of their operand's
    "tensor.from_elements tensor.extract_slice tensor.collapse_shape tensor.expand_shape arith.index_cast".split()
)


def _extreme(lowest: bool) -> Any:
    """What a maximum or a minimum of a dtype begins with."""

    def of(kind: Any) -> Any:
        if kind.kind == "b":
            return not lowest
        if kind.kind in "fV":
            return -math.inf if lowest else math.inf
        return np.iinfo(kind).min if lowest else np.iinfo(kind).max

    return of


EXTREMES = {"max": _extreme(True), "min": _extreme(False)}


class Rows(Elements):
    """Writes operations of the table."""

    def write(self, name: str, attrs: Mapping[str, Any], operands: Sequence[Any], result: tuple[Any, Any]) -> Typed:
        """An operation on values and Python scalars; `result` is its shape and dtype."""
        if name in REDUCED:
            return self._reduced(name, attrs, operands[0], *result)
        return super().write(name, attrs, operands, result)

    # -- rows -------------------------------------------------------------------------------------------------------------

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
        """Rows by a map: a slice, zeros around a tensor, or an indexing map (flips, rolls, repeats)."""
        (x,) = operands
        maps: Sequence[RowMap | None] = attrs["maps"]
        if any(each is not None and each.width > 1 for each in maps):
            raise self._refuse(attrs.get("name", "rows"), "reads windows of rows")
        low, high = ([0] * len(maps), [0] * len(maps))
        for dim, each in enumerate(maps):
            if each is not None and each.size:
                rows = ends_of(each)
                low[dim], high[dim] = max(0, -int(rows.min())), max(0, int(rows.max()) + 1 - x.shape[dim])
        if any(low) or any(high):
            x = self.padded(x, low, high, 0)
            maps = [
                None if each is None else replace(each, start=each.start + at)
                for each, at in zip(maps, low, strict=True)
            ]
        return self.picked(x, maps)

    def picked(self, x: Typed, maps: Sequence[RowMap | None]) -> Typed:
        """Rows that lie in the tensor."""
        maps = [None if m is None or m == RowMap(n) else m for m, n in zip(maps, x.shape, strict=True)]
        shape = tuple(n if m is None else m.size for m, n in zip(maps, x.shape, strict=True))
        if not any(maps):
            return x  # every row, in order
        known = self._known("rows", {"name": "rows", "maps": tuple(maps)}, [x])
        if known is not None:
            return known
        if 0 in shape:
            return self.text.constant(np.zeros(shape, x.dtype), shape, x.dtype)
        if all(m is None or (m.stride >= 1 and m.every == 1 and not m.wrap) for m in maps):
            starts = [0 if m is None else m.start for m in maps]
            steps = [1 if m is None or m.size == 1 else m.stride for m in maps]
            text = f"tensor.extract_slice {x.name}{starts} {list(shape)} {steps}"
            return self.text.op(text, shape, x.dtype, f"{x.type} to {tensor_name(shape, x.dtype)}")
        loops = [f"d{d}" for d in range(len(shape))]
        reads = ", ".join(loop if m is None else _expression(loop, m) for loop, m in zip(loops, maps, strict=True))
        element = type_name(x.dtype)
        body = [f"^bb0(%in: {element}, %out: {element}):", f"  linalg.yield %in : {element}"]
        return self._mapped([(x, reads)], loops, shape, x.dtype, body)

    def _mapped(
        self,
        inputs: Sequence[tuple[Typed, str]],
        loops: Sequence[str],
        shape: Sequence[int],
        dtype: Any,
        body: list[str],
    ) -> Typed:
        """A linalg.generic without reductions: inputs with what their maps read, and its body."""
        names, types = ", ".join(x.name for x, _ in inputs), ", ".join(x.type for x, _ in inputs)
        out, head = self.text.empty(shape, dtype), ", ".join(loops)
        maps = ", ".join(f"affine_map<({head}) -> ({reads})>" for _, reads in (*inputs, (out, head)))
        kinds = ", ".join(['"parallel"'] * len(loops))
        lines = [
            f"linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}} ins({names} : {types}) "
            f"outs({out.name} : {out.type}) {{",
            *body,
            f"}} -> {out.type}",
        ]
        return self.text.pure("\n".join(lines), shape, dtype)

    def padded(self, x: Typed, low: Sequence[int], high: Sequence[int], element: Any) -> Typed:
        """A tensor with one element around it."""
        shape = tuple(a + n + b for a, n, b in zip(low, x.shape, high, strict=True))
        if shape == x.shape:
            return x
        full = self.text.constant(element, shape, x.dtype)
        if np.asarray(full.array).any() or x.dtype.kind == "u":
            return self.inserted(x, full, low, (1,) * len(shape))
        zero = self.text.number(0, x.dtype)
        arguments = ", ".join(f"%p{d}: index" for d in range(len(shape)))
        lines = [
            f"tensor.pad {x.name} low{list(low)} high{list(high)} {{",
            f"^bb0({arguments}):",
            f"  tensor.yield {zero} : {type_name(x.dtype)}",
            f"}} : {x.type} to {tensor_name(shape, x.dtype)}",
        ]
        return self.text.pure("\n".join(lines), shape, x.dtype)

    def inserted(self, x: Typed, into: Typed, starts: Sequence[Any], steps: Sequence[int]) -> Typed:
        """A tensor with a box replaced; starts are integers, or names of indices."""
        if x.shape == into.shape:
            return x
        spelled = f"[{', '.join(map(str, starts))}]"
        text = f"tensor.insert_slice {x.name} into {into.name}{spelled} {list(x.shape)} {list(steps)}"
        return self.text.op(text, into.shape, into.dtype, f"{x.type} into {into.type}")

    def _assign(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        into, value = operands
        maps = attrs["maps"]
        sizes = [n if m is None else m.size for m, n in zip(maps, shape, strict=True)]
        box = self.fitted(value, sizes, dtype)
        if 0 in sizes:
            return into
        starts, steps = [0 if m is None else m.start for m in maps], [1 if m is None else m.stride for m in maps]
        return self.inserted(box, into, starts, [1 if n == 1 else s for n, s in zip(sizes, steps, strict=True)])

    def _scatter(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        into, value, *rows = operands
        dims = attrs["dims"]
        if rows[0].shape != (1,):
            raise self._refuse("assignment by index arrays", f"names {rows[0].shape[0]} places; MLIR has slices only")
        starts: list[Any] = [0] * len(shape)
        for dim, row in zip(dims, rows, strict=True):
            starts[dim] = self._element(self.wrapped(row, shape[dim]))
        sizes = [1 if d in dims else n for d, n in enumerate(shape)]
        rest = [n for d, n in enumerate(shape) if d not in dims]
        box = self.reshaped(self.fitted(value, (1, *rest), dtype), sizes)
        return self.inserted(box, into, starts, (1,) * len(shape))

    def _concat(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        return self.joined([self.cast(x, dtype) for x in operands], attrs["axis"])

    def joined(self, parts: Sequence[Typed], dim: int) -> Typed:
        """Tensors one after the other."""
        parts = [x for x in parts if x.shape[dim]] or list(parts[:1])
        if len(parts) == 1:
            return parts[0]
        names, types = ", ".join(x.name for x in parts), ", ".join(x.type for x in parts)
        shape = tuple(sum(x.shape[dim] for x in parts) if d == dim else n for d, n in enumerate(parts[0].shape))
        text = f"tensor.concat dim({dim}) {names}"
        return self.text.op(text, shape, parts[0].dtype, f"({types}) -> {tensor_name(shape, parts[0].dtype)}")

    # -- rows by number -----------------------------------------------------------------------------------------------

    def wrapped(self, index: Typed, size: int) -> Typed:
        """Indices of which negative ones count from the end; those that can't be negative as they are."""
        if self._is_natural(index):
            return index
        wide = self.cast(index, np.int64)
        kind = (wide.shape, np.int64)
        ends = self.write("add", {}, [wide, self.text.constant(size, *kind)], kind)
        below = self.compared("less", [wide, self.text.constant(0, *kind)], wide.shape)
        return self.write("where", {}, [below, ends, wide], kind)

    def _is_natural(self, index: Typed) -> bool:
        """Whether indices are known not to be negative: constants, places of devices, and what `wrapped` gives."""
        if isinstance(index, Known):
            return bool((np.asarray(index.array) >= 0).all())
        return self._is_natural(index.base) if isinstance(index, Reshaped) else self._gives_natural(index.name)

    def _gives_natural(self, name: str) -> bool:
        text = self.text.texts.get(name, "")
        op, _, rest = text.partition(" ")
        operands = re.findall(r"%\w+", rest.partition(" : ")[0])
        if op == "arith.constant":
            return "-" not in text
        if op == "arith.select":
            test, ends = (self.text.texts.get(operand, "") for operand in operands[:2])
            return test.startswith(f"arith.cmpi slt, {operands[2]},") and ends.startswith(f"arith.addi {operands[2]},")
        if op in ("arith.addi", "arith.muli"):
            return all(map(self._gives_natural, operands))
        if op in _KEEPING:
            return self._gives_natural(operands[0])
        return ".process_" in op

    def _element(self, index: Typed) -> str:
        """The only element of a tensor of one dim, as an index."""
        if isinstance(index, Known):
            return str(int(np.asarray(index.array).ravel()[0]))
        first = self.text.scalar("arith.constant 0", "index")
        element = self.text.scalar(f"tensor.extract {index.name}[{first}]", index.type)
        return self.text.scalar(f"arith.index_cast {element}", f"{type_name(index.dtype)} to index")

    def _take(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        x, index = operands
        return self.taken(x, self.wrapped(index, x.shape[attrs["axis"]]), attrs["axis"])

    def taken(self, x: Typed, index: Typed, axis: int) -> Typed:
        """Rows of a dim by number."""
        shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
        if 0 in shape:
            return self.text.constant(np.zeros(shape, x.dtype), shape, x.dtype)
        if index.shape == (1,):
            starts: list[Any] = [0] * len(x.shape)
            starts[axis] = self._element(index)
            text = f"tensor.extract_slice {x.name}[{', '.join(map(str, starts))}] {list(shape)} {[1] * len(shape)}"
            return self.text.op(text, shape, x.dtype, f"{x.type} to {tensor_name(shape, x.dtype)}")
        loops = [f"d{d}" for d in range(len(shape))]
        own = range(axis, axis + len(index.shape))
        others = [d if d < axis else d + len(index.shape) - 1 for d in range(len(x.shape))]
        places = ["%at" if d == axis else f"%i{loop}" for d, loop in enumerate(others)]
        element, kind = type_name(index.dtype), type_name(x.dtype)
        _ = x.name
        body = [
            f"^bb0(%in: {element}, %out: {kind}):",
            f"  %at = arith.index_cast %in : {element} to index",
            *(f"  %i{loop} = linalg.index {loop} : index" for d, loop in enumerate(others) if d != axis),
            f"  %r = tensor.extract {x.name}[{', '.join(places)}] : {x.type}",
            f"  linalg.yield %r : {kind}",
        ]
        return self._mapped([(index, ", ".join(f"d{d}" for d in own))], loops, shape, x.dtype, body)

    def _take_along_axis(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        """Elements by number, of the flat tensor."""
        x, index = operands
        axis = attrs["axis"]
        numbers = self.wrapped(index, x.shape[axis])
        total: Typed = self.text.constant(0, shape, np.int64)
        for dim, size in enumerate(x.shape):
            if dim == axis:
                own = self.fitted(numbers, shape, np.int64)
            elif size == 1:
                own = self.text.constant(0, shape, np.int64)
            else:
                own = self.broadcast(self.along(dim, shape), shape)
            scaled = self.write("multiply", {}, [total, self.text.constant(size, shape, np.int64)], (shape, np.int64))
            total = own if dim == 0 else self.write("add", {}, [scaled, own], (shape, np.int64))
        flat, count = self.reshaped(total, (math.prod(shape),)), math.prod(x.shape)
        return self.reshaped(self.taken(self.reshaped(x, (count,)), self.wrapped(flat, count), 0), shape)

    def _pick(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        x, index = operands
        axis = attrs["axis"]
        wide = (*index.shape[:axis], 1, *index.shape[axis:])
        made = self._take_along_axis(attrs, [x, self.reshaped(index, wide)], wide, dtype)
        return self.reshaped(made, shape)

    def along(self, dim: int, shape: Sequence[int]) -> Typed:
        """The number of each row of a dim, 1 long along the others."""
        size = shape[dim]
        numbers = self.text.constant(np.arange(size), (size,), np.int64)
        return self.reshaped(numbers, [size if d == dim else 1 for d in range(len(shape))])

    def _triangle(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        rank = len(shape)
        rows, cols = (self.broadcast(self.along(dim, shape), shape) for dim in (rank - 2, rank - 1))
        away = self.write("subtract", {}, [cols, rows], (shape, np.int64))
        test = "less_equal" if attrs["lower"] else "greater_equal"
        keep = self.compared(test, [away, self.text.constant(int(attrs["k"]), shape, np.int64)], shape)
        return self._where({}, [keep, operands[0], self.text.constant(0, shape, dtype)], shape, dtype)

    def _first_true(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        (x,) = operands
        (dim,) = attrs["axis"]
        numbers = self.broadcast(self.along(dim, x.shape), x.shape)
        none = self.text.constant(x.shape[dim], x.shape, np.int64)
        where = self._where({}, [x, numbers, none], x.shape, np.int64)
        made = self._reduced("min", {"axis": (dim,)}, where, shape, np.int64)
        last = self.text.constant(x.shape[dim], made.shape, np.int64)
        return self.write("minimum", {}, [made, last], (made.shape, np.int64))

    def _places(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        numbers = np.arange(math.prod(shape)).reshape(shape)
        return self.cast(self.text.constant(numbers, shape, np.int64), dtype)

    # -- running totals -----------------------------------------------------------------------------------------------

    def _cumulative_sum(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        return self._running("add", 0, operands[0], attrs["axis"], attrs["dtype"])

    def _cumulative_prod(self, attrs: Any, operands: Sequence[Any], shape: Any, dtype: Any) -> Typed:
        return self._running("multiply", 1, operands[0], attrs["axis"], attrs["dtype"])

    def _running(self, row: str, start: Any, x: Typed, axis: int, dtype: Any) -> Typed:
        """Totals of 2, 4, 8, … rows up to each row: as many steps as the size has bits."""
        made, step = self.cast(x, dtype), 1
        while step < x.shape[axis]:
            size = x.shape[axis] - step
            maps = [RowMap(size) if d == axis else None for d in range(len(x.shape))]
            first = self.text.constant(start, [step if d == axis else n for d, n in enumerate(x.shape)], dtype)
            moved = self.joined([first, self.picked(made, maps)], axis)
            made = self.write(row, {}, [made, moved], (x.shape, dtype))
            step *= 2
        return made

    # -- reductions and products --------------------------------------------------------------------------------------

    def _reduced(self, name: str, attrs: Any, x: Typed, shape: Any, dtype: Any) -> Typed:
        value = self.signless(self.cast(x, dtype))
        bits, kind = value.dtype, np.dtype(dtype)
        dims = sorted(attrs["axis"])
        kept = [n for d, n in enumerate(x.shape) if d not in dims]
        if not dims:
            return self.cast(x, dtype)
        options = {"dtype": bits} if name in ("sum", "prod") else {}
        known = self._known(name, {"axis": tuple(dims), "keepdims": False, **options}, [value])
        if known is not None:
            return self._reshape({}, [self.signed_as(known, kind)], shape, kind)
        first = STARTS[name] if name in STARTS else np.asarray(EXTREMES[name](kind), kind).astype(bits)
        out = self.text.filled(first, kept, bits)
        combine = self._scalar_op(REDUCED[name], kind)
        element = type_name(bits)
        made = self.text.pure(
            f"linalg.reduce ins({value.name} : {value.type}) outs({out.name} : {out.type}) dimensions = {dims} "
            f"(%in: {element}, %init: {element}) {{ %r = {combine} %in, %init : {element} linalg.yield %r : {element} }}",
            kept,
            bits,
        )
        return self._reshape({}, [self.signed_as(made, kind)], shape, kind)

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
        given = [self.signless(self.cast(x, dtype)) for x in operands]
        bits = given[0].dtype
        out = self.text.filled(0, shape, bits)
        spelled = ["".join(chr(97 + letters.index(x)) for x in term) for term in (*terms, right)]
        named = NAMED.get(f"{spelled[0]},{spelled[1]}->{spelled[2]}")
        types = ", ".join(x.type for x in given)
        ins = f"ins({given[0].name}, {given[1].name} : {types}) outs({out.name} : {out.type})"
        if named is not None:
            return self.signed_as(self.text.pure(f"linalg.{named} {ins} -> {out.type}", shape, bits), dtype)
        return self.signed_as(self.text.pure(self._generic([*terms, right], letters, ins, out), shape, bits), dtype)

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


def _expression(loop: str, rows: RowMap) -> str:
    """The row that a row map reads, as an affine expression.

    >>> _expression("d0", RowMap(4, 3, -1)), _expression("d0", RowMap(8, wrap=4)), _expression("d0", RowMap(6, 1, 2, every=3))
    ('-d0 + 3', 'd0 mod 4', '(d0 floordiv 3) * 2 + 1')
    """
    text = f"{loop} floordiv {rows.every}" if rows.every > 1 else loop
    simple = text == loop
    if rows.stride == -1:
        text, simple = (f"-{text}" if simple else f"-({text})"), False
    elif rows.stride != 1:
        text, simple = f"{text if simple else f'({text})'} * {rows.stride}", False
    if rows.start:
        text, simple = f"{text} + {rows.start}", False
    return text if not rows.wrap else f"{text if simple else f'({text})'} mod {rows.wrap}"


def _expanded(term: Sequence[str], rank: int) -> list[str]:
    """A term of einsum with letters for its ellipsis, which is aligned at its end.

    >>> _expanded(["...", "m", "k"], 4)
    ['...1', '...0', 'm', 'k']
    """
    missing = rank - sum(x != "..." for x in term)
    return [y for x in term for y in ([f"...{n}" for n in reversed(range(missing))] if x == "..." else [x])]
