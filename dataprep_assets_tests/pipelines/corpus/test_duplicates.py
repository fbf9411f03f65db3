"""Deduplication of a corpus: dropped rows with reasons, the effects of an append and a retraction, and the checks'
findings.
"""

import json
import random
import shutil
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from dataprep_assets.curation.duplicates.signatures import Signer
from dataprep_assets.curation.retractions import Retraction, add_retractions
from dataprep_assets.engine.artifact.metadata_values import Table
from dataprep_assets.engine.trace.retraction import DuplicatesChange
from dataprep_assets.errors import MissingArtifactError
from dataprep_assets.integrity.receipt import record_files
from dataprep_assets.pipelines.corpus.curation.excerpts import Excerpts
from dataprep_assets.pipelines.corpus.curation.kept_documents import predict_duplicates_change
from dataprep_assets.pipelines.corpus.dataset import build_card_sections
from dataprep_assets.pipelines.corpus.source.manifest import build_manifest_artifact
from dataprep_assets.tokenization.document_ids import DocumentIds, hash_id
from dataprep_assets_tests.curation.signed import draw_page, edit_words, replace_one
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.corpus.selected import Selected

pytest.importorskip("rensa", reason="the extra `duplicates`")

BY_SCORE = {
    "document": {"separator": "<|endoftext|>", "keep_fields": {"score": "number"}},
    "duplicates": {"priority": {"column": "score", "order": "lowest"}},
}


def join_words(pages: Sequence[Sequence[str]]) -> list[str]:
    """Return texts of words."""
    return [" ".join(words) for words in pages]


class Pages(Selected):
    """A corpus of forty pages in two files, and a third file with versions of the first ten and copies of three."""

    def __init__(self, folder: Path, **declared: Any) -> None:
        super().__init__(folder, **declared)
        draw = random.Random(1)
        self.pages = [draw_page(draw) for _ in range(40)]
        self.versions = [replace_one(words, draw) for words in self.pages[:10]]
        self.files: dict[str, list[Any]] = {
            "train/a.jsonl": join_words(self.pages[:20]),
            "train/b.jsonl": join_words(self.pages[20:]),
            "train/c.jsonl": [*join_words(self.versions), *join_words(self.pages[30:33])],
        }

    def retract(self, text: str) -> None:
        """Put a document on the retraction list."""
        path = self.corpus.retractions
        assert path is not None
        add_retractions(path, DocumentIds(), [Retraction(hash=f"{hash_id(text):016x}")])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    pages = Pages(tmp_path_factory.mktemp("pages"))
    pages.write(pages.files)
    pages.build()
    return pages


@pytest.fixture
def pages(made: Pages, tmp_path: Path) -> Pages:
    """Return a copy of the built corpus that a test may change."""
    shutil.copytree(made.folder, tmp_path / "copy")
    return Pages(tmp_path / "copy")


def test_one_of_several_near_duplicates_is_kept_and_named(made: Pages) -> None:
    dropped = made.dropped()
    assert len(dropped) == 13
    gone = {f"{one['file']}:{one['row']}" for one in dropped}
    assert {one["reason"] for one in dropped} == {"duplicate"}
    assert gone.isdisjoint(one["representative"] for one in dropped)
    assert sorted(one["similarity"] == 1 for one in dropped) == [False] * 10 + [True] * 3
    assert min(one["similarity"] for one in dropped) > 0.9
    for name in ("duplicates", "signatures", "selection"):
        found = made.findings(name, None if name == "duplicates" else "train")
        assert all(one.passed for one in found.values()), found
    assert made.build() == []


def test_the_largest_clusters_are_shown_with_excerpts(made: Pages) -> None:
    spec = made.specs()["duplicates", None]
    receipt = made.store.require(made.corpus.artifact("duplicates"))
    shown = spec.metadata(made.store, receipt)["largest_clusters"]
    assert isinstance(shown, Table)
    texts = {f"{name}:{at}": text for name, rows in made.files.items() for at, text in enumerate(rows, 1)}
    assert len(shown.rows) == 10
    for row in shown.rows:
        assert texts[row["representative"]].startswith(row["text"])
        assert texts[row["example"]].startswith(row["example_text"])
        assert row["text"]
        assert row["example_text"]


def test_recall_is_plotted_for_the_ui_and_the_curve_for_the_card(made: Pages) -> None:
    found = made.findings()["recall_sufficient"]
    rows = {row["edit"]: row for row in found.table}
    assert {rows[name]["removed_%"] for name in ("licence", "form", "translation")} == {0}
    plot = found.plot
    assert plot is not None
    said, _, picture = plot.text.partition("](data:image/svg+xml;base64,")
    assert said.startswith("![the chance that the bands find a pair")
    drawn = ElementTree.fromstring(b64decode(picture.removesuffix(")")))
    marks = [one.tag.rpartition("}")[2] for one in drawn]
    assert marks.count("circle") >= 10
    assert marks.count("polyline") == 1
    specs = list(made.specs().values())
    duplicates = next(one for one in specs if one.name == "duplicates")
    receipt = made.store.require(made.corpus.artifact("duplicates"))
    (section,) = build_card_sections(made.corpus, {duplicates: [receipt]})
    assert section.text.startswith("13 of 53 documents were dropped as duplicates of a kept document.")
    assert "data:image/svg+xml;base64," in section.text


def test_the_kept_texts_do_not_depend_on_files_and_shards(made: Pages, tmp_path: Path) -> None:
    everything = [text for rows in made.files.values() for text in rows]
    for seed, shards in ((1, 1), (2, 3)):
        other = Pages(tmp_path / f"{seed}", shards={"count": shards})
        dealt = random.Random(seed).sample(everything, len(everything))
        other.write({f"train/{9 - number}.jsonl": dealt[number::5] for number in range(5)})
        other.build()
        assert other.kept() == made.kept()


def test_an_appended_duplicate_is_dropped_and_only_its_shard_is_built(pages: Pages) -> None:
    kept, draw = pages.kept(), random.Random(7)
    new = draw_page(draw)
    pages.write({"train/0.jsonl": join_words([*(replace_one(words, draw) for words in pages.pages[:20]), new])})
    assert pages.build() == [
        "manifest",
        "snapshot/train-00003",
        "tags/train-00003",
        "signatures/train-00003",
        "duplicates",
        "selection/train-00003",
    ]
    assert pages.kept() == sorted([*kept, " ".join(new)])
    ages = json.loads((pages.folder / "artifacts/pages/duplicates/ages.json").read_bytes())
    assert ages == {"train/0.jsonl": 1, **dict.fromkeys(pages.files, 0)}
    assert pages.build() == []


def test_a_build_from_nothing_with_equal_ages_gives_equal_bytes(pages: Pages) -> None:
    draw = random.Random(8)
    pages.write({"train/d.jsonl": join_words([replace_one(words, draw) for words in pages.pages[5:15]])})
    pages.build()
    before, folder = pages.bytes(), pages.folder / "artifacts/pages"
    for name in ("tags", "signatures", "selection"):
        shutil.rmtree(folder / name)
    for path in (folder / "duplicates").iterdir():  # keep the ages, but delete the stored comparisons
        if path.name not in ("ages.json", "receipt.json"):
            path.unlink()
    pages.build()
    assert pages.bytes() == before


@pytest.mark.parametrize("lost", ["ages.json", "receipt.json", ""])
def test_ages_survive_the_loss_of_the_duplicates(pages: Pages, lost: str) -> None:
    draw = random.Random(8)
    pages.write({"train/0.jsonl": join_words([replace_one(words, draw) for words in pages.pages[5:15]])})
    pages.build()
    before, duplicates = pages.bytes(), pages.folder / "artifacts/pages/duplicates"
    assert json.loads((duplicates / "ages.json").read_bytes())["train/0.jsonl"] == 1
    if lost:
        (duplicates / lost).unlink()
    else:
        shutil.rmtree(duplicates)
    assert pages.build() == ["duplicates"]
    assert pages.bytes() == before


def test_with_a_column_any_history_of_appends_gives_the_bytes_of_one_build(tmp_path: Path) -> None:
    draw = random.Random(9)
    files = {
        f"train/{name}.jsonl": [
            {"text": text, "score": draw.random()}
            for text in join_words([replace_one(words, draw) for words in Pages(tmp_path).pages[:25]])
        ]
        for name in "abc"
    }
    histories = [[["a", "b", "c"]], [["a"], ["b"], ["c"]], [["a", "b"], ["c"]]]
    made = []
    for number, history in enumerate(histories):
        pages = Selected(tmp_path / f"{number}", **BY_SCORE)
        for names in history:
            pages.write({f"train/{name}.jsonl": files[f"train/{name}.jsonl"] for name in names})
            pages.build()
        made.append((pages.bytes(), pages.kept()))
    assert made[0] == made[1] == made[2]
    assert 25 <= len(made[0][1]) < 75


def test_retracting_a_kept_document_brings_its_duplicates_back(pages: Pages) -> None:
    one = next(one for one in pages.dropped() if one["similarity"] < 1)
    file, _, row = one["representative"].rpartition(":")
    text = pages.files[file][int(row) - 1]
    pages.retract(text)
    built = pages.build()
    # Only `duplicates`, the shard of the retracted document and the shard of the returning document are rebuilt.
    assert (built[0], len(built)) == ("duplicates", 3)
    assert pages.warnings == ["pages/duplicates: 1 document was restored, because its kept duplicate was removed"]
    assert (one["file"], one["row"]) not in {(other["file"], other["row"]) for other in pages.dropped()}
    assert pages.build() == []


def test_duplicates_of_a_retracted_document_are_named_while_new_files_are_pending(pages: Pages) -> None:
    one = next(one for one in pages.dropped() if one["similarity"] < 1)
    file, _, row = one["representative"].rpartition(":")
    pages.retract(pages.files[file][int(row) - 1])
    before = predict_duplicates_change(pages.corpus, pages.store)
    assert before is not None
    assert before.back >= 1
    pages.write({"train/new.jsonl": ["a page of its own, which nobody has looked at"]})
    build_manifest_artifact(pages.corpus, pages.store)
    assert predict_duplicates_change(pages.corpus, pages.store) == before


def test_the_announced_changes_equal_those_of_the_next_build(tmp_path: Path) -> None:
    # Each page resembles only its neighbors in the chain. So every second page is dropped, and without the first page,
    # the other pages are dropped instead.
    draw, pages = random.Random(11), Pages(tmp_path, **BY_SCORE)
    chain = [draw_page(draw)]
    for _ in range(5):
        chain.append(edit_words(chain[-1], draw, 0.02))
    pages.write({"train/a.jsonl": [{"text": text, "score": at} for at, text in enumerate(join_words(chain))]})
    pages.build()
    before = {one["row"] for one in pages.dropped()}
    pages.retract(join_words(chain)[0])
    change = predict_duplicates_change(pages.corpus, pages.store)
    pages.build()
    after = {one["row"] for one in pages.dropped() if one["reason"] == "duplicate"}
    retracted = {one["row"] for one in pages.dropped() if one["reason"] == "retracted"}
    assert retracted == {1}
    assert change == DuplicatesChange(back=len(before - after), gone=len(after - before))
    assert change.back > 0
    assert change.gone > 0


def test_duplicates_of_the_validation_split_block_or_are_dropped_from_train(tmp_path: Path) -> None:
    splits = {"train": ["train/**"], "val": ["val/**"]}
    pages = Pages(tmp_path, splits=splits)
    draw = random.Random(5)
    pages.write(
        {
            **pages.files,
            "val/v.jsonl": join_words([replace_one(pages.pages[25], draw), draw_page(draw), pages.pages[26]]),
        }
    )
    pages.build()
    found = pages.findings()["splits_disjoint"]
    assert not found.passed
    assert not found.warning
    assert "train/b.jsonl:7 in train is 100.0% similar to val/v.jsonl:3 in val" in found.summary or (
        "train/b.jsonl:6 in train is" in found.summary
    )
    assert found.facts["pairs"] == 2
    apart = Pages(tmp_path, splits=splits, duplicates={"across_splits": "drop"})
    # Only the shard in which a different row is dropped is rebuilt.
    assert apart.build() == ["duplicates", "selection/train-00001"]
    gone = {(one["file"], one["row"]) for one in apart.dropped() if one["representative"].startswith("val/")}
    assert gone == {("train/b.jsonl", 6), ("train/b.jsonl", 7)}
    assert all(one.passed for one in apart.findings().values())
    ignored = Pages(tmp_path, splits=splits, duplicates={"across_splits": "ignore"})
    ignored.build()
    assert "splits_disjoint" not in ignored.findings()
    assert len(ignored.dropped()) == 13


def test_rules_come_first_and_a_row_that_they_drop_removes_no_duplicate(tmp_path: Path) -> None:
    declared = {"document": {"separator": "<|endoftext|>", "keep_fields": {"mirror": "boolean"}}}
    pages = Pages(tmp_path, drop={"ours": "not mirror"}, **declared)
    named = {
        name: [{"text": text, "mirror": name == "train/c.jsonl"} for text in rows] for name, rows in pages.files.items()
    }
    pages.write(named)
    pages.build()
    assert Counter(one["reason"] for one in pages.dropped()) == {"ours": 40}
    assert pages.kept() == sorted(pages.files["train/c.jsonl"])


def test_a_budget_also_applies_to_duplicates_and_names_the_source(tmp_path: Path) -> None:
    pages = Pages(tmp_path, budget={"per_source": 0.2, "per_rule": {"duplicate": 0.2}})
    pages.write(pages.files)
    pages.build()
    found = pages.findings("selection", "train")["within_budget"]
    assert not found.passed
    assert_names(found.summary, "duplicate", "13 of 53", "24.5%", "20.0%")
    examples = [one for one in found.table if "example" in one]
    assert [(one["source"], one["dropped_as"]) for one in examples] == [("train", "duplicate")] * 3
    texts = {f"{name}:{at}": text for name, rows in pages.files.items() for at, text in enumerate(rows, 1)}
    for one in examples:
        assert one["example_text"]
        assert one["stays_text"]
        assert texts[str(one["example"])].startswith(str(one["example_text"]))
        assert texts[str(one["stays"])].startswith(str(one["stays_text"]))
    kinder = Pages(tmp_path, budget={"per_rule": {"duplicate": 0.5}})
    assert kinder.findings("selection", "train")["within_budget"].passed


def test_dropping_a_whole_split_exceeds_every_budget_that_does_not_allow_it(tmp_path: Path) -> None:
    pages = Pages(tmp_path, drop={"all": "bytes > 0"})
    pages.write(pages.files)
    pages.build()
    found = pages.findings("selection", "train")["within_budget"]
    assert not found.passed
    assert_names(found.summary, "train", "all")
    for budget, passes in (
        ({"per_rule": {"all": 1}}, True),
        ({"per_source": 1}, True),
        ({"per_rule": {"duplicate": 0.5}}, False),
    ):
        declared = Pages(tmp_path, drop={"all": "bytes > 0"}, budget=budget)
        assert declared.findings("selection", "train")["within_budget"].passed is passes


def test_exact_duplicates_can_be_dropped_without_near_duplicates(tmp_path: Path) -> None:
    pages = Pages(tmp_path, duplicates={"kind": "exact"})
    pages.write(pages.files)
    pages.build()
    assert len(pages.dropped()) == 3
    assert all(one.passed for one in pages.findings().values())
    assert (pages.folder / "artifacts/pages/signatures/train-00000/shingles.bin").stat().st_size == 0


def test_signatures_of_a_shard_whose_first_file_has_no_text_are_reproducible(tmp_path: Path) -> None:
    whole = {"shards": {"target_bytes": 1_000_000}, "bad_records": {"policy": "drop", "budget": 1.0}}
    pages = Pages(tmp_path, duplicates={"kind": "exact"}, **whole)
    pages.write({"train/a.jsonl": [{"body": "one"}, {"body": "two"}], "train/b.jsonl": join_words(pages.pages[:3])})
    pages.build()
    (finding,) = [one for name, one in pages.findings("signatures", "train").items() if name == "rebuild_matches"]
    assert finding.passed, finding.summary
    pages.write({"train/b.jsonl": join_words(pages.pages[3:6])})
    (finding,) = [one for name, one in pages.findings("signatures", "train").items() if name == "rebuild_matches"]
    assert not finding.passed
    assert "b.jsonl" in finding.summary


def test_signatures_of_sensitive_data_are_keyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCUMENT_KEY", "k" * 40)
    keyed = {"document": {"separator": "<|endoftext|>", "id_key": {"env": "DOCUMENT_KEY"}}}
    pages, plain = Pages(tmp_path / "keyed", sensitive=True, **keyed), Pages(tmp_path / "plain")
    for one in (pages, plain):
        one.write(one.files)
        one.build()
    assert len(pages.dropped()) == len(plain.dropped()) == 13
    digests = [
        set(np.fromfile(one.folder / "artifacts/pages/signatures/train-00000/shingles.bin", "<u8").tolist())
        for one in (pages, plain)
    ]
    assert digests[0].isdisjoint(digests[1])
    findings = pages.findings()
    assert all(one.passed for name, one in findings.items() if name != "permissions_private"), findings
    receipt = pages.store.require(pages.corpus.artifact("duplicates"))
    assert "largest_clusters" not in pages.specs()["duplicates", None].metadata(pages.store, receipt)
    assert Excerpts(pages.corpus, pages.store).read_excerpt("train/a.jsonl:1") == ""
    words = {word for words in pages.pages for word in words}
    assert not words & set(" ".join(one.summary for one in findings.values()).split())
    with raises(ValidationError, "document.id_key"):
        _ = Pages(tmp_path, sensitive=True, source={"kind": "hub", "repo": "a/b", "revision": "main"}).corpus


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        ({"kind": "exact", "threshold": 0.9}, ("`threshold`", "`kind: exact`")),
        ({"threshold": 0.05, "permutations": 16}, (16, "permutations")),
        ({"priority": {"column": "qualty"}}, ("duplicates.priority.column", "'qualty'")),
        ({"priority": {"column": "source"}}, ("duplicates.priority.order",)),
        ({"priority": {"column": "bytes", "order": ["a"]}}, ("`highest`", "`lowest`")),
    ],
)
def test_a_declaration_without_effect_is_refused(
    tmp_path: Path, declared: dict[str, Any], values: tuple[object, ...]
) -> None:
    with raises(ValidationError, *values):
        _ = Pages(tmp_path, duplicates=declared).corpus


def test_a_threshold_has_the_documented_effect(pages: Pages, tmp_path: Path) -> None:
    assert len(pages.dropped()) == 13
    stricter = Pages(pages.folder, duplicates={"threshold": 0.95})
    stricter.build()
    assert len(stricter.dropped()) == 3


def rewrite_files(change: Callable[[Path], None]) -> Callable[[Pages], None]:
    """Return a change of the duplicates' files after which the receipt describes them."""

    def damage(pages: Pages) -> None:
        artifact = pages.corpus.artifact("duplicates")
        directory = pages.store.local(artifact)
        change(directory)
        receipt = pages.store.require(artifact)
        files = tuple(one for one in record_files(directory, {}) if one.path != "receipt.json")
        replace(receipt, files=files).write(directory)

    return damage


def _other_similarity(directory: Path) -> None:
    path = directory / "train-00002.parquet"
    table = pq.read_table(path)
    values = [0.99] * table.num_rows
    pq.write_table(table.set_column(2, table.schema.field(2), [values]), path)


def _fewer(directory: Path) -> None:
    path = directory / "train-00000.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)


@pytest.mark.parametrize(
    ("damage", "said"),
    [(_other_similarity, "similarity differs"), (_fewer, "train-00000.parquet: has")],
)
def test_a_wrong_removal_is_found(pages: Pages, damage: Callable[[Path], None], said: str) -> None:
    rewrite_files(damage)(pages)
    found = pages.findings()["rebuild_matches"]
    assert not found.passed
    assert said in found.summary + json.dumps([dict(row) for row in found.table])


def test_bands_that_find_less_than_promised_fail_the_check(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pages.findings()["recall_sufficient"].passed
    demanding = Pages(pages.folder, duplicates={"recall": 1.0, "permutations": 16})
    demanding.build()
    found = demanding.findings()["recall_sufficient"]
    assert_names(found.summary, "planted", "threshold")
    real = Signer.compute_bands
    monkeypatch.setattr(Signer, "compute_bands", lambda self, *given: _half(real(self, *given)))
    found = pages.findings()["recall_sufficient"]
    assert not found.passed
    assert found.facts["defects"] == 2
    assert float(found.facts["sharing_band_%"]) < 0.6 * float(found.facts["predicted_sharing_band_%"])


def _half(bands: Any) -> Any:
    """Return bands in which every second text has different values."""
    bands[1::2] += np.uint64(1)
    bands[1::4] -= np.uint64(1)
    return bands


def test_missing_files_are_reported(tmp_path: Path) -> None:
    pages = Pages(tmp_path)
    pages.write(pages.files)
    with pytest.raises(MissingArtifactError):
        pages.findings()
