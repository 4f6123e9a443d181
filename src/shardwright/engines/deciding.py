"""Loops and choices, on any engine: by a boolean that all devices hold, or by one of each device's own.

Where devices decide differently all of them run both branches, or go on as long as one does, and each keeps its own results.
So they come to the same collectives in the same order.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardwright.engines.lanes import Lanes
from shardwright.errors import ProgramError
from shardwright.plan import Choice, While

Runner = Callable[..., Sequence[Any]]


def _decision(engine: Any, data: Any, uniform: bool) -> bool | None:
    """What all devices say; None where they differ. What the first says all say, if the boolean is an array."""
    if hasattr(data, "parts"):
        return bool(data.parts[0])
    if isinstance(data, Lanes):
        flags = data.data.astype(bool)
    elif hasattr(data, "local_shapes"):
        flags = np.array([bool(x) for x in engine.values(data)])
    else:
        return bool(data.ravel()[0])
    if flags.all() or not flags.any():
        return bool(flags.all())
    if uniform:
        raise ProgramError(
            f"Of {flags.size} devices {np.count_nonzero(flags)} decide otherwise than the rest, but the program says that all "
            f"decide alike. Correct the arguments or the program."
        )
    return None


def _own(engine: Any, flag: Any, ones: Sequence[Any], others: Sequence[Any]) -> tuple[Any, ...]:
    """On every device its own choice of two results."""
    return tuple(
        engine.each(lambda own, a, b: a if bool(own) else b, [flag, one, other])
        for one, other in zip(ones, others, strict=True)
    )


def choose(engine: Any, what: Choice, true: Runner, false: Runner) -> Runner:
    """A choice between two codes."""
    shared, own = what.shared, what.shared + what.captured

    def run(flag: Any, *data: Any) -> Sequence[Any]:
        decision = _decision(engine, flag, what.uniform)
        if decision:
            return true(*data[:own])
        others = false(*data[:shared], *data[own:])
        return others if decision is False else _own(engine, flag, true(*data[:own]), others)

    return run


def repeat(engine: Any, what: While, condition: Runner, body: Runner) -> Runner:
    """A body that runs as long as a condition holds."""
    count, own = what.carried, what.carried + what.captured

    def run(*data: Any) -> Sequence[Any]:
        state: Sequence[Any] = data[:count]
        inside, outside = data[count:own], data[own:]
        while True:
            flag = condition(*state, *outside)[0]
            decision = _decision(engine, flag, what.uniform)
            if decision is False:
                return state
            after = body(*state, *inside)
            state = after if decision else _own(engine, flag, after, state)

    return run
