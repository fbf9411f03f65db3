"""How long steps took here: kept after a run, ignored where it is damaged, replaced as a whole."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.staleness.step_times import KEPT_BUILDS, StepTimes, expected_seconds
from dataprep_assets.library.step_timer import StepTimer
from dataprep_assets.orchestration.build import StepResult
from dataprep_assets_tests.pipelines.corpus.changed_corpus import ChangedCorpus


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "step_times.json"


def test_the_last_builds_of_a_step_are_kept(path: Path) -> None:
    for seconds in range(KEPT_BUILDS + 3):
        StepTimes(path).add("pages", {"token_bins": (100.0, float(seconds))}, 4.0)
    builds = json.loads(path.read_bytes())
    assert builds["pages/token_bins"] == [[100.0, float(s)] for s in range(3, KEPT_BUILDS + 3)]
    assert StepTimes(path).seconds("pages", "token_bins", 100.0) == 5.0
    assert StepTimes(path).run_seconds("pages") == 4.0


def test_a_dataset_that_was_never_built_takes_the_times_of_the_others(path: Path) -> None:
    StepTimes(path).add("pages", {"token_bins": (100.0, 5.0)}, 4.0)
    times = StepTimes(path)
    assert times.seconds("books", "token_bins", 100.0) == 5.0
    assert times.seconds("books", "selection", 100.0) is None
    assert times.run_seconds("books") == 4.0


@pytest.mark.parametrize(
    ("builds", "size", "seconds"),
    [
        ([(100.0, 3.0), (200.0, 5.0)], 400.0, 9.0),  # a start of 1, and 2 for each hundred
        ([(100.0, 1.1)], 200.0, 2.1),
        ([(100.0, 1.1), (105.0, 9.0), (100.0, 1.1)], 200.0, 2.1),  # sizes that differ by noise say no rate
        ([(100.0, 5.0), (200.0, 3.0)], 400.0, 4.0),  # nothing gets faster by its size
        ([(0.0, 4.0), (0.0, 6.0)], 0.0, 5.0),
    ],
)
def test_a_start_and_a_rate_are_estimated(builds: list[tuple[float, float]], size: float, seconds: float) -> None:
    assert expected_seconds(builds, size) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"pages/token_bins": [[1, 2]',
        "[]",
        "null",
        '{"pages/token_bins": 3}',
        '{"pages/token_bins": [[1]]}',
        '{"pages/token_bins": [[1, "much"]]}',
        '{"pages/token_bins": [[1, -2]]}',
        '{"pages/token_bins": [[1, NaN]]}',
        '{"pages/token_bins": [[1, 1e999]]}',
        f'{{"pages/token_bins": [[1, 1{"0" * 400}]]}}',
        "[" * 100_000,
        "\x00\xff",
    ],
    ids=lambda text: text[:40],
)
def test_a_damaged_file_is_ignored_and_replaced(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text, encoding="latin-1")
    times = StepTimes(path)
    assert times.seconds("pages", "token_bins", 1.0) is None
    times.add("pages", {"token_bins": (1.0, 2.0)}, 0.0)
    assert StepTimes(path).seconds("pages", "token_bins", 1.0) == 2.0


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StepTimes(path).add("pages", {"token_bins": (1.0, 2.0)}, 0.0)
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", fail)
        StepTimes(path).add("pages", {"token_bins": (1.0, 9.0)}, 0.0)  # a forecast is worth no failed run
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_run_is_kept_by_what_it_built_and_never_of_a_sensitive_dataset(
    path: Path, corpus: ChangedCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(built: int, **changes: Any) -> None:
        specs, timer = corpus.specs(**changes), StepTimer()
        for spec in specs:
            if spec.name in ("snapshot", "token_bins"):
                keys = [slot for slot in spec.slots(corpus.store) if slot is not None]
                timer.before(spec, keys, current=False)
                timer.after(spec, keys, StepResult(built=built if spec.name == "token_bins" else 0, reused=1))
        timer.keep(StepTimes(path), specs, corpus.store)

    monkeypatch.setenv("SOME_KEY", "k" * 64)
    run(0)
    run(1, sensitive=True, document={"separator": "<|endoftext|>", "id_key": {"env": "SOME_KEY"}})
    assert not path.exists()
    run(1)
    builds = json.loads(path.read_bytes())
    assert builds.keys() == {"sample_corpus/token_bins", "sample_corpus/run"}
    ((size, seconds),) = builds["sample_corpus/token_bins"]
    whole = sum(file.stat().st_size for file in corpus.data.rglob("*.zst"))
    assert (size, seconds >= 0) == (whole / 2, True)  # one of two shards of each split was there
