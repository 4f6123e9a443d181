"""Pictures: every device appears, any number of dims."""

import numpy as np

import shardwright as sw
from shardwright import P

MESH = sw.Mesh(data=2, model=4)


def test_rows_columns_and_holders():
    text = sw.picture(sw.shard(np.zeros((5, 3)), MESH, P("model", None)))
    assert text.splitlines() == [
        "f64[5@model,3] on Mesh(data=2, model=4)",
        "      ┌───────┐",
        "  0:2 │  0,4  │",
        "      ├───────┤",
        "  2:4 │  1,5  │",
        "      ├───────┤",
        "  4:5 │  2,6  │",
        "      ├───────┤",
        "  5:5 │  3,7  │",
        "      └───────┘",
    ]


def test_one_box_when_nothing_is_split():
    assert "│  0-7  │" in sw.picture(sw.replicate(np.zeros((5, 3)), MESH))
    assert "│  0-7  │" in sw.picture(sw.replicate(3.0, MESH))


def test_more_than_two_split_dims_are_several_grids():
    mesh = sw.Mesh(a=2, b=2, c=2)
    text = sw.picture(sw.shard(np.zeros((2, 4, 4, 4)), mesh, P(None, "a", "b", "c")))
    assert "dim 1 = 0:2" in text
    assert "dim 1 = 2:4" in text
    for device in range(8):
        assert f"   {device}   " in text


def test_many_shards_are_cut_short_and_said_to_be():
    text = sw.picture(sw.shard(np.zeros(100), sw.Mesh(x=100), P("x")))
    assert "… 16×1 of 100×1 shards shown" in text
