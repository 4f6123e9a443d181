"""Sharding: canonical, interned, checked; its layout and its notation."""

import copy
import pickle

import numpy as np
import pytest

import shardwright as sw
from shardwright import P, Sharding
from shardwright.errors import MeshError, ShardingError
from shardwright.sharding import describe, layout_of, parse

MESH = sw.Mesh(data=2, model=4)


def test_p_is_normalised_once():
    assert tuple(P("data", None, ("x", "y"), [], ["z"])) == (("data",), (), ("x", "y"), (), ("z",))
    assert P("a") == P(("a",)) == P(["a"])
    assert repr(P("data", None, ("x", "y"))) == "P('data', None, ('x', 'y'))"
    assert repr(P()) == "P()"
    assert pickle.loads(pickle.dumps(P("a", None))) == P("a", None)
    with pytest.raises(ShardingError, match=r"3 is an invalid spec entry"):
        P(3)
    with pytest.raises(ShardingError, match=r"Use None \(not split\)"):
        P(("a", None))


def test_equal_shardings_are_one_object():
    one = Sharding(MESH, P("data", None))
    assert one is Sharding(sw.Mesh(data=2, model=4), [("data",), ()])
    assert one is not Sharding(MESH, P("data"))
    assert one is one.for_shape((4, 4)) is Sharding(MESH, P("data")).for_shape((4, 4))
    assert Sharding(MESH, P(), partial=["model", "data"]) is Sharding(MESH, P(), partial=("data", "model"))
    assert Sharding(MESH, P("data"), halo={0: 0}) is Sharding(MESH, P("data"))
    assert pickle.loads(pickle.dumps(one)) is one
    assert copy.copy(one) is copy.deepcopy(one) is one
    assert len({one, Sharding(MESH, P("data", None))}) == 1


def test_pieces_of_an_axis_that_follow_each_other_are_one():
    assert Sharding(MESH, P(("model:(1)2", "model:(2)2"))).spec == P("model")
    assert Sharding(MESH, P(("model:(2)2", "model:(1)2"))).spec == P(("model:(2)2", "model:(1)2"))
    assert Sharding(MESH, P(), partial=("model:(2)2", "model:(1)2")).partial == ("model",)


def test_offsets_that_are_the_usual_ones_are_not_kept():
    given = Sharding(MESH, P("model"), offsets={0: (0, 3, 6, 9, 10)})
    assert given.for_shape((10,)) is Sharding(MESH, P("model"))
    kept = Sharding(MESH, P("model"), offsets={0: (0, 1, 2, 3, 10)}).for_shape((10, 2))
    assert kept.offsets == ((0, 1, 2, 3, 10), ())


def test_a_sharding_is_immutable():
    sharding = Sharding(MESH, P("data"))
    with pytest.raises(AttributeError, match=r"A Sharding is immutable; use .replace\(mesh=…\)"):
        sharding.mesh = None
    with pytest.raises(AttributeError, match=r"immutable"):
        del sharding.mesh
    assert sharding.replace(partial="model").partial == ("model",)
    assert sharding.is_replicated is False
    assert Sharding(sw.Mesh(x=1), P("x")).is_replicated
    assert sharding.ndim == 1


def test_repr_says_all_of_it():
    sharding = Sharding(MESH, P("data"), partial="model", reduction="max", halo={0: (1, 2)}, offsets={0: (0, 4, 9)})
    assert repr(sharding) == (
        "Sharding(Mesh(data=2, model=4), P('data'), partial=('model',), reduction='max', halo={0: (1, 2)}, "
        "offsets={0: [0, 4, 9]})"
    )


def test_blocks_are_ceil_sized_and_the_last_ones_short_or_empty():
    assert layout_of(Sharding(MESH, P("model")), (10,)).dims[0].sizes.tolist() == [3, 3, 3, 1]
    assert layout_of(Sharding(MESH, P("model")), (2,)).dims[0].sizes.tolist() == [1, 1, 0, 0]
    assert layout_of(Sharding(MESH, P(("model", "data"))), (9,)).dims[0].sizes.tolist() == [2, 2, 2, 2, 1, 0, 0, 0]
    assert layout_of(Sharding(MESH, P("model")), (0,)).dims[0].sizes.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("text", "spec", "more"),
    [
        ("f32[128@data,64]", P("data", None), {}),
        ("f32[128,32] + sum{model}", P(None, None), {"partial": "model"}),
        ("bf16[8@(model,data)]", P(("model", "data")), {}),
        (
            "i8[8@model:(2)2,3] + max{data,model:(1)2}",
            P("model:(2)2", None),
            {"partial": ("data", "model:(1)2"), "reduction": "max"},
        ),
        ("f64[10@data/0/3/10~1:2]", P("data"), {"offsets": {0: (0, 3, 10)}, "halo": {0: (1, 2)}}),
        ("bool[]", P(), {}),
    ],
)
def test_notation(text, spec, more):
    sharding, shape, dtype = parse(text, MESH)
    assert sharding == Sharding(MESH, spec, **more)
    assert describe(sharding, shape, dtype) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f32(128)", r"is not a sharded tensor. Write it like"),
        ("f32[128@]", r"Dim 0 .* is invalid"),
        ("f32[3,x@data]", r"\n  f32\[3,x@data\]\n        \^"),
        ("f99[3]", r"names the unknown dtype 'f99'"),
        ("f32[3] + median{data}", r"names the reduction 'median'"),
        ("f32[3@z]", r"names axis 'z'"),
    ],
)
def test_bad_notation(text, message):
    with pytest.raises(ShardingError, match=message):
        parse(text, MESH)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Sharding(MESH, P("z")), r"P\('z'\) names axis 'z'; Mesh\(data=2, model=4\) has only 'data', 'model'"),
        (lambda: Sharding(MESH, P("data", "data")), r"uses axis 'data' 2 times. An axis splits one dim or is partial"),
        (lambda: Sharding(MESH, (("model",), ("model",))), r"uses axis 'model' 2 times"),
        (lambda: Sharding(MESH, P("data"), partial="data"), r"P\('data'\) with partial=\('data',\) uses axis 'data' 2"),
        (lambda: Sharding(MESH, P("model", "model:(1)2")), r"uses axis 'model' 2 times"),
        (lambda: Sharding(MESH, "data"), r"'data' is not a spec. Write P\('data'\)"),
        (lambda: Sharding(MESH, {"data", "model"}), r"is not a spec"),  # sets and mappings have no order of dims
        (lambda: Sharding(MESH, {"x": P("data")}), r"is not a spec"),
        (lambda: Sharding(P("data"), MESH), r"is not a spec|begins with a Mesh"),
        (lambda: Sharding("m", P()), r"A Sharding begins with a Mesh; got 'm'"),
        (lambda: Sharding(MESH, P(), reduction="mean"), r"Reduction 'mean' is unknown. Use one of sum, max"),
        (
            lambda: Sharding(MESH, P("data", None, None)).for_shape((4, 4)),
            r"has 3 entries, but the tensor of shape \(4, 4\)",
        ),
        (lambda: Sharding(MESH, P("data")).for_shape(()), r"has 1 entries, but the tensor of shape \(\) has 0 dims"),
        (
            lambda: Sharding(MESH, P("data"), offsets={0: (0, 4)}),
            r"needs 3 offsets, the last one the dim's size; got 2",
        ),
        (
            lambda: Sharding(MESH, P("data"), offsets={0: (0, 5, 4)}),
            r"\[0, 5, 4\] of dim 0 must begin at 0 and never decrease",
        ),
        (lambda: Sharding(MESH, P("data"), offsets={0: (1, 3, 4)}), r"must begin at 0"),
        (
            lambda: Sharding(MESH, P("data"), offsets={0: (0, 2, 4)}).for_shape((5,)),
            r"end at 4, but the dim has size 5",
        ),
        (
            lambda: Sharding(MESH, P("data"), offsets={1: (0, 2)}),
            r"Offsets are given for dim 1, but P\('data'\) has 1 dims",
        ),
        (lambda: Sharding(MESH, P("data"), halo={1: 1}), r"Halo sizes are given for dim 1"),
        (lambda: Sharding(MESH, P("data"), halo={0: (-1, 0)}), r"Halo sizes \(-1, 0\) of dim 0 are negative"),
        (lambda: Sharding(MESH, P(None), halo={0: 1}), r"Dim 0 of P\(None\) is whole, so no device has a neighbour"),
        (
            lambda: Sharding(MESH, P("model"), halo={0: (0, 2)}).for_shape((10,)),
            r"wider than a neighbour's shard: shard 3 holds 1 rows and a neighbour needs 2 of them",
        ),
    ],
)
def test_bad_shardings_say_what_is_wrong(make, text):
    with pytest.raises((ShardingError, MeshError), match=text):
        make()


def test_a_halo_may_be_as_wide_as_the_neighbours_shard():
    sharding = Sharding(MESH, P("model"), halo={0: (1, 1)})
    x = sw.shard(np.arange(10), sharding)
    assert [shard.data.tolist() for shard in x.shards[:4]] == [
        [0, 0, 1, 2, 3],
        [2, 3, 4, 5, 6],
        [5, 6, 7, 8, 9],
        [8, 9, 0],
    ]
