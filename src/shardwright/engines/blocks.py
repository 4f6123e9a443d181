"""Element-wise work on large tensors, block by block: every pass but the first reads what is still in the cache. Very large
tensors are shared by a few threads: NumPy's functions let others run meanwhile."""

import math
import os
from collections.abc import Callable, Sequence
from contextvars import copy_context
from itertools import pairwise
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Data = NDArray[Any]
BLOCK = 32768  # elements: a few buffers of them stay in a core's cache
LEAST = 2 * BLOCK  # elements of a tensor that is worth it
LINE = 64  # bytes of a line of the cache
ALONE = 1 << 19  # elements that a thread has at least: starting it takes as long as a few blocks
MOST_THREADS = 4  # more would wait for the interpreter's lock
EXTREMA = (np.minimum, np.maximum)
ARITHMETIC = (np.add, np.subtract, np.multiply, np.divide)


class Line(NamedTuple):
    """One function of values by number, and of scalars; it makes the next value."""

    function: Any  # a ufunc of one result
    inputs: tuple[Any, ...]  # of `Value` and scalars
    dtype: "np.dtype[Any]"


class Value(NamedTuple):
    """A value by number: an input, or what a line made."""

    number: int


def _allowed_threads() -> int:
    """As many as there are cores for this process, or fewer if the user said so of BLAS."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = os.environ.get("OMP_NUM_THREADS", "")
    return max(min(cores, MOST_THREADS, *([int(told)] if told.isdigit() else [])), 1)


THREADS = _allowed_threads()


def shared(size: int, block: int, work: Callable[[int, int], None]) -> None:
    """Calls `work(start, stop)` for parts of so many elements, of whole blocks each, at once if they are large."""
    count = min(THREADS, size // ALONE)
    if count < 2:
        work(0, size)
        return
    blocks = -(-size // block)
    parts = list(pairwise([min(blocks * at // count * block, size) for at in range(count + 1)]))
    errors: list[BaseException] = []

    def run(part: tuple[int, int]) -> None:
        try:
            work(*part)
        except BaseException as error:  # raised again below, by the thread that asked
            errors.append(error)

    threads: list[Thread] = []
    for part in parts[1:]:
        thread = Thread(target=copy_context().run, args=(run, part))
        try:
            thread.start()
            threads.append(thread)
        except RuntimeError:  # no more threads can be had, or the interpreter ends
            run(part)
    run(parts[0])
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def blocked(count: int, lines: Sequence[Line], outputs: Sequence[int]) -> Callable[..., tuple[Data, ...]]:
    """A function of `count` arrays of one shape that runs lines of element-wise functions and gives some of their results."""
    last = {x.number: at for at, line in enumerate(lines) for x in line.inputs if isinstance(x, Value)}
    buffers, homes = _assigned(count, lines, outputs, last)
    block, least = BLOCK, LEAST
    loop = _loop(count, lines, outputs, homes)

    def run(*arrays: Data) -> tuple[Data, ...]:
        size = arrays[0].size
        if size < least or not all(x.flags.c_contiguous for x in arrays):
            return _one_by_one(arrays, lines, outputs)
        made = tuple(aligned(arrays[0].shape, lines[number - count].dtype) for number in outputs)
        flat, results = ([x.reshape(-1) for x in some] for some in (arrays, made))
        whole = size // block * block
        shared(whole, block, lambda *part: loop(part, flat, results, [aligned((block,), dtype) for dtype in buffers]))
        if whole < size:
            for result, rest in zip(results, _one_by_one([x[whole:] for x in flat], lines, outputs), strict=True):
                result[whole:] = rest
        return made

    return run


def aligned(shape: tuple[int, ...], dtype: Any) -> Data:
    """An array without values yet that begins with a line of the cache. NumPy's begin anywhere, and a vector that lies in two
    lines takes twice as long to load or store."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    raw = np.empty(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size].view(kind).reshape(shape)


def _loop(count: int, lines: Sequence[Line], outputs: Sequence[int], homes: dict[int, int]) -> Callable[..., None]:
    """The loop over whole blocks as Python text, a line a function: calls are all that is left to do in it."""
    bound: dict[str, Any] = {}
    names = {number: f"v{number}" for number in range(count)}
    names |= {number: f"b{home}" for number, home in homes.items()}
    names |= {number: f"r{at}" for at, number in enumerate(outputs)}
    text = [f"    v{number} = flat[{number}][start:start + {BLOCK}]" for number in range(count)]
    text += [f"    r{at} = results[{at}][start:start + {BLOCK}]" for at in range(len(outputs))]
    for at, line in enumerate(lines):
        bound[f"f{at}"] = line.function
        spelled = []
        for place, x in enumerate(line.inputs):
            if isinstance(x, Value):
                spelled.append(names[x.number])
            else:
                bound[f"c{at}_{place}"] = _scalar(line, x)
                spelled.append(f"c{at}_{place}")
        # By position is faster than by name; NumPy deprecates it for these two.
        out = "out=" if line.function in EXTREMA else ""
        text.append(f"    f{at}({', '.join(spelled)}, {out}{names[count + at]})")
    head = ["def loop(part, flat, results, buffers):", *(f" b{i} = buffers[{i}]" for i in sorted(set(homes.values())))]
    source = "\n".join([*head, f" for start in range(*part, {BLOCK}):", *text])
    exec(compile(source, "<blocks>", "exec"), bound)  # our own text, names and calls only
    loop: Callable[..., None] = bound["loop"]
    return loop


def _scalar(line: Line, x: Any) -> Any:
    """A scalar in the form in which NumPy's loops are fastest.

    Extrema with a scalar are four times slower than with an array: a block of the scalar. Arithmetic with a scalar looks for
    its dtype at every call: an array without dims, unless the dtype can't hold it.
    """
    if line.function in EXTREMA:
        return np.full(BLOCK, x, line.dtype)
    if line.function in ARITHMETIC and line.dtype.kind in "fc":
        with np.errstate(over="ignore"):
            made = np.asarray(x, line.dtype)
        return made if np.isfinite(made) else x
    return x


def _one_by_one(arrays: Sequence[Data], lines: Sequence[Line], outputs: Sequence[int]) -> tuple[Data, ...]:
    values = list(arrays)
    for function, inputs, _ in lines:
        values.append(function(*[values[x.number] if isinstance(x, Value) else x for x in inputs]))
    return tuple(np.asarray(values[number]) for number in outputs)


def _assigned(
    count: int, lines: Sequence[Line], outputs: Sequence[int], last: dict[int, int]
) -> tuple[list["np.dtype[Any]"], dict[int, int]]:
    """The buffers that are needed, and for each value on the way its own; one is used again once its value was last read."""
    buffers: list[np.dtype[Any]] = []
    free: list[int] = []
    homes: dict[int, int] = {}
    for at, line in enumerate(lines):
        number = count + at
        # An operand that is read for the last time lends its buffer to the result: ufuncs may write where they read, and
        # that buffer is the one that is surely in the cache.
        done = {x.number for x in line.inputs if isinstance(x, Value) and last[x.number] == at and x.number in homes}
        free[:0] = [homes[x] for x in done]
        if number in outputs:
            continue
        found = next((home for home in free if buffers[home] == line.dtype), None)
        if found is None:
            found = len(buffers)
            buffers.append(line.dtype)
        else:
            free.remove(found)
        homes[number] = found
    return buffers, homes
