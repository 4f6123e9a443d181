"""GT's engine API on real processes, and its refusals in one."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gt_calls as calls
import shardwright as sw
from gt_calls import bits, tensor_of
from shardwright.launching import Processes


def added(tensors):
    """The sum of tensors of whole numbers, in their dtype."""
    dtype = tensors[0].dtype
    if dtype == torch.bool:
        return torch.stack(tensors).any(0)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return sum(tensor.to(wide) for tensor in tensors).to(dtype)


def test_every_dtype_is_reduced_gathered_and_scattered(groups):
    for rank, results in enumerate(groups(4).run(calls.every_dtype)):
        for dtype in calls.DTYPES:
            total = added([tensor_of(r, 6, dtype) for r in range(4)])
            joined = torch.cat([tensor_of(r, r + 1, dtype).view(torch.uint8) for r in range(4)])
            (reduced, gathered, scattered), unchanged = results[dtype]
            assert unchanged
            assert reduced == bits(total)
            assert gathered == (str(total.dtype), (10, 3), joined.reshape(-1).tolist())
            assert scattered == bits(total[2 * rank : 2 * rank + 2])  # 6 rows over 4: 2, 2, 2, 0


@pytest.mark.parametrize("axes", ["dp", "tp", ("tp", "dp"), ("dp", "tp"), "tp:(1)2", ()], ids=str)
def test_a_group_is_a_mesh_and_axes_in_their_order(groups, axes):
    mesh, rows = sw.Mesh(dp=2, tp=2, devices=(3, 1, 0, 2)), 5
    for rank, (reduced, gathered, scattered) in enumerate(groups(4).run(calls.along, axes, rows)):
        members = next(group for group in mesh.groups(axes) if rank in group)
        total = added([tensor_of(r, rows) for r in members])
        block, place = -(-rows // len(members)), members.index(rank)
        assert reduced == bits(total)
        assert gathered == bits(torch.cat([tensor_of(r, r) for r in members]))
        assert scattered == bits(total[block * place : block * (place + 1)])


def test_scalars_are_summed_and_results_have_no_gradients(groups):
    expected = [((4, 2), False, 32.0), ((8, 4), False, 32.0), ((1, 2), False, 8.0)]
    assert groups(4).run(calls.scalars_and_gradients) == [(6.0, expected, 1)] * 4


def test_views_are_sent_as_they_read(groups):
    assert groups(4).run(calls.views, timeout=120) == [[[True] * 3] * 4] * 4


def test_processes_that_ask_for_different_things_all_hear_of_it(groups):
    tensors = [torch.ones(2, 3), torch.ones(2, 3), torch.ones(3, 2), torch.ones(2, 3)]
    for kind, text in groups(4).run(calls.error_of, "all_reduce_sum", tensors):
        assert kind == "CoherenceError"
        assert "rank 1: all_reduce_sum of float32[2, 3]; rank 2: all_reduce_sum of float32[3, 2]" in text
    tensors = [torch.ones(2), torch.ones(2, dtype=torch.int64), torch.ones(2), torch.ones(2)]
    for kind, text in groups(4).run(calls.error_of, "all_gather", tensors):
        assert kind == "CoherenceError"
        assert "rank 0: all_gather of float32[n]; rank 1: all_gather of int64[n]" in text


def test_invalid_groups_and_tensors_are_refused(groups):
    for too_large, text in groups(4).run(calls.of_no_mesh):
        assert too_large[0] == text[0] == "EngineError"
        assert "only 4 processes" in too_large[1]
        assert (
            "group='tp' is invalid. Give None for all processes, or a mesh and axes of it: group=(mesh, 'tp')"
            in text[1]
        )
    assert groups(4).run(calls.error_of, "all_gather", [torch.tensor(1.0)] * 4)[0] == (
        "EngineError",
        "all_gather works along dim 0; the tensor has no dims. Use tensor.reshape(1).",
    )


def test_a_process_group_of_the_users_is_found():
    assert sw.launch(calls.own_process_group, processes=2) == [([2.0, 2.0], 2)] * 2


def test_a_killed_process_is_named_by_the_others():
    with Processes(3) as group:
        first, second, third = group.outcomes(calls.killed, 1)
    assert "rank 1 was killed by signal 9 (SIGKILL)" in str(second)
    for kind, text in (first, third):
        assert kind == "CoherenceError"
        assert "rank 1 was killed" in text


def test_the_strategies_of_the_document(groups):
    assert groups(4).run(calls.strategies) == [[(128, 32), (), (128, 32), (32, 32)]] * 4


def test_the_example_runs_under_torchrun():
    example = Path(__file__).parents[2] / "examples" / "strategies.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(example)]
    ran = subprocess.run(torchrun, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count(": True\n") == 6
    assert ": False" not in ran.stdout
    assert "worker 3: A[96:128, :] @ B = 32×32 -> 128×32" in ran.stdout


def test_without_processes_the_error_says_how_to_start_them(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(sw.errors.EngineError, match=r"torchrun --nproc-per-node 4 script\.py.*sw\.launch"):
        sw.engine("torch").all_reduce_sum(torch.ones(2))
    with pytest.raises(sw.errors.EngineError, match=r"all_gather takes the dense torch tensor .* got ndarray"):
        sw.engine("torch").all_gather(np.ones(2))


@pytest.mark.parametrize("name", ["all_reduce_sum", "all_gather", "reduce_scatter"])
def test_numpy_names_the_engine_to_use(name):
    engine = sw.engine("numpy")
    assert not engine.supports_distributed()
    assert sw.engine("torch").supports_distributed()
    with pytest.raises(NotImplementedError, match=rf"{name} needs several processes.*Use sw\.engine\('torch'\)"):
        getattr(engine, name)(np.ones(3))


def test_other_engines_are_refused():
    with pytest.raises(sw.errors.EngineError, match=r"no engine 'literal' with collectives between processes"):
        sw.engine("literal")
