"""Every operation under random meshes and placements, legal and not, uneven and empty, against NumPy on whole tensors."""

import random

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import shardwright as sw
import shardwright.numpy as snp
from cases import CASES
from helpers import assert_same, held_by
from shardwright.caches import Cache
from shardwright.eager import calls as eager_calls
from shardwright.eager import recording
from shardwright.ops import OPS
from shardwright.plan import operation
from shardwright.plan.strategy import strategies
from strategies import meshes, shardings


@st.composite
def drawn(draw, name):
    mesh = draw(meshes(max_axes=3, max_devices=12))
    case = CASES[name](draw, draw(st.integers(0, 1000)))
    arrays = [
        sw.shard(host, draw(shardings(mesh, np.shape(host), partial=case.partial and host.dtype.kind != "b")))
        for host in case.hosts
    ]
    return case, arrays


def compare(case, arrays):
    with np.errstate(all="ignore"):
        expected = case.numpys(*case.hosts)
        result = case.ours(*arrays)
    assert isinstance(result, sw.Array)
    if case.exact:
        assert_same(result, expected)
    else:
        assert result.shape == np.shape(expected)
        assert result.dtype == np.asarray(expected).dtype
        np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-9, atol=1e-9)
    again = sw.from_shards(result.mesh, result.sharding, held_by(result))
    tolerance = 0 if case.exact else 1e-12  # what devices hold is the result
    np.testing.assert_allclose(np.asarray(again), np.asarray(result), rtol=tolerance, atol=tolerance)


def exported():
    """Every function that users can call, by the name its case has."""
    spaces = {"": snp, "linalg.": snp.linalg, "fft.": snp.fft}
    names = {f"{lead}{name}": getattr(space, name) for lead, space in spaces.items() for name in space.__all__}
    again = ("linalg.matmul", "linalg.tensordot", "linalg.vecdot", "linalg.einsum", "linalg.matrix_transpose")
    return {
        name for name, value in names.items() if callable(value) and name not in again and not isinstance(value, type)
    }


# Functions that make arrays, or speak about dtypes and shapes: tests/unit/test_operations.py has them.
ELSEWHERE = """arange asarray empty empty_like eye from_dlpack full full_like linspace ones ones_like zeros zeros_like
broadcast_shapes can_cast finfo iinfo isdtype result_type __array_namespace_info__ fft.fftfreq fft.rfftfreq""".split()


def test_every_export_has_a_case():
    assert exported() - set(ELSEWHERE) - set(CASES) == set()


@pytest.mark.parametrize("engine", ["numpy"], indirect=True)  # which rows run does not depend on the engine
def test_every_row_of_the_table_is_used_by_a_case(engine):
    """A few examples of each case, and the rows they ran; what makes numbers from nothing is random's, erf nn's."""
    ran = set()

    for name in CASES:

        @settings(max_examples=3, phases=[Phase.generate])
        @given(pair=drawn(name))
        def run(pair):
            with recording() as plans:
                compare(*pair)
            ran.update(plan.op.name for plan, _ in plans)

        run()
    cases = {
        "unique": "unique_all",
        "masked": "index",
    }  # rows with data-dependent shapes are named by their cases
    dynamic = {name for name, op in OPS.items() if op.dynamic}
    assert {cases.get(name, name) for name in dynamic} <= set(CASES)
    assert set(OPS) - ran - dynamic - {"places", "random_bits", "erf", "gelu", "sigmoid", "pick"} == set()


@pytest.mark.parametrize("name", sorted(CASES))
@settings(max_examples=40)
@given(data=st.data())
def test_an_operation_gives_what_numpy_gives(name, data):
    compare(*data.draw(drawn(name)))


ANY = ["nn.scatter_reduce", "nn.scatter_along_axis", "nn.grouped_matmul", "nn.scaled_dot_product_attention", "top_k"]


@pytest.mark.parametrize("engine", ["literal", "jax"], indirect=True)  # others run operations as a whole
@pytest.mark.parametrize("name", ANY)
@settings(max_examples=60)
@given(data=st.data())
def test_every_strategy_gives_what_numpy_gives(name, data):
    """Also those that the costs of small tensors never choose: keys that are split, candidates that are sent."""

    (case, arrays), rng = data.draw(drawn(name)), random.Random(data.draw(st.integers(0, 99)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operation, "choose", lambda problem: rng.choice(list(strategies(problem))))
        patch.setattr(operation, "_plans", Cache(limit=2**26, size=lambda plan: 1))
        patch.setattr(eager_calls, "_ready", Cache(limit=2**26, size=lambda ready: 1))
        compare(case, arrays)
