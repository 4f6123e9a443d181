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


class Scaled(Net):
    def forward(self, x, scale=None):
        return {"y": super().forward(x) * scale}


def named():
    return Scaled(), (torch.ones(4, 6),), {"scale": torch.ones(6)}


def all_named():
    return Scaled(), {"x": torch.ones(4, 6), "scale": torch.ones(6)}


def program():
    return (torch.export.export(Net(), (torch.ones(4, 6),)),)


def alone():
    return (Net(),)


def wrong():
    return Net(), (torch.ones(4, 5),)


def short():
    return (lambda x, w: x @ w), {"x": np.ones((4, 5)), "w": np.ones((5, 4))}


def fails():
    raise ValueError("the weights are missing")


def number():
    return 3
"""
JAXED = """
import jax
import jax.numpy as jnp


def build():
    kinds = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((6, 8), (4, 6))]
    return (lambda w, x: {"y": jnp.tanh(x @ w)}), kinds


def wrong():
    kinds = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((5, 8), (4, 6))]
    return (lambda w, x: x @ w), kinds
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
    (tmp_path / "syntax.py").write_text("x = 1\ndef build(:\n")
    (tmp_path / "absent.py").write_text("import a_module_that_is_absent\n")
    (tmp_path / "replicated.py").write_text("from shardwright import P\nrules = P()\ninputs = P('dp')\n")
    (tmp_path / "by_name.py").write_text(
        "from shardwright import P\nrules = {'up.weight': P('tp'), 'down.weight': P(None, 'tp')}\n"
    )
    (tmp_path / "jaxed.py").write_text(JAXED)
    (tmp_path / "weights.py").write_text("from shardwright import P\nrules = {'w': P('tp')}\ninputs = P('dp', 'tp')\n")
    return tmp_path


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch.export itself
@pytest.mark.parametrize("name", ["module", "exported", "program"])
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


@pytest.mark.parametrize("command", ["explain", "plan"])
@pytest.mark.parametrize("name", ["named", "all_named"])
def test_inputs_by_name_and_outputs_in_a_dict(files, capsys, command, name):
    assert main([command, f"{files}/build.py:{name}", "--mesh", "dp=2,tp=2"]) == 0
    assert ("build.py:" if command == "explain" else "scale: f32[6") in capsys.readouterr().out


def test_one_place_for_all_parameters_and_for_all_inputs(files, capsys):
    command = [f"{files}/build.py:module", "--mesh", "dp=2,tp=2", "--rules"]
    assert main(["plan", *command, f"{files}/replicated.py"]) == 0
    text = capsys.readouterr().out
    assert "x: f32[4@dp,6]" in text
    assert "parameters/up.weight: f32[8,6]" in text
    assert main(["explain", *command, f"{files}/replicated.py"]) == 0


def test_rules_by_the_names_of_parameters_are_those_of_explain(files, capsys):
    command = [f"{files}/build.py:module", "--mesh", "dp=2,tp=2", "--rules", f"{files}/by_name.py"]
    assert main(["plan", *command]) == 0
    assert "parameters/down.weight: f32[6,8@tp]" in capsys.readouterr().out
    assert main(["explain", *command]) == 0


def test_an_input_that_is_fixed_twice_is_refused(files, capsys):
    command = ["plan", f"{files}/build.py:function", "--mesh", "dp=2,tp=2", "--fixed", "x=dp", "--fixed"]
    assert main([*command, "x=dp"]) == 0
    assert main([*command, "x=tp"]) == 1
    assert "--fixed has 'x' at P('dp') and at P('tp'): say one of them." in capsys.readouterr().err


@pytest.mark.parametrize("command", ["explain", "plan"])
@pytest.mark.parametrize(
    ("build", "mesh", "text"),
    [
        ("build.py:alone", "dp=2", "returned a tuple of 1. Return (module, inputs)"),
        ("build.py:wrong", "dp=2", "wrong failed with RuntimeError: "),
        (
            "build.py:short",
            "dp=2",
            "returned <lambda>(x, w) and 1 arguments: missing a required argument: 'w'. Return the",
        ),
        ("build.py:fails", "dp=2", "fails failed with ValueError: the weights are missing (build.py:"),
        ("syntax.py:build", "dp=2", "failed with SyntaxError: invalid syntax (syntax.py, line 2) (syntax.py:2)"),
        ("absent.py:build", "dp=2", "failed with ModuleNotFoundError: No module named 'a_module_that_is_absent'"),
        ("build.py:module", "dp=2,dp=4", "the axis 'dp' is there twice"),
        ("jaxed.py:wrong", "dp=2", "wrong failed with TypeError: dot_general requires"),
    ],
)
def test_mistakes_in_files_are_told_by_both_commands(files, capsys, command, build, mesh, text):
    assert main([command, f"{files}/{build}", "--mesh", mesh]) == 1
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("command", ["explain", "plan"])
def test_inputs_beside_the_rules_of_a_function_are_refused(files, capsys, command):
    given = [command, f"{files}/jaxed.py:build", "--mesh", "dp=2,tp=2"]
    assert main(given) == 0
    assert main([*given, "--rules", f"{files}/replicated.py"]) == 1
    assert "`inputs` is for modules" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("build", "mesh", "rules", "text"),
    [
        ("build.py:module", "dp=2,tp", "rules.py", "'tp' is not an axis with a size. Write --mesh dp=8,tp=8"),
        ("build.py:other", "dp=2", "rules.py", "has no function 'other'; it has "),
        ("none.py:module", "dp=2", "rules.py", "There is no file"),
        ("build.py:number", "dp=2", "rules.py", "returned int. Return (module, inputs)"),
        ("build.py:module", "dp=2,tp=2", "empty.py", "has no `rules`"),
    ],
)
def test_mistakes_are_told(files, capsys, build, mesh, rules, text):
    assert main(["explain", f"{files}/{build}", "--mesh", mesh, "--rules", f"{files}/{rules}"]) == 1
    assert text in capsys.readouterr().err
