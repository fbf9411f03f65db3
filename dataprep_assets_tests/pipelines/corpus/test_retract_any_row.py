"""A removal request holds for any row: dropped by a rule, as a duplicate or as a bad record, or not built yet."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dataprep_assets.curation.id_list import read_ids
from dataprep_assets.curation.retractions import add_retractions, hash_id_value
from dataprep_assets.engine.checks.check import Finding, require_ledger
from dataprep_assets.engine.lock.drift import find_recipe_drift
from dataprep_assets.engine.lock.lock import lock_dataset
from dataprep_assets.engine.staleness.rebuild import count_retracted_documents, find_remaining_retractions
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.engine.trace.retraction import NOT_BUILT
from dataprep_assets.formats.document_index import IDS, open_ids
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.curation.corpus_documents import CorpusDocuments
from dataprep_assets.pipelines.corpus.dataset import Corpus
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.retract import LocatedRows, locate_rows, require_document_ids
from dataprep_assets.stream.token_shard import TOKEN_BINS
from dataprep_assets.tokenization.document_ids import DocumentIds
from dataprep_assets_tests.engine.building import build_all
from dataprep_assets_tests.pipelines.corpus.pipeline import products, receipts
from dataprep_assets_tests.samples import SAMPLE

SHORT = "A short one."
RULE = {"short": "words < 10"}


def long(number: int) -> str:
    """A text that no rule here drops, and no other text is like."""
    return f"Page {number} of the harbour: " + " ".join(f"boat{number * 31 + at}" for at in range(20))


class Harbour:
    """A corpus of two files, one a shard, with a rule that drops what is short; `id` is declared."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder, self.changes = folder, changes
        self.store = LocalArtifacts(folder / "root")
        self.write("train/a.jsonl", [{"id": f"a{n}", "text": SHORT if n == 2 else long(n)} for n in range(4)])
        self.write("train/b.jsonl", [{"id": f"b{n}", "text": long(100 + n)} for n in range(4)])

    def write(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        path = self.folder / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    @property
    def declared(self) -> CorpusDeclaration:
        base: dict[str, Any] = {
            "dataset": "harbour",
            "source": {"kind": "local", "path": self.folder / "data"},
            "include": ["**/*.jsonl"],
            "splits": {"train": ["train/**"]},
            "tokenizer": {"path": SAMPLE / "tokenizer", "name": "sample"},
            "document": {"separator": "<|endoftext|>", "id_field": "id"},
            "bad_records": {"policy": "drop", "budget": 0.9},
            "tag": ["gopher"],
            "drop": RULE,
            "shards": {"target_bytes": 1},
            "retractions": self.folder / "retracted.jsonl",
        }
        declared = {name: value for name, value in (base | self.changes).items() if value is not None}
        return CorpusDeclaration.model_validate(declared).resolve_paths(self.folder)

    @property
    def dataset(self) -> Corpus:
        return Corpus(self.declared)

    def build(self, store: LocalArtifacts | None = None) -> None:
        build_all(self.dataset.specs, store or self.store)

    def retract(self, *lines: str) -> LocatedRows:
        ids = self.folder / "ids"
        ids.write_text("".join(f"{line}\n" for line in lines))
        found = locate_rows(self.declared, self.store, read_ids(ids))
        assert self.declared.retractions is not None
        add_retractions(self.declared.retractions, require_document_ids(self.declared), found.listed)
        return found

    def made(self, artifact: str) -> dict[str, str]:
        """When each partition of an artifact was made."""
        found = {one: self.store.receipt(self.declared.artifact(artifact, one)) for one in self.partitions(artifact)}
        return {name: str(one.measured["created"]) for name, one in found.items() if one is not None}

    def partitions(self, artifact: str) -> list[str]:
        return list(self.store.partitions("harbour", artifact))

    def stream(self) -> set[str]:
        """The ids in the streams of all shards."""
        found = set()
        for one in self.partitions(TOKEN_BINS):
            artifact = self.declared.artifact(TOKEN_BINS, one)
            documents = require_ledger(self.store.require(artifact)).documents
            found |= {f"{int(h):016x}" for h in open_ids(self.store.local(artifact, [IDS]) / IDS, documents)}
        return found

    def reasons(self) -> dict[str, str | None]:
        """File and row → the reason in the table."""
        rows = [
            row
            for path in sorted((self.folder / "root/harbour/documents").glob("*/documents.parquet"))
            for row in pq.read_table(path).to_pylist()
        ]
        return {f"{row['file']}:{row['row']}": row["reason"] for row in rows}

    def findings(self, artifact: str) -> dict[str, Finding]:
        (spec,) = [one for one in self.dataset.specs if one.name == artifact]
        assert spec.partitions is not None
        return dict(spec.examine(self.store, list(spec.partitions.keys(self.store))))


def hashed(given: str) -> str:
    return hash_id_value(given, DocumentIds(id_field="id"))


def same_as_from_scratch(harbour: Harbour) -> None:
    fresh = LocalArtifacts(harbour.folder / "fresh")
    harbour.build(fresh)
    assert products(fresh.root) == products(harbour.store.root)
    assert receipts(fresh.root) == receipts(harbour.store.root)


@pytest.mark.parametrize("line", ["train/a.jsonl:3", "a2", hashed("a2")])
def test_what_a_rule_drops_stays_out_when_the_rule_is_relaxed(tmp_path: Path, line: str) -> None:
    harbour = Harbour(tmp_path)
    harbour.build()
    assert harbour.reasons()["train/a.jsonl:3"] == "short"
    streams = harbour.made(TOKEN_BINS)
    found = harbour.retract(line)
    assert ([one.hash for one in found.found], found.left_out) == ([hashed("a2")], {"short": 1})
    assert (found.unknown, found.shards) == ((), ())
    harbour.build()
    # Nothing is tokenized again, because the same rows are dropped. Only the reason for one row changes, from the rule
    # to the retraction.
    assert harbour.made(TOKEN_BINS) == streams
    assert harbour.reasons()["train/a.jsonl:3"] == "retracted"
    specs, lock = harbour.dataset.specs, lock_dataset(harbour.dataset.specs, harbour.store)
    same_as_from_scratch(harbour)
    assert list(find_recipe_drift(specs, LocalArtifacts(tmp_path / "fresh"), lock)) == []
    harbour.changes["drop"] = {"short": "words < 1"}
    harbour.build()
    assert hashed("a2") not in harbour.stream()
    assert harbour.findings(TOKEN_BINS)["no_retracted_document"].passed
    assert list(find_stale(harbour.dataset.specs, harbour.store)) == []
    again = harbour.retract(line)
    assert (len(again.already), again.found) == (1, ())


def test_a_retraction_that_is_taken_back_leaves_what_was_there(tmp_path: Path) -> None:
    harbour = Harbour(tmp_path)
    harbour.build()
    before = receipts(harbour.store.root)
    harbour.retract("a2", "a3")
    harbour.build()
    (harbour.folder / "retracted.jsonl").unlink()
    harbour.build()
    assert receipts(harbour.store.root) == before


def test_a_rule_of_another_name_tokenizes_nothing_again(tmp_path: Path) -> None:
    harbour = Harbour(tmp_path)
    harbour.build()
    streams, bins = harbour.made(TOKEN_BINS), harbour.made("combined_bins")
    harbour.changes["drop"] = {"tiny": "words < 9"}
    harbour.build()
    assert (harbour.made(TOKEN_BINS), harbour.made("combined_bins")) == (streams, bins)
    assert harbour.reasons()["train/a.jsonl:3"] == "tiny"
    assert all(one.passed for one in harbour.findings("documents").values())
    same_as_from_scratch(harbour)


def test_commands_and_the_table_count_the_same(tmp_path: Path) -> None:
    harbour = Harbour(tmp_path)
    harbour.build()
    harbour.retract("a2", "b1")
    harbour.build()
    asked = CorpusDocuments(harbour.declared, harbour.store)
    drops = asked.drops()
    assert drops is not None
    counted = {one.rule: one.documents for one in drops.rules if one.documents}
    assert counted == dict(asked.reasons()) == {"retracted": 2}


def test_duplicates_stay_out_when_what_stood_for_them_goes(tmp_path: Path) -> None:
    pytest.importorskip("rensa", reason="the extra `duplicates`")
    harbour = Harbour(tmp_path, drop=None, duplicates={})
    harbour.write("train/b.jsonl", [{"id": "b0", "text": long(0)}, {"id": "b1", "text": long(7)}])
    harbour.build()
    (place,) = [where for where, reason in harbour.reasons().items() if reason == "duplicate"]
    gone, stands = ("a0", "b0") if place.startswith("train/a") else ("b0", "a0")
    assert harbour.retract(place).left_out == {"duplicate": 1}
    harbour.build()
    harbour.retract(stands)
    harbour.build()
    assert not {hashed(gone), hashed(stands)} & harbour.stream()
    same_as_from_scratch(harbour)


@pytest.mark.parametrize("has_table", [True, False])
def test_what_is_not_built_is_read_from_the_source(tmp_path: Path, has_table: bool) -> None:
    harbour = Harbour(tmp_path, **({} if has_table else {"tag": None, "drop": None}))
    first = harbour.retract("train/a.jsonl:1")
    assert ([one.hash for one in first.found], first.left_out) == ([hashed("a0")], {NOT_BUILT: 1})
    harbour.build()
    assert hashed("a0") not in harbour.stream()
    harbour.write("train/c.jsonl", [{"id": "c0", "text": long(500)}])
    harbour.write("later/d.jsonl", [{"id": "d0", "text": long(600)}])
    harbour.write("train/bad.jsonl", [{"id": "e0", "text": None}, {"id": "e1", "text": long(700)}])
    lines = ["train/c.jsonl:1", "later/d.jsonl:1", "train/bad.jsonl:1", "train/a.jsonl:99", "train/none.jsonl:1"]
    found = harbour.retract(*lines)
    assert found.left_out == {NOT_BUILT: 2, "null_text": 1}
    assert [one.text for one in found.unknown] == lines[3:]
    harbour.write("train/bad.jsonl", [{"id": "e0", "text": long(800)}, {"id": "e1", "text": long(700)}])
    harbour.changes["splits"] = {"train": ["train/**"], "later": ["later/**"]}
    harbour.build()
    assert not {hashed(one) for one in ("a0", "c0", "d0", "e0")} & harbour.stream()
    assert hashed("e1") in harbour.stream()


def test_an_id_that_no_row_has_is_kept_for_later_and_asked_twice_is_told_as_such(tmp_path: Path) -> None:
    harbour = Harbour(tmp_path)
    harbour.build()
    assert [one.text for one in harbour.retract("nobody").unknown] == ["nobody"]
    assert [one.text for one in harbour.retract("nobody").already] == ["nobody"]
    first, second = harbour.retract("b1"), harbour.retract("b1")
    # The document is still present at the second request, because no run took place after the first one.
    assert (len(first.found), len(second.found), len(second.already)) == (1, 0, 1)
    assert first.shards == second.shards != ()


def test_another_dataset_of_the_same_files_is_behind_until_it_retracts_what_its_rule_drops(tmp_path: Path) -> None:
    harbour = Harbour(tmp_path)
    harbour.build()
    harbour.retract("a2")
    harbour.build()
    (tmp_path / "other").mkdir()
    other = Harbour(tmp_path / "other", source={"kind": "local", "path": tmp_path / "data"})
    other.build()
    retracted = count_retracted_documents(harbour.dataset.specs, harbour.store)
    others = [(other.dataset.specs, other.store)]
    assert {one.artifact for one in find_remaining_retractions("harbour", retracted, others)} >= {TOKEN_BINS}
    other.retract("a2")
    other.build()
    assert list(find_remaining_retractions("harbour", retracted, others)) == []


def test_ids_that_two_documents_have_are_a_warning_with_their_rows(tmp_path: Path) -> None:
    harbour = Harbour(tmp_path)
    harbour.write("train/b.jsonl", [{"id": "a1", "text": long(100)}, {"id": "b1", "text": long(101)}])
    harbour.build()
    found = harbour.findings(TOKEN_BINS)["document_ids_unique"]
    assert (found.passed, found.warning, found.facts["repeated_ids"]) == (False, True, 1)
    assert [(row["file"], row["row"]) for row in found.table] == [("train/a.jsonl", 2), ("train/b.jsonl", 1)]
    harbour.retract("a1")
    harbour.build()
    assert harbour.findings(TOKEN_BINS)["document_ids_unique"].passed
    assert hashed("a1") not in harbour.stream()
