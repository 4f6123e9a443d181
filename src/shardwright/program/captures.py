"""Arrays that a function reads from outside: where it finds them, so that every call reads what is there now.

A traced function may read `self.w`, a variable of an enclosing function, a global, or an entry of any of these. While it is
traced only the array is seen. So the ways to it are searched for once: from the object of a method, closures, globals that the
code names, and defaults, through attributes, dictionaries and sequences. A call follows them again. If they lead to
another array of the same kind, that is what the program runs on; if they lead to different ones or nowhere, the function
is traced anew.
"""

import functools
import inspect
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from shardwright.arrays import Array

MOST = 20_000  # objects that are looked into
MOST_WAYS = 8  # to one array that are followed at every call


class Way(NamedTuple):
    """How to reach a value: from an object, by attributes and keys."""

    root: Callable[[], Any]
    steps: tuple[tuple[bool, Any], ...]  # (whether it is an attribute, its name or key)

    def follow(self) -> Any:
        """What is there now; None if nothing is."""
        try:
            at = self.root()
            for is_attribute, key in self.steps:
                at = getattr(at, key) if is_attribute else at[key]
        except (AttributeError, LookupError, TypeError, ValueError):
            return None
        return at


class Captured:
    """One array from outside, and the ways that lead to it."""

    __slots__ = ("array", "ways")

    def __init__(self, array: Array, ways: Sequence[Way]) -> None:
        self.array, self.ways = array, tuple(ways)

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


def captured(function: Any, arrays: Sequence[Array]) -> list[Captured]:
    """The arrays that a function reads from outside, with the ways to them."""
    if not arrays:
        return []
    wanted: dict[int, list[Way]] = {id(array): [] for array in arrays}
    seen: set[int] = set()
    queue: deque[tuple[Any, Way]] = deque((way.follow(), way) for way in _roots(function))
    while queue and len(seen) < MOST:
        at, way = queue.popleft()
        if id(at) in wanted and isinstance(at, Array):
            if len(wanted[id(at)]) < MOST_WAYS:
                wanted[id(at)].append(way)
            continue
        if at is None or isinstance(at, _PLAIN) or id(at) in seen or len(way.steps) > 32:
            continue
        seen.add(id(at))
        if _is_library(at):
            continue
        if type(at).__module__.partition(".")[0] == "shardwright":  # skip our own caches; search the wrapped function
            queue += ((inner.follow(), inner) for inner in _roots(getattr(at, "function", None)))
            queue.append((getattr(at, "__self__", None), Way(functools.partial(getattr, at, "__self__", None), ())))
            continue
        if isinstance(at, types.FunctionType | types.MethodType | functools.partial):
            queue += ((inner.follow(), inner) for inner in _roots(at))
            continue
        queue += ((value, Way(way.root, (*way.steps, step))) for step, value in _inside(at))
    return [Captured(array, wanted[id(array)]) for array in arrays]


_LIBRARIES = (sys.stdlib_module_names | {"numpy", "optree", "torch", "jax", "jaxlib", "pytest", "hypothesis"}) - {
    "builtins", "types", "collections", "functools",
}  # fmt: skip  # objects of other people hold none of the user's arrays


def _is_library(at: Any) -> bool:
    if isinstance(at, types.FunctionType):
        return (at.__module__ or "").partition(".")[0] in (_LIBRARIES | {"shardwright"})
    return type(at).__module__.partition(".")[0] in _LIBRARIES


_PLAIN = (str, bytes, int, float, complex, type, types.ModuleType, types.BuiltinFunctionType, types.CodeType, Array)


def _roots(function: Any) -> Iterator[Way]:
    """The variables that a function's code can reach by name."""
    if isinstance(function, functools.partial):
        yield Way(lambda: function, ((True, "args"),))
        yield Way(lambda: function, ((True, "keywords"),))
        yield from _roots(function.func)
        return
    if isinstance(function, Method):
        yield Way(function.owner, ())
        yield from _roots(function.function)
        return
    if isinstance(function, types.MethodType):
        yield Way(lambda: function.__self__, ())
        function = function.__func__
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
            yield from (Way(functools.partial(outside.get, name), ((True, inner),)) for inner in known)
        else:
            yield Way(functools.partial(outside.get, name), ())
    yield Way(lambda: function.__defaults__, ())
    yield Way(lambda: function.__kwdefaults__, ())


def _names(code: types.CodeType) -> set[str]:
    """Every name that code and the functions inside it use."""
    inner = (_names(part) for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*inner)


def _inside(at: Any) -> Iterator[tuple[tuple[bool, Any], Any]]:
    """What an object holds: (the step to it, the value)."""
    if isinstance(at, dict):
        yield from (((False, key), value) for key, value in list(at.items()))
    elif isinstance(at, list | tuple):
        yield from (((False, number), value) for number, value in enumerate(at))
    slots = (name for cls in type(at).__mro__ for name in _slots(cls))
    for name in (*getattr(at, "__dict__", {}), *slots):
        if isinstance(name, str) and hasattr(at, name):
            yield (True, name), getattr(at, name)
    for cls in type(at).__mro__:  # arrays of a class
        yield from (((True, name), value) for name, value in list(vars(cls).items()) if isinstance(value, Array))


def _slots(cls: type) -> Sequence[str]:
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
