"""The page as one piece of HTML: served, or saved with its plans inside."""

from __future__ import annotations

import base64
import hashlib
import html
import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from pipecycle import __version__
from pipecycle.report.page import asset, document, inert_json
from pipecycle.report.styles import CHAINS, COLOURS
from pipecycle.studio.describe import describe
from pipecycle.studio.settings import DATA, Offer

SCRIPTS = (
    "base.js",
    "link.js",
    "wire.js",
    "controls.js",
    "canvas.js",
    "time.js",
    "pipeline.js",
    "battery.js",
    "charts.js",
    "words.js",
    "training.js",
    "main.js",
)
"""In the order of their use of each other."""


def page(
    offer: Offer,
    link: str,
    *,
    token: str = "",
    plans: Sequence[bytes] = (),
    curves: Sequence[Mapping[str, Any]] = (),
) -> tuple[str, str]:
    """The HTML, and the policy of what a browser may do with it.  With `plans` it is complete and asks nobody."""
    style = asset("page.css") + asset("studio.css", __package__)
    scripts = [asset(name, __package__) for name in SCRIPTS]
    start = {
        "version": __version__,
        "saved": bool(plans),
        "token": token,
        "link": link,
        "data": DATA,
        "fleet": offer.kept.get("world.fleet"),
        "again": _again(offer, link),
        "chains": CHAINS,
        "sides": COLOURS[:2],
        "curves": list(curves),
        **describe(offer),
    }
    allowed = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src {_hash(style)}; "
        f"img-src data: blob:; connect-src {_connect(plans)}; base-uri 'none'; form-action 'none'"
    )
    facts = {
        "title": "pipecycle studio",
        "policy": html.escape(allowed),
        "css": style,
        "start": inert_json(start),
        "plans": "".join(
            f'<script type="text/plain" class="plan">{base64.b64encode(plan).decode()}</script>' for plan in plans
        ),
        "scripts": "".join(f"<script>{script}</script>\n" for script in scripts),
    }
    return document(asset("studio.html", __package__), facts), f"{allowed}; frame-ancestors 'none'"


def _again(offer: Offer, link: str) -> str:
    """The command that opens this page to change its settings."""
    words = ["pipecycle", "studio", f"#{link}"]
    for flag, values in (("--policy", offer.policies), ("--harvest", offer.harvests)):
        words += [word for value in values if f"={value}" in unquote(link) for word in (flag, value)]
    fleet = offer.kept.get("world.fleet")
    return shlex.join([*words, *(() if fleet is None else ("--fleet", fleet))])


def _connect(plans: Sequence[bytes]) -> str:
    return "'none'" if plans else "'self'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
