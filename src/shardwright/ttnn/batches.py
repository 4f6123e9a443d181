"""Uneven batches: padding to a multiple of the number of devices, and removing the padding."""

import torch

from shardwright.ttnn.devices import MeshDevice


def pad_batch(tensor: torch.Tensor, mesh_device: MeshDevice, dim: int = 0) -> torch.Tensor:
    """The tensor with its last sample repeated until the batch is a multiple of the number of devices."""
    missing = -tensor.shape[dim] % mesh_device.get_num_devices()
    if not missing:
        return tensor
    last = tensor.narrow(dim, tensor.shape[dim] - 1, 1)
    return torch.cat([tensor, *[last] * missing], dim=dim)


def unpad_batch(tensor: torch.Tensor, size: int, dim: int = 0) -> torch.Tensor:
    """The first `size` samples: the tensor without its padding."""
    return tensor.narrow(dim, 0, size)
