"""The mesh and the annotations that hold while a function runs: a stack for each thread and asyncio task."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import Mesh


@dataclass(frozen=True, eq=False)
class MeshShardingContext:
    """What `with_sharding_constraint` and `with_sharding_annotation` refer to inside `with`.

    It may be entered again, and by several threads at once: a new thread starts without one.
    """

    mesh_helper: Any  # a MeshShardingHelper
    annotation_shardings: Mapping[str, Any] | None = None
    used: set[str] = field(default_factory=set, init=False, repr=False)  # annotations that were asked for

    def __enter__(self) -> "MeshShardingContext":
        CONTEXTS.set((*CONTEXTS.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        CONTEXTS.set(CONTEXTS.get()[:-1])

    @classmethod
    def get_global_context(cls) -> "MeshShardingContext | None":
        """The innermost context that was entered, if any."""
        contexts = CONTEXTS.get()
        return contexts[-1] if contexts else None


CONTEXTS: ContextVar[tuple[MeshShardingContext, ...]] = ContextVar("jax_contexts", default=())
_optional: ContextVar[bool] = ContextVar("optional_shardings", default=False)


@contextmanager
def optional_shardings() -> Iterator[None]:
    """Inside `with`, a constraint without a mesh and an annotation without a meaning have no effect; else they are errors.

    For running a model alone that is otherwise run by `sjit`.
    """
    token = _optional.set(True)
    try:
        yield
    finally:
        _optional.reset(token)


def is_optional() -> bool:
    """Whether constraints that have no effect are allowed."""
    return _optional.get()


def get_global_mesh_helper() -> Any:
    """The MeshShardingHelper of the innermost context, or None."""
    context = MeshShardingContext.get_global_context()
    return None if context is None else context.mesh_helper


def get_global_mesh() -> Mesh | None:
    """The `jax.sharding.Mesh` of the innermost context, or None."""
    helper = get_global_mesh_helper()
    return None if helper is None else helper.mesh


def get_global_annotation_shardings() -> Mapping[str, Any] | None:
    """What annotations mean in the innermost context, or None."""
    context = MeshShardingContext.get_global_context()
    return None if context is None else context.annotation_shardings
