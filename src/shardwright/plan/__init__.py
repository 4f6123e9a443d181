"""What an operation costs under each sharding, and which to take."""

from shardwright.plan.move import move_costs
from shardwright.plan.strategy import PARTIAL, Strategy, choose, strategies

__all__ = ["PARTIAL", "Strategy", "choose", "move_costs", "strategies"]
