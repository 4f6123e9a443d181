"""Commands about models: `shardwright explain module.py:build --mesh dp=8,tp=8 --hardware h100 --rules rules.py`."""

import argparse
import inspect
import runpy
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import shardwright as sw
from shardwright.errors import MeshError, ModelError, ShardingError, ShardwrightError
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
    axes: dict[str, Any] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if not name.strip().isidentifier() or not size.strip().isdigit():
            raise MeshError(f"--mesh {text}: {part!r} is not an axis with a size. Write --mesh dp=8,tp=8.")
        if name.strip() in axes:
            raise MeshError(
                f"--mesh {text}: the axis {name.strip()!r} is there twice. Give each axis a name of its own."
            )
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
    return _as_user(path, lambda: runpy.run_path(path))


def _as_user(what: str, call: Callable[[], Any]) -> Any:
    """What a call of the user's code gives; its errors with the place where they were raised, ours as they are."""
    try:
        return call()
    except (ShardwrightError, OSError):
        raise
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
        place = (
            (error.filename, error.lineno)
            if isinstance(error, SyntaxError)
            else (frames[-1].filename, frames[-1].lineno)
        )
        raise ModelError(
            f"{what} failed with {type(error).__name__}: {error} ({Path(str(place[0])).name}:{place[1]})"
        ) from error


def built(text: str) -> "Built":
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
    made = _as_user(text, found[name])
    if not isinstance(made, tuple) or not callable(made[0] if made else None) or len(made) < 2:
        shown = type(made).__name__ if not isinstance(made, tuple) else f"a tuple of {len(made)}"
        if not hasattr(made[0] if isinstance(made, tuple) and made else made, "graph_signature"):  # has its inputs
            raise ModelError(
                f"{text} returned {shown}. Return (module, inputs), inputs as a tuple, a dict of inputs by name, or both."
            )
    model, *inputs = made if isinstance(made, tuple) else (made,)
    named = inputs.pop() if hasattr(model, "state_dict") and inputs and isinstance(inputs[-1], dict) else {}
    given = tuple(inputs[0]) if len(inputs) == 1 and isinstance(inputs[0], tuple | list) else tuple(inputs)
    result = Built(text, model, given, named)
    if not result.is_module:
        _check_arguments(result)
    return result


def _check_arguments(made: "Built") -> None:
    """Raises where a function does not take the arguments that come with it."""
    try:
        signature = inspect.signature(made.model)
    except (TypeError, ValueError):  # it does not say what it takes
        return
    try:
        signature.bind(*made.arguments)
    except TypeError as error:
        name = getattr(made.model, "__name__", "function")
        raise ModelError(
            f"{made.text} returned {name}{signature} and {len(made.arguments)} arguments: {error}. Return the function and all "
            f"of its arguments in order: {name}, {', '.join(signature.parameters) or '()'}."
        ) from error


class Built(NamedTuple):
    """A module or function of a file, and its arguments."""

    text: str
    model: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]

    @property
    def is_module(self) -> bool:
        """Whether it is a module of torch, or an ExportedProgram, of which the arguments are part."""
        return hasattr(self.model, "state_dict")


def imported(made: Built) -> tuple[Any, tuple[Any, ...]]:
    """A module of torch or a function of JAX as a model here, other functions as they are; with all arguments in order."""
    model, arguments = made.model, made.arguments
    if type(model).__module__.startswith("jax") or any(
        type(leaf).__module__.startswith("jax") for leaf in flatten(arguments)[0]
    ):
        return _as_user(made.text, lambda: sw.jax.load(model, *arguments)), arguments
    if not made.is_module:
        return model, arguments
    if hasattr(model, "graph_signature"):
        loaded = sw.torch.load(model)
        arguments = arguments or tuple(model.example_inputs[0])
        named = made.named or dict(model.example_inputs[1])
    else:
        loaded, named = _as_user(made.text, lambda: sw.torch.load(model, *arguments, **made.named)), made.named
    return loaded, (*arguments, *(named[name] for name in loaded.inputs[len(arguments) :]))


def _explained(made: Built, mesh: Mesh, rules: Any, inputs: Any) -> Explanation:
    model, arguments = imported(made)
    if model is made.model:
        entries = rules if inputs is None or isinstance(rules, ShardingRule | P) else (rules, inputs)
        return explain_function(sjit(model, mesh=mesh, in_shardings=entries), *arguments)
    if not made.is_module:
        check_no_inputs(inputs)
    where = {"inputs": inputs} if made.is_module else {}
    explanation: Explanation = model.explain(mesh, rules, *arguments, **where)
    return explanation


def check_no_inputs(inputs: Any) -> None:
    """Refuse `inputs` beside rules that have all arguments of a function."""
    if inputs is not None:
        raise ShardingError(
            "`inputs` is for modules, whose rules are for parameters alone. The rules of a function have the names of all "
            "its arguments: put them there."
        )
