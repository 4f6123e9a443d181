"""Operations of arith, math, tensor, linalg, scf and tosa that are read: both views, every engine, against NumPy."""

import numpy as np
import pytest

from mlir_operations import CASES, A, B, I, J, expected, text
from shardwright import mlir
from shardwright.errors import MLIRError

SHARDED = (
    "%a = mesh.shard %a0 to <@m, [[0], [1]]> : tensor<4x6xf32>\n%i = mesh.shard %i0 to <@m, [[1]]> : tensor<4x6xi32>\n"
)


@pytest.fixture(autouse=True)
def _quiet():
    """Some cases divide by zero."""
    with np.errstate(all="ignore"):
        yield


def close(made, name):
    wanted = expected(name)
    assert made.dtype == wanted.dtype
    np.testing.assert_allclose(made, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_global_view(name):
    for engine in ("numpy", "torch"):
        close(np.asarray(mlir.loads(text(name), engine=engine)["f"](A, B, I, J)), name)
    sharded = text(name, "mesh.mesh @m(shape = 2x2)\n", SHARDED).replace("%a:", "%a0:", 1).replace("%i:", "%i0:", 1)
    fn = mlir.loads(sharded, engine="literal")["f"]
    close(np.asarray(fn(A, B, I, J)), name)


@pytest.mark.parametrize("name", CASES)
def test_the_local_view(name):
    head = "%d = mesh.process_linear_index on @m : index\n"
    fn = mlir.loads(text(name, "mesh.mesh @m(shape = 2)\n", head))["f"]
    for tensor in fn(A, B, I, J).values():
        close(tensor, name)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("roll", "mod 4", "mod 5", r"Rows 0 to 4 of dim 0 are read, which has 4"),
        ("insert_slice", "%a[1, 0]", "%a[2, 0]", r"Rows 2 to 4 of dim 0 are written, which has 4"),
        ("pad with zeros", "tensor.yield %c", "%d = arith.addf %c, %c : f32\ntensor.yield %d", "computed in the body"),
        ("conv_2d", "3x5", "4x5", r"give 3 rows along 'h', but the output has 4"),
    ],
)
def test_what_is_wrong_is_an_error_at_its_line(name, old, new, message):
    with pytest.raises(MLIRError, match=message):
        mlir.loads(text(name).replace(old, new))["f"](A, B, I, J)
