"""Meshes of devices: axes and sub-axes, groups, coordinates, submeshes, links, and physical topologies."""

from shardwright.mesh.axes import Axes, SubAxis, as_axes, as_int, as_ints, cut_axes
from shardwright.mesh.mesh import Mesh, current_mesh, overlap

__all__ = ["Axes", "Mesh", "SubAxis", "as_axes", "as_int", "as_ints", "current_mesh", "cut_axes", "overlap"]
