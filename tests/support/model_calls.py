"""What the tests of imported models run in each process."""

import numpy as np
import torch

import shardwright as sw
from model_checks import RULES, placed


def forward(path, inputs):
    """A saved export, run on one device a process: the output, which every process reads."""
    model = sw.torch.load(torch.export.load(path))
    mesh = sw.Mesh(dp=2, tp=2, engine="torch")
    return np.asarray(model.sjit(mesh, RULES)(*placed(mesh, inputs)))
