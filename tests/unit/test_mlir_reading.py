"""Operations of arith, math, tensor, linalg, scf and tosa that are read: both views, every engine, against NumPy."""

import numpy as np
import pytest

import shardwright as sw
from mlir_operations import CASES, A, B, I, J, expected, text
from shardwright import mlir
from shardwright.errors import MLIRError

SHARDED = (
    "%a = mesh.shard %a0 to <@m, [[0], [1]]> : tensor<4x6xf32>\n%i = mesh.shard %i0 to <@m, [[1]]> : tensor<4x6xi32>\n"
)


@pytest.fixture(autouse=True)
def _quiet():
    """Some cases divide by zero."""
    with np.errstate(all="ignore"):
        yield


def close(made, name):
    wanted = expected(name)
    assert made.dtype == wanted.dtype
    np.testing.assert_allclose(made, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_global_view(name):
    for engine in ("numpy", "torch"):
        close(np.asarray(mlir.loads(text(name), engine=engine)["f"](A, B, I, J)), name)
    sharded = text(name, "mesh.mesh @m(shape = 2x2)\n", SHARDED).replace("%a:", "%a0:", 1).replace("%i:", "%i0:", 1)
    fn = mlir.loads(sharded, engine="literal")["f"]
    close(np.asarray(fn(A, B, I, J)), name)


@pytest.mark.parametrize("name", CASES)
def test_the_local_view(name):
    head = "%d = mesh.process_linear_index on @m : index\n"
    fn = mlir.loads(text(name, "mesh.mesh @m(shape = 2)\n", head))["f"]
    for tensor in fn(A, B, I, J).values():
        close(tensor, name)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("roll", "mod 4", "mod 5", r"Rows 0 to 4 of dim 0 are read, which has 4"),
        ("insert_slice", "%a[1, 0]", "%a[2, 0]", r"Rows 2 to 4 of dim 0 are written, which has 4"),
        ("pad with zeros", "tensor.yield %c", "%d = arith.addf %c, %c : f32\ntensor.yield %d", "computed in the body"),
        ("conv_2d", "3x5", "4x5", r"give 3 rows along 'h', but the output has 4"),
    ],
)
def test_what_is_wrong_is_an_error_at_its_line(name, old, new, message):
    with pytest.raises(MLIRError, match=message):
        mlir.loads(text(name).replace(old, new))["f"](A, B, I, J)


@pytest.mark.parametrize(
    ("kind", "bits"), [("f64", "0xFFF0000000000000"), ("f32", "0xFF800000"), ("f16", "0xFC00"), ("bf16", "0xFF80")]
)
def test_elements_by_their_bits_are_floats(kind, bits):
    for literal in (bits, f"[{bits}, {bits}]"):
        constant = f"%y = arith.constant dense<{literal}> : tensor<2x{kind}>"
        fn = mlir.loads(f"func.func @f() -> tensor<2x{kind}> {{\n{constant}\nreturn %y : tensor<2x{kind}>\n}}")["f"]
        assert np.asarray(fn()).astype(np.float64).tolist() == [-np.inf, -np.inf]
    (error,) = mlir.verify(f"func.func @f() {{\n%y = arith.constant dense<{bits}FF> : tensor<2x{kind}>\nreturn\n}}")
    assert f"{bits}FF has more bits than {kind}" in error.message


def test_branches_that_whole_groups_take_by_their_data_may_hold_their_collectives():
    source = """
mesh.mesh @m(shape = 2x2)
func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> {
  %a = mesh.all_reduce %x on @m mesh_axes = [1] reduction = <max> : tensor<2xf32> -> tensor<2xf32>
  %i = arith.constant 0 : index
  %e = tensor.extract %a[%i] : tensor<2xf32>
  %c = arith.constant 1.5 : f32
  %p = arith.cmpf olt, %e, %c : f32
  %y = scf.if %p -> (tensor<2xf32>) {
    %s = mesh.all_reduce %x on @m mesh_axes = [1] : tensor<2xf32> -> tensor<2xf32>
    scf.yield %s : tensor<2xf32>
  } else {
    scf.yield %x : tensor<2xf32>
  }
  return %y : tensor<2xf32>
}"""
    for engine in ("numpy", "literal"):
        fn = mlir.loads(source, engine=engine)["f"]
        made = fn(sw.PerDevice(fn.mesh, [np.full(2, float(n), np.float32) for n in range(4)])).values()
        assert [tensor.tolist() for tensor in made] == [[1, 1], [1, 1], [2, 2], [3, 3]]
    with pytest.raises(MLIRError, match="Devices take different branches here"):
        _ = mlir.loads(source.replace("mesh_axes = [1] : tensor", "mesh_axes = [0] : tensor"))["f"].program
