"""`Imported`: a model of another framework as a function on arrays, with its parameters by name.

Front ends make one from an exported graph. It runs by operations of shardwright's own namespaces, so that tracing,
partitioning, engines and `explain` treat it as a function that was written here.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from shardwright.arrays import ShapeDtype, is_abstract, shard
from shardwright.errors import ProgramError
from shardwright.mesh import Mesh
from shardwright.program import Applied, Explanation, sjit
from shardwright.program import explain as explain_function
from shardwright.rules import resolved_by_name
from shardwright.sharding import P, Sharding
from shardwright.trees import flatten, paths_of, unflatten

PARAMETERS = "parameters"  # the name of the first argument, which marks its leaves as weights


class Call(NamedTuple):
    """A function, the arguments it is planned for (without elements), and the name of every leaf of them, in order."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    names: tuple[str, ...]


class Imported:
    """An imported model: `model(parameters, *inputs)`, and what laying it out, explaining and running it takes.

    - `parameters`: host arrays by name, or `ShapeDtype` where the model has no elements.
    - `inputs`: the names of the inputs, which may be trees.
    - `function`: the model as a plain function `(parameters, *inputs)`.
    """

    def __init__(
        self,
        name: str,
        call: Callable[..., Any],
        parameters: Mapping[str, Any],
        inputs: Sequence[str],
        unplaced: Sequence[str] = (),
        unread: Sequence[str] = (),
    ) -> None:
        self.__name__, self.parameters, self.inputs = name, dict(parameters), tuple(inputs)
        self._unplaced = frozenset(unplaced)  # entries of `parameters` that rules don't know and every device holds
        self._read = {key: value for key, value in self.parameters.items() if key not in unread}
        self.function = _named(call, name, (PARAMETERS, *inputs))

    def __call__(self, parameters: Mapping[str, Any], /, *inputs: Any, **named: Any) -> Any:
        return self.function(parameters, *inputs, **named)

    def __repr__(self) -> str:
        return f"{self.__name__}(parameters, {', '.join(self.inputs)}): {len(self.parameters)} parameters"

    def shardings(self, mesh: Mesh, rules: Any) -> dict[str, Sharding]:
        """Where rules on the names of parameters put each of them; without rules every device holds all.

        Patterns are matched against names such as 'layers.0.weight', those with '/' against 'layers/0/weight' too.
        """
        placed = {name: value for name, value in self.parameters.items() if name not in self._unplaced}
        found = resolved_by_name(P() if rules is None else rules, placed, mesh, self.__name__)
        whole = Sharding(mesh)
        return {
            name: (found.get(name) or whole).for_shape(tuple(value.shape)) for name, value in self.parameters.items()
        }

    def bind(self, mesh: Mesh, rules: Any = None, inputs: Any = None, **options: Any) -> Applied:
        """The model with its parameters placed by rules: a jitted function of the inputs, for `sw.explain` and for calls.

        `inputs` says where inputs come in, by name, or one `P` for all; arrays are taken as they are. `options` are those
        of `sjit`. Parameters are placed when the function first runs, so that explaining needs no engine; those that no
        operation reads are not.
        """
        shardings = self.shardings(mesh, rules)
        first = {name: ShapeDtype(value.shape, value.dtype, shardings[name]) for name, value in self._read.items()}
        program = sjit(self.function, mesh=mesh, in_shardings=self._entries(inputs), **options)
        return Applied(program, (first,), lambda: (self._placed(shardings),))

    def sjit(self, mesh: Mesh, rules: Any = None, inputs: Any = None, **options: Any) -> Applied:
        """`bind`, by the name of what it does."""
        return self.bind(mesh, rules, inputs, **options)

    def explain(self, mesh: Mesh, rules: Any, *args: Any, inputs: Any = None, **named: Any) -> Explanation:
        """What the model will do with these inputs: its steps by module and source line, their cost, what a device holds."""
        return explain_function(self.bind(mesh, rules, inputs), *args, **named)

    def planned(self, *inputs: Any, **named: Any) -> Call:
        """The function, its arguments without elements and their names, as a planner wants them."""
        bound = inspect.signature(self.function).bind(self._read, *inputs, **named).args
        leaves, structure = flatten(bound)
        abstract = [ShapeDtype(x.shape, x.dtype) if hasattr(x, "dtype") else x for x in leaves]
        names = [path.partition("/") for path in paths_of(bound)]
        heads = (PARAMETERS, *self.inputs)
        full = tuple(f"{heads[int(at)]}/{rest}" if rest else heads[int(at)] for at, _, rest in names)
        return Call(self.function, unflatten(structure, abstract), full)

    def _entries(self, inputs: Any) -> Any:
        if inputs is None:
            return None
        if not isinstance(inputs, Mapping):
            return dict.fromkeys(self.inputs, inputs)
        unknown = [name for name in inputs if name not in self.inputs]
        if unknown:
            raise ProgramError(
                f"{self.__name__} has no input {', '.join(map(repr, unknown))}; its inputs are "
                f"{', '.join(map(repr, self.inputs))}."
            )
        return dict(inputs)

    def _placed(self, shardings: Mapping[str, Sharding]) -> dict[str, Any]:
        missing = [name for name, value in self._read.items() if is_abstract(value)]
        if missing:
            shown = ", ".join(map(repr, missing[:3])) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            raise ProgramError(
                f"{self.__name__} has no elements for {shown}, so it can be explained and planned but not run. Load it "
                f"with real parameters, or call it as model(parameters, …) with arrays."
            )
        return {name: shard(value, shardings[name], copy=False) for name, value in self._read.items()}


def _named(call: Callable[..., Any], name: str, parameters: Sequence[str]) -> Callable[..., Any]:
    """A plain function of this name with these parameters, which may be passed by name."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(parameter, kind) for parameter in parameters])

    def function(*args: Any, **named: Any) -> Any:
        bound = signature.bind(*args, **named)
        return call(*bound.args)

    function.__name__ = function.__qualname__ = name
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function
