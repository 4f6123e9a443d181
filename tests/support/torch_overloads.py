"""Calls of torch as users write them, by the overload that they become, for the operations that models were found to use.

Several forms each: functions, methods, operators, in-place versions, optional arguments, dtypes. They name the operands that
they take.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.functional import scaled_dot_product_attention as sdpa


def _in_place(name, *args, **options):
    """The in-place version of an operation, on a copy of the first operand."""
    return lambda x: getattr(x.clone(), name)(*args, **options)


def _assigned(x, row):
    x = x.clone()
    x[1:3] = row
    x[:, 2] = 0
    return x


def _put(x, i, row):
    x = x.clone()
    x[torch.tensor([0, 2])] = row
    x[i > 0] = 0.0
    return x


CALLS = {
    "add.Tensor": [
        lambda z, x: z + x,
        lambda x, y: x + y,
        lambda x, row: torch.add(x, row, alpha=2),
        lambda x, i: i + x,
        lambda x: 1 + x,
        lambda i: i + 2.5,
        lambda x, d: x + d,
        lambda b: b + 1,
        lambda x, number: x + number,
        lambda x, column: x.clone().add_(column, alpha=-1),
        lambda h: h + 1,
    ],
    "add.Scalar": [lambda x: torch.ops.aten.add.Scalar(x, 2), lambda i: torch.ops.aten.add.Scalar(i, 2, 3)],
    "linear.default": [
        lambda x, weight: F.linear(x, weight),
        lambda x, weight, bias: F.linear(x, weight, bias),
        lambda cube, weight, bias: F.linear(cube, weight, bias),
        lambda row, weight: F.linear(row, weight),
    ],
    "view.default": [
        lambda x: x.view(2, 2, 6),
        lambda x: x.view(-1),
        lambda x: x.reshape(6, 4),
        lambda x: x.flatten(),
        lambda x: x.unflatten(0, (2, -1)),
        lambda x, cube: cube.view(4, 2, -1),
        lambda x, y: x.t().contiguous().view_as(y.t()),
    ],
    "view.dtype": [
        lambda b: b.view(torch.uint8),
        lambda b: b.view(torch.uint8).view(torch.bool),
        lambda x: x.view(torch.int32),
        lambda x: x.view(torch.float32) + 1,
        lambda d: d.view(torch.int32),
        lambda h: h.view(torch.int32),
        lambda i: i.int().view(torch.uint8),
    ],
    "mul.Tensor": [
        lambda z: z * 2,
        lambda x, y: x * y,
        lambda x: 2 * x,
        lambda i: i * 0.5,
        lambda x, b: x * b,
        lambda x, column: torch.multiply(x, column),
        lambda x, row: x.clone().mul_(row),
        lambda b, c: b * c,
    ],
    "mul.Scalar": [lambda x: torch.ops.aten.mul.Scalar(x, 2), lambda i: torch.ops.aten.mul.Scalar(i, 1.5)],
    "unsqueeze.default": [
        lambda x: x.unsqueeze(0),
        lambda x: x[:, None, :, None],
        lambda x: torch.unsqueeze(x, -1),
        _in_place("unsqueeze_", 1),
    ],
    "transpose.int": [
        lambda x: x.transpose(0, 1),
        lambda cube: torch.transpose(cube, -1, 0),
        lambda cube: cube.swapaxes(0, 2),
        lambda cube: cube.mT,
    ],
    "clone.default": [lambda x: x.clone() + 1, lambda x: x.t().contiguous(), lambda x: torch.clone(x) * 2],
    "slice.Tensor": [
        lambda x: x[1:3],
        lambda x: x[:, ::2],
        lambda x: x[..., -3:],
        lambda x: x[1:100, :-1],
        lambda x: x.narrow(1, 2, 3),
        lambda x: x[3:1],
        _assigned,
    ],
    "expand.default": [
        lambda column: column.expand(4, 6),
        lambda row: row.expand(2, 4, -1),
        lambda column, x: column.expand_as(x),
        lambda row: torch.broadcast_to(row, (4, 6)),
    ],
    "embedding.default": [
        lambda ids, table: F.embedding(ids, table),
        lambda ids, table: F.embedding(ids, table, padding_idx=1),
        lambda ids, table: F.embedding(ids[0], table, padding_idx=-1, scale_grad_by_freq=True),
    ],
    "_assert_tensor_metadata.default": [lambda x: x.to(torch.float64), lambda i: i.float()],
    "arange.default": [lambda x: x + torch.arange(6), lambda x: x * torch.arange(6.0)],
    "arange.start": [lambda x: x[:, :3] + torch.arange(2, 5), lambda x: x + torch.arange(0, 6, dtype=torch.float64)],
    "arange.start_step": [lambda x: x + torch.arange(0, 12, 2), lambda x: x[:, :4] + torch.arange(1.0, 0.0, -0.25)],
    "scaled_dot_product_attention.default": [
        lambda q, k, v: sdpa(q, k, v),
        lambda q: sdpa(q, q, q, is_causal=True),
        lambda q, k, v, seen: sdpa(q, k, v, attn_mask=seen),
        lambda q, k, v, added: sdpa(q, k, v, added, scale=0.3),
        lambda q, k2, v2: sdpa(q, k2, v2, enable_gqa=True),
        lambda q, k, v: sdpa(q[0], k[0], v[0], dropout_p=0.0),
    ],
    "mean.default": [lambda x: x.mean(), lambda h: torch.mean(h, dtype=torch.float32)],
    "mean.dim": [
        lambda x: x.mean(1),
        lambda x: x.mean((0, 1), keepdim=True),
        lambda x: torch.mean(x, -1, dtype=torch.float64),
        lambda cube: cube.mean(dim=[0, 2]),
    ],
    "pow.Tensor_Tensor": [lambda p, y: p**y, lambda p, row: torch.pow(p, row), lambda i, j: i**j],
    "pow.Tensor_Scalar": [
        lambda x: x**2,
        lambda p: p**-0.5,
        lambda i: i**3,
        lambda p: torch.pow(p, 1.7),
        lambda i: i**0.0,
        _in_place("pow_", 3),
    ],
    "pow.Scalar": [lambda x: 2**x, lambda j: torch.pow(3, j), lambda j: 0.5**j],
    "index.Tensor": [
        lambda x, rows: x[rows],
        lambda x, rows: x[:, rows - 4],
        lambda cube, rows: cube[rows, :, rows],
        lambda x: x[:, torch.tensor([[0, 1], [2, 3]])],
        lambda x: x[torch.tensor([2, 0, 2])],
        lambda x: x[:, torch.tensor([1, -1])],
        lambda x: x[torch.tensor([0, 1]), torch.tensor([2, 3])],
        lambda table, ids: table[ids],
        lambda cube: cube[torch.tensor([0, 3]), :, torch.tensor([1, 5])],
        lambda x: x[torch.tensor([True, False, True, True])],
        lambda x: x[[0, 2]],
    ],
    "cat.default": [
        lambda empty, x: torch.cat([empty, x]),
        lambda x, d, h: torch.cat([x, d, h]),
        lambda x, y: torch.cat([x, y]),
        lambda x, column: torch.cat((x, column), dim=-1),
        lambda x, i: torch.concat([x, i], 1),
        lambda x: torch.cat([x, x.new_zeros(0)]),
        lambda x, y: torch.hstack([x, y]),
    ],
    "_to_copy.default": [
        lambda x: x.to(torch.float64),
        lambda x: x.half(),
        lambda x: (x * 3).int(),
        lambda i: i.float(),
        lambda x: x.bool(),
        lambda x: x.to("cpu", torch.bfloat16).float(),
    ],
    "layer_norm.default": [
        lambda x, row: F.layer_norm(x, (6,), row),
        lambda cube, row, y: F.layer_norm(cube, (2, 6)),
        lambda x, row: F.layer_norm(x, (6,), row, row, eps=1e-3),
    ],
    "silu.default": [lambda x: F.silu(x), lambda h: F.silu(h), lambda x: F.silu(x.clone(), inplace=True)],
    "alias.default": [lambda x: torch.ops.aten.alias(x) + 1, lambda x: x.detach() + 1],
    "sub.Tensor": [
        lambda x, y: x - y,
        lambda x: x - 1,
        lambda x, row: torch.sub(x, row, alpha=3),
        lambda i, x: i - x,
        lambda x: 1 - x,
        lambda x, row: x.clone().sub_(row),
    ],
    "sub.Scalar": [lambda x: torch.ops.aten.sub.Scalar(x, 2), lambda i: torch.ops.aten.sub.Scalar(i, 2, 3)],
    "conv2d.default": [
        lambda image, kernel: F.conv2d(image, kernel),
        lambda image, kernel, channels: F.conv2d(image, kernel, channels, stride=2, padding=1),
        lambda image, grouped: F.conv2d(image, grouped, padding=(2, 1), dilation=(2, 1), groups=2),
        lambda image, kernel: F.conv2d(image[0], kernel),
    ],
    "conv2d.padding": [
        lambda image, kernel: F.conv2d(image, kernel, padding="same"),
        lambda image, kernel, channels: F.conv2d(image, kernel, channels, stride=(2, 1), padding="valid"),
        lambda image, grouped: F.conv2d(image, grouped, padding="same", dilation=2, groups=2),
    ],
    "rsqrt.default": [lambda p: torch.rsqrt(p), lambda j: j.rsqrt(), lambda p: p.clone().rsqrt_()],
    "gelu.default": [lambda x: F.gelu(x), lambda x: F.gelu(x, approximate="tanh"), lambda h: F.gelu(h)],
    "neg.default": [lambda x: -x, lambda i: torch.neg(i), lambda x: torch.negative(x), _in_place("neg_")],
    "__and__.Tensor": [lambda b, c: b.__and__(c), lambda i, j: i.__and__(j)],
    "__and__.Scalar": [lambda i: i.__and__(5), lambda b: b.__and__(True)],
    "cumsum.default": [
        lambda number: number.cumsum(0),
        lambda x: x.cumsum(0),
        lambda x: torch.cumsum(x, -1, dtype=torch.float64),
        lambda i: i.cumsum(1),
        lambda b: b.cumsum(1),
    ],
    "new_ones.default": [
        lambda x: x.new_ones(4, 6) + x,
        lambda x: x.new_ones((2,), dtype=torch.int64),
        lambda x: x.new_ones(x.shape[1]) * x,
    ],
    "cos.default": [lambda x: x.cos(), lambda i: torch.cos(i), lambda h: h.cos()],
    "sin.default": [lambda x: x.sin(), lambda i: torch.sin(i), _in_place("sin_")],
    "diff.default": [
        lambda x: torch.diff(x),
        lambda x: x.diff(n=2, dim=0),
        lambda x, column: torch.diff(x, prepend=column, append=column),
        lambda i: i.diff(dim=0),
    ],
    "div.Tensor": [
        lambda x, p: x / p,
        lambda i, j: i / j,
        lambda x: x / 3,
        lambda p: 2 / p,
        lambda x, row: torch.true_divide(x, row),
        _in_place("div_", 4),
    ],
    "div.Scalar": [lambda x: torch.ops.aten.div.Scalar(x, 4), lambda i: torch.ops.aten.div.Scalar(i, 4)],
    "div.Tensor_mode": [
        lambda i, j: torch.div(i, j, rounding_mode="floor"),
        lambda i, j: torch.div(i, j, rounding_mode="trunc"),
        lambda x, p: torch.div(x, p, rounding_mode="floor"),
        lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
        lambda x, p: x.div(p, rounding_mode=None),
    ],
    "div.Scalar_mode": [
        lambda i: torch.ops.aten.div.Scalar_mode(i, 4, rounding_mode="trunc"),
        lambda i: torch.ops.aten.div.Scalar_mode(i, -4, rounding_mode="floor"),
    ],
    "split.Tensor": [lambda x: x.split(4, dim=1), lambda x: torch.split(x, 3)[0] + 1, lambda x: x.chunk(3, 1)],
    "permute.default": [
        lambda cube: cube.permute(2, 0, 1),
        lambda cube: torch.permute(cube, (-1, 0, 1)),
        lambda cube: torch.movedim(cube, 0, 2),
    ],
    "matmul.default": [
        lambda z: z @ z.mT,
        lambda x, matrix: x @ matrix,
        lambda x, row: x @ row,
        lambda row, matrix: torch.matmul(row, matrix),
        lambda cube, matrix: cube.matmul(matrix),
        lambda x, batch: x @ batch,
        lambda batch, matrix: batch.mT @ matrix,
        lambda row: row @ row,
        lambda i, j: i @ j.t(),
    ],
    "softmax.int": [
        lambda number: number.softmax(0),
        lambda x: x.softmax(-1),
        lambda x: F.softmax(x, dim=0),
        lambda h: torch.softmax(h, 1, dtype=torch.float32),
        lambda x: F.softmax(x, 1, dtype=torch.float64),
    ],
    "exp.default": [lambda z: z.exp(), lambda x: x.exp(), lambda i: torch.exp(i), _in_place("exp_")],
    "zeros.default": [lambda x: x + torch.zeros(6), lambda x: torch.cat([torch.zeros((1, 6)), x])],
    "where.self": [
        lambda b, x, y: torch.where(b, x, y),
        lambda c, x, i: torch.where(c, x, i),
        lambda x, number: torch.where(x > 0, x, number),
        lambda x: x.masked_fill(x > 0, 0.5),
    ],
    "where.ScalarOther": [lambda b, x: torch.where(b, x, 0.0), lambda b, i: torch.where(b, i, 1.5)],
    "where.ScalarSelf": [lambda b, x: torch.where(b, 1, x), lambda b, h: torch.where(b, 1.0, h)],
    "where.Scalar": [lambda b: torch.where(b, 1, 0), lambda b: torch.where(b, 1.0, -1)],
    "sum.default": [lambda x: x.sum(), lambda b: torch.sum(b), lambda i: i.sum(dtype=torch.float32)],
    "sum.dim_IntList": [
        lambda z: z.sum(0),
        lambda number: number.sum(0),
        lambda x: x.sum(0),
        lambda cube: cube.sum((0, -1), keepdim=True),
        lambda i: i.sum(1, dtype=torch.int32),
        lambda b: b.sum(-1),
        lambda x: torch.sum(x, dim=()),
    ],
    "adaptive_avg_pool2d.default": [
        lambda image: F.adaptive_avg_pool2d(image, (9, 7)),
        lambda image: F.adaptive_avg_pool2d(image, 1),
        lambda image: F.adaptive_avg_pool2d(image, (4, 3)),
        lambda image: F.adaptive_avg_pool2d(image, (3, None)),
        lambda image: F.adaptive_avg_pool2d(image[0], (5, 4)),
    ],
    "select.int": [
        lambda x: x[1],
        lambda x: x[:, -1],
        lambda cube: cube.select(1, 1),
        lambda cube: cube[..., 2],
    ],
    "_native_batch_norm_legit_no_training.default": [
        lambda image, four, variance: torch.ops.aten._native_batch_norm_legit_no_training(
            image, four, four, four, variance, 0.1, 1e-3
        )[0],
        lambda image, four, variance: torch.ops.aten._native_batch_norm_legit_no_training(
            image, None, None, four, variance, 0.1, 1e-5
        )[0],
        lambda image, four, variance: F.batch_norm(image, four, variance, four, four),
        lambda signal, four, variance: F.batch_norm(signal, four, variance),
    ],
    "relu.default": [lambda x: x.relu(), lambda i: torch.relu(i), lambda x: F.relu(x.clone(), inplace=True)],
    "sigmoid.default": [lambda x: x.sigmoid(), lambda i: torch.sigmoid(i), lambda h: F.sigmoid(h)],
    "_grouped_mm.default": [
        lambda tokens, experts, ends: torch.ops.aten._grouped_mm(tokens, experts, ends).float(),
        lambda tokens, experts, ends: F.grouped_mm(tokens, experts, offs=ends).float(),
        lambda tokens, experts: F.grouped_mm(tokens.view(3, 4, 8), experts).float(),
    ],
    "tanh.default": [lambda x: x.tanh(), lambda i: torch.tanh(i), lambda x: F.tanh(x)],
    "topk.default": [
        lambda number: number.topk(1),
        lambda i: i.topk(2)[0],
        lambda x: x.topk(2),
        lambda x: torch.topk(x, 3, dim=0, largest=False),
        lambda x: x.topk(1).indices,
        lambda x: torch.topk(x, 2, sorted=True)[0],
    ],
    "sort.default": [
        lambda number: number.sort(),
        lambda b: b.sort(1),
        lambda x: x.sort(),
        lambda x: torch.sort(x, 0, descending=True),
        lambda x: x.sort(dim=1).values,
    ],
    "sort.stable": [
        lambda number: torch.sort(number, stable=True),
        lambda i: torch.sort(i, stable=True),
        lambda i: i.sort(stable=True, dim=0, descending=True),
    ],
    "floor_divide.default": [lambda i, j: i // j, lambda x, p: x // p, lambda i: i // 3, lambda x: x // 0.7],
    "floor_divide.Scalar": [
        lambda i: torch.ops.aten.floor_divide.Scalar(i, -4),
        lambda x: torch.ops.aten.floor_divide.Scalar(x, 0.7),
    ],
    "histc.default": [
        lambda x: torch.histc(x, 4),
        lambda x: torch.histc(x, bins=4, min=-2, max=2),
        lambda x: x.histc(10, -1.0, 1.0),
        lambda ids: torch.histc(ids.float(), bins=4, min=0, max=3),
    ],
    "empty_like.default": [
        lambda x: torch.empty_like(x).fill_(2) + x,
        lambda i: torch.empty_like(i, dtype=torch.float32).zero_(),
    ],
    "index_put.default": [
        lambda x, rows, y: x.index_put((rows,), y, accumulate=True),
        lambda x, b: x.index_put((b,), torch.tensor(1.0)),
        _put,
        lambda x, row: x.index_put((torch.tensor([0, 0]),), row.expand(2, 6), accumulate=True),
        lambda x, four: x.index_put((torch.arange(4), torch.tensor([1, 5, 0, 1])), four),
        lambda x: x.index_put((torch.tensor([1, 3]),), torch.tensor(2.0)),
    ],
    "conv1d.default": [
        lambda signal, taps: F.conv1d(signal, taps),
        lambda signal, taps, channels: F.conv1d(signal, taps, channels, stride=2, padding=1),
        lambda signal, few: F.conv1d(signal, few, padding=2, dilation=2, groups=2),
        lambda signal, taps: F.conv1d(signal[0], taps),
    ],
    "conv1d.padding": [
        lambda signal, taps: F.conv1d(signal, taps, padding="same"),
        lambda signal, taps, channels: F.conv1d(signal, taps, channels, 2, "valid"),
    ],
    "group_norm.default": [
        lambda image, four: F.group_norm(image, 2, four, four),
        lambda image: F.group_norm(image, 4, eps=1e-3),
        lambda signal, four: F.group_norm(signal, 1, four),
    ],
    "pad.default": [
        lambda x: F.pad(x, (1, 2)),
        lambda x: F.pad(x, (1, 0, 0, 2), value=1.5),
        lambda image: F.pad(image, (1, 1, 2, 0), mode="reflect"),
        lambda image: F.pad(image, (1, 1, 2, 0), mode="replicate"),
        lambda image: F.pad(image, (2, 1, 1, 1), mode="circular"),
        lambda x: F.pad(x, (-1, 1)),
        lambda i: F.pad(i, (0, 1), value=-1),
    ],
    "unbind.int": [
        lambda cube: cube.unbind(),
        lambda x: torch.unbind(x, -1)[2] + 1,
        lambda cube: [part * 2 for part in cube],
    ],
    "roll.default": [
        lambda x: x.roll(1, 0),
        lambda x: torch.roll(x, (1, -2), (0, 1)),
        lambda x: x.roll(3),
        lambda cube: torch.roll(cube, -7, 2),
    ],
    "type_as.default": [lambda x, i: x.type_as(i), lambda i, d: i.type_as(d)],
    "addmm.default": [
        lambda bias, x, matrix: torch.addmm(bias, x, matrix),
        lambda bias, x, matrix: torch.addmm(bias, x, matrix, beta=0.5, alpha=2),
        lambda x, y, row: x.t() @ y + torch.addmm(row, x.t(), y),
    ],
    "min.other": [lambda x, y: torch.min(x, y), lambda x, row: x.min(row)],
    "min.default": [lambda x: x.min(), lambda i: torch.min(i)],
    "min.dim": [
        lambda number: number.min(0),
        lambda x: x.min(1),
        lambda x: torch.min(x, 0, keepdim=True),
        lambda x: x.min(dim=-1).values,
    ],
    "log.default": [lambda p: p.log(), lambda j: torch.log(j), lambda p: p.clone().log_()],
    "full_like.default": [
        lambda x: torch.full_like(x, 2) + x,
        lambda i: torch.full_like(i, 2.5, dtype=torch.float32),
        lambda x: torch.full_like(x, float("-inf")),
    ],
    "t.default": [lambda x: x.t(), lambda row: row.t() + 1, lambda x: torch.t(x)],
    "squeeze.default": [lambda ones: ones.squeeze(), lambda x: x.squeeze() + 1],
    "squeeze.dim": [lambda ones: ones.squeeze(1), lambda ones: torch.squeeze(ones, -1), lambda x: x.squeeze(0) + 1],
    "squeeze.dims": [lambda ones: ones.squeeze((1, 3)), lambda ones: ones.squeeze((0, -1))],
    "split_with_sizes.default": [
        lambda x: x.split([1, 3]),
        lambda x: torch.ops.aten.split.sizes(x, [1, 2, 3], 1),
        lambda x: torch.split_with_sizes(x, [4, 0, 2], 1)[2] * 2,
    ],
    "softplus.default": [
        lambda x: F.softplus(x),
        lambda x: F.softplus(x, beta=2, threshold=1),
        lambda h: F.softplus(h),
    ],
    "stack.default": [
        lambda x, y: torch.stack([x, y]),
        lambda x, y: torch.stack((x, y), dim=-1),
        lambda x, i: torch.stack([x, i], 1),
    ],
    "gather.default": [
        lambda x, ids: x.gather(0, ids),
        lambda x, ids: torch.gather(x, 1, ids),
        lambda x: x.gather(-1, torch.tensor([[0], [5], [2], [2]])),
        lambda x, ids: torch.take_along_dim(x, ids, 1),
    ],
    "abs.default": [lambda z: z.abs(), lambda x: x.abs(), lambda i: abs(i), _in_place("abs_")],
    "zeros_like.default": [
        lambda x: torch.zeros_like(x) + x,
        lambda x: torch.zeros_like(x, dtype=torch.int64),
        lambda b: torch.zeros_like(b),
    ],
    "repeat.default": [lambda x: x.repeat(2, 1), lambda x: x.repeat(2, 1, 3), lambda row: row.repeat(3)],
    "argmax.default": [
        lambda number: number.argmax(0),
        lambda x: x.argmax(),
        lambda x: torch.argmax(x, 1),
        lambda x: x.argmax(dim=0, keepdim=True),
        lambda i: i.argmax(-1),
    ],
    "max_pool2d.default": [
        lambda image: F.max_pool2d(image, 2),
        lambda image: F.max_pool2d(image, 3, stride=2, padding=1),
        lambda image: F.max_pool2d(image, (3, 2), dilation=(2, 1), ceil_mode=True),
        lambda image: F.max_pool2d(image[0], 2),
    ],
    "upsample_nearest2d.vec": [
        lambda image: F.interpolate(image, scale_factor=0.5),
        lambda image: F.interpolate(image, scale_factor=2),
        lambda image: F.interpolate(image, size=(12, 9)),
        lambda image: F.interpolate(image, scale_factor=(1.5, 2.0), mode="nearest"),
    ],
    "upsample_nearest2d.default": [
        lambda image: torch.ops.aten.upsample_nearest2d(image, [16, 12]),
        lambda image: torch.ops.aten.upsample_nearest2d(image, [12, 9], 1.5, 1.5),
    ],
    "einsum.default": [
        lambda sq: torch.einsum("ii->i", sq),
        lambda sq: torch.einsum("ii", sq),
        lambda x, matrix: torch.einsum("ij,jk->ik", x, matrix),
        lambda batch, x: torch.einsum("bij,bi->bj", batch, x),
        lambda x: torch.einsum("ij->j", x),
        lambda x, y: torch.einsum("ij,ij", x, y),
        lambda cube, matrix: torch.einsum("...i,ij", cube, matrix),
        lambda x, matrix: torch.einsum(x, [0, 1], matrix, [1, 2], [0, 2]),
    ],
}
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _call = getattr(torch, _name)
    CALLS[f"{_name}.Tensor"] = [
        lambda i, j, call=_call: call(i, j),
        lambda x, row, call=_call: call(x, row),
        lambda x, i, call=_call: call(x, i),
        lambda b, c, call=_call: call(b, c),
    ]
    CALLS[f"{_name}.Scalar"] = [
        lambda i, call=_call: call(i, 2),
        lambda x, call=_call: call(x, 0.5),
        lambda i, call=_call: call(i, 0.5),
    ]
