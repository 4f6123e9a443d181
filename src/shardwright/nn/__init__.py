"""Neural-net operations on sharded arrays; dims that are split stay split.

Images are `batch, spatial…, channels`; weights of a convolution `window…, channels in, channels out`.
"""

from shardwright.nn.attention import scaled_dot_product_attention
from shardwright.nn.layers import (
    avg_pool,
    batch_norm,
    conv1d,
    conv2d,
    conv3d,
    cross_entropy,
    dropout,
    embedding,
    erf,
    gelu,
    group_norm,
    grouped_matmul,
    layer_norm,
    linear,
    log_softmax,
    logsumexp,
    max_pool,
    one_hot,
    relu,
    rms_norm,
    sigmoid,
    silu,
    softmax,
)
from shardwright.nn.scattering import scatter_add, scatter_along_axis, scatter_reduce
from shardwright.numpy import einsum

__all__ = [
    "avg_pool",
    "batch_norm",
    "conv1d",
    "conv2d",
    "conv3d",
    "cross_entropy",
    "dropout",
    "einsum",
    "embedding",
    "erf",
    "gelu",
    "group_norm",
    "grouped_matmul",
    "layer_norm",
    "linear",
    "log_softmax",
    "logsumexp",
    "max_pool",
    "one_hot",
    "relu",
    "rms_norm",
    "scaled_dot_product_attention",
    "scatter_add",
    "scatter_along_axis",
    "scatter_reduce",
    "sigmoid",
    "silu",
    "softmax",
]
