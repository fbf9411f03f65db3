"""What a corpus is told of before it is built: files that are read twice, and globs that take none."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.remarks import find_corpus_remarks
from dataprep_assets.sources.readers.first_rows import ROWS
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.pipeline import sample_declaration


def remarks_on(folder: Path, include: Sequence[str] = ("**/*.jsonl",), **more: object) -> list[Remark]:
    corpus = sample_declaration(folder, include=list(include), splits={"train": ["**/*"]}, views=["nanogpt"], **more)
    return list(find_corpus_remarks(corpus))


def server_remarks(source: Mapping[str, str]) -> list[Remark]:
    corpus = CorpusDeclaration.model_validate({**sample_declaration(views=["nanogpt"]).model_dump(), "source": source})
    return list(find_corpus_remarks(corpus))


def test_a_file_with_two_names_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.jsonl").write_text('{"text": "a text"}\n')
    (tmp_path / "sub" / "other.jsonl").write_text('{"text": "another text"}\n')
    assert remarks_on(tmp_path) == []
    (tmp_path / "sub" / "symbolic.jsonl").symlink_to("../a.jsonl")
    (tmp_path / "hard.jsonl").hardlink_to(tmp_path / "a.jsonl")
    (told,) = remarks_on(tmp_path)
    assert (told.keys, told.hint) == (("include",), True)
    assert "2 files" in told.sentence
    assert "hard.jsonl and a.jsonl" in told.sentence
    monkeypatch.setenv("DOCUMENT_KEY", "k" * 32)
    keyed = {"separator": "<|endoftext|>", "id_key": {"env": "DOCUMENT_KEY"}}
    (closed,) = [told for told in remarks_on(tmp_path, sensitive=True, document=keyed) if told.keys == ("include",)]
    assert ".jsonl" not in closed.sentence


def test_a_glob_that_takes_no_file_is_told_beside_others_that_do(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a text"}\n')
    (told,) = remarks_on(tmp_path, ["*.jsonl", "more/*.jsonl"])
    assert (told.keys, told.hint) == (("include",), True)
    assert "more/*.jsonl" in told.sentence


@pytest.mark.parametrize(
    ("changes", "key", "words", "hint"),
    [
        ({"endpoint_url": "htp://store"}, "endpoint_url", "'htp://store'", False),
        ({"endpoint_url": "http://store.example"}, "endpoint_url", "`allow_http: true`", False),
        ({"region": "us east 1"}, "region", "'us east 1'", False),
        ({"region": "eu-wset-1"}, "region", "did you mean 'eu-west-1'?", True),
        ({"url": "gs://bucket/x", "region": "eu-west-1"}, "region", "Remove it", False),
        (
            {"kind": "hub", "repo": "a/b", "revision": "main", "endpoint": "hub.example"},
            "endpoint",
            "hub.example",
            False,
        ),
    ],
)
def test_a_wrong_server_or_region_of_a_source_is_told_without_a_request(
    changes: dict[str, str], key: str, words: str, hint: bool, tmp_path: Path
) -> None:
    bucket = {"kind": "object_store", "url": "s3://bucket/x", "cache_dir": str(tmp_path)}
    source = changes if "repo" in changes else bucket | changes
    (told,) = server_remarks(source)
    assert (told.keys, told.hint) == (("source", key), hint)
    assert told.sentence.startswith(f"source.{key}: ")
    assert words in told.sentence
    assert "\n" not in told.sentence


@pytest.mark.parametrize(
    "changes", [{}, {"region": "us-east-1"}, {"region": "wnam", "endpoint_url": "https://store.example"}]
)
def test_a_sound_server_is_not_contacted(changes: dict[str, str], tmp_path: Path) -> None:
    source = {"kind": "object_store", "url": "s3://bucket/x", "cache_dir": str(tmp_path), **changes}
    assert server_remarks(source) == []


def test_an_encrypted_parquet_file_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PARE\x15\x04\x9c\xf0" + bytes(range(255, 200, -1)) + b"PARE")
    (told,) = remarks_on(tmp_path, ["*.parquet"])
    assert "encrypted" in told.sentence
    assert "not a Parquet file" not in told.sentence


def write_texts(path: Path, *texts: str) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def test_a_split_without_any_text_is_a_mistake(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.jsonl", *["", "  \n"] * 10)
    (told,) = [told for told in remarks_on(tmp_path) if not told.hint and told.keys == ("text_field",)]
    assert told.sentence.startswith(
        "`text_field: text`: split train (first file: a.jsonl): all 20 examined rows have an empty text. "
    )
    write_texts(tmp_path / "a.jsonl", *[""] * 19, "a text")
    assert remarks_on(tmp_path) == []


def test_a_source_field_that_no_row_has_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a text", "lang": "de"}\n' * 3)
    document = {"separator": "<|endoftext|>", "source_field": "lng", "url_field": "link"}
    told = {remark.keys[-1]: remark for remark in remarks_on(tmp_path, document=document)}
    assert {key: remark.hint for key, remark in told.items()} == {"source_field": False, "url_field": True}
    assert_names(told["source_field"].sentence, "document.source_field", "'lng'", "'text', 'lang'")


def test_a_source_field_that_later_rows_may_have_is_a_hint(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a text", "lang": "de"}\n' * ROWS)
    document = {"separator": "<|endoftext|>", "source_field": "lng"}
    (told,) = remarks_on(tmp_path, document=document)
    assert (told.keys[-1], told.hint) == ("source_field", True)


def test_a_source_in_a_rule_that_no_examined_row_has_is_a_hint(tmp_path: Path) -> None:
    rows = [{"text": f"text {language}", "lang": language} for language in ("en", "de")]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    document = {"separator": "<|endoftext|>", "source_field": "lang"}
    rules = {"short": {"english": "characters < 5", "de": "characters < 9", "default": "characters < 2"}}
    (told,) = remarks_on(tmp_path, document=document, drop=rules)
    assert (told.keys, told.hint) == (("drop", "short", "english"), True)
    assert_names(told.sentence, "drop.short", "'english'", "de, en")


def test_the_fields_of_a_file_without_texts_are_listed(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.jsonl", "a text")
    (tmp_path / "b.jsonl").write_text('{"content": "a text", "n": 1}\n')
    (told,) = remarks_on(tmp_path)
    assert (told.keys, told.of_source) == (("source",), True)
    assert told.sentence.startswith("source: b.jsonl: none of its rows can be read. ")
    assert "missing_text (`text_field: text`). Their fields: `content`, `n`. Correct the file" in told.sentence


def test_a_file_whose_extension_differs_in_case_is_pointed_out(tmp_path: Path) -> None:
    write_texts(tmp_path / "a.jsonl", "a text")
    write_texts(tmp_path / "b.JSONL", "another text")
    write_texts(tmp_path / "c.JSON", "a third text")
    (told,) = remarks_on(tmp_path)
    assert (told.keys, told.hint) == (("include",), True)
    assert told.sentence.startswith(
        "include: 1 file is excluded (b.JSONL): its name matches a glob only in a different"
    )
    assert remarks_on(tmp_path, ["*.jsonl", "*.JSONL"]) == []
