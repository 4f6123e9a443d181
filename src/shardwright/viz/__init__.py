"""Pictures of what lies where."""

from shardwright.viz.text import picture

__all__ = ["picture"]
