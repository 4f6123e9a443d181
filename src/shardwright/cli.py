"""The command line: `shardwright demo`, `run`, `mlir`, `hardware`, `calibrate`, `explain`, `plan`."""

import argparse
import sys
from collections.abc import Sequence

from shardwright import __version__, cli_hardware, cli_mlir, cli_models, cli_plan
from shardwright.demo import demo
from shardwright.errors import ShardwrightError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0 if it did what it says. Without one, print help."""
    parser = argparse.ArgumentParser(prog="shardwright", description="One language for sharding tensors over meshes.")
    parser.add_argument("--version", action="version", version=f"shardwright {__version__}")
    commands = parser.add_subparsers(dest="command")
    demonstrate = commands.add_parser(
        "demo", help="shard a computation over a virtual 2×4 mesh and check it against NumPy"
    )
    demonstrate.set_defaults(call=lambda _: demo())
    cli_mlir.add_commands(commands)
    cli_hardware.add_commands(commands)
    cli_models.add_commands(commands)
    cli_plan.add_commands(commands)
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 0
    try:
        status: int = given.call(given)
    except (ShardwrightError, OSError, UnicodeDecodeError) as error:
        print(f"shardwright {given.command}: {error}", file=sys.stderr)  # without a traceback: users can cause it
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
