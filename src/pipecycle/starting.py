"""Ctrl-C and SIGTERM while the command is being imported, before it can listen itself.  Importing this sets it up, so
it comes first and imports nothing that takes long."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

STOPPED = "pipecycle: stopped; no file is half-written. Run the same command to start again"


def _listen() -> None:
    """Where this process is the command, not a program that uses the library, both end it with a sentence."""
    program = os.path.basename(sys.argv[0]) if sys.argv else ""
    words = sys.orig_argv
    module = program == "-m" and "-m" in words and words[words.index("-m") + 1] == "pipecycle"
    if program == "pipecycle" or module:
        for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) is usual:
                signal.signal(number, _stop)


def _stop(number: int, _: object) -> NoReturn:
    """Nothing has begun: end at once, whatever is being imported."""
    os.write(2, f"{STOPPED}\n".encode())
    os._exit(128 + number)


_listen()
