"""From a call to its result: tensors as engines hold them, where new ones go, and operations run one by one."""

from shardwright.eager.calls import (
    apply,
    binary,
    find,
    kind_of,
    lifted,
    make,
    matmul,
    mind_gathers,
    operator_method,
    operators,
    recording,
    strict,
    strictness,
    tracing,
    unary,
    warn,
)
from shardwright.eager.held import TEMPORARY, Held, tracer
from shardwright.eager.placement import auto_sharding, auto_spec, current_policy, sharding_for
from shardwright.eager.tapes import taped
from shardwright.lines import source_line, user_depth

__all__ = [
    "TEMPORARY",
    "Held",
    "apply",
    "auto_sharding",
    "auto_spec",
    "binary",
    "current_policy",
    "find",
    "kind_of",
    "lifted",
    "make",
    "matmul",
    "mind_gathers",
    "operator_method",
    "operators",
    "recording",
    "sharding_for",
    "source_line",
    "strict",
    "strictness",
    "taped",
    "tracer",
    "tracing",
    "unary",
    "user_depth",
    "warn",
]
