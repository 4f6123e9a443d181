"""The script of a launched process: it runs the calls that its parent sends, until the connection to the parent ends.

It imports the standard library only, so that a process starts fast and imports what its calls need. Messages are pickled
tuples: ("returned", result), ("raised", time, type, text, traceback, exception or None) and ("stack", text), where the result
and the exception are pickles themselves. An empty message from the parent asks for the stack.
"""

import atexit
import importlib.util
import multiprocessing
import multiprocessing.spawn
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

CHECK_PARENT = 2.0  # seconds; only matters if a fork of the parent keeps the connection open


def serve(descriptor: int, parent: int) -> NoReturn:
    """Run calls from a connection until it ends; then end this process, and the processes that it started."""
    connection: Connection[Any, Any] = Connection(descriptor)
    calls: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    sending = threading.Lock()
    busy = threading.Event()

    def listen() -> None:
        """Pass calls on. A thread of its own, so that the end of the parent is noticed while a call runs."""
        while True:
            try:
                while not connection.poll(CHECK_PARENT):
                    if os.getppid() != parent:
                        raise EOFError
                message = connection.recv_bytes()
                if message:
                    busy.set()
                    calls.put(message)
                else:
                    with sending:
                        connection.send_bytes(pickle.dumps(("stack", _stack_of_main())))
            except (EOFError, OSError):
                if busy.is_set():
                    end()
                calls.put(None)
                return

    threading.Thread(target=listen, name="launch", daemon=True).start()
    while (message := calls.get()) is not None:
        report = pickle.dumps(_report(pickle.loads(message)), pickle.HIGHEST_PROTOCOL)
        try:
            with sending:
                busy.clear()
                connection.send_bytes(report)
        except OSError:
            break  # the parent is gone
        del report, message
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    end()


def end() -> NoReturn:
    """End this process, and ask the processes to end that it started: they are in its process group."""
    os.killpg(os.getpgrp(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def _report(call: dict[str, Any]) -> tuple[object, ...]:
    try:
        fn, args = _unpacked(**call)
    except BaseException as error:
        return _raised(error, f"{call['name']} and its arguments can't be loaded: ")
    try:
        result = fn(*args)
    except BaseException as error:
        return _raised(error)
    try:
        return "returned", pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return _raised(error, f"{call['name']} returned a {type(result).__name__} that can't be pickled: ")


def _raised(error: BaseException, why: str = "") -> tuple[object, ...]:
    at = time.monotonic()  # the same clock in all processes of a machine
    frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
    lines = traceback.format_exception(type(error), error, frames)
    try:
        pickled = pickle.dumps(error)
    except Exception:
        pickled = None
    try:
        text = str(error)
    except Exception:
        text = "<exception str() failed>"  # as in tracebacks
    return "raised", at, type(error).__name__, f"{why}{text}", "".join(lines), pickled


def _stack_of_main() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    lines = traceback.extract_stack(frame) if frame is not None else []
    return "".join(traceback.format_list([line for line in lines if line.filename != __file__][-8:]))


def _unpacked(
    name: str,
    pickled: bytes,
    files: dict[str, str],
    main: dict[str, str],
    path: list[str],
    argv: list[str],
    folder: str,
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function and its arguments of a `Call`."""
    sys.path[:] = path
    sys.argv = argv
    os.chdir(folder)
    process: Any = multiprocessing.current_process()
    process._inheriting = True  # as in multiprocessing: the script must not start processes while it is imported
    try:
        multiprocessing.spawn.prepare(main)
    finally:
        del process._inheriting
    for module, file in files.items():
        _make_importable(module, file)
    fn, args = pickle.loads(pickled)
    return fn, args


def _make_importable(module: str, file: str) -> None:
    """Load a module from its file if importing its name does not lead there, as for tests and plug-ins."""
    if module in sys.modules:
        return
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(file):
        return
    spec = importlib.util.spec_from_file_location(module, file)
    if spec is None or spec.loader is None:
        return
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    try:
        spec.loader.exec_module(loaded)
    except BaseException:
        del sys.modules[module]
        raise


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
