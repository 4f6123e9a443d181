"""Commands about models: `shardwright explain module.py:build --mesh dp=8,tp=8 --hardware h100 --rules rules.py`."""

import argparse
import inspect
import runpy
from pathlib import Path
from typing import Any

import shardwright as sw
from shardwright.errors import MeshError, ModelError, ShardingError
from shardwright.mesh import Mesh
from shardwright.program import Explanation, sjit
from shardwright.program import explain as explain_function
from shardwright.rules import ShardingRule
from shardwright.sharding import P
from shardwright.trees import flatten


def add_commands(commands: Any) -> None:
    """Add the commands to a parser's."""
    explained = commands.add_parser(
        "explain", help="what a model does on a mesh: its steps, their cost, what a device holds"
    )
    explained.add_argument(
        "build", help="file.py:function that returns (module, example inputs), or (function, its arguments)"
    )
    explained.add_argument("--mesh", required=True, help="axes and sizes, such as dp=8,tp=8")
    explained.add_argument("--hardware", help="the machine that times are for, such as h100")
    explained.add_argument(
        "--rules", help="file.py with `rules` for parameters, and `inputs` for inputs if they are split"
    )
    explained.add_argument("--full", action="store_true", help="print every step")
    explained.add_argument("--json", action="store_true", help="print it as JSON")
    explained.set_defaults(call=_explain)


def _explain(given: argparse.Namespace) -> int:
    mesh = Mesh(**axes_of(given.mesh), hardware=given.hardware)
    rules, inputs = rules_in(given.rules)
    explanation = _explained(built(given.build), mesh, rules, inputs)
    print(explanation.json() if given.json else explanation.full() if given.full else explanation)
    return 0


def axes_of(text: str) -> dict[str, Any]:
    """Axes and sizes from dp=8,tp=8."""
    axes = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if not name.strip().isidentifier() or not size.strip().isdigit():
            raise MeshError(f"--mesh {text}: {part!r} is not an axis with a size. Write --mesh dp=8,tp=8.")
        axes[name.strip()] = int(size)
    return axes


def rules_in(path: str | None) -> tuple[Any, Any]:
    """The rules of a file, and where it says that inputs come in."""
    if path is None:
        return None, None
    found = _file(path)
    if "rules" not in found:
        raise ShardingError(f"{path} has no `rules`. Write rules = TreePathShardingRule(…), or a dict of P by name.")
    return found["rules"], found.get("inputs")


def _file(path: str) -> dict[str, Any]:
    if not Path(path).is_file():
        raise ModelError(f"There is no file {path}.")
    return runpy.run_path(path)


def built(text: str) -> tuple[Any, tuple[Any, ...]]:
    """What the function of a file returns: a module or function, and its arguments."""
    path, _, name = text.rpartition(":")
    if not path:
        raise ModelError(f"{text!r} names no function. Write file.py:build.")
    found = _file(path)
    if not callable(found.get(name)):
        functions = sorted(key for key, value in found.items() if callable(value) and not key.startswith("_"))
        raise ModelError(f"{path} has no function {name!r}; it has {', '.join(functions) or 'none'}.")
    needed = [p.name for p in inspect.signature(found[name]).parameters.values() if p.default is p.empty and p.kind < 2]
    if needed:
        raise ModelError(
            f"{name} takes {', '.join(needed)}. Write a function without arguments that returns what to look at and its "
            f"arguments, which may be abstract: def build(): return {name}, ({', '.join('…' for _ in needed)},)."
        )
    made = found[name]()
    if not isinstance(made, tuple) or not callable(made[0] if made else None):
        raise ModelError(f"{text} returned {type(made).__name__}. Return (module, inputs), inputs as a tuple.")
    model, *inputs = made
    return model, tuple(inputs[0]) if len(inputs) == 1 and isinstance(inputs[0], tuple | list) else tuple(inputs)


def imported(model: Any, arguments: tuple[Any, ...]) -> Any:
    """A module of torch or a function of JAX as a model here; other functions as they are."""
    if type(model).__module__.startswith("jax") or any(
        type(leaf).__module__.startswith("jax") for leaf in flatten(arguments)[0]
    ):
        return sw.jax.load(model, *arguments)
    if hasattr(model, "state_dict"):  # torch's module or an ExportedProgram, of which the arguments are part
        return sw.torch.load(model) if hasattr(model, "graph_signature") else sw.torch.load(model, *arguments)
    return model


def _explained(made: tuple[Any, tuple[Any, ...]], mesh: Mesh, rules: Any, inputs: Any) -> Explanation:
    model, arguments = imported(*made), made[1]
    if model is made[0]:
        entries = rules if inputs is None or isinstance(rules, ShardingRule | P) else (rules, inputs)
        return explain_function(sjit(model, mesh=mesh, in_shardings=entries), *arguments)
    where = {"inputs": inputs} if hasattr(made[0], "state_dict") else {}
    explanation: Explanation = model.explain(mesh, rules, *arguments, **where)
    return explanation
