"""What the test of imported JAX functions runs in processes."""

import jax_models
import shardwright as sw


def trained(model):
    return jax_models.by_import(model, sw.Mesh(dp=2, tp=2, engine="torch"))
