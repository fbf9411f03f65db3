"""A hostile or random tokenizer is refused by name before it is loaded in this process; valid ones are tested once."""

import json
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import TokenizerError
from dataprep_assets.stream.declaration import TokenizerDeclaration
from dataprep_assets.stream.tokenizer import load_declared_tokenizer
from dataprep_assets.tokenization import engines
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.engines import ReferenceEngine
from dataprep_assets.tokenization.losses import encode_or_locate, locate_row
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.tokenization.families import TEXTS, save
from dataprep_assets_tests.tools.bench.invented_text import train_tokenizer

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(autouse=True)
def _no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    engines._find_refusal.cache_clear()


def _changed(folder: Path, change: Change) -> Path:
    train_tokenizer(folder, TEXTS, size=300)
    value = json.loads((folder / "tokenizer.json").read_bytes())
    change(value)
    (folder / "tokenizer.json").write_text(json.dumps(value))
    return folder


def _dropout(value: dict[str, Any]) -> None:
    value["model"]["dropout"] = 0.2


def _huge_id(value: dict[str, Any]) -> None:
    value["added_tokens"].append(value["added_tokens"][0] | {"id": 2_000_000_000, "content": "<|far|>"})


def _negative_id(value: dict[str, Any]) -> None:
    value["model"]["vocab"]["zzz"] = -1


def _tokens_as_texts(value: dict[str, Any]) -> None:
    value["added_tokens"] = ["<|endoftext|>"]


def _tokens_as_object(value: dict[str, Any]) -> None:
    value["added_tokens"] = {"content": "<|endoftext|>"}


def _model_as_list(value: dict[str, Any]) -> None:
    value["model"] = []


def _vocabulary_of_texts(value: dict[str, Any]) -> None:
    value["model"]["vocab"]["zzz"] = "5"


@pytest.mark.parametrize(
    "change",
    [_dropout, _huge_id, _negative_id, _tokens_as_texts, _tokens_as_object, _model_as_list, _vocabulary_of_texts],
)
def test_a_defect_visible_in_the_file_is_refused_without_loading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    folder = _changed(tmp_path / "tokenizer", change)
    monkeypatch.setattr(subprocess, "Popen", None)
    with raises(TokenizerError, "tokenizer/tokenizer.json"):
        load_declared_tokenizer(TokenizerDeclaration(path=folder))


def _split(pattern: str) -> Change:
    def change(value: dict[str, Any]) -> None:
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        value["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, value["pre_tokenizer"]]}

    return change


def _doubled(times: int) -> Change:
    def change(value: dict[str, Any]) -> None:
        replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
        value["normalizer"] = {"type": "Sequence", "normalizers": [replace] * times}

    return change


@pytest.mark.parametrize(
    "change", [_split(r"(?:a+a+)+b"), _split(r"(\w+\s?)+#"), _doubled(40), _doubled(7)], ids=range(4)
)
def test_a_defect_visible_only_at_run_time_is_refused_in_a_separate_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    monkeypatch.setattr(engines, "CPU_SECONDS", 8)
    monkeypatch.setattr(engines, "MEMORY_BYTES", 640 << 20)
    folder = _changed(tmp_path / "tokenizer", change)
    for _ in range(2):
        with raises(TokenizerError, "tokenizer/tokenizer.json", "tokenizers"):
            load_declared_tokenizer(TokenizerDeclaration(path=folder))


def test_a_tokenizer_is_tested_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = TokenizerBundle.load(save(tmp_path / "tokenizer", "unigram"))
    began = time.process_time()
    engines.try_in_process(bundle)
    assert time.process_time() - began < 1
    engines._find_refusal.cache_clear()
    monkeypatch.setattr(subprocess, "Popen", None)
    engines.try_in_process(bundle)


@pytest.mark.parametrize("model", ["WordLevel", "Unigram"])
def test_a_text_that_a_vocabulary_without_unknown_token_cannot_encode_is_named(tmp_path: Path, model: str) -> None:
    vocabulary: Any = {"a": 0, "b": 1} if model == "WordLevel" else [["a", -1.0], ["b", -1.0]]
    unknown = {"unk_token": "[UNK]"} if model == "WordLevel" else {"unk_id": None}
    value = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": model, "vocab": vocabulary, **unknown},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    bundle = load_declared_tokenizer(TokenizerDeclaration(path=tmp_path, name="letters"))
    reference = ReferenceEngine(bundle, "text")
    place = partial(locate_row, "a.jsonl")
    assert encode_or_locate(reference.encode, ["a b", "b"], bundle.name, place)[0].tolist() == [0, 1, 1]
    with raises(TokenizerError, "a.jsonl", 1, "letters", file="a.jsonl", row=1) as caught:
        encode_or_locate(reference.encode, ["a b", "a secret", "c"], bundle.name, place)

    assert "secret" not in str(caught.value)
