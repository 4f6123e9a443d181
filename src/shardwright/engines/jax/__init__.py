"""JAX: arrays on JAX's devices, and programs as one `jit(shard_map(…))` with the collectives that explain shows.

Only files of this package import JAX, and nothing imports them until a mesh of this engine asks for it.
"""

from typing import Any


def make_engine(device: str) -> Any:
    """The engine on the JAX devices of a platform."""
    from shardwright.engines.jax.jax_engine import Jax

    return Jax(device)
