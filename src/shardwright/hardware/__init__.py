"""Machines: chips, links, levels of links, presets of them with sources; the price of a collective and of a local step.

The only cost model. It knows group sizes and links, not meshes or tensors; whoever plans says how many bytes the busiest device
receives.
"""

from shardwright.hardware.asking import time
from shardwright.hardware.calibration import Calibration, Measured, fitted, read_nccl_tests
from shardwright.hardware.chips import Chip
from shardwright.hardware.fabric import COLLECTIVES, Fabric
from shardwright.hardware.levels import Hardware, Level, Pieces
from shardwright.hardware.links import Link
from shardwright.hardware.measuring import measure
from shardwright.hardware.presets import GENERIC, hardware_from, presets, short
from shardwright.hardware.words import described

__all__ = [
    "COLLECTIVES",
    "GENERIC",
    "Calibration",
    "Chip",
    "Fabric",
    "Hardware",
    "Level",
    "Link",
    "Measured",
    "Pieces",
    "described",
    "fitted",
    "hardware_from",
    "measure",
    "presets",
    "read_nccl_tests",
    "short",
    "time",
]
