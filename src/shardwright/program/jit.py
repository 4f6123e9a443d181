"""`sjit`: a function on trees of arrays, traced once for each kind of arguments and then run as one program."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from shardwright.arrays import Array, PerDevice, shard
from shardwright.eager import current_policy, is_strict
from shardwright.engines import engine_named
from shardwright.errors import ArrayError, ProgramError, TraceError
from shardwright.mesh import Mesh, current_mesh
from shardwright.plan import LocalShapes
from shardwright.program.explanation import Explanation, explained
from shardwright.program.lowering import lower
from shardwright.program.node import Program, Type
from shardwright.program.run import code_of, layout
from shardwright.program.tracing import Traced, current_trace, trace
from shardwright.rules import ShardingRule, is_array, resolved
from shardwright.sharding import P, Sharding
from shardwright.trees import flatten, paths_of, unflatten

Rule = Any  # a P, a Sharding, a ShardingRule, None, or a tree of them


class Annotations:
    """What the names of `with_sharding_annotation` stand for inside one traced function, and which were used."""

    def __init__(self, rules: Mapping[str, Rule] | None) -> None:
        self.rules = dict(rules or {})
        self.used: set[str] = set()

    def rule(self, name: str) -> Rule:
        self.used.add(name)
        if name not in self.rules:
            known = ", ".join(map(repr, self.rules)) or "none"
            raise ProgramError(
                f"The function uses the annotation {name!r}, but annotation_shardings has {known}. Add it there, with None to "
                f"leave it open."
            )
        return self.rules[name]

    def check(self) -> None:
        unused = [name for name in self.rules if name not in self.used]
        if unused:
            raise ProgramError(
                f"annotation_shardings names {', '.join(map(repr, unused))}, which the function never uses; it uses "
                f"{', '.join(map(repr, sorted(self.used))) or 'no annotation'}. Correct or remove the name."
            )


_annotations: ContextVar[Annotations | None] = ContextVar("annotations", default=None)


def with_sharding_constraint(tree: Any, rule: Rule) -> Any:
    """The same arrays, laid out as a rule says: inside `sjit` a constraint on the program, outside a reshard.

    >>> x = shard(np.arange(4), Mesh(x=2), P("x"))
    >>> with_sharding_constraint({"a": x}, P())["a"].sharding.spec
    P(None)
    """
    leaves, structure = flatten(tree)
    mesh = next((leaf.mesh for leaf in leaves if isinstance(leaf, Array)), None) or current_mesh()
    if mesh is None:
        raise ArrayError(
            "with_sharding_constraint: none of the leaves is an Array, and there is no mesh. Write `with mesh:` around it."
        )
    found = resolved(rule, tree, mesh, "with_sharding_constraint")
    made = [x if s is None else _laid_out(x, s) for x, s in zip(leaves, found, strict=True)]
    return unflatten(structure, made)


def _laid_out(x: Any, sharding: Sharding) -> Array:
    return x.reshard(sharding) if isinstance(x, Array) else shard(x, sharding)


def with_sharding_annotation(tree: Any, name: str) -> Any:
    """The same arrays under a name, for which `sjit(…, annotation_shardings={name: rule})` says where they lie."""
    known = _annotations.get()
    if known is None:
        raise TraceError(
            f"The annotation {name!r} stands outside of sjit, where nothing says what it means. Run the function through "
            f"sw.sjit(fn, annotation_shardings={{{name!r}: …}})."
        )
    rule = known.rule(name)
    return tree if rule is None else with_sharding_constraint(tree, rule)


class _Static:
    """A static argument: one leaf, compared by value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Lowered:
    """A function lowered for one kind of arguments: its final program, and what running it takes."""

    def __init__(self, jit: "SJIT", args: tuple[Any, ...], kwargs: dict[str, Any], mesh: Mesh) -> None:
        self.mesh = mesh
        leaves, self._structure = flatten((args, kwargs))
        paths = paths_of((args, kwargs))
        self._arrays = [at for at, leaf in enumerate(leaves) if _is_dynamic(leaf)]
        names = [_name(jit.parameters, paths[at]) for at in self._arrays]
        given = jit.shardings_of(args, kwargs, mesh)
        types, placed = [], []
        for at in self._arrays:
            leaf = leaves[at]
            types.append(_type_of(leaf))
            placed.append(leaf.sharding if isinstance(leaf, Array) else given[0][at])
        traced, output = self._traced(jit, leaves, types, given, names)
        self._output = output
        self.program: Program = lower(traced, placed, self._out_shardings)
        self.layouts = [None if node.type.local else layout(node) for node in self.program.inputs]
        self.constants = list(self.program.constants.items())
        self._results = [None if node.type.local else layout(node) for node in self.program.outputs]
        self.code, self.nodes = code_of(self.program, [node for node, _ in self.constants])
        engine = engine_named(mesh.engine)
        engine.check(mesh)
        if engine.processes > 1:  # before the first collective: one of a different program would wait for ever
            engine.agree(self.program.fingerprint)
        self._run = engine.compile(self.code)

    def _traced(
        self, jit: "SJIT", leaves: list[Any], types: list[Type], given: Any, names: list[str]
    ) -> tuple[Program, Callable[[Sequence[Any]], Any]]:
        """The traced program; constraints on arguments and outputs are part of it."""
        shape: dict[str, Any] = {}
        notes = Annotations(jit.annotation_shardings)

        def flat(*values: Any) -> list[Any]:
            filled = list(leaves)
            for at, value in zip(self._arrays, values, strict=True):
                filled[at] = value
            result = jit.called(self._structure, jit.constrained(filled, given), notes)
            outs, shape["tree"] = flatten(result)
            shape["leaves"] = outs
            shape["shardings"] = resolved(jit.out_shardings, result, self.mesh, "out_shardings")
            return [leaf for leaf in outs if isinstance(leaf, Array | PerDevice)]

        program, _ = trace(flat, types, self.mesh, names)
        places = [at for at, leaf in enumerate(shape["leaves"]) if isinstance(leaf, Array | PerDevice)]
        self._out_shardings = [shape["shardings"][at] for at in places]
        fixed = [None if isinstance(leaf, Array | PerDevice) else leaf for leaf in shape["leaves"]]
        tree = shape["tree"]

        def rebuilt(arrays: Sequence[Any]) -> Any:
            filled = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in fixed]
            for at, array in zip(places, arrays, strict=True):
                filled[at] = array
            return unflatten(tree, filled)

        single = len(fixed) == 1 and places == [0] and tree.is_leaf()
        return program, (lambda arrays: arrays[0]) if single else rebuilt

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """Run on the leaves of arguments of the kind that this was lowered for."""
        made = self._run(*self.data(leaves))
        return self._output(
            [PerDevice.of(d) if out is None else Array.of(out, d) for out, d in zip(self._results, made, strict=True)]
        )

    def data(self, leaves: Sequence[Any]) -> list[Any]:
        """The shards of the arguments and constants, as the program wants them."""
        data = []
        for at, wanted in zip(self._arrays, self.layouts, strict=True):
            leaf = leaves[at]
            if wanted is None:
                data.append(leaf.lanes)
            elif type(leaf) is Array:
                data.append(leaf.data if leaf._layout is wanted else leaf.placed(wanted))
            else:
                data.append(shard(leaf, wanted.sharding).data)
        for node, value in self.constants:  # read anew: x += 1 gives a variable another value
            data.append(value.data if value._layout is layout(node) else value.placed(layout(node)))
        return data

    def explain(self) -> Explanation:
        """Every step with its shardings, collectives, bytes, bound, time and memory."""
        return explained(self.program)


def _token(value: Any) -> Any:
    """What tells a static value from all others: 1 from 1.0 and True, 0.0 from -0.0, and NaN is itself."""
    if isinstance(value, float | complex):
        return type(value), repr(value)
    if isinstance(value, tuple):
        return type(value), tuple(map(_token, value))
    return type(value), value


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _type_of(leaf: Any) -> Type:
    """The type of an argument."""
    if isinstance(leaf, PerDevice):
        shapes = LocalShapes.of(leaf.mesh, [tensor.shape for tensor in leaf.values()])
        return Type(shapes.largest, leaf.dtype, None, shapes)
    return Type(tuple(leaf.shape), np.dtype(leaf.dtype))


def _is_dynamic(leaf: Any) -> bool:
    return isinstance(leaf, Array | PerDevice | np.ndarray | np.generic) or (
        is_array(leaf) and hasattr(leaf, "__array__")
    )


def _name(parameters: Sequence[str], path: str) -> str:
    """A leaf's name as the function knows it."""
    kind, _, rest = path.partition("/")
    at, _, inner = rest.partition("/")
    head = at if kind == "1" else parameters[int(at)] if int(at) < len(parameters) else f"argument {at}"
    return f"{head}/{inner}" if inner else head


class SJIT:
    """A function that runs as a program. Made by `sjit`."""

    __name__: str

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.__name__ = getattr(function, "__name__", repr(function))
        self.function, self._options = function, options
        self.mesh: Mesh | None = options["mesh"]
        self.in_shardings, self.out_shardings = options["in_shardings"], options["out_shardings"]
        self.args_sharding_constraint = options["args_sharding_constraint"]
        self.annotation_shardings = options["annotation_shardings"]
        try:
            signature = inspect.signature(function)
        except ValueError as error:
            raise ProgramError(
                f"{self.__name__} does not say what arguments it takes: wrap it in a function that does."
            ) from error
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.parameters = [name for name, p in signature.parameters.items() if p.kind in kinds]
        self._more = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
        self._static_numbers, self._static_names = self._statics(options["static_argnums"], options["static_argnames"])
        self._donated = self._numbers(options["donate_argnums"], "donate_argnums")
        self._cache: dict[Any, Lowered] = {}

    # -- which arguments are static ---------------------------------------------------------------------------------

    def _numbers(self, given: int | Sequence[int], what: str) -> set[int]:
        numbers = (given,) if isinstance(given, int) else tuple(given)
        count = len(self.parameters)
        for n in numbers:
            if not isinstance(n, int) or n < -count or (n >= count and not self._more):
                raise ProgramError(
                    f"{what}: {n!r} is no argument of {self.__name__}({', '.join(self.parameters)}), which has {count}."
                )
        return {n % count if n < 0 else n for n in numbers}

    def _statics(self, numbers: int | Sequence[int], names: str | Sequence[str]) -> tuple[set[int], set[str]]:
        by_number = self._numbers(numbers, "static_argnums")
        by_name = {names} if isinstance(names, str) else set(names)
        known = set(inspect.signature(self.function).parameters)
        for name in by_name - known:
            raise ProgramError(
                f"static_argnames: {self.__name__} has no parameter {name!r}; it has {', '.join(sorted(known))}."
            )
        by_name |= {self.parameters[n] for n in by_number if n < len(self.parameters)}
        return by_number | {self.parameters.index(n) for n in by_name if n in self.parameters}, by_name

    def _wrapped(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not self._static_names and not self._static_numbers:
            return args, kwargs
        wrapped = tuple(_Static(x) if at in self._static_numbers else x for at, x in enumerate(args))
        return wrapped, {name: _Static(x) if name in self._static_names else x for name, x in kwargs.items()}

    # -- calls --------------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        wrapped, named = self._wrapped(args, kwargs)
        leaves, structure = flatten((wrapped, named))
        if current_trace() is not None:
            return self._inlined(leaves, structure, wrapped, named)
        result = self._found(leaves, structure, wrapped, named)(leaves)
        if self._donated:
            self._give_away(args, kwargs)
        return result

    def _found(self, leaves: Sequence[Any], structure: Any, args: Any, kwargs: Any) -> Lowered:
        """The program for arguments of this kind."""
        key = self._key(leaves, structure)
        try:
            found = self._cache.get(key)
        except TypeError:
            self._refuse_unhashable(leaves, structure)
            raise
        if found is None:
            found = self._cache[key] = Lowered(self, args, kwargs, self._mesh(leaves))
        return found

    def _inlined(self, leaves: Sequence[Any], structure: Any, args: Any, kwargs: Any) -> Any:
        """The function as a part of the program that is being traced, with the shardings it was given."""
        outer = current_trace()
        assert outer is not None
        filled = self.constrained(leaves, self.shardings_of(args, kwargs, outer.mesh))
        result = self.called(structure, filled, Annotations(self.annotation_shardings))
        return result if self.out_shardings is None else with_sharding_constraint(result, self.out_shardings)

    def constrained(self, leaves: Sequence[Any], given: tuple[list[Any], list[Any]]) -> list[Any]:
        """The arguments' leaves as they come in, then as the function wants them."""
        result = []
        for leaf, first, second in zip(leaves, *given, strict=True):
            for sharding in (first, second):
                if sharding is not None:
                    leaf = _laid_out(leaf, sharding)
            result.append(leaf)
        return result

    def called(self, structure: Any, leaves: Sequence[Any], notes: Annotations) -> Any:
        """The function on arguments given by their leaves."""
        args, kwargs = unflatten(structure, [leaf.value if isinstance(leaf, _Static) else leaf for leaf in leaves])
        token = _annotations.set(notes)
        try:
            result = self.function(*args, **kwargs)
        finally:
            _annotations.reset(token)
        notes.check()
        return result

    def _key(self, leaves: Sequence[Any], structure: Any) -> Any:
        parts: list[Any] = [structure, is_strict(), current_policy(), self.mesh or current_mesh()]
        for leaf in leaves:
            kind = type(leaf)
            if kind is Array:
                parts += (leaf._layout, leaf._dtype)
            elif isinstance(leaf, PerDevice):
                parts.append(_type_of(leaf))
            elif kind is _Static:
                parts.append((_Static, _token(leaf.value)))
            elif _is_dynamic(leaf):
                parts += (tuple(leaf.shape), leaf.dtype)
            else:
                parts.append(_token(leaf))
        return tuple(parts)

    def _refuse_unhashable(self, leaves: Sequence[Any], structure: Any) -> None:
        paths = paths_of(unflatten(structure, list(leaves)))
        for path, leaf in zip(paths, leaves, strict=True):
            value = leaf.value if isinstance(leaf, _Static) else leaf
            if (_is_dynamic(value) and not isinstance(leaf, _Static)) or _hashable(_token(value)):
                continue
            name = _name(self.parameters, path)
            raise ProgramError(
                f"{self.__name__}: the static argument {name!r} is a {type(value).__name__}, which can't be hashed, so "
                f"calls can't be told apart. Give a tuple instead of a list, or an array that is not static."
            )

    def _mesh(self, leaves: Sequence[Any]) -> Mesh:
        meshes = [leaf.mesh for leaf in leaves if isinstance(leaf, Array | PerDevice)]
        mesh = self.mesh or (meshes[0] if meshes else None) or current_mesh()
        if mesh is None:
            raise ProgramError(
                f"{self.__name__}: no argument is an Array, and there is no mesh. Give sjit(fn, mesh=…), or write `with mesh:` "
                f"around the call."
            )
        for other in meshes:
            if other != mesh:
                raise ProgramError(
                    f"{self.__name__}: a program is on one mesh, {mesh}, and an argument is on {other}. Reshard it first."
                )
        return mesh

    def _give_away(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for at in self._donated:
            name = self.parameters[at] if at < len(self.parameters) else ""
            given = args[at] if at < len(args) else kwargs.get(name)
            for leaf in flatten(given)[0]:
                if isinstance(leaf, Array):
                    leaf.give_away(f"argument {at} of {self.__name__}")

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The program for arguments of this kind, without running it."""
        wrapped, named = self._wrapped(args, kwargs)
        leaves, structure = flatten((wrapped, named))
        if any(isinstance(leaf, Traced) for leaf in leaves):
            raise TraceError(
                f"{self.__name__}.lower: an argument stands for a value of a program that is being traced."
            )
        return self._found(leaves, structure, wrapped, named)

    def leaves(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The leaves of arguments, in the order that a lowered function takes them."""
        return flatten(self._wrapped(args, kwargs))[0]

    def cache_size(self) -> int:
        """For how many kinds of arguments there is a program."""
        return len(self._cache)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A method: the program of one object, whose arguments are those after `self`."""
        if instance is None:
            return self
        kept = getattr(instance, "__dict__", {})  # an object keeps its own programs, and takes them along when it goes
        name = f"__sjit_{self.__name__}_{id(self)}"
        if name not in kept:
            kept[name] = SJIT(self.function.__get__(instance), self._options)
        return kept[name]

    # -- shardings of arguments -----------------------------------------------------------------------------------------

    def shardings_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: Mesh) -> tuple[list[Any], list[Any]]:
        """For each leaf of the arguments where it comes in, and where the function wants it."""
        results: list[list[Any]] = []
        for what in ("in_shardings", "args_sharding_constraint"):
            rule = getattr(self, what)
            if isinstance(rule, ShardingRule):  # for all arguments together: a pattern need not match in each
                results.append(resolved(rule, (args, kwargs), mesh, what))
                continue
            rules, named = self._per_argument(getattr(self, what), args, kwargs, what)
            found: list[Any] = []
            for at, (rule, x) in enumerate(zip(rules, args, strict=True)):
                found += resolved(rule, x, mesh, f"{what}, argument {at}")
            for name in kwargs:
                found += resolved(named.get(name), kwargs[name], mesh, f"{what}, {name}")
            results.append(found)
        return results[0], results[1]

    def _per_argument(
        self, given: Any, args: tuple[Any, ...], kwargs: dict[str, Any], what: str
    ) -> tuple[list[Any], dict[str, Any]]:
        if isinstance(given, Mapping) and set(given) <= {*self.parameters, *kwargs}:
            named = dict(given)
            by_place = [named.get(self.parameters[i]) if i < len(self.parameters) else None for i in range(len(args))]
            return by_place, named
        if isinstance(given, Mapping) and all(isinstance(key, str) for key in given) and len(self.parameters) != 1:
            raise ProgramError(
                f"{self.__name__}: {what} names {', '.join(map(repr, given))}; the parameters are "
                f"{', '.join(map(repr, self.parameters))}. Use their names, or a tuple with one entry each."
            )
        if not isinstance(given, tuple | list) or isinstance(given, P):
            return [None if isinstance(x, _Static) else given for x in args], dict.fromkeys(kwargs, given)
        if kwargs and len(given) == len(self.parameters):  # one per parameter, however they are passed
            named = dict(zip(self.parameters, given, strict=True))
            return list(given[: len(args)]), named
        dynamic = [i for i, x in enumerate(args) if not isinstance(x, _Static)]
        if len(given) == len(args):
            return list(given), {}
        if len(given) == len(dynamic):
            by_number = dict(zip(dynamic, given, strict=True))
            return [by_number.get(i) for i in range(len(args))], {}
        raise ProgramError(
            f"{self.__name__}: {what} has {len(given)} entries for {len(args)} arguments, {len(dynamic)} of them not static. "
            f"Give one per argument (None leaves it open), or one for all."
        )


def sjit(
    fn: Callable[..., Any] | None = None,
    mesh: Mesh | None = None,
    in_shardings: Rule = None,
    out_shardings: Rule = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    args_sharding_constraint: Rule = None,
    annotation_shardings: Mapping[str, Rule] | None = None,
    donate_argnums: int | Sequence[int] = (),
) -> Any:
    """A function that is traced once for each kind of arguments, and then runs as one program with explicit collectives.

    >>> mesh = Mesh(x=4)
    >>> step = sjit(lambda x, w: x @ w, mesh=mesh, in_shardings=(P("x"), P()))
    >>> step(np.ones((8, 4)), np.ones((4, 2))).sharding
    Sharding(Mesh(x=4), P('x', None))
    >>> step.cache_size()
    1

    - Shardings are a `P`, a `Sharding`, a rule of `shardwright.rules`, a tree of those, or None for "inferred"; for
      arguments one for all, or a tuple (or a mapping from names) with one each. Arrays that come otherwise are resharded.
    - Numbers, strings, functions and whatever else is no array are static: part of the key under which programs are kept.
    - Inside, `x += 1` changes the function's own variable; arrays from outside can't be changed while it is traced. They are
      read anew at every call; host tensors and numbers from outside are what they were when the function was traced.
    - `args_sharding_constraint` reshards arguments once more, inside; `annotation_shardings` says what the names of
      `with_sharding_annotation` stand for; arrays of donated arguments can't be read afterwards.
    """
    options = {
        "mesh": mesh,
        "in_shardings": in_shardings,
        "out_shardings": out_shardings,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "args_sharding_constraint": args_sharding_constraint,
        "annotation_shardings": annotation_shardings,
        "donate_argnums": donate_argnums,
    }
    return (lambda function: SJIT(function, options)) if fn is None else SJIT(fn, options)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """What a function will do with these arguments: every step, its strategies, its collectives and what they cost.

    >>> mesh = Mesh(x=4)
    >>> a, b = shard(np.ones((128, 64)), mesh, P("x")), shard(np.ones((64, 32)), mesh, P())
    >>> print(explain(lambda a, b: a @ b, a, b).rows[-1].reason)
    it takes 0 s, the next best 3.492 µs

    The function is traced, not run. A strategy is printed as `axis → factor`: factors are the index ranges of the operation's
    rule, m, k and n of a matmul, `...0`, `...1` for dims that broadcast (the last one highest), d0, d1 for dims by
    number, r… for pieces of a reshape.
    """
    return lowered_for(function, "explain", args, kwargs)[0].explain()


def lowered_for(
    function: Callable[..., Any], what: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Lowered, list[Any]]:
    """A function lowered for arguments, and their leaves."""
    known = function if isinstance(function, SJIT) else sjit(function)
    leaves = known.leaves(*args, **kwargs)
    if not any(_is_dynamic(leaf) for leaf in leaves):
        raise ProgramError(
            f"{what} traces what a function does with its arguments, and {known.__name__} got no array. Pass the arrays it "
            f"works on: {what}(lambda x, w: x @ w, x, w)."
        )
    return known.lower(*args, **kwargs), leaves
