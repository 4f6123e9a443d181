"""`sw.mlir.loads` of StableHLO: training steps, shardings of Shardy and mhlo, lines, errors with a caret."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import shardwright as sw
from jax_models import by_jax, rules
from shardwright import P
from shardwright.errors import MLIRError
from shardwright.mlir.stablehlo_shardings import hlo_mesh, hlo_spec, shardy_spec

GRID = sw.Mesh(dp=2, tp=2)
F = np.float32


@pytest.mark.parametrize("model", ["mlp", "cnn", "scanned lm"])
def test_training_steps(model):
    (step, params, state, batch), after, losses = by_jax(model)
    arguments = (params, state, *batch(0))
    function = sw.mlir.loads(jax.jit(step).lower(*arguments).as_text())["main"]
    leaves = jax.tree.leaves(arguments)
    shardings = jax.tree.leaves(tuple(sw.jax.load(step, *arguments).shardings(GRID, rules(GRID)).values()))
    *made, loss = function.sjit(GRID, tuple(shardings))(*leaves)
    np.testing.assert_allclose(float(loss), losses[0], rtol=5e-6)
    for a, b in zip(made, after[0], strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=2e-4, atol=2e-6)


SHARDY = """
module @jit_f attributes {mhlo.num_partitions = 8 : i32} {
  sdy.mesh @mesh = <["dp"=2, "tp"=4]>
  func.func public @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>},
                         %w: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>})
      -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>}, tensor<f32>) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"dp"}, {"tp"}]> : tensor<8x8xf32>
    %2 = stablehlo.tanh %1 : tensor<8x8xf32>
    %cst = stablehlo.constant dense<0.0> : tensor<f32>
    %3 = stablehlo.reduce(%1 init: %cst) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
    return %2, %3 : tensor<8x8xf32>, tensor<f32>
  }
}
"""
MHLO = """
module @jit_f attributes {mhlo.num_partitions = 8 : i32} {
  func.func public @main(%x: tensor<8x4xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"},
                         %w: tensor<4x8xf32> {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"})
      -> (tensor<8x8xf32> {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"}, tensor<f32>) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    %1 = stablehlo.custom_call @Sharding(%0) {mhlo.sharding = "{devices=[2,4]<=[8]}"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %2 = stablehlo.tanh %1 : tensor<8x8xf32>
    %cst = stablehlo.constant dense<0.0> : tensor<f32>
    %3 = stablehlo.reduce(%1 init: %cst) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
    return %2, %3 : tensor<8x8xf32>, tensor<f32>
  }
}
"""


@pytest.mark.parametrize(("text", "axes"), [(SHARDY, ("dp", "tp")), (MHLO, ("a0", "a1"))], ids=["shardy", "mhlo"])
def test_shardings_of_the_text(text, axes):
    function = sw.mlir.loads(text)["main"]
    assert dict(function.mesh.sizes) == dict(zip(axes, (2, 4), strict=True))
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(8, 4)).astype(F), rng.normal(size=(4, 8)).astype(F)
    y, total = function(x, w)
    np.testing.assert_allclose(np.asarray(y), np.tanh(x @ w), rtol=1e-5)
    np.testing.assert_allclose(float(total), (x @ w).sum(), rtol=1e-4)
    assert y.sharding.spec == P(None, axes[1])
    rows = function.explain().rows
    assert {row.collective.split()[0] for row in rows if row.collective} == {"all_gather", "all_reduce"}
    product = next(row for row in rows if row.operation == "dot_general")
    assert f"f32[8@{axes[0]},8@{axes[1]}]" in str(product.results)
    assert product.source == "<mlir>:7" if axes[0] == "dp" else product.source == "<mlir>:6"


def test_what_jax_prints_for_shardings():
    mesh = jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    placed = [NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("dp",), (None, "tp"))]
    text = jax.jit(lambda x, w: x @ w, in_shardings=placed).lower(np.ones((4, 6), F), np.ones((6, 8), F)).as_text()
    function = sw.mlir.loads(text)["main"]
    assert function(np.ones((4, 6), F), np.ones((6, 8), F)).sharding.spec == P("dp", "tp")
    assert function.program.mesh == sw.Mesh(dp=2, tp=2)


def test_lines_of_the_users_file_if_the_text_has_them():
    lowered = jax.jit(lambda x: jnp.sin(x).sum()).lower(np.ones(4, F))
    rows = sw.mlir.loads(lowered.as_text(debug_info=True))["main"].explain(sw.Mesh(x=2), P("x")).rows
    assert {row.source.rpartition("/")[2].partition(":")[0] for row in rows} == {"test_stablehlo.py"}


def test_tiles_of_devices():
    assert hlo_mesh(["{devices=[2,2]<=[4]}"], 4) == {"a0": 2, "a1": 2}
    assert hlo_mesh(["{replicated}"], 1) == {"a0": 1}
    mesh = sw.Mesh(a0=2, a1=3)
    assert hlo_spec("{devices=[6]<=[6]}", 1, mesh) == P(("a0", "a1"))
    assert hlo_spec("{devices=[3,2]<=[2,3]T(1,0)}", 2, mesh) == P(("a1",), ("a0",))
    assert hlo_spec("{devices=[3,2]0,3,1,4,2,5}", 2, mesh) == P(("a1",), ("a0",))
    assert hlo_spec("{maximal device=0}", 2, mesh) == P()
    with pytest.raises(sw.errors.ShardingError, match="is not along axes"):
        hlo_spec("{devices=[3,2]0,1,2,4,3,5}", 2, mesh)
    assert shardy_spec('#sdy.sharding<@mesh, [{"x":(1)2, "y"}, {?}]>') == P(("x:(1)2", "y"), None)
    assert shardy_spec("#sdy.sharding<@mesh, [{?}, {?}]>") is None


def explained(text):
    return sw.mlir.loads(text)["main"].explain(GRID)


def assert_caret(text, message, column_of):
    with pytest.raises(MLIRError, match=message) as caught:
        explained(text)
    shown, caret = str(caught.value).splitlines()[-2:]
    assert shown[caret.index("^") :].startswith(column_of)


def wrapped(body, kind="tensor<4xf32>"):
    return f"func.func @main(%x: {kind}) -> {kind} {{\n  {body}\n  return %y : {kind}\n}}\n"


def test_errors_have_a_line_and_a_caret():
    assert_caret(
        wrapped("%y = stablehlo.sinn %x : tensor<4xf32>"), "custom op 'stablehlo.sinn' is unknown", "stablehlo.sinn"
    )
    assert_caret(
        wrapped("%y = stablehlo.cholesky %x, lower = true : tensor<4x4xf32>", "tensor<4x4xf32>"),
        "'stablehlo.cholesky' is not supported",
        "stablehlo.cholesky",
    )
    assert_caret(
        wrapped("%y = stablehlo.custom_call @mine(%x) : (tensor<4xf32>) -> tensor<4xf32>"),
        "The custom call @mine is not supported",
        "stablehlo.custom_call",
    )
    assert_caret(wrapped("%y = stablehlo.sine %x : tensor<5xf32>"), "use of value '%x' expects different type", "%x")


def test_arguments_that_do_not_fit():
    function = sw.mlir.loads(wrapped("%y = stablehlo.sine %x : tensor<4xf32>"))["main"]
    np.testing.assert_allclose(np.asarray(function([0.0, 1.0, 2.0, 3.0])), np.sin(np.arange(4, dtype=F)), rtol=1e-6)
    with pytest.raises(
        MLIRError, match=r"argument 0 is float32 of shape \(4,\) in the text; got float64 of shape \(4,\)"
    ):
        function(np.ones(4))
    with pytest.raises(MLIRError, match="takes 1 arguments; got 2"):
        function(np.ones(4, F), np.ones(4, F))


def test_constants_of_every_type():
    constants = {
        "2xbf16": "[1.5, -2.0]",
        "bf16": "0xFF80",
        "2xcomplex<f32>": "[(1.0, 2.0), (-3.0, 0.5)]",
        "2xi1": "[true, false]",
        "2xf32": '"0x0000803F00000040"',
        "3xui8": "7",
    }
    lines = [f"%{i} = stablehlo.constant dense<{v}> : tensor<{t}>" for i, (t, v) in enumerate(constants.items())]
    kinds = ", ".join(f"tensor<{kind}>" for kind in constants)
    body = "\n".join([*lines, f"return {', '.join(f'%{i}' for i in range(len(lines)))} : {kinds}"])
    text = f"func.func @main(%x: tensor<2xf32>) -> ({kinds}) {{\n{body}\n}}"
    made = [np.asarray(x) for x in sw.mlir.loads(text)["main"](np.ones(2, F))]
    wanted = [[1.5, -2.0], -np.inf, [1 + 2j, -3 + 0.5j], [True, False], [1.0, 2.0], [7, 7, 7]]
    for a, b in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(a.astype(F) if a.dtype.name == "bfloat16" else a, b)
    assert [a.dtype.name for a in made] == ["bfloat16", "bfloat16", "complex64", "bool", "float32", "uint8"]
