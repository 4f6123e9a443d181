"""The stacked engine on torch tensors: all devices of a mesh in one process, whole tensors on one torch device.

Operations run once, on whole tensors, in torch. What is no part of one tensor (summands, halos, a tensor per device) lies in
lanes on the host, in NumPy, as on the NumPy engine: such data is a NumPy array here too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardwright.engines.compiled import compiled
from shardwright.engines.stacked import Stacked
from shardwright.engines.torch.convert import from_host, to_host
from shardwright.engines.torch.space import TorchSpace
from shardwright.engines.views import Shards
from shardwright.engines.whole import fetching, whole_call, whole_operation
from shardwright.errors import EngineError
from shardwright.kernels import run
from shardwright.mesh import Mesh
from shardwright.plan import Code, Fetch, Local, OperationPlan, Regroup, Step
from shardwright.sharding import Layout

Tensor = torch.Tensor


class StackedTorch(Stacked):
    """Every device in one process, on torch."""

    name = "torch"

    def __init__(self, device: str) -> None:
        super().__init__()
        try:
            self.device = torch.empty(0, device=device).device
        except (RuntimeError, AssertionError) as error:
            raise EngineError(f"Torch can't use the device {device!r}: {str(error).splitlines()[0]}") from error
        self.xp = TorchSpace(self.device)

    def native(self, value: object) -> bool:
        """Torch tensors are held as they are."""
        return isinstance(value, Tensor)

    def _in(self, data: Any) -> Any:
        """Data on the host; scalars as they are."""
        return to_host(data) if isinstance(data, Tensor) else data

    def _out(self, data: NDArray[Any], layout: Layout) -> Any:
        """Data as this engine holds it: whole tensors in torch, lanes on the host."""
        return from_host(np.asarray(data), self.device) if layout.is_plain else data

    # -- host tensors and lanes -----------------------------------------------------------------------------------

    def put(self, host: Any, layout: Layout) -> Any:
        """The shards of a host tensor: the tensor itself where it can be shared."""
        if layout.is_plain:
            if isinstance(host, Tensor):
                return host.detach().to(self.device).resolve_conj().resolve_neg()
            return from_host(host, self.device)
        return super().put(self._in(host), layout)

    def whole(self, data: Any, layout: Layout) -> NDArray[Any]:
        """The tensor on the host, reduced; a view where no copy is needed."""
        return super().whole(self._in(data), layout)

    def total(self, data: Any, layout: Layout) -> Any:
        """The data of a tensor once it is reduced."""
        return data if layout.is_plain else self._out(super().whole(data, layout), layout.settled)

    def shard(self, data: Any, layout: Layout, place: int) -> NDArray[Any]:
        """What the device at a place holds."""
        return super().shard(self._in(data), layout, place)

    def assemble(self, shards: Shards, layout: Layout) -> Any:
        """Data from the tensor of every device."""
        return self._out(super().assemble(shards, layout), layout)

    def astype(self, data: Any, dtype: Any) -> Any:
        """Elements converted to a dtype."""
        return self.xp.astype(data, dtype) if isinstance(data, Tensor) else super().astype(data, dtype)

    def copy(self, data: Any) -> Any:
        """The same shards in memory of their own."""
        return data.clone() if isinstance(data, Tensor) else super().copy(data)

    # -- local computations and steps -----------------------------------------------------------------------------

    def operation(self, plan: OperationPlan) -> Callable[..., Any]:
        """An operation as a function of whole tensors and scalars."""
        return whole_operation(plan, self.xp)

    def local(self, local: Local, data: Sequence[Any]) -> tuple[Any, ...]:
        """A kernel on all lanes at once, on the host; one without operands on the whole tensor, in torch."""
        if not local.operands:
            return run(whole_call(local).on(self.xp), ())
        made = super().local(local, [self._in(x) for x in data])
        return tuple(self._out(x, layout) for x, layout in zip(made, local.results, strict=True))

    def step(self, step: Step, data: Any) -> Any:
        """One move or reduce step."""
        if isinstance(data, Tensor) and step.here.is_plain and step.there.is_plain:
            if isinstance(step, Fetch):
                return fetching(step, 0, self.xp)(data)
            if isinstance(step, Regroup):
                return data.reshape(step.result_shape)
            return data
        return self._out(super().step(step, self._in(data)), step.there)

    def move(self, data: Any, source: Layout, target: Layout) -> Any:
        """A change of sharding at once."""
        if source is target or (source.is_plain and target.is_plain):
            return data
        return self._out(super().move(self._in(data), source, target), target)

    def lanes(self, data: Any, layout: Layout) -> Any:
        """The shards as a tensor per device."""
        return super().lanes(self._in(data), layout)

    def from_lanes(self, lanes: Any, layout: Layout) -> Any:
        """Data from a tensor per device."""
        return self._out(super().from_lanes(lanes, layout), layout)

    def compile(self, code: Code, mesh: Mesh, label: str = "") -> Callable[..., tuple[Any, ...]]:
        """One generated Python function, a line an operation, on whole tensors."""
        return compiled(self, code)

    def row(self, data: Any, layout: Layout, at: int) -> Any:
        """One row of a table whose first dim is whole."""
        return data[at] if isinstance(data, Tensor) else super().row(data, layout, at)

    def stack(self, rows: Sequence[Any], layout: Layout, dtype: Any) -> Any:
        """Rows as a table."""
        if rows and isinstance(rows[0], Tensor):
            return torch.stack(list(rows))
        return self._out(super().stack(rows, layout, dtype), layout)
