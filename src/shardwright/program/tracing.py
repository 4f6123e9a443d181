"""Tracing: a function runs on arrays without elements, and what it asks of them is recorded."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from numpy.typing import NDArray

from shardwright.arrays import Array, PerDevice
from shardwright.eager import Held, kind_of, source_line, tracing
from shardwright.engines.mailbox import Mailbox
from shardwright.errors import TraceError
from shardwright.mesh import Mesh
from shardwright.ops import NO_ATTRS, OPS, Attrs, Rule
from shardwright.plan import scalar_side
from shardwright.program.local_tracing import LocalTrace, TracedLocal
from shardwright.program.node import (
    Apply,
    Constant,
    Constrain,
    Given,
    Graph,
    Input,
    Node,
    Program,
    Settle,
    Type,
    Written,
    is_effect,
)
from shardwright.sharding import Layout, P, Sharding


class Traced(Array):
    """An array inside a function that is being traced: its shape and dtype are known, its elements are not."""

    __slots__ = ("node", "trace")

    traces = True
    node: Node
    trace: "Trace"

    @classmethod
    def of(cls, layout: Layout, data: NDArray[Any]) -> Any:
        """Concrete data gives an ordinary Array, even during tracing."""
        return Array.of(layout, data)

    def record(self, name: str, operands: Sequence[Any], attrs: Attrs) -> Any:
        """Record an operation."""
        return self.recorder().record(name, operands, attrs)

    def recorder(self) -> "Trace":
        """The function that is being traced now: the one this value belongs to, or one inside it."""
        return self.trace.recorder_of(self)

    def to_local(self, sharding: Sharding) -> TracedLocal:
        """Its shards as a tensor per device."""
        return LocalTrace(self.recorder()).to_local(self, sharding)

    def reshard(self, target: "Sharding | P", *, allow_device_permutation: bool = False) -> Any:
        """A constraint: from here on the value lies as the target says."""
        sharding = target if isinstance(target, Sharding) else Sharding(self.mesh, target)
        return self.recorder().constrained(self, sharding, "reshard")

    def reduced(self) -> Any:
        """The same value with its reduction done, if one is left to do."""
        now = self.recorder()
        node = now.node_of(self)
        return now.value(now.graph.add(Settle(), (node,), (node.type,), source_line()))

    def again(self) -> Any:
        """A new variable with this value; assigning to one leaves the other unchanged."""
        now = self.recorder()
        return now.value(now.node_of(self))

    def __copy__(self) -> Any:
        return self.again()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.again()

    def become(self, other: Held) -> None:
        """Take another's value: the function's own variable changes, none outside."""
        now = self.recorder()
        node = now.node_of(other)
        self.node, self.trace, self._layout, self._dtype = node, now, now.layout(node.type.shape), node.type.dtype

    @property
    def data(self) -> NDArray[Any]:
        raise TraceError(self._unknown())

    @property
    def sharding(self) -> Sharding:
        """Not known yet: shardings are settled once the whole function is traced."""
        raise TraceError(
            f"The sharding of {self.node.type} is not known while the program is traced: it is settled once the whole "
            f"function is ({source_line()}). Use sw.with_sharding_constraint to say what it is to be."
        )

    def summary(self) -> str:
        """Its type and mesh."""
        return f"{self.node.type} on {self.mesh}"

    def host(self) -> NDArray[Any]:
        raise TraceError(self._unknown())

    def placed(self, target: Layout, last: bool = False) -> NDArray[Any]:
        raise TraceError(self._unknown())

    def _scalar(self) -> Any:
        raise TraceError(
            f"{self._unknown()} Python's if, while, int() and float() need it: use sw.cond, sw.while_loop or sw.scan, "
            f"or make the argument it comes from static."
        )

    def apply_collective(self, collective: Any) -> Any:
        raise TraceError(
            f"{collective.name} on an array while a program is traced: where its parts lie is not settled yet. "
            f"Use sw.with_sharding_constraint to say where they are to lie."
        )

    def __repr__(self) -> str:
        return f"Traced({self.node.type} on {self.mesh})"

    __str__ = __repr__

    def _unknown(self) -> str:
        return f"The elements of {self.node.type} are not known while the program is traced ({source_line()})."


class _Derived(NamedTuple):
    """How an array was made from others while a function was traced: by an operation, or without a name by a move."""

    result: Array  # kept, so that its id is its own
    operands: tuple[Any, ...]
    source: str
    name: str = ""
    attrs: Attrs = NO_ATTRS
    pick: int = 0  # which of the operation's results


class Trace:
    """One function being traced; a function inside it, of a loop, has a trace of its own that captures outer values."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.graph = mesh, Graph()
        self.parent = current_trace()
        self.mailbox = Mailbox()  # sends of tensors per device that wait for their recv
        self.constants: dict[Node, Array] = {}
        self.captured: dict[Node, Any] = {}  # inputs of an inner trace -> values from outside
        self._derived: dict[int, _Derived] = {}  # by id: what ran while this outermost function was traced
        self.looked_at: dict[int, Array] = {}  # arrays from outside whose elements it has seen
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._rules: dict[Any, tuple[Rule, tuple[Type, ...]]] = {}  # by operation, kinds of operands and attributes

    @property
    def root(self) -> "Trace":
        """The outermost function that is being traced."""
        at = self
        while at.parent is not None:
            at = at.parent
        return at

    def recorder_of(self, x: Any) -> "Trace":
        """The function that is being traced now, if a value of this one may be used there."""
        now = at = current_trace()
        while at is not None:
            if at is self:
                assert now is not None
                return now
            at = at.parent
        raise TraceError(
            f"{x.node.type} belongs to a program whose tracing is over: it was kept by something outside. Return it from "
            f"the function instead."
        )

    def local_node(self, x: TracedLocal) -> Node:
        """The node of a tensor per device; a loop or a choice captures those from outside."""
        x.trace.recorder_of(x)
        return x.node if x.trace is self else self._capture(x, x.node.type, id(x.node))

    def layout(self, shape: tuple[int, ...]) -> Layout:
        """A layout to be held until there is one: whole, and equal to no layout of an array."""
        known = self._layouts.get(shape)
        if known is None:
            known = self._layouts[shape] = Layout(Sharding(self.mesh).for_shape(shape), shape)
        return known

    def value(self, node: Node) -> Traced:
        """The array that stands for a node's result."""
        result: Traced = object.__new__(Traced)
        shape, dtype, _, _ = node.types[0]
        result._layout, result._dtype, result.node, result.trace = self.layout(shape), dtype, node, self
        return result

    def input(self, number: int, kind: Type, varies: tuple[str, ...] | None = None) -> Any:
        """A new input: an array, or a tensor per device, which may differ along all axes or those given."""
        return self.result(self.graph.input(number, kind), self.mesh.axis_names if varies is None else varies)

    def result(self, node: Node, varies: tuple[str, ...]) -> Any:
        """The value of a node: an array, or a tensor per device that may differ along axes."""
        return self.value(node) if node.type.local is None else LocalTrace(self).value(node, varies)

    def node_of(self, x: Any) -> Any:
        """The node of a value; concrete arrays become constants, scalars stay."""
        if type(x) is Traced and x.trace is self is current_trace():
            return x.node
        if isinstance(x, TracedLocal):
            return self.local_node(x)
        if isinstance(x, PerDevice):
            return LocalTrace(self).node_of(x)[0]
        if isinstance(x, Traced):
            x.recorder()  # refuses values of programs that are over
            if x.trace is self:
                return x.node
            return self._capture(x, Type(x.shape, x.dtype), id(x.node))
        if not isinstance(x, Array):
            return x
        if x.mesh != self.mesh:
            raise TraceError(
                f"A program on {self.mesh} reads {x.summary()}, which is on another mesh. Reshard it first."
            )
        if self.parent is not None:  # the outermost function holds it, and reads it anew at every call
            return self._capture(x, Type(x.shape, x.dtype), id(x))
        return self._derived_node(x) if id(x) in self._derived else self._constant(x)

    def _constant(self, x: Array) -> Node:
        node = self.graph.add(Constant(id(x)), (), (Type(x.shape, x.dtype, x.sharding),))
        self.constants[node] = x
        return node

    # -- what runs on arrays from outside ---------------------------------------------------------------------------

    def ran(self, ready: Any, operands: Sequence[Any], results: Any) -> None:
        """Notes an operation on arrays from outside, which ran: the program does it too if it needs the results."""
        plan, several = ready.plan, isinstance(results, tuple)
        for pick, result in enumerate(results if several else (results,)):
            how = _Derived(result, tuple(operands), source_line(), plan.op.name, plan.attrs, pick)
            self.root._derived[id(result)] = how

    def moved(self, source: Array, result: Array) -> None:
        """Notes an array from outside that was laid out in another way, or got another name."""
        if source.mesh == result.mesh:
            self.root._derived[id(result)] = _Derived(result, (source,), source_line())
        else:
            self.read(source)

    def read(self, x: Array) -> None:
        """Notes an array from outside whose elements the function looks at: once it changes, the function is traced anew."""
        root = self.root
        for y in root._sources(x):
            if id(y) not in root._derived:
                root.looked_at[id(y)] = y

    def _sources(self, x: Array) -> list[Array]:
        """The arrays from outside that an array was made from, and what was made from them: operands first, then `x`."""
        order: dict[int, Array] = {}
        stack = [(x, False)]
        while stack:
            at, done = stack.pop()
            if done:
                order[id(at)] = at
            elif id(at) not in order:
                stack.append((at, True))
                if id(at) in self._derived:
                    stack += [(y, False) for y in self._derived[id(at)].operands if isinstance(y, Array)]
        return list(order.values())

    def _derived_node(self, x: Array) -> Node:
        """The node of a value that was made from arrays from outside."""
        nodes: dict[int, Node] = {}
        for y in self._sources(x):
            how = self._derived.get(id(y))
            if how is None:
                nodes[id(y)] = self._constant(y)
                continue
            operands = [nodes[id(z)] if isinstance(z, Array) else z for z in how.operands]
            if how.name:
                node = self._apply(how.name, how.operands, operands, how.attrs, how.source)
                nodes[id(y)] = self.graph.pick(node, how.pick)
            elif how.operands[0].sharding == y.sharding:
                nodes[id(y)] = operands[0]
            else:
                nodes[id(y)] = self.graph.add(Constrain(y.sharding, "reshard"), operands, operands[0].types, how.source)
        return nodes[id(x)]

    def _capture(self, x: Any, kind: Type, key: int) -> Node:
        """The input that stands for a value from outside; as that value is now, whatever its variable becomes."""
        node = self.graph.add(Input(("captured", key)), (), (kind,))
        if node not in self.captured:
            self.captured[node] = x.trace.value(x.node) if isinstance(x, Traced) else x
        return node

    def lift(self, x: Array) -> "Traced":
        """An array that the function makes itself, as a value of its program."""
        return self.value(self.node_of(x))

    def record(self, name: str, operands: Sequence[Any], attrs: Attrs) -> Any:
        """An operation of the table."""
        node = self._apply(name, operands, [self.node_of(x) for x in operands], attrs, source_line())
        if len(node.types) == 1:
            return self.value(node)
        return tuple([self.value(self.graph.pick(node, i)) for i in range(len(node.types))])

    def _apply(self, name: str, operands: Sequence[Any], nodes: Sequence[Any], attrs: Attrs, source: str) -> Node:
        """The node of an operation on operands, given with their nodes."""
        key = (name, attrs.key, *[kind_of(x) if isinstance(x, Held) else type(x) for x in operands])
        known = self._rules.get(key)
        if known is None:
            known = self._rules[key] = _rule_of(name, [kind_of(x) for x in operands], attrs)
        rule, types = known
        return self.graph.add(Apply(name, attrs, rule), nodes, types, source)

    def make(self, name: str, sharding: Sharding, shape: tuple[int, ...], attrs: Attrs) -> Traced:
        """An operation without operands; a sharding that splits nothing leaves open where it lies."""
        op = OPS[name]
        rule = op.rule((), {**attrs, "shape": shape})
        types = [Type(shape, dtype) for dtype in op.dtypes((), attrs)]
        full = Attrs(**attrs, shape=shape)
        made = self.value(self.graph.add(Apply(name, full, rule), (), types, source_line()))
        return made if sharding.is_replicated else self.constrained(made, sharding, name)

    def constrained(self, x: Array, sharding: Sharding, why: str) -> Traced:
        """A value that lies as a sharding says."""
        node = self.node_of(x)
        fitted = sharding.for_shape(node.type.shape)
        return self.value(self.graph.add(Constrain(fitted, why), (node,), (node.type,), source_line()))


def _rule_of(name: str, kinds: Sequence[Any], attrs: Attrs) -> tuple[Rule, tuple[Type, ...]]:
    """The rule of an operation on operands of some kinds, and the types of its results."""
    op = OPS[name]
    shapes = tuple([kind[0].shape for kind in kinds if isinstance(kind, tuple)])
    rule = op.fitted(shapes, attrs, scalar_side(kinds))
    dtypes = op.dtypes([kind[1] if isinstance(kind, tuple) else type(kind) for kind in kinds], attrs)
    return rule, tuple([Type(rule.out_shape(i), dtype) for i, dtype in enumerate(dtypes)])


_current: ContextVar[Trace | None] = ContextVar("trace", default=None)


def current_trace() -> Trace | None:
    """The function that is being traced, if any."""
    return _current.get()


def trace(
    function: Callable[..., Sequence[Any]],
    types: Sequence[Type],
    mesh: Mesh,
    names: Sequence[str],
    varies: Sequence[tuple[str, ...] | None] = (),
) -> tuple[Program, Trace]:
    """The program of a function from arrays, one per type, to a flat sequence of arrays and scalars; `varies` has the axes
    along which tensors per device may differ, all by default."""
    made = Trace(mesh)
    inputs = [made.input(i, t, varies[i] if varies else None) for i, t in enumerate(types)]
    nodes = [x.node for x in inputs]  # x += 1 gives a variable another
    token = _current.set(made)
    try:
        with mesh, tracing(made):
            outputs = [made.node_of(x) for x in function(*inputs)]
    finally:
        _current.reset(token)
    captured = list(made.captured)
    program = Program(
        mesh,
        [*nodes, *captured],
        outputs,
        [*names, *(f"captured {i}" for i in range(len(captured)))],
        made.constants,
        effects=[node for node in made.graph.made if is_effect(node)],
    )
    program.written = Written(tuple(made.graph.asked))
    program.shared = made.graph.shared
    program.dead = sum([not isinstance(node.what, Given) for node in made.graph.made]) - sum(
        [not isinstance(node.what, Given) for node in program.nodes]
    )
    return program, made
