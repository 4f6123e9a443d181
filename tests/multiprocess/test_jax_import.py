"""An imported training step of JAX on real processes, one device each."""

import numpy as np

import jax_import_calls as calls
from jax_models import by_jax


def test_a_training_step_on_processes(pool):
    _, after, losses = by_jax("plain")
    for made, found in pool.run(calls.trained, "plain", timeout=240):
        np.testing.assert_allclose(found, losses, rtol=5e-6)
        for a, b in zip(made, after[-1], strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)
