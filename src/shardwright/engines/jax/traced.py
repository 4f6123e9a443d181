"""Code as one traced function of a device's shards: instructions in order, loops and choices as JAX's."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwright.engines.jax.checks import Check, neutral, worse
from shardwright.engines.jax.inside import Inside
from shardwright.plan import (
    Choice,
    Code,
    Each,
    FromLocal,
    Fused,
    Local,
    LocalStep,
    Scan,
    Slot,
    Step,
    ToLocal,
    While,
    parts_of,
)

Array = Any
Values = Sequence[Array]


def has_functions(code: Code) -> bool:
    """Whether code runs Python functions on tensors per device, which only the host can."""
    return any(
        isinstance(line.what, Each) or any(has_functions(part) for _, part in parts_of(line.what))
        for line in code.instructions
    )


def traced(inside: Inside, code: Code, data: Values) -> list[Array]:
    """The outputs of code on a device's shards; what checks look at is added to `inside.checks`."""
    values: dict[Slot, Array] = dict(zip(code.inputs, data, strict=True))
    for line in code.instructions:
        inputs = [values[x] if isinstance(x, Slot) else x for x in line.inputs]
        values.update(zip(line.outputs, _made(inside, line.what, inputs), strict=True))
    return [values[x] for x in code.outputs]


def _made(inside: Inside, what: Any, data: Values) -> Sequence[Array]:
    if isinstance(what, Local):
        return inside.local(what, data)
    if isinstance(what, Fused):
        return inside.reduced(what.steps, data)
    if isinstance(what, Step):
        return (inside.step(what, data[0]),)
    if isinstance(what, ToLocal):
        return (data[0],)
    if isinstance(what, FromLocal):
        return (_fitted(data[0], what.layout.local_shape),)
    if isinstance(what, LocalStep):
        return (inside.collective(what, data[0]),)
    if isinstance(what, Choice):
        return _choice(inside, what, data)
    if isinstance(what, While):
        return _while(inside, what, data)
    assert isinstance(what, Scan), what
    return _scan(inside, what, data)


def _fitted(x: Array, shape: tuple[int, ...]) -> Array:
    """A padded tensor with another padding."""
    if x.shape == shape:
        return x
    cut = x[tuple(slice(0, n) for n in shape)]
    return jnp.pad(cut, [(0, n - k) for n, k in zip(shape, cut.shape, strict=True)])


class _Part:
    """Code inside a loop or a choice as a function that gives its outputs, then what its checks found."""

    def __init__(self, inside: Inside, code: Code, data: Values) -> None:
        self.inside, self.code = inside, code
        self.checks: list[Check] = []
        self.found = jax.eval_shape(self, *data)[len(code.outputs) :]

    def __call__(self, *data: Array) -> tuple[Array, ...]:
        outer, self.inside.checks = self.inside.checks, []
        try:
            outputs = traced(self.inside, self.code, data)
            self.checks = self.inside.checks
        finally:
            self.inside.checks = outer
        return (*outputs, *(check.found for check in self.checks))

    @property
    def nothing_found(self) -> tuple[Array, ...]:
        """What the checks find where the code does not run."""
        return tuple(map(neutral, self.found))


def _noted(inside: Inside, checks: Sequence[Check], found: Sequence[Array]) -> None:
    inside.checks += [Check(x, check.fail) for check, x in zip(checks, found, strict=True)]


def _choice(inside: Inside, what: Choice, data: Values) -> Sequence[Array]:
    flag, *rest = data
    own = what.shared + what.captured
    first, second = rest[:own], [*rest[: what.shared], *rest[own:]]
    true, false = _Part(inside, what.true, first), _Part(inside, what.false, second)
    count = len(what.true.outputs)

    def taken(part: _Part, data: Values) -> Callable[[], tuple[Array, ...]]:
        def run() -> tuple[Array, ...]:
            made = part(*data)
            others = (true.nothing_found if part is false else (), false.nothing_found if part is true else ())
            return (*made[:count], *others[0], *made[count:], *others[1])

        return run

    made = lax.cond(flag.reshape(()), taken(true, first), taken(false, second))
    _noted(inside, [*true.checks, *false.checks], made[count:])
    return made[:count]


def _while(inside: Inside, what: While, data: Values) -> Sequence[Array]:
    """The condition is worked out before the loop and at the end of every round, so that its checks are results too."""
    count, own = what.carried, what.carried + what.captured
    state, within, beside = data[:count], data[count:own], data[own:]
    condition, body = _Part(inside, what.condition, [*state, *beside]), _Part(inside, what.body, [*state, *within])

    def run(carry: Any) -> Any:
        _, state, found = carry
        made = body(*state, *within)
        state = made[:count]
        flag, *again = condition(*state, *beside)
        new = (*made[count:], *again)
        return flag.reshape(()), state, tuple(map(worse, found, new))

    flag, *first = condition(*state, *beside)
    start = (flag.reshape(()), tuple(state), (*body.nothing_found, *first))
    _, state, found = lax.while_loop(lambda carry: carry[0], run, start)
    _noted(inside, [*body.checks, *condition.checks], found)
    return state


def _scan(inside: Inside, what: Scan, data: Values) -> Sequence[Array]:
    count, own = what.carried, what.carried + len(what.tables)
    state, tables, within = tuple(data[:count]), tuple(data[count:own]), data[own:]
    body = _Part(inside, what.body, [*state, *(jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in tables), *within])
    made_count = len(what.body.outputs)

    def run(carry: Any, rows: Any) -> Any:
        state, found = carry
        made = body(*state, *rows, *within)
        return (made[:count], tuple(map(worse, found, made[made_count:]))), made[count:made_count]

    (state, found), collected = lax.scan(run, (state, body.nothing_found), tables, length=what.rounds)
    _noted(inside, body.checks, found)
    return (*state, *collected)
