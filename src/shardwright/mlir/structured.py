"""linalg: generic and named operations, as element-wise operations, products and reductions of the table."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from xdsl.dialects import builtin as b
from xdsl.ir import Block, BlockArgument, Operation
from xdsl.ir.affine import AffineDimExpr, AffineMap

from shardwright.mlir.arithmetic import REDUCING, RULES, unsigned
from shardwright.mlir.fields import integer, integers
from shardwright.mlir.maps import MOST_LISTED, check_rows, ends_of, extracted, index_table, loops_of, spaced
from shardwright.mlir.named import PRODUCTS, WINDOWS
from shardwright.mlir.values import Value, View
from shardwright.mlir.windows import windowed
from shardwright.xla import first_of, is_splat, splat

Refuse = Callable[[str, Operation], Exception]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
_NEUTRAL = {"sum": 0, "prod": 1, "all": True, "any": False}


def _neutral(kind: str, dtype: "np.dtype[Any]") -> Any:
    """What a reduction begins with so that it changes nothing."""
    if kind in _NEUTRAL:
        return _NEUTRAL[kind]
    low = kind in ("max", "fmax")
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if low else np.iinfo(dtype).max
    if dtype.kind == "b":
        return not low
    return -np.inf if low else np.inf


class Structured:
    """Runs the operations of linalg on values."""

    def __init__(self, view: View, refuse: Refuse) -> None:
        self.view, self.refuse = view, refuse

    def run(self, op: Operation, values: Sequence[Value]) -> list[Value]:
        """The results of an operation."""
        name = op.name.removeprefix("linalg.")
        if op.name in RULES:
            (*inputs, _) = values
            return [RULES[op.name](self.view, op, *inputs)]
        if name in WINDOWS:
            return [windowed(self.view, op, WINDOWS[name], values, self._combined)]
        if name in PRODUCTS:
            return [self._product(op, PRODUCTS[name], values)]
        rule = getattr(self, f"_{name}", None)
        if rule is None:
            raise self.refuse(f"'{op.name}' is not supported. Use linalg.generic, or operations of arith and math.", op)
        made: list[Value] = rule(op, values)
        return made

    def _product(self, op: Operation, text: str, values: Sequence[Value]) -> Value:
        one, two, out = values
        made = self._einsum(text, one, two, out.dtype)
        return self._combined("sum", made, out)

    def _einsum(self, text: str, one: Value, two: Value, dtype: "np.dtype[Any]") -> Value:
        spaced = text.replace("->", ">")
        left, right = spaced.split(">")
        terms = ", ".join(" ".join(term) for term in left.split(","))
        x, y = (self.view.cast(value, dtype) for value in (one, two))
        return self.view.row("einsum", x, y, name="einsum", text=f"{terms} -> {' '.join(right)}".rstrip())

    def _combined(self, kind: str, made: Value, out: Value) -> Value:
        """What was reduced, combined with the value that the reduction begins with."""
        if kind in ("umax", "umin"):
            one, two = (unsigned(self.view, x) for x in (made, out))
            return self.view.cast(self._combined(kind[1:], one, two), out.dtype)
        if is_splat(out) and first_of(out) == _neutral(kind, out.dtype):
            return made
        rows = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum", "fmax": "fmax", "fmin": "fmin"}
        rows |= {"all": "bitwise_and", "any": "bitwise_or"}
        return self.view.row(rows[kind], made, out)

    def _fill(self, op: Operation, values: Sequence[Value]) -> list[Value]:
        element, out = values
        return [self.view.broadcast(self.view.cast(element, out.dtype), out.shape)]

    def _transpose(self, op: Operation, values: Sequence[Value]) -> list[Value]:
        order = integers(op.properties["permutation"])
        return [self.permuted(values[0], order)]

    def permuted(self, value: Value, order: Sequence[int]) -> Value:
        """Dims in another order."""
        if list(order) == list(range(len(order))):
            return value
        if is_splat(value):
            return splat(first_of(value), [value.shape[d] for d in order], value.dtype)
        return self.view.row("permute_dims", value, axes=tuple(order))

    def _broadcast(self, op: Operation, values: Sequence[Value]) -> list[Value]:
        dims, shape = integers(op.properties["dimensions"]), values[1].shape
        ones = [1 if d in dims else n for d, n in enumerate(shape)]
        return [self.view.broadcast(self.view.reshaped(values[0], ones), shape)]

    def _reduce(self, op: Operation, values: Sequence[Value]) -> list[Value]:
        if len(values) != 2:
            raise self.refuse(f"'{op.name}' reduces {len(values) // 2} tensors together; reduce them one by one.", op)
        block = op.regions[0].block
        kind, inner = self._combiner(op, block, 1)
        if inner is not block.args[0]:
            raise self.refuse(
                f"'{op.name}' has a body that does more than combine two elements. Use linalg.generic.", op
            )
        return [self._combined(kind, self._reduced(kind, values[0], integers(op.properties["dimensions"])), values[1])]

    def _reduced(self, kind: str, value: Value, dims: Sequence[int]) -> Value:
        if not dims:
            return value
        options = {"dtype": value.dtype} if kind in ("sum", "prod") else {}
        if kind in ("umax", "umin"):
            made = self._reduced(kind[1:], unsigned(self.view, value), dims)
            return self.view.cast(made, value.dtype)
        if kind in ("fmax", "fmin"):  # what is no number never wins
            none = splat(_neutral(kind, value.dtype), value.shape, value.dtype)
            value, kind = self.view.row("where", self.view.row("isnan", value), none, value), kind[1:]
        return self.view.row(kind, value, axis=tuple(sorted(dims)), keepdims=False, **options)

    def _combiner(self, op: Operation, block: Block, inputs: int) -> tuple[str, Any]:
        """How a body combines an element with what was reduced so far: the reduction, and the element."""
        last = block.last_op
        assert last is not None
        made = last.operands[0].owner
        out = block.args[inputs]
        if (
            isinstance(made, Operation)
            and made.name in REDUCING
            and out in made.operands
            and len(set(made.operands)) == 2
        ):
            (element,) = (x for x in made.operands if x is not out)
            uses = sum(x is out for inner in block.ops for x in inner.operands)
            kind = REDUCING[made.name]
            bits = element.type == b.i1
            if uses == 1 and (kind in ("all", "any") if bits else kind not in ("all", "any")):
                return kind, element
            if uses == 1 and bits and made.name == "arith.muli":
                return "all", element
        raise self.refuse(
            f"'{op.name}' reduces by something else than one addition, product, maximum or minimum of the element and the "
            f"output. Write the body so that it ends in one of them.",
            op,
        )

    # -- linalg.generic -----------------------------------------------------------------------------------------------

    def _generic(self, op: Operation, values: Sequence[Value]) -> list[Value]:
        maps = [attribute.data for attribute in op.properties["indexing_maps"]]  # type: ignore[attr-defined]
        kinds = [str(kind.data) for kind in op.properties["iterator_types"]]  # type: ignore[attr-defined]
        loops = len(kinds)
        sizes = self._loop_sizes(values, maps, loops)
        over = [d for d, kind in enumerate(kinds) if "reduction" in kind]
        block, count = op.regions[0].block, len(values) - len(op.results)
        if over and len(op.results) > 1:
            raise self.refuse(f"'{op.name}' reduces into several outputs; use one operation an output.", op)
        if not over:
            aligned = {
                arg: self._aligned(op, value, map_, sizes)
                for arg, value, map_ in zip(block.args, values, maps, strict=True)
            }
            return [
                self._fitted(op, made, map_, sizes)
                for made, map_ in zip(self._body(op, block, aligned, sizes), maps[count:], strict=True)
            ]
        kind, element = self._combiner(op, block, count)
        made = self._contraction(op, block, element, kind, values, maps, sizes)
        if made is None:
            aligned = {
                arg: self._aligned(op, value, map_, sizes)
                for arg, value, map_ in zip(block.args[:count], values[:count], maps[:count], strict=True)
            }
            full = self.view.broadcast(self._body(op, block, aligned, sizes, element)[0], sizes)
            reduced = self._reduced(kind, full, over)
            kept = [d for d in range(loops) if d not in over]
            made = self.permuted(reduced, [kept.index(d) for d in self._dims(op, maps[count])])
        return [self._combined(kind, made, values[count])]

    def _contraction(
        self,
        op: Operation,
        block: Block,
        element: Any,
        kind: str,
        values: Sequence[Value],
        maps: Sequence[AffineMap],
        sizes: Sequence[int],
    ) -> Value | None:
        """A sum of products of two inputs, without making all the products; None if the body is something else."""
        owner = element.owner
        simple = isinstance(owner, Operation) and owner.name in ("arith.mulf", "arith.muli") and kind == "sum"
        if not simple or not all(isinstance(x, BlockArgument) and x.owner is block for x in owner.operands):
            return None
        one, two = (x.index for x in owner.operands)
        if one == two or max(one, two) >= len(values) - 1:
            return None
        (x, left), (y, right) = (self._by_loops(op, values[at], maps[at], sizes) for at in (one, two))
        terms = ["".join(LETTERS[d] for d in dims) for dims in (left, right, self._dims(op, maps[-1]))]
        if any(len(set(term)) < len(term) for term in terms) or not set(terms[2]) <= set(terms[0] + terms[1]):
            return None
        return self._einsum(f"{terms[0]},{terms[1]}->{terms[2]}", x, y, values[-1].dtype)

    def _dims(self, op: Operation, map_: AffineMap) -> list[int]:
        """The loops that a map's results are, in order."""
        dims = []
        for expression in map_.results:
            if not isinstance(expression, AffineDimExpr):
                raise self.refuse(
                    f"'{op.name}' has the indexing map {map_} for a result; only loops by themselves, as in "
                    f"(d0, d1) -> (d1, d0), are supported there.",
                    op,
                )
            dims.append(expression.position)
        return dims

    def _loop_sizes(self, values: Sequence[Value], maps: Sequence[AffineMap], loops: int) -> list[int]:
        sizes = [1] * loops
        for value, map_ in zip(values, maps, strict=True):
            for expression, size in zip(map_.results, value.shape, strict=True):
                if isinstance(expression, AffineDimExpr):
                    sizes[expression.position] = size
        return sizes

    def _aligned(self, op: Operation, value: Value, map_: AffineMap, sizes: Sequence[int]) -> Value:
        """A value with one dim a loop, 1 long where it does not depend on the loop."""
        value, dims = self._by_loops(op, value, map_, sizes)
        if len(set(dims)) < len(dims):
            raise self.refuse(f"'{op.name}' reads a diagonal, {map_}; only different loops are supported.", op)
        ordered = self.permuted(value, sorted(range(len(dims)), key=lambda at: dims[at]))
        held = dict(zip(sorted(dims), ordered.shape, strict=True))
        return self.view.reshaped(ordered, [held.get(d, 1) for d in range(len(sizes))])

    def _by_loops(self, op: Operation, value: Value, map_: AffineMap, sizes: Sequence[int]) -> tuple[Value, list[int]]:
        """A value whose dims are loops, and their numbers: rows that a map picks are picked first."""
        if map_.num_symbols:
            raise self.refuse(f"'{op.name}' has the indexing map {map_}, whose symbols have no values here.", op)
        picks = [spaced(e) for e in map_.results]
        maps = tuple(None if pick is None or pick.is_plain else pick.rows(sizes[pick.loop]) for pick in picks)
        for dim, rows in enumerate(maps):
            if rows is not None:
                check_rows(ends_of(rows), value.shape[dim], dim)
        if any(rows is not None for rows in maps):
            if is_splat(value):
                shape = [n if rows is None else rows.size for n, rows in zip(value.shape, maps, strict=True)]
                value = splat(first_of(value), shape, value.dtype)
            else:
                value = self.view.row("rows", value, name="rows", maps=maps)
        dims: list[int] = []
        for at, (expression, pick) in enumerate(zip(map_.results, picks, strict=True)):
            axis = len(dims)
            if pick is not None:
                dims.append(pick.loop)
                continue
            rows = index_table(expression, sizes)
            check_rows(rows, value.shape[axis], at)
            if not rows.ndim and value.shape[axis] == 1:
                value = self.view.reshaped(value, [n for d, n in enumerate(value.shape) if d != axis])
            else:
                value = self.view.row("take", self.view.lifted(value), self.view.lifted(rows), axis=axis)
            dims += loops_of(expression)
        return value, dims

    def _fitted(self, op: Operation, value: Value, map_: AffineMap, sizes: Sequence[int]) -> Value:
        """A result as its map has it."""
        dims = self._dims(op, map_)
        if sorted(dims) != list(range(len(sizes))):
            raise self.refuse(f"'{op.name}' has parallel loops that its output {map_} does not have.", op)
        return self.permuted(self.view.broadcast(value, sizes), dims)

    def _body(
        self, op: Operation, block: Block, known: dict[Any, Value], sizes: Sequence[int], wanted: Any = None
    ) -> list[Value]:
        """A body's operations on all elements at once: what it yields, or one value of it."""
        for inner in block.ops:
            if wanted is not None and wanted in known:
                break
            if inner.name == "linalg.yield":
                return [self._outer(known, x, op) for x in inner.operands]
            if inner.name == "linalg.index":
                loop = integer(inner.properties["dim"])
                shape = [n if d == loop else 1 for d, n in enumerate(sizes)]
                if sizes[loop] > MOST_LISTED:
                    raise self.refuse(
                        f"'{inner.name}' counts {sizes[loop]:,} rows; at most {MOST_LISTED:,} are.", inner
                    )
                known[inner.results[0]] = np.arange(sizes[loop], dtype=np.int64).reshape(shape)
            elif inner.name == "arith.constant":
                known[inner.results[0]] = self.constant(inner)
            elif inner.name == "tensor.extract":
                tensor, *indices = (self._outer(known, x, op) for x in inner.operands)
                wide = [self.view.reshaped(x, (1,) * len(sizes)) if not x.shape else x for x in indices]
                known[inner.results[0]] = extracted(self.view, tensor, wide, sizes)
            elif inner.name in RULES and (
                wanted is None or any(x in known or x.owner is not block for x in inner.operands)
            ):
                if wanted is not None and not all(x in known or self._is_outside(x, block) for x in inner.operands):
                    continue  # what combines the element with the output
                operands = [self._outer(known, x, op) for x in inner.operands]
                known[inner.results[0]] = RULES[inner.name](self.view, inner, *operands)
            else:
                raise self.refuse(f"'{inner.name}' inside '{op.name}' is not supported.", inner)
        return [self._outer(known, wanted, op)]

    def _is_outside(self, value: Any, block: Block) -> bool:
        owner = value.owner
        return (owner if isinstance(owner, Block) else owner.parent) is not block

    def _outer(self, known: dict[Any, Value], value: Any, op: Operation) -> Value:
        """A value of the body, or one from outside of it."""
        return known[value] if value in known else self.outside(value)

    def outside(self, value: Any) -> Value:
        """A value that a body reads from the function around it."""
        raise NotImplementedError

    def constant(self, op: Operation) -> Value:
        """The value of a constant."""
        raise NotImplementedError
