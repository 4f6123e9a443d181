"""MLIR: text is valid, invalid, and means what it does for the dialect's own tools."""

import numpy as np
import pytest

import shardwright as sw
from mlir_texts import function, in_shard
from shardwright import mlir

SPELLINGS = pytest.mark.parametrize("spelled", [str, in_shard], ids=["mesh", "shard"])


def declaring(operation, before, after):
    """An operation on a tensor of one type that declares another."""
    before, after = f"tensor<{before}>", f"tensor<{after}>"
    names_device = any(word in operation for word in ("root", "source", "destination"))
    types = f"({before}) -> {after}" if names_device else f"{before} -> {after}"
    return function(f"%y = mesh.{operation} : {types}", after, mesh="3x?", argument=f"%x: {before}")


# -- sizes that are not known ------------------------------------------------------------------------------------------


@SPELLINGS
@pytest.mark.parametrize(
    ("operation", "before", "after", "message"),
    [
        ("all_gather %x on @m mesh_axes = [0] gather_axis = 0", "?xf32", "6xf32", "result axis 0. Expected dynamic, but got 6"),
        ("all_gather %x on @m mesh_axes = [1] gather_axis = 0", "2xf32", "6xf32", "result axis 0. Expected dynamic, but got 6"),
        ("all_gather %x on @m mesh_axes = [0] gather_axis = 0", "2x?xf32", "6x4xf32", "result axis 1. Expected dynamic"),
        ("all_slice %x on @m mesh_axes = [0] slice_axis = 0", "?xf32", "2xf32", "Expected dynamic, but got 2. Make it ?."),
        ("reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 0", "?xf32", "2xf32", "Expected dynamic, but got 2"),
        ("scatter %x on @m mesh_axes = [0] scatter_axis = 0 root = [1]", "?xf32", "2xf32", "Expected dynamic, but got 2"),
        ("gather %x on @m mesh_axes = [0] gather_axis = 0 root = [1]", "?xf32", "6xf32", "Expected dynamic, but got 6"),
        ("all_to_all %x on @m mesh_axes = [0] split_axis = 0 concat_axis = 1", "?x2xf32", "2x6xf32", "axis 0. Expected dyn"),
        ("all_to_all %x on @m mesh_axes = [1] split_axis = 0 concat_axis = 1", "6x2xf32", "?x6xf32", "axis 1. Expected dyn"),
        ("broadcast %x on @m mesh_axes = [0] root = [1]", "?xf32", "2xf32", "requires the same shape"),
        ("broadcast %x on @m mesh_axes = [0] root = [1]", "2xf32", "?xf32", "requires the same shape"),
        ("reduce %x on @m mesh_axes = [0] root = [1]", "2xf32", "?xf32", "requires the same shape"),
        ("send %x on @m mesh_axes = [0] destination = [1]", "?xf32", "2xf32", "requires the same shape"),
        ("recv %x on @m mesh_axes = [0] source = [1]", "2xf32", "?xf32", "requires the same shape"),
    ],
)  # fmt: skip
def test_a_size_is_declared_only_if_it_is_known(operation, before, after, message, spelled):
    (error,) = mlir.verify(spelled(declaring(operation, before, after)))
    assert message in error.message
    assert (error.line, error.column) == (3, 8)


@SPELLINGS
@pytest.mark.parametrize(
    ("operation", "before", "after"),
    [
        ("all_gather %x on @m mesh_axes = [0] gather_axis = 0", "2xf32", "?xf32"),
        ("all_gather %x on @m mesh_axes = [1] gather_axis = 0", "2x4xf32", "?x4xf32"),
        ("all_slice %x on @m mesh_axes = [0] slice_axis = 0", "6xf32", "?xf32"),
        ("gather %x on @m mesh_axes = [0] gather_axis = 0 root = [1]", "2xf32", "?xf32"),
        ("all_reduce %x on @m mesh_axes = [0]", "?xf32", "2xf32"),
        ("all_reduce %x on @m mesh_axes = [0]", "2xf32", "?xf32"),
        ("shift %x on @m mesh_axes = [0] shift_axis = 0 offset = 1", "?xf32", "2xf32"),
        ("broadcast %x on @m mesh_axes = [0] root = [1]", "?xf32", "?xf32"),
    ],
)
def test_a_known_size_may_be_left_open(operation, before, after, spelled):
    assert mlir.verify(spelled(declaring(operation, before, after))) == []


# -- recv --------------------------------------------------------------------------------------------------------------


@SPELLINGS
@pytest.mark.parametrize("engine", ["numpy", "literal"])
def test_a_recv_may_leave_its_source_out(engine, spelled):
    kind, types = "tensor<2xf32>", "(tensor<2xf32>) -> tensor<2xf32>"
    shards = np.arange(12, dtype=np.float32).reshape(6, 2)
    for source in ("", " source = [0]"):
        text = function(
            f"%s = mesh.send %x on @m mesh_axes = [1] destination = [1] : {types}\n"
            f"  %y = mesh.recv %x on @m mesh_axes = [1]{source} : {types}",
            kind, mesh="3x2", argument=f"%x: {kind}",
        )  # fmt: skip
        assert mlir.verify(spelled(text)) == []
        fn = mlir.loads(spelled(text), engine=engine)["f"]
        received = np.stack(fn(sw.PerDevice(fn.mesh, list(shards))).values())
        np.testing.assert_array_equal(received[1::2], shards[::2])
