"""The JAX engine: where shards are, dtypes, errors by data, and that XLA is given the steps that explain shows."""

import re
import warnings
from collections import Counter

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import shardwright as sw
import shardwright.numpy as snp
from shardwright import P, nn, random
from shardwright.engines.jax.compiling import Compiled
from shardwright.engines.jax.rounds import padded_bytes, rounds_of
from shardwright.errors import EngineError, MeshError
from shardwright.plan import move_steps
from shardwright.sharding import Sharding, layout_of

MESH = sw.Mesh(x=2, y=4, engine="jax")
HOST = np.arange(70.0).reshape(10, 7)


def sharded(*spec, host=HOST, mesh=MESH):
    return sw.shard(host, mesh, P(*spec))


# -- shards on JAX's devices --------------------------------------------------------------------------------------------


def test_the_shards_of_an_even_array_are_a_jax_array_of_its_shape():
    x = sharded("x", "y", host=np.arange(64.0, dtype=np.float32).reshape(8, 8))
    assert isinstance(x.data, jax.Array)
    assert x.data.shape == (8, 8)
    assert x.data.sharding.spec == jax.P("x", "y")
    for place, shard in enumerate(x.shards):
        (own,) = (s for s in x.data.addressable_shards if s.device == jax.devices()[place])
        np.testing.assert_array_equal(np.asarray(own.data), shard.data)


def test_device_ids_are_numbers_of_jaxs_devices():
    mesh = sw.Mesh(x=2, y=2, devices=(6, 1, 3, 0), engine="jax")
    x = sharded("x", "y", mesh=mesh)
    assert [d.id for d in x.data.sharding.mesh.devices.ravel()] == [6, 1, 3, 0]
    (own,) = (s for s in x.data.addressable_shards if s.device == jax.devices()[3])
    np.testing.assert_array_equal(np.asarray(own.data)[:5, :4], HOST[5:, :4])


def test_more_devices_than_jax_has_are_refused():
    mesh = sw.Mesh(x=3, y=4, engine="jax")
    with pytest.raises(EngineError, match=r"uses device 11, and JAX has 8 cpu devices here. .*device_count=12"):
        sharded("x", "y", mesh=mesh)
    assert sw.explain(lambda x: x @ x.T, sw.ShapeDtype((10, 7), "float32", Sharding(mesh, P("x")))).rows


def test_an_unknown_platform_is_refused():
    with pytest.raises(EngineError, match="JAX has no platform 'nope'"):
        sharded("x", mesh=sw.Mesh(x=2, engine="jax", device="nope"))
    with pytest.raises(MeshError, match=r"device=3 is not a device"):
        sw.Mesh(x=2, engine="jax", device=3)


def test_a_mesh_on_jax_reads_back():
    assert repr(MESH) == "Mesh(x=2, y=4, engine='jax')"
    on_cpu = sw.Mesh(x=2, engine="jax", device="cpu")
    assert eval(repr(on_cpu), {"Mesh": sw.Mesh}) == on_cpu != sw.Mesh(x=2, engine="jax")


def test_jax_arrays_are_placed_from_device_to_device():
    given = jnp.arange(16.0).reshape(4, 4)
    x = sw.shard(given, MESH, P("x", "y"))
    np.testing.assert_array_equal(np.asarray(x), np.asarray(given))
    assert x.dtype == np.float32
    uneven = sw.shard(given[:3], MESH, P("y"))
    np.testing.assert_array_equal(np.asarray(uneven), np.asarray(given[:3]))


def test_the_host_tensor_may_change_afterwards():
    for shape in ((8, 8), (7, 5)):
        host = np.ones(shape)
        x = sharded("x", "y", host=host)
        host[:] = 5
        np.testing.assert_array_equal(np.asarray(x), np.ones(shape))


# -- 64 bits ------------------------------------------------------------------------------------------------------------


def test_nothing_is_narrowed_whatever_jax_enable_x64_says():
    assert not jax.config.jax_enable_x64
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in (np.float64, np.int64, np.uint64, np.complex128):
            for shape in ((8, 8), (7, 5)):
                host = (np.arange(np.prod(shape)) + 2**40).astype(dtype).reshape(shape)
                x = sharded("x", "y", host=host)
                assert x.dtype == x.data.dtype == (x + 1).data.dtype == dtype
                np.testing.assert_array_equal(np.asarray(x + 1), host + 1)
                np.testing.assert_array_equal(np.asarray(sw.sjit(lambda x: x + x)(x)), host + host)
        assert snp.argmax(sharded("x", "y")).dtype == np.int64
        assert (sharded("x", host=np.arange(5, dtype=np.int32)) / 2).dtype == np.float64


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn, np.int16, np.bool_, np.uint32]
)
def test_small_dtypes_compute_as_on_the_literal_engine(dtype):
    host = (np.arange(24) % 5).astype(dtype).reshape(4, 6)
    for spec in (("x", "y"), (None, ("y", "x"))):
        x, plain = sharded(*spec, host=host), sw.shard(host, sw.Mesh(x=2, y=4, engine="literal"), P(*spec))
        for function in (
            lambda x: x + x,
            lambda x: snp.sum(x, axis=0),
            lambda x: x @ x.T,
            lambda x: snp.max(x, axis=1),
        ):
            mine, theirs = function(x), function(plain)
            assert mine.dtype == theirs.dtype
            np.testing.assert_allclose(np.asarray(mine).astype(float), np.asarray(theirs).astype(float), rtol=0.02)


def test_python_scalars_are_weak_and_do_not_compile_anew():
    x = sharded("x", "y").astype(np.float32)
    (x * 2.0).data.block_until_ready()
    with jax.log_compiles(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (3.0, 0.25, -7.5):
            made = x * value
            assert made.dtype == np.float32
            np.testing.assert_array_equal(np.asarray(made), HOST.astype(np.float32) * np.float32(value))
    small = sharded("x", host=np.arange(5, dtype=np.uint8))
    np.testing.assert_array_equal(np.asarray(small < 300), np.ones(5, bool))
    with pytest.raises(OverflowError):
        small + 300


# -- errors that depend on data -----------------------------------------------------------------------------------------


def test_indices_out_of_range_are_errors_in_programs_loops_and_choices():
    table = sharded("y", None, host=np.arange(20.0).reshape(10, 2))
    bad, good = (sharded("x", host=np.array(some)) for some in ([1, 99, 3], [1, 9, 3]))

    def looped(table, i):
        def body(state):
            return state[0] + 1, snp.take(table, i, axis=0)

        return sw.while_loop(lambda state: state[0] < 2, body, (snp.asarray(0), table[:3]))[1]

    def scanned(table, i):
        return sw.scan(lambda carry, row: (carry + snp.take(table, row, axis=0), row), table[0], i)[0]

    def chosen(table, i):
        return sw.cond(snp.sum(table) > 0, lambda: snp.take(table, i, axis=0), lambda: table[:3])

    expected = np.asarray(table)[[1, 9, 3]]
    for function in (lambda table, i: snp.take(table, i, axis=0), looped, chosen):
        np.testing.assert_array_equal(np.asarray(sw.sjit(function, mesh=MESH)(table, good)), expected)
        with pytest.raises(IndexError, match="99"):
            sw.sjit(function, mesh=MESH)(table, bad)
    np.testing.assert_array_equal(
        np.asarray(sw.sjit(scanned)(table, good)), np.asarray(table)[0] + expected.sum(axis=0)
    )
    with pytest.raises(IndexError, match="99"):
        sw.sjit(scanned)(table, bad)


def test_what_numpy_refuses_by_data_is_refused():
    matrices = np.stack([np.eye(2), np.ones((2, 2)), np.eye(2) * 2])
    x = sharded("y", host=matrices)  # 3 matrices over 4 devices: padding is no matrix
    for function in (snp.linalg.inv, lambda x: snp.linalg.solve(x, x)):
        with pytest.raises(np.linalg.LinAlgError, match="Singular"):
            function(x)
    regular = sharded("y", host=matrices[[0, 2, 0]])
    np.testing.assert_allclose(np.asarray(snp.linalg.inv(regular)), np.linalg.inv(matrices[[0, 2, 0]]))
    with pytest.raises(np.linalg.LinAlgError, match="positive definite"):
        snp.linalg.cholesky(-regular)
    powers = sharded("x", host=np.array([1, -1, 2]))
    with pytest.raises(ValueError, match="negative integer powers"):
        sharded("x", host=np.array([2, 3, 4])) ** powers


# -- what XLA is given is what explain shows ----------------------------------------------------------------------------

KINDS = {
    "all_gather": "all-gather",
    "prefix": "all-gather",
    "all_reduce": "all-reduce",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
}


def hlo_of(function, *arrays, optimized=False):
    program = sw.sjit(function).lower(*arrays)
    data = program.data(arrays, [known.array for known in program.outside.captured])
    lowered = Compiled(program.code).lower(*data)
    return lowered.compile().as_text() if optimized else lowered.as_text("hlo")


def collectives_in(text):
    found = re.findall(r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", text)
    return Counter(found)


def test_collectives_in_the_hlo_are_the_steps_of_the_plan():
    x = sharded("x", "y", host=np.ones((16, 16), np.float32))
    w = sharded("y", None, host=np.ones((16, 8), np.float32))

    def block(x, w):
        y = nn.relu(x @ w).reshard(P("x", None))  # a reduction over y
        z = snp.cumulative_sum(y.reshard(P(None, "x")), axis=1)  # an all-to-all, then totals that all devices see
        return z.reshard(P(None, None)), snp.sum(x)

    steps = Counter(KINDS[row.collective.split()[0]] for row in sw.explain(block, x, w).collectives)
    assert {"all-reduce", "all-to-all", "all-gather"} <= set(steps)
    given = hlo_of(block, x, w)
    assert collectives_in(given) == steps
    # XLA's own rewrites on CPUs in this program: none.
    assert collectives_in(hlo_of(block, x, w, optimized=True)) == steps


def test_uneven_moves_are_rounds_of_permutes_without_host_callbacks():
    x = sharded("x", "y")
    function = lambda x: x.reshard(P("y", "x"))  # noqa: E731
    steps = move_steps(x.sharding, Sharding(MESH, P("y", "x")), x.shape, x.dtype)
    rounds = sum(bool(turn.pairs) for step in steps for turn in rounds_of(step))
    text = hlo_of(function, x, optimized=True)
    assert collectives_in(text) == {"collective-permute": rounds}
    assert " custom-call(" not in text  # a callback to the host would be one


def test_padded_bytes_are_those_of_the_largest_box_of_each_round():
    """7 rows over 4 devices are blocks of 2, 2, 2 and 1; each goes to all three others, padded to 2 rows."""
    whole = move_steps(Sharding(MESH, P("y")), Sharding(MESH, P()), (7,), np.dtype(np.float64))
    (step,) = whole
    assert step.received == 6 * 8  # the last device has one row and receives six
    assert padded_bytes(step) == 3 * 2 * 8
    x = sw.ShapeDtype((7,), "float64", Sharding(MESH, P("y")))
    (row,) = sw.explain(lambda x: x.reshard(P()), x).rows
    assert (row.bytes, row.padded) == (48, 48)
    plain = sw.ShapeDtype((7,), "float64", Sharding(sw.Mesh(x=2, y=4), P("y")))
    assert [row.padded for row in sw.explain(lambda x: x.reshard(P()), plain).rows] == [None]


def test_padded_bytes_are_those_of_the_permutes_in_the_hlo():
    x = sharded("x", "y")
    rows = sw.explain(lambda x: x.reshard(P("y", "x")), x).rows
    shapes = re.findall(r"f64\[([\d,]+)\]\S* collective-permute\(", hlo_of(lambda x: x.reshard(P("y", "x")), x))
    travelled = sum(8 * np.prod([int(n) for n in shape.split(",")]) for shape in shapes)
    assert (
        sum(row.bytes for row in rows) < sum(row.padded for row in rows) <= travelled
    )  # no device is in more than all rounds
    assert " padded " in sw.explain(lambda x: x.reshard(P("y", "x")), x).full()


def test_control_flow_stays_control_flow():
    x = sharded("x", "y", host=np.ones((8, 8), np.float32))

    def looped(x):
        _, y = sw.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] @ s[1].T), (snp.asarray(0), x))
        return sw.cond(snp.sum(y) > 0, lambda: y + 1, lambda: y - 1)

    text = hlo_of(looped, x)
    assert " while(" in text
    assert " conditional(" in text
    host = np.ones((8, 8), np.float32)
    for _ in range(3):
        host = host @ host.T
    np.testing.assert_allclose(np.asarray(sw.sjit(looped)(x)), host + 1)


def test_many_runs_in_a_row_come_to_an_end():
    """Runs of XLA on CPUs that are not waited for can stop one another for ever."""
    x = sharded("x", "y", host=np.ones((8, 8), np.float32))
    step = sw.sjit(lambda x: x / snp.sum(x) * 64)
    for _ in range(200):
        x = step(x)
    np.testing.assert_allclose(np.asarray(x), np.ones((8, 8)), rtol=1e-5)


# -- the same as elsewhere ----------------------------------------------------------------------------------------------


def test_random_numbers_are_the_same_bits_as_on_other_engines():
    plain = sw.Mesh(x=2, y=4)
    for spec in (P("x", "y"), P(None, ("y", "x"))):
        for function in (random.bits, random.uniform, random.normal):
            mine, theirs = (function(random.Key(7), (5, 9), sharding=Sharding(mesh, spec)) for mesh in (MESH, plain))
            if function is random.normal:
                np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-6)
            else:
                np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


def test_axes_cut_in_ways_without_a_common_cut():
    mesh = sw.Mesh(a=6, engine="jax")
    x = sw.shard(HOST, Sharding(mesh, P("a:(1)2", "a:(2)3")))
    y = x.reshard(Sharding(mesh, P("a:(1)3", "a:(3)2")))
    np.testing.assert_array_equal(np.asarray(y), HOST)
    np.testing.assert_array_equal(np.asarray(sw.sjit(lambda x, y: x + y)(x, y)), HOST + HOST)


def test_arrays_move_to_other_meshes_and_engines_agree():
    x = sharded("x", "y")
    other = sw.Mesh(z=3, engine="jax")
    y = x.reshard(Sharding(other, P("z")))
    np.testing.assert_array_equal(np.asarray(y), HOST)
    assert {s.device for s in y.data.addressable_shards} == set(jax.devices()[:3])


def test_functions_of_python_on_tensors_per_device_run_on_the_host():
    x = sharded("x", "y")

    @sw.sjit
    def program(x):
        body = lambda v: sw.collectives.all_reduce(v.map(np.sum) * 2, ("x", "y"))  # noqa: E731
        return sw.shard_map(body, MESH, P("x", "y"), P())(x * 3)

    assert float(program(x)) == HOST.sum() * 6


def test_a_layout_of_no_elements():
    x = sharded("x", "y", host=np.zeros((0, 7)))
    assert np.asarray(x + 1).shape == (0, 7)
    assert float(snp.sum(x)) == 0
    assert np.asarray(x.reshard(P("y"))).shape == (0, 7)
    assert layout_of(x.sharding, x.shape).local_shape == (0, 2)
