"""The engine over processes: one device a process, which holds its own shards as torch tensors.

Every step is a native collective or an exchange with exact sizes, among the processes of one group. All processes make the same
calls; `coherence.py` notices where they do not.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardwright.engines.calls import local_call, plan_call, put_call, read_call
from shardwright.engines.chains import ChainLine
from shardwright.engines.coherence import key_of
from shardwright.engines.compiled import Compiler
from shardwright.engines.torch.convert import from_host, to_host
from shardwright.engines.torch.own_views import OwnViews
from shardwright.engines.views import Shards
from shardwright.engines.whole import computation, kinds_of, operand_kinds
from shardwright.errors import EngineError
from shardwright.mesh import Mesh
from shardwright.plan import (
    Code,
    Instruction,
    Local,
    OperationPlan,
    Slot,
    Step,
)
from shardwright.sharding import Layout, Sharding, layout_of

Tensor = torch.Tensor


class Distributed(OwnViews):
    """One device a process."""

    name = "torch"
    fuses = False
    keeps_host = False

    # -- host tensors -------------------------------------------------------------------------------------------------

    def native(self, value: object) -> bool:
        """Torch tensors are cut as they are."""
        return isinstance(value, Tensor)

    def put(self, host: Any, layout: Layout) -> Tensor:
        """Every process cuts its own part, from the tensor that all of them have."""
        self.check(layout.mesh)
        self.note(*put_call(layout, host.dtype, lambda: _bytes(host)))
        return self.apart(self._cut(host, layout), layout, layout.partial_lanes)

    def _cut(self, host: Any, layout: Layout) -> Tensor:
        """This device's part of a host tensor, in memory of its own; halos beyond the border are zeros."""
        view = layout.at(self.place(layout.mesh))
        source, target = [], []
        for dim, (low, high), size in zip(view.dims, view.offsets, host.shape, strict=True):
            first, last = max(low - dim.low, 0), min(high + dim.high, size)
            source.append(slice(first, max(last, first)))
            target.append(slice(first - low + dim.low, max(last, first) - low + dim.low))
        part = host[tuple(source)]
        part = (
            part.detach().to(self.device, copy=True)
            if isinstance(part, Tensor)
            else from_host(np.array(part, order="C"), self.device)
        )
        part = part.resolve_conj().contiguous()
        if part.shape == view.local_shape:
            return part
        made = torch.zeros(view.local_shape, dtype=part.dtype, device=self.device)
        made[tuple(target)] = part
        return made

    def whole(self, data: Tensor, layout: Layout) -> NDArray[Any]:
        """The tensor on the host, reduced. A collective: every process gets it."""
        dtype = self.xp.dtype(self.held(data))
        mesh, key, text = self.route(("reading", layout, dtype), lambda: read_call(layout, dtype))
        self.note(mesh, key, text)
        self.compare(layout.mesh, text)
        target = layout_of(Sharding(layout.mesh), layout.shape)
        return to_host(self.moved(data, layout, target))

    def shard(self, data: Tensor, layout: Layout, place: int) -> NDArray[Any]:
        """What the device at a place holds; an error if that is another process's."""
        if place != self.place(layout.mesh):
            raise EngineError(
                f"This shard is on rank {layout.mesh.device_ids[place]}, and this is rank {self.world.rank}: a process sees "
                f"only its own. Use np.asarray(x) for the whole tensor, on all ranks together."
            )
        return to_host(self.held(data))

    def assemble(self, shards: Shards, layout: Layout) -> Tensor:
        """Data from the tensors of devices: this process keeps its own."""
        self.check(layout.mesh)
        return from_host(np.array(shards[self.place(layout.mesh)]), self.device)

    def astype(self, data: Tensor, dtype: Any) -> Tensor:
        """Elements converted to a dtype."""
        return self.xp.astype(self.held(data), dtype)

    def copy(self, data: Tensor) -> Tensor:
        """The same shard in memory of its own."""
        return data.clone() if isinstance(data, Tensor) else data

    def row(self, data: Tensor, layout: Layout, at: int) -> Tensor:
        """One row of a table whose first dim is whole."""
        return data[at]

    def stack(self, rows: Sequence[Tensor], layout: Layout, dtype: Any) -> Tensor:
        """Rows as a table."""
        if not rows:
            return self.xp.zeros(layout.at(self.place(layout.mesh)).local_shape, dtype)
        return torch.stack(list(rows))

    # -- local computations -------------------------------------------------------------------------------------------

    def operation(self, plan: OperationPlan) -> Callable[..., Any] | None:
        """The operation on this process's shards, where they are in place and nothing is sent."""
        if any(plan.moves) or len(plan.instructions) != 1:
            return None
        ((what, inputs, _, _),) = plan.instructions
        if not isinstance(what, Local) or [x.number for x in inputs] != list(range(len(plan.kinds))):
            return None
        function, mesh = self.computation(what, operand_kinds(plan, what, inputs)), plan.problem.mesh
        _, key, text = plan_call(plan)
        note = self.note
        if any(not isinstance(kind, tuple) for kind in plan.kinds):

            def with_scalars(*data: Any) -> Any:
                note(mesh, key, text, data)
                return function(*data)

            return with_scalars

        return self.noting(mesh, key, text, function)

    def computation(self, local: Local, kinds: tuple[Any, ...]) -> Callable[..., Any]:
        """A kernel as a function of this process's shards: one result bare, several as a tuple."""
        made = local.call.made
        if ("here", kinds) not in made:
            mesh = (*local.operands, *local.results)[0].mesh
            made["here", kinds] = computation(local.call.at(self.place(mesh)), kinds, self.xp)
        found: Callable[..., Any] = made["here", kinds]
        return found

    def local(self, local: Local, data: Sequence[Any]) -> tuple[Tensor, ...]:
        """A kernel on this process's shards."""
        mesh, key, text = self.route(local, lambda: local_call(local))
        self.note(mesh, key, text, data)
        held = [self.held(x) for x in data]
        kinds = kinds_of(local.call, [None if isinstance(x, Tensor) else x for x in held])
        made = self.computation(local, kinds)(*held)
        return made if isinstance(made, tuple) else (made,)

    # -- programs -------------------------------------------------------------------------------------------------------

    def compile(self, code: Code, mesh: Mesh, label: str = "program") -> Callable[..., tuple[Any, ...]]:
        """One generated Python function; a call of it is one call of this process."""
        function = _Lines(self).function(code)
        text = f"the program {label.partition(chr(10))[0]}"
        return self.noting(mesh, key_of(label), text, function)


class _Lines(Compiler):
    """Code for one process: functions worked out once."""

    engine: Distributed

    def __init__(self, engine: Distributed) -> None:
        super().__init__(engine)
        self.uses: Counter[Slot] = Counter()  # how often instructions and results of a code read a value

    def _local(self, what: Local, inputs: Sequence[Any]) -> Callable[..., Any]:
        return self.engine.computation(what, kinds_of(what.call, [None if isinstance(x, Slot) else x for x in inputs]))

    def _lines(self, code: Code, alias: dict[Slot, Slot]) -> list[ChainLine]:
        before, self.uses = self.uses, Counter(code.outputs)
        for line in code.instructions:
            self.uses.update(x for x in line.inputs if isinstance(x, Slot))
        lines = super()._lines(code, alias)
        self.uses = before  # this code may be inside another
        return lines

    def _line(self, line: Instruction, producer: dict[Slot, Instruction]) -> ChainLine | None:
        if not isinstance(line.what, Step):
            return super()._line(line, producer)
        engine, step, (data,) = self.engine, line.what, line.inputs
        made = producer[data].what if data in producer else None
        product = isinstance(made, Local) and made.name == "einsum" and len(made.operands) == 2  # in memory of its own
        spare = product and self.uses[data] == 1
        return ChainLine(lambda data: engine.run_step(step, data, spare), line.inputs, line.outputs)


def _bytes(host: Any) -> bytes:
    array = to_host(host) if isinstance(host, Tensor) else host
    return np.ascontiguousarray(array).tobytes()
