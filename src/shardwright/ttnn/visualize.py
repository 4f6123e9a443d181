"""Pictures of meshes and of tensors on them, of any rank; coloured if the terminal supports it."""

import sys

import numpy as np

from shardwright.sharding import layout_of
from shardwright.ttnn.devices import MeshDevice
from shardwright.ttnn.tensors import Tensor

_COLOURS = (31, 32, 33, 34, 35, 36, 91, 92, 93, 94, 95, 96)


def _table(cells: list[list[str]], paint: list[list[int]] | None, colour: bool) -> str:
    width = max(len(cell) for row in cells for cell in row)
    lines = []
    for at, row in enumerate(cells):
        shown = []
        for i, cell in enumerate(row):
            text = cell.ljust(width)
            shown.append(f"\033[{_COLOURS[paint[at][i] % len(_COLOURS)]}m{text}\033[0m" if colour and paint else text)
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines)


def visualize_mesh_device(mesh_device: MeshDevice, tensor: Tensor | None = None, colour: bool | None = None) -> str:
    """Prints and returns the grid of device ids of a mesh, and optionally what each device holds of a tensor."""
    show = sys.stdout.isatty() if colour is None else colour
    ids = mesh_device.mesh.ids()
    rows = ids.reshape(-1, ids.shape[-1])
    cells = [[f"dev {int(i)}" for i in row] for row in rows]
    text = f"{mesh_device}\n{_table(cells, None, show)}"
    if tensor is not None:
        text += "\n" + _held(tensor, show)
    print(text)
    return text


def visualize_tensor(tensor: Tensor, colour: bool | None = None) -> str:
    """Prints and returns which device holds which part of a tensor. Devices with equal parts have one colour."""
    text = _held(tensor, sys.stdout.isatty() if colour is None else colour)
    print(text)
    return text


def _held(tensor: Tensor, colour: bool) -> str:
    mesh = tensor.mesh
    if tensor.sharding is None:
        parts = [f"{list(x.shape)}" for x in tensor.value.values()]
        numbers = list(range(mesh.size))
    else:
        from_places: dict[str, int] = {}
        parts, numbers = [], []
        for number, place in enumerate(_places(tensor)):
            partial = bool(tensor.sharding.partial)
            parts.append(f"{place} summand" if partial else place)
            numbers.append(number if partial else from_places.setdefault(place, len(from_places)))
    grid = np.arange(mesh.size).reshape(-1, mesh.shape[-1])
    ids = mesh.ids().ravel()
    cells = [[f"dev {int(ids[i])}: {parts[i]}" for i in row] for row in grid]
    paint = [[numbers[i] for i in row] for row in grid]
    head = f"{tensor}" + (f" of {list(tensor.global_shape)}" if tensor.sharding is not None else "")
    return f"{head}\n{_table(cells, paint, colour)}"


def _places(tensor: Tensor) -> list[str]:
    assert tensor.sharding is not None
    layout = layout_of(tensor.sharding, tensor.global_shape)
    boxes = layout.boxes
    return [
        "[" + ", ".join(f"{a}:{b}" for a, b in zip(boxes[0, d].tolist(), boxes[1, d].tolist(), strict=True)) + "]"
        for d in range(layout.mesh.size)
    ]
