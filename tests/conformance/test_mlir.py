"""Against real MLIR: recorded answers of mlir-opt-19 and mlir-opt-22, the tools themselves where they are installed, and the
Python bindings of the torch-mlir wheel (a development version of LLVM 24)."""

import json
import re

import numpy as np
import pytest
from torch_mlir import ir, passmanager

import shardwright as sw
from mlir_operations import CASES as READ
from mlir_operations import ONLY_22
from mlir_operations import text as read_text
from record_mlir import FOLDER, TOOLS, answer, answers, has_tool, invalid, read_answers, written
from shardwright import mlir

CASES = json.loads((FOLDER / "invalid_cases.json").read_text())
ANSWERS = json.loads((FOLDER / "invalid_answers.json").read_text())
WRITTEN = json.loads((FOLDER / "written.json").read_text())

# Where our message is another one: upstream reads out of bounds, or reports what follows from the error.
OTHER_WORDS = {
    "slaxis": "Slice axis 3 is out of bounds",
    "a2adiv": "is not divisible by collective device group size 3",
    "a2aaxis": "Split axis 2 is out of bounds",
    "bshape": "requires the same shape for all operands and results",
}
MISSED = {"rootneg", "srange", "soff", "srank", "halo", "halobig", "haloax", "neigh", "neighax", "bitf"}  # by LLVM 22
NOT_IN_19 = ("mesh.sharding", "mesh.update_halo", "mesh.neighbors_linear_indices")


@pytest.mark.parametrize("name", CASES)
def test_what_the_verifier_reports_we_report_in_its_words(name):
    for dialect in TOOLS:
        text, recorded = invalid(dialect, CASES[name]), ANSWERS[name][dialect]
        found = mlir.verify(text)
        if name == "soff":  # seven offsets for six shards are right; upstream counts 2 + 3 shards and does not complain
            assert found == []
            continue
        assert len(found) == 1, found
        if dialect == "mesh" and any(op in text for op in NOT_IN_19):
            assert "is unknown" in recorded
        elif name in OTHER_WORDS:
            assert OTHER_WORDS[name] in found[0].message
        elif recorded is not None:
            assert found[0].message.startswith(recorded.rstrip("."))
    assert (ANSWERS[name]["shard"] is None) == (name in MISSED)


def test_the_recorded_answers_are_those_of_the_tools():
    for dialect in filter(has_tool, TOOLS):
        live = answers(dialect, [invalid(dialect, line) for line in CASES.values()])
        assert live == [ANSWERS[name][dialect] for name in CASES]


def test_the_operations_that_we_read_are_operations_of_mlir():
    recorded = json.loads((FOLDER / "read_answers.json").read_text())
    assert {name: read_text(name) for name in READ} == {name: entry["text"] for name, entry in recorded.items()}
    assert [name for name, entry in recorded.items() if entry["shard"]] == []
    assert {name for name, entry in recorded.items() if entry["mesh"]} == ONLY_22
    live = [dialect for dialect in TOOLS if has_tool(dialect)]
    for name, entry in read_answers(live).items():
        assert {dialect: entry[dialect] for dialect in live} == {dialect: recorded[name][dialect] for dialect in live}


def ours():
    return {name: (dialect, text) for name, dialect, text in written()}


def test_what_we_print_is_what_they_accepted():
    made = ours()
    assert set(made) == set(WRITTEN)
    for name, (_, text) in made.items():
        assert text == WRITTEN[name]["ours"], name
    for dialect in filter(has_tool, TOOLS):
        for name, (own, text) in made.items():
            if own == dialect:
                assert answer(dialect, text) == (WRITTEN[name]["theirs"], None)


def again(text, function, dialect, view):
    return mlir.dumps({function: mlir.loads(text, view=view)[function].program}, dialect, view)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_they_print_we_read(name):
    _, _, function, dialect, view = name.split(".")
    for text in (WRITTEN[name]["theirs"], WRITTEN[name]["ours"]):
        assert again(text, function, dialect, view) == WRITTEN[name]["ours"]  # print ∘ parse ∘ print = print


@pytest.mark.parametrize("dialect", TOOLS)
def test_the_generic_form_is_the_same_program(dialect):
    pretty = (FOLDER / f"operations.{dialect}.mlir").read_text()
    generic = (FOLDER / f"operations.{dialect}.generic").read_text()
    assert f'"{dialect}.all_gather"(' in generic
    one, other = (mlir.dumps(mlir.loads(text)["f"].program, dialect) for text in (pretty, generic))
    assert one == other


# -- LLVM 24, through torch-mlir ---------------------------------------------------------------------------------------


def printed(text, passes=""):
    """What LLVM 24 prints for a text after passes; it spells scatter_dim."""
    with ir.Context():
        module = ir.Module.parse(re.sub(r"\bscatter_axis\b", "scatter_dim", text))
        assert module.operation.verify()
        if passes:
            passmanager.PassManager.parse(f"builtin.module({passes})").run(module.operation)
        return str(module)


@pytest.mark.parametrize("name", [name for name in WRITTEN if ".shard." in name.partition(".")[2]])
def test_llvm_24_accepts_what_we_print_and_we_read_what_it_prints(name):
    _, _, function, dialect, view = name.split(".")
    if dialect == "mesh":
        name = name.replace(".mesh.", ".shard.")  # LLVM 24 has no mesh dialect
    text = printed(WRITTEN[name]["ours"])
    assert "shard.grid" in text
    assert again(text, function, "shard", view) == WRITTEN[name]["ours"]


SIMPLIFIED = """
shard.grid @grid0(shape = 2x4)
func.func @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> {results} {{
  {body}
  return %r : {results}
}}"""


def simplified(body, results="tensor<8xf32>"):
    text = SIMPLIFIED.format(body=body, results=results)
    theirs = printed(text, "func.func(canonicalize),shard-simplify,func.func(canonicalize)")
    count = lambda text: re.findall(r"(?:shard|arith|tensor)\.(?!grid )\w+ ", text)  # noqa: E731
    return count(mlir.dumps(mlir.loads(text)["f"].program)), count(theirs), text


def reduce_all(name, value, kind=""):
    return f"%{name} = shard.all_reduce %{value} on @grid0 grid_axes = [1]{kind} : tensor<8xf32> -> tensor<8xf32>\n"


@pytest.mark.parametrize(
    ("body", "results"),
    [
        (reduce_all("a", "x") + reduce_all("b", "y") + "%r = arith.addf %a, %b : tensor<8xf32>", "tensor<8xf32>"),
        (
            reduce_all("a", "x", " reduction = max")
            + reduce_all("b", "y", " reduction = max")
            + "%r = arith.maximumf %a, %b : tensor<8xf32>",
            "tensor<8xf32>",
        ),
        ("%r = shard.all_reduce %x on @grid0 : tensor<8xf32> -> tensor<8xf32>", "tensor<8xf32>"),
        (
            "%r = shard.all_gather %x on @grid0 gather_axis = 0 : tensor<8xf32> -> tensor<8xf32>",
            "tensor<8xf32>",
        ),
        (
            reduce_all("a", "x")
            + "%r = shard.all_slice %a on @grid0 grid_axes = [1] slice_axis = 0 : tensor<8xf32> -> tensor<2xf32>",
            "tensor<2xf32>",
        ),
    ],
)
def test_what_we_simplify_they_simplify_alike(body, results):
    own, theirs, _ = simplified(body, results)
    assert own == theirs


def test_a_gather_of_a_slice_stays_though_they_drop_it():
    body = """%s = shard.all_slice %x on @grid0 grid_axes = [1] slice_axis = 0 : tensor<8xf32> -> tensor<2xf32>
  %r = shard.all_gather %s on @grid0 grid_axes = [1] gather_axis = 0 : tensor<2xf32> -> tensor<8xf32>"""
    own, theirs, text = simplified(body)
    assert own == ["shard.all_slice ", "shard.all_gather "]
    assert theirs in ([], own)  # the newest versions drop both, which is wrong where devices differ:
    fn = mlir.loads(text)["f"]
    v = sw.PerDevice(fn.mesh, [np.arange(8, dtype=np.float32) + 10 * place for place in range(8)])
    made = fn(v, v)
    assert made[0].tolist() == [
        0,
        1,
        12,
        13,
        24,
        25,
        36,
        37,
    ]  # a piece of every device of the group, not the first's tensor
