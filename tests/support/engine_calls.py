"""What the tests of the torch engine over processes run in each of them."""

import contextlib
import os
import pickle
import signal
import time
from unittest import mock

import numpy as np
import torch

import shardwright as sw
import shardwright.engines.torch.transport as transport
import shardwright.numpy as snp
from shardwright import P
from shardwright.engines import engine_named, engine_of
from shardwright.engines.torch.distributed import Distributed
from shardwright.engines.torch.processes import World
from shardwright.plan import sub_blocks
from shardwright.sharding import as_dtype, layout_of

DTYPES = """bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128
float8_e4m3fn float8_e5m2""".split()
HOST = np.arange(24.0).reshape(6, 4)


def rank():
    return int(os.environ["RANK"])


def mesh(**options):
    return sw.Mesh(dp=2, tp=2, engine="torch", **options)


def begin():
    return World.current().size


# -- one rank goes another way ---------------------------------------------------------------------------------------


def placed():
    return sw.shard(HOST, mesh(timeout=3), P("dp", "tp"))


def skips(bad):
    x = placed()
    if rank() != bad:
        x.reshard(P("tp"))
    x = x + 1
    return np.asarray(x.sum()).tolist()


def calls_another_program(bad):
    x = placed()
    step = sw.sjit(lambda x: x @ x.T) if rank() != bad else sw.sjit(lambda x: (x * 2) @ x.T)
    return np.asarray(step(x)).tolist()


def calls_another_known_program(bad):
    x = placed()
    one, other = sw.sjit(lambda x: x.sum(axis=0)), sw.sjit(lambda x: x.sum(axis=1))
    for step in (one, other):
        step(x)
    made = (one if rank() != bad else other)(x)
    return np.asarray(made).tolist()


def passes_other_shapes(bad):
    placed()
    x = sw.shard(HOST if rank() != bad else HOST[:4], mesh(), P("dp", "tp"))
    return np.asarray(x.sum(axis=0)).tolist()


def passes_other_shapes_to_a_known_operation(bad):
    m = mesh(timeout=3)
    long, short = (sw.shard(HOST[:n], m, P("dp", "tp")) for n in (6, 4))
    for x in (long, short):
        x.reshard(P("tp", "dp"))
    made = (long if rank() != bad else short).reshard(P("tp", "dp"))
    return np.asarray(made).tolist()


def moves_other_rows_in_a_known_program(bad):
    """Messages of other sizes, which would end the processes that receive them."""
    x = placed()
    one, other = (sw.sjit(lambda x, n=n: snp.roll(x, n, axis=0)) for n in (1, 2))
    for step in (one, other):
        step(x)
    made = (one if rank() != bad else other)(x)
    return np.asarray(made).tolist()


def passes_other_constants(bad):
    x = placed()
    return np.asarray(x * (2.0 if rank() != bad else 3.0)).tolist()


def captures_other_constants(bad):
    x = placed()
    table = np.ones(4) * (1 + (rank() == bad))
    return np.asarray(sw.sjit(lambda x: x + table)(x)).tolist()


def scales_tensors_per_device_in_a_program(bad):
    x, factor = placed(), 2.0 if rank() != bad else 3.0
    step = sw.sjit(sw.shard_map(lambda v: v * factor, mesh(), P("dp", "tp"), P("dp", "tp")))
    return np.asarray(step(x)).tolist()


def orders_devices_otherwise(bad):
    m = sw.Mesh(dp=2, tp=2, engine="torch", timeout=3, devices=(0, 1, 2, 3) if rank() != bad else (1, 0, 2, 3))
    return np.asarray(sw.shard(HOST, m, P("dp", "tp"))).tolist()


def places_other_elements(bad):
    x = placed()
    y = sw.shard(HOST + (rank() == bad), mesh(), P("dp", "tp"))
    return np.asarray(x + y).tolist()


def raises(bad):
    x = placed()
    if rank() == bad:
        raise KeyError("a bug of the user's")
    return np.asarray(x).tolist()


def raises_before_data_is_placed(bad):
    if rank() == bad:
        raise KeyError("a bug of the user's")
    return np.asarray(placed()).tolist()


def is_stopped(bad):
    """A process that neither runs nor ends, until the others have had time to notice."""
    x = placed()
    np.asarray(x)
    if rank() == bad:
        process = os.getpid()
        if os.fork() == 0:
            time.sleep(12)
            os.kill(process, signal.SIGCONT)
            os._exit(0)
        os.kill(process, signal.SIGSTOP)
    return time.monotonic(), refused(np.asarray, x)


def is_killed(bad):
    x = placed()
    np.asarray(x)
    if rank() == bad:
        os.kill(os.getpid(), signal.SIGKILL)
    return np.asarray(x).tolist()


def is_killed_before_a_move(bad):
    x = placed()
    np.asarray(x)
    if rank() == bad:
        os.kill(os.getpid(), signal.SIGKILL)
    return np.asarray(x.reshard(P("tp", "dp"))).tolist()


def parts_in_a_local_operation(bad):
    """Noticed at once where every call is compared."""
    x = placed()
    with sw.checked():
        y = x + 1 if rank() != bad else x + 2
    return y.shape


# -- all ranks go one way --------------------------------------------------------------------------------------------


def refused(call, *args):
    """The text of the error that a call raises."""
    try:
        call(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def reads():
    """Host reads give every process the same; looking at a variable sends nothing, so one rank may do it alone."""
    x = sw.shard(HOST, mesh(), P("dp", "tp"))
    alone = repr(x) if rank() == 1 else ""
    own = x.shards[mesh().position(rank())].data
    return {
        "whole": np.asarray(x).tolist(),
        "item": x.sum().item(),
        "bool": bool(x.max() > 22),
        "text": str(x[0]),
        "alone": alone,
        "own": own.tolist(),
        "shards": [(shard.device, shard.coords) for shard in x.shards],
        "other": refused(lambda: x.shards[3 if rank() != 3 else 0].data),
        "pickle": refused(pickle.dumps, x),
        "torch": x.torch().tolist(),
        "tensor": np.asarray(sw.shard(torch.arange(6.0), mesh(), P("tp")) * 2).tolist(),
    }


def refusals():
    big, small = sw.Mesh(x=8, engine="torch"), sw.Mesh(x=2, engine="torch")
    with_two = refused(sw.shard, HOST, small, P("x"))
    explained = sw.explain(lambda x: x @ x.T, sw.ShapeDtype((64, 64), "float32", sw.Sharding(big, P("x")))).total_bytes
    return refused(sw.shard, HOST, big, P("x")), with_two, explained


def cuts_without_sending():
    """A host tensor that every process has is cut without a message."""
    kept = {name: getattr(transport, name) for name in ("exchange", "all_gather", "all_reduce")}
    try:
        for name in kept:
            setattr(transport, name, _forbidden)
        return sw.shard(HOST, mesh(), P("tp", "dp")).data.tolist()
    finally:
        for name, function in kept.items():
            setattr(transport, name, function)


def _forbidden(*args):
    raise AssertionError("nothing may be sent here")


def computes_without_gathering():
    """While a program runs nothing is brought to the host."""
    x = sw.shard(HOST, mesh(), P("dp", "tp"))

    def body(x):
        y = snp.cumulative_sum(snp.roll(x, 1, axis=1), axis=0) @ x.T
        return sw.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, snp.flip(s[1], axis=0) * 0.5), (0, y))[1].sum(
            axis=0
        )

    with mock.patch.object(Distributed, "whole", _forbidden), mock.patch.object(Distributed, "values", _forbidden):
        made, eager = sw.sjit(body)(x), body(x)
    return np.asarray(made).tolist(), np.asarray(eager).tolist()


def joins_parts(rows, axes):
    """Each process gives its own rows, numbered."""
    m = mesh()
    place = dict(zip(m.device_ids, np.ndindex(*m.shape), strict=True))[rank()]
    number = int(np.ravel_multi_index([place[m.axis_names.index(a)] for a in axes], [m.sizes[a] for a in axes]))
    part = {"x": np.full((rows[number], 3), number), "y": torch.full((rows[number],), float(number))}
    made = sw.from_process_local(part, m, axes=axes)
    return np.asarray(made["x"])[:, 0].tolist(), made["x"].sharding.spec, np.asarray(made["y"]).tolist()


def joins_parts_that_differ():
    return refused(sw.from_process_local, np.full(2, rank()), mesh(), 0, "dp")


def finds():
    """Data-dependent shapes: processes agree on how much each found."""
    x = sw.shard(HOST % 5, mesh(), P("dp", "tp"))
    return [np.asarray(y).tolist() for y in (snp.unique_values(x), *snp.nonzero(x > 2), x[x > 3])]


def counts(seed, number):
    """Bytes that come in each step of random changes of sharding, as counted on the wire and as predicted; and whether each
    process then holds, to the bit, what the literal engine says."""
    engine, literal = engine_of(mesh()), engine_named("literal")
    engine.check(mesh())
    rng, rows = np.random.default_rng(seed), []
    for _ in range(number):
        shape = tuple(int(n) for n in rng.integers(1, 9, rng.integers(1, 4)))
        host = rng.integers(0, 99, shape)
        source, target = (_drawn(rng, shape) for _ in range(2))
        data, copy = engine.put(host, layout_of(source, shape)), literal.put(host, layout_of(source, shape))
        for step in sw.plan_reshard(shape, host.dtype, mesh(), source, target).steps:
            with _counting() as tally:
                data = engine.step(step, data)
            copy = literal.step(step, copy)
            own = copy.parts[engine.place(mesh())]
            same = own.shape == tuple(data.shape) and bool((own == data.numpy()).all())
            rows.append((str(step), step.received, sum(tally), same))
    return rows


def _drawn(rng, shape):
    axes = ["dp", "tp"] if rng.integers(2) else ["tp", "dp"]
    dims = [[] for _ in shape]
    left = []
    for axis in axes:
        at = int(rng.integers(-1, len(shape)))
        (dims[at] if at >= 0 else left).append(axis)
    return sw.Sharding(mesh(), P(*dims), partial=tuple(left) if rng.integers(2) else ()).for_shape(shape)


@contextlib.contextmanager
def _counting():
    """Bytes that this process receives from others."""
    tally = []

    def exchange(group, sends, sizes, tag=0, original=transport.exchange):
        width = sends[0].dtype.itemsize
        tally.append(sum(n for at, n in enumerate(sizes) if at != group.own) * width)
        return original(group, sends, sizes, tag)

    def all_gather(group, tensor, tag=0, original=transport.all_gather):
        tally.append(tensor.numel() * tensor.dtype.itemsize * (len(group.ranks) - 1))
        return original(group, tensor, tag)

    def all_reduce(group, tensor, op, combine, spare, tag=0, original=transport.all_reduce):
        if tensor.dtype in transport.NATIVE.get(op, (None, ()))[1]:  # what the ring of that many elements brings
            sizes = [b - a for a, b in sub_blocks(tensor.numel(), len(group.ranks))]
            tally.append((2 * sum(sizes) - sizes[group.own] - sizes[group.own - 1]) * tensor.dtype.itemsize)
        return original(group, tensor, op, combine, spare, tag)

    with (
        mock.patch.object(transport, "exchange", exchange),
        mock.patch.object(transport, "all_gather", all_gather),
        mock.patch.object(transport, "all_reduce", all_reduce),
    ):
        yield tally


def dtypes():
    """Every dtype is moved, and summed where sums have a meaning."""
    found = {}
    for name in DTYPES:
        host = (np.arange(12) % 7).astype(as_dtype(name)).reshape(4, 3)
        x = sw.shard(host, mesh(), P("dp"))
        moved = np.asarray(x.reshard(P(None, ("tp", "dp"))))
        total = np.asarray(x.max(axis=0)) if host.dtype.kind != "c" else np.asarray(x.sum(axis=0))
        turned = np.asarray(x[::-1, ::-1].reshard(P())) == host[::-1, ::-1]  # torch does not flip all dtypes
        found[name] = (
            bool((moved == host).all() and turned.all()),
            total.astype(np.complex128).real.tolist(),
            str(moved.dtype),
        )
    return found


def keeps_nan():
    """A maximum keeps NaNs, whichever process has them."""
    host = HOST.astype(np.float32)
    host[5, 1] = np.nan
    x = sw.shard(host, mesh(), P("dp", "tp"))
    return np.asarray(x.max(axis=0)).tolist(), np.asarray(x.min()).tolist()


def moves_to_a_part_of_the_mesh():
    """Arrays go to a submesh and back; processes outside of it hold nothing and are told so."""
    x = sw.shard(HOST, mesh(), P("dp", "tp"))
    part = mesh().submesh((1, 2))
    y = x.reshard(sw.Sharding(part, P("tp")))
    text = refused(lambda: y + 1) if rank() > 1 else ""
    back = y.reshard(sw.Sharding(mesh(), P("dp")))
    return np.asarray(back).tolist(), text


def overwrites():
    """A product reduced by a program that does not read it again, and by one that looks at its summands; each run twice."""
    x, w = sw.shard(HOST.T, mesh(), P(None, "dp")), sw.shard(HOST, mesh(), P("dp"))

    where = x.sharding.mesh
    held = sw.Sharding(where, P(None, None), partial="dp")
    summands = sw.shard_map(lambda v: v + 0, where, held, P("dp"))

    def read_again(x, w):
        made = x @ w
        return made.reshard(P()), summands(made)

    once, twice = sw.sjit(lambda x, w: (x @ w).reshard(P())), sw.sjit(read_again)
    runs = [(once(x, w), *twice(x, w)) for _ in range(2)]
    return [[np.asarray(part).tolist() for part in run] for run in runs]


def reduces_together():
    """Sums over one group that don't depend on one another are one message in a program."""
    x = sw.shard(HOST, mesh(), P("dp"))
    step, sent = sw.sjit(lambda x: (x.sum(), x.sum(axis=0), (x * x).sum(axis=0))), []
    for _ in range(2):
        with _counting() as tally:
            made = step(x)
        sent.append(tally)
    rows = [row.bytes for row in step.lower(x).explain().rows if row.bytes]
    return [np.asarray(y).tolist() for y in made], rows, sent[-1]


def draws():
    """Random numbers are the same on every mesh and engine."""
    made = []
    for m in (mesh(), sw.Mesh(dp=2, tp=2)):
        where = sw.Sharding(m, P("dp", "tp"))
        made.append(np.asarray(sw.random.normal(sw.random.Key(3), (5, 3), sharding=where)).tolist())
    return made


# -- programs on large tensors ------------------------------------------------------------------------------------------


def large_programs():
    """The programs that other engines run in blocks: the names of those that give what the literal engine gives."""
    from everywhere import module_at

    right = []
    for name, (function, *shapes) in module_at("unit/test_chains.py").CASES.items():
        hosts = [np.random.default_rng(0).normal(size=shape).astype(np.float32) for shape in shapes]
        both = []
        for engine in ("torch", "literal"):
            grid = sw.Mesh(dp=2, tp=2, engine=engine)
            step = sw.sjit(function, mesh=grid)
            made = step(*(sw.shard(host, grid, P("dp", "tp") if host.ndim > 1 else P("dp")) for host in hosts))
            both.append([np.asarray(x) for x in (made if isinstance(made, tuple) else (made,))])
        if all(np.allclose(x, y, rtol=1e-4, atol=1e-5) for x, y in zip(*both, strict=True)):
            right.append(name)
    return right


# -- products that are reduced where they are ----------------------------------------------------------------------------


class Box:
    value = None


def reduced_temporaries():
    """Whether a product that nothing can read afterwards was reduced in its own memory, and what others hold is unchanged."""
    grid = sw.Mesh(x=4, engine="torch")
    a, b = (np.random.default_rng(seed).normal(size=(8, 8)).astype(np.float32) for seed in (0, 1))
    x, w = sw.shard(a, grid, P(None, "x")), sw.shard(b, grid, P("x"))
    expected = a @ b
    summand = x.data @ w.data
    given = summand.clone()
    found = {}

    def holds(name, made, held):
        whole = np.allclose(np.asarray(made), expected, atol=1e-5)
        found[name] = whole and all(torch.equal(tensor.reshape(8, 8), summand) for tensor in held())

    reused = []
    with mock.patch.object(transport, "all_reduce", side_effect=transport.all_reduce) as sent:
        made = (x @ w).reshard(P())
        reused.append(sent.call_args.args[4])
    found["a temporary"] = np.allclose(np.asarray(made), expected, atol=1e-5) and reused == [True]

    z = x @ w
    holds("a variable", z.reshard(P()), lambda: [z.data])
    holds("a variable again", z.reshard(P()), lambda: [z.data])
    kept = [x @ w]
    holds("an element", kept[0].reshard(P()), lambda: [kept[0].data])
    holds("a loop", next(y.reshard(P()) for y in kept), lambda: [kept[0].data])
    holds("a map", next(map(sw.Array.reshard, kept, [P()])), lambda: [kept[0].data])
    Box.value = x @ w
    holds("an attribute", Box.value.reshard(P()), lambda: [Box.value.data])
    bound = (x @ w).reshard
    bound(P())
    holds("a bound method", bound(P()), lambda: [bound.__self__.data])

    tensors = []

    def leaks(take):
        made = x @ w
        tensors.append(take(made))
        return made

    holds("its tensor", leaks(lambda y: y.data).reshard(P()), lambda: tensors)
    holds("a view", leaks(lambda y: y.data.view(-1)).reshard(P()), lambda: tensors)
    holds("a detached one", leaks(lambda y: y.data.detach()).reshard(P()), lambda: tensors)
    holds("memory", leaks(lambda y: torch.from_dlpack(y.data)).reshard(P()), lambda: tensors)
    arrays = []
    holds("a NumPy view", leaks(lambda y: arrays.append(y.data.numpy()) or y.data * 1).reshard(P()),
          lambda: [*tensors, *map(torch.from_numpy, arrays)])  # fmt: skip
    reshaped = []
    holds("a reshaped array", leaks(lambda y: reshaped.append(y.reshape((4, 16))) or y.data * 1).reshard(P()),
          lambda: [reshaped[0].data])  # fmt: skip
    partial = sw.Sharding(grid, P(None, None), partial="x")
    holds("given shards", sw.from_shards(partial, [given.numpy()] * 4).reshard(P()), lambda: [given])
    return found
