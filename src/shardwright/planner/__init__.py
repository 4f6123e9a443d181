"""The planner of whole programs: the best placement of all values, with a proof."""

from shardwright.planner.comparing import Comparison, Other, Standing
from shardwright.planner.plan import Plan, auto, searched

__all__ = ["Comparison", "Other", "Plan", "Standing", "auto", "searched"]
