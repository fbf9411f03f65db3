"""Faults between a bucket and its mirror end with the right bytes, or with an error that names the object and
no file.
"""

import random
import shutil
from pathlib import Path

import pytest

from dataprep_assets.errors import ConfigError, CorruptSourceError, DataprepError, SourceError, TransferError
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.sources.buckets import DATA, Bucket, Gcs, Trouble, entries_of


@pytest.mark.parametrize("troubles", [["503"], ["truncate", "reset", "429"], ["flip"]])
def test_a_temporary_fault_is_survived(bucket: Bucket, troubles: list[Trouble]) -> None:
    content = random.Random(2).randbytes(100_000)
    bucket.put({"a.jsonl.zst": content})
    source, done = bucket.source(), list[int]()
    entries = entries_of(source)
    bucket.fail(*troubles)
    source.fetch(entries, done.append)
    assert bucket.unspent() == 0
    assert source.path(entries[0]).read_bytes() == content
    assert sum(done) == len(content)


Kind = type[DataprepError] | tuple[type[DataprepError], ...]


@pytest.mark.parametrize(
    ("trouble", "kind", "values"),
    [
        ("503", TransferError, ("HTTP", 503)),
        ("truncate", TransferError, (4,)),
        ("flip", CorruptSourceError, ("MD5",)),
        ("403", (ConfigError, SourceError), (403,)),
    ],
)
def test_a_persistent_fault_names_the_object_and_leaves_no_file(
    bucket: Bucket, trouble: Trouble, kind: Kind, values: tuple[object, ...]
) -> None:
    bucket.put({"a.jsonl.zst": random.Random(3).randbytes(100_000)})
    source = bucket.source()
    entries = entries_of(source)
    bucket.fail(trouble, always=True)
    with raises(kind, *values) as raised:
        source.fetch(entries)
    assert f"{bucket.url}/corpus/a.jsonl.zst" in str(raised.value)
    assert not source.path(entries[0]).exists()
    bucket.heal()
    source.fetch(entries)
    assert source.path(entries[0]).stat().st_size == 100_000


@pytest.mark.parametrize("digest", ["sha256", "CRC32C"])
def test_persistent_wrong_bytes_are_found_by_any_available_digest(gcs: Gcs, tmp_path: Path, digest: str) -> None:
    source, name = gcs.source(), "a.jsonl.zst"
    store = source.open()
    if digest == "sha256":
        store.put(name, b"recorded with its digest")
    else:
        # Compose the object, because it then has no SHA-256: no client has read all of its bytes.
        store.compose([store.put(f"parts/{number}", b"part").key for number in range(2)], name)
    (entry,) = [entry for entry in entries_of(source) if entry.relpath == name]
    gcs.fail("flip", always=True)
    with raises(CorruptSourceError, digest):
        source.fetch([entry])
    assert not source.path(entry).exists()
    gcs.heal()
    source.fetch([entry])


def test_a_full_disk_stops_the_download_before_the_first_byte(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put(DATA)
    source = bucket.source()
    entries = entries_of(source)
    usage = shutil.disk_usage(bucket.mirror.parent)
    needed = sum(map(len, DATA.values()))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=int(needed * 1.1)))
    with raises(SourceError, "cache_dir", "HF_HUB_CACHE"):
        source.fetch(entries)
    assert bucket.reads() == []
