"""`sw.hardware.measure` live: four processes over gloo and four CPU devices of JAX, with the error of the fit at every size.

`make measure` prints it. Times depend on what else the machine does, so nothing here is a test.
"""

import os
import subprocess
import sys

import shardwright as sw


def measured() -> str:
    """The calibration of all processes, in words."""
    return str(sw.hardware.measure())


def main() -> None:
    print("torch, four processes over gloo\n" + sw.launch(measured, processes=4, timeout=300)[0])
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    call = "import jax, shardwright as sw; print(sw.hardware.measure())"
    print("\nJAX, four CPU devices", flush=True)
    subprocess.run([sys.executable, "-c", call], env=environment, check=True)


if __name__ == "__main__":
    main()
