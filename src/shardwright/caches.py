"""Caches bounded by bytes, which forget what was used least recently first.

A cache has two generations. What is looked up moves to the younger one; when that holds half of the limit, the older one is
dropped and the younger takes its place. So a hit in the younger generation costs one dictionary look-up and nothing else,
and what is in use is never dropped. Sizes are estimates that callers give: what matters is that memory levels off.
"""

import functools
from collections.abc import Callable, Hashable
from typing import Any, Generic, ParamSpec, TypeVar

MIB = 2**20
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
A = ParamSpec("A")


class Cache(Generic[K, V]):
    """Values by key, as long as their sizes stay below a limit.

    >>> cache = Cache(limit=4, size=len)
    >>> for word in "abcd":
    ...     cache.put(word, word)
    >>> cache.get("a")  # is in use now
    'a'
    >>> cache.put("e", "e")
    >>> [word for word in "abcde" if word in cache]
    ['a', 'd', 'e']

    `young` is for the fastest look-up; a key that is not there may still be found by `get`. The last `least` values are
    kept however large they are: work that needs a few at once finds them. If keys are what is large, `size` is of those.
    """

    __slots__ = ("_by_key", "_bytes", "_old", "_size", "least", "limit", "young")

    def __init__(self, limit: int, size: Callable[[Any], int], least: int = 0, by_key: bool = False) -> None:
        self.limit, self.least, self._size, self._by_key = limit, least, size, by_key
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.young: dict[K, V] = {}
        self._old: dict[K, V] = {}
        self._bytes = 0

    def get(self, key: K) -> V | None:
        """The value of a key, or None."""
        found = self.young.get(key)
        if found is None and self._old:
            found = self._old.pop(key, None)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: K, value: V) -> None:
        """Keep a value."""
        self.young[key] = value
        self._bytes += self._size(key if self._by_key else value)
        if 2 * self._bytes > self.limit and len(self.young) >= self.least:
            self._old, self.young, self._bytes = self.young, {}, 0

    def __contains__(self, key: object) -> bool:
        return key in self.young or key in self._old

    def __len__(self) -> int:
        return len(self.young) + len(self._old)


def kept(
    limit: int, size: Callable[[Any], int], least: int = 0, by_key: bool = False
) -> Callable[[Callable[A, V]], Callable[A, V]]:
    """Keeps the results of a function of hashable arguments, given by position, in a `Cache`; its keys are these."""

    def decorate(function: Callable[A, V]) -> Callable[A, V]:
        cache: Cache[Any, V] = Cache(limit, size, least, by_key)

        @functools.wraps(function)
        def call(*args: A.args, **kwargs: A.kwargs) -> V:
            found = cache.young.get(args)
            if found is None:
                found = cache.get(args)
                if found is None:
                    found = function(*args, **kwargs)
                    cache.put(args, found)
            return found

        return call

    return decorate
