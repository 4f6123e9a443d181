"""The JAX front end: warm calls against jax.jit and scalax, and rules on a large tree against scalax."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")  # before JAX starts

import jax
import jax.numpy as jnp
import numpy as np
import scalax.sharding as scalax
from harness import ratio
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardwright.jax as ours

PARTS = (
    "attn/q/kernel attn/k/kernel attn/v/kernel attn/o/kernel attn/q/bias mlp/up/kernel mlp/gate/kernel mlp/down/kernel "
    "norm1/scale norm2/scale"
).split()
PATTERNS = (
    *((f"encoder_{name}/(a|b)_proj/kernel", P()) for name in "abcdefghij"),
    ("attn/(q|k|v)/kernel", P("x", "y")),
    ("attn/o/kernel", P("y", "x")),
    (r"mlp/(up|gate)/kernel$", P("x", "y")),
    *((f"decoder_{name}/.*/kernel", P()) for name in "abcdefghij"),
    ("mlp/down/kernel", P("y", "x")),
    ("norm.*/scale", P()),
    ("bias", P()),
    ("embedding", P("x")),
    ("head", P("x")),
    ("^params/table", P("x")),
    (".*", P()),
)


def dispatch() -> None:
    for devices, leaves in ((8, 4), (8, 60), (1, 4)):
        helpers = [module.MeshShardingHelper((8,), ("x",)) for module in (ours, scalax)]
        if devices == 1:
            helpers = [ours.MeshShardingHelper((1,), ("x",), devices=jax.devices()[:1])]
        mesh = helpers[0].mesh
        tree = {f"w{i}": jax.device_put(np.ones((64, 8), np.float32), NamedSharding(mesh, P("x"))) for i in range(leaves)}
        batch = jax.device_put(np.ones((8, 64), np.float32), NamedSharding(mesh, P("x")))

        def step(tree, batch):
            return {name: w + 1 for name, w in tree.items()}, jnp.sum(batch)

        sharded = NamedSharding(mesh, P("x"))
        plain = jax.jit(
            step,
            in_shardings=({name: sharded for name in tree}, sharded),
            out_shardings=({name: sharded for name in tree}, NamedSharding(mesh, P())),
        )
        calls = [plain]
        for helper, module in zip(helpers, (ours, scalax), strict=False):
            rule = module.PolicyShardingRule(lambda path, leaf: P("x"))
            calls.append(helper.sjit(step, in_shardings=(rule, P("x")), out_shardings=(rule, P())))
        runs = [lambda call=call: jax.block_until_ready(call(tree, batch)) for call in calls]
        what = f"sjit, warm call with {leaves + 1} arrays on {devices} device{'s' * (devices > 1)}"
        options = {"rounds": 25, "number": 40 if devices == 8 else 400}
        ratio(f"{what} against jax.jit", runs[1], runs[0], 1.1, **options)
        if devices == 8:
            ratio(f"{what} against scalax", runs[1], runs[2], 1.0, **options)


def rules() -> None:
    tree: dict[str, object] = {"params": {}}
    leaf = jax.ShapeDtypeStruct((64, 64), np.float32)
    for layer in range(10_000):
        node = tree["params"].setdefault(f"layers_{layer}", {})
        for part in PARTS:
            *lead, last = part.split("/")
            inner = node
            for name in lead:
                inner = inner.setdefault(name, {})
            inner[last] = leaf
    used = [(pattern, spec) for pattern, spec in PATTERNS]
    assert len(used) == 30
    import warnings

    warnings.simplefilter("ignore", category=UserWarning)
    mine, theirs = ours.TreePathShardingRule(*used), scalax.TreePathShardingRule(*used)
    assert mine.apply(tree) == theirs.apply(tree)
    ratio("TreePathShardingRule, 30 patterns on 100,000 leaves, against scalax", lambda: mine.apply(tree), lambda: theirs.apply(tree), 1 / 3, rounds=3)


def main() -> None:
    dispatch()
    rules()


if __name__ == "__main__":
    main()
