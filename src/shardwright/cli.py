"""The command line: `shardwright demo`, `shardwright run`, `shardwright mlir`."""

import argparse
import sys
from collections.abc import Sequence

from shardwright import __version__
from shardwright.cli_mlir import add_commands, reported
from shardwright.demo import demo


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0 if it did what it says. Without one, print help."""
    parser = argparse.ArgumentParser(prog="shardwright", description="One language for sharding tensors over meshes.")
    parser.add_argument("--version", action="version", version=f"shardwright {__version__}")
    commands = parser.add_subparsers(dest="command")
    demonstrate = commands.add_parser(
        "demo", help="shard a computation over a virtual 2×4 mesh and check it against NumPy"
    )
    demonstrate.set_defaults(call=lambda _: demo())
    add_commands(commands)
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 0
    return reported(parsed.call, parsed)


if __name__ == "__main__":
    sys.exit(main())
