"""Factor rules: how an operation may be sharded.

A rule names the index ranges (**factors**) of an operation and says which dim of which operand runs over which of them,
as einsum does: `... m k, ... k n -> ... m n` is a matmul. A dim may be a product of factors, `(a b)`, outermost first, as a
reshape has it. A rule also has these fields: `sums`, the reduced factors and their reductions; `whole`, the factors that
must not be split; `rows`, the factors whose rows come from known rows of the operand; `prefix`, the factor along which
each row depends on the rows before it; `linear`, how the operation treats partial operands; `agrees`, whether devices
compare their data first; `owners`, the factors whose rows go to the devices that hold other rows; `keeps`, whether the
first operand stays where it is; `joins`, whether the first operand is one more term of the sums; `constants`, the operands
that the operation is not linear in; `selects`, the factor of which each shard passes on only its candidates; `normalizes`, the
factor along which weights are divided by their sum before they are used.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import OperationError

Dim = tuple[str, ...]  # the factors of a dim, outermost first; () is a dim of size 1 that is broadcast
Dims = tuple[Dim, ...]
Shape = tuple[int, ...]
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RowMap:
    """A factor whose rows in the result come from known rows of the operand.

    Row j of the result reads the operand from row start + (j // every) · stride on (modulo `wrap`, if that is not 0),
    `width` rows with a step of `dilation`; rows outside the operand read as a fill value. So a slice has a start and a
    stride, a flip a stride of -1, a roll wraps, a repeat has every > 1, a convolution a width.
    """

    size: int  # of the result
    start: int = 0
    stride: int = 1
    width: int = 1
    dilation: int = 1
    every: int = 1
    wrap: int = 0

    @property
    def span(self) -> int:
        """The distance from the first to the last row that one row of the result reads, plus 1."""
        return (self.width - 1) * self.dilation + 1

    def sources(self, first: int, last: int) -> NDArray[np.int64]:
        """For rows first to last (exclusive) of the result the first row each reads."""
        rows = self.start + (np.arange(first, last) // self.every) * self.stride
        return rows % self.wrap if self.wrap else rows

    def window(self, first: int, last: int) -> NDArray[np.int64]:
        """All rows of the operand that rows first to last of the result read, in order."""
        rows = self.sources(first, last)
        if self.width == 1 or not len(rows):
            return rows
        return np.arange(rows[0], rows[-1] + self.span)

    def anchors(self, size: int) -> NDArray[np.int64]:
        """For each row of the result the operand row whose owner should compute it."""
        return np.clip(self.sources(0, self.size) + (self.span - 1) // 2, 0, max(size - 1, 0))


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """The factors of one operation on operands of known shapes."""

    inputs: tuple[Dims, ...]
    outputs: tuple[Dims, ...]
    sizes: Mapping[str, int]
    sums: Mapping[str, str] = field(default_factory=dict)  # factor -> reduction
    whole: frozenset[str] = frozenset()
    linear: str = ""  # "" | "move" | "add" | "mul" | "first" | "over": see `passes_partial`
    rows: Mapping[str, RowMap] = field(default_factory=dict)
    prefix: str = ""  # the factor along which every row depends on all rows before it: every shard sends one row
    fill: str = "zero"  # what rows outside the operand read as: "zero", or "lowest", which never wins a maximum
    agrees: bool = False  # whether all devices first compare the extremes of their data
    # factor -> (another factor, map): its row k goes to the device that holds row map.sources(k) of the other; such a map
    # has a positive stride, so rows keep their order.
    owners: Mapping[str, tuple[str, RowMap]] = field(default_factory=dict)
    keeps: bool = False  # whether the first operand, and with it the result, stays where it is
    # Whether the first operand is one more term of what is reduced over `sums`: along axes that split a summed factor it is
    # partial itself, and no copy of it counts twice.
    joins: bool = False
    constants: frozenset[int] = frozenset()  # operands, such as indices, that the operation is not linear in
    # (factor, count): the rows that the operation selects along a factor are among `count` candidates of each shard.
    selects: tuple[str, int] | None = None
    # The factor of a softmax inside the operation: where it is split, devices first agree on the largest score and on the sum
    # of weights, both as long as the result without its last dim.
    normalizes: str = ""

    def out_size(self, factor: str) -> int:
        """The size of a factor in the result."""
        return self.rows[factor].size if factor in self.rows else self.sizes[factor]

    def out_shape(self, output: int = 0) -> Shape:
        """The shape of a result."""
        size = self.out_size
        return tuple(
            [size(dim[0]) if len(dim) == 1 else math.prod([size(f) for f in dim]) for dim in self.outputs[output]]
        )

    @property
    def factors(self) -> Mapping[str, int]:
        """The factors with their sizes in the result: the index space of the computation."""
        return {factor: self.out_size(factor) for factor in self.sizes}

    def passes_partial(self, reduction: str) -> bool:
        """Whether a partial operand may stay partial: f(a) + f(b) = f(a + b).

        "move" only moves elements, so any reduction passes. "add" is linear in all operands together, "mul" in each one
        alone, "first" in the first one only, "over" divides the first by the others; these pass sums and averages.
        """
        return self.linear == "move" or (self.linear != "" and reduction in ("sum", "average"))


_TOKEN = re.compile(r"\(([^)]*)\)|(\.\.\.)|(\S+)")


def _terms(text: str) -> list[list[Dim | None]]:
    """Each operand's dims; None is `...`."""
    return [
        [None if m[2] else tuple((m[3] if m[1] is None else m[1]).split()) for m in _TOKEN.finditer(part)]
        for part in text.split(",")
    ]


def rule(
    name: str,
    text: str,
    shapes: Sequence[Shape],
    *,
    sums: Mapping[str, str] = NOTHING,
    whole: str | Sequence[str] = (),
    linear: str = "",
    rows: Mapping[str, RowMap] | None = None,
    prefix: str = "",
    fill: str = "zero",
    sizes: Mapping[str, int] | None = None,
) -> Rule:
    """Fits a rule's text to operand shapes; `...` are leading dims that broadcast as in NumPy.

    >>> fitted = rule("matmul", "... m k, ... k n -> ... m n", [(5, 2, 3), (3, 4)], sums={"k": "sum"})
    >>> fitted.inputs, fitted.out_shape()
    (((('...0',), ('m',), ('k',)), (('k',), ('n',))), (5, 2, 4))

    `sizes` gives the factors that the operands don't determine: factors of product dims, or of the result only.
    """
    inputs, outputs, known = _fit(name, text, tuple(shapes), tuple(sizes.items()) if sizes else ())
    names = tuple(whole.split()) if isinstance(whole, str) else tuple(whole)
    return Rule(inputs, outputs, known, sums, frozenset(names), linear, rows or {}, prefix, fill)


@lru_cache(maxsize=4096)
def _fit(
    name: str, text: str, shapes: tuple[Shape, ...], sizes: tuple[tuple[str, int], ...]
) -> tuple[tuple[Dims, ...], tuple[Dims, ...], Mapping[str, int]]:
    """The dims of operands and results, and the sizes of factors; programs meet the same shapes again and again."""
    left, right = text.split("->")
    terms, results = _terms(left), _terms(right)
    known = dict(sizes)
    counts = [len(shape) - sum(dim is not None for dim in term) for term, shape in zip(terms, shapes, strict=True)]
    depth = max([n for n, term in zip(counts, terms, strict=True) if None in term], default=0)
    if any(n < 0 or (n > 0 and None not in term) for n, term in zip(counts, terms, strict=True)):
        raise OperationError(f"{name}: operands of shapes {_shown(shapes)} don't match the dims of {text!r}.")

    def spelled(term: list[Dim | None], count: int) -> list[Dim]:
        lead = [(f"...{depth - 1 - i}",) for i in reversed(range(count))]
        return [dim for entry in term for dim in (lead if entry is None else [entry])]

    dims = [spelled(term, count) for term, count in zip(terms, counts, strict=True)]
    for operand, shape in zip(dims, shapes, strict=True):
        for dim, size in zip(operand, shape, strict=True):
            if len(dim) == 1 and known.get(dim[0], 1) == 1:
                known[dim[0]] = size
    inputs = tuple(
        tuple(_fitted(name, dim, size, known, shapes) for dim, size in zip(operand, shape, strict=True))
        for operand, shape in zip(dims, shapes, strict=True)
    )
    outputs = tuple(tuple(spelled(term, depth)) for term in results)
    return inputs, outputs, MappingProxyType(known)


def _fitted(name: str, dim: Dim, size: int, known: dict[str, int], shapes: Sequence[Shape]) -> Dim:
    want = math.prod(known[factor] for factor in dim)
    if size == want:
        return dim
    if size == 1 and len(dim) == 1 and dim[0].startswith("..."):
        return ()  # broadcast
    raise OperationError(
        f"{name}: operands of shapes {_shown(shapes)} don't fit: a dim of size {size} meets one of size {want}."
    )


def _shown(shapes: Sequence[Shape]) -> str:
    return " and ".join(map(str, shapes))
