"""The command `shardwright plan`: the best placement of a function, what placements written by hand cost, rules to paste."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.cli_models import axes_of, built, check_no_inputs, imported, rules_in
from shardwright.errors import PlanError
from shardwright.imported import PARAMETERS
from shardwright.mesh import Mesh
from shardwright.planner import Plan, auto
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
    plan.add_argument("--rules", help="file.py with `rules` for parameters, and `inputs` for inputs, that bind")
    plan.set_defaults(call=_plan)


def _plan(given: argparse.Namespace) -> int:
    mesh = Mesh(axes_of(given.mesh), **({"hardware": given.hardware} if given.hardware else {}))
    made = built(given.function)
    model, args = imported(made)
    rules, inputs = rules_in(given.rules)
    if made.is_module:
        rules, inputs = _of_module(model, args, rules, inputs)
    elif inputs is not None and not isinstance(inputs, Mapping):
        check_no_inputs(inputs)
    fixed = {**(inputs or {}), **_fixed_by(given.fixed)}
    plan = auto(model, mesh, *args, memory=given.memory, fixed=fixed, rules=rules)
    print(plan)
    print()
    print(plan.compare(usual(plan, {name for name in plan.names if plan.is_fixed(name)})))
    print()
    print("rules to paste:")
    print("shardwright.rules.TreePathShardingRule(")
    for pattern, spec in plan.rules().rules:
        print(f"    (r{pattern!r}, {spec}),".replace("\\\\", "\\"))
    print(")")
    return 0


def _of_module(model: Any, args: tuple[Any, ...], rules: Any, inputs: Any) -> tuple[Any, Any]:
    """Rules and places of inputs as the planner takes them, where one `P` stands for all parameters or all inputs."""
    names = model.planned(*args).names
    weights = [name for name in names if name.startswith(f"{PARAMETERS}/")]
    if isinstance(rules, P):
        rules = dict.fromkeys(weights, rules)
    elif isinstance(rules, Mapping):  # by the names of parameters, as for `explain`
        rules = {f"{PARAMETERS}/{name}" if name in model.parameters else name: spec for name, spec in rules.items()}
    if isinstance(inputs, P):
        inputs = dict.fromkeys((name for name in names if name not in weights), inputs)
    return rules, inputs


def _fixed_by(texts: Sequence[str]) -> dict[str, P]:
    """The places of inputs that options give, each at most one."""
    found: dict[str, P] = {}
    for name, spec in map(_fixed, texts):
        if found.setdefault(name, spec) != spec:
            raise PlanError(f"--fixed has {name!r} at {found[name]} and at {spec}: say one of them.")
    return found


def _fixed(text: str) -> tuple[str, P]:
    """The place of an input: a list of dims, each with its axes joined by +, - for none."""
    name, equals, dims = text.partition("=")
    if not equals:
        raise PlanError(f"--fixed {text!r}: write the input's name and, dim by dim, its axes: w=-,tp.")
    parts = [tuple(axis for axis in dim.split("+") if axis and axis != "-") for dim in dims.split(",")]
    return name, P(*(part if len(part) > 1 else part[0] if part else None for part in parts))


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
