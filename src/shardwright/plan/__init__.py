"""Steps that move and combine what devices hold, at least cost; strategies of an operation, their prices, the choice; the
plan of an operation under a strategy."""

from shardwright.plan.code import (
    Choice,
    Code,
    Each,
    FromLocal,
    Fused,
    Instruction,
    Local,
    Scan,
    Slot,
    ToLocal,
    While,
    parts_of,
)
from shardwright.plan.enumeration import Instant, Option, instants_of, options_of, places
from shardwright.plan.factors import PARTIAL, dims_of, homes
from shardwright.plan.fetch import Fetch, element_step
from shardwright.plan.local_view import LocalShapes, LocalStep, SendRecv, local_shapes
from shardwright.plan.move_prices import has_floors, is_exact, move_matrix, move_seconds, moves_that_count_less
from shardwright.plan.operation import (
    ImplicitGather,
    OperationPlan,
    canonical,
    common_mesh,
    make_plan,
    plan_operation,
    problem_of,
    scalar_side,
    scales_safely,
)
from shardwright.plan.problem import Problem, work_of
from shardwright.plan.reshard import (
    Cost,
    ReshardPlan,
    gathered_dims,
    move_costs,
    move_steps,
    plan_reshard,
    relabelled,
)
from shardwright.plan.rings import Reduce, carrier, group_of, sub_blocks
from shardwright.plan.route import longer_chains
from shardwright.plan.steps import Message, Move, Regroup, Step
from shardwright.plan.strategy import (
    Price,
    Strategy,
    choose,
    price_of,
    result_without_moves,
    strategies,
    strategy_for,
)
from shardwright.plan.volume import lower_bound
from shardwright.plan.windows import OUTSIDE, Picked, Spaced

__all__ = [
    "OUTSIDE",
    "PARTIAL",
    "Choice",
    "Code",
    "Cost",
    "Each",
    "Fetch",
    "FromLocal",
    "Fused",
    "ImplicitGather",
    "Instant",
    "Instruction",
    "Local",
    "LocalShapes",
    "LocalStep",
    "Message",
    "Move",
    "OperationPlan",
    "Option",
    "Picked",
    "Price",
    "Problem",
    "Reduce",
    "Regroup",
    "ReshardPlan",
    "Scan",
    "SendRecv",
    "Slot",
    "Spaced",
    "Step",
    "Strategy",
    "ToLocal",
    "While",
    "canonical",
    "carrier",
    "choose",
    "common_mesh",
    "dims_of",
    "element_step",
    "gathered_dims",
    "group_of",
    "has_floors",
    "homes",
    "instants_of",
    "is_exact",
    "local_shapes",
    "longer_chains",
    "lower_bound",
    "make_plan",
    "move_costs",
    "move_matrix",
    "move_seconds",
    "move_steps",
    "moves_that_count_less",
    "options_of",
    "parts_of",
    "places",
    "plan_operation",
    "plan_reshard",
    "price_of",
    "problem_of",
    "relabelled",
    "result_without_moves",
    "scalar_side",
    "scales_safely",
    "strategies",
    "strategy_for",
    "sub_blocks",
    "work_of",
]
