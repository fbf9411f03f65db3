"""The durations of steps on this machine, stored in a file, and the estimates derived from them."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from dataprep_assets.engine.staleness.step_times import (
    KEPT_BUILDS,
    RUN,
    Build,
    StepTimes,
    build_size_function,
    estimate_seconds,
)
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.orchestration.build import StepResult, StepTimer
from dataprep_assets_tests.pipelines.corpus.changed_corpus import ChangedCorpus

PAGES = DatasetDeclaration(dataset="pages")


@pytest.mark.parametrize(
    ("builds", "size", "seconds"),
    [
        ([(10, 4.3)], 10, 4.3),
        ([(10, 4.3)], 14, 5.9),  # a similar size: a constant of 0.3 s plus a proportional part
        ([(10, 4.3)], 5, 2.3),
        ([(10, 0.2)], 1, 0.2),
        ([(10, 4.3), (110, 24.3)], 60, 14.3),  # between two sizes, by linear interpolation
        ([(10, 4.3), (110, 24.3)], 220, 48.3),  # beyond all known sizes, at the rate of a long build
        ([(100, 10.0), (101, 30.0), (100, 11.0)], 100, 11.0),  # times of a busy machine give no slope
        ([(100, 10.0), (10, 3.0)], None, 10.0),  # an unknown size is estimated like the largest
        ([(1, 0.0)], 1, 0.0),
    ],
)
def test_a_step_is_estimated_from_builds_of_the_nearest_sizes(
    builds: Sequence[Build], size: float | None, seconds: float
) -> None:
    assert estimate_seconds(builds, size) == pytest.approx((seconds, seconds))


@pytest.mark.parametrize(
    ("builds", "size", "bounds"),
    [
        ([(10, 0.8)], 1e6, (0.8, 0.3 + 5e4)),
        ([(10, 0.8), (1000, 1.3)], 1e4, (1.3, 10.3)),
        ([(10, 20.3)], 100, (200.3, 200.3)),
    ],
)
def test_a_short_build_gives_no_rate_for_much_more_data(
    builds: Sequence[Build], size: float, bounds: tuple[float, float]
) -> None:
    assert estimate_seconds(builds, size) == pytest.approx(bounds)


def test_stored_times_also_estimate_another_dataset_but_only_of_the_same_kind(tmp_path: Path) -> None:
    class OtherKind(DatasetDeclaration):
        pass

    StepTimes(tmp_path / "home" / "times.json").add(PAGES, {"tags": [(10.0, 4.3)], RUN: [(1.0, 3.0)]})
    times = StepTimes(tmp_path / "home" / "times.json")
    for declaration in (PAGES, DatasetDeclaration(dataset="letters")):
        assert times.estimate_duration(declaration, "tags", 5.0) == pytest.approx((2.3, 2.3))
        assert times.estimate_duration(declaration, RUN, 1.0) == (3.0, 3.0)
        assert times.estimate_duration(declaration, "bins", 20.0) is None
    assert times.estimate_duration(OtherKind(dataset="letters"), "tags", 20.0) is None


def test_times_follow_a_changed_machine_and_small_builds_do_not_displace_large_ones(tmp_path: Path) -> None:
    times = StepTimes(tmp_path / "times.json")
    times.add(PAGES, {"tags": [(1000.0, 50.0)]})
    for seconds in (1.0, 1.0, 1.0, 7.0, 8.0, 9.0):
        times.add(PAGES, {"tags": [(10.0, seconds)]})
    (kept,) = json.loads((tmp_path / "times.json").read_bytes()).values()
    assert kept == [[1000.0, 50.0], [10.0, 7.0], [10.0, 8.0], [10.0, 9.0]]
    assert len(kept) == 1 + KEPT_BUILDS


def test_times_that_another_process_stored_meanwhile_stay(tmp_path: Path) -> None:
    first, second = StepTimes(tmp_path / "times.json"), StepTimes(tmp_path / "times.json")
    first.add(PAGES, {"tags": [(10.0, 4.0)]})
    second.add(PAGES, {"tags": [(100.0, 5.0)], "bins": [(1.0, 6.0)]})
    found = json.loads((tmp_path / "times.json").read_bytes())
    assert sorted(found.values()) == [[[1.0, 6.0]], [[10.0, 4.0], [100.0, 5.0]]]


_TAGS = "DatasetDeclaration/pages/tags"


@pytest.mark.parametrize(
    "content",
    [
        *("", "\xff", "[]", "null", "[" * 100_000, '{"a": 1}', f'{{"{_TAGS}": [[1, 2]'),
        *(f'{{"{_TAGS}": [{pair}]}}' for pair in ("[1]", "[0, 1]", "[1, -1]", '["x", 1]', "[NaN, 1]", "[1, 1e999]")),
        f'{{"{_TAGS}": [[1, 1{"0" * 400}]]}}',
    ],
    ids=lambda content: content[:50],
)
def test_a_damaged_file_counts_as_missing_and_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "times.json").write_text(content, encoding="latin-1")
    times = StepTimes(tmp_path / "times.json")
    assert times.estimate_duration(PAGES, "tags", 1.0) is None
    times.add(PAGES, {"tags": [(1.0, 2.0)]})
    assert json.loads((tmp_path / "times.json").read_bytes()) == {_TAGS: [[1.0, 2.0]]}


def test_no_time_of_a_sensitive_dataset_is_stored(tmp_path: Path) -> None:
    times = StepTimes(tmp_path / "times.json")
    times.add(DatasetDeclaration(dataset="ward", sensitive=True), {"bins": [(123.0, 4.0)]})
    assert list(tmp_path.iterdir()) == []
    assert times.estimate_duration(PAGES, "bins", 1.0) is None


def test_a_finished_run_does_not_fail_if_times_cannot_be_stored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    StepTimes(tmp_path / "file" / "times.json").add(PAGES, {"tags": [(1.0, 2.0)]})
    (tmp_path / "times.lock").symlink_to(tmp_path / "file")
    StepTimes(tmp_path / "times.json").add(PAGES, {"tags": [(1.0, 2.0)]})
    assert (tmp_path / "file").read_text() == "no folder"


def test_the_size_of_an_artifact_is_that_of_the_sources_of_its_inputs(corpus: ChangedCorpus) -> None:
    specs = corpus.specs()
    size_of = build_size_function(specs, corpus.store)
    stored = {
        split: sum(path.stat().st_size for path in corpus.data.glob(f"{folder}/**/*.zst"))
        for split, folder in (("train", "train"), ("val", "validation"))
    }
    by_path = {spec.path[-1]: spec for spec in specs}
    bins = by_path["token_bins_train"]
    assert size_of(bins, bins.slots(corpus.store)) == size_of(by_path["combined_bins_train"], [None]) == stored["train"]
    assert 0 < (size_of(bins, bins.slots(corpus.store)[:1]) or 0) < stored["train"]
    assert size_of(by_path["combined_bins_val"], [None]) == stored["val"]
    assert (size_of(by_path["nanogpt_bins"], [None]) or 0) > stored["train"] + stored["val"]
    assert size_of(by_path["manifest"], [None]) == 1
    (corpus.root / "sample_corpus/manifest/receipt.json").unlink()
    assert size_of(bins, [None]) is None


@pytest.mark.parametrize("complete", [True, False])
def test_steps_that_built_are_stored_by_size_and_the_overhead_only_of_a_complete_run(
    corpus: ChangedCorpus, complete: bool
) -> None:
    specs = corpus.specs()
    by_path = {spec.path[-1]: spec for spec in specs}
    bins = by_path["token_bins_train"]
    keys = [key for key in bins.slots(corpus.store) if key is not None]
    timer = StepTimer(time.monotonic() - 100)
    for name, result in (
        ("token_bins_train", StepResult(built_slots=keys[:1], reused=len(keys) - 1)),
        ("combined_bins_val", StepResult(built_slots=[None], reused=0)),
        ("nanogpt_bins", StepResult(built_slots=[], reused=1)),
    ):
        timer.before(by_path[name], keys if name == bins.path[-1] else [], current=False)
        timer.after(by_path[name], keys if name == bins.path[-1] else [], result)
    timer.keep(StepTimes(corpus.root / "times.json"), specs, corpus.store, complete=complete)
    found = json.loads((corpus.root / "times.json").read_bytes())
    kept = {key.rpartition("/")[2]: builds for key, builds in found.items()}
    assert kept.keys() == {"token_bins", "combined_bins", *([RUN] if complete else [])}
    ((size, _),) = kept["token_bins"]
    assert size == build_size_function(specs, corpus.store)(bins, keys[:1])
    if complete:
        ((_, besides),) = kept[RUN]
        assert besides >= 99


def test_a_process_knows_its_start_time() -> None:
    before = time.monotonic()
    code = "from dataprep_assets.execution.watch import read_process_start; print(read_process_start())"
    began = float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    # The kernel measures start times in hundredths of a second.
    assert before - 0.02 <= began <= time.monotonic()
