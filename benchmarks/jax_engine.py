"""The JAX engine against GSPMD: our programs and the same functions in jax.numpy under jax.jit with the same shardings."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")  # read when JAX starts

import jax
import jax.numpy as jnp
import numpy as np
from harness import ratio
from jax.sharding import NamedSharding

import shardwright as sw
from shardwright import P, nn

MESH = sw.Mesh(dp=2, tp=4, engine="jax")
MLP = (("dp", None), (None, "tp"), ("tp", None))


def arrays(shapes, specs):
    """Random arrays, ours and JAX's."""
    rng = np.random.default_rng(0)
    hosts = [(rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32) for shape in shapes]
    ours = [sw.shard(host, MESH, P(*spec)) for host, spec in zip(hosts, specs, strict=True)]
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("dp", "tp"))
    theirs = [jax.device_put(h, NamedSharding(mesh, jax.P(*s))) for h, s in zip(hosts, specs, strict=True)]
    return ours, theirs, NamedSharding(mesh, jax.P("dp"))


def compared(name, mine, theirs, shapes, specs, goal, **options):
    """Our program against GSPMD's; both must give the same."""
    ours, given, out = arrays(shapes, specs)
    step, peer = sw.sjit(mine), jax.jit(theirs, out_shardings=out)
    np.testing.assert_allclose(np.asarray(step(*ours)), np.asarray(peer(*given)), rtol=2e-3, atol=2e-3)
    ratio(
        name,
        lambda: jax.block_until_ready(step(*ours).data),
        lambda: jax.block_until_ready(peer(*given)),
        goal,
        **options,
    )


def mlp(x, up, down):
    return nn.relu(x @ up) @ down


def jax_mlp(x, up, down):
    return jax.nn.relu(x @ up) @ down


def block(x, qkv, out, up, down):
    """A transformer block; the weights of queries, keys and values are split by heads."""
    k = qkv.shape[3]
    q, key, v = (sw.numpy.einsum("bsd,dhk->bhsk", x, qkv[i]) for i in range(3))
    scores = nn.softmax(q @ key.mT * (k**-0.5))
    mixed = sw.numpy.einsum("bhsk,hkd->bsd", scores @ v, out)
    x = nn.layer_norm(x + mixed)
    return nn.layer_norm(x + nn.relu(x @ up) @ down)


def jax_block(x, qkv, out, up, down):
    k = qkv.shape[3]

    def norm(x):
        x = x - x.mean(-1, keepdims=True)
        return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)

    q, key, v = (jnp.einsum("bsd,dhk->bhsk", x, qkv[i]) for i in range(3))
    scores = jax.nn.softmax(q @ key.mT * (k**-0.5))
    x = norm(x + jnp.einsum("bhsk,hkd->bsd", scores @ v, out))
    return norm(x + jax.nn.relu(x @ up) @ down)


BLOCK = (("dp",), (None, None, "tp"), ("tp",), (None, "tp"), ("tp", None))


def main() -> None:
    """Every figure."""
    large = ((512, 1024), (1024, 4096), (4096, 1024))
    compared("jax engine: MLP 512×1024×4096 against GSPMD", mlp, jax_mlp, large, MLP, 1.05, rounds=11)
    compared("jax engine: MLP 64×64 against GSPMD", mlp, jax_mlp, ((64, 64),) * 3, MLP, 1.5, rounds=30, number=5)
    shapes = ((8, 256, 512), (3, 512, 8, 64), (8, 64, 512), (512, 2048), (2048, 512))
    compared("jax engine: transformer block 8×256×512 against GSPMD", block, jax_block, shapes, BLOCK, 1.05, rounds=9)
    shapes = ((2, 32, 64), (3, 64, 4, 16), (4, 16, 64), (64, 64), (64, 64))
    compared("jax engine: transformer block 64×64 against GSPMD", block, jax_block, shapes, BLOCK, 1.5, rounds=30)


if __name__ == "__main__":
    main()
