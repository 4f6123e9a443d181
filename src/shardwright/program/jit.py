"""`sjit`: a function on trees of arrays, traced once for each kind of arguments and then run as one program."""

import copy
import functools
import inspect
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

import numpy as np  # noqa: F401  # in doctests

from shardwright.arrays import Array, PerDevice, ShapeDtype, kind_of_host, shard  # noqa: F401
from shardwright.caches import MIB, Cache
from shardwright.eager import current_policy, strictness
from shardwright.errors import ProgramError, RetraceWarning, TraceError
from shardwright.mesh import Mesh, current_mesh
from shardwright.program.captures import Method
from shardwright.program.constraints import Annotations, Rule, annotations, laid_out, with_sharding_constraint
from shardwright.program.explanation import Explanation
from shardwright.program.lowered import Lowered, TracedCall, is_dynamic, leaf_name, type_of
from shardwright.program.lowering import lowering_of
from shardwright.program.node import Program
from shardwright.program.skeletons import leaves_like, skeleton_of
from shardwright.program.statics import Static, is_hashable, token
from shardwright.program.tracing import Traced, current_trace
from shardwright.rules import ShardingRule, resolved
from shardwright.sharding import P, layout_of
from shardwright.trees import flatten, paths_of, unflatten


class SJIT:
    """A function that runs as a program. Made by `sjit`."""

    __name__: str

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        _check_function(function)
        functools.update_wrapper(self, function)
        self.__name__ = getattr(function, "__name__", repr(function))
        self.function, self._options = function, options
        self.mesh: Mesh | None = options["mesh"]
        self.in_shardings, self.out_shardings = options["in_shardings"], options["out_shardings"]
        self.args_sharding_constraint = options["args_sharding_constraint"]
        self.annotation_shardings = options["annotation_shardings"]
        self.placement = options["placement"]
        lowering_of(self.placement)
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
        self._cache: Cache[Any, Lowered] = Cache(limit=32 * MIB, size=lambda lowered: lowered.footprint)
        self._last: _Seen | None = None
        self._numbers_seen: OrderedDict[Any, set[tuple[Any, ...]]] = OrderedDict()
        self._programs: OrderedDict[int, tuple[Any, SJIT]] = OrderedDict()  # of methods, by object

    @property
    def lowering(self) -> Callable[..., Program]:
        """How a traced program is laid out."""
        return lowering_of(self.placement)

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
        wrapped = tuple(Static(x) if at in self._static_numbers else x for at, x in enumerate(args))
        return wrapped, {name: Static(x) if name in self._static_names else x for name, x in kwargs.items()}

    # -- calls --------------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        last, traced = self._last, current_trace() is not None
        leaves: list[Any] = []
        if traced or last is None or not last.fits(args, kwargs, leaves, self._around()):
            wrapped, named = self._wrapped(args, kwargs)
            leaves, structure = flatten((wrapped, named))
            if traced:
                return self._inlined(leaves, structure, wrapped, named)
            last = self._found(leaves, structure, wrapped, named)
        lowered = last.lowered
        outside = lowered.arrays(leaves) if lowered.outside.is_read else ()
        if outside is None:
            lowered = self._traced_anew(last, leaves, *self._wrapped(args, kwargs))
            outside = [known.array for known in lowered.outside.captured]
        result = lowered(leaves, outside)
        if self._donated:
            self._give_away(args, kwargs)
        return result

    def _around(self) -> tuple[Any, ...]:
        """What a program depends on beside its arguments."""
        return strictness(), current_policy(), self.mesh or current_mesh()

    def _found(self, leaves: Sequence[Any], structure: Any, args: Any, kwargs: Any) -> "_Seen":
        """The program for arguments of this kind."""
        around = self._around()
        key = (structure, around, *self._key(leaves))
        try:
            found = self._cache.get(key)
        except (TypeError, ValueError):
            self._refuse_unhashable(leaves, structure)
            raise
        if found is None:
            self._mind_numbers(leaves, structure)
            found = Lowered(self, args, kwargs, self._mesh(leaves))
            self._cache.put(key, found)
        self._last = _Seen(key, found, leaves, args, kwargs, around)
        return self._last

    def _traced_anew(self, last: "_Seen", leaves: Sequence[Any], args: Any, kwargs: Any) -> Lowered:
        """The program once more, since an array from outside is no longer the one it was, or of its kind."""
        lowered = Lowered(self, args, kwargs, self._mesh(leaves))
        self._cache.put(last.key, lowered)
        last.lowered = lowered
        return lowered

    def _mind_numbers(self, leaves: Sequence[Any], structure: Any) -> None:
        """Say so, once, if ever new numbers make ever new programs."""
        numbers = tuple([leaf for leaf in leaves if type(leaf) in (int, float, complex)])
        if not numbers:
            return
        rest = (structure, *self._key([None if type(leaf) in (int, float, complex) else leaf for leaf in leaves]))
        seen = self._numbers_seen.setdefault(rest, set())
        self._numbers_seen.move_to_end(rest)
        if len(self._numbers_seen) > MOST_FORMS:
            self._numbers_seen.popitem(last=False)
        if len(seen) > MANY:
            return
        seen.add(numbers)
        if len(seen) > MANY:
            paths = paths_of(unflatten(structure, list(leaves)))
            at = [i for i, leaf in enumerate(leaves) if type(leaf) in (int, float, complex)]
            varied = [i for n, i in enumerate(at) if len({some[n] for some in seen}) > MANY // 2]
            names = ", ".join(leaf_name(self.parameters, paths[i]) for i in varied or at)
            warnings.warn(
                f"{self.__name__} was traced {len(seen)} times for calls that differ only in the Python numbers {names}. Each "
                f"value has a program of its own, and the least recently used are forgotten. Pass an array or a NumPy "
                f"scalar, np.float32(…), and one program serves all values.",
                RetraceWarning,
                stacklevel=4,
            )

    def _inlined(self, leaves: Sequence[Any], structure: Any, args: Any, kwargs: Any) -> Any:
        """The function as a part of the program that is being traced, with the shardings it was given."""
        outer = current_trace()
        assert outer is not None
        own = [leaf.again() if isinstance(leaf, Array) else leaf for leaf in leaves]  # the function's own variables
        filled = self.constrained(own, self.shardings_of(args, kwargs, outer.mesh))
        result = self.called(structure, filled, Annotations(self.annotation_shardings))
        return result if self.out_shardings is None else with_sharding_constraint(result, self.out_shardings)

    def constrained(self, leaves: Sequence[Any], given: tuple[list[Any], list[Any]]) -> list[Any]:
        """The arguments' leaves as they come in, then as the function wants them."""
        result = []
        for leaf, first, second in zip(leaves, *given, strict=True):
            for sharding in (first, second):
                if sharding is not None:
                    leaf = laid_out(leaf, sharding)
            result.append(leaf)
        return result

    def called(self, structure: Any, leaves: Sequence[Any], notes: Annotations) -> Any:
        """The function on arguments given by their leaves."""
        args, kwargs = unflatten(structure, [leaf.value if isinstance(leaf, Static) else leaf for leaf in leaves])
        token = annotations.set(notes)
        try:
            result = self.function(*args, **kwargs)
        finally:
            annotations.reset(token)
        notes.check()
        return result

    def _key(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """What is equal for arguments that one program serves."""
        parts: list[Any] = []
        for leaf in leaves:
            kind = type(leaf)
            if kind is Array:
                parts += (leaf._layout, leaf._dtype)
            elif isinstance(leaf, PerDevice):
                parts.append(type_of(leaf))
            elif kind is Static:
                parts.append((Static, token(leaf.value)))
            elif is_dynamic(leaf):
                shape, dtype, sharding = kind_of_host(leaf)
                parts += (shape if sharding is None else layout_of(sharding, shape), dtype)
            else:
                parts.append(token(leaf))
        return tuple(parts)

    def _refuse_unhashable(self, leaves: Sequence[Any], structure: Any) -> None:
        paths = paths_of(unflatten(structure, list(leaves)))
        for path, leaf in zip(paths, leaves, strict=True):
            value = leaf.value if isinstance(leaf, Static) else leaf
            if (is_dynamic(value) and not isinstance(leaf, Static)) or is_hashable(value):
                continue
            name = leaf_name(self.parameters, path)
            raise ProgramError(
                f"{self.__name__}: the static argument {name!r} is a {type(value).__name__}, which can't be hashed, so "
                f"calls can't be told apart. Give a tuple instead of a list, or an array that is not static."
            )

    def _mesh(self, leaves: Sequence[Any], known: Mesh | None = None) -> Mesh:
        meshes = [leaf.mesh for leaf in leaves if isinstance(leaf, Array | PerDevice)]
        meshes += [leaf.sharding.mesh for leaf in leaves if isinstance(leaf, ShapeDtype) and leaf.sharding is not None]
        mesh = known or self.mesh or (meshes[0] if meshes else None) or current_mesh()
        if mesh is None:
            raise ProgramError(
                f"{self.__name__}: no argument is an Array, and no mesh is given. Give sjit(fn, mesh=…), or write `with mesh:` "
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
        found = self._found(leaves, structure, wrapped, named)
        return (
            found.lowered
            if found.lowered.arrays(leaves) is not None
            else self._traced_anew(found, leaves, wrapped, named)
        )

    def traced(self, args: tuple[Any, ...], mesh: Mesh) -> TracedCall:
        """A call with such arguments, traced on a mesh and not laid out."""
        wrapped, named = self._wrapped(args, {})
        return TracedCall(self, wrapped, named, self._mesh(flatten(wrapped)[0], mesh))

    def placed_by(self, placement: Callable[..., Program], mesh: Mesh) -> "SJIT":
        """The function with the same options on a mesh, laid out in another way."""
        return SJIT(self.function, {**self._options, "mesh": mesh, "placement": placement})

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
        known = self._programs.get(id(instance))
        if known is None or known[0]() is not instance:
            method = Method(self.function, instance)
            known = self._programs[id(instance)] = method.owner, SJIT(method, self._options)
            gone = [number for number, (of, _) in self._programs.items() if of() is None]
            for number in gone:
                del self._programs[number]
            if len(self._programs) > MOST_OBJECTS:
                self._programs.popitem(last=False)
        return Bound(known[1], instance)

    def __reduce__(self) -> str | tuple[Any, ...]:
        at: Any = sys.modules.get(self.__module__)
        path: str = getattr(self, "__qualname__", "")
        for name in path.split("."):
            at = getattr(at, name, None)
        return path if at is self else (SJIT, (self.function, self._options))  # decorated: its name leads to it alone

    def __deepcopy__(self, memo: dict[int, Any]) -> "SJIT":
        function = copy.deepcopy(self.function, memo)  # of a bound method or a partial another one
        return self if function is self.function else SJIT(function, self._options)

    # -- shardings of arguments -----------------------------------------------------------------------------------------

    def shardings_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: Mesh) -> tuple[list[Any], list[Any]]:
        """For each leaf of the arguments where it comes in, and where the function wants it."""
        results: list[list[Any]] = []
        for what in ("in_shardings", "args_sharding_constraint"):
            rule = getattr(self, what)
            if isinstance(rule, ShardingRule):  # for all arguments together: a pattern need not match in each
                names = [leaf_name(self.parameters, path) for path in paths_of((args, kwargs))]
                results.append(resolved(rule, (args, kwargs), mesh, what, names))
                continue
            rules, named = self._per_argument(rule, args, kwargs, what)
            found: list[Any] = []
            entries = [
                (f"{what}, argument {at}", given, x) for at, (given, x) in enumerate(zip(rules, args, strict=True))
            ]
            entries += [(f"{what}, {name}", named.get(name), kwargs[name]) for name in kwargs]
            for place, given, x in entries:
                if given is not rule and not isinstance(rule, Mapping):  # one entry for all may meet numbers
                    _check_arrays(place, given, x)
                found += resolved(given, x, mesh, place)
            results.append(found)
        return results[0], results[1]

    def by_rule(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[bool]:
        """For each leaf of the arguments whether a sharding rule places it."""
        found = [False] * len(flatten((args, kwargs))[0])
        for what in ("in_shardings", "args_sharding_constraint"):
            given = getattr(self, what)
            if isinstance(given, ShardingRule):
                return [True] * len(found)
            rules, named = self._per_argument(given, args, kwargs, what)
            marks = [
                mark
                for rule, x in (*zip(rules, args, strict=True), *((named.get(name), kwargs[name]) for name in kwargs))
                for mark in [isinstance(rule, ShardingRule)] * len(flatten(x)[0])
            ]
            found = [a or b for a, b in zip(found, marks, strict=True)]
        return found

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
            return [None if isinstance(x, Static) else given for x in args], dict.fromkeys(kwargs, given)
        if kwargs and len(given) == len(self.parameters):  # one per parameter, however they are passed
            named = dict(zip(self.parameters, given, strict=True))
            return list(given[: len(args)]), named
        dynamic = [i for i, x in enumerate(args) if not isinstance(x, Static)]
        if len(given) == len(args):
            return list(given), {}
        if len(given) == len(dynamic):
            by_number = dict(zip(dynamic, given, strict=True))
            return [by_number.get(i) for i in range(len(args))], {}
        try:
            inspect.signature(self.function).bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.__name__}({', '.join(self.parameters)}): {error}.") from None
        raise ProgramError(
            f"{self.__name__}: {what} has {len(given)} entries for {len(args)} arguments, {len(dynamic)} of them not static. "
            f"Give one per argument (None leaves it open), or one for all."
        )


def _check_arrays(place: str, given: Any, x: Any) -> None:
    """Raises where an argument is to be split that has numbers only, which are static: a list of numbers is not an array."""
    leaves = flatten(x)[0]
    numbers = [leaf for leaf in leaves if isinstance(leaf, int | float | complex)]
    if isinstance(given, P) and any(given) and numbers and not any(is_dynamic(leaf) for leaf in leaves):
        what = "a Python number" if len(leaves) == 1 else f"{len(leaves)} Python numbers in a {type(x).__name__}"
        raise ProgramError(
            f"{place}: {given} splits an array; got {what}, and these are static. Pass np.asarray(…), or write None "
            f"for this argument."
        )


MANY = 32  # programs that differ in numbers only before that is said
MOST_FORMS = 16  # of calls whose numbers are watched
MOST_OBJECTS = 4096  # whose methods' programs are kept


class _Seen:
    """The last call: what it was called with, and its program."""

    __slots__ = ("around", "dtypes", "key", "layouts", "lowered", "named", "positional")

    def __init__(
        self, key: Any, lowered: Lowered, leaves: Sequence[Any], args: Any, kwargs: Any, around: tuple[Any, ...]
    ) -> None:
        self.key, self.lowered, self.around = key, lowered, around
        plain = lowered.in_place and all(type(leaf) is Array for leaf in leaves)
        self.positional = skeleton_of(args) if plain else None
        self.named = skeleton_of(kwargs) if plain else None
        self.layouts = [leaf._layout for leaf in leaves] if plain else []
        self.dtypes = [leaf._dtype for leaf in leaves] if plain else []

    def fits(self, args: Any, kwargs: Any, leaves: list[Any], around: tuple[Any, ...]) -> bool:
        """Whether a call is of the same kind, and its leaves; only for calls on arrays alone, and cheaper than a key."""
        if self.positional is None or self.named is None or around != self.around:
            return False
        if not leaves_like(self.positional, args, leaves) or not leaves_like(self.named, kwargs, leaves):
            return False
        try:
            return [x._layout for x in leaves] == self.layouts and [x._dtype for x in leaves] == self.dtypes
        except AttributeError:
            return False


def _check_function(function: Any) -> None:
    """Refuse what can't become one program that returns arrays."""
    if isinstance(function, staticmethod | classmethod):
        kind = type(function).__name__
        raise ProgramError(f"sjit takes the function inside a {kind}: write @{kind} in the line above @sw.sjit.")
    if not callable(function):
        raise ProgramError(f"sjit takes a function; got {function!r}, a {type(function).__name__}.")
    kinds = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    if any(is_kind(function) for is_kind in kinds):
        raise ProgramError(
            f"{function.__name__} is a generator or a coroutine, which runs after its call has returned. Return the arrays, "
            f"in a list or a tuple."
        )


class Applied:
    """A jitted function whose first arguments are given: a function of the others. `first` may be abstract until it runs."""

    def __init__(self, program: SJIT, first: tuple[Any, ...], placed: Callable[[], tuple[Any, ...]]) -> None:
        self.program, self.first, self._placed = program, first, placed
        self.__name__, self.__doc__ = program.__name__, program.__doc__
        self._arrays: tuple[Any, ...] | None = None

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The first arguments as arrays; they are placed when they are first needed, since explaining needs no engine."""
        if self._arrays is None:
            self._arrays = self._placed()
        return self._arrays

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.program(*self.arrays, *args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The program for arguments of this kind, without running it."""
        return self.program.lower(*self.first, *args, **kwargs)


class Bound:
    """A jitted method of one object: the object's own programs, whose arguments are those after `self`."""

    def __init__(self, program: SJIT, instance: Any) -> None:
        self.program, self.__self__, self.__doc__ = program, instance, program.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.program(*args, **kwargs)

    def owned(self) -> SJIT:
        """The object's own program with the same options, as a jitted function that keeps the object alive."""
        method = self.program.function.function  # type: ignore[attr-defined]  # of a Method
        return SJIT(MethodType(method, self.__self__), self.program._options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.program, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.__self__, self.program.__name__)


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
    placement: "str | Callable[..., Program]" = "propagate",
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
      read anew at every call, and what is computed from them is part of the program; if their elements were looked at
      (`float(w)`), a change of them has the function traced anew. Host tensors and numbers from outside are what they were
      when the function was traced, and so are arrays in sets or under names that are computed (`getattr(x, name)`).
    - `args_sharding_constraint` reshards arguments once more, inside; `annotation_shardings` says what the names of
      `with_sharding_annotation` stand for; arrays of donated arguments can't be read afterwards.
    - `placement` says how values that nothing is said of are laid out: "propagate" takes shardings from their neighbours,
      "search" finds the layout of least time (see `auto`), which takes longer, and is never another than what was given.
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
        "placement": placement,
    }
    return (lambda function: SJIT(function, options)) if fn is None else SJIT(fn, options)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """What a function will do with these arguments: every step, its strategies, its collectives and what they cost.

    >>> mesh = Mesh(x=4)
    >>> a, b = shard(np.ones((128, 64)), mesh, P("x")), shard(np.ones((64, 32)), mesh, P())
    >>> print(explain(lambda a, b: a @ b, a, b).rows[-1].reason)
    it takes 40.96 ns, the next best 3.36 µs

    The function is traced, not run. A strategy is printed as `axis → factor`: factors are the index ranges of the operation's
    rule, m, k and n of a matmul, `...0`, `...1` for dims that broadcast (the last one highest), d0, d1 for dims by
    number, r… for pieces of a reshape.
    """
    return lowered_for(function, "explain", args, kwargs)[0].explain()


def lowered_for(
    function: Callable[..., Any], what: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Lowered, list[Any]]:
    """A function lowered for arguments, and their leaves."""
    if isinstance(function, Bound):
        function = function.program
    if isinstance(function, Applied):
        first = function.first if what == "explain" else function.arrays  # what runs needs elements
        function, args = function.program, (*first, *args)
    known = function if isinstance(function, SJIT) else sjit(function)
    leaves = known.leaves(*args, **kwargs)
    if not any(is_dynamic(leaf) for leaf in leaves):
        raise ProgramError(
            f"{what} traces what a function does with its arguments, and {known.__name__} got no array. Pass the arrays it "
            f"works on: {what}(lambda x, w: x @ w, x, w)."
        )
    return known.lower(*args, **kwargs), leaves
