"""How the arguments of a call become one tuple of values: which are static or donated, and which shardings they get."""

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from shardwright.errors import ProgramError
from shardwright.jax.resolving import Rule, is_entry


class Form(NamedTuple):
    """How a call is written: the number of positional arguments, then names of keyword arguments that can't be those."""

    positional: int
    names: tuple[str, ...] = ()


class Arguments:
    """The parameters of a function. A value's slot is the place of its parameter in the signature."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.name = getattr(function, "__name__", repr(function))
        self.positional, self.keyword_only, self.more, self.open = _parameters(function)
        self.statics = lru_cache(maxsize=1024)(self._marked("static", options))
        self.donated = lru_cache(maxsize=1024)(self._marked("donate", options))

    def joined(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Form]:
        """All arguments of a call as one tuple. Keyword arguments that follow the positional ones become positional."""
        rest = dict(kwargs)
        for name in self.positional[len(args) :]:
            if name not in rest:
                break
            args = (*args, rest.pop(name))
        names = tuple(sorted(rest, key=self._slot_of_name))
        return (*args, *(rest[name] for name in names)), Form(len(args), names)

    def split(self, values: tuple[Any, ...], form: Form) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inverse of `joined`."""
        return values[: form.positional], dict(zip(form.names, values[form.positional :], strict=True))

    def dynamic(self, values: tuple[Any, ...], form: Form) -> tuple[Any, ...]:
        """The values that are not static."""
        statics = self.statics(form)
        return tuple(value for at, value in enumerate(values) if at not in statics) if statics else values

    def entries(self, rules: Rule, form: Form, what: str) -> Rule:
        """The entry of each dynamic value in a tuple of rules; one rule for all stays as it is."""
        if is_entry(rules):
            return rules
        if not isinstance(rules, tuple | list):
            raise ProgramError(
                f"{what} of {self.name}: got {rules!r}. Give one rule or spec, or a tuple with one per argument."
            )
        statics, slots = self.statics(form), self._slots(form)
        marked = {slots[at] for at in statics}
        numbers = {
            slot: number for number, slot in enumerate(s for s in range(max(slots, default=0) + 1) if s not in marked)
        }
        wanted = [(slot, numbers[slot]) for at, slot in enumerate(slots) if at not in statics]
        self._check_count(rules, wanted, marked, what)
        return tuple(rules[number] if number < len(rules) else None for _, number in wanted)

    def _check_count(self, rules: Sequence[Any], wanted: list[tuple[int, int]], marked: set[int], what: str) -> None:
        by_position = [number for slot, number in wanted if slot < len(self.positional) or self.more]
        known = len(self.positional) + len(self.keyword_only) - len(marked)
        most = len(rules) if self.open else max(known, len(wanted)) if not self.more else len(wanted)
        if max(by_position, default=-1) >= len(rules) or len(rules) > most:
            raise ProgramError(
                f"{what} of {self.name} has {len(rules)} entries, but the call has {len(wanted)} arguments that are not "
                f"static. Give one entry for each, None to leave it open."
            )

    def _slots(self, form: Form) -> tuple[int, ...]:
        return (*range(form.positional), *(self._slot_of_name(name) for name in form.names))

    def _slot_of_name(self, name: str) -> Any:
        known = (*self.positional, *self.keyword_only)
        return known.index(name) if name in known else len(known)

    def _marked(self, kind: str, options: dict[str, Any]) -> Callable[[Form], tuple[int, ...]]:
        """A function that says which values of a call are static, or donated."""
        what = f"{kind}_argnums"
        numbers, names = _sequence(options.get(what)), set(_sequence(options.get(f"{kind}_argnames")))
        known = (*self.positional, *self.keyword_only)
        for number in numbers:
            if not isinstance(number, int) or (
                not self.more and not -len(self.positional) <= number < len(self.positional)
            ):
                raise ProgramError(
                    f"{what}: {number!r} is not an argument of {self.name}({', '.join(self.positional)}), which has "
                    f"{len(self.positional)} positional ones."
                )
        for name in names:
            if name not in known and not self.open:
                raise ProgramError(f"{kind}_argnames: {self.name} has no argument {name!r}; it has {', '.join(known)}.")

        def marked(form: Form) -> tuple[int, ...]:
            count = form.positional if self.more else len(self.positional)
            slots = {number % count for number in numbers if -count <= number < count}
            slots |= {known.index(name) for name in names if name in known}
            by_place = (at for at, slot in enumerate(self._slots(form)) if slot in slots)
            by_name = (form.positional + at for at, name in enumerate(form.names) if name in names)
            return tuple(sorted({*by_place, *by_name}))

        return marked


def _parameters(function: Callable[..., Any]) -> tuple[list[str], list[str], bool, bool]:
    """The names of positional and of keyword-only parameters, and whether the function takes more of either."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # some functions written in C
        return [], [], True, True
    of_kind = {kind: [p.name for p in parameters if p.kind is kind] for kind in inspect._ParameterKind}
    return (
        of_kind[inspect.Parameter.POSITIONAL_ONLY] + of_kind[inspect.Parameter.POSITIONAL_OR_KEYWORD],
        of_kind[inspect.Parameter.KEYWORD_ONLY],
        bool(of_kind[inspect.Parameter.VAR_POSITIONAL]),
        bool(of_kind[inspect.Parameter.VAR_KEYWORD]),
    )


def _sequence(given: Any) -> tuple[Any, ...]:
    return () if given is None else (given,) if isinstance(given, int | str) else tuple(given)
