"""A corpus with rewriters: tokens, tags and texts are those of the rewritten text, and ids those of the source."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets.errors import NotFoundError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.pipelines.corpus.dataset import Corpus
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.stream.token_stream import SourcePart
from dataprep_assets_tests.engine.building import build_all
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.corpus.coast import Coast, write_lines
from dataprep_assets_tests.project import sample_attributes

TEXTS = [
    "Write to jane.doe@example.org, or call 020 7946 0958.\r\n\r\nThe end.  \n",
    "jane.doe@example.org",
    "A line without any personal data.\n" * 3,
    "",
    "Twice a@b.com and a@b.com.",
]
REWRITTEN = [
    "Write to <EMAIL>, or call <PHONE>.\r\n\r\nThe end.  \n",
    "<EMAIL>",
    TEXTS[2],
    "",
    "Twice <EMAIL> and <EMAIL>.",
]
PERSONAL = [{"personal": {"emails": "<EMAIL>", "phones": "<PHONE>"}}]


def open_corpus(folder: Path, **more: Any) -> Corpus:
    attributes = sample_attributes(
        source={"kind": "local", "path": str(folder / "data")},
        include=["*.jsonl"],
        splits={"train": ["*.jsonl"]},
        shards={"count": 1},
        views=["nanogpt"],
        workers=None,
        tag=["personal"],
        **more,
    )
    return Corpus(validate_declaration(CorpusDeclaration, attributes, folder / "defs.yaml"))


def build(folder: Path, **more: Any) -> tuple[Corpus, LocalArtifacts]:
    """Build a corpus of `TEXTS` in a folder."""
    if not (folder / "data").exists():
        write_lines(folder / "data/a.jsonl", [{"text": text, "n": n} for n, text in enumerate(TEXTS)])
    corpus, store = open_corpus(folder, **more), LocalArtifacts(folder / "artifacts")
    build_all(TokenizedCorpus(corpus.declaration).specs, store)
    return corpus, store


def read_table(folder: Path) -> list[dict[str, Any]]:
    (path,) = (folder / "artifacts").rglob("documents.parquet")
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def check_artifact(corpus: Corpus, store: LocalArtifacts, artifact: str) -> dict[str, Finding]:
    (spec,) = (one for one in specs(corpus) if one.name == artifact)
    return dict(spec.examine(store, [slot for slot in spec.slots(store) if slot is not None]))


def specs(corpus: Corpus) -> Sequence[ArtifactSpec]:
    return TokenizedCorpus(corpus.declaration).specs


@pytest.mark.parametrize("document", [{}, {"keep_fields": {"n": "integer"}}, {"id_field": "n"}], ids=str)
def test_tokens_tags_and_texts_are_those_of_the_rewritten_text(tmp_path: Path, document: dict[str, Any]) -> None:
    """Both readers are used: that of texts and ids only, and that of whole rows."""
    document = {"separator": "<|endoftext|>", **document}
    corpus, store = build(tmp_path, rewrite=PERSONAL, document=document, duplicates={"kind": "exact"})
    rows = read_table(tmp_path)
    assert [row["rewritten_personal"] for row in rows] == [33, 20, 0, 0, 14]
    assert [row["characters"] for row in rows] == [*map(len, REWRITTEN)]
    assert {row["emails"] for row in rows} == {row["phones"] for row in rows} == {0}
    tracer = corpus.tracer(store)
    traces = [trace_documents(tracer, file="a.jsonl", row=row)[0] for row in range(1, 6)]
    assert [trace.text for trace in traces] == REWRITTEN
    sources = [tracer.source_text(trace) for trace in traces]
    assert [source.text for source in sources if source is not None] == TEXTS
    assert [dict(source.changes) for source in sources if source is not None][:2] == [
        {"personal": 33},
        {"personal": 20},
    ]
    (card,) = (tmp_path / "artifacts").rglob("data_card/dataset_card.md")
    assert_names(card.read_text(), "## Rewriting", "`personal`")
    texts = corpus.documents(store).add_texts(rows)
    assert [row["text"] for row in texts] == REWRITTEN
    for artifact in ("tags", "signatures", "selection", "token_bins", "documents"):
        assert {name: found.summary for name, found in check_artifact(corpus, store, artifact).items()} == {
            name: found.summary for name, found in check_artifact(corpus, store, artifact).items() if found.passed
        }


def test_ids_are_those_of_the_source_so_rewriting_brings_back_no_retracted_document(tmp_path: Path) -> None:
    document = {"separator": "<|endoftext|>", "keep_fields": {}}
    build(tmp_path / "plain", document=document)
    retracted = tmp_path / "retracted.jsonl"
    retracted.write_text(json.dumps({"hash": read_table(tmp_path / "plain")[1]["id"], "of": "text"}) + "\n")
    corpus, store = build(tmp_path / "rewritten", document=document, rewrite=PERSONAL, retractions=str(retracted))
    rows = read_table(tmp_path / "rewritten")
    assert [row["id"] for row in rows] == [row["id"] for row in read_table(tmp_path / "plain")]
    assert [row["reason"] for row in rows] == [None, "retracted", None, None, None]
    assert check_artifact(corpus, store, "token_bins")["no_retracted_document"].passed
    tracer = corpus.tracer(store)
    (trace,) = trace_documents(tracer, text=TEXTS[0])
    assert (trace.row, trace.text) == (1, REWRITTEN[0])
    with raises(NotFoundError):
        trace_documents(tracer, text=REWRITTEN[0])


def test_a_document_without_text_after_rewriting_is_dropped_under_its_own_reason(tmp_path: Path) -> None:
    """A text that was empty in the source is kept, as without rewriting."""
    corpus, store = build(tmp_path, rewrite=[{"personal": {"emails": ""}}], keep={"long": "characters > 6"})
    assert [row["reason"] for row in read_table(tmp_path)] == [None, "rewritten_empty", None, "long", None]
    drops = corpus.documents(store).drops()
    assert drops is not None
    assert [(rule.rule, rule.documents) for rule in drops.rules] == [("rewritten_empty", 1), ("long", 1)]
    assert open_corpus(tmp_path, rewrite=PERSONAL, budget={"per_rule": {"rewritten_empty": 0.1}})


def test_tokens_of_the_source_text_fail_the_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATAPREP_WORKERS", raising=False)
    corpus, store = build(tmp_path, prove={"level": "every_document"}, rewrite=PERSONAL)
    assert check_artifact(corpus, store, "token_bins")["round_trip"].passed
    shutil.rmtree(tmp_path / "artifacts/corpus/token_bins")
    with monkeypatch.context() as fault:
        fault.setattr(SourcePart, "rewrite_block", lambda self, block: block)
        build_all([spec for spec in specs(corpus) if spec.name == "token_bins"], store)
    found = check_artifact(corpus, store, "token_bins")["round_trip"]
    assert not found.passed
    assert "a.jsonl: row 1" in found.summary


def test_a_changed_rewriter_rebuilds_what_is_built_from_texts(tmp_path: Path) -> None:
    corpus, store = build(tmp_path, rewrite=PERSONAL, duplicates={"kind": "exact"})
    others = open_corpus(tmp_path, rewrite=[{"personal": {"emails": "<E>"}}], duplicates={"kind": "exact"})

    def keys(corpus: Corpus) -> dict[str, str]:
        return {
            spec.name: next(iter(spec.recipes(store, spec.slots(store)))).key
            for spec in specs(corpus)
            if spec.name in ("manifest", "snapshot", "tags", "signatures", "token_bins")
        }

    before, after = keys(corpus), keys(others)
    assert {name for name, key in before.items() if after[name] != key} == {"tags", "signatures", "token_bins"}


CLEANING = """
from pathlib import Path

def shorten(text):
    print(text)
    return text.replace("that the sea was calm", "little")
"""


@pytest.mark.slow
def test_a_function_of_the_project_gives_the_same_bytes_for_any_number_of_workers(tmp_path: Path) -> None:
    coast = Coast(tmp_path / "coast")
    (coast.root / "coast" / "cleaning.py").write_text(CLEANING)
    declared = {
        "rewrite": ["ftfy", {"function": "coast.cleaning:shorten"}],
        "keep": {"changed": "rewritten_shorten > 0 or words < 20"},
    }
    coast.declare(**declared)
    assert "no errors found" in coast("check", "pages")
    assert "The lighthouse" not in coast("run", "pages")
    names = ("tags", "selection", "token_bins", "documents")
    digests = {name: [coast.receipt(name, one).content for one in coast.made(name)] for name in names}
    rows = coast.table().to_pylist()
    changed = {row["rewritten_shorten"] for row in rows if row["words"] is not None}
    assert changed == {0, 3 * len("that the sea was calm")}
    assert "rewriting: shorten changed" in coast("trace", "pages", "--file", "train/a.jsonl", "--row", "1")
    (tmp_path / "artifacts").rename(tmp_path / "others")
    coast.declare(**declared, workers=1)
    coast("run", "pages")
    assert {name: [coast.receipt(name, one).content for one in coast.made(name)] for name in names} == digests
    tokens = [path.read_bytes() for path in sorted((tmp_path / "artifacts").rglob("tokens.bin"))]
    assert tokens == [path.read_bytes() for path in sorted((tmp_path / "others").rglob("tokens.bin"))]
    assert len(np.frombuffer(b"".join(tokens), np.uint16)) > 0
    (coast.root / "coast" / "cleaning.py").write_text(CLEANING.replace("little", "less"))
    assert "rewrite changed" in coast("run", "pages", "--dry-run", code=1)
    (coast.root / "coast" / "cleaning.py").write_text(CLEANING.replace("return text", "return 1 and text[10**9]"))
    assert_names(
        coast("check", "pages", code=2), "train/a.jsonl: row 1", "'shorten'", "IndexError", "coast/cleaning.py:6"
    )


PRINTS = """
import os

def shorten(text):
    print(text, flush=True)
    os.write(1, text.encode())
    return text.replace("lighthouse", "house"){failure}
"""


@pytest.mark.slow
def test_nothing_of_a_sensitive_text_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCUMENT_KEY", "k" * 40)
    coast = Coast(tmp_path / "coast")
    coast.declare(
        sensitive=True,
        document={"separator": "<|endoftext|>", "id_key": {"env": "DOCUMENT_KEY"}, "keep_fields": {}},
        rewrite=[{"function": "coast.cleaning:shorten"}, *PERSONAL],
        **dict.fromkeys(("tag", "keep", "drop")),
    )
    path = coast.root / "coast" / "cleaning.py"
    path.write_text(PRINTS.format(failure=""))
    said = [coast("check", "pages"), coast("run", "pages")]
    said.append(coast("trace", "pages", "--file", "train/a.jsonl", "--row", "1"))
    path.write_text(PRINTS.format(failure=" if len(text) < 99 else text[text]"))
    said += [coast("check", "pages", code=2), coast("run", "pages", code=1)]
    assert "RewritingError" in said[-1]
    assert "lighthouse" not in "".join(said)
