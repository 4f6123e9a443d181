"""The exceptions: one base, one subclass per layer. Each message says what, why with the numbers, and what to do."""


class ShardwrightError(Exception):
    """Any error that shardwright raises on purpose."""


class MeshError(ShardwrightError, ValueError):
    """A mesh, an axis, a device or a topology that can't be."""


class ShardingError(ShardwrightError, ValueError):
    """A sharding that contradicts itself, its mesh, or the tensor it is for."""


class CollectiveError(ShardwrightError, ValueError):
    """A collective asked for something its group or its operand can't give."""


class EngineError(ShardwrightError, ValueError):
    """An engine that is unknown, not installed, or given data it can't hold."""


class ArrayError(ShardwrightError, ValueError):
    """An array, or a tensor per device, made or used in a way that has no meaning."""


class OperationError(ShardwrightError, ValueError):
    """An operation on operands that don't fit it."""


class AxisError(OperationError, IndexError):
    """A dim by a number that the operand does not have."""


class TraceError(ShardwrightError, TypeError):
    """A function being traced asks for what only data could tell."""


class ProgramError(ShardwrightError, ValueError):
    """A program, or the arguments and shardings given for one, that don't fit."""


class ImplicitGatherError(ShardwrightError):
    """Inside `strict()`: an operation would gather a sharded dim that nobody asked to gather."""


class ImplicitGatherWarning(UserWarning):
    """An operation gathers a large sharded dim that nobody asked to gather."""
