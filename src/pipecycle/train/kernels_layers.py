# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Triton kernels for what stands between the products of a network: samples, pooling, norms, sums and the loss.

Every program works for one session, `model`; activations are (sample, pixel, channel)."""

from __future__ import annotations

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from triton.language import constexpr

from pipecycle.train.kernels_product import bent, give, slope_of


@triton.jit
def cut(
    images, picks, views, black, out, step, live, sessions,
    B: constexpr, H: constexpr, W: constexpr, C: constexpr, FRAME: constexpr, VIEWS: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """The samples of a step, or views of them, out of images (n, H, W, C); `pipecycle.data.augment` says how a view is
    numbered."""
    model = tl.program_id(1).to(tl.int64)
    if model >= tl.load(live):
        return
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < B * H * W * C
    which = (tl.load(step).to(tl.int64) * sessions + model) * B + at // (H * W * C)
    pick = tl.maximum(tl.load(picks + which, mask=there, other=0), 0).to(tl.int64)
    y = at // (W * C) % H
    x = at // C % W
    c = at % C
    if VIEWS:
        view = tl.load(views + which, mask=there, other=0)
        x = tl.where(view % 2 == 1, W - 1 - x, x) + view // 2 % (2 * FRAME + 1) - FRAME
        y = y + view // 2 // (2 * FRAME + 1) - FRAME
        inside = there & (y >= 0) & (y < H) & (x >= 0) & (x < W)
        value = tl.load(images + pick * (H * W * C) + (y * W + x) * C + c, mask=inside, other=0.0)
        value = tl.where(inside, value, tl.load(black + c))
    else:
        value = tl.load(images + pick * (H * W * C) + (y * W + x) * C + c, mask=there, other=0.0)
    tl.store(out + model * (B * H * W * C) + at, value, mask=there)


@triton.jit
def pool(
    x, y, which, live,
    B: constexpr, H: constexpr, W: constexpr, C: constexpr, REAL: constexpr, KH: constexpr, KW: constexpr,
    OH: constexpr, OW: constexpr, SY: constexpr, SX: constexpr, PY: constexpr, PX: constexpr,
    LARGEST: constexpr, COUNTED: constexpr, KIND: constexpr, ALPHA: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """The largest value of each window and which it was, or the mean."""
    model = tl.program_id(1).to(tl.int64)
    if model >= tl.load(live):
        return
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < B * OH * OW * C
    image = at // (OH * OW * C)
    top = at // (OW * C) % OH * SY - PY
    left = at // C % OW * SX - PX
    c = at % C
    x += model * (B * H * W * C)
    best = tl.full([BLOCK], float("-inf") if LARGEST else 0.0, tl.float32)
    found = tl.zeros([BLOCK], tl.int32)
    for tap in range(KH * KW):
        down = top + tap // KW
        along = left + tap % KW
        inside = there & (down >= 0) & (down < H) & (along >= 0) & (along < W)
        value = tl.load(x + ((image * H + down) * W + along) * C + c, mask=inside, other=0.0).to(tl.float32)
        if LARGEST:
            more = inside & (value > best)
            best = tl.where(more, value, best)
            found = tl.where(more, tap, found)
        else:
            best += tl.where(inside, value, 0.0)
            found += inside.to(tl.int32)
    to = model * (B * OH * OW * C) + at
    if LARGEST:
        tl.store(which + to, found.to(tl.int8), mask=there)
    elif COUNTED:
        best = best / (KH * KW)
    else:
        best = best / tl.maximum(found, 1).to(tl.float32)
    best = tl.where(c < REAL, bent(best, KIND, ALPHA), 0.0)
    tl.store(y + to, best.to(y.dtype.element_ty), mask=there)


@triton.jit
def pool_inputs(
    dy, which, x, dx, live,
    B: constexpr, H: constexpr, W: constexpr, C: constexpr, KH: constexpr, KW: constexpr,
    OH: constexpr, OW: constexpr, SY: constexpr, SX: constexpr, PY: constexpr, PX: constexpr,
    LARGEST: constexpr, COUNTED: constexpr, MORE: constexpr, KIND: constexpr, ALPHA: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """The gradient of inputs: each asks all windows that it lies in."""
    model = tl.program_id(1).to(tl.int64)
    if model >= tl.load(live):
        return
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < B * H * W * C
    image = at // (H * W * C)
    y = at // (W * C) % H + PY
    px = at // C % W + PX
    c = at % C
    out = model * (B * OH * OW * C)
    total = tl.zeros([BLOCK], tl.float32)
    for tap in range(KH * KW):
        down = y - tap // KW
        along = px - tap % KW
        inside = there & (down >= 0) & (along >= 0) & (down % SY == 0) & (along % SX == 0)
        down = down // SY
        along = along // SX
        inside = inside & (down < OH) & (along < OW)
        to = out + ((image * OH + down) * OW + along) * C + c
        slope = tl.load(dy + to, mask=inside, other=0.0).to(tl.float32)
        if LARGEST:
            mine = tl.load(which + to, mask=inside, other=-1) == tap
            total += tl.where(mine, slope, 0.0)
        elif COUNTED:
            total += slope / (KH * KW)
        else:
            high = tl.minimum(down * SY - PY + KH, H) - tl.maximum(down * SY - PY, 0)
            wide = tl.minimum(along * SX - PX + KW, W) - tl.maximum(along * SX - PX, 0)
            total += slope / tl.maximum(high * wide, 1).to(tl.float32)
    own = model * (B * H * W * C)
    give(dx + own, x + own, at, total, there, MORE, KIND, ALPHA)


@triton.jit
def spread(values, c, GROUPS: constexpr, EACH: constexpr):
    """The mean of each channel's group, of numbers that are 0 where there is no channel."""
    if GROUPS == 1:
        out = tl.zeros_like(values) + tl.sum(values, 0)
    else:
        same = (c // EACH)[:, None] == (c // EACH)[None, :]
        out = tl.sum(tl.where(same, values[:, None], 0.0), 0)
    return out / EACH


@triton.jit
def norm(
    x, y, kept, w, live, weight, shift,
    P: constexpr, B: constexpr, PIXELS: constexpr, C: constexpr, GROUPS: constexpr, EACH: constexpr, EPS: constexpr,
    AFFINE: constexpr, KIND: constexpr, ALPHA: constexpr, CP: constexpr, ROWS: constexpr,
):  # fmt: skip
    """One sample: means and deviations of groups in two passes, then the values."""
    model = tl.program_id(1).to(tl.int64)
    if model >= tl.load(live):
        return
    sample = tl.program_id(0)
    c = tl.arange(0, CP)
    real = c < GROUPS * EACH
    base = (model * B + sample) * (PIXELS * C)
    total = tl.zeros([ROWS, CP], tl.float32)
    for first in range(0, PIXELS, ROWS):
        row = first + tl.arange(0, ROWS)
        keep = (row < PIXELS)[:, None] & real[None, :]
        total += tl.load(x + base + row[:, None] * C + c[None, :], mask=keep, other=0.0).to(tl.float32)
    mean = spread(tl.sum(total, 0), c, GROUPS, EACH) / PIXELS
    total = tl.zeros([ROWS, CP], tl.float32)
    for first in range(0, PIXELS, ROWS):
        row = first + tl.arange(0, ROWS)
        keep = (row < PIXELS)[:, None] & real[None, :]
        value = tl.load(x + base + row[:, None] * C + c[None, :], mask=keep, other=0.0).to(tl.float32)
        total += tl.where(keep, (value - mean[None, :]) * (value - mean[None, :]), 0.0)
    scale = 1.0 / tl.sqrt(spread(tl.sum(total, 0), c, GROUPS, EACH) / PIXELS + EPS)
    to = kept + (model * 4 * B + sample) * C + c
    tl.store(to, mean, mask=real)
    tl.store(to + B * C, scale, mask=real)
    factor = tl.full([CP], 1.0, tl.float32)
    move = tl.zeros([CP], tl.float32)
    if AFFINE:
        factor = tl.load(w + model * P + weight + c, mask=real, other=0.0)
        move = tl.load(w + model * P + shift + c, mask=real, other=0.0)
    for first in range(0, PIXELS, ROWS):
        row = first + tl.arange(0, ROWS)
        keep = (row < PIXELS)[:, None] & (c < C)[None, :]
        at = base + row[:, None] * C + c[None, :]
        value = tl.load(x + at, mask=keep, other=0.0).to(tl.float32)
        value = bent((value - mean[None, :]) * scale[None, :] * factor[None, :] + move[None, :], KIND, ALPHA)
        tl.store(y + at, tl.where(real[None, :], value, 0.0).to(y.dtype.element_ty), mask=keep)


@triton.jit
def norm_inputs(
    dy, x, dx, kept, w, live, weight,
    P: constexpr, B: constexpr, PIXELS: constexpr, C: constexpr, GROUPS: constexpr, EACH: constexpr,
    AFFINE: constexpr, GIVES: constexpr, MORE: constexpr, KIND: constexpr, ALPHA: constexpr, CP: constexpr,
    ROWS: constexpr,
):  # fmt: skip
    """One sample: its part in the gradients of factors and shifts, kept beside its means, and that of its inputs."""
    model = tl.program_id(1).to(tl.int64)
    if model >= tl.load(live):
        return
    sample = tl.program_id(0)
    c = tl.arange(0, CP)
    real = c < GROUPS * EACH
    base = (model * B + sample) * (PIXELS * C)
    own = kept + (model * 4 * B + sample) * C + c
    mean = tl.load(own, mask=real, other=0.0)
    scale = tl.load(own + B * C, mask=real, other=0.0)
    along = tl.zeros([ROWS, CP], tl.float32)
    total = tl.zeros([ROWS, CP], tl.float32)
    for first in range(0, PIXELS, ROWS):
        row = first + tl.arange(0, ROWS)
        keep = (row < PIXELS)[:, None] & real[None, :]
        at = base + row[:, None] * C + c[None, :]
        slope = tl.load(dy + at, mask=keep, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=keep, other=0.0).to(tl.float32)
        total += slope
        along += slope * (value - mean[None, :]) * scale[None, :]
    factors = tl.sum(along, 0)
    shifts = tl.sum(total, 0)
    factor = tl.full([CP], 1.0, tl.float32)
    if AFFINE:
        factor = tl.load(w + model * P + weight + c, mask=real, other=0.0)
        tl.store(own + 2 * B * C, factors, mask=real)
        tl.store(own + 3 * B * C, shifts, mask=real)
    if GIVES:
        pull = spread(factors * factor, c, GROUPS, EACH) / PIXELS
        level = spread(shifts * factor, c, GROUPS, EACH) / PIXELS
        for first in range(0, PIXELS, ROWS):
            row = first + tl.arange(0, ROWS)
            keep = (row < PIXELS)[:, None] & (c < C)[None, :]
            at = base + row[:, None] * C + c[None, :]
            slope = tl.load(dy + at, mask=keep, other=0.0).to(tl.float32)
            value = tl.load(x + at, mask=keep, other=0.0).to(tl.float32)
            plain = (value - mean[None, :]) * scale[None, :]
            part = (slope * factor[None, :] - level[None, :] - plain * pull[None, :]) * scale[None, :]
            give(dx, x, at, tl.where(real[None, :], part, 0.0), keep, MORE, KIND, ALPHA)


@triton.jit
def join(
    x, other, y, live, COUNT: constexpr, WIDTH: constexpr, CHANNELS: constexpr, REAL: constexpr, OFFSET: constexpr,
    TWO: constexpr, MORE: constexpr, OWN: constexpr, OWN_ALPHA: constexpr, KIND: constexpr, ALPHA: constexpr,
    BLOCK: constexpr,
):  # fmt: skip
    """A value, or the sum of two, into channels from OFFSET on of the result."""
    model = tl.program_id(1).to(tl.int64)
    if model >= tl.load(live):
        return
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < COUNT * WIDTH
    c = OFFSET + at % WIDTH
    to = y + model * (COUNT * CHANNELS) + at // WIDTH * CHANNELS + c
    value = bent(tl.load(x + model * (COUNT * WIDTH) + at, mask=there, other=0.0).to(tl.float32), OWN, OWN_ALPHA)
    if TWO:
        value += tl.load(other + model * (COUNT * WIDTH) + at, mask=there, other=0.0).to(tl.float32)
    if MORE:
        value += tl.load(to, mask=there, other=0.0).to(tl.float32)
    value = tl.where(c < REAL, bent(value, KIND, ALPHA), 0.0)
    tl.store(to, value.to(y.dtype.element_ty), mask=there)


@triton.jit
def join_inputs(
    dy, x, dx, live, COUNT: constexpr, WIDTH: constexpr, CHANNELS: constexpr, OFFSET: constexpr,
    OWN: constexpr, OWN_ALPHA: constexpr, MORE: constexpr, KIND: constexpr, ALPHA: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """The gradient of one of the values of `join`."""
    model = tl.program_id(1).to(tl.int64)
    if model >= tl.load(live):
        return
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < COUNT * WIDTH
    place = dy + model * (COUNT * CHANNELS) + at // WIDTH * CHANNELS + OFFSET + at % WIDTH
    value = tl.load(place, mask=there, other=0.0).to(tl.float32)
    own = model * (COUNT * WIDTH)
    if OWN != 0:
        value *= slope_of(tl.load(x + own + at, mask=there, other=0.0).to(tl.float32), OWN, OWN_ALPHA)
    give(dx + own, x + own, at, value, there, MORE, KIND, ALPHA)


@triton.jit
def slope_of_loss(
    logits, y, there, table, sums, counts, model,
    CLASSES: constexpr, N: constexpr, TEACH: constexpr, COLLECT: constexpr,
):  # fmt: skip
    """The gradient of a session's loss by its logits (N of them, CLASSES without padding) of samples with labels `y`,
    as far as they are `there`; sums of logits by label are added to."""
    n = tl.arange(0, N)
    inside = (n < CLASSES)[None, :]
    rows = there[:, None] & inside
    shifted = tl.where(inside, logits, float("-inf"))
    shares = tl.exp(shifted - tl.max(shifted, 1)[:, None])
    shares = shares / tl.sum(shares, 1)[:, None]
    if TEACH:
        row = table + model * (CLASSES * CLASSES) + y[:, None] * CLASSES + n[None, :]
        target = tl.load(row, mask=rows, other=0.0)
        slope = shares * tl.sum(target, 1)[:, None] - target
    else:
        slope = shares - tl.where(n[None, :] == y[:, None], 1.0, 0.0)
    if COLLECT:
        seen = tl.where(rows, logits, 0.0)
        for first in range(0, N, 16):  # as few labels at a time as a product takes: all N would take minutes to compile
            some = first + tl.arange(0, 16)
            label = tl.where((some[None, :] == y[:, None]) & there[:, None], 1.0, 0.0)
            to = sums + model * (CLASSES * CLASSES) + some[:, None] * CLASSES + n[None, :]
            both = (some < CLASSES)[:, None] & inside
            more = tl.dot(tl.trans(label), seen, input_precision="ieee")
            tl.store(to, tl.load(to, mask=both, other=0.0) + more, mask=both)
            to_counts = counts + model * CLASSES + some
            before = tl.load(to_counts, mask=some < CLASSES, other=0.0)
            tl.store(to_counts, before + tl.sum(label, 0), mask=some < CLASSES)
    return tl.where(rows, slope / tl.sum(there.to(tl.float32), 0), 0.0)


@triton.jit
def loss(
    z, dz, picks, labels, table, sums, counts, step, live, sessions,
    B: constexpr, WIDTH: constexpr, CLASSES: constexpr, TEACH: constexpr, COLLECT: constexpr, KIND: constexpr,
    ALPHA: constexpr, BP: constexpr, CP: constexpr,
):  # fmt: skip
    """The gradient of the loss by the logits, and the sums of logits by label."""
    model = tl.program_id(1).to(tl.int64)
    if model >= tl.load(live):
        return
    b = tl.arange(0, BP)
    n = tl.arange(0, CP)
    at_step = (tl.load(step).to(tl.int64) * sessions + model) * B
    pick = tl.load(picks + at_step + b, mask=b < B, other=-1)
    there = pick >= 0
    y = tl.load(labels + tl.maximum(pick, 0), mask=there, other=0)
    at = b[:, None] * WIDTH + n[None, :]
    own = model * (B * WIDTH)
    logits = tl.load(z + own + at, mask=there[:, None] & (n < CLASSES)[None, :], other=0.0).to(tl.float32)
    slope = slope_of_loss(logits, y, there, table, sums, counts, model, CLASSES, CP, TEACH, COLLECT)
    give(dz + own, z + own, at, slope, (b < B)[:, None] & (n < WIDTH)[None, :], False, KIND, ALPHA)
