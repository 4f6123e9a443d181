"""`sw.jax.load`: training steps against JAX, names, rules, lines, strictness, errors."""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shardwright as sw
from jax_models import MODELS, by_import, by_jax, rules
from shardwright import P
from shardwright.errors import ImplicitGatherError, OperationError, ProgramError, ShardingError, TreeError

GRID, THREE = sw.Mesh(dp=2, tp=2), sw.Mesh(c=3, engine="literal")
F = np.float32


def assert_trained(model, got, losses):
    _, after, wanted_losses = by_jax(model)
    np.testing.assert_allclose(losses, wanted_losses, rtol=5e-6)
    assert losses[-1] != losses[0]
    for a, b in zip(got, after[-1], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("mesh", [GRID, THREE], ids=["2x2", "3 literal"])
@pytest.mark.parametrize("model", MODELS)
def test_training_steps(model, mesh):
    assert_trained(model, *by_import(model, mesh))


def test_a_training_step_on_the_devices_of_jax():
    assert_trained("mlp", *by_import("mlp", sw.Mesh(dp=4, tp=2, engine="jax")))


def test_a_training_step_on_literal_devices_counts_what_explain_says():
    (step, params, state, batch), _, _ = by_jax("mlp")
    f = sw.jax.load(step, params, state, *batch(0))
    measured = sw.measure(f.sjit(GRID, rules(GRID)), params, state, *batch(0))
    assert measured.rows
    assert all(row.counted == row.bytes for row in measured.rows if row.collective)


MEGATRON = sw.rules.TreePathShardingRule(
    (r"(query|key|value)/kernel", P(None, "tp")),
    (r"(query|key|value)/bias", P("tp")),
    (r"out/kernel", P("tp")),
    (r"Dense_0/kernel", P(None, "tp")),
    (r"Dense_0/bias", P("tp")),
    (r"Dense_1/kernel", P("tp")),
    (".*", P()),
)


@pytest.mark.parametrize("model", ["mlp", "lm"])
def test_tensor_parallel_steps_are_strict(model):
    (step, params, state, batch), _, _ = by_jax(model)
    f = sw.jax.load(step, params, state, *batch(0))
    weights = MEGATRON if model == "lm" else sw.rules.TreePathShardingRule(*MEGATRON.rules[3:])
    with sw.strict():
        explained = f.explain(GRID, {"params": weights, "state": weights, "x": P("dp"), "y": P("dp")})
    assert explained.collectives


@pytest.mark.parametrize("model", ["mlp", "cnn", "lm", "scanned lm"])
def test_data_parallel_steps_are_strict_and_only_reduce(model):
    (step, params, state, batch), _, _ = by_jax(model)
    f = sw.jax.load(step, params, state, *batch(0))
    with sw.strict():
        explained = f.explain(sw.Mesh(dp=4), {"params": P(), "state": P(), "x": P("dp"), "y": P("dp")})
    assert {row.collective.split()[0] for row in explained.collectives} <= {
        "all_reduce",
        "reduce_scatter",
        "all_gather",
    }


def test_names_are_parameters_and_paths():
    def step(params, x):
        return x @ params["layers"][0]["w"]

    f = sw.jax.load(step, {"layers": [{"w": np.ones((4, 6), F)}]}, np.ones((8, 4), F))
    shardings = f.shardings(GRID, sw.rules.TreePathShardingRule(("params/layers/0/w", P(None, "tp")), ("^x$", P("dp"))))
    assert shardings["params"]["layers"][0]["w"].spec == P(None, "tp")
    assert shardings["x"].spec == P("dp", None)
    kinds = f.arguments_in_order()
    assert f.planned().names == ("params/layers/0/w", "x")
    assert f.planned(*kinds).arguments == kinds
    assert f.sjit(GRID).lower(*kinds).program.names == ("params/layers/0/w", "x")
    with pytest.raises(ShardingError, match=r"matches no leaf. The paths are 'params/layers/0/w', 'x'"):
        f.sjit(GRID, sw.rules.TreePathShardingRule(("kernel", P()), (".*", P())))
    with pytest.raises(ProgramError, match="one for each of 'params', 'x'"):
        f.sjit(GRID, {"w": P()})


def test_source_lines_are_the_users():
    (step, params, state, batch), _, _ = by_jax("lm")
    explained = sw.jax.load(step, params, state, *batch(0)).explain(GRID, rules(GRID))
    files = {row.source.rpartition(":")[0].rpartition("/")[2] for row in explained.rows if row.source}
    assert files <= {"jax_models.py", "test_jax_import.py"}
    assert len({row.source for row in explained.rows}) > 5
    stacks = {row.stack for row in explained.rows}
    assert any("LM/Block_0/MultiHeadDotProductAttention_0/query" in stack.replace("jvp(LM)", "LM") for stack in stacks)


@flax.struct.dataclass
class State:
    w: jax.Array
    count: jax.Array
    scale: float = flax.struct.field(pytree_node=False)


def test_nodes_that_only_jax_knows():
    def step(state, x):
        return state.replace(w=state.w * state.scale + x, count=state.count + 1)

    first = State(np.ones((4, 6), F), np.int32(3), 2.0)
    x = np.arange(24, dtype=F).reshape(4, 6)
    f = sw.jax.load(step, first, x)
    made = f.sjit(GRID, sw.rules.TreePathShardingRule(("state/w", P("dp", "tp")), ("x", P("dp"))))(first, x)
    assert isinstance(made, State)
    assert made.scale == 2.0
    assert made.w.sharding.spec == P("dp", "tp")
    np.testing.assert_array_equal(np.asarray(made.w), 2 + x)
    assert int(made.count) == 4


def test_arrays_are_computed_with_outside_of_sjit():
    f = sw.jax.load(lambda x, n: (jnp.tanh(x) * n, lax.fori_loop(0, 3, lambda i, c: c + i, x)), np.ones((4, 6), F), 2)
    x = sw.shard(np.arange(24, dtype=F).reshape(4, 6), GRID, P("dp"))
    one, two = f(x, 5)
    np.testing.assert_allclose(np.asarray(one), np.tanh(np.asarray(x)) * 5, rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(two), np.asarray(x) + 3)
    assert one.sharding.spec == P("dp", None)


def test_imported_functions_are_parts_of_others():
    f = sw.jax.load(lambda x: jnp.sin(x) + 1, np.ones((4, 6), F))
    step = sw.sjit(lambda x: f(x * 2) - 1, mesh=GRID, in_shardings=P("dp"))
    x = np.ones((4, 6), F)
    np.testing.assert_allclose(np.asarray(step(x)), np.sin(x * 2), rtol=1e-6)


def test_abstract_arguments_take_no_memory():
    kinds = [sw.ShapeDtype((1 << 20, 8192), "bfloat16"), jax.ShapeDtypeStruct((8192, 1 << 15), jnp.bfloat16)]
    f = sw.jax.load(lambda x, w: jax.nn.gelu(x @ w).sum(), *kinds)
    explained = f.explain(sw.Mesh(dp=32, tp=16), {"x": P("dp"), "w": P(None, "tp")})
    assert explained.peak_bytes < 3 * 2**30


def test_constants_are_folded_and_stay_small():
    def masked(x):
        n = x.shape[0]
        mask = jnp.arange(n)[:, None] >= jnp.arange(n)
        return jnp.where(mask, x, -jnp.inf) * jnp.full((n, n), 2.0)

    f = sw.jax.load(masked, sw.ShapeDtype((4096, 4096), "float32"))
    program = f.sjit(GRID, P("dp", "tp")).lower(sw.ShapeDtype((4096, 4096), "float32")).program
    assert sum(x.nbytes for x in program.constants.values()) <= 2 * 4096 * 8
    small = sw.jax.load(lambda x: x * jnp.exp(jnp.arange(6.0)), np.ones((4, 6), F))
    rows = small.explain(GRID, P("dp")).rows
    assert [row.operation for row in rows] == ["multiply"]


def test_sharding_constraints():
    mesh = jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def constrained(x):
        return lax.with_sharding_constraint(x * 2, jax.sharding.NamedSharding(mesh, jax.P(None, "tp"))) + 1

    f = sw.jax.load(constrained, np.ones((4, 6), F))
    assert f.sjit(GRID)(np.ones((4, 6), F)).sharding.spec == P(None, "tp")
    with pytest.raises(ShardingError, match=r"names \['tp'\]; Mesh\(dp=4\) has other axes"):
        f.sjit(sw.Mesh(dp=4))(np.ones((4, 6), F))


def test_unknown_primitives_are_listed_at_once():
    def unknown(x):
        y = jnp.linalg.inv(x)
        return jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct((4, 4), F), y)

    with pytest.raises(OperationError, match=r"has \d primitives that can't be imported") as caught:
        sw.jax.load(unknown, np.ones((4, 4), F))
    text = str(caught.value)
    line = unknown.__code__.co_firstlineno
    assert f"  lu at {__file__}:{line + 1}" in text
    assert f"  pure_callback at {__file__}:{line + 2}" in text
    with pytest.raises(OperationError, match="random_bits of unsafe_rbg keys"):
        sw.jax.load(lambda k: jax.random.normal(k, (3,)), jax.random.key(0, impl="unsafe_rbg"))


def test_what_is_unknown_may_be_a_constant():
    f = sw.jax.load(lambda x: x @ jnp.linalg.inv(jnp.eye(4) * 2), np.ones((3, 4), F))
    np.testing.assert_allclose(np.asarray(f.sjit(GRID, P("dp"))(np.ones((3, 4), F))), np.full((3, 4), 0.5))


def test_arguments_that_do_not_fit():
    f = sw.jax.load(lambda p, x: p["w"] * x, {"w": np.ones(4, F)}, np.ones(4, F))
    run = f.sjit(GRID)
    with pytest.raises(ProgramError, match=r"'x' has shape \(5,\); the function was loaded for \(4,\)"):
        run({"w": np.ones(4, F)}, np.ones(5, F))
    with pytest.raises(ProgramError, match="'p/w' has dtype int32; the function was loaded for float32"):
        run({"w": np.ones(4, np.int32)}, np.ones(4, F))
    with pytest.raises(TreeError, match="was loaded for arguments with the structure"):
        run({"v": np.ones(4, F)}, np.ones(4, F))
    np.testing.assert_array_equal(np.asarray(run({"w": np.ones(4)}, np.ones(4, F))), np.ones(4))  # float64 is narrowed


def test_errors_of_operations_name_the_line():
    def combined(x):
        return lax.reduce(x, F(0), lambda a, b: a + 2 * b, (0,))

    f = sw.jax.load(combined, np.ones((4, 6), F))
    with pytest.raises(
        OperationError, match=r"reduce \(.*test_jax_import.py:\d+\): a reduction by a function of mul, add"
    ):
        f.sjit(GRID)(np.ones((4, 6), F))


def test_gathers_are_seen_by_strict():
    f = sw.jax.load(lax.sort, np.ones(8, F))
    with sw.strict(), pytest.raises(ImplicitGatherError, match="sort gathers dim 0"):
        f.explain(GRID, P("dp"))
