"""The `pipecycle` command."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from pipecycle import __version__
from pipecycle.commands import comparing, planning, reproducing, running, sweeping, theorising
from pipecycle.commands.deploying import app as deploy_app
from pipecycle.commands.shared import SAID
from pipecycle.data.commands import app as data_app
from pipecycle.errors import InputError
from pipecycle.report.commands import figures, report, tables
from pipecycle.stopping import Terminated, terminate

app = typer.Typer(
    name="pipecycle",
    help="Federated learning on harvested energy: plan who trains when, and see what each unit of energy buys.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app, name="data", help="Data sets and how they are split between clients.")
app.add_typer(deploy_app, name="deploy", help="A live federation over Flower, on this machine or on many.")
for command in (
    planning.plan,
    running.run,
    comparing.compare,
    sweeping.sweep,
    reproducing.reproduce,
    report,
    figures,
    tables,
    theorising.theory,
    planning.show,
    planning.diff,
    planning.policies,
    sweeping.config,
):
    app.command()(command)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"pipecycle {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version.")
    ] = False,
) -> None:
    """Federated learning on harvested energy: plan who trains when, and see what each unit of energy buys."""


_USAGE_ERRORS: tuple[type[Exception], ...] = tuple(
    kind
    for kind in typer.BadParameter.__mro__
    if kind not in (Exception, BaseException, object) and issubclass(kind, Exception)
)


def main() -> None:
    """Run the command; a mistake of the user's is one sentence on stderr and exit code 2."""
    signal.signal(signal.SIGTERM, terminate)
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        code = _refuse(str(error))
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    except Terminated:
        code = 143
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except _USAGE_ERRORS as error:
        code = _refuse(error.format_message() if hasattr(error, "format_message") else str(error))
    if code in (130, 143):
        print("pipecycle: stopped; nothing is half-written, and the same command begins again", file=sys.stderr)
    sys.exit((code or 0) % SAID)


def _refuse(message: str) -> int:
    print(f"pipecycle: {' '.join(message.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
