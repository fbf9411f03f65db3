"""Random runs over real artifacts read the data that an independent loop records, in batches, the ledger and
indices.
"""

from collections import Counter
from pathlib import Path

from dataprep_assets_tests.serving.training_runs import run_of


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
