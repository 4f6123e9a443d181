"""`Held`: a sharded tensor as engines hold it, a layout and data in lanes. What `Array` and the operations stand on."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from shardwright.engines import Lanes, Stacked, engine_named
from shardwright.errors import ArrayError, TraceError
from shardwright.mesh import Mesh
from shardwright.sharding import Layout, Sharding, describe, layout_of

changing: ContextVar[bool] = ContextVar("changing", default=True)  # False while a program is traced


class Held:
    """A tensor on the devices of a mesh: its layout, and its shards in lanes.

    The shards of a product that is partial are made when they are first needed: if that is a reduction, product and
    reduction are one call, and the partial summands never take memory.
    """

    __slots__ = ("__weakref__", "_data", "_dtype", "_later", "_layout", "_total")

    traces: ClassVar[bool] = False  # whether it stands for a value that nobody knows yet

    _layout: Layout
    _data: NDArray[Any] | None
    _dtype: "np.dtype[Any]"
    _later: Callable[[bool], NDArray[Any]] | None
    _total: NDArray[Any] | None  # of a deferred array: its shards once reduced

    @classmethod
    def of(cls, layout: Layout, data: NDArray[Any]) -> Self:
        """The array whose shards an engine holds in lanes, as a layout says."""
        self = object.__new__(cls)
        self._layout = layout
        self._data = data
        self._dtype = data.dtype
        return self

    @classmethod
    def deferred(cls, layout: Layout, dtype: "np.dtype[Any]", later: Callable[[bool], NDArray[Any]]) -> Self:
        """An array whose shards `later(False)` makes; `later(True)` makes them reduced over the partial lanes."""
        self = object.__new__(cls)
        self._layout = layout
        self._data = None
        self._dtype = dtype
        self._later = later
        self._total = None
        return self

    def beside(self, value: Any) -> Any:
        """What stands beside this array in an operation, as an array or a scalar; NotImplemented where nothing can."""
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

        def gone(reduce: bool) -> NDArray[Any]:
            raise ArrayError(
                f"{summary} was donated as {what}: its memory is no longer its own. Use the result instead."
            )

        self._data, self._later, self._total = None, gone, None

    @property
    def data(self) -> NDArray[Any]:
        """The shards, in lanes."""
        data = self._data
        if data is None:
            assert self._later is not None
            data = self._data = self._later(False)
            self._later = None
        return data

    def _reduced(self) -> NDArray[Any]:
        """The shards once partial lanes are reduced."""
        layout = self._layout
        if not layout.partial_lanes:
            return self.data
        if self._data is None and layout.sharding.reduction == "sum":
            if self._total is None:
                assert self._later is not None
                self._total = self._later(True)
            return self._total
        return self._engine.reduce(self.data, layout.partial_lanes, layout.sharding.reduction)

    def whole(self) -> Self:
        """The same tensor with its reduction done."""
        if not self._layout.partial_lanes:
            return self
        layout = layout_of(self.sharding.replace(partial=()), self.shape)
        return self.of(layout, self.placed(layout))

    def again(self) -> Self:
        """Another variable with the same value."""
        return self.of(self._layout, self.data)

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
        """Where its parts lie."""
        return self._layout.sharding

    @property
    def mesh(self) -> Mesh:
        """The mesh it lies on."""
        return self._layout.mesh

    @property
    def layout(self) -> Layout:
        """Its sharding applied to its shape."""
        return self._layout

    @property
    def lanes(self) -> Lanes:
        """Its shards as the engine holds them."""
        return Lanes(self.mesh, self._layout.lanes, self.data, self._layout.extents)

    @property
    def _engine(self) -> Stacked:
        return engine_named(self._layout.mesh.engine)

    def placed(self, target: Layout) -> NDArray[Any]:
        """The shards as another layout has them, in lanes."""
        source = self._layout
        if source is target:
            return self.data
        if source.partial_lanes and self._data is None and not target.partial_lanes:
            plain = layout_of(source.sharding.replace(partial=()), source.shape, source.lanes)
            return self._engine.reshard(self._reduced(), plain, target)
        return self._engine.reshard(self.data, source, target)

    def summary(self) -> str:
        """Its type and mesh, for errors and pictures."""
        return f"{describe(self.sharding, self.shape, self.dtype)} on {self.mesh}"


def _rebuilt(cls: type[Held], sharding: Sharding, shape: tuple[int, ...], data: NDArray[Any]) -> Held:
    return cls.of(layout_of(sharding, shape), data)
