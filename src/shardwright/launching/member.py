"""One launched process as its parent holds it: starting it, talking to it, ending it."""

import contextlib
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

EXIT = 3.0  # seconds that an idle process has to end
WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py")

Reply = tuple[Any, ...]  # a message of the worker, or ("died", exit status)
Inbox = queue.SimpleQueue[tuple[int, float, Reply]]  # rank, when it arrived, what


class Member:
    """A process and the connection to it."""

    def __init__(self, rank: int, environment: dict[str, str]) -> None:
        self.rank = rank
        self.is_idle = False  # known to wait for a call
        self.has_call = False  # a call was sent to it
        self._thread: threading.Thread | None = None
        self._socket, theirs = socket.socketpair()
        self._connection: Connection[Any, Any] = Connection(os.dup(self._socket.fileno()))
        with theirs:
            self.process = subprocess.Popen(
                # -P: the folder of the script is not searched for modules
                [sys.executable, "-P", WORKER, str(theirs.fileno()), str(os.getpid())],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # So Ctrl-C reaches only the parent, which ends them, and what they start is in a process group with them.
                start_new_session=True,
            )

    def start(self, call: bytes, inbox: Inbox) -> None:
        """Send a call. A thread sends and receives, so that no process can block the parent."""
        self.is_idle = self.has_call = False
        self._thread = threading.Thread(target=self._exchange, args=(call, inbox), daemon=True)
        self._thread.start()

    def _exchange(self, call: bytes, inbox: Inbox) -> None:
        reply: Reply
        try:
            self._connection.send_bytes(call)
            self.has_call = True
            while (reply := pickle.loads(self._connection.recv_bytes()))[0] == "stack":
                inbox.put((self.rank, time.monotonic(), reply))
            self.is_idle = True
            inbox.put((self.rank, time.monotonic(), reply))
        except (EOFError, OSError):
            noticed = time.monotonic()
            self.end_group()
            inbox.put((self.rank, noticed, ("died", self.process.wait())))

    def ask_for_stack(self) -> None:
        """Ask the process where it is."""
        if self.has_call and not self.is_idle:
            with contextlib.suppress(OSError):
                self._connection.send_bytes(b"")

    def kill(self) -> None:
        """End the process now."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
            self.end_group()

    def end_group(self) -> None:
        """Ask the processes to end that this one started. Multiprocessing's resource trackers then remove shared memory."""
        if self.process.returncode is None:  # the process group's id is not free for others yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGTERM)

    def disconnect(self) -> None:
        """End the connection, which ends an idle process; also if a fork of the parent still has it open."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def wait(self, deadline: float) -> None:
        """Wait for the end of the process; kill it at the deadline."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
        if self._thread is not None:
            self._thread.join()
        self._socket.close()
        self._connection.close()


def end_all(members: Sequence[Member], port: socket.socket, parent: int) -> None:
    """End processes, idle ones by closing their connection, and give their port back. Does nothing in a fork of the parent."""
    if os.getpid() != parent:
        return
    for member in members:
        if not member.is_idle:
            member.kill()
    for member in members:
        member.disconnect()
    deadline = time.monotonic() + EXIT
    for member in members:
        member.wait(deadline)
    port.close()
