"""What the tests of the torch engine over processes run in each of them."""

import os
import signal

import numpy as np

import shardwright as sw
from shardwright import P
from shardwright.engines.torch.processes import World

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


def passes_other_constants(bad):
    x = placed()
    return np.asarray(x * (2.0 if rank() != bad else 3.0)).tolist()


def captures_other_constants(bad):
    x = placed()
    table = np.ones(4) * (1 + (rank() == bad))
    return np.asarray(sw.sjit(lambda x: x + table)(x)).tolist()


def places_other_elements(bad):
    x = placed()
    y = sw.shard(HOST + (rank() == bad), mesh(), P("dp", "tp"))
    return np.asarray(x + y).tolist()


def raises(bad):
    x = placed()
    if rank() == bad:
        raise KeyError("a bug of the user's")
    return np.asarray(x).tolist()


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
