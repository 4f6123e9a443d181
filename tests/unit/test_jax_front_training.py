"""Models of flax trained with optax on 8 devices: whatever the rules, the losses are those of one device."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax.training.train_state import TrainState
from jax.sharding import PartitionSpec as P

import shardwright.jax as sj

STEPS = 4


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(64, name="up")(x))
        return nn.Dense(8, name="down")(sj.with_sharding_annotation(x, "hidden"))


class Transformer(nn.Module):
    """One block of attention and an MLP over 32 tokens."""

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(32, 16, name="embed")(tokens)
        q, k, v = jnp.moveaxis(nn.DenseGeneral((3, 4, 4), name="qkv")(nn.RMSNorm(name="norm")(x)), 2, 0)
        scores = jnp.einsum("bthd,bshd->bhts", q, k) / 2 + jnp.where(jnp.tri(tokens.shape[1], dtype=bool), 0, -1e9)
        mixed = jnp.einsum("bhts,bshd->bthd", nn.softmax(scores), v)
        x = x + nn.DenseGeneral(16, axis=(-2, -1), name="o")(mixed)
        h = nn.relu(nn.Dense(64, name="up")(x))
        x = x + nn.Dense(16, name="down")(sj.with_sharding_annotation(h, "hidden"))
        return nn.Dense(32, name="head")(x)


def batches(model):
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        if model is MLP:
            x = rng.standard_normal((16, 32), np.float32)
            yield x, np.argmax(x[:, :8], 1)
        else:
            tokens = rng.integers(0, 32, (16, 9), np.int32)
            yield tokens[:, :-1], tokens[:, 1:]


def init(params):
    return TrainState.create(apply_fn=None, params=params, tx=optax.sgd(1e-2, momentum=0.9))


def step_of(model):
    def step(state, batch):
        def loss(params):
            logits = model().apply({"params": params}, batch[0])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

        value, gradients = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradients), value

    return step


def random_params(model):
    """Parameters as NumPy arrays."""
    with sj.optional_shardings():
        shapes = jax.eval_shape(model().init, jax.random.key(0), next(batches(model))[0])["params"]
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: rng.standard_normal(x.shape, np.float32) / 4, shapes)


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    name = "jax_disable_most_optimizations"
    before = jax.config.values[name]
    jax.config.update(name, True)
    yield
    jax.config.update(name, before)


@pytest.fixture(scope="module", params=[MLP, Transformer])
def reference(request):
    """A model and its losses on one device."""
    model, losses = request.param, []
    with sj.optional_shardings():
        state, step = jax.jit(init)(random_params(model)), jax.jit(step_of(model))
        for batch in batches(model):
            state, loss = step(state, batch)
            losses.append(float(loss))
    return model, losses


TENSOR = sj.TreePathShardingRule(
    ("embed/embedding", P(None, "model")),
    ("up/kernel", P(None, "model")),
    ("up/bias", P("model")),
    ("down/kernel", P("model", None)),
    ("qkv/kernel", P(None, None, "model", None)),
    ("qkv/bias", P(None, "model", None)),
    ("o/kernel", P("model", None, None)),
    ("norm|bias|head|step", P()),
)
LAST_DIM = sj.PolicyShardingRule(lambda path, leaf: P("data", *[None] * (leaf.ndim - 2), "model"))
SETUPS = {
    "data": ((8,), ("data",), P(), P("data"), P("data")),
    "fsdp": ((8,), ("fsdp",), sj.FSDPShardingRule("fsdp", min_fsdp_size=64), P("fsdp"), None),
    "tensor": ((2, 4), ("data", "model"), TENSOR, P("data"), LAST_DIM),
}


@pytest.mark.filterwarnings("ignore:The pattern:shardwright.errors.ShardingWarning")
@pytest.mark.parametrize("setup", SETUPS)
def test_losses_are_those_of_one_device(reference, setup):
    model, expected = reference
    dims, names, rule, rows, hidden = SETUPS[setup]
    helper = sj.MeshShardingHelper(dims, names)
    step = helper.sjit(
        step_of(model),
        in_shardings=(rule, P()),
        out_shardings=(rule, P()),
        args_sharding_constraint=(rule, rows),
        annotation_shardings={"hidden": hidden},
        donate_argnums=0,
    )
    state = helper.sjit(init, out_shardings=rule)(random_params(model))
    if setup != "data":
        split = [x for x in jax.tree.leaves(state) if not x.sharding.is_fully_replicated]
        assert len(split) >= 6
    losses = []
    for batch in batches(model):
        state, loss = step(state, batch)
        losses.append(float(loss))
    np.testing.assert_allclose(losses, expected, rtol=2e-4)
