"""`sw.torch.load`: a module, or what torch.export made of one, as a function on arrays."""

import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from shardwright.arrays import Array, PerDevice, ShapeDtype, host_array
from shardwright.errors import ModelError
from shardwright.imported import Imported
from shardwright.mesh import Mesh, current_mesh
from shardwright.torch.aten import cast, numpy_dtype
from shardwright.torch.graphs import Frame, Graph, Unknown, decompositions, is_host, unknown_error
from shardwright.trees import flatten

_TORCH = f"{Path(torch.__file__).parent}/"
_MODULES = f"{_TORCH}nn/modules/"
MOST_TREE = 200  # letters of a tree that an error shows


def load(model: Any, *inputs: Any, **named: Any) -> Imported:
    """A module as a function on arrays: `model(parameters, *inputs)`, with `bind`, `sjit` and `explain` for rules on its names.

    >>> from shardwright.sharding import P
    >>> model = load(torch.nn.Linear(4, 6), torch.ones(2, 4))
    >>> model
    Linear(parameters, input): 2 parameters
    >>> step = model.sjit(Mesh(tp=2), {"weight": P("tp"), "bias": P("tp")})
    >>> step(torch.ones(2, 4)).shape
    (2, 6)

    `model` is a module with example inputs, which is exported, or an ExportedProgram. Parameters and inputs may be on the meta
    device: then the model can be explained and planned, not run. Tied parameters have the name of the first. Buffers and
    constants are part of the function, and every device holds them. `load_step` is for training steps.
    """
    if isinstance(model, torch.export.ExportedProgram):
        if inputs or named:
            raise ModelError("An ExportedProgram has its example inputs already: write sw.torch.load(exported).")
        return _exported(model, _class_of(model))
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"sw.torch.load takes a module or an ExportedProgram; got {type(model).__name__}.")
    return _exported(exported_of(model, inputs, named), type(model).__name__)


def exported_of(module: torch.nn.Module, inputs: Any, named: dict[str, Any]) -> torch.export.ExportedProgram:
    """A module exported for these inputs."""
    for leaf in pytree.tree_leaves((inputs, named)):
        if isinstance(leaf, np.ndarray | np.generic | Array | ShapeDtype):
            raise ModelError(
                f"{type(module).__name__} is exported for torch tensors; got {type(leaf).__name__}. Pass torch.as_tensor(x), "
                f"or torch.empty(shape, device='meta') for a shape alone."
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tracing, by torch and by the model
        try:
            return torch.export.export(module, inputs, kwargs=named or None, strict=False)
        except GuardOnDataDependentSymNode as error:
            raise ModelError(
                f"{type(module).__name__} can't be exported: it decides by elements of a tensor ({_line_of(error)}), which are "
                f"unknown then. Decide by sizes or options instead, or compute both sides and use torch.where."
            ) from error


def _line_of(error: Exception) -> str:
    """The innermost line of a module in an error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_TORCH) or frame.filename.startswith(_MODULES)]
    return f"{own[-1].filename}:{own[-1].lineno}"


def _class_of(exported: torch.export.ExportedProgram) -> str:
    """The name of the class of the module that was exported, as its nodes know it."""
    for node in exported.graph.nodes:
        for _, kind in (node.meta.get("nn_module_stack") or {}).values():
            return str(kind).rpartition(".")[2] if isinstance(kind, str) else str(kind.__name__)
    return "model"


def _exported(
    exported: torch.export.ExportedProgram, name: str, apart: frozenset[Any] = frozenset(), asked: Unknown | None = None
) -> Imported:
    """A program loaded; what the table does not have is taken apart by torch. `apart` has the operations that were, `asked`
    those that the model itself uses."""
    program = _decomposed(exported, {}) if exported.dialect == "TRAINING" else exported
    signature = program.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        changed = ", ".join([*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()][:5])
        raise ModelError(
            f"{name} changes {changed} in place while it runs; imported functions are pure. Call model.eval() before it is "
            f"exported, or return the new values."
        )
    state: dict[str, Any] = {**program.constants, **program.state_dict}
    parameters: dict[str, Any] = {}
    owners: dict[str, str] = {}
    known: dict[str, Any] = {}
    unplaced = []
    first: dict[int, str] = {}
    for place, target in signature.inputs_to_parameters.items():
        tensor = state[target]
        owners[place] = first.setdefault(id(tensor), target)
        parameters.setdefault(owners[place], host_or_abstract(tensor))
    for place, target in {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}.items():
        tensor = state[target]
        if is_host(tensor):
            known[place] = tensor.detach()
        else:  # without elements: an input like a parameter, on every device
            owners[place], parameters[target] = target, host_or_abstract(tensor)
            unplaced.append(target)
    for place in signature.inputs_to_lifted_custom_objs:
        known[place] = None
    plain = {spec.arg.name: spec.arg.value for spec in signature.input_specs if hasattr(spec.arg, "value")}
    graph = Graph(program.graph, program.graph_module, {**known, **plain})
    if graph.unknown:
        parts = decompositions(graph.missing - apart)
        if not parts:
            raise unknown_error(name, _as_asked(graph.unknown, asked or {}))
        return _exported(_decomposed(program, parts), name, apart | set(parts), asked or graph.unknown)
    read = {owner for place, owner in owners.items() if place not in graph.unread}
    unread = [target for target in parameters if target not in read]
    caller = _Caller(program, graph, owners, set(plain))
    return Imported(name, caller, parameters, _input_names(program), unplaced, unread)


def _as_asked(unknown: Unknown, asked: Unknown) -> Unknown:
    """The operations that a model itself uses, of which unknown parts are left: those of the same lines."""
    lines = {line for some in unknown.values() for line in some}
    found = {key: [line for line in some if line in lines] for key, some in asked.items()}
    return {key: some for key, some in found.items() if some} or unknown


def _decomposed(program: torch.export.ExportedProgram, parts: dict[Any, Any]) -> torch.export.ExportedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return program.run_decompositions(parts)


def host_or_abstract(tensor: torch.Tensor) -> Any:
    """A parameter as a host array that shares its memory, or its shape and dtype."""
    return host_array(tensor) if is_host(tensor) else ShapeDtype(tuple(tensor.shape), tensor.dtype)


def _input_names(program: torch.export.ExportedProgram) -> tuple[str, ...]:
    """The names of the inputs as the forward function has them, positional ones first."""
    spec = program.call_spec.in_spec
    assert spec is not None
    positional, named = spec.children()
    given = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    call = program.module_call_graph[0].signature
    names = list(getattr(call, "forward_arg_names", None) or [])
    if len(names) < positional.num_children:
        names = _by_leaves(positional, given)
    return (
        (*names[: positional.num_children], *named.context)
        if named.num_children
        else tuple(names[: positional.num_children])
    )


def _by_leaves(spec: Any, leaves: Sequence[str]) -> list[str]:
    """A name for each argument, from that of its first leaf in the graph."""
    names, at = [], 0
    for number, child in enumerate(spec.children()):
        names.append(leaves[at] if child.num_leaves == 1 and at < len(leaves) else f"input_{number}")
        at += child.num_leaves
    return names


class _Caller:
    """Runs a loaded graph on trees of arrays."""

    def __init__(
        self, program: torch.export.ExportedProgram, graph: Graph, owners: Mapping[str, str], plain: set[str]
    ) -> None:
        self._graph, self._owners, self._plain = graph, dict(owners), plain
        self._in, self._out = program.call_spec.in_spec, program.call_spec.out_spec
        self._places = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
        self._kwargs = self._in.children()[1].context if self._in is not None else []
        examples = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
        self._wanted = {name: wanted_of(examples.get(name)) for name in graph.inputs}

    def __call__(self, parameters: Mapping[str, Any], *inputs: Any) -> Any:
        assert self._in is not None
        assert self._out is not None
        count = len(inputs) - len(self._kwargs)
        tree = (tuple(inputs[:count]), dict(zip(self._kwargs, inputs[count:], strict=True)))
        leaves, spec = pytree.tree_flatten(tree)
        if spec != self._in:
            raise other_tree(self._in, spec)
        frame = Frame(mesh_of((*flatten(dict(parameters))[0], *leaves)))
        given = dict(zip(self._places, leaves, strict=True))
        values = [
            None
            if name in self._graph.unread
            else fitted(
                input_value(self._given(name, parameters, given), frame),
                self._owners.get(name, name),
                self._wanted[name],
            )
            for name in self._graph.inputs
        ]
        with frame.mesh:
            return tree_from(self._out, list(self._graph.run(values, frame)), frame)

    def _given(self, name: str, parameters: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        return parameters[self._owners[name]] if name in self._owners else inputs[name]


def mesh_of(leaves: Sequence[Any]) -> Mesh:
    mesh = next((leaf.mesh for leaf in leaves if isinstance(leaf, Array | PerDevice)), None) or current_mesh()
    if mesh is None:
        raise ModelError(
            "An imported model runs on a mesh: pass arrays, use model.sjit(mesh, rules), or write `with mesh:`."
        )
    return mesh


def input_value(value: Any, frame: Frame) -> Any:
    """An input as the graph reads it: host tensors become arrays."""
    if isinstance(value, Array) or value is None or isinstance(value, bool | int | float | str):
        return value
    return frame.array(value if isinstance(value, torch.Tensor) else torch.as_tensor(value), False)


class Wanted(NamedTuple):
    """What a graph was made for: the shape of an input, None for sizes that are open, and its dtype."""

    shape: tuple[int | None, ...]
    dtype: "np.dtype[Any]"


def wanted_of(example: Any) -> Wanted | None:
    """What a graph was made for; None if the example is not a tensor."""
    if not isinstance(example, torch.Tensor):
        return None
    return Wanted(tuple(n if isinstance(n, int) else None for n in example.shape), numpy_dtype(example.dtype))


def fitted(value: Any, name: str, wanted: Wanted | None) -> Any:
    """An input of the shape that the graph was made for, since sizes are numbers in it; floats in the dtype it was made for."""
    if wanted is None or not isinstance(value, Array):
        return value
    shape, sizes = value.shape, wanted.shape
    if len(shape) != len(sizes) or any(need not in (None, n) for n, need in zip(shape, sizes, strict=True)):
        known = ", ".join("any size" if size is None else str(size) for size in sizes)
        raise ModelError(
            f"The input {name!r} has shape {shape}; the model was loaded for ({known}{',' * (len(sizes) == 1)}), and computes "
            f"with those sizes. Load it for this shape too."
        )
    given, kind = _kind(value.dtype), _kind(wanted.dtype)
    if given != kind and (given, kind) != ("i", "f"):
        raise ModelError(
            f"The input {name!r} has dtype {value.dtype}; the model was loaded for {wanted.dtype}. Convert it first."
        )
    return value if kind == "i" else cast(value, wanted.dtype)


def _kind(dtype: "np.dtype[Any]") -> str:
    """f for floats, of which NumPy does not know the small ones, i for integers, c, b."""
    return {"u": "i", "V": "f"}.get(dtype.kind, dtype.kind)


def other_tree(wanted: Any, given: Any) -> ModelError:
    """What to say where the inputs are another tree than those that a model was loaded for."""
    expected, found = (" ".join(str(tree).split()) for tree in (wanted, given))
    shown = found if len(found) <= MOST_TREE else f"{found[:MOST_TREE]}…"
    return ModelError(
        f"The model was exported for inputs {expected}; got {shown}. Pass the same tree of tensors; a list of numbers is a "
        f"tree, not a tensor."
    )


def tree_from(spec: Any, leaves: list[Any], frame: Frame) -> Any:
    """Outputs as the model gives them: tuples, lists and dicts; classes that hold named tensors become dicts."""
    if spec.is_leaf():
        leaf = leaves.pop(0)
        return frame.array(leaf, False) if isinstance(leaf, torch.Tensor) else leaf
    children = [tree_from(child, leaves, frame) for child in spec.children()]
    if spec.type is None or spec.type is type(None):
        return None
    if spec.type is list:
        return children
    if spec.type is tuple:
        return tuple(children)
    if (
        pytree.is_namedtuple_class(spec.type)
        if hasattr(pytree, "is_namedtuple_class")
        else hasattr(spec.type, "_fields")
    ):
        return spec.type(*children)
    keys = spec.context[1] if isinstance(spec.context, tuple) and len(spec.context) == 2 else spec.context
    if isinstance(keys, list | tuple) and len(keys) == len(children) and all(isinstance(key, str) for key in keys):
        return dict(zip(keys, children, strict=True))
    return tuple(children)
