"""Functions of one or two tensors as text of arith, math, tensor, linalg, scf and tosa, with what NumPy gives for them.

`A` is 4x6, `B` 6x4, both f32; `I` is 4x6 and `J` 6, both i32. A case is the body, which defines %y,
its type, and the function; LLVM 22 reads all of them, `ONLY_22` are those that LLVM 19 lacks.
"""

import math

import numpy as np

RNG = np.random.default_rng(3)
A, B = (RNG.normal(size=shape).astype(np.float32) for shape in ((4, 6), (6, 4)))
A[0, :4] = 0.49999997, -0.5, 2.5, -0.0
J = RNG.integers(0, 4, 6).astype(np.int32)
I = RNG.integers(-(2**31), 2**31, (4, 6)).astype(np.int32)  # noqa: E741
I[0] = 0, 1, -1, 2**31 - 1, -(2**31), 6
T, U, V, W = "tensor<4x6xf32>", "tensor<4x6xi32>", "tensor<4x6xi1>", "tensor<6x4xf32>"
ERF = np.vectorize(math.erf)


def generic(maps, kinds, ins, out, body):
    """A linalg.generic that gives %y; `out` is its output's type."""
    spelled = ", ".join(f"affine_map<{text}>" for text in maps)
    iterators = ", ".join(f'"{kind}"' for kind in kinds)
    return (
        f"%e = arith.constant dense<0.0> : {out}\n%y = linalg.generic {{indexing_maps = [{spelled}], iterator_types = "
        f"[{iterators}]}} {ins} outs(%e : {out}) {{\n{body}\n}} -> {out}"
    )


def rows(expression, size, function):
    """Rows of %a by a map."""
    maps = [f"(d0, d1) -> ({expression}, d1)", "(d0, d1) -> (d0, d1)"]
    kind = f"tensor<{size}x6xf32>"
    body = "^bb0(%p: f32, %o: f32):\nlinalg.yield %p : f32"
    return generic(maps, ["parallel"] * 2, f"ins(%a : {T})", kind, body), kind, function


def of_bools(op, function):
    """A conversion of i1 to i32 or f32."""
    kind = {"s": T, "u": T}.get(op[0], U) if op.endswith("fp") else U
    return (
        f"%z0 = arith.constant dense<0> : {U}\n%c = arith.cmpi slt, %i, %z0 : {U}\n%y = arith.{op} %c : {V} to {kind}",
        kind,
        function,
    )


def bits(x, width=32):
    return [f"{int(n) & (2**width - 1):0{width}b}" for n in x.ravel()]


def count(x, function):
    return np.array([function(text) for text in bits(x)], np.int32).reshape(x.shape)


def windows(x, shape, step=1):
    view = np.lib.stride_tricks.sliding_window_view(x, shape, axis=(1, 2))  # n h w c, then the window
    return view[:, ::step, ::step]


FOUR = "tensor<1x4x6x1xf32>"
AS_FOUR = f"%f = tensor.expand_shape %a [[0, 1], [2, 3]] output_shape [1, 4, 6, 1] : {T} into {FOUR}\n"
KERNEL = "%k = tensor.extract_slice %b[0, 0] [2, 2] [1, 1] : tensor<6x4xf32> to tensor<2x2xf32>\n"

CASES = {
    "erf": (f"%y = math.erf %a : {T}", T, lambda a, b, i, j: ERF(a)),
    "round": (f"%y = math.round %a : {T}", T, lambda a, b, i, j: np.sign(a) * np.floor(np.abs(a.astype(float)) + 0.5)),
    "remf": (
        f"%c = arith.constant dense<0.4> : {T}\n%y = arith.remf %a, %c : {T}", T, lambda a, b, i, j: np.fmod(a, np.float32(0.4))
    ),
    "clampf": (
        f"%l = arith.constant dense<-0.3> : {T}\n%h = arith.constant dense<0.6> : {T}\n%y = math.clampf %a to [%l, %h] : {T}",
        T, lambda a, b, i, j: np.clip(a, np.float32(-0.3), np.float32(0.6))
    ),
    "tests of floats": (
        f"%z0 = arith.constant dense<0.0> : {T}\n%q = arith.divf %a, %z0 : {T}\n%n = math.isnan %q : {T}\n"
        f"%f = math.isinf %q : {T}\n%g = math.isnormal %a : {T}\n%h = math.isfinite %a : {T}\n%p = arith.xori %n, %f : {V}\n"
        f"%r = arith.xori %g, %h : {V}\n%y = arith.andi %p, %r : {V}",
        V, lambda a, b, i, j: a == 0
    ),
    "ctpop": (f"%y = math.ctpop %i : {U}", U, lambda a, b, i, j: count(i, lambda t: t.count("1"))),
    "ctlz": (f"%y = math.ctlz %i : {U}", U, lambda a, b, i, j: count(i, lambda t: len(t) - len(t.lstrip("0")))),
    "cttz": (f"%y = math.cttz %i : {U}", U, lambda a, b, i, j: count(i, lambda t: len(t) - len(t.rstrip("0")))),
    "ceildivui": (
        f"%c = arith.constant dense<7> : {U}\n%y = arith.ceildivui %i, %c : {U}", U,
        lambda a, b, i, j: (-(-i.view(np.uint32).astype(np.int64) // 7)).astype(np.uint32).view(np.int32)
    ),
    "extsi of i1": of_bools("extsi", lambda a, b, i, j: -(i < 0).astype(np.int32)),
    "extui of i1": of_bools("extui", lambda a, b, i, j: (i < 0).astype(np.int32)),
    "sitofp of i1": of_bools("sitofp", lambda a, b, i, j: -(i < 0).astype(np.float32)),
    "uitofp of i1": of_bools("uitofp", lambda a, b, i, j: (i < 0).astype(np.float32)),
    "trunci to i1": (f"%y = arith.trunci %i : {U} to {V}", V, lambda a, b, i, j: i & 1 == 1),
    "comparison of i1": (
        f"%z0 = arith.constant dense<0> : {U}\n%c = arith.cmpi slt, %i, %z0 : {U}\n%u = arith.trunci %i : {U} to {V}\n"
        f"%p = arith.cmpi slt, %c, %u : {V}\n%q = arith.maxsi %c, %u : {V}\n%y = arith.ori %p, %q : {V}", V,
        lambda a, b, i, j: ((i < 0) & ~(i & 1 == 1)) | ((i < 0) & (i & 1 == 1))
    ),
    "fptoui": (
        f"%c = arith.constant dense<1.0e9> : {T}\n%q = arith.mulf %a, %a : {T}\n%u = arith.minimumf %q, %s : {T}\n"
        f"%p = arith.mulf %u, %c : {T}\n%y = arith.fptoui %p : {T} to {U}".replace(
            "%q =", f"%s = arith.constant dense<4.0> : {T}\n%q =", 1
        ), U,
        lambda a, b, i, j: (np.minimum(a * a, np.float32(4)) * np.float32(1e9)).astype(np.uint32).view(np.int32)
    ),
    "linalg.div of integers": (
        f"%c = arith.constant dense<-7> : {U}\n%e = tensor.empty() : {U}\n"
        f"%y = linalg.div ins(%i, %c : {U}, {U}) outs(%e : {U}) -> {U}", U, lambda a, b, i, j: np.trunc(i / -7).astype(np.int32)
    ),
    "reduction that ignores NaN": (
        f"%n = math.log %a : {T}\n%l = arith.constant dense<-9.0> : tensor<6xf32>\n"
        "%y = linalg.reduce { arith.maxnumf } ins(%n : tensor<4x6xf32>) outs(%l : tensor<6xf32>) dimensions = [0]",
        "tensor<6xf32>", lambda a, b, i, j: np.fmax(np.fmax.reduce(np.log(a), axis=0), np.float32(-9))
    ),
    "reduction of integers without a sign": (
        "%l = arith.constant dense<5> : tensor<6xi32>\n"
        "%y = linalg.reduce { arith.maxui } ins(%i : tensor<4x6xi32>) outs(%l : tensor<6xi32>) dimensions = [0]",
        "tensor<6xi32>", lambda a, b, i, j: np.maximum(i.view(np.uint32).max(0), np.uint32(5)).view(np.int32)
    ),
    "flip": rows("-d0 + 3", 4, lambda a, b, i, j: a[::-1]),
    "roll": rows("(d0 + 3) mod 4", 4, lambda a, b, i, j: np.roll(a, -3, 0)),
    "tile": rows("d0 mod 4", 8, lambda a, b, i, j: np.tile(a, (2, 1))),
    "repeat": rows("d0 floordiv 3", 12, lambda a, b, i, j: np.repeat(a, 3, 0)),
    "strided rows": rows("d0 * 2 + 1", 2, lambda a, b, i, j: a[1::2]),
    "one row": rows("2", 3, lambda a, b, i, j: np.stack([a[2]] * 3)),
    "windows by a map": (
        "%k = arith.constant dense<[1.0, 3.0]> : tensor<2xf32>\n" + generic(
            ["(d0, d1, d2) -> (d0 * 2 + d2, d1)", "(d0, d1, d2) -> (d2)", "(d0, d1, d2) -> (d0, d1)"],
            ["parallel", "parallel", "reduction"], f"ins(%a, %k : {T}, tensor<2xf32>)", "tensor<2x6xf32>",
            "^bb0(%p: f32, %q: f32, %o: f32):\n%m = arith.mulf %p, %q : f32\n%r = arith.addf %o, %m : f32\n"
            "linalg.yield %r : f32"),
        "tensor<2x6xf32>", lambda a, b, i, j: np.einsum("ikj,k->ij", a.reshape(2, 2, 6), [1, 3])
    ),
    "rows by number": (
        generic(["(d0, d1) -> (d0)", "(d0, d1) -> (d0, d1)"], ["parallel"] * 2, "ins(%j : tensor<6xi32>)", "tensor<6x6xf32>",
                "^bb0(%p: i32, %o: f32):\n%n = arith.index_cast %p : i32 to index\n%m = linalg.index 1 : index\n"
                f"%r = tensor.extract %a[%n, %m] : {T}\nlinalg.yield %r : f32"),
        "tensor<6x6xf32>", lambda a, b, i, j: a[j]
    ),
    "elements by number": (
        generic(["(d0) -> (d0)", "(d0) -> (d0)"], ["parallel"], "ins(%j : tensor<6xi32>)", "tensor<6xf32>",
                "^bb0(%p: i32, %o: f32):\n%n = arith.index_cast %p : i32 to index\n%m = linalg.index 0 : index\n"
                f"%r = tensor.extract %a[%n, %m] : {T}\nlinalg.yield %r : f32"),
        "tensor<6xf32>", lambda a, b, i, j: a[j, np.arange(6)]
    ),
    "insert_slice": (
        f"%p = tensor.extract_slice %b[0, 1] [3, 2] [2, 1] : {W} to tensor<3x2xf32>\n"
        f"%t = linalg.transpose ins(%p : tensor<3x2xf32>) outs(%e : tensor<2x3xf32>) permutation = [1, 0]\n"
        f"%y = tensor.insert_slice %t into %a[1, 0] [2, 3] [2, 2] : tensor<2x3xf32> into {T}".replace(
            "%p =", "%e = tensor.empty() : tensor<2x3xf32>\n%p =", 1
        ), T, lambda a, b, i, j: _replaced(a, (slice(1, 4, 2), slice(0, 6, 2)), b[::2, 1:3].T)
    ),
    "insert_slice at a place that the data says": (
        f"%c2 = arith.constant 2 : index\n%q = tensor.extract %j[%c2] : tensor<6xi32>\n"
        f"%n = arith.index_cast %q : i32 to index\n"
        f"%p = tensor.extract_slice %a[0, 1] [1, 3] [1, 1] : {T} to tensor<3xf32>\n"
        f"%y = tensor.insert_slice %p into %a[%n, %n] [1, 3] [1, 1] : tensor<3xf32> into {T}", T,
        lambda a, b, i, j: _replaced(a, (int(j[2]), slice(int(j[2]), int(j[2]) + 3)), a[0, 1:4])
    ),
    "insert": (
        f"%c2 = arith.constant 2 : index\n%p = tensor.extract %b[%c2, %c2] : {W}\n"
        f"%y = tensor.insert %p into %a[%c2, %c2] : {T}",
        T, lambda a, b, i, j: _replaced(a, (2, 2), b[2, 2])
    ),
    "pad with zeros": (
        f"%c = arith.constant 0.0 : f32\n%y = tensor.pad %a low[1, 0] high[2, 3] {{\n^bb0(%p: index, %q: index):\n"
        f"tensor.yield %c : f32\n}} : {T} to tensor<7x9xf32>", "tensor<7x9xf32>",
        lambda a, b, i, j: np.pad(a, ((1, 2), (0, 3)))
    ),
    "pad with another element": (
        f"%y = tensor.pad %a low[0, 2] high[1, 0] {{\n^bb0(%p: index, %q: index):\n%c = arith.constant 2.5 : f32\n"
        f"tensor.yield %c : f32\n}} : {T} to tensor<5x8xf32>", "tensor<5x8xf32>",
        lambda a, b, i, j: np.pad(a, ((0, 1), (2, 0)), constant_values=2.5)
    ),
    "bitcast and rank": (
        f"%p = tensor.bitcast %i : {U} to tensor<4x6xui32>\n%q = tensor.bitcast %p : tensor<4x6xui32> to {U}\n"
        f"%n = tensor.rank %a : {T}\n%k = arith.index_cast %n : index to i32\n%s = tensor.splat %k : {U}\n"
        f"%y = arith.addi %q, %s : {U}", U, lambda a, b, i, j: i + np.int32(2)
    ),
    "conv_2d": (
        f"{KERNEL}%e = arith.constant dense<1.0> : tensor<3x5xf32>\n"
        f"%y = linalg.conv_2d ins(%a, %k : {T}, tensor<2x2xf32>) outs(%e : tensor<3x5xf32>) -> tensor<3x5xf32>",
        "tensor<3x5xf32>",
        lambda a, b, i, j: np.einsum("nhwcij,ij->hw", windows(a[None, ..., None], (2, 2)), b[:2, :2]) + np.float32(1)
    ),
    "conv_2d_nhwc_hwcf": (
        f"{AS_FOUR}{KERNEL}%w = tensor.expand_shape %k [[0], [1, 2, 3]] output_shape [2, 2, 1, 1] : tensor<2x2xf32> into "
        f"tensor<2x2x1x1xf32>\n%e = arith.constant dense<0.0> : tensor<1x2x3x1xf32>\n"
        f"%y = linalg.conv_2d_nhwc_hwcf {{dilations = dense<1> : tensor<2xi64>, strides = dense<2> : tensor<2xi64>}} "
        f"ins(%f, %w : {FOUR}, tensor<2x2x1x1xf32>) outs(%e : tensor<1x2x3x1xf32>) -> tensor<1x2x3x1xf32>",
        "tensor<1x2x3x1xf32>",
        lambda a, b, i, j: np.einsum("nhwcij,ij->nhwc", windows(a[None, ..., None], (2, 2), 2), b[:2, :2])
    ),
    "pooling_nhwc_max": (
        f"{AS_FOUR}%k = tensor.empty() : tensor<2x2xf32>\n%e = arith.constant dense<-1.0e9> : tensor<1x3x5x1xf32>\n"
        f"%y = linalg.pooling_nhwc_max {{dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}} "
        f"ins(%f, %k : {FOUR}, tensor<2x2xf32>) outs(%e : tensor<1x3x5x1xf32>) -> tensor<1x3x5x1xf32>",
        "tensor<1x3x5x1xf32>", lambda a, b, i, j: windows(a[None, ..., None], (2, 2)).max((-1, -2))
    ),
    "pooling_nhwc_min": (
        f"{AS_FOUR}%k = tensor.empty() : tensor<2x2xf32>\n%e = arith.constant dense<1.0e9> : tensor<1x3x5x1xf32>\n"
        f"%y = linalg.pooling_nhwc_min ins(%f, %k : {FOUR}, tensor<2x2xf32>) outs(%e : tensor<1x3x5x1xf32>) "
        f"-> tensor<1x3x5x1xf32>", "tensor<1x3x5x1xf32>", lambda a, b, i, j: windows(a[None, ..., None], (2, 2)).min((-1, -2))
    ),
    "pooling_nhwc_sum": (
        f"{AS_FOUR}%k = tensor.empty() : tensor<2x2xf32>\n%e = arith.constant dense<0.0> : tensor<1x3x5x1xf32>\n"
        f"%y = linalg.pooling_nhwc_sum ins(%f, %k : {FOUR}, tensor<2x2xf32>) outs(%e : tensor<1x3x5x1xf32>) "
        f"-> tensor<1x3x5x1xf32>", "tensor<1x3x5x1xf32>", lambda a, b, i, j: windows(a[None, ..., None], (2, 2)).sum((-1, -2))
    ),
    "tosa.reverse and erf": (
        f"%p = tosa.erf %a : ({T}) -> {T}\n%y = tosa.reverse %p {{axis = 1 : i32}} : ({T}) -> {T}", T,
        lambda a, b, i, j: ERF(a)[:, ::-1]
    ),
    "while": (
        "%n = arith.constant dense<1> : tensor<i64>\n"
        f"%z, %y = scf.while (%p = %n, %q = %a) : (tensor<i64>, {T}) -> (tensor<i64>, {T}) {{\n"
        "%c = arith.constant dense<3> : tensor<i64>\n%t = arith.cmpi slt, %p, %c : tensor<i64>\n"
        f"%f = tensor.extract %t[] : tensor<i1>\nscf.condition(%f) %p, %q : tensor<i64>, {T}\n}} do {{\n"
        f"^bb0(%p: tensor<i64>, %q: {T}):\n%c = arith.constant dense<1> : tensor<i64>\n%r = arith.addi %p, %c : tensor<i64>\n"
        f"%s = arith.addf %q, %q : {T}\nscf.yield %r, %s : tensor<i64>, {T}\n}}", T, lambda a, b, i, j: a * np.float32(4)
    ),
    "while that computes what goes on": (
        "%c1 = arith.constant 1 : index\n%c9 = arith.constant 9 : index\n"
        f"%y, %z = scf.while (%p = %c1, %q = %a) : (index, {T}) -> ({T}, index) {{\n%n = arith.addi %p, %p : index\n"
        f"%t = arith.cmpi slt, %n, %c9 : index\n%r = arith.mulf %q, %q : {T}\nscf.condition(%t) %r, %n : {T}, index\n}} do {{\n"
        f"^bb0(%q: {T}, %n: index):\n%r = arith.addf %q, %a : {T}\nscf.yield %n, %r : index, {T}\n}}", T,
        lambda a, b, i, j: (((a * a + a) ** 2 + a) ** 2 + a) ** 2
    ),
}  # fmt: skip
ONLY_22 = {"clampf", "tests of floats"}


def _replaced(x, where, value):
    made = x.copy()
    made[where] = value
    return made


def text(name, prelude="", head=""):
    """The function of a case."""
    body, kind, _ = CASES[name]
    arguments = f"%a: {T}, %b: {W}, %i: {U}, %j: tensor<6xi32>"
    return f"{prelude}func.func @f({arguments}) -> {kind} {{\n{head}{body}\nreturn %y : {kind}\n}}\n"


def expected(name):
    """What NumPy gives."""
    with np.errstate(all="ignore"):
        made = CASES[name][2](A, B, I, J)
    return made.astype(np.float32) if made.dtype.kind == "f" else made
