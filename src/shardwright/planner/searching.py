"""From a traced program to the best plan of it: model, solution, decision, partitioned program, within a limit of memory."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import PlanError
from shardwright.garbage import no_collection
from shardwright.plan import has_floors, move_matrix, move_seconds, moves_that_count_less
from shardwright.planner.deciding import Hubs, Moved, counted_twice, decision_of
from shardwright.planner.easing import ROUNDING, Easing, rounds_of
from shardwright.planner.least import Least, Needs
from shardwright.planner.model import Builder, Model
from shardwright.planner.small import Holding
from shardwright.planner.solving import Sizes, Solution, Solver
from shardwright.program import Explanation, explained, peak_bytes
from shardwright.program.node import Constrain, Control, Node, Pick, Program
from shardwright.program.planned import Decision, partition_by
from shardwright.program.rows import size
from shardwright.program.twins import Twins, twins
from shardwright.sharding import Sharding

ROUNDS = 8  # of lowering the budget for what is held throughout
MEASURES = 4  # of how much is held, by which small plans are found
WEIGHED = 8  # more plans with more weight where much was held
RIVALS = 500  # moves from and to a place that are priced beside one that a plan makes
SURE = 0.8  # of a limit: an estimate below it needs no second look

Shardings = tuple[Sharding, ...]


@dataclass
class Found:
    """The best plan of a program under a limit, and all that it follows from."""

    program: Program
    fixed: dict[Node, Sharding]
    outputs: Sequence[Sharding | None]
    limit: float
    model: Model
    hubs: Hubs
    exact: frozenset[Moved]
    solution: Solution
    counted: bool = True  # whether the solution's cost is what it takes, and not what it takes at most
    relaxed: bool = False  # whether all but one of what may be one was left out
    proved: "Found | None" = None  # the solution whose bound it has, if another

    @cached_property
    def decision(self) -> Decision:
        """Where everything lies."""
        return decision_of(self.model, self.solution.choice, self.hubs)

    @cached_property
    def lowered(self) -> Program:
        """The program on shards."""
        final = partition_by(self.program, self.decision, self.fixed)
        final.stages = {"traced": self.program, "partitioned": final, "final": final}
        return final

    @cached_property
    def explanation(self) -> Explanation:
        """What the program does and takes."""
        return explained(self.lowered)

    @cached_property
    def peak(self) -> int:
        """The most bytes that a device holds at a time: as `explanation` says, without its rows."""
        return peak_bytes(self.lowered, self.lowered.nodes).peak

    @cached_property
    def time(self) -> float:
        """Seconds."""
        return self.cost if self.counted else self.explanation.seconds("none")

    @property
    def cost(self) -> float:
        """Seconds, as the model counts them."""
        return self.solution.cost + self.model.constant

    @property
    def bound(self) -> float:
        """Seconds that no plan within the budget beats."""
        proved = self.proved or self
        return proved.solution.bound + proved.model.constant

    def placed(self, node: Node) -> Sharding:
        """Where an input lies."""
        variable = self.model.inputs[node]
        found: Sharding = self.model.variables[variable].options[self.solution.choice[variable]]
        return found


class Search:
    """Looks for the best plans of one program: of all, and of those with one thing more fixed."""

    def __init__(
        self,
        program: Program,
        fixed: Mapping[Node, Sharding],
        outputs: Sequence[Sharding | None],
        limit: float,
        relaxed: bool = False,
    ) -> None:
        self.program, self.fixed, self.limit, self.relaxed = program, dict(fixed), limit, relaxed
        # A constrained result lies there, its partial axes reduced, as by propagation: a free move elsewhere would change it.
        self.outputs = [
            node.what.sharding.replace(partial=()) if there is None and isinstance(node.what, Constrain) else there
            for node, there in zip(program.outputs, outputs, strict=True)
        ]
        self.names = dict(zip(program.inputs, program.names, strict=True))
        self.hubs: Hubs = {}
        self.exact: set[Moved] = set()  # moves that turned out to matter
        self._last: tuple[Model, dict[Node, Sharding], Solver] | None = None
        self._held: Holding | None = None

    @cached_property
    def unlimited(self) -> "Search":
        """The same without a limit of memory."""
        return self if math.isinf(self.limit) else Search(self.program, self.fixed, self.outputs, math.inf)

    def _model(self, most: float) -> Model:
        return Builder(
            self.program, self.fixed, self.outputs, self.hubs, most, self.exact, self.twins, self.relaxed
        ).build()

    @cached_property
    def model(self) -> Model:
        """The model, with strategies that a device can hold beside the smallest shards of all inputs."""
        model = self._model(math.inf)
        most = self.limit - sum(min(some) for some in model.held.values())
        lists = {id(v.options): v.options for v in model.variables}.values()  # equal operations share theirs
        dear = any(option.memory > most for options in lists for option in options if hasattr(option, "memory"))
        return self._model(most) if dear else model

    @no_collection(look=True)
    def best(self, more: Mapping[Node, Sharding] | None = None) -> Found:
        """The best plan, perhaps with more inputs fixed."""
        if more and not self._has(more):
            return Search(self.program, {**self.fixed, **more}, self.outputs, self.limit).best()
        more, budget, tried, fitting = more or {}, self.limit, list[Found](), list[Found]()
        smallest = sum(min(some) for some in self.model.held.values())
        for _ in range(ROUNDS):
            found = self.solved(more, budget, mixed=False)
            if found is None:
                break
            if self.fits(found):  # then it may hold a little more
                fitting.append(found)
                found = self.solved(more, budget)
                assert found is not None
                if self.fits(found):
                    fitting.append(found)
                    break
            tried.append(found)
            if budget <= smallest:
                break
            budget = max(min(budget, found.solution.held) - (found.peak - self.limit), smallest)
        if not fitting:
            return self._smallest(more, tried)
        best = min(fitting, key=lambda found: found.time)
        return self._eased(more, tried, best) if tried else best

    def reconsidered(self, best: Found, other: Found, more: Mapping[Node, Sharding]) -> Found:
        """The best plan after a quicker one was found with more inputs fixed: solved again with the places for several readers
        that the other has, or the other itself, which memory that binds may have hidden. Its bound is that of all plans within
        its budget. Places that plans do not choose from are no reason."""
        if other.time >= best.time * (1 - ROUNDING) or not self._has(more):
            return best
        again = min(best, self.best(), key=lambda found: found.time)
        if other.time >= again.time * (1 - ROUNDING):
            return again
        return self.within((other.proved or other).solution.proof.budget, {}, other)

    def within(self, budget: float, more: Mapping[Node, Sharding], found: Found) -> Found:
        """A plan with the bound of all plans within a budget, whatever else was fixed where it was found."""
        every = self.solved(more, budget, mixed=False)
        return found if every is None else replace(found, proved=every)

    def _eased(self, more: Mapping[Node, Sharding], tried: Sequence[Found], best: Found) -> Found:
        """The best of plans between one that fits and some that don't; in small programs its bound is that of all plans within
        the limit, whatever they hold of inputs."""
        best = Easing(self, more, tried).eased(best)
        if rounds_of(best):
            best = self.within(self.limit, more, self._better_placed(more, best))
        return best

    def _better_placed(self, more: Mapping[Node, Sharding], best: Found) -> Found:
        """The best plan with all inputs where one has them, if it is quicker: with less open more is tried, and rules of a plan
        should find no other."""
        places = {node: best.placed(node) for node in self.model.inputs if node not in self.fixed and node not in more}
        try:
            other = self.best({**more, **places}) if places else best
        except PlanError:  # what was tried with more inputs open is not tried there
            return best
        return other if other.time < best.time * (1 - ROUNDING) else best

    def fits(self, found: Found) -> bool:
        return self._surely_fits(found) or found.peak <= self.limit

    def _smallest(self, more: Mapping[Node, Sharding], tried: Sequence[Found]) -> Found:
        """The quickest plan that fits of those that hold little; an error says which is the least."""
        free = self.unlimited
        bound, plans = free._least(more).bound, list[Found]()
        for found in free._small(more):
            plans.append(found)
            least = min(plans, key=lambda plan: plan.peak)
            enough = MEASURES if rounds_of(found) else 1
            if least.peak <= (self.limit if len(plans) >= enough else bound):
                break
        fitting = [plan for plan in plans if plan.peak <= self.limit]
        fitting = fitting or ([*Easing(self, more, tried).first()] if tried and bound <= self.limit else [])
        if fitting:
            best = min(fitting, key=lambda plan: plan.time)
            return self._eased(more, tried, best) if tried else best
        held = min([found.peak for found in tried], default=math.inf)
        if held < least.peak:
            least = self._found_within(held, more) or least
        raise self._nothing_fits(least, bound)

    def _found_within(self, limit: float, more: Mapping[Node, Sharding]) -> Found | None:
        """The plan that is found where a device may hold just so much: an error must not promise what is then not found."""
        try:
            return Search(self.program, {**self.fixed, **more}, self.outputs, limit).best()
        except PlanError:
            return None

    def _has(self, more: Mapping[Node, Sharding]) -> bool:
        """Whether the model has inputs at some places: no sub-axes or orders of axes that only users write; and nothing in it
        depends on where inputs are fixed, as loops do."""
        model = self.model
        return not any(isinstance(node.what, Control) for node in self.program.nodes) and all(
            any(option is there for option in model.variables[model.inputs[node]].options)
            for node, there in more.items()
        )

    def _solver(self, model: Model, more: Mapping[Node, Sharding]) -> Solver:
        """The last one if it serves: what it tried for one budget helps with another."""
        if self._last is None or self._last[0] is not model or self._last[1] != more:
            only = [self._only(model, node, there) for node, there in more.items()]
            order = self._last[2].order if self._last is not None and self._last[0] is model else None
            self._last = model, dict(more), Solver(model, only, order)
        return self._last[2]

    def solved(self, more: Mapping[Node, Sharding], budget: float, mixed: bool = True) -> Found | None:
        return self.settled(more, lambda solver: solver.solve(budget, mixed))

    def _least(self, more: Mapping[Node, Sharding]) -> Least:
        """The least that any plan holds."""
        options = {node: self.model.variables[self.model.inputs[node]].options for node in more}
        only = {node: options[node].index(there) for node, there in more.items()}
        return self.holding(self.model).needs.least(only)

    def holding(self, model: Model) -> Holding:
        """What options of the model hold; the last one if it serves."""
        if self._held is None or self._held.model is not model:
            self._held = Holding(model, Needs(model))
        return self._held

    def _small(self, more: Mapping[Node, Sharding]) -> Iterator[Found]:
        """Plans that hold little: with the smallest inputs, with inputs and steps as the bound has them, with small values,
        with the smallest steps; then with more weight where much was held, unless each takes a linear programme."""
        least, rounds = self._least(more), list[NDArray[np.float64]]()
        measures: list[Callable[[Holding], Sizes]] = [Holding.inputs, lambda some: some.at_bound(least)]
        measures += [Holding.values, Holding.steps, *[lambda some: some.weighed(rounds)] * WEIGHED]
        for measure in measures:
            if len(rounds) == MEASURES and self._solver(self.model, more).wide:
                return
            solved = self.settled(more, partial(self._by, measure))
            if solved is not None:
                yield solved
                rounds.append(self.holding(solved.model).held(solved.solution.choice))

    def _by(self, measure: Callable[[Holding], Sizes], solver: Solver) -> Solution | None:
        return solver.smallest(measure(self.holding(solver.model)))

    @cached_property
    def twins(self) -> Twins:
        """What the program may do once."""
        return twins(self.program)

    def bounding(self, found: Found) -> Found:
        """The plan whose bound one has that was found; where something is done once that the model counts several times, one
        whose bound is that of all plans within the budget: what may be one counts once."""
        proved = found.proved or found
        counted = self.twins.exact and all(some.time >= some.cost * (1 - ROUNDING) for some in (found, proved))
        if counted or not self.twins.shared.values:
            return proved
        search = Search(self.program, proved.fixed, proved.outputs, proved.limit, relaxed=True)
        every = search.solved({}, proved.solution.proof.budget, mixed=False)
        assert every is not None
        return every

    def settled(self, more: Mapping[Node, Sharding], solve: "Callable[[Solver], Solution | None]") -> Found | None:
        """A solution in which every move counts with its price, and what several readers move alike is moved once."""
        while True:
            model = self.model
            solution = solve(self._solver(model, more))
            if solution is None:
                return None
            unpriced = self._unpriced(model, solution)
            again = {} if unpriced else counted_twice(model, solution.choice, self.hubs)
            if not unpriced and not again:
                fixed = {**self.fixed, **more}
                return Found(
                    self.program,
                    fixed,
                    self.outputs,
                    self.limit,
                    model,
                    dict(self.hubs),
                    frozenset(self.exact),
                    solution,
                    solution.cheapest and not self.twins.shared.values,
                    self.relaxed,
                )
            self.exact |= unpriced
            self.hubs.update(again)
            del self.model

    def _unpriced(self, model: Model, solution: Solution) -> set[Moved]:
        """Moves that a solution makes and that count with less than their price so far, with those from the same place and to
        the same place: the next solution would make one of these."""
        found = set[Moved]()
        for (source, target, node, _), (before, after) in zip(model.edges, model.wheres, strict=True):
            kind = node.type[:2]
            less = moves_that_count_less(before, after, *kind)
            i, j = solution.choice[source], solution.choice[target]
            move = before[i], after[j], *kind
            if less is None or not less[i, j] or move in self.exact or move in found:
                continue
            if has_floors(self.program.mesh):
                found.update(self._with_rivals(before, after, move))
                continue
            found.update((before[i], after[k], *kind) for k in np.flatnonzero(less[i]))
            found.update((before[k], after[j], *kind) for k in np.flatnonzero(less[:, j]))
        return found - self.exact

    def _with_rivals(self, before: Shardings, after: Shardings, move: Moved) -> Iterator[Moved]:
        """A move that counts with less than its price, and those from the same place and to the same place that may be cheaper
        than it, the likeliest first. None of them if the ways of its pattern say that it has its price."""
        source, target, shape, dtype = move
        if moves_that_count_less((source,), (target,), shape, dtype, self.exact) is None:
            return
        yield move
        price = move_seconds(*move)
        yield from [(source, after[k], shape, dtype) for k in self._below(price, (source,), after, shape, dtype)]
        yield from [(before[k], target, shape, dtype) for k in self._below(price, before, (target,), shape, dtype)]

    def _below(
        self, price: float, before: Shardings, after: Shardings, shape: tuple[int, ...], dtype: Any
    ) -> list[int]:
        """Which moves from or to one place count with less than their price and than some price, the cheapest first."""
        less = moves_that_count_less(before, after, shape, dtype, self.exact)
        if less is None:
            return []
        seconds = move_matrix(before, after, shape, dtype, self.exact).reshape(-1)
        cheaper = np.flatnonzero(less.reshape(-1) & (seconds < price))
        found: list[int] = cheaper[np.argsort(seconds[cheaper], kind="stable")][:RIVALS].tolist()
        return found

    def _only(self, model: Model, node: Node, there: Sharding) -> tuple[tuple[int, ...], int]:
        """The factor that leaves an input one place."""
        variable = model.inputs[node]
        options = model.variables[variable].options
        return (variable,), model.tables.seconds([0.0 if option is there else math.inf for option in options])

    def _surely_fits(self, found: Found) -> bool:
        """Whether a device holds well below the limit, so that the program need not be partitioned to know."""
        return self._at_most(found) <= SURE * self.limit

    def _at_most(self, found: Found) -> int:
        """An estimate from above of what a device holds: every value, with the copies that are moved for several readers, from
        where it is made to where it is last read, beside twice a step's operands and what moves hold meanwhile."""
        made: dict[Node, int] = {}
        steps: dict[Node, int] = {}
        known: dict[Any, int] = {}
        for number, (variable, at) in enumerate(zip(found.model.variables, found.solution.choice, strict=True)):
            if number in found.model.held:  # throughout
                continue
            option, node = variable.options[at], variable.node
            results = (option,) if isinstance(option, Sharding) else option.results
            key = results, node.types
            if key not in known:
                kinds = zip(results, node.types, strict=True)
                known[key] = sum([s.local_size(kind.shape) * kind.dtype.itemsize for s, kind in kinds])
            if not isinstance(option, Sharding):
                steps[node] = max(option.memory - known[key], 0)
            made[node] = made.get(node, 0) + known[key]
        passing, later = self._passing(found)
        held, peak, last = found.solution.held, 0, self._last_readers
        for node in self.program.nodes:
            held += made.get(node, 0)
            peak = max(peak, held + 2 * steps.get(node, made.get(node, 0)) + passing.get(node, 0))
            held -= sum([made.get(x, 0) for x in last.get(node, ())])
        return peak + later

    def _passing(self, found: Found) -> tuple[dict[Node, int], int]:
        """What a device holds at most between the steps of a move, which read and make no more than the larger end: for each
        node where its operands are moved, and where values are moved for several readers or as outputs."""
        model, choice, known = found.model, found.solution.choice, dict[Any, int]()
        passing, later = dict[Node, int](), 0
        for (source, target, node, _), (before, after) in zip(model.edges, model.wheres, strict=True):
            ends = before[choice[source]], after[choice[target]]
            if ends[0] is ends[1]:
                continue
            shape, dtype = node.type[:2]
            key = *ends, shape, dtype
            if key not in known:
                known[key] = 2 * max(there.local_size(shape) for there in ends) * dtype.itemsize
            reader = model.variables[target]
            if reader.kind == "node":
                passing[reader.node] = max(passing.get(reader.node, 0), known[key])
            else:
                later = max(later, known[key])
        return passing, later

    @cached_property
    def _last_readers(self) -> dict[Node, list[Node]]:
        """For each node the values that nothing reads after it; a value with several results is one."""
        whole = {node: node.nodes[0] for node in self.program.nodes if isinstance(node.what, Pick)}
        last: dict[Node, Node] = {}
        for node in self.program.nodes:
            if node not in whole:
                last.update({whole.get(x, x): node for x in node.nodes})
        for node in (*self.program.outputs, *self.program.inputs):
            last.pop(whole.get(node, node), None)
        found: dict[Node, list[Node]] = {}
        for x, node in last.items():
            found.setdefault(node, []).append(x)
        return found

    def _nothing_fits(self, least: Found, bound: int) -> PlanError:
        """What the least is that a device must hold, as far as is known, and what holds it."""
        choice, model, peak = least.solution.choice, least.model, least.explanation
        largest = sorted(
            (
                (some[choice[v]], self.names.get(model.variables[v].node, "a constant"))
                for v, some in model.held.items()
            ),
            reverse=True,
        )
        held = ", ".join(f"{name} {size(count)}" for count, name in largest[:3])
        known = f"every plan holds at least {size(bound)}, and the least found holds {size(least.peak)}"
        if least.peak == bound:
            known = f"the least possible is {size(bound)}"
        return PlanError(
            f"No plan fits {size(self.limit)} a device: {known}, of it {size(least.solution.held)} of inputs ({held}); most is "
            f"held at {peak.use.step or 'the start'}. Use more devices, a smaller batch, or a chip with more memory.",
            least.peak,
            bound,
        )
