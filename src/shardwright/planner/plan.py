"""`auto` and `Plan`: the best placement of a function's arguments and of all that is computed from them, with its proof."""

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from numbers import Real
from typing import Any

from shardwright.errors import PlanError, ProgramError, ShardingError, ShardwrightError
from shardwright.mesh import Mesh
from shardwright.plan import Option
from shardwright.planner.certificate import Certificate
from shardwright.planner.comparing import Comparison, Other, Standing
from shardwright.planner.searching import Found, Search
from shardwright.program import SJIT, Bound, Explanation, sjit
from shardwright.program.lowered import TracedCall
from shardwright.program.lowering import PLACEMENTS
from shardwright.program.node import Node, Program
from shardwright.program.planned import partition_by
from shardwright.program.rows import duration, size
from shardwright.rules import ShardingRule, TreePathShardingRule
from shardwright.sharding import P, Sharding, describe
from shardwright.trees import unflatten

OVERLAPS = ("none", "ideal")
MOST_NAMES = 20  # that an error lists


class Plan:
    """The best placement of a function on a mesh. Made by `auto`.

    Names are those of parameters, then the path inside: `params/layers/0/wo`.
    """

    def __init__(self, jit: SJIT, mesh: Mesh, call: TracedCall, search: Search, overlap: str) -> None:
        self._jit, self.mesh, self.overlap = jit, mesh, overlap
        self._call, self._search = call, search
        self.found: Found = search.best()

    # -- what was found -----------------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the function's inputs; tensors per device are where they are and have none."""
        return tuple(self._inputs)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs, by name."""
        return {name: node.type.shape for name, node in self._inputs.items()}

    def is_fixed(self, name: str) -> bool:
        """Whether an input lies where it was said to."""
        return _known(name, self._inputs) in self._search.fixed

    @cached_property
    def places(self) -> dict[str, Sharding]:
        """Where each input lies, by name."""
        return {name: self.found.placed(node) for name, node in self._inputs.items()}

    @cached_property
    def _inputs(self) -> dict[str, Node]:
        return _inputs_of(self._call)

    @property
    def shardings(self) -> Any:
        """The shardings as a tree like the arguments; None for arguments that are not arrays."""
        found: list[Any] = [None] * len(self._call.leaves)
        for at, name in zip(self._call.arrays, self._call.names, strict=True):
            found[at] = self.places.get(name)
        args, _ = unflatten(self._call.structure, found)
        return args

    def rules(self, parameter: str | None = None) -> TreePathShardingRule:
        """A rule that gives every input its place in this plan: for `auto` and `sjit`; of one parameter for its tree alone.

        A pattern that matches no leaf is an error, so the rule of all inputs does not fit the tree of one parameter:
        write `match_sharding_rule(plan.rules("params"), params, mesh)`.
        """
        heads = list(dict.fromkeys(name.partition("/")[0] for name in self.places))
        if parameter is not None and parameter not in heads:
            raise PlanError(
                f"The function has no parameter {parameter!r} with arrays. It has {', '.join(map(repr, heads))}."
            )
        wanted = heads if parameter is None else [parameter]
        places = {}
        for name, there in self.places.items():
            if name.partition("/")[0] in wanted:  # a spec of a single element would be P() to a rule
                split = there.axes and math.prod(self.shapes[name]) == 1
                places[name] = there if split else _written(there)
        return TreePathShardingRule(*rules_of(places))

    @cached_property
    def _read(self) -> set[Node]:
        """The nodes that something reads."""
        program = self._call.program
        return {*program.outputs, *(x for node in program.nodes for x in node.inputs if isinstance(x, Node))}

    def explain(self) -> Explanation:
        """What the planned program does: every step, what it moves and holds."""
        return self.found.explanation

    @property
    def time(self) -> float:
        """Seconds of the planned program, as `explain` adds them up."""
        return self.found.time if self.overlap == "none" else self.explain().seconds(self.overlap)

    @property
    def bound(self) -> float:
        """Seconds that no plan takes less than, if it holds no more bytes of inputs than `budget`."""
        bound = min(self._proved.bound, self.found.time)
        return bound if self.overlap == "none" else max(bound / 2, self._least_compute)

    @cached_property
    def _proved(self) -> Found:
        """The plan whose bound this one has."""
        return self._search.bounding(self.found)

    @cached_property
    def _least_compute(self) -> float:
        """Seconds that all computation takes at least, each operation by its quickest strategy."""
        variables = [v for v in self.found.model.variables if v.node not in self._search.twins.shared.operations]
        several = [v.options for v in variables if v.options and isinstance(v.options[0], Option)]
        return sum(min(option.compute for option in options) for options in several)

    @property
    def budget(self) -> float:
        """The bytes of inputs and constants on a device that `bound` is for."""
        return self._proved.solution.proof.budget

    @property
    def gap(self) -> float:
        """By what part the plan may take longer than the best."""
        return max(self.time / self.bound - 1, 0.0) if self.bound else 0.0

    @property
    def memory(self) -> int:
        """The most bytes that a device holds at a time."""
        return self.explain().peak_bytes

    @cached_property
    def certificate(self) -> Certificate:
        """What proves the bound; its `check` recomputes every price and trusts nothing that the search made."""
        found, proof = self._proved, self._proved.solution.proof
        return Certificate(
            found.program, found.fixed, tuple(found.outputs), found.hubs, found.exact, found.limit, tuple(proof.steps),
            proof.tables, proof.shifts, proof.unit, proof.price, proof.budget, min(found.bound, self.found.time), found.relaxed,
        )  # fmt: skip

    # -- questions ----------------------------------------------------------------------------------------------------

    def why_not(self, name: str, spec: "P | Sharding") -> Other:
        """What the best plan costs if one input lies elsewhere: solved again, exactly.

        A question may show that the plan can be better: it needs one more place for several readers of a value, or finds a
        quicker plan within memory that binds. The plan then becomes the better one.
        """
        node = _known(name, self._inputs)
        there = _sharding(spec, self.mesh, node, name)
        given = self._search.fixed.get(node)
        if given is not None and given is not there:
            raise PlanError(f"{name!r} is fixed at {_written(given)}: another place for it can't be asked about.")
        if self.places[name] is there:  # within memory, or with loops, another search may end elsewhere
            return Other(name, _written(there), self.found, self.found)
        other = self._search.best({node: there})
        better = self._search.reconsidered(self.found, other, {node: there})
        if better is not self.found:
            self.found = better
            for known in ("places", "certificate", "_proved", "_least_compute"):
                self.__dict__.pop(known, None)
        return Other(name, _written(there), other, self.found)

    def compare(self, placements: Mapping[str, Any]) -> Comparison:
        """Placements written by hand, each a rule or a mapping from names, under the same prices, beside this plan.

        What they say nothing of is placed as well as can be. What is fixed stays so under rules, as in `auto`; a mapping that
        names it with another place is an error. Placements may hold more than the plan may: the table says so.
        """
        if not isinstance(placements, Mapping):
            raise PlanError(
                f"compare takes rules by title, such as {{'megatron': rules, 'fsdp': {{'w': P('dp')}}}}; got {placements!r}."
            )
        rows = [Standing.of("planned", self.found)]
        for title, rules in placements.items():
            try:
                fixed = _by_rules(rules, self._inputs, self.mesh)
            except ShardwrightError as error:
                raise PlanError(f"{title}: {error}") from error
            if isinstance(rules, ShardingRule):
                fixed = {node: there for node, there in fixed.items() if node not in self._search.fixed}
            for node, there in fixed.items():
                given = self._search.fixed.get(node)
                if given is not None and given is not there:
                    name = self._search.names[node]
                    raise PlanError(
                        f"{title}: {name!r} is fixed at {_written(given)}, and the rules have {_written(there)}."
                    )
            rows.append(Standing.of(str(title), self._search.unlimited.best(fixed)))
        return Comparison(tuple(rows), self.bound, self._search.limit)

    def sjit(self) -> SJIT:
        """The planned program: arguments like those it was planned for run it, others are planned anew with the same
        shardings where they have them. A jitted function keeps its options."""
        return self._jit.placed_by(self._lowering, self.mesh)

    def _lowering(self, program: Program, placed: Sequence[Any], outputs: Sequence[Any]) -> Program:
        mine = self._call.program
        if len(program.nodes) == len(mine.nodes) and program.lines() == mine.lines():
            return self._again(program)
        names = dict(zip(program.names, program.inputs, strict=True))
        fixed = {names[name]: s.for_shape(names[name].type.shape) for name, s in self.places.items() if name in names}
        return Search(program, fixed, outputs, self._search.limit).best().lowered

    def _again(self, program: Program) -> Program:
        """The planned program on another trace of the same function."""
        if program is self._call.program:
            return self.found.lowered
        same = dict(zip(self._call.program.nodes, program.nodes, strict=True))
        found = self.found
        moved = found.decision.on(same)
        final = partition_by(program, moved, {same[node]: s for node, s in found.fixed.items()})
        final.stages = {"traced": program, "partitioned": final, "final": final}
        return final

    def __str__(self) -> str:
        gap = f", {100 * self.gap:.2g} % above the bound" if self.gap > 1e-6 else ", which is the bound"
        if self.budget < self._search.limit:
            gap += f" for at most {size(int(self.budget))} of inputs"
        lines = [
            f"{name}: {text}{f' (× {count})' if count > 1 else ''}" for (name, text), count in self._folded().items()
        ]
        return "\n".join([*lines, f"{duration(self.time)}{gap}; a device holds at most {size(self.memory)}"])

    def _folded(self) -> dict[tuple[str, str], int]:
        """Inputs that are read and where they lie, those that differ only in numbers once, with how many there are."""
        found: dict[tuple[str, str], int] = {}
        for name, sharding in self.places.items():
            if self._inputs[name] not in self._read:
                continue
            kind = self._inputs[name].type
            key = re.sub(r"(^|[/.])\d+(?=[/.]|$)", r"\1*", name), describe(sharding, kind.shape, kind.dtype)
            found[key] = found.get(key, 0) + 1
        return found


def auto(
    fn: Callable[..., Any],
    mesh: Mesh,
    *args: Any,
    memory: float | None = None,
    fixed: "Mapping[str, P | Sharding] | None" = None,
    rules: Any = None,
    overlap: str = "none",
) -> Plan:
    """The placement of a function's arguments, and of all that is computed from them, that takes least time.

    >>> import numpy as np
    >>> from shardwright import ShapeDtype
    >>> mesh = Mesh(dp=2, tp=4, hardware="h100")
    >>> x, w = ShapeDtype((512, 4096), np.float32), ShapeDtype((4096, 4096), np.float32)
    >>> plan = auto(lambda x, w: x @ w, mesh, x, w, fixed={"x": P("dp")})
    >>> plan.places["w"].spec, plan.gap
    (P(None, 'tp'), 0.0)

    - Arguments may be abstract; arrays that have shardings keep them.
    - `fixed` has shardings by name, `rules` a sharding rule (or a mapping from names); what they say nothing of is open.
      Where both speak of an input, `fixed` counts.
    - `memory` is what a device may hold, in bytes; the chip's by default.
    - `overlap`: "ideal" counts communication and independent computation at once.
    """
    _check(fn, mesh, memory, fixed, overlap)
    if hasattr(fn, "planned"):  # an imported model: its parameters come first
        fn, args, _ = fn.planned(*args)
    jit = fn.owned() if isinstance(fn, Bound) else fn if isinstance(fn, SJIT) else sjit(fn, mesh=mesh)
    if jit.mesh is not None and jit.mesh != mesh:
        raise PlanError(f"The function is jitted for {jit.mesh}; it can't be planned for {mesh}.")
    call = jit.traced(args, mesh)
    if not call.arrays:
        raise ProgramError(f"auto places the arrays that a function works on, and {jit.__name__} got none.")
    limit = mesh.hardware.chip.memory if memory is None else math.inf if memory > sys.float_info.max else float(memory)
    search = Search(call.program, _given(call, mesh, fixed or {}, rules), call.out_shardings, limit)
    return Plan(jit, mesh, call, search, overlap)


def _check(fn: Any, mesh: Any, memory: Any, fixed: Any, overlap: Any) -> None:
    """Raises where an argument of `auto` is not what it takes."""
    if overlap not in OVERLAPS:
        raise PlanError(f"The overlap {overlap!r} is unknown. Use one of {', '.join(map(repr, OVERLAPS))}.")
    if not isinstance(mesh, Mesh):
        raise PlanError(f"auto(fn, mesh, *args) plans for a mesh; got {mesh!r} in its place.")
    if not callable(fn):
        raise PlanError(f"auto(fn, mesh, *args) plans for a function; got {fn!r} in its place.")
    if fixed is not None and not isinstance(fixed, Mapping):
        raise PlanError(f"fixed has shardings by name, such as {{'ids': P('dp')}}; got {fixed!r}.")
    if memory is not None and (
        isinstance(memory, bool) or not isinstance(memory, Real) or memory <= 0 or memory != memory
    ):
        raise PlanError(f"memory is how many bytes a device may hold, a positive number such as 80e9; got {memory!r}.")


def _given(call: TracedCall, mesh: Mesh, fixed: "Mapping[str, P | Sharding]", rules: Any) -> dict[Node, Sharding]:
    """Where inputs lie for sure: where they come, where they are fixed, and where rules have the others."""
    inputs = _inputs_of(call)
    found = {
        node: s.for_shape(node.type.shape)
        for node, s in zip(call.program.inputs, call.placed, strict=True)
        if s is not None
    }
    for name, spec in fixed.items():
        node = _known(name, inputs)
        there = _sharding(spec, mesh, node, name)
        if found.get(node, there) is not there:
            raise PlanError(
                f"{name!r} comes as {_written(found[node])} and is fixed at {_written(there)}: say one of them."
            )
        found[node] = there
    for node, there in _by_rules(rules, inputs, mesh).items():
        if found.get(node, there) is not there and node not in {_known(n, inputs) for n in fixed}:
            name = next(name for name, known in inputs.items() if known is node)
            raise PlanError(
                f"{name!r} comes as {_written(found[node])}, and the rules have {_written(there)}: say one of them."
            )
        found.setdefault(node, there)
    return found


def searched(
    program: Program, placed: Sequence[Sharding | None], outputs: Sequence[Sharding | None] | None = None
) -> Program:
    """A traced program with its best plan, its inputs as they are given; for `sjit(…, placement="search")`."""
    fixed = {n: s.for_shape(n.type.shape) for n, s in zip(program.inputs, placed, strict=True) if s is not None}
    wanted = outputs or [None] * len(program.outputs)
    return Search(program, fixed, wanted, program.mesh.hardware.chip.memory).best().lowered


PLACEMENTS["search"] = searched


# -- names and rules --------------------------------------------------------------------------------------------------


def _inputs_of(call: TracedCall) -> dict[str, Node]:
    """The inputs that lie somewhere on the mesh, by name."""
    twice = [name for name, count in Counter(call.names).items() if count > 1]
    if twice:
        raise PlanError(
            f"Two arrays have the name {twice[0]!r}, so it can't say where one lies: rename a key of theirs."
        )
    return {name: x for name, x in zip(call.names, call.program.inputs, strict=True) if x.type.local is None}


def _known(name: str, inputs: Mapping[str, Node]) -> Node:
    if not isinstance(name, str) or name not in inputs:
        raise PlanError(f"The function has no input {name!r}. Its inputs are {_listed(inputs)}.")
    return inputs[name]


def _listed(names: Iterable[str]) -> str:
    """Names in words, of many the first."""
    shown = [repr(name) for name in names]
    more = f" and {len(shown) - MOST_NAMES} more" if len(shown) > MOST_NAMES else ""
    return (", ".join(shown[:MOST_NAMES]) or "none") + more


def _sharding(spec: Any, mesh: Mesh, node: Node, name: str) -> Sharding:
    try:
        sharding = spec if isinstance(spec, Sharding) else Sharding(mesh, spec)
        if sharding.mesh != mesh:
            raise ShardingError(f"it is on {sharding.mesh}, not on {mesh}.")
        return sharding.for_shape(node.type.shape)
    except ShardingError as error:
        raise PlanError(f"{name!r}: {error}") from error


def _written(there: Sharding) -> P | Sharding:
    """A sharding as users write it: its spec, unless it has more (partial axes, halos, offsets)."""
    return there if there.partial or there.halo or there.offsets else there.spec


def _by_rules(rules: Any, inputs: Mapping[str, Node], mesh: Mesh) -> dict[Node, Sharding]:
    """Where rules place inputs; those that they say nothing of are left out."""
    if rules is None:
        return {}
    if isinstance(rules, Mapping):
        return {_known(name, inputs): _sharding(spec, mesh, _known(name, inputs), name) for name, spec in rules.items()}
    if not isinstance(rules, ShardingRule):
        raise PlanError(f"Rules are a sharding rule, or a mapping from names to P(…); got {rules!r}.")
    paths = {}  # as rules see them: the dots of torch's names may be slashes
    for name in inputs:
        found = [path for path in (name, name.replace(".", "/")) if rules.matches(path)]
        if found:
            paths[name] = found[0]
    if not paths:
        raise PlanError(f"The rules match no input. The inputs are {_listed(inputs)}; the rules are {rules!r}.")
    rules.check([paths.get(name, name) for name in inputs])  # an error lists all of them
    specs = rules.specs_of(list(paths.values()), [_Leaf(inputs[name]) for name in paths], mesh)
    return {
        inputs[name]: _sharding(spec, mesh, inputs[name], name)
        for name, spec in zip(paths, specs, strict=True)
        if spec is not None
    }


class _Leaf:
    """An input as rules look at it."""

    def __init__(self, node: Node) -> None:
        self.shape, self.dtype, self.ndim = node.type.shape, node.type.dtype, len(node.type.shape)


def _pattern(path: str) -> str:
    """A path as a regular expression in which numbers are any; torch separates them by dots."""
    return "".join([r"\d+" if part.isdecimal() else re.escape(part) for part in re.split("([/.])", path)])


def rules_of(specs: "Mapping[str, P | Sharding]") -> "list[tuple[str, P | Sharding]]":
    """Patterns that give every name its spec; names that differ only in numbers share one if their specs do. The parameter's
    name may be left out where what is left is no other name, or what is left of one.

    >>> rules_of({"p/0/w": P("x"), "p/1/w": P("x"), "ids": P()})
    [('^(p/)?\\\\d+/w$', P('x')), ('^ids$', P())]
    """
    groups: dict[tuple[str, str], dict[str, P | Sharding]] = {}
    for name, spec in specs.items():
        head, _, rest = name.partition("/")
        groups.setdefault((re.escape(head), _pattern(rest) if rest else ""), {})[name] = spec
    matched = Counter(f"{head}/{rest}" if rest else head for head, rest in groups)
    matched.update(rest for _, rest in groups if rest)
    found: list[tuple[str, P | Sharding]] = []
    for (head, rest), some in groups.items():
        lead = f"^{head}" if not rest else f"^({head}/)?" if matched[rest] == 1 else f"^{head}/"
        usual = Counter(some.values()).most_common(1)[0][0]
        for name, spec in some.items():
            if spec != usual:
                exact = re.escape(name.partition("/")[2])
                found.append((f"{lead}{exact}$", spec))
        found.append((f"{lead}{rest}$", usual))
    return found
