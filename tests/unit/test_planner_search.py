"""The planner's search against brute force and against an integer programme, and its prices against those of steps."""

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

import shardwright as sw
from planned_programs import MESHES, PROGRAMS, planned
from shardwright import P
from shardwright.plan import is_exact, move_matrix, move_prices, move_seconds, move_steps, options_of, places
from shardwright.plan.alike import alike_axes
from shardwright.planner import remaining
from shardwright.planner.elimination import Elimination, cost
from shardwright.planner.remaining import finished
from shardwright.planner.tables import Tables
from shardwright.program.node import Apply, Input, Settle

UNIT = 2.0**-20


# -- random graphs ----------------------------------------------------------------------------------------------------


def random_table(rng, shape, impossible=0.12):
    table = rng.integers(0, 8, shape).astype(float)
    table[rng.random(shape) < impossible] = np.inf
    return table


def random_graph(seed):
    """Tables, sizes and factors: some variables without any, some pairs with two factors, one in each order."""
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(1, 5, rng.integers(1, 8))]
    tables, factors = Tables(UNIT), []

    def add(*scope):
        factors.append((scope, tables.seconds(random_table(rng, tuple(sizes[v] for v in scope)))))

    for v in range(len(sizes)):
        if rng.random() < 0.8:
            add(v)
    dense = rng.choice([0.25, 0.8])
    for u, v in itertools.combinations(range(len(sizes)), 2):
        if rng.random() < dense:
            add(*((u, v) if rng.random() < 0.5 else (v, u)))
            if rng.random() < 0.1:
                add(v, u)
    return tables, sizes, factors


def frustrated_graph(seed, count=6, size=3):
    """Neighbours want to differ, and there are fewer options than neighbours: the linear programme has fractions."""
    rng = np.random.default_rng(seed)
    tables, factors = Tables(UNIT), []
    for scope in itertools.combinations(range(count), 2):
        table = np.eye(size) * rng.integers(2, 6) + rng.integers(0, 2, (size, size))
        factors.append((scope, tables.seconds(table)))
    return tables, [size] * count, factors


def joint(tables, sizes, factors):
    """The cost of every choice, one entry each."""
    total = np.zeros(sizes)
    for scope, table in factors:
        view = [1] * len(sizes)
        for v in scope:
            view[v] = sizes[v]
        total += tables.exact[table].transpose(np.argsort(scope)).reshape(view)
    return total


@pytest.fixture
def relaxations(monkeypatch):
    """How many linear programmes were solved."""
    solved, original = [0], remaining._Branching._relaxed

    def counted(self, fixed):
        solved[0] += 1
        return original(self, fixed)

    monkeypatch.setattr(remaining._Branching, "_relaxed", counted)
    return solved


def check(graph, most):
    tables, sizes, factors = graph
    every = joint(tables, sizes, factors)
    result = finished(tables, list(sizes), factors, most)
    if math.isinf(every.min()):
        assert math.isinf(result.least)
        return
    assert every[tuple(result.choice)] == every.min()
    assert cost(tables, factors, result.choice) == every.min()
    assert result.least * UNIT == pytest.approx(every.min(), rel=1e-12, abs=1e-12)
    assert result.bound * UNIT <= every.min() + 1e-12


@pytest.mark.parametrize("most", [1e7, 30, 4, 1])
def test_the_best_choice_of_random_graphs_is_that_of_brute_force(most, relaxations):
    for seed in range(100):
        check(random_graph(seed), most)
    assert (relaxations[0] > 20) == (most < 1e7)  # so the linear programme was exercised


def test_branching_finds_the_best_choice_where_the_linear_programme_has_fractions(relaxations):
    branched = 0
    for seed in range(8):
        relaxations[0] = 0
        check(frustrated_graph(seed), 4)
        branched += relaxations[0] > 1
        assert relaxations[0] <= 60  # of 729 choices: a branch is bounded by what it fixes
    assert branched == 8


def test_dead_ends_leave_a_best_choice():
    removed = 0
    for seed in range(150):
        tables, sizes, factors = random_graph(seed)
        every = joint(tables, sizes, factors)
        run = Elimination(tables, sizes, factors)
        run.without_dead_ends()
        removed += sum(sizes) - sum(map(len, run.options))
        left = every[np.ix_(*run.options)]
        assert all(run.options)
        assert left.min() == every.min()
    assert removed > 100


def test_of_equal_choices_the_first_options_are_taken():
    tables = Tables(UNIT)
    same = tables.seconds(np.zeros((3, 3)))
    for most in (1e7, 1):
        result = finished(tables, [3, 3, 3], [((0, 1), same), ((2, 1), same), ((2, 0), same)], most)
        assert result.choice == [0, 0, 0]


def test_equal_parts_of_a_graph_are_eliminated_once():
    def made(parts):
        tables, rng = Tables(UNIT), np.random.default_rng(0)
        pairs = [tables.seconds(random_table(rng, (4, 4), 0)) for _ in range(4)]
        factors = [((4 * n + at, 4 * n + (at + 1) % 4), pair) for n in range(parts) for at, pair in enumerate(pairs)]
        run = Elimination(tables, [4] * 4 * parts, factors)
        run.run()
        assert not run.left
        choice = run.choice()
        assert choice == choice[:4] * parts
        return len(tables.values), run.least()

    tables, least = made(1)
    assert made(100) == (tables, 100 * least)


def test_choices_are_ranked_by_what_they_cost():
    looked = 0
    for seed in range(60):
        tables, sizes, factors = random_graph(seed)
        every = joint(tables, sizes, factors)
        run = Elimination(tables, sizes, factors)
        run.run()
        if math.isinf(run.least()):
            assert not list(run.ranked())
            continue
        ranked = list(itertools.islice(run.ranked(), 500))
        looked += len(ranked)
        assert len({tuple(choice) for _, choice in ranked}) == len(ranked)
        costs = [every[tuple(choice)] for _, choice in ranked]
        assert costs == [(run.least() + extra) * UNIT for extra, _ in ranked]
        assert costs == sorted(every.ravel())[: len(ranked)]
        assert len(ranked) == min(500, np.isfinite(every).sum())
        few = [extra for extra, _ in run.ranked(2.0)]
        assert few == [extra for extra, _ in ranked if extra <= 2][: len(few)]
        assert len(few) == (every <= (run.least() + 2) * UNIT).sum()
    assert looked > 1000


def test_an_order_that_is_known_gives_the_same_elimination():
    for seed in range(40):
        tables, sizes, factors = random_graph(seed)
        run = Elimination(tables, sizes, factors)
        run.run()
        again = Elimination(tables, sizes, factors, [step.variable for step in run.gone])
        again.run()
        assert again.steps == run.steps
        assert (again.choice(), again.least(), again.left) == (run.choice(), run.least(), set())


# -- whole programs ---------------------------------------------------------------------------------------------------


def move_time(source, target, shape, dtype):
    """Of the steps that a move is made of; that a value becomes partial takes none."""
    kept = [axis for axis in target.partial if axis in source.partial and source.reduction == target.reduction]
    return math.fsum(step.time for step in move_steps(source, target.replace(partial=tuple(kept)), shape, dtype))


class Evaluator:
    """Every choice of a program of inputs and operations: a value read more than once may be moved once for all.

    Written for this test from docs/planning.md; it uses options, places and steps, nothing of the planner."""

    def __init__(self, program):
        self.mesh, self.counts, self.terms = program.mesh, [], []
        self.values = {}  # of a node: its variable, and where it is under each option
        readers = {node: program.outputs.count(node) for node in program.nodes}
        for node in program.nodes:
            for x in node.nodes:
                readers[x] += 1
        for node in program.nodes:
            shape, dtype = node.type[:2]
            if isinstance(node.what, Input):
                self.values[node] = self.variable(places(self.mesh, shape))
            elif isinstance(node.what, Settle):
                self.values[node] = self.moved(self.values[node.nodes[0]], places(self.mesh, shape), shape, dtype)
            else:
                assert isinstance(node.what, Apply)
                self.operation(node)
            if readers[node] > 1:
                before = self.values[node]
                self.values[node] = self.moved(
                    before, dict.fromkeys((*before[1], *places(self.mesh, shape))), shape, dtype
                )
        for node in program.outputs:
            self.moved(self.values[node], places(self.mesh, node.type.shape), *node.type[:2])

    def variable(self, where):
        self.counts.append(len(where))
        return len(self.counts) - 1, list(where)

    def moved(self, value, where, shape, dtype, variable=None):
        (before, sources), (after, targets) = value, (variable, where) if variable is not None else self.variable(where)
        table = [[move_time(a, b, shape, dtype) for b in targets] for a in sources]
        self.terms.append(((before, after), np.array(table)))
        return after, targets

    def operation(self, node):
        kinds = [x.type[:2] if hasattr(x, "what") else x for x in node.inputs]
        options = options_of(node.what.name, kinds, node.what.attrs, self.mesh)
        variable, _ = self.variable(options)
        self.terms.append(((variable,), np.array([option.seconds for option in options])))
        for at, x in enumerate(node.nodes):
            self.moved(self.values[x], [o.operands[at] for o in options], *x.type[:2], variable=variable)
        self.values[node] = variable, [o.results[0] for o in options]

    def least(self):
        """By a sum over all choices at once; the last variables, which only one term each has, are minimised first."""
        terms, counts = list(self.terms), list(self.counts)
        leaves = [v for v in range(len(counts)) if sum(v in scope for scope, _ in terms) == 1]
        folded = []
        for scope, table in terms:
            out = [at for at, v in enumerate(scope) if v in leaves]
            kept = tuple(v for v in scope if v not in leaves)
            folded.append((kept, table.min(axis=tuple(out)) if out else table))
        inner = [v for v in range(len(counts)) if v not in leaves]
        assert math.prod(counts[v] for v in inner) < 2e7
        total = np.zeros([counts[v] for v in inner])
        for scope, table in folded:
            view = [1] * len(inner)
            for v in scope:
                view[inner.index(v)] = counts[v]
            total += np.asarray(table).transpose(np.argsort([inner.index(v) for v in scope])).reshape(view)
        return float(total.min())


@pytest.mark.parametrize("mesh", ["x=2", "x=3"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_plan_takes_what_the_best_of_all_choices_takes(name, mesh):
    plan = planned(name, MESHES[mesh])
    assert plan.found.hubs == {}
    least = Evaluator(plan.found.program).least()
    assert plan.time == pytest.approx(least, rel=1e-9)
    assert plan.bound == pytest.approx(least, rel=1e-9)


def by_integer_programme(model, budget=math.inf):
    """The least cost of a model by SciPy's HiGHS: a binary for each option and for each pair of options of a factor."""
    starts = np.cumsum([0, *(len(v.options) for v in model.variables)])
    costs, allowed, rows, right = [0.0] * starts[-1], [1.0] * starts[-1], [], []
    for v in range(len(model.variables)):
        rows.append(dict.fromkeys(range(starts[v], starts[v + 1]), 1.0))
        right.append(1.0)
    for scope, number in model.factors:
        table = model.tables.exact[number]
        if len(scope) == 1:
            for i, value in enumerate(table):
                costs[starts[scope[0]] + i] += value
            continue
        first = len(costs)
        index = first + np.arange(table.size).reshape(table.shape)
        costs += list(table.ravel())
        allowed += [1.0] * table.size
        for axis, v in enumerate(scope):
            for i in range(table.shape[axis]):
                rows.append({**dict.fromkeys(index.take(i, axis), 1.0), starts[v] + i: -1.0})
                right.append(0.0)
    matrix = lil_matrix((len(rows), len(costs)))
    for at, row in enumerate(rows):
        for column, weight in row.items():
            matrix[at, column] = weight
    whole = np.zeros(len(costs))
    whole[: starts[-1]] = 1
    limits = [LinearConstraint(matrix.tocsr(), right, right)]
    if math.isfinite(budget):
        held = np.zeros(len(costs))
        for v, some in model.held.items():
            held[starts[v] : starts[v + 1]] = some
        limits.append(LinearConstraint(held[None] / budget, -np.inf, 1.0))
    scale = max(costs)
    solved = milp(
        np.array(costs) / scale, constraints=limits, integrality=whole, bounds=Bounds(0, np.array(allowed)),
        options={"mip_rel_gap": 0.0},
    )  # fmt: skip
    assert solved.status == 0, solved.message
    return solved.fun * scale


@pytest.mark.parametrize("name", ["two products", "uneven", "shared", "softmax", "several"])
def test_a_plan_takes_what_an_integer_programme_finds(name):
    plan = planned(name, MESHES["x=2, y=2"])
    least = by_integer_programme(plan.found.model)
    assert plan.time == pytest.approx(least, rel=1e-6)
    assert plan.gap < 1e-9


@pytest.mark.parametrize("part", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("name", ["two products", "uneven", "shared"])
def test_within_a_budget_the_integer_programme_is_between_bound_and_plan(name, part):
    free = planned(name, MESHES["x=2, y=2"])
    search = free._search
    whole = sum(max(some) for some in free.found.model.held.values())
    budget = max(part * whole, sum(min(some) for some in free.found.model.held.values()))
    found = search.solved({}, budget)
    least = by_integer_programme(found.model, budget)
    assert found.solution.held <= budget
    assert found.bound <= least * (1 + 1e-6)
    assert least <= found.time * (1 + 1e-6)


# -- prices -----------------------------------------------------------------------------------------------------------


def random_mesh(rng):
    names = list("abc")[: rng.integers(1, 4)]
    sizes = {name: int(rng.choice([1, 2, 3, 4])) for name in names}
    kind = rng.choice(["h100", "tpu-v5p", "links", "plain"])
    if kind == "links":
        links = {
            name: sw.Link(str(rng.choice(["line", "ring", "switch"])), float(rng.choice([1e8, 5e10, 4e11])), 1e-6)
            for name in names
        }
        return sw.Mesh(sizes, links=links)
    return sw.Mesh(sizes) if kind == "plain" else sw.Mesh(sizes, hardware=str(kind))


def random_sharding(rng, mesh, shape, partial):
    """Axes on dims in any order, so that some devices may have nothing; some axes partial."""
    dims, left = [[] for _ in shape], []
    for axis in rng.permutation(list(mesh.sizes)):
        place = int(rng.integers(-1, len(shape)))
        (dims[place] if place >= 0 else left).append(str(axis))
    unreduced = tuple(left[: rng.integers(0, len(left) + 1)]) if partial else ()
    reduction = str(rng.choice(["sum", "max", "average"]))
    return sw.Sharding(mesh, P(*dims), partial=unreduced, reduction=reduction).for_shape(shape)


@pytest.mark.parametrize("partial", [False, True])
def test_the_price_of_a_move_is_that_of_its_steps(partial):
    rng = np.random.default_rng(partial)
    moved = 0
    for _ in range(250):
        mesh = random_mesh(rng)
        shape = tuple(int(n) for n in rng.choice([1, 2, 3, 5, 6, 8, 12, 24, 4096], rng.integers(1, 4)))
        dtype = np.dtype(str(rng.choice(["float32", "float16", "int64"])))
        source = random_sharding(rng, mesh, shape, partial)
        target = random_sharding(rng, mesh, shape, False)
        expected = move_time(source, target, shape, dtype)
        assert move_seconds(source, target, shape, dtype) == pytest.approx(expected, rel=1e-9), (source, target, shape)
        moved += expected > 0
    assert moved > 100


@pytest.mark.parametrize("seed", range(6))
def test_a_matrix_has_the_price_of_every_move_or_less_where_it_says_so(seed):
    rng = np.random.default_rng(seed)
    mesh, dtype = random_mesh(rng), np.dtype("float32")
    shape = tuple(int(n) for n in rng.choice([4, 5, 6, 7, 12], 2))
    every = places(mesh, shape)
    before = [*every, *(random_sharding(rng, mesh, shape, True) for _ in range(4)), every[0]]
    expected = np.array([[move_time(a, b, shape, dtype) for b in every] for a in before])
    least = move_matrix(before, every, shape, dtype)
    known = np.array([[is_exact(a, b, shape, dtype) for b in every] for a in before])
    assert (least <= expected * (1 + 1e-9)).all()
    np.testing.assert_allclose(least[known], expected[known], rtol=1e-9)
    asked = {(a, b, shape, dtype) for a in before for b in every}
    np.testing.assert_allclose(move_matrix(before, every, shape, dtype, asked), expected, rtol=1e-9)
    assert (np.diag(least[: len(every)]) == 0).all()


@pytest.mark.parametrize("seed", range(8))
def test_sums_over_links_of_several_speeds_take_no_more_than_their_steps(seed):
    """An all_reduce in stages scatters any dim that fits; one of a single element, which nothing splits, is none."""
    rng, dtype, staged = np.random.default_rng(seed), np.dtype("float32"), 0
    for _ in range(12):
        sizes = {name: int(rng.choice([2, 2, 3, 4])) for name in "abc"}
        links = {
            name: sw.Link(str(rng.choice(["line", "ring", "switch"])), 10 ** rng.uniform(5, 9), 1e-6) for name in "abc"
        }
        mesh = sw.Mesh(sizes, links=links)
        shape = (int(rng.choice([4, 12, 100, 1004])), *[int(n) for n in rng.choice([1, 1, 2, 8], rng.integers(0, 3))])
        every = places(mesh, shape)
        source = every[rng.integers(len(every))]
        left = tuple(axis for axis in "abc" if axis not in source.axes)
        source = source.replace(partial=left)
        for target in every:
            steps = move_steps(source, target, shape, dtype)
            staged += sum(step.name in ("reduce_scatter", "all_reduce") for step in steps) > 1
            least = move_matrix((source,), (target,), shape, dtype)[0, 0]
            assert least <= sum(step.time for step in steps) * (1 + 1e-9), (mesh, shape, source, target)
    assert staged > 10


@pytest.mark.parametrize("shape", [(64, 128, 512), (12, 40, 7)])
@pytest.mark.parametrize(("sizes", "hardware"), [((2, 2, 2), "h100"), ((8, 8, 8), "h100"), ((4, 4, 4), "tpu-v4")])
def test_alike_axes_share_patterns_and_have_the_prices_of_their_steps(sizes, hardware, shape):
    rng, dtype = np.random.default_rng(sizes[0]), np.dtype("float32")
    mesh = sw.Mesh(sizes, ("a", "b", "c"), hardware=hardware)
    kind = next(kind for kind in alike_axes(mesh) if len(kind) > 1)
    names = {"a": "a", "b": "b", "c": "c"} | dict(zip(kind, (*kind[1:], kind[0]), strict=True))
    before, after = ([random_sharding(rng, mesh, shape, partial) for _ in range(12)] for partial in (True, False))
    one = move_matrix(before, after, shape, dtype)
    known = len(move_prices._prices(mesh).ways)
    assert known > 40
    others = [
        [
            s.replace(
                spec=P(*[tuple(names[axis] for axis in axes) for axes in s.dims]),
                partial=tuple(names[axis] for axis in s.partial),
            ).for_shape(shape)
            for s in some
        ]
        for some in (before, after)
    ]
    np.testing.assert_allclose(move_matrix(*others, shape, dtype), one, rtol=1e-12)
    assert len(move_prices._prices(mesh).ways) == known
    for a, b in itertools.product(*others):
        assert move_seconds(a, b, shape, dtype) == pytest.approx(move_time(a, b, shape, dtype), rel=1e-9), (a, b)


ORDERS = {
    "gathers": ({"a": 8, "b": 8, "c": 4}, "h100", P(None, "a", "b"), (), P()),
    "all_to_alls": ({"a": 8, "b": 2, "c": 4}, None, P("b", "c", "a"), (), P(None, "a", "b")),
    "scatters": ({"a": 2, "b": 2, "c": 4}, None, P(None, "b"), ("a", "c"), P("a", None, "c")),
    "permutes": ({"a": 2, "b": 4, "c": 2}, "h100", P("a", "b", "c"), (), P("c", "b", "a")),
    "two dims": ({"a": 4, "b": 2, "c": 4}, "h100", P(("b", "a"), "c"), (), P(None, "a")),
}


@pytest.mark.parametrize("case", ORDERS)
@pytest.mark.parametrize("itemsize", ["int8", "float32"])
def test_the_price_of_a_move_does_not_depend_on_the_order_of_dims(case, itemsize):
    sizes, hardware, before, partial, after = ORDERS[case]
    mesh = sw.Mesh(sizes, hardware=hardware) if hardware else sw.Mesh(sizes)
    for shape in ((1024,) * 3, (128, 128, 128, 128)):
        ends = sw.Sharding(mesh, before, partial=partial).for_shape(shape), sw.Sharding(mesh, after).for_shape(shape)
        times = []
        for order in itertools.permutations(range(len(shape))):
            moved = [s.replace(spec=P(*[s.dims[dim] for dim in order])).for_shape(shape) for s in ends]
            times.append(move_time(*moved, shape, np.dtype(itemsize)))
        assert max(times) > 0
        assert times == pytest.approx([times[0]] * len(times), rel=1e-9)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_seconds_of_options_are_those_that_explain_shows(name, mesh):
    """With every input fixed where a strategy wants it nothing moves, and what is left is the price of the strategy."""
    plan = planned(name, MESHES[mesh])
    explanation = plan.explain()
    assert plan.time == pytest.approx(explanation.time, rel=1e-9)
    chosen = [
        variable.options[at]
        for variable, at in zip(plan.found.model.variables, plan.found.solution.choice, strict=True)
        if isinstance(variable.node.what, Apply) and variable.kind == "node"
    ]
    inside = math.fsum(option.seconds for option in chosen)
    moves = plan.found.model.factors
    moved = math.fsum(
        plan.found.model.tables.exact[table][tuple(plan.found.solution.choice[v] for v in scope)]
        for scope, table in moves
        if len(scope) == 2
    )
    assert inside + moved == pytest.approx(explanation.time, rel=1e-9)
    assert inside >= explanation.compute_time * (1 - 1e-9)
