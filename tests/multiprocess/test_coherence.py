"""Processes of which one goes another way: every other one raises and says which; never a number, never a hang."""

import re
import time

import pytest

import engine_calls as calls
from shardwright.errors import CoherenceError
from shardwright.launching import Processes

BAD = 2
FAULTS = [
    calls.skips,
    calls.calls_another_program,
    calls.calls_another_known_program,
    calls.passes_other_shapes,
    calls.passes_other_shapes_to_a_known_operation,
    calls.moves_other_rows_in_a_known_program,
    calls.passes_other_constants,
    calls.captures_other_constants,
    calls.scales_tensors_per_device_in_a_program,
    calls.orders_devices_otherwise,
    calls.places_other_elements,
    calls.raises,
    calls.raises_before_data_is_placed,
    calls.is_killed,
    calls.is_killed_before_a_move,
    calls.parts_in_a_local_operation,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_every_other_rank_names_the_one_that_went_another_way(fault):
    with Processes(4) as group:
        start = time.monotonic()
        outcomes = group.outcomes(fault, BAD, timeout=90)
        assert time.monotonic() - start < 90
    for rank, outcome in enumerate(outcomes):
        if rank == BAD:
            assert isinstance(outcome, BaseException), outcome  # not a number either
            continue
        error = outcome.__cause__ if not isinstance(outcome, CoherenceError) else outcome
        assert isinstance(error, CoherenceError), outcome
        assert error.ranks == (BAD,)
        assert f"rank {BAD}" in str(error)
        assert re.search(r"engine_calls\.py:\d+", str(error)), error


def test_a_stopped_process_is_named_in_time():
    """Rank 0 keeps the store through which processes report."""
    with Processes(4) as group:
        ends = dict(enumerate(group.outcomes(calls.is_stopped, 0, timeout=90)))
    back, _ = ends.pop(0)
    for end, text in ends.values():
        assert text.startswith("CoherenceError: ")
        assert "rank 0" in text
        assert end < back  # before it went on
