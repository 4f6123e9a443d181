"""`Attrs`: the attributes of one call of an operation."""

from typing import Any


class Attrs(dict[str, Any]):
    """The attributes of a call: a dict that is never modified, with its items as `key`."""

    __slots__ = ("key",)

    def __init__(self, **attrs: Any) -> None:
        super().__init__(attrs)
        self.key = tuple(attrs.items())


NO_ATTRS = Attrs()
