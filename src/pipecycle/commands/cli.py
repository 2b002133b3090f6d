"""The `pipecycle` command."""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from pipecycle import __version__
from pipecycle.commands import comparing, planning, playing, running, sweeping, theorising
from pipecycle.commands.data import app as data_app
from pipecycle.commands.deploying import app as deploy_app
from pipecycle.commands.reporting import figures, report, tables
from pipecycle.commands.shared import SAID
from pipecycle.commands.usage import usage
from pipecycle.errors import LONGEST, InputError, own_code, sentence, shown
from pipecycle.files import reason, write
from pipecycle.starting import STOPPED
from pipecycle.stopping import Terminated, end_at_signals, obey_signals


def _reproduce() -> list[Any]:
    """The command of the paper's evaluation, which is an experiment beside the library, where it is installed."""
    if find_spec("pipecycle_paper") is None:
        return []
    from pipecycle_paper.command import reproduce

    return [reproduce]


app = typer.Typer(
    name="pipecycle",
    help="Federated learning on harvested energy: plan who trains when, and see what each unit of energy buys.",
    epilog="Start with `pipecycle plan pipecycle --groups 10`, which trains nothing, or `pipecycle compare`, which "
    "needs no data of yours. `pipecycle COMMAND --help` explains a command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
PANELS: dict[str, list[Any]] = {
    "Plan, without training": [planning.plan, playing.studio, planning.show, planning.diff, theorising.theory],
    "Train": [running.run, comparing.compare, sweeping.sweep, *_reproduce()],
    "Read what came out": [report, figures, tables],
    "Look up": [planning.policies, sweeping.config],
}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(data_app, name="data", rich_help_panel="Data and devices")
app.add_typer(
    deploy_app,
    name="deploy",
    help="Run a live federation over Flower, on this machine or on many.",
    rich_help_panel="Data and devices",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"pipecycle {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="With any command: show where an error comes from, line by line.")
    ] = False,
) -> None:
    """Federated learning on harvested energy: plan who trains when, and see what each unit of energy buys."""


_USAGE_ERRORS: tuple[type[Exception], ...] = tuple(
    kind
    for kind in typer.BadParameter.__mro__
    if kind not in (Exception, BaseException, object) and issubclass(kind, Exception)
)


@cache
def _command() -> Any:
    """Made once: it takes longer than most mistakes."""
    command = typer.main.get_command(app)
    _plain_help(command)
    return command


def _plain_help(command: Any) -> None:
    """In the help, a flag has no type beside it, and a paragraph is as wide as the screen, not as our source."""
    command.help = re.sub(r"(?<=\S)\n(?=\S)", " ", command.help or "")
    context = command.context_class(command, **command.context_settings)
    for option in [*command.params, command.get_help_option(context)]:
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        inner.context_settings.setdefault("help_option_names", ["-h", "--help"])
        _plain_help(inner)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command; a mistake of the user's is one sentence on stderr and exit code 2."""
    obey_signals()
    _open_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    wanted = [argument for argument in given if argument != "--debug"]
    code = 0
    try:
        _refuse_empty(wanted)
        code = _command()(wanted, standalone_mode=False) or 0
        sys.stdout.flush()
        end_at_signals()
    except BrokenPipeError:
        _give_up_stdout()
    except BaseException as error:  # a user's code may raise any kind
        end_at_signals(f"{STOPPED}\n")
        if wanted != given:
            traceback.print_exc()
        code = _exit_code(error, given)
    if code in (130, 143):
        print(STOPPED, file=sys.stderr)
        end_at_signals()
    sys.exit(code % SAID)


def _exit_code(error: BaseException, given: Sequence[str]) -> int:
    """Say what went wrong in one sentence; the exit code."""
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return 130
    if isinstance(error, Terminated):
        return 143
    message = _users_fault(error, given)
    if message is not None:
        if message:  # a command without arguments has printed its help, and there is no more to say
            print(f"pipecycle: {' '.join(message.split())}", file=sys.stderr)
        return 2
    if isinstance(error, SystemExit):
        raise error
    return _unexpected(error, given)


def _users_fault(error: BaseException, given: Sequence[str]) -> str | None:
    """The sentence about an error that the user can do something about."""
    if isinstance(error, InputError):
        return sentence(error)
    if isinstance(error, _USAGE_ERRORS):
        return usage(error, given)
    if own_code(error) is not None:
        return f"{sentence(error)} (--debug shows the traceback)"
    if isinstance(error, OSError) and error.strerror:
        where = "the working directory" if isinstance(error, FileNotFoundError) else "standard output"
        if error.filename is None:
            _give_up_stdout()  # it may be what cannot be written
        return f"{error.filename or where}: {reason(error)}"
    if isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error):
        return f"not enough memory: {shown(str(error) or 'smaller numbers may fit', LONGEST)}"
    return None


def _unexpected(error: BaseException, given: Sequence[str]) -> int:
    """Our own fault: the details go into a file that can be sent to us."""
    report = f"pipecycle {__version__}, Python {sys.version}\n{shlex.join(['pipecycle', *given])}\n\n"
    report += "".join(traceback.format_exception(error))
    name = f"pipecycle-error-{time.strftime('%Y%m%d-%H%M%S')}.txt"
    for folder in (Path(), Path(tempfile.gettempdir())):
        try:
            write(folder / name, report)
        except InputError:
            continue
        where = f"the details are in {folder / name}, please report them"
        break
    else:
        where = "please report it, with what --debug shows"
    print(f"pipecycle: an error in pipecycle itself ({sentence(error)}); {where}", file=sys.stderr)
    return 1


def _refuse_empty(arguments: Sequence[str]) -> None:
    """What an unset variable of a shell leaves; as a path it would mean the working directory."""
    for before, argument in pairwise(["", *arguments]):
        if not argument or (argument.startswith("--") and argument.endswith("=")):
            name = argument[:-1] or before or "the first argument"
            raise InputError(f"{name}: is empty, needs a value")


def _open_streams() -> None:
    """Streams that were closed go nowhere, and letters that a terminal does not have are question marks there."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (it stays open)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _give_up_stdout() -> None:
    """Nobody reads it, or it cannot be written: nothing more goes there, not even at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
