"""The command line: `shardwright demo`."""

import argparse
import sys
from collections.abc import Sequence

from shardwright import __version__
from shardwright.demo import demo


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0 if it did what it says."""
    parser = argparse.ArgumentParser(prog="shardwright", description="One language for sharding tensors over meshes.")
    parser.add_argument("--version", action="version", version=f"shardwright {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help="shard a real computation over a virtual 2×4 mesh and check it against NumPy")
    parser.parse_args(arguments)
    return demo()


if __name__ == "__main__":
    sys.exit(main())
