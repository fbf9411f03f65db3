"""A build of packed chat data that is killed at any kind of write point and restarted gives the same bytes."""

import re
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.commit import SPOOLS
from dataprep_assets.pipelines.blend.sft.packed_sft import build_packed_sft
from dataprep_assets.pipelines.blend.sft.spool import TOKENS, get_spool_artifact
from dataprep_assets_tests import forked
from dataprep_assets_tests.faults.armed import Role, make_armed_environment, read_log
from dataprep_assets_tests.pipelines.blend.sft.command import make_shard
from dataprep_assets_tests.pipelines.blend.sft.conversations import make_conversation, write_rows
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files, debris, receipts
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer

pytestmark = pytest.mark.slow

FILES = 3


@dataclass(frozen=True)
class Ground:
    """Sources and tokenizer, the files of an undisturbed run, and its write points: `(role, number, what, path)`."""

    sources: Path
    tokenizer: Path
    files: dict[str, bytes]
    receipts: dict[str, dict]
    points: list[tuple[str, int, str, str]]


def run(
    ground: Path, tokenizer: Path, root: Path, home: Path, role: Role = "parent", at: int = 0
) -> tuple[int, list[str]]:
    """Run the command in its own process, kill it at a point, and return its exit code and its log of points."""
    command = ["-m", "dataprep_assets_tests.pipelines.blend.sft.command", ground, tokenizer, root, "1"]
    done = forked.run(command, env=make_armed_environment(home, root, role, at), timeout=600)
    return done.returncode, read_log(home)


def read_points(log: list[str], root: Path) -> list[tuple[str, int, str, str]]:
    found = []
    for line in log:
        role, _, number, what, path = line.split(" ", 4)
        found.append((role, int(number), what, path.replace(f"{root}/", "")))
    return found


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    folder = tmp_path_factory.mktemp("ground")
    for i in range(FILES):
        rows = [make_conversation(seed) for seed in range(i * 20, i * 20 + 20)]
        write_rows(folder / "sources" / f"{i}.jsonl.zst", rows)
    write_chat_tokenizer(folder / "tokenizer")
    root = folder / "undisturbed"
    code, log = run(folder / "sources", folder / "tokenizer", root, folder / "home")
    assert code == 0
    return Ground(
        folder / "sources", folder / "tokenizer", data_files(root / "d"), receipts(root / "d"), read_points(log, root)
    )


def select_kinds(found: list[tuple[str, int, str, str]]) -> dict[tuple[str, str, str], int]:
    """Return one point per kind, the last one; points that differ only in the source file are of one kind."""
    return {
        (role, what, re.sub(r"-[0-9a-f]{16}", "-KEY", re.sub(r"\.\d{8}", ".ORDINAL", path))): number
        for role, number, what, path in found
    }


@pytest.mark.parametrize("share", range(0, 8, 2))
def test_a_run_killed_anywhere_and_restarted_leaves_the_same_bytes(share: int, ground: Ground, tmp_path: Path) -> None:
    chosen = sorted(select_kinds(ground.points).items(), key=lambda item: item[0])[share::8]
    assert chosen
    for (role, what, path), number in chosen[::3]:
        root = tmp_path / f"{role}-{number}"
        # Kill the whole run, because a killed worker would be replaced, and the run would end normally.
        whole: Role = "run" if role == "worker" else "parent"
        code, _ = run(ground.sources, ground.tokenizer, root, tmp_path / f"home-{role}-{number}", whole, number)
        assert code == -signal.SIGKILL
        shard = make_shard(ground.sources, ground.tokenizer, root)
        (result,) = build_packed_sft([shard], workers=1)
        where = f"{role} {number} {what} {path}"
        assert result.error is None, where
        assert (data_files(root / "d"), receipts(root / "d")) == (ground.files, ground.receipts), where
        assert debris(root) == [], where
        assert [p for p in (root / "d" / SPOOLS).rglob("*") if p.is_file() and p.suffix != ".lock"] == [], where


def test_finished_spools_are_not_rebuilt(ground: Ground, tmp_path: Path) -> None:
    number = next(n for role, n, what, path in ground.points if role == "worker" and path.endswith("/packed.parquet"))
    root = tmp_path / "root"
    run(ground.sources, ground.tokenizer, root, tmp_path / "first", "run", number)
    shard = make_shard(ground.sources, ground.tokenizer, root)
    spools = [get_spool_artifact(shard.artifact, ordinal) for ordinal in range(FILES)]
    store = LocalArtifacts(shard.scratch)
    assert all(store.receipt(spool) is not None for spool in spools)
    tokens = store.directory(spools[1]) / TOKENS
    tokens.write_bytes(tokens.read_bytes()[:-4])  # damage one spool, so that it is not reused
    code, log = run(ground.sources, ground.tokenizer, root, tmp_path / "second")
    assert code == 0
    made = {
        m[1]
        for _, _, _, path in read_points(log, root)
        if (m := re.search(r"\.(\d{8})-[0-9a-f]{16}/tokens\.bin$", path))
    }
    assert made == {"00000001"}
    assert data_files(root / "d") == ground.files


def test_a_spool_built_with_other_settings_is_not_reused(ground: Ground, tmp_path: Path) -> None:
    """Upstream treats any spool manifest as finished."""
    root = tmp_path / "root"
    number = next(n for role, n, what, path in ground.points if role == "worker" and path.endswith("/packed.parquet"))
    run(ground.sources, ground.tokenizer, root, tmp_path / "first", "run", number)
    write_chat_tokenizer(ground.tokenizer.with_name("other"), normalized=True)
    other = make_shard(ground.sources, ground.tokenizer.with_name("other"), root)
    (result,) = build_packed_sft([other], workers=1)
    assert result.receipt is not None
    alone = make_shard(ground.sources, ground.tokenizer.with_name("other"), tmp_path / "alone")
    (expected,) = build_packed_sft([alone], workers=1)
    assert expected.receipt is not None
    assert result.receipt.files == expected.receipt.files
    assert result.receipt.inputs["tokenizer"] != ground.receipts["packed_sft/chat-00000"]["inputs"]["tokenizer"]
