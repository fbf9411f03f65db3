"""Whoever has a copy of a file cannot tell from what is made of a sensitive dataset whether it is among the sources."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dataprep_assets import components
from dataprep_assets.engine.lock.lock import encode_lock, lock_dataset
from dataprep_assets.engine.source_key import KeyedSources
from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.stores.files import SourceDigests, private_files, sha256_file
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.plain_digests import PlainDigests, contents_of
from dataprep_assets_tests.tools.drill.datasets import Bench, bench, corpus_attributes
from dataprep_assets_tests.tools.drill.judge import failed_proofs

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
        yield "lock", encode_lock(lock_dataset(self.made.specs, self.made.store))
        for spec in self.made.specs:
            for receipt in self.made.store.receipts(spec.artifacts(self.made.store)):
                assert receipt is not None
                yield f"metadata of {spec.name}", repr(spec.metadata(self.made.store, receipt)).encode()

    def contents(self) -> Iterator[bytes]:
        """What is in the source files."""
        return contents_of(p for name in SOURCES for p in (self.made.folder / name).rglob("*") if p.is_file())

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


def changes(pipeline: str) -> dict[str, Any]:
    """What makes a dataset of a pipeline sensitive."""
    if pipeline in ("corpus", "release"):
        return {"sensitive": True, "document": {"id_key": {"env": "SOURCES_KEY"}}}
    return {"sensitive": True, "source_key": {"env": "SOURCES_KEY"}}


# `told_apart` is the number of digests. For a blend, None means all its files. For tasks, the number counts three
# versions of Copa with two inherited splits, and three splits each of RTE and ArcC_Cloze.
@pytest.mark.parametrize(
    ("pipeline", "told_apart", "damaged", "check"),
    [
        ("corpus", 5, "source/train/part-0.jsonl.zst", "digests_match"),
        ("release", 5, "source/train/part-0.jsonl.zst", "digests_match"),
        ("blend", None, "source/knots/validation.jsonl", "digests_match"),
        ("tasks", 3 + 2 + 3 + 3, "new/**/*validation*.jsonl", "files_match_receipt"),
    ],
)
def test_of_a_sensitive_dataset_no_digest_of_a_source_or_document_is_told(
    pipeline: str, told_apart: int | None, damaged: str, check: str, tmp_path: Path
) -> None:
    one = built(pipeline, tmp_path / "b", **changes(pipeline))
    told = dict(one.told())
    assert len(one.plain) >= 5
    digests = PlainDigests(one.contents())
    assert {where: found for where, data in told.items() if (found := digests.found(data))} == {}
    keyed = [SourceDigests(KEY.encode()).digest_of(p).encode() for p in one.plain]
    found = [k for k in keyed if any(k in data for data in told.values())]
    assert len(found) == (told_apart or len(keyed)), "they are told apart all the same"
    assert one.failed() == []
    path = next(iter(sorted((tmp_path / "b").glob(damaged))))
    path.write_bytes(path.read_bytes() + b"\n")
    failed = one.failed()
    assert check in {name for name, _ in failed}
    # Search for the first twelve digits, because messages shorten digests to twelve digits.
    assert not [words for _, words in failed for p in {*one.plain, sha256_file(path)} if p[:12] in words]


@pytest.mark.parametrize("pipeline", ["corpus", "release", "blend", "tasks"])
def test_a_sensitive_dataset_of_local_files_needs_the_key(pipeline: str, tmp_path: Path) -> None:
    key = (
        "document.id_key: {env: DOCUMENT_KEY}" if pipeline in ("corpus", "release") else "source_key: {env: SOURCE_KEY}"
    )
    with pytest.raises(ConfigError) as raised:
        built(pipeline, tmp_path / "b", sensitive=True)
    assert_names(str(raised.value), "`sensitive: true`", f"`{key}`")
    assert len(str(raised.value).splitlines()) <= 6


def test_every_kind_of_dataset_that_reads_files_is_here() -> None:
    """Notes need a patient key (`pipelines/notes/test_notes_privacy.py`); combinations and schedules read no source."""
    keyed = {kind for kind in components.__all__ if issubclass(getattr(components, kind).model, KeyedSources)}
    corpora = {kind for kind in components.__all__ if issubclass(getattr(components, kind).model, CorpusDeclaration)}
    assert keyed == {"TrainingBlend", "TaskMigration"}
    assert corpora == {"TokenizedCorpus", "ShardRelease"}
    assert {*components.__all__} - keyed - corpora == {"PackedCohorts", "CombinedCohorts", "TrainingSchedule"}


REMOTE, LOCAL = "hf://org/data@main", "./here.jsonl"


def rl(path: str, *transforms: Any) -> dict[str, Any]:
    return {"blend": {"datasets": [{"name": "a", "path": path}]}, "rl": {"transforms": [*transforms, "passthrough"]}}


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        (rl(REMOTE), False),
        (rl(LOCAL), True),
        (rl(REMOTE, {"resolve_hf_placeholders": {"sources": {"b": REMOTE}}}), False),
        (rl(REMOTE, {"resolve_hf_placeholders": {"sources": {"b": LOCAL}}}), True),
        (rl(REMOTE, {"resolve_hf_placeholders": {"sources": {"b": {"path": LOCAL}}}}), True),
        ({"blend": "blend.json"}, True),
    ],
)
def test_a_blend_needs_the_key_where_it_may_read_files_of_this_machine(given: dict[str, Any], needed: bool) -> None:
    declared = {"dataset": "d", "stage": "rl", "sensitive": True, **given}
    with raises(ValidationError, "`source_key") if needed else contextlib.nullcontext():
        BlendDeclaration.model_validate(declared)
    BlendDeclaration.model_validate({**declared, "source_key": {"env": "SOME_KEY"}})


@pytest.mark.parametrize(
    "source",
    [
        {"kind": "object_store", "url": "s3://bucket/prefix", "cache_dir": "./cache"},
        {"kind": "hub", "repo": "org/data", "revision": "main"},
    ],
)
def test_what_a_bucket_or_hub_digests_itself_needs_no_key(source: dict[str, Any], tmp_path: Path) -> None:
    CorpusDeclaration.model_validate({**corpus_attributes(tmp_path, tmp_path, sensitive=True), "source": source})


def test_a_key_of_ids_alone_changes_no_digest(tmp_path: Path) -> None:
    one = built("corpus", tmp_path / "b", document={"id_key": {"env": "SOURCES_KEY"}})
    there = b"".join(data for _, data in one.told())
    assert all(p.encode() in there for p in one.plain)


def test_without_its_key_a_sensitive_dataset_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCES_KEY")
    with raises(ConfigError, "document.id_key", "SOURCES_KEY"):
        built("corpus", tmp_path / "b", sensitive=True, document={"id_key": {"env": "SOURCES_KEY"}})


def test_the_digests_of_notes_are_those_of_before() -> None:
    told = SourceDigests(b"k" * 32).digest_of("0" * 64)
    assert told == "09267438728a854f5f6274e54a478ccb6a72541aea195362fd4868af49cfb7e1"
    assert "k" * 8 not in repr(SourceDigests(b"k" * 32))
