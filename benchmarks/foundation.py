"""Sharding, joining and collectives on virtual devices, against the same work written by hand in NumPy."""

import time

import numpy as np
from harness import best_of, microseconds, ratio, report

import shardwright as sw
from shardwright import P
from shardwright import collectives as c

MESH = sw.Mesh(data=2, model=4)
SIDE = 4096  # 4096² float32 = 64 MiB


def sharding() -> None:
    host = np.ones((SIDE, SIDE), np.float32)
    for spec in (P("data"), P(None, "model"), P("data", "model"), P(("model", "data"))):
        x = sw.shard(host, MESH, spec, copy=False)
        assert np.shares_memory(x.lanes.data, host)
        microseconds(f"shard {spec} of 64 MiB, copy=False", lambda s=spec: sw.shard(host, MESH, s, copy=False), 50)
        assert np.shares_memory(np.asarray(x), host)
        microseconds(f"np.asarray back from {spec}", lambda x=x: np.asarray(x), 50)
    ratio("shard of 64 MiB against ndarray.copy", lambda: sw.shard(host, MESH, P("data", "model")), host.copy, 1.2)
    uneven = np.ones((SIDE - 1, SIDE - 1), np.float32)
    y = sw.shard(uneven, MESH, P("data", "model"))
    ratio(
        "shard of uneven 64 MiB against ndarray.copy",
        lambda: sw.shard(uneven, MESH, P("data", "model")),
        uneven.copy,
        1.2,
    )
    assert np.shares_memory(np.asarray(y), np.asarray(y)), "reading is no copy"
    microseconds("np.asarray back from uneven shards", lambda: np.asarray(y), 50)


def collectives() -> None:
    """64 MiB in all on 8 devices, one tensor per device; and the same on one sharded array."""
    mesh = sw.Mesh(x=8)
    whole = np.random.default_rng(0).standard_normal((8, 512, 4096), np.float32)
    v = sw.PerDevice(mesh, list(whole))
    ratio(
        "all_gather of 64 MiB on 8 devices",
        lambda: c.all_gather(v, "x", 1),
        lambda: np.moveaxis(whole, 0, 1).reshape(512, 8 * 4096),
        1.5,
    )
    ratio("all_reduce", lambda: c.all_reduce(v, "x"), lambda: whole.sum(axis=0), 1.5)
    ratio("reduce_scatter", lambda: c.reduce_scatter(v, "x", 0), lambda: whole.sum(axis=0).reshape(8, 64, 4096), 1.5)
    ratio(
        "all_to_all",
        lambda: c.all_to_all(v, "x", 0, 1),
        lambda: whole.reshape(8, 8, 64, 4096).transpose(1, 2, 0, 3).reshape(8, 64, 8 * 4096),
        1.5,
    )
    host = whole.reshape(4096, 4096)
    rows = sw.shard(host, mesh, P("x"), copy=False)
    parts = sw.from_shards(mesh, sw.Sharding(mesh, P(), partial="x"), list(whole))
    ratio("all_gather of an array", lambda: c.all_gather(rows, "x", 0), lambda: whole.copy().reshape(4096, 4096), 1.5)
    ratio("all_reduce of an array", lambda: c.all_reduce(parts, "x"), lambda: whole.sum(axis=0), 1.5)
    ratio("reduce_scatter of an array", lambda: c.reduce_scatter(parts, "x", 0), lambda: whole.sum(axis=0), 1.5)
    ratio(
        "all_to_all of an array",
        lambda: c.all_to_all(rows, "x", 1, 0),
        lambda: np.ascontiguousarray(host.reshape(4096, 8, 512).transpose(1, 0, 2)),
        1.5,
    )


def many_devices() -> None:
    mesh = sw.Mesh(a=16, b=64, c=64)
    x = sw.shard(np.zeros((64, 64, 64), np.int8), mesh, P("b", ("c", "a")))
    for name, run in (
        ("groups of 65,536 devices", lambda: mesh.groups("a", "c")),
        ("metadata of 65,536 shards", lambda: [(s.device, s.coords, s.index) for s in x.shards]),
    ):
        start = time.perf_counter()
        result = run()
        report(name, time.perf_counter() - start, 1.0, "s", f"{len(result)} of them")


def warm() -> None:
    spec = P("data", None)
    microseconds("a Sharding, warm", lambda: sw.Sharding(MESH, spec), 2)
    microseconds("a Sharding and its P, warm", lambda: sw.Sharding(MESH, P("data", None)), 4)
    (mesh_time,) = best_of(lambda: sw.Mesh(data=2, model=4), number=1000)
    report("a Mesh", mesh_time * 1e6, 50, "µs")


def main() -> None:
    sharding()
    collectives()
    many_devices()
    warm()


if __name__ == "__main__":
    main()
