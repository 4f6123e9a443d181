"""`Certificate`: what proves that no plan of a program takes less than a bound, and its check.

The check shares no code with the search. It goes through the program, prices every strategy and every move itself, and then
follows the steps that the certificate lists: each may only make what is left cost less, so the number that is left at the
end bounds the cost of every plan. A step that claims too much is an error; a certificate for other steps, tables, prices or
another bound than it proves is rejected.

The steps: a variable is minimised out, and a table over its neighbours takes the place of its factors (`Gone`); an option is
taken away since another is never worse (`Dead`); a factor passes costs on to its variables (`Shift`). What is left
counts with its least entry.
"""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import PlanError
from shardwright.ops import OPS
from shardwright.plan import (
    Each,
    FromLocal,
    Local,
    LocalStep,
    OperationPlan,
    Option,
    ToLocal,
    move_matrix,
    options_of,
    places,
    work_of,
)
from shardwright.program.control_cost import controlled
from shardwright.program.node import Apply, Constant, Constrain, Control, Input, Node, Pick, Program, Settle
from shardwright.sharding import Sharding, layout_of

Table = NDArray[np.float64]
Scope = tuple[int, ...]
ROUNDING = 1e-9  # of the bound
AT_ONCE = 100_000  # entries of a sum; larger ones are made one option at a time
MOST_UNIT, TINY = 1e-9, 1e-3  # a unit of more than this part of the bound, or of a millisecond, proves little


@dataclass(frozen=True)
class Certificate:
    """The proof of a bound: for a program, where what is fixed lies, and a budget of bytes for inputs and constants."""

    program: Program
    fixed: Mapping[Node, Sharding]
    outputs: Sequence[Sharding | None]
    hubs: Mapping[tuple[Node, int], Sequence[tuple[Node, int]]]  # places for some readers of a value
    exact: Container[Any]  # moves over unequal blocks that count with their price; others with what they take at least
    limit: float  # bytes that a device holds at most of a step's operands and results, beside the smallest inputs
    steps: Sequence[Any]
    tables: Mapping[int, Table]  # in units
    unit: float  # seconds
    price: float  # seconds a byte of inputs and constants
    budget: float  # bytes
    bound: float  # seconds

    def check(self) -> bool:
        """True if the bound holds; PlanError says which step does not."""
        if not self.price >= 0:
            raise PlanError(f"The certificate has a price of memory of {self.price} s a byte, which is negative.")
        checker = _Checker(self)
        proved = checker.proved()
        rounding = 2 * len(checker.costs.factors) * self.unit  # every cost counts in whole units
        if not proved >= self.bound * (1 - ROUNDING) - rounding or not 0 < self.unit < MOST_UNIT * max(
            self.bound, TINY
        ):
            raise PlanError(
                f"The certificate claims that no plan takes less than {self.bound} s, and proves {proved} s."
            )
        return True


class _Costs:
    """What every choice costs, found anew from the program and the hardware of its mesh."""

    def __init__(self, certificate: Certificate) -> None:
        self.about, self.program = certificate, certificate.program
        self.mesh = self.program.mesh
        self.chip = self.mesh.hardware.chip
        self.counts: list[int] = []  # options of each variable
        self.factors: list[tuple[Scope, Any]] = []  # with a key of the table
        self.tables: dict[Any, Table] = {}
        self.constant = 0.0
        self._held: list[tuple[int, tuple[int, ...]]] = []
        self._where: dict[Node, tuple[int, tuple[Sharding, ...]]] = {}
        self._for: dict[tuple[Node, Node], tuple[int, tuple[Sharding, ...]]] = {}
        self._several: dict[Node, tuple[int, Sequence[Option]]] = {}
        self._kinds: dict[Any, Any] = {}
        self._places: dict[tuple[tuple[int, ...], bool], tuple[Sharding, ...]] = {}
        self._sizes: dict[Any, tuple[int, ...]] = {}
        least = sum(
            min(self._bytes(n, self._given(n)))
            for n in self.program.nodes
            if isinstance(n.what, Input | Constant) and n.type.local is None
        )
        self.most = certificate.limit - least
        reads = self.program.reads
        for node in self.program.outputs:
            reads[node] += 1
        self._reads = reads
        for node in self.program.nodes:
            self._node(node)
        for node, there in zip(self.program.outputs, certificate.outputs, strict=True):
            if node.type.local is None:
                where = self._everywhere(node.type.shape) if there is None else (there.for_shape(node.type.shape),)
                self._moved(self._where[node], self._variable(len(where)), where, node)
        for variable, some in self._held:
            key = ("held", some)
            if key not in self.tables:
                self.tables[key] = np.array(some) * certificate.price / certificate.unit
            self.factors.append(((variable,), key))

    def _everywhere(self, shape: tuple[int, ...], any_order: bool = False) -> tuple[Sharding, ...]:
        if (shape, any_order) not in self._places:
            self._places[shape, any_order] = places(self.mesh, shape, any_order)
        return self._places[shape, any_order]

    def _given(self, node: Node) -> tuple[Sharding, ...]:
        there = self.about.fixed.get(node) or node.type.sharding
        return self._everywhere(node.type.shape, True) if there is None else (there.for_shape(node.type.shape),)

    def _bytes(self, node: Node, where: tuple[Sharding, ...]) -> tuple[int, ...]:
        """What a device holds of a value at each of some places."""
        key = where, node.type.shape, node.type.dtype.itemsize
        if key not in self._sizes:
            self._sizes[key] = tuple([s.local_size(key[1]) * key[2] for s in where])
        return self._sizes[key]

    def _variable(self, count: int) -> int:
        self.counts.append(count)
        return len(self.counts) - 1

    def _node(self, node: Node) -> None:
        what, kind = node.what, node.type
        if isinstance(what, Input | Constant):
            if kind.local is None:
                where = self._given(node)
                self._held.append((len(self.counts), self._bytes(node, where)))
                self._lies(node, self._variable(len(where)), where)
        elif isinstance(what, Apply) and node.nodes:
            self._operation(node)
        elif isinstance(what, Apply):
            where = self._everywhere(kind.shape)
            touched = self._bytes(node, where)
            variable = self._variable(len(where))
            self._unary(
                variable, ("made", kind.dtype, touched), lambda: [self.chip.seconds(0, n, kind.dtype) for n in touched]
            )
            self._lies(node, variable, where)
        elif isinstance(what, Pick):
            variable, options = self._several[node.nodes[0]]
            self._lies(node, variable, tuple([option.results[what.which] for option in options]))
        elif isinstance(what, Constrain | Settle | ToLocal):
            self._place(node, what)
        elif isinstance(what, Control):
            layouts = controlled(self.program, node, self.about.fixed)
            variable = self._variable(len(layouts))
            self._unary(variable, ("control", node), lambda: [option.seconds for option in layouts])
            for at, x in enumerate(node.nodes):
                self._moved(self._read(x, node), variable, tuple([option.operands[at] for option in layouts]), x)
            self._results(node, variable, layouts)
        elif isinstance(what, LocalStep):
            self.constant += what.time
        elif isinstance(what, Each):
            touched_here = sum(x.type.local_bytes for x in node.nodes) + sum(t.local_bytes for t in node.types)
            self.constant += self.chip.seconds(0.0, touched_here, node.types[0].dtype if node.types else "float32")
        elif isinstance(what, FromLocal):
            assert kind.sharding is not None
            self._lies(node, self._variable(1), (kind.sharding,))

    def _place(self, node: Node, what: Any) -> None:
        if isinstance(what, Settle):
            where = self._everywhere(node.type.shape)
        else:
            there = what.layout.sharding if isinstance(what, ToLocal) else what.sharding.for_shape(node.type.shape)
            where = (there,)
        variable = self._variable(len(where))
        self._moved(self._read(node.nodes[0], node), variable, where, node.nodes[0])
        if not isinstance(what, ToLocal):
            self._lies(node, variable, where)

    def _operation(self, node: Node) -> None:
        operands = [x.type[:2] if isinstance(x, Node) else x for x in node.inputs]
        key = (node.what.key, *[k if isinstance(k, tuple) else (type(k), repr(k)) for k in operands])
        known = self._kinds.get(key)
        if known is None:
            every = options_of(node.what.name, operands, node.what.attrs, self.mesh)
            fits = [option for option in every if option.memory <= self.most] or list(every)
            seconds = [self._seconds(node, operands, option) for option in fits]
            sides = [
                [tuple([getattr(option, side)[at] for option in fits]) for at in range(count)]
                for side, count in (("operands", len(node.nodes)), ("results", len(node.types)))
            ]
            known = self._kinds[key] = fits, seconds, *sides
        options, seconds, wanted, results = known
        variable = self._variable(len(options))
        self._unary(variable, key, lambda: seconds)
        for at, x in enumerate(node.nodes):
            self._moved(self._read(x, node), variable, wanted[at], x)
        if len(node.types) == 1:
            self._lies(node, variable, results[0])
        else:
            self._several[node] = variable, options

    def _results(self, node: Node, variable: int, options: Sequence[Any]) -> None:
        if len(node.types) == 1:
            self._lies(node, variable, tuple([option.results[0] for option in options]))
        else:
            self._several[node] = variable, options

    def _seconds(self, node: Node, operands: Sequence[Any], option: Option) -> float:
        """The roofline of a strategy's local computations, and what devices exchange between them."""
        left = iter(option.operands)
        kinds = [(layout_of(next(left), k[0]), k[1]) if isinstance(k, tuple) else k for k in operands]
        plan = OperationPlan(OPS[node.what.name], kinds, node.what.attrs, option.strategy)
        total = 0.0
        for at, line in enumerate(plan.instructions):
            what: Any = line.what
            if not isinstance(what, Local):
                total += what.time
                continue
            arrays = [
                *zip(what.operands, what.call.dtypes, strict=True),
                *zip(what.results, what.call.result_dtypes, strict=True),
            ]
            touched = sum(held.sharding.local_size(held.shape) * dtype.itemsize for held, dtype in arrays)
            if at + 1 < len(plan.instructions):
                total += touched / self.chip.memory_bandwidth
                continue
            sizes = [
                s.local_size(x.type.shape) * x.type.dtype.itemsize
                for s, x in zip(option.operands, node.nodes, strict=True)
            ]
            item = plan.problem.result_dtype.itemsize
            sizes += [s.local_size(plan.rule.out_shape(i)) * item for i, s in enumerate(option.results)]
            work = work_of(plan.problem, option.strategy.placement)
            total += max(work / self.chip.flops_of(plan.problem.result_dtype), sum(sizes) / self.chip.memory_bandwidth)
        return total

    def _lies(self, node: Node, variable: int, where: tuple[Sharding, ...]) -> None:
        """A value lies somewhere; if several read it, it may be moved once for them."""
        value = variable, where
        if self._reads[node] > 1:
            value = self._hub(value, node)
            at = 1
            while (node, at) in self.about.hubs:
                own = self._hub(value, node)
                self._for.update({(node, reader): own for reader, _ in self.about.hubs[node, at]})
                at += 1
        self._where[node] = value

    def _hub(self, value: tuple[int, tuple[Sharding, ...]], node: Node) -> tuple[int, tuple[Sharding, ...]]:
        key = ("hub", id(value[1]), node.type.shape)
        known = self._kinds.get(key)
        if known is None:
            first = tuple(dict.fromkeys(value[1]))
            more = tuple([s for s in self._everywhere(node.type.shape) if s not in set(first)])
            known = self._kinds[key] = (*first, *more), value[1]
        hub = self._variable(len(known[0]))
        self._moved(value, hub, known[0], node)
        return hub, known[0]

    def _read(self, node: Node, reader: Node) -> tuple[int, tuple[Sharding, ...]]:
        return self._for.get((node, reader)) or self._where[node]

    def _unary(self, variable: int, key: Any, seconds: Any) -> None:
        if key not in self.tables:
            self.tables[key] = np.array(seconds()) / self.about.unit
        self.factors.append(((variable,), key))

    def _moved(
        self, value: tuple[int, tuple[Sharding, ...]], variable: int, where: tuple[Sharding, ...], node: Node
    ) -> None:
        key = ("move", id(value[1]), id(where), node.type.shape, node.type.dtype)
        if key not in self.tables:
            self._kinds[key] = value[1], where  # so that their identities stay theirs
            self.tables[key] = (
                move_matrix(value[1], where, node.type.shape, node.type.dtype, self.about.exact) / self.about.unit
            )
        self.factors.append(((value[0], variable), key))


class _Checker:
    """Follows the steps of a certificate on factors of its own."""

    def __init__(self, about: Certificate) -> None:
        self.about, self.costs = about, _Costs(about)
        self.numbers: dict[Any, int] = {}
        self.tables: list[Table] = []
        self.live: dict[int, tuple[Scope, int]] = {}
        self.of: list[dict[int, None]] = [{} for _ in self.costs.counts]
        self._next = 0
        self.given = 0.0  # units that rounding may have taken
        for scope, key in self.costs.factors:
            if key not in self.numbers:
                self.numbers[key] = self._kept(self.costs.tables[key])
            self._put(scope, self.numbers[key])
        self._seen: dict[Any, float] = {}
        self._left: dict[int, NDArray[np.bool_]] = {}

    def _kept(self, table: Table) -> int:
        self.tables.append(np.asarray(table, float))
        return len(self.tables) - 1

    def _put(self, scope: Scope, table: int) -> None:
        self.live[self._next] = scope, table
        for v in scope:
            self.of[v][self._next] = None
        self._next += 1

    def proved(self) -> float:
        """Seconds that no plan within the budget takes less than."""
        total = 0.0
        for step in self.about.steps:
            kind = type(step).__name__
            if kind == "Gone":
                total += self._minimised(step)
            elif kind == "Dead":
                self._without(step)
            elif kind == "Shift":
                self._shift(step)
            else:
                raise PlanError(f"The certificate has a step of an unknown kind: {step!r}.")
        own: dict[int, list[int]] = {}
        for (
            scope,
            table,
        ) in self.live.values():  # what is left counts with its least entry; that of one variable together
            if len(scope) == 1:
                own.setdefault(scope[0], []).append(table)
            else:
                total += float(self._open(scope, self.tables[table]).min())
        for v, some in own.items():
            total += float(self._open((v,), np.sum([self.tables[t] for t in some], axis=0)).min())
        price = self.about.price
        dual = (total - self.given) * self.about.unit - (price * self.about.budget if price else 0.0)
        return dual + self.costs.constant

    def _open(self, scope: Scope, table: Table) -> Table:
        """A table with options that were taken away impossible."""
        for axis, v in enumerate(scope):
            if v in self._left:
                view = [1] * table.ndim
                view[axis] = -1
                table = np.where(self._left[v].reshape(view), table, np.inf)
        return table

    def _minimised(self, step: Any) -> float:
        """A table takes the place of the factors of a variable: nowhere may it be more than the least of their sum."""
        v, others = step.variable, tuple(step.others)
        local = {u: at for at, u in enumerate((v, *others))}
        own = self.of[v]
        parts = tuple(sorted([(self.live[f][1], tuple([local.get(u, -1) for u in self.live[f][0]])) for f in own]))
        left = tuple([(u, tuple(step.options[at])) for u, at in local.items() if u in self._left])
        key = (step.table, parts, left)
        slack = self._seen.get(key)
        if slack is None:
            slack = self._seen[key] = self._slack(step, local, parts)
        if not slack <= len(parts) + 1:
            raise PlanError(f"The certificate claims too much where it minimises out variable {v}: by {slack} units.")
        self.given += max(slack, 0.0)
        for f in list(own):
            for u in self.live[f][0]:
                del self.of[u][f]
            del self.live[f]
        if others:
            self._put(others, self._message(step))
            return 0.0
        return float(self.tables[self._message(step)])

    def _message(self, step: Any) -> int:
        near = step.options[1:]
        left = [tuple(some) if u in self._left else () for u, some in zip(step.others, near, strict=True)]
        key = ("message", step.table, *left)
        if key not in self.numbers:
            full = np.full([self.costs.counts[u] for u in step.others], np.inf)
            full[np.ix_(*near)] = np.asarray(self.about.tables[step.table], float)
            self.numbers[key] = self._kept(full)
        return self.numbers[key]

    def _slack(self, step: Any, local: dict[int, int], parts: Any) -> float:
        """By how much a message exceeds the least of what it stands for, at most."""
        if any(-1 in at for _, at in parts):
            raise PlanError(f"The certificate leaves out a neighbour of variable {step.variable}.")
        sizes = [self.costs.counts[u] for u in local]
        views = []
        for table, at in parts:
            view = [1] * len(sizes)
            for place in at:
                view[place] = sizes[place]
            views.append(self.tables[table].transpose(np.argsort(at)).reshape(view))
        v, *others = local
        if math.prod(sizes) <= AT_ONCE:
            least = self._open(tuple(local), sum(views, start=np.zeros(sizes))).min(axis=0)
        else:
            least = np.full(sizes[1:], np.inf)
            for option in np.flatnonzero(self._left.get(v, np.ones(sizes[0], bool))):
                np.minimum(least, sum([view[option] for view in views], start=np.zeros(sizes[1:])), out=least)
            least = self._open(tuple(others), least)
        message = self.tables[self._message(step)]
        with np.errstate(invalid="ignore"):
            over = np.where(np.isposinf(least), -np.inf, message - least)
        return float(over.max(initial=-np.inf))

    def _without(self, step: Any) -> None:
        """An option may go if another one is never worse."""
        v, k, better = step.variable, step.option, step.better
        left = self._left.setdefault(v, np.ones(self.costs.counts[v], bool))
        if k == better or min(k, better) < 0 or not left[better]:
            raise PlanError(f"The certificate takes option {k} of variable {v} away for one that is gone.")
        more = 0.0
        for f in self.of[v]:
            scope, table = self.live[f]
            rows = np.moveaxis(self._open(scope, self.tables[table]), scope.index(v), 0)
            with np.errstate(invalid="ignore"):
                gain = np.where(np.isposinf(rows[k]), np.inf, rows[k] - rows[better])
            more += float(gain.min(initial=np.inf))
        if not more >= -(len(self.of[v]) + 1):
            raise PlanError(
                f"The certificate takes option {k} of variable {v} away, which can be better than {better}."
            )
        self.given += max(-more, 0.0)
        left[k] = False

    def _shift(self, step: Any) -> None:
        """A factor passes costs on to its variables."""
        scope = tuple(step.scope)
        found = next((f for f in self.of[scope[0]] if self.live[f][0] == scope), None)
        if found is None:
            raise PlanError(f"The certificate shifts costs of a factor that does not exist, over {scope}.")
        rest = self.tables[self.live[found][1]].copy()
        for axis, (v, given) in enumerate(zip(scope, step.given, strict=True)):
            full = np.zeros(self.costs.counts[v])
            full[self._left[v] if v in self._left else slice(None)] = given
            if not np.isfinite(full).all():
                raise PlanError(f"The certificate shifts infinite costs to variable {v}.")
            view = [1] * rest.ndim
            view[axis] = -1
            rest -= full.reshape(view)
            self._put((v,), self._kept(full))
        del self.live[found]
        for v in scope:
            del self.of[v][found]
        total = float(self._open(scope, rest).min())
        self._put((scope[0],), self._kept(np.full(self.costs.counts[scope[0]], total)))
