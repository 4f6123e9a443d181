"""Torch: its dtypes and memory beside NumPy's, the namespace in which kernels run on torch tensors, and its engines.

Only files of this package import torch, and nothing imports them until a mesh or a tensor of torch asks for it.
"""

from typing import Any


def make_engine(device: str) -> Any:
    """The engine on torch tensors: one device a process where there are several processes, else all devices in this one."""
    from shardwright.engines.torch.processes import is_distributed

    if is_distributed():
        from shardwright.engines.torch.distributed import Distributed

        return Distributed(device)
    from shardwright.engines.torch.stacked import StackedTorch

    return StackedTorch(device)
