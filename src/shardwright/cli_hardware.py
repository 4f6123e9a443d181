"""Commands about machines: `shardwright hardware` and `shardwright calibrate`."""

import argparse
from pathlib import Path
from typing import Any

from shardwright.hardware import described, hardware_from, presets, read_nccl_tests


def add_commands(commands: Any) -> None:
    """Add the commands to a parser's."""
    machine = commands.add_parser("hardware", help="print the figures of a machine, or the names of all that are known")
    machine.add_argument("name", nargs="?", help="such as h100")
    machine.set_defaults(call=_hardware)
    log = commands.add_parser("calibrate", help="fit latency and bandwidth to the text output of nccl-tests")
    log.add_argument("log", type=Path, help="a file with what all_reduce_perf, or another of the tests, printed")
    log.set_defaults(call=_calibrate)


def _hardware(given: argparse.Namespace) -> int:
    print("\n".join(presets()) if given.name is None else described(hardware_from(given.name)))
    return 0


def _calibrate(given: argparse.Namespace) -> int:
    print(read_nccl_tests(given.log.read_text(encoding="utf-8", errors="replace")))
    return 0
