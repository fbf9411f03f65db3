"""What `dataprep check` finds by running taggers and rules on the first documents of a corpus."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.curation import trial
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.pipelines.corpus.curation.trial import build_trial
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.coast import Coast, write_lines

FUNCTIONS = {
    "good": "return {'good': [1.0] * len(documents)}",
    "short": "return {'short': [1.0]}",
    "typed": "return {'typed': documents['text']}",
    "other": "return {'unknown': [1.0] * len(documents)}",
    "fails": "return {'fails': [1 / 0] * len(documents)}",
    "exits": "import sys; sys.exit(3)",
    "dies": "import os; os._exit(3)",
    "loud": "print('LOUD', flush=True); return {'loud': [2.0] * len(documents)}",
    "slow": "import time; time.sleep(600)",
}
NUMBER = 0


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of functions; the name is used once, because Python imports a module once."""
    global NUMBER
    NUMBER += 1
    name = f"judges_{NUMBER}"
    source = "".join(f"def {one}(documents):\n    {body}\n" for one, body in FUNCTIONS.items())
    (tmp_path / f"{name}.py").write_text(source)
    (tmp_path / f"{name}_broken.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    for split in ("train", "val"):
        write_lines(tmp_path / "data" / split / "a.jsonl", [{"text": f"TEXT {n}", "lang": "en"} for n in range(30)])
    return name


def remarks(folder: Path, tag: list[Any], **keys: Any) -> list[Remark]:
    declared: Mapping[str, Any] = {
        "dataset": "pages",
        "source": {"kind": "local", "path": str(folder / "data")},
        "include": ["**/*.jsonl"],
        "splits": {"train": ["train/**"], "val": ["val/**"]},
        "tokenizer": {"path": str(folder)},
        "document": {"separator": "auto", "keep_fields": {"lang": "string"}},
        "tag": tag,
        **keys,
    }
    return list(trial.find_trial_remarks(partial(build_trial, CorpusDeclaration.model_validate(declared))))


def function(name: str, column: str = "score", **more: str) -> dict[str, Any]:
    return {"function": name, "columns": {column: "number"}, **more}


TOLD = {
    "good": None,
    "loud": None,
    "short": "returned 1 value of short for 10 documents",
    "typed": "is not a number",
    "other": "returned unknown, but declares the columns other",
    "fails": "raised ZeroDivisionError: division by zero (",
    "exits": "raised SystemExit: 3 (",
    "dies": "its worker process died (exit code 3",
    "goood": "has no function 'goood'",
}


def test_a_function_that_fails_is_an_error_at_its_key(
    module: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = remarks(tmp_path, ["c4", *(function(f"{module}:{name}", name) for name in TOLD)])
    wanted = [(("tag", at), told) for at, told in enumerate(TOLD.values(), 1) if told]
    assert [(one.keys, one.hint) for one in found] == [(keys, False) for keys, _ in wanted]
    for one, (_, told) in zip(found, wanted, strict=True):
        assert told in one.sentence
    assert "LOUD" not in capfd.readouterr().out


def test_a_module_that_does_not_import_is_an_error_also_where_no_document_is_at_hand(
    module: str, tmp_path: Path
) -> None:
    (found,) = remarks(tmp_path, [function(f"{module}_broken:good")], source={"kind": "local", "path": str(tmp_path)})
    assert not found.hint
    assert "cannot be imported: ModuleNotFoundError: " in found.sentence
    assert "_broken.py:1" in found.sentence


def test_a_missing_module_has_the_same_message_with_and_without_a_version(module: str, tmp_path: Path) -> None:
    declared = [function(f"{module}_none:here"), function(f"{module}_none.sub:there", "other", version="1")]
    first, second = remarks(tmp_path, declared)
    assert [first.keys, second.keys] == [("tag", 0), ("tag", 1)]
    assert {one.sentence.rpartition("cannot be imported")[2] for one in (first, second)} == {
        first.sentence.rpartition("cannot be imported")[2]
    }
    assert "Correct the name" in first.sentence


def test_a_function_that_takes_too_long_is_ended_and_told(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_TIMEOUT_SECONDS", 0.5)
    (found,) = remarks(tmp_path, [function(f"{module}:slow")])
    assert found.hint
    assert "was stopped" in found.sentence


def test_rules_that_drop_every_document_that_was_looked_at_are_told(module: str, tmp_path: Path) -> None:
    keep, drop = {"german": "lang == 'de'", "any": "words > 0"}, {"short": "words < 50", "low": "good < 0.5"}
    found = remarks(tmp_path, ["gopher", function(f"{module}:good", "good")], keep=keep, drop=drop)
    assert [(one.keys, one.hint) for one in found] == [(("keep", "german"), True), (("drop", "short"), True)]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("วันนี้อากาศดีมาก เราไปเดินเล่นที่สวนสาธารณะ", "words: th"),
        ("今天天气很好，我们去公园散步。", "words: zh"),
        ("今日は天気が良いので、公園を散歩します。", "words: ja"),
        ("ថ្ងៃនេះអាកាសធាតុល្អណាស់", "Khmer"),
        ("ມື້ນີ້ອາກາດດີຫຼາຍ", "Lao"),
        ("ဒီနေ့ရာသီဥတုအရမ်းကောင်းတယ်", "Burmese"),
        ("오늘 날씨가 매우 좋습니다.", None),
        ("The park 公園 is near the station.", None),
    ],
)
def test_texts_without_spaces_between_words_need_a_language(text: str, advice: str | None, tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_lines(tmp_path / "data" / split / "a.jsonl", [{"text": text, "lang": "xx"}] * 3)
    hints = remarks(tmp_path, ["c4", "gopher"])
    assert [(hint.keys, hint.hint) for hint in hints] == [(("tag", 1), True)] * (advice is not None)
    assert all(str(advice) in hint.sentence for hint in hints)
    assert not remarks(tmp_path, ["c4", "personal"])


@pytest.mark.parametrize(
    ("kind", "values", "position", "declared"),
    [
        ("integer", [1, 0.0], "val/b.jsonl: row 2", "declares integer."),
        ("integer", [2**63], "val/b.jsonl: row 1", "declares integer of at most 64 bits."),
        ("integer", [True], "val/b.jsonl: row 1", "declares integer."),
        ("string", [1, 2], "val/b.jsonl: row 1", "declares string."),
    ],
)
@pytest.mark.parametrize("rewrite", [[], ["ftfy"]])
def test_a_carried_value_of_another_type_is_a_mistake(
    kind: str, values: list[Any], position: str, declared: str, rewrite: list[str], tmp_path: Path
) -> None:
    write_lines(tmp_path / "data" / "train" / "a.jsonl", [{"text": "a text", "score": None}])
    write_lines(tmp_path / "data" / "val" / "b.jsonl", [{"text": "a text", "score": value} for value in values])
    document = {"separator": "auto", "keep_fields": {"score": kind}}
    (told,) = remarks(tmp_path, [], document=document, rewrite=rewrite)
    assert (told.keys, told.hint, told.of_source) == (("document", "keep_fields", "score"), False, True)
    assert told.sentence.startswith(f"{position}: score is {values[-1] if kind == 'integer' else values[0]}, but ")
    assert declared in told.sentence


def test_nothing_of_a_sensitive_document_is_told(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIAL_KEY", "k" * 40)
    document = {"separator": "auto", "id_key": {"env": "TRIAL_KEY"}}
    (found,) = remarks(tmp_path, [function(f"{module}:typed", "typed")], sensitive=True, document=document)
    assert "TEXT" not in found.sentence


@pytest.mark.slow
def test_check_ends_with_2_at_a_misspelt_function_and_run_without_it(tmp_path: Path) -> None:
    coast = Coast(tmp_path / "coast")
    coast.declare(tag=[{"function": "coast.taggers:qualty", "columns": {"quality": "number"}}], keep=None, drop=None)
    done = dataprep(tmp_path, "check", "pages", "--json", project=coast.root)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 2
    assert [one["hint"] for one in told] == [False]
    assert_names(told[0]["sentence"], "coast.taggers", "'qualty'", "'quality'")
