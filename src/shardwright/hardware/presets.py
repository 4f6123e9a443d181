"""Machines that people have, each figure with its source. Bandwidths are those attained from 64 MiB to 8 GiB, beside the peak.

Latencies of GPUs are NCCL's own (the table baseLat and hwLat of its tuning.cc, protocol Simple: 8.4 µs, 3.4 µs an NVLink hop,
9.6 µs a network hop). Those of TPUs are 5 µs for a small permute on v5p and v6e (marin-community/marin#6736), of which a hop is
1 µs (scaling book, "Sharded matrices"). FLOP/s are dense: data sheets of GPUs that give them with sparsity are halved. All GB
are 10⁹ bytes, GiB where sources say so.

The scaling book is jax-ml.github.io/scaling-book, Klockwood is glennklockwood.com/garden/processors, which quotes data sheets.
"not confirmed" marks what no public text that was found says.
"""

from dataclasses import replace

from shardwright.errors import MeshError
from shardwright.hardware.chips import Chip
from shardwright.hardware.levels import Hardware, Level
from shardwright.hardware.links import Link

GIB = 2**30


def _nvlink(attained: float, peak: float, sharp: bool) -> Link:
    return Link("switch", attained, 8.4e-6, 3.4e-6, attained / peak, sharp)


def _network(attained: float, peak: float) -> Link:
    return Link("switch", attained, 8.4e-6, 9.6e-6, attained / peak)


def _ici(attained: float, peak: float) -> Link:
    return Link("torus", attained, 4e-6, 1e-6, attained / peak)


# 8 × 50 GB/s NDR a node; 46 to 48 seen (NVIDIA/nccl-tests#290), 48 to 49 at best (nccl-tests#267).
_NDR = _network(47e9, 50e9)
# About 25 GB/s a host of 4 chips (Cloud TPU docs; scaling book, "data-center network").
_DCN = Level(Link("switch", 6.25e9, 20e-6, 10e-6))
# 12.5 GB/s (100 Gbit/s) a link one way (tt-metal, "Ethernet and Multichip Basics"); launch and hop are assumed.
_ETHERNET = Link("line", 12.5e9, latency=10e-6, hop=1e-6)
# 131 fp16 TFLOP/s a board of two, 12 GB and 288 GB/s a chip (Tenstorrent's n300 specifications); float32 as bf16 and the same
# chip in an n150, t3k and galaxy are not confirmed.
_WORMHOLE = Chip({"bfloat16": 65.5e12}, 288e9, 12e9)

# 450 line rate, 370 attained, NVLink SHARP (NVIDIA/nccl-tests#212); 18 links of 20.6 (SM90_NVLINK_BW in NCCL's topo.h).
_H100_LINK = _nvlink(370e9, 450e9, sharp=True)
# 989 bf16 and 66.9 fp32 TFLOP/s (Klockwood, peak-FLOPS); fp8 1979, fp64 67 on tensor cores (itkb.uw.cz, "NVIDIA H200 vs B300":
# the H200 has the H100's silicon).
_HOPPER = {"float8_e4m3fn": 1979e12, "bfloat16": 989e12, "float32": 67e12, "float64": 67e12}
# bf16, fp8, fp32, fp64 of the HGX B200 (NVIDIA's Blackwell data sheet as quoted in zdszero.github.io, "Hardware"). A GPU of a
# GB200 has these figures too in verda.com/blog/gb300-nvl72-architecture; the data sheet gives it 2500, 5000, 80 and 40 at 1200
# W.
_BLACKWELL = {"float8_e4m3fn": 4500e12, "bfloat16": 2250e12, "float32": 75e12, "float64": 37e12}

_MACHINES = (
    Hardware(
        "generic",
        Chip({"bfloat16": 200e12, "float32": 100e12, "float64": 50e12}, 1e12, 32e9),
        (Level(Link()),),
        "not your machine: give Mesh(hardware='h100') or links=",
    ),
    Hardware(
        "a100",
        # A100 80GB SXM: 312 bf16, 19.5 fp32, 19.5 fp64 on tensor cores, 624 int8 TFLOP/s, 80 GB at 2.039 TB/s, NVLink 300 GB/s
        # each way (Klockwood, A100, from the data sheet).
        Chip({"bfloat16": 312e12, "float32": 19.5e12, "float64": 19.5e12, "int8": 624e12}, 2.039e12, 80e9),
        # 235 of 300 attained is not confirmed: NCCL counts 12 links of 20 (SM80_NVLINK_BW in its topo.h), public logs have 195
        # to 208 (nccl-tests#149, #178). HDR is 25 GB/s a card; 4 cards gave 96 (nccl-tests#119), 24 each. A card for each GPU
        # is assumed.
        (Level(_nvlink(235e9, 300e9, sharp=False), 8), Level(_network(24e9, 25e9))),
    ),
    Hardware(
        "h100",
        # 80 GB at 3.35 TB/s (data sheet; lzwjava.github.io/nvidia-h200-gpu-specs-en).
        Chip(_HOPPER, 3.35e12, 80e9),
        (Level(_H100_LINK, 8), Level(_NDR)),
    ),
    Hardware(
        "h200",
        # FLOP/s and links of the H100, 141 GB at 4.8 TB/s (itkb.uw.cz, "NVIDIA H200 vs B300").
        Chip(_HOPPER, 4.8e12, 141e9),
        (Level(_H100_LINK, 8), Level(_NDR)),
    ),
    Hardware(
        "b200",
        # 180 GB (the data sheet, as above) at 8 TB/s (docs.vultr.com, "HGX B200 Hardware Overview"; the data sheet has 7.7).
        Chip(_BLACKWELL, 8e12, 180e9),
        # 900 line rate, 18 links of 40.1 (SM100_NVLINK_BW in NCCL's topo.h); CX-7, 50 GB/s a GPU (NVIDIA/nccl-tests#389).
        (Level(_nvlink(722e9, 900e9, sharp=True), 8), Level(_NDR)),
    ),
    Hardware(
        "gb200-nvl72",
        # 186 GB at 8 TB/s (the data sheet, as above; MLPerf submissions).
        Chip(_BLACKWELL, 8e12, 186e9),
        # Bus bandwidth 834 of 900 at 8 GiB over 72 GPUs, a ring's (coreweave/nccl-tests#43); 50 to 100 GB/s a GPU outside.
        (Level(_nvlink(834e9, 900e9, sharp=False), 72), Level(_NDR)),
    ),
    Hardware(
        "tpu-v4",
        # Cloud TPU docs: 275 bf16 TFLOP/s, 32 GiB at 1.2 TB/s; scaling book: 45 GB/s a link one way, pods of 16×16×16.
        Chip({"bfloat16": 275e12}, 1.2e12, 32 * GIB),
        (Level(_ici(43e9, 45e9), shape=(16, 16, 16), cube=4), _DCN),
        "latency and efficiency of the links as measured on v5p",
    ),
    Hardware(
        "tpu-v5e",
        # Cloud TPU docs: 197 bf16, 393 int8 TFLOP/s, 16 GB at 0.82 TB/s, 16×16 pods; scaling book: 45 GB/s a link one way.
        Chip({"bfloat16": 197e12, "int8": 393e12}, 0.82e12, 16e9),
        (Level(_ici(43.4e9, 45e9), shape=(16, 16)), _DCN),
        "latency and efficiency of the links as measured on v6e",
    ),
    Hardware(
        "tpu-v5p",
        # Cloud TPU docs: 459 bf16 TFLOP/s, 95 GB at 2.77 TB/s, 8960 chips, 16×20×28 (scaling book); int8 918 (aiwiki.ai, "TPU
        # v5p"). 90 GB/s a link, 86.3 attained by large permutes (marin#6736).
        Chip({"bfloat16": 459e12, "int8": 918e12}, 2.77e12, 95e9),
        (Level(_ici(86.3e9, 90e9), shape=(16, 20, 28), cube=4), _DCN),
    ),
    Hardware(
        "tpu-v6e",
        # Cloud TPU docs: 918 bf16, 1836 int8 TFLOP/s, 32 GB at 1.64 TB/s, 16×16 pods. 90 GB/s a link, 86.8 attained by large
        # permutes (marin#6736).
        Chip({"bfloat16": 918e12, "int8": 1836e12}, 1.64e12, 32e9),
        (Level(_ici(86.8e9, 90e9), shape=(16, 16)), _DCN),
    ),
    Hardware(
        "mi300x",
        # 1307.4 bf16, 2614.9 fp8, 163.4 fp32 and fp64 TFLOP/s on matrix cores (ROCm docs, "MI300 microarchitecture"); 192 GB at
        # 5.3 TB/s (data sheet).
        Chip({"float8_e4m3fn": 2615e12, "bfloat16": 1307e12, "float32": 163e12, "float64": 163e12}, 5.3e12, 192e9),
        # 7 links of 64 GB/s one way, 48 after protocol and error correction (ROCm/rccl#1210); latencies as NCCL's.
        (Level(Link("full", 48e9, 8.4e-6, 3.4e-6, 48 / 64), 8), Level(_NDR)),
        "latencies of links as NCCL's",
    ),
    Hardware(
        "trn2",
        # Neuron docs, "Trainium2 Architecture": 667 bf16, 1299 fp8, 181 fp32 TFLOP/s, 96 GiB at 2.9 TB/s; NeuronLink-v3 1280
        # GB/s a chip in all.
        Chip({"float8_e4m3fn": 1299e12, "bfloat16": 667e12, "float32": 181e12}, 2.9e12, 96 * GIB),
        # 1280 over 4 neighbours and 2 directions is 160 a link one way; EFA 400 GB/s a node of 16.
        (Level(Link("torus", 160e9, 15e-6, 1e-6), shape=(4, 4)), Level(Link("switch", 25e9, 15e-6, 15e-6))),
        "latencies are assumed, links at their peak",
    ),
    Hardware("n150", _WORMHOLE, (Level(_ETHERNET, 1),), "one chip"),
    Hardware(
        "n300",
        _WORMHOLE,
        (Level(replace(_ETHERNET, bandwidth=25e9), 2),),  # 2 × 12.5 between its chips (Tenstorrent's specifications)
        "latencies are assumed, links at their peak",
    ),
    Hardware(
        "t3k",
        _WORMHOLE,
        (Level(_ETHERNET, 8),),  # a 2×4 mesh, 12.5 a link (tt-metal, Ethernet guide)
        "latencies are assumed, links at their peak",
    ),
    Hardware(
        "galaxy",
        _WORMHOLE,
        # 8×4, about 4 links of 12.5 to each neighbour (tt-metal, Ethernet guide; inferred)
        (Level(replace(_ETHERNET, kind="torus", bandwidth=50e9), shape=(8, 4)),),
        "latencies and 4 links to a neighbour are assumed, links at their peak",
    ),
)
_PRESETS = {machine.name: machine for machine in _MACHINES}
GENERIC = _PRESETS["generic"]


def presets() -> dict[str, Hardware]:
    """The machines that `Mesh(hardware=…)` knows by name.

    >>> presets()["h100"].chip.memory
    80000000000.0
    """
    return dict(_PRESETS)


def short(hardware: Hardware) -> str | Hardware:
    """The name of a preset; other machines as they are."""
    return hardware.name if _PRESETS.get(hardware.name) == hardware else hardware


def hardware_from(hardware: object) -> Hardware:
    """A machine, or the one of a name; None is `generic`."""
    if hardware is None:
        return GENERIC
    if isinstance(hardware, Hardware):
        return hardware
    if isinstance(hardware, str) and hardware in _PRESETS:
        return _PRESETS[hardware]
    if isinstance(hardware, int):
        raise MeshError(
            f"hardware={hardware} is not a machine such as 'h100'; an axis of this name is written "
            f'Mesh({{"hardware": {hardware}}}).'
        )
    raise MeshError(f"The hardware {hardware!r} is unknown. Use a Hardware, or one of {', '.join(_PRESETS)}.")
