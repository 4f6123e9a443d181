"""The chosen strategy takes the least time of all, by brute force: every kind of operation, machine and placement."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright as sw
from cases import CASES, Case, floats
from shardwright import nn
from shardwright.eager import recording
from shardwright.hardware import Hardware, Level, Link, presets
from shardwright.plan import choose, strategies
from strategies import meshes, shapes, shardings

# A case for each kind of row: elements, reductions, contractions, windows, fetched rows, prefixes, joined tensors, gathers.
FAMILIES = """
exp add where sum max mean softmax matmul einsum vecdot nn.conv1d nn.conv2d nn.avg_pool take take_along_axis index concat stack
cumulative_sum roll flip tile repeat sort searchsorted scatter assign reshape permute_dims fft.fft linalg.det tril
""".split()
KINDS = ("ring", "line", "switch", "full")


def softmax(draw):
    return Case([floats(draw(shapes(min_dims=1, max_dims=3).filter(all)), 0)], nn.softmax, None)


@st.composite
def machines(draw, devices):
    """A preset with room for so many devices, or a machine on which small tensors cost time too."""
    if draw(st.booleans()):
        return draw(st.sampled_from([m for m in presets().values() if not m.size or m.size >= devices]))
    speeds = [draw(st.sampled_from([1e3, 1e5, 1e9])) for _ in range(2)]
    latency = draw(st.sampled_from([0.0, 1e-6, 1e-3]))
    inner, outer = (Link(draw(st.sampled_from(KINDS)), speed, latency, latency / 4) for speed in speeds)
    chip = draw(st.sampled_from([m.chip for m in presets().values()]))
    return Hardware("drawn", chip, (Level(inner, draw(st.sampled_from([2, 4, 8]))), Level(outer)))


@st.composite
def calls(draw, name):
    sizes = draw(meshes(max_axes=3, max_devices=4)).sizes
    machine = draw(machines(math.prod(sizes.values())))
    links = {axis: Link("ring", 1e4) for axis in sizes if draw(st.integers(0, 5)) == 0}
    mesh = sw.Mesh(dict(sizes), hardware=machine, links=links)
    case = softmax(draw) if name == "softmax" else CASES[name](draw, draw(st.integers(0, 1000)))
    arrays = [
        sw.shard(host, draw(shardings(mesh, np.shape(host), partial=case.partial and host.dtype.kind != "b")))
        for host in case.hosts
    ]
    return case, arrays


@pytest.mark.parametrize("engine", ["numpy"], indirect=True)  # a choice does not depend on the engine
@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=6)
@given(data=st.data())
def test_the_choice_takes_the_least_time_of_all_strategies(engine, name, data):
    case, arrays = data.draw(calls(name))
    with recording() as plans, np.errstate(all="ignore"):
        case.ours(*arrays)
    for plan, _ in plans:
        every = [s for s in strategies(plan.problem.afresh()) if s.idle == 0]
        chosen = choose(plan.problem.afresh())
        assert chosen.idle == 0
        assert chosen.priced.weight <= min(s.priced.weight for s in every) * (1 + 1e-9), (chosen, every)
        assert any(s.placement == chosen.placement for s in every)
