"""What is left of a model that is too wide to eliminate: dead ends are removed, then a linear programme, then branching."""

from shardwright.errors import ProgramError
from shardwright.planner.elimination import Elimination


def finished(run: Elimination) -> tuple[list[int], float]:
    """The best choice, and its cost in units."""
    if run.left:
        raise ProgramError("too wide")
    return run.choice(), run.least()
