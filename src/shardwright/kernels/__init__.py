"""The local computation of every row of the table: on one device's shards, or on any number of leading lanes of them.

Kernels are written once, in the array functions of the engine that runs them (`call.xp`). They are pure, never read along a
lane, and know of a device only its own sizes and offsets. What a device needs from others was brought to it by steps before.
"""

from shardwright.kernels.along import highest, lowest
from shardwright.kernels.call import Call, Space
from shardwright.kernels.contraction import contraction
from shardwright.kernels.space import NUMPY, NumpySpace
from shardwright.kernels.table import KERNELS, PLAIN, SCRATCH, run

__all__ = [
    "KERNELS",
    "NUMPY",
    "PLAIN",
    "SCRATCH",
    "Call",
    "NumpySpace",
    "Space",
    "contraction",
    "highest",
    "lowest",
    "run",
]
