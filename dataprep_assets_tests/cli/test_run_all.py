"""`dataprep run --all` builds every dataset of a project, inputs first; without a name it lists them."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "harbour-lights"
    assert dataprep(folder.parent, "init", str(folder), project=folder.parent).returncode == 0
    return folder


def declare(project: Path, name: str, **changes: Any) -> None:
    folder = project / "harbour_lights" / "defs" / name
    pages = [f"{name} page {i} of a book" for i in range(6)]
    write_rows(folder / "texts" / "a.jsonl", [{"text": page} for page in (*pages, "the same page")])
    attributes = {
        "dataset": name,
        "source": {"kind": "local", "path": "./texts"},
        "include": ["*.jsonl"],
        "splits": {"train": ["*"]},
        "tokenizer": {"path": "../sample_corpus/tokenizer"},
        "document": {"separator": "<|endoftext|>"},
        "views": ["nanogpt"],
        **changes,
    }
    declared = {"type": "dataprep_assets.components.TokenizedCorpus", "attributes": attributes}
    (folder / "defs.yaml").write_text(yaml.safe_dump(declared))


def test_all_datasets_are_built_inputs_first_and_listed_without_a_name(project: Path) -> None:
    declare(project, "books", duplicates={})
    # `articles` is deduplicated against `books`, so `books` must be built first, although its name comes later in the
    # alphabet.
    declare(project, "articles", duplicates={"against": ["books"]})
    listed = dataprep(project.parent, "run", project=project)
    assert (listed.returncode, listed.stdout) == (2, "")
    assert "articles, books, sample_corpus" in listed.stderr
    both = dataprep(project.parent, "run", "books", "--all", project=project)
    assert (both.returncode, "--all" in both.stderr) == (2, True)
    started = time.monotonic()
    built = dataprep(project.parent, "run", "--all", project=project)
    assert built.returncode == 0, built.stdout + built.stderr
    kept = json.loads((project.parent / "home" / "step_times.json").read_bytes())
    assert kept.keys() >= {f"CorpusDeclaration/{name}/run" for name in ("articles", "books", "sample_corpus")}
    # No second of the command is attributed to two datasets.
    assert sum(seconds for builds in kept.values() for _, seconds in builds) <= time.monotonic() - started
    begun = [line for line in built.stdout.splitlines() if line in ("articles:", "books:", "sample_corpus:")]
    assert sorted(begun) == ["articles:", "books:", "sample_corpus:"]
    assert begun.index("books:") < begun.index("articles:")
    again = dataprep(project.parent, "run", "--all", project=project)
    lines = [line.partition(":")[0] for line in again.stdout.splitlines() if "nothing to do" in line]
    assert lines == [line.rstrip(":") for line in begun]


def test_a_partial_run_ends_with_its_checks_and_the_command_for_the_rest(project: Path) -> None:
    declare(project, "letters")
    part = dataprep(project.parent, "run", "letters", "--split", "train", project=project)
    assert part.returncode == 0, part.stderr
    *_, counted, rest = part.stdout.splitlines()
    outcomes = dict(reversed(one.split(" ", 1)) for one in counted.removeprefix("checks: ").split(", "))
    assert outcomes.keys() == {"passed", "not run"}
    assert "`dataprep run letters`" in rest


def test_datasets_that_depend_on_each_other_are_named(project: Path) -> None:
    declare(project, "moon", duplicates={"against": ["sun"]})
    declare(project, "sun", duplicates={"against": ["moon"]})
    refused = dataprep(project.parent, "run", "--all", project=project)
    assert refused.returncode == 2
    assert "moon" in refused.stderr
    assert "sun" in refused.stderr
    assert "Traceback" not in refused.stderr
