"""Every error that a user provokes here has a row on the page of troubleshooting, found by the words of its message."""

import os
import re
from pathlib import Path

import pytest

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets_tests import forked

PAGE = PROJECT_ROOT / "docs" / "troubleshooting.md"
LOCATION = re.compile(r"^(?:dataprep: )?(?:\S*/)?(?:[\w.-]+\.(?:yaml|env)(?::\d+)?: )?")
"""The file and line before a message."""
LAST = re.compile(r"\d+ declarations?: .*")
CORPUS = {
    "source": "{kind: local, path: ./texts}",
    "include": '["*.jsonl"]',
    "splits": '{train: ["*"]}',
    "tokenizer": "{path: ../sample_corpus/tokenizer}",
    "views": "[nanogpt]",
}
HEAD = "type: dataprep_assets.components.TokenizedCorpus\nattributes:\n"
KEYS = {
    "key": {"spilts": '{train: ["*"]}'},
    "value": {"views": "[nanogtp]"},
    "kind": {"source": "{kind: locl, path: ./texts}"},
    "folder": {"source": "{kind: local, path: ./text}"},
    "glob": {"include": '["*.parquet"]'},
    "type": {"shards": "{count: many}"},
    "low": {"shards": "{count: 0}"},
    "high": {"duplicates": "{threshold: 2}"},
    "field": {"text_field": "body"},
    "column": {"drop": "{short: wrods < 50}"},
    "rule": {"drop": '{short: "words <"}'},
    "tagger": {"tag": "[gohper]"},
    "tokenizer": {"tokenizer": "{path: ../sample_corpus/tokeniser}"},
    "separator": {"document": '{separator: "<|eot|>"}'},
    "missing": {"splits": ""},
    "same": {"dataset": "missing"},
    "duration": {"automation": "{on_new_files: 3 fortnights}"},
    "cron": {"automation": '{schedule: "every monday"}'},
    "webhook": {"automation": "{on_failure: {webhook: not a url}}"},
    "benchmark": {"decontaminate": "{benchmarks: [{path: ./none.jsonl}]}"},
    "asset": {"source": "{kind: asset, key: [nothing]}"},
    "name.dot": {},
}
"""The wrong keys of a declaration, by the name of its folder."""
FILES = {
    "bracket": f"{HEAD}  dataset: bracket\n  include: [\n",
    "twice": f"{HEAD}  dataset: twice\n  dataset: twice\n",
    "list": "- a\n- b\n",
    "component": "type: dataprep_assets.components.TokenizedCorpsu\nattributes:\n  dataset: component\n",
}
"""Wrong declarations as a whole."""
ROWS = {
    "json": '{"text": "a"}\n{"text": \n',
    "pointer": f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 12345\n",
    "empty": "",
}
"""Wrong files of a source."""
COMMANDS: list[tuple[str, dict[str, str]]] = [
    ("run god", {}),
    ("run good --split tran", {}),
    ("run good --process-index 3", {}),
    ("run good --process-count 2 --process-index 3", {}),
    ("run good --locked", {}),
    ("run good --shard x", {}),
    ("run good", {"DATAPREP_WORKERS": "zero"}),
    ("run good", {"DATAPREP_ENGINE": "spark"}),
    ("run good", {"DATAPREP_STORAGE": "azure"}),
    ("run good", {"DATAPREP_STORAGE": "r2"}),
    ("run good", {"DATAPREP_ROOT": "s3://bucket/x"}),
    ("run good", {"DAGSTER_HOME": "relative"}),
    ("rum", {}),
    ("plan good --cores 0", {}),
    ("lock good", {}),
    ("verify good", {}),
    ("documents good", {}),
    ("trace good --split train --token 5", {}),
    ("schedule good", {}),
    ("retract good --ids nofile", {}),
    ("diff good before.lock", {}),
    ("sync nothing copy", {}),
    ("release adopt nothing", {}),
    ("init .", {}),
    ("--project .. list", {}),
]
"""Commands that fail before anything is built, with their variables."""


def declare(defs: Path, name: str, text: str | None = None, rows: str = '{"text": "A page."}\n') -> None:
    """Write a dataset with one file of texts."""
    keys = {"dataset": name, **CORPUS, **KEYS.get(name, {})}
    (defs / name / "texts").mkdir(parents=True)
    (defs / name / "texts" / "a.jsonl").write_text(rows)
    wanted = HEAD + "".join(f"  {key}: {value}\n" for key, value in keys.items() if value)
    (defs / name / "defs.yaml").write_text(text or wanted)


def run(folder: Path, *arguments: str, **variables: str) -> list[str]:
    """The lines that a failing command prints."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }
    command = ["-m", "dataprep_assets.cli", *arguments]
    done = forked.run(command, cwd=folder, env=environment | variables)
    assert (done.returncode == 0) == (arguments[0] == "init" and "." not in arguments), arguments
    return (done.stdout + done.stderr).splitlines()


def read_patterns() -> list[re.Pattern[str]]:
    """What each row is found by: its first cell, in which `…` is any text."""
    cells = [row.split(" | ")[0][2:] for row in PAGE.read_text(encoding="utf-8").splitlines() if row.startswith("| ")]
    texts = [text.strip(" …") for cell in cells for text in re.split(r"`[,;]|an error that begins with|\bor `", cell)]
    # of a message with names, the words between two of them
    return [
        re.compile(r".*?".join(re.escape(part) for part in text.replace("`", "").split("…")))
        for text in (text.strip(" `…") for text in texts)
        if len(text) > 6
    ]


@pytest.mark.slow
def test_every_provoked_error_is_on_the_page(tmp_path: Path) -> None:
    project = tmp_path / "my-data"
    run(tmp_path, "init", "my-data")
    defs = project / "my_data" / "defs"
    for name in KEYS:
        declare(defs, name)
    for name, text in FILES.items():
        declare(defs, name, text)
    for name, rows in ROWS.items():
        declare(defs, name, rows=rows)
    messages = [line for line in run(project, "check") if not LAST.fullmatch(line)]
    assert len(messages) >= len(KEYS) + len(FILES) + len(ROWS)
    declare(defs, "good")
    messages += [run(project, *command.split(), **variables)[-1] for command, variables in COMMANDS]
    assert len(set(messages)) >= 40
    patterns = read_patterns()
    absent = [
        message
        for message in (LOCATION.sub("", message).replace("`", "") for message in messages)
        if not any(pattern.search(message) for pattern in patterns)
    ]
    assert absent == [], "\n".join(absent)
