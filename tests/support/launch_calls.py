"""What the tests of `launch` run in processes; imports little, so that they start fast."""

import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing import shared_memory
from pathlib import Path


def rank():
    return int(os.environ["RANK"])


def variables(*names):
    return [os.environ.get(name) for name in names]


def add(a, b):
    return rank() * a + b


def fail_on(bad, folder):
    """Rank `bad` raises; the others raise after it, because of it."""
    mark = Path(folder, "raised")
    if rank() == bad:
        try:
            raise KeyError("missing")
        finally:
            mark.touch()
    while not mark.exists():
        time.sleep(0.01)
    time.sleep(0.5)  # by then the error has left the call
    raise ConnectionError(f"rank {bad} is gone")


class UnloadableError(Exception):
    def __init__(self, a, b):
        super().__init__(a + b)


def raise_unloadable():
    if rank() == 1:
        raise UnloadableError("can't be ", "loaded")


class WordlessError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def raise_wordless():
    raise WordlessError


def die(bad, number):
    if rank() == bad:
        os.kill(os.getpid(), number)
    time.sleep(600)


def fail_alone(bad):
    if rank() == bad:
        raise ValueError("alone")
    time.sleep(0.3)  # longer than a launch waits for others after an error
    return rank()


def leave(bad, status):
    if rank() == bad:
        os._exit(status)
    time.sleep(600)


def hang(*bad):
    if rank() in bad:
        time.sleep(600)
    return rank()


def large(array):
    return array + rank()


def with_subprocess():
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid


def with_shared_memory(written=None):
    """Makes shared memory and forgets it; then the process kills itself if its name is to be written to a file."""
    memory = shared_memory.SharedMemory(create=True, size=1 << 20)
    if written:
        Path(written).write_text(memory.name)
        os.kill(os.getpid(), signal.SIGKILL)
    return memory.name


def exit_with(status):
    sys.exit(status)


def generator():
    return (i for i in range(3))


def listen():
    """Rank 0 listens on the port of this launch, as torch's store does."""
    if rank() == 0:
        with socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"]))) as server:
            server.listen()
    return int(os.environ["MASTER_PORT"])
