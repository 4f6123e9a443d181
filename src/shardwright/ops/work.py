"""The floating-point work of an operation, from the sizes of its factors: a column of the table.

Sizes are per device, so replicated computation has a cost. Every operation on an element counts as one, even an
exponential.
"""

import math
from collections.abc import Callable, Mapping

from shardwright.ops.rule import Rule

Work = Callable[[Rule, Mapping[str, int]], float]


def points(count: float) -> Work:
    """`count` operations per point of the index space: 2 for a product that is summed, 0 if elements only move."""
    return lambda rule, sizes: count * math.prod(sizes.values())


def sorting(rule: Rule, sizes: Mapping[str, int]) -> float:
    """n log n along the dims that are not split."""
    along = math.prod(sizes[factor] for factor in rule.whole if factor in sizes)
    return math.prod(sizes.values()) * math.log2(max(along, 2))


def selecting(rule: Rule, sizes: Mapping[str, int]) -> float:
    """n log n of the operand along the factor that rows are selected along."""
    assert rule.selects is not None
    return of_operand(0)(rule, sizes) * math.log2(max(sizes[rule.selects[0]], 2))


def matrices(rule: Rule, sizes: Mapping[str, int]) -> float:
    """Cubic in the matrix sizes, for every matrix."""
    sides = [n for factor, n in sizes.items() if factor in rule.whole]
    batch = math.prod(n for factor, n in sizes.items() if factor not in rule.whole)
    return 2.0 * batch * max(sides, default=1) ** 3


def of_operand(operand: int) -> Work:
    """One operation per element of an operand, whatever the size of the result."""

    def count(rule: Rule, sizes: Mapping[str, int]) -> float:
        return float(math.prod(sizes[factor] for dim in rule.inputs[operand] for factor in dim))

    return count


def grouped(rule: Rule, sizes: Mapping[str, int]) -> float:
    """Two operations for each row, inner index and column: a device that holds some of the groups multiplies their rows alone.

    How many rows a group has depends on data: groups count as equal.
    """
    share = sizes["g"] / max(rule.sizes["g"], 1)
    return 2.0 * sizes["t"] * sizes["k"] * sizes["n"] * share


def attention(rule: Rule, sizes: Mapping[str, int]) -> float:
    """For each pair of a query and a key two products that are summed, and six operations on their score. All pairs count, also
    those that a causal mask leaves out: a device that has the last queries computes them all."""
    pairs = math.prod(n for factor, n in sizes.items() if factor not in ("d", "e"))
    return pairs * (2.0 * sizes["d"] + 2.0 * sizes["e"] + 6.0)


NONE, ONE, TWO = points(0), points(1), points(2)
