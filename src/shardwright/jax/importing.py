"""`load`: a JAX function as a function on sharded arrays, which is explained, planned and run as others are."""

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
import optree

import shardwright.jax.interpreting as interpreting
from shardwright import xla
from shardwright.arrays import Array, ShapeDtype
from shardwright.errors import ArrayError, ProgramError, TreeError
from shardwright.imported import Call
from shardwright.jax.expanding import data_of
from shardwright.jax.utils import key_name
from shardwright.mesh import Mesh, current_mesh
from shardwright.program import SJIT, Explanation, explain
from shardwright.rules import ShardingRule, resolved
from shardwright.sharding import P, Sharding
from shardwright.trees import flatten, paths_of, structure_of, unflatten

_NAMESPACE = "shardwright"


class ImportedFunction:
    """A JAX function on sharded arrays. Made by `load`.

    Called with Arrays (inside `sjit` too) it runs on them, operation by operation. `sjit` gives it as one program.
    """

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__
        shapes = jax.tree.map(_abstract, (args, kwargs), is_leaf=lambda x: isinstance(x, ShapeDtype))
        _register(shapes)
        with jax.named_scope(""):
            self.jaxpr, results = jax.make_jaxpr(function, return_shape=True)(*shapes[0], **shapes[1])
        interpreting.check(self.jaxpr)
        self._in_tree: Any = jax.tree.structure(shapes)
        self._out_tree: Any = jax.tree.structure(results)
        self._kinds = [data_of(aval) for aval in self.jaxpr.in_avals]
        parameters = _names(function, shapes[0])
        self.__signature__ = inspect.Signature(
            [
                *(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in parameters),
                *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in shapes[1]),
            ]
        )
        kinds = jax.tree.unflatten(self._in_tree, [ShapeDtype(*kind) for kind in self._kinds])
        self.arguments: dict[str, Any] = {**dict(zip(parameters, kinds[0], strict=True)), **kinds[1]}

    def __repr__(self) -> str:
        return f"<imported JAX function {self.__name__}{self.__signature__}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self.__signature__.bind(*args, **kwargs)
        leaves, tree = jax.tree.flatten((bound.args, bound.kwargs))
        if tree != self._in_tree:
            raise TreeError(
                f"{self.__name__} was loaded for arguments with the structure {self._in_tree}; got {tree}. Give the same "
                f"structure, or load the function for this one."
            )
        mesh = next((x.mesh for x in leaves if isinstance(x, Array)), None) or current_mesh()
        if mesh is None:
            raise ArrayError(
                f"{self.__name__}: no argument is an Array, and no mesh is given. Give Arrays, or use .sjit(mesh, rules)."
            )
        values = [self._argument(*entry) for entry in zip(self._paths, leaves, self._kinds, strict=True)]
        with mesh, xla.shared_constants():
            made = interpreting.run(self.jaxpr.jaxpr, self.jaxpr.consts, values)
            return jax.tree.unflatten(self._out_tree, [xla.lifted(x) for x in made])

    @cached_property
    def _paths(self) -> list[str]:
        """The names of the arguments' leaves: parameter, then path, in JAX's order."""
        pairs = jax.tree_util.tree_flatten_with_path(self.arguments_in_order())[0]
        names = list(self.__signature__.parameters)
        return ["/".join((names[path[0].idx], *map(key_name, path[1:]))) for path, _ in pairs]

    def arguments_in_order(self) -> tuple[Any, ...]:
        """The shapes and dtypes of the arguments, a tree each."""
        return tuple(self.arguments.values())

    def _argument(self, name: str, x: Any, kind: tuple[tuple[int, ...], "np.dtype[Any]"]) -> Any:
        shape, dtype = kind
        value = x if isinstance(x, Array) else interpreting.held(x)
        if tuple(value.shape) != shape:
            raise ProgramError(
                f"{self.__name__}: {name!r} has shape {tuple(value.shape)}; the function was loaded for {shape}. Load it for "
                f"this shape too."
            )
        plain = not isinstance(x, Array | np.ndarray | jax.Array)
        narrowed = value.dtype.kind == dtype.kind and value.dtype.itemsize > dtype.itemsize
        if value.dtype != dtype and not plain and not narrowed:
            raise ProgramError(
                f"{self.__name__}: {name!r} has dtype {value.dtype}; the function was loaded for {dtype}. Convert it first."
            )
        return xla.convert(value, dtype)

    # -- with a mesh and rules ------------------------------------------------------------------------------------------

    def shardings(self, mesh: Mesh, rules: Any = None) -> dict[str, Any]:
        """The sharding of every argument, a tree each, by rules on names like `params/0/kernel`; None where no rule applies."""
        if isinstance(rules, dict) and set(rules) <= set(self.arguments):
            rules = {name: rules.get(name) for name in self.arguments}
        elif rules is None or isinstance(rules, P | Sharding | ShardingRule):
            pass
        elif isinstance(rules, tuple | list) and len(rules) == len(self.arguments):
            rules = dict(zip(self.arguments, rules, strict=True))
        else:
            raise ProgramError(
                f"{self.__name__}: rules are one rule for all arguments, or one for each of "
                f"{', '.join(map(repr, self.arguments))}; got {rules!r}."
            )
        found = resolved(rules, self.arguments, mesh, f"the rules of {self.__name__}")
        result: dict[str, Any] = unflatten(structure_of(self.arguments), found)
        return result

    def sjit(self, mesh: Mesh, rules: Any = None, **options: Any) -> SJIT:
        """The function as one program on a mesh, its arguments placed by rules; `options` are those of `sw.sjit`."""
        shardings, placed = self.shardings(mesh, rules), []
        for name in self.arguments:
            given = rules.get(name) if isinstance(rules, dict) else rules
            if isinstance(given, ShardingRule):  # by the names that arguments have here
                given = _Found(
                    given, dict(zip(paths_of(self.arguments[name]), flatten(shardings[name])[0], strict=True))
                )
            placed.append(given if isinstance(given, P | Sharding | ShardingRule) else _without_none(shardings[name]))
        return xla.silent(self, mesh=mesh, in_shardings=tuple(placed), **options)

    bind = sjit

    def explain(self, mesh: Mesh, rules: Any = None, *args: Any) -> Explanation:
        """What the function does and costs on a mesh, for the arguments it was loaded for, or others of their shapes."""
        return explain(self.sjit(mesh, rules), *(args or self.arguments_in_order()))

    def planned(self, *args: Any) -> Call:
        """The function, its arguments without elements and the names of their leaves, as a planner wants them."""
        given = args or self.arguments_in_order()
        leaves, structure = flatten(given)
        abstract = [ShapeDtype(x.shape, x.dtype) if hasattr(x, "dtype") else x for x in leaves]
        paths = [path.partition("/") for path in paths_of(given)]
        heads = list(self.arguments)
        names = tuple(f"{heads[int(at)]}/{rest}" if rest else heads[int(at)] for at, _, rest in paths)
        return Call(self, unflatten(structure, abstract), names)


class _Found(ShardingRule):
    """A rule that was asked about the leaves of an argument by their full names."""

    def __init__(self, rule: ShardingRule, shardings: dict[str, Any]) -> None:
        self.rule, self.shardings = rule, shardings

    def spec(self, path: str, leaf: Any, mesh: Mesh | None) -> tuple[P, str]:
        return self.rule.spec(path, leaf, mesh)

    def specs(self, tree: Any, mesh: Mesh | None = None) -> list[Any]:
        """The sharding of each leaf, by its path: dicts may come in another order."""
        return [self.shardings.get(path) for path in paths_of(tree)]


def load(function: Callable[..., Any], *args: Any, **kwargs: Any) -> ImportedFunction:
    """A JAX function for arguments of these shapes, as a function on sharded arrays; nothing is computed.

    >>> f = load(lambda x, w: jax.numpy.tanh(x @ w), ShapeDtype((8, 4), "float32"), ShapeDtype((4, 6), "float32"))
    >>> mesh = Mesh(dp=2, tp=2)
    >>> step = f.sjit(mesh, {"x": P("dp"), "w": P(None, "tp")})
    >>> step(np.ones((8, 4), np.float32), np.ones((4, 6), np.float32)).sharding
    Sharding(Mesh(dp=2, tp=2), P('dp', 'tp'))

    Arguments are arrays, `jax.ShapeDtypeStruct`s, `sw.ShapeDtype`s, scalars, and trees of them. The function is traced by
    `jax.make_jaxpr`, gradients and optimizers included. Primitives that have no counterpart are listed in one error.
    """
    return ImportedFunction(function, args, kwargs)


def _abstract(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, ShapeDtype) else x


def _names(function: Callable[..., Any], args: Sequence[Any]) -> list[str]:
    """The names of positional arguments: the function's own, or numbered where it has none."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [p.name for p in parameters if p.kind in kinds]
    return [named[i] if i < len(named) else f"arg{i}" for i in range(len(args))]


def _without_none(tree: Any) -> Any:
    """A tree of shardings in which a whole argument without any is None."""
    return tree if flatten(tree)[0] else None


def _register(tree: Any) -> None:
    """Makes the nodes of JAX's pytrees that only JAX knows, such as flax's, nodes of this library's trees too."""
    pending = [tree]
    while pending:
        node = pending.pop()
        children = _flattened(node)[0]
        if len(children) == 1 and children[0] is node:
            continue
        pending += children
        kind = type(node)
        if kind not in (dict, list, tuple, type(None)) and optree.treespec_is_leaf(structure_of(node)):
            optree.register_pytree_node(kind, _flattened, _unflattened, namespace=_NAMESPACE)


def _flattened(node: Any) -> tuple[list[Any], Any, tuple[str, ...]]:
    pairs, structure = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    return [child for _, child in pairs], structure, tuple("/".join(map(key_name, path)) for path, _ in pairs)


def _unflattened(structure: Any, children: Any) -> Any:
    return jax.tree.unflatten(structure, children)
