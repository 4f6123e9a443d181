"""A call as it travels to another process: pickled, with the files of the modules that it names."""

import functools
import io
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from shardwright.errors import LaunchError

MAIN = {"__main__", "__mp_main__"}  # the script of a process; in launched ones it has both names


@dataclass(frozen=True, slots=True)
class Call:
    """A function and its arguments, pickled, and what another process needs to find the names in the pickle."""

    name: str  # of the function
    pickled: bytes
    files: dict[str, str]  # module → its file, for modules that the pickle names
    main: dict[str, str]  # how to import the parent's script; empty if the pickle does not name it
    path: list[str]
    argv: list[str]
    folder: str

    def message(self) -> bytes:
        """As the script of a launched process reads it."""
        return pickle.dumps(asdict(self), pickle.HIGHEST_PROTOCOL)


class _Pickler(pickle.Pickler):
    """Notes the modules of the functions and classes that it pickles."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.modules: set[str] = set()

    def reducer_override(self, value: Any) -> Any:
        module = getattr(value, "__module__", None) if hasattr(value, "__qualname__") else None
        if isinstance(module, str):
            self.modules.add(module)
        return NotImplemented


def packed(fn: Callable[..., Any], args: tuple[Any, ...]) -> Call:
    """A call, ready to be sent; LaunchError if it can't be."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise LaunchError(
            "sw.launch was called while a launched process imports the script that launched it. Launching must not start "
            'again in every process: put the call under `if __name__ == "__main__":`.'
        )
    name = _checked_name(fn)
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump((fn, args))
    except Exception as error:
        raise LaunchError(
            f"{name} and its arguments can't be sent to another process: {type(error).__name__}: {error}. Use a function at "
            f"the top level of a module, and arguments that can be pickled."
        ) from error
    modules = {module: getattr(sys.modules.get(module), "__file__", None) for module in sorted(pickler.modules)}
    return Call(
        name=name,
        pickled=file.getvalue(),
        files={
            module: os.path.abspath(path)
            for module, path in modules.items()
            if path and path.endswith(".py") and module not in MAIN
        },
        main=_main_module(name) if pickler.modules & MAIN else {},
        path=[entry or os.getcwd() for entry in sys.path if isinstance(entry, str)],
        argv=list(sys.argv),
        folder=os.getcwd(),
    )


def _checked_name(fn: Callable[..., Any]) -> str:
    """How messages call a function; LaunchError for functions that have no name in a module."""
    if not callable(fn):
        raise LaunchError(
            f"sw.launch takes a function and its arguments; got {fn!r}. Pass the function, not its result."
        )
    inner = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    if "<lambda>" in name or "<locals>" in name:
        kind = "a lambda" if name.endswith("<lambda>") else "defined inside a function"
        raise LaunchError(
            f"{name} is {kind}, so another process can't import it. Define it with `def` at the top level of a module; "
            f"pass values as arguments of sw.launch."
        )
    return str(name)


def _main_module(name: str) -> dict[str, str]:
    """How multiprocessing's spawn imports the script of this process."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__" and not spec.name.endswith(".__main__"):
        return {"init_main_from_name": spec.name}
    file = getattr(main, "__file__", None)
    if spec is None and file is not None and os.path.exists(file):
        return {"init_main_from_path": os.path.normpath(os.path.abspath(file))}
    raise LaunchError(
        f"{name} or one of its arguments is defined in an interactive session or in a `__main__.py`, which another process "
        f"can't import. Define it in a module file and import it."
    )
