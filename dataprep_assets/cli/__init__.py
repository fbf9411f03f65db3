"""Build, validate and inspect training datasets.

`run` materializes through Dagster into the instance of DAGSTER_HOME, so that everything it did is visible in the UI;
`ui` serves that instance; the other commands do not write to it. Each command is a module with a function `command`.

Exit codes: 0 done; 1 the data or a check failed, or there is something to build; 2 wrong usage or configuration;
130 interrupted.
"""

import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from functools import partial, wraps
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from dataprep_assets import __version__
from dataprep_assets.bounds import Bounds, disable_core_dumps
from dataprep_assets.cli.support.arguments import Options
from dataprep_assets.cli.support.examples import EXAMPLES
from dataprep_assets.cli.support.project import get_privacy, scope_privacy, use_project
from dataprep_assets.cli.support.welcome import DOCS, format_welcome
from dataprep_assets.errors import ConfigError, DataprepError, os_error_reason
from dataprep_assets.execution.watch import read_process_start, run_bounded
from dataprep_assets.project import find_project
from dataprep_assets.screen import print_error, stop_waiting, wrap_output

# As in a shell, the last two codes are 128 plus the number of a signal (SIGPIPE and SIGINT).
FAILED, WRONG_USAGE, BROKEN_PIPE, INTERRUPTED = 1, 2, 141, 130
_HELP = "Build, validate and inspect training datasets."
_WITHOUT_ENVIRONMENT = {"init", "--help", "-h", "--version"}
_COMMANDS = {
    "init": "init",
    "list": "list_",
    "show": "show",
    "check": "check",
    "run": "run",
    "ui": "ui",
    "site": "site",
    "plan": "plan",
    "status": "status",
    "documents": "documents",
    "trace": "trace",
    "retract": "retract",
    "prune": "prune",
    "verify": "verify",
    "lock": "lock",
    "diff": "diff",
    "schedule": "training.schedule",
    "seen": "training.seen",
    "preflight": "preflight",
    "sync": "sync",
    "release": "training.release",
}
"""Command → its module in this package."""


class _ReaderGoneError(Exception):
    """Error for a pipe that its reader has closed, as in `dataprep status NAME | head`."""


class _InterruptedError(Exception):
    """Error for Ctrl-C, upon which typer itself would exit without a message."""


def _wrap_command(command: Callable[..., int]) -> Callable[..., int]:
    """Wrap a command so that closed output and Ctrl-C raise this module's errors; typer would exit the process."""

    @wraps(command)
    def run_guarded(*arguments: object, **options: object) -> int:
        try:
            code = command(*arguments, **options)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise _ReaderGoneError from error
        except KeyboardInterrupt as error:
            raise _InterruptedError from error
        return code

    return run_guarded


def create_app(names: Iterable[str] = tuple(_COMMANDS)) -> typer.Typer:
    """Return the command line with the commands of these names; each of their modules is imported."""
    app = typer.Typer(
        name="dataprep",
        help=_HELP,
        epilog=f"\b\nDocumentation: {DOCS}",  # `\b` prevents wrapping, which would break the address at a hyphen
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for name in names:
        command = import_module(f"{__name__}.{_COMMANDS[name]}").command
        # Use the docstring's whole first line, because click's default summary is truncated after a few words.
        # Without docstrings (`python -OO`), the list of commands has no descriptions.
        summary = (command.__doc__ or " ").splitlines()[0]
        # Begin with a line of only `\b`, because click otherwise joins the lines of the following paragraph.
        epilog = "\n".join(["\b", "Examples:", *(f"  {line}" for line in EXAMPLES[name])])
        app.command(name, short_help=summary, epilog=epilog)(_wrap_command(command))
    app.callback(invoke_without_command=True)(_set_global_options)
    return app


def _find_commands(words: list[str]) -> Iterable[str]:
    """Return the command that these words call, so that only its module is imported; all for help and for mistakes."""
    remaining = iter(words)
    for word in remaining:
        if word == "--project":
            next(remaining, None)
        elif not word.startswith("-"):
            return (word,) if word in _COMMANDS else _COMMANDS
    return _COMMANDS


def _set_global_options(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--project",
            metavar="DIR",
            help="Use this project folder. [default: the project that contains the current directory]",
        ),
    ] = None,
    _verbose: Annotated[bool, typer.Option("--verbose", help="Also show the Python traceback of an error.")] = False,
    _quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors and warnings, to standard error.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        print(f"dataprep-assets {__version__}")
        raise typer.Exit
    if folder is not None:
        use_project(folder)
    if context.invoked_subcommand is None:
        print("\n".join(format_welcome()))


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, run one command, and return its exit code. Errors are printed without a traceback."""
    # Limit NumPy's BLAS and the tokenizer engine fastokens to one thread, because their idle threads use CPU time.
    # Large work runs in worker processes with one thread each (`execution.processes.ONE_THREAD`).
    for name in ("OPENBLAS_NUM_THREADS", "FASTOKENS_BPE_THREADS"):
        os.environ.setdefault(name, "1")
    # Disable plugins of Pydantic, because looking for them reads the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    words = sys.argv[1:] if arguments is None else arguments
    # Escape unencodable characters, because printing a file name that is not valid Unicode would otherwise fail.
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    # Read the start time of this process before the fork, because the child process has a later start time.
    Options.began = read_process_start() if arguments is None else time.monotonic()
    Options.verbose, Options.quiet = "--verbose" in words, "--quiet" in words
    try:
        _load_environment(words)
    except ConfigError as error:
        return _report_error(error, str(error), WRONG_USAGE)
    # Enforce no bounds on a call from Python, because the process belongs to the caller, or on `ui`, because it only
    # starts other processes.
    if arguments is not None or "ui" in words:
        return _run_one(words)
    try:
        bounds = Bounds.from_environment(os.environ)
    except ConfigError as error:
        return _report_error(error, str(error), WRONG_USAGE)
    # Only `run` is retried, because a second `run` resumes the work of the first one.
    return run_bounded(
        partial(_run_one, words), bounds, lambda line: print_error(f"dataprep: {line}"), is_retry="run" in words
    )


def _load_environment(words: list[str]) -> None:
    """Load the project's `.env` before anything reads a variable, even for commands that need no project."""
    if not words or not _WITHOUT_ENVIRONMENT.isdisjoint(words):
        return
    parts = [part for word in words for part in word.split("=", 1)]
    try:
        project = find_project(parts[parts.index("--project") + 1] if "--project" in parts[:-1] else None)
    except ConfigError:
        return  # a command that needs a project reports this error
    if replaced := project.load_environment():
        names = ", ".join(replaced)
        print_error(f"dataprep: {project.root / '.env'}: overrides {names} from the shell")


def _run_one(words: list[str]) -> int:
    disable_core_dumps()
    with (
        scope_privacy(),
        wrap_output(words),
        open(os.devnull, "w") as nowhere,
        redirect_stdout(nowhere if Options.quiet else sys.stdout),
    ):
        return _execute([word for word in words if word not in ("--verbose", "--quiet")])


def _execute(words: list[str]) -> int:
    """Run the command with these words; print any error, and return the exit code."""
    try:
        code = create_app(_find_commands(words))(words, prog_name="dataprep", standalone_mode=False)
        stop_waiting()
        return int(code or 0)
    except _ReaderGoneError:
        # Redirect standard output to /dev/null, because Python flushes the stream again at exit, which would otherwise
        # fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (KeyboardInterrupt, _InterruptedError, typer.Abort):
        command = f"`dataprep {shlex.join(words)}`" if "run" in words else "the command"
        print_error(f"\ndataprep: interrupted. Finished work is kept. Run {command} again to resume")
        return INTERRUPTED
    except ConfigError as error:
        return _report_error(error, get_privacy().public_error(error), WRONG_USAGE)
    except DataprepError as error:
        return _report_error(error, get_privacy().public_error(error), FAILED)
    except OSError as error:
        problem = ": ".join(str(part) for part in (error.filename, os_error_reason(error)) if part)
        return _report_error(
            error, get_privacy().public_text(problem, f"{type(error).__name__}: {error.strerror}"), FAILED
        )
    except Exception as error:
        # Recognize click's usage errors by their `format_message` method, because the name and module of their class
        # depend on the version of typer.
        if (format_message := getattr(error, "format_message", None)) is None:
            if not get_privacy().closed:
                raise
            return _report_error(error, get_privacy().public_error(error), FAILED)
        command = getattr(getattr(error, "ctx", None), "command_path", "dataprep")
        # Remove the prefix "Value error, ", which pydantic adds to this project's messages.
        sentence = f"{format_message().replace('Value error, ', '').rstrip('.')}. See `{command} --help`"
        return _report_error(error, sentence, WRONG_USAGE)


def _report_error(error: Exception, sentence: str, code: int) -> int:
    if get_privacy().closed:
        get_privacy().store_texts(traceback.format_exception(error))
    elif Options.verbose:
        traceback.print_exception(error)
    print_error(f"dataprep: {sentence}")
    return code
