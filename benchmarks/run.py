"""All benchmarks, each figure a ratio against a peer measured in the same run; exits with 1 if a goal is missed."""

import sys

import foundation
import gaps
import imported
import jax_engine
import jax_front
import mlir_front
import operations
import planner
import resharding
import torch_engines
import ttnn_front
from harness import MISSED

import programs


def main() -> int:
    foundation.main()
    operations.main()
    resharding.main()
    programs.main()
    gaps.main()
    mlir_front.main()
    ttnn_front.main()
    torch_engines.main()
    jax_front.main()
    jax_engine.main()
    imported.main()
    planner.main()
    print(f"\n{len(MISSED)} goals missed" + "".join(f"\n  {name}" for name in MISSED))
    return 1 if MISSED else 0


if __name__ == "__main__":
    sys.exit(main())
