"""The chosen strategy is the best of all that `strategies` enumerates, and no bound that prunes is above a price.

Brute force is over `strategies(problem)`: each piece of an axis at the factors where an operand or a wanted result has it, or
at none; and at any factor, if that makes at most 81 choices.
"""

import numpy as np
import pytest

import shardwright as sw
from choices import problems
from shardwright import P
from shardwright.hardware import Chip, Hardware, Level, Link
from shardwright.ops import OPS, Attrs
from shardwright.plan import choose, problem_of, strategies
from shardwright.sharding import layout_of


def assert_least(problem):
    """Asserts that the choice is that of brute force, and that each placement's bound is at most its weight."""
    every = {tuple(s.placement.values()): s for s in strategies(problem.afresh()) if not s.idle}
    chosen = choose(problem.afresh())
    least = min(s.priced.weight for s in every.values())
    assert chosen.priced.weight <= least * (1 + 1e-9), (chosen, least)
    assert tuple(chosen.placement.values()) in every
    bounded = problem.afresh()
    for stage in bounded.stages:
        for bound, choice in bounded.placements(stage):
            strategy = every.get(choice)
            assert strategy is None or bound <= strategy.priced.weight * (1 + 1e-9), (strategy, bound)
    return len(every)


@pytest.mark.filterwarnings("ignore::shardwright.ImplicitGatherWarning")
@pytest.mark.parametrize("first", range(0, 120, 30))
def test_the_choice_is_that_of_brute_force_for_random_operations(first, monkeypatch):
    looked = [assert_least(problem) for seed in range(first, first + 30) for problem in problems(seed, monkeypatch)]
    assert len(looked) > 60
    assert sum(looked) > 300


def two_levels(flops=1e12):
    """Pairs of devices with a short latency between them, and a long one between pairs."""
    chip = Chip({"float32": flops}, 1e12, 1e9)
    return Hardware("pairs", chip, (Level(Link("switch", 1e9, 1e-6), 2), Level(Link("switch", 1e9, 1e-3))))


def priced_apart(name, text, mesh, *operands):
    attrs = Attrs(name=name, text=text) if text else Attrs(k=1, axis=1, largest=True)
    kinds = [
        (layout_of(sw.Sharding(mesh, P(*spec), partial=partial).for_shape(shape), shape), np.dtype("f4"))
        for shape, spec, partial in operands
    ]
    return problem_of(OPS["einsum" if text else name], kinds, attrs)[0]


PRODUCT = "m k, k n -> m n"
SUM = "m n, m n -> m n"


@pytest.mark.parametrize("size", [1, 2, 3, 8, 64, 1000])
def test_bounds_are_below_prices_where_moves_cost_less_than_they_might(size):
    square, wide = (size, size), (8 * size, 8 * size)
    ring, pairs = sw.Mesh(a=4, b=4), sw.Mesh(a=4, b=2, hardware=two_levels())
    torus = sw.Mesh(a=6, b=8, links={axis: Link("torus", 1e9) for axis in "ab"})
    inner = "a:(2)2"
    for problem in (
        priced_apart("matmul", PRODUCT, ring, (wide, (), ("a",)), (wide, ("b",), ())),  # sliced, then reduced
        priced_apart("matmul", PRODUCT, ring, (square, ("a", "b"), ()), (square, ("b", "a"), ())),
        priced_apart("matmul", SUM, ring, (square, ("a",), ()), (square, (None, "a"), ())),  # all with one device
        priced_apart("matmul", SUM, pairs, (square, (inner,), ()), (square, (None, inner), ())),  # a short launch
        priced_apart("matmul", PRODUCT, torus, (wide, ("a:(1)2", "a:(2)3"), ()), (wide, ("b",), ())),
        priced_apart("matmul", PRODUCT, torus, (wide, ("b:(1)2", "b:(2)4"), ()), (wide, (("b:(2)4", "a"),), ())),
        priced_apart("top_k", "", sw.Mesh(a=8, hardware=two_levels(1.0)), (wide, (None, "a"), ())),  # n log n
    ):
        assert assert_least(problem) > 1


def test_the_least_launch_is_that_of_the_innermost_level():
    mesh = sw.Mesh(a=4, hardware=two_levels())
    assert mesh.least_launch == 1e-6 == mesh.fabric(("a:(2)2",)).launch
    assert mesh.fabric(("a",)).launch == 1e-3
    assert sw.Mesh(a=1).least_launch == 0.0
