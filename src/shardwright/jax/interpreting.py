"""Jaxprs run on sharded values: each equation by the functions of `primitives`, each on its line of the user's file.

Equations whose operands are all known are worked out by JAX on the host. No equation that has an Array as an operand is.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from shardwright import xla
from shardwright.arrays import Array
from shardwright.errors import OperationError, ShardingError, ShardwrightError
from shardwright.jax.expanding import data_of, expansion, implementation_of, is_key
from shardwright.jax.primitives import PRIMITIVES
from shardwright.lines import Line, located
from shardwright.mesh import current_mesh
from shardwright.program import cond, scan, while_loop, with_sharding_constraint
from shardwright.sharding import P
from shardwright.xla import Value

CALLS = {  # primitives that run a jaxpr of their own, and the parameter that it is
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "composite": "jaxpr",
}
CONTROL = ("scan", "while", "cond", "sharding_constraint")
_LIBRARIES = tuple(os.sep + name + os.sep for name in ("site-packages", "dist-packages"))


_NOWHERE = Line("")
_here: ContextVar[Line] = ContextVar("here", default=_NOWHERE)  # the line of the equation that runs


class UnknownPrimitiveError(OperationError):
    """A function has primitives that have no counterpart here."""


def run(jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Value]) -> list[Value]:
    """The results of a jaxpr."""
    values: dict[Any, Value] = {}

    def read(atom: Any) -> Value:
        if not isinstance(atom, Literal):
            return values[atom]
        kind: Any = atom.aval
        return np.asarray(atom.val, kind.dtype)

    values.update(zip(jaxpr.constvars, map(held, constants), strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))
    last = _last_uses(jaxpr)
    for number, eqn in enumerate(jaxpr.eqns):
        made = _equation(eqn, [read(atom) for atom in eqn.invars])
        values.update(zip(eqn.outvars, made, strict=True))
        for atom in last.get(number, ()):
            del values[atom]
    return [read(atom) for atom in jaxpr.outvars]


def _last_uses(jaxpr: Any) -> dict[int, list[Any]]:
    """Which variables no later equation reads, by the number of the equation."""
    last: dict[Any, int] = {}
    for number, eqn in enumerate(jaxpr.eqns):
        for atom in (*eqn.invars, *eqn.outvars):
            if not isinstance(atom, Literal):
                last[atom] = number
    for atom in jaxpr.outvars:
        if not isinstance(atom, Literal):
            last.pop(atom, None)
    found: dict[int, list[Any]] = {}
    for atom, number in last.items():
        found.setdefault(number, []).append(atom)
    return found


def held(value: Any) -> Value:
    """A constant of a jaxpr as a known value; keys as the rows of bits that they are."""
    if isinstance(value, Array):
        return value
    if isinstance(value, jax.Array) and is_key(value):
        value = jax.random.key_data(value)
    return np.asarray(value)


def _equation(eqn: Any, operands: list[Value]) -> list[Value]:
    name = eqn.primitive.name
    inner, line = _called(eqn), _line(eqn)
    token = _here.set(line)
    try:
        with located(line):
            if inner is not None:
                return run(inner.jaxpr, inner.consts, operands)
            if _folds(eqn, operands):
                return _folded(eqn, operands)
            made = _CONTROL[name](eqn, operands) if name in CONTROL else PRIMITIVES[name](*operands, **eqn.params)
    except ShardwrightError as error:
        if inner is not None or not line or line in str(error):
            raise
        raise type(error)(f"{name} ({line}): {error}") from error
    finally:
        _here.reset(token)
    results = list(made) if isinstance(made, list | tuple) else [made]
    return [_checked(eqn, var, value) for var, value in zip(eqn.outvars, results, strict=True)]


def _line(eqn: Any) -> Line:
    """The line of an equation and its name stack, below those of the call that it is part of."""
    outer = _here.get()
    parts = (outer.stack, str(eqn.source_info.name_stack))
    return Line(line_of(eqn) or outer, "/".join(part for part in parts if part))


def _called(eqn: Any) -> Any:
    """The closed jaxpr that an equation runs, as it is or expanded; None if it is an operation."""
    name = eqn.primitive.name
    if name in CALLS:
        inner = eqn.params[CALLS[name]]
        return inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
    return expansion(eqn)


def _checked(eqn: Any, var: Any, value: Value) -> Value:
    """A result in the dtype that the jaxpr declares; its shape must be the declared one."""
    shape, dtype = data_of(var.aval)
    assert tuple(value.shape) == shape, f"{eqn.primitive.name} gives {value.shape} instead of {shape}"
    return xla.convert(value, dtype)


# -- equations on known values -----------------------------------------------------------------------------------------------


# Equations that NumPy computes to the same bits: compiling them in JAX, even once each, takes longer than all the rest.
_EXACT = frozenset(
    """
    add sub mul div max min neg abs and or xor not eq ne lt le gt ge select_n clamp convert_element_type iota
    broadcast_in_dim reshape squeeze expand_dims transpose rev concatenate slice split stack pad floor ceil sqrt is_finite
    copy stop_gradient sharding_constraint device_put optimization_barrier iota_2x32_shape
    """.split()
)


def _folds(eqn: Any, operands: Sequence[Value]) -> bool:
    """Whether JAX works an equation out now: all operands are known, and neither they nor the results are large."""
    if not all(map(xla.is_known, operands)) or eqn.primitive.name in _EXACT:
        return False
    sizes = [x.size for x in operands] + [math.prod(v.aval.shape) for v in eqn.outvars]
    return max(sizes, default=0) <= xla.MOST_FOLDED and implementation_of(eqn) is None


def _folded(eqn: Any, operands: Sequence[Any]) -> list[Value]:
    made = eqn.primitive.bind(*map(xla.contiguous, operands), **eqn.params)
    return [_compact(np.asarray(x)) for x in (made if eqn.primitive.multiple_results else [made])]


def _compact(x: Any) -> Any:
    """A known value, with a stride of 0 if all its elements are equal."""
    if x.size > 1 and (x == x.flat[0]).all() and x.dtype.kind != "V":
        return np.broadcast_to(x.flat[0], x.shape)
    return x


# -- control flow ------------------------------------------------------------------------------------------------------------


def _lifted(values: Sequence[Value]) -> tuple[Array, ...]:
    return tuple(map(xla.lifted, values))


def _scan(eqn: Any, operands: Sequence[Value]) -> list[Value]:
    p = eqn.params
    consts, carries = p["num_consts"], p["num_carry"]
    outside, start, rows = operands[:consts], operands[consts : consts + carries], operands[consts + carries :]
    if p["reverse"]:
        rows = [xla.reverse(x, (0,)) for x in rows]
    inner = p["jaxpr"]

    def body(carry: Any, xs: Any) -> Any:
        made = _lifted(run(inner.jaxpr, inner.consts, [*outside, *carry, *xs]))
        return made[:carries], made[carries:]

    if not p["length"]:
        return [*start, *(xla.splat(0, *data_of(v.aval)) for v in eqn.outvars[carries:])]
    last, stacked = scan(body, _lifted(start), _lifted(rows), length=p["length"])
    made = stacked or ()
    return [*last, *(xla.reverse(x, (0,)) if p["reverse"] else x for x in made)]


def _while(eqn: Any, operands: Sequence[Value]) -> list[Value]:
    p = eqn.params
    tests, bodies = p["cond_nconsts"], p["body_nconsts"]
    for_test, for_body = operands[:tests], operands[tests : tests + bodies]
    test, body = p["cond_jaxpr"], p["body_jaxpr"]

    def again(state: Any) -> Any:
        return xla.lifted(run(test.jaxpr, test.consts, [*for_test, *state])[0])

    def once(state: Any) -> Any:
        return _lifted(run(body.jaxpr, body.consts, [*for_body, *state]))

    return list(while_loop(again, once, _lifted(operands[tests + bodies :])))


def _cond(eqn: Any, operands: Sequence[Value]) -> list[Value]:
    which, *rest = operands
    branches = eqn.params["branches"]

    def taken(number: int) -> Callable[[], tuple[Array, ...]]:
        return lambda: _lifted(run(branches[number].jaxpr, branches[number].consts, rest))

    if xla.is_known(which):
        return list(taken(min(max(int(which), 0), len(branches) - 1))())
    number = xla.convert(which, np.int32)
    return list(_chosen(number, [taken(i) for i in range(len(branches))]))


def _chosen(number: Value, branches: Sequence[Callable[[], tuple[Array, ...]]]) -> tuple[Array, ...]:
    """The branch of a number; numbers out of range take the first or the last."""
    first, rest = branches[0], branches[1:]
    if not rest:
        return first()
    begins = xla.ELEMENTWISE["less_equal"](number, np.asarray(0, np.int32))
    following = (
        rest[0]
        if len(rest) == 1
        else lambda: _chosen(xla.ELEMENTWISE["subtract"](number, np.asarray(1, np.int32)), rest)
    )
    made: tuple[Array, ...] = cond(begins, first, following)
    return made


def _constrained(eqn: Any, operands: Sequence[Value]) -> Value:
    """A constraint by its spec; the axes must be axes of the mesh that the function runs on."""
    sharding, open_dims = eqn.params["sharding"], eqn.params.get("unconstrained_dims", ())
    spec, mesh = getattr(sharding, "spec", None), current_mesh()
    if spec is None or mesh is None:
        raise ShardingError(f"a constraint to {sharding} is not supported. Use a NamedSharding or a PartitionSpec.")
    if open_dims:
        raise ShardingError(f"a constraint to {spec} leaves dims open, which is not supported. Name every dim.")
    named = {axis for entry in spec for axis in ((entry,) if isinstance(entry, str) else entry or ())}
    if not named <= set(mesh.sizes):
        raise ShardingError(f"a constraint to {spec} names {sorted(named - set(mesh.sizes))}; {mesh} has other axes.")
    return with_sharding_constraint(xla.lifted(operands[0]), P(*spec))


_CONTROL: dict[str, Callable[..., Any]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "sharding_constraint": _constrained,
}


# -- lines, and what is unknown ----------------------------------------------------------------------------------------------


def line_of(eqn: Any) -> str:
    """The line of the user's code that an equation comes from, past libraries; "" if it has none."""
    traceback = eqn.source_info.traceback
    if traceback is None:
        return ""
    frames = [frame for frame in traceback.frames if not _is_jax(frame.file_name)]
    own = [frame for frame in frames if not any(folder in frame.file_name for folder in _LIBRARIES)]
    for frame in own or frames:
        return f"{frame.file_name}:{frame.line_num}"
    return ""


_JAX = os.path.dirname(os.path.abspath(str(jax.__file__))) + os.sep


def _is_jax(file: str) -> bool:
    return file.startswith((_JAX, "<"))


def check(jaxpr: ClosedJaxpr) -> None:
    """Raises one error that lists all primitives which are unknown here, each with its first line."""
    found: dict[str, str] = {}
    for eqn, line in _unknown(jaxpr.jaxpr, set(), ""):
        found.setdefault(_described(eqn), line)
    if found:
        listed = "".join(f"\n  {name}{f' at {line}' if line else ''}" for name, line in found.items())
        raise UnknownPrimitiveError(
            f"The function has {len(found)} primitive{'s' * (len(found) > 1)} that can't be imported:{listed}\n"
            f"docs/importing_jax.md lists those that can. Compute them outside of the function, or write them with others."
        )


def _described(eqn: Any) -> str:
    implementation = implementation_of(eqn)
    return eqn.primitive.name if implementation is None else f"{eqn.primitive.name} of {implementation.name} keys"


def _unknown(jaxpr: Jaxpr, known: set[Any], outer: str) -> Iterator[tuple[Any, str]]:
    """Equations that have no function here and their lines; not those with known operands, which JAX works out."""
    known = known | set(jaxpr.constvars)
    for eqn in jaxpr.eqns:
        given = [isinstance(atom, Literal) or atom in known for atom in eqn.invars]
        name, line = eqn.primitive.name, line_of(eqn) or outer
        if all(given):
            known |= set(eqn.outvars)
        elif name in CALLS:
            inner = _called(eqn).jaxpr
            yield from _unknown(
                inner, {var for var, is_known in zip(inner.invars, given, strict=True) if is_known}, line
            )
        elif name in ("scan", "while", "cond"):
            for part in _parts(eqn):
                yield from _unknown(part.jaxpr, set(), line)
        elif name not in PRIMITIVES and name not in CONTROL and not _expands(eqn):
            yield eqn, line


def _expands(eqn: Any) -> bool:
    """Whether an equation stands for others that are all known."""
    try:
        expanded = expansion(eqn)
    except Exception:  # random keys of an implementation that can't be traced by itself
        return False
    return expanded is not None and not any(True for _ in _unknown(expanded.jaxpr, set(), ""))


def _parts(eqn: Any) -> list[Any]:
    p = eqn.params
    return (
        [*p["branches"]] if "branches" in p else [p[key] for key in ("jaxpr", "cond_jaxpr", "body_jaxpr") if key in p]
    )
