"""How often a while loop of an HLO module runs: as XLA says, or from its condition, its start and its step."""

import re
from collections.abc import Mapping
from typing import Any

from shardwright.jax.hlo import Computation, Instruction, Module

_KNOWN = re.compile(r'known_trip_count\\*":\s*\{\s*\\*"n\\*":\s*\\*"?(\d+)')
_TRANSPARENT = ("copy", "bitcast", "reshape", "convert")
_TURNED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}

Term = tuple[
    Any, ...
]  # ("constant", 5), ("carried", 0), ("add", term, term), ("compare", "LT", term, term), ("other",)
OTHER: Term = ("other",)


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """The rounds of a while loop; None if their number is data-dependent."""
    known = _KNOWN.search(loop.attributes.get("backend_config", ""))
    if known:
        return int(known[1])
    body, condition = (module.computations[loop.attributes[name].lstrip("%")] for name in ("body", "condition"))
    return _counted(module, computation, loop, body, condition)


def _counted(
    module: Module, computation: Computation, loop: Instruction, body: Computation, condition: Computation
) -> int | None:
    """The rounds of a loop that adds a constant to a carried integer until it passes another constant."""
    test = _term(module, condition, condition.root, {})
    if test[0] != "compare":
        return None
    _, direction, left, right = test
    if left[0] == "constant":
        direction, left, right = _TURNED.get(direction, direction), right, left
    if left[0] != "carried" or right[0] != "constant":
        return None
    start = _element(module, computation, computation.operand(loop, 0), left[1], {})
    step = _element(module, body, body.root, left[1], {})
    if start[0] != "constant" or step[0] != "add":
        return None
    amounts = [term[1] for term in step[1:] if term[0] == "constant"]
    if len(amounts) != 1 or left not in step[1:]:
        return None
    return _rounds(direction, start[1], amounts[0], right[1])


def _rounds(direction: str, start: int, step: int, end: int) -> int | None:
    """Rounds from a start in steps while `value direction end` holds; None if it holds for ever."""
    if direction in ("GT", "GE"):
        direction, start, step, end = _TURNED[direction], -start, -step, -end
    if direction == "LE":
        direction, end = "LT", end + 1
    if direction != "LT":
        return None
    if start >= end:
        return 0
    return -(-(end - start) // step) if step > 0 else None


def _element(
    module: Module, computation: Computation, made: Instruction, index: int | None, inputs: Mapping[int, Term]
) -> Term:
    """An element of what an instruction makes: of a tuple, or (index None) the value itself."""
    if index is None:
        return _term(module, computation, made, inputs)
    while made.opcode in _TRANSPARENT:
        made = computation.operand(made, 0)
    if made.opcode != "tuple":
        return OTHER
    return _term(module, computation, computation.operand(made, index), inputs)


def _term(module: Module, computation: Computation, made: Instruction, inputs: Mapping[int, Term]) -> Term:
    """What an instruction computes, through fusions and calls, in terms of constants and of what a loop carries."""
    opcode = made.opcode
    if opcode == "constant":
        number = re.fullmatch(r"-?\d+", made.arguments.strip())
        return ("constant", int(number[0])) if number else OTHER
    if opcode == "parameter":
        return inputs.get(int(made.arguments), OTHER) if inputs else ("carried", None)
    if opcode == "get-tuple-element":
        source = computation.operand(made, 0)
        while source.opcode in _TRANSPARENT:
            source = computation.operand(source, 0)
        return ("carried", int(made.attributes["index"])) if source.opcode == "parameter" and not inputs else OTHER
    if opcode in _TRANSPARENT:
        return _term(module, computation, computation.operand(made, 0), inputs)
    if opcode in ("add", "compare", "fusion", "call"):
        terms = [_term(module, computation, computation.operand(made, at), inputs) for at in range(len(made.operands))]
        if opcode == "add":
            return ("add", *terms)
        if opcode == "compare":
            return ("compare", made.attributes["direction"], *terms)
        called = [module.computations[name] for _, name in module.called(made)]
        return _term(module, called[0], called[0].root, dict(enumerate(terms))) if len(called) == 1 else OTHER
    return OTHER
