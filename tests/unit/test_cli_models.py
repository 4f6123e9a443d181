"""`shardwright explain`: a module or a function of a file, on a mesh, under the rules of another file."""

import json

import pytest

from shardwright.cli import main

BUILD = """
import numpy as np
import torch

import shardwright.numpy as xp


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(6, 8, bias=False)
        self.down = torch.nn.Linear(8, 6, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def module():
    with torch.device("meta"):
        return Net(), (torch.empty(4, 6),)


def exported():
    return torch.export.export(Net(), (torch.ones(4, 6),)), torch.ones(4, 6)


def function():
    return (lambda params, x: xp.sum(x @ params["w"])), ({"w": np.ones((6, 8))}, np.ones((4, 6)))


def number():
    return 3
"""
RULES = """
from shardwright import P
from shardwright.rules import TreePathShardingRule

rules = TreePathShardingRule(("up", P("tp")), ("down", P(None, "tp")))
inputs = P("dp")
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "build.py").write_text(BUILD)
    (tmp_path / "rules.py").write_text(RULES)
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "weights.py").write_text("from shardwright import P\nrules = {'w': P('tp')}\ninputs = P('dp', 'tp')\n")
    return tmp_path


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch.export itself
@pytest.mark.parametrize("name", ["module", "exported"])
def test_a_module_is_explained(files, capsys, name):
    command = ["explain", f"{files}/build.py:{name}", "--mesh", "dp=2,tp=2", "--hardware", "h100", "--rules"]
    assert main([*command, f"{files}/rules.py"]) == 0
    text = capsys.readouterr().out
    assert "h100: bfloat16 989" in text
    assert "build.py:1" in text
    assert "fits the chip's 80 GB" in text
    assert main([*command, f"{files}/rules.py", "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [step["collective"] for step in steps if step["bytes"]] in (["all_reduce tp"], ["reduce_scatter tp"])
    assert {step["stack"] for step in steps} == {"up", "down", ""}


def test_a_function_is_explained(files, capsys):
    command = [
        "explain",
        f"{files}/build.py:function",
        "--mesh",
        "dp=2,tp=2",
        "--rules",
        f"{files}/weights.py",
        "--full",
    ]
    assert main(command) == 0
    assert "all_reduce" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("build", "mesh", "rules", "text"),
    [
        ("build.py:module", "dp=2,tp", "rules.py", "'tp' is not an axis with a size. Write --mesh dp=8,tp=8"),
        ("build.py:other", "dp=2", "rules.py", "has no function 'other'; it has "),
        ("absent.py:module", "dp=2", "rules.py", "There is no file"),
        ("build.py:number", "dp=2", "rules.py", "returned int. Return (module, inputs)"),
        ("build.py:module", "dp=2,tp=2", "empty.py", "has no `rules`"),
    ],
)
def test_mistakes_are_told(files, capsys, build, mesh, rules, text):
    assert main(["explain", f"{files}/{build}", "--mesh", mesh, "--rules", f"{files}/{rules}"]) == 1
    assert text in capsys.readouterr().err
