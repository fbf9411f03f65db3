"""Write `docs/commands.md` from the `dataprep` command and from docstrings: `make docs-reference`.

Entry points: `page` (the whole text), and `python -m dataprep_assets_tests.docs.commands`, which writes it.
"""

import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from typer.main import get_command

from dataprep_assets import cli
from dataprep_assets.cli.support.examples import EXAMPLES
from dataprep_assets.engine.lock.lock import SCHEMA
from dataprep_assets_tests.docs import json_keys

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "commands.md"
_HEAD = """\
# Commands

This page is generated from the commands and from docstrings. Do not edit it: run `make docs-reference`.

`dataprep` without a command lists the project's datasets and suggests the next command. `dataprep COMMAND --help` \
shows the help of one command.

| command | purpose |
|---|---|
"""
_GUIDES = {
    "init": "[installation](installation.md#a-new-project), [deploying](../deploy/README.md#your-own-project)",
    "show": "[keys of `losses`](#keys-of-losses), [sensitive datasets](security.md)",
    "run": "[parts of a run](#parts-of-a-run), [locked builds](how-to/reproduce.md#build-from-the-lock)",
    "ui": "[the guard of the UI](security.md#the-ui)",
    "site": "[the pages](how-to/site.md)",
    "status": "[keys of `status`](#keys-of-status)",
    "documents": "[documents](documents.md)",
    "trace": "[trace](how-to/look-at-data.md)",
    "retract": "[remove documents](how-to/remove-documents.md)",
    "prune": "[obsolete artifacts](concepts.md#prune)",
    "lock": "[lock and diff](how-to/reproduce.md), [keys of `dataset.lock`](#keys-of-datasetlock)",
    "diff": "[lock and diff](how-to/reproduce.md)",
    "schedule": "[training schedules](pipelines/schedule.md)",
    "seen": "[what the model has seen](pipelines/schedule.md#what-the-model-has-seen)",
    "preflight": "[storage](storage.md)",
    "sync": "[copies between locations](how-to/object-storage.md#copy-artifacts)",
    "release": "[shard releases](pipelines/release.md#adopt-published-shards)",
}
"""Command → the pages that describe it."""
_PLACES = "`--verbose` and `--quiet` can be anywhere on the command line. `--project` must be before the command."
_REST = """\
## Exit codes

| code | meaning |
|---|---|
| 0 | The command succeeded. `status`, `run --dry-run`: nothing must be built. `diff`: both sides are equal. |
| 1 | The data is wrong, or a check failed. `status`, `run --dry-run`: something must be built. `diff`: the sides \
differ. `verify`: the data is damaged, or there is nothing to verify. |
| 2 | An option, a `defs.yaml` or an environment variable is wrong. `diff`: one side cannot be read. |
| 130 | You interrupted the command. Finished work is kept, so run the same command again. |

Errors are printed on standard error, one line each. `--verbose` adds the traceback.

## Which project

A project is a folder whose `pyproject.toml` has `[tool.dg.project]`, or whose `dg.toml` has `[project]`. A command \
uses the first project that it finds in this order:

1. `dataprep --project DIR COMMAND`
2. `DATAPREP_PROJECT`
3. the current directory, or its nearest parent that is a project

An error in a `defs.yaml` is reported with file, line and key. The other datasets still load.

## Parts of a run

`dataprep run NAME` builds a whole dataset. The options below select a part of the dataset. The run first builds the \
artifacts that the part needs, such as the manifest.

With `--until ARTIFACT`, the run stops after an artifact, such as `documents`, the document table. It builds all \
partitions of the artifact and of its inputs, unless the options below select some. `--dry-run` with `--until` shows \
only these artifacts.

To combine the parts afterwards, run the command without these options.

| option | partitions |
|---|---|
| `--split val,test` | all partitions of these splits |
| `--shards FIRST...LAST` | a range of shards (`train-00000...train-00099`), or one shard |
| `--months FIRST...LAST` | a range of months of notes |
| `--process-count N --process-index I` | part I of N equal parts, counted from 0, of the partitions selected by the \
other options |

All nodes of a cluster must use the same storage. You can repeat a part with a different number of processes, because \
finished partitions are skipped. All these options need exactly one dataset name, and cannot be combined with \
`--locked`. Except for `--until`, they cannot be combined with `--dry-run`.

The `duplicates` of a corpus and the plan of a release need all partitions. Build them first, without these options.

## JSON output

`--json` prints one JSON object per line. The [Python interface](python.md) returns the same data as objects.

| command | one object per | keys |
|---|---|---|
| `check` | error | `file`, `line`, `sentence`, `hint` |
| `list` | dataset | `dataset`, `component`, `state`, `to_make`, `why` |
| `show` | dataset | `dataset`, `component`, `declaration`, `description`, `artifacts` (`artifact`, `product`, \
`noun`, `location`, `there`, `planned`), `checks` (with `outcome`), `summary` (null until it is \
built), [`losses`](#keys-of-losses) |
| `status`, `run --dry-run` | dataset | [keys of `status`](#keys-of-status) |
| `plan` | dataset | `machine`, `splits`, `shards`, `runs`, `source_bytes`, `tokens`, `orchestration_seconds`, \
`transfer_seconds`, `tokenizing_seconds`, `seconds`, `seconds_on` (by engine), `disk_bytes`, `get_requests`, \
`put_requests`, `rates_measured_on` |
| `documents` | dataset | `documents`, `bytes`, `sources`, `rules`, `untagged`, `over_budget`, `unprotected`; null \
without rules |
| `documents` with an option for rows | row | the columns of the [document table](documents.md#the-document-table); \
with `--text`, also the whole `text` (null for a removed row), and for a rejected row its offset `text_byte` |
| `documents --plot` | dataset | [keys of `documents --plot`](#keys-of-documents---plot) |
| `trace` | document | [trace](how-to/look-at-data.md) |
| `verify` | artifact, then release | `artifact` or `release`, `location`, `bytes`, `defects`, `changed_inputs`; \
with `--lock`: `artifact`, `differs` |
| `diff` | comparison | [lock and diff](how-to/reproduce.md) |
| `prune` | obsolete artifact | `artifact`, `location`, `bytes`; `--yes` prints one more object per deleted artifact |
| `sync` | copy | `source`, `destination`, `copied`, `bytes`, `on_server`, \
`notes`, `objects` (`key`, `bytes`, `action`: `copy` or `skip`) |

In the tables below, `a[].b` is the key `b` of each object in the list `a`. In `a.NAME.b`, `NAME` is any key of the \
object `a`.

"""
_ENVIRONMENT = """## Environment

Every command first loads the project's `.env`, whose values override the shell's variables.

| variable | meaning |
|---|---|
| `DATAPREP_PROJECT` | folder of the project |
| `DAGSTER_HOME` | folder of Dagster's run history. Default: `.dagster` in the project. `dg dev` requires it |
| `DATAPREP_STORAGE`, `DATAPREP_ROOT`, `DATAPREP_BUCKET`, `DATAPREP_ENDPOINT_URL`, `DATAPREP_ALLOW_HTTP` | [where \
artifacts are stored](storage.md) |
| `DATAPREP_CACHE`, `DATAPREP_CACHE_BYTES` | folder and maximum size of [local copies of a bucket](storage.md) |
| `DATAPREP_WORKERS` | number of worker processes, for all datasets. Default: one per core; small runs (up to 16 \
shards and 32 MiB, not sensitive) start no worker processes |
| `DATAPREP_ENGINE` | `processes` (default) or `ray`, for corpora, releases, notes and blends. `RAY_ADDRESS` \
selects the Ray cluster |
| `DATAPREP_MEMORY_BYTES` | maximum memory of each process that reads sources. Default: 4 GiB |
| `DATAPREP_STALL_SECONDS` | maximum CPU seconds of a process without progress. Default: 1,800 |
| `DATAPREP_ZSTD_WINDOW_BYTES` | maximum window of a zstd file. Default: 128 MiB |
| `HF_TOKEN`, `HF_ENDPOINT` | token for the Hugging Face Hub, and its URL. Default: the token that `hf auth login` \
saved, and the public Hub |
| `DATAPREP_UI_HOSTS` | additional host names under which the UI may be reached, separated by commas. Loopback is \
always allowed |
| `DATAPREP_UI_URL` | URL of the UI, for links in failure notifications |
| `DATAPREP_SHOW` | [included samples](installation.md#samples-and-examples) that the UI shows |
"""


def page() -> str:
    """Return the whole text."""
    group: Any = get_command(cli.create_app())
    rows = (
        f"| [`dataprep {name}`](#dataprep-{name}) | {_cell(command.short_help)} |"
        for name, command in group.commands.items()
    )
    sections = (line for name, command in group.commands.items() for line in _section(name, command))
    options = ("## Options of every command", "", *_table(group.params, "option"), "", _PLACES, "")
    head = "\n".join((*rows, "", *sections, *options))
    return _HEAD + head + "\n" + _REST + "\n".join((*_list_json_keys(), "")) + _ENVIRONMENT


def _list_json_keys() -> Iterator[str]:
    """Yield the tables of JSON keys."""
    tables = (
        (
            "status",
            "`dataprep status --json` and `dataprep run --dry-run --json` print these keys. Unknown values are null.",
            json_keys.STATUS,
        ),
        (
            "documents --plot",
            "`dataprep documents NAME --plot COLUMN --json` prints these keys.",
            json_keys.PLOT,
        ),
        (
            "losses",
            "Each object in `losses` of `dataprep show --json` has these keys. In a sensitive dataset, a count can be "
            "text, such as `withheld`.",
            json_keys.LOSSES,
        ),
        (
            "dataset.lock",
            f"`dataset.lock` is JSON with sorted keys. The version of its schema is {SCHEMA}. Empty `sources`, "
            "`upstream`, `counts` and `files` are omitted.",
            json_keys.LOCK,
        ),
    )
    for name, text, keys in tables:
        yield from (f"### Keys of `{name}`", "", text, "", "| key | content |", "|---|---|")
        yield from (f"| `{key}` | {_cell(content)} |" for key, content in keys.items())
        yield ""


def _section(name: str, command: Any) -> Iterator[str]:
    """Yield the lines about a command: its help, its arguments and options, its examples."""
    yield from (f"## dataprep {name}", "", *command.help.splitlines(), "")
    arguments = [parameter for parameter in command.params if not parameter.opts[0].startswith("-")]
    options = [parameter for parameter in command.params if parameter.opts[0].startswith("-")]
    for parameters, heading in ((arguments, "argument"), (options, "option")):
        if parameters:
            yield from (*_table(parameters, heading), "")
    yield from ("```bash", *EXAMPLES[name], "```", "")
    if name in _GUIDES:
        yield from (f"See {_GUIDES[name]}.", "")


def _table(parameters: list[Any], heading: str) -> Iterator[str]:
    yield from (f"| {heading} | meaning |", "|---|---|")
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
