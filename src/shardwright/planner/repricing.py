"""`Costs`: what every choice for a program costs, found from the program and the hardware of its mesh, for the check of a
certificate. Shares no code with the model that the search makes, nor prices: those of moves are in `repriced_moves`, those of
operations in `repriced_operations`. Which strategies an operation has, how a loop is laid out, and which values may be one, are
facts that both read.

Values in equal places, of equal shapes, are of one `kind` (a number). What a node adds follows from the kinds that it reads,
so each distinct node is priced once and the layers of a model cost a look-up.
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import permutations, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.caches import MIB, Cache
from shardwright.mesh import Mesh
from shardwright.plan import Each, FromLocal, LocalStep, Option, ToLocal, options_of
from shardwright.planner.repriced_floored import moves_of
from shardwright.planner.repriced_operations import PASSING, Roofline
from shardwright.planner.repriced_programs import local_size, seconds_of_program
from shardwright.planner.repriced_steps import seconds_of_local
from shardwright.program.control_cost import controlled
from shardwright.program.node import Apply, Constrain, Control, Given, Node, Pick, Settle
from shardwright.program.twins import Shared, twins
from shardwright.sharding import P, Sharding

if TYPE_CHECKING:
    from shardwright.planner.certificate import Certificate

Table = NDArray[np.float64]
Scope = tuple[int, ...]
Shardings = tuple[Sharding, ...]
Value = tuple[int, int]  # a variable, and the kind of value that its options have
_Placed = Constrain | Settle | ToLocal
_strategies: Cache[Any, tuple[tuple[Option, ...], list[float]]] = Cache(
    limit=32 * MIB, size=lambda found: 1000 + 1500 * len(found[0])
)


class _Added(NamedTuple):
    """What a node adds: a variable with options, their own cost, the moves of what it reads, the kinds of its results."""

    options: int
    cost: int | None  # a table, like moves
    moves: tuple[int, ...]
    results: tuple[int, ...]


class _Paired(NamedTuple):
    """A variable that may be one with another, or another with it: which it reads, what each option is, the other if any."""

    sources: tuple[int, ...]
    marks: tuple[Any, ...]
    other: int | None


class Costs:
    """Variables with numbers of options, and factors: tables over one or two variables, in units."""

    def __init__(self, certificate: "Certificate") -> None:
        self.about, self.program = certificate, certificate.program
        self.mesh, self.chip = self.program.mesh, self.program.mesh.hardware.chip
        self.moves = moves_of(self.mesh)
        self.counts: list[int] = []  # options of each variable
        self.scopes: list[Scope] = []  # of factors, and their tables by number
        self.uses: list[int] = []
        self.tables: list[Table] = []
        self._waiting: list[
            tuple[int, Callable[[], Table]]
        ] = []  # tables of moves, which are priced once all are known
        self._asked: dict[int, tuple[Shardings, Shardings, tuple[int, ...], Any]] = {}  # what these are
        self.constant = 0.0
        self._kinds: list[tuple[Shardings, tuple[int, ...], Any]] = []
        self._numbers: dict[Any, int] = {}  # of kinds and of tables
        self._added: dict[Any, _Added] = {}
        self._operations: dict[Any, Any] = {}
        self._tight: dict[Any, bool] = {}
        self._values: dict[Node, Value] = {}
        self._made: dict[Node, Value] = {}  # the same before it is moved for several readers
        self._hubs: dict[Node, int] = {}  # the variable that most readers of a value read, if several do
        self._for: dict[tuple[Node, Node | None], Value] = {}  # what some readers of a value read, None for an output
        self._sizes: dict[tuple[Sharding, tuple[int, ...]], int] = {}
        alike = twins(self.program)
        relaxed = certificate.relaxed or not alike.exact
        self._shared = alike.shared if relaxed else Shared()
        self._of, self._beside = ({}, {}) if relaxed else (alike.of, alike.beside)
        self._pairs = {*self._of, *self._of.values()}
        self._paired: dict[int, _Paired] = {}  # variables that may be one
        self._reads = self.program.reads
        for node in self.program.outputs:
            self._reads[node] += 1
        for node in alike.order:
            self._node(node)
        for node, there in zip(self.program.outputs, certificate.outputs, strict=True):
            if node.type.local is None:
                key = "placed", *node.type[:2], there
                value = self._for.get((node, None), self._values[node])
                self._put(key, (value,), partial(self._placed, node, there), free=(self._is_free(node),))
        self._price_moves()

    @cached_property
    def most(self) -> float:
        """Bytes that a device may hold of a step's operands and results, beside the smallest shards of all inputs."""
        held: dict[Any, int] = {}
        least = 0
        for node in self.program.nodes:
            if isinstance(node.what, Given) and node.type.local is None:
                there = self.about.fixed.get(node) or node.type.sharding
                key = node.type[:2], there
                if key not in held:
                    held[key] = min(self._bytes(node, self._given(node, there)))
                least += held[key]
        return self.about.limit - least

    def _own(self, node: Node) -> tuple[bool, ...]:
        """Which operands of an operation may be inputs or constants themselves; no matter where all that it touches fits."""
        return tuple([self.may_be_held(x) for x in node.nodes]) if self._is_tight(node) else ()

    def _is_tight(self, node: Node) -> bool:
        kinds = [*[x.type for x in node.nodes], *node.types]
        return sum([math.prod(kind.shape) * kind.dtype.itemsize for kind in kinds]) > self.most

    def may_be_held(self, node: Node) -> bool:
        """Whether a value may be the memory of an input: not if an operation computes it that never passes its operand on."""
        while isinstance(node.what, Constrain | Settle | Pick) or (
            isinstance(node.what, Apply) and node.what.name in PASSING
        ):
            node = node.nodes[0]
        return not isinstance(node.what, Apply) or node.type.local is not None

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        what = node.what
        if isinstance(what, Apply):
            operands = tuple([self._read(x, node) for x in node.nodes])
            scalars = () if len(node.nodes) == len(node.inputs) else tuple([_scalar(x) for x in node.inputs])
            key = what.name, what.attrs.key, scalars, None if operands else node.type[:2]
            made = partial(self._operation, node)
            if node in self._pairs:
                other = self._of.get(node)
                self._lies(node, self._pair(operands, made(), None if other is None else self._made[other][0]))
            else:
                self._lies(node, self._put(key, operands, made, node, self._free(node)))
        elif isinstance(what, Given):
            if node.type.local is None:
                there = self.about.fixed.get(node) or node.type.sharding
                self._lies(node, self._put(("held", *node.type[:2], there), (), lambda: self._input(node, there)))
        elif isinstance(what, Pick):
            variable, first = self._values[node.nodes[0]]
            self._lies(node, (variable, first + what.which))
        elif isinstance(what, _Placed):
            self._place(node, what)
        elif isinstance(what, Control):
            operands = tuple([self._read(x, node) for x in node.nodes])
            layouts = controlled(self.program, node, self.about.fixed)

            seconds = [seconds_of_program(option.program) for option in layouts]
            self._lies(
                node, self._put(node, operands, lambda: self._options(node, layouts, seconds), free=self._free(node))
            )
        elif isinstance(what, LocalStep):
            self.constant += seconds_of_local(what)
        elif isinstance(what, Each):
            touched = sum(x.type.local_bytes for x in node.nodes) + sum(t.local_bytes for t in node.types)
            self.constant += touched / self.chip.memory_bandwidth
        elif isinstance(what, FromLocal):
            assert node.type.sharding is not None
            where = (node.type.sharding,)
            self._lies(node, self._put(("local", node.type), (), lambda: self._made_at(where, node)))

    def _place(self, node: Node, what: Any) -> None:
        there = None
        if isinstance(what, ToLocal):
            there = what.layout.sharding
        elif isinstance(what, Constrain):
            there = what.sharding.for_shape(node.type.shape)
        operands = (self._read(node.nodes[0], node),)
        free = (self._is_free(node.nodes[0]),)
        if node in self._of:
            value = self._pair(operands, self._placed(node, there), operands[0][0])
        else:
            value = self._put(("placed", *node.type[:2], there), operands, lambda: self._placed(node, there), free=free)
        if not isinstance(what, ToLocal):
            self._lies(node, value)

    def _put(
        self,
        key: Any,
        operands: tuple[Value, ...],
        make: Callable[[], Any],
        operation: Node | None = None,
        free: tuple[bool, ...] = (),
    ) -> Value:
        """Adds a variable and its factors; gives it with the kind of its first result. Moves of operands may be `free`, and
        what is done once these are there, if one more is."""
        once = self._once(operands)
        free = free if True in free else ()
        full: tuple[Any, ...] = (key, once, free, *[kind for _, kind in operands])
        if operation is not None:
            tight = self._tight.get(full)  # operations that are alike touch as much
            if tight is None:
                tight = self._tight[full] = self._is_tight(operation)
            if tight:
                full = (*full, self._own(operation))
        added = self._added.get(full)
        if added is None:
            count, cost, wanted, results = make()
            moves = self._moves(operands, wanted)
            if free:
                moves = [
                    self._nothing(table) if is_free else table for table, is_free in zip(moves, free, strict=False)
                ]
                cost = None if len(free) > len(moves) and free[-1] else cost
            added = self._added[full] = _Added(count, cost, tuple(moves), results)
        return self._variable(operands, added)

    def _variable(self, operands: tuple[Value, ...], added: _Added) -> Value:
        variable = len(self.counts)
        self.counts.append(added.options)
        if added.cost is not None:
            self._factor((variable,), added.cost)
        for (source, _), table in zip(operands, added.moves, strict=True):
            self._factor((source, variable), table)
        return variable, added.results[0] if added.results else -1

    def _factor(self, scope: Scope, table: int) -> None:
        self.scopes.append(scope)
        self.uses.append(table)

    def _moves(self, operands: tuple[Value, ...], wanted: Sequence[Shardings]) -> list[int]:
        moves = [self._move(kind, at) for (_, kind), at in zip(operands, wanted, strict=True)]
        for at, (first, other) in enumerate(self._once(operands)):
            if first < at:
                moves[at] = self._moved_once(
                    moves[at], False, wanted[at], [wanted[e] for e in range(at) if operands[e] == operands[at]]
                )
            if other >= 0:
                moves[at] = self._moved_once(moves[at], True, wanted[at], [wanted[other]])
        return moves

    def _once(self, operands: tuple[Value, ...]) -> tuple[tuple[int, int], ...]:
        """For each operand the first that is the same value, and one that it may be one with or -1; () where there are none."""
        if len(operands) < 2:
            return ()
        sources = [source for source, _ in operands]
        others = [self._paired[v].other if v in self._paired else None for v in sources] if self._paired else []
        if len(set(sources)) == len(sources) and set(others).isdisjoint(sources):
            return ()
        others = others or [None] * len(sources)
        return tuple(
            [(sources.index(v), sources.index(u) if u in sources else -1) for v, u in zip(sources, others, strict=True)]
        )

    # -- what may be one ----------------------------------------------------------------------------------------------

    def _pair(self, operands: tuple[Value, ...], made: Any, other: int | None) -> Value:
        """Adds a variable that may be one with another, or that another may be one with. In the first case each option is there
        twice: as one it takes nothing, and is possible where it has the other's option and reads what is one with what that
        reads; a constraint, where the value that it reads is in its place."""
        count, cost, wanted, results = made
        marks = (*zip(*wanted, *[self._kinds[kind][0] for kind in results], strict=True),)
        moves = self._moves(operands, wanted)
        if other is not None:
            count, marks = 2 * count, 2 * marks
            cost = None if cost is None else self._table(np.append(self.tables[cost], np.zeros(count // 2)))
            moves = [self._as_one(table, operands, at, wanted, other) for at, table in enumerate(moves)]
            kinds = [(2 * where, *kind) for where, *kind in [self._kinds[number] for number in results]]
            results = range(len(self._kinds), len(self._kinds) + len(kinds))
            self._kinds += kinds
        variable, kind = self._variable(operands, _Added(count, cost, tuple(moves), tuple(results)))
        sources = tuple([source for source, _ in operands])
        self._paired[variable] = _Paired(sources, marks, other)
        if other is not None and other not in sources:
            half, theirs = count // 2, self._paired[other].marks
            self._factor(
                (other, variable),
                self._impossible([[k >= half and m != n for k, m in enumerate(marks)] for n in theirs]),
            )
        return variable, kind

    def _as_one(self, table: int, operands: tuple[Value, ...], at: int, wanted: Sequence[Shardings], other: int) -> int:
        source, kind = operands[at]
        where, own = self._kinds[kind][0], self._paired.get(source)
        if source == other:
            possible = np.array([[here is there for there in wanted[at]] for here in where])
        else:
            theirs = self._paired[other].sources[at]
            one = own is not None and own.other == theirs
            possible = np.full((len(where), len(wanted[at])), source == theirs)
            possible[len(where) // 2 :] |= one
        return self._later(lambda: np.hstack([self.tables[table], np.where(possible, 0.0, np.inf)]))

    def _impossible(self, where: Any) -> int:
        return self._table(np.where(where, np.inf, 0.0))

    # -- where values lie ---------------------------------------------------------------------------------------------

    def _is_free(self, node: Node) -> bool:
        """Whether moves of a value count nothing, since something else may make them."""
        return node in self._shared.values

    def _free(self, node: Node) -> tuple[bool, ...]:
        """Which operands of an operation are free, and whether it is itself: then all of that is. () if nothing is."""
        if not self._shared.values:
            return ()
        own = node in self._shared.operations
        return (*[own or self._is_free(x) for x in node.nodes], own)

    def _nothing(self, table: int) -> int:
        return self._later(lambda: np.zeros_like(self.tables[table]))

    def _moved_once(self, table: int, half: bool, wanted: Shardings, others: Sequence[Shardings]) -> int:
        """The moves of an operand, or those from its second half of places, without those that other operands make that are the
        same value."""
        gone = [k for k, there in enumerate(wanted) if any(some[k] is there for some in others)]

        def made() -> Table:
            units = self.tables[table].copy()
            units[len(units) // 2 if half else 0 :, gone] = 0.0
            return units

        return self._later(made)

    def _lies(self, node: Node, value: Value) -> None:
        """A value lies somewhere; if several read it, it may be moved once for them."""
        self._made[node] = value
        if len(node.types) == 1 and (self._reads[node] > 1 or node in self._pairs):
            free, other = self._is_free(node), self._of.get(node)
            theirs = None if other is None else self._hubs[other]
            first = value = self._hub(value, free, node in self._pairs, theirs)
            if node in self._beside:
                first = self._hub(value, free, True)
                self._for.update({(node, reader): first for reader in self._beside[node]})
            self._hubs[node] = first[0]
            at = 1
            while (node, at) in self.about.hubs:
                own = self._hub(first, free)
                self._for.update({(node, reader): own for reader, _ in self.about.hubs[node, at]})
                at += 1
        self._values[node] = value

    def _hub(self, value: Value, free: bool, paired: bool = False, other: int | None = None) -> Value:
        def made() -> Any:
            where, shape, dtype = self._kinds[value[1]]
            known = dict.fromkeys(where)
            every = (*known, *[s for s in self._places(shape) if s not in known])
            return len(every), None, (every,), (self._kind(every, shape, dtype),)

        return self._pair((value,), made(), other) if paired else self._put("hub", (value,), made, free=(free,))

    def _read(self, node: Node, reader: Node) -> Value:
        return (self._for and self._for.get((node, reader))) or self._values[node]

    # -- prices of distinct nodes: options, their cost, where they want operands, kinds of results ---------------------------

    def _given(self, node: Node, there: Sharding | None) -> Shardings:
        shape = node.type.shape
        return self._places(shape, True) if there is None else (there.for_shape(shape),)

    def _places(self, shape: tuple[int, ...], any_order: bool = False) -> Shardings:
        key = "places", shape, any_order
        if key not in self._operations:
            self._operations[key] = placements(self.mesh, shape, any_order)
        found: Shardings = self._operations[key]
        return found

    def _input(self, node: Node, there: Sharding | None) -> Any:
        where = self._given(node, there)
        held = self._table(np.array(self._bytes(node, where), float) * self.about.price / self.about.unit)
        return len(where), held, (), (self._kind(where, *node.type[:2]),)

    def _made_at(self, where: Shardings, node: Node, cost: int | None = None) -> Any:
        return len(where), cost, (), (self._kind(where, *node.type[:2]),)

    def _placed(self, node: Node, there: Sharding | None) -> Any:
        """A value that is moved to one place, or anywhere."""
        shape = node.type.shape
        where = self._places(shape) if there is None else (there.for_shape(shape),)
        return len(where), None, (where,), (self._kind(where, *node.type[:2]),)

    def _operation(self, node: Node) -> Any:
        what, kind = node.what, node.type
        if not node.nodes:  # each device makes its part
            where = self._places(kind.shape)
            seconds = [n / self.chip.memory_bandwidth for n in self._bytes(node, where)]
            return self._made_at(where, node, self._seconds_table(seconds))
        operands = [x.type[:2] if isinstance(x, Node) else x for x in node.inputs]
        key = what.name, what.attrs.key, *[k if isinstance(k, tuple) else _scalar(k) for k in operands], self._own(node)
        if key not in self._operations:
            every, roofline = options_of(what.name, operands, what.attrs, self.mesh), Roofline(self, node, operands)
            found = dict(zip(map(id, every), self._strategies(key[:-1], every, roofline), strict=True))
            if self._is_tight(node):
                every = tuple([option for option in every if roofline.sure(option) <= self.most]) or every
            self._operations[key] = self._options(node, every, [found[id(option)] for option in every])
        return self._operations[key]

    def _strategies(self, key: Any, every: tuple[Option, ...], roofline: Roofline) -> list[float]:
        """What all strategies of an operation take; kept for the next check, as long as the list of them is the same."""
        found = _strategies.get((self.mesh, key))
        if found is None or found[0] is not every:
            found = every, [roofline.seconds(option) for option in every]
            _strategies.put((self.mesh, key), found)
        return found[1]

    def _options(self, node: Node, options: Sequence[Any], seconds: Sequence[float]) -> Any:
        cost = self._seconds_table(seconds)
        wanted = tuple([tuple([o.operands[at] for o in options]) for at in range(len(node.nodes))])
        results = [(tuple([o.results[at] for o in options]), *kind[:2]) for at, kind in enumerate(node.types)]
        if len(results) == 1:
            return len(options), cost, wanted, (self._kind(*results[0]),)
        first = len(self._kinds)  # one after the other, so that a pick finds its kind
        self._kinds += results
        return len(options), cost, wanted, tuple(range(first, len(self._kinds)))

    def _bytes(self, node: Node, where: Shardings) -> list[int]:
        """What a device holds of a value at each of some places."""
        item = node.type.dtype.itemsize
        return [self.local_size(s, node.type.shape) * item for s in where]

    def local_size(self, sharding: Sharding, shape: tuple[int, ...]) -> int:
        """Elements of the largest shard."""
        key = sharding, shape
        found = self._sizes.get(key)
        if found is None:
            found = self._sizes[key] = local_size(sharding, shape)
        return found

    # -- tables and kinds ---------------------------------------------------------------------------------------------

    def _kind(self, where: Shardings, shape: tuple[int, ...], dtype: Any) -> int:
        found = self._numbers.setdefault((where, shape, dtype), len(self._kinds))
        if found == len(self._kinds):
            self._kinds.append((where, shape, dtype))
        return found

    def _table(self, units: Table) -> int:
        found = self._numbers.setdefault((units.shape, units.tobytes()), len(self.tables))
        if found == len(self.tables):
            self.tables.append(units)
        return found

    def _seconds_table(self, seconds: Any) -> int:
        return self._table(np.asarray(seconds, float) / self.about.unit)

    def _move(self, kind: int, wanted: Shardings) -> int:
        where, shape, dtype = self._kinds[kind]
        key = "move", kind, wanted
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.tables)
            self._asked[found] = where, wanted, shape, dtype
            self._later(lambda: self.tables[found] / self.about.unit)
        return found

    def _later(self, made: Callable[[], Table]) -> int:
        self.tables.append(np.zeros(()))
        self._waiting.append((len(self.tables) - 1, made))
        return len(self.tables) - 1

    def _price_moves(self) -> None:
        """Fills in the tables of moves; equal ones are one."""
        seconds = self.moves.several(list(self._asked.values()), self.about.exact)
        for number, table in zip(self._asked, seconds, strict=True):
            self.tables[number] = table
        same = list(range(len(self.tables)))
        for number, made in self._waiting:
            units = self.tables[number] = made()
            same[number] = self._numbers.setdefault((units.shape, units.tobytes()), number)
        self.uses = [same[table] for table in self.uses]


def placements(mesh: Mesh, shape: tuple[int, ...], any_order: bool = False) -> Shardings:
    """Every way to split the dims of a tensor by whole axes, no dim into more blocks than it has elements; those that hold less
    first. Axes on a dim are in the order of the mesh, or in any."""
    axes = [axis for axis, n in mesh.sizes.items() if n > 1]
    found = []
    for choice in product([*range(len(shape)), -1], repeat=len(axes)):
        dims = [[axis for axis, at in zip(axes, choice, strict=True) if at == dim] for dim in range(len(shape))]
        blocks = [math.prod([mesh.sizes[axis] for axis in some]) for some in dims]
        if any(k > max(n, 1) or (k > 1 and not n) for k, n in zip(blocks, shape, strict=True)):
            continue
        held = math.prod([-(-n // k) for n, k in zip(shape, blocks, strict=True)])
        for number, order in enumerate(product(*map(permutations, dims)) if any_order else [dims]):
            found.append((held, number > 0, Sharding(mesh, P(*map(tuple, order))).for_shape(shape)))
    return tuple([s for _, _, s in sorted(found, key=lambda entry: entry[:2])])


def _scalar(x: Any) -> Any:
    return None if isinstance(x, Node) else (type(x), repr(x))
