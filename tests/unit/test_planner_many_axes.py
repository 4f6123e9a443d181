"""Plans on meshes of four axes and more: floors of moves, the ways that are found, and that plans are those of all ways."""

import math

import numpy as np
import pytest

import shardwright as sw
from planned_programs import planned
from shardwright import P, ShapeDtype
from shardwright.plan import has_floors, is_exact, move_matrix, move_prices, move_steps, options_of, places
from shardwright.planner import repriced_floored
from shardwright.planner.repriced_floored import moves_of
from shardwright.program.node import Apply
from shardwright.sharding import Sharding

F2 = np.dtype("float16")
SHAPES = [(512, 1024), (512, 512, 512), (32, 4096, 32, 128), (128256, 4096), (12, 36, 20), (64,), (2, 3, 5)]
MACHINES = [
    ((2, 8, 8, 4), "h100"),
    ((2, 2, 2, 2), "h100"),
    ((2, 3, 2, 2), "a100"),
    ((4, 2, 2, 8), "gb200-nvl72"),
    ((2, 4, 2, 2), "tpu-v5e"),
    ((4, 4, 2, 4), "tpu-v5p"),
    ((2, 2, 2, 4, 2), "generic"),
]


def mesh_of(sizes, hardware, first=0):
    return sw.Mesh(
        sizes, tuple("abcde"[: len(sizes)]), hardware=hardware, devices=range(first, first + math.prod(sizes))
    )


def some_shardings(rng, mesh, shape, count, partial=False):
    every = places(mesh, shape, any_order=True)
    found = [every[i] for i in rng.choice(len(every), min(count, len(every)), replace=False)]
    for s in found[: count // 2] if partial else ():
        left = [axis for axis in mesh.axis_names if axis not in s.axes]
        summed = tuple(axis for axis in left if rng.random() < 0.6)
        found.append(s.replace(partial=summed).for_shape(shape))
    return tuple(dict.fromkeys(found))


def move_time(source, target, shape, dtype=F2):
    kept = tuple(axis for axis in target.partial if axis in source.partial)
    return math.fsum(step.time for step in move_steps(source, target.replace(partial=kept), shape, dtype))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("sizes", "hardware"), MACHINES, ids=str)
def test_a_floor_is_no_more_than_the_steps_of_a_move_and_its_price_where_it_says_so(sizes, hardware, shape):
    rng, mesh = np.random.default_rng(sum(sizes) + sum(shape)), mesh_of(sizes, hardware)
    before, after = some_shardings(rng, mesh, shape, 8, partial=True), some_shardings(rng, mesh, shape, 8, partial=True)
    steps = np.array([[move_time(a, b, shape) for b in after] for a in before])
    least = move_matrix(before, after, shape, F2)
    known = np.array([[is_exact(a, b, shape, F2) for b in after] for a in before])
    assert (least <= steps * (1 + 1e-9)).all()
    np.testing.assert_allclose(least[known], steps[known], rtol=1e-9)
    one = {(before[0], after[0], shape, F2)}  # opens the ways of its pattern
    opened = move_matrix(before, after, shape, F2, one)
    assert ((opened >= least * (1 - 1e-9)) & (opened <= steps * (1 + 1e-9))).all()
    assert opened[0, 0] == pytest.approx(steps[0, 0], rel=1e-9)
    every = {(a, b, shape, F2) for a in before for b in after}
    np.testing.assert_allclose(move_matrix(before, after, shape, F2, every), steps, rtol=1e-9)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("sizes", "hardware"), MACHINES, ids=str)
def test_the_check_has_floors_of_its_own_which_are_no_lower(sizes, hardware, shape):
    rng, mesh = np.random.default_rng(sum(sizes) * sum(shape)), mesh_of(sizes, hardware)
    before, after = some_shardings(rng, mesh, shape, 40, partial=True), some_shardings(rng, mesh, shape, 40)
    own = moves_of(mesh).several([(before, after, shape, F2)])[0]
    np.testing.assert_allclose(own, move_matrix(before, after, shape, F2), rtol=1e-9, atol=1e-15)
    asked = frozenset((before[i % len(before)], after[-1 - i % len(after)], shape, F2) for i in range(8))
    own, theirs = (
        moves_of(mesh).several([(before, after, shape, F2)], asked)[0],
        move_matrix(before, after, shape, F2, asked),
    )
    assert (own >= theirs * (1 - 1e-9)).all()
    for i, j in np.argwhere(own > theirs * (1 + 1e-9)):  # where only steps tell, they have told
        assert own[i, j] == pytest.approx(move_time(before[i], after[j], shape), rel=1e-9)


def test_floors_are_for_meshes_of_more_than_three_axes():
    assert has_floors(sw.Mesh(a=2, b=2, c=2, d=2))
    assert not has_floors(sw.Mesh(a=2, b=2, c=2, d=1))


THREE = [((2, 2, 2), "h100"), ((2, 3, 2), "a100"), ((8, 8, 8), "h100"), ((2, 4, 2), "tpu-v5e")]


@pytest.mark.parametrize(("sizes", "hardware"), THREE, ids=str)
@pytest.mark.parametrize("name", ["two products", "uneven", "shared", "softmax", "several"])
def test_a_plan_with_floors_is_that_of_all_ways(name, sizes, hardware, monkeypatch):
    """On three axes, where all ways are found soon. The other mesh has other devices, so that nothing is kept for both."""
    other = planned(name, mesh_of(sizes, hardware, 20_000))
    for module in (move_prices, repriced_floored):
        monkeypatch.setattr(module, "FEW_AXES", 2)
    one = planned(name, mesh_of(sizes, hardware, 40_000))
    assert has_floors(one.mesh)
    assert one.time == pytest.approx(other.time, rel=1e-9)
    assert one.bound == pytest.approx(other.bound, rel=1e-9)
    assert one.time == pytest.approx(one.explain().time, rel=1e-9)
    assert one.certificate.check()


@pytest.mark.parametrize("name", ["two products", "uneven", "softmax"])
def test_programs_of_uneven_tensors_are_solved_few_times(name):
    """Moves over unequal blocks, of which little is known, take at least what devices wait for one another."""
    plan = planned(name, mesh_of((2, 3, 2, 2), "a100"))
    assert len(plan.found.exact) < 100
    assert plan.bound <= plan.time == pytest.approx(plan.explain().time, rel=1e-9)
    assert plan.certificate.check()


def test_a_product_of_fixed_operands_takes_what_the_best_choice_takes():
    mesh, shape = mesh_of((2, 2, 2, 2), "h100"), (8, 6)
    kinds = (shape, F2), (shape[::-1], F2)
    plan = sw.auto(
        lambda x, w: x @ w, mesh, *[ShapeDtype(*kind) for kind in kinds], fixed={"x": P("d"), "w": P("b", "a")}
    )
    (node,) = [node for node in plan.found.program.nodes if isinstance(node.what, Apply)]
    known = {}

    def moved(source, target, size):
        if (source, target, size) not in known:
            known[source, target, size] = move_time(source, target, size)
        return known[source, target, size]

    fixed = Sharding(mesh, P("d")).for_shape(shape), Sharding(mesh, P("b", "a")).for_shape(shape[::-1])
    wanted = places(mesh, node.type.shape)
    least = min(
        option.seconds
        + sum(moved(s, t, kind[0]) for s, t, kind in zip(fixed, option.operands, kinds, strict=True))
        + min(moved(option.results[0], t, node.type.shape) for t in wanted if t.local_size(node.type.shape) > 0)
        for option in options_of(node.what.name, kinds, node.what.attrs, mesh)
    )
    assert plan.time == pytest.approx(least, rel=1e-9)
    assert plan.bound == pytest.approx(least, rel=1e-9)


def test_few_patterns_are_opened():
    mesh = mesh_of((2, 8, 8, 4), "h100", 5000)
    x, w, v = (ShapeDtype(shape, "bfloat16") for shape in [(4096, 1024), (1024, 4096), (4096, 1024)])
    plan = sw.auto(lambda x, w, v: (x @ w) @ v, mesh, x, w, v, fixed={"x": P("a"), "w": P("b", "c")})
    prices = move_prices._prices(mesh)
    assert prices._count() > 5000
    assert prices.opened < prices._count() / 4
    assert plan.gap == 0
    assert plan.certificate.check()
    assert moves_of(mesh)._moves.patterns.count < prices._count() / 4
