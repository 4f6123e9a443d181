"""Assignment: the value moves to what it replaces, which stays where it is, eagerly and in programs."""

import numpy as np
import pytest
import torch

import shardwright as sw
import shardwright.numpy as snp
from helpers import assert_same
from shardwright import P

MESH = sw.Mesh(x=4)
ENGINES = pytest.mark.parametrize("engine", ["numpy", "literal"])


def sizes(x):
    return [shard.data.shape[0] for shard in x.shards]


def writing(index):
    def fn(x, value):
        x[index] = value
        return x

    return fn


CASES = {
    "a slice": (slice(5, 6), (1, 3)),
    "a long slice": (slice(10, 100), (90, 3)),
    "a strided slice": (slice(3, 120, 7), (17, 3)),
    "a slice in reverse": (slice(100, 2, -3), (33, 3)),
    "nothing": (slice(7, 7), (0, 3)),
    "everything": (slice(None), (128, 3)),
    "a row": (-1, (3,)),
    "an element": ((70, 1), ()),
    "a column": ((slice(None), 2), (128,)),
    "a new dim": ((None, slice(4, 8)), (1, 4, 3)),
    "integer indices": (np.array([5, 127, 64, 5]), (4, 3)),
    "pairs of indices": ((np.array([5, 127, 64, 5]), np.array([0, 1, 2, 0])), (4,)),
    "indices and a slice": ((np.array([5, 127]), slice(0, 2)), (2, 2)),
    "a list": ([1, 3], (2, 3)),
    "a mask of rows": (np.arange(128) % 50 == 3, (3, 3)),
    "a mask of elements": ((np.arange(384) % 50 == 3).reshape(128, 3), (8,)),
    "a flag": (np.array(True), (1, 128, 3)),
    "a flag that is off": (np.array(False), (0, 128, 3)),
}


@ENGINES
@pytest.mark.parametrize("kind", ["array", "split", "scalar", "broadcast"])
@pytest.mark.parametrize("name", CASES)
def test_an_assignment_keeps_the_layout(engine, name, kind):
    """Once `c[5:6] = k` on 128 rows over 4 devices left [128, 0, 0, 0] rows in a program."""
    index, shape = CASES[name]
    mesh = sw.Mesh(x=4, engine=engine)
    host = np.arange(384.0).reshape(128, 3)
    value = -1.0 - np.arange(np.prod(shape)).reshape(shape)
    if kind == "scalar":
        value = -5.0
    elif kind == "broadcast" and shape:
        value = value[..., :1]
    expected = host.copy()
    expected[index] = value
    given = sw.shard(value, mesh, P("x")) if kind == "split" and shape else value
    for spec in (P("x"), P(None, "x"), P()):
        x = sw.shard(host, mesh, spec)
        before = x.sharding
        for made in (sw.sjit(writing(index))(x, given), writing(index)(x, given)):
            assert_same(made, expected)
            assert made.sharding is before


def test_only_the_value_moves():
    x = sw.shard(np.zeros((128, 3)), MESH, P("x"))
    row = np.ones((1, 3))
    for index in (slice(5, 6), 5, np.array([5])):
        assert sw.explain(writing(index), x, row[0]).total_bytes == 0, "every device has the row"
    whole = sw.shard(np.ones((128, 3)), MESH, P("x"))
    moved = sw.explain(lambda x, y: writing(slice(1, None))(x, y[:-1]), x, whole)
    assert moved.total_bytes == 3 * 8, "a shift by one row moves one row"
    mask = sw.explain(lambda x, y: writing(y > 0)(x, 7.0), x, whole)
    assert mask.total_bytes == 0
    cross = sw.shard(np.ones((4, 3)), MESH, P("x"))
    assert sw.explain(writing(slice(60, 64)), x, cross).total_bytes == 3 * 3 * 8, "three of four rows change hands"


def test_assignments_move_what_they_say():
    x = sw.shard(np.zeros((10, 7)), sw.Mesh(x=2, y=3), P("x", "y"))
    value = sw.shard(np.ones((4, 7)), x.mesh, P("y"))
    for index in (slice(3, 7), slice(8, 0, -2), np.array([9, 1, 4, 1])):
        for row in sw.measure(writing(index), x, value).rows:
            assert row.counted == row.bytes


def test_a_cache_split_along_the_sequence_stays_split():
    """Decoding: a row of keys is written at a position that the program computes."""
    mesh = sw.Mesh(s=4)
    cache = sw.shard(np.zeros((2, 16, 3)), mesh, P(None, "s"))
    rows = np.arange(2 * 16 * 3.0).reshape(2, 16, 3)

    def step(state, row):
        cache, at = state
        cache[:, at] = row
        return (cache, at + 1), None

    def decode(cache, at, rows):
        return sw.scan(step, (cache, at), rows)[0][0]

    with sw.strict():
        made = sw.sjit(decode)(cache, sw.replicate(np.array(0), mesh), sw.replicate(np.moveaxis(rows, 1, 0), mesh))
    assert_same(made, rows)
    assert made.sharding == cache.sharding


def test_a_partial_array_is_reduced_before_it_is_written():
    x = sw.from_shards(sw.Sharding(MESH, P(), partial="x"), [np.arange(4.0)] * 4)
    x[1:3] = 7.0
    assert x.tolist() == [0, 7, 7, 12]
    assert not x.sharding.partial


def test_other_variables_keep_their_value():
    x = sw.shard(np.arange(8.0), MESH, P("x"))
    y, host = x[:], np.asarray(x)
    x[2:5] = 0.0
    x[np.array([0])] = 9.0
    assert y.tolist() == host.tolist() == list(range(8))


@ENGINES
def test_what_does_not_fit_is_refused(engine):
    mesh = sw.Mesh(x=4, engine=engine)
    x = sw.shard(np.zeros((8, 3)), mesh, P("x"))
    with pytest.raises(ValueError, match=r"shape \(4,\) does not broadcast to the shape \(2, 3\) of what it replaces"):
        x[2:4] = np.ones(4)
    with pytest.raises(ValueError, match=r"A value of shape \(2, 2\) does not broadcast to the shape \(4, 2\)"):
        x[np.array([0, 1, 2, 3]), :2] = np.ones((2, 2))
    with pytest.raises(IndexError, match="Index 8 is out of bounds for dim 0 of size 8"):
        x[8] = 1
    for far in ([0, 9], sw.replicate(np.array([0, 9]), mesh)):
        with pytest.raises(IndexError, match="Index 9 is out of bounds for dim 0 of size 8"):
            x[far] = 1
    with pytest.raises(IndexError, match=r"Index arrays of shapes \(2,\), \(3,\) don't broadcast together"):
        x[[0, 1], [0, 1, 2]] = 1
    with pytest.raises(IndexError, match=r"A mask of shape \(7,\) does not fit the first dims"):
        x[np.ones(7, bool)] = 1
    with pytest.raises(sw.errors.OperationError, match="An index array has integers or booleans; got float64"):
        x[np.array([0.5])] = 1
    mask = snp.arange(8, sharding=sw.Sharding(mesh, P("x"))) > 5
    with pytest.raises(ValueError, match="A value of 3 rows is assigned to the 2 places where the mask is true"):
        x[mask] = np.ones((3, 3))
    with pytest.raises(ValueError, match="A value of 3 rows is assigned to the 2 places"):
        sw.sjit(writing(mask))(x, np.ones((3, 3)))
    assert_same(x, np.zeros((8, 3)))


@ENGINES
@pytest.mark.parametrize("seed", range(4))
def test_booleans_without_dims_beside_other_entries_are_index_arrays_of_one_place_or_none(engine, seed):
    rng, mesh, compared = np.random.default_rng(seed), sw.Mesh(x=2, y=2, engine=engine), 0
    entries = [
        True,
        False,
        np.True_,
        0,
        -1,
        slice(None),
        slice(1, None),
        slice(None, None, -1),
        None,
        ...,
        [0, 1],
        "mask",
    ]
    while compared < 60:
        shape = tuple(int(n) for n in rng.choice([2, 3], rng.integers(1, 4)))
        index = [entries[at] for at in rng.integers(0, len(entries), rng.integers(1, 5))]
        if not any(entry is flag for entry in index for flag in entries[:3]):
            continue
        index = tuple(rng.random(shape[0]) < 0.5 if isinstance(entry, str) else entry for entry in index)
        host = np.arange(np.prod(shape)).reshape(shape)
        x = sw.shard(host, mesh, P(("x", "y", None)[rng.integers(3)]))
        try:
            sizes = tuple(1 if rng.random() < 0.2 else n for n in host[index].shape)
            value = 100 + np.arange(np.prod(sizes)).reshape(sizes)
            host[index] = value
        except (IndexError, ValueError):
            with pytest.raises((IndexError, ValueError)):
                x[index] = 5
            continue
        assert_same(sw.sjit(writing(index))(x, value), host)
        x[index] = value
        assert_same(x, host)
        compared += 1


@ENGINES
@pytest.mark.parametrize("index", [1, slice(1, 3), np.array([0, 4]), np.arange(5) > 2, (slice(None), 2)])
def test_an_assignment_keeps_halos(engine, index):
    mesh = sw.Mesh(x=2, engine=engine)
    halo = sw.Sharding(mesh, P("x"), halo={0: (1, 0)}).for_shape((5, 4))
    x = sw.shard(np.arange(20.0).reshape(5, 4), mesh, P("x")).reshard(halo)
    program = sw.sjit(writing(index))(x, 7.0)
    x[index] = 7.0
    assert program.sharding == x.sharding == halo
    for one, other in zip(program.shards, x.shards, strict=True):
        np.testing.assert_array_equal(one.data, other.data)


@pytest.mark.parametrize("engine", ["numpy", "torch", "literal"])
@pytest.mark.parametrize(
    "value",
    [torch.nn.Parameter(torch.tensor([5.0, 6.0])), torch.tensor([5, 6], dtype=torch.bfloat16), torch.tensor(5)],
    ids=["parameter", "bfloat16", "scalar"],
)
def test_torch_tensors_are_assigned(value, engine):
    """Once parameters and bfloat16 gave errors of torch."""
    x = sw.shard(np.arange(8.0), sw.Mesh(x=4, engine=engine), P("x"))
    expected = np.arange(8.0)
    expected[1:3] = value.detach().float().numpy()
    for made in (sw.sjit(writing(slice(1, 3)))(x, value), writing(slice(1, 3))(x, value)):
        assert_same(made, expected)


@pytest.mark.parametrize(
    "index",
    [torch.tensor([1, -1]), torch.tensor(3), torch.tensor(True), torch.arange(8) > 3, (torch.tensor([1]), None)],
)
def test_torch_tensors_are_indices(index):
    """Once only arrays and lists were."""
    host = np.arange(8.0)
    x = sw.shard(host, MESH, P("x"))
    numpys = tuple(i if i is None else i.numpy() for i in index) if isinstance(index, tuple) else index.numpy()
    assert_same(x[index], host[numpys])
    host[numpys] = -1.0
    for made in (sw.sjit(writing(index))(x, -1.0), writing(index)(x, -1.0)):
        assert_same(made, host)
    with pytest.raises(IndexError, match="is not an index"):
        x[torch.tensor(1.0)]
