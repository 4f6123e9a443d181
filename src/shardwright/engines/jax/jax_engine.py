"""The JAX engine: shards on JAX's devices, and every program, step and operation as one `jit(shard_map(…))`.

Inside, collectives are `lax`'s, so that what explain shows is what XLA is given. Dtypes are those of the other engines whatever
`jax_enable_x64` says: the engine's own functions run with 64-bit types enabled, and nothing is narrowed.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from shardwright.caches import MIB, Cache
from shardwright.engines.calls import (
    Called,
    local_call,
    move_call,
    plan_call,
    program_call,
    put_call,
    read_call,
    step_call,
    with_scalars,
)
from shardwright.engines.compiled import Compiler
from shardwright.engines.jax.compiling import Compiled, has_common_cut, moved_by_rounds, settled
from shardwright.engines.jax.devices import devices_of, own_places
from shardwright.engines.jax.forms import assembled, form_of, shards_of, unpadded
from shardwright.engines.jax.space import JaxSpace
from shardwright.engines.jax.traced import has_functions
from shardwright.engines.jax.views import DeviceViews, Rows
from shardwright.engines.parts import apart, cut, join
from shardwright.engines.views import Shards
from shardwright.errors import EngineError
from shardwright.mesh import Mesh
from shardwright.plan import Code, Fused, Instruction, Local, LocalShapes, OperationPlan, Slot, Step, move_steps
from shardwright.sharding import Layout, Sharding, layout_of

Data = Any  # a jax.Array


class Jax(DeviceViews):
    """JAX's devices."""

    name = "jax"
    fuses = False
    keeps_host = True
    xp = JaxSpace(lambda condition, error: None)

    def __init__(self, platform: str) -> None:
        super().__init__()
        self._platform = platform
        self._functions: Cache[Any, Callable[..., Any]] = Cache(limit=64 * MIB, size=lambda function: 200_000)

    def check(self, mesh: Mesh) -> None:
        """Refuse a mesh with more devices than JAX has."""
        devices_of(mesh)

    def places(self, mesh: Mesh) -> Sequence[int]:
        """The devices of this process."""
        return own_places(mesh)

    def native(self, value: object) -> bool:
        """JAX's arrays are laid out as they are."""
        return isinstance(value, jax.Array)

    # -- host tensors -------------------------------------------------------------------------------------------------

    def put(self, host: Any, layout: Layout) -> Data:
        """Every process cuts the parts of its devices; a JAX array goes from device to device."""
        form = form_of(layout)
        self.check(layout.mesh)
        if layout.is_plain and layout.is_even and (isinstance(host, jax.Array) or self.processes == 1):
            with jax.enable_x64(True):
                return jax.device_put(host, form.sharding)
        host = np.asarray(host)
        self.called(lambda: put_call(layout, host.dtype, lambda: np.ascontiguousarray(host).tobytes()))
        lanes = layout.partial_lanes
        parts = {p: apart(cut(host, layout, p), layout, p, lanes) for p in self.places(layout.mesh)}
        return assembled(form, parts, host.dtype)

    def whole(self, data: Data, layout: Layout) -> NDArray[Any]:
        """The tensor on the host, reduced. A collective: every process gets it."""
        self.called(lambda: read_call(layout, data.dtype))
        if layout.partial_lanes:
            data, layout = self.move(data, layout, layout.settled), layout.settled
        if not data.is_fully_addressable:
            everywhere = layout_of(Sharding(layout.mesh), layout.shape)
            data, layout = self.move(data, layout, everywhere), everywhere
            return next(iter(shards_of(form_of(layout), data).values()))
        if layout.is_plain and layout.is_even and data.is_fully_addressable and data.size:
            return np.asarray(data)
        host = np.zeros(layout.shape, data.dtype)
        for place, part in shards_of(form_of(layout), data).items():
            join(host, part, layout, place)
        return host

    def shard(self, data: Data, layout: Layout, place: int) -> NDArray[Any]:
        """What the device at a place holds; an error if that is another process's."""
        if place not in self.places(layout.mesh):
            owner = devices_of(layout.mesh)[place].process_index
            raise EngineError(
                f"This shard is on rank {owner}, and this is rank {jax.process_index()}: a process sees only those of its own "
                f"devices. Use np.asarray(x) for the whole tensor, on all ranks together."
            )
        return unpadded(shards_of(form_of(layout), data)[place], layout.at(place).local_shape)

    def assemble(self, shards: Shards, layout: Layout) -> Data:
        """Data from the tensors of this process's devices."""
        parts = {place: np.asarray(shards[place]) for place in self.places(layout.mesh)}
        return assembled(form_of(layout), parts, next(iter(parts.values())).dtype)

    def astype(self, data: Data, dtype: Any) -> Data:
        """Elements converted to a dtype."""
        with jax.enable_x64(True):
            return settled(self.xp.astype(data, dtype))

    def copy(self, data: Data) -> Data:
        """The same data: JAX's arrays do not change."""
        return data

    def row(self, data: Data, layout: Layout, at: int) -> Data:
        """One row of a table whose first dim is whole."""
        front = 1 if layout.partial_lanes else 0
        with jax.enable_x64(True):
            return settled(data[(slice(None),) * front + (at,)])

    def stack(self, rows: Sequence[Data], layout: Layout, dtype: Any) -> Data:
        """Rows as a table."""
        form = form_of(layout)
        with jax.enable_x64(True):
            made = (
                jax.numpy.stack(list(rows), axis=1 if form.front else 0) if rows else jax.numpy.zeros(form.shape, dtype)
            )
            return settled(jax.device_put(made, form.sharding))

    # -- computations and steps ---------------------------------------------------------------------------------------

    def local(self, local: Local, data: Sequence[Any]) -> tuple[Data, ...]:
        """A kernel on every device's shards."""
        outputs = tuple(Slot(len(data) + at) for at in range(len(local.results)))
        call = partial(local_call, local)
        return self._run(local, lambda kinds: _line_code(local, kinds, outputs), local.operands, data, call)

    def step(self, step: Step, data: Data) -> Data:
        """One move or reduce step."""
        if step.source.mesh != step.result.mesh:
            return self._between(step, data)
        call = partial(step_call, step)
        (made,) = self._run(step, lambda kinds: _line_code(step, kinds, (Slot(1),)), (step.here,), (data,), call)
        return made

    def _between(self, step: Any, data: Data) -> Data:
        """A move to the devices of another mesh: through the host, box by box."""
        held, parts = shards_of(form_of(step.here), data), {}
        for place in self.places(step.result.mesh):
            made = np.zeros(step.there.at(place).local_shape, data.dtype)
            for message in step.messages(place):
                made[tuple(message.target)] = held[message.sender][tuple(message.source)]
            parts[place] = apart(made, step.there, place, step.there.partial_lanes)
        return assembled(form_of(step.there), parts, data.dtype)

    def move(self, data: Data, source: Layout, target: Layout) -> Data:
        """A change of sharding: the steps of its plan in one program."""
        if source is target:
            return data
        steps = move_steps(source.sharding, target.sharding, source.shape, data.dtype)
        if any(step.source.mesh != step.result.mesh for step in steps):
            for step in steps:
                data = self.step(step, data)
            return data
        lines = [Instruction(step, (Slot(at),), (Slot(at + 1),)) for at, step in enumerate(steps)]
        code = Code((Slot(0),), tuple(lines), (Slot(len(lines)),), (source,))
        call = partial(move_call, source, target, data.dtype)
        (made,) = self._run((source, target, data.dtype), lambda kinds: code, (source,), (data,), call)
        return made

    def operation(self, plan: OperationPlan) -> Callable[..., Any]:
        """An operation with the moves before it, as one program."""
        layouts, call = plan.given, partial(plan_call, plan)

        def run(*data: Any) -> Any:
            made = self._run(plan, lambda kinds: _plan_code(plan, kinds), layouts, data, call)
            return made[0] if len(made) == 1 else made

        return run

    def _run(
        self,
        key: Any,
        code: Callable[[Sequence[Any]], Code],
        layouts: Sequence[Any],
        data: Sequence[Any],
        call: Callable[[], Called],
    ) -> tuple[Data, ...]:
        """Run code that is made and compiled once. Python scalars among the data are inputs, but for integers that a dtype
        can't hold: these are part of the code."""
        self.called(lambda: with_scalars(call(), data))
        given, dtypes = iter(layouts), [x.dtype for x in data if hasattr(x, "dtype")]
        kinds = [next(given) if hasattr(x, "dtype") else _scalar_kind(x, dtypes) for x in data]
        full = (key, *(("value", repr(kind)) if isinstance(kind, int) else kind for kind in kinds), *dtypes)
        function = self._functions.get(full)
        if function is None:
            function = self._compiled(code(kinds))
            self._functions.put(full, function)
        return function(*(x for x, kind in zip(data, kinds, strict=True) if not isinstance(kind, int)))

    def fused(self, fused: Fused, data: Sequence[Data]) -> tuple[Data, ...]:
        """Several reductions as one message."""
        outputs = tuple(Slot(len(data) + at) for at in range(len(data)))
        layouts = [step.here for step in fused.steps]
        call = partial(step_call, fused.steps[0])
        return self._run(fused, lambda kinds: _line_code(fused, kinds, outputs), layouts, data, call)

    def agree(self, mesh: Mesh, steps: tuple[str, ...]) -> None:
        """Refuse to go on unless every process holds the same program; names the first step that differs."""
        self.called(lambda: program_call(mesh, "\n".join(steps), f"a program of {len(steps)} steps"), steps)

    # -- programs -----------------------------------------------------------------------------------------------------

    def compile(self, code: Code, mesh: Mesh, label: str = "") -> Callable[..., tuple[Data, ...]]:
        """One `jit(shard_map(…))`; code with Python functions on tensors per device runs instruction by instruction."""
        function = Compiler(self).function(code) if has_functions(code) else self._compiled(code)
        if self.processes == 1:
            return function
        call = program_call(mesh, label, f"the program {label.partition(chr(10))[0]}")

        def run(*data: Any) -> tuple[Data, ...]:
            self.called(lambda: call)
            return function(*data)

        return run

    def _compiled(self, code: Code) -> Callable[..., tuple[Data, ...]]:
        if not has_common_cut(code):
            alone = len(code.instructions) == 1
            return moved_by_rounds(code) if alone else Compiler(self).function(code)
        compiled = Compiled(code)
        views = [isinstance(kind, LocalShapes) for kind in code.kinds]
        results = [kind if isinstance(kind, LocalShapes) else None for kind in compiled.results]
        if not any(views) and not any(results):
            return compiled

        def run(*data: Any) -> tuple[Data, ...]:
            made = compiled(*(x.array if is_view else x for x, is_view in zip(data, views, strict=True)))
            return tuple(x if shapes is None else Rows(x, shapes) for x, shapes in zip(made, results, strict=True))

        return run


def _scalar_kind(x: Any, dtypes: Sequence[Any]) -> Any:
    """The type of a scalar, or an integer itself that some dtype beside it can't hold."""
    if not isinstance(x, int) or isinstance(x, bool):
        return type(x)
    bounds = [(info.min, info.max) for info in map(np.iinfo, [d for d in dtypes if d.kind in "iu"] or [np.int64])]
    return int if all(low <= x <= high for low, high in bounds) else x


def _line_code(what: Any, kinds: Sequence[Any], outputs: tuple[Slot, ...]) -> Code:
    """Code of one instruction."""
    slots = [kind if isinstance(kind, int) else Slot(at) for at, kind in enumerate(kinds)]
    given = [(slot, kind) for slot, kind in zip(slots, kinds, strict=True) if isinstance(slot, Slot)]
    line = Instruction(what, tuple(slots), outputs)
    return Code(tuple(slot for slot, _ in given), (line,), outputs, tuple(kind for _, kind in given))


def _plan_code(plan: OperationPlan, kinds: Sequence[Any]) -> Code:
    """Code of an operation: its operands' moves, then its instructions."""
    count = len(kinds)
    slots: dict[int, Any] = {at: kind if isinstance(kind, int) else Slot(at) for at, kind in enumerate(kinds)}
    given = [(slot, kinds[at]) for at, slot in slots.items() if isinstance(slot, Slot)]
    lines: list[Instruction] = []
    after = plan_slots = count + sum(len(line.outputs) for line in plan.instructions)
    moves = iter(plan.moves)
    for at, kind in enumerate(plan.kinds):
        for step in next(moves) if isinstance(kind, tuple) else ():
            lines.append(Instruction(step, (slots[at],), (Slot(after),)))
            slots[at], after = Slot(after), after + 1
    assert all(slot.number < plan_slots for line in plan.instructions for slot in line.outputs)
    for line in plan.instructions:
        inputs = tuple(slots.get(x.number, x) if isinstance(x, Slot) else x for x in line.inputs)
        lines.append(Instruction(line.what, inputs, line.outputs))
    outputs = tuple(slots.get(x.number, x) for x in plan.outputs)
    return Code(tuple(slot for slot, _ in given), tuple(lines), outputs, tuple(kind for _, kind in given))
