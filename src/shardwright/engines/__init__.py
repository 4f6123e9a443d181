"""Engines: what holds shards and runs steps. They are loaded when first asked for."""

from functools import cache

from shardwright.engines.lanes import Lanes
from shardwright.engines.literal import Literal, Tally
from shardwright.engines.protocol import Engine
from shardwright.engines.stacked import Stacked
from shardwright.errors import EngineError

__all__ = ["ENGINES", "Engine", "Lanes", "Literal", "Stacked", "Tally", "engine_named"]

ENGINES = ("numpy", "literal")


@cache
def engine_named(name: str) -> Engine:
    """The engine of a mesh, by its name."""
    if name == "numpy":
        return Stacked()
    if name == "literal":
        return Literal()
    raise EngineError(f"There is no engine {name!r}. Use one of {', '.join(map(repr, ENGINES))}.")
