"""The copied views, MDS and Parquet: whole, the same for any number of threads and after any kill, read by their own
libraries."""

import json
import shutil
import signal
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.formats import document_ends, flat_bins, hf_parquet, mds
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.commit import STAGING
from dataprep_assets.pipelines.corpus.declaration import View
from dataprep_assets.pipelines.corpus.view import artifact_name, build_view, load_combined_splits
from dataprep_assets_tests import forked
from dataprep_assets_tests.faults.armed import make_armed_environment, read_log
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.corpus.pipeline import (
    data_files,
    debris,
    receipts,
    run_pipeline,
    sample_declaration,
)
from dataprep_assets_tests.readers.hf_datasets import input_ids
from dataprep_assets_tests.readers.mosaicml import streamed_tokens

VIEWS: tuple[View, ...] = ("mds", "hf_parquet")
LENGTH = 512
COPIES = {"views": list(VIEWS), "mds_sequence_length": LENGTH}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample corpus with both views."""
    folder = tmp_path_factory.mktemp("views")
    assert run_pipeline(sample_declaration(**COPIES), folder).failed == {}
    return folder


def view_directory(root: Path, view: View) -> Path:
    return LocalArtifacts(root).directory(sample_declaration().artifact(artifact_name(view)))


def stream(root: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Ids and document ends of a split's combined bins."""
    store, corpus = LocalArtifacts(root), sample_declaration()
    (found,) = [s for s in load_combined_splits(corpus, store) if s.split == split]
    return found.open_tokens(store), found.open_ends(store)


def without_views(root: Path, target: Path) -> Path:
    """A copy of the root in which the views are still to be built."""
    dropped = {artifact_name(view) for view in VIEWS}
    shutil.copytree(root, target, ignore=lambda _, names: [n for n in names if n in dropped])
    return target


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_streaming_reads_the_windows_of_the_combined_bins(root: Path, split: str) -> None:
    tokens, _ = stream(root, split)
    whole = len(tokens) // LENGTH * LENGTH
    read = streamed_tokens(view_directory(root, "mds"), split)
    assert read.dtype == np.int32
    assert np.array_equal(read, tokens[:whole])


def test_datasets_reads_every_document_of_every_split(root: Path, tmp_path: Path) -> None:
    loaded = input_ids(view_directory(root, "hf_parquet"), tmp_path)
    assert list(loaded) == ["train", "val", "test"]
    for split, rows in loaded.items():
        tokens, ends = stream(root, split)
        documents = [part.tolist() for part in np.split(tokens, ends[:-1].astype(np.int64))]
        assert rows["rows"] == documents
        assert rows["dtype"] == "int32"


def test_a_second_run_makes_neither_again_and_another_length_only_mds(root: Path, tmp_path: Path) -> None:
    again = Path(shutil.copytree(root, tmp_path / "root"))
    assert run_pipeline(sample_declaration(**COPIES), again).built == []
    assert run_pipeline(sample_declaration(**COPIES | {"mds_sequence_length": 256}), again).built == ["mds_bins"]


def test_the_number_of_threads_changes_no_byte(root: Path, tmp_path: Path) -> None:
    again = without_views(root, tmp_path / "root")
    for view in VIEWS:
        build_view(sample_declaration(**COPIES), LocalArtifacts(again), view, threads=5)
    assert data_files(again) == data_files(root)
    assert receipts(again) == receipts(root)


def test_the_receipt_has_the_digests_of_the_files_as_they_are(root: Path) -> None:
    store, corpus = LocalArtifacts(root), sample_declaration()
    for view in VIEWS:
        artifact = corpus.artifact(artifact_name(view))
        assert store.damage(artifact, store.require(artifact)) == []
    left_out = store.require(corpus.artifact("mds_bins")).facts["tokens_left_out"]
    assert left_out == {split: len(stream(root, split)[0]) % LENGTH for split in corpus.splits}


def test_a_split_of_less_than_one_sample_is_refused_by_name_and_leaves_nothing(root: Path, tmp_path: Path) -> None:
    again = without_views(root, tmp_path / "root")
    with raises(ConfigError, "val", 30_000, "mds_sequence_length"):
        build_view(sample_declaration(views=["mds"], mds_sequence_length=30_000), LocalArtifacts(again), "mds")
    assert not view_directory(again, "mds").exists()


_BUILD = r"""
import json, sys
from pathlib import Path
from dataprep_assets.pipelines.corpus.view import build_view
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets_tests.pipelines.corpus.pipeline import sample_declaration
corpus = sample_declaration(**json.loads(sys.argv[3]))
build_view(corpus, LocalArtifacts(Path(sys.argv[1])), sys.argv[2], threads=2)
"""


def built(home: Path, root: Path, view: View, at: int) -> tuple[int, int]:
    """Build a view in a process that is killed at its write point `at` (0: never): exit code, points reached."""
    command = ["-c", _BUILD, root, view, json.dumps(COPIES)]
    done = forked.run(command, env=make_armed_environment(home, root, at=at), timeout=600)
    return done.returncode, len(read_log(home))


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_killed_at_any_moment_is_whole_after_the_next_run(root: Path, tmp_path: Path, view: View) -> None:
    prepared = without_views(root, tmp_path / "prepared")
    wanted = Path(shutil.copytree(prepared, tmp_path / "wanted"))
    code, points = built(tmp_path / "counted", wanted, view, 0)
    assert code == 0
    kept = 0
    for at in range(2, points + 1, max(1, points // 3)):
        again = Path(shutil.copytree(prepared, tmp_path / f"{at}"))
        assert built(tmp_path / f"killed {at}", again, view, at)[0] == -signal.SIGKILL
        whole = inodes(view_directory(again, view).parent / STAGING)
        build_view(sample_declaration(**COPIES), LocalArtifacts(again), view)
        assert whole <= inodes(view_directory(again, view))
        kept += len(whole)
        assert data_files(again) == data_files(wanted)
        assert receipts(again) == receipts(wanted)
        assert debris(again) == []
    assert kept > 0


def inodes(directory: Path) -> set[int]:
    """The finished files of shards below a directory."""
    return {path.stat().st_ino for path in directory.rglob("*") if path.suffix in (".mds", ".parquet")}


@pytest.mark.parametrize("view", VIEWS)
def test_memory_does_not_follow_the_size_of_the_stream(tmp_path: Path, view: View) -> None:
    peaks = []
    for tokens in (1 << 20, 1 << 23):
        path, ends = tmp_path / f"{tokens}.bin", tmp_path / f"{tokens}.ends"
        np.arange(tokens, dtype=np.uint32).astype("<u2").tofile(path)
        document_ends.write(ends, np.arange(256, tokens + 1, 256, dtype=np.uint64))
        mapped = flat_bins.open_tokens(path, "uint16"), document_ends.open_ends(ends)
        tracemalloc.start()
        if view == "mds":
            mds.write_mds(tmp_path / f"{tokens}", mapped[0], length=1024, shard_bytes=1 << 20)
        else:
            hf_parquet.write_split(tmp_path / f"{tokens}", "train", *mapped, rows_per_file=4096)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[0] > 1 << 20
    assert peaks[1] < peaks[0] * 1.5
