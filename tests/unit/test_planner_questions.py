"""`why_not` on random programs: no answer is below the bound of the plan, and each is what a search of its own finds."""

import pytest

import shardwright as sw
import shardwright.planner.easing as easing
from planned_programs import RandomProgram, places_of
from shardwright import P
from shardwright.errors import PlanError
from shardwright.planner import Other
from shardwright.planner.searching import Search

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.ImplicitGatherWarning")


def questions(plan, program, count):
    """Answers for all inputs that are open, each at some places, with the input and the place."""
    for name in plan.names:
        if not plan.is_fixed(name):
            specs = dict.fromkeys(places_of(program.mesh, plan.shapes[name], program.rng) for _ in range(count))
            for spec in specs:
                try:
                    yield plan._inputs[name], spec, plan.why_not(name, spec)
                except PlanError as error:
                    if "No plan fits" not in str(error):
                        raise


def from_scratch(plan, node, spec, hubs):
    """The time of the plan with one more input fixed, with given places for several readers of values."""
    search, there = plan._search, sw.Sharding(plan.mesh, spec).for_shape(node.type.shape)
    alone = Search(search.program, {**search.fixed, node: there}, search.outputs, search.limit)
    alone.hubs.update(hubs)
    return alone.best().time


@pytest.mark.parametrize("seed", range(12))
def test_no_place_of_an_input_is_better_than_the_plan(seed):
    program = RandomProgram(seed, control=False)
    plan = sw.auto(program.function(), program.mesh, *program.abstract(), fixed=program.some_places(0.2))
    for node, spec, other in questions(plan, program, 3):
        assert other.time >= plan.bound * (1 - 1e-9)
        assert other.time >= plan.time * (1 - 1e-9)
        assert other.slower >= 0
        assert other.time == pytest.approx(from_scratch(plan, node, spec, other.found.hubs), rel=1e-9)


@pytest.mark.parametrize(
    ("seed", "part", "changes"), [(9, 0.8, True), (13, 0.4, True), (14, 0.4, True), (5, 0.4, False)]
)
def test_within_memory_that_binds_a_plan_becomes_the_better_one(seed, part, changes, monkeypatch):
    program = RandomProgram(seed, control=False)
    fixed = program.some_places(0.2)

    def make(**options):
        return sw.auto(program.function(), program.mesh, *program.abstract(), fixed=fixed, **options)

    with pytest.raises(PlanError) as caught:
        make(memory=1)
    least = caught.value.least
    limit = least + part * max(make().memory - least, 0)
    eased = make(memory=limit)
    for name in ("WORK", "FEW"):  # of what finds most of what questions find
        monkeypatch.setattr(easing, name, 0)
    plan = make(memory=limit)
    first = plan.found
    assert eased.time <= first.time * (1 + 1e-9)
    for _, _, other in questions(plan, program, 4):
        assert other.time >= plan.bound * (1 - 1e-9)
        assert other.time >= plan.time * (1 - 1e-9)
        assert plan.found is first or plan.time < first.time
        assert plan.memory <= plan._search.limit
        assert plan.time == pytest.approx(plan.explain().time, rel=1e-9)
        assert plan.certificate.check()
    assert (plan.found is not first) == changes
    assert plan.places == {name: plan.found.placed(node) for name, node in plan._inputs.items()}


@pytest.mark.parametrize("seed", [20045, 20059, 20060, 20061])
def test_where_an_input_is_already_the_answer_is_the_plan(seed):
    """Within memory that binds, or with loops, a search of its own found slower plans, or ones that hold more."""
    program = RandomProgram(seed, control=seed % 2 == 0)
    fixed = program.some_places(0.3)

    def make(**options):
        return sw.auto(program.function(), program.mesh, *program.abstract(), fixed=fixed, **options)

    with pytest.raises(PlanError) as caught:
        make(memory=1)
    plan = make(memory=caught.value.least + 0.5 * max(make().memory - caught.value.least, 0))
    for _ in questions(plan, program, 3):  # after some of which the plan is another
        for name in plan.names:
            other = plan.why_not(name, plan.places[name])
            assert (other.time, other.slower, other.memory, other.steps) == (plan.time, 0.0, plan.memory, ())


def test_an_answer_that_is_quicker_says_so():
    """Only places that plans do not choose from can be: here the answer and the plan change roles."""
    x, w = sw.ShapeDtype((64, 64), "float32"), sw.ShapeDtype((64, 64), "float32")
    plan = sw.auto(lambda x, w: x @ w, sw.Mesh(a=4, hardware="h100"), x, w, fixed={"w": P(None, "a")})
    slow = plan.why_not("x", P("a")).found
    assert slow.time > plan.time
    other = Other("x", P(), plan.found, slow)
    assert other.slower == plan.time - slow.time
    assert " quicker, " in str(other)
    assert Other("x", P("a"), slow, plan.found).slower == -other.slower
