"""Engines: an array namespace and the collectives on lanes, nothing else. They are loaded when first asked for."""

from functools import cache

from shardwright.engines.lanes import Lanes
from shardwright.engines.stacked import Stacked
from shardwright.errors import EngineError

__all__ = ["Lanes", "Stacked", "engine_named"]

ENGINES = ("numpy",)


@cache
def engine_named(name: str) -> Stacked:
    """The engine of a mesh, by its name."""
    if name not in ENGINES:
        raise EngineError(f"There is no engine {name!r}. Use one of {', '.join(map(repr, ENGINES))}.")
    return Stacked()
