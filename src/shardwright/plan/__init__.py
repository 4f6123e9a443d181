"""Moving tensors at least cost, what an operation costs under each sharding, and which to take."""

from shardwright.plan.price import gathered_dims, move_costs
from shardwright.plan.reshard import ReshardPlan, Step, plan_reshard, relabelled
from shardwright.plan.strategy import PARTIAL, Strategy, choose, dims_of, homes, strategies
from shardwright.plan.volume import lower_bound

__all__ = [
    "PARTIAL",
    "ReshardPlan",
    "Step",
    "Strategy",
    "choose",
    "dims_of",
    "gathered_dims",
    "homes",
    "lower_bound",
    "move_costs",
    "plan_reshard",
    "relabelled",
    "strategies",
]
