"""What processes of `jax.distributed` run in tests; imports little, so that each sets JAX up itself."""

import os


def distributed(port, devices):
    """JAX, with the processes of this launch joined, each with virtual devices of its own."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    import jax

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    jax.distributed.initialize(f"127.0.0.1:{port}", world, rank, initialization_timeout=60)
    return jax


def batches(port, cases):
    """For each case what the devices of this process hold of the global batch, by their place in jax.devices().

    A case is (order of devices, dims, names, subset, batch axis, rows). Process p has rows 100 p, 100 p + 1, ….
    """
    jax = distributed(port, 4)
    import numpy as np

    import shardwright.jax as sj

    results = []
    for order, dims, names, subset, axis, rows in cases:
        helper = sj.MeshShardingHelper(dims, names)
        helper._mesh = jax.sharding.Mesh(np.array(jax.devices())[order].reshape(dims), names)
        local = np.arange(rows) + 100 * jax.process_index()
        data = np.repeat(local[:, None], 2, 1) if axis == 0 else np.repeat(local[None], 2, 0)
        x = helper.local_data_to_global_array({"x": data}, axis, subset)["x"]
        held = {
            jax.devices().index(s.device): np.asarray(s.data).take(0, 1 - axis).tolist() for s in x.addressable_shards
        }
        results.append((x.shape, held))
    jax.distributed.shutdown()
    return results


def program(port):
    """A function compiled for the devices of all processes, from host arrays to the gathered result, and a refusal."""
    jax = distributed(port, 2)
    import numpy as np

    import shardwright.jax as sj

    helper = sj.MeshShardingHelper((2, 2), ("x", "y"))
    weights = {"w": np.arange(8.0, dtype=np.float32).reshape(4, 2)}
    shard_fns, gather_fns = helper.make_shard_and_gather_fns(weights, sj.PartitionSpec("x", "y"))
    sharded = helper.apply_shard_and_gather_fns(shard_fns, weights)
    x = helper.local_data_to_global_array(np.full((2, 4), 1.0 + jax.process_index(), np.float32))
    step = helper.sjit(lambda x, p: {"y": x @ p["w"]}, out_shardings=sj.PartitionSpec("x"))
    y = gather_fns["w"](step(x, sharded)["y"])
    back = helper.apply_shard_and_gather_fns(gather_fns, sharded)["w"]
    try:
        helper.local_data_to_global_array(np.ones((3, 4)))
        refused = ""
    except ValueError as error:
        refused = str(error)
    jax.distributed.shutdown()
    return y.tolist(), back.tolist(), refused
