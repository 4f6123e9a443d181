"""A program written for scalax, with its import changed: training on 8 devices, and what is no longer silent.

Run it with `python examples/coming_from_scalax.py`; it makes 8 virtual CPU devices.
"""

import os
from functools import partial

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")  # before JAX starts

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

# was: from scalax.sharding import …
from shardwright.jax import (
    FSDPShardingRule,
    MeshShardingHelper,
    PartitionSpec,
    TreePathShardingRule,
    with_sharding_annotation,
    with_sharding_constraint,
)
from shardwright.jax.utils import JaxRNG, float_to_dtype


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(256, name="up")(x))
        x = with_sharding_annotation(x, "hidden")
        return nn.Dense(4, name="down")(x)


mesh = MeshShardingHelper([-1, 2], ["fsdp", "tp"])
rule = TreePathShardingRule(
    ("up/kernel", PartitionSpec("fsdp", "tp")),
    ("down/kernel", PartitionSpec("tp", "fsdp")),
    ("bias", PartitionSpec()),
)


@partial(mesh.sjit, out_shardings=rule, annotation_shardings={"hidden": None})
def init(rng):
    params = Model().init(rng, jnp.zeros((1, 16)))["params"]
    return TrainState.create(params=params, tx=optax.adamw(1e-2), apply_fn=None)


def loss_of(params, batch):
    logits = Model().apply({"params": params}, batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


@partial(
    mesh.sjit,
    in_shardings=(rule, None),  # None: as the batch comes
    out_shardings=(rule, PartitionSpec()),
    args_sharding_constraint=(rule, PartitionSpec("fsdp")),
    annotation_shardings={"hidden": PartitionSpec("fsdp", "tp")},
    donate_argnums=0,
)
def step(state, batch):
    loss, grads = jax.value_and_grad(loss_of)(state.params, batch)
    return state.apply_gradients(grads=grads), loss


def batches(count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        x = rng.standard_normal((32, 16), np.float32)
        yield {"x": x, "y": np.argmax(x[:, :4], axis=1)}


def main():
    state = init(JaxRNG.from_seed(0)())
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.params):
        print(f"{jax.tree_util.keystr(path, simple=True, separator='/'):<12} {leaf.shape!s:<10} {leaf.sharding.spec}")
    losses = []
    for batch in batches(20):
        loaded = mesh.local_data_to_global_array(batch, mesh_axis_subset="fsdp")  # each process has its own rows
        state, loss = step(state, loaded)
        losses.append(float(loss))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(f"the loss falls: {losses[-1] < losses[0]}")
    print(
        f"parameters stay as the rule says: {state.params['up']['kernel'].sharding.spec == PartitionSpec('fsdp', 'tp')}"
    )

    _, gather_fns = mesh.make_shard_and_gather_fns(state.params, rule)
    host = float_to_dtype(mesh.apply_shard_and_gather_fns(gather_fns, state.params), "bf16")
    print(f"a checkpoint is made of host arrays: {all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(host))}")

    # Rules are resolved for the arguments at hand: after a small array, a large one is still sharded.
    large_only = FSDPShardingRule("fsdp", min_fsdp_size=1024)
    grow = mesh.sjit(lambda x: x + 1, in_shardings=(large_only,), out_shardings=large_only)
    specs = [grow(jnp.ones((n, n))).sharding.spec for n in (8, 64)]
    print(f"8 × 8 and 64 × 64 become {specs}: {specs == [PartitionSpec(), PartitionSpec('fsdp', None)]}")

    for what, wrong in {
        "a mistyped annotation": lambda: mesh.sjit(lambda x: with_sharding_annotation(x, "hiden"))(jnp.ones(8)),
        "a constraint without a mesh": lambda: with_sharding_constraint(jnp.ones(8), PartitionSpec("fsdp")),
        "a spec longer than the array's rank": lambda: mesh.match_sharding_rule(
            PartitionSpec("fsdp", "tp"), jnp.ones(8)
        ),
        "a batch that does not divide": lambda: mesh.local_data_to_global_array(np.ones((6, 2))),
    }.items():
        print(f"{what} is an error: {is_refused(wrong)}")


def is_refused(function):
    try:
        function()
    except ValueError as error:
        print(f"  {error}")
        return True
    return False


if __name__ == "__main__":
    main()
