"""Build, validate and inspect training datasets.

`run` materializes through Dagster into the instance of DAGSTER_HOME, so that everything it did is visible in the UI;
`ui` serves that instance; the other commands do not write to it. Each command is a module with a function `command`.

Exit codes: 0 done; 1 the data or a check failed, or there is something to build; 2 wrong usage or configuration;
130 interrupted.
"""

import atexit
import gc
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial, wraps
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from dataprep_assets import __version__
from dataprep_assets.bounds import Bounds
from dataprep_assets.cli import (
    check,
    diff,
    documents,
    init,
    list_,
    lock,
    plan,
    preflight,
    prune,
    retract,
    run,
    show,
    status,
    sync,
    trace,
    ui,
    verify,
)
from dataprep_assets.cli.support.arguments import Options
from dataprep_assets.cli.support.examples import examples
from dataprep_assets.cli.support.project import choose, one_command, privacy
from dataprep_assets.cli.support.welcome import DOCS, welcome_lines
from dataprep_assets.cli.training import release, schedule, seen
from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.execution.run_task import without_core
from dataprep_assets.execution.watch import process_start, run_bounded
from dataprep_assets.project import find

# the last two are 128 and the number of the signal, as a shell tells them: SIGPIPE and SIGINT
FAILED, WRONG_USAGE, BROKEN_PIPE, INTERRUPTED = 1, 2, 141, 130
_WITHOUT_ENVIRONMENT = {"init", "--help", "-h", "--version"}
_COMMANDS = (
    init,
    list_,
    show,
    check,
    run,
    ui,
    plan,
    status,
    documents,
    trace,
    retract,
    prune,
    verify,
    lock,
    diff,
    schedule,
    seen,
    preflight,
    sync,
    release,
)
_app = typer.Typer(
    name="dataprep",
    help=(__doc__ or "").splitlines()[0],
    epilog=f"\b\nDocumentation: {DOCS}",  # not wrapped: it would break at a hyphen
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class _ReaderGoneError(Exception):
    """The reader of the output closed the pipe: `dataprep status NAME | head`."""


class _InterruptedError(Exception):
    """Ctrl-C was pressed; typer would end the command without a message."""


def _wrap_command(command: Callable[..., int]) -> Callable[..., int]:
    """Wrap a command so that closed output and Ctrl-C raise our own errors: typer would end the process itself."""

    @wraps(command)
    def guarded(*arguments: object, **options: object) -> int:
        try:
            code = command(*arguments, **options)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise _ReaderGoneError from error
        except KeyboardInterrupt as error:
            raise _InterruptedError from error
        return code

    return guarded


for _module in _COMMANDS:
    # by default the summary is cut after some words
    _summary = str(_module.command.__doc__).splitlines()[0]
    _name = _module.__name__.rpartition(".")[2].rstrip("_")
    _app.command(_name, short_help=_summary, epilog=examples(_name))(_wrap_command(_module.command))


@_app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--project", metavar="DIR", help="Project folder. [default: the project containing the current directory]"
        ),
    ] = None,
    _verbose: Annotated[bool, typer.Option("--verbose", help="Also show the Python traceback of an error.")] = False,
    _quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors and warnings, on standard error.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        print(f"dataprep-assets {__version__}")
        raise typer.Exit
    if folder is not None:
        choose(folder)
    if context.invoked_subcommand is None:
        print("\n".join(welcome_lines()))


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, run one command, return its exit code. Errors are a few lines, without a traceback."""
    # imports create a million permanent objects; searching them for garbage takes a tenth of the time of a short
    # command, and a seventh when it ends
    gc.set_threshold(400_000, 20, 20)
    atexit.register(gc.freeze)
    # idle threads of NumPy's BLAS and of the fast engine use CPU time. Large work runs in workers, which have one
    # thread each (`execution.processes.ONE_THREAD`)
    for name in ("OPENBLAS_NUM_THREADS", "FASTOKENS_BPE_THREADS"):
        os.environ.setdefault(name, "1")
    # so that file names that are not valid Unicode can be printed
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if arguments is None else arguments
    # before the fork: a child process has a start time of its own
    Options.began = process_start() if arguments is None else time.monotonic()
    Options.verbose, Options.quiet = "--verbose" in words, "--quiet" in words
    try:
        _load_environment(words)
    except ConfigError as error:
        return _report_error(error, str(error), WRONG_USAGE)
    # calls from Python have no bounds, and `ui` only starts other processes
    if arguments is not None or ui.__name__.rpartition(".")[2] in words:
        return _run_one(words)
    try:
        bounds = Bounds.from_environment(os.environ)
    except ConfigError as error:
        return _report_error(error, str(error), WRONG_USAGE)
    # a second `run` resumes from the work that the first one finished
    return run_bounded(
        partial(_run_one, words), bounds, lambda line: print(f"dataprep: {line}", file=sys.stderr), again="run" in words
    )


def _load_environment(words: list[str]) -> None:
    """Load the `.env` of the project, before anything reads a variable; also for commands that need no project."""
    if not words or not _WITHOUT_ENVIRONMENT.isdisjoint(words):
        return
    parts = [part for word in words for part in word.split("=", 1)]
    try:
        project = find(parts[parts.index("--project") + 1] if "--project" in parts[:-1] else None)
    except ConfigError:
        return  # a command that needs a project reports this error
    if replaced := project.load_environment():
        names = ", ".join(replaced)
        print(f"dataprep: {project.root / '.env'}: overrides {names} of the shell", file=sys.stderr)


def _run_one(words: list[str]) -> int:
    without_core()
    with one_command(), open(os.devnull, "w") as nowhere, redirect_stdout(nowhere if Options.quiet else sys.stdout):
        return _execute([word for word in words if word not in ("--verbose", "--quiet")])


def _execute(words: list[str]) -> int:
    try:
        code = _app(words, prog_name="dataprep", standalone_mode=False)
        return int(code or 0)
    except _ReaderGoneError:
        # Python flushes standard output once more when it ends, which would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (KeyboardInterrupt, _InterruptedError, typer.Abort):
        print("\ndataprep: interrupted. Finished work is kept. Run the same command again to resume", file=sys.stderr)
        return INTERRUPTED
    except ConfigError as error:
        return _report_error(error, privacy().error(error), WRONG_USAGE)
    except DataprepError as error:
        return _report_error(error, privacy().error(error), FAILED)
    except OSError as error:
        named = ": ".join(str(part) for part in (error.filename, error.strerror or error) if part)
        return _report_error(error, privacy().text(named, f"{type(error).__name__}: {error.strerror}"), FAILED)
    except Exception as error:
        # a usage error: the name and module of typer's class for it differ between its versions
        if (format_message := getattr(error, "format_message", None)) is None:
            if not privacy().closed:
                raise
            return _report_error(error, privacy().error(error), FAILED)
        command = getattr(getattr(error, "ctx", None), "command_path", "dataprep")
        sentence = f"{format_message().rstrip('.')}. See `{command} --help`"
        return _report_error(error, sentence, WRONG_USAGE)


def _report_error(error: Exception, sentence: str, code: int) -> int:
    if privacy().closed:
        privacy().keep(traceback.format_exception(error))
    elif Options.verbose:
        traceback.print_exception(error)
    print(f"dataprep: {sentence}", file=sys.stderr)
    return code
