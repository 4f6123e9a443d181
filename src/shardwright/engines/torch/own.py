"""`Own`: a tensor per device of which this process has one."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shardwright.engines.torch.convert import numpy_dtype
from shardwright.mesh import Mesh
from shardwright.plan import LocalShapes


@dataclass(frozen=True, slots=True, eq=False)
class Own:
    """This process's tensor, and the shapes of all devices' tensors."""

    tensor: torch.Tensor
    local_shapes: LocalShapes

    @property
    def mesh(self) -> Mesh:
        """The mesh whose devices hold the tensors."""
        return self.local_shapes.mesh

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The dtype of every device's tensor."""
        return numpy_dtype(self.tensor.dtype)

    @property
    def ndim(self) -> int:
        """The dims of one device's tensor."""
        return self.tensor.ndim

    def shapes(self) -> list[tuple[int, ...]]:
        """The different shapes that devices hold."""
        return sorted(set(self.local_shapes.shapes))


@dataclass(frozen=True, slots=True, eq=False)
class Absent:
    """In place of a shard, on a process that is not part of the mesh."""

    mesh: Mesh
    dtype: "np.dtype[Any]"
