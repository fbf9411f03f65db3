"""Random runs over real artifacts read the data that an independent loop records, in batches, the ledger and
indices.
"""

from collections import Counter
from pathlib import Path

import pytest

from dataprep_assets.pipelines.schedule.schedule_artifact import build_schedule
from dataprep_assets_tests.serving.training_runs import TrainingRun, run_of


def test_the_reads_of_a_run_equal_the_records_of_a_loop(tmp_path: Path) -> None:
    changes, looked_up = Counter[str](), 0
    # Three of the runs have windows and Megatron's indices, and the last one has packed documents.
    for seed in (0, 1, 6, 2):
        told = run_of(tmp_path / str(seed), seed)
        assert told.wrong == []
        assert told.samples
        changes += told.changes
        looked_up += told.megatron
    assert looked_up
    assert set(changes) >= {"append", "remove", "edit", "back", "length", "sources"}


@pytest.mark.parametrize("seed", [0, 1, 2, 6])
def test_boundaries_equal_a_loop_over_tokens_for_the_shortest_and_longest_documents(tmp_path: Path, seed: int) -> None:
    run = TrainingRun(tmp_path, seed)
    lengths = {"train-00000": [1] * 50, "train-00001": [], "train-00002": [200, 1, 1, 90], "train-00003": [1]}
    first = 1
    for name in run.corpora.shards:
        for key, of_documents in lengths.items():
            starts = [first + sum(of_documents[:at]) for at in range(len(of_documents))]
            documents = [range(start, start + length) for start, length in zip(starts, of_documents, strict=True)]
            run.corpora.shards[name] = {**(run.corpora.shards[name] if key != "train-00000" else {}), key: documents}
            first += sum(of_documents)
    run.write()
    build_schedule(run.declaration, run.store)
    run.meet()
    run.train(0, 60)
    assert run.told.wrong == []
    assert run.told.samples >= 60
