"""Engines: what holds shards and runs steps. They are loaded when first asked for."""

from importlib.util import find_spec
from typing import Any

from shardwright.engines.chains import ChainLine
from shardwright.engines.checks import checked
from shardwright.engines.compiled import shortened, whole_line
from shardwright.engines.gt import engine
from shardwright.engines.lanes import Lanes
from shardwright.engines.literal import Literal, Tally
from shardwright.engines.protocol import Engine
from shardwright.engines.stacked import Stacked
from shardwright.engines.whole import row_function
from shardwright.errors import EngineError
from shardwright.mesh import Mesh

__all__ = [
    "ENGINES",
    "ChainLine",
    "Engine",
    "Lanes",
    "Literal",
    "Stacked",
    "Tally",
    "checked",
    "engine",
    "engine_named",
    "engine_of",
    "padded_bytes",
    "row_function",
    "shortened",
    "whole_line",
]

ENGINES = ("numpy", "literal", "torch", "jax")

_engines: dict[tuple[str, str], Engine] = {}


def engine_of(mesh: Mesh) -> Engine:
    """The engine that holds the arrays of a mesh."""
    found = _engines.get((mesh.engine, mesh.device))
    return engine_named(mesh.engine, mesh.device) if found is None else found


def engine_named(name: str, device: str = "cpu") -> Engine:
    """The engine of a name and device; made at first use."""
    if (name, device) not in _engines:
        _engines[name, device] = _made(name, device)
    return _engines[name, device]


MOST_PADDED = 512  # devices of a mesh whose rounds are worked out for explain


def padded_bytes(step: Any, mesh: Mesh) -> int | None:
    """Bytes that the busiest device receives in a step on a mesh's engine, padding included; None where nothing is padded."""
    if mesh.engine != "jax" or mesh.size > MOST_PADDED:
        return None
    from shardwright.engines.jax.rounds import padded_bytes as in_rounds

    return in_rounds(step)


def _made(name: str, device: str) -> Engine:
    if name == "numpy":
        return Stacked()
    if name == "literal":
        return Literal()
    if name == "torch":
        if find_spec("torch") is None:
            raise EngineError("The engine 'torch' needs PyTorch: pip install 'shardwright[torch]'.")
        from shardwright.engines.torch import make_engine

        return make_engine(device)
    if name == "jax":
        if find_spec("jax") is None:
            raise EngineError("The engine 'jax' needs JAX: pip install 'shardwright[jax]'.")
        from shardwright.engines.jax import make_engine as make_jax

        return make_jax(device)
    raise EngineError(f"There is no engine {name!r}. Use one of {', '.join(map(repr, ENGINES))}.")
