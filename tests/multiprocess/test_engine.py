"""The torch engine over real processes: every property of the suite, host reads, refusals, and what goes over the wire."""

import numpy as np
import pytest

import engine_calls as calls
from cases import CASES
from everywhere import module_at, run_cases, run_property
from shardwright.sharding import as_dtype

HOST = calls.HOST
PROPERTIES = [
    ("arrays", "test_every_device_holds_what_the_oracle_says", 12),
    ("arrays", "test_joining_the_shards_gives_the_tensor_back", 12),
    ("arrays", "test_shards_make_the_array_again", 10),
    ("arrays", "test_resharding_gives_every_device_its_new_part", 25),
    ("arrays", "test_a_partial_value_is_the_reduction_of_what_devices_hold", 15),
    ("arrays", "test_indexing_gives_the_elements_numpy_gives", 15),
    ("reshard", "test_every_way_is_right_and_the_direct_one_at_the_bound", 15),
    ("collectives", "test_a_chain_of_collectives_does_what_the_oracle_does", 25),
    ("collectives", "test_uneven_tensors_in_shard_map", 15),
    ("programs", "test_a_program_gives_what_eager_execution_and_numpy_give", 25),
    ("programs", "test_the_local_view_is_the_same_inside_programs", 15),
]
WIDE = PROPERTIES[-2:]


@pytest.mark.parametrize(("file", "name", "examples"), PROPERTIES, ids=[name for _, name, _ in PROPERTIES])
def test_a_property_holds_on_four_processes(pool, file, name, examples):
    assert pool.run(run_property, f"property/test_{file}.py", name, examples, timeout=120) == [examples] * 4


@pytest.mark.parametrize("processes", [2, 6])
def test_random_programs_on_other_numbers_of_processes(groups, processes):
    name = "test_a_program_gives_what_eager_execution_and_numpy_give"
    made = groups(processes).run(run_property, "property/test_programs.py", name, 15, None, 7, timeout=120)
    assert made == [15] * processes


def test_every_operation_on_four_processes(pool):
    names = sorted(CASES)
    assert pool.run(run_cases, names, 1, timeout=180) == [len(names)] * 4


def test_strategies_that_are_seldom_chosen_on_four_processes(pool):
    path, name = "property/test_operations.py", "test_every_strategy_gives_what_numpy_gives"
    for row in ("nn.scatter_reduce", "nn.grouped_matmul", "nn.scaled_dot_product_attention", "top_k"):
        assert pool.run(run_property, path, name, 6, {"name": row}, timeout=120) == [6] * 4


def test_programs_on_large_tensors(pool):
    """Engines in one process run some of these in blocks; every one of them goes beyond a block."""
    names = list(module_at("unit/test_chains.py").CASES)
    assert pool.run(calls.large_programs, timeout=120) == [names] * 4


def test_a_product_is_reduced_in_its_own_memory_only_if_nothing_else_can_read_it(pool):
    for found in pool.run(calls.reduced_temporaries):
        assert len(found) == 15
        assert [name for name, right in found.items() if not right] == []


def test_host_reads_are_the_same_everywhere(pool):
    for rank, read in enumerate(pool.run(calls.reads)):
        assert read["whole"] == read["torch"] == HOST.tolist()
        assert (read["item"], read["bool"]) == (HOST.sum(), True)
        assert read["text"] == str(HOST[0])
        assert read["alone"] in ("", "Array(f64[6@dp,4@tp] on Mesh(dp=2, tp=2, engine='torch'))")
        row, column = divmod(rank, 2)
        assert read["own"] == HOST[3 * row : 3 * row + 3, 2 * column : 2 * column + 2].tolist()
        assert read["shards"] == list(enumerate(np.ndindex(2, 2)))
        assert read["other"].startswith(
            f"EngineError: This shard is on rank {3 if rank != 3 else 0}, and this is rank {rank}"
        )
        assert "each has only its own shard: it can't be pickled" in read["pickle"]
        assert read["tensor"] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


def test_meshes_that_processes_cannot_hold_are_refused(pool):
    for rank, (larger, smaller, explained) in enumerate(pool.run(calls.refusals)):
        assert "needs a process for each of its 8 devices" in larger
        assert "only 4 processes. Start it with torchrun --nproc-per-node 8" in larger
        assert explained > 0  # planning needs no process
        if rank > 1:
            assert (
                smaller
                == f"EngineError: rank {rank} is not part of Mesh(x=2, engine='torch'), which uses the ranks 0 to 1."
            )


def test_a_host_tensor_is_cut_without_sending(pool):
    parts = pool.run(calls.cuts_without_sending)
    assert [np.shape(part) for part in parts] == [(3, 2)] * 4
    assert parts[1] == HOST[3:, :2].tolist()  # tp = 1, dp = 0


def test_nothing_is_gathered_to_compute(pool):
    rolled = np.cumsum(np.roll(HOST, 1, axis=1), axis=0) @ HOST.T
    for _ in range(3):
        rolled = rolled[::-1] * 0.5
    for made, eager in pool.run(calls.computes_without_gathering):
        np.testing.assert_allclose(made, rolled.sum(axis=0))
        np.testing.assert_allclose(eager, rolled.sum(axis=0))


@pytest.mark.parametrize(
    ("rows", "axes", "spec"),
    [([2, 2, 2, 2], ("dp", "tp"), "P(('dp', 'tp'), None)"), ([3, 1, 0, 2], ("tp", "dp"), "P(('tp', 'dp'), None)"),
     ([1, 4], ("tp",), "P('tp', None)")],
)  # fmt: skip
def test_each_process_gives_its_part_of_a_batch(pool, rows, axes, spec):
    expected = [number for number, count in enumerate(rows) for _ in range(count)]
    for made, own, other in pool.run(calls.joins_parts, rows, axes):
        assert (made, repr(own), other) == (expected, spec, expected)


def test_parts_that_should_be_the_same_and_differ_are_refused(pool):
    for text in pool.run(calls.joins_parts_that_differ):
        assert (
            "says devices along 'tp' hold the same, but the elements of rank 1 differ from the first device's" in text
        )


def test_data_dependent_shapes_are_agreed_on(pool):
    values = HOST % 5
    expected = [np.unique(values), *np.nonzero(values > 2), values[values > 3]]
    for found in pool.run(calls.finds):
        for made, want in zip(found, expected, strict=True):
            assert made == want.tolist()


def test_what_goes_over_the_wire_is_what_was_predicted(pool):
    """Per step the process that receives most receives what the step says, and all hold what the literal engine holds."""
    results = pool.run(calls.counts, 3, 60, timeout=120)
    assert len(results[0]) > 60
    for steps in zip(*results, strict=True):
        (name,) = {step[0] for step in steps}
        assert all(same for *_, same in steps), name
        assert max(counted for _, _, counted, _ in steps) == steps[0][1], name
    assert {"all_gather", "all_to_all", "all_reduce", "reduce_scatter"} <= {name.split()[0] for name, *_ in results[0]}


def test_every_dtype_travels(pool):
    expected = (np.arange(12) % 7).reshape(4, 3)
    for found in pool.run(calls.dtypes):
        for name, (same, total, dtype) in found.items():
            values = expected.astype(as_dtype(name)).astype(np.complex128).real
            assert same, name
            assert total == (values.sum(axis=0) if "complex" in name else values.max(axis=0)).tolist(), name
            assert dtype == name


def test_a_maximum_keeps_nans(pool):
    for columns, least in pool.run(calls.keeps_nan):
        np.testing.assert_array_equal(columns, [20, np.nan, 22, 23])
        assert np.isnan(least)


def test_arrays_go_to_a_part_of_the_mesh_and_back(pool):
    for rank, (back, text) in enumerate(pool.run(calls.moves_to_a_part_of_the_mesh)):
        assert back == HOST.tolist()
        outside = f"rank {rank} is not part of Mesh(dp=1, tp=2, engine='torch'), which uses the ranks 0 to 1"
        assert (outside in text) == (rank > 1)


def test_fused_reductions_are_one_message(pool):
    for made, rows, messages in pool.run(calls.reduces_together):
        assert made == [HOST.sum(), HOST.sum(axis=0).tolist(), (HOST * HOST).sum(axis=0).tolist()]
        assert len(rows) == len(messages) == 1


def test_only_a_product_that_is_read_once_is_overwritten_by_its_sum(pool):
    product = HOST.T @ HOST
    summands = np.concatenate([HOST[:3].T @ HOST[:3], HOST[3:].T @ HOST[3:]])
    wanted = [product.tolist(), product.tolist(), summands.tolist()]
    assert pool.run(calls.overwrites) == [[wanted] * 2] * 4


def test_random_numbers_are_those_of_every_engine(pool):
    for ours, numpys in pool.run(calls.draws):
        assert ours == numpys
