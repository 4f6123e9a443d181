"""`sw.torch.load_step`: a training step, written with torch.func, as a function on arrays."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx.traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from shardwright.errors import ModelError
from shardwright.imported import Imported
from shardwright.lines import Line
from shardwright.torch.graphs import Frame, Graph, decompositions, is_host, unknown_error
from shardwright.torch.importing import (
    exported_of,
    fitted,
    host_or_abstract,
    input_value,
    mesh_of,
    other_tree,
    tree_from,
    wanted_of,
)

Step = Callable[..., Any]


def load_step(step: Step, module: torch.nn.Module, *inputs: Any, **named: Any) -> Imported:
    """A training step as a function on arrays: `step(model, parameters, *inputs)`, traced with its derivatives.

    >>> def step(model, parameters, x):
    ...     grads, loss = torch.func.grad_and_value(lambda p: model(p, x).square().mean())(parameters)
    ...     return {name: p - 0.1 * grads[name] for name, p in parameters.items()}, loss
    >>> trained = load_step(step, torch.nn.Linear(4, 6), torch.ones(2, 4))
    >>> trained
    step(parameters, x): 2 parameters

    `model(parameters, *inputs)` runs the module, which is exported first, on parameters by name. What the step returns is
    what the loaded function returns. Inputs are those of the module; others, such as labels, are passed by name and
    reach the step by name. Steps of the model have its own lines; derivatives have that of the step function.
    """
    exported = exported_of(module, inputs, {})
    signature = exported.graph_signature
    if signature.buffers_to_mutate:
        raise ModelError(
            f"{type(module).__name__} changes {', '.join(list(signature.buffers_to_mutate.values())[:5])} in place while "
            f"it runs. Put such modules into inference mode: for BatchNorm module.eval()."
        )
    state: dict[str, Any] = {**exported.constants, **exported.state_dict}
    first: dict[int, str] = {}
    owners = {place: first.setdefault(id(state[name]), name) for place, name in signature.inputs_to_parameters.items()}
    parameters = {name: state[name].detach() for name in dict.fromkeys(owners.values())}
    fixed = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    graph = exported.graph_module
    places = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    interpreter = torch.fx.Interpreter(graph)  # carries source lines over, as calling the graph does not

    def model(values: Mapping[str, Any], *args: Any) -> Any:
        leaves = iter(pytree.tree_leaves((args, {})))
        given = [
            values[owners[place]] if place in owners else state[fixed[place]] if place in fixed else next(leaves)
            for place in places
        ]
        made = interpreter.run(*given)
        return pytree.tree_unflatten(list(made), exported.call_spec.out_spec)

    names = (*_names(step, len(inputs)), *named)
    return _traced(step, model, parameters, (*inputs, *named.values()), names, len(inputs))


def _names(step: Step, count: int) -> tuple[str, ...]:
    return tuple(inspect.signature(step).parameters)[2 : 2 + count]


def _leaf_names(names: Sequence[str], spec: Any) -> list[str]:
    """A name for each leaf of the inputs: that of its input."""
    return [name for name, child in zip(names, spec.children(), strict=True) for _ in range(child.num_leaves)]


def _traced(
    step: Step, model: Any, parameters: dict[str, torch.Tensor], inputs: Any, names: tuple[str, ...], positional: int
) -> Imported:
    """The step as one graph, with derivatives and updates, by torch's tracer."""
    shape: dict[str, Any] = {}
    given, in_spec = pytree.tree_flatten(tuple(inputs))

    def flat(values: list[Any], leaves: list[Any]) -> list[Any]:
        args = pytree.tree_unflatten(leaves, in_spec)
        result = step(
            model,
            dict(zip(parameters, values, strict=True)),
            *args[:positional],
            **dict(zip(names[positional:], args[positional:], strict=True)),
        )
        made, shape["out"] = pytree.tree_flatten(result)
        return made

    real = all(is_host(x) for x in (*parameters.values(), *given) if isinstance(x, torch.Tensor))
    code = getattr(step, "__code__", None)
    parts: dict[Any, Callable[..., Any]] = {}
    while True:
        with warnings.catch_warnings(), torch.fx.traceback.preserve_node_meta():
            warnings.simplefilter("ignore")
            trace = make_fx(torch.func.functionalize(flat), parts, "real" if real else "fake")
            module = trace(list(parameters.values()), given)
        graph = Graph(module.graph, module, line=code and Line(f"{code.co_filename}:{code.co_firstlineno}"))
        more = decompositions(graph.missing - set(parts))
        if not more:
            break
        parts |= more
    name = getattr(step, "__name__", "step")
    if graph.unknown:
        raise unknown_error(name, graph.unknown)

    labels = [*parameters, *_leaf_names(names, in_spec)]
    wanted = [(label, wanted_of(x)) for label, x in zip(labels, (*parameters.values(), *given), strict=True)]
    unread = [name for place, name in zip(graph.inputs, parameters, strict=False) if place in graph.unread]

    def call(values: Mapping[str, Any], *args: Any) -> Any:
        leaves, spec = pytree.tree_flatten(tuple(args))
        if spec != in_spec:
            raise other_tree(in_spec, spec)
        frame = Frame(mesh_of((*values.values(), *leaves)))
        read = [None if name in unread else values[name] for name in parameters]
        flat_values = [
            fitted(input_value(x, frame), name, kind) for x, (name, kind) in zip((*read, *leaves), wanted, strict=True)
        ]
        with frame.mesh:
            return tree_from(shape["out"], list(graph.run(flat_values, frame)), frame)

    held = {key: host_or_abstract(x) for key, x in parameters.items()}
    return Imported(name, call, held, names, unread=unread)
