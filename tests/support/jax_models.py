"""Training steps as users write them: flax modules and plain functions with optax's AdamW, clipping and a schedule."""

from functools import cache

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import shardwright as sw
from shardwright import P


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(24)(x))
        return nn.Dense(10)(x)


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(6, (3, 3))(x))
        x = nn.avg_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Conv(8, (3, 3), strides=(2, 1))(x))
        x = nn.max_pool(x, (2, 2), (2, 2), padding="SAME")
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        h = nn.LayerNorm()(x)
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        x = x + nn.MultiHeadDotProductAttention(4)(h, h, mask=mask)
        h = nn.RMSNorm()(x)
        h = nn.gelu(nn.Dense(32)(h))
        return x + nn.Dense(16)(h), None


class LM(nn.Module):
    scanned: bool = False

    @nn.compact
    def __call__(self, ids):
        embed = nn.Embed(20, 16)
        x = embed(ids)
        if self.scanned:
            blocks = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
            x, _ = blocks()(x, None)
        else:
            x, _ = Block()(x)
        return embed.attend(nn.LayerNorm()(x))


def flax_step(model, shape, classes, integers=False):
    """A training step, its parameters and optimizer state, and a function that gives batches."""
    schedule = optax.cosine_decay_schedule(1e-2, 100)
    # Some gradients are 0 but for rounding; with a small eps AdamW would step by their sign.
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, eps=1e-4, weight_decay=0.1))

    def loss(params, x, y):
        logits = model.apply({"params": params}, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(params, state, x, y):
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    def batch(number):
        rng = np.random.default_rng(number)
        x = rng.integers(0, classes, shape).astype(np.int32) if integers else rng.normal(size=shape).astype(np.float32)
        labels = shape if integers else shape[:1]
        return x, rng.integers(0, classes, labels).astype(np.int32)

    shapes = jax.eval_shape(model.init, jax.random.key(0), batch(0)[0])["params"]
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda s: rng.normal(size=s.shape, scale=0.3).astype(np.float32), shapes)
    state = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), jax.eval_shape(optimizer.init, shapes))
    return step, params, state, batch


def plain_step():
    """A network of plain jnp with dropout, whose optimizer is written out: momentum, and the key in the state."""

    def loss(params, x, y, key):
        h = jnp.tanh(x @ params[0]["w"] + params[0]["b"])
        h = jnp.where(jax.random.bernoulli(key, 0.9, h.shape), h / 0.9, 0.0)
        logits = lax.dot_general(h, params[1]["w"], (((1,), (0,)), ((), ())))
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))

    def step(params, state, x, y):
        momentum, key = state
        key, used = jax.random.split(key)
        value, gradients = jax.value_and_grad(loss)(params, x, y, used)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
        params = jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum)
        return params, (momentum, key), value

    def batch(number):
        rng = np.random.default_rng(number)
        return rng.normal(size=(10, 6)).astype(np.float32), rng.integers(0, 5, 10).astype(np.int32)

    rng = np.random.default_rng(7)
    w, v = rng.normal(size=(6, 12)).astype(np.float32), rng.normal(size=(12, 5)).astype(np.float32)
    params = [{"w": w, "b": np.zeros(12, np.float32)}, {"w": v}]
    momentum = jax.tree.map(np.zeros_like, params)
    return step, params, (momentum, np.array([0, 1], np.uint32)), batch


MODELS = {
    "mlp": lambda: flax_step(MLP(), (10, 9), 10),
    "cnn": lambda: flax_step(CNN(), (4, 11, 10, 3), 10),
    "lm": lambda: flax_step(LM(), (4, 7), 20, integers=True),
    "scanned lm": lambda: flax_step(LM(scanned=True), (4, 7), 20, integers=True),
    "plain": plain_step,
}


def rules(mesh):
    """The batch along the first axis of a mesh; matrices of the parameters along the last one."""
    first, last = mesh.axis_names[0], mesh.axis_names[-1]
    weights = sw.rules.PolicyShardingRule(lambda path, x: P(*(None,) * (x.ndim - 1), last) if x.ndim > 1 else P())
    return {"params": weights, "state": weights, "x": P(first), "y": P(first)}


STEPS = 3


@cache
def by_jax(model):
    """The step with its first arguments, and what JAX gives after each of some steps: parameters and state; losses."""
    step, params, state, batch = MODELS[model]()
    quickly = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    compiled = jax.jit(step).lower(params, state, *batch(0)).compile(compiler_options=quickly)
    tree, after, losses = (params, state), [], []
    for number in range(STEPS):
        *tree, loss = compiled(*tree, *batch(number))
        after.append([np.asarray(x) for x in jax.tree.leaves(tree)])
        losses.append(float(loss))
    return (step, params, state, batch), after, losses


def by_import(model, mesh):
    """The parameters, the state and the losses that the imported function gives on a mesh, on the host."""
    step, params, state, batch = MODELS[model]()
    run = sw.jax.load(step, params, state, *batch(0)).sjit(mesh, rules(mesh))
    tree, losses = (params, state), []
    for number in range(STEPS):
        *tree, loss = run(*tree, *batch(number))
        losses.append(float(np.asarray(loss)))
    return [np.asarray(x) for x in jax.tree.leaves(tree)], losses
