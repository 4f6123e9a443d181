"""Torch: its dtypes and memory beside NumPy's, and the namespace in which kernels run on torch tensors.

Only files of this package import torch, and nothing imports them until a mesh or a tensor of torch asks for it.
"""
