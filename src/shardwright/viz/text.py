"""A sharded tensor as text: one box per shard, with the devices that hold it. Any number of dims."""

from itertools import product

from shardwright.arrays import Array
from shardwright.errors import ArrayError
from shardwright.sharding import Layout, describe

LARGEST = 16  # boxes along a side; the rest is left out, with a note


def picture(x: Array) -> str:
    """Which device holds which part of an array.

    >>> import numpy as np, shardwright as sw
    >>> print(sw.picture(sw.shard(np.zeros((6, 8), np.float32), sw.Mesh(data=2, model=2), sw.P("data", "model"))))
    f32[6@data,8@model] on Mesh(data=2, model=2)
             0:4     4:8
          ┌───────┬───────┐
      0:3 │   0   │   1   │
          ├───────┼───────┤
      3:6 │   2   │   3   │
          └───────┴───────┘

    The last two split dims are drawn as rows and columns; a tensor split along more dims is drawn as several grids.
    """
    if not isinstance(x, Array):
        raise ArrayError(f"picture takes an Array; got {type(x).__name__}. Make one with sw.shard(host, mesh, P(…)).")
    layout = x.layout
    split = [dim for dim, held in enumerate(layout.dims) if held.parts > 1]
    outer, inner = split[:-2], split[-2:]
    lines = [f"{describe(layout.sharding, layout.shape, x.dtype)} on {layout.mesh}"]
    holders = _holders(layout)
    for at in product(*(range(layout.dims[dim].parts) for dim in outer)):
        fixed = dict(zip(outer, at, strict=True))
        if outer:
            lines.append("  " + ", ".join(f"dim {dim} = {_rows(layout, dim, part)}" for dim, part in fixed.items()))
        lines += _grid(layout, holders, fixed, inner)
    return "\n".join(lines)


def _holders(layout: Layout) -> dict[tuple[int, ...], list[int]]:
    """The devices that hold each shard."""
    result: dict[tuple[int, ...], list[int]] = {}
    for device, shard in zip(layout.mesh.device_ids, map(tuple, layout.shard_places.tolist()), strict=True):
        result.setdefault(shard, []).append(device)
    return result


def _rows(layout: Layout, dim: int, part: int) -> str:
    cuts = layout.dims[dim].offsets
    return f"{cuts[part]}:{cuts[part + 1]}"


def _grid(
    layout: Layout, holders: dict[tuple[int, ...], list[int]], fixed: dict[int, int], inner: list[int]
) -> list[str]:
    """The boxes of one grid: rows and columns are the two innermost split dims (either may be missing)."""
    ndim = len(layout.dims)
    row_dim, col_dim = (inner[0], inner[1]) if len(inner) == 2 else (inner[0] if inner else None, None)
    if row_dim is not None and row_dim == ndim - 1 and col_dim is None and ndim > 1:
        row_dim, col_dim = None, row_dim  # the last dim alone is drawn as columns, as NumPy prints it
    n_rows = layout.dims[row_dim].parts if row_dim is not None else 1
    n_cols = layout.dims[col_dim].parts if col_dim is not None else 1
    shown_rows, shown_cols = min(n_rows, LARGEST), min(n_cols, LARGEST)

    def cell(row: int, col: int) -> str:
        at = dict(fixed)
        if row_dim is not None:
            at[row_dim] = row
        if col_dim is not None:
            at[col_dim] = col
        return _devices(holders[tuple(at.get(dim, 0) for dim in range(ndim))])

    cells = [[cell(row, col) for col in range(shown_cols)] for row in range(shown_rows)]
    heads = [_rows(layout, col_dim, col) if col_dim is not None else "" for col in range(shown_cols)]
    sides = [_rows(layout, row_dim, row) if row_dim is not None else "" for row in range(shown_rows)]
    width = max(5, *(len(text) for text in (*heads, *(text for line in cells for text in line)))) + 2
    left = max(len(side) for side in sides) + 2

    def rule(start: str, middle: str, end: str) -> str:
        return " " * (left + 1) + start + middle.join(["─" * width] * shown_cols) + end

    lines = [" " * (left + 2) + " ".join(head.center(width) for head in heads).rstrip()] if col_dim is not None else []
    lines.append(rule("┌", "┬", "┐"))
    for number, (side, line) in enumerate(zip(sides, cells, strict=True)):
        if number:
            lines.append(rule("├", "┼", "┤"))
        lines.append(side.rjust(left) + " │" + "│".join(text.center(width) for text in line) + "│")
    lines.append(rule("└", "┴", "┘"))
    if (n_rows, n_cols) != (shown_rows, shown_cols):
        lines.append(f"{' ' * (left + 1)}… {shown_rows}×{shown_cols} of {n_rows}×{n_cols} shards shown")
    return lines


def _devices(ids: list[int]) -> str:
    """Ids as text, with runs shortened: 0-3,8."""
    runs: list[list[int]] = []
    for device in ids:
        if runs and runs[-1][-1] + 1 == device:
            runs[-1].append(device)
        else:
            runs.append([device])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    return ",".join(texts[:4]) + (",…" if len(texts) > 4 else "")
