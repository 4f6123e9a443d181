"""What connects devices, and what a collective over such connections costs: the only cost model.

It knows group sizes and links, not meshes or tensors; whoever plans says how many bytes the busiest device receives.
"""

from shardwright.hardware.links import Group, Link, latency, seconds, seconds_per_byte

__all__ = ["Group", "Link", "latency", "seconds", "seconds_per_byte"]
