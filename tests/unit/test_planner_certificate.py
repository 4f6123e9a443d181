"""Certificates: they hold for plans of all kinds, and are rejected once tampered with."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import shardwright as sw
import shardwright.numpy as snp
from shardwright import P, ShapeDtype, nn
from shardwright.errors import PlanError
from shardwright.planner import certificate, tables
from shardwright.planner.elimination import Dead, Gone
from shardwright.planner.remaining import Shift
from shardwright.planner.solving import Solver

MESH = sw.Mesh(dp=2, tp=4, hardware="h100")
X = ShapeDtype((512, 1024), "float32")


def mlp(x, p):
    for w in p["layers"]:
        x = x + snp.tanh(x @ w["up"]) @ w["down"]
    return x


def weights(layers=3):
    up, down = ShapeDtype((1024, 4096), "float32"), ShapeDtype((4096, 1024), "float32")
    return {"layers": [{"up": up, "down": down} for _ in range(layers)]}


@pytest.fixture(scope="module")
def plan():
    """Within 30 MB the weights are split along tp, and memory has a price."""
    return sw.auto(mlp, MESH, X, weights(), fixed={"x": P("dp")}, memory=30e6)


def rejects(certificate, **changes):
    with pytest.raises(PlanError, match=r"^The certificate ") as caught:
        replace(certificate, **changes).check()
    assert str(caught.value).count("The certificate") == 1


def test_a_certificate_claims_no_more_than_it_proves(plan):
    certificate = plan.certificate
    assert certificate.check()
    assert certificate.bound == plan.bound
    rejects(certificate, bound=certificate.bound * (1 + 1e-7))
    rejects(certificate, bound=plan.time)
    rejects(certificate, bound=float("nan"))
    rejects(certificate, price=certificate.price * 1.01)
    rejects(certificate, price=certificate.price * 0.99)
    rejects(certificate, price=0.0)
    rejects(certificate, budget=certificate.budget * 1.01)
    assert replace(certificate, budget=certificate.budget * 0.9).check()  # what holds for more memory holds for less
    rejects(certificate, unit=certificate.unit * 2)
    rejects(certificate, unit=1e-3)


def test_a_certificate_with_other_steps_is_rejected(plan):
    certificate, steps = plan.certificate, list(plan.certificate.steps)
    assert all(isinstance(step, Gone) for step in steps)
    for at, step in enumerate(steps):
        if step.others:
            rejects(certificate, steps=steps[:at] + steps[at + 1 :])
            rejects(certificate, steps=[*steps[:at], step._replace(others=step.others[1:]), *steps[at + 1 :]])
    rejects(certificate, steps=steps[::-1])
    rejects(certificate, steps=[])
    rejects(certificate, steps=[*steps, "a step"])
    rejects(certificate, steps=[*steps, steps[-1]])
    first = steps[0]
    for others in ((*first.others, first.others[0]), (*first.others, first.variable), (-1,), (10**6,)):
        rejects(certificate, steps=[first._replace(others=others), *steps[1:]])
    rejects(certificate, steps=[first._replace(variable=-1), *steps[1:]])
    rejects(certificate, steps=[first._replace(table=-1), *steps[1:]])
    fewer = first._replace(options=tuple(options[1:] if at else options for at, options in enumerate(first.options)))
    table = certificate.tables[first.table][tuple(slice(1, None) for _ in first.others)]
    rejects(certificate, steps=[fewer, *steps[1:]], tables={**certificate.tables, first.table: table})


def test_a_certificate_with_other_messages_is_rejected(plan):
    certificate = plan.certificate
    for number, table in certificate.tables.items():
        more = np.array(table) + 1000 * len(certificate.steps)
        rejects(certificate, tables={**certificate.tables, number: more})
        rejects(certificate, tables={**certificate.tables, number: np.full(np.shape(table), np.nan)})
        rejects(certificate, tables={**certificate.tables, number: np.full(np.shape(table), np.inf)})


def test_a_certificate_that_leaves_out_less_or_more_than_it_says_is_rejected(plan):
    certificate = plan.certificate
    for number, shift in certificate.shifts.items():
        amount = 1000 * len(certificate.steps)
        for other in (shift + amount, shift - 1e6 * amount, np.inf, -np.inf, np.nan):
            rejects(certificate, shifts={**certificate.shifts, number: other})
    rejects(certificate, shifts={})


def test_layers_pass_equal_tables_on():
    """What a layer passes on leaves out a number, so that of many equal layers few are solved and checked."""

    def distinct(layers):
        tables = sw.auto(mlp, MESH, X, weights(layers), fixed={"x": P("dp")}).certificate.tables
        return len({id(table) for table in tables.values()})

    assert distinct(12) == distinct(24) == distinct(48)


def test_a_certificate_that_takes_good_options_away_is_rejected(plan):
    certificate, found = plan.certificate, plan.found
    for variable, best in enumerate(found.solution.choice):
        count = len(found.model.variables[variable].options)
        for better in {0, count - 1} - {best}:
            rejects(certificate, steps=[Dead(variable, best, better), *certificate.steps])
        rejects(certificate, steps=[Dead(variable, best, best), *certificate.steps])
        rejects(certificate, steps=[Dead(variable, best, best - count), *certificate.steps])  # itself, from the end


def test_a_certificate_with_a_negative_price_of_memory_is_rejected(plan):
    """It would prove that plans which hold less than the budget take longer than they do."""
    certificate, solver = plan.certificate, Solver(plan.found.model)
    price, budget = -1e-11, 1e9
    result = solver._solved(price, price)
    tables = {step.table: solver.tables.values[step.table] for step in result.steps}
    bound = result.bound * certificate.unit - price * budget
    assert bound > plan.time
    rejects(certificate, steps=result.steps, tables=tables, price=price, budget=budget, bound=bound)


def test_a_certificate_that_shifts_costs_proves_nothing_by_it(plan):
    certificate, model = plan.certificate, plan.found.model
    scope, _ = next(factor for factor in model.factors if len(factor[0]) == 2)
    sizes = [len(model.variables[v].options) for v in scope]
    for amount in (1e9, -1e9):
        given = tuple(np.full(n, amount) for n in sizes)
        rejects(certificate, steps=[Shift(scope, given)])
    rejects(certificate, steps=[Shift(scope, tuple(np.full(n, np.inf) for n in sizes)), *certificate.steps])
    rejects(certificate, steps=[Shift((0, len(model.variables) - 1), given), *certificate.steps])


def test_a_certificate_of_another_program_is_rejected(plan):
    slower = sw.auto(mlp, MESH, ShapeDtype((2048, 1024), "float32"), weights(), fixed={"x": P("dp")}, memory=60e6)
    assert slower.bound > plan.bound
    certificate = slower.certificate
    rejects(certificate, program=plan.found.program, fixed=plan.found.fixed)


def test_a_certificate_with_places_of_other_outputs_or_meshes_is_rejected(plan):
    certificate = plan.certificate
    other = sw.Sharding(sw.Mesh(dp=2), P())
    (node, *_) = certificate.fixed or certificate.program.inputs
    for changes, message in (
        ({"outputs": ()}, r"has 0 places of outputs, and the program has \d"),
        ({"outputs": (other, *certificate.outputs[1:])}, r"has a place on Mesh\(dp=2\), and the program is on Mesh\("),
        ({"fixed": {**certificate.fixed, node: other}}, r"has a place on Mesh\(dp=2\)"),
    ):
        with pytest.raises(PlanError, match=message):
            replace(certificate, **changes).check()


def test_more_bytes_than_64_bits_count_have_a_certificate():
    x, w = ShapeDtype((10**12, 10**9), "float32"), ShapeDtype((10**9, 8), "float32")
    assert sw.auto(lambda x, w: x @ w, sw.Mesh(a=2, b=2), x, w, memory=float("inf")).certificate.check()


def test_every_certificate_of_a_wide_program_holds(monkeypatch):
    """Where tables would be too large, dead ends and the linear programme are part of the proof."""
    from shardwright.planner import remaining, solving

    for most in (200.0, 20.0):
        monkeypatch.setattr(remaining.finished, "__defaults__", (most,))
        monkeypatch.setattr(solving.Elimination.run, "__defaults__", (most, float("inf")))
        wide = sw.auto(crossed, sw.Mesh(a=2, b=2), *[ShapeDtype((64, 64), "float32")] * 3, fixed={"x": P("a")})
        kinds = {type(step).__name__ for step in wide.certificate.steps}
        assert "Dead" in kinds
        assert wide.certificate.check()
        monkeypatch.undo()
        narrow = sw.auto(crossed, sw.Mesh(a=2, b=2), *[ShapeDtype((64, 64), "float32")] * 3, fixed={"x": P("a")})
        assert {type(step) for step in narrow.certificate.steps} == {Gone}
        assert wide.time == pytest.approx(narrow.time, rel=1e-9)
        assert wide.bound <= narrow.bound * (1 + 1e-9)


def crossed_plan(**options):
    return sw.auto(crossed, sw.Mesh(a=2, b=2), *[ShapeDtype((64, 64), "float32")] * 3, fixed={"x": P("a")}, **options)


def wide_plan(monkeypatch, **options):
    """A plan whose proof has dead ends, since tables may hardly have entries."""
    from shardwright.planner import remaining, solving

    monkeypatch.setattr(remaining.finished, "__defaults__", (200.0,))
    monkeypatch.setattr(solving.Elimination.run, "__defaults__", (200.0, float("inf")))
    return crossed_plan(**options)


def test_a_certificate_with_other_dead_ends_is_rejected(monkeypatch):
    certificate = wide_plan(monkeypatch).certificate
    steps = list(certificate.steps)
    dead = [at for at, step in enumerate(steps) if isinstance(step, Dead)]
    assert len(dead) > 20
    for at in dead[::5]:
        step = steps[at]
        for other in (step._replace(option=step.better, better=step.option), step._replace(better=step.option)):
            rejects(certificate, steps=[*steps[:at], other, *steps[at + 1 :]])
        for changes in ({"variable": -1}, {"variable": 10**6}, {"better": -1}, {"option": 10**6}):
            rejects(certificate, steps=[*steps[:at], step._replace(**changes), *steps[at + 1 :]])
        rejects(certificate, steps=[*steps[: at + 1], step, *steps[at + 1 :]])


@pytest.mark.parametrize("memory", [74e3, 75e3, 80e3, 90e3, 110e3])
def test_wide_programs_are_planned_within_memory(monkeypatch, memory):
    for plan in (crossed_plan(memory=memory), wide_plan(monkeypatch, memory=memory)):
        assert plan.found.solution.held <= plan.budget <= memory
        assert plan.memory <= memory
        assert plan.bound <= plan.time * (1 + 1e-12)
        assert plan.certificate.check()


@pytest.mark.parametrize("memory", [62e3, 51e3])
def test_wide_programs_within_memory_take_hardly_longer_than_narrow_ones(monkeypatch, memory):
    """A few linear programmes are solved where what was found is far above the bound."""
    narrow = crossed_plan(memory=memory)
    wide = wide_plan(monkeypatch, memory=memory)
    assert wide.memory <= memory
    assert wide.time < 1.05 * narrow.time


def test_what_the_least_found_holds_is_more_than_the_limit_and_can_be_had(monkeypatch):
    for make in (crossed_plan, partial(wide_plan, monkeypatch)):
        with pytest.raises(PlanError, match=r"No plan fits 1 kB a device: (the least|every plan)") as caught:
            make(memory=1e3)
        least = caught.value.least
        assert least > 1e3
        plan = make(memory=least)
        assert plan.memory <= least
        assert plan.bound <= plan.time == pytest.approx(plan.explain().time, rel=1e-9)
        assert plan.certificate.check()
        with pytest.raises(PlanError, match="No plan fits") as caught:
            make(memory=least - 1)
        assert caught.value.least == least


def test_prices_of_memory_leave_no_tables_behind(monkeypatch):
    solver = Solver(wide_plan(monkeypatch).found.model)
    solver._solved(1e-9, 1e-9)
    assert solver.wide
    count = len(solver.tables.values)
    first = solver._solved(1e-9, 1e-9)
    for price in (1e-12, 1e-8, 3e-9):
        solver._solved(price, price)
    again = solver._solved(1e-9, 1e-9)
    assert len(solver.tables.values) == count
    assert (first.choice, first.bound) == (again.choice, again.bound)


def crossed(x, v, w):
    a, b = x @ v, x @ w
    c, d = nn.softmax(a, axis=0) @ b, snp.sort(b, axis=1) @ a
    return a + d, b * c, c @ d


@pytest.mark.parametrize("least", [certificate._least, tables.least_of])
@pytest.mark.parametrize("seed", range(30))
def test_the_least_of_a_sum_is_found_without_adding_up_all_of_it(least, seed):
    rng = np.random.default_rng(seed)
    sizes = [int(rng.choice([1, 2, 9, 40])), *(int(n) for n in rng.choice([1, 3, 8], 2))]
    views = []
    for axes in ((0,), (0, 1), (0, 2), (0, 1, 2)):
        if axes == (0,) or rng.random() < 0.6:
            shape = [n if axis in axes else 1 for axis, n in enumerate(sizes)]
            view = rng.integers(0, 2 ** int(rng.choice([2, 40])), shape).astype(float)
            views.append(np.where(rng.random(shape) < 0.1, np.inf, view))
    dear = rng.random(sizes[0]) < 0.5  # most of these are never least
    views.append(np.where(dear, float(2 ** rng.integers(1, 41)), 0.0).reshape(-1, 1, 1))
    expected = sum(views, start=np.zeros(sizes)).min(axis=0)
    np.testing.assert_array_equal(np.broadcast_to(least(views, sizes), expected.shape), expected)


def test_options_that_others_beat_are_not_added_up():
    first = np.array([[0.0, 9.0], [9.0, 0.0], [9.0, 9.0], [5.0, 9.0]]).reshape(4, 2, 1)
    second = np.array([[3.0, 3.0], [3.0, 3.0], [2.0, 3.0], [1.0, np.inf]]).reshape(4, 1, 2)
    # Than the first the third costs 0 more at least by one table and 1 less by the other, and the fourth 0 and 2 less.
    for some_options in (certificate._some_options, tables.some_options):
        assert some_options([first, second], 4) == [0, 1, 2, 3]
        assert some_options([first + np.array([0, 0, 2.0, 3]).reshape(4, 1, 1), second], 4) == [0, 1]


@pytest.mark.parametrize("rows", [4, 100, 1004])
@pytest.mark.parametrize("fn", [nn.softmax, lambda x: snp.mean(x, axis=1, keepdims=True)])
def test_certificates_hold_where_sums_of_columns_run_over_links_of_several_speeds(rows, fn):
    mesh = sw.Mesh(
        p=2, q=2, t=2, links={name: sw.Link("line", pace) for name, pace in zip("pqt", (1e7, 1e5, 1e6), strict=True)}
    )
    for fixed in ({}, {"x": P("p", ("q", "t"))}):
        assert sw.auto(fn, mesh, ShapeDtype((rows, 8), "float32"), fixed=fixed).certificate.check()


@pytest.mark.parametrize("changed", [{"variable": None}, {"others": 5}, {"table": "x"}, {"variable": 1.5}])
def test_steps_that_are_malformed_are_rejected(plan, changed):
    certificate = plan.certificate
    for at in (0, len(certificate.steps) - 1):
        steps = [step._replace(**changed) if n == at else step for n, step in enumerate(certificate.steps)]
        with pytest.raises(PlanError, match="The certificate"):
            replace(certificate, steps=steps).check()


@pytest.mark.parametrize("value", [None, 7, "x"])
def test_fields_that_are_malformed_are_rejected(plan, value):
    for field in ("program", "fixed", "outputs", "hubs", "limit", "steps", "tables", "shifts", "unit", "price"):
        rejects(plan.certificate, **{field: value})
    rejects(plan.certificate, bound=[value])
