"""Write `docs/commands.md` from the `dataprep` command itself: `make docs-reference`.

Entry points: `page` (the whole text), and `python -m dataprep_assets_tests.docs.commands`, which writes it.
"""

import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from typer.main import get_command

from dataprep_assets import cli
from dataprep_assets.cli.support.examples import example_lines

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "commands.md"
_HEAD = """\
# Commands

This page is generated from the commands. Do not edit it: run `make docs-reference`.

`dataprep` without a command lists the datasets of the project and what to do next. `dataprep COMMAND --help` shows \
what is on this page.

| command | |
|---|---|
"""
_GUIDES = {
    "init": "[installation](installation.md#a-new-project), [deploying](../deploy/README.md#your-own-project)",
    "show": "[losses](operations.md#losses), [sensitive datasets](security.md)",
    "run": "[parts of a run](#parts-of-a-run), [locked builds](how-to/reproduce.md#build-from-the-lock)",
    "ui": "[the guard of the UI](security.md#the-ui)",
    "status": "[operations](operations.md)",
    "documents": "[documents](documents.md)",
    "trace": "[trace](how-to/look-at-data.md)",
    "retract": "[remove documents](how-to/remove-documents.md)",
    "prune": "[operations](operations.md)",
    "lock": "[lock and diff](how-to/reproduce.md)",
    "diff": "[lock and diff](how-to/reproduce.md)",
    "schedule": "[training schedules](pipelines/schedule.md)",
    "seen": "[what the model has seen](pipelines/schedule.md#what-the-model-has-seen)",
    "preflight": "[storage](storage.md)",
    "sync": "[copies between places](how-to/object-storage.md#copy-artifacts)",
    "release": "[shard releases](pipelines/release.md#adopt-published-shards)",
}
"""Command → the pages about it."""
_PLACES = "`--verbose` and `--quiet` can be anywhere on the line; `--project` is before the command."
_REST = """\
## Exit codes

| code | meaning |
|---|---|
| 0 | done; `status`, `run --dry-run`: nothing to build; `diff`: the same |
| 1 | the data or a check failed; `status`, `run --dry-run`: something to build; `diff`: different; `verify`: \
damaged, or nothing to verify |
| 2 | wrong usage or configuration: an option, a `defs.yaml`, an environment variable; `diff`: one side cannot be \
read |
| 130 | interrupted; finished work is kept, so run the same command again |

Errors are printed on standard error: one line each, without a stack unless `--verbose` is set.

## Which project

A project is a folder whose `pyproject.toml` has `[tool.dg.project]`, or whose `dg.toml` has `[project]`. A command \
uses the first of:

1. `dataprep --project DIR COMMAND`
2. `DATAPREP_PROJECT`
3. the working folder, or the nearest folder above it that is a project

A broken `defs.yaml` is reported with file, line and key. The other datasets load.

## Parts of a run

`dataprep run NAME` builds a whole dataset. These options build a part, after the artifacts that the part needs \
(such as the manifest and the engine certificate).
Run the command without them afterwards: it combines the parts.

| option | partitions |
|---|---|
| `--split val,test` | those of one or several splits |
| `--shards FIRST...LAST` | a range, or one name: `train-00000...train-00099` |
| `--months FIRST...LAST` | a range of months of notes |
| `--process-count N --process-index I` | part I of N even parts, from 0, of what the other options leave |

The nodes of a cluster share the storage. A part can be repeated with any number of processes, because finished \
partitions are skipped. A part is of one dataset, and
`--dry-run` and `--locked` apply to whole datasets. The `duplicates` of a corpus and the plan of a release need all \
partitions: build them first, without these options.

## JSON

`--json` prints one object per line. [Python](python.md) has the same as objects.

| command | one object per | keys |
|---|---|---|
| `check` | mistake | `file`, `line`, `sentence`, `hint` |
| `list` | dataset | `dataset`, `component`, `state`, `to_make`, `why` |
| `show` | dataset | `dataset`, `component`, `declaration`, `description`, `artifacts` (`artifact`, `product`, \
`noun`, `location`, `there`, `planned`), `checks` (with `outcome`), `summary` (null until it is built), `losses` |
| `status`, `run --dry-run` | dataset | [operations](operations.md) |
| `plan` | dataset | `machine`, `splits`, `shards`, `runs`, `source_bytes`, `tokens`, `orchestration_seconds`, \
`transfer_seconds`, `tokenizing_seconds`, `seconds`, `seconds_on` (by engine), `disk_bytes`, `get_requests`, \
`put_requests`, `rates_measured_on` |
| `trace` | document | [trace](how-to/look-at-data.md) |
| `verify` | artifact, then release | `artifact` or `release`, `location`, `bytes`, `defects`, `changed_inputs`; \
with `--lock`: `artifact`, `differs` |
| `diff` | comparison | [lock and diff](how-to/reproduce.md) |
| `prune` | obsolete artifact | `artifact`, `location`, `bytes`; with `--yes` also one per removal |
| `sync` | copy | `source`, `destination`, `copied`, `bytes`, `on_server`, \
`notes`, `objects` (`key`, `bytes`, `action`: `copy` or `skip`) |

## Environment

A project's `.env` is loaded first; its values replace those of the shell.

| variable | meaning |
|---|---|
| `DATAPREP_PROJECT` | the project |
| `DAGSTER_HOME` | the folder of Dagster's records; default: `.dagster` in the project. `dg dev` needs it |
| `DATAPREP_STORAGE`, `DATAPREP_ROOT`, `DATAPREP_BUCKET`, `DATAPREP_ENDPOINT_URL`, `DATAPREP_ALLOW_HTTP` | [where \
artifacts are stored](storage.md) |
| `DATAPREP_CACHE`, `DATAPREP_CACHE_BYTES` | [local copies of a bucket](storage.md), and their limit |
| `DATAPREP_WORKERS` | number of worker processes, for all datasets. Without it, a run that is not sensitive needs \
no workers for up to \
16 shards of 32 MiB in all |
| `DATAPREP_ENGINE` | `processes` or `ray`, for corpora, releases, notes and blends. `RAY_ADDRESS` names the cluster |
| `DATAPREP_MEMORY_BYTES` | limit of memory of each process that reads sources; default: 4 GiB |
| `DATAPREP_STALL_SECONDS` | limit of CPU seconds without progress; default: 1,800 |
| `DATAPREP_ZSTD_WINDOW_BYTES` | limit of the window of a zstd file; default: 128 MiB |
| `DATAPREP_UI_HOSTS` | host names of the UI next to those of loopback, separated by commas |
| `DATAPREP_UI_URL` | address of the UI, for links in failure notifications |
| `DATAPREP_SHOW` | which [shipped datasets](installation.md#samples-and-examples) the UI shows |
"""


def page() -> str:
    """Return the whole text."""
    group: Any = get_command(cli._app)
    rows = (
        f"| [`dataprep {name}`](#dataprep-{name}) | {_cell(command.short_help)} |"
        for name, command in group.commands.items()
    )
    sections = (line for name, command in group.commands.items() for line in _section(name, command))
    options = ("## Options of every command", "", *_table(group.params, "option"), "", _PLACES, "")
    return _HEAD + "\n".join((*rows, "", *sections, *options)) + "\n" + _REST


def _section(name: str, command: Any) -> Iterator[str]:
    """Yield the lines about a command: its help, its arguments and options, its examples."""
    yield from (f"## dataprep {name}", "", *command.help.splitlines(), "")
    arguments = [parameter for parameter in command.params if not parameter.opts[0].startswith("-")]
    options = [parameter for parameter in command.params if parameter.opts[0].startswith("-")]
    for parameters, heading in ((arguments, "argument"), (options, "option")):
        if parameters:
            yield from (*_table(parameters, heading), "")
    yield from ("```bash", *example_lines(name), "```", "")
    if name in _GUIDES:
        yield from (f"See {_GUIDES[name]}.", "")


def _table(parameters: list[Any], heading: str) -> Iterator[str]:
    yield from (f"| {heading} | |", "|---|---|")
    for parameter in parameters:
        if parameter.hidden:
            continue
        name, value = (
            parameter.opts[0],
            parameter.metavar or ("" if getattr(parameter, "is_flag", False) else _kind(parameter)),
        )
        form = f"{name} {value}".rstrip() if name.startswith("-") else value
        yield f"| `{form}` | {_cell(parameter.help)}{_choices(parameter)}{_default(parameter)} |"


def _kind(parameter: Any) -> str:
    return {int: "N", float: "N", Path: "PATH"}.get(parameter.type_descriptor.annotation, str(parameter.name).upper())


def _choices(parameter: Any) -> str:
    """Return the words that an option allows, if it allows only some."""
    kind = parameter.type_descriptor.annotation
    words = get_args(kind) if get_origin(kind) is Literal else ()
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        words = tuple(one.value for one in kind)
    return f" [{', '.join(f'`{word}`' for word in words)}]" if len(words) > 1 else ""


def _default(parameter: Any) -> str:
    value = parameter.default
    return (
        f" Default: `{value:g}`."
        if type(value) in (int, float)
        else f" Default: `{value}`."
        if value and type(value) is str
        else ""
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: written")
