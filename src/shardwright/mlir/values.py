"""The values of a function that is being read, and operations of the table on them.

A value is a NumPy array where it is known (constants, sizes); otherwise an array of the program that is being traced: an
`Array` in the global view, a `PerDevice` in the local one. Known values without strides are one element repeated, so a constant
of any size takes no memory.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwright.arrays import Array, PerDevice, shard
from shardwright.eager import apply
from shardwright.engines import row_function
from shardwright.mesh import Mesh
from shardwright.ops import NO_ATTRS, OPS, Attrs
from shardwright.program import LocalTrace, Node, Trace, current_trace
from shardwright.sharding import P
from shardwright.xla import first_of, folded, is_known, is_splat, splat

Value = Any  # a NumPy array, an Array or a PerDevice
MOST_DEVICES = 4096  # of a mesh whose values per device are worked out while a program is traced


class View:
    """Runs operations of the table on values."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._bases: dict[Node, Value] = {}  # what reshaped values were before
        self._signs: dict[Node, Value] = {}  # what integers were before only their sign was reinterpreted

    @property
    def trace(self) -> Trace:
        """The function that is being traced now."""
        found = current_trace()
        assert found is not None
        return found

    def row(self, name: str, /, *operands: Value, **attrs: Any) -> Value:
        """An operation of the table."""
        full = Attrs(**attrs) if attrs else NO_ATTRS
        if all(map(is_known, operands)):
            made = folded(name, operands, full)
            if made is not None:
                return made
            operands = tuple(map(self.lifted, operands))
        return self._record(name, self._ready(name, operands), full)

    def _ready(self, name: str, operands: Sequence[Value]) -> list[Any]:
        """Operands as the recorder takes them: splats as scalars where that changes neither shape nor dtype."""
        traced = [x for x in operands if not is_known(x)]
        shape = np.broadcast_shapes(*(x.shape for x in operands)) if OPS[name].elementwise else None
        result: list[Any] = []
        for x in operands:
            plain = is_splat(x) and any(y.shape == shape and y.dtype == x.dtype for y in traced)
            result.append(first_of(x) if plain and x.dtype.kind in "bif" else self.lifted(x))
        return result

    def lifted(self, value: Value) -> Value:
        """A value of the program."""
        return self._constant(value) if is_known(value) else value

    def reshaped(self, value: Value, shape: Sequence[int]) -> Value:
        """The same elements in another shape."""
        if tuple(shape) == tuple(value.shape):
            return value
        if is_splat(value):
            return splat(first_of(value), shape, value.dtype)
        if is_known(value):
            return value.reshape(tuple(shape))
        base: Any = self._bases.get(value.node, value)  # a reshape of a reshape is one
        if tuple(base.shape) == tuple(shape):
            return base
        made = self.row("reshape", base, shape=tuple(shape))
        self._bases[made.node] = base
        return made

    def broadcast(self, value: Value, shape: Sequence[int]) -> Value:
        """Elements repeated."""
        if tuple(shape) == tuple(value.shape):
            return value
        if is_splat(value):
            return np.broadcast_to(value, tuple(shape))
        return self._record("broadcast_to", [self.lifted(value)], Attrs(shape=tuple(shape)))  # a constant stays small

    def broadcast_like(self, value: Value, other: Value) -> Value:
        """A scalar with as many dims as another value, each 1 long."""
        return self.reshaped(value, (1,) * len(other.shape))

    def cast(self, value: Value, dtype: "np.dtype[Any]") -> Value:
        """Elements converted; bits that get their sign back are those they were."""
        if value.dtype == dtype:
            return value
        if not is_known(value) and value.node in self._signs and self._signs[value.node].dtype == dtype:
            return self._signs[value.node]
        made = self.row("astype", value, dtype=np.dtype(dtype))
        turned = {value.dtype.kind, made.dtype.kind} == {"i", "u"} and value.dtype.itemsize == made.dtype.itemsize
        if turned and not is_known(made):
            self._signs[made.node] = value
        return made

    def _constant(self, value: Any) -> Value:
        raise NotImplementedError

    def _record(self, name: str, operands: Sequence[Any], attrs: Attrs) -> Value:
        raise NotImplementedError


class GlobalView(View):
    """Values are arrays, whose shardings propagation settles."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(mesh)
        self._constants: dict[Any, Array] = {}

    def _constant(self, value: Any) -> Array:
        single = is_splat(value)
        small = np.array(value[(slice(0, 1),) * value.ndim].reshape(()) if single else value)
        key = (small.dtype.name, small.shape, small.tobytes())
        if key not in self._constants:
            self._constants[key] = shard(small, self.mesh, P())
        made = self._constants[key]
        lifted: Array = self.trace.lift(made) if not made.traces else made
        return lifted if small.shape == value.shape else apply("broadcast_to", (lifted,), Attrs(shape=value.shape))

    def _record(self, name: str, operands: Sequence[Any], attrs: Attrs) -> Any:
        return apply(name, operands, attrs)


class LocalView(View):
    """Values are a tensor per device."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(mesh)
        self._per_device: dict[Node, list[Any]] = {}  # small values that are known for every device

    @property
    def recorder(self) -> LocalTrace:
        """Records values per device."""
        return LocalTrace(self.trace)

    def _constant(self, value: Any) -> PerDevice:
        made = self.recorder.known(self.mesh, value)
        if self.mesh.size <= MOST_DEVICES:
            self._per_device[made.node] = [value] * self.mesh.size
        return made

    def _record(self, name: str, operands: Sequence[Any], attrs: Attrs) -> Any:
        made = self.recorder.row(name, operands, attrs)
        self._note(name, operands, attrs, made)
        return made

    def named(self, values: Sequence[Any], name: str, key: Any) -> Any:
        """A value that is known for every device, such as its coordinates."""
        made = self.recorder.named(PerDevice(self.mesh, values), name, key)
        if self.mesh.size <= MOST_DEVICES:
            self._per_device[made.node] = [np.asarray(x) for x in values]
        return made

    def each(self, name: str, key: Any, function: Any, operands: Sequence[Any]) -> Any:
        """A function of small tensors that every device has, worked out where these are known."""
        made = self.recorder.each(name, key, function, operands)
        known = [self.per_device(x) for x in operands]
        if all(x is not None for x in known):
            self._per_device[made.node] = [np.asarray(function(*row)) for row in zip(*known, strict=True)]
        return made

    def _note(self, name: str, operands: Sequence[Any], attrs: Attrs, made: Any) -> None:
        """Work a small value out for every device where its operands are known for each."""
        given = [x if not isinstance(x, PerDevice) else self.per_device(x) for x in operands]
        if any(x is None for x in given) or math.prod(made.shape) > 16:
            return
        rows = [[x[place] if isinstance(x, list) else x for x in given] for place in range(self.mesh.size)]
        kinds = [(x.shape, x.dtype) if isinstance(x, np.ndarray) else x for x in rows[0]]
        function = row_function(name, kinds, attrs)
        with np.errstate(all="ignore"):
            self._per_device[made.node] = [np.asarray(function(*row)) for row in rows]

    def per_device(self, value: Value) -> list[Any] | None:
        """The tensors of every device, if they are known while the function is traced."""
        if is_known(value):
            return [value] * self.mesh.size
        return self._per_device.get(value.node)
