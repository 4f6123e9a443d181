"""A machine in words, for the command line."""

from shardwright.hardware.levels import Hardware, Level


def described(hardware: Hardware) -> str:
    """All figures of a machine, one a line."""
    chip = hardware.chip
    lines = [hardware.name, *([f"  note    {hardware.note}"] if hardware.note else [])]
    lines += [f"  {dtype:<15} {flops / 1e12:>8g} TFLOP/s" for dtype, flops in chip.flops.items()]
    lines += [
        f"  {'memory':<15} {chip.memory / 1e9:>8.4g} GB",
        f"  {'from memory':<15} {chip.memory_bandwidth / 1e12:>8.4g} TB/s",
    ]
    return "\n".join([*lines, *(_level(number, level) for number, level in enumerate(hardware.levels, 1))])


def _level(number: int, level: Level) -> str:
    link = level.link
    size = "×".join(map(str, level.shape)) if level.shape else str(level.size or "any number")
    network = ", reduces in the network" if link.reduces_in_network else ""
    return (
        f"  level {number}: {link.kind} of {size}, {link.bandwidth / 1e9:.4g} GB/s one way attained (peak "
        f"{link.peak / 1e9:.4g}), {link.latency * 1e6:.3g} µs to launch, {link.hop * 1e6:.3g} µs a hop{network}"
    )
