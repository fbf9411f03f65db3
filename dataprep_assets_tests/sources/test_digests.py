"""The digests of source files; unreadable and changed files are named."""

import hashlib
from pathlib import Path

from dataprep_assets.errors import CorruptSourceError, SourceError
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.access import LocalTree, compute_source_digest
from dataprep_assets.stores.files import require_digest
from dataprep_assets_tests.messages import raises


def test_a_local_file_is_digested_and_an_unreadable_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{}\n")
    access = LocalTree(tmp_path)
    assert compute_source_digest(access, entry("a.jsonl")) == hashlib.sha256(b"{}\n").hexdigest()
    with raises(SourceError, "b.jsonl"):
        compute_source_digest(access, entry("b.jsonl"))


def test_a_file_that_changed_since_its_digest_is_refused_with_the_remedy() -> None:
    require_digest("a.jsonl", "00", "00", "`snapshot`")
    with raises(CorruptSourceError, "a.jsonl", "00", 11, "`snapshot`"):
        require_digest("a.jsonl", "00", "11", "`snapshot`")


def entry(name: str) -> ManifestEntry:
    return ManifestEntry(
        ordinal=0,
        split="train",
        chunk="",
        file_index=0,
        path=name,
        relpath=name,
        size_bytes=3,
        compression=None,
        format="jsonl",
        sha256=None,
        etag=None,
        commit=None,
    )
