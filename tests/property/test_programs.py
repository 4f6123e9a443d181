"""Programs against eager execution and NumPy, every pass against the program before it, propagation in any order."""

import random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import shardwright as sw
from heap import counted, simulated, unread
from helpers import assert_same, held_by
from programs import programs
from shardwright import collectives as c
from shardwright.errors import CollectiveError
from shardwright.program import Propagation, Type, compiled, lower, peak_bytes, received, trace
from shardwright.program.passes import Rewriter, fused, reduced_once, scheduled, shortened
from shardwright.program.run import layout
from strategies import axis_lists, host_arrays, meshes, shapes, shardings


def close(actual, expected):
    assert actual.shape == np.shape(expected)
    assert actual.dtype == np.asarray(expected).dtype
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-8, atol=1e-8)
    again = sw.from_shards(actual.mesh, actual.sharding, held_by(actual))
    np.testing.assert_allclose(np.asarray(again), expected, rtol=1e-8, atol=1e-8)


@settings(max_examples=300)
@given(program=programs())
def test_a_program_gives_what_eager_execution_and_numpy_give(program):
    arrays = program.arrays()
    step = sw.sjit(program.on_arrays)
    for made, eager, expected in zip(step(*arrays), program.on_arrays(*arrays), program.on_hosts(), strict=True):
        close(made, expected)
        assert eager.dtype == made.dtype
        np.testing.assert_allclose(np.asarray(eager), expected, rtol=1e-8, atol=1e-8)
        assert not made.sharding.partial


def lowered(program):
    types = [Type(host.shape, host.dtype) for host in program.hosts]
    traced, _ = trace(program.on_arrays, types, program.mesh, [f"input {i}" for i in range(len(types))])
    return traced, lower(traced, program.specs)


def outputs(final, program):
    made = compiled(final)(*(x.placed(layout(n)) for x, n in zip(program.arrays(), final.inputs, strict=True)))
    return [sw.Array.of(layout(node), data) for node, data in zip(final.outputs, made, strict=True)]


PASSES = {
    "shortened": lambda p: Rewriter(p).run(shortened),
    "reduced_once": lambda p: Rewriter(p).run(reduced_once),
    "fused": fused,
    "scheduled": scheduled,
}


@pytest.mark.parametrize("name", PASSES)
@settings(max_examples=80)
@given(program=programs(max_steps=14))
def test_a_pass_keeps_the_meaning_and_moves_no_more(name, program):
    before = lowered(program)[1].stages["partitioned"]
    after = PASSES[name](before)
    assert sum(map(received, after.nodes)) <= sum(map(received, before.nodes))
    assert peak_bytes(after, after.nodes)[0] <= peak_bytes(before, before.nodes)[0] or name != "scheduled"
    for made, expected in zip(outputs(after, program), program.on_hosts(), strict=True):
        close(made, expected)
    for node in after.nodes:
        for kind in node.types:
            assert kind.sharding is kind.sharding.for_shape(kind.shape)


@settings(max_examples=100)
@given(program=programs(max_steps=14), seed=st.integers(0, 99))
def test_the_fixed_point_does_not_depend_on_the_order_of_nodes(program, seed):
    traced, _ = lowered(program)
    fixed = dict(zip(traced.inputs, program.specs, strict=True))
    known = Propagation(traced, fixed)
    order = list(traced.nodes)
    random.Random(seed).shuffle(order)
    other = Propagation(traced, fixed, order)
    assert known.dims == other.dims
    assert known.origins == other.origins


@settings(max_examples=150)
@given(program=programs(max_steps=8))
def test_what_explain_shows_is_what_runs(program):
    """Every byte that a device receives was predicted, step by step."""
    explanation, measured = (f(program.on_arrays, *program.arrays()) for f in (sw.explain, sw.measure))
    assert len(measured.rows) == len(explanation.rows)
    for row, predicted in zip(measured.rows, explanation.rows, strict=True):
        assert (row.operation, row.bytes, row.inside) == (predicted.operation, predicted.bytes, predicted.inside)
        assert row.counted == (row.bytes if row.times else 0), row
        assert row.lower_bound <= row.bytes
        assert row.times == predicted.times or "while" in row.inside or "cond" in row.inside


@settings(max_examples=60)
@given(program=programs(max_steps=6))
def test_explain_adds_up(program):
    explanation = sw.explain(program.on_arrays, *program.arrays())
    taken = [row for row in explanation.rows if "cond" not in row.inside]
    if len(taken) == len(explanation.rows):
        assert explanation.total_bytes == sum(row.bytes * row.times for row in explanation.rows)
    assert explanation.peak_bytes >= max((row.memory for row in explanation.rows), default=0)
    assert all(row.lower_bound <= row.bytes for row in explanation.rows)
    use = explanation.use
    held = (use.parameters, use.inputs, use.activations, use.temporaries, use.outputs)
    assert min(held) >= 0
    assert sum(held) == explanation.peak_bytes
    longer = max(explanation.communication_time, explanation.compute_time)
    assert longer * (1 - 1e-9) <= explanation.seconds("ideal") <= explanation.time * (1 + 1e-9)
    text = str(explanation)
    assert f"\n{len(explanation.rows)} steps take " in text
    assert max(map(len, text.splitlines())) <= 100


@settings(max_examples=150)
@given(program=programs(max_steps=10))
def test_memory_is_that_of_a_naive_simulation(program):
    lowered = sw.sjit(program.on_arrays).lower(*program.arrays())
    explanation = lowered.explain()
    assert (explanation.peak_bytes, [row.memory for row in explanation.rows]) == simulated(lowered.program)


@pytest.mark.parametrize("engine", ["literal"], indirect=True)
@settings(max_examples=100)
@given(program=programs(max_steps=10))
def test_devices_hold_no_more_than_explain_says(program, engine):
    with counted() as counter:
        arrays = program.arrays()
        lowered = sw.sjit(program.on_arrays).lower(*arrays)
        counter.most = 0
        lowered(arrays)
    assert counter.most <= lowered.explain().peak_bytes + unread(lowered.program)


# -- the local view in programs -----------------------------------------------------------------------------------------


def local_step(name, draw, mesh, ndim):
    """A collective that has a meaning for tensors of any sizes, as a function of a tensor per device."""
    axes = draw(axis_lists(mesh, min_size=1))
    dim = draw(st.integers(0, ndim - 1))
    root = tuple(draw(st.integers(0, mesh.axis(axis).size - 1)) for axis in axes)
    return {
        "all_gather": lambda v: c.all_gather(v, axes, dim),
        "broadcast": lambda v: c.broadcast(v, axes, root),
        "gather": lambda v: c.gather(v, axes, dim, root),
        "shift": lambda v: c.shift(v, axes, axes[0], 1, True),
        "send": lambda v: c.recv(c.send(v, axes, root), axes, root),
        "map": lambda v: v.map(lambda x: x[::-1] * 2),
        "add": lambda v: v + v * 3,
    }[name]


@settings(max_examples=200)
@given(data=st.data(), mesh=meshes(max_axes=3, max_devices=12), shape=shapes(min_dims=1, max_dims=3))
def test_the_local_view_is_the_same_inside_programs(data, mesh, shape):
    host = host_arrays(shape)
    x = sw.shard(host, data.draw(shardings(mesh, shape, partial=False, halo=False)))
    names = data.draw(st.lists(st.sampled_from("all_gather broadcast gather shift send map add".split()), max_size=3))
    steps = [local_step(name, data.draw, mesh, len(shape)) for name in names]
    seen = []

    def local(v):
        for step in steps:
            v = step(v)
        seen.append(v)
        return c.all_reduce(v.map(np.sum), mesh.axis_names)

    run = sw.shard_map(local, mesh, x.sharding, sw.P())
    try:
        expected = run(x)
    except CollectiveError as error:
        assume("different sizes" in str(error))
        with pytest.raises(CollectiveError):
            sw.sjit(run)(x)
        return
    held = [tensor.copy() for tensor in seen[0].values()]
    assert_same(sw.sjit(run)(x), expected)
    measured = sw.measure(run, x)
    assert all(row.counted == row.bytes and row.lower_bound <= row.bytes for row in measured.rows), measured
    assert int(np.asarray(expected)) == sum(int(tensor.sum()) for tensor in held)
