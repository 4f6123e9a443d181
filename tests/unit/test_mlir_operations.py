"""Operations of linalg, tensor, tosa, math and arith that a sharded function needs, in both views, against NumPy."""

import numpy as np
import pytest

import shardwright as sw
from helpers import assert_close, assert_same, held_by
from shardwright import mlir
from shardwright.errors import MLIRError

RNG = np.random.default_rng(1)
A, B = (RNG.normal(size=shape).astype(np.float32) for shape in ((4, 6), (6, 4)))
E46, E64, E44, E4, E6 = (f"%e{n} = tensor.empty() : tensor<{n}xf32>\n" for n in ("4x6", "6x4", "4x4", "4", "6"))
T46, T64, T44, T4 = (f"tensor<{n}xf32>" for n in ("4x6", "6x4", "4x4", "4"))


def generic(maps, kinds, ins, out, body):
    spelled = ", ".join(f"affine_map<{text}>" for text in maps)
    iterators = ", ".join(f'"{kind}"' for kind in kinds)
    maps = f"{{indexing_maps = [{spelled}], iterator_types = [{iterators}]}}"
    return f"linalg.generic {maps} {ins} {out[0]} {{\n{body}\n}} -> {out[1]}"


CASES = {
    "named unary": (f"{E46}%y = linalg.tanh ins(%a : {T46}) outs(%e4x6 : {T46}) -> {T46}", T46, lambda a, b: np.tanh(a)),
    "named binary": (
        f"{E46}%y = linalg.sub ins(%a, %a : {T46}, {T46}) outs(%e4x6 : {T46}) -> {T46}", T46, lambda a, b: a - a),
    "matmul onto a start": (
        f"%c = arith.constant dense<2.0> : {T44}\n"
        f"%y = linalg.matmul ins(%a, %b : {T46}, {T64}) outs(%c : {T44}) -> {T44}", T44, lambda a, b: a @ b + np.float32(2)),
    "matvec": (
        f"%v = tensor.extract_slice %b[0, 1] [6, 1] [1, 1] : {T64} to tensor<6xf32>\n{E4}"
        f"%y = linalg.matvec ins(%a, %v : {T46}, tensor<6xf32>) outs(%e4 : {T4}) -> {T4}", T4, lambda a, b: a @ b[:, 1]),
    "batch_matmul": (
        f"%x = tensor.expand_shape %a [[0, 1], [2]] output_shape [2, 2, 6] : {T46} into tensor<2x2x6xf32>\n"
        f"%w = tensor.expand_shape %b [[0], [1, 2]] output_shape [6, 2, 2] : {T64} into tensor<6x2x2xf32>\n"
        f"%et = tensor.empty() : tensor<2x6x2xf32>\n"
        f"%t = linalg.transpose ins(%w : tensor<6x2x2xf32>) outs(%et : tensor<2x6x2xf32>) permutation = [1, 0, 2]\n"
        f"%eb = tensor.empty() : tensor<2x2x2xf32>\n"
        f"%y = linalg.batch_matmul ins(%x, %t : tensor<2x2x6xf32>, tensor<2x6x2xf32>) outs(%eb : tensor<2x2x2xf32>) "
        f"-> tensor<2x2x2xf32>", "tensor<2x2x2xf32>",
        lambda a, b: a.reshape(2, 2, 6) @ b.reshape(6, 2, 2).transpose(1, 0, 2)),
    "generic with an index and a transposed input": (
        E46 + "%y = " + generic(
            ["(i, j) -> (i, j)", "(i, j) -> (j, i)", "(i, j) -> (i, j)"], ["parallel"] * 2,
            f"ins(%a, %b : {T46}, {T64})", (f"outs(%e4x6 : {T46})", T46),
            "^bb0(%p: f32, %q: f32, %o: f32):\n%n = linalg.index 1 : index\n%i = arith.index_cast %n : index to i32\n"
            "%f = arith.sitofp %i : i32 to f32\n%m = arith.mulf %q, %f : f32\n%r = arith.addf %p, %m : f32\n"
            "linalg.yield %r : f32"),
        T46, lambda a, b: a + b.T * np.arange(6, dtype=np.float32)),
    "generic contraction": (
        E44 + "%y = " + generic(
            ["(i, j, k) -> (k, i)", "(i, j, k) -> (j, k)", "(i, j, k) -> (i, j)"], ["parallel", "parallel", "reduction"],
            f"ins(%b, %a : {T64}, {T46})", (f"outs(%e4x4 : {T44})", T44),
            "^bb0(%p: f32, %q: f32, %o: f32):\n%m = arith.mulf %p, %q : f32\n%r = arith.addf %o, %m : f32\n"
            "linalg.yield %r : f32"),
        T44, lambda a, b: b.T @ a.T),
    "generic reduction of an expression": (
        "%low = arith.constant dense<-1.0e30> : tensor<4xf32>\n%y = " + generic(
            ["(i, k) -> (i, k)", "(i, k) -> (i)"], ["parallel", "reduction"], f"ins(%a : {T46})",
            ("outs(%low : tensor<4xf32>)", T4),
            "^bb0(%p: f32, %o: f32):\n%m = math.absf %p : f32\n%r = arith.maximumf %m, %o : f32\nlinalg.yield %r : f32"),
        T4, lambda a, b: np.abs(a).max(1)),
    "reduce in the short form": (
        f"%z = arith.constant dense<1.0> : tensor<6xf32>\n"
        f"%y = linalg.reduce {{ arith.mulf }} ins(%a : {T46}) outs(%z : tensor<6xf32>) dimensions = [0]", "tensor<6xf32>",
        lambda a, b: a.prod(0)),
    "slices and joins": (
        f"%p = tensor.extract_slice %a[1, 0] [2, 3] [1, 2] : {T46} to tensor<2x3xf32>\n"
        f"%q = tensor.extract_slice %a[0, 1] [2, 3] [2, 2] : {T46} to tensor<2x3xf32>\n"
        f"%y = tensor.concat dim(0) %p, %q : (tensor<2x3xf32>, tensor<2x3xf32>) -> {'tensor<4x3xf32>'}", "tensor<4x3xf32>",
        lambda a, b: np.concatenate([a[1:3, ::2], a[::2, 1::2]])),
    "elements": (
        f"%i = arith.constant 2 : index\n%j = arith.constant 3 : index\n%x = tensor.extract %a[%i, %j] : {T46}\n"
        f"%y = tensor.from_elements %x, %x : tensor<2xf32>", "tensor<2xf32>", lambda a, b: a[[2, 2], [3, 3]]),
    "splat": (
        f"%i = arith.constant 1 : index\n%x = tensor.extract %a[%i, %i] : {T46}\n%y = tensor.splat %x : tensor<3x2xf32>",
        "tensor<3x2xf32>", lambda a, b: np.full((3, 2), a[1, 1])),
    "reshapes": (
        f"%p = tensor.collapse_shape %a [[0, 1]] : {T46} into tensor<24xf32>\n"
        f"%y = tensor.expand_shape %p [[0, 1, 2]] output_shape [2, 3, 4] : tensor<24xf32> into tensor<2x3x4xf32>",
        "tensor<2x3x4xf32>", lambda a, b: a.reshape(2, 3, 4)),
    "tosa": (
        f"%p = tosa.exp %a : ({T46}) -> {T46}\n%q = tosa.reduce_max %p {{axis = 1 : i32}} : ({T46}) -> tensor<4x1xf32>\n"
        f"%r = tosa.sub %p, %q : ({T46}, tensor<4x1xf32>) -> {T46}\n%s = tosa.sigmoid %r : ({T46}) -> {T46}\n"
        f"%y = tosa.transpose %s {{perms = array<i32: 1, 0>}} : ({T46}) -> {T64}", T64,
        lambda a, b: (1 / (1 + np.exp(-(np.exp(a) - np.exp(a).max(1, keepdims=True))))).T),
    "tosa matmul": (
        f"%x = tensor.expand_shape %a [[0, 1], [2]] output_shape [1, 4, 6] : {T46} into tensor<1x4x6xf32>\n"
        f"%w = tensor.expand_shape %b [[0, 1], [2]] output_shape [1, 6, 4] : {T64} into tensor<1x6x4xf32>\n"
        f"%y = tosa.matmul %x, %w : (tensor<1x4x6xf32>, tensor<1x6x4xf32>) -> tensor<1x4x4xf32>", "tensor<1x4x4xf32>",
        lambda a, b: (a @ b)[None]),
    "casts and comparisons": (
        f"%w = arith.extf %a : {T46} to tensor<4x6xf64>\n%i = arith.fptosi %w : tensor<4x6xf64> to tensor<4x6xi32>\n"
        f"%f = arith.sitofp %i : tensor<4x6xi32> to {T46}\n%c = arith.cmpf ult, %f, %a : {T46}\n"
        f"%n = arith.negf %a : {T46}\n%y = arith.select %c, %n, %f : tensor<4x6xi1>, {T46}", T46,
        lambda a, b: np.where(np.trunc(a) < a, -a, np.trunc(a))),
    "math": (
        f"%p = math.rsqrt %q : {T46}\n%r = math.round %a : {T46}\n%s = math.fma %p, %r, %a : {T46}\n"
        f"%y = math.atan2 %s, %q : {T46}", T46,
        lambda a, b: np.arctan2(1 / np.sqrt(np.abs(a)) * np.trunc(a + np.copysign(0.5, a)) + a, np.abs(a))),
}  # fmt: skip
CASES["math"] = (f"%q = math.absf %a : {T46}\n" + CASES["math"][0], *CASES["math"][1:])


def text(name, prelude=""):
    body, result, _ = CASES[name]
    return f"{prelude}func.func @f(%a: {T46}, %b: {T64}) -> {result} {{\n{body}\nreturn %y : {result}\n}}"


@pytest.mark.parametrize("name", CASES)
def test_operations_of_the_global_view(name):
    expected = CASES[name][2](A, B)
    for engine in ("numpy", "literal", "torch"):
        assert_close(mlir.loads(text(name), engine=engine)["f"](A, B), expected.astype(np.float32), 64)
    sharded = text(name, "mesh.mesh @m(shape = 2x2)\n")
    sharded = sharded.replace("{\n", f"{{\n%a = mesh.shard %a0 to <@m, [[0], [1]]> : {T46}\n", 1).replace(
        "%a:", "%a0:", 1
    )
    fn = mlir.loads(sharded, engine="literal")["f"]
    assert_close(fn(A, B), expected.astype(np.float32), 64)
    assert mlir.dumps(mlir.loads(mlir.dumps(fn.program))["main"].program) == mlir.dumps(fn.program)


@pytest.mark.parametrize("name", CASES)
def test_operations_of_the_local_view(name):
    body, result, expected = CASES[name]
    gather = "%a = mesh.all_gather %part on @m mesh_axes = [1] gather_axis = 0 : tensor<2x6xf32> -> tensor<4x6xf32>\n"
    head = f"mesh.mesh @m(shape = 3x2)\nfunc.func @f(%part: tensor<2x6xf32>, %b: {T64}) -> {result} {{\n"
    local = f"{head}{gather}{body}\nreturn %y : {result}\n}}"
    for engine in ("numpy", "literal"):
        fn = mlir.loads(local, engine=engine)["f"]
        shards = sw.shard(A, fn.mesh, sw.P("a1"))
        for tensor in fn(sw.PerDevice(fn.mesh, held_by(shards)), B).values():
            assert_close(tensor, expected(A, B).astype(np.float32), 64)


def test_values_that_are_known_are_worked_out_once():
    body = """%c = arith.constant dense<[1, 2, 3]> : tensor<3xi64>
%two = arith.constant dense<2> : tensor<3xi64>
%p = arith.muli %c, %two : tensor<3xi64>
%y = arith.addi %p, %x : tensor<3xi64>"""
    fn = mlir.loads(f"func.func @f(%x: tensor<3xi64>) -> tensor<3xi64> {{\n{body}\nreturn %y : tensor<3xi64>\n}}")["f"]
    assert_same(np.asarray(fn(np.zeros(3, np.int64))), np.array([2, 4, 6]))
    assert "multiply" not in fn.program.show()


def test_loops_of_the_global_view_may_use_their_counter():
    fn = mlir.loads("""
func.func @f(%x: tensor<4xf32>) -> (tensor<4xf32>, index) {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c7 = arith.constant 7 : index
  %z = arith.constant dense<0.0> : tensor<4xf32>
  %r:2 = scf.for %i = %c0 to %c7 step %c2 iter_args(%a = %z, %n = %c0) -> (tensor<4xf32>, index) {
    %k = arith.index_cast %i : index to i32
    %f = arith.sitofp %k : i32 to f32
    %s = tensor.splat %f : tensor<4xf32>
    %t = arith.mulf %s, %x : tensor<4xf32>
    %b = arith.addf %a, %t : tensor<4xf32>
    %m = arith.addi %n, %i : index
    scf.yield %b, %m : tensor<4xf32>, index
  }
  return %r#0, %r#1 : tensor<4xf32>, index
}""")["f"]
    x = np.arange(4, dtype=np.float32)
    total, count = fn(x)
    assert_same(np.asarray(total), 12 * x)
    assert int(count) == 12


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%y = linalg.reduce { arith.addf } ins(%x : tensor<4xf32>) outs(%z : tensor<f32>) dimensions = [7]",
         "invalid operands"),
        ("%y = tensor.extract_slice %x[3] [2] [1] : tensor<4xf32> to tensor<2xf32>",
         "Rows 3 to 4 of dim 0 are read, which has 4"),
    ],
)  # fmt: skip
def test_invalid_attributes_are_errors_at_their_line(line, message):
    kind = {"linalg": "tensor<f32>", "tensor": "tensor<1xf32>"}[line.split()[2].split(".")[0]]
    kind = "tensor<2xf32>" if "[3] [2]" in line else kind
    source = f"func.func @f(%x: tensor<4xf32>, %z: tensor<f32>) -> {kind} {{\n{line}\nreturn %y : {kind}\n}}"
    with pytest.raises(MLIRError, match=message) as caught:
        _ = mlir.loads(source)["f"].program
    assert caught.value.line in (2, 3)
