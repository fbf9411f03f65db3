"""Taggers that are commands end with their run and within their time limit, and leave no text behind."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets_tests.cli.commands import environment
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.coast import Coast

pytestmark = pytest.mark.slow
SCORES = """
import os, subprocess, sys, time
import pyarrow as pa, pyarrow.parquet as pq

{more}
t = pq.read_table(sys.argv[1])
words = open("words.txt").read().split()
score = [float(sum(word in text for word in words)) for text in t["text"].to_pylist()]
pq.write_table(t.select(["file", "row"]).append_column("score", [score]), sys.argv[2])
"""
WAITS = """
helper = subprocess.Popen(["sleep", "300"], start_new_session=True)
open("draft", "w").write(f"{os.getpid()} {helper.pid}")
os.rename("draft", "pids")
time.sleep(300)
"""
LEAVES = 'subprocess.Popen(["sleep", "300"]); sys.stdout.write("x" * 10_000_000)'


@pytest.fixture
def coast(tmp_path: Path) -> Coast:
    coast = Coast(tmp_path / "coast")
    (coast.folder / "words.txt").write_text("lighthouse")
    return coast


def declare(coast: Coast, more: str = "", **keys: Any) -> None:
    (coast.folder / "scores.py").write_text(SCORES.format(more=more))
    tagger = {
        "name": "scores",
        "command": [sys.executable, "scores.py", "{input}", "{output}"],
        "columns": {"score": "number"},
        "version": "1",
        **keys,
    }
    coast.declare(tag=[tagger], keep=None, drop={"none": "score < 0"}, shards={"count": 1})


def lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], bool], seconds: float = 60) -> bool:
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(0.05)
    return condition()


def test_a_killed_run_leaves_neither_its_command_nor_the_texts(coast: Coast) -> None:
    declare(coast, WAITS)
    words = [sys.executable, "-m", "dataprep_assets.cli", "--project", str(coast.root), "run", "pages"]
    run = subprocess.Popen(
        words, env=environment(coast.root.parent), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert until((coast.folder / "pids").is_file, 120)
        pids = (coast.folder / "pids").read_text().split()
        assert all(map(lives, pids))
        assert [*coast.root.parent.rglob("given-texts.parquet")]
    finally:
        run.kill()
        run.wait()
    assert until(lambda: not any(map(lives, pids)))
    assert until(lambda: not [*coast.root.parent.rglob("given-texts.parquet")])


def test_a_command_that_takes_too_long_is_ended_and_named(coast: Coast) -> None:
    declare(coast, WAITS, timeout="1s")
    said = coast("run", "pages", code=1)
    assert_names(said, "tag: scores", "pages/train-00000", "1 second")
    assert not any(map(lives, (coast.folder / "pids").read_text().split()))


def test_a_helper_process_of_a_command_does_not_block_the_run_and_its_files_are_in_its_version(coast: Coast) -> None:
    declare(coast, LEAVES, files=["*.txt"])
    coast("run", "pages")
    assert set(coast.table()["score"].to_pylist()) == {1.0, None}
    (coast.folder / "words.txt").write_text("lighthouse keeper")
    assert "tags_train" in coast("status", "pages", code=1)
    coast("run", "pages")
    assert set(coast.table()["score"].to_pylist()) == {2.0, None}
    # The next run removes the leftovers of a killed run, even if it has no other work.
    left = coast.root.parent / "artifacts/pages/.staging/scratch/0123456789abcdef"
    (left / "pages").mkdir(parents=True)
    assert "everything is up to date" in coast("run", "pages")
    assert not left.exists()
