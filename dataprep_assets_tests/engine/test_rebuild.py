"""The builds that a run would do, with their source bytes, expected tokens and time."""

import inspect
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dataprep_assets.engine.artifact import recipe
from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.engine.checks.results import store_findings
from dataprep_assets.engine.checks.verdicts import identify_version
from dataprep_assets.engine.staleness.decide import (
    CHECK_FAILED,
    DAMAGED,
    INPUT_CHANGED,
    MISSING,
    UNREADABLE,
    Action,
    Decision,
)
from dataprep_assets.engine.staleness.rebuild import LossChange, Rebuild, ReplacedPublication, plan_rebuild
from dataprep_assets.engine.staleness.step_times import RUN, StepTimes
from dataprep_assets.planning.cost import Machine
from dataprep_assets_tests.docs.json_keys import REBUILD, list_paths
from dataprep_assets_tests.faults.edits import flip_byte
from dataprep_assets_tests.pipelines.corpus.changed_corpus import ChangedCorpus
from dataprep_assets_tests.pipelines.corpus.pipeline import run_pipeline
from dataprep_assets_tests.pipelines.corpus.selected import Selected

MACHINE = Machine(cores=2, bandwidth=1e6)
FIXED = 0.3


def timed(corpus: ChangedCorpus, *names: str) -> StepTimes:
    """Return step times with a rate of one second per 1,000 bytes of source, and at least 0.3 s."""
    times = StepTimes(corpus.root / "step_times.json")
    times.add(corpus.declared(), {name: [(1e9, 1e6 + FIXED)] for name in names})
    return times


def rebuilt(corpus: ChangedCorpus, *names: str) -> Rebuild:
    return plan_rebuild(corpus.specs(), corpus.store, MACHINE, timed(corpus, *names))


def append(corpus: ChangedCorpus) -> int:
    """Add a file to the split `val`, and return its size."""
    lines = zstandard.compress(json.dumps({"text": "One more document, longer than most. " * 2000}).encode() + b"\n")
    (corpus.data / "validation" / "chunk1" / "example_holdout_99.jsonl.zst").write_bytes(lines)
    return len(lines)


def causes(found: Rebuild) -> dict[str, tuple[str, ...]]:
    return {work.stale.name.partition("/")[2]: work.stale.causes for work in found.works}


def tokens(corpus: ChangedCorpus, name: str, partition: str) -> int:
    ledger = corpus.store.require(corpus.declared().artifact(name, partition)).ledger
    assert ledger is not None
    return ledger.tokens


def test_an_up_to_date_dataset_has_no_row(corpus: ChangedCorpus) -> None:
    found = rebuilt(corpus)
    assert (found.works, found.losses, found.published) == ((), (), ())
    assert found.seconds == (0, 0)


def test_a_damaged_shard_is_expected_to_have_its_previous_tokens(corpus: ChangedCorpus) -> None:
    flip_byte(corpus.root / "sample_corpus/token_bins/train-00001/tokens.bin")
    found = rebuilt(corpus)
    (work,) = found.works
    shard = corpus.store.require(corpus.declared().artifact("token_bins", "train-00001"))
    assert work.tokens == tokens(corpus, "token_bins", "train-00001")
    assert work.reading is not None
    assert shard.ledger is not None
    assert (work.reading.source_bytes, work.reading.tokenized) == (shard.ledger.source_bytes, True)
    assert work.timed_seconds is None


def test_a_new_file_adds_its_tokens_to_the_combined_bins(corpus: ChangedCorpus) -> None:
    size = append(corpus)
    before = tokens(corpus, "combined_bins", "val")
    works = {work.stale.name.removeprefix("sample_corpus/"): work for work in rebuilt(corpus).works}
    new = works["token_bins/val-00001"]
    assert new.reading is not None
    assert new.reading.source_bytes == size
    assert new.tokens is not None
    assert works["combined_bins/val"].tokens == before + new.tokens
    other = tokens(corpus, "combined_bins", "train") + tokens(corpus, "combined_bins", "test")
    assert works["nanogpt_bins"].tokens == before + new.tokens + other
    assert works["manifest"].tokens is None


def test_documented_keys_are_present_and_sums_count_tokens_once(corpus: ChangedCorpus) -> None:
    corpus.rewrite("validation/chunk1/example_holdout_0.jsonl.zst", b" the ", b" teh it is longer ")
    value = json.loads(json.dumps(rebuilt(corpus).to_json()))
    rows = {row["name"].removeprefix("sample_corpus/"): row for row in value["rebuild"]}
    assert rows.keys() >= {"manifest", "snapshot/val-00000", "token_bins/val-00000", "combined_bins/val", "olmo_bins"}
    assert rows["token_bins/val-00000"]["artifact"] == "token_bins_val"
    assert value["totals"]["artifacts"] == len(rows)
    assert value["totals"]["tokens"] == rows["token_bins/val-00000"]["tokens"]
    assert value["totals"]["source_bytes"] == rows["token_bins/val-00000"]["source_bytes"]
    other = Rebuild(
        works=(),
        due=(Decision(action=Action.CHECK),),
        losses=(LossChange(artifact="selection_train", reason="short", before=1, after=None),),
        published=(ReplacedPublication(artifact="publication", place="s3://bucket"),),
        machine=MACHINE,
        run_seconds=(0, 0),
    )
    assert {*list_paths(value, {}), *list_paths(other.to_json(), {})} == REBUILD.keys()


def test_every_kind_of_rebuild_is_documented() -> None:
    source = inspect.getsource(recipe)
    kinds = {MISSING, DAMAGED, INPUT_CHANGED, UNREADABLE, CHECK_FAILED}
    kinds |= set(re.findall(r'\bChange\(\s*kind="([\w ]+)"', source))
    assert set(re.findall(r"`([\w ]+)`", REBUILD["rebuild[].kind"])) == kinds


def test_before_any_run_every_step_is_untimed_and_the_forecast_is_a_range(corpus: ChangedCorpus) -> None:
    flip_byte(corpus.root / "sample_corpus/token_bins/train-00001/tokens.bin")
    found = rebuilt(corpus)
    least, most = found.seconds
    assert found.untimed == ["token_bins"]
    assert 0 < least < most
    value = found.to_json()
    assert [row["seconds"] for row in value["rebuild"]] == [None]
    assert value["totals"]["least_seconds"] < value["totals"]["most_seconds"]


def test_after_a_run_the_forecast_is_the_time_of_its_steps_and_overhead(corpus: ChangedCorpus) -> None:
    flip_byte(corpus.root / "sample_corpus/token_bins/train-00001/tokens.bin")
    timed(corpus).add(corpus.declared(), {RUN: [(1.0, 5.0)]})
    found = rebuilt(corpus, "token_bins")
    (work,) = found.works
    assert work.reading is not None
    assert work.timed_seconds == pytest.approx(FIXED + work.reading.source_bytes / 1000)
    assert found.seconds == pytest.approx((5 + work.timed_seconds,) * 2)
    assert found.untimed == []


def test_a_tiny_build_bounds_the_forecast_of_a_large_one(corpus: ChangedCorpus) -> None:
    flip_byte(corpus.root / "sample_corpus/token_bins/train-00001/tokens.bin")
    times = StepTimes(corpus.root / "step_times.json")
    times.add(corpus.declared(), {"token_bins": [(10.0, 0.8)], RUN: [(1.0, 5.0)]})
    found = plan_rebuild(corpus.specs(), corpus.store, MACHINE, times)
    least, most = found.seconds
    assert found.untimed == ["token_bins"]
    assert 5.8 <= least < most < 30


def test_for_an_appended_file_the_new_shard_is_certain_and_its_effects_are_not(corpus: ChangedCorpus) -> None:
    size, specs = append(corpus), corpus.specs()
    found = rebuilt(corpus, *{spec.name for spec in specs}, RUN)
    works = {work.stale.name.removeprefix("sample_corpus/"): work for work in found.works}
    assert works["token_bins/val-00001"].timed_seconds == pytest.approx(FIXED + size / 1000)
    joined = works["combined_bins/val"].timed_seconds
    assert joined is not None
    assert joined > size / 1000
    least, most = found.seconds
    certain = [work.timed_seconds or 0.0 for work in found.works if work.certain]
    assert 0 < len(certain) < len(found.works)
    # In `timed`, a thousand bytes take a second, and a run counts as one byte.
    assert least == pytest.approx(FIXED + 0.001 + sum(certain))
    assert most == pytest.approx(FIXED + 0.001 + sum(work.timed_seconds or 0.0 for work in found.works))


def test_steps_that_read_a_shard_several_times_count_source_and_tokens_once(corpus: ChangedCorpus) -> None:
    corpus.rewrite("validation/chunk1/example_holdout_0.jsonl.zst", b" the ", b" teh it is longer ")
    specs = corpus.specs(tag=["gopher"], drop={"short": "words < 3"})
    found = plan_rebuild(specs, corpus.store, MACHINE, timed(corpus))
    readers = {
        work.stale.spec.name for work in found.works if work.stale.spec and work.reading and work.reading.tokenized
    }
    assert readers == {"tags", "token_bins"}
    sources = sum(path.stat().st_size for path in corpus.data.glob("**/*.zst"))
    assert found.to_json()["totals"]["source_bytes"] <= sources


def test_a_failed_check_is_a_row_without_amounts(corpus: ChangedCorpus) -> None:
    (view,) = [spec for spec in corpus.specs() if spec.name == "nanogpt_bins"]
    said = {proof.name: Finding(passed=False, summary="other") for proof in view.checks}
    store_findings(view, corpus.store, identify_version(view.artifacts(corpus.store), corpus.store), said)
    (work,) = rebuilt(corpus).works
    assert (work.stale.kind, work.tokens, work.reading, work.timed_seconds) == ("check failed", None, None, None)


def test_a_new_and_a_removed_file_are_the_causes_of_all_downstream_builds(corpus: ChangedCorpus) -> None:
    old, new = "validation/chunk1/example_holdout_0.jsonl.zst", "validation/chunk1/example_holdout_9.jsonl.zst"
    (corpus.data / new).write_bytes(zstandard.compress(b'{"text": "One more document."}\n'))
    added = causes(rebuilt(corpus))
    assert added.keys() >= {"manifest", "token_bins/val-00001", "combined_bins/val", "nanogpt_bins"}
    assert set(added.values()) == {(f"new file {new}",)}
    (corpus.data / old).unlink()
    assert set(causes(rebuilt(corpus)).values()) == {(f"new file {new}", f"removed file {old}")}


def test_a_deleted_artifact_is_missing_and_its_downstream_artifacts_follow(corpus: ChangedCorpus) -> None:
    shutil.rmtree(corpus.root / "sample_corpus/token_bins/train-00001")
    first, *others = rebuilt(corpus).works
    assert (first.stale.kind, first.stale.causes, first.stale.provisional) == ("missing", ("missing",), False)
    assert {other.stale.name.partition("/")[2] for other in others} >= {"combined_bins/train", "nanogpt_bins"}
    assert {(other.stale.causes, other.stale.provisional) for other in others} == {(("missing",), True)}


def test_a_missing_manifest_without_drops_changes_no_losses(corpus: ChangedCorpus) -> None:
    shutil.rmtree(corpus.root / "sample_corpus/manifest")
    found = rebuilt(corpus)
    assert found.works[0].stale.kind == "missing"
    assert found.losses == ()


def test_a_check_without_a_result_is_due_although_nothing_is_built(corpus: ChangedCorpus) -> None:
    (view,) = [spec for spec in corpus.specs() if spec.name == "nanogpt_bins"]
    names = ", ".join(proof.name for proof in view.checks)
    value = rebuilt(corpus).to_json()
    assert (value["rebuild"], value["up_to_date"]) == ([], False)
    (due,) = [one for one in value["checks_due"] if one["name"] == "sample_corpus/nanogpt_bins"]
    assert due == {"name": "sample_corpus/nanogpt_bins", "partition": None, "reason": f"not checked: {names}"}


def test_documents_that_a_changed_rule_drops_are_forecast_correctly(tmp_path: Path) -> None:
    texts = [f"{'word ' * (number % 40)}{number}" for number in range(120)]
    short: Any = {"drop": {"short": "bytes < 50"}, "budget": {"per_source": 1.0, "per_rule": {}}}
    pages = Selected(tmp_path, **short)
    pages.write({"train/a.jsonl": texts[:70], "train/b.jsonl": texts[70:]})
    pages.build()
    assert run_pipeline(pages.corpus, pages.store).failed == {}
    before = drops(pages)
    short["drop"] = {"short": "bytes < 100", "odd": "bytes > 190"}
    changed = Selected(tmp_path, **short)
    found = forecast(changed)
    lines = {"rule odd added: drop: bytes > 190", "rule short changed: bytes < 50 → bytes < 100"}
    of_selection = [one for name, one in causes(found).items() if name.startswith("selection/")]
    assert len(of_selection) == 2
    assert all(lines <= set(one) for one in of_selection)
    changed.build()
    after = drops(changed)
    assert before["short"] < after["short"]
    assert {(one.reason, one.before, one.after) for one in found.losses} == {
        (rule, before[rule], after[rule]) for rule in ("short", "odd")
    }
    assert {one.artifact for one in found.losses} == {"selection_train"}
    assert forecast(changed).losses == ()


def drops(pages: Selected) -> Counter[str]:
    return Counter(row["reason"] for row in pages.dropped())


def forecast(pages: Selected) -> Rebuild:
    return plan_rebuild(list(pages.specs().values()), pages.store, MACHINE, StepTimes(pages.folder / "step_times.json"))
