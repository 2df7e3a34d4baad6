"""The Typer application ``regbayes`` and the exit codes of its errors."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from regbayes.cli import interrupts
from regbayes.cli.commands import COMMANDS, EPILOGS
from regbayes.cli.errors import ExitCode, StoppedError, UserError
from regbayes.cli.options import make_command

__all__ = ["main", "make_app"]


def make_app() -> typer.Typer:
    """Return the Typer application with all commands."""
    app = typer.Typer(
        name="regbayes",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, (run, request) in COMMANDS.items():
        app.command(epilog=f"**Examples**\n\n{EPILOGS[name]}")(make_command(request, _guard(run)))
    app.callback(epilog=f"**Where to start**\n\n{EPILOGS['regbayes']}")(_regbayes)
    return app


def _guard(run: Callable[..., None]) -> Callable[..., None]:
    """Turn Ctrl-C in a command into a `StoppedError`, because Typer would exit without a message."""

    @wraps(run)
    def guarded(request: Any) -> None:
        try:
            with interrupts.catch_signals():
                run(request)
        except KeyboardInterrupt:
            raise StoppedError("interrupted") from None

    return guarded


def _print_version(wanted: bool) -> None:
    if wanted:
        from regbayes import __version__

        print(f"regbayes {__version__}")
        raise typer.Exit


def _regbayes(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Learn latent features of rows, or topics of documents, that predict a target."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code; user errors have no traceback."""
    own_process = arguments is None
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the process that reads stdout has exited, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + 13
    except Exception as error:
        code = _explain(error, arguments)
    if own_process and code == ExitCode.INTERRUPTED:
        interrupts.ignore()
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    try:
        return int(make_app()(args=arguments, prog_name="regbayes", standalone_mode=True) or 0)
    except SystemExit as stop:
        _add_to_usage_error(stop, arguments)
        return int(stop.code or 0)


def _explain(error: Exception, arguments: list[str]) -> int:
    """Print the error and return its exit code; an error of unknown cause is reported as a bug."""
    if os.environ.get("REGBAYES_TRACEBACK"):
        raise error
    message = f"{type(error).__name__}: {error}. This is a bug in regbayes; REGBAYES_TRACEBACK=1 shows where"
    code = ExitCode.BUG
    if isinstance(error, UserError):
        message, code = str(error), error.exit_code
    elif isinstance(error, MemoryError):
        message, code = f"out of memory: {error}. Use fewer rows, columns or features", ExitCode.DATA
    elif isinstance(error, OSError):  # such as a full disk or a deleted file
        message, code = f"{error.filename or 'the output'}: {error.strerror or error}", ExitCode.USAGE
        if error.filename is None:  # stdout failed, so flushing it at exit would fail too
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    from rich.console import Console

    console = Console(file=sys.stderr)
    console.print("error: ", style="bold red", end="")
    console.print(message, markup=False, highlight=False, soft_wrap=True)
    if "--json" in arguments:
        print(json.dumps({"error": message, "exit_code": int(code)}))
    return int(code)


def _add_to_usage_error(stop: SystemExit, arguments: list[str]) -> None:
    """Add a hint to a usage error of Typer, and print both as JSON if ``--json`` was given."""
    message = getattr(stop.__context__, "format_message", None)
    if message is None:
        return
    said = message()
    if "extra argument" in said:
        hint = "One file, or one model and one file, and then options: a column to predict is --target COLUMN."
        print(hint, file=sys.stderr)
        said = f"{said}. {hint}"
    if "--json" in arguments:
        print(json.dumps({"error": said, "exit_code": stop.code}))
