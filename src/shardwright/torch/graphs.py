"""A graph of torch's as a function on arrays: node by node, by the rows of `aten`.

What a node needs decides who runs it, and that is known when the graph is loaded: nodes of host values alone (positions,
masks, rotary tables) are torch's own, once; nodes that look at sizes alone are computed when the sizes are; every
other node is a row of the table on arrays. torch never sees elements of an array.
"""

import functools
import operator
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from shardwright.arrays import Array, host_array, replicate
from shardwright.eager import lifted
from shardwright.errors import ModelError, ShardwrightError
from shardwright.lines import Line, located
from shardwright.mesh import Mesh
from shardwright.program import cond
from shardwright.torch.aten import ROWS, Row, cast, numpy_dtype
from shardwright.torch.hosting import run_on_host

Node = torch.fx.Node
_SKIPPED = {
    "_assert_tensor_metadata",
    "_assert_scalar",
    "_assert_async",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
}
_TORCH = os.path.dirname(torch.__file__) + os.sep
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
Unknown = dict[str, list[Line]]  # operations that the table does not have, and where they are

MOST_UNKNOWN = 40  # operations that an error lists


@dataclass(slots=True)
class Step:
    """A node as it runs: its function, its arguments with nodes by name, and what torch says of its result."""

    name: str
    call: Callable[..., Any]
    row: Row | None  # None: torch runs it, on host values
    args: Any
    named: dict[str, Any]
    line: Line
    dtypes: tuple[Any, ...] = ()
    shapes: tuple[Any, ...] = ()
    common: Any = None  # the dtype that torch computes in, for rows that promote
    last: tuple[str, ...] = ()  # values that nothing reads after it
    elementwise: bool = False


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of a node, in arguments."""

    name: str


class Frame:
    """One call of a graph: its mesh, and the arrays that host tensors became."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._arrays: dict[Any, tuple[torch.Tensor, Array]] = {}

    def array(self, tensor: torch.Tensor, small: bool) -> Array:
        """A host tensor as an array that every device holds, made once; `small` leaves dims that repeat at size 1."""
        once = tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in tensor.stride())]
        key = once.data_ptr(), once.shape, once.stride(), once.dtype  # layers slice one mask, each for itself
        known = self._arrays.get(key)
        if known is None:  # with the tensor, so that its memory stays its own
            known = self._arrays[key] = tensor, replicate(host_array(once), self.mesh, copy=False)
        made: Array = lifted(known[1])  # in a trace: what layers do with it is recorded, and shared
        return made if small or made.shape == tuple(tensor.shape) else made.namespace.broadcast_to(made, tensor.shape)


class Graph:
    """A torch.fx graph as a function of flat values, of which those in `arrays` are arrays and the rest host values."""

    def __init__(
        self,
        graph: torch.fx.Graph,
        owner: torch.nn.Module,
        known: dict[str, Any] | None = None,
        arrays: Sequence[bool] | None = None,
        line: Line | None = None,
    ) -> None:
        self._owner, self._line = owner, line or Line("")  # the line of nodes that have none
        nodes = list(graph.nodes)
        places = [node for node in nodes if node.op == "placeholder"]
        known = known or {}
        self.inputs = [node.name for node in places if node.name not in known]
        flags = dict(zip(self.inputs, arrays or [True] * len(self.inputs), strict=True))
        self._traced = {name for name in self.inputs if flags[name]}
        self._fixed: dict[str, Any] = dict(known)  # host values that every call shares
        self._parts: dict[tuple[int, tuple[bool, ...]], Graph] = {}
        self.unknown: Unknown = {}
        self.missing: set[Any] = set()  # the operations of these that torch may be able to take apart
        self.steps: list[Step] = []
        self.outputs: Any = None
        for node in nodes:
            self._add(node)
        self._mark_last()

    # -- loading ---------------------------------------------------------------------------------------------------------

    def _add(self, node: Node) -> None:
        if node.op == "placeholder":
            return
        if node.op == "output":
            self.outputs = _template(node.args[0])
            return
        if node.op == "get_attr":
            self._fixed[node.name] = _attribute(self._owner, str(node.target))
            return
        if node.op != "call_function":
            raise ModelError(
                f"A graph with {node.op} nodes can't be loaded. Export the model with torch.export.export."
            )
        key = operation_key(node.target)
        if key.split(".")[1] in _SKIPPED:
            self._fixed[node.name] = None
            return
        names = {argument.name for argument in node.all_input_nodes}
        row, line = ROWS.get(key), line_of(node) or self._line or line_of(node, of_torch=True)
        step = Step(node.name, node.target, row, _template(node.args), _template(dict(node.kwargs)), line)  # type: ignore[arg-type]
        step.elementwise = row is not None and row.elementwise
        if node.target in _CONTROL:
            step.call = functools.partial(_CONTROL[node.target], self)
            self._traced.add(node.name)
            self._note_unknown_inside(node)
        elif node.target is operator.getitem:
            if names & self._traced:
                self._traced.add(node.name)
        elif row is not None and row.sizes and names & self._traced:
            step.call = row.call
        elif names & self._traced:
            self._traced.add(node.name)
            if row is None:
                self.unknown.setdefault(key, []).append(line)
                self.missing.add(node.target)
                return
            step.call = row.call
            _expect(step, node)
        else:
            step.row = None
            if _is_random(node.target):
                self.unknown.setdefault(f"{key} (random numbers)", []).append(line)
                return
            if names <= set(self._fixed):
                self._fixed[node.name] = _on_host(step, self._filled(step, self._fixed, None))
                return
        self.steps.append(step)

    def _note_unknown_inside(self, node: Node) -> None:
        for argument in node.all_input_nodes:
            part = self._fixed.get(argument.name)
            if isinstance(part, torch.fx.GraphModule):
                inside = Graph(part.graph, part)
                self.missing |= inside.missing
                for key, lines in inside.unknown.items():
                    self.unknown.setdefault(key, []).extend(lines)

    def _mark_last(self) -> None:
        read = {*_names(self.outputs), *(name for step in self.steps for name in _names((step.args, step.named)))}
        self._fixed = {name: value for name, value in self._fixed.items() if name in read}  # the rest was on the way
        self.unread = {name for name in self.inputs if name not in read}  # inputs that may be None
        seen = set(_names(self.outputs)) | set(self._fixed)
        for step in reversed(self.steps):
            new = [name for name in _names((step.args, step.named)) if name not in seen]
            step.last = tuple(dict.fromkeys(new))
            seen.update(new)

    # -- running ---------------------------------------------------------------------------------------------------------

    def run(self, values: Sequence[Any], frame: Frame) -> Any:
        """The outputs, in the form that the graph has them, for values of the inputs."""
        env = {**self._fixed, **dict(zip(self.inputs, values, strict=True))}
        for step in self.steps:
            env[step.name] = self._result(step, env, frame)
            for name in step.last:
                del env[name]
        return _fill(self.outputs, env, None)

    def _result(self, step: Step, env: dict[str, Any], frame: Frame) -> Any:
        if step.call is operator.getitem:
            return env[step.args[0].name][_fill(step.args[1], env, None)]
        if step.row is None and not isinstance(step.call, functools.partial):
            return _on_host(step, self._filled(step, env, None))
        with located(step.line):
            try:
                if step.row is None:
                    args, _ = self._filled(step, env, None)
                    return step.call(frame, *args)
                if step.row.sizes:
                    args, named = self._filled(step, env, None)
                    return step.call(*args, **named)
                args, named = self._filled(step, env, None if step.row.raw else frame)
                return _as_torch(step, step.call(*args, **named), frame)
            except ShardwrightError as error:
                error.add_note(f"in {step.name}, {step.line.stack or 'the model'}, {step.line}")
                raise

    def _filled(self, step: Step, env: dict[str, Any], frame: Frame | None) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a step; with a frame host tensors become arrays, in the dtype that the row wants."""
        convert = None
        row = step.row
        if frame is not None and row is not None:
            convert = functools.partial(_converted, frame, row.elementwise)
        args, named = _fill(step.args, env, convert), _fill(step.named, env, convert)
        if row is not None and row.promotes is not None and frame is not None:
            first = row.promotes
            args = [*args[:first], *[cast(x, step.common) for x in args[first:]]]
            named = {name: cast(x, step.common) for name, x in named.items()}
        return list(args), named

    def part(self, module: torch.fx.GraphModule, arrays: tuple[bool, ...]) -> "Graph":
        """A graph inside this one, for operands of which some are arrays."""
        key = id(module), arrays
        if key not in self._parts:
            self._parts[key] = Graph(module.graph, module, arrays=arrays)
        return self._parts[key]


# -- nodes -------------------------------------------------------------------------------------------------------------


def operation_key(target: Any) -> str:
    """The name of an operation in the table, such as `aten.add.Tensor`."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    name = getattr(target, "__name__", str(target))
    return f"python.{name}.default"


def line_of(node: Node, of_torch: bool = False) -> Line:
    """The line of the model's own file that made a node, the innermost outside of torch, with the path of its module. Modules
    of torch's own have no such line, but one of torch."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [
        f"{file}:{line}" for file, line in frames if file.startswith(_TORCH) == of_torch and not file.startswith("<")
    ]
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(modules[-1][0]) if modules else ""
    return Line(own[-1] if own else "", path.removeprefix("L['self']").lstrip("."))


def _attribute(owner: Any, target: str) -> Any:
    for name in target.split("."):
        owner = getattr(owner, name)
    return owner.detach() if isinstance(owner, torch.Tensor) else owner


def _is_random(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def _expect(step: Step, node: Node) -> None:
    """What torch says of a result: dtypes and shapes, and the dtype of the computation."""
    value = node.meta.get("val")
    values = list(value) if isinstance(value, list | tuple) else [value]
    tensors = [x if isinstance(x, torch.Tensor) else None for x in values]
    step.dtypes = tuple(None if x is None else numpy_dtype(x.dtype) for x in tensors)
    step.shapes = tuple(
        None if x is None or not all(isinstance(n, int) for n in x.shape) else tuple(x.shape) for x in tensors
    )
    row = step.row
    if row is not None and row.promotes is not None and tensors[0] is not None:
        step.common = numpy_dtype(_common(node, tensors[0].dtype, row.promotes))


def _common(node: Node, result: torch.dtype, first: int) -> torch.dtype:
    """The dtype that torch computes elements in: the result's, or of comparisons the one that operands promote to. An operand
    that the result's dtype can't hold, such as complex numbers whose size is wanted, keeps its own."""
    operands: list[Any] = [x.meta.get("val") if isinstance(x, Node) else x for x in node.args[first:]]
    if result is not torch.bool:
        own = [x.dtype for x in operands if isinstance(x, torch.Tensor) and not torch.can_cast(x.dtype, result)]
        return functools.reduce(torch.promote_types, own) if own else result
    operands = [x for x in operands if isinstance(x, torch.Tensor | int | float | bool)]
    if len(operands) < 2 or not any(isinstance(x, torch.Tensor) for x in operands):
        return operands[0].dtype if operands and isinstance(operands[0], torch.Tensor) else result
    return torch.result_type(operands[0], operands[1])


# -- arguments ---------------------------------------------------------------------------------------------------------


def _template(tree: Any) -> Any:
    """Arguments with references in place of nodes."""
    if isinstance(tree, Node):
        return Ref(tree.name)
    if isinstance(tree, list | tuple):
        return tuple(map(_template, tree)) if isinstance(tree, tuple) else [*map(_template, tree)]
    if isinstance(tree, dict):
        return {key: _template(value) for key, value in tree.items()}
    if isinstance(tree, slice):
        return slice(*map(_template, (tree.start, tree.stop, tree.step)))
    return tree


def _fill(tree: Any, env: dict[str, Any], convert: Callable[[Any], Any] | None) -> Any:
    """Arguments with the values of nodes, each converted."""
    kind = type(tree)
    if kind is Ref:
        value = env[tree.name]
        return value if convert is None else convert(value)
    if kind is tuple or kind is list:
        return kind([_fill(x, env, convert) for x in tree])
    if kind is dict:
        return {key: _fill(x, env, convert) for key, x in tree.items()}
    return tree


def _names(tree: Any) -> Iterator[str]:
    if isinstance(tree, Ref):
        yield tree.name
    elif isinstance(tree, list | tuple):
        for x in tree:
            yield from _names(x)
    elif isinstance(tree, dict):
        yield from _names(list(tree.values()))


def _converted(frame: Frame, small: bool, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return frame.array(value, small)
    if isinstance(value, list | tuple):
        return type(value)(_converted(frame, small, x) for x in value)
    return value


def _on_host(step: Step, filled: tuple[list[Any], dict[str, Any]]) -> Any:
    """The value of a node of host values, by torch."""
    return run_on_host(step.call, *filled, step.elementwise)


def _as_torch(step: Step, result: Any, frame: Frame) -> Any:
    """A row's result in the dtype that torch gives it; another shape than torch's is an error, never a wrong number."""
    several = isinstance(result, list | tuple)
    results = list(result) if several else [result]
    for at, x in enumerate(results[: len(step.dtypes)]):
        if isinstance(x, np.ndarray | np.generic):
            x = results[at] = replicate(x, frame.mesh, copy=False)
        if not isinstance(x, Array) or step.dtypes[at] is None:
            continue
        shape = x.shape if step.shapes[at] is None else step.shapes[at]
        if x.shape != shape and step.row is not None and step.row.elementwise:  # dims that repeat were left out
            x = x.namespace.broadcast_to(x, shape)
        if x.shape != shape:
            raise ModelError(
                f"{step.name}: the row gives shape {x.shape}, torch {shape}. Correct the function that was "
                f"registered for it."
            )
        results[at] = cast(x, step.dtypes[at])
    return tuple(results) if several else results[0]


# -- control flow --------------------------------------------------------------------------------------------------------


def _is_array(x: Any) -> bool:
    return isinstance(x, Array)


def _called(graph: Graph, module: torch.fx.GraphModule, operands: Sequence[Any], frame: Frame) -> Any:
    return graph.part(module, tuple(map(_is_array, operands))).run(operands, frame)


def _choice(graph: Graph, frame: Frame, test: Any, true: Any, false: Any, operands: Sequence[Any] = ()) -> Any:
    """torch.cond: a step that runs one branch, or the branch itself where the condition is known."""
    if not isinstance(test, Array):
        return _called(graph, true if bool(test) else false, operands, frame)
    kinds = [_is_array(x) for x in operands]
    arrays = [x for x in operands if _is_array(x)]

    def branch(module: torch.fx.GraphModule) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            values = iter(given)
            filled = [next(values) if kind else x for x, kind in zip(operands, kinds, strict=True)]
            made = _called(graph, module, filled, frame)
            return tuple(_converted(frame, False, x) for x in made)

        return run

    return cond(
        made if (made := test).shape == () else made.namespace.reshape(made, ()), branch(true), branch(false), *arrays
    )


def _wrapped(count: int) -> Callable[..., Any]:
    """A graph that runs under a setting of autograd or autocast, which arrays don't have: the graph itself."""

    def run(graph: Graph, frame: Frame, *args: Any) -> Any:
        return _called(graph, args[count], args[count + 1 :], frame)

    return run


_CONTROL: dict[Any, Callable[..., Any]] = {
    torch.ops.higher_order.cond: _choice,
    torch.ops.higher_order.wrap_with_set_grad_enabled: _wrapped(1),
    torch.ops.higher_order.wrap_with_autocast: _wrapped(4),
}


def is_host(value: Any) -> bool:
    """Whether a tensor has elements in memory."""
    return not (isinstance(value, FakeTensor) or value.is_meta)


def decompositions(operations: set[Any]) -> dict[Any, Callable[..., Any]]:
    """How torch takes operations apart, of those that it can."""
    if not operations:
        return {}
    table = torch.export.default_decompositions()
    return {operation: table[operation] for operation in operations if operation in table}


def unknown_error(name: str, unknown: Unknown) -> ModelError:
    """One error for all operations of a model that the table does not have."""
    lines = []
    for key, where in list(unknown.items())[:MOST_UNKNOWN]:
        first = where[0]
        times = f", {len(where)} times" if len(where) > 1 else ""
        place = ", ".join(part for part in (first.stack, str(first)) if part)
        lines.append(f"  {key}{times}{f': first in {place}' if place else ''}")
    more = f"\n  and {len(unknown) - MOST_UNKNOWN} more" if len(unknown) > MOST_UNKNOWN else ""
    return ModelError(
        f"{name} uses {len(unknown)} operation{'s' * (len(unknown) > 1)} that can't be imported:\n"
        + "\n".join(lines)
        + more
        + "\nAdd each with @sw.torch.register(torch.ops.…) on a function of arrays, or write the model without it."
    )
