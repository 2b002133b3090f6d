# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Triton kernels for one SGD step of many convolutional networks at once.

Every program works for one network, `model`, and adds in a fixed order, so a network's bits do not depend on the
others.  Activations are channels-last.  Parameters of a network are one row of `w` (float32) and, where products are
taken in fewer bits, of a copy `s` in that type; gradients are applied where they are made and never stored.

A convolution is a sum over taps of [pixels x channels] @ [channels x filters]; nothing is unfolded.  Its 2x2 pooling
happens in registers: four accumulators hold the four corners of each window, `corner` remembers which was largest.
Views of images are cut in the form that the first convolution reads.
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from triton.language import constexpr

from pipecycle.train.kernels_layers import slope_of_loss
from pipecycle.train.kernels_product import apply


@triton.jit
def cut(
    images, picks, views, black, out, live,
    B: constexpr, H: constexpr, W: constexpr, C: constexpr, TAPS: constexpr, FRAME: constexpr, ROWS: constexpr,
):  # fmt: skip
    """ROWS pixels of (B, H, W - 4, TAPS), for each the five columns of the view from it on, side by side, out of
    images (n, H, W, C); `pipecycle.data.augment` says how a view is numbered."""
    model = tl.program_id(1).to(tl.int64)
    if model >= tl.load(live):
        return
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = at < B * H * (W - 4)
    image = at // (H * (W - 4))
    pick = tl.maximum(tl.load(picks + model * B + image, mask=there, other=0), 0).to(tl.int64)
    view = tl.load(views + model * B + image, mask=there, other=0)
    y = at // (W - 4) % H + view // 2 // (2 * FRAME + 1) - FRAME
    left = view // 2 % (2 * FRAME + 1) - FRAME
    tap = tl.arange(0, TAPS)
    channel = tap % C
    x = (at % (W - 4))[:, None] + (tap // C)[None, :]
    x = tl.where((view % 2 == 1)[:, None], W - 1 - x, x) + left[:, None]
    used = there[:, None] & (tap < 5 * C)[None, :]
    inside = used & (y >= 0)[:, None] & (y < H)[:, None] & (x >= 0) & (x < W)
    place = (pick * (H * W * C) + y * (W * C))[:, None] + x * C + channel[None, :]
    value = tl.load(images + place, mask=inside, other=0.0)
    edge = tl.load(black + channel)[None, :]
    value = tl.where(inside, value, tl.where(used, edge, 0.0).to(value.dtype))
    tl.store(out + model * (B * H * (W - 4) * TAPS) + at[:, None] * TAPS + tap[None, :], value, mask=there[:, None])


@triton.jit
def conv_forward(
    x, picks, w, s, out, corner, live,
    P: constexpr, WEIGHT: constexpr, BIAS: constexpr,
    B: constexpr, H: constexpr, W: constexpr, C: constexpr, N: constexpr, KH: constexpr, KW: constexpr,
    PH: constexpr, PW: constexpr, GATHER: constexpr, ROWS: constexpr, IP: constexpr,
):  # fmt: skip
    """Convolution, 2x2 max-pooling, bias and ReLU; `picks` says which images to take where GATHER."""
    model = tl.program_id(1).to(tl.int64)
    if model >= tl.load(live):
        return
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < B * PH * PW
    image = row // (PH * PW)
    py = row // PW % PH
    px = row % PW
    if GATHER:
        pick = tl.maximum(tl.load(picks + model * B + image, mask=there, other=0), 0).to(tl.int64)
    else:
        pick = model * B + image
    c = tl.arange(0, C)
    n = tl.arange(0, N)
    base = x + (pick * (H * W * C) + (2 * py * W + 2 * px) * C)[:, None] + c[None, :]
    taps = s + model * P + WEIGHT + c[:, None] * N + n[None, :]
    keep = there[:, None]
    a = tl.zeros([ROWS, N], tl.float32)
    b = tl.zeros([ROWS, N], tl.float32)
    d = tl.zeros([ROWS, N], tl.float32)
    e = tl.zeros([ROWS, N], tl.float32)
    for tap in range(KH * KW):
        weight = tl.load(taps + tap * (C * N))
        at = base + (tap // KW * W + tap % KW) * C
        a = tl.dot(tl.load(at, mask=keep, other=0.0), weight, a, input_precision=IP)
        b = tl.dot(tl.load(at + C, mask=keep, other=0.0), weight, b, input_precision=IP)
        d = tl.dot(tl.load(at + W * C, mask=keep, other=0.0), weight, d, input_precision=IP)
        e = tl.dot(tl.load(at + (W + 1) * C, mask=keep, other=0.0), weight, e, input_precision=IP)
    best = a
    which = tl.zeros([ROWS, N], tl.int8)
    which = tl.where(b > best, 1, which)
    best = tl.where(b > best, b, best)
    which = tl.where(d > best, 2, which)
    best = tl.where(d > best, d, best)
    which = tl.where(e > best, 3, which)
    best = tl.where(e > best, e, best)
    best = tl.maximum(best + tl.load(w + model * P + BIAS + n)[None, :], 0.0)
    to = model * (B * PH * PW * N) + row[:, None] * N + n[None, :]
    tl.store(out + to, best.to(out.dtype.element_ty), mask=keep)
    tl.store(corner + to, which.to(tl.int8), mask=keep)


@triton.jit
def conv_inputs(
    dy, x, s, dx, live,
    P: constexpr, WEIGHT: constexpr,
    B: constexpr, H: constexpr, W: constexpr, C: constexpr, N: constexpr, KH: constexpr, KW: constexpr,
    OH: constexpr, OW: constexpr, ROWS: constexpr, IP: constexpr,
):  # fmt: skip
    """The gradient of a convolution's inputs, zero where the ReLU that made them was.

    Rows are ordered by height first: a tile then needs only the taps that reach its few heights."""
    model = tl.program_id(1).to(tl.int64)
    if model >= tl.load(live):
        return
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)
    there = row < B * H * W
    y = row // (B * W)
    image = row // W % B
    px = row % W
    c = tl.arange(0, C)
    n = tl.arange(0, N)
    low = tl.maximum(first // (B * W) - (OH - 1), 0)
    high = tl.minimum(tl.minimum(first + ROWS - 1, B * H * W - 1) // (B * W), KH - 1)
    base = dy + model * (B * OH * OW * N) + ((image * OH + y) * OW + px)[:, None] * N + n[None, :]
    taps = s + model * P + WEIGHT + c[None, :] * N + n[:, None]
    total = tl.zeros([ROWS, C], tl.float32)
    for tap in range(low * KW, (high + 1) * KW):
        ky = tap // KW
        kx = tap % KW
        inside = there & (y >= ky) & (y - ky < OH) & (px >= kx) & (px - kx < OW)
        slope = tl.load(base - (ky * OW + kx) * N, mask=inside[:, None], other=0.0)
        total = tl.dot(slope, tl.load(taps + tap * (C * N)), total, input_precision=IP)
    to = model * (B * H * W * C) + ((image * H + y) * W + px)[:, None] * C + c[None, :]
    active = tl.load(x + to, mask=there[:, None], other=0.0) > 0
    tl.store(dx + to, tl.where(active, total, 0.0).to(dx.dtype.element_ty), mask=there[:, None])


@triton.jit
def conv_weights(
    x, picks, dy, corner, w, s, velocity, start, rate, live,
    P: constexpr, WEIGHT: constexpr,
    B: constexpr, H: constexpr, W: constexpr, C: constexpr, N: constexpr, OH: constexpr, OW: constexpr,
    OUTER: constexpr, INNER: constexpr, GATHER: constexpr, POOLED: constexpr, ROWS: constexpr, IP: constexpr,
    MOMENTUM: constexpr, DECAY: constexpr, PULL: constexpr, COPY: constexpr,
):  # fmt: skip
    """A step for five taps of a convolution: those at `INNER` elements from each other, `OUTER` from group to group.

    With POOLED, `dy` and `corner` are those of the pooled outputs, (OH, OW), else `dy` of all outputs."""
    model = tl.program_id(1).to(tl.int64)
    if model >= tl.load(live):
        return
    group = tl.program_id(0)
    c = tl.arange(0, C)
    n = tl.arange(0, N)
    # [N, C] accumulators: the tensor cores want the larger side first.
    t0 = tl.zeros([N, C], tl.float32)
    t1 = tl.zeros([N, C], tl.float32)
    t2 = tl.zeros([N, C], tl.float32)
    t3 = tl.zeros([N, C], tl.float32)
    t4 = tl.zeros([N, C], tl.float32)
    dy += model * (B * OH * OW * N)
    for first in range(0, B * OH * OW, ROWS):
        row = first + tl.arange(0, ROWS)
        there = row < B * OH * OW
        keep = there[:, None]
        image = row // (OH * OW)
        y = row // OW % OH
        px = row % OW
        if GATHER:
            pick = tl.maximum(tl.load(picks + model * B + image, mask=there, other=0), 0).to(tl.int64)
        else:
            pick = model * B + image
        to = row[:, None] * N + n[None, :]
        slope = tl.load(dy + to, mask=keep, other=0.0)
        if POOLED:
            which = tl.load(corner + model * (B * OH * OW * N) + to, mask=keep, other=0)
            base = x + (pick * (H * W * C) + (2 * y * W + 2 * px) * C)[:, None] + c[None, :] + group * OUTER
            for k in tl.static_range(4):
                part = tl.trans(tl.where(which == k, slope, 0.0).to(slope.dtype))
                at = base + (k // 2 * W + k % 2) * C
                t0 = tl.dot(part, tl.load(at, mask=keep, other=0.0), t0, input_precision=IP)
                t1 = tl.dot(part, tl.load(at + INNER, mask=keep, other=0.0), t1, input_precision=IP)
                t2 = tl.dot(part, tl.load(at + 2 * INNER, mask=keep, other=0.0), t2, input_precision=IP)
                t3 = tl.dot(part, tl.load(at + 3 * INNER, mask=keep, other=0.0), t3, input_precision=IP)
                t4 = tl.dot(part, tl.load(at + 4 * INNER, mask=keep, other=0.0), t4, input_precision=IP)
        else:
            at = x + (pick * (H * W * C) + (y * W + px) * C)[:, None] + c[None, :] + group * OUTER
            part = tl.trans(slope)
            t0 = tl.dot(part, tl.load(at, mask=keep, other=0.0), t0, input_precision=IP)
            t1 = tl.dot(part, tl.load(at + INNER, mask=keep, other=0.0), t1, input_precision=IP)
            t2 = tl.dot(part, tl.load(at + 2 * INNER, mask=keep, other=0.0), t2, input_precision=IP)
            t3 = tl.dot(part, tl.load(at + 3 * INNER, mask=keep, other=0.0), t3, input_precision=IP)
            t4 = tl.dot(part, tl.load(at + 4 * INNER, mask=keep, other=0.0), t4, input_precision=IP)
    lr = tl.load(rate + model)
    at = model * P + WEIGHT + group * (5 * C * N) + c[None, :] * N + n[:, None]
    apply(w, s, velocity, start, at, t0, None, lr, MOMENTUM, DECAY, PULL, COPY)
    apply(w, s, velocity, start, at + C * N, t1, None, lr, MOMENTUM, DECAY, PULL, COPY)
    apply(w, s, velocity, start, at + 2 * C * N, t2, None, lr, MOMENTUM, DECAY, PULL, COPY)
    apply(w, s, velocity, start, at + 3 * C * N, t3, None, lr, MOMENTUM, DECAY, PULL, COPY)
    apply(w, s, velocity, start, at + 4 * C * N, t4, None, lr, MOMENTUM, DECAY, PULL, COPY)


@triton.jit
def biases(
    dy, w, s, velocity, start, rate, live, P: constexpr, BIAS: constexpr, R: constexpr, N: constexpr, ROWS: constexpr,
    MOMENTUM: constexpr, DECAY: constexpr, PULL: constexpr, COPY: constexpr,
):  # fmt: skip
    """A step for the biases of a convolution: the sum of R rows of gradients."""
    model = tl.program_id(0).to(tl.int64)
    if model >= tl.load(live):
        return
    n = tl.arange(0, N)
    total = tl.zeros([ROWS, N], tl.float32)
    for first in range(0, R, ROWS):
        row = first + tl.arange(0, ROWS)
        at = dy + model * (R * N) + row[:, None] * N + n[None, :]
        total += tl.load(at, mask=(row < R)[:, None], other=0.0).to(tl.float32)
    lr = tl.load(rate + model)
    apply(w, s, velocity, start, model * P + BIAS + n, tl.sum(total, 0), None, lr, MOMENTUM, DECAY, PULL, COPY)


@triton.jit
def dense_forward(
    x, w, s, out, live, P: constexpr, WEIGHT: constexpr, BIAS: constexpr,
    B: constexpr, BP: constexpr, K: constexpr, N: constexpr, BK: constexpr, BN: constexpr, IP: constexpr,
):  # fmt: skip
    """relu(x @ weight + bias) for BN of N outputs; `x` has B rows, `out` BP."""
    model = tl.program_id(1).to(tl.int64)
    if model >= tl.load(live):
        return
    b = tl.arange(0, BP)
    k = tl.arange(0, BK)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros([BP, BN], tl.float32)
    for first in range(0, K, BK):
        inside = first + k < K
        at = x + model * (B * K) + b[:, None] * K + first + k[None, :]
        rows = tl.load(at, mask=(b < B)[:, None] & inside[None, :], other=0.0)
        at = s + model * P + WEIGHT + (first + k)[:, None] * N + n[None, :]
        total = tl.dot(rows, tl.load(at, mask=inside[:, None], other=0.0), total, input_precision=IP)
    total = tl.maximum(total + tl.load(w + model * P + BIAS + n)[None, :], 0.0)
    tl.store(out + model * (BP * N) + b[:, None] * N + n[None, :], total.to(out.dtype.element_ty))


@triton.jit
def last_layers(
    h, w, s, model, P: constexpr, WEIGHT2: constexpr, BIAS2: constexpr, WEIGHT3: constexpr, BIAS3: constexpr,
    BP: constexpr, D1: constexpr, D2: constexpr, D3: constexpr, BK: constexpr, IP: constexpr,
):  # fmt: skip
    """What the ReLU before the last layer lets through, that layer's weights, and the logits."""
    row = model * P
    b = tl.arange(0, BP)
    k = tl.arange(0, BK)
    n2 = tl.arange(0, D2)
    n3 = tl.arange(0, D3)
    total = tl.zeros([BP, D2], tl.float32)
    for first in range(0, D1, BK):
        rows = tl.load(h + model * (BP * D1) + b[:, None] * D1 + first + k[None, :])
        weight = tl.load(s + row + WEIGHT2 + (first + k)[:, None] * D2 + n2[None, :])
        total = tl.dot(rows, weight, total, input_precision=IP)
    h2 = tl.maximum(total + tl.load(w + row + BIAS2 + n2)[None, :], 0.0).to(h.dtype.element_ty)
    weight3 = tl.load(s + row + WEIGHT3 + n2[:, None] * D3 + n3[None, :])
    z = tl.dot(h2, weight3, input_precision=IP) + tl.load(w + row + BIAS3 + n3)[None, :]
    return h2, weight3, z


@triton.jit
def logits(
    h, w, s, out, live, P: constexpr, WEIGHT2: constexpr, BIAS2: constexpr, WEIGHT3: constexpr, BIAS3: constexpr,
    B: constexpr, BP: constexpr, D1: constexpr, D2: constexpr, D3: constexpr, CLASSES: constexpr, BK: constexpr,
    IP: constexpr,
):  # fmt: skip
    """The last two layers alone: (B, CLASSES) for each network."""
    model = tl.program_id(0).to(tl.int64)
    if model >= tl.load(live):
        return
    _, _, z = last_layers(h, w, s, model, P, WEIGHT2, BIAS2, WEIGHT3, BIAS3, BP, D1, D2, D3, BK, IP)
    b = tl.arange(0, BP)
    n3 = tl.arange(0, D3)
    to = out + model * (B * CLASSES) + b[:, None] * CLASSES + n3[None, :]
    tl.store(to, z, mask=(b < B)[:, None] & (n3 < CLASSES)[None, :])


@triton.jit
def head(
    h, dh, picks, labels, table, sums, counts, w, s, velocity, start, rate, live,
    P: constexpr, WEIGHT2: constexpr, BIAS2: constexpr, WEIGHT3: constexpr, BIAS3: constexpr,
    B: constexpr, BP: constexpr, D1: constexpr, D2: constexpr, D3: constexpr, CLASSES: constexpr, BK: constexpr,
    TEACH: constexpr, COLLECT: constexpr, IP: constexpr,
    MOMENTUM: constexpr, DECAY: constexpr, PULL: constexpr, COPY: constexpr,
):  # fmt: skip
    """The last two layers, the loss, their step, and the gradient `dh` of what the ReLU before them let through."""
    model = tl.program_id(0).to(tl.int64)
    if model >= tl.load(live):
        return
    row = model * P
    b = tl.arange(0, BP)
    k = tl.arange(0, BK)
    n2 = tl.arange(0, D2)
    n3 = tl.arange(0, D3)
    pick = tl.load(picks + model * B + b, mask=b < B, other=-1)
    there = pick >= 0
    y = tl.load(labels + tl.maximum(pick, 0), mask=there, other=0)
    h2, weight3, z = last_layers(h, w, s, model, P, WEIGHT2, BIAS2, WEIGHT3, BIAS3, BP, D1, D2, D3, BK, IP)
    at3 = row + WEIGHT3 + n2[:, None] * D3 + n3[None, :]

    slope = slope_of_loss(z, y, there, table, sums, counts, model, CLASSES, D3, TEACH, COLLECT)
    lr = tl.load(rate + model)
    narrow = slope.to(h.dtype.element_ty)
    grad3 = tl.dot(tl.trans(h2), narrow, input_precision=IP)
    slope2 = tl.where(h2 > 0, tl.dot(narrow, tl.trans(weight3), input_precision=IP), 0.0)
    # All threads have read the old weights before any of them writes new ones.
    tl.debug_barrier()
    apply(w, s, velocity, start, at3, grad3, None, lr, MOMENTUM, DECAY, PULL, COPY)
    apply(w, s, velocity, start, row + BIAS3 + n3, tl.sum(slope, 0), None, lr, MOMENTUM, DECAY, PULL, COPY)
    apply(w, s, velocity, start, row + BIAS2 + n2, tl.sum(slope2, 0), None, lr, MOMENTUM, DECAY, PULL, COPY)
    narrow2 = slope2.to(h.dtype.element_ty)
    for first in range(0, D1, BK):
        at = model * (BP * D1) + b[:, None] * D1 + first + k[None, :]
        rows = tl.load(h + at)
        at2 = row + WEIGHT2 + (first + k)[:, None] * D2 + n2[None, :]
        below = tl.dot(narrow2, tl.trans(tl.load(s + at2)), input_precision=IP)
        tl.store(dh + at, tl.where(rows > 0, below, 0.0).to(dh.dtype.element_ty))
        grad2 = tl.dot(tl.trans(rows), narrow2, input_precision=IP)
        tl.debug_barrier()
        apply(w, s, velocity, start, at2, grad2, None, lr, MOMENTUM, DECAY, PULL, COPY)


@triton.jit
def dense_backward(
    x, corner, dh, dy, w, s, velocity, start, rate, live,
    P: constexpr, WEIGHT: constexpr, BIAS: constexpr, B: constexpr, BP: constexpr, K: constexpr, N: constexpr,
    C: constexpr, PH: constexpr, PW: constexpr, BK: constexpr, BN: constexpr, IP: constexpr,
    MOMENTUM: constexpr, DECAY: constexpr, PULL: constexpr, COPY: constexpr,
):  # fmt: skip
    """A step for BK inputs of the first dense layer, and their gradient through ReLU and pooling to all outputs of the
    convolution before it."""
    model = tl.program_id(1).to(tl.int64)
    if model >= tl.load(live):
        return
    b = tl.arange(0, BP)
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    n = tl.arange(0, BN)
    lr = tl.load(rate + model)
    keep = (b < B)[:, None] & (k < K)[None, :]
    at = model * (B * K) + b[:, None] * K + k[None, :]
    rows = tl.load(x + at, mask=keep, other=0.0)
    total = tl.zeros([BP, BK], tl.float32)
    for first in range(0, N, BN):
        slope = tl.load(dh + model * (BP * N) + b[:, None] * N + first + n[None, :])
        # K is padded to a multiple of BK in the parameters' row, so no mask is needed.
        to = model * P + WEIGHT + k[:, None] * N + first + n[None, :]
        total = tl.dot(slope, tl.trans(tl.load(s + to)), total, input_precision=IP)
        grad = tl.dot(tl.trans(rows), slope, input_precision=IP)
        tl.debug_barrier()
        apply(w, s, velocity, start, to, grad, None, lr, MOMENTUM, DECAY, PULL, COPY)
        if tl.program_id(0) == 0:
            sum_ = tl.sum(slope.to(tl.float32), 0)
            apply(w, s, velocity, start, model * P + BIAS + first + n, sum_, None, lr, MOMENTUM, DECAY, PULL, COPY)
    total = tl.where(rows > 0, total, 0.0)
    which = tl.load(corner + at, mask=keep, other=0)
    pixel = k // C
    place = (pixel // PW * 2 * (2 * PW) + pixel % PW * 2) * C + k % C
    base = dy + model * (B * 4 * PH * PW * C) + b[:, None] * (4 * PH * PW * C) + place[None, :]
    for corner_ in tl.static_range(4):
        value = tl.where(which == corner_, total, 0.0).to(dy.dtype.element_ty)
        tl.store(base + (corner_ // 2 * 2 * PW + corner_ % 2) * C, value, mask=keep)
