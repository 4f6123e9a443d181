"""The exceptions: one base, one subclass per layer. Each message says what, why with the numbers, and what to do."""


class ShardwrightError(Exception):
    """Any error that shardwright raises on purpose."""


class TreeError(ShardwrightError, ValueError):
    """A tree of arrays that is nested too deeply."""


class MeshError(ShardwrightError, ValueError):
    """An invalid mesh, axis, device or topology."""


class ShardingError(ShardwrightError, ValueError):
    """A sharding that contradicts itself, its mesh, or the tensor it is for."""


class CollectiveError(ShardwrightError, ValueError):
    """A collective with arguments that are invalid for its group or its operand."""


class EngineError(ShardwrightError, ValueError):
    """An engine that is unknown, not installed, or given data it can't hold."""


class CoherenceError(ShardwrightError, RuntimeError):
    """Processes that should make the same calls do not: one was killed, has raised, or has gone another way.

    `ranks` are the processes to blame, as far as that is known.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.ranks)


class ArrayError(ShardwrightError, ValueError):
    """An Array or a PerDevice that is made or used in an invalid way."""


class OperationError(ShardwrightError, ValueError):
    """An operation with invalid operands."""


class AxisError(OperationError, IndexError):
    """A dim index out of range for the operand."""


class TraceError(ShardwrightError, TypeError):
    """A function being traced needs the values of an array."""


class ModelError(ShardwrightError, NotImplementedError):
    """A model of another framework that can't be imported, or an operation of it that is not known."""


class ProgramError(ShardwrightError, ValueError):
    """An invalid program, or arguments and shardings that don't match it."""


class MLIRError(ShardwrightError, ValueError):
    """MLIR text that is invalid or not supported; its text ends in the source line and a caret.

    `file`, `line` and `column` (both from 1) say where.
    """

    def __init__(self, message: str, file: str = "", line: int = 0, column: int = 0, source: str = "") -> None:
        caret = " " * (column - 1) + "^"
        shown = f"{file}:{line}:{column}: {message}\n{source}\n{caret}" if line else message
        super().__init__(shown)
        self.message, self.file, self.line, self.column, self.source = message, file, line, column, source

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.file, self.line, self.column, self.source)


class LaunchError(ShardwrightError, RuntimeError):
    """A launched process that raised, died or did not finish; `rank` is its rank."""

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class ImplicitGatherError(ShardwrightError):
    """Inside `strict()`: an operation would gather a sharded dim implicitly."""


class RetraceWarning(UserWarning):
    """A jitted function is traced again and again for ever new numbers."""


class ImplicitGatherWarning(UserWarning):
    """An operation gathers a large sharded dim implicitly."""


class ShardingWarning(UserWarning):
    """A sharding that is written down and has no effect: an unused pattern or name, or a dim that can't be split."""


class PlanError(ShardwrightError, ValueError):
    """A program that no plan fits, or a request of a plan that contradicts itself.

    Where memory is what lacks, `least` has the bytes of the plan that holds least of those found, and `bound` the bytes that no
    plan holds less than.
    """

    def __init__(self, message: str, least: int | None = None, bound: int | None = None) -> None:
        super().__init__(message)
        self.least, self.bound = least, bound
