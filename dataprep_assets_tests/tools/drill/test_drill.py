"""A seeded part of the drill: all kinds of faults that were missed before, some others, and some clean corpora."""

from pathlib import Path

import pytest

from dataprep_assets.engine.checks.check import EVERY_DOCUMENT
from dataprep_assets_tests.pipelines.notes.directories import leave_tfds_out
from dataprep_assets_tests.tools.drill.campaign import Result, prepare, run
from dataprep_assets_tests.tools.drill.clean import SHAPES, false_alarms, shapes
from dataprep_assets_tests.tools.drill.datasets import PIPELINES
from dataprep_assets_tests.tools.drill.faults import Fault, chosen
from dataprep_assets_tests.tools.drill.judge import Notice
from dataprep_assets_tests.tools.drill.real_size import rates
from dataprep_assets_tests.tools.drill.real_size import table as rate_table
from dataprep_assets_tests.tools.drill.table import render, share

SEED = 1
ONCE_MISSED: dict[str, tuple[str, ...]] = {
    "corpus": (
        "rows lost: datatrove index: drill_corpus/datatrove_bins",
        "rows reordered: JSON lines: drill_corpus/snapshot_train",
        "file lost, receipt made of it: sealed: drill_corpus/manifest",
        "bytes cut, receipt made of it: sealed: drill_corpus/engine_certificate",
        "file lost: damage: drill_corpus/snapshot_val",
        "receipt says otherwise: whose it is: drill_corpus/token_bins_train",
        "receipt says otherwise: inputs: drill_corpus/megatron_bins",
        "receipt says otherwise: facts: drill_corpus/nanogpt_bins",
        "receipt says otherwise: ledger: drill_corpus/mds_bins",
        "receipt says otherwise: facts: drill_corpus/combined_bins_val",
        "receipt says otherwise: facts: drill_corpus/data_card",
        "receipt says otherwise: facts: drill_corpus/engine_certificate",
        "a number is another: index: drill_corpus/olmo_bins",
        "verdict remembered: of an older check: drill_corpus/",
        "verdict remembered: from before a check: drill_corpus/",
        "verdict remembered: of other content: drill_corpus/",
    ),
    "curated": (
        "bytes flipped, receipt made of it: sealed: drill_curated/tags_train",
        "rows reordered: Parquet: drill_curated/documents_train",
        "bytes zeroed, receipt made of it: sealed: drill_curated/signatures_train",
        "bytes doubled, receipt made of it: sealed: drill_windows/schedule",
        "bytes flipped, receipt made of it: sealed: drill_packed/schedule",
        "bytes exchanged, receipt made of it: sealed: drill_windows/megatron_indices",
    ),
    "notes": (),
    "release": (
        "bytes cut, receipt made of it: sealed: drill_release/published_shards",
        "receipt says otherwise: facts: drill_release/published_shards",
        "receipt says otherwise: ledger: drill_release/npy_shards",
        "bytes doubled, receipt made of it: sealed: drill_release/engine_certificate",
    ),
    "tasks": (
        "receipt says otherwise: facts: drill_tasks/task_folder",
        "receipt says otherwise: inputs: drill_tasks/task_folder",
    ),
    "blend": (
        "a number is another: config.json: drill_sft/blend_plan",
        "a number is another: realised.json: drill_sft/blend",
        "a number is another: shard_000000.json: drill_rl/blend",
        "weights off: blend.json: drill_sft/blend",
        "receipt says otherwise: facts: drill_pretrain/blend_preview",
        "bytes doubled, receipt made of it: sealed: drill_rl/rl_manifest",
        "bytes doubled, receipt made of it: sealed: drill_sft/packed_sft",
        "bytes flipped, receipt made of it: sealed: drill_sft/blend_snapshot",
    ),
}
OTHERS = {"corpus": 5, "curated": 3, "notes": 6, "release": 4, "tasks": 4, "blend": 2}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_faults_are_reported_by_verify_or_a_check_of_the_right_artifact(
    pipeline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_tfds_out(monkeypatch)
    box, table = prepare(pipeline, tmp_path, aside=False)
    every = list(table(1))
    wanted: list[Fault] = []
    for start in ONCE_MISSED[pipeline]:
        wanted.append(next(fault for fault in every if fault.label.startswith(start)))
    wanted += chosen(iter(every), OTHERS[pipeline], SEED)
    results = list(run(box, wanted, SEED))
    assert [result for result in results if not result.by] == []
    assert [result.notice.crash for result in results if result.notice.crash] == []
    assert len(results) > len(wanted) // 2


@pytest.mark.parametrize("name", ["an empty document", "one token", "only numbers", "only Arabic"])
def test_nothing_is_reported_for_a_clean_corpus(name: str, tmp_path: Path) -> None:
    files = dict(shapes(len(SHAPES), SEED))[name]
    assert false_alarms(name, files, tmp_path) == []


def test_checking_every_document_finds_faults_that_a_sample_may_miss(tmp_path: Path) -> None:
    found = list(rates(tmp_path, documents=1_000, faults=1, seed=SEED))
    assert [rate for rate in found if rate.level == EVERY_DOCUMENT and rate.named < rate.applied] == []
    assert [rate for rate in found if rate.fault.startswith("1 %") and rate.named < rate.applied] == []
    assert "| one id + 1 | " in rate_table(found)


def test_the_table_counts_missed_faults() -> None:
    def result(kind: str, notice: Notice) -> Result:
        return Result(pipeline="corpus", kind=kind, name="", target="", place=0, where="", notice=notice)

    results = [result("cut", Notice(verify="short")), result("cut", Notice(proof="no")), result("lost", Notice())]
    assert "| fault | corpus | applied | verify | check | run | missed |" in render(results)
    assert "| cut | 2 | 2 | 1 | 1 | 0 | 0 |" in render(results)
    assert "| all | 3 | 3 | 1 | 1 | 0 | 1 |" in render(results)
    assert share(results) == pytest.approx(2 / 3)
