# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""The Triton kernel that cuts the views of a step's images, in the form that the first convolution reads."""

from __future__ import annotations

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from triton.language import constexpr


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
