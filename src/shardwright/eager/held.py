"""`Held`: a sharded tensor as an engine holds it, a layout and data. What `Array` and the operations stand on."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from shardwright.engines import Engine, Lanes, engine_named
from shardwright.errors import ArrayError, TraceError
from shardwright.mesh import Mesh
from shardwright.sharding import Layout, Sharding, describe, layout_of

changing: ContextVar[bool] = ContextVar("changing", default=True)  # False while a program is traced


class Held:
    """A tensor on the devices of a mesh: its layout, and its shards as the mesh's engine holds them.

    On engines that fuse, the shards of a partial product are made when they are first needed: if that is a reduction,
    product and reduction are one call, and the partial summands never take memory.
    """

    __slots__ = ("__weakref__", "_data", "_dtype", "_later", "_layout", "_total")

    traces: ClassVar[bool] = False  # whether its elements are unknown, because a program is being traced

    _layout: Layout
    _data: Any
    _dtype: "np.dtype[Any]"
    _later: Callable[[bool], Any] | None
    _total: Any  # of a deferred array: its shards once reduced

    @classmethod
    def of(cls, layout: Layout, data: Any) -> Self:
        """The array whose shards an engine holds, as a layout says."""
        self = object.__new__(cls)
        self._layout = layout
        self._data = data
        self._dtype = data.dtype
        return self

    @classmethod
    def deferred(cls, layout: Layout, dtype: "np.dtype[Any]", later: Callable[[bool], Any]) -> Self:
        """An array whose shards `later(False)` makes; `later(True)` makes them reduced over the partial lanes."""
        self = object.__new__(cls)
        self._layout = layout
        self._data = None
        self._dtype = dtype
        self._later = later
        self._total = None
        return self

    def beside(self, value: Any) -> Any:
        """Converts the other operand to an array or scalar; NotImplemented if impossible."""
        return NotImplemented

    def become(self, other: "Held") -> None:
        """Take another's value: the variable changes, data that others see does not."""
        if not changing.get():
            raise TraceError(
                f"{self.summary()} comes from outside of the function that is traced, and would be changed while that is "
                f"traced, not when it runs. Write x = x + … and return the new value."
            )
        self._layout, self._dtype, self._data = other._layout, other._dtype, other.data

    def give_away(self, what: str) -> None:
        """Let the data go; who reads it afterwards is told that it was donated."""
        summary = self.summary()

        def gone(reduce: bool) -> Any:
            raise ArrayError(
                f"{summary} was donated as {what}: its memory is no longer its own. Use the result instead."
            )

        self._data, self._later, self._total = None, gone, None

    @property
    def data(self) -> Any:
        """The shards, as the engine holds them."""
        data = self._data
        if data is None:
            assert self._later is not None
            data = self._data = self._later(False)
            self._later = None
        return data

    def _reduced(self) -> tuple[Any, Layout]:
        """The shards with a deferred reduction done, and their layout."""
        layout = self._layout
        if self._data is not None or not layout.partial_lanes:
            return self.data, layout
        if self._total is None:
            assert self._later is not None
            self._total = self._later(True)
        return self._total, layout_of(layout.sharding.replace(partial=()), layout.shape, layout.lanes)

    def reduced(self) -> Self:
        """The same tensor with its reduction done."""
        if not self._layout.partial_lanes:
            return self
        layout = layout_of(self.sharding.replace(partial=()), self.shape)
        return self.of(layout, self.placed(layout))

    def again(self) -> Self:
        """A new array sharing this data; assigning to one leaves the other unchanged."""
        return self.of(self._layout, self.data)

    def copied(self) -> Self:
        """The same tensor in memory of its own."""
        return self.of(self._layout, self._engine.copy(self.data))

    def host(self) -> NDArray[Any]:
        """The whole tensor on the host, reduced; may share memory with the shards."""
        data, layout = self._reduced()
        return self._engine.whole(data, layout)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.sharding, self.shape, self.data)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return self._layout.shape

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The dtype of its elements."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self._layout.shape)

    @property
    def size(self) -> int:
        """The number of elements of the whole tensor."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """The bytes of the whole tensor, once."""
        return self.size * self._dtype.itemsize

    @property
    def sharding(self) -> Sharding:
        """Which device holds which part."""
        return self._layout.sharding

    @property
    def mesh(self) -> Mesh:
        """The mesh whose devices hold it."""
        return self._layout.mesh

    @property
    def layout(self) -> Layout:
        """Its sharding applied to its shape."""
        return self._layout

    @property
    def lanes(self) -> Lanes:
        """Its shards as a tensor per device."""
        return self._engine.lanes(self.data, self._layout)

    @property
    def _engine(self) -> Engine:
        return engine_named(self._layout.mesh.engine)

    def placed(self, target: Layout) -> Any:
        """The shards as another layout has them."""
        source = self._layout
        if source is target:
            return self.data
        if source.partial_lanes and self._data is None and not target.partial_lanes:
            return self._engine.move(*self._reduced(), target)
        return self._engine.move(self.data, source, target)

    def summary(self) -> str:
        """Its type and mesh, for errors and pictures."""
        return f"{describe(self._layout.sharding, self.shape, self.dtype)} on {self.mesh}"


def _rebuilt(cls: type[Held], sharding: Sharding, shape: tuple[int, ...], data: Any) -> Held:
    return cls.of(layout_of(sharding, shape), data)
