"""What processes run that share JAX's devices, two each; modules that take long are imported inside."""

import os
import signal

import numpy as np

HOST = np.arange(70.0).reshape(10, 7)


def begin(port, timeout=30):
    """Connect the processes; once."""
    os.environ["SHARDWRIGHT_TIMEOUT"] = str(timeout)
    if "SHARDWRIGHT_TEST_JAX" not in os.environ:
        os.environ["SHARDWRIGHT_TEST_JAX"] = "begun"
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
        import jax

        jax.distributed.initialize(
            coordinator_address=f"127.0.0.1:{port}",
            num_processes=int(os.environ["WORLD_SIZE"]),
            process_id=int(os.environ["RANK"]),
        )
    import jax

    return jax.device_count(), jax.local_device_count()


def sharded():
    import shardwright as sw
    from shardwright import P

    mesh = sw.Mesh(x=2, y=2, engine="jax")
    return mesh, sw.shard(HOST, mesh, P("x", "y"))


def results():
    """Eager operations, a program with a loop, moves, tensors per device, data-dependent shapes: as the host reads them."""
    import shardwright as sw
    import shardwright.numpy as snp
    from shardwright import P

    mesh, x = sharded()

    @sw.sjit
    def program(x):
        def body(state, row):
            return state + row @ x.T, snp.sum(row)

        state, sums = sw.scan(body, snp.sum(x, axis=1) * 0, x)
        return snp.roll(state, 1), sums

    local = sw.shard_map(lambda v: sw.collectives.all_reduce(v.map(np.sum), ("x", "y")), mesh, P("x", "y"), P())
    every = sw.collectives.all_gather(sw.process_index(mesh).map(lambda i: np.atleast_1d(i)), "y", 0)
    joined = sw.from_process_local(HOST[:4] + 100 * int(os.environ["RANK"]), mesh)
    return {
        "sum": float(snp.sum(x)),
        "product": np.asarray(x @ x.T),
        "roll": np.asarray(snp.roll(x, 3, axis=0)),
        "cumulative": np.asarray(snp.cumulative_sum(x, axis=1)),
        "moved": np.asarray(x.reshard(P("y", "x"))),
        "program": [np.asarray(y) for y in program(x)],
        "local": float(local(x)),
        "gathered": [v.tolist() for v in every.values()],
        "nonzero": [np.asarray(i) for i in snp.nonzero(x > 30)],
        "joined": np.asarray(joined),
        "largest": int(snp.argmax(x)),
    }


def own_shards():
    """The shards of this process, and the error for one of another."""
    _, x = sharded()
    own = {}
    error = ""
    for at, shard in enumerate(x.shards):
        try:
            own[at] = np.asarray(shard.data)
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
    return own, error


def skips(bad):
    import shardwright.numpy as snp

    _, x = sharded()
    if int(os.environ["RANK"]) != bad:
        x = x + 1
    return float(snp.sum(x))


def passes_other_shapes(bad):
    import shardwright.numpy as snp

    _, x = sharded()
    return float(snp.sum(x[: 4 + (int(os.environ["RANK"]) == bad)]))


def raises(bad):
    import shardwright.numpy as snp

    _, x = sharded()
    if int(os.environ["RANK"]) == bad:
        raise ValueError("on purpose")
    return float(snp.sum(x))


def is_killed(bad):
    import shardwright.numpy as snp

    _, x = sharded()
    if int(os.environ["RANK"]) == bad:
        os.kill(os.getpid(), signal.SIGKILL)
    return float(snp.sum(x))
