"""`sw.hardware.measure` on real processes and on the devices of JAX."""

import os
import subprocess
import sys
from pathlib import Path

import measure_calls as calls
import shardwright as sw

JAX = """
import jax
import shardwright as sw
found = sw.hardware.measure(sizes=(4096, 1 << 20), repeats=3)
mesh = sw.Mesh(x=4, hardware=found.hardware)
print(found.members, found.link.bandwidth > 0, 0 < sw.hardware.time("all_reduce", 4096, mesh, "x") < 1)
"""


def test_all_processes_measure_the_same(pool):
    results = pool.run(calls.measured, timeout=60)
    assert len(set(results)) == 1
    members, bandwidth, latency, error, count = results[0]
    assert (members, count) == (4, 3)
    assert 1e5 < bandwidth < 1e12  # at most what was observed at the largest size
    assert 0 <= latency < 1
    assert error >= 0


def test_the_devices_of_jax_are_measured():
    flags = "--xla_force_host_platform_device_count=4"
    source = str(Path(sw.__file__).parents[1])
    environment = {k: v for k, v in os.environ.items() if k != "RANK"}
    environment |= {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": source}
    done = subprocess.run(
        [sys.executable, "-c", JAX], capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["4", "True", "True"]
