"""A corpus on a hub: mirrored, verified, tokenized; through Dagster, against a real HTTP server."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import read_receipt
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.stream.declaration import HubSource
from dataprep_assets_tests.engine.building import build_all, find_failed_checks
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.pipeline import run_pipeline
from dataprep_assets_tests.project import Project, failure_of, project, sample_attributes
from dataprep_assets_tests.samples import SMALL


def tree() -> dict[str, bytes]:
    files = {p.relative_to(SMALL).as_posix(): p.read_bytes() for p in SMALL.rglob("*.zst")}
    return {**files, "README.md": b"# data\n"}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer(tree(), repo_id="org/corpus") as server:
        yield server


def attributes(hub: HubServer, folder: Path, **changes: object) -> dict[str, object]:
    source = {
        "kind": "hub",
        "repo": "org/corpus",
        "revision": "main",
        "endpoint": hub.endpoint,
        "cache_dir": str(folder / "hub"),
    }
    return sample_attributes(**{"source": source, "shards": {"count": 7}, "views": ["nanogpt"], **changes})


def test_a_hub_corpus_has_the_bytes_of_the_same_local_corpus(hub: HubServer, tmp_path: Path) -> None:
    with (
        project(attributes(hub, tmp_path / "a"), tmp_path / "a") as remote,
        project(sample_attributes(shards={"count": 7}, views=["nanogpt"]), tmp_path / "b") as local,
    ):
        remote.run_all()
        local.run_all()
        for split in ("train", "val", "test"):
            name = f"{split}.bin"
            assert (remote.directory("nanogpt_bins") / name).read_bytes() == (
                local.directory("nanogpt_bins") / name
            ).read_bytes()
        entries = [
            json.loads(line) for line in (remote.directory("manifest") / "manifest.jsonl").read_bytes().splitlines()
        ]
        assert {e["commit"] for e in entries} == {hub.commit}
        assert all(
            e["path"] == f"hf://datasets/org/corpus@{hub.commit}/{e['relpath']}" and e["sha256"] for e in entries
        )
        assert [e["relpath"] for e in entries if e["split"] == "train"][2:5] == [
            "train/chunk1/example_train_2.jsonl.zst",
            "train/chunk1/example_train_10.jsonl.zst",
            "train/chunk2/example_train_0.jsonl.zst",
        ]
        offline = sample_attributes(
            source={"kind": "hf_cache", "path": str(tmp_path / "a" / "hub" / "datasets--org--corpus")},
            shards={"count": 7},
            views=["nanogpt"],
        )
        with project(offline, tmp_path / "c") as cached:
            cached.run_all()
            for split in ("train", "val", "test"):
                remote_receipt = read_receipt(remote.directory("combined_bins", split))
                cached_receipt = read_receipt(cached.directory("combined_bins", split))
                assert remote_receipt is not None
                assert cached_receipt is not None
                assert cached_receipt.content == remote_receipt.content


def mirrored(made: Project) -> None:
    assert made.run([made.key("manifest"), made.key("engine_certificate")]).success


def test_a_moved_branch_changes_nothing_until_the_manifest_is_made_again(hub: HubServer, tmp_path: Path) -> None:
    with project(attributes(hub, tmp_path), tmp_path) as made:
        mirrored(made)
        first = hub.commit
        hub.move_branch(
            {**tree(), "train/chunk1/example_train_0.jsonl.zst": tree()["test/chunk1/example_holdout_0.jsonl.zst"]}
        )
        assert made.tokenize("train").success
        snapshot = made.root.parent / "hub" / "datasets--org--corpus" / "snapshots"
        assert {p.name for p in snapshot.iterdir()} == {first}


def test_a_file_that_the_hub_lost_is_named_and_its_shard_alone_fails(hub: HubServer, tmp_path: Path) -> None:
    with project(attributes(hub, tmp_path), tmp_path) as made:
        mirrored(made)
        lost = "train/chunk2/example_train_0.jsonl.zst"
        hub.fail(lost, "missing", first=1, times=None)
        hub.fail(lost, "missing", method="HEAD", first=1, times=None)
        outcome = made.tokenize("train")
        assert not outcome.success
        assert lost in failure_of(outcome)
        assert len(made.instance.get_materialized_partitions(made.key("snapshot", "train"))) == 6
        hub.heal()
        assert made.tokenize("train").success


def test_a_branch_that_moved_is_told_and_touches_what_its_files_touch(hub: HubServer, tmp_path: Path) -> None:
    corpus = validate_declaration(CorpusDeclaration, attributes(hub, tmp_path), tmp_path / "defs.yaml")
    store, specs = LocalArtifacts(tmp_path / "root"), corpus_specs(corpus)
    assert run_pipeline(corpus, store).failed == {}
    assert list(find_stale(specs, store)) == []
    assert isinstance(corpus.source, HubSource)
    pinned = corpus.model_copy(update={"source": corpus.source.model_copy(update={"revision": hub.commit})})
    first, edited = hub.commit, "train/chunk1/example_train_0.jsonl.zst"
    other = zstandard.compress(b'{"text": "Other text."}\n')
    hub.move_branch({**tree(), edited: other, "train/chunk2/new.jsonl.zst": other})
    assert next(iter(find_stale(specs, store))).reason == (
        f"its source changed: revision changed: {first[:12]} → {hub.commit[:12]}, "
        f"new file train/chunk2/new.jsonl.zst, edited file {edited}"
    )
    assert list(find_stale(corpus_specs(pinned), store)) == []
    seen = len(hub.log)
    told = {one.name.removeprefix("corpus/") for one in find_stale(specs, store)}
    assert [entry.name for entry in hub.log[seen:] if entry.name.endswith(".zst")] == [], "nothing is fetched to tell"
    outcome = run_pipeline(corpus, store)
    assert set(outcome.built) == told
    assert sorted(name for name in outcome.built if name.startswith("token_bins")) == [
        "token_bins/train-00000",
        "token_bins/train-00007",
    ]
    assert list(find_stale(specs, store)) == []
    hub.move_branch({**tree(), edited: other, "train/chunk2/new.jsonl.zst": other, "README.md": b"# Data\n"})
    assert run_pipeline(corpus, store).built == ["manifest"]


def test_proofs_that_read_texts_fetch_those_of_a_branch_that_moved(hub: HubServer, tmp_path: Path) -> None:
    # Unchanged files keep their artifacts, but the new commit has a different cache folder, which is still empty.
    similar = {"duplicates": {"across_splits": "ignore"}, "drop": {"huge": "characters > 10000000"}, "tag": ["gopher"]}
    plain = validate_declaration(CorpusDeclaration, attributes(hub, tmp_path), tmp_path / "defs.yaml")
    corpus = validate_declaration(CorpusDeclaration, attributes(hub, tmp_path, **similar), tmp_path / "defs.yaml")
    store = LocalArtifacts(tmp_path / "root")
    build_all(corpus_specs(corpus), store)
    hub.move_branch({**tree(), "README.md": b"# Data\n"})
    build_all([spec for spec in corpus_specs(plain) if spec.name == "manifest"], store)
    for spec in corpus_specs(corpus):
        if spec.name in ("tags", "signatures", "duplicates"):
            assert find_failed_checks(spec, store) == set(), spec.path
            shutil.rmtree(tmp_path / "hub" / "datasets--org--corpus" / "snapshots" / hub.commit, ignore_errors=True)


def test_a_hub_out_of_reach_is_believed_to_be_as_it_was(
    hub: HubServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = validate_declaration(CorpusDeclaration, attributes(hub, tmp_path), tmp_path / "defs.yaml")
    store = LocalArtifacts(tmp_path / "root")
    assert run_pipeline(corpus, store).failed == {}
    hub.fail("revision", "status", times=None)
    assert list(find_stale(corpus_specs(corpus), store)) == []
    assert_names(caplog.text, "corpus", "main", "org/corpus")
