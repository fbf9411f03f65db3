"""Whoever has a copy of a file cannot tell from what is made of a sensitive dataset whether it is among the sources."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.graph.lock import lock_dataset
from dataprep_assets.graph.lock_file import lock_bytes
from dataprep_assets.integrity.digest import sha256_file
from dataprep_assets.sources.digests import SourceDigests
from dataprep_assets.stores.private import private_files
from dataprep_assets_tests.drill.datasets import Bench, bench
from dataprep_assets_tests.drill.judge import failed_proofs

KEY = "a key of thirty-two characters.."
SOURCES = ("source", "old", "original")
"""Folders of a bench that hold source files; `new` is the tree that tasks are migrated to."""


@dataclass(frozen=True)
class Built:
    """A dataset, and the plain SHA-256 of each of its source files."""

    made: Bench
    plain: frozenset[str]

    def told(self) -> Iterator[tuple[str, bytes]]:
        """All that is written or shown of it beside its sources: where, and the bytes."""
        apart = {self.made.folder / name for name in (*SOURCES, "new")}
        for path in self.made.folder.rglob("*"):
            if path.is_file() and apart.isdisjoint(path.parents):
                yield str(path), path.read_bytes()
        yield "lock", lock_bytes(lock_dataset(self.made.specs, self.made.store))
        for spec in self.made.specs:
            for receipt in self.made.store.receipts(spec.artifacts(self.made.store)):
                assert receipt is not None
                yield f"metadata of {spec.name}", repr(spec.metadata(self.made.store, receipt)).encode()

    def failed(self) -> list[tuple[str, str]]:
        """Name and words of each check that fails."""
        store = self.made.store
        with private_files():
            return [
                said
                for spec in self.made.specs
                for said in failed_proofs(spec, store, [slot for slot in spec.slots(store) if slot is not None])
            ]


def built(pipeline: str, folder: Path, **changes: Any) -> Built:
    """A dataset of a pipeline of the drill, with other attributes."""

    def change(attributes: dict[str, Any]) -> dict[str, Any]:
        if "document" not in attributes:
            return attributes | changes
        document = attributes["document"] | changes.get("document", {})
        views = {"views": ["nanogpt", "hf_parquet"]} if "views" in attributes else {}
        return attributes | views | changes | {"document": document}

    with private_files():
        made = bench(pipeline, folder, change=change)
    sources = (path for name in SOURCES for path in (folder / name).rglob("*") if path.is_file())
    return Built(made, frozenset(map(sha256_file, sources)))


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCES_KEY", KEY)


@pytest.mark.parametrize("pipeline", ["corpus", "release"])
def test_of_a_sensitive_dataset_no_digest_of_a_source_is_told(pipeline: str, tmp_path: Path) -> None:
    one = built(pipeline, tmp_path / "b", sensitive=True, document={"id_key": {"env": "SOURCES_KEY"}})
    told = dict(one.told())
    assert len(one.plain) == 5
    assert [(p, where) for p in one.plain for where, data in told.items() if p.encode() in data] == []
    keyed = {SourceDigests(KEY.encode()).of(p).encode() for p in one.plain}
    assert all(any(k in data for data in told.values()) for k in keyed), "they are told apart all the same"
    assert one.failed() == []
    damaged = next((tmp_path / "b" / "source" / "train").iterdir())
    damaged.write_bytes(damaged.read_bytes() + b"\n")
    failed = one.failed()
    assert "digests_match" in {name for name, _ in failed}
    assert not [words for _, words in failed for p in {*one.plain, sha256_file(damaged)} if p in words]


@pytest.mark.parametrize("pipeline", ["blend", "tasks"])
def test_of_a_sensitive_blend_or_task_no_digest_of_a_source_is_told(pipeline: str, tmp_path: Path) -> None:
    one = built(pipeline, tmp_path / "b", sensitive=True, source_key={"env": "SOURCES_KEY"})
    told = dict(one.told())
    assert len(one.plain) >= 7
    # messages show the first twelve digits
    assert [(p, where) for p in one.plain for where, data in told.items() if p[:12].encode() in data] == []
    keyed = [SourceDigests(KEY.encode()).of(p).encode() for p in one.plain]
    found = [k for k in keyed if any(k in data for data in told.values())]
    # three versions of Copa with two inherited splits, and three splits each of RTE and ArcC_Cloze
    assert len(found) == (len(keyed) if pipeline == "blend" else 3 + 2 + 3 + 3), "they are told apart all the same"
    assert one.failed() == []
    folder = "source" if pipeline == "blend" else "new"
    damaged = next(p for p in sorted((tmp_path / "b" / folder).rglob("*.jsonl*")) if "validation" in p.name)
    damaged.write_bytes(damaged.read_bytes() + b"\n")
    failed = one.failed()
    assert {"blend": "digests_match", "tasks": "as_migrated"}[pipeline] in {name for name, _ in failed}
    assert not [words for _, words in failed for p in {*one.plain, sha256_file(damaged)} if p[:12] in words]


def test_a_key_of_ids_alone_changes_no_digest(tmp_path: Path) -> None:
    one = built("corpus", tmp_path / "b", document={"id_key": {"env": "SOURCES_KEY"}})
    there = b"".join(data for _, data in one.told())
    assert all(p.encode() in there for p in one.plain)


def test_without_its_key_a_sensitive_dataset_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCES_KEY")
    with pytest.raises(ConfigError, match=r"document\.id_key: the environment variable SOURCES_KEY is not set"):
        built("corpus", tmp_path / "b", sensitive=True, document={"id_key": {"env": "SOURCES_KEY"}})


def test_the_digests_of_notes_are_those_of_before() -> None:
    told = SourceDigests(b"k" * 32).of("0" * 64)
    assert told == "09267438728a854f5f6274e54a478ccb6a72541aea195362fd4868af49cfb7e1"
    assert "k" * 8 not in repr(SourceDigests(b"k" * 32))
