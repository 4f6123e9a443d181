"""`strict()` in threads and tasks: it holds where it was entered."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import numpy as np
import pytest

import shardwright as sw
import shardwright.numpy as snp
from shardwright import P
from shardwright.errors import ImplicitGatherError

X = sw.shard(2 * np.eye(8), sw.Mesh(x=4), P("x"))
REFUSED = r"inv gathers dim 0 of f64\[8@x,8\] on Mesh\(x=4\): 384 bytes to every device.*inside strict\(\)"


def is_refused(function=snp.linalg.inv):
    try:
        function(X)
    except ImplicitGatherError:
        return True
    return False


def in_a_thread(function, *args):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


def test_a_thread_started_inside_is_not_strict():
    with sw.strict():
        assert is_refused()
        assert not in_a_thread(is_refused)
        assert is_refused()
    assert not is_refused()


def test_a_context_carries_it_into_a_thread():
    with sw.strict():
        context = copy_context()
    assert in_a_thread(context.run, is_refused)
    assert not is_refused()
    with pytest.raises(ImplicitGatherError, match=REFUSED):
        in_a_thread(context.run, snp.linalg.inv, X)


def test_a_thread_can_enter_it_for_itself():
    def work():
        with sw.strict():
            return is_refused()

    assert in_a_thread(work)
    assert in_a_thread(sw.strict()(is_refused))
    assert not is_refused()


def test_threads_do_not_affect_each_other():
    meet = threading.Barrier(2, timeout=30)
    seen = {}

    def strictly():
        with sw.strict():
            meet.wait()  # the other thread runs its operations while this one is strict
            seen["strict"] = is_refused()
            meet.wait()
        meet.wait()
        seen["after"] = is_refused()
        meet.wait()

    def freely():
        meet.wait()
        seen["free"] = is_refused()
        meet.wait()
        with sw.strict():
            meet.wait()
            seen["later"] = is_refused()
            meet.wait()

    threads = [threading.Thread(target=work) for work in (strictly, freely)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"strict": True, "after": False, "free": False, "later": True}


def test_a_program_is_kept_apart_for_strict_callers():
    step = sw.sjit(lambda x: snp.linalg.inv(x))
    assert not is_refused(step)
    with sw.strict():
        assert is_refused(step)
        assert not in_a_thread(is_refused, step)
    assert not is_refused(step)


def test_tasks_inherit_it_and_keep_their_own():
    async def main():
        with sw.strict():
            inside = asyncio.create_task(asyncio.to_thread(is_refused))
        outside = asyncio.create_task(asyncio.to_thread(is_refused))
        return await inside, await outside

    assert asyncio.run(main()) == (True, False)


def test_one_object_can_be_entered_again_and_inside_itself():
    once = sw.strict()
    for _ in range(2):
        with once:
            assert is_refused()
            with once, sw.strict(weights=True):
                assert is_refused()
            assert is_refused()
        assert not is_refused()
    guarded = sw.strict()(is_refused)
    assert guarded()
    assert guarded()
    assert not is_refused()
