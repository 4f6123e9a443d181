"""MLIR: text is valid, invalid, and means what it does for the dialect's own tools."""

import numpy as np
import pytest

import shardwright as sw
from mlir_texts import function, in_shard
from shardwright import P, mlir
from shardwright.cli import main
from shardwright.errors import MLIRError

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


# -- shardings as results ----------------------------------------------------------------------------------------------

RETURNED = """mesh.mesh @m(shape = 2x3)
func.func private @rows() -> !mesh.sharding {
  %s = mesh.sharding @m split_axes = [[1]] : !mesh.sharding
  return %s : !mesh.sharding
}
func.func @f(%x: tensor<6x2xf32>) -> (!mesh.sharding, tensor<6x2xf32>, !mesh.sharding) {
  %s = func.call @rows() : () -> !mesh.sharding
  %a = mesh.shard %x to %s : tensor<6x2xf32>
  %b = arith.addf %a, %a : tensor<6x2xf32>
  %t = mesh.get_sharding %a : tensor<6x2xf32> -> !mesh.sharding
  %h = mesh.sharding @m split_axes = [[], [0]] halo_sizes = [1, 0] : !mesh.sharding
  return %h, %b, %t : !mesh.sharding, tensor<6x2xf32>, !mesh.sharding
}
"""


@SPELLINGS
@pytest.mark.parametrize("engine", ["numpy", "literal"])
def test_a_sharding_that_is_returned_is_a_sharding(engine, spelled):
    functions = mlir.loads(spelled(RETURNED), engine=engine)
    fn, x = functions["f"], np.arange(12, dtype=np.float32).reshape(6, 2)
    halo, y, rows = fn(x)
    assert rows == functions["rows"]() == sw.Sharding(fn.mesh, P("a1"))
    assert halo == sw.Sharding(fn.mesh, P((), "a0"), halo={1: (1, 0)})
    np.testing.assert_array_equal(np.asarray(y), 2 * x)
    assert y.sharding == rows.for_shape(y.shape)
    assert fn.sharding_results == (0, 2)


@SPELLINGS
@pytest.mark.parametrize("view", ["global", "local"])
def test_text_of_a_function_that_returns_shardings_has_its_tensors(view, spelled):
    fn = mlir.loads(spelled(RETURNED))["f"]
    text = mlir.dumps(fn.program, view=view)
    assert "!shard.sharding," not in text
    assert mlir.dumps(mlir.loads(text)["main"].program, view=view) == text


def test_beside_tensors_per_device_too():
    body = """%s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
  %g = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<1xf32> -> tensor<2xf32>
  return %g, %s : tensor<2xf32>, !mesh.sharding"""
    header = "mesh.mesh @m(shape = 2)\nfunc.func @f(%x: tensor<1xf32>) -> (tensor<2xf32>, !mesh.sharding) {\n  "
    fn = mlir.loads(f"{header}{body}\n}}")["f"]
    gathered, sharding = fn(sw.PerDevice(fn.mesh, [np.full(1, place, np.float32) for place in (3, 4)]))
    assert [list(x) for x in gathered.values()] == [[3, 4], [3, 4]]
    assert sharding == sw.Sharding(fn.mesh, P("a0"))


def test_the_command_line_shows_shardings_and_says_what_text_leaves_out(tmp_path, capsys):
    file, stored = tmp_path / "f.mlir", tmp_path / "out.npz"
    file.write_text(in_shard(RETURNED), encoding="utf-8")
    assert main(["run", str(file), "--function", "f", "--output", str(stored)]) == 0
    assert "result 2:\nSharding(" in capsys.readouterr().out
    assert "a1" in str(np.load(stored)["result2"])
    for command in (["partition"], ["convert", "--to", "mesh"]):
        assert main(["mlir", *command, str(file)]) == 0
        out, err = capsys.readouterr()
        assert "result 0 of @f is a sharding, which the text leaves out" in err
        assert mlir.verify(out) == []


@pytest.mark.parametrize(
    "body",
    [
        "%r = arith.select %c, %s, %t : !mesh.sharding",
        "%r = scf.if %c -> (!mesh.sharding) {\n    scf.yield %s : !mesh.sharding\n  } else {\n"
        "    scf.yield %t : !mesh.sharding\n  }",
    ],
)
def test_a_sharding_that_depends_on_data_is_refused(body):
    text = f"""mesh.mesh @m(shape = 2)
func.func @f(%c: i1, %x: tensor<4xf32>) -> tensor<4xf32> {{
  %s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
  %t = mesh.sharding @m split_axes = [[]] : !mesh.sharding
  {body}
  %y = mesh.shard %x to %r : tensor<4xf32>
  return %y : tensor<4xf32>
}}"""
    with pytest.raises(MLIRError, match="A sharding is not data") as caught:
        mlir.loads(text)["f"](True, np.zeros(4, np.float32))
    assert (caught.value.line, caught.value.column) == (5, 8)
