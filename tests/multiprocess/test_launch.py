"""`launch` and `Processes`: results, the first error, and nothing left behind."""

import contextlib
import functools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

import launch_calls as calls
import shardwright as sw
from launch_calls import rank
from processes import children, is_running, open_descriptors, wait_until
from shardwright.errors import LaunchError
from shardwright.launching import Processes


def own_rank():
    return rank()


# -- results ----------------------------------------------------------------------------------------------------------


def test_launch_returns_results_in_rank_order():
    before = children(), open_descriptors(), threading.active_count()
    assert sw.launch(calls.add, 10, 3, processes=3) == [3, 13, 23]
    assert (children(), open_descriptors(), threading.active_count()) == before


def test_functions_of_a_test_module_run():
    assert sw.launch(own_rank, processes=2) == [0, 1]


def test_processes_have_the_variables_of_torchrun_and_one_thread(groups, monkeypatch):
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR OMP_NUM_THREADS MKL_NUM_THREADS".split()
    assert groups(2).run(calls.variables, *names) == [
        [str(r), str(r), "2", "2", "127.0.0.1", "1", "1"] for r in range(2)
    ]
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # of a torchrun around this process
    monkeypatch.setenv("RANK", "7")
    assert sw.launch(calls.variables, "RANK", "TORCHELASTIC_USE_AGENT_STORE", processes=1) == [["0", None]]
    assert os.environ["RANK"] == "7"


def test_processes_run_many_calls(groups):
    pids = groups(2).run(os.getpid)
    assert [groups(2).run(calls.add, i, 1) for i in range(4)] == [[1, 1 + i] for i in range(4)]
    assert groups(2).run(functools.partial(calls.add, 1), 5) == [5, 6]
    assert groups(2).run(os.getpid) == pids


def test_large_arguments_and_results_travel(groups):
    array = np.arange(5_000_000, dtype=np.float64)  # 40 MB, far more than a socket holds
    for r, result in enumerate(groups(2).run(calls.large, array)):
        assert np.array_equal(result, array + r)


def test_rank_zero_can_listen_on_the_port_which_nobody_else_gets():
    with Processes(2) as group:  # in which no process group listens on it yet
        port = group.run(calls.listen)[0]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        assert group.run(calls.listen) == [port, port]


# -- errors -----------------------------------------------------------------------------------------------------------


def test_the_first_error_in_time_is_raised_with_its_rank(groups, tmp_path):
    with pytest.raises(LaunchError, match=r"rank 2 of 4 raised KeyError: 'missing'") as caught:
        groups(4).run(calls.fail_on, 2, str(tmp_path))
    assert caught.value.rank == 2
    assert isinstance(caught.value.__cause__, KeyError)
    assert 'raise KeyError("missing")' in str(caught.value)  # the traceback
    assert "rank 0 of 4 raised ConnectionError: rank 2 is gone" in str(caught.value)
    assert groups(4).run(calls.add, 1, 0) == [0, 1, 2, 3]  # all had finished, so they are kept
    assert pickle.loads(pickle.dumps(caught.value)).rank == 2


def test_outcomes_has_every_process_to_its_end():
    with Processes(3) as group:
        first, second, third = group.outcomes(calls.fail_alone, 1)
        assert (first, third) == (0, 2)
        assert isinstance(second, LaunchError)
        assert (second.rank, str(second.__cause__)) == (1, "alone")
        assert group.run(rank) == [0, 1, 2]
        with pytest.raises(LaunchError, match=r"^ranks 0,.* 2 of 3 had not finished die"):
            group.outcomes(calls.die, 1, signal.SIGKILL, timeout=0.5)
        assert group.closed


def test_errors_that_cant_be_loaded_are_told_by_their_text(groups):
    with pytest.raises(LaunchError, match=r"rank 1 of 2 raised UnloadableError: can't be loaded") as caught:
        groups(2).run(calls.raise_unloadable)
    assert caught.value.__cause__ is None


def test_errors_without_text_are_told_by_their_type(groups):
    with pytest.raises(LaunchError, match=r"rank [01] of 2 raised WordlessError: <exception str\(\) failed>") as caught:
        groups(2).run(calls.raise_wordless)
    assert type(caught.value.__cause__).__name__ == "WordlessError"


def test_exits_and_results_that_cant_be_pickled_are_errors(groups):
    with pytest.raises(LaunchError, match=r"rank [01] of 2 raised SystemExit: 3"):
        groups(2).run(calls.exit_with, 3)
    with pytest.raises(LaunchError, match=r"generator returned a generator that can't be pickled"):
        groups(2).run(calls.generator)
    assert groups(2).run(calls.add, 1, 0) == [0, 1]


def test_functions_that_cant_be_sent_are_refused_before_processes_start():
    before = children()
    with pytest.raises(LaunchError, match=r"<lambda> is a lambda.*Define it with `def` at the top level of a module"):
        sw.launch(lambda: 1)

    def local():
        pass

    with pytest.raises(LaunchError, match=r"local is defined inside a function.*at the top level of a module"):
        sw.launch(local)
    with pytest.raises(LaunchError, match=r"add and its arguments can't be sent to another process: .*lock"):
        sw.launch(calls.add, threading.Lock(), 1)
    with pytest.raises(LaunchError, match=r"takes a function and its arguments; got 3"):
        sw.launch(3)
    with pytest.raises(LaunchError, match=r"processes=0 is invalid"):
        sw.launch(calls.add, 1, 1, processes=0)
    assert children() == before


def test_a_killed_process_is_named_and_closes_the_group():
    with Processes(3) as group:
        with pytest.raises(LaunchError, match=r"^rank 2 was killed by signal 9 \(SIGKILL\)\.$") as caught:
            group.run(calls.die, 2, signal.SIGKILL)
        assert caught.value.rank == 2
        assert group.closed
        with pytest.raises(
            LaunchError, match=r"These 3 processes have ended: rank 2 was killed by signal 9 \(SIGKILL\)"
        ):
            group.run(calls.add, 1, 0)


def test_a_process_that_exits_is_named():
    with pytest.raises(LaunchError, match=r"^rank 0 ended with exit status 5 before it returned a result\.$"):
        sw.launch(calls.leave, 0, 5, processes=2)


def test_a_time_out_names_the_processes_that_had_not_finished():
    with Processes(3) as group:
        group.run(rank)  # started
        with pytest.raises(LaunchError, match=r"^ranks 0, 2 of 3 had not finished hang after 1\.5 s") as caught:
            group.run(calls.hang, 0, 2, timeout=1.5)
        assert "time.sleep(600)" in str(caught.value)  # where they are
        with pytest.raises(LaunchError, match=r"have ended: ranks 0, 2 of 3 had not finished"):
            group.run(rank)
        for invalid in (-1, 0, float("inf"), float("nan"), "5"):
            with pytest.raises(LaunchError, match=rf"timeout={invalid!r} is invalid"):
                group.run(rank, timeout=invalid)


# -- nothing is left behind -------------------------------------------------------------------------------------------


def test_processes_that_a_call_started_end_with_it():
    (pid,) = sw.launch(calls.with_subprocess, processes=1)
    wait_until(lambda: not is_running(pid))


def test_shared_memory_goes_with_the_process(tmp_path):
    (name,) = sw.launch(calls.with_shared_memory, processes=1)
    wait_until(lambda: not os.path.exists(f"/dev/shm/{name}"))
    with pytest.raises(LaunchError, match="SIGKILL"):
        sw.launch(calls.with_shared_memory, str(tmp_path / "name"), processes=1)
    wait_until(lambda: not os.path.exists(f"/dev/shm/{(tmp_path / 'name').read_text()}"))


SCRIPT = """
import os, signal, sys, time
import shardwright as sw

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell that runs the tests ignores it

def work(folder):
    os.write(1, f"{os.getpid()}\\n".encode())  # at once: lines of two processes may not mix
    time.sleep(600)

if __name__ == "__main__":
    try:
        sw.launch(work, "", processes=2, timeout=None)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(3)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_no_process_outlives_its_parent(tmp_path, number):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    with parent, contextlib.ExitStack() as failed:
        failed.callback(parent.kill)  # else leaving it waits for all that it sleeps
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(map(is_running, pids))
        parent.send_signal(number)
        rest = parent.stdout.read()
        failed.pop_all()
    assert parent.returncode == (3 if number == signal.SIGINT else -number)
    assert rest == ("interrupted\n" if number == signal.SIGINT else "")
    wait_until(lambda: not any(map(is_running, pids)))


NESTED = """
import os
from dataclasses import dataclass
import shardwright as sw

@dataclass
class Pair:
    outer: int
    inner: list

class OwnError(Exception):
    pass

def inner(k):
    return 10 * k + int(os.environ["RANK"])

def outer(pair):
    rank = int(os.environ["RANK"])
    return Pair(pair.outer + rank, sw.launch(inner, rank, processes=2))

def fail():
    raise OwnError

if __name__ == "__main__":
    print(sw.launch(outer, Pair(5, []), processes=1))
    try:
        sw.launch(fail, processes=1)
    except sw.errors.LaunchError as error:
        print(type(error.__cause__) is OwnError)
"""


@pytest.mark.parametrize("how", [["nested.py"], ["-m", "nested"]], ids=" ".join)
def test_functions_and_classes_of_scripts_travel_and_launches_nest(tmp_path, how):
    (tmp_path / "nested.py").write_text(NESTED)
    ran = subprocess.run([sys.executable, *how], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert ran.stdout == "[Pair(outer=5, inner=[0, 1])]\nTrue\n", ran.stderr


def test_a_script_without_a_guard_is_told_to_have_one(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import shardwright as sw\ndef work(): pass\nsw.launch(work, processes=1)\n")
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert 'put the call under `if __name__ == "__main__":`' in ran.stderr


def test_functions_of_an_interactive_session_are_refused():
    code = "import shardwright as sw\ndef work(): pass\nsw.launch(work, processes=1)\n"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "work or one of its arguments is defined in an interactive session" in ran.stderr


def test_groups_that_nobody_closes_end_with_their_object():
    group = Processes(2)
    pids = group.run(os.getpid)
    del group
    wait_until(lambda: not any(map(is_running, pids)))
