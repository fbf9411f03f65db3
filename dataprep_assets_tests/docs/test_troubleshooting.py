"""Every error that a user can cause has a row on the troubleshooting page, found by the words of its message."""

import os
import re
import shutil
from pathlib import Path

import pytest

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets_tests import forked
from dataprep_assets_tests.samples import SAMPLE

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
    "recipe": {"recipe": "gohper"},
    "recipe_language": {"recipe": "fineweb2"},
    "recipe_column": {"recipe": "dclm"},
    "recipe_rule": {"recipe": "gopher", "drop": "{gopher_length: words < 9}"},
    "recipe_tagger": {"recipe": "gopher", "tag": "[gopher]"},
    "model": {"tag": "[{fasttext: {model: ./none.bin, label: hq, column: quality}}]"},
    "tokenizer": {"tokenizer": "{path: ../sample_corpus/tokeniser}"},
    "separator": {"document": '{separator: "<|eot|>"}'},
    "missing": {"splits": ""},
    "same": {"dataset": "missing"},
    "duration": {"automation": "{on_new_files: 3 fortnights}"},
    "cron": {"automation": '{schedule: "every monday"}'},
    "webhook": {"automation": "{on_failure: {webhook: not a url}}"},
    "benchmark": {"decontaminate": "{sets: {quiz: ./none.jsonl}}"},
    "asset": {"source": "{kind: asset, key: [nothing]}"},
    "name.dot": {},
    "credentials": {"source": "{kind: object_store, cache_dir: ./cache, url: 's3://key:secret@bucket/x'}"},
    "benchmark_field": {"decontaminate": "{sets: {quiz: {path: ./set.jsonl, fields: [question]}}}"},
    "benchmark_words": {"decontaminate": "{sets: {quiz: ./set.jsonl}}"},
    "benchmark_text": {"decontaminate": "{sets: {quiz: ./numbers.jsonl}}"},
    "benchmark_row": {"decontaminate": "{sets: {quiz: ./broken.jsonl}}"},
    "benchmark_format": {"decontaminate": "{sets: {quiz: ./set.docx}}"},
    "benchmark_url": {"decontaminate": "{sets: {quiz: 'hf://datasets/x'}}"},
    "benchmark_cache": {"decontaminate": "{sets: {quiz: {path: 's3://bucket/set.jsonl'}}}"},
    "min_words": {"decontaminate": "{sets: {quiz: ./set.jsonl}, min_words: 3}"},
    "coverage": {"decontaminate": "{sets: {quiz: ./set.jsonl}, action: tag, coverage: 0.5}"},
    "module": {"tag": '[{function: "nothing:here", columns: {quality: number}}]'},
    "attribute": {"tag": '[{function: "json:nothing", columns: {quality: number}}]'},
    "no_columns": {"tag": '["json:dumps"]'},
    "same_tagger": {"tag": "[gopher, gopher]"},
    "command": {"tag": "[{command: [cat], columns: {quality: number}}]"},
    "url_column": {"tag": "[{url_lists: {lists: {blocked: a.txt}}}]"},
    "url_line": {"tag": "[{url_lists: {column: source, lists: {blocked: lines.txt}}}]"},
    "list_columns": {"tag": "[{url_lists: {lists: {blocked: a.txt}}, columns: {blocked: boolean}}]"},
    "rule_source": {"drop": "{short: {nowhere: bytes < 5}}"},
    "rule_function": {"drop": "{short: starts(source, 'a')}"},
    "rule_regex": {"drop": "{short: matches(source, '(')}"},
    "rule_text": {"drop": "{short: contains(bytes, 'a')}"},
    "null_rule": {"drop": '{short: "bytes == null"}'},
    "compare": {"drop": "{short: bytes < 'x'}"},
    "number": {"drop": "{short: bytes}"},
    "reserved": {"drop": "{retracted: bytes < 5}"},
    "column_twice": {"document": "{keep_fields: {bytes: integer}}"},
    "exact": {"duplicates": "{kind: exact, threshold: 0.8}"},
    "priority": {"duplicates": "{priority: quality}"},
    "against": {"duplicates": "{against: [nothing]}"},
    "sizes": {"shards": "{count: 2, target_bytes: 1000000}"},
    "revision": {"tokenizer": "{path: ../sample_corpus/tokenizer, revision: main}"},
    "no_revision": {"tokenizer": "{repo: a/b}"},
    "no_tokenizer": {"tokenizer": "{name: mine}"},
    "text_as_tokenizer": {"tokenizer": "{path: ./texts}"},
    "view_twice": {"views": "[nanogpt, nanogpt]"},
    "globs": {"splits": "{train: []}"},
    "split_name": {"splits": '{"my train": ["*"]}'},
    "uncovered": {"splits": '{train: ["b*"], val: ["a*"]}'},
    "private": {"sensitive": "true", "document": "{id_field: id}"},
    "source_key": {"source": "{kind: hub, repo: a/b, revision: main, source_key: {env: SOME_KEY}}"},
    "owner": {"owners": "[somebody]"},
    "accepted": {"accept": "{digests_match: because}"},
    "address": {"automation": "{on_failure: {email: {to: [nobody], from: a@example.org, host: mail.example.org}}}"},
    "zone": {"automation": '{schedule: "0 3 * * 1", timezone: Berlin}'},
    "colon": {"description": "one: two: three"},
    "no_value": {"include": "null"},
    "text": {"dataset": "2020-01-01"},
    "word": {"owners": "no"},
    "map": {"shards": "[1, 2]"},
    "octal": {"description": "010"},
}
"""The wrong keys of a declaration, by the name of its folder."""
RUN = {
    "remote": {"source": "{kind: object_store, cache_dir: ./cache, url: s3://bucket}"},
    "http": {
        "source": "{kind: object_store, cache_dir: ./cache, url: s3://bucket/x, endpoint_url: 'http://store.example.org'}"
    },
    "scheme": {"source": "{kind: object_store, cache_dir: ./cache, url: 'gs://bucket/x', region: x}"},
    "built": {"document": "{keep_fields: {}}"},
}
"""Keys of datasets whose mistakes only a run finds, and of one that can be built."""
FILES = {
    "bracket": f"{HEAD}  dataset: bracket\n  include: [\n",
    "twice": f"{HEAD}  dataset: twice\n  dataset: twice\n",
    "list": "- a\n- b\n",
    "component": "type: dataprep_assets.components.TokenizedCorpsu\nattributes:\n  dataset: component\n",
}
"""Declarations that are wrong as a whole."""
ROWS = {
    "json": '{"text": "a"}\n{"text": \n',
    "pointer": f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 12345\n",
    "empty": "",
}
"""Invalid source files."""
CHANGED: dict[str, dict[str, tuple[str, str]]] = {
    "notes": {
        "reversed": ('first: "2010-11"', 'first: "2012-11"'),
        "no_files": ('last: "2011-02"', 'last: "2011-05"'),
        "absent": ('last: "2011-02"', 'last: "2011-02"\n    allow_missing: ["2012-01"]'),
        "header": ("{kind}", "{type}"),
        "expression": ("{kind}", "{kind.x}"),
        "fields": ("patient: {colour", "patient: {kind"),
        "pattern": ("fields:", "pattern: '('\n    fields:"),
        "groups": ("fields:", "pattern: 'x'\n    fields:"),
        "ordinary": ('token: "<|pad|>"', "id: 5"),
        "large": ('token: "<|pad|>"', "id: 500000"),
        "sum": ("val: 0.2", "val: 0.3"),
        "share": ("val: 0.2", "val: 0"),
        "twice": ("[tfrecord, array_record]", "[tfrecord, tfrecord]"),
        "public": ("sensitive: false ", "sensitive: true "),
        "key": ("public: a key for fictional data, known to everyone", "env: NO_SUCH_KEY"),
        "targets": ('pad:\n    token: "<|pad|>"', "layout: unpacked\n  targets: true"),
        "no_pad": ('pad:\n    token: "<|pad|>"\n', "layout: prepacked\n"),
        "padded": ("rows_per_shard: 8", "layout: unpacked"),
        "algorithm": ("rows_per_shard: 8", "packing: {algorithm: none}"),
    },
    "schedule": {
        "endless": ("  steps: 400\n", ""),
        "two_ends": ("steps: 400", "steps: 400\n  tokens: 5000"),
        "weights": ("weight: 9", "epochs: 2"),
        "names": ("more_stories", "stories"),
        "input": ("sample_corpus, split: train", "nothing, split: train"),
        "split": ("split: val", "split: dev"),
        "documents": ("batch: 8", "samples: documents\n  batch: 8"),
    },
    "release": {"size": ("262144", "262143"), "url": ("../../../../.dataprep/sample_release_published", "ftp://x")},
    "tasks": {
        "contract": ("ArcC_Cloze:\n      mode", "Arc_Cloze:\n      mode"),
        "like": ("like: Copa", "like: Copb"),
        "root": ("./data/old", "./nothing"),
    },
    "notes_replay_combined": {
        "source": ("dataset: sample_replay", "dataset: sample_notes"),
        "weight": ("interleave", "weighted"),
        "splits": ("[train, val]", "[train, train]"),
    },
    "blend_pretrain": {
        "file": ("./blend.json", "./nothing.json"),
        "held_out": ("held_out: {valid: 1, test: 1}", "held_out: {valid: 100, test: 100}"),
        "stage": ("stage: pretrain", "stage: sft"),
    },
}
"""Mistakes in copies of the shipped samples: the text to replace and the wrong text, by sample and by dataset."""
NAMED_FILES = {
    "set.jsonl": '{"text": "a b"}\n',
    "numbers.jsonl": '{"text": 5}\n',
    "broken.jsonl": '{"text": "a b"\n',
    "set.docx": "a b",
    "lines.txt": "*.example.com\n",
}
"""Files that declarations name, next to the YAML."""
INPUTS = {
    "object.txt": b'{"x": 1}\n',
    "utf16.txt": b"\xff\xfea\x00",
    "empty.txt": b"",
    "absent.txt": b"nothing.jsonl:5\n",
}
"""Files that commands read, in the project's folder."""
BUILT = [
    "trace built",
    "trace built --split train --token 99999999",
    "trace built --token 5",
    "trace built --split dev --token 5",
    "trace built --shard train-00099 --token 5",
    "trace built --file nothing --row 3",
    "trace built --row 3",
    "trace built --view mds",
    "trace built --view nanogpt --split val --sample 0",
    "trace built --npy-shard x --sample 0",
    "trace built --npy-shard x --sample 0 --split val",
    "trace built --packed-row 3",
    "trace built --id x",
    "trace built --text-file nothing",
    "trace built --text-file utf16.txt",
    "trace built --text-file object.txt",
    "retract built",
    "retract built --ids object.txt",
    "retract built --ids utf16.txt",
    "retract built --ids empty.txt",
    "retract built --ids absent.txt --strict",
    "retract built --where bytes<0",
    "documents built --json --csv",
    "documents built --where nothing",
    "documents built --plot nothing",
    "documents built --plot row --text",
    "documents built --seed 3",
    "seen built --step 4",
    "seen built",
    "seen built --rank 3 --until 4",
    "seen built --until 4 --by x --step 3",
    "verify built --select x",
    "verify --lock nothing",
    "verify nowhere",
]
"""Commands that fail on a built dataset with a document table."""
COMMANDS: list[tuple[str, dict[str, str]]] = [
    ("run god", {}),
    ("run good --split tran", {}),
    ("run good --until nothing", {}),
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
    ("run", {}),
    ("run remote", {}),
    ("run http", {}),
    ("run scheme", {}),
    ("run --all good", {}),
    ("run good --json", {}),
    ("run good --months a --shards b", {}),
    ("run good sample_corpus --split train", {}),
    ("run good --split ,", {}),
    ("run good --months 2010-11", {}),
    ("run good --dry-run --shards train-00000...train-00000", {}),
    ("show good --private --json", {}),
    ("lock good --output no/no.lock", {}),
    ("prune", {}),
    ("preflight nothing://x", {}),
    ("preflight s3://bucket/x", {}),
    ("sync s3://bucket/x copy", {}),
    ("sync s3://key:secret@bucket/x copy", {}),
    ("status good", {"DATAPREP_STORAGE": "s3", "DATAPREP_BUCKET": "x", "DATAPREP_ALLOW_HTTP": "maybe"}),
    (
        "status good",
        {"DATAPREP_STORAGE": "s3", "DATAPREP_BUCKET": "x", "DATAPREP_ENDPOINT_URL": "http://a.example.org"},
    ),
    ("status good", {"DATAPREP_STORAGE": "s3", "DATAPREP_BUCKET": "s3://x"}),
    ("status good", {"DATAPREP_CACHE_BYTES": "5G"}),
]
"""Commands that fail before a build, with their variables."""


def declare(defs: Path, name: str, text: str | None = None, rows: str = '{"text": "A page."}\n') -> None:
    """Write a dataset with one file of texts, and with possible benchmark files."""
    keys = {"dataset": name, **CORPUS, **(KEYS | RUN).get(name, {})}
    (defs / name / "texts").mkdir(parents=True)
    (defs / name / "texts" / "a.jsonl").write_text(rows)
    for file, content in NAMED_FILES.items():
        (defs / name / file).write_text(content)
    wanted = HEAD + "".join(f"  {key}: {value}\n" for key, value in keys.items() if value)
    (defs / name / "defs.yaml").write_text(text or wanted)


def declare_changed(defs: Path) -> None:
    """Write a copy of a shipped sample for each mistake in `CHANGED`."""
    for sample, mistakes in CHANGED.items():
        folder = SAMPLE.parent / f"sample_{sample}"
        for mistake, (before, after) in mistakes.items():
            copy = defs / f"{sample}_{mistake}"
            shutil.copytree(folder, copy)
            text = (folder / "defs.yaml").read_text()
            assert before in text, (sample, mistake)
            name = f"dataset: sample_{sample}\n"
            (copy / "defs.yaml").write_text(text.replace(before, after).replace(name, f"dataset: {copy.name}\n", 1))


def run(folder: Path, *arguments: str, is_error: bool = True, **variables: str) -> list[str]:
    """Run a command, assert that it fails or succeeds as expected, and return its lines."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }
    command = ["-m", "dataprep_assets.cli", *arguments]
    done = forked.run(command, cwd=folder, env=environment | variables)
    assert (done.returncode != 0) == is_error, (arguments, done.stdout, done.stderr)
    return (done.stdout + done.stderr).splitlines()


def read_patterns() -> list[re.Pattern[str]]:
    """Return the pattern of each row: the first sentence of its first cell, in which `…` is any text."""
    cells = [row.split(" | ")[0][2:] for row in PAGE.read_text(encoding="utf-8").splitlines() if row.startswith("| ")]
    texts = [
        text.strip(" …")
        for cell in cells
        for text in re.split(r"`[,;]|an error that (?:begins|ends) with|and ends with|\bor `", cell)
    ]
    # `…` stands for any text, so match only the words around it.
    return [
        re.compile(r".*?".join(re.escape(part) for part in text.replace("`", "").split("…")))
        for text in (text.split(". ")[0].strip(" `…") for text in texts)
        if len(text) > 6
    ]


@pytest.mark.slow
def test_every_provoked_error_is_on_the_page(tmp_path: Path) -> None:
    project = tmp_path / "my-data"
    run(tmp_path, "init", "my-data", is_error=False)
    defs = project / "my_data" / "defs"
    for name in KEYS:
        declare(defs, name)
    for name, text in FILES.items():
        declare(defs, name, text)
    for name, rows in ROWS.items():
        declare(defs, name, rows=rows)
    declare_changed(defs)
    messages = [line for line in run(project, "check") if not LAST.fullmatch(line)]
    folders = [*KEYS, *FILES, *ROWS, *(f"{sample}_{name}" for sample in CHANGED for name in CHANGED[sample])]
    assert [name for name in folders if not any(f"/{name}/" in message for message in messages)] == []
    for name in folders:
        shutil.rmtree(defs / name)
    for file, content in INPUTS.items():
        (project / file).write_bytes(content)
    for name in ("good", *RUN):
        declare(defs, name)
    messages += [run(project, *command.split(), **variables)[-1] for command, variables in COMMANDS]
    run(project, "run", "built", is_error=False)
    messages += [run(project, *command.split())[-1] for command in BUILT]
    assert len(set(messages)) >= 150
    patterns = read_patterns()
    absent = [
        message
        for message in (LOCATION.sub("", message).replace("`", "") for message in messages)
        if not any(pattern.search(message.split(". ")[0]) for pattern in patterns)
    ]
    assert absent == [], "\n".join(absent)
