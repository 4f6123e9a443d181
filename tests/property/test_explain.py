"""What explain says of random programs, with loops, choices and several outputs: memory, times, tables, JSON, HTML."""

import html
import json
import math
import re

import pytest
from hypothesis import given, settings

import shardwright as sw
from heap import counted, simulated, unread
from programs import programs

NUMBER = re.compile(r"\d[\d.]*(?:e[+-]\d+)? ?(?:[kMGTPE]?B|[mnµ]?s)\b")


@pytest.mark.parametrize("engine", ["numpy"], indirect=True)  # explain does not depend on the engine
@settings(max_examples=40)
@given(program=programs())
def test_an_explanation_agrees_with_itself(engine, program):
    lowered = sw.sjit(program.on_arrays).lower(*program.arrays())
    found = lowered.explain()
    use = found.use
    assert use.parameters + use.inputs + use.activations + use.temporaries + use.outputs == found.peak_bytes
    assert min(use.parameters, use.inputs, use.activations, use.temporaries, use.outputs) >= 0
    assert found.peak_bytes == simulated(lowered.program)[0]
    assert max(found.communication_time, found.compute_time) <= found.seconds("ideal") * (1 + 1e-9)
    assert found.seconds("ideal") <= found.seconds("none") == found.time
    assert bool(found.fits) == (found.fits.margin >= 0) == (found.peak_bytes <= found.machine.memory)
    for row in found.rows:
        if row.plan is not None and row.compute:
            assert row.redundancy == copies(row)
    told(found)


def copies(row):
    """How many devices compute the same: devices, over the blocks of the index space that its factors are cut into."""
    mesh, placement = row.plan.problem.mesh, row.plan.strategy.placement
    return mesh.size // math.prod(mesh.axis(axis).size for axis, factor in placement.items() if factor is not None)


def told(found):
    """Asserts that the table is at most 100 columns wide, and that JSON and HTML have what it has."""
    text, data, page = str(found), json.loads(found.json()), html.unescape(found._repr_html_())
    assert max(map(len, text.splitlines())) <= 100
    assert max(map(len, found.open().splitlines()), default=0) <= 100
    plain = re.sub(r"<[^>]*>", " ", page)
    for number in NUMBER.findall(text):
        assert number in plain, number
    assert len(data["steps"]) == len(found.rows)
    for step, row in zip(data["steps"], found.rows, strict=True):
        for name, value in step.items():
            assert value == json.loads(json.dumps(getattr(row, name))), name
    totals = data["totals"]
    assert totals["seconds"] == found.time
    assert totals["peak_bytes"] == found.peak_bytes
    assert totals["received_bytes"] == found.total_bytes
    assert (totals["shared"], totals["dead"]) == (found.shared, found.dead)
    assert data["fits"] == {"fits": bool(found.fits), "margin": found.fits.margin}


@pytest.mark.parametrize("engine", ["literal"], indirect=True)
@settings(max_examples=40)
@given(program=programs())
def test_the_literal_engine_holds_no_more_than_explain_says(engine, program):
    with counted() as counter:
        arrays = program.arrays()
        lowered = sw.sjit(program.on_arrays).lower(*arrays)
        counter.most = 0
        lowered(arrays)
    peak = lowered.explain().peak_bytes
    assert counter.most <= peak + unread(lowered.program)
