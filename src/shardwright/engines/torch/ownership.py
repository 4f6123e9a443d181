"""Whether a call alone holds a tensor, so that it may overwrite it.

CPython counts references, and torch counts the tensors that share memory. What both count for a tensor that nothing else holds
is tried here once; where that does not differ from what they count for others, no tensor is taken for such a one.
"""

from sys import getrefcount
from typing import Any

import torch


class _Probe:
    def references(self, tensor: Any) -> int:
        return getrefcount(tensor)


def _given() -> int:
    """How many references a method finds to an argument that its call alone holds; 0 if as many as to a variable's."""
    variable = torch.empty(1)
    found = _Probe().references(torch.empty(1))
    return found if found < _Probe().references(variable) else 0


GIVEN = _given()


def _sharing(tensor: torch.Tensor) -> int:
    """How many tensors, and others, have the memory of a tensor."""
    count: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return count


def _alone() -> int:
    """What is counted for memory of one tensor; 0 if nothing can be known."""
    if not hasattr(torch._C, "_storage_Use_Count"):
        return 0
    tensor = torch.empty(2)
    found = _sharing(tensor)
    view = tensor.view(2, 1)
    return found if found < _sharing(tensor) == _sharing(view) else 0


_ALONE = _alone()


def is_alone(data: Any) -> bool:
    """Whether no other tensor or array shares the memory of a tensor."""
    if not _ALONE or not isinstance(data, torch.Tensor) or data.requires_grad:
        return False
    return _sharing(data) == _ALONE
