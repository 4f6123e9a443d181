"""Pictures of which device holds which part of a tensor."""

from shardwright.viz.text import picture

__all__ = ["picture"]
