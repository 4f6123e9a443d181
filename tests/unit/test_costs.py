"""Times, memory and tables of explanations: rooflines by hand, redundant work, overlap, what fits, folding, JSON."""

import json
import math
import resource
import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest

import shardwright as sw
import shardwright.numpy as snp
from shardwright import P, nn
from shardwright.errors import ImplicitGatherError, ProgramError
from shardwright.hardware import Chip, Hardware, Level, Link
from shardwright.program import Explanation, Row
from shardwright.program.rows import duration, size

# 1 TFLOP/s, 1 GB/s, 1 MB a chip; 1 MB/s between chips and no latency: figures that a hand can follow
CHIP = Chip({"float32": 1e12}, memory_bandwidth=1e9, memory=1e6)
LAB = Hardware("lab", CHIP, (Level(Link("switch", 1e6, 0, 0)),))
MESH = sw.Mesh(x=2, y=4, hardware=LAB)


def abstract(*shape, dtype=np.float32):
    return sw.ShapeDtype(shape, dtype)


def placed(shape, spec, mesh=MESH, dtype=np.float32):
    return sw.shard(np.broadcast_to(np.zeros((), dtype), shape), mesh, spec)


def test_a_local_step_takes_the_time_of_its_roofline():
    x, w = placed((512, 1024), P("x")), placed((1024, 256), P(None, "y"))
    (row,) = sw.explain(lambda x, w: x @ w, x, w).rows
    work, touched = 2 * 256 * 1024 * 64, 4 * (256 * 1024 + 1024 * 64 + 256 * 64)
    assert (row.work, row.touched, row.limit) == (work, touched, "memory")
    assert row.compute == pytest.approx(touched / 1e9) == row.seconds
    slow = sw.Mesh(x=2, y=4, hardware=Hardware("slow", Chip({"float32": 1e6}, 1e9, 1e9), LAB.levels))
    (row,) = sw.explain(
        lambda x, w: x @ w, placed((512, 1024), P("x"), slow), placed((1024, 256), P(None, "y"), slow)
    ).rows
    assert (row.compute, row.limit) == (pytest.approx(work / 1e6), "compute")


@pytest.mark.parametrize(
    ("function", "kinds", "made"),
    [
        (lambda x, y: x < y, [((64, 32), "float32"), ((64, 32), "float32")], [(64, 32, 1)]),
        (snp.isnan, [((64, 32), "float64")], [(64, 32, 1)]),
        (lambda x: snp.sum(x, axis=1), [((64, 32), "bool")], [(64, 8)]),
        (lambda x: snp.argsort(x, axis=1), [((64, 32), "int8")], [(64, 32, 8)]),
        (lambda x: snp.astype(x, np.float64), [((64, 32), "int8")], [(64, 32, 8)]),
        (lambda x, y: x * y, [((64, 32), "float32"), ((64, 32), "bool")], [(64, 32, 4)]),
        (snp.linalg.slogdet, [((64, 3, 3), "float32")], [(64, 4), (64, 4)]),
    ],
)  # fmt: skip
def test_results_count_with_the_bytes_of_their_own_dtypes(function, kinds, made):
    args = [placed(shape, P(("x", "y")), dtype=np.dtype(dtype)) for shape, dtype in kinds]
    row = sw.explain(function, *args).rows[0]
    read = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in kinds)
    assert row.touched == (read + sum(map(math.prod, made))) // 8
    plan = sw.auto(function, MESH, *[abstract(*shape, dtype=np.dtype(dtype)) for shape, dtype in kinds])
    assert plan.time == plan.explain().time
    assert plan.certificate.check()


def test_taken_rows_count_with_the_bytes_of_the_table():
    table, ids = (
        placed((1000, 64), P(), dtype=sw.ShapeDtype((1,), "bfloat16").dtype),
        placed((80,), P("x"), dtype="int64"),
    )
    row = next(
        row for row in sw.explain(lambda t, i: snp.take(t, i, axis=0), table, ids).rows if row.operation == "take"
    )
    assert row.touched == 2 * 1000 * 64 + 8 * 40 + 2 * 40 * 64


def test_totals_are_sums_of_their_parts():
    x, w = placed((64, 256), P("x", "y")), placed((256, 64), P("y"))
    explanation = sw.explain(lambda x, w: snp.sum(snp.exp(x @ w)), x, w)
    assert explanation.total_time == explanation.communication_time == sum(row.time for row in explanation.rows)
    assert explanation.compute_time == pytest.approx(sum(row.compute for row in explanation.rows))
    assert explanation.time == explanation.communication_time + explanation.compute_time
    assert explanation.bound <= explanation.total_bytes
    assert max(explanation.communication_time, explanation.compute_time) <= explanation.seconds("ideal")
    assert explanation.seconds("ideal") <= explanation.seconds() == explanation.time
    with pytest.raises(ProgramError, match=r"The overlap 'some' is unknown. Use 'none' or 'ideal'"):
        explanation.seconds("some")


def test_only_independent_steps_overlap():
    x, y = placed((64, 64), P("x")), placed((64, 64), P("x"))
    chained = sw.explain(lambda x: snp.exp(snp.exp(x).reshard(P())), x)
    assert chained.seconds("ideal") == pytest.approx(chained.time)
    beside = sw.explain(lambda x, y: (snp.exp(x), y.reshard(P())), x, y)
    assert beside.seconds("ideal") == pytest.approx(max(beside.communication_time, beside.compute_time))


def test_loops_count_their_rounds():
    x = placed((64, 64), P("x"))
    once, often = (
        sw.explain(lambda x, n=n: sw.scan(lambda c, _: (snp.exp(c), None), x, length=n)[0], x) for n in (1, 5)
    )
    assert often.compute_time == pytest.approx(5 * once.compute_time)
    branches = sw.explain(lambda x: sw.cond(snp.max(x) > 0, lambda v: snp.exp(snp.exp(v)), lambda v: v + 1, x), x)
    exps = [row.compute for row in branches.rows if row.operation == "exp"]
    others = [row.compute for row in branches.rows if not row.inside]
    assert branches.compute_time == pytest.approx(sum(exps) + sum(others))


def test_work_that_devices_do_alike_is_flagged_with_its_cost():
    explanation = sw.explain(lambda x: snp.exp(x), placed((64, 256), P("x")))
    (exp,) = explanation.rows
    assert exp.redundancy == 4  # along y nothing is shared
    assert exp.redundant == pytest.approx(exp.compute * 3 / 4)
    assert "* devices compute the same, up to 4 of them" in explanation.full()
    shared = sw.explain(lambda x: snp.exp(x), placed((64, 64), P("x", "y"))).rows[0]
    assert (shared.redundancy, shared.redundant) == (1, 0)


# -- memory -----------------------------------------------------------------------------------------------------------


def test_memory_by_kind_by_hand():
    """Shards of x and of values beside it have 64 · 64 / 2 · 4 B = 8 KiB, those of w 64 · 64 · 4 B = 16 KiB."""
    program = sw.sjit(
        lambda x, params: (snp.tanh(x @ params["w"]) * x, x + 1),
        mesh=MESH,
        in_shardings=(P("x"), sw.rules.TreePathShardingRule(("w", P()))),
    )
    explanation = program.lower(abstract(64, 64), {"w": abstract(64, 64)}).explain()
    use = explanation.use
    assert (use.parameters, use.inputs) == (16384, 8192)
    total = use.parameters + use.inputs + use.activations + use.temporaries + use.outputs
    assert total == explanation.peak_bytes
    assert use.temporaries == 8192
    assert use.step


def test_what_does_not_fit_says_what_to_split():
    fits = sw.explain(lambda x: x + 1, placed((64, 64), P("x"))).fits
    assert fits
    assert fits.margin == 1e6 - 2 * 8192
    assert str(fits) == "fits the chip's 1 MB: 984 kB to spare"
    explanation = sw.explain(lambda x, w: x @ w, placed((64, 512), P("x")), placed((512, 512), P()))
    fits = explanation.fits
    assert not fits
    assert fits.margin == 1e6 - explanation.peak_bytes
    assert "w, f32[512,512]: 1.05 MB; y could split dim 0 into 4" in str(fits)
    assert "does not fit the chip's 1 MB" in str(explanation)


# -- gathers ----------------------------------------------------------------------------------------------------------


def fsdp(x, params):
    return nn.gelu(x @ params["up"]) @ params["down"]


def test_gathers_of_weights_by_rule_are_intended():
    mesh = sw.Mesh(fsdp=8, hardware="h100")
    rule = sw.rules.FSDPShardingRule("fsdp", min_fsdp_size=0)
    program = sw.sjit(fsdp, mesh=mesh, in_shardings=(P("fsdp"), rule))
    args = abstract(65536, 2048), {"up": abstract(2048, 8192), "down": abstract(8192, 2048)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # 64 MB each would be warned of
        explanation = program.lower(*args).explain()
    assert [row.operation for row in explanation.collectives] == ["all_gather", "all_gather"]
    assert not any(row.implicit for row in explanation.rows)
    assert explanation.use.parameters == 2 * 2048 * 8192 * 4 // 8
    with (
        sw.strict(),
        pytest.raises(ImplicitGatherError, match=r"It is a parameter; .* enter sw.strict\(weights=True\)"),
    ):
        program.lower(*args)
    with sw.strict(weights=True):
        assert program.lower(*args).explain().total_bytes == explanation.total_bytes


def test_other_gathers_are_marked_on_their_rows():
    explanation = sw.explain(lambda x: snp.linalg.det(x) + snp.sum(x), placed((8, 8), P("x"), dtype=np.float64))
    (row,) = [row for row in explanation.rows if row.implicit]
    assert row.operation == "all_gather"
    assert "! all_gather x" in explanation.full()
    assert "! gathers an operand" in explanation.full()
    with sw.strict(weights=True), pytest.raises(ImplicitGatherError, match="det gathers dim 0"):
        sw.explain(lambda x: snp.linalg.det(x), placed((8, 8), P("x"), dtype=np.float64))


# -- the table --------------------------------------------------------------------------------------------------------


def layers(x, ws):
    for w in ws:
        x = nn.gelu(x @ w, approximate="tanh")
        x = x * 2 + 1
    return x


@pytest.fixture(scope="module")
def repeated():
    return sw.explain(layers, placed((64, 256), P("x")), [placed((256, 256), P(None, "y"))] * 1 + [
        placed((256, 256), P("y")) for _ in range(11)
    ])  # fmt: skip


def test_equal_layers_are_printed_once(repeated):
    text = str(repeated)
    assert "×" in text
    assert len(text.splitlines()) < len(repeated.rows)
    assert max(map(len, text.splitlines())) <= 100
    assert len(repeated.full().splitlines()) > len(repeated.rows)
    assert text.startswith("lab: float32 1 TFLOP/s, 1 MB at 1 GB/s\naxes: x=2 (switch, 1 MB/s); y=4 (switch, 1 MB/s)\n")
    for word in ("source", "network", "compute", "of communication", "if they", "bound"):
        assert word in text


def test_gelu_is_one_row_that_opens(repeated):
    folded, opened = str(repeated).splitlines(), repeated.open("tanh").splitlines()
    line = next(text for text in folded if "multiply, add, … (9)" in text)
    assert line.split()[1].startswith("…costs.py:")  # the line number is not cut
    below = opened[opened.index(line) + 1 :]
    count = int(line.split("(")[1].split(")")[0])
    assert all("· " in text for text in below[:count])
    assert "· " not in below[count]
    assert sum("· tanh" in text for text in below[:count]) == 1
    assert [text for text in opened if "· " not in text] == folded
    assert max(map(len, repeated.open().splitlines())) <= 100
    assert sum("· " in text for text in repeated.open().splitlines()) >= count
    with pytest.raises(ProgramError, match=r"No step or source line has 'conv' in its name. Call open\(\) without"):
        repeated.open("conv")


def test_rows_of_html_open():
    page = repeated_page()
    assert page.count("<details>") == page.count("</details>") == page.count("<summary>") > 0
    details = page.split("<details>")[1].split("</details>")[0]
    assert details.count("<tr>") == int(details.split("(")[1].split(")")[0])
    assert "<td>tanh</td>" in page


def repeated_page():
    x, ws = placed((64, 256), P("x")), [placed((256, 256), P("y")) for _ in range(2)]
    return sw.explain(layers, x, ws)._repr_html_()


def test_folding_loses_nothing(repeated):
    from shardwright.program.tables import lines_of

    lines = [line for block in lines_of(repeated.rows) for line in block]
    assert sum(line.times * len(line.rows) for line in lines) == sum(row.seconds > 0 for row in repeated.rows)
    assert sum(line.seconds for line in lines) == pytest.approx(repeated.time)


def test_a_mesh_without_hardware_says_so():
    text = str(sw.explain(lambda x: x + 1, sw.shard(np.ones(8), sw.Mesh(x=2), P("x"))))
    assert text.startswith("generic: bfloat16 200, float32 100 TFLOP/s, 32 GB at 1 TB/s (not your machine")


def test_json_has_a_version_and_everything(repeated):
    data = json.loads(repeated.json())
    assert data["version"] == 1
    assert data["hardware"]["name"] == "lab"
    assert len(data["steps"]) == len(repeated.rows) == data["totals"]["steps"]
    assert sum(step["time"] + step["compute"] for step in data["steps"]) == pytest.approx(repeated.time)
    assert data["totals"]["seconds"] == repeated.time
    assert data["totals"]["held"]["inputs"] == repeated.use.inputs
    assert data["steps"][0]["source"].endswith(repeated.rows[0].source)


def test_an_explanation_needs_rows_only():
    rows = (
        Row("dot", "a.py:1", ("f32[8]",), ("f32[8]",), "", "", 0, 0, 0.0, 64, compute=2e-6),
        Row("all-reduce", "a.py:2", ("f32[8]",), ("f32[8]",), "all-reduce x", "1 × 2", 32, 32, 5e-6, 64),
    )
    explanation = Explanation(rows, 64, 32, 5e-6)
    assert (explanation.time, explanation.seconds("ideal")) == (5e-6, 5e-6)
    assert "all-reduce x" in str(explanation)
    assert json.loads(explanation.json())["hardware"] is None
    assert "<td>a.py:2</td>" in explanation._repr_html_()
    with pytest.raises(ProgramError, match="names no machine"):
        _ = explanation.fits


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999 B"), (999_499, "999 kB"), (999_500, "1 MB"), (999_999_999, "1 GB"), (5e15, "5 PB"), (2e18, "2 EB")],
)
def test_sizes_have_three_digits(count, text):
    assert size(count) == text
    assert size(-count) == f"-{text}"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.99999, "1 s"), (9.9999e-7, "1 µs"), (0.9999e-6, "999.9 ns"), (1234.5, "1234 s"), (12345.6, "12346 s"),
        (86400 * 2.0, "2 d"), (1e-13, "0.0001 ns"), (86400 * 12345.0, "1e+04 d"),
    ],
)  # fmt: skip
def test_durations_fit_their_column(seconds, text):
    assert duration(seconds) == text
    assert len(text) <= 9


def test_long_names_and_times_stay_within_the_table():
    machine = Hardware(
        "m" * 90, Chip({"float32": 1.0}, 1.0, math.inf), (Level(Link("switch", 1.0, 10.0, 1.0)),), "note " * 50
    )
    mesh = sw.Mesh({"a" * 70: 4, "b": 2}, hardware=machine)
    axis = mesh.axis_names[0]

    def repeated_very_often(x, w):
        for _ in range(1100):
            x = snp.tanh(x @ w)
        return sw.scan(lambda c, _: (snp.exp(c @ w), None), x, length=100_000)[0]

    x, w = (sw.ShapeDtype((64, 64), "float32", sw.Sharding(mesh, P(name))) for name in (axis, "b"))
    found = sw.explain(repeated_very_often, x, w)
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("×1099 ") for line in lines)
    assert "×1099" in found._repr_html_()
    assert "│" in found._repr_html_()
    assert "unlimited" in lines[-1]
    assert json.loads(found.json())["fits"] == {"fits": True, "margin": None}


def test_a_choice_takes_as_long_as_the_longer_branch():
    """One branch computes, the other communicates: no run does both."""
    mesh = sw.Mesh(x=4)
    a = sw.ShapeDtype((256, 256), "float32", sw.Sharding(mesh, P("x")))

    def computes(v):
        for _ in range(400):
            v = snp.tanh(v)
        return v

    def communicates(v):
        return v - snp.sum(v, axis=0)

    def alone(branch):
        return sw.explain(lambda v: branch(v), a)

    both = sw.explain(lambda v, flag: sw.cond(flag, computes, communicates, v), a, sw.ShapeDtype((), "bool"))
    slower = max(alone(computes).time, alone(communicates).time)
    assert both.time == pytest.approx(slower)
    assert both.seconds("ideal") <= both.time
    assert both.total_bytes == alone(communicates).total_bytes > 0


# -- a large model ----------------------------------------------------------------------------------------------------


def test_an_8b_decoder_is_explained_without_allocating_it():
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "decoder.py"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB
    explanation = example["main"]("h100")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # the weights alone are 16 GB
    with sw.strict():
        strict = example["main"]("h100")
    reductions = [row for row in strict.collectives if row.operation == "all_reduce" and row.bytes > 1000]
    assert len(reductions) == 2 * 32 + 1  # Megatron: two a layer and one for the embedding
    received, at_most = (sum(row.bytes for row in some.collectives) for some in (explanation, strict))
    assert received <= at_most  # sums are scattered, and norms computed once
    assert explanation.time < 0.9 * strict.time
    weights = 2 * 128256 * 4096 + 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    norms = (2 * 32 + 1) * 4096
    assert explanation.use.parameters == 2 * (weights // 8 + norms)
    assert explanation.fits
    text = str(explanation)
    assert len(text.splitlines()) < 75  # of 32 layers
    assert "what takes longest:" in text
    assert max(map(len, text.splitlines())) <= 100
    tokens = 32 * 4096
    assert explanation.compute_time > 2 * tokens * weights / 64 / 989e12  # no faster than the FLOP/s of the chips
    assert math.isclose(explanation.time, explanation.communication_time + explanation.compute_time)
