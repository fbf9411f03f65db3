"""Documents that are taken out of a corpus: only their shards are rebuilt, and nothing of them is left."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from dataprep_assets.curation.id_list import read_ids
from dataprep_assets.curation.retractions import Retraction, add_retractions, hash_id_value
from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.engine.checks.verdicts import find_all
from dataprep_assets.engine.lock.drift import find_recipe_drift
from dataprep_assets.engine.lock.lock import lock_dataset
from dataprep_assets.engine.staleness.status import (
    find_retracted_leftovers,
    find_stale,
    find_unplanned_artifacts,
    prune_retracted,
)
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import read_receipt
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.retract import locate_rows, require_document_ids
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest
from dataprep_assets.pipelines.corpus.token_bins import build_stream_plan, plan_token_shards
from dataprep_assets.stores.files import sha256_file
from dataprep_assets.stream.engine_certificate import load_certificate
from dataprep_assets.stream.token_bins_checks import TOKEN_BINS_CHECKS, OpenedTokens
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.document_ids import DocumentIds
from dataprep_assets.tokenization.engines import ReferenceEngine
from dataprep_assets_tests.engine.building import build_all
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.corpus.pipeline import (
    Outcome,
    products,
    receipts,
    run_pipeline,
    sample_declaration,
)
from dataprep_assets_tests.samples import SAMPLE
from dataprep_assets_tests.tokenization.known_words import save_words

WORDS = ["apple", "river", "stone", "cloud", "music", "paper", "window", "garden"]


def text(number: int) -> str:
    """A document that no other contains."""
    return f"Document {number}: " + " ".join(WORDS[(number * 7 + i * i) % 8] for i in range(20 + number % 5))


class Retracting:
    """A small corpus of four train shards and one of validation, 40 documents each; `url` is their declared id."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder, self.data = folder, folder / "data"
        for split, shards in (("train", 4), ("val", 1)):
            for shard in range(shards):
                rows = [self.record(split, shard, row) for row in range(40)]
                path = self.data / split / f"{shard}.jsonl.zst"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(zstandard.compress("".join(json.dumps(r) + "\n" for r in rows).encode()))
        self.list = folder / "retracted.jsonl"
        self.changes = changes
        self.root = folder / "root"
        self.store = LocalArtifacts(self.root)

    @staticmethod
    def record(split: str, shard: int, row: int) -> dict[str, str]:
        number = shard * 40 + row + (1000 if split == "val" else 0)
        return {"text": text(number), "url": f"https://example.org/{number}"}

    @property
    def declared(self) -> CorpusDeclaration:
        base: dict[str, Any] = {
            "splits": {"train": ["train/**"], "val": ["val/**"]},
            "shards": {"count": 4},
            "views": ["nanogpt", "megatron"],
            "olmo_sequence_length": 64,
            "retractions": self.list,
        }
        return sample_declaration(self.data, **(base | self.changes))

    def run(self, root: Path | None = None) -> Outcome:
        outcome = run_pipeline(self.declared, root or self.root)
        assert outcome.failed == {}
        return outcome

    def retract(self, *lines: str) -> tuple[int, int, int, int]:
        """Found, already, unknown, and documents held."""
        ids = self.folder / "ids"
        ids.write_text("".join(line + "\n" for line in lines))
        found = locate_rows(self.declared, self.store, read_ids(ids))
        add_retractions(self.list, require_document_ids(self.declared), found.listed)
        held = sum(shard.documents for shard in found.shards)
        return len(found.found), len(found.already), len(found.unknown), held

    def findings(self, partition: str) -> dict[str, Finding]:
        corpus = self.declared
        manifest = load_manifest(corpus, self.store)
        plan = build_stream_plan(corpus, load_certificate(corpus, self.store))
        (shard,) = plan_token_shards(corpus, self.store, manifest, plan, [partition])
        return find_all(TOKEN_BINS_CHECKS, OpenedTokens.open, None, shard)

    def failed_proofs(self, partition: str) -> set[str]:
        return {name for name, finding in self.findings(partition).items() if not finding.passed}


@pytest.fixture
def corpus(tmp_path: Path) -> Retracting:
    made = Retracting(tmp_path, document={"separator": "<|endoftext|>", "id_field": "url"})
    made.run()
    return made


def traces(root: Path, texts: list[str]) -> list[str]:
    """Every token file below a root that holds the tokens of one of these texts, by an independent scan."""
    engine = ReferenceEngine(TokenizerBundle.load(SAMPLE / "tokenizer", name="sample"), "text")
    wanted = [np.array(engine.encode([one])[0], "<u2").tobytes() for one in texts]
    return [
        path.relative_to(root).as_posix()
        for path in sorted(root.rglob("*.bin"))
        if "ends" not in "ids" and any(one in path.read_bytes() for one in wanted)
    ]


def test_only_the_shards_that_held_them_are_rebuilt_and_nothing_is_left(corpus: Retracting, tmp_path: Path) -> None:
    before = products(corpus.root)
    assert traces(corpus.root, [text(3)]) != []
    given = [
        "https://example.org/3",
        "train/2.jsonl.zst:11",
        "https://example.org/none",
        '{"id": "https://example.org/4"}',
    ]
    assert corpus.retract(*given) == (3, 0, 1, 3)
    held = {name: sha256_file(corpus.data / name) for name in ("train/0.jsonl.zst", "train/2.jsonl.zst")}
    (corpus.folder / "ids").write_text("https://example.org/3\ntrain/2.jsonl.zst:11\n")
    found = locate_rows(corpus.declared, corpus.store, read_ids(corpus.folder / "ids"))
    assert {name: digest for shard in found.shards for name, digest in shard.files.items()} == held
    reasons = {one.name: one.reason for one in find_stale(corpus_specs(corpus.declared), corpus.store)}
    assert_names(reasons["sample_corpus/token_bins/train-00000"], "retracted", "2 documents")
    assert {name for name in reasons if "token_bins" in name} == {
        "sample_corpus/token_bins/train-00000",
        "sample_corpus/token_bins/train-00002",
    }
    outcome = corpus.run()
    assert sorted(outcome.built) == [
        "combined_bins/train",
        "megatron_bins",
        "nanogpt_bins",
        "token_bins/train-00000",
        "token_bins/train-00002",
    ]
    assert traces(corpus.root, [text(3), text(4), text(90)]) == []
    assert corpus.failed_proofs("train-00000") == corpus.failed_proofs("train-00001") == set()
    receipt = read_receipt(corpus.root / "sample_corpus/token_bins/train-00000")
    assert receipt is not None
    assert receipt.ledger is not None
    assert (receipt.ledger.dropped, receipt.ledger.documents) == ({"retracted": 2}, 38)
    now = products(corpus.root)
    untouched = ("manifest/", "snapshot/", "token_bins/train-00001", "token_bins/val", "combined_bins/val")
    kept = [name for name in before if name.removeprefix("sample_corpus/").startswith(untouched)]
    assert {name: now[name] for name in kept} == {name: before[name] for name in kept}
    assert list(find_stale(corpus_specs(corpus.declared), corpus.store)) == []
    assert corpus.run().built == []
    corpus.run(tmp_path / "scratch")
    assert products(tmp_path / "scratch") == now
    assert receipts(tmp_path / "scratch") == receipts(corpus.root)


def test_what_was_retracted_before_is_told_and_what_leaves_the_list_comes_back(corpus: Retracting) -> None:
    before = products(corpus.root)
    assert corpus.retract("https://example.org/3") == (1, 0, 0, 1)
    corpus.run()
    listed = corpus.list.read_bytes()
    assert corpus.retract("https://example.org/3") == (0, 1, 0, 0)
    assert corpus.list.read_bytes() == listed
    corpus.list.unlink()
    assert corpus.failed_proofs("train-00000") == {"round_trip", "no_retracted_document"}
    corpus.run()
    assert products(corpus.root) == before


def test_an_unknown_id_is_dropped_when_it_comes(corpus: Retracting) -> None:
    assert corpus.retract("https://example.org/777") == (0, 0, 1, 0)
    assert corpus.run().built == []
    rows = [
        {"text": text(777), "url": "https://example.org/777"},
        {"text": text(778), "url": "https://example.org/778"},
    ]
    (corpus.data / "train/9.jsonl.zst").write_bytes(
        zstandard.compress("".join(json.dumps(r) + "\n" for r in rows).encode())
    )
    corpus.run()
    assert traces(corpus.root, [text(777)]) == []
    assert traces(corpus.root, [text(778)]) != []
    assert corpus.failed_proofs("train-00004") == set()


def test_a_list_that_empties_a_shard_leaves_an_empty_valid_shard(corpus: Retracting) -> None:
    assert corpus.retract(*[f"https://example.org/{n}" for n in range(40, 80)]) == (40, 0, 0, 40)
    corpus.run()
    assert (corpus.root / "sample_corpus/token_bins/train-00001/tokens.bin").stat().st_size == 0
    assert corpus.failed_proofs("train-00001") - {"looks_like_text"} == set()
    assert list(find_stale(corpus_specs(corpus.declared), corpus.store)) == []


def test_without_ids_documents_are_found_by_their_text_and_duplicates_go_too(tmp_path: Path) -> None:
    corpus = Retracting(tmp_path)
    twice = [{"text": text(5)}, {"text": text(888)}]
    (corpus.data / "train/3.jsonl.zst").write_bytes(
        zstandard.compress("".join(json.dumps(r) + "\n" for r in twice).encode())
    )
    corpus.run()
    with raises(ConfigError, 1, "'https", "`document.id_field`"):
        corpus.retract("https://example.org/3")
    assert corpus.retract("train/0.jsonl.zst:6") == (1, 0, 0, 2)
    assert corpus.retract(hash_id_value(text(7), DocumentIds())) == (1, 0, 0, 1)
    corpus.run()
    assert traces(corpus.root, [text(5), text(7)]) == []
    assert traces(corpus.root, [text(888)]) != []


def test_a_document_that_the_tokenizer_cannot_encode_may_be_retracted(tmp_path: Path) -> None:
    words = save_words(tmp_path / "words", ["Document", ":", *WORDS, *map(str, range(2000))])
    corpus = Retracting(tmp_path, tokenizer=words.directory)
    rows = [{"text": text(888)}, {"text": f"{text(889)} unheard"}]
    (corpus.data / "train/3.jsonl.zst").write_bytes(
        zstandard.compress("".join(json.dumps(r) + "\n" for r in rows).encode())
    )
    add_retractions(corpus.list, DocumentIds(), [Retraction(hash=hash_id_value(rows[1]["text"], DocumentIds()))])
    corpus.run()


def test_a_retracted_document_that_is_there_is_named(corpus: Retracting, tmp_path: Path) -> None:
    with_it = shutil.copytree(corpus.root / "sample_corpus/token_bins/train-00000", tmp_path / "kept")
    assert corpus.retract("https://example.org/3") == (1, 0, 0, 1)
    assert "no_retracted_document" in corpus.failed_proofs("train-00000")
    corpus.run()
    shard = corpus.root / "sample_corpus/token_bins/train-00000"
    # Restore the tokens of the document, which the index no longer lists.
    shutil.copyfile(with_it / "tokens.bin", shard / "tokens.bin")
    assert "no_retracted_document" in corpus.failed_proofs("train-00000")


FORMS = ("file:row", '{"id": …}', '{"hash": …}', '{"file": …, "row": …}')


@pytest.mark.parametrize(
    ("content", "values"),
    [
        ("", ("ids",)),
        ("\n\n", ("ids",)),
        (
            'a\n{"id": 1.5}\n',
            ("line 2", *FORMS),
        ),
        (
            '{"hash": "12"}\n',
            ("line 1", *FORMS),
        ),
        (
            '{"file": "a", "row": 0}\n',
            ("line 1", *FORMS),
        ),
        (
            '{"file": "a", "row": true}\n',
            ("line 1", *FORMS),
        ),
        (
            '{"id": true}\n',
            ("line 1", *FORMS),
        ),
        (
            "{broken\n",
            ("line 1", *FORMS),
        ),
    ],
)
def test_a_list_that_is_empty_or_malformed_says_where(tmp_path: Path, content: str, values: tuple[str, ...]) -> None:
    path = tmp_path / "ids"
    path.write_text(content)
    with raises(ConfigError, path, *values):
        read_ids(path)


def test_a_retraction_list_of_other_ids_is_refused(corpus: Retracting) -> None:
    corpus.list.write_text('{"hash": "00000000000000aa", "of": "text"}\n')
    with raises(ConfigError, 1, "text", "field url"):
        corpus.run()
    other = [f'{{"hash": "{one}", "of": "field url"}}' for one in ("-5", "9e3779b97f4a7c15a")]
    other += [f'{{"hash": "9e3779b97f4a7c15", "of": {one}}}' for one in ("null", "5", '["text"]')]
    for bad in ("nonsense", "[" * 100_000, *other):
        corpus.list.write_text(f'{{"hash": "00000000000000aa", "of": "field url"}}\n{bad}\n')
        with raises(ConfigError, 2):
            corpus.run()


def test_of_a_sensitive_dataset_the_list_keeps_keyed_hashes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IDS_KEY", "k" * 32)
    policy = {"separator": "<|endoftext|>", "id_field": "url", "id_key": {"env": "IDS_KEY"}}
    corpus = Retracting(tmp_path, sensitive=True, document=policy)
    corpus.run()
    assert corpus.retract("https://example.org/3", "https://example.org/none") == (1, 0, 1, 1)
    assert b"example.org" not in corpus.list.read_bytes()
    assert len(corpus.run().built) == 4
    assert traces(corpus.root, [text(3)]) == []
    # Remove the id key. A dataset in a bucket may lack this key, because files in a bucket need no key.
    bare = corpus.declared.model_copy(update={"document": corpus.declared.document.model_copy(update={"id_key": None})})
    with raises(ConfigError, "`document.id_key`"):
        require_document_ids(bare)


def test_a_fresh_machine_may_build_what_a_lock_with_retractions_says(corpus: Retracting, tmp_path: Path) -> None:
    assert corpus.retract("https://example.org/3") == (1, 0, 0, 1)
    corpus.run()
    specs = corpus_specs(corpus.declared)
    lock = lock_dataset(specs, corpus.store)
    fresh = LocalArtifacts(tmp_path / "fresh")
    for name in ("manifest", "engine_certificate", "snapshot"):
        shutil.copytree(corpus.root / "sample_corpus" / name, fresh.root / "sample_corpus" / name)
    assert list(find_recipe_drift(specs, fresh, lock)) == []
    corpus.run(fresh.root)
    assert list(find_recipe_drift(specs, fresh, lock)) == []
    assert lock_dataset(specs, fresh) == lock


def test_a_split_that_is_declared_no_more_goes_with_what_was_made_of_it(
    corpus: Retracting,
) -> None:
    shutil.rmtree(corpus.data / "val")
    corpus.changes["splits"] = {"train": ["train/**"]}
    corpus.run()
    specs, gone = corpus_specs(corpus.declared), "https://example.org/1003"
    assert corpus.retract("https://example.org/3", gone) == (2, 0, 0, 2)
    corpus.run()
    left = ["sample_corpus/combined_bins/val", "sample_corpus/token_bins/val-00000"]
    assert [str(one) for one in find_retracted_leftovers(specs, corpus.store)] == left
    assert {str(one): removed for one, removed in prune_retracted(specs, corpus.store)} == dict.fromkeys(left, True)
    assert traces(corpus.root, [text(3), text(1003)]) == []
    assert [str(one) for one in find_unplanned_artifacts(specs, corpus.store)] == ["sample_corpus/snapshot/val-00000"]


def test_the_text_under_another_id_stays_with_a_warning_of_its_row(tmp_path: Path) -> None:
    corpus = Retracting(tmp_path, document={"separator": "<|endoftext|>", "id_field": "url"})
    (path,) = (corpus.data / "train").glob("0.*")
    rows = [corpus.record("train", 0, row) for row in range(40)]
    rows[7]["text"] = rows[3]["text"]
    path.write_bytes(zstandard.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    corpus.run()
    corpus.retract("https://example.org/3")
    corpus.run()
    found = corpus.findings("train-00000")["no_retracted_document"]
    assert (found.passed, found.warning) == (False, True)
    assert_names(found.summary, "row 4", "tokens.bin", "document 6", "row 8 of train/0.jsonl.zst")
    assert_names(found.summary, "same")
    corpus.retract("https://example.org/7")
    corpus.run()
    assert corpus.failed_proofs("train-00000") == set()
    assert traces(corpus.root, [text(3)]) == []


def test_a_text_at_the_end_of_another_document_is_a_warning_and_as_a_document_of_its_own_an_error(
    tmp_path: Path,
) -> None:
    corpus = Retracting(tmp_path, document={"separator": "<|endoftext|>"})
    (path,) = (corpus.data / "train").glob("0.*")
    rows = [corpus.record("train", 0, row) for row in range(40)]
    rows[7]["text"] = f"A reader wrote this letter to us.\n\n{text(3)}"
    path.write_bytes(zstandard.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    corpus.run()
    with_it = shutil.copytree(corpus.root / "sample_corpus/token_bins/train-00000", tmp_path / "kept")
    assert corpus.retract("train/0.jsonl.zst:4") == (1, 0, 0, 1)
    corpus.run()
    found = corpus.findings("train-00000")["no_retracted_document"]
    assert (found.passed, found.warning) == (False, True)
    assert_names(found.summary, "row 4", "tokens.bin", "document 6", "row 8 of train/0.jsonl.zst")
    assert_names(found.summary, "end")
    assert corpus.run().built == []
    shard = corpus.root / "sample_corpus/token_bins/train-00000"
    for name in ("tokens.bin", "document_ends.bin"):
        shutil.copyfile(with_it / name, shard / name)
    found = corpus.findings("train-00000")["no_retracted_document"]
    assert (found.passed, found.warning) == (False, False)


def test_a_table_of_documents_that_is_declared_no_more_goes(tmp_path: Path) -> None:
    document = {"separator": "<|endoftext|>", "id_field": "url"}
    corpus = Retracting(tmp_path, document=document | {"keep_fields": {}})
    build_all(corpus_specs(corpus.declared), corpus.store)
    corpus.changes["document"] = document
    corpus.run()
    assert find_retracted_leftovers(corpus_specs(corpus.declared), corpus.store) == [], "nothing is retracted"
    corpus.retract("https://example.org/3")
    corpus.run()
    gone = {str(one) for one, removed in prune_retracted(corpus_specs(corpus.declared), corpus.store) if removed}
    shards = [*(f"train-0000{number}" for number in range(4)), "val-00000"]
    assert gone == {f"sample_corpus/{name}/{shard}" for name in ("documents", "tags") for shard in shards}
    assert not [*corpus.root.rglob("*.parquet")]


def test_what_cannot_say_whether_it_holds_a_document_counts_as_holding_it(corpus: Retracting) -> None:
    corpus.changes["shards"] = {"count": 2}
    corpus.run()
    corpus.retract("https://example.org/3")
    corpus.run()
    specs = corpus_specs(corpus.declared)
    assert [str(one) for one in find_retracted_leftovers(specs, corpus.store)] == [], "they hold others"
    (corpus.root / "sample_corpus/token_bins/train-00002/document_ids.bin").write_bytes(b"cut")
    (corpus.root / "sample_corpus/token_bins/train-00003/receipt.json").write_text("{}")
    left = [f"sample_corpus/token_bins/train-0000{number}" for number in (2, 3)]
    assert [str(one) for one in find_retracted_leftovers(specs, corpus.store)] == left


def test_the_check_warns_of_shards_that_left_the_plan_and_does_not_fail(corpus: Retracting) -> None:
    corpus.changes["shards"] = {"count": 2}
    corpus.run()
    corpus.retract("https://example.org/130")
    corpus.run()
    (spec,) = [one for one in corpus_specs(corpus.declared) if (one.name, one.split) == ("token_bins", "train")]
    found = dict(spec.examine(corpus.store, ["train-00000", "train-00001"]))["no_retracted_document"]
    assert (found.passed, found.warning) == (False, True)
    assert_names(found.summary, "token_bins/train-00003", "obsolete")
