"""Array, PerDevice and shard_map: the public behaviour that no property covers, and the errors."""

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


def test_indexing_keeps_the_axes_of_dims_taken_whole():
    x = sw.shard(HOST, MESH, P("data", "model"))
    assert x[:, 1:3].sharding.spec == P("data", None)
    assert x[2].sharding.spec == P("model")
    assert x[None, ..., 0].sharding.spec == P(None, "data")
    with pytest.raises(ArrayError, match=r"indexed by integers, slices, ... and None; got \[0, 1\]"):
        x[[0, 1]]
    with pytest.raises(IndexError):
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
        (lambda: sw.shard([[1], [2, 3]], MESH, P()), ValueError, r"inhomogeneous"),
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
    with pytest.raises(ArrayError, match=r"no global meaning"):
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
    with pytest.raises(ArrayError, match=r"np.add.reduce does not work element by element"):
        np.add.reduce(coords)
    with pytest.raises(ArrayError, match=r"np.matmul does not work element by element on PerDevice values. Use .map"):
        coords @ coords
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
