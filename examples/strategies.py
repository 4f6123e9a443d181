"""GT's three sharding strategies on 4 processes, written by hand and chosen by shardwright.

Run it with `python examples/strategies.py` or `torchrun --nproc-per-node 4 examples/strategies.py`.
"""

import os

import numpy as np
import torch

import shardwright as sw
import shardwright.numpy as snp
from shardwright import P

WORKERS = 4
ENGINE = "torch"  # of the chosen strategies; "numpy" runs them on virtual devices, in each process alone


def work():
    """What each process runs."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((128, 64), np.float32), rng.standard_normal((64, 32), np.float32)
    by_hand(torch.from_numpy(a), torch.from_numpy(b))
    chosen(a, b)


def by_hand(a, b):
    engine, rank = sw.engine("torch"), int(os.environ["RANK"])
    rows, inner = slice(32 * rank, 32 * (rank + 1)), slice(16 * rank, 16 * (rank + 1))

    c = a[rows] @ b
    whole = engine.all_gather(c)
    say(
        "1. A by rows, B on all workers: results are concatenated",
        f"A[{at(rows)}, :] @ B = {shape(c)} -> {shape(whole)}",
    )
    check("row-sharded matmul is right", torch.allclose(whole, a @ b, atol=1e-4))

    s = a[rows].sum()
    total = engine.all_reduce_sum(s)
    say("2. A by rows: partial sums are added", f"sum(A[{at(rows)}, :]) = {s:.3f} -> {total:.3f}")
    check("sum is right", torch.allclose(total, a.sum(), atol=1e-2))

    c = a[:, inner] @ b[inner]
    whole = engine.all_reduce_sum(c)
    say(
        "3. A and B along the inner dim: products are added", f"A[:, {at(inner)}] @ B[{at(inner)}, :] -> {shape(whole)}"
    )
    check("inner-sharded matmul is right", torch.allclose(whole, a @ b, atol=1e-4))


def chosen(a, b):
    """The same on sharded arrays, wanted on all workers: what to communicate follows from where operands are."""
    mesh = sw.Mesh(workers=WORKERS, engine=ENGINE)
    for title, fn, operands, specs, expected in (
        ("A by rows, B on all workers", snp.matmul, (a, b), (P("workers"), P()), a @ b),
        ("sum of A by rows", snp.sum, (a,), (P("workers"),), a.sum()),
        ("A and B along the inner dim", snp.matmul, (a, b), (P(None, "workers"), P("workers")), a @ b),
    ):
        jitted = sw.sjit(fn, mesh=mesh, in_shardings=specs, out_shardings=P())
        steps = [f"{row.collective} {row.bytes} B" for row in jitted.lower(*operands).explain().rows if row.bytes]
        result = np.asarray(jitted(*operands))
        check(f"{title}: {', '.join(steps)}; the result is right", np.allclose(result, expected, atol=1e-2))


def say(title, line):
    """Worker 0 prints a line of each worker. Texts have different lengths, which all_gather allows."""
    text = f"   worker {os.environ['RANK']}: {line}\n".encode()
    lines = sw.engine("torch").all_gather(torch.tensor(list(text), dtype=torch.uint8))
    if os.environ["RANK"] == "0":
        print(f"{title}\n{bytes(lines.tolist()).decode()}", end="")


def check(claim, holds):
    if os.environ["RANK"] == "0":
        print(f"{claim}: {holds}", flush=True)


def at(rows):
    return f"{rows.start}:{rows.stop}"


def shape(tensor):
    return "×".join(map(str, tensor.shape))


if __name__ == "__main__":
    if "RANK" in os.environ:  # torchrun has started this process
        work()
    else:
        sw.launch(work, processes=WORKERS)
