"""What a run would build, with the source it reads, the tokens to expect and the time."""

import json

import pytest
import zstandard

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.engine.checks.results import keep
from dataprep_assets.engine.checks.verdicts import version_of
from dataprep_assets.engine.staleness.rebuild import Rebuild, rebuild_of
from dataprep_assets.planning.cost import Machine
from dataprep_assets_tests.faults.edits import flip_byte
from dataprep_assets_tests.pipelines.corpus.changed_corpus import ChangedCorpus

MACHINE = Machine(cores=2, bandwidth=1e6)


def rebuilt(corpus: ChangedCorpus) -> Rebuild:
    return rebuild_of(corpus.specs(), corpus.store, MACHINE)


def tokens(corpus: ChangedCorpus, name: str, partition: str) -> int:
    ledger = corpus.store.require(corpus.declared().artifact(name, partition)).ledger
    assert ledger is not None
    return ledger.tokens


def test_nothing_to_build_has_no_row(corpus: ChangedCorpus) -> None:
    found = rebuilt(corpus)
    assert found.works == ()
    assert found.to_json()["up_to_date"]
    assert found.measured == 5


def test_a_damaged_shard_has_the_tokens_that_it_had(corpus: ChangedCorpus) -> None:
    flip_byte(corpus.root / "sample_corpus/token_bins/train-00001/tokens.bin")
    (work,) = rebuilt(corpus).works
    shard = corpus.store.require(corpus.declared().artifact("token_bins", "train-00001"))
    assert work.tokens == tokens(corpus, "token_bins", "train-00001")
    assert work.reading is not None
    assert shard.ledger is not None
    assert (work.reading.source_bytes, work.reading.tokenized) == (shard.ledger.source_bytes, True)
    assert work.seconds is not None
    assert work.seconds > 0


def test_a_new_file_adds_its_tokens_to_what_is_joined(corpus: ChangedCorpus) -> None:
    text = "One more document, which is longer than most. " * 2000
    lines = zstandard.compress(json.dumps({"text": text}).encode() + b"\n")
    (corpus.data / "validation" / "chunk1" / "example_holdout_99.jsonl.zst").write_bytes(lines)
    before = tokens(corpus, "combined_bins", "val")
    works = {work.stale.name.removeprefix("sample_corpus/"): work for work in rebuilt(corpus).works}
    new = works["token_bins/val-00001"]
    assert new.reading is not None
    assert new.reading.source_bytes == len(lines)
    assert new.tokens is not None
    assert works["combined_bins/val"].tokens == before + new.tokens
    other = tokens(corpus, "combined_bins", "train") + tokens(corpus, "combined_bins", "test")
    assert works["nanogpt_bins"].tokens == before + new.tokens + other
    assert works["manifest"].tokens is None


def test_the_promised_keys_are_there_and_sums_count_tokens_once(corpus: ChangedCorpus) -> None:
    corpus.rewrite("validation/chunk1/example_holdout_0.jsonl.zst", b" the ", b" teh it is longer ")
    value = json.loads(json.dumps(rebuilt(corpus).to_json()))
    assert value.keys() == {"up_to_date", "rebuild", "totals", "published"}
    rows = {row["name"].removeprefix("sample_corpus/"): row for row in value["rebuild"]}
    assert rows.keys() >= {"manifest", "snapshot/val-00000", "token_bins/val-00000", "combined_bins/val", "olmo_bins"}
    assert rows["token_bins/val-00000"].keys() == {
        *("artifact", "name", "partition", "kind", "reason", "provisional"),
        *("source_bytes", "fetch_bytes", "tokens", "seconds"),
    }
    assert rows["token_bins/val-00000"]["artifact"] == "token_bins_val"
    assert value["totals"]["artifacts"] == len(rows)
    assert value["totals"]["tokens"] == rows["token_bins/val-00000"]["tokens"]
    assert value["totals"]["source_bytes"] == rows["token_bins/val-00000"]["source_bytes"]
    assert value["totals"]["tokenizing_seconds"] == pytest.approx(rows["token_bins/val-00000"]["seconds"], abs=0.1)


def test_a_failed_check_is_a_row_without_amounts(corpus: ChangedCorpus) -> None:
    (view,) = [spec for spec in corpus.specs() if spec.name == "nanogpt_bins"]
    said = {proof.name: Finding(passed=False, summary="other") for proof in view.checks}
    keep(view, corpus.store, version_of(view.artifacts(corpus.store), corpus.store), said)
    (work,) = rebuild_of(corpus.specs(), corpus.store, MACHINE).works
    assert (work.stale.kind, work.tokens, work.reading, work.seconds) == ("check failed", None, None, None)
