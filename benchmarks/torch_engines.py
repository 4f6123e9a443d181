"""The torch engines: in one process against torch itself, over four gloo processes against torch.distributed and DTensor.

Each process has one thread. Over processes a time is that of the slowest process, and a ratio the median of many rounds,
in which ours and by hand follow one another: four processes share fewer cores, so the best round of either is a matter of luck.
"""

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from harness import best_of, ratio, report

import shardwright as sw
from shardwright import P

ROUNDS = 24  # of each comparison over processes, at least
SECONDS = 6.0  # and as many as fit in this time


def one_process() -> None:
    """What an array adds to a torch tensor."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    mesh = sw.Mesh(x=2, y=4, engine="torch")
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    x, y, w = sw.shard(a, mesh, P("x", "y")), sw.shard(b, mesh, P("x", "y")), sw.shard(b, mesh, P())
    rows = sw.shard(a, mesh, P("x"))
    for name, ours, theirs in (
        ("x + y", lambda: x + y, lambda: a + b),
        ("x * 2.0", lambda: x * 2.0, lambda: a * 2.0),
        ("x @ w", lambda: rows @ w, lambda: a @ b),
    ):
        mine, peer = best_of(ours, theirs, rounds=60, number=200)
        report(
            f"torch, one process: warm {name} of 64×64 adds", (mine - peer) * 1e6, 3, "µs", f"torch {peer * 1e6:.1f} µs"
        )
    step = sw.sjit(ten)
    mine, peer = best_of(lambda: step(x), lambda: ten(a), rounds=60, number=50)
    report(
        "torch, one process: sjit of 10 operations adds", (mine - peer) * 1e6, 15, "µs", f"torch {peer * 1e6:.1f} µs"
    )
    big = torch.randn(2048, 2048)
    mesh = sw.Mesh(x=8, engine="torch")
    for name, specs in (("rows", (P("x"), P())), ("inner dim", (P(None, "x"), P("x")))):
        left, right = (sw.shard(big, mesh, spec) for spec in specs)
        ratio(
            f"torch, one process, 8 devices: 2048² matmul by {name}",
            lambda a=left, b=right: a @ b,
            lambda: big @ big,
            1.05,
            rounds=12,
        )


def ten(x: torch.Tensor) -> torch.Tensor:
    for _ in range(5):
        x = x * x + x
    return x


# -- over processes ---------------------------------------------------------------------------------------------------------


def slowest(ours: Callable[[], object], hand: Callable[[], object]) -> tuple[float, float]:
    """The median time of ours, and the one by hand that it has the median ratio to; each as often first as last."""
    functions = ours, hand
    for function in functions:
        function()
    rounds: list[tuple[float, float]] = []
    spent = 0.0  # the same in all processes
    while len(rounds) < ROUNDS or spent < SECONDS:
        times = [0.0, 0.0]
        for at in (0, 1) if len(rounds) % 2 else (1, 0):
            dist.barrier()
            start = time.perf_counter()
            functions[at]()
            taken = torch.tensor(time.perf_counter() - start)
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            times[at] = float(taken)
        rounds.append((times[0], times[1]))
        spent += sum(times)
    median = statistics.median(a for a, _ in rounds)
    return median, median / statistics.median(a / b for a, b in rounds)


def moves() -> list[tuple[str, float, float]]:
    """64 MiB between shardings, ours and by hand."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    mesh = sw.Mesh(x=4, engine="torch")
    size = 4096
    sw.shard(torch.zeros(4), mesh, P())  # makes the process group
    part = torch.randn(size // 4, size)
    rows = sw.from_process_local(part, mesh)
    columns = rows.reshard(P(None, "x"))
    whole = rows.reshard(P())
    column, everything = columns.data, whole.data

    def rows_to_columns() -> torch.Tensor:
        given = part.reshape(size // 4, 4, size // 4).transpose(0, 1).contiguous()
        made = torch.empty_like(given)
        dist.all_to_all_single(made, given)
        return made.reshape(size, size // 4)

    def columns_to_rows() -> torch.Tensor:
        made = torch.empty(4, size // 4, size // 4)
        dist.all_to_all_single(made, column.contiguous().reshape(4, size // 4, size // 4))
        return made.transpose(0, 1).reshape(size // 4, size)

    def gathered() -> torch.Tensor:
        made = torch.empty(size, size)
        _gather(made, part)
        return made

    def gathered_columns() -> torch.Tensor:
        made = torch.empty(4, size, size // 4)
        _gather(made.view(-1), column.contiguous().view(-1))
        return made.permute(1, 0, 2).reshape(size, size)

    def reduced() -> torch.Tensor:
        made = part.clone()
        dist.all_reduce(made)
        return made

    summands = sw.from_shards(sw.Sharding(mesh, P(None, None), partial="x"), [part.numpy()] * 4)

    def scattered() -> torch.Tensor:
        made = torch.empty(4, size // 16, size)
        dist.all_to_all_single(made, part.reshape(4, size // 16, size))
        return made.sum(0)

    cases = [
        ("S0 → S1 of 64 MiB", lambda: rows.reshard(P(None, "x")), rows_to_columns),
        ("S1 → S0 of 64 MiB", lambda: columns.reshard(P("x")), columns_to_rows),
        ("S0 → R of 64 MiB", lambda: rows.reshard(P()), gathered),
        ("S1 → R of 64 MiB", lambda: columns.reshard(P()), gathered_columns),
        ("partial → R, 16 MiB,", lambda: summands.reshard(P()), reduced),
        ("partial → S0, 16 MiB,", lambda: summands.reshard(P("x")), scattered),
    ]
    assert torch.equal(rows_to_columns(), column)
    assert torch.equal(columns_to_rows(), part)
    assert torch.equal(gathered(), everything)
    assert torch.equal(gathered_columns(), everything)
    return [(name, *slowest(ours, hand)) for name, ours, hand in cases]


_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def dtensor() -> tuple[float, float]:
    """S0 → S1 of 64 MiB: ours and DTensor's."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = sw.Mesh(x=4, engine="torch")
    part = torch.randn(1024, 4096)
    rows = sw.from_process_local(part, mesh)
    theirs = DTensor.from_local(part, init_device_mesh("cpu", (4,)), [Shard(0)], run_check=False)
    ours, peer = slowest(lambda: rows.reshard(P(None, "x")), lambda: theirs.redistribute(placements=[Shard(1)]))
    return ours, peer


def matmuls() -> list[tuple[str, float, float]]:
    """The three strategies at 2048², ours and by hand."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    mesh = sw.Mesh(x=4, engine="torch")
    size, block = 2048, 512
    a, b = torch.randn(size, size), torch.randn(size, size)
    rows, whole = sw.shard(a, mesh, P("x")), sw.shard(b, mesh, P())
    rank = dist.get_rank()
    part = slice(block * rank, block * (rank + 1))
    columns, inner = sw.shard(a, mesh, P(None, "x")), sw.shard(b, mesh, P("x"))
    a_rows, a_columns, b_rows = a[part].clone(), a[:, part].clone(), b[part].clone()

    def all_reduced() -> torch.Tensor:
        made = a_columns @ b_rows
        dist.all_reduce(made)
        return made

    def kept() -> torch.Tensor:
        """What an eager product and its sum are: both can be read."""
        made = a_columns @ b_rows
        total = made.clone()
        dist.all_reduce(total)
        return total

    def scattered() -> torch.Tensor:
        made = torch.empty(4, block, size)
        dist.all_to_all_single(made, (a_columns @ b_rows).reshape(4, block, size))
        return made.sum(0)

    def product_kept() -> sw.Array:
        made = columns @ inner
        return made.reshard(P())

    step = sw.sjit(lambda a, b: (a @ b).reshard(P()))
    cases = [
        ("rows", lambda: rows @ whole, lambda: a_rows @ b),
        ("inner dim, all_reduce", lambda: (columns @ inner).reshard(P()), all_reduced),
        ("inner dim, all_reduce, the product kept", product_kept, kept),
        ("inner dim, all_reduce in sjit", lambda: step(columns, inner), all_reduced),
        ("inner dim, reduce_scatter", lambda: (columns @ inner).reshard(P("x")), scattered),
    ]
    return [(name, *slowest(ours, hand)) for name, ours, hand in cases]


def eager() -> list[tuple[str, float, float]]:
    """What an array adds to this process's tensor."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    mesh = sw.Mesh(x=4, engine="torch")
    host = torch.randn(256, 64)
    x, y = (sw.shard(host, mesh, P("x")) for _ in range(2))
    a, b = x.data, y.data
    step = sw.sjit(ten)
    step(x)
    made: list[tuple[str, float, float]] = []
    for turn in range(4):  # one process at a time: there are fewer cores than processes
        dist.barrier()
        if dist.get_rank() == turn:
            made = [
                ("warm x + y", *best_of(lambda: x + y, lambda: a + b, rounds=60, number=200)),
                ("sjit of 10 operations", *best_of(lambda: step(x), lambda: ten(a), rounds=60, number=50)),
            ]
    dist.barrier()
    return made


def over_processes() -> None:
    """Four gloo processes."""
    from shardwright.launching import Processes

    with Processes(4) as group:
        for name, ours, hand in group.run(moves, timeout=300)[0]:
            report(
                f"gloo × 4: {name} against by hand",
                ours / hand,
                1.1,
                "×",
                f"{ours * 1e3:.1f} ms, {hand * 1e3:.1f} ms",
            )
        ours, peer = group.run(dtensor, timeout=300)[0]
        report(
            "gloo × 4: S0 → S1 of 64 MiB against DTensor",
            ours / peer,
            0.2,
            "×",
            f"{ours * 1e3:.1f} ms, {peer * 1e3:.1f} ms",
        )
        for name, ours, hand in group.run(matmuls, timeout=300)[0]:
            report(
                f"gloo × 4: 2048² matmul, {name}, against by hand",
                ours / hand,
                1.05,
                "×",
                f"{ours * 1e3:.1f} ms, {hand * 1e3:.1f} ms",
            )
        for (name, ours, peer), goal in zip(group.run(eager, timeout=300)[0], (6, 15), strict=True):
            report(f"gloo × 4: {name} adds", (ours - peer) * 1e6, goal, "µs", f"torch {peer * 1e6:.1f} µs")


def main() -> None:
    one_process()
    over_processes()


if __name__ == "__main__":
    main()
