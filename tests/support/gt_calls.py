"""What the tests of GT's engine API run in processes."""

import os

import torch
import torch.distributed as dist

import shardwright as sw

DTYPES = """
    bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128
    float8_e4m3fn float8_e5m2
""".split()


def rank():
    return int(os.environ["RANK"])


def tensor_of(rank, rows, dtype="float32"):
    """A tensor that every process can make for every rank; small whole numbers."""
    return ((torch.arange(rows * 3).reshape(rows, 3) + rank) % 3).to(getattr(torch, dtype))


def bits(tensor):
    """Elements as something that compares and travels, whatever the dtype."""
    return str(tensor.dtype), tuple(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def every_dtype():
    """For each dtype: the three results on uneven shapes, and whether the operand is as it was."""
    engine, results = sw.engine("torch"), {}
    for dtype in DTYPES:
        rows = tensor_of(rank(), rank() + 1, dtype)
        same = tensor_of(rank(), 6, dtype)
        before = bits(rows), bits(same)
        made = engine.all_reduce_sum(same), engine.all_gather(rows), engine.reduce_scatter(same)
        results[dtype] = [bits(tensor) for tensor in made], (bits(rows), bits(same)) == before
    return results


def along(axes, rows):
    """The results along axes of a mesh whose ids are not in order."""
    engine, group = sw.engine("torch"), (sw.Mesh(dp=2, tp=2, devices=(3, 1, 0, 2)), axes)
    mine = tensor_of(rank(), rows)
    gathered = engine.all_gather(tensor_of(rank(), rank()), group)
    return [
        bits(tensor) for tensor in (engine.all_reduce_sum(mine, group), gathered, engine.reduce_scatter(mine, group))
    ]


def scalars_and_gradients():
    engine = sw.engine("torch")
    leaf = torch.ones(4, 2, requires_grad=True)
    made = [engine.all_reduce_sum(leaf), engine.all_gather(leaf.T), engine.reduce_scatter(leaf)]
    total = engine.all_reduce_sum(torch.tensor(float(rank())))
    return total.item(), [(tuple(x.shape), x.requires_grad, x.sum().item()) for x in made], torch.get_num_threads()


def views():
    """Views that read otherwise than their memory, and one element with a stride of 0."""
    engine, number = sw.engine("torch"), torch.tensor([1 + 2j, 3 - 1j, 5j]) * (rank() + 1)
    lazy = [
        number.conj(),
        number.conj().imag,
        number[:1].conj().expand(3),
        torch.ones(1, dtype=torch.int16).expand(3)[::3],
    ]
    calls = (engine.all_reduce_sum, engine.all_gather, engine.reduce_scatter)
    plain = [tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format) for tensor in lazy]
    return [[bits(call(x)) == bits(call(y)) for call in calls] for x, y in zip(lazy, plain, strict=True)]


def error_of(name, tensors, group=None):
    """The error of a collective on this rank's tensor."""
    try:
        getattr(sw.engine("torch"), name)(tensors[rank()], group)
    except Exception as error:
        return type(error).__name__, str(error)


def of_no_mesh():
    mesh = sw.Mesh(tp=8)
    return error_of("all_gather", [torch.ones(2)] * 4, (mesh, "tp")), error_of("all_gather", [torch.ones(2)] * 4, "tp")


def own_process_group():
    """The user's process group is used."""
    dist.init_process_group("gloo")
    return sw.engine("torch").all_reduce_sum(torch.ones(2)).tolist(), dist.get_world_size()


def killed(bad):
    engine = sw.engine("torch")
    engine.all_reduce_sum(torch.ones(1))
    if rank() == bad:
        os.kill(os.getpid(), 9)
    try:
        engine.all_reduce_sum(torch.ones(1))
    except sw.ShardwrightError as error:
        return type(error).__name__, str(error)


def strategies():
    """The three strategies of GT's document, with its shapes."""
    engine, generator = sw.engine("torch"), torch.Generator().manual_seed(0)
    a, b = torch.randn(128, 64, generator=generator), torch.randn(64, 32, generator=generator)
    rows, columns = slice(32 * rank(), 32 * rank() + 32), slice(16 * rank(), 16 * rank() + 16)
    by_rows = engine.all_gather(a[rows] @ b)
    total = engine.all_reduce_sum(a[rows].sum())
    by_inner = engine.all_reduce_sum(a[:, columns] @ b[columns])
    scattered = engine.reduce_scatter(a[:, columns] @ b[columns])
    close = torch.testing.assert_close
    close(by_rows, a @ b)
    close(total, a.sum())
    close(by_inner, a @ b, rtol=1e-4, atol=1e-4)
    close(scattered, (a @ b)[rows], rtol=1e-4, atol=1e-4)
    return [tuple(x.shape) for x in (by_rows, total, by_inner, scattered)]
