"""The command `shardwright plan`: the best placement of a function, what placements written by hand cost, rules to paste."""

import argparse
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shardwright.errors import PlanError
from shardwright.mesh import Mesh
from shardwright.planner import Plan, auto
from shardwright.rules import ShardingRule
from shardwright.sharding import P


def add_commands(commands: Any) -> None:
    """Add the command to a parser's."""
    plan = commands.add_parser("plan", help="find the best placement of a function's arguments on a mesh")
    plan.add_argument("function", help="file.py:name; called without arguments it gives a function and its arguments")
    plan.add_argument("--mesh", required=True, help="axes and their sizes, such as dp=8,tp=8")
    plan.add_argument("--hardware", help="the machine, such as h100; `shardwright hardware` lists them")
    plan.add_argument("--memory", type=float, help="bytes that a device may hold; the chip's memory by default")
    plan.add_argument(
        "--fixed", action="append", default=[], metavar="NAME=AXES", help="where an input lies: ids=dp, w=-,tp, b=dp+tp"
    )
    plan.add_argument("--rules", help="file.py, whose RULES is a sharding rule that binds")
    plan.set_defaults(call=_plan)


def _plan(given: argparse.Namespace) -> int:
    mesh = Mesh(axes_of(given.mesh), **({"hardware": given.hardware} if given.hardware else {}))
    function, args = called(given.function)
    rules = rules_in(given.rules) if given.rules else None
    fixed = dict(_fixed(text) for text in given.fixed)
    plan = auto(function, mesh, *args, memory=given.memory, fixed=fixed, rules=rules)
    print(plan)
    print()
    print(
        plan.compare(usual(plan, {*fixed, *(name for name in plan.names if rules is not None and rules.matches(name))}))
    )
    print()
    print("rules to paste:")
    print("shardwright.rules.TreePathShardingRule(")
    for pattern, spec in plan.rules().rules:
        print(f"    (r{pattern!r}, {spec}),".replace("\\\\", "\\"))
    print(")")
    return 0


def axes_of(text: str) -> dict[str, int]:
    """Axes and their sizes.

    >>> axes_of("dp=8,tp=4")
    {'dp': 8, 'tp': 4}
    """
    found = {}
    for part in text.split(","):
        name, _, size = part.strip().partition("=")
        if not name or not size.isdigit():
            raise PlanError(f"The mesh {text!r} has the part {part!r}. Write axes and sizes: dp=8,tp=8.")
        found[name] = int(size)
    return found


def _fixed(text: str) -> tuple[str, P]:
    """The place of an input: a list of dims, each with its axes joined by +, - for none."""
    name, equals, dims = text.partition("=")
    if not equals:
        raise PlanError(f"--fixed {text!r}: write the input's name and, dim by dim, its axes: w=-,tp.")
    parts = [tuple(axis for axis in dim.split("+") if axis and axis != "-") for dim in dims.split(",")]
    return name, P(*(part if len(part) > 1 else part[0] if part else None for part in parts))


def module_from(path: str) -> Any:
    """A Python file as a module; its folder is importable while it runs."""
    file = Path(path)
    if not file.is_file():
        raise PlanError(f"There is no file {path!r}.")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    try:
        sys.modules[file.stem] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def called(target: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What `file.py:name` gives: a function or a model, and the arguments that it is to be planned for."""
    path, colon, name = target.rpartition(":")
    if not colon:
        raise PlanError(f"{target!r} names no function. Write file.py:name.")
    module = module_from(path)
    build = getattr(module, name, None)
    if not callable(build):
        known = [
            n
            for n, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        raise PlanError(f"{path} has no function {name!r}; it has {', '.join(known) or 'none'}.")
    needed = [p.name for p in inspect.signature(build).parameters.values() if p.default is p.empty and p.kind < 2]
    if needed:
        raise PlanError(
            f"{name} takes {', '.join(needed)}. Write a function without arguments that gives the function to plan and its "
            f"arguments, which may be abstract: def build(): return {name}, {', '.join('…' for _ in needed)}."
        )
    made = build()
    if not isinstance(made, tuple) or not made or not callable(made[0]):
        raise PlanError(f"{name}() gave {type(made).__name__}; it should give a function, then its arguments.")
    return made[0], made[1:]


def rules_in(path: str) -> ShardingRule:
    """The rule that a file has under the name RULES."""
    found = getattr(module_from(path), "RULES", None)
    if not isinstance(found, ShardingRule):
        raise PlanError(f"{path} has no sharding rule under the name RULES; it has {found!r}.")
    return found


def usual(plan: Plan, bound: set[str]) -> dict[str, Mapping[str, P]]:
    """Placements that people write without looking at names, of what is not bound.

    Inputs that are arguments themselves are taken for data, the leaves of trees for weights.
    """
    first, last = (axes := list(plan.mesh.sizes))[0], axes[-1]
    sizes = plan.mesh.sizes
    open_names = {name: shape for name, shape in plan.shapes.items() if name not in bound}
    data = {
        n: P(first) if shape and shape[0] >= sizes[first] else P() for n, shape in open_names.items() if "/" not in n
    }
    weights = {n: shape for n, shape in open_names.items() if "/" in n}
    found: dict[str, Mapping[str, P]] = {
        "replicated": dict.fromkeys(open_names, P()),
        f"data parallel ({first})": {**data, **dict.fromkeys(weights, P())},
        f"fully sharded ({first})": {**data, **{n: _along(shape, first, sizes[first]) for n, shape in weights.items()}},
    }
    if first != last:
        columns = {
            n: P(*[None] * (len(s) - 1), last) if len(s) > 1 and s[-1] >= sizes[last] else P()
            for n, s in weights.items()
        }
        found[f"columns ({last}), data ({first})"] = {**data, **columns}
    return found


def _along(shape: tuple[int, ...], axis: str, size: int) -> P:
    """Along the largest dim, if it is long enough."""
    dim = max(range(len(shape)), key=lambda d: shape[d], default=None)
    if dim is None or shape[dim] < size:
        return P()
    return P(*(axis if d == dim else None for d in range(len(shape))))
