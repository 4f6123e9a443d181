"""How the arguments of a call become one tuple of values: which are static or donated, and which shardings they get."""

import inspect
from collections.abc import Callable
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
        static, donate = self._marked("static", options), self._marked("donate", options)
        self.statics = lru_cache(maxsize=1024)(lambda form: self._values_of(static, form))
        self.donated = lru_cache(maxsize=1024)(lambda form: self._values_of(donate, form))
        self._order = lru_cache(maxsize=1024)(self._ordered)
        self._static_slots = lru_cache(maxsize=1024)(lambda form: self._slots_of(static, form))

    def joined(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Form]:
        """All arguments of a call as one tuple. Keyword arguments that follow the positional ones become positional."""
        names, form = self._order(len(args), tuple(kwargs))
        return (*args, *[kwargs[name] for name in names]), form

    def _ordered(self, count: int, given: tuple[str, ...]) -> tuple[tuple[str, ...], Form]:
        """The order of keyword arguments behind a number of positional ones, and the form of such calls."""
        places = self.positional[count:]
        following = next((at for at, name in enumerate(places) if name not in given), len(places))
        lead, order = places[:following], [*self.positional, *self.keyword_only]
        rest = [name for name in given if name not in lead]
        rest.sort(key=lambda name: (order.index(name) if name in order else len(order), name))
        return (*lead, *rest), Form(count + following, tuple(rest))

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
        static, places = self._static_slots(form), set(self.statics(form))
        slots = [slot for at, slot in enumerate(self._slots(form)) if at not in places]
        numbers = [None if slot is None else slot - sum(other < slot for other in static) for slot in slots]
        by_position = sum(at not in places for at in range(form.positional))
        known = len(self.positional) + (0 if self.more else len(self.keyword_only)) - len(static)
        if not by_position <= len(rules) <= max(known, by_position):
            raise ProgramError(
                f"{what} of {self.name} has {len(rules)} entries, but the call has {len(slots)} arguments that are not "
                f"static. Give one entry for each, None to leave it open."
            )
        return tuple(None if number is None or number >= len(rules) else rules[number] for number in numbers)

    def _slots(self, form: Form) -> list[int | None]:
        """The place in the signature of each value; None for keyword arguments that no entry of a tuple of rules is for."""
        order = (*self.positional, *(() if self.more else self.keyword_only))
        return [*range(form.positional), *(order.index(name) if name in order else None for name in form.names)]

    def _marked(self, kind: str, options: dict[str, Any]) -> tuple[tuple[int, ...], frozenset[str]]:
        """The numbers and names of arguments that are static, or donated, checked."""
        numbers, names = (
            _sequence(options.get(f"{kind}_argnums")),
            frozenset(_sequence(options.get(f"{kind}_argnames"))),
        )
        known, count = (*self.positional, *self.keyword_only), len(self.positional)
        for number in numbers:
            if not isinstance(number, int) or (not self.more and not -count <= number < count):
                raise ProgramError(
                    f"{kind}_argnums: {number!r} is not an argument of {self.name}({', '.join(self.positional)}), which has "
                    f"{count} positional ones."
                )
        for name in names:
            if name not in known and not self.open:
                raise ProgramError(f"{kind}_argnames: {self.name} has no argument {name!r}; it has {', '.join(known)}.")
        return numbers, names

    def _slots_of(self, marked: tuple[tuple[int, ...], frozenset[str]], form: Form) -> set[int]:
        """The places in the signature that marks are for; negative numbers count from the end, of `*args` from the call's."""
        numbers, names = marked
        count = form.positional if self.more else len(self.positional)
        by_name = {
            at for at, name in enumerate((*self.positional, *(() if self.more else self.keyword_only))) if name in names
        }
        return {number % count for number in numbers if -count <= number < count} | by_name

    def _values_of(self, marked: tuple[tuple[int, ...], frozenset[str]], form: Form) -> tuple[int, ...]:
        """The values of a call that are marked."""
        slots = self._slots_of(marked, form)
        by_name = {form.positional + at for at, name in enumerate(form.names) if name in marked[1]}
        return tuple(sorted({at for at, slot in enumerate(self._slots(form)) if slot in slots} | by_name))


def _parameters(function: Callable[..., Any]) -> tuple[list[str], list[str], bool, bool]:
    """The names of positional and of keyword-only parameters, and whether the function takes more of either."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):  # some functions written in C
        return [], [], True, True

    def named(*kinds: Any) -> list[str]:
        return [parameter.name for parameter in parameters if parameter.kind in kinds]

    kinds = inspect.Parameter
    return (
        named(kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD),
        named(kinds.KEYWORD_ONLY),
        bool(named(kinds.VAR_POSITIONAL)),
        bool(named(kinds.VAR_KEYWORD)),
    )


def _sequence(given: Any) -> tuple[Any, ...]:
    return () if given is None else (given,) if isinstance(given, int | str) else tuple(given)
