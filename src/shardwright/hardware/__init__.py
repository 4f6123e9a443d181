"""Machines: chips, links, levels of links, presets of them with sources; the price of a collective and of a local step.

The only cost model. It knows group sizes and links, not meshes or tensors; whoever plans says how many bytes the busiest device
receives.
"""

from shardwright.hardware.asking import time
from shardwright.hardware.chips import Chip
from shardwright.hardware.fabric import COLLECTIVES, Fabric
from shardwright.hardware.levels import Hardware, Level, Pieces
from shardwright.hardware.links import Link
from shardwright.hardware.presets import GENERIC, hardware_from, presets, short

__all__ = [
    "COLLECTIVES",
    "GENERIC",
    "Chip",
    "Fabric",
    "Hardware",
    "Level",
    "Link",
    "Pieces",
    "hardware_from",
    "presets",
    "short",
    "time",
]
