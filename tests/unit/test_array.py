"""Array, PerDevice and shard_map: the public behaviour that no property covers, and the errors."""

import ml_dtypes
import numpy as np
import pytest

import shardwright as sw
from helpers import assert_devices, assert_same
from shardwright import P, Sharding
from shardwright import collectives as c
from shardwright.errors import ArrayError, CollectiveError, EngineError, ShardingError

MESH = sw.Mesh(data=2, model=4)
HOST = np.arange(24.0).reshape(6, 4)


def partial_sum():
    """Every device along model holds 1, 2, 3, 4; the value is 10."""
    return sw.from_shards(MESH, Sharding(MESH, P(None), partial="model"), [np.full(3, i % 4 + 1.0) for i in range(8)])


def test_a_contiguous_host_is_shared_without_a_copy():
    host = np.zeros((16, 8, 24), np.float32)
    for spec in (P("data"), P(None, "model"), P(("model", "data")), P("model", None, "data"), P()):
        x = sw.shard(host, MESH, spec, copy=False)
        assert np.shares_memory(x.lanes.data, host)
        assert np.shares_memory(np.asarray(x), host), "joined without a copy, too"
        assert not np.shares_memory(sw.shard(host, MESH, spec).lanes.data, host)


def test_the_host_copy_is_read_only_and_copies_on_request():
    x = sw.shard(HOST, MESH, P("data"))
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(x)[0, 0] = 1
    copied = np.array(x)
    copied[0, 0] = 77
    assert_same(x, HOST)
    assert np.asarray(x, dtype=np.int32).dtype == np.int32
    assert np.asarray(x, copy=False).base is not None
    with pytest.raises(ValueError, match=r"joined by a copy, and copy=False forbids one"):
        np.asarray(partial_sum(), copy=False)
    with pytest.raises(ValueError, match=r"float64 can't become int32 without a copy"):
        np.asarray(x, dtype=np.int32, copy=False)


def test_lists_scalars_and_other_hosts():
    assert_same(sw.shard([[1, 2], [3, 4]], MESH, P("data")), np.array([[1, 2], [3, 4]]))
    assert_same(sw.replicate(3.5, MESH), np.array(3.5))
    assert_same(sw.replicate(HOST, MESH), HOST)
    assert all(
        np.shares_memory(s.data, sw.replicate(HOST, MESH, copy=False).shards[0].data)
        for s in sw.replicate(HOST, MESH, copy=False).shards
    )


def test_partial_values_are_reduced_before_they_are_read():
    x = partial_sum()
    assert np.asarray(x).tolist() == [10, 10, 10]
    assert float(x[0]) == 10.0
    assert int(x[1]) == 10
    assert complex(x[2]) == 10
    assert bool(x[0])
    assert x[0].item() == 10
    assert x.tolist() == [10, 10, 10]
    assert [float(element) for element in x] == [10, 10, 10]
    assert str(x) == "[10. 10. 10.]"
    assert repr(x) == "Array([10., 10., 10.], f64[3] + sum{model} on Mesh(data=2, model=4))"
    assert np.asarray(x == 10).all()
    assert np.asarray(x >= x).all()
    assert not np.asarray(x != 10).any()
    assert not np.asarray(x < 10).any()
    assert not np.asarray(x > 10).any()
    assert np.asarray(x <= [10, 10, 10]).all()
    assert x.shards[1].data.tolist() == [2, 2, 2], "a shard shows its summand"


def test_integers_index():
    assert [10, 20][sw.replicate(np.array(1), MESH)] == 20
    with pytest.raises(TypeError):
        [10, 20][sw.replicate(np.array(1.0), MESH)]


def test_slices_stay_where_they_lie():
    x = sw.shard(HOST, MESH, P("data", "model"))
    y = x[:, 1:3]
    assert y.sharding == Sharding(MESH, P("data", "model"), offsets={1: (0, 0, 1, 2, 2)})
    assert_same(y, HOST[:, 1:3])
    assert "model" in x[2].sharding.axes
    assert x[None, ..., 0].sharding.dims[0] == ()
    with pytest.raises(IndexError, match=r"Index 9 is out of bounds for dim 0 of size 6"):
        x[9]


def test_an_array_stands_for_itself_only():
    x = sw.shard(HOST, MESH, P("data"))
    with pytest.raises(ArrayError, match=r"An Array is made by sw.shard"):
        sw.Array()
    with pytest.raises(ArrayError, match=r"This is an Array already: f64\[6@data,4\]"):
        sw.shard(x, MESH, P())
    with pytest.raises(ArrayError, match=r"Only an array of one element is a number; this one has shape \(6, 4\)"):
        float(x)
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)
    with pytest.raises(TypeError, match="has no length"):
        len(sw.replicate(1, MESH))
    assert len(x) == 6


def test_meshes_do_not_mix():
    x = sw.shard(HOST, MESH, P("data"))
    part = MESH.submesh((2, 2))
    y = sw.shard(HOST, part, P("data"))
    with pytest.raises(ArrayError) as error:
        x == y  # noqa: B015
    assert "Mesh(data=2, model=4)" in str(error.value)
    assert "devices=(0, 1, 4, 5)" in str(error.value)
    assert "Bring both onto one mesh first: x.reshard(Sharding(mesh, P(…)))" in str(error.value)
    assert np.asarray(x.reshard(Sharding(part, P("data"))) == y).all()
    with pytest.raises(ArrayError, match=r"Values on different meshes don't mix"):
        sw.process_index(MESH) + sw.process_index(part)
    with pytest.raises(ArrayError, match=r"shard_map runs on .*, but an argument lies on"):
        sw.shard_map(lambda v: v, MESH, P(), P())(y)
    assert [shard.device for shard in y.shards] == [0, 1, 4, 5]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: sw.shard(HOST, MESH, P("data", None, None)), ShardingError, r"has 3 entries, but the tensor"),
        (lambda: sw.shard(np.array(["a"]), MESH, P()), ArrayError, r"Elements of dtype <U1 can't be sharded"),
        (
            lambda: sw.shard([[1], [2, 3]], MESH, P()),
            ArrayError,
            r"can't be converted to a tensor: .* Give rows of equal length",
        ),
        (lambda: sw.shard(np.ma.array([1, 2], mask=[0, 1]), MESH, P()), ArrayError, r"would lose its mask"),
        (
            lambda: sw.shard(HOST, Sharding(MESH, P()), P("data")),
            ArrayError,
            r"Give a Sharding alone, or a mesh and a spec",
        ),
        (lambda: sw.shard(HOST, MESH, Sharding(sw.Mesh(x=2), P())), ArrayError, r"The sharding is for Mesh\(x=2\)"),
        (
            lambda: sw.shard(HOST, sw.Mesh(x=2, engine="gpu"), P()),
            EngineError,
            r"There is no engine 'gpu'. Use one of 'numpy'",
        ),
        (lambda: sw.PerDevice(MESH, [HOST] * 7), ArrayError, r"has 8 devices, but 7 values were given"),
        (lambda: sw.PerDevice(MESH, [HOST] * 7 + [HOST[1:]]), ArrayError, r"value 7 is float64 of shape \(5, 4\)"),
        (lambda: sw.PerDevice(MESH, [HOST] * 7 + [HOST.astype(int)]), ArrayError, r"value 7 is int64 of shape"),
        (lambda: sw.from_shards(MESH, P(), [1]), ArrayError, r"has 8 devices, but 1 shards were given"),
        (lambda: sw.from_shards(MESH, P(), list(range(8))), ArrayError, r"hold the same, but 7 of 8 elements differ"),
        (lambda: sw.from_shards(MESH, P("data"), [[1]] * 7 + [[1, 2]]), ArrayError, r"along dim 0 it has"),
        (lambda: sw.from_shards(MESH, P("data"), [[1]] * 7 + [1]), ArrayError, r"shard 7 is int64 with 0"),
        (
            lambda: sw.from_shards(MESH, P("data"), [[1]] * 8, shape=(3,)),
            ArrayError,
            r"of shape \(2,\), but shape=\(3,\)",
        ),
        (
            lambda: sw.from_shards(MESH, Sharding(MESH, P("data"), offsets={0: (0, 0, 2)}), [[1]] * 8),
            ArrayError,
            r"The shards begin at \{0: \[0, 1, 2\]\}",
        ),
    ],
)
def test_bad_arrays_say_what_is_wrong(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_from_shards_takes_any_sizes():
    x = sw.from_shards(sw.Mesh(x=3), P("x"), [np.array([1]), np.array([], int), np.array([2, 3])], shape=(3,))
    assert x.sharding.offsets == ((0, 1, 1, 3),)
    assert np.asarray(x).tolist() == [1, 2, 3]
    nan = sw.from_shards(sw.Mesh(x=2), P(), [np.array([np.nan])] * 2)
    assert np.isnan(np.asarray(nan)).all()


def test_shards_are_a_sequence():
    x = sw.shard(HOST, MESH, P("data", "model"))
    assert len(x.shards) == 8
    assert x.shards[-1].device == 7
    assert [s.device for s in x.shards[2:4]] == [2, 3]
    assert repr(x.shards[5]) == "Shard(device=5, coords=(1, 1), index=[3:6, 1:2])"
    assert repr(x.shards).startswith("[Shard(device=0")
    with pytest.raises(IndexError, match=r"Shard 8 of 8"):
        x.shards[8]
    with pytest.raises(ValueError, match="read-only"):
        x.shards[0].data[0] = 1


# -- PerDevice --------------------------------------------------------------------------------------------------------


def test_per_device_values():
    v = sw.PerDevice(MESH, [np.full(2, i) for i in range(8)])
    assert (v.shape, v.dtype, v.ndim, v.mesh) == ((2,), np.dtype(np.int64), 1, MESH)
    assert v[(1, 1)].tolist() == v[5].tolist() == [5, 5]
    assert [x.tolist() for x in v] == [[i, i] for i in range(8)]
    assert repr(v) == "PerDevice(i64[2] on Mesh(data=2, model=4))"
    with pytest.raises(ArrayError, match=r"can't be converted to a single array"):
        np.asarray(v)
    with pytest.raises(ArrayError, match=r"a value per device"):
        bool(v == v)
    with pytest.raises(ValueError, match="read-only"):
        v[0][0] = 1


def test_per_device_arithmetic():
    index = sw.process_index(MESH)
    coords = sw.process_coords(MESH)
    assert [x.tolist() for x in coords.values()] == [[i // 4, i % 4] for i in range(8)]
    assert [x.tolist() for x in sw.process_coords(MESH, "model").values()] == [[i % 4] for i in range(8)]
    assert [x.tolist() for x in sw.process_coords(MESH, "model:(2)2").values()] == [[i % 2] for i in range(8)]
    assert [int(x) for x in (2 * index + 1).values()] == [2 * i + 1 for i in range(8)]
    assert [x.tolist() for x in (coords + index).values()] == [[i // 4 + i, i % 4 + i] for i in range(8)]
    assert [x.tolist() for x in (coords * np.array([10, 1])).values()] == [[10 * (i // 4), i % 4] for i in range(8)]
    whole, rest = np.divmod(index, 3)
    assert [(int(a), int(b)) for a, b in zip(whole, rest, strict=True)] == [divmod(i, 3) for i in range(8)]
    mixed = c.broadcast(index, "model:(1)2", (0,)) + index
    assert [int(x) for x in mixed.values()] == [i + (i // 4 * 4 + i % 2) for i in range(8)]
    assert np.multiply(index, 2.5).dtype == np.float64
    assert [int(x) for x in np.sum(coords, axis=-1)] == [i // 4 + i % 4 for i in range(8)]
    assert [int(x) for x in coords @ coords] == [(i // 4) ** 2 + (i % 4) ** 2 for i in range(8)]
    assert [int(x) for x in coords @ np.array([10, 1])] == [10 * (i // 4) + i % 4 for i in range(8)]
    with pytest.raises(ArrayError, match=r"out= is not supported"):
        np.add(coords, 1, out=np.zeros(2))
    with pytest.raises(ArrayError, match=r"exp takes Arrays. On the tensors of each device use v.map"):
        sw.numpy.exp(coords)
    with pytest.raises(ArrayError, match=r"differ in rank or dtype"):
        index.map(lambda i: np.zeros((1,) * (int(i) % 2)))


def test_uneven_tensors_know_their_shapes():
    seen = []

    def body(v):
        seen.append(v)
        return v + v

    y = sw.shard_map(body, MESH, P("model"), P("model"))(np.arange(10))
    assert np.asarray(y).tolist() == [2 * i for i in range(10)]
    (v,) = seen
    assert repr(v) == "PerDevice(i64[1] or i64[3] on Mesh(data=2, model=4))"
    with pytest.raises(ArrayError, match=r"different shapes, \[\(1,\), \(3,\)\]"):
        v.shape  # noqa: B018
    with pytest.raises(CollectiveError, match=r"add: the operands have different sizes on some device along dim 0"):
        v + np.arange(3)


def test_shard_map_checks_what_is_said_to_be_the_same():
    double = sw.shard_map(lambda v: v * 2, MESH, (P("data"),), P("data"))
    assert_same(double(HOST), HOST * 2)
    with pytest.raises(ArrayError, match=r"shard_map: .* says devices along 'data' hold the same, but 12 of 24"):
        sw.shard_map(lambda v: v, MESH, P("data"), P())(HOST)
    with pytest.raises(ArrayError, match=r"splits dim 0 by no axis, but devices along other axes hold different sizes"):
        sw.shard_map(lambda v: v, MESH, P("model"), P())(HOST)
    with pytest.raises(ArrayError, match=r"1 arguments but 2 in_specs"):
        sw.shard_map(lambda v: v, MESH, (P(), P()), P())(HOST)
    with pytest.raises(ArrayError, match=r"the function gave a ndarray; it must give PerDevice values"):
        sw.shard_map(lambda v: HOST, MESH, P(), P())(HOST)
    with pytest.raises(ShardingError, match=r"has 3 entries, but the tensor of shape"):
        sw.shard_map(lambda v: v, MESH, P(), P(None, None, "data"))(HOST)


def test_shard_map_takes_trees():
    def body(tree, w):
        return {"sum": tree["a"] + w, "both": (tree["a"], tree["b"])}

    run = sw.shard_map(
        body, MESH, ({"a": P("data"), "b": P()}, P("data")), {"sum": P("data"), "both": (P("data"), P())}
    )
    result = run({"a": HOST, "b": np.ones(3)}, sw.shard(HOST, MESH, P(None, "model")))
    assert_same(result["sum"], HOST * 2)
    assert_same(result["both"][0], HOST)
    assert_same(result["both"][1], np.ones(3))


def test_a_partial_result_of_shard_map():
    def body(v):
        return v.map(lambda x: x.sum(axis=0))

    y = sw.shard_map(body, MESH, P("data"), Sharding(MESH, P(None), partial="data"))(HOST)
    assert y.sharding.partial == ("data",)
    assert_same(y, HOST.sum(axis=0))
    z = c.reduce_scatter(y, "data", 0)
    assert z.sharding.spec == P("data")
    assert_devices(
        MESH,
        [s.data for s in z.shards],
        {(i, j): HOST.sum(axis=0)[2 * i : 2 * i + 2] for i in range(2) for j in range(4)},
    )


# -- cases that were once wrong ---------------------------------------------------------------------------------------

X4, X2, XY = sw.Mesh(x=4), sw.Mesh(x=2), sw.Mesh(x=2, y=4)


def held(x):
    return [shard.data.tolist() for shard in x.shards]


def test_reducing_over_a_piece_of_a_partial_axis_leaves_the_right_summands():
    x = sw.from_shards(X4, Sharding(X4, P(), partial="x"), [[1, 10], [2, 20], [3, 30], [4, 40]])
    assert held(c.all_reduce(x, "x:(1)2")) == [[4, 40], [6, 60], [4, 40], [6, 60]]
    assert held(c.all_reduce(x, "x:(2)2")) == [[3, 30], [3, 30], [7, 70], [7, 70]]
    assert held(c.reduce_scatter(x, "x:(1)2", 0)) == [[4], [6], [40], [60]]
    kept = x.reshard(Sharding(X4, P(), partial="x"))
    assert held(kept) == [[1, 10], [2, 20], [3, 30], [4, 40]]
    both = sw.from_shards(XY, Sharding(XY, P(), partial=("x", "y")), [[i] for i in range(8)])
    assert held(both.reshard(Sharding(XY, P(), partial="y"))) == [[4], [6], [8], [10]] * 2
    assert held(both.reshard(Sharding(XY, P(), partial="y", reduction="max"))) == [[28]] * 8


def test_lanes_finer_than_the_result_needs_are_merged():
    def body(v):
        return c.all_reduce(c.all_reduce(v, "y:(1)2"), "y:(2)2")

    host = np.arange(64).reshape(8, 8)
    y = sw.shard_map(body, XY, P("x", "y"), P("x"))(host)
    assert y.shards[0].data.shape == (4, 2)
    assert_same(y, host.reshape(8, 4, 2).sum(axis=1))


def test_tensors_of_another_mesh_are_refused():
    turned = sw.Mesh(x=4, devices=[3, 2, 1, 0])
    v = sw.PerDevice(turned, [[10], [11], [12], [13]])
    assert v[3].tolist() == v[np.int64(3)].tolist() == [10]
    with pytest.raises(ArrayError, match=r"different meshes don't mix"):
        sw.from_shards(X4, P("x"), v)
    with pytest.raises(ArrayError, match=r"different meshes don't mix"):
        sw.shard_map(lambda _: v, X4, P("x"), P("x"))(np.arange(4))


@pytest.mark.parametrize("value", [[0.1], [1e308], [2**53 + 1], [-0.0]])
@pytest.mark.parametrize("reduction", ["average", "sum", "max"])
def test_a_value_taken_apart_is_the_same_value(value, reduction):
    mesh = sw.Mesh(x=3)
    back = np.asarray(sw.shard(np.array(value), Sharding(mesh, P(), partial="x", reduction=reduction)))
    assert_same(back, np.array(value))
    assert np.signbit(back) == np.signbit(np.array(value))


def test_averages_of_integers_are_not_taken_in_steps():
    mesh = sw.Mesh(a=2, b=2)
    both = Sharding(mesh, P(), partial=("a", "b"), reduction="average")
    x = sw.from_shards(mesh, both, [[0], [1], [1], [2]])
    assert np.asarray(x).tolist() == np.asarray(x.reshard(both.replace(partial=("a",)))).tolist() == [1]


def test_small_floats_are_averaged_in_float32():
    small = ml_dtypes.float8_e5m2
    v = sw.PerDevice(X2, [np.array([40960], small)] * 2)
    assert float(c.all_reduce(v, "x", "average")[0][0]) == 40960
    v = sw.PerDevice(X4, [np.array([n], small) for n in (8, 1, 1, 2)])
    assert float(c.all_reduce(v, "x", "average")[0][0]) == 3.0


def test_uneven_tensors_that_move_bring_their_size():
    run = sw.shard_map(lambda v: c.broadcast(v, "x", 1), X2, P("x"), P())
    assert np.asarray(run(np.arange(3))).tolist() == [2]
    run = sw.shard_map(lambda v: c.permute(v, "x", [(1, 0)]), X2, P("x"), P("x"))
    assert np.asarray(run(np.arange(3))).tolist() == [2, 0]
    run = sw.shard_map(lambda v: c.broadcast(v, "x", 2) + np.ones(2), sw.Mesh(x=3), P("x"), P())
    assert np.asarray(run(np.arange(8))).tolist() == [7, 8]
    run = sw.shard_map(lambda v: c.scatter(v, "x", 0, 0), X2, P("x"), P("x"))
    assert np.asarray(run(np.arange(3))).tolist() == [0, 1]
    uneven = sw.shard_map(lambda v: v, XY, P(("y", "x")), P(("y", "x")))(np.arange(11))
    assert_same(uneven, np.arange(11))


def test_other_byte_orders_are_made_native():
    x = sw.shard(np.arange(4, dtype=">f4"), Sharding(X4, P(), partial="x"))
    assert_same(x, np.arange(4, dtype=np.float32))


def test_a_reduction_must_fit_the_elements():
    with pytest.raises(ArrayError, match=r"has a pending bitwise_or, which works on the bits .*; float64 is neither"):
        sw.shard(np.ones(2), Sharding(X2, P(), partial="x", reduction="bitwise_or"))
    v = sw.PerDevice(X2, [[1]] * 2)
    with pytest.raises(CollectiveError, match=r"can't be reduced. Use a numeric or boolean dtype"):
        c.all_reduce(v, "x", dtype=object)
    with pytest.raises(CollectiveError, match=r"not a valid NumPy dtype"):
        c.all_reduce(v, "x", dtype="bogus")


def test_the_last_shard_may_be_shorter_than_a_low_halo():
    mesh = sw.Mesh(x=3)
    x = sw.shard(np.arange(7.0), Sharding(mesh, P("x"), halo={0: (2, 0)}))
    assert held(c.update_halo(x, ["x"], [(2, 0)])) == held(x) == [[0, 0, 0, 1, 2], [1, 2, 3, 4, 5], [4, 5, 6]]


def test_update_halo_must_name_the_arrays_own_axes():
    x = sw.shard(np.arange(16.0).reshape(4, 4), Sharding(sw.Mesh(x=2, y=2), P("x", None), halo={0: 1}))
    with pytest.raises(CollectiveError, match=r"give \('y',\) and \(0, 0\) for dim 1"):
        c.update_halo(x, ["x", "y"], [(1, 1), (0, 0)])
    with pytest.raises(CollectiveError, match=r"2 halo sizes"):
        c.update_halo(x, ["x"], [(1, 1), (1, 1)])


def test_padding_is_neither_compared_nor_warned_about():
    mesh = sw.Mesh(x=2, y=2)

    def body(v):
        return v + sw.process_coords(mesh, "x") * sw.process_coords(mesh, "y")

    assert np.asarray(sw.shard_map(body, mesh, P("x"), P("x"))(np.array([5]))).tolist() == [5]
    with np.errstate(all="raise"):
        y = sw.shard_map(lambda v: np.log(v.map(lambda a: a + 0)), X4, P("x"), P("x"))(np.arange(1.0, 6.0))
        np.testing.assert_allclose(np.asarray(y), np.log(np.arange(1.0, 6.0)))
        parts = sw.from_shards(X4, P("x"), [np.ones(2), np.ones(2), np.ones(1), np.ones(0)])
        assert np.asarray(1 / parts).tolist() == [1] * 5


def test_shard_map_results_own_their_data():
    host = np.arange(8.0)
    y = sw.shard_map(lambda v: v, X4, P("x"), P("x"))(host)
    host[0] = 99
    assert np.asarray(y)[0] == 0


def test_an_error_in_the_body_leaves_no_open_send():
    def body(v):
        c.send(v, "x", 1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        sw.shard_map(body, X2, P("x"), P("x"))(np.arange(2))
    c.all_reduce(sw.PerDevice(X2, [[1]] * 2), "x")


def test_both_ends_of_a_transfer_agree_on_the_size():
    def body(v):
        return c.recv(c.send(v, "x", 1), "x", 0)

    with pytest.raises(
        CollectiveError, match=r"recv expects int64 of shape \(2,\), but source \(0,\) sent int64 of shape \(3,\)"
    ):
        sw.shard_map(body, X2, P("x"), P("x"))(np.arange(5))


def test_offsets_in_out_specs_are_held_to():
    with pytest.raises(ArrayError, match=r"the shards of dim 0 begin at \[0, 4, 8\], but"):
        sw.shard_map(lambda v: v, X2, P("x"), Sharding(X2, P("x"), offsets={0: (0, 1, 8)}))(np.arange(8))


def test_halos_in_out_specs():
    sharding = Sharding(X2, P("x"), halo={0: 1})
    y = sw.shard_map(lambda v: v, X2, sharding, sharding)(np.arange(6))
    assert y.shape == (6,)
    assert held(y) == [[0, 0, 1, 2, 3], [2, 3, 4, 5, 0]]


def test_numbers_keep_the_dtype_of_tensors_per_device():
    v = sw.PerDevice(X2, [np.ones(2, np.float32)] * 2)
    assert (v * 2.5).dtype == np.float32
    assert np.add(v, v, dtype=np.float64).dtype == np.float64
    before = v
    v += 1
    assert v is before
    assert v[0].tolist() == [2, 2]
    with pytest.raises(ArrayError, match=r"got int. Use it in the function as a closure"):
        v.map(np.add, 3)


def test_shards_are_compared_by_identity():
    x = sw.shard(np.arange(4), X2, P("x"))
    assert (x.shards[0] == x.shards[1]) is False
    with pytest.raises(ArrayError, match=r"picture takes an Array; got ndarray"):
        sw.picture(np.arange(4))
    with pytest.raises(ArrayError, match=r"gather takes an Array; got ndarray"):
        sw.gather(np.arange(4))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: sw.Mesh(x=2, devices=[4.9, 7.2]), r"Device ids 4.9 is not an integer"),
        (lambda: Sharding(X2, P("x"), offsets={0: (0, 2.9, 8)}), r"Offsets 2.9 is not an integer"),
        (lambda: Sharding(X2, P("x"), offsets={0: "028"}), r"Offsets must be a sequence of integers; got '028'"),
        (lambda: Sharding(X2, P("x"), halo={0: (1.7, 0)}), r"Halo sizes 1.7 is not an integer"),
        (lambda: Sharding(X2, P("x"), halo={0: 1, -1: 2}), r"is not one \(low, high\) pair for that dim"),
        (lambda: XY.submesh((1.9, 2)), r"The submesh shape 1.9 is not an integer"),
        (lambda: XY.coords(2.7), r"Device id 2.7 is not an integer"),
        (lambda: XY.groups({"x", "y"}), r"Axes are a name or a sequence of names, in order"),
        (lambda: P({"x", "y"}), r"is an invalid spec entry"),
        (lambda: sw.Mesh(x=2, links={"x": "ring"}), r"links gives 'ring' for axis 'x'; give a Link"),
        (lambda: Sharding(X2, P(), partial=None), r"Axes are a name or a sequence of names"),
        (lambda: c.broadcast(sw.process_index(X2), "x", None), r"None is not a valid position in a group"),
        (lambda: sw.Mesh.on_topology(8, {"a": 8}), r"The physical topology must be a sequence of integers"),
    ],
)
def test_numbers_and_names_are_not_guessed(make, text):
    with pytest.raises(sw.ShardwrightError, match=text):
        make()


def test_numbers_of_numpy_are_numbers():
    assert sw.Mesh((2, -1), ("a", "b"), devices=np.int64(8)).shape == (2, 4)
    assert tuple(XY.submesh((2, 2), offset=np.array([0, 2])).device_ids) == (2, 3, 6, 7)
    assert Sharding(X2, P("x"), halo={0: np.int64(1)}).halo == ((1, 1),)
    assert sw.Mesh(4, ("x",)) == X4
    assert len(sw.Mesh.on_topology((2,) * 12, {"a": 8, "b": 8, "c": 8, "d": 8}).device_ids) == 4096


def test_a_tensor_parallel_network_in_the_local_view():
    x, up, down = (
        np.random.default_rng(i).standard_normal(shape) for i, shape in enumerate([(6, 5), (5, 10), (10, 3)])
    )

    def body(v, a, b):
        return c.all_reduce(np.maximum(v @ a, 0) @ b, "model")

    run = sw.shard_map(body, MESH, (P("data"), P(None, "model"), P("model")), P("data"))
    np.testing.assert_allclose(np.asarray(run(x, up, down)), np.maximum(x @ up, 0) @ down)


def test_from_shards_takes_a_sharding_alone_and_shards_as_they_are():
    x = sw.shard(HOST, MESH, P("data", "model"))
    for again in (sw.from_shards(x.sharding, x.shards), sw.from_shards(MESH, P("data", "model"), x.shards)):
        assert again.sharding == x.sharding
        assert_same(again, HOST)
    with pytest.raises(ArrayError, match=r"stands where the mesh belongs"):
        sw.shard(HOST, P("data"))
    with pytest.raises(sw.ShardwrightError, match=r"axis_names is 4; give names"):
        sw.Mesh(2, 4)


@pytest.mark.parametrize("step", [2**63, -(2**63), 2**70, -(2**70)])
def test_steps_beyond_64_bits(step):
    for size in (0, 1, 5):
        host = np.arange(size)
        x = sw.shard(host, sw.Mesh(x=2), P("x"))
        assert_same(x[::step], host[::step])
        assert_same(x[1::step], host[1::step])
        x[::step] = 7
        host[::step] = 7
        assert_same(x, host)
