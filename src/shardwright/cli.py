"""The command line: `shardwright demo`, `hardware`, `calibrate`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from shardwright import __version__
from shardwright.demo import demo
from shardwright.errors import MeshError
from shardwright.hardware import described, hardware_from, presets, read_nccl_tests


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0 if it did what it says."""
    parser = argparse.ArgumentParser(prog="shardwright", description="One language for sharding tensors over meshes.")
    parser.add_argument("--version", action="version", version=f"shardwright {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help="shard a real computation over a virtual 2×4 mesh and check it against NumPy")
    machine = commands.add_parser("hardware", help="print the figures of a machine, or the names of all that are known")
    machine.add_argument("name", nargs="?", help="such as h100")
    log = commands.add_parser("calibrate", help="fit latency and bandwidth to the text output of nccl-tests")
    log.add_argument("log", type=Path, help="a file with what all_reduce_perf, or another of the tests, printed")
    given = parser.parse_args(arguments)
    if given.command == "demo":
        return demo()
    try:
        print(_hardware(given.name) if given.command == "hardware" else _calibrated(given.log))
    except (MeshError, OSError) as error:
        print(f"shardwright {given.command}: {error}", file=sys.stderr)
        return 1
    return 0


def _hardware(name: str | None) -> str:
    return "\n".join(presets()) if name is None else described(hardware_from(name))


def _calibrated(log: Path) -> str:
    return str(read_nccl_tests(log.read_text(encoding="utf-8", errors="replace")))


if __name__ == "__main__":
    sys.exit(main())
