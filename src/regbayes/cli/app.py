"""The ``regbayes`` command: its commands, and what becomes of errors."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Annotated, Any

import typer

from regbayes.cli import interrupts
from regbayes.cli.errors import ExitCode, StoppedError, UserError
from regbayes.cli.options import make_command

__all__ = ["COMMANDS", "main", "make_app"]

EPILOG = """**Where to start**

`regbayes demo` fits a model to handwritten digits and writes a page about it.

Exit codes: 0 done, 1 a bug, 2 wrong usage, 3 the data, 4 the model file, 5 a package is not
installed, 130 interrupted."""

COMMANDS = {  # in the order of the help: where each is, and what it can be asked
    "demo": ("regbayes.cli.demo", "DemoRequest"),
    "fit": ("regbayes.cli.fit", "FitRequest"),
    "predict": ("regbayes.cli.predict", "PredictRequest"),
    "evaluate": ("regbayes.cli.evaluate", "EvaluateRequest"),
    "report": ("regbayes.cli.report", "ReportRequest"),
}


def make_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the application with some of its commands: one is made sooner than all."""
    app = typer.Typer(
        name="regbayes",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in names:
        home, request = COMMANDS[name]
        module = importlib.import_module(home)
        run = _guard(getattr(module, name))
        app.command(epilog=module.EPILOG)(make_command(getattr(module, request), run))
    app.callback(epilog=EPILOG)(_regbayes)
    return app


def _guard(run: Callable[..., None]) -> Callable[..., None]:
    """Turn Ctrl-C in a command into an error of ours; Typer would end it without a word."""

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
    """Learn readable features of rows, or topics of documents, that predict: fit, look, predict."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code; a user's mistake gets a message and no traceback."""
    own_process = arguments is None
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = _run(arguments)
        if own_process and code == ExitCode.INTERRUPTED:
            interrupts.ignore()
    except BrokenPipeError:  # whoever was reading has gone away, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + 13
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    try:
        app = make_app(arguments[:1] if arguments[:1] and arguments[0] in COMMANDS else COMMANDS)
        code = app(args=arguments, prog_name="regbayes", standalone_mode=True)
        sys.stdout.flush()
    except SystemExit as stop:
        _add_to_usage_error(stop, arguments)
        sys.stdout.flush()
        return int(stop.code or 0)
    except UserError as error:
        return _complain(str(error), error.exit_code, arguments)
    except BrokenPipeError:
        raise
    except Exception as error:
        if os.environ.get("REGBAYES_TRACEBACK"):
            raise
        message = f"{type(error).__name__}: {error}. This is a bug in regbayes; REGBAYES_TRACEBACK=1 shows where"
        return _complain(message, ExitCode.BUG, arguments)
    return int(code or 0)


def _add_to_usage_error(stop: SystemExit, arguments: list[str]) -> None:
    """Say what Typer, which has complained on stderr, does not know; and all of it as JSON, if that was asked for."""
    message = getattr(stop.__context__, "format_message", None)
    if message is None:
        return
    said = message()
    if "extra argument" in said:
        after_cv = arguments[arguments.index("--cv") + 1 :][:1] if "--cv" in arguments else []
        hint = "One file, or one model and one file, and then options: a column to predict is --target COLUMN."
        if after_cv and after_cv[0].isdigit():
            hint = f"--cv is on or off: --folds {after_cv[0]} says how many parts."
        print(hint, file=sys.stderr)
        said = f"{said}. {hint}"
    if "--json" in arguments:
        print(json.dumps({"error": said, "exit_code": stop.code}))


def _complain(message: str, code: ExitCode, arguments: list[str]) -> int:
    from rich.console import Console

    console = Console(file=sys.stderr)
    console.print("error: ", style="bold red", end="")
    console.print(message, markup=False, highlight=False, soft_wrap=True)
    if "--json" in arguments:
        print(json.dumps({"error": message, "exit_code": int(code)}))
    return int(code)
