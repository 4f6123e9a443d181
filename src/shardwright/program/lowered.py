"""`Lowered`: a function lowered for one kind of arguments, and what running it takes."""

from collections.abc import Callable, ItemsView, Iterator, Sequence, Set, ValuesView
from types import CellType
from typing import Any, Protocol

import numpy as np

from shardwright.arrays import Array, PerDevice, is_abstract, is_tensor, kind_of_host, shard
from shardwright.engines import engine_of
from shardwright.errors import ProgramError
from shardwright.mesh import Mesh
from shardwright.plan import LocalShapes
from shardwright.program.captures import Outside, slots_of
from shardwright.program.constraints import Annotations
from shardwright.program.explaining import explained
from shardwright.program.explanation import Explanation
from shardwright.program.local_tracing import TracedLocal
from shardwright.program.node import Program, Type
from shardwright.program.run import code_of, layout
from shardwright.program.statics import Static
from shardwright.program.tracing import Traced, trace
from shardwright.rules import resolved
from shardwright.sharding import Sharding
from shardwright.trees import flatten, paths_of, unflatten

PARAMETERS = frozenset(
    ("params", "parameters", "weights")
)  # arguments, or parts of them, with these names hold weights


class Jitted(Protocol):
    """What is needed of a jitted function."""

    __name__: str
    function: Callable[..., Any]
    parameters: list[str]
    out_shardings: Any
    annotation_shardings: Any

    def shardings_of(self, args: Any, kwargs: Any, mesh: Mesh) -> tuple[list[Any], list[Any]]: ...
    def by_rule(self, args: Any, kwargs: Any) -> list[bool]: ...
    def constrained(self, leaves: Sequence[Any], given: Any) -> list[Any]: ...
    def called(self, structure: Any, leaves: Sequence[Any], notes: Annotations) -> Any: ...

    @property
    def lowering(self) -> Callable[..., Program]: ...


class TracedCall:
    """A function traced for one kind of arguments: its program, the names of its inputs, where each comes in."""

    def __init__(self, jit: Jitted, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: Mesh) -> None:
        self.mesh, self.structure = mesh, flatten((args, kwargs))[1]
        leaves, paths = flatten((args, kwargs))[0], paths_of((args, kwargs))
        self.leaves = leaves
        self.arrays = [at for at, leaf in enumerate(leaves) if is_dynamic(leaf)]
        self.names = [leaf_name(jit.parameters, paths[at]) for at in self.arrays]
        given = jit.shardings_of(args, kwargs, mesh)
        types = [type_of(leaves[at]) for at in self.arrays]
        self.placed = [_sharding_of(leaves[at]) or given[0][at] for at in self.arrays]
        self.program = self._traced(jit, leaves, types, given)
        ruled = jit.by_rule(args, kwargs)
        self.program.parameters = frozenset(
            number
            for number, (at, name) in enumerate(zip(self.arrays, self.names, strict=True))
            if ruled[at] or not PARAMETERS.isdisjoint(name.split("/"))
        )

    def _traced(self, jit: Jitted, leaves: list[Any], types: list[Type], given: Any) -> Program:
        """The traced program; constraints on arguments and outputs are part of it."""
        shape: dict[str, Any] = {}
        notes = Annotations(jit.annotation_shardings)

        def flat(*values: Any) -> list[Any]:
            filled = list(leaves)
            for at, value in zip(self.arrays, values, strict=True):
                filled[at] = value
            result = jit.called(self.structure, jit.constrained(filled, given), notes)
            outs, shape["tree"] = flatten(result)
            for leaf in outs:
                if isinstance(leaf, Iterator):
                    raise ProgramError(
                        f"{jit.__name__} returns a {type(leaf).__name__}, which can be read only once: return a list or a "
                        f"tuple."
                    )
                if _holds_traced(leaf):
                    raise ProgramError(
                        f"{jit.__name__} returns a {type(leaf).__name__} with arrays inside, which the program does not see: "
                        f"return them in a tuple, a list or a dict, or make the class a tree with "
                        f"optree.register_pytree_node_class(namespace='shardwright')."
                    )
            shape["leaves"] = outs
            shape["shardings"] = resolved(jit.out_shardings, result, self.mesh, "out_shardings")
            return [leaf for leaf in outs if isinstance(leaf, Array | PerDevice)]

        program, made = trace(flat, types, self.mesh, self.names)
        self.looked_at = list(made.looked_at.values())
        places = [at for at, leaf in enumerate(shape["leaves"]) if isinstance(leaf, Array | PerDevice)]
        self.out_shardings = [shape["shardings"][at] for at in places]
        fixed = [None if isinstance(leaf, Array | PerDevice) else leaf for leaf in shape["leaves"]]
        tree = shape["tree"]

        def rebuilt(arrays: Sequence[Any]) -> Any:
            filled = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in fixed]
            for at, array in zip(places, arrays, strict=True):
                filled[at] = array
            return unflatten(tree, filled)

        self.single = len(fixed) == 1 and places == [0] and tree.is_leaf()
        self.output: Callable[[Sequence[Any]], Any] = (lambda arrays: arrays[0]) if self.single else rebuilt
        return program


class Lowered:
    """A function lowered for one kind of arguments: its final program, and what running it takes."""

    def __init__(self, jit: Jitted, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: Mesh) -> None:
        self.mesh, self.name = mesh, getattr(jit.function, "__name__", "program")
        call = TracedCall(jit, args, kwargs, mesh)
        leaves, self._arrays, self._output = call.leaves, call.arrays, call.output
        self.program: Program = jit.lowering(call.program, call.placed, call.out_shardings)
        constants = list(self.program.constants.items())
        self._statics = [at for at, leaf in enumerate(leaves) if not is_dynamic(leaf)]
        constant_arrays = [array for _, array in constants]
        self.outside = Outside(jit.function, constant_arrays, call.looked_at, self._unwrapped(leaves))
        self._results = [None if node.type.local else layout(node) for node in self.program.outputs]
        self._only = self._results[0] if call.single else None  # the layout of a result that is one array
        self.code, self.nodes = code_of(self.program, [node for node, _ in constants])
        count = len(self.program.inputs)
        self.layouts, self.constants = list(self.code.kinds[:count]), self.code.kinds[count:]
        self._run: Callable[..., Any] | None = None  # made when it first runs: explaining needs no engine
        # Where all arguments are arrays that already lie where the program wants them, a call only looks at these.
        plain = len(self._arrays) == len(leaves) and all(type(leaf) is Array for leaf in leaves)
        given_layouts = [leaf._layout for leaf in leaves] if plain else []
        self.in_place = plain and given_layouts == self.layouts

    @property
    def footprint(self) -> int:
        """About how many bytes it takes."""
        stages = {id(program): program for program in (self.program, *self.program.stages.values())}
        nodes = [node for program in stages.values() for node in program.nodes]
        cut = {
            kind.sharding
            for node in nodes
            for kind in node.types
            if kind.sharding is not None and kind.sharding.offsets
        }
        return 4000 + 2500 * len(nodes) + 4 * sum([s.footprint for s in cut])  # steps and layouts have offsets too

    def arrays(self, leaves: Sequence[Any]) -> list[Array] | None:
        """The arrays from outside, as they are now; None if the function must be traced anew to know."""
        return self.outside.arrays(self._unwrapped(leaves))

    def _unwrapped(self, leaves: Sequence[Any]) -> list[Any]:
        """The static arguments among the leaves of arguments."""
        statics = [leaves[at] for at in self._statics]
        return [leaf.value if isinstance(leaf, Static) else leaf for leaf in statics]

    def __call__(self, leaves: Sequence[Any], outside: Sequence[Array] | None = None) -> Any:
        """Run on the leaves of arguments of the kind that this was lowered for, and on arrays from outside: by default those
        that there were then."""
        known = [array.array for array in self.outside.captured] if outside is None else outside
        made = (self._run or self._ready())(*self.data(leaves, known))
        if self._only is not None:
            return Array.of(self._only, made[0])
        return self._output(
            [PerDevice.of(d) if out is None else Array.of(out, d) for out, d in zip(self._results, made, strict=True)]
        )

    def _ready(self) -> Callable[..., Any]:
        engine = engine_of(self.mesh)
        engine.check(self.mesh)
        label = ""
        if engine.processes > 1:  # before the first collective: a process with another program would wait for ever
            fingerprint = self.program.fingerprint
            engine.agree(self.mesh, fingerprint)
            label = "\n".join((self.name, *fingerprint))
        self._run = engine.compile(self.code, self.mesh, label)
        return self._run

    def data(self, leaves: Sequence[Any], outside: Sequence[Array]) -> list[Any]:
        """The shards of the arguments and of arrays from outside, as the program wants them."""
        if self.in_place:
            data = [leaf._data for leaf in leaves]
            for at, x in enumerate(data):
                if x is None:  # a product that waits for its reduction
                    data[at] = leaves[at].data
        else:
            data = [_placed(leaves[at], wanted) for at, wanted in zip(self._arrays, self.layouts, strict=True)]
        if outside:
            data += [_placed(array, wanted) for array, wanted in zip(outside, self.constants, strict=True)]
        return data

    def explain(self) -> Explanation:
        """Every step with its shardings, collectives, bytes, bound, time and memory."""
        return explained(self.program)


def _placed(leaf: Any, wanted: Any) -> Any:
    """The data of an argument where the program wants it."""
    if isinstance(wanted, LocalShapes):
        return leaf.lanes
    if type(leaf) is Array:
        return leaf.data if leaf._layout is wanted else leaf.placed(wanted)
    if is_abstract(leaf):
        raise ProgramError(
            f"{leaf!r} has no elements, so the program can be lowered and explained for it but not run. Pass an array."
        )
    return shard(leaf, wanted.sharding).data


def _sharding_of(leaf: Any) -> Sharding | None:
    if isinstance(leaf, Array):
        return leaf.sharding
    return None if isinstance(leaf, PerDevice) else kind_of_host(leaf)[2]


def type_of(leaf: Any) -> Type:
    """The type of an argument."""
    if isinstance(leaf, Array):
        return Type(leaf.shape, leaf.dtype)
    if isinstance(leaf, PerDevice):
        shapes = leaf.local_shapes
        return Type(shapes.largest, leaf.dtype, None, shapes)
    shape, dtype, _ = kind_of_host(leaf)
    return Type(shape, dtype)


def _holds_traced(leaf: Any) -> bool:
    """Whether a leaf that is no array has traced values as attributes, entries or variables of a function."""
    if isinstance(leaf, Array | PerDevice | np.ndarray | np.generic | str | bytes | type):
        return False
    inside = [*getattr(leaf, "__dict__", {}).values()]
    inside += [getattr(leaf, name, None) for cls in type(leaf).__mro__ for name in slots_of(cls)]
    inside += [cell.cell_contents for cell in getattr(leaf, "__closure__", None) or () if cell != CellType()]
    if isinstance(leaf, Set | ValuesView | ItemsView):
        inside += leaf
    return any(isinstance(x, Traced | TracedLocal) for some in inside for x in flatten(some)[0])


def is_dynamic(leaf: Any) -> bool:
    """Whether a leaf is an argument of the program; all others are static."""
    return isinstance(leaf, Array | PerDevice) or is_tensor(leaf)


def leaf_name(parameters: Sequence[str], path: str) -> str:
    """A leaf's name as the function knows it."""
    kind, _, rest = path.partition("/")
    at, _, inner = rest.partition("/")
    head = at if kind == "1" else parameters[int(at)] if int(at) < len(parameters) else f"argument {at}"
    return f"{head}/{inner}" if inner else head
