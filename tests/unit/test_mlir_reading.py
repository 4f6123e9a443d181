"""Operations of arith, math, tensor, linalg, scf and tosa that are read: both views, every engine, against NumPy."""

import numpy as np
import pytest

import shardwright as sw
from mlir_operations import CASES, A, B, I, J, expected, text
from shardwright import mlir
from shardwright.cli import main
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


# -- text without operations, sizes and views from outside ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "what"), [("", "is empty"), (" \n\t\n", "is empty"), ("// one\n\n  // two", "has comments alone")]
)
def test_a_text_without_operations_says_so(text, what, tmp_path, capsys):
    (error,) = mlir.verify(text, file="f.mlir")
    assert error.message == f"The text {what}, so there is nothing to read. Write a func.func, or check the file."
    assert str(error) == f"f.mlir:1:1: {error.message}\n{text.split(chr(10))[0]}\n^"
    with pytest.raises(MLIRError, match=what):
        mlir.loads(text)
    path = tmp_path / "f.mlir"
    path.write_text(text)
    assert main(["run", str(path)]) == 1
    assert what in capsys.readouterr().err
    assert mlir.verify(text + "\nmesh.mesh @m(shape = 2)") == []


def test_a_text_that_ends_in_a_function_says_where():
    (error,) = mlir.verify("func.func @f() {", file="f.mlir")
    assert str(error).startswith("f.mlir:1:17: This can't be read in block definition.\nfunc.func @f() {\n")


OPEN = """mesh.mesh @m(shape = 2x?)
func.func @f(%x: tensor<2xf32>) -> tensor<?xf32> {
  %y = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<?xf32>
  return %y : tensor<?xf32>
}
"""


def test_sizes_of_meshes_come_from_the_command_line(tmp_path, capsys):
    path, out = tmp_path / "f.mlir", tmp_path / "out.npz"
    path.write_text(OPEN)
    assert main(["run", str(path), "--mesh-shape", "m=2x3", "--output", str(out)]) == 0
    np.testing.assert_array_equal(
        np.load(out)["result0"], np.repeat(np.arange(12.0).reshape(2, 1, 6), 3, 1).reshape(6, 6)
    )
    assert main(["mlir", "partition", str(path), "--mesh-shape", "@m=2x3"]) == 0
    assert "mesh.mesh @mesh0(shape = 2x3)" in capsys.readouterr().out
    assert main(["mlir", "convert", "--to", "shard", str(path), "--mesh-shape", "m=2x3"]) == 0
    assert "shard.grid @grid0(shape = 2x3)" in capsys.readouterr().out
    for option, message in (
        ([], "The shape of @m has `?`. Give its sizes"),
        (["--mesh-shape", "m=2by3"], "--mesh-shape m=2by3 is not a name and sizes. Write it as NAME=2x4."),
        (["--mesh-shape", "m"], "--mesh-shape m is not a name and sizes"),
        (["--mesh-shape", "n=2x3"], "mesh_shapes names @n; the file has @m"),
        (["--mesh-shape", "m=4x3"], "mesh_shapes gives (4, 3) for @m, whose shape is 2x?"),
    ):
        assert main(["run", str(path), *option]) == 1
        assert message in capsys.readouterr().err


def test_a_function_without_collectives_is_read_in_the_view_that_is_said(tmp_path, capsys):
    mesh = sw.Mesh(x=2)
    step = sw.sjit(lambda x: x + x, mesh=mesh, in_shardings=sw.P("x")).lower(np.ones(4, np.float32))
    text = mlir.dumps(step.program, view="local")
    fn = mlir.loads(text, view="local")["main"]
    v = sw.PerDevice(fn.mesh, np.arange(4, dtype=np.float32).reshape(2, 2))
    assert [x.tolist() for x in fn(v).values()] == [[0, 2], [4, 6]]
    assert mlir.dumps(fn.program) == text
    assert [row.results for row in fn.explain().rows] == [("f32[2] per device",)]
    whole = mlir.loads(text)["main"]  # nothing says that its types are those of one device
    assert not whole.is_local
    with pytest.raises(MLIRError, match=r"not a PerDevice. If its types are .* read it by loads\(text, view='local'\)"):
        whole(v)
    path = tmp_path / "f.mlir"
    path.write_text(text)
    assert main(["run", str(path), "--view", "local"]) == 0
    assert "(1,): [4. 6.]" in capsys.readouterr().out


def test_a_view_that_the_operations_contradict_is_refused():
    with pytest.raises(MLIRError, match=r"(?s)in the global view, but this is an operation of the other.*all_gather"):
        _ = mlir.loads(OPEN, view="global", mesh_shapes={"m": (2, 3)})["f"].program
    step = sw.sjit(lambda x: x + x, mesh=sw.Mesh(x=2), in_shardings=sw.P("x")).lower(np.ones(4, np.float32))
    with pytest.raises(MLIRError, match=r"(?s)in the local view, but this is an operation of the other.*shard.shard"):
        _ = mlir.loads(mlir.dumps(step.program), view="local")["main"].program
    with pytest.raises(MLIRError, match=r"There is no view 'sideways'. Use 'global' or 'local'"):
        mlir.loads(OPEN, view="sideways")
