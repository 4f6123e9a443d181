"""The parent of launched processes: starts them, sends calls, collects what they return, and leaves nothing behind.

They are plain child processes with torchrun's variables and one connection each. A process ends when its connection does, so
none outlives its parent. Pickles travel over these connections only, never over a network.
"""

import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from shardwright.errors import LaunchError
from shardwright.launching.calls import Call, packed
from shardwright.launching.member import Member, end_all
from shardwright.launching.replies import Replies

ONE_THREAD = "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS VECLIB_MAXIMUM_THREADS NUMEXPR_NUM_THREADS".split()
TORCHRUN = "GROUP_RANK GROUP_WORLD_SIZE ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE".split()  # of another launch, if set
GRACE = 0.2  # seconds to wait for errors that came before the one that arrived first
SETTLE = 2.0  # seconds that the other processes have to finish after an error, if they are kept


def launch(fn: Callable[..., Any], *args: Any, processes: int = 4, timeout: float | None = 60) -> list[Any]:
    """Run `fn(*args)` in several new processes of this machine and return their results in rank order.

    ```
    def work(n):
        torch.distributed.init_process_group("gloo")
        ...

    if __name__ == "__main__":
        print(sw.launch(work, 3, processes=4))
    ```

    Every process has torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) and one BLAS thread. The
    function must be at the top level of a module or script. The first error is raised as a LaunchError with its rank; the
    original exception is its `__cause__`. `timeout` counts seconds from the call, the start of processes included; None means
    no limit. Afterwards all processes have ended, also after an error or Ctrl-C.
    """
    start = time.monotonic()
    call = packed(fn, args)  # fails before any process starts
    with Processes(processes) as group:
        return group._run(call, timeout, start, GRACE)


class Processes:
    """Processes as `launch` starts them, kept for several calls.

    ```
    with Processes(4) as group:
        group.run(work, 1)
        group.run(work, 2)
    ```

    They are closed when one of them dies, at a time-out, and if after an error the others don't finish soon. The next `run`
    then raises.
    """

    def __init__(self, processes: int = 4) -> None:
        if sys.platform == "win32":
            raise LaunchError("sw.launch needs Linux or macOS. On Windows start the script with torchrun.")
        if not isinstance(processes, int) or isinstance(processes, bool) or processes < 1:
            raise LaunchError(f"processes={processes!r} is invalid. Give a positive number of processes.")
        self.size = processes
        self._why_closed = ""
        self._running = threading.Lock()
        self._members: list[Member] = []
        self._port = _reserved_port()
        # For processes that were not closed; also when the interpreter ends.
        self._finalizer = weakref.finalize(self, end_all, self._members, self._port, os.getpid())
        environment = _environment(processes, self._port.getsockname()[1])
        if sys.platform != "linux":
            self._port.close()  # elsewhere a bound port can't be bound again
        try:
            for rank in range(processes):
                self._members.append(Member(rank, environment))
        except BaseException:
            self._close("they could not be started")
            raise

    def run(self, fn: Callable[..., Any], *args: Any, timeout: float | None = 60) -> list[Any]:
        """Run `fn(*args)` in every process and return the results in rank order; errors as in `launch`."""
        return self._run(packed(fn, args), timeout, time.monotonic(), SETTLE)

    def outcomes(self, fn: Callable[..., Any], *args: Any, timeout: float | None = 60) -> list[Any]:
        """Run `fn(*args)` in every process and return, in rank order, its result or a LaunchError with its own error.

        Waits for every process whatever happens to others; a time-out is raised. For tests of what survivors do.
        """
        return self._run(packed(fn, args), timeout, time.monotonic(), settle=None)

    def close(self) -> None:
        """End the processes. Closing twice does nothing."""
        self._close("close() was called")

    @property
    def closed(self) -> bool:
        """Whether the processes have ended."""
        return bool(self._why_closed)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Processes({self.size}){' (closed)' if self.closed else ''}"

    def _close(self, why: str) -> None:
        self._why_closed = self._why_closed or why
        end_all(self._members, self._port, os.getpid())
        self._finalizer.detach()

    def _run(self, call: Call, timeout: float | None, start: float, settle: float | None) -> list[Any]:
        if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout <= threading.TIMEOUT_MAX):
            raise LaunchError(
                f"timeout={timeout!r} is invalid. Give a positive number of seconds, or None for no limit."
            )
        with self._running:
            if self._why_closed:
                raise LaunchError(f"These {self.size} processes have ended: {self._why_closed}. Start new ones.")
            deadline = None if timeout is None else start + timeout
            try:
                replies = Replies(self._members, call)
                if settle is None:
                    replies.wait_for_all(deadline)
                else:
                    replies.wait(deadline)
                    if replies.failures:
                        replies.wait_for_all(time.monotonic() + (GRACE if replies.died else settle))
                is_late = bool(replies.unfinished) and (settle is None or not replies.failures)
                problem = replies.time_out(timeout) if is_late else replies.first_failure()
            except BaseException as error:
                self._close(f"{call.name} was interrupted by {type(error).__name__}")
                raise
            if problem is not None and (is_late or replies.unfinished or replies.died):
                self._close(str(problem).partition("\n")[0].rstrip("."))
            if problem is not None and (is_late or settle is not None):
                raise problem
            return replies.outcomes()


def _reserved_port() -> socket.socket:
    """A free port, bound until the socket is closed: no other process gets it, while rank 0 can listen on it."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a listener with the same option may share the port
    holder.bind(("", 0))
    return holder


def _environment(processes: int, port: int) -> dict[str, str]:
    """The variables of every process but its rank."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in TORCHRUN and not name.startswith("TORCHELASTIC_")
    }
    return {
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
        **inherited,
        **dict.fromkeys(ONE_THREAD, "1"),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
    }
