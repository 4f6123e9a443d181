"""Programs: a function traced once, its shardings propagated, its moves explicit, its communication made less, then run."""

from shardwright.program.control import cond, scan, while_loop
from shardwright.program.lower import lower
from shardwright.program.node import Graph, Node, Program, Type, agree
from shardwright.program.partition import is_collective
from shardwright.program.passes import Fused, peak_bytes, received, steps_of
from shardwright.program.propagate import Propagation
from shardwright.program.run import compiled
from shardwright.program.trace import Trace, Traced, current_trace, trace

__all__ = [
    "Fused",
    "Graph",
    "Node",
    "Program",
    "Propagation",
    "Trace",
    "Traced",
    "Type",
    "agree",
    "compiled",
    "cond",
    "current_trace",
    "is_collective",
    "lower",
    "peak_bytes",
    "received",
    "scan",
    "steps_of",
    "trace",
    "while_loop",
]
