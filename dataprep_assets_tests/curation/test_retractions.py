"""The retraction list keeps everything that two processes add at the same time."""

import os
from pathlib import Path

import pytest

from dataprep_assets.curation.retractions import Retraction, add_retractions, read_retractions
from dataprep_assets.pipelines.notes.retractions import read_entries
from dataprep_assets.tokenization.document_ids import DocumentIds
from dataprep_assets_tests import forked

TRIALS, EACH = 40, 3

# The two processes synchronize before each trial: each process sends a byte to the other process and waits for a byte
# from it.
ADDER = """
import os, sys
from pathlib import Path
from dataprep_assets.curation.retractions import Retraction, add_retractions
from dataprep_assets.pipelines.notes import retractions
from dataprep_assets.tokenization.document_ids import DocumentIds
folder, kind, mine = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
there, here = [os.open(folder / f"{one}.pipe", os.O_RDWR) for one in (1 - mine, mine)]
for trial in range(int(sys.argv[4])):
    numbers = [10 * mine + number for number in range(int(sys.argv[5]))]
    os.write(there, b"x")
    os.read(here, 1)
    path = folder / f"{trial}.jsonl"
    if kind == "documents":
        new = [Retraction(hash=f"{number:016x}", given=str(number)) for number in numbers]
        print(add_retractions(path, DocumentIds(), new))
    else:
        print(retractions.add_retractions(path, b"k" * 32, [number.to_bytes(16, "big") for number in numbers]))
"""


@pytest.mark.parametrize("kind", ["documents", "patients"])
def test_concurrent_additions_are_all_on_the_list(tmp_path: Path, kind: str) -> None:
    for one in (0, 1):
        os.mkfifo(tmp_path / f"{one}.pipe")
    with (tmp_path / "0.out").open("wb") as first, (tmp_path / "1.out").open("wb") as second:
        programs = [
            forked.start(["-c", ADDER, tmp_path, kind, one, TRIALS, EACH], stdout=out.fileno())
            for one, out in enumerate((first, second))
        ]
        try:
            assert [program.wait(120) for program in programs] == [0, 0]
        finally:
            for program in programs:
                program.kill()
    for one in (0, 1):
        assert (tmp_path / f"{one}.out").read_text().split() == [str(EACH)] * TRIALS
    for trial in range(TRIALS):
        path = tmp_path / f"{trial}.jsonl"
        listed = read_retractions(path, DocumentIds()) if kind == "documents" else read_entries(path, b"k" * 32)
        assert len(listed) == 2 * EACH, f"trial {trial}"
    assert [path.name for path in tmp_path.glob(".*")] == [], "no lock is left"


def test_entries_that_are_already_on_the_list_need_no_lock(tmp_path: Path) -> None:
    path, entry = tmp_path / "retracted.jsonl", Retraction(hash=f"{1:016x}", given="1")
    assert add_retractions(path, DocumentIds(), [entry]) == 1
    (tmp_path / ".retracted.jsonl.lock").symlink_to(tmp_path)
    assert add_retractions(path, DocumentIds(), [entry]) == 0
