"""NumPy's own functions on Arrays: which ones are accepted, and how their arguments become ours.

Arguments are bound by NumPy's signature and passed on by name, so an option means what NumPy says. An option that ours
does not have is refused by name unless it has its default value; nothing is dropped.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from types import ModuleType
from typing import Any

import numpy as np

from shardwright.arrays import Array
from shardwright.errors import OperationError
from shardwright.numpy.common import array, axes_of
from shardwright.numpy.elementwise import where
from shardwright.numpy.linalg import einsum
from shardwright.numpy.moves import concat, permute_dims, reshape, squeeze, take, take_along_axis
from shardwright.numpy.statistics import argsort, nonzero, sort

Function = Callable[..., Any]
Parameters = Mapping[str, inspect.Parameter]

LIKE = "arange asarray empty eye full ones zeros".split()  # NumPy hands these over for like=x only
RENAMED = {"ddof": "correction", "rcond": "rtol", "a_min": "min", "a_max": "max", "M": "n_cols"}
UFUNC_OPTIONS = {
    "out": None, "where": True, "axes": None, "axis": None, "keepdims": False, "casting": "same_kind", "order": "K",
    "dtype": None, "subok": True, "signature": None,
}  # fmt: skip
INSTEAD = {
    "out": "Use the result: y = {name}(…)",
    "where": "Choose elements first with np.where(mask, x, …)",
    "dtype": "Convert with x.astype(…)",
    "initial": "Combine it with the result",
    "device": "Arrays are on a mesh: use sharding= of shardwright.numpy",
}


def adapted(theirs: Function, ours: Function) -> Function:
    """Ours, called with the arguments of NumPy's function."""

    def call(*args: Any, **options: Any) -> Any:
        if not options and isinstance(theirs, np.ufunc):
            return ours(*args)
        known = signature_of(ours).parameters
        operands: list[Any] = []
        values: dict[str, Any] = {}
        for target, option, value in _given(signature_of(theirs), known, args, options):
            if option is None:
                operands += value
            elif target is None:
                name = name_of(theirs)
                advice = INSTEAD.get(option, "Leave it out").format(name=name)
                raise TypeError(
                    f"{name} does not take {option}= on sharded arrays. {advice}, or compute on the host: np.asarray(x)."
                )
            elif target in values:
                raise TypeError(f"{name_of(theirs)}: {option}= gives {target!r} a second time. Give it once.")
            else:
                values[target] = value
        return ours(*(values.pop(name) for name in _operands(known) if name in values), *operands, **values)

    return call


def _given(signature: inspect.Signature, known: Parameters, args: Any, options: Any) -> Iterator[tuple[Any, Any, Any]]:
    """The arguments of a call as (our parameter or None, NumPy's name, value); all of `*args` have no name.

    Options that ours does not have are left out if they have their default value. If ours needs an argument that NumPy
    does not, NumPy's default is given.
    """
    given = signature.bind(*args, **options).arguments
    for at, p in enumerate(signature.parameters.values()):
        if p.kind is p.VAR_POSITIONAL:
            yield None, None, list(given.get(p.name, ()))
            continue
        if p.kind is p.VAR_KEYWORD:
            yield from ((None, option, value) for option, value in given.get(p.name, {}).items())
            continue
        name = RENAMED.get(p.name, p.name)
        target = name if name in known and name != "device" else None  # NumPy's device is "cpu", ours is the mesh
        if target is None and p.default is p.empty:
            target = _operands(known)[at]  # operands have other names: a and x, v and x2
        value = given.get(p.name, p.default)
        if target is None:
            wanted = not is_default(value, p.default)
        else:
            wanted = (p.name in given or known[target].default is p.empty) and value is not np._NoValue
        if wanted:
            yield target, p.name, value


def _operands(known: Parameters) -> list[str]:
    """The parameters that ours takes by position only."""
    return [p.name for p in known.values() if p.kind is p.POSITIONAL_ONLY]


def is_default(value: Any, default: Any) -> bool:
    """Whether an argument says no more than its parameter's default."""
    return value is default or (isinstance(value, bool | int | float | str) and value == default)


def name_of(theirs: Function) -> str:
    """The name that users call NumPy's function by."""
    return f"{getattr(theirs, '__module__', 'numpy')}.{theirs.__name__}".replace("numpy", "np", 1)


@cache
def signature_of(function: Function) -> inspect.Signature:
    """The parameters of a function; NumPy hands a ufunc's operands over by position and its options by name."""
    kinds = inspect.Parameter
    if isinstance(function, np.ufunc):
        operands = [inspect.Parameter(f"x{i + 1}", kinds.POSITIONAL_ONLY) for i in range(function.nin)]
        options = [inspect.Parameter(o, kinds.KEYWORD_ONLY, default=value) for o, value in UFUNC_OPTIONS.items()]
        return inspect.Signature([*operands, *options])
    try:
        return inspect.signature(function)
    except ValueError:  # before NumPy 2.4 some functions have none: operands only, all options are refused
        both = ("operands", kinds.VAR_POSITIONAL), ("options", kinds.VAR_KEYWORD)
        return inspect.Signature([inspect.Parameter(name, kind) for name, kind in both])


# -- functions that NumPy has otherwise ---------------------------------------------------------------------------------


def _flattened(ours: Function) -> Function:
    """As ours, but axis=None stands for the flattened tensor."""
    default = inspect.signature(ours).parameters["axis"].default

    @wraps(ours)
    def function(x: Any, /, *others: Any, **options: Any) -> Any:
        if options.get("axis", default) is None:
            x, options["axis"] = reshape(array(ours.__name__, x), -1), 0
        return ours(x, *others, **options)

    return function


def _where(condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None and y is None:
        return nonzero(condition)
    if x is None or y is None:
        raise OperationError("where: give both x and y, or neither for the indices of true elements.")
    return where(condition, x, y)


def _einsum(*operands: Any, optimize: Any = False) -> Array:  # optimize= is a hint for the order of products
    return einsum(*operands)


def _transpose(a: Array, axes: Any = None) -> Array:
    return permute_dims(a, range(a.ndim)[::-1] if axes is None else axes)


def _squeeze(a: Array, axis: Any = None) -> Array:
    return squeeze(a, tuple(d for d, n in enumerate(a.shape) if n == 1) if axis is None else axis)


def _ndim(a: Array) -> int:
    return a.ndim


def _shape(a: Array) -> tuple[int, ...]:
    return a.shape


def _size(a: Array, axis: Any = None) -> int:
    return int(np.prod([a.shape[dim] for dim in axes_of("size", axis, a.ndim)], dtype=np.int64))


def _can_cast(from_: Any, to: Any, casting: Any = "safe") -> bool:
    return np.can_cast(from_.dtype if isinstance(from_, Array) else from_, to, casting)


def _array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> bool:
    return np.array_equal(np.asarray(a1), np.asarray(a2), equal_nan)


def _allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> bool:
    return np.allclose(np.asarray(a), np.asarray(b), rtol, atol, equal_nan)


OTHERWISE: dict[str, Function] = {
    "concatenate": concat,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "where": _where,
    "einsum": _einsum,
    **{function.__name__: _flattened(function) for function in (sort, argsort, take, take_along_axis)},
    **{function.__name__[1:]: function for function in (_ndim, _shape, _size, _can_cast, _array_equal, _allclose)},
}


def accepted(namespace: ModuleType) -> dict[Function, Function]:
    """Maps the functions that NumPy hands over to ours of the same name, which take NumPy's arguments."""
    result = {}
    for space, numpys in ((namespace, np), (namespace.linalg, np.linalg), (namespace.fft, np.fft)):
        ours = {name: getattr(space, name) for name in space.__all__}
        if numpys is np:
            ours |= {**OTHERWISE, "amax": namespace.max, "amin": namespace.min}
        for name, function in ours.items():
            theirs: Any = getattr(numpys, name, None)
            if name in LIKE or isinstance(theirs, np.ufunc) or hasattr(theirs, "_implementation"):
                result[theirs] = adapted(theirs, function)
    return result
