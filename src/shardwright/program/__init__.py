"""Programs: a function traced once, its shardings propagated, its steps explicit, its communication made less, then run."""

from shardwright.program.constraints import with_sharding_annotation, with_sharding_constraint
from shardwright.program.control import chosen, cond, repeated, scan, while_loop
from shardwright.program.explaining import explained, machine_of
from shardwright.program.explanation import Explanation
from shardwright.program.jit import SJIT, Applied, Bound, explain, sjit
from shardwright.program.local_tracing import KnownKey, LocalTrace, RowKey
from shardwright.program.lowering import lower
from shardwright.program.measuring import measure
from shardwright.program.memory import peak_bytes
from shardwright.program.node import (
    Apply,
    Compute,
    Cond,
    Constant,
    Constrain,
    Graph,
    Input,
    Loop,
    Node,
    Pick,
    Program,
    Rounds,
    Settle,
    Type,
    agree,
    is_move,
    short_source,
)
from shardwright.program.passes import received
from shardwright.program.propagate import Propagation
from shardwright.program.rows import Row
from shardwright.program.run import code_of, compiled, layout
from shardwright.program.tracing import Trace, Traced, current_trace, trace

__all__ = [
    "SJIT",
    "Applied",
    "Apply",
    "Bound",
    "Compute",
    "Cond",
    "Constant",
    "Constrain",
    "Explanation",
    "Graph",
    "Input",
    "KnownKey",
    "LocalTrace",
    "Loop",
    "Node",
    "Pick",
    "Program",
    "Propagation",
    "Rounds",
    "Row",
    "RowKey",
    "Settle",
    "Trace",
    "Traced",
    "Type",
    "agree",
    "chosen",
    "code_of",
    "compiled",
    "cond",
    "current_trace",
    "explain",
    "explained",
    "is_move",
    "layout",
    "lower",
    "machine_of",
    "measure",
    "peak_bytes",
    "received",
    "repeated",
    "scan",
    "short_source",
    "sjit",
    "trace",
    "while_loop",
    "with_sharding_annotation",
    "with_sharding_constraint",
]
