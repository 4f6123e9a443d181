"""The model: what there is to choose for a program, and what every choice costs.

A variable is where a value lies or how an operation runs; a factor is what a choice of one or two variables costs.
docs/planning.md says what is chosen from. The cost of a choice is what `explain` shows of the program that follows from it.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from shardwright.plan import Each, FromLocal, LocalStep, ToLocal, move_matrix, options_of, places
from shardwright.planner.tables import Tables
from shardwright.program.control_cost import controlled
from shardwright.program.node import Apply, Constant, Constrain, Control, Input, Node, Pick, Program, Settle
from shardwright.program.twins import Shared, Twins
from shardwright.program.twins import twins as twins_of
from shardwright.sharding import Sharding

Shardings = tuple[Sharding, ...]
NOTHING = Shared()
BESIDE = -1
DIGITS = 50  # of a sum of all costs that are exact


@dataclass
class Variable:
    """Something to choose: a node, a place for several readers of one (`hub`), or where an output lies.

    One that has a `twin` has each option twice, the second time as one with that variable: then it takes nothing.
    """

    kind: str  # "node", "hub", "output"
    node: Node
    options: Sequence[Any]
    number: int = 0  # of an output, or of a hub among those of a node; of that beside a constraint BESIDE
    twin: int | None = None


class Value(NamedTuple):
    """A value that can be read: the variable that says where it lies, and for each of its options where that is."""

    variable: int
    where: Shardings


@dataclass
class Model:
    """Variables and factors of a program."""

    program: Program
    tables: Tables
    variables: list[Variable] = field(default_factory=list)
    factors: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    constant: float = 0.0  # seconds that no choice changes
    of_node: dict[Node, int] = field(default_factory=dict)
    hubs: dict[Node, dict[int, int]] = field(default_factory=dict)  # by number
    beside: Mapping[Node, Sequence[Node | None]] = field(default_factory=dict)  # readers of the hubs of that number
    outputs: list[int | None] = field(default_factory=list)
    inputs: dict[Node, int] = field(default_factory=dict)
    held: dict[int, list[int]] = field(default_factory=dict)  # of inputs and constants: the bytes of each option
    edges: list[tuple[int, int, Node, int]] = field(default_factory=list)  # from, to, the value, the operand's number
    moves: list[int] = field(default_factory=list)  # of edges: the tables
    wheres: list[tuple[Shardings, Shardings]] = field(default_factory=list)  # of edges: where each option has the value


VIEWS = ("reshape", "permute_dims", "broadcast_to", "astype", "rows")  # whose result may be their operand


def fresh_values(program: Program) -> set[Node]:
    """The values that are surely not the memory of an input or a constant: computed by operations that don't pass them on."""
    found: set[Node] = set()
    for node in program.nodes:
        what = node.what
        passes = isinstance(what, Constrain | Settle | Pick) or (isinstance(what, Apply) and what.name in VIEWS)
        if node.type.local is None and (isinstance(what, Apply) if not passes else node.nodes[0] in found):
            found.add(node)
    return found


def surely_held(node: Node, option: Any, fresh: set[Node]) -> int:
    """Bytes that a device holds in an operation under a strategy at least, beside inputs and constants.

    An operand that is an input is held anyway, and equal operands once. Of an operation in several steps only one value is sure
    to be there at a time.
    """
    operands = {
        (x.type[:2], there): there.local_size(x.type.shape) * x.type.dtype.itemsize
        for x, there in zip(node.nodes, option.operands, strict=True)
        if x in fresh
    }
    made = zip(option.results, node.types, strict=True)
    results = (
        [s.local_size(kind.shape) * kind.dtype.itemsize for s, kind in made] if node.what.name not in VIEWS else []
    )
    sizes = [*operands.values(), *results]
    return sum(sizes) if option.is_single else max(sizes, default=0)


class Builder:
    """Makes the model of a program whose inputs, and perhaps outputs, have shardings or are open.

    `most` is the largest number of bytes that a device may hold of one step's operands and results; `exact` has the moves that
    must be priced exactly even if that takes long. What may be one in the program (`twins`) is one or apart; or, `relaxed`, all
    but one of it is left out.
    """

    def __init__(
        self,
        program: Program,
        fixed: Mapping[Node, Sharding],
        outputs: Sequence[Sharding | None],
        hubs: Mapping[tuple[Node, int], Sequence[tuple[Node, int]]],
        most: float = math.inf,
        exact: Collection[Any] = (),
        twins: Twins | None = None,
        relaxed: bool = False,
    ) -> None:
        self.exact, self.twins = exact, twins or twins_of(program)
        self.shared = self.twins.shared if relaxed else NOTHING
        self.of, self.beside = ({}, {}) if relaxed else (self.twins.of, self.twins.beside)
        self.joint = {*self.of, *self.of.values()}
        self.program, self.mesh, self.fixed, self.wanted, self.most = program, program.mesh, fixed, outputs, most
        self.more_hubs = hubs
        self.reads = program.reads
        self.values: dict[Node, Value] = {}
        self._moves: dict[Any, int] = {}
        self._unary: dict[Any, int] = {}
        self._lists: dict[Shardings, int] = {}
        self._places: dict[tuple[tuple[int, ...], bool], Shardings] = {}
        self._options: dict[Any, Any] = {}
        self._sizes: dict[Any, list[int]] = {}
        self._several: dict[tuple[Node, Node | None], Value] = {}
        self._sources: dict[tuple[int, int], int] = {}  # by variable and operand: which variable it reads

    def build(self) -> Model:
        """The model."""
        self.model = Model(self.program, Tables(self._unit()), beside=self.beside)
        for node in self.twins.order if self.of else self.program.nodes:
            self._add(node)
        for number, (node, there) in enumerate(zip(self.program.outputs, self.wanted, strict=True)):
            self._output(number, node, there)
        return self.model

    def _unit(self) -> float:
        """The unit of costs: small against the time of the program, large enough for exact sums."""
        chip = self.mesh.hardware.chip
        whole = sum(t.dtype.itemsize * math.prod(t.shape) for node in self.program.nodes for t in node.types)
        work = sum(
            o[-1].seconds for node in self.program.nodes if isinstance(node.what, Apply) and (o := self._of(node))
        )
        slow = max((link.latency for link in self.mesh.links.values()), default=0.0)
        pace = max((1 / link.bandwidth for link in self.mesh.links.values()), default=0.0)
        bound = 4 * (work + whole / chip.memory_bandwidth + whole * pace + 8 * slow * len(self.program.nodes)) + 1e-9
        return 2.0 ** (math.ceil(math.log2(bound)) - DIGITS)

    # -- variables ----------------------------------------------------------------------------------------------------

    def _variable(self, variable: Variable, seconds: Any, key: Any = None) -> int:
        model, number = self.model, len(self.model.variables)
        if variable.twin is not None:
            variable.options = self._doubled(variable.options)
            seconds, key = [*seconds, *[0.0] * len(seconds)], key and ("doubled", key)
        model.variables.append(variable)
        table = self._unary.get(key) if key is not None else None
        if table is None:
            table = model.tables.seconds(seconds)
            if key is not None:
                self._unary[key] = table
        model.factors.append(((number,), table))
        return number

    def _costing(self, node: Node, options: Sequence[Any], seconds: Sequence[float], key: Any = None) -> int:
        """A variable for what an operation does; nothing if another may do it."""
        if node in self.shared.operations:
            seconds, key = [0.0] * len(options), ("free", len(options))
        return self._variable(Variable("node", node, options, twin=self._twin(node)), seconds, key)

    def _twin(self, node: Node) -> int | None:
        """The variable that one for a node may be one with: of the value that a constraint reads, of a like operation."""
        other = self.of.get(node)
        if other is None:
            return None
        return self.model.of_node[other] if isinstance(node.what, Apply) else self.values[other].variable

    def _doubled(self, options: Sequence[Any]) -> tuple[Any, ...]:
        """Options for apart, and again for as one."""
        found: tuple[Any, tuple[Any, ...]] = self._options.setdefault(
            (id(options), "doubled"), (options, (*options, *options))
        )
        return found[1]

    def _everywhere(self, shape: tuple[int, ...], any_order: bool = False) -> Shardings:
        found = self._places.get((shape, any_order))
        if found is None:
            found = self._places[shape, any_order] = places(self.mesh, shape, any_order)
        return found

    def _add(self, node: Node) -> None:
        what = node.what
        if node.type.local is not None or isinstance(what, LocalStep | ToLocal):
            self._add_local(node)
        elif isinstance(what, Input | Constant):
            self._add_input(node)
        elif isinstance(what, Apply):
            self._add_operation(node) if node.nodes else self._add_made(node)
        elif isinstance(what, Constrain):
            self._add_place(node, (what.sharding.for_shape(node.type.shape),))
        elif isinstance(what, Settle):
            self._add_place(node, self._everywhere(node.type.shape))
        elif isinstance(what, Pick):
            self._add_pick(node, what.which)
        elif isinstance(what, Control):
            self._add_control(node)
        else:
            assert isinstance(what, FromLocal | Each), what
            self._add_local(node)

    def _add_input(self, node: Node) -> None:
        kind = node.type
        given = self.fixed.get(node) or kind.sharding
        where = (given.for_shape(kind.shape),) if given is not None else self._everywhere(kind.shape, True)
        number = self._variable(Variable("node", node, where), np.zeros(len(where)), ("free", len(where)))
        if isinstance(node.what, Input):
            self.model.inputs[node] = number
        key = where, kind.shape, kind.dtype.itemsize
        if key not in self._sizes:
            self._sizes[key] = [s.local_size(kind.shape) * kind.dtype.itemsize for s in where]
        self.model.held[number] = self._sizes[key]
        self._made(node, number, where)

    def _add_made(self, node: Node) -> None:
        """An operation without operands: each device makes its own part, anywhere."""
        where, kind = self._everywhere(node.type.shape), node.type
        chip, size = self.mesh.hardware.chip, kind.dtype.itemsize
        seconds = [chip.seconds(0.0, s.local_size(kind.shape) * size, kind.dtype) for s in where]
        self._made(node, self._costing(node, where, seconds), where)

    def _of(self, node: Node) -> Any:
        """The options of an operation on operands."""
        kinds = [x.type[:2] if isinstance(x, Node) else x for x in node.inputs]
        key = (node.what.name, node.what.attrs.key, *[k if isinstance(k, tuple) else (type(k), repr(k)) for k in kinds])
        if self.most < math.inf:
            key = *key, *[x in self._fresh for x in node.nodes]
        found = self._options.get(key)
        if found is None:
            found = options_of(node.what.name, kinds, node.what.attrs, self.mesh) if node.nodes else ()
            if self.most < math.inf:
                found = tuple([o for o in found if surely_held(node, o, self._fresh) <= self.most]) or found
            self._options[key] = found
        return found

    @cached_property
    def _fresh(self) -> set[Node]:
        return fresh_values(self.program)

    def _add_operation(self, node: Node) -> None:
        options = self._of(node)
        number = self._costing(node, options, [o.seconds for o in options], id(options))
        self._read_all(node, number, options)
        self.model.of_node[node] = number
        self._same_option(number)
        if len(node.types) == 1:
            self._made(node, number, self._where(self.model.variables[number].options, "results", 0))

    def _where(self, options: Any, kind: str, at: int) -> Shardings:
        key = (id(options), kind, at)
        found = self._options.get(key)
        if found is None:
            found = self._options[key] = tuple(getattr(option, kind)[at] for option in options)
        return found

    def _add_pick(self, node: Node, which: int) -> None:
        (whole,) = node.nodes
        number = self.model.of_node[whole]
        options = self.model.variables[number].options
        self._made(node, number, self._where(options, "results", which))

    def _add_place(self, node: Node, where: Shardings) -> None:
        """A value that is moved to where it is to lie."""
        own = Variable("node", node, where, twin=self._twin(node))
        number = self._variable(own, np.zeros(len(where)), ("free", len(where)))
        self._read(node.nodes[0], node, number, where, 0)
        self._made(node, number, tuple(own.options))

    def _add_control(self, node: Node) -> None:
        """A loop or a choice, as propagation lays it out from one of several places of what it reads."""
        options = controlled(self.program, node, self.fixed)
        number = self._costing(node, options, [option.seconds for option in options])
        self._read_all(node, number, options)
        self.model.of_node[node] = number
        if len(node.types) == 1:
            self._made(node, number, self._where(options, "results", 0))

    def _add_local(self, node: Node) -> None:
        """Steps on tensors per device: nothing is to be chosen."""
        what, chip = node.what, self.mesh.hardware.chip
        if isinstance(what, ToLocal):
            where = (what.layout.sharding,)
            number = self._variable(Variable("node", node, where), [0.0])
            self._read(node.nodes[0], node, number, where, 0)
        elif isinstance(what, LocalStep):
            self.model.constant += what.time
        elif isinstance(what, Each):
            moved = sum(x.type.local_bytes for x in node.nodes) + sum(kind.local_bytes for kind in node.types)
            self.model.constant += chip.seconds(0.0, moved, node.types[0].dtype if node.types else "float32")
        elif isinstance(what, FromLocal):
            assert node.type.sharding is not None
            where = (node.type.sharding,)
            self._made(node, self._variable(Variable("node", node, where), [0.0]), where)

    # -- who reads what -----------------------------------------------------------------------------------------------

    def _made(self, node: Node, number: int, where: Shardings) -> None:
        """A value is there; if several read it, it may be moved once for all."""
        self.model.of_node[node] = number
        value = Value(number, where)
        if self.reads[node] + self.program.outputs.count(node) > 1 or node in self.joint:
            first = value = self._hub(node, value, 0)
            if node in self.beside:
                first = self._hub(node, value, BESIDE)
                self._several.update({(node, reader): first for reader in self.beside[node]})
            for at, readers in enumerate(self._readers(node), 1):
                own = self._hub(node, first, at)
                self._several.update({(node, reader): own for reader in readers})
        self.values[node] = value

    def _readers(self, node: Node) -> list[list[Node]]:
        found, at = [], 1
        while (node, at) in self.more_hubs:
            found.append([reader for reader, _ in self.more_hubs[node, at]])
            at += 1
        return found

    def _hub(self, node: Node, value: Value, number: int) -> Value:
        known = dict.fromkeys(value.where)
        where = (*known, *(s for s in self._everywhere(node.type.shape) if s not in known))
        other, twin = self.of.get(node), None
        if other is not None and number == 0:
            twin = self.model.hubs[other][BESIDE if other in self.beside else 0]
        own = Variable("hub", node, where, number, twin)
        hub = self._variable(own, np.zeros(len(where)), ("free", len(where)))
        self.model.hubs.setdefault(node, {})[number] = hub
        self._edge(value, hub, where, node, -1)
        self._same_option(hub)
        return Value(hub, tuple(own.options))

    def _read_all(self, node: Node, number: int, options: Sequence[Any]) -> None:
        """What an operation reads. Where it wants a value and an earlier operand that is the same, or is one with it, in one
        place, that is moved once."""
        for at, x in enumerate(node.nodes):
            where, same = self._where(options, "operands", at), partial(self._same_place, node, options, at)
            one = same([e for e, y in enumerate(node.nodes) if y is self.of.get(x)])
            self._read(x, node, number, where, at, same([e for e in range(at) if node.nodes[e] is x]), one)

    def _same_place(self, node: Node, options: Sequence[Any], at: int, others: Sequence[int]) -> tuple[int, ...]:
        """The options that want an operand where they want one of some others."""
        if not others:
            return ()
        where, same = self._where(options, "operands", at), [self._where(options, "operands", e) for e in others]
        return tuple([k for k, there in enumerate(where) if any(some[k] is there for some in same)])

    def _read(
        self,
        node: Node,
        reader: Node,
        number: int,
        where: Shardings,
        at: int,
        free: tuple[int, ...] = (),
        one: tuple[int, ...] = (),
    ) -> None:
        if reader in self.shared.operations:
            free = tuple(range(len(where)))
        self._edge(self._several.get((node, reader), self.values[node]), number, where, node, at, free, one)

    def _edge(
        self,
        value: Value,
        number: int,
        where: Shardings,
        node: Node,
        at: int,
        free: tuple[int, ...] = (),
        one: tuple[int, ...] = (),
    ) -> None:
        """The moves of an operand. Those to `free` options count nothing, nor those to `one` where it is one with another."""
        kind = node.type
        if node in self.shared.values:
            free = tuple(range(len(where)))
        table, twin = self._moved(value.where, where, kind.shape, kind.dtype, free), self.model.variables[number].twin
        self._sources[number, at] = value.variable
        if one:
            moves = self.model.tables.exact[table].copy()
            moves[len(moves) // 2 :, list(one)] = 0.0
            table = self.model.tables.seconds(moves)
        if twin is not None:
            table = self._as_one(table, value, twin, where, at)
            where = self._doubled(where)
        self.model.factors.append(((value.variable, number), table))
        self.model.edges.append((value.variable, number, node, at))
        self.model.moves.append(table)
        self.model.wheres.append((value.where, where))

    def _as_one(self, table: int, value: Value, twin: int, where: Shardings, at: int) -> int:
        """The moves of an operand, and again for a reader that is one with another variable: none if that reads the same."""
        before = self.model.variables[value.variable]
        if twin == value.variable:  # a constraint, which then has the value where it is
            none = np.array([[here is there for there in where] for here in value.where])
        elif self._sources[twin, at] == value.variable:
            none = np.full((len(value.where), len(where)), True)
        else:
            one = before.twin is not None and before.twin == self._sources[twin, at]
            none = np.arange(len(value.where))[:, None] >= len(value.where) // 2 if one else np.array(False)
        moves = self.model.tables.exact[table]
        return self.model.tables.seconds(np.hstack([moves, np.where(none & (moves >= 0), 0.0, np.inf)]))

    def _same_option(self, number: int) -> None:
        """A variable that is one with its twin has the option that this has."""
        own = self.model.variables[number]
        if own.twin is not None:
            half, theirs = len(own.options) // 2, self.model.variables[own.twin].options
            alike = [
                [0.0 if k < half or mine is other else np.inf for k, mine in enumerate(own.options)] for other in theirs
            ]
            self.model.factors.append(((own.twin, number), self.model.tables.seconds(alike)))

    def _moved(
        self, before: Shardings, after: Shardings, shape: tuple[int, ...], dtype: Any, free: tuple[int, ...] = ()
    ) -> int:
        key = (self._listed(before), self._listed(after), shape, dtype, free)
        found = self._moves.get(key)
        if found is None:
            seconds = np.array(move_matrix(before, after, shape, dtype, self.exact))
            seconds[:, list(free)] = 0.0
            found = self._moves[key] = self.model.tables.seconds(seconds)
        return found

    def _listed(self, where: Shardings) -> int:
        return self._lists.setdefault(where, len(self._lists))

    def _output(self, number: int, node: Node, there: Sharding | None) -> None:
        if node.type.local is not None:
            self.model.outputs.append(None)
            return
        where = (there.for_shape(node.type.shape),) if there is not None else self._everywhere(node.type.shape)
        own = self._variable(Variable("output", node, where, number), np.zeros(len(where)), ("free", len(where)))
        self._edge(self._several.get((node, None), self.values[node]), own, where, node, -1)
        self.model.outputs.append(own)
