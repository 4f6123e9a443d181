"""The plan of a training step, imported from JAX: forward, backward and the update of a LLaMA-8B layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwright as sw
from shardwright import P

pytestmark = pytest.mark.filterwarnings("ignore::shardwright.ImplicitGatherWarning")

ROWS, LENGTH, D, H, F = 16, 2048, 4096, 32, 14336
MATRICES = {
    "wq": (D, H, D // H), "wk": (D, H, D // H), "wv": (D, H, D // H), "wo": (H, D // H, D),
    "w1": (D, F), "w3": (D, F), "w2": (F, D),
}  # fmt: skip
SHAPES = MATRICES | {"n1": (D,), "n2": (D,)}


def norm(x, weight):
    size = (x.astype(jnp.float32) ** 2).mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(size + 1e-5).astype(x.dtype) * weight


def layer(w, x):
    h = norm(x, w["n1"])
    q, k, v = (jnp.einsum("bsd,dhe->bshe", h, w[name]) for name in ("wq", "wk", "wv"))
    scores = jnp.einsum("bshe,bthe->bhst", q, k) * jnp.bfloat16((D // H) ** -0.5)
    x = x + jnp.einsum("bshe,hed->bsd", jnp.einsum("bhst,bthe->bshe", jax.nn.softmax(scores), v), w["wo"])
    h = norm(x, w["n2"])
    return x + (jax.nn.silu(h @ w["w1"]) * (h @ w["w3"])) @ w["w2"]


def step(weights, moments, x, y):
    """One step of gradient descent with momentum on the squared error."""
    gradients = jax.grad(lambda w: ((layer(w, x) - y).astype(jnp.float32) ** 2).mean())(weights)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g.astype(jnp.float32), moments, gradients)
    return jax.tree.map(lambda w, m: (w - 0.1 * m).astype(w.dtype), weights, moments), moments


@pytest.fixture(scope="module")
def plan():
    """Whole weights, the activations of a device and its part of the state take 0.96 GB: a little less than that is there."""
    weights = {name: jax.ShapeDtypeStruct(shape, jnp.bfloat16) for name, shape in SHAPES.items()}
    moments = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in SHAPES.items()}
    x = jax.ShapeDtypeStruct((ROWS, LENGTH, D), jnp.bfloat16)
    mesh = sw.Mesh(dp=8, tp=8, hardware="h100")
    return sw.auto(sw.jax.load(step, weights, moments, x, x), mesh, weights, moments, x, x, memory=7e8)


def test_a_training_plan_finds_what_autoparallel_published(plan):
    """For LLaMA3-8B: w1 and w3 by column, w2 by row, wo sequence parallel."""
    assert {name: plan.places[f"weights/{name}"].spec for name in ("w1", "w3", "w2", "wo")} == {
        "w1": P(None, "tp"),
        "w3": P(None, "tp"),
        "w2": P("tp", None),
        "wo": P(None, None, None),
    }
    assert plan.places["y"].spec == P("dp", "tp", None)  # where the residual is


def test_the_state_of_the_optimizer_is_spread_over_all_devices(plan):
    for name, shape in MATRICES.items():
        assert plan.places[f"moments/{name}"].local_size(shape) == np.prod(shape) / 64, name


def test_a_training_plan_is_within_its_limit_and_near_its_bound(plan):
    assert plan.memory <= 7e8
    assert plan.bound <= plan.time <= plan.bound * 1.01
    assert plan.certificate.check()
