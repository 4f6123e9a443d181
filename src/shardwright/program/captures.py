"""Arrays that a function reads from outside: where it finds them, so that every call reads what is there now.

A traced function may read `self.w`, a variable of an enclosing function, a global, a field of a static argument, or an
entry of any of these. While it is traced only the array is seen. So the ways to it are searched for once: from the object of
a method, closures, globals that the code names, defaults and static arguments, through attributes, classes and their methods,
dictionaries and sequences. A call follows them again. If they lead to another array of the same kind, that is what the program
runs on. The function is traced anew if they lead to different ones or nowhere, if a container on the way has other keys, names
or another length, if a way leads through another function, if another name of an object on the way no longer leads to it, or if
something where an array may come (an attribute that was None, a container that was empty) is no longer so. An array that no way
leads to stays what it was: in a set, under a name that is computed, or made while the function was traced.
"""

import functools
import inspect
import operator
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from itertools import islice
from typing import Any, NamedTuple

from shardwright.arrays import Array

MOST = 20_000  # objects that are looked into
MOST_WAYS = 8  # to one array that are followed at every call
MOST_STEPS = 500  # of one way
MOST_VACANT = 200  # places where arrays may come that are looked at in every call


Step = tuple[Callable[[Any, Any], Any], Any]  # how to go on from a value, such as getattr, and its name or key


class Way(NamedTuple):
    """How to reach a value: from an object, by attributes and keys."""

    root: Callable[[], Any]
    steps: tuple[Step, ...]

    def follow(self) -> Any:
        """What is there now; None if nothing is."""
        try:
            at = self.root()
            for step, key in self.steps:
                at = step(at, key)
        except (AttributeError, LookupError, TypeError, ValueError):
            return None
        return at

    def is_named(self, names: set[str]) -> bool:
        """Whether it ends with a variable, or with an attribute or a key that code with these names may read."""
        if not self.steps:
            return True
        step, key = self.steps[-1]
        return step is operator.getitem or (step is getattr and key in names)

    def is_read(self, names: set[str]) -> bool:
        """Whether code with these names may go this way."""
        return all(step is not getattr or key in names or key in _HIDDEN for step, key in self.steps)


class Captured:
    """One array from outside, and the ways that lead to it."""

    __slots__ = ("array", "version", "ways")

    def __init__(self, array: Array, ways: Sequence[Way]) -> None:
        self.array, self.version, self.ways = array, array.version, tuple(ways)

    def is_unchanged(self) -> bool:
        """Whether all ways lead to the array, and its elements are those that it had."""
        return self.now() is self.array and self.array.version is self.version

    def now(self) -> Array | None:
        """The array that all ways lead to; None if they lead to several, or to one of another kind."""
        if not self.ways:
            return self.array
        found = self.ways[0].follow()
        for way in self.ways[1:]:
            if way.follow() is not found:
                return None
        if found is self.array:
            return self.array
        if type(found) is not Array or found._layout is not self.array._layout or found._dtype != self.array._dtype:
            return None
        return found


class Guard(NamedTuple):
    """What a program relies on beside the arrays: a container and its keys or names, or a place that holds nothing."""

    way: Way
    seen: Any

    def holds(self) -> bool:
        """Whether it is still so."""
        return bool(_form(self.way.follow()) == self.seen)


class Same(NamedTuple):
    """What a program relies on beside the arrays: two ways that lead to one object."""

    way: Way
    other: Way

    def holds(self) -> bool:
        """Whether they still do."""
        return self.way.follow() is self.other.follow()


def _form(at: Any) -> Any:
    """The keys of a dictionary; of a sequence the length, and the names in it, or all that a tuple has beside arrays."""
    if isinstance(at, dict | types.MappingProxyType):
        return type(at), *at
    if isinstance(at, tuple):
        return type(at), len(at), *[x if isinstance(x, str | int | float | complex) else None for x in at]
    if isinstance(at, list | deque):
        return type(at), len(at), *[x for x in at if type(x) is str]
    return type(at)


class Outside:
    """What a program reads from outside: arrays, what was looked at while it was traced, and what both rely on."""

    def __init__(
        self, function: Any, arrays: Sequence[Array], looked_at: Sequence[Array], statics: Sequence[Any]
    ) -> None:
        self._statics = list(statics)  # of the call that is running
        wanted: dict[int, list[Way]] = {id(array): [] for array in (*arrays, *looked_at)}
        relied = self._searched(function, wanted)
        self.captured = [Captured(array, wanted[id(array)]) for array in arrays]
        self.looked_at = [Captured(array, wanted[id(array)]) for array in looked_at]
        self.guards = [*_containers([way for ways in wanted.values() for way in ways]), *relied]
        self.is_read = bool(self.captured or self.looked_at or self.guards)

    def arrays(self, statics: Sequence[Any]) -> list[Array] | None:
        """The arrays as they are now; None if the function must be traced anew to know."""
        if statics:
            self._statics[:] = statics
        for guard in self.guards:
            if not guard.holds():
                return None
        for known in self.looked_at:
            if not known.is_unchanged():
                return None
        found = [outside.now() for outside in self.captured]
        return None if any(array is None for array in found) else found  # type: ignore[return-value]

    def _searched(self, function: Any, wanted: dict[int, list[Way]]) -> list[Guard | Same]:
        """Adds the ways to some arrays; gives the places where others may come, and what else the ways rely on."""
        seen: dict[int, list[Way]] = {}  # all ways to an object; only from the first it is looked into
        through: dict[int, tuple[Way, Way, Any]] = {}  # by where a way starts: that way, the way to its function, that
        names, vacant = set[str](), list[Way]()
        queue: deque[tuple[Any, Way]] = deque()

        def enter(at: Any, reached: tuple[Way, Any] | None = None) -> None:
            names.update(_names_of(at))
            for way in _roots(at):
                queue.append((way.follow(), way))
                if reached is not None:
                    through[id(way.root)] = way, *reached

        enter(function)
        for number, value in enumerate(self._statics):
            queue.append((value, Way(functools.partial(self._statics.__getitem__, number), ())))
        while queue and len(seen) < MOST:
            at, way = queue.popleft()
            if id(at) in wanted and isinstance(at, Array):
                if len(wanted[id(at)]) < MOST_WAYS:
                    wanted[id(at)].append(way)
                continue
            if at is None or (isinstance(at, list | dict | deque) and not at):
                vacant.append(way)
            if at is None or isinstance(at, _PLAIN) or len(way.steps) > MOST_STEPS:
                continue
            known = seen.setdefault(id(at), [])
            if len(known) < MOST_WAYS:
                known.append(way)
            if known[0] is not way:
                continue
            if _is_library(at):
                continue
            if (
                type(at).__module__.partition(".")[0] == "shardwright"
            ):  # skip our own caches; search the wrapped function
                enter(getattr(at, "function", None), (way, at))
                queue.append((getattr(at, "__self__", None), Way(functools.partial(getattr, at, "__self__", None), ())))
                continue
            if isinstance(at, types.FunctionType | types.MethodType | functools.partial):
                enter(at, (way, at))
                continue
            inside = islice(_inside(at), MOST)
            queue.extend((value, Way(way.root, (*way.steps, step))) for step, value in inside)
        places = [way for way in vacant if way.is_named(names)]
        named = {number: [ways[0], *(way for way in ways[1:] if way.is_read(names))] for number, ways in seen.items()}
        same = _aliases([way for ways in wanted.values() for way in ways], named, through)
        return [*(Guard(way, _form(way.follow())) for way in places[:MOST_VACANT]), *same]


def _containers(ways: Sequence[Way]) -> list[Guard]:
    """The containers that ways lead through."""
    found: dict[int, Guard] = {}
    for way in ways:
        at = way.root()
        for number, (step, key) in enumerate(way.steps):
            if isinstance(at, dict | types.MappingProxyType | list | tuple | deque) and id(at) not in found:
                found[id(at)] = Guard(Way(way.root, way.steps[:number]), _form(at))
            at = step(at, key)
    return list(found.values())


def _aliases(ways: Sequence[Way], seen: dict[int, list[Way]], through: dict[int, tuple[Way, Way, Any]]) -> list[Same]:
    """Other ways to what ways lead through, and the functions that all of them start in."""
    found: dict[int, list[Same]] = {}
    kept: dict[int, Same] = {}

    def chain(way: Way) -> list[Way]:
        """The way, and those to the functions that it starts in, which are kept."""
        result = [way]
        while id(way.root) in through:
            _, way, function = through[id(way.root)]
            kept[id(function)] = Same(way, Way(functools.partial(_itself, function), ()))
            result.append(way)
        return result

    for way in [part for one in ways for part in chain(one)]:
        at = way.root()
        for step in (*way.steps, None):
            if id(at) not in found:
                first, *others = seen.get(id(at), (way,))
                found[id(at)] = [Same(other, first) for other in others]
                for other in others:
                    chain(other)
            at = None if step is None else step[0](at, step[1])
    return [guard for guards in (*found.values(), kept.values()) for guard in guards if guard.holds()]


def _itself(at: Any) -> Any:
    return at


_LIBRARIES = (sys.stdlib_module_names | {"numpy", "optree", "torch", "jax", "jaxlib", "pytest", "hypothesis"}) - {
    "builtins", "types", "collections", "functools", "weakref", "_contextvars", "_thread",
}  # fmt: skip  # objects of other people hold none of the user's arrays


def _is_library(at: Any) -> bool:
    if isinstance(at, types.FunctionType | type):
        return (at.__module__ or "").partition(".")[0] in (_LIBRARIES | {"shardwright", "builtins"})
    return type(at).__module__.partition(".")[0] in _LIBRARIES


_PLAIN = (str, bytes, int, float, complex, types.ModuleType, types.BuiltinFunctionType, types.CodeType, Array)


def _roots(function: Any) -> Iterator[Way]:
    """The variables that a function's code can reach by name."""
    if isinstance(function, functools.partial):
        yield Way(lambda: function, ((getattr, "args"),))
        yield Way(lambda: function, ((getattr, "keywords"),))
        yield from _roots(function.func)
        return
    if isinstance(function, Method):
        yield Way(function.owner, ())
        yield from _roots(function.function)
        return
    if isinstance(function, types.MethodType):
        yield Way(functools.partial(getattr, function, "__self__"), ())
        function = function.__func__
    if isinstance(function, types.WrapperDescriptorType):  # the __call__ of what is written in C, and its own
        return
    if not isinstance(function, types.FunctionType):
        if callable(function) and not isinstance(function, type):
            yield Way(lambda: function, ())  # an object with __call__
            yield from _roots(
                next((vars(c)["__call__"] for c in type(function).__mro__ if "__call__" in vars(c)), None)
            )
        return
    for cell in function.__closure__ or ():
        yield Way(functools.partial(getattr, cell, "cell_contents", None), ())
    outside = function.__globals__
    names = _names(function.__code__)
    for name in names:
        if name not in outside:
            continue
        if isinstance(outside[name], types.ModuleType):
            known = names & vars(outside[name]).keys()
            yield from (Way(functools.partial(outside.get, name), ((getattr, inner),)) for inner in known)
        else:
            yield Way(functools.partial(outside.get, name), ())
    for name in ("__defaults__", "__kwdefaults__"):
        if getattr(function, name):
            yield Way(functools.partial(getattr, function, name), ())


def _names_of(function: Any) -> set[str]:
    """Every name that a function uses."""
    while isinstance(function, functools.partial | Method | types.MethodType):
        at = function
        function = (
            at.func if isinstance(at, functools.partial) else at.function if isinstance(at, Method) else at.__func__
        )
    return _names(function.__code__) if isinstance(function, types.FunctionType) else set()


def _names(code: types.CodeType) -> set[str]:
    """Every name that code and the functions inside it use."""
    inner = (_names(part) for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*inner)


def _inside(at: Any) -> Iterator[tuple[Step, Any]]:
    """What an object holds: (the step to it, the value)."""
    if isinstance(at, type):  # as the class itself has it: nothing is bound or computed
        yield from (((_of_class, name), value) for name, value in list(vars(at).items()))
        yield from (((_base, number), base) for number, base in enumerate(at.__bases__))
        yield (_class, None), type(at)
        return
    if isinstance(at, dict | types.MappingProxyType):
        yield from (((operator.getitem, key), value) for key, value in list(at.items()))
    elif isinstance(at, list | tuple | deque):
        yield from (((operator.getitem, number), value) for number, value in enumerate(at))
    elif isinstance(at, weakref.ref):
        yield (_called, ()), at()
    elif isinstance(at, ContextVar):
        yield (_variable, None), at.get(None)
    slots = (name for cls in type(at).__mro__ for name in slots_of(cls))
    for name in (*getattr(at, "__dict__", {}), *slots, *_WRAPPED.get(type(at), ())):
        if isinstance(name, str) and hasattr(at, name):
            yield (getattr, name), getattr(at, name)
    for cls in type(at).__mro__:  # arrays of a class
        yield from (((getattr, name), value) for name, value in list(vars(cls).items()) if isinstance(value, Array))
    yield (_class, None), type(at)


_HIDDEN = {"args", "keywords", "fget", "__func__", "data", "maps"}  # of partials, properties, UserDict, ChainMap
_WRAPPED = {property: ("fget",), staticmethod: ("__func__",), classmethod: ("__func__",)}


def _of_class(at: Any, name: str) -> Any:
    return vars(at)[name]


def _base(at: Any, number: int) -> Any:
    return at.__bases__[number]


def _class(at: Any, _: None) -> Any:
    return type(at)


def _called(at: Any, arguments: tuple[Any, ...]) -> Any:
    return at(*arguments)


def _variable(at: "ContextVar[Any]", default: Any) -> Any:
    return at.get(default)


def slots_of(cls: type) -> Sequence[str]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else [name for name in slots if name not in ("__dict__", "__weakref__")]


class Method:
    """A function with an object as its first argument, which does not keep the object alive."""

    def __init__(self, function: Callable[..., Any], instance: Any) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        signature = inspect.signature(function)
        self.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])
        try:
            self.owner: Callable[[], Any] = weakref.ref(instance)
        except TypeError:
            self.owner = lambda: instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.owner(), *args, **kwargs)
