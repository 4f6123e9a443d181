"""Random programs as text of both dialects and views: read again they give what NumPy does, and print as the same text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright as sw
from helpers import held_by
from programs import programs
from shardwright import mlir
from shardwright.errors import MLIRError

REFUSED = r"of mesh axes don't nest"


def text_of(program, dialect, view):
    """The text of a program; None if it has none, and the error says why."""
    final = sw.sjit(program.on_arrays).lower(*program.arrays()).program
    try:
        return mlir.dumps(final, dialect, view)
    except MLIRError as error:
        with pytest.raises(MLIRError, match=REFUSED):
            raise error from None
        return None


def several(made):
    return made if isinstance(made, tuple) else (made,)


def check_fixed_point(fn, dialect, view, text):
    """What is read prints as the same text."""
    assert mlir.dumps(fn.program, dialect, view) == text


def inside(tensor, like):
    """A padded shard without its padding."""
    return tensor[tuple(slice(0, n) for n in like.shape)]


def padded(shard, shape):
    """A shard padded to the largest, with elements that nothing may read."""
    made = np.full(shape, 777.0)
    made[tuple(slice(0, n) for n in shard.shape)] = shard
    return made


def check_global(program, dialect):
    text = text_of(program, dialect, "global")
    if text is None:
        return
    fn = mlir.loads(text)["main"]
    check_fixed_point(fn, dialect, None, text)
    placed = [sw.shard(host, node.type.sharding) for host, node in zip(program.hosts, fn.program.inputs, strict=True)]
    for one, expected in zip(several(fn(*placed)), program.on_hosts(), strict=True):
        np.testing.assert_allclose(np.asarray(one), expected, rtol=1e-8, atol=1e-8)


def check_local(program, dialect):
    text = text_of(program, dialect, "local")
    if text is None:
        return
    fn = mlir.loads(text)["main"]
    check_fixed_point(fn, dialect, "local", text)
    expected = [held_by(array) for array in sw.sjit(program.on_arrays)(*program.arrays())]
    shards = [[padded(own, array.layout.local_shape) for own in held_by(array)] for array in program.arrays()]
    if fn.is_local:
        made = [value.values() for value in several(fn(*(sw.PerDevice(fn.mesh, own) for own in shards)))]
    else:  # nothing is sent: a function of one device's tensors
        per_place = [several(fn(*own)) for own in zip(*shards, strict=True)]
        made = [[np.asarray(results[at]) for results in per_place] for at in range(len(expected))]
    for own, wanted in zip(made, expected, strict=True):
        for one, shard in zip(own, wanted, strict=True):
            np.testing.assert_allclose(inside(one, shard), shard, rtol=1e-8, atol=1e-8)


DIALECTS = st.sampled_from(["shard", "mesh"])


@settings(max_examples=20)
@given(program=programs(max_steps=5), dialect=DIALECTS)
def test_the_global_view_gives_what_numpy_does(program, dialect):
    check_global(program, dialect)


@settings(max_examples=25)
@given(program=programs(max_steps=3), dialect=DIALECTS)
def test_the_local_view_gives_the_shards(program, dialect):
    check_local(program, dialect)


@settings(max_examples=25)
@given(program=programs(max_steps=2, control=True), dialect=DIALECTS, view=st.sampled_from(["global", "local"]))
def test_loops_and_choices_are_read_as_they_are_printed(program, dialect, view):
    (check_local if view == "local" else check_global)(program, dialect)
