"""For programs written in JAX: `sw.jax`.

`explain` shows what XLA's compiled functions send between devices, in the table that `sw.explain` gives.
"""

try:
    import jax as _jax  # noqa: F401  # absolute: the installed package
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ModuleNotFoundError(
        "shardwright.jax needs jax, which is not installed. Run: pip install 'shardwright[jax]'.", name="jax"
    ) from error

from shardwright.jax.explaining import explain

__all__ = ["explain"]
