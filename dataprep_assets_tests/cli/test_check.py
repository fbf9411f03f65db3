"""`dataprep check` finds mistakes in declarations, in their tokenizers and in their sources before a build."""

import json
import shutil
from pathlib import Path

import pytest

from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.samples import SAMPLE

pytestmark = pytest.mark.slow

GOOD = (SAMPLE / "defs.yaml").read_text()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with the sample corpus and with copies of it that each have one mistake."""
    root = tmp_path_factory.mktemp("check") / "mine"
    for name, text in (("one", "one"), ("long", "one two three " * 400)):
        data = root.parent / name
        (data / "train").mkdir(parents=True)
        (data / "val").mkdir()
        (data / "train" / "a.jsonl").write_text(json.dumps({"text": "a b c " * 1000}) + "\n")
        (data / "val" / "a.jsonl").write_text(json.dumps({"text": text}) + "\n")
    done = dataprep(root.parent, "init", str(root))
    assert done.returncode == 0, done.stderr
    chat = root / "mine" / "chat"
    shutil.copytree(SAMPLE / "tokenizer", chat)
    definition = json.loads((chat / "tokenizer.json").read_bytes())
    last = max(token["id"] for token in definition["added_tokens"])
    size = max(last, *definition["model"]["vocab"].values()) + 1
    definition["added_tokens"].append({**definition["added_tokens"][0], "content": "<|im_end|>", "id": size})
    (chat / "tokenizer.json").write_text(json.dumps(definition))
    (chat / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    changes = {
        "auto": [('separator: "<|endoftext|>"', "separator: auto"), ("path: ./tokenizer", "path: ../../chat")],
        "turn": [('separator: "<|endoftext|>"', 'separator: "<|im_end|>"'), ("path: ./tokenizer", "path: ../../chat")],
        "unknown": [('separator: "<|endoftext|>"', 'separator: "<|nope|>"\n    bos: "<|begin|>"')],
        "no_split": [('["train/**"]', '["train/chunk1/**"]')],
        "empty": [('["validation/**"]', '["valid/**"]')],
        "short": _small(root.parent / "one"),
        "enough": _small(root.parent / "long"),
        "wrong": [("splits:", "spilts:"), ("sample_rate: 0.05", "sample_rate: 5")],
    }
    for name, edits in changes.items():
        text = GOOD.replace("dataset: sample_corpus", f"dataset: {name}").replace(
            "path: ./data", f"path: {SAMPLE}/data"
        )
        text = text.replace("path: ./tokenizer", f"path: {SAMPLE}/tokenizer") if name not in ("auto", "turn") else text
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        folder = root / "mine" / "defs" / name
        folder.mkdir()
        (folder / "defs.yaml").write_text(text)
    return root


def _small(data: Path) -> list[tuple[str, str]]:
    """Return the edits that declare a corpus of a few kilobytes."""
    return [
        (f"path: {SAMPLE}/data", f"path: {data}"),
        ('["**/*.jsonl.zst"]', '["**/*.jsonl"]'),
        ('["validation/**"]', '["val/**"]'),
        ('    test: ["test/**"]\n', ""),
    ]


def lines(project: Path, name: str, told: str) -> list[str]:
    """Return the lines about a dataset, without its path."""
    prefix = f"{project}/mine/defs/{name}/defs.yaml:"
    every = [line.removeprefix("note: ") for line in told.splitlines()]
    return [line.removeprefix(prefix) for line in every if line.startswith(prefix)]


def test_every_mistake_in_every_declaration_is_reported_with_its_line(project: Path) -> None:
    done = dataprep(project, "--project", str(project), "check")
    assert done.returncode == 2, done.stderr
    told = done.stdout
    (auto,) = lines(project, "auto", told)
    assert auto.startswith("20: document.separator: auto cannot choose for")
    assert "'<|im_end|>' ends a chat turn" in auto
    assert auto.endswith("Candidates in its vocabulary: <|endoftext|>")
    (turn,) = lines(project, "turn", told)
    assert turn.startswith("20: document.separator: '<|im_end|>' ends a chat turn")
    separator, bos = lines(project, "unknown", told)
    assert separator.startswith("20: document.separator: '<|nope|>' is not in the vocabulary")
    assert bos.startswith("21: document.bos: '<|begin|>' is not in the vocabulary")
    (left,) = lines(project, "no_split", told)
    assert left.startswith("12: splits: 3 of 9 files are in no split, and therefore excluded (train/chunk2/")
    (empty,) = lines(project, "empty", told)
    assert empty.startswith("14: splits.val: valid/** matches none of the ")
    (short,) = lines(project, "short", told)
    assert short.startswith(
        "24: val: has fewer tokens than one sample of 512, and StreamingDataset cannot open an empty dataset"
    )
    assert lines(project, "enough", told) == []
    assert len(lines(project, "wrong", told)) >= 2
    assert "did you mean `splits`" in told
    assert lines(project, "sample_corpus", told) == []
    assert told.splitlines()[-1].startswith("9 declarations: ")


def test_valid_declarations_and_declarations_with_only_hints_pass(project: Path) -> None:
    done = dataprep(project, "--project", str(project), "check", "sample_corpus", "turn", "no_split")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "3 declarations: no errors found"), done.stderr
    (separator,) = (line for line in done.stdout.splitlines() if line.startswith("no_split: "))
    assert_names(separator, "'<|endoftext|>'", 4094, "after")


def test_a_run_begins_with_the_check_and_builds_nothing(project: Path) -> None:
    done = dataprep(project, "--project", str(project), "run", "unknown")
    assert done.returncode == 2
    assert "document.separator: '<|nope|>'" in done.stderr
    assert "document.bos: '<|begin|>'" in done.stderr
    assert not (project / "artifacts" / "unknown").exists()
