"""From operations to a traced program: each operation of a function becomes operations of this library on values.

A function is walked once, while it is traced. The walk is a generator: at a collective it stops and asks for its result, so
that two branches of a condition that differs between devices can be walked in step. Devices on either branch then take part in
the same collective; where the branches come to different ones the program is refused, as real devices would wait for ever.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from xdsl.dialects import builtin as b
from xdsl.ir import Block, Operation, SSAValue

from shardwright.errors import MLIRError, ShardwrightError
from shardwright.lines import located
from shardwright.mesh import Mesh
from shardwright.mlir.arithmetic import RULES
from shardwright.mlir.branches import Apart, Walk
from shardwright.mlir.communication import (
    COLLECTIVES,
    DEVICES,
    QueryKey,
    Request,
    axis_names,
    collective_of,
    device_coords,
    halo_update,
    is_alone,
    neighbours,
    shard_sizes,
    sharding_from_attribute,
    sharding_from_operation,
)
from shardwright.mlir.dialects import DYNAMIC
from shardwright.mlir.fields import axes, axis_lists, field, integers, is_uniform, mixed, short_name
from shardwright.mlir.looping import MOST_ROUNDS, Loops
from shardwright.mlir.parsing import Source
from shardwright.mlir.shaping import Shaping, constant
from shardwright.mlir.structured import Structured
from shardwright.mlir.text import with_default_offsets
from shardwright.mlir.types import dtype_of, element_of, encoding_of, sizes_of, tensor_name, unread_encoding
from shardwright.mlir.values import GlobalView, LocalView, Value, View
from shardwright.program import Node, chosen
from shardwright.sharding import Sharding
from shardwright.xla import is_known

MOST_CALLS = 32  # functions that call one another


class Reader:
    """Walks one function of a module."""

    def __init__(self, source: Source, module: b.ModuleOp, mesh: Mesh, local: bool) -> None:
        self.source, self.mesh = source, mesh
        self.functions: dict[str, Any] = {
            op.properties["sym_name"].data: op  # type: ignore[attr-defined]
            for op in module.walk()
            if op.name == "func.func"
        }
        self.view: View = LocalView(mesh) if local else GlobalView(mesh)
        self.shaping = Shaping(self.view, lambda value: self.values[value])
        self.structured = _Structured(self)
        self.values: dict[SSAValue, Any] = {}  # a Value, or a Sharding
        self._constants: dict[Node, tuple[Value, Sharding | None]] = {}  # of values that are annotated constants
        self.loops = Loops(self)
        self._walked = self._depth = 0
        self.in_step = 0  # choices around, both of whose branches are walked in step

    def call(self, function: Operation, arguments: Sequence[Value]) -> list[Value]:
        """The results of a function."""
        return self.driven(self._function(function, arguments))

    def driven(self, walk: Walk) -> list[Value]:
        """A walk to its end, its collectives run as they come."""
        try:
            request = next(walk)
            while True:
                request = walk.send(self._performed(request))
        except StopIteration as stop:
            made: list[Value] = stop.value
            return made

    def _performed(self, request: Request) -> Value:
        with located(self.source.line_of(request.op)), self.blamed(request.op):
            return self.view.lifted(request.value).apply_collective(request.collective)

    def blamed(self, op: Operation) -> "_Blamed":
        return _Blamed(self.source, op)

    def _function(self, function: Operation, arguments: Sequence[Value]) -> Walk:
        if not function.regions[0].blocks:
            raise self.source.error("The function has no body, so it can't run. Define it in this file.", function)
        if len(function.regions[0].blocks) > 1:
            raise self.source.error(
                "The function has several blocks. Only structured control flow, scf.if and scf.for, is supported.",
                function,
            )
        made = yield from self.block(function.regions[0].block, arguments)
        return made

    def block(self, block: Block, arguments: Sequence[Value]) -> Walk:
        for argument, value in zip(block.args, arguments, strict=True):
            self.values[argument] = value
        for op in block.ops:
            if op.name in ("func.return", "scf.yield", "scf.condition"):
                return [self.values[x] for x in op.operands]
            made = yield from self._operation(op)
            self._check_count(op, len(made), len(op.results), "gives {} values, but the text declares {}")
            for result, value in zip(op.results, made, strict=True):
                self._check_type(op, result, value)
                self.values[result] = value
        return []

    def _check_count(self, op: Operation, count: int, expected: int, text: str) -> None:
        if count != expected:
            raise self.source.error(f"'{op.name}' {text.format(count, expected)}. Correct one of them.", op)

    def _check_type(self, op: Operation, result: SSAValue, value: Any) -> None:
        """What was computed is what the text declares."""
        if encoding_of(result.type) is not None:
            raise self.source.error(unread_encoding(result.type), op)
        dtype = dtype_of(element_of(result.type))
        if dtype is None or isinstance(value, Sharding):
            return
        declared = sizes_of(result.type)
        fits = len(declared) == len(value.shape) and all(
            n in (DYNAMIC, m) for n, m in zip(declared, value.shape, strict=True)
        )
        if not fits or value.dtype != dtype:
            raise self.source.error(
                f"'{op.name}' gives {tensor_name(tuple(value.shape), value.dtype)}, but the text declares {result.type}. "
                f"Correct the type.",
                op,
            )

    # -- one operation ------------------------------------------------------------------------------------------------

    def _operation(self, op: Operation) -> Walk:
        self._walked += 1
        if self._walked > MOST_ROUNDS * 10:
            raise self.source.error(f"Loops come to more than {MOST_ROUNDS * 10:,} operations. Use fewer rounds.", op)
        name = short_name(op)
        if name in COLLECTIVES:
            with located(self.source.line_of(op)), self.blamed(op):
                request = self._request(op, name)
            if not isinstance(request, Request):
                return [request]
            made = yield request
            return [made]
        if op.name == "scf.if":
            return (yield from self._if(op))
        if op.name in ("scf.for", "scf.while"):
            return (yield from (self.loops.counted(op) if op.name == "scf.for" else self.loops.conditional(op)))
        if op.name == "func.call":
            return (yield from self._call(op))
        with located(self.source.line_of(op)), self.blamed(op):
            if name:
                return self._query(op, name)
            return self._computed(op)

    def _computed(self, op: Operation) -> list[Value]:
        values = _data([self.values[x] for x in op.operands])
        unread = next((name for name in op.attributes if op.name.startswith("tosa.") and "." not in name), None)
        if unread is not None:
            raise ShardwrightError(
                f"The attribute {unread!r} of {op.name!r} is not read. Remove it if it changes nothing."
            )
        if op.name == "arith.constant":
            return [constant(op)]
        if op.name.startswith("linalg."):
            return self._into_outputs(op, values)
        if op.name in RULES:
            return [RULES[op.name](self.view, op, *values)]
        made = self.shaping.run(op, values)
        if made is None:
            raise self.source.error(f"'{op.name}' is not supported. docs/mlir.md lists the operations that are.", op)
        return made

    def _into_outputs(self, op: Operation, values: Sequence[Value]) -> list[Value]:
        """An operation of linalg. An output that is an annotated constant is read as the constant, so that zeros which a sum
        begins with add nothing; its annotation is then one of the result, unless the result has its own."""
        count = len(values) - len(op.results)
        plain: list[tuple[Value, Sharding | None]] = [(out, None) for out in values[count:]]
        outputs = [x if is_known(x[0]) else self._constants.get(x[0].node, x) for x in plain]
        made = self.structured.run(op, [*values[:count], *(out for out, _ in outputs)])
        for at, (_, sharding) in enumerate(outputs):
            own = any(short_name(use.operation) == "shard" for use in op.results[at].uses)
            if sharding is not None and not sharding.partial and not own:
                made[at] = self._constrained(made[at], sharding, op)
        return made

    def _request(self, op: Operation, name: str) -> "Request | Value":
        """The collective that an operation asks for; its value at once where every group is one device."""
        assert isinstance(self.view, LocalView)
        value, *others = (self.values[x] for x in op.operands)
        if name == "update_halo":
            return Request(op, halo_update(op, self.mesh, self._numbers(field(op, "static_halo_sizes"), others)), value)
        device = device_coords(op, DEVICES[name], others, self.view) if name in DEVICES else None
        collective = collective_of(op, self.mesh, device, value.dtype)
        if is_alone(op):
            dtype = dtype_of(element_of(op.results[0].type))
            return value if dtype is None else self.view.cast(value, dtype)
        return Request(op, collective, value)

    def _numbers(self, static: Any, dynamic: Sequence[Value]) -> list[int]:
        """Integers of which some are values, which must be known."""
        numbers = []
        for entry in mixed(static, dynamic):
            if not isinstance(entry, int) and not is_known(entry):
                raise ShardwrightError("A size or offset depends on data or on the device. Use constants.")
            numbers.append(int(entry))
        return numbers

    # -- the mesh and shardings ---------------------------------------------------------------------------------------

    def _query(self, op: Operation, name: str) -> list[Any]:
        if name == "mesh_shape":
            numbers = axes(op, "axes") or range(len(self.mesh.shape))
            return [np.asarray(self.mesh.shape[axis], np.int64) for axis in numbers]
        if name == "sharding":
            counts = integers(field(op, "operandSegmentSizes")) or (0, 0)
            values = [self.values[x] for x in op.operands]
            offsets = self._numbers(field(op, "static_sharded_dims_offsets"), values[: counts[0]])
            halos = self._numbers(field(op, "static_halo_sizes"), values[counts[0] :])
            return [sharding_from_operation(op, self.mesh, offsets, halos)]
        if name == "shard":
            return [self._annotated(op)]
        if name == "get_sharding":
            return [self._sharding_of(op)]
        return self._asked(op, name)

    def sharding_in(self, op: Operation) -> Sharding:
        """The sharding that a shard operation annotates with."""
        attribute = op.properties.get("shard")
        if attribute is not None:
            return sharding_from_attribute(op, attribute, self.mesh)
        found: Sharding = self.values[op.operands[1]]
        return found

    def _annotated(self, op: Operation) -> Value:
        value = self.values[op.operands[0]]
        return self._constrained(value, with_default_offsets(self.sharding_in(op), value.shape), op)

    def _constrained(self, value: Value, sharding: Sharding, op: Operation) -> Value:
        made = self.view.trace.constrained(self.view.lifted(value), sharding, op.name)
        if is_known(value):
            self._constants[made.node] = value, sharding
        return made

    def _sharding_of(self, op: Operation) -> Sharding:
        owner = op.operands[0].owner
        if not isinstance(owner, Operation) or short_name(owner) != "shard":
            raise ShardwrightError("The tensor is not annotated, so its sharding is not known here. Annotate it first.")
        return self.sharding_in(owner)

    def _asked(self, op: Operation, name: str) -> list[Value]:
        """Coordinates of devices, and what follows from them."""
        view, mesh = self.view, self.mesh
        if name == "shard_shape":
            return self._shard_shape(op)
        assert isinstance(view, LocalView)
        places = [np.unravel_index(place, mesh.shape) for place in range(mesh.size)]
        if name == "process_linear_index":
            return [view.named([np.asarray(place) for place in range(mesh.size)], name, QueryKey(name, ()))]
        if name == "process_multi_index":
            numbers = axes(op, "axes") or range(len(mesh.shape))
            return [
                view.named([np.asarray(at[axis], np.int64) for at in places], name, QueryKey(name, (axis,)))
                for axis in numbers
            ]
        assert name == "neighbors_linear_indices", name
        over = axes(op, "split_axes")
        coords = [self.values[x] for x in op.operands]
        return self._functions(name, (over,), coords, lambda at: neighbours(mesh, at, over), 2)

    def _shard_shape(self, op: Operation) -> list[Value]:
        counts = integers(field(op, "operandSegmentSizes"))
        values = [self.values[x] for x in op.operands]
        sharding: Sharding = values[counts[0]]
        sizes = self._numbers(field(op, "dims"), values[: counts[0]])
        device = mixed(field(op, "device"), values[counts[0] + 1 :])
        coords = [np.asarray(x, np.int64) if isinstance(x, int) else x for x in device]
        arguments = (tuple(sizes), sharding)
        return self._functions(
            "shard_shape", arguments, coords, lambda at: shard_sizes(sharding, sizes, at), len(sizes)
        )

    def _functions(self, name: str, arguments: Any, coords: list[Value], function: Any, count: int) -> list[Value]:
        """Integers that follow from the coordinates of a device, known or of every device its own."""
        if all(map(is_known, coords)):
            return [np.asarray(n, np.int64) for n in function([int(x) for x in coords])]
        view = self.view
        assert isinstance(view, LocalView)
        lifted = [view.lifted(x) for x in coords]
        made = []
        for at in range(count):

            def one(*tensors: Any, at: int = at) -> Any:
                return np.asarray(function([int(x) for x in tensors])[at], np.int64)

            made.append(view.each(name, QueryKey(name, arguments, at), one, lifted))
        return made

    # -- control flow -------------------------------------------------------------------------------------------------

    def _call(self, op: Operation) -> Walk:
        name = op.properties["callee"].root_reference.data  # type: ignore[attr-defined]
        if name not in self.functions:
            raise self.source.error(f"There is no function @{name} in this file. Define it.", op)
        self._depth += 1
        if self._depth > MOST_CALLS:
            raise self.source.error(
                f"Functions call one another more than {MOST_CALLS} deep: @{name} may call itself.", op
            )
        if self.functions[name].regions[0].blocks:
            count = len(self.functions[name].regions[0].block.args)
            self._check_count(op, len(op.operands), count, "passes {} arguments, but the function takes {}")
        saved = dict(self.values)
        made = yield from self._function(self.functions[name], [self.values[x] for x in op.operands])
        self.values, self._depth = saved, self._depth - 1
        return made

    def _if(self, op: Operation) -> Walk:
        test = self.values[op.operands[0]]
        blocks = [region.blocks[0] if region.blocks else None for region in op.regions]
        if is_known(test):
            taken = blocks[0] if bool(test) else blocks[1]
            return [] if taken is None else (yield from self.block(taken, ()))
        if self._is_choice(op, test):
            with located(self.source.line_of(op)), self.blamed(op):
                branches = [
                    lambda block=block: self.lifted(self.driven(self.block(block, ()))) for block in blocks if block
                ]
                other = branches[1] if len(branches) > 1 else tuple
                return list(chosen(self.view.trace, test, branches[0], other, (), is_uniform(op)))
        for block in blocks:
            count = len(block.last_op.operands) if block is not None and block.last_op is not None else 0
            self._check_count(
                op, count, len(op.results), "has a branch that yields {} values, but the text declares {}"
            )
        one, two = (self._branch(block) for block in blocks)
        self.in_step += 1
        results = yield from Apart(self, op, test).walk(one, two)
        self.in_step -= 1
        return results

    def _is_choice(self, op: Operation, test: Value) -> bool:
        """Whether an scf.if is a choice of the program. Otherwise both branches are walked in step: where the condition is
        known for every device, and where their collectives are between devices that may take different branches."""
        if not isinstance(self.view, LocalView):
            return True
        if self.view.per_device(test) is not None:
            return False
        asked = list(self.collectives(op))
        if not asked or self.in_step:
            return not asked
        varies = set() if is_uniform(op) else set(test.varies)
        return all(varies.isdisjoint(over) for _, over in asked)

    def collectives(self, op: Operation, seen: tuple[str, ...] = ()) -> Iterator[tuple[Operation, tuple[str, ...]]]:
        """The collectives in an operation's regions and in functions called there, each with its axes."""
        for inner in op.walk():
            name = short_name(inner)
            if name in COLLECTIVES:
                over = axes(inner) if name != "update_halo" else sum(axis_lists(field(inner, "split_axes")), ())
                yield inner, axis_names(self.mesh, over)
            elif inner.name == "func.call":
                callee = inner.properties["callee"].root_reference.data  # type: ignore[attr-defined]
                if callee in self.functions and callee not in seen:
                    yield from self.collectives(self.functions[callee], (*seen, callee))

    def lifted(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Values of the program."""
        return tuple(map(self.view.lifted, _data(values)))

    def _branch(self, block: Block | None) -> Walk:
        if block is None:
            return []
        return (yield from self.block(block, ()))

    def chosen(self, op: Operation, test: Value, one: Value, two: Value) -> Value:
        """On every device the value of its own branch."""
        if one is two:
            return one
        with located(self.source.line_of(op)), self.blamed(op):
            one, two = _data([one, two])
            return self.view.row("where", self.view.broadcast_like(test, one), one, two)


def _data(values: Sequence[Any]) -> Sequence[Value]:
    """Values that are tensors or numbers."""
    if any(isinstance(value, Sharding) for value in values):
        raise ShardwrightError(
            "A sharding is not data: it can be returned, passed to a function and used by shard and shard_shape. Choose "
            "between annotated tensors instead."
        )
    return values


_INVALID = (ArithmeticError, AssertionError, LookupError, NotImplementedError, TypeError, ValueError)


class _Blamed:
    """Inside, errors of the library, and those of NumPy on invalid attributes, become errors at an operation."""

    def __init__(self, source: Source, op: Operation) -> None:
        self.source, self.op = source, op

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, _: Any) -> None:
        if isinstance(error, MLIRError):
            return
        if isinstance(error, ShardwrightError):
            raise self.source.error(str(error), self.op) from error
        if isinstance(error, _INVALID):
            raise self.source.error(
                f"'{self.op.name}' has invalid operands or attributes: {error}.", self.op
            ) from error


class _Structured(Structured):
    """linalg, with access to the values around a body."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader.view, reader.source.error)
        self.reader = reader

    def outside(self, value: Any) -> Value:
        return self.reader.values[value]

    def constant(self, op: Operation) -> Value:
        return constant(op)
