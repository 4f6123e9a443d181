"""The prices of a certificate's check: code of its own, equal to those of the steps that run, so that wrong prices of the
search are found out."""

import ast
from pathlib import Path

import numpy as np
import pytest

import shardwright as sw
import shardwright.numpy as snp
from planned_programs import RandomProgram
from shardwright import P, ShapeDtype
from shardwright.errors import PlanError
from shardwright.hardware import Fabric, Link, fabric
from shardwright.plan import Fused, move_matrix, move_steps, places
from shardwright.planner import model, repricing
from shardwright.planner.repriced_links import Links
from shardwright.planner.repriced_moves import Moves
from shardwright.planner.repriced_programs import seconds_of_program
from shardwright.planner.repriced_rows import Finder
from shardwright.planner.repriced_steps import seconds_of_steps
from shardwright.planner.repricing import placements
from shardwright.sharding import Sharding

KINDS = ("ring", "line", "switch", "torus", "full")
MACHINES = ("h100", "a100", "gb200-nvl72", "mi300x", "tpu-v4", "tpu-v5e", "trn2", "generic")
F4 = np.dtype("f4")


def random_link(rng):
    kind = str(rng.choice(KINDS))
    figures = [float(rng.choice(some)) for some in ([50e9, 100e9, 300e9], [1e-6, 5e-6], [1e-6, 3e-6])]
    return Link(kind, *figures, reduces_in_network=kind == "switch" and bool(rng.random() < 0.5))


def random_mesh(rng, most=3):
    count = int(rng.integers(1, most + 1))
    names, sizes = ("a", "b", "c", "d")[:count], tuple(int(n) for n in rng.choice([1, 2, 2, 3, 4, 8], count))
    if rng.random() < 0.4:
        return sw.Mesh(sizes, names, links={name: random_link(rng) for name in names})
    return sw.Mesh(sizes, names, hardware=str(rng.choice(MACHINES[:4])))


def random_sharding(rng, mesh, shape, partial):
    dims, summed = [()] * len(shape), ()
    for axis in rng.permutation(mesh.axis_names).tolist():
        at = int(rng.integers(0, len(shape) + 2))
        if at < len(shape):
            dims[at] += (axis,)
        elif at == len(shape) and partial:
            summed += (axis,)
    return Sharding(mesh, P(*dims), partial=summed).for_shape(shape)


@pytest.mark.parametrize("seed", range(20))
def test_a_collective_takes_what_the_fabric_says(seed):
    rng = np.random.default_rng(seed)
    for _ in range(40):
        links = [random_link(rng) for _ in range(3)]
        pieces = [(int(rng.choice([1, 2, 3, 5, 8, 16])), links[rng.integers(3)]) for _ in range(rng.integers(1, 5))]
        own, other = Links(pieces), Fabric(pieces)
        for received in (0, 1, 1e4, 1e6, 1e9):
            for collective in fabric.COLLECTIVES:
                assert own.seconds(collective, received) == pytest.approx(
                    other.seconds(collective, received), rel=1e-12
                )
            for distance in (None, 1, 2, 3) if other.levels else ():
                assert own.near(received, distance) == pytest.approx(other.exchanged(received, distance), rel=1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_a_move_between_equal_blocks_takes_what_its_steps_take(seed):
    """Over two axes, or three: every chain that runs is found, and none that does not."""
    rng = np.random.default_rng(seed)
    for _ in range(3):
        mesh, rank = random_mesh(rng), int(rng.integers(1, 4))
        shape = tuple(mesh.size * int(rng.choice([1, 4, 64])) for _ in range(rank))
        before = tuple(random_sharding(rng, mesh, shape, True) for _ in range(6))
        after = tuple(random_sharding(rng, mesh, shape, False) for _ in range(6))
        before, after = ((*dict.fromkeys(some),) for some in (before, after))
        own = Moves(mesh).seconds(before, after, shape, F4)
        steps = [[sum(step.time for step in move_steps(a, b, shape, F4)) for b in after] for a in before]
        np.testing.assert_allclose(own, steps, rtol=1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_a_move_over_unequal_blocks_counts_with_no_more_than_its_steps_take(seed):
    rng = np.random.default_rng(1000 + seed)
    for _ in range(3):
        mesh, rank = random_mesh(rng), int(rng.integers(1, 4))
        shape = tuple(int(n) for n in rng.choice([1, 2, 7, 8, 12, 30, 64, 100, 4097], rank))
        before = tuple(random_sharding(rng, mesh, shape, True) for _ in range(6))
        after = tuple(random_sharding(rng, mesh, shape, False) for _ in range(6))
        steps = np.array([[sum(step.time for step in move_steps(a, b, shape, F4)) for b in after] for a in before])
        least, moves = Moves(mesh).seconds(before, after, shape, F4), Moves(mesh)
        assert (least <= steps * (1 + 1e-9)).all()
        assert (least >= move_matrix(before, after, shape, F4) * (1 - 1e-9)).all()  # or certificates would be rejected
        exact = {(a, b, shape, F4) for a in before for b in after}
        np.testing.assert_allclose(moves.seconds(before, after, shape, F4, exact), steps, rtol=1e-9)


@pytest.mark.parametrize(
    "mesh",
    [
        sw.Mesh(a=64, b=8, hardware="h100"),
        sw.Mesh(a=6, b=4, hardware="tpu-v4"),
        sw.Mesh(a=4, b=8, hardware="gb200-nvl72"),
        sw.Mesh(a=2, b=2, c=2, hardware="h100"),
        sw.Mesh(a=2, b=4, c=2, links={"a": Link("ring"), "b": Link("full"), "c": Link("switch", 300e9)}),
    ],
    ids=str,
)
def test_all_moves_of_a_mesh_take_what_the_search_says(mesh):
    for shape in ((mesh.size, 2 * mesh.size), (8 * mesh.size, 64 * mesh.size), (8, 4096), (12, 4 * mesh.size)):
        every = places(mesh, shape, any_order=True)
        summed = [s.replace(partial=("b",)).for_shape(shape) for s in every if "b" not in s.axes]
        seconds = Moves(mesh).seconds((*every, *summed), every, shape, F4)
        np.testing.assert_allclose(seconds, move_matrix((*every, *summed), every, shape, F4), rtol=1e-12)


def test_a_partial_value_moves_over_equal_blocks_if_its_exchange_would_not():
    """A chain over equal blocks may be there where an exchange, which sums first, leads over unequal ones."""
    mesh, shape = sw.Mesh(a=4, b=4, c=4, hardware="h100"), (8, 512, 512)
    source = Sharding(mesh, P("c", None, "a"), partial=("b",)).for_shape(shape)
    target = Sharding(mesh, P("b")).for_shape(shape)
    steps = sum(step.time for step in move_steps(source, target, shape, F4))
    for price in (move_matrix, Moves(mesh).seconds):
        assert price((source,), (target,), shape, F4)[0, 0] <= steps * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_tensors_that_are_asked_for_together_count_as_alone(seed):
    rng = np.random.default_rng(3000 + seed)
    mesh, asked = random_mesh(rng, most=4), []
    for _ in range(6):
        shape = tuple(int(n) for n in rng.choice([1, 8, 12, 30, 64, 1024], rng.integers(0, 4)))
        before, after = (tuple(random_sharding(rng, mesh, shape, some) for _ in range(6)) for some in (True, False))
        asked += [(before, after, shape, F4), (before, after, (*shape, 1)[: len(shape)], np.dtype("f2"))]
    together = Moves(mesh).several(asked)
    for key, seconds in zip(asked, together, strict=True):
        np.testing.assert_allclose(seconds, Moves(mesh).seconds(*key), rtol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_longer_chains_that_are_not_looked_for_take_no_less(monkeypatch, seed):
    rng = np.random.default_rng(4000 + seed)
    mesh, rank = random_mesh(rng, most=4), int(rng.integers(1, 5))
    for size in (1, 64, 4096):
        shape = (mesh.size * size,) * rank
        before, after = (tuple(random_sharding(rng, mesh, shape, False) for _ in range(8)) for _ in range(2))
        seconds = Moves(mesh).seconds(before, after, shape, F4)
        with monkeypatch.context() as patch:
            patch.setattr(Finder, "least_of_long", lambda _, moves: (np.full(len(moves.source), -np.inf),) * 2)
            np.testing.assert_allclose(Moves(mesh).seconds(before, after, shape, F4), seconds, rtol=1e-12)


def test_prices_do_not_depend_on_what_was_asked_before():
    """Longer chains count for equal blocks even if they were looked for because of unequal ones."""
    mesh = sw.Mesh(a=8, b=8, hardware="h100", devices=range(100, 164))
    for shape in ((0, 100, 60), (1024, 1024, 1024)):
        source, target = (
            Sharding(mesh, P("a", "b", None)).for_shape(shape),
            Sharding(mesh, P(None, "a", "b")).for_shape(shape),
        )
        steps = sum(step.time for step in move_steps(source, target, shape, F4))
        assert move_matrix((source,), (target,), shape, F4)[0, 0] == pytest.approx(steps, rel=1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_placements_are_those_of_the_model(seed):
    rng = np.random.default_rng(seed)
    mesh, shape = random_mesh(rng), tuple(int(n) for n in rng.choice([0, 1, 2, 3, 7, 8, 64], rng.integers(0, 4)))
    for any_order in (False, True):
        assert placements(mesh, shape, any_order) == places(mesh, shape, any_order)


@pytest.mark.parametrize("seed", range(30))
def test_steps_are_counted_device_by_device(seed):
    rng = np.random.default_rng(2000 + seed)
    for _ in range(10):
        mesh = random_mesh(rng)
        shape = tuple(int(n) for n in rng.choice([1, 2, 5, 8, 31, 64], rng.integers(1, 4)))
        source, target = random_sharding(rng, mesh, shape, True), random_sharding(rng, mesh, shape, False)
        for dtype in (F4, np.dtype("i8")):
            steps = move_steps(source, target, shape, dtype)
            assert seconds_of_steps(steps) == pytest.approx(sum(step.time for step in steps), rel=1e-12)


@pytest.mark.filterwarnings("ignore::shardwright.ImplicitGatherWarning")
@pytest.mark.parametrize("seed", range(60))
def test_a_program_takes_what_it_explains(seed):
    """Loops, choices and functions on shards included, as propagation or a plan lays them out."""
    program = RandomProgram(seed)
    fixed = program.some_places(0.5)
    plan = sw.auto(program.function(), program.mesh, *program.abstract(), fixed=fixed)
    assert seconds_of_program(plan.found.lowered) == pytest.approx(plan.explain().time, rel=1e-9)
    given = [P() if name not in fixed else fixed[name] for name in ("x", "v", "w", "y", "s", "ids")]
    step = sw.sjit(program.function(), mesh=program.mesh, in_shardings=tuple(given)).lower(*program.abstract())
    assert seconds_of_program(step.program) == pytest.approx(step.explain().time, rel=1e-9)


def test_reductions_in_step_take_what_their_messages_take():
    mesh = sw.Mesh(a=3, b=2, hardware="h100")

    def several(x, y):
        return snp.sum(x, axis=0), snp.sum(y, axis=0)

    x, y = (ShapeDtype(shape, "float32", sw.Sharding(mesh, P("a"))) for shape in ((7, 5), (9, 2)))
    lowered = sw.sjit(several, mesh=mesh).lower(x, y)
    assert any(isinstance(node.what, Fused) for node in lowered.program.nodes)
    assert seconds_of_program(lowered.program) == pytest.approx(lowered.explain().time, rel=1e-12)


# -- what the check shares with the search ----------------------------------------------------------------------------------


def mixed(x, w):
    y = snp.cumulative_sum(snp.roll(x, 3, axis=0), axis=0) @ w
    return snp.sort(y, axis=1), snp.flip(y, axis=0)


def planned(bandwidth):
    """A plan on links of its own, so that nothing is known of them before, within memory that has it move weights."""
    links = {"a": Link("switch", bandwidth), "b": Link("ring", 2 * bandwidth)}
    mesh = sw.Mesh(a=2, b=4, links=links, hardware="h100")
    x, w = ShapeDtype((512, 2048), "float32"), ShapeDtype((2048, 4096), "float32")
    return sw.auto(mixed, mesh, x, w, fixed={"x": P("a", "b"), "w": P("b", "a")})


def dearer(make):
    return lambda self: tuple((start * 1.1, pace * 1.1) for start, pace in make(self))


def test_a_plan_with_true_prices_is_certified():
    assert planned(40e9).certificate.check()


@pytest.mark.parametrize(("number", "collective"), [(1, "all_gather"), (2, "exchange"), (3, "reduce_scatter")])
def test_a_search_with_wrong_prices_of_a_collective_is_found_out(monkeypatch, number, collective):
    monkeypatch.setitem(fabric._MAKERS, collective, dearer(fabric._MAKERS[collective]))
    certificate = planned(41e9 + number).certificate
    monkeypatch.undo()
    with pytest.raises(PlanError, match="The certificate claims"):
        certificate.check()


def test_a_search_with_wrong_prices_of_moves_is_found_out(monkeypatch):
    monkeypatch.setattr(model, "move_matrix", lambda *args: 1.1 * move_matrix(*args))
    certificate = planned(45e9).certificate
    with pytest.raises(PlanError, match="The certificate claims"):
        certificate.check()


def test_a_search_with_wrong_prices_of_strategies_is_found_out(monkeypatch):
    options_of = model.options_of

    def wrong(*args):
        return tuple(option._replace(seconds=1.1 * option.seconds) for option in options_of(*args))

    monkeypatch.setattr(model, "options_of", wrong)
    certificate = planned(46e9).certificate
    with pytest.raises(PlanError, match="The certificate claims"):
        certificate.check()


def test_a_search_with_wrong_prices_of_loops_is_found_out(monkeypatch):
    controlled = model.controlled

    def wrong(*args):
        return tuple(option._replace(seconds=1.1 * option.seconds) for option in controlled(*args))

    def looped(x):
        return sw.scan(lambda carry, row: (carry + row, snp.sum(row)), snp.sum(x, axis=0), x)

    def planned():
        return sw.auto(looped, sw.Mesh(a=2, b=4, hardware="h100"), ShapeDtype((64, 512), "float32"))

    assert planned().certificate.check()
    monkeypatch.setattr(model, "controlled", wrong)
    certificate = planned().certificate
    with pytest.raises(PlanError, match="The certificate claims"):
        certificate.check()


FACTS = {
    "shardwright.plan": {
        "Each",
        "Fetch",
        "FromLocal",
        "Fused",
        "Local",
        "LocalStep",
        "OperationPlan",
        "Option",
        "Reduce",
        "Spaced",
        "Step",
        "ToLocal",
        "longer_chains",  # the steps of long chains, not their prices
        "move_steps",  # the steps that run
        "options_of",  # the strategies, not their prices
        "problem_of",
    },
    "shardwright.hardware": {"Link"},
}
PRICES = {"fabric", "time", "seconds", "received", "sent", "price", "priced", "memory", "distance", "lower_bound"}


def test_the_check_imports_no_prices():
    """From the planner's own modules only those of the check; from others facts; and no step or strategy is asked for its
    time."""
    folder = Path(repricing.__file__).parent
    own = {"certificate", "repricing", *(path.stem for path in folder.glob("repriced_*.py"))}
    for name in own:
        tree = ast.parse((folder / f"{name}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in FACTS:
                assert {alias.name for alias in node.names} <= FACTS[node.module]
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("shardwright.planner."):
                assert str(node.module).split(".")[-1] in own
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in ("step", "what", "option", "plan", "strategy")
            ):
                assert node.attr not in PRICES or (name, node.attr) == (
                    "repriced_steps",
                    "received",
                )  # of the local view
