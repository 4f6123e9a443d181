"""`Roofline`: the seconds of an operation's strategies, for the check of a certificate."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shardwright.kernels import KERNELS
from shardwright.ops import OPS
from shardwright.plan import Local, OperationPlan, Option, problem_of
from shardwright.planner.repriced_programs import roofline
from shardwright.planner.repriced_steps import seconds_of_steps
from shardwright.program.node import Node
from shardwright.sharding import Sharding, layout_of

if TYPE_CHECKING:
    from shardwright.planner.repricing import Costs

Shardings = tuple[Sharding, ...]
PASSING = frozenset(
    ("reshape", "permute_dims", "broadcast_to", "astype", "rows")
)  # operations that may give their operand


class Roofline:
    """The seconds of an operation's strategies: its local computations, and what devices exchange between them."""

    def __init__(self, costs: "Costs", node: Node, operands: Sequence[Any]) -> None:
        self.costs, self.node, self.operands = costs, node, operands
        self.name, self.attrs = node.what.name, node.what.attrs
        whole = Sharding(costs.mesh)
        kinds = [(layout_of(whole.for_shape(k[0]), k[0]), k[1]) if isinstance(k, tuple) else k for k in operands]
        self.problem, _ = problem_of(OPS[self.name], kinds, self.attrs)
        self.rule = rule = self.problem.rule
        self.one = self.name in KERNELS and not (rule.rows or rule.prefix or rule.agrees or rule.selects)
        self.arrays = [(x.type.shape, x.type.dtype.itemsize) for x in node.nodes]
        self.results = [(rule.out_shape(at), kind.dtype.itemsize) for at, kind in enumerate(node.types)]
        self._held: dict[Shardings, int] = {}

    def seconds(self, option: Option) -> float:
        """Of one strategy."""
        if self.one and not (self.rule.normalizes and option.results[0].partial):
            return self._last(option)
        chip, total = self.costs.chip, 0.0
        left = iter(option.operands)
        kinds = [(layout_of(next(left), k[0]), k[1]) if isinstance(k, tuple) else k for k in self.operands]
        plan = OperationPlan(OPS[self.name], kinds, self.attrs, option.strategy)
        for at, line in enumerate(plan.instructions):
            what: Any = line.what
            if not isinstance(what, Local):
                total += seconds_of_steps([what])
            elif at + 1 == len(plan.instructions):
                total += self._last(option)
            else:
                arrays = [
                    *zip(what.operands, what.call.dtypes, strict=True),
                    *zip(what.results, what.call.result_dtypes, strict=True),
                ]
                touched = sum(
                    self.costs.local_size(held.sharding, held.shape) * dtype.itemsize for held, dtype in arrays
                )
                total += touched / chip.memory_bandwidth
        return total

    def held(self, option: Option) -> int:
        """Bytes that a device holds of operands and results."""
        found = self._held.get(option.operands + option.results)
        if found is None:
            arrays = zip(option.operands + option.results, self.arrays + self.results, strict=True)
            found = sum([self.costs.local_size(s, shape) * item for s, (shape, item) in arrays])
            self._held[option.operands + option.results] = found
        return found

    def sure(self, option: Option) -> int:
        """Bytes that a device holds at least beside inputs: equal operands once, what passes an operand on not again, and of an
        operation in several steps the largest value alone."""
        size, node = self.costs.local_size, self.node
        several: dict[Any, int] = {}
        for x, there in zip(node.nodes, option.operands, strict=True):
            if not self.costs.may_be_held(x):
                several[*x.type[:2], there] = size(there, x.type.shape) * x.type.dtype.itemsize
        if self.name not in PASSING:
            for at, (there, kind) in enumerate(zip(option.results, node.types, strict=True)):
                several[at] = size(there, kind.shape) * kind.dtype.itemsize
        single = self.one and not self.rule.normalizes
        return (sum if single else max)([*several.values(), 0])

    def _last(self, option: Option) -> float:
        """The local computation that gives the results, or the only one."""
        placement, dtype = option.strategy.placement, self.problem.work_dtype
        return roofline(self.costs.mesh, OPS[self.name], self.rule, placement, self.held(option), dtype)
