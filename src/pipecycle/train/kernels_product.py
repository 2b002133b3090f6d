# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Triton kernels for the products of a network's layers: convolutions, and dense layers as convolutions of one pixel.

Every program works for one session, `model`, and adds in a fixed order.  A convolution is one product: rows are the
outputs of all samples, the inner index runs over (tap, channel), and what an output sees is read where it lies, so that
nothing is unfolded.  A step of SGD is part of the product that makes the gradient, which is never stored.
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from triton.language import constexpr


@triton.jit
def bent(x, KIND: constexpr, ALPHA: constexpr):
    """An activation by its number."""
    if KIND == 1:
        x = tl.maximum(x, 0.0)
    elif KIND == 2:
        x = tl.where(x > 0, x, ALPHA * x)
    elif KIND == 3:
        x = 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
    elif KIND == 4:
        x = 1.0 / (1.0 + tl.exp(-x))
    elif KIND == 5:
        x = tl.where(x > 0, x, ALPHA * (tl.exp(tl.minimum(x, 0.0)) - 1.0))
    elif KIND == 6:
        x = x / (1.0 + tl.exp(-x))
    elif KIND == 7:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == 8:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x * (1.0 - 1.0 / (tl.exp(2.0 * inner) + 1.0))
    return x


@triton.jit
def slope_of(x, KIND: constexpr, ALPHA: constexpr):
    """Its slope: by what it gave up to 5, by what it was given from 6 on."""
    slope = tl.full(x.shape, 1.0, tl.float32)
    if KIND == 1:
        slope = tl.where(x > 0, 1.0, 0.0)
    elif KIND == 2:
        slope = tl.where(x > 0, 1.0, ALPHA)
    elif KIND == 3:
        slope = 1.0 - x * x
    elif KIND == 4:
        slope = x * (1.0 - x)
    elif KIND == 5:
        slope = tl.where(x > 0, 1.0, x + ALPHA)
    elif KIND == 6:
        share = 1.0 / (1.0 + tl.exp(-x))
        slope = share * (1.0 + x * (1.0 - share))
    elif KIND == 7:
        density = 0.3989422804014327 * tl.exp(-0.5 * x * x)
        slope = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * density
    elif KIND == 8:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        tanh = 1.0 - 2.0 / (tl.exp(2.0 * inner) + 1.0)
        slope = 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * 0.7978845608028654 * (1.0 + 0.134145 * x * x)
    return slope


@triton.jit
def give(dx, y, at, value, keep, MORE: constexpr, KIND: constexpr, ALPHA: constexpr):
    """Add to the gradient of a layer's input, and take it through the activation that made the input."""
    if MORE:
        value += tl.load(dx + at, mask=keep, other=0.0).to(tl.float32)
    if KIND != 0:
        value *= slope_of(tl.load(y + at, mask=keep, other=0.0).to(tl.float32), KIND, ALPHA)
    tl.store(dx + at, value.to(dx.dtype.element_ty), mask=keep)


@triton.jit
def apply(
    w, s, velocity, start, at, grad, keep, lr,
    MOMENTUM: constexpr, DECAY: constexpr, PULL: constexpr, COPY: constexpr,
):  # fmt: skip
    """One step of SGD for the parameters at the offsets `at`; `keep` says which of them there are, None for all."""
    value = tl.load(w + at, mask=keep)
    if DECAY != 0.0:
        grad += DECAY * value
    if PULL != 0.0:
        grad += PULL * (value - tl.load(start + at, mask=keep))
    if MOMENTUM != 0.0:
        grad += MOMENTUM * tl.load(velocity + at, mask=keep)
        tl.store(velocity + at, grad, mask=keep)
    value -= lr * grad
    tl.store(w + at, value, mask=keep)
    if COPY:
        tl.store(s + at, value.to(s.dtype.element_ty), mask=keep)


@triton.jit
def seen(
    x, row, k, there, H: constexpr, W: constexpr, C: constexpr, KW: constexpr, K: constexpr, OH: constexpr,
    OW: constexpr, SY: constexpr, SX: constexpr, PY: constexpr, PX: constexpr,
):  # fmt: skip
    """What the outputs `row` see at the inner indices `k`: a tile of the unfolded image."""
    image = row // (OH * OW)
    y = row // OW % OH * SY - PY
    px = row % OW * SX - PX
    ky = k // (KW * C)
    kx = k // C % KW
    at = ((image * H + y) * W + px)[:, None] * C + ((ky * W + kx) * C + k % C)[None, :]
    keep = there[:, None] & (k < K)[None, :]
    if PY > 0:
        down = y[:, None] + ky[None, :]
        keep = keep & (down >= 0) & (down < H)
    if PX > 0:
        along = px[:, None] + kx[None, :]
        keep = keep & (along >= 0) & (along < W)
    return tl.load(x + at, mask=keep, other=0.0)


@triton.jit
def product(
    x, w, s, y, live, weight, bias,
    P: constexpr, B: constexpr, H: constexpr, W: constexpr, C: constexpr, N: constexpr, WIDTH: constexpr,
    KW: constexpr, K: constexpr, OH: constexpr, OW: constexpr, SY: constexpr, SX: constexpr, PY: constexpr,
    PX: constexpr, BIAS: constexpr, KIND: constexpr, ALPHA: constexpr,
    ROWS: constexpr, BK: constexpr, BN: constexpr, IP: constexpr,
):  # fmt: skip
    """Outputs: ROWS of all samples' x BN of the filters (N, padded to WIDTH)."""
    model = tl.program_id(1).to(tl.int64)
    if model >= tl.load(live):
        return
    across: constexpr = (WIDTH + BN - 1) // BN
    row = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(0) % across * BN + tl.arange(0, BN)
    there = row < B * OH * OW
    inside = n < WIDTH
    x += model * (B * H * W * C)
    s += model * P + weight
    total = tl.zeros([ROWS, BN], tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        left = seen(x, row, k, there, H, W, C, KW, K, OH, OW, SY, SX, PY, PX)
        right = tl.load(s + k[:, None] * WIDTH + n[None, :], mask=(k < K)[:, None] & inside[None, :], other=0.0)
        total = tl.dot(left, right, total, input_precision=IP)
    if BIAS:
        total += tl.load(w + model * P + bias + n, mask=inside, other=0.0)[None, :]
    total = tl.where((n < N)[None, :], bent(total, KIND, ALPHA), 0.0)
    to = y + model * (B * OH * OW * WIDTH) + row[:, None] * WIDTH + n[None, :]
    tl.store(to, total.to(y.dtype.element_ty), mask=there[:, None] & inside[None, :])


@triton.jit
def product_inputs(
    dy, s, x, dx, live, weight,
    P: constexpr, B: constexpr, H: constexpr, W: constexpr, C: constexpr, WIDTH: constexpr,
    KH: constexpr, KW: constexpr, OH: constexpr, OW: constexpr, SY: constexpr, SX: constexpr, PY: constexpr,
    PX: constexpr, MORE: constexpr, KIND: constexpr, ALPHA: constexpr,
    ROWS: constexpr, BK: constexpr, BC: constexpr, IP: constexpr,
):  # fmt: skip
    """The gradient of ROWS inputs x BC channels: a product whose inner index runs over (tap, filter).

    Rows are ordered by height first: a tile then needs only the taps that reach its few heights."""
    model = tl.program_id(1).to(tl.int64)
    if model >= tl.load(live):
        return
    across: constexpr = (C + BC - 1) // BC
    lowest = tl.program_id(0) // across * ROWS
    row = lowest + tl.arange(0, ROWS)
    c = tl.program_id(0) % across * BC + tl.arange(0, BC)
    there = row < B * H * W
    image = row // W % B
    y = row // (B * W) + PY
    px = row % W + PX
    begin = tl.maximum(lowest // (B * W) + PY - (OH - 1) * SY, 0) * (KW * WIDTH)
    highest = tl.minimum(lowest + ROWS - 1, B * H * W - 1) // (B * W) + PY
    end = (tl.minimum(highest, KH - 1) + 1) * (KW * WIDTH)
    dy += model * (B * OH * OW * WIDTH)
    s += model * P + weight
    total = tl.zeros([ROWS, BC], tl.float32)
    for first in range(begin, end, BK):
        k = first + tl.arange(0, BK)
        tap = k // WIDTH
        n = k % WIDTH
        ky = tap // KW
        kx = tap % KW
        down = y[:, None] - ky[None, :]
        along = px[:, None] - kx[None, :]
        keep = there[:, None] & (k < end)[None, :] & (down >= 0) & (along >= 0)
        if SY > 1 or SX > 1:
            keep = keep & (down % SY == 0) & (along % SX == 0) & (down // SY < OH) & (along // SX < OW)
            at = ((image[:, None] * OH + down // SY) * OW + along // SX) * WIDTH + n[None, :]
        else:
            keep = keep & (down < OH) & (along < OW)
            at = ((image * OH + y) * OW + px)[:, None] * WIDTH + (n - (ky * OW + kx) * WIDTH)[None, :]
        left = tl.load(dy + at, mask=keep, other=0.0)
        right = tl.load(
            s + (tap * C * WIDTH + n)[:, None] + (c * WIDTH)[None, :],
            mask=(k < end)[:, None] & (c < C)[None, :],
            other=0.0,
        )
        total = tl.dot(left, right, total, input_precision=IP)
    at = ((image * H + y - PY) * W + px - PX)[:, None] * C + c[None, :]
    own = model * (B * H * W * C)
    give(dx + own, x + own, at, total, there[:, None] & (c < C)[None, :], MORE, KIND, ALPHA)


@triton.jit
def product_weights(
    x, dy, w, s, velocity, start, rate, live, weight,
    P: constexpr, B: constexpr, H: constexpr, W: constexpr, C: constexpr, WIDTH: constexpr,
    KW: constexpr, K: constexpr, OH: constexpr, OW: constexpr, SY: constexpr, SX: constexpr, PY: constexpr,
    PX: constexpr, ROWS: constexpr, BK: constexpr, BN: constexpr, IP: constexpr,
    MOMENTUM: constexpr, DECAY: constexpr, PULL: constexpr, COPY: constexpr,
):  # fmt: skip
    """A step for BK x BN weights: the product of what all outputs saw and their gradients."""
    model = tl.program_id(1).to(tl.int64)
    if model >= tl.load(live):
        return
    across: constexpr = (WIDTH + BN - 1) // BN
    k = tl.program_id(0) // across * BK + tl.arange(0, BK)
    n = tl.program_id(0) % across * BN + tl.arange(0, BN)
    inside = n < WIDTH
    x += model * (B * H * W * C)
    dy += model * (B * OH * OW * WIDTH)
    total = tl.zeros([BK, BN], tl.float32)
    for first in range(0, B * OH * OW, ROWS):
        row = first + tl.arange(0, ROWS)
        there = row < B * OH * OW
        left = seen(x, row, k, there, H, W, C, KW, K, OH, OW, SY, SX, PY, PX)
        right = tl.load(dy + row[:, None] * WIDTH + n[None, :], mask=there[:, None] & inside[None, :], other=0.0)
        total = tl.dot(tl.trans(left), right, total, input_precision=IP)
    at = k[:, None] * WIDTH + n[None, :]
    keep = (k < K)[:, None] & inside[None, :]
    own = model * P + weight  # a number of 64 bits for the program, of 32 for each weight
    lr = tl.load(rate + model)
    apply(w + own, s + own, velocity + own, start + own, at, total, keep, lr, MOMENTUM, DECAY, PULL, COPY)


@triton.jit
def sums(
    rows, w, s, velocity, start, rate, live, each, begin, place,
    P: constexpr, R: constexpr, N: constexpr, BN: constexpr, ROWS: constexpr,
    MOMENTUM: constexpr, DECAY: constexpr, PULL: constexpr, COPY: constexpr,
):  # fmt: skip
    """A step for N parameters at `place` whose gradient is the sum of R rows; a session's rows are `each` numbers and
    these begin at `begin`."""
    model = tl.program_id(1).to(tl.int64)
    if model >= tl.load(live):
        return
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros([ROWS, BN], tl.float32)
    for first in range(0, R, ROWS):
        row = first + tl.arange(0, ROWS)
        at = rows + model * each + begin + row[:, None] * N + n[None, :]
        total += tl.load(at, mask=(row < R)[:, None] & (n < N)[None, :], other=0.0).to(tl.float32)
    lr = tl.load(rate + model)
    apply(w, s, velocity, start, model * P + place + n, tl.sum(total, 0), n < N, lr, MOMENTUM, DECAY, PULL, COPY)
