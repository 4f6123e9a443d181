"""Programs: what each stage shows, what passes do, control flow, explanations, and that processes must agree."""

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest

import shardwright as sw
import shardwright.numpy as snp
import shardwright.program.lowering as lowering
from helpers import assert_same
from shardwright import P, nn
from shardwright.engines import engine_named
from shardwright.errors import ProgramError
from shardwright.garbage import no_collection
from shardwright.program import Type, agree, compiled, lower, peak_bytes, received, trace
from shardwright.program.passes import Rewriter, fused, reduced_once, scheduled, shortened
from shardwright.sharding import layout_of
from shardwright.trees import flatten

MESH = sw.Mesh(data=2, model=4)
RNG = np.random.default_rng(0)
X, W, V = RNG.standard_normal((8, 4)), RNG.standard_normal((4, 12)), RNG.standard_normal((12, 4))


def arrays(*pairs):
    return [sw.shard(host, MESH, spec) for host, spec in pairs]


def ops(program):
    return [node.op for node in program.nodes if node.op != "input"]


# -- stages -----------------------------------------------------------------------------------------------------------


def test_every_stage_is_shown():
    def fn(x, w, v):
        return snp.tanh(x @ w) @ v

    args = arrays((X, P("data")), (W, P(None, "model")), (V, P("model")))
    program = sw.sjit(fn).lower(*args).program
    assert program.show("traced").splitlines()[0] == "%0: f64[8,4] = input x"
    assert "%4: f64[8,12] = tanh(%3)" in program.show("traced")
    assert "%4: f64[8@data,12@model] = tanh(%3)" in program.show("propagated")
    assert "%5: f64[8@data,4] + sum{model} = matmul(%4, %2" in program.show("partitioned")
    last = program.show("final").splitlines()
    assert last[-2].startswith("%6: f64[8@data,4] = all_reduce(%5, over=('model',))")
    assert last[-1] == "return %6"
    assert "test_program.py:" in last[-2]
    assert str(program) == program.show()
    with pytest.raises(
        ProgramError, match=r"There is no stage 'last'. Use one of written, traced, propagated, partitioned, final"
    ):
        program.show("last")


def test_the_collector_is_afterwards_as_it_was(monkeypatch):
    x = sw.shard(X, MESH, P("data"))
    seen = []
    optimise = lowering.optimised
    monkeypatch.setattr(lowering, "optimised", lambda program: (seen.append(gc.isenabled()), optimise(program))[1])
    sw.sjit(lambda x: sw.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, x)).lower(x)
    assert seen == [False] * 3  # both branches, then what holds them
    assert gc.isenabled()
    gc.disable()
    try:
        sw.sjit(lambda x: x * 2).lower(x)
        assert not gc.isenabled()
    finally:
        gc.enable()
    monkeypatch.setattr(lowering, "optimised", lambda program: 1 / 0)
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        sw.sjit(lambda x: x * 3).lower(x)
    assert gc.isenabled()


def test_what_is_made_while_the_collector_pauses_is_looked_at_once_in_the_end():
    with no_collection(look=True), no_collection():
        made = [[at] for at in range(1000)]
        cycle_of_one = type("Held", (), {})()
        cycle_of_one.own, gone = cycle_of_one, weakref.ref(cycle_of_one)
        del cycle_of_one
    assert gc.isenabled()
    assert gone() is None
    young = {id(some) for generation in (0, 1) for some in gc.get_objects(generation)}
    assert not young & set(map(id, made))


def test_garbage_that_is_left_while_the_collector_pauses_is_young():
    """Else it would stay until all objects of the process are looked at."""
    with no_collection():
        cycle = type("Held", (), {})()
        cycle.own, gone = cycle, weakref.ref(cycle)
        del cycle
    gc.collect(1)
    assert gone() is None


def test_the_same_step_is_one_node_and_what_nobody_needs_is_none():
    def fn(x):
        snp.exp(x)
        return snp.tanh(x) + snp.tanh(x), x * 1.0 - x * 1

    (x,) = arrays((X, P("data")))
    traced = sw.sjit(fn).lower(x).program.stages["traced"]
    assert ops(traced) == ["tanh", "add", "multiply", "multiply", "subtract"]  # 1.0 and 1 are not the same
    zero = sw.sjit(lambda x: (x * 0.0, x * -0.0)).lower(x).program
    assert ops(zero) == ["multiply", "multiply"]


def test_shardings_flow_backward_and_conflicts_are_told():
    def fn(x, w):
        h = x @ w
        return sw.with_sharding_constraint(h + 1, P("data", "model"))

    step = sw.sjit(fn, mesh=MESH)
    program = step.lower(X, W).program
    assert [str(node.type) for node in program.inputs] == ["f64[8@data,4]", "f64[4,12@model]"]
    assert "all" not in " ".join(ops(program))
    big, small = np.ones((64, 8)), np.ones((8, 8))
    lowered = sw.sjit(lambda a, b: a @ b).lower(*arrays((big, P("data")), (small, P(None, "data"))))
    assert any("dim 1 is whole, not @data as b has it" in note for note in lowered.explain().notes)
    row = lowered.explain().operations[0]
    assert row.origins["data"] == "a"


def test_a_transformer_layer_communicates_as_people_would_write_it():
    """Fully sharded weights are gathered once each, and each of the two halves of a layer ends in one all-reduce."""
    mesh = sw.Mesh(data=2, fsdp=2, model=2)
    width, rows = 16, np.ones((64, 8, 16), np.float32)
    weights = {name: np.ones((width, width), np.float32) for name in "qkvo"}
    weights |= {"up": np.ones((width, 4 * width), np.float32), "down": np.ones((4 * width, width), np.float32)}
    specs = dict.fromkeys("qkv", P("fsdp", "model"))
    specs |= {
        "o": P("model", "fsdp"),
        "up": P("fsdp", "model"),
        "down": P("model", "fsdp"),
    }

    def layer(x, p):
        heads = [snp.permute_dims(snp.reshape(x @ p[n], (64, 8, 4, 4)), (0, 2, 1, 3)) for n in "qkv"]
        a = snp.permute_dims(nn.scaled_dot_product_attention(*heads, causal=True), (0, 2, 1, 3))
        x = x + snp.reshape(a, x.shape) @ p["o"]
        return x + nn.gelu(x @ p["up"]) @ p["down"]

    step = sw.sjit(layer, mesh=mesh, in_shardings=(P(("data", "fsdp")), specs))
    moved = sorted(row.collective for row in step.lower(rows, weights).explain().rows if row.bytes)
    assert moved == ["all_gather fsdp"] * 6 + ["all_reduce model"] * 2


# -- passes -----------------------------------------------------------------------------------------------------------


def partitioned(fn, *args):
    types = [Type(x.shape, x.dtype) for x in args]
    traced, _ = trace(lambda *x: fn(*x), types, MESH, [f"input {i}" for i in range(len(args))])
    return lower(traced, [x.sharding for x in args]).stages["partitioned"]


def run(program, *args):
    return [np.asarray(sw.Array.of(layout_of(n.type.sharding, n.type.shape), data)) for n, data in zip(
        program.outputs, compiled(program)(*(x.data for x in args)), strict=True
    )]  # fmt: skip


def total(program):
    return sum(map(received, program.nodes))


def test_a_reduction_that_is_then_sliced_is_a_reduce_scatter():
    def fn(x):
        y = sw.with_sharding_constraint(snp.sum(x, axis=1), P())
        return [sw.with_sharding_constraint(y, P("model"))]

    (x,) = arrays((X, P(None, "model")))
    before = partitioned(fn, x)
    after = Rewriter(before).run(shortened)
    assert ops(before) == ["sum", "all_reduce", "all_slice"]
    assert ops(after) == ["sum", "reduce_scatter"]
    assert total(after) == total(before) // 2
    np.testing.assert_allclose(run(after, x)[0], X.sum(axis=1))


def test_a_gather_and_a_slice_cancel_both_ways():
    def there_and_back(first, second):
        return lambda x: [sw.with_sharding_constraint(sw.with_sharding_constraint(x, first), second)]

    for spec, first, second in ((P("model"), P(), P("model")), (P(), P("model"), P())):
        (x,) = arrays((X, spec))
        after = Rewriter(partitioned(there_and_back(first, second), x)).run(shortened)
        assert ops(after) == []
        assert_same(run(after, x)[0], X)


def test_moves_that_share_a_value_are_not_both_spared_it():
    mesh = sw.Mesh(a=4, b=2)

    def fn(x):
        first = sw.with_sharding_constraint(sw.with_sharding_constraint(snp.tanh(x), P()), P("b"))
        return [first, sw.with_sharding_constraint(first, P("a"))]

    x = sw.shard(np.arange(4.0), mesh, P(("a", "b")))
    traced, _ = trace(fn, [Type(x.shape, x.dtype)], mesh, ["x"])
    before = lower(traced, [x.sharding]).stages["partitioned"]
    assert total(Rewriter(before).run(shortened)) <= total(before)


def test_a_gather_with_other_readers_stays_for_them():
    def fn(x):
        whole = sw.with_sharding_constraint(x * 2, P())
        return [whole, sw.with_sharding_constraint(whole, P("model"))]

    (x,) = arrays((X, P("model")))
    after = Rewriter(partitioned(fn, x)).run(shortened)
    assert ops(after) == ["multiply", "all_gather"]
    assert after.outputs[1].op == "multiply"


def test_a_sum_of_two_reductions_is_reduced_once():
    def fn(x):
        a, b = (sw.with_sharding_constraint(snp.sum(y, axis=1), P()) for y in (x, x * 2))
        return [a + b]

    (x,) = arrays((X, P(None, "model")))
    before = partitioned(fn, x)
    after = Rewriter(before).run(reduced_once)
    assert ops(before).count("all_reduce") == 2
    assert ops(after)[-2:] == ["add", "all_reduce"]
    assert total(after) == total(before) // 2
    np.testing.assert_allclose(run(after, x)[0], 3 * X.sum(axis=1))


def test_small_reductions_of_one_group_share_a_message():
    def fn(x):
        return [sw.with_sharding_constraint(snp.sum(y, axis=1), P()) for y in (x, snp.exp(x), snp.sin(x))]

    (x,) = arrays((X, P(None, "model")))
    before = partitioned(fn, x)
    after = fused(before)
    assert ops(before).count("all_reduce") == 3
    assert ops(after).count("all_reduce") == 1
    assert total(after) == total(before)
    times = [sum(n.what.time for n in p.nodes if n.op == "all_reduce") for p in (after, before)]
    assert times[0] < 0.4 * times[1]
    for made, expected in zip(run(after, x), (X, np.exp(X), np.sin(X)), strict=True):
        np.testing.assert_allclose(made, expected.sum(axis=1))


def test_reductions_that_depend_on_each_other_do_not_share():
    def fn(x):
        a = sw.with_sharding_constraint(snp.sum(x, axis=1, keepdims=True), P())
        return [sw.with_sharding_constraint(snp.sum(x * a, axis=1), P())]

    (x,) = arrays((X, P(None, "model")))
    assert ops(fused(partitioned(fn, x))).count("all_reduce") == 2


def test_the_order_needs_least_memory():
    def fn(x):
        wide = [snp.broadcast_to(snp.expand_dims(x * float(n), 0), (16, 8, 4)) + 1 for n in range(4)]
        return [sum((snp.sum(w) for w in wide[1:]), snp.sum(wide[0]))]

    (x,) = arrays((X, P()))
    before = partitioned(fn, x)
    after = scheduled(before)
    assert peak_bytes(after, after.nodes)[0] < peak_bytes(before, before.nodes)[0] / 2
    np.testing.assert_allclose(run(after, x)[0], run(before, x)[0])


def test_a_partial_value_with_several_readers_is_reduced_once():
    def fn(x, w):
        h = x @ w
        return h * 2.0, h * 3.0

    x, w = arrays((X, P(None, "model")), (W, P("model")))
    assert ops(sw.sjit(fn).lower(x, w).program).count("all_reduce") == 1


# -- control flow -----------------------------------------------------------------------------------------------------


def both(fn, *args):
    """A function's results run as a program and at once."""
    return sw.sjit(fn)(*args), fn(*args)


def test_python_control_flow_on_known_values_unrolls():
    (x,) = arrays((X, P("data")))
    step = sw.sjit(lambda x, n: sum((x * float(i) for i in range(n)), x) if n > 1 else x)
    assert_same(step(x, 3), X + 0 * X + X + 2 * X)
    assert ops(step.lower(x, 1).program) == []


@pytest.mark.parametrize("limit", [-1e9, 1e9])
def test_cond_takes_one_branch(limit):
    x, w = arrays((X, P("data")), (RNG.standard_normal((4, 4)), P("model")))
    flag = sw.shard(np.array(limit), MESH, P())

    def fn(x, flag):
        return sw.cond(snp.sum(x) > flag, lambda y: {"a": y + 1}, lambda y: {"a": y @ w}, x)

    made, expected = both(fn, x, flag)
    np.testing.assert_allclose(np.asarray(made["a"]), np.asarray(expected["a"]))
    assert sw.cond(True, lambda: 1, lambda: 2) == 1


def test_while_loops_carry_trees():
    (x,) = arrays((np.abs(X), P("data")))

    def fn(x):
        return sw.while_loop(
            lambda c: snp.max(c["x"]) < 100.0, lambda c: {"x": c["x"] * 2, "n": c["n"] + 1}, {"x": x, "n": 0}
        )

    made, expected = both(fn, x)
    assert_same(made["x"], np.asarray(expected["x"]))
    assert int(made["n"]) == int(expected["n"]) > 3
    assert made["x"].sharding.spec == P("data", None)


def test_scan_stacks_and_moves_what_never_changes_out_of_the_loop():
    long = RNG.standard_normal((1 << 16, 4))  # much more than w: gathering w takes less time than reducing h @ w
    x, w = arrays((long, P("data")), (RNG.standard_normal((4, 4)), P("model")))
    rows = sw.shard(RNG.standard_normal((5, 1 << 16, 4)), MESH, P(None, "data"))

    def fn(x, w, rows):
        def body(h, row):
            h = snp.tanh(h @ w) + row
            return h, snp.sum(h, axis=1)

        return sw.scan(body, x, rows)

    (last, sums), (one, two) = both(fn, x, w, rows)
    np.testing.assert_allclose(np.asarray(last), np.asarray(one))
    np.testing.assert_allclose(np.asarray(sums), np.asarray(two))
    program = sw.sjit(fn).lower(x, w, rows).program
    (loop,) = [node for node in program.nodes if node.op == "scan"]
    assert "all_gather" in ops(program)
    assert total(loop.what.body) == 0
    assert "body:" in program.show()
    counted = sw.sjit(lambda x: sw.scan(lambda n, _: (n + 1, None), 0, length=4)[0] + x)
    assert_same(counted(x), long + 4)


def test_loops_refuse_what_does_not_stay_alike():
    (x,) = arrays((X, P("data")))

    def moves(c):
        return {"state": sw.with_sharding_constraint(c["state"] * 2, P("model"))}

    with pytest.raises(
        ProgramError,
        match=r"The carried value 'state' comes in as f64\[8@data,4\] .* f64\[8@model,4\]",
    ):
        sw.sjit(lambda x: sw.while_loop(lambda c: snp.max(c["state"]) < 9.0, moves, {"state": x}))(x)
    with pytest.raises(ProgramError, match=r"'0' is f64\[8,4\] on one side and f64\[8\] on the other"):
        sw.sjit(lambda x: sw.while_loop(lambda c: snp.max(c[0]) < 9, lambda c: (snp.sum(c[0], axis=1),), (x,)))(x)
    with pytest.raises(ProgramError, match="cond: the branches give different trees"):
        sw.sjit(lambda x: sw.cond(snp.max(x) > 0, lambda y: y, lambda y: (y, y), x))(x)
    with pytest.raises(ProgramError, match="scan: the body gives 3 values; it must give a pair"):
        sw.sjit(lambda x: sw.scan(lambda c, _: (c, c, c), x, length=2))(x)
    with pytest.raises(ProgramError, match="there must be one number of rounds"):
        sw.scan(lambda c, _: (c, None), 0)
    with pytest.raises(ProgramError, match=r"cond: the condition has shape \(8,\)"):
        sw.sjit(lambda x: sw.cond(snp.sum(x, axis=1) > 0, lambda y: y, lambda y: y, x))(x)


# -- explain ----------------------------------------------------------------------------------------------------------


def test_the_table_has_what_it_promises():
    x, w, v = arrays((X, P("data")), (W, P(None, "model")), (V, P("model")))
    explanation = sw.explain(lambda x, w, v: snp.tanh(x @ w) @ v, x, w, v)
    row = explanation.rows[-1]
    assert row.collective == "all_reduce model"
    assert (row.groups, row.bytes, row.lower_bound) == ("2 × 4", 192, 192)
    assert row.time > 0
    assert row.memory > 0
    assert "test_program.py:" in row.source
    lines = explanation.full().splitlines()
    assert lines[0].startswith("generic: ")  # the machine is named on top
    heads = [line.split() for line in lines if line.startswith("source")]
    assert heads == [["source", "step", "result", "groups", "bytes", "bound", "network", "compute", "limit", "held"]]
    assert any("all_reduce model(f64[8@data,4] + sum{model})" in line and "2 × 4" in line for line in lines)
    page = explanation._repr_html_()
    assert page.count("<details>") == 1
    opened = page[page.index("<details>") : page.index("</details>")]
    assert opened.count("<tr>") == 3  # two products and a tanh in one line of the source
    assert page.count("<tr>") - opened.count("<tr>") == 3  # the head, that line, the reduction
    assert "<td>all_reduce model</td>" in page


def test_gathers_give_their_reasons():
    x = sw.shard(np.ones((8, 8)), MESH, P("data"))
    explanation = sw.explain(lambda x: snp.linalg.det(x), x)
    assert explanation.notes[0].startswith("det gathers dim 0 of f64[8@data,8]")


# -- processes must agree ---------------------------------------------------------------------------------------------

LOWER = """
import sys, numpy as np, shardwright as sw, shardwright.numpy as snp
from shardwright import P
mesh = sw.Mesh(data=2, model=4)
spec = P("data") if sys.argv[1] == "0" or len(sys.argv) < 3 else P("model")
step = sw.sjit(lambda x: snp.sum(snp.tanh(x), axis=0), mesh=mesh, in_shardings=spec)
print("\\n".join(step.lower(np.ones((8, 4))).program.fingerprint))
"""


def test_processes_with_different_programs_are_told_the_first_step_that_differs():
    def fingerprint(*argv):
        made = subprocess.run([sys.executable, "-c", LOWER, *argv], capture_output=True, text=True, check=True)
        return made.stdout.strip().splitlines()

    one, same, other = fingerprint("0"), fingerprint("1"), fingerprint("1", "changed")
    agree([one, same])
    with pytest.raises(ProgramError, match=r"Step 0 of process 0 is\n  .*8@data,4.*\nand of process 1\n  .*8@model,4"):
        agree([one, other])
    with pytest.raises(ProgramError, match="nothing more"):
        agree([one, [*one, "more"]])


def test_an_engine_with_several_processes_compares_programs_before_it_runs(monkeypatch):
    engine = engine_named("numpy")
    monkeypatch.setattr(engine, "processes", 2)
    monkeypatch.setattr(engine, "agree", lambda mesh, steps: agree([steps, steps]))
    (x,) = arrays((X, P("data")))
    step = sw.sjit(lambda x: x + 1)
    assert_same(step(x), X + 1)
    monkeypatch.setattr(engine, "agree", lambda mesh, steps: agree([steps, (*steps[:1], "%1: another")]))
    with pytest.raises(ProgramError, match=r"Step 1 of process 0 is\n  %1: f64\[8@data,4\] = add"):
        sw.sjit(lambda x: x + 1)(x)


def in_place(c, row):
    c[0] = c[0] + row
    c += 1
    return c, c


CONTROL = {
    "scan": lambda x: sw.scan(in_place, x, np.arange(3.0)),
    "while_loop": lambda x: sw.while_loop(lambda c: c[0] < 9, lambda c: in_place(c, 2)[0], x),
    "cond": lambda x: sw.cond(x[0] < 9, lambda c: in_place(c, 2)[0], lambda c: c, x),
    "identity": lambda x: in_place(sw.cond(x[0] < 9, lambda c: c, lambda c: c, x), 2)[0],
    "outside": lambda x: in_place(sw.cond(x[0] < 9, lambda: x, lambda: x), 2)[0],
}


@pytest.mark.parametrize("name", CONTROL)
def test_what_bodies_assign_to_is_their_own_eagerly_and_in_programs(name):
    def function(x):
        return CONTROL[name](x), x

    host = np.array([1.0, 2.0, 3.0, 4.0])
    eager, program = (fn(sw.shard(host, MESH, P("model"))) for fn in (function, sw.sjit(function)))
    for one, other in zip(flatten(eager)[0], flatten(program)[0], strict=True):
        assert_same(one, np.asarray(other))
    assert_same(eager[1], host)


def test_host_tensors_that_bodies_assign_to_are_their_own():
    host = np.zeros(2)
    last, rows = sw.scan(in_place, host, np.arange(3.0))
    np.testing.assert_array_equal(rows[:, 0], [1, 3, 6])
    np.testing.assert_array_equal(last, [6, 3])
    np.testing.assert_array_equal(host, [0, 0])
