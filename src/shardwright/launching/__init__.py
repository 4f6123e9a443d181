"""Functions run in several processes of this machine, started as torchrun starts them. Loaded when first asked for."""

from shardwright.launching.processes import Processes, launch

__all__ = ["Processes", "launch"]
