"""MLIR: text is valid, invalid, and means what it does for the dialect's own tools."""

import numpy as np
import pytest

import shardwright as sw
from mlir_texts import function, in_shard
from shardwright import mlir
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


@SPELLINGS
@pytest.mark.parametrize(
    "operation", ["all_slice %x on @m mesh_axes = [0] slice_axis = 0", "all_reduce %x on @m mesh_axes = [0]"]
)
def test_a_mesh_without_devices_is_one_error(operation, spelled):
    (error,) = mlir.verify(spelled(declaring(operation, "6xf32", "6xf32").replace("3x?", "0x2")))
    assert "has an axis of size 0" in error.message


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
    (error,) = mlir.verify(spelled(text.replace("source = [0]", "source = []")))
    assert 'In-group device "source" has unexpected multi-index size 0. Expected 1.' in error.message


# -- what surrounds operations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        'module attributes {dlti.map = #dlti.map<"MPI:Implementation" = "mpich", "a" = [1, {b = 2}]>} {\nBODY\n}',
        "BODY",
        'BODY {sym_visibility = "private"}',
        'BODY {other.note = #other.note<"]">}',
        'PRIVATE "private"',
    ],
)
def test_attributes_of_other_dialects_and_visibility_are_passed_over(text):
    function_ = """func.func @f(%x: tensor<1xf32> {llvm.noalias}) -> tensor<2xf32> attributes {llvm.emit_c_interface} {
  %y = shard.all_gather %x on @g grid_axes = [0] gather_axis = 0 : tensor<1xf32> -> tensor<2xf32>
  return %y : tensor<2xf32>
}
"""
    mesh = text.replace("BODY", "shard.grid @g(shape = 2)").replace("PRIVATE", "shard.grid")
    whole = mesh.replace("\n}", f"\n{function_}}}") if "module" in text else function_ + mesh
    whole = whole.replace('"private"', '"private" @g(shape = 2)') if "PRIVATE" in text else whole
    assert mlir.verify(whole) == []
    fn = mlir.loads(whole)["f"]
    assert [list(x) for x in fn(np.ones(1, np.float32)).values()] == [[1, 1], [1, 1]]


def test_an_attribute_of_another_dialect_that_an_operation_needs_is_refused():
    text = function(
        "%y = arith.negf %x {how = #other.how<fast>} : tensor<2xf32>", "tensor<2xf32>", argument="%x: tensor<2xf32>"
    )
    (error,) = mlir.verify(text)
    assert "'arith.negf' op has the attribute 'how', which is not read" in error.message
    assert (error.line, error.column) == (3, 8)


ENCODED = "tensor<4x8xf32, #mesh.shard<@m, {}>>"


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ("[[0], [0]]", "mesh axis duplicated"),
        ("[[0]], partial = max[0]", "mesh axis duplicated"),
        ("[[-1]]", "mesh axis is expected to be non-negative"),
        ("[[5]]", "axis index 5 is out of bounds"),
    ],
)
def test_shardings_in_types_are_checked(axes, message):
    kind = ENCODED.format(axes)
    text = f"mesh.mesh @m(shape = 2x4)\nfunc.func @f(%x: {kind}) -> {kind} {{\n  return %x : {kind}\n}}"
    (error,) = mlir.verify(text)
    assert message in error.message
    assert error.line == 2


def test_shardings_in_types_are_not_ignored():
    kind = ENCODED.format("[[0]]")
    header = "mesh.mesh @m(shape = 2x4)\nfunc.func @f"
    argument = f"{header}(%x: {kind}) -> {kind} {{\n  return %x : {kind}\n}}"
    inside = f"{header}() -> {kind} {{\n  %x = tensor.empty() : {kind}\n  return %x : {kind}\n}}"
    for text, line in ((argument, 2), (inside, 3)):
        assert mlir.verify(text) == []
        with pytest.raises(MLIRError, match=r"has an encoding, which is not read\. Annotate the value") as caught:
            _ = mlir.loads(text)["f"].program
        assert caught.value.line == line


@pytest.mark.parametrize(
    "place", ["#somewhere", "unknown", '"a)b.mlir":1:2', 'callsite("f"(#somewhere) at fused<"(">["a", #other])']
)
def test_locations_are_passed_over(place):
    text = f"""shard.grid @g(shape = 2) loc({place})
func.func @f(%x: tensor<1xf32> loc({place})) -> tensor<2xf32> {{
  %y = shard.all_gather %x on @g grid_axes = [0] gather_axis = 0 : tensor<1xf32> -> tensor<2xf32> loc({place})
  return %y : tensor<2xf32> loc({place})
}} loc({place})
#other = loc("other.py":3:4)
#somewhere = loc("m"(#other))
"""
    assert mlir.verify(text) == []
    wrong = text.replace("gather_axis = 0", "gather_axis = 1")
    (error,) = mlir.verify(wrong)
    assert (error.line, error.column) == (3, 8)


@pytest.mark.parametrize("place", ["loc", "loc(", "loc(()", "loc)"])
def test_a_location_that_is_not_closed_has_a_place(place):
    (error,) = mlir.verify(f"shard.grid @g(shape = 2) {place}")
    assert "Expected a location in brackets" in error.message
    assert error.line == 1


# -- lists with operands, in the generic form --------------------------------------------------------------------------

OPEN = "-9223372036854775808"


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ("tensor.empty() : tensor<?xf32>", "incorrect number of dynamic sizes, has 0, expected 1"),
        ("tensor.empty(%n, %n) : tensor<?xf32>", "incorrect number of dynamic sizes, has 2, expected 1"),
        (
            '"tensor.pad"(%x) <{static_low = array<i64: 0>, static_high = array<i64: OPEN>, operandSegmentSizes = '
            "array<i32: 1, 0, 0>}> ({\n  ^bb0(%i: index):\n    tensor.yield %c : f32\n  }) : (tensor<2xf32>) -> tensor<?xf32>",
            "1 entries of a list are operands, but there are 0",
        ),
        (
            '"mesh.sharding"() <{mesh = @m, split_axes = #mesh.axisarray[[0]], static_halo_sizes = array<i64: 1, OPEN>, '
            "operandSegmentSizes = array<i32: 0, 0>}> : () -> !mesh.sharding",
            "1 entries of a list are operands, but there are 0",
        ),
    ],
)
def test_a_missing_operand_of_a_list_is_an_error_at_its_line(operation, message):
    body = f"%n = arith.constant 3 : index\n  %c = arith.constant 0.0 : f32\n  %y = {operation.replace('OPEN', OPEN)}"
    text = function(body, "tensor<2xf32>", argument="%x: tensor<2xf32>").replace("return %y", "return %x")
    with pytest.raises(MLIRError, match=message) as caught:
        _ = mlir.loads(text)["f"].program
    assert (caught.value.line, caught.value.column) == (5, 8)


def test_a_call_of_a_function_that_is_only_declared_names_it():
    text = function(
        "%y = func.call @g(%x) : (tensor<2xf32>) -> tensor<2xf32>", "tensor<2xf32>", argument="%x: tensor<2xf32>"
    )
    with pytest.raises(MLIRError, match="The function has no body") as caught:
        _ = mlir.loads(text + "func.func private @g(tensor<2xf32>) -> tensor<2xf32>")["f"].program
    assert caught.value.line == 6


# -- LLVM 18, several meshes -------------------------------------------------------------------------------------------


def test_llvm_18_names_a_mesh_a_cluster():
    text = """mesh.cluster @m(shape = 2x3)
func.func @f(%x: tensor<2xf32>) -> (tensor<2xf32>, index) {
  %n = mesh.cluster_shape @m axes = [1] : index
  %y = mesh.all_reduce %x on @m mesh_axes = [1] reduction = <sum> : tensor<2xf32> -> tensor<2xf32>
  return %y, %n : tensor<2xf32>, index
}"""
    total, size = mlir.loads(text)["f"](np.ones(2, np.float32))
    assert [list(x) for x in total.values()] == [[3, 3]] * 6
    assert [int(n) for n in size.values()] == [3] * 6
    (error,) = mlir.verify(text.replace("axes = [1] : index", "axes = [2] : index"))
    assert 'axis index 2 is out of bounds. The referenced mesh "m" is of rank 2' in error.message


@pytest.mark.parametrize("view", ["global", "local"])
@pytest.mark.parametrize("dialect", ["mesh", "shard"])
def test_functions_of_a_file_may_run_on_different_meshes(dialect, view):
    one = """func.func @NAME(%x: tensor<8xf32>) -> tensor<8xf32> {
  %s = shard.sharding @MESH split_axes = [[0]] : !shard.sharding
  %t = shard.sharding @MESH split_axes = [[]] : !shard.sharding
  %a = shard.shard %x to %s : tensor<8xf32>
  %y = shard.shard %a to %t annotate_for_users : tensor<8xf32>
  return %y : tensor<8xf32>
}
"""
    text = "shard.grid @a(shape = 2)\nshard.grid @b(shape = 4)\n"
    text += "".join(
        one.replace("NAME", name).replace("MESH", mesh) for name, mesh in (("f", "a"), ("g", "b"), ("h", "a"))
    )
    programs = {name: fn.program for name, fn in mlir.loads(text).items()}
    written = mlir.dumps(programs, dialect, view)
    assert mlir.verify(written) == []
    again = mlir.loads(written)
    assert [fn.mesh.shape for fn in again.values()] == [(2,), (4,), (2,)]
    assert mlir.dumps({name: fn.program for name, fn in again.items()}, dialect, view) == written
