"""Steps as what runs: messages of a place, figures without listing devices, rings, fetched rows, prefixes, agreement."""

import math
import time

import numpy as np
import pytest

import shardwright as sw
import shardwright.numpy as snp
from brute_force import whole_axes
from shardwright import P, nn
from shardwright.eager import calls as eager_calls
from shardwright.errors import EngineError, ImplicitGatherError
from shardwright.ops import OPS, RowMap
from shardwright.plan import (
    Fetch,
    Move,
    OperationPlan,
    Problem,
    Reduce,
    choose,
    move_costs,
    move_steps,
    price_of,
    problem_of,
    result_without_moves,
    strategies,
    strategy_for,
)
from shardwright.sharding import layout_of

MESH = sw.Mesh(x=2, y=4)
LITERAL = sw.Mesh(x=2, y=4, engine="literal")


def rows_of(function, *args):
    return {(row.operation, row.bytes) for row in sw.explain(function, *args).rows}


# -- figures ------------------------------------------------------------------------------------------------------------


def test_a_ring_of_37_floats_over_8_devices_receives_268_bytes():
    mesh = sw.Mesh(x=8)
    (step,) = move_steps(sw.Sharding(mesh, P(None), partial="x"), sw.Sharding(mesh), (37,), np.dtype(np.float32))
    assert isinstance(step, Reduce)
    assert step.received == 268  # chunks of 5 and one of 2: 2 · 37 - 5 - 2 elements
    x = sw.shard(np.arange(37, dtype=np.float32), sw.Sharding(mesh, P(None), partial="x"))
    (row,) = [row for row in sw.measure(lambda x: x.reshard(P()), x).rows if row.bytes]
    assert (row.bytes, row.counted) == (268, 268)


@pytest.mark.parametrize("group", [2, 3, 63, 64, 65, 1000])
@pytest.mark.parametrize("size", [0, 1, 5, 64, 65, 129, 1000])
def test_a_rings_figure_is_that_of_its_chunks(group, size):
    mesh = sw.Mesh(x=group)
    step = Reduce(
        "all_reduce",
        ("x",),
        sw.Sharding(mesh, P(None), partial="x"),
        sw.Sharding(mesh, P(None)),
        (size,),
        np.dtype("i1"),
    )
    block = math.ceil(size / group)
    chunks = [max(0, min(block, size - i * block)) for i in range(group)]
    assert step.received == max(2 * size - chunks[m] - chunks[m - 1] for m in range(group))


def test_figures_and_messages_of_one_place_don_t_grow_with_the_mesh():
    """The time is generous: before, listing every message of S0 → S1 on 1,024 devices took 10 s."""
    mesh = sw.Mesh(x=1024, y=64)
    start = time.perf_counter()
    plan = sw.plan_reshard((65536, 65536), np.float32, mesh, P("x"), P(None, "x"))
    assert plan.bytes_received == 64 * 65472 * 4
    halo = sw.plan_reshard((2**20,), np.float32, mesh, P(("x", "y")), sw.Sharding(mesh, P(("x", "y")), halo={0: 2}))
    assert halo.bytes_received == 4 * 4
    (step,) = halo.steps
    assert [(m.sender, m.elements) for m in step.messages(500) if m.sender != 500] == [(499, 2), (501, 2)]
    assert [(m.receiver, m.elements) for m in step.outgoing(500)] == [(499, 2), (501, 2)]
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("shape", [(10, 7), (8, 8), (16, 24), (8, 4)])
@pytest.mark.parametrize("links", [None, {"x": sw.Link(bandwidth=1e9), "y": sw.Link()}])
def test_one_price_for_a_move_even_and_uneven(shape, links):
    """Costs that choose are those of the steps that run; (8, 4) is even at both ends and uneven on the way."""
    mesh = sw.Mesh(x=2, y=4, links=links)
    pairs = [(a, b) for a in whole_axes(["x", "y"], 2) for b in whole_axes(["x", "y"], 2) if a != b]
    assert len(pairs) > 90
    for a, b in pairs:
        here, there = sw.Sharding(mesh, P(*a)), sw.Sharding(mesh, P(*b))
        plan = sw.plan_reshard(shape, np.float32, mesh, here, there)
        costs = move_costs(here, there, shape, np.dtype(np.float32))
        steps = [step for step in plan.steps if step.received]
        assert [cost[:3] for cost in costs] == [(step.name, step.axes, step.received) for step in steps]
        assert [cost.time for cost in costs] == pytest.approx([step.time for step in steps])
        x = sw.shard(np.zeros(shape, np.float32), here)
        rows = sw.explain(lambda x, there=there: x.reshard(there), x).rows
        assert sum(row.bytes for row in rows) == plan.bytes_received
        assert sum(row.time for row in rows) == pytest.approx(plan.time)


def test_exchanges_name_every_axis_they_cross():
    """10 rows over 2 × 4 are blocks of 2, so the first x holds 8 of them; over 2 × 2 it holds 6."""
    mesh = sw.Mesh(x=2, y=4, z=2)
    plan = sw.plan_reshard((10,), np.int8, mesh, P(("x", "y")), P(("x", "z")), algorithm="direct")
    (step,) = plan.steps
    senders = {(m.sender // 8, m.receiver // 8) for place in range(16) for m in step.messages(place)}
    assert (0, 1) in senders
    assert set(step.axes) == {"x", "y"}


def test_summands_never_mix():
    host = np.arange(12.0)
    source = sw.Sharding(MESH, P("y"), partial="x")
    target = sw.Sharding(MESH, P("y"), partial="x", offsets={0: (0, 1, 5, 9, 12)})
    (step,) = move_steps(source, target, (12,), host.dtype)
    for place in range(8):
        for message in step.messages(place):
            assert message.sender // 4 == place // 4
    shards = [np.full(3, 100.0 * (place // 4)) + np.arange(3) for place in range(8)]
    for mesh in (MESH, LITERAL):
        x = sw.from_shards(source.replace(mesh=mesh), shards)
        moved = x.reshard(target.replace(mesh=mesh))
        assert [shard.data.max() < 100 for shard in moved.shards] == [True] * 4 + [False] * 4


# -- rows, windows, prefixes ----------------------------------------------------------------------------------------------


def test_a_roll_by_one_row_moves_one_row():
    x = sw.shard(np.arange(96.0).reshape(16, 6), MESH, P("y"))
    for shift, moved in ((1, 1), (-1, 1), (3, 3), (4, 4)):
        (row,) = sw.explain(lambda x, shift=shift: snp.roll(x, shift, axis=0), x).rows
        assert (row.operation, row.bytes, row.lower_bound) == ("fetch", moved * 6 * 8, moved * 6 * 8)


def test_windows_that_no_border_cuts_move_nothing():
    images = sw.shard(np.arange(2 * 16 * 4 * 3.0).reshape(2, 16, 4, 3), MESH, P(None, "y"))
    with sw.strict():
        rows = sw.explain(lambda x: nn.max_pool(x, 2), images).rows
    assert all(row.bytes == 0 for row in rows)
    (fetch, *_) = sw.explain(lambda x: nn.max_pool(x, 3, stride=1, padding=1), images).rows
    assert fetch.bytes == 2 * 2 * 4 * 3 * 8, "a row from each neighbour: 2 images, 4 pixels, 3 channels"
    dilated = sw.explain(lambda x: nn.conv2d(x, np.ones((2, 1, 3, 3)), stride=(2, 1), dilation=(2, 1)), images).rows
    assert dilated[0].bytes == 1 * 2 * 4 * 3 * 8, "windows read every other row: only one of the next shard's"


def test_tile_says_what_it_gathers():
    x = sw.shard(np.arange(8.0), MESH, P("y"))
    explanation = sw.explain(lambda x: snp.tile(x, (4,)), x)
    assert explanation.total_bytes == 6 * 8  # all 8 rows, but for the two it has
    gathered = explanation.collectives[-1]  # every device reads every row, so a native all_gather is as good as a fetch
    assert (gathered.operation, gathered.bytes) == ("all_gather", 48)
    assert "tile gathers dim 0 of f64[8@y]" in explanation.notes[0]
    with pytest.raises(ImplicitGatherError, match=r"tile gathers dim 0 of f64\[8@y\] .*: 48 bytes"), sw.strict():
        snp.tile(x, (4,))
    with sw.strict():
        assert snp.roll(x, 3, axis=0).sharding == x.sharding
        repeated = sw.explain(lambda x: snp.repeat(x, 3), x)
    assert [(row.operation, row.bytes) for row in repeated.rows[-1:]] == [("expand_rows", 0)]


def test_an_empty_shard_fetches_nothing():
    x = sw.shard(np.arange(3.0), MESH, P("y"))  # the last device has no row
    (step,) = sw.explain(lambda x: snp.roll(x, 1, axis=0), x).rows
    assert step.bytes == 8
    fetch = Fetch.of(x.sharding, (3,), x.dtype, (RowMap(3, 2, wrap=3),), ((0, 1, 2, 3, 3),))
    assert fetch.messages(3) == []


def test_reading_one_element_is_a_broadcast():
    for mesh in (MESH, LITERAL):
        x = sw.shard(np.arange(12.0).reshape(3, 4), mesh, P("x", "y"))
        assert float(x[2, 3]) == 11.0
        assert x[2, 3].sharding.is_replicated
        partial = sw.shard(np.arange(12.0).reshape(3, 4), sw.Sharding(mesh, P("x"), partial="y"))
        assert float(partial[2, 1]) == 9.0


def test_indices_are_checked_on_what_all_devices_agree_on():
    x = sw.shard(np.arange(24.0).reshape(6, 4), MESH, P("x"))
    tokens = sw.shard(np.array([0, 5, 2, 1, 3, 4, 5, -6]), MESH, P("y"))
    rows = sw.explain(lambda x, i: snp.take(x, i, axis=0), x, tokens).rows
    assert [row.operation for row in rows][:3] == ["extremes", "all_reduce", "in_range"]
    assert rows[1].collective == "all_reduce y"
    for mesh in (MESH, LITERAL):
        bad = sw.shard(np.array([0, 5, 2, 1, 3, 4, 6, -6]), mesh, P("y"))
        with pytest.raises(IndexError, match="Index 6 is out of bounds for dim 0 of size 6"):
            snp.take(sw.shard(np.arange(24.0).reshape(6, 4), mesh, P("x")), bad, axis=0)


def test_a_prefix_shows_in_programs_and_fingerprints():
    x = sw.shard(np.arange(10), MESH, P("y"))
    program = sw.sjit(lambda x: snp.cumulative_sum(x)).lower(x).program
    assert "= prefix(%2, over=('y',))" in program.show()
    assert any("prefix" in line for line in program.fingerprint)


# -- the literal engine, and measure ----------------------------------------------------------------------------------------


def step_of(x, w):
    h = snp.tanh(x @ w)
    return snp.cumulative_sum(snp.roll(h, 1, axis=0), axis=0) + snp.sum(h, axis=0)


def operands(mesh):
    rng = np.random.default_rng(0)
    return (
        sw.shard(rng.standard_normal((10, 7)), mesh, P("x", "y")),
        sw.shard(rng.standard_normal((7, 5)), mesh, P("y")),
    )


@pytest.mark.parametrize("mesh", [MESH, LITERAL], ids=["numpy", "literal"])
@pytest.mark.parametrize("jitted", [False, True])
def test_measure_counts_what_explain_predicts(mesh, jitted):
    args = operands(mesh)
    function = sw.sjit(step_of, mesh=mesh) if jitted else step_of
    explanation, measured = sw.explain(function, *args), sw.measure(function, *args)
    assert [row.bytes for row in measured.rows] == [row.bytes for row in explanation.rows]
    assert all(row.counted == row.bytes for row in measured.rows)
    assert sum(row.bytes for row in measured.rows) > 0
    assert all(row.counted is None for row in explanation.rows)


def test_captured_arrays_are_measured_too():
    x, w = operands(MESH)
    measured = sw.measure(lambda x: x @ w, x)
    assert sum(row.bytes for row in measured.rows) == sum(row.counted for row in measured.rows) > 0


def test_loops_are_counted_a_run_and_their_runs():
    x, _ = operands(MESH)

    def fn(x):
        return sw.scan(lambda carry, _: (snp.roll(carry, 1, axis=0), None), x, length=3)[0]

    (row,) = [row for row in sw.measure(fn, x).rows if row.bytes]
    assert (row.counted, row.times) == (row.bytes, 3)
    (untaken,) = [
        row
        for row in sw.measure(
            lambda x: sw.cond(snp.max(x) > 1e9, lambda x: snp.roll(x, 1, axis=0), lambda x: x, x), x
        ).rows
        if row.operation == "fetch"
    ]
    assert (untaken.times, untaken.counted) == (0, 0)


def test_a_message_that_is_shortened_is_seen(monkeypatch):
    x, _ = operands(MESH)
    honest = Move.messages

    def shortened(self, place):
        made = honest(self, place)
        own = [m for m in made if m.sender == place]
        return [*own, *(m for m in made if m.sender != place)][:-1] if len(made) > len(own) else made

    monkeypatch.setattr(Move, "messages", shortened)
    rows = [row for row in sw.measure(lambda x: snp.roll(x, 1, axis=0), x).rows if row.bytes]
    assert any(row.counted < row.bytes for row in rows)


def test_host_reads_are_refused_while_measuring():
    x, _ = operands(MESH)
    with pytest.raises(sw.errors.TraceError, match="not known while the program is traced"):
        sw.measure(lambda x: x * float(x[0, 0]), x)


def test_literal_refuses_many_devices():
    with pytest.raises(EngineError, match=r"5,000 devices of .* are more than its 4,096"):
        sw.shard(np.zeros(3), sw.Mesh(x=5000, engine="literal"), P())
    with pytest.raises(EngineError, match="more than its 4,096"):
        sw.measure(lambda x: x + 1, sw.shard(np.zeros(3), sw.Mesh(x=5000), P()))


def test_no_device_sees_another_s_array(monkeypatch):
    """With the one function that reads another device's array taken away, everything that communicates fails."""
    from shardwright.engines import Literal

    x, w = operands(LITERAL)

    def refuse(self, *args):
        raise AssertionError("a message")

    monkeypatch.setattr(Literal, "_receive", refuse)
    assert (x + 1.0).shape == x.shape
    for function in (
        lambda: x.reshard(P()),
        lambda: np.asarray(x @ w),
        lambda: snp.roll(x, 1, axis=0),
        lambda: x[3, 3],
    ):
        with pytest.raises(AssertionError, match="a message"):
            function()


# -- choosing apart from building -----------------------------------------------------------------------------------------


def matmul_problem(left, right, shapes=((4096, 512), (512, 512)), mesh=MESH):
    kinds = [
        (layout_of(sw.Sharding(mesh, spec), shape), np.dtype(np.float32))
        for spec, shape in zip((left, right), shapes, strict=True)
    ]
    from shardwright.ops import Attrs

    attrs = Attrs(name="matmul", text="... m k, ... k n -> ... m n")
    return problem_of(OPS["einsum"], kinds, attrs)[0], kinds, attrs


def test_axes_that_no_operand_uses_are_candidates():
    mesh = sw.Mesh(x=8)
    problem, kinds, attrs = matmul_problem(P(), P(), mesh=mesh)
    found = list(strategies(problem))
    assert len(found) > 1
    assert {strategy.placement.get("x") for strategy in found} >= {None, "m", "n", "k"}
    work = {strategy.placement.get("x"): strategy.work for strategy in found}
    assert work[None] == 2 * 4096 * 512 * 512 == 8 * work["m"]
    assert choose(problem.afresh()).placement == {}  # while computing has no price, an idle axis stays idle
    rows = sw.explain(
        lambda a, b: a @ b, *(sw.replicate(np.ones(n, np.float32), mesh) for n in ((64, 32), (32, 32)))
    ).rows
    assert len(rows[-1].considered) > 1
    by_rows = next(strategy for strategy in found if strategy.placement.get("x") == "m")
    plan = OperationPlan(OPS["einsum"], kinds, attrs, by_rows)
    assert plan.results[0].sharding.spec == P("x", None)
    assert [step.name for step in plan.moves[0]] == ["all_slice"]


def test_any_given_strategy_is_built_and_priced():
    problem, kinds, attrs = matmul_problem(P("x", "y"), P("y"))
    for strategy in strategies(problem.afresh()):
        placed = strategy_for(problem, strategy.placement)
        assert placed.results == strategy.results
        assert price_of(problem, placed).time == pytest.approx(strategy.time)
        plan = OperationPlan(OPS["einsum"], kinds, attrs, placed)
        moved = sum(step.received for steps in plan.moves for step in steps)
        assert moved == sum(cost.bytes for costs in strategy.moves for cost in costs)


def test_results_without_moves():
    problem, _, _ = matmul_problem(P(None, "y"), P("y"), ((512, 16), (16, 512)), sw.Mesh(x=1, y=8))
    (result,) = result_without_moves(problem)
    assert (result.partial, result.spec) == (("y",), P(None, None))
    assert result_without_moves(matmul_problem(P("x", "y"), P("x"))[0]) is None
    rows = Problem(
        OPS["sort"].rule([(8, 8)], {"axis": 0}), [sw.Sharding(MESH, P("x", None))], [(8, 8)], [np.dtype("f4")]
    )
    assert result_without_moves(rows) is None


# -- fingerprints, purity, what is not known yet ---------------------------------------------------------------------------


def test_fingerprints_have_attributes_in_full_and_the_values_of_constants():
    x = sw.shard(np.arange(64.0).reshape(8, 8), MESH, P("x"))

    def fingerprint(function):
        return sw.sjit(function).lower(x).program.fingerprint

    assert fingerprint(lambda x: x[0:3, 0:3]) != fingerprint(lambda x: x[0:3, 1:4])
    one, two = (sw.replicate(np.full(8, value), MESH) for value in (1.0, 2.0))
    assert fingerprint(lambda x: x + one) != fingerprint(lambda x: x + two)
    assert fingerprint(lambda x: x + one) == fingerprint(lambda x: x + one)


def test_a_traced_sharding_is_not_known_yet():
    x = sw.shard(np.arange(8.0), MESH, P("y"))
    with pytest.raises(
        sw.errors.TraceError, match=r"The sharding of f64\[8\] is not known while the program is traced"
    ):
        sw.sjit(lambda x: x if x.sharding.is_replicated else -x)(x)


def test_explain_counts_what_purity_spares():
    x = sw.shard(np.arange(8.0), MESH, P("y"))

    def fn(x):
        snp.exp(x)  # no output needs it
        return snp.tanh(x) + snp.tanh(x)

    explanation = sw.explain(fn, x)
    assert (explanation.shared, explanation.dead) == (1, 1)
    assert "; spared: 1 asked for again and 1 that no output needs\n" in explanation.full()


# -- the suite can fail -----------------------------------------------------------------------------------------------------


def agree(mesh):
    x, w = operands(mesh)
    eager, jitted = step_of(x, w), sw.sjit(step_of)(x, w)
    host = np.tanh(np.asarray(x) @ np.asarray(w))
    expected = np.cumsum(np.roll(host, 1, axis=0), axis=0) + host.sum(axis=0)
    np.testing.assert_allclose(np.asarray(eager), expected)
    np.testing.assert_allclose(np.asarray(jitted), expected)


@pytest.mark.parametrize("engine", ["numpy", "literal"])
def test_a_kernel_and_a_step_made_wrong_are_noticed(engine, monkeypatch):
    from shardwright.engines import Literal, whole
    from shardwright.kernels import KERNELS

    mesh = sw.Mesh(x=2, y=4, engine=engine, links=sw.Link(latency=2e-6))  # no plan of it is kept from other tests
    agree(mesh)
    name = "cumulative_sum after" if engine == "literal" else "cumulative_sum"  # which runs on whole tensors there
    honest = KERNELS[name]
    monkeypatch.setitem(KERNELS, name, lambda call, *data: honest(call, *data) * 0)
    with pytest.raises(AssertionError):
        agree(mesh)
    monkeypatch.undo()
    agree(mesh)
    step, fetching = Literal.step, whole.fetching

    def wrong(self, what, data):
        made = step(self, what, data)
        return type(made)([part * 0 for part in made.parts]) if isinstance(what, Fetch) else made

    monkeypatch.setattr(Literal, "step", wrong)
    monkeypatch.setattr(whole, "fetching", lambda *args: lambda data: fetching(*args)(data) * 0)
    whole._functions.clear()
    eager_calls._ready.clear()
    with pytest.raises(AssertionError):
        agree(mesh)
