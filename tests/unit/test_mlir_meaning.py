"""MLIR: what annotated constants, shardings that are returned and tosa's zero points mean when a function runs."""

import numpy as np
import pytest

import shardwright as sw
from mlir_texts import in_shard
from shardwright import P, mlir
from shardwright.cli import main
from shardwright.errors import MLIRError

SPELLINGS = pytest.mark.parametrize("spelled", [str, in_shard], ids=["mesh", "shard"])


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


# -- constants that a result begins with -------------------------------------------------------------------------------


def reduced(start, combine, annotated=True, after=""):
    """The reduction of a tensor, split by rows, into an output that a constant fills."""
    return f"""shard.grid @g(shape = 2)
func.func @f(%x: tensor<6x4xi32>) -> tensor<4xi32> {{
  %rows = shard.sharding @g split_axes = [[0]] : !shard.sharding
  %none = shard.sharding @g split_axes = [[]] : !shard.sharding
  %a = shard.shard %x to %rows : tensor<6x4xi32>
  %start = arith.constant {start} : i32
  %e = tensor.empty() : tensor<4xi32>
  %z = linalg.fill ins(%start : i32) outs(%e : tensor<4xi32>) -> tensor<4xi32>
  %out = shard.shard %z to {"%rows" if after == "rows" else "%none"} : tensor<4xi32>
  %y = linalg.reduce ins(%a : tensor<6x4xi32>) outs(%out : tensor<4xi32>) dimensions = [0]
    (%in: i32, %init: i32) {{
      %c = arith.{combine} %in, %init : i32
      linalg.yield %c : i32
    }}
  return %y : tensor<4xi32>
}}"""


@pytest.mark.parametrize("engine", ["numpy", "literal"])
@pytest.mark.parametrize("after", ["", "rows"])
@pytest.mark.parametrize(
    ("start", "combine", "expected", "adds"),
    [
        (0, "addi", lambda x: x.sum(0), False),
        (5, "addi", lambda x: x.sum(0) + 5, True),
        (1, "muli", lambda x: x.prod(0), False),
        (0, "muli", lambda x: 0 * x[0], True),
        (-(2**31), "maxsi", lambda x: x.max(0), False),
        (0, "maxsi", lambda x: np.maximum(x.max(0), 0), True),
    ],
)
def test_a_neutral_start_costs_nothing_and_another_counts_once(start, combine, expected, adds, after, engine):
    fn = mlir.loads(reduced(start, combine, after=after), engine=engine)["f"]
    x = np.random.default_rng(0).integers(-5, -1, (6, 4)).astype(np.int32)
    y = fn(x)
    np.testing.assert_array_equal(np.asarray(y), expected(x))
    assert y.sharding.dims == ((("a0",),) if after else ((),))
    assert any(node.title in ("add", "multiply", "maximum") for node in fn.program.nodes) == adds
    text = mlir.dumps(fn.program, view="local")
    assert "select" not in text or adds
    assert mlir.dumps(mlir.loads(text)["main"].program, view="local") == text


def test_an_annotated_output_says_where_a_fill_and_a_product_lie():
    text = """shard.grid @g(shape = 2)
func.func @f(%a: tensor<4x3xf32>, %b: tensor<3x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>) {
  %columns = shard.sharding @g split_axes = [[], [0]] : !shard.sharding
  %e = tensor.empty() : tensor<4x6xf32>
  %out = shard.shard %e to %columns : tensor<4x6xf32>
  %zero = arith.constant 0.0 : f32
  %z = linalg.fill ins(%zero : f32) outs(%out : tensor<4x6xf32>) -> tensor<4x6xf32>
  %y = linalg.matmul ins(%a, %b : tensor<4x3xf32>, tensor<3x6xf32>) outs(%z : tensor<4x6xf32>) -> tensor<4x6xf32>
  return %z, %y : tensor<4x6xf32>, tensor<4x6xf32>
}"""
    a, b = np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(18, dtype=np.float32).reshape(3, 6)
    zeros, product = mlir.loads(text)["f"](a, b)
    np.testing.assert_array_equal(np.asarray(zeros), np.zeros((4, 6)))
    np.testing.assert_array_equal(np.asarray(product), a @ b)
    assert zeros.sharding.dims == product.sharding.dims == ((), ("a0",))


@pytest.mark.parametrize("view", ["global", "local"])
@pytest.mark.parametrize(
    "operation",
    [
        "linalg.matmul ins(%x, %x : T, T) outs(%z : T) -> T",
        "linalg.transpose ins(%x : T) outs(%z : T) permutation = [1, 0]",
        "tosa.reduce_max %x {axis = 1 : i32} : (T) -> tensor<2x1xi32>",
        "tosa.reduce_sum %x {axis = 0 : i32} : (T) -> tensor<1x2xi32>",
        "arith.muli %x, %x : T",
    ],
)
def test_text_of_annotated_constants_is_a_fixed_point(operation, view):
    kind = operation.rpartition("-> ")[2] if "->" in operation else "T"
    text = f"""shard.grid @g(shape = 2)
func.func @f(%b: tensor<2xi32>) -> ({kind}, tensor<2xi32>) {{
  %c = arith.constant dense<[[1, 2], [3, 5]]> : T
  %zero = arith.constant 0 : i32
  %e = tensor.empty() : T
  %z = linalg.fill ins(%zero : i32) outs(%e : T) -> T
  %s = shard.sharding @g split_axes = [[]] : !shard.sharding
  %x = shard.shard %c to %s : T
  %y = {operation}
  return %y, %b : {kind}, tensor<2xi32>
}}""".replace("T", "tensor<2x2xi32>")
    fn = mlir.loads(text)["f"]
    first = mlir.dumps(fn.program, view=view)
    again = mlir.loads(first)["main"]
    assert mlir.dumps(again.program, view=view) == first
    b = np.zeros(2, np.int32)
    np.testing.assert_array_equal(np.asarray(again(b)[0]), np.asarray(fn(b)[0]))


# -- tosa: zero points, shifts, batches --------------------------------------------------------------------------------


def tosa(operation, arguments, result):
    names = ", ".join(f"%{'abcd'[at]}: {kind}" for at, kind in enumerate(arguments))
    return f"""shard.grid @g(shape = 2)
func.func @f({names}) -> {result} {{
  %s = shard.sharding @g split_axes = [[0]] : !shard.sharding
  %x = shard.shard %a to %s : {arguments[0]}
  %y = tosa.{operation} -> {result}
  return %y : {result}
}}"""


BYTES = np.array([1, -2, 3, 100, -128, 127], np.int8)
I8, POINT = "tensor<6xi8>", "tensor<1xi8>"


@pytest.mark.parametrize("engine", ["numpy", "literal"])
@pytest.mark.parametrize(("low", "high"), [(3, 5), (0, -7), (-128, 0), (0, 0)])
def test_zero_points_of_a_negation(low, high, engine):
    expected = np.clip(low + high - BYTES.astype(np.int64), -128, 127).astype(np.int8)
    text = tosa(f"negate %x, %b, %c : ({I8}, {POINT}, {POINT})", [I8, POINT, POINT], I8)
    fn = mlir.loads(text, engine=engine)["f"]
    np.testing.assert_array_equal(np.asarray(fn(BYTES, np.int8([low]), np.int8([high]))), expected)
    attributes = f"{{input1_zp = {low} : i32, output_zp = {high} : i32}}"
    fn = mlir.loads(tosa(f"negate %x {attributes} : ({I8})", [I8], I8), engine=engine)["f"]
    if low or high:
        np.testing.assert_array_equal(np.asarray(fn(BYTES)), expected)
    else:  # without zero points elements wrap, as arith's do
        np.testing.assert_array_equal(np.asarray(fn(BYTES)), -BYTES)


@pytest.mark.parametrize("engine", ["numpy", "literal"])
@pytest.mark.parametrize("batches", [(2, 2), (1, 2), (2, 1), (1, 1)])
def test_zero_points_and_batches_of_a_product(batches, engine):
    (i, j), rng = batches, np.random.default_rng(0)
    a, b = rng.integers(-128, 128, (i, 4, 3), np.int8), rng.integers(-128, 128, (j, 3, 5), np.int8)
    kinds = [f"tensor<{i}x4x3xi8>", f"tensor<{j}x3x5xi8>"]
    result = f"tensor<{max(i, j)}x4x5xi32>"
    expected = (a.astype(np.int32) - 3) @ (b.astype(np.int32) + 7)
    text = tosa(f"matmul %x, %b, %c, %d : ({', '.join([*kinds, POINT, POINT])})", [*kinds, POINT, POINT], result)
    fn = mlir.loads(text, engine=engine)["f"]
    np.testing.assert_array_equal(np.asarray(fn(a, b, np.int8([3]), np.int8([-7]))), expected)
    text = tosa(f"matmul %x, %b {{a_zp = 3 : i32, b_zp = -7 : i32}} : ({', '.join(kinds)})", kinds, result)
    np.testing.assert_array_equal(np.asarray(mlir.loads(text, engine=engine)["f"](a, b)), expected)


@pytest.mark.parametrize("engine", ["numpy", "literal"])
@pytest.mark.parametrize("shift", [0, 1, 5, 31])
def test_the_shift_of_a_product_rounds(shift, engine):
    a = np.array([7, -7, 2**30, -(2**31), 12345678], np.int32)
    b = np.array([3, 3, 1, 1, 1], np.int32)
    kind = "tensor<5xi32>"
    expected = [(int(p) * int(q) + (1 << shift >> 1)) >> shift for p, q in zip(a, b, strict=True)]
    operand = mlir.loads(tosa(f"mul %x, %b, %c : ({kind}, {kind}, {POINT})", [kind, kind, POINT], kind), engine=engine)[
        "f"
    ]
    np.testing.assert_array_equal(np.asarray(operand(a, b, np.int8([shift]))), expected)
    text = tosa(f"mul %x, %b {{shift = {shift} : i8}} : ({kind}, {kind})", [kind, kind], kind)
    np.testing.assert_array_equal(np.asarray(mlir.loads(text, engine=engine)["f"](a, b)), expected)


@pytest.mark.parametrize(
    ("operation", "kind", "message"),
    [
        ("negate %x {input1_zp = 3 : i32} : (tensor<6xf32>)", "tensor<6xf32>", "input1_zp is 3, but elements are not"),
        (
            "negate %x {input_zp = 3 : i32} : (tensor<6xi8>)",
            I8,
            "The attribute 'input_zp' of 'tosa.negate' is not read",
        ),
    ],
)
def test_what_can_not_be_honoured_is_refused(operation, kind, message):
    with pytest.raises(MLIRError, match=message) as caught:
        _ = mlir.loads(tosa(operation, [kind], kind))["f"].program
    assert (caught.value.line, caught.value.column) == (5, 8)
