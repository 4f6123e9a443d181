"""What a device holds beside a step in whatever order a program runs: values made before it that are read after it.

A value lasts over a step if the step depends on it and another of its readers depends on the step, or if it is an output.
However it is moved meanwhile, some device holds at least its part of an even division over all devices.
"""

import math
from collections.abc import Mapping

import numpy as np

from shardwright.program.node import Node, Program


def lasting(program: Program, same: Mapping[Node, Node], held: set[Node]) -> dict[Node, int]:
    """For each node the bytes of values that last over it; those of `held` count otherwise."""
    nodes = [node for node in program.nodes if same[node] is node]
    numbers = {node: at for at, node in enumerate(nodes)}
    readers: dict[Node, set[int]] = {node: set() for node in nodes}
    before = [0] * len(nodes)  # bits: the nodes that one depends on
    for node in program.nodes:
        if same[node] is not node:
            continue
        for x in {same[x] for x in node.nodes}:
            readers[x].add(numbers[node])
            before[numbers[node]] |= before[numbers[x]] | 1 << numbers[x]
    after = [0] * len(nodes)
    for at in range(len(nodes) - 1, -1, -1):
        for reader in readers[nodes[at]]:
            after[at] |= after[reader] | 1 << reader
    outputs = {same[node] for node in program.outputs}
    total, devices = np.zeros(len(nodes), np.int64), math.prod(program.mesh.sizes.values())
    for at, node in enumerate(nodes):
        if (len(readers[node]) < 2 and node not in outputs) or node in held or len(node.types) > 1:
            continue
        later, own = -1 if node in outputs else 0, 0
        for reader in readers[node]:
            later |= before[reader]
            own |= 1 << reader
        over = after[at] & later & ~own
        if over and node.type.local is None:
            bits = np.frombuffer(over.to_bytes((len(nodes) + 7) // 8, "little"), np.uint8)
            least = -(-math.prod(node.type.shape) // devices) * node.type.dtype.itemsize
            total += np.unpackbits(bits, bitorder="little")[: len(nodes)] * np.int64(least)
    return {node: int(total[numbers[same[node]]]) for node in program.nodes}
