"""The core of shardwright from scratch: one idea, lanes, in a page of NumPy.

Run it: it prints nothing and checks everything. What the library adds to this page is every shape, every placement, every
operation and a price for each; the idea stays the same.
"""

import numpy as np

# 1. A mesh is a grid of devices. Ours has two axes: 2 rows ("data") and 4 columns ("model"), 8 devices in all.

DATA, MODEL = 2, 4

# 2. A sharded tensor is, for every device, a piece. The obvious way to hold it is a dict from device to array:

x = np.arange(8 * 12.0).reshape(8, 12)
pieces = {(i, j): x[4 * i : 4 * i + 4, 3 * j : 3 * j + 3] for i in range(DATA) for j in range(MODEL)}

# 3. Lanes hold the same in one array: leading dims that count devices, then one device's piece. Getting there is a
#    reshape, which cuts each dim in two, and a transpose, which brings the cuts to the front. Neither copies anything.


def cut(tensor):
    rows, cols = tensor.shape
    split = tensor.reshape(DATA, rows // DATA, MODEL, cols // MODEL)
    return split.transpose(0, 2, 1, 3)  # data, model | rows, cols


lanes = cut(x)
assert np.shares_memory(lanes, x)
assert all(np.array_equal(lanes[device], piece) for device, piece in pieces.items())

# 4. A lane of length 1 says that all devices along that axis hold the same thing. Replication is free:

w = np.arange(12 * 5.0).reshape(12, 5)
replicated = w.reshape(1, 1, 12, 5)  # one copy, for all 8 devices

# 5. One NumPy call computes on every device. Broadcasting along lanes of length 1 does what replicas would:

doubled = lanes * 2
assert all(np.array_equal(doubled[device], piece * 2) for device, piece in pieces.items())

# 6. Collectives are moves between lanes and dims. An all-gather along "model" moves that lane into the columns; after it,
#    all devices of a row of the mesh hold the same, so the lane is 1 long:


def all_gather_model(v):
    data, model, rows, cols = v.shape
    return v.transpose(0, 2, 1, 3).reshape(data, 1, rows, model * cols)


gathered = all_gather_model(lanes)
for i in range(DATA):
    assert np.array_equal(gathered[i, 0], np.concatenate([pieces[i, j] for j in range(MODEL)], axis=1))

#    An all-reduce is a sum over a lane, an all-slice the inverse of the gather, an all-to-all both at once.

# 7. An operation is known by its factors. A matmul has three: x is (m, k), w is (k, n), the result (m, n), and k is summed.
#    Put "data" on m and "model" on k: each device multiplies its own piece, and the results are summands.

w_rows = w.reshape(MODEL, 12 // MODEL, 5).reshape(1, MODEL, 3, 5)  # w split along k by "model"
partial = lanes @ w_rows  # data, model | 4, 5: every device along "model" holds a summand
for (i, j), piece in pieces.items():
    assert np.allclose(partial[i, j], piece @ w[3 * j : 3 * j + 3])

#    Reading the value means reducing it: one all-reduce. Never look at a summand and take it for the result.

total = partial.sum(axis=1, keepdims=True)
assert np.allclose(total[:, 0].reshape(8, 5), x @ w)

# 8. Or merge before multiplying: lanes that stand right before the dim they split can be joined with it, so that all
#    devices' products are one call. 4096 virtual devices then cost about what one does.

merged = (lanes.transpose(0, 2, 1, 3).reshape(8, 12)) @ w_rows.reshape(12, 5)
assert np.allclose(merged, x @ w)

# 9. What does it cost? An all-reduce of n bytes over p devices brings each device 2 (p - 1) / p · n bytes. The other way,
#    gathering w's pieces (n_w bytes) and x's, brings (p - 1) / p of both. Compare, and take the cheaper:

bytes_reduce = 2 * (MODEL - 1) / MODEL * (4 * 5 * 8)
bytes_gather = (MODEL - 1) / MODEL * (12 * 5 * 8) + (MODEL - 1) / MODEL * (4 * 12 * 8)
assert bytes_reduce < bytes_gather

# 10. Sizes that don't divide: blocks of ceil(n / k) rows, the last ones short or empty. In memory all are as long as the
#     longest; what is past a short one's end repeats real rows, and is masked before anything is summed over it.

rows = np.arange(10.0)
block = -(-10 // MODEL)
padded = np.concatenate([rows, np.repeat(rows[-1:], MODEL * block - 10)]).reshape(MODEL, block)
sizes = np.clip(10 - np.arange(MODEL) * block, 0, block)
real = np.arange(block) < sizes[:, None]
assert sizes.tolist() == [3, 3, 3, 1]
assert np.where(real, padded, 0).sum() == rows.sum()
