"""`sjit`: `jax.jit` with shardings that are resolved by rules for the arguments at hand.

Each kind of call (its form, static values, and, if there are rules, tree structure, shapes and dtypes) has a function of
`jax.jit` with its own shardings. A warm call must cost what `jax.jit` costs, so it does not compute its kind: it goes to
the function that fits as far as kinds differ at all, and that function refuses, while JAX traces it, what it is not for.
"""

import functools
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from shardwright.errors import ProgramError, ShardingError, ShardingWarning
from shardwright.jax.arguments import Arguments, Form
from shardwright.jax.constraints import constrained
from shardwright.jax.context import MeshShardingContext
from shardwright.jax.explaining import explain
from shardwright.jax.resolving import has_rules, is_entry, resolved
from shardwright.jax.rules import is_spec, partition_spec

MOST = 4096  # kinds of calls that are kept for a function, as many as jax.jit keeps
_form = functools.lru_cache(maxsize=1024)(Form)
_OWN = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")


class Kind(NamedTuple):
    """What a jitted function is for."""

    form: Form
    statics: tuple[Any, ...]  # values, then their types
    structure: Any = None
    leaves: tuple[Any, ...] = ()  # shapes and dtypes


class _Group(NamedTuple):
    """The jitted functions for one form and static values: the only one, or those found by what differs between them."""

    only: Any
    differ: tuple[int, ...] = ()  # leaves that tell kinds apart
    known: Mapping[Any, Any] | None = None


class _OtherKindError(Exception):
    """The function is traced for a kind of call that it was not made for."""


class SJITCompiledFunction:
    """A function compiled by `jax.jit` for each kind of arguments, with shardings by rules. Made by `helper.sjit`."""

    def __init__(
        self,
        function: Callable[..., Any],
        context: MeshShardingContext,
        in_shardings: Any,
        out_shardings: Any,
        args_sharding_constraint: Any,
        options: dict[str, Any],
    ) -> None:
        functools.update_wrapper(self, function)
        self.mesh = context.mesh_helper
        self._function, self._context = function, context
        self._in, self._out, self._constraint = in_shardings, out_shardings, args_sharding_constraint
        self._arguments = Arguments(function, options)
        self._options = {name: value for name, value in options.items() if name not in _OWN}
        self._by_shape = has_rules(in_shardings) or has_rules(out_shardings)
        self._lock = threading.Lock()
        self._jitted: dict[Kind, Any] = {}
        self._groups: dict[tuple[Form, tuple[Any, ...]], _Group] = {}
        self._only: Any = None  # the jitted function, as long as there is one kind of calls
        self._plain = not any(options.get(name) is not None for name in _OWN[:2])  # no static arguments

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        jitted = self._only
        if jitted is None or kwargs:
            return self._call(args, kwargs)
        try:
            return jitted(*args)
        except Exception as error:
            return self._again(jitted, args, _form(len(args)), error)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a function that has several kinds, or none yet."""
        values, form = self._joined(args, kwargs)
        jitted = self._likely(values, form)
        if jitted is None:
            with self._context:
                return self._for(values, form)(*values)
        try:
            return jitted(*values)
        except Exception as error:
            return self._again(jitted, values, form, error)

    def _again(self, jitted: Any, values: tuple[Any, ...], form: Form, error: Exception) -> Any:
        """A call that failed, by the function for its kind if that is another one; and where a derivative by the user's own
        rule is traced beside the function, so that its constraints had no mesh."""
        with self._context:
            right = self._for(values, form)
            if right is jitted and not isinstance(error, ShardingError):
                raise error
            return right(*values)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else _Bound(self, instance)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """`jax.jit(…).lower` for these arguments, which may be abstract; `.compile()` then compiles ahead of time."""
        with self._context:
            values, form = self._joined(args, kwargs)
            return self._for(values, form).lower(*values)

    def get_jitted_function_by_args(self, *args: Any, **kwargs: Any) -> Any:
        """The function of `jax.jit` that calls with such arguments run, its shardings resolved."""
        with self._context:
            return self._for(*self._joined(args, kwargs))

    def explain(self, *args: Any, **kwargs: Any) -> Any:
        """What the compiled function communicates and computes, as a table; arguments may be abstract."""
        with self._context:
            values, form = self._joined(args, kwargs)
            return explain(self._for(values, form), *values, mesh=self.mesh.mesh)

    # -- from a call to its function ----------------------------------------------------------------------------------

    def _joined(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Form]:
        return self._arguments.joined(args, kwargs) if kwargs else (args, _form(len(args)))

    def _likely(self, values: tuple[Any, ...], form: Form) -> Any:
        """The function that these values should go to; it refuses them if they are of a kind that is not known yet."""
        statics = () if self._plain else self._statics(values, form)
        try:
            group = self._groups.get((form, statics))
        except TypeError:  # a static value without a hash, which `_kind` reports
            return None
        if group is None or group.known is None:
            return None if group is None else group.only
        leaves, structure = jax.tree_util.tree_flatten(self._arguments.dynamic(values, form))
        return group.known.get((structure, *[_leaf_kind(leaves[at]) for at in group.differ if at < len(leaves)]))

    def _statics(self, values: tuple[Any, ...], form: Form) -> tuple[Any, ...]:
        statics = [values[at] for at in self._arguments.statics(form)]
        return (*statics, *map(type, statics))  # True and 1 are equal

    def _kind(self, values: tuple[Any, ...], form: Form) -> Kind:
        statics = self._statics(values, form)
        for value in statics:
            try:
                hash(value)
            except TypeError as error:
                raise ProgramError(
                    f"{self._arguments.name}: a static argument is a {type(value).__name__}, which can't be hashed. Pass a "
                    f"tuple or another immutable value, or don't make it static."
                ) from error
        if not self._by_shape:
            return Kind(form, statics)
        leaves, structure = jax.tree_util.tree_flatten(self._arguments.dynamic(values, form))
        return Kind(form, statics, structure, tuple(map(_leaf_kind, leaves)))

    def _for(self, values: tuple[Any, ...], form: Form) -> Any:
        """The jitted function for these values, made at their first call."""
        kind = self._kind(values, form)
        jitted = self._jitted.get(kind)
        if jitted is None:
            jitted = self._made(values, kind)
            with self._lock:
                if len(self._jitted) >= MOST:
                    self._jitted, self._groups = {}, {}
                jitted = self._jitted.setdefault(kind, jitted)  # another thread may have been first
                self._only = jitted if len(self._jitted) == 1 and not kind.form.names else None
                self._groups[kind[:2]] = _group({k: v for k, v in self._jitted.items() if k[:2] == kind[:2]})
        return jitted

    # -- making one ---------------------------------------------------------------------------------------------------

    def _made(self, values: tuple[Any, ...], kind: Kind) -> Any:
        statics, donated = self._arguments.statics(kind.form), self._arguments.donated(kind.form)
        traced = self._traced(len(values), kind)
        options: dict[str, Any] = dict(self._options)
        if self._in is not None:
            options["in_shardings"] = self._in_shardings(values, kind.form)
        if self._out is not None:
            options["out_shardings"] = self._out_shardings(traced, values, statics)
        if donated:
            options["donate_argnums"] = donated
        return jax.jit(traced, static_argnums=statics, **options)

    def _traced(self, count: int, kind: Kind) -> Callable[..., Any]:
        """The function that JAX traces for one kind of calls."""

        def traced(*values: Any) -> Any:
            if len(values) != count or self._kind(values, kind.form) != kind:
                raise _OtherKindError(f"{self._arguments.name} was traced for other arguments than it was made for.")
            with self._context:
                args, kwargs = self._arguments.split(self._constrained(values, kind.form), kind.form)
                result = self._function(*args, **kwargs)
            self._check_annotations()
            return result

        if kind.form.names:
            traced.__name__ = traced.__qualname__ = self._arguments.name
        else:
            functools.update_wrapper(traced, self._function, updated=())  # JAX's messages name the arguments
        return traced

    def _constrained(self, values: tuple[Any, ...], form: Form) -> tuple[Any, ...]:
        if self._constraint is None:
            return values
        what = "args_sharding_constraint"
        dynamic, statics = self._arguments.dynamic(values, form), self._arguments.statics(form)
        laid_out = iter(
            constrained(dynamic, self._arguments.entries(self._constraint, form, what), self.mesh.mesh, what)
        )
        return tuple(value if at in statics else next(laid_out) for at, value in enumerate(values))

    def _in_shardings(self, values: tuple[Any, ...], form: Form) -> Any:
        dynamic, entries = (
            self._arguments.dynamic(values, form),
            self._arguments.entries(self._in, form, "in_shardings"),
        )
        found = resolved(entries, dynamic, self.mesh.mesh, f"in_shardings of {self._arguments.name}")
        if self._by_shape:
            return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(dynamic), found)
        return self._named(entries)  # holds for arguments of other shapes too

    def _out_shardings(self, traced: Callable[..., Any], values: tuple[Any, ...], statics: tuple[int, ...]) -> Any:
        if not has_rules(self._out):
            return self._named(self._out)
        jitted: Any = jax.jit(traced, static_argnums=statics)
        shapes = jitted.eval_shape(*values)  # JAX keeps what it traced for the call
        found = resolved(self._out, shapes, self.mesh.mesh, f"out_shardings of {self._arguments.name}")
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shapes), found)

    def _named(self, specs: Any) -> Any:
        """A tree of specs as one of NamedShardings."""

        def named(spec: Any) -> Any:
            return NamedSharding(self.mesh.mesh, partition_spec(spec)) if is_spec(spec) else spec

        return jax.tree_util.tree_map(named, specs, is_leaf=is_entry)

    def _check_annotations(self) -> None:
        """Warns, once, of annotations with a meaning that the function never asks for."""
        known, used = self._context.annotation_shardings or {}, self._context.used
        unused = [name for name, rule in known.items() if rule is not None and name not in used]
        if unused:
            used.update(unused)
            warnings.warn(
                f"annotation_shardings of {self._arguments.name} names {', '.join(map(repr, unused))}, which the function does "
                f"not use. Correct or remove it.",
                ShardingWarning,
                stacklevel=2,
            )


class _Bound:
    """A function of `sjit` as a method: the object is its first argument."""

    def __init__(self, function: SJITCompiledFunction, instance: Any) -> None:
        functools.update_wrapper(self, function, updated=())
        self.__self__, self.__func__ = instance, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """See `SJITCompiledFunction.lower`."""
        return self.__func__.lower(self.__self__, *args, **kwargs)

    def get_jitted_function_by_args(self, *args: Any, **kwargs: Any) -> Any:
        """See `SJITCompiledFunction.get_jitted_function_by_args`; the object is its first argument too."""
        return self.__func__.get_jitted_function_by_args(self.__self__, *args, **kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> Any:
        """See `SJITCompiledFunction.explain`."""
        return self.__func__.explain(self.__self__, *args, **kwargs)


def _group(jitted: Mapping[Kind, Any]) -> _Group:
    """How to find the function for one form and static values by as few leaves as tell their kinds apart."""
    if len(jitted) == 1:
        return _Group(next(iter(jitted.values())))
    differ: set[int] = set()
    for structure in {kind.structure for kind in jitted}:
        alike = [kind.leaves for kind in jitted if kind.structure == structure]
        differ.update(at for at, column in enumerate(zip(*alike, strict=True)) if len(set(column)) > 1)
    places = tuple(sorted(differ))
    keys = ((kind.structure, *[kind.leaves[at] for at in places if at < len(kind.leaves)]) for kind in jitted)
    return _Group(None, places, dict(zip(keys, jitted.values(), strict=True)))


def _leaf_kind(leaf: Any) -> Any:
    """The shape and dtype that JAX gives a leaf; the type of one that it does not take."""
    abstract = getattr(leaf, "aval", None)  # of JAX's arrays, traced ones included
    if abstract is not None:
        return abstract.shape, abstract.dtype
    if isinstance(leaf, bool | int | float | complex) and not isinstance(leaf, np.generic):
        return (), jax.typeof(leaf).dtype
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None:
        return type(leaf)
    return tuple(shape), jax.dtypes.canonicalize_dtype(dtype) if isinstance(dtype, np.dtype) else dtype
