"""What the test of `sw.hardware.measure` runs in processes."""

import shardwright as sw


def measured():
    found = sw.hardware.measure(sizes=(1024, 65536, 1 << 20), repeats=3)
    return found.members, found.link.bandwidth, found.link.latency, found.error, len(found.measurements)
