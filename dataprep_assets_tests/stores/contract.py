"""The contract of every store: derive a test class from :class:`StoreContract` with a `store` fixture.

The fixture's store must be empty at the start of a test.
"""

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dataprep_assets.errors import ConfigError, CorruptSourceError, IntegrityError, MissingArtifactError
from dataprep_assets.stores.store import ConflictError, ObjectInfo, Store
from dataprep_assets_tests.messages import raises

# Each of these names has caused an error in some store, signature or path.
KEYS = [
    "plain.bin",
    "deep/er/and/deeper/file.bin",
    "with space/a b.txt",
    "percent%20/100%.txt",
    "plus+and&and=and?and#.txt",
    "ünïcode/数据/😀.bin",
    "tilde~!*'().txt",
    'quote"back\\slash<>&.xml',
    "dots/..a/b..c/...d",
    " leading and trailing ",
]

BAD_KEYS = ["", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\nb", "a\0b", ".uploads/x", "k" * 1025]


def content(size: int, seed: str = "store") -> bytes:
    """Return reproducible bytes without repetition."""
    return hashlib.shake_256(seed.encode()).digest(size)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class StoreContract:
    """The tests that every store must pass. `part_bytes`: larger files are uploaded in parts.

    `has_metadata`: objects have digests.
    """

    part_bytes = 256 * 1024
    has_metadata = True

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        raise NotImplementedError

    def read(self, store: Store, key: str, start: int = 0, stop: int | None = None) -> bytes:
        return b"".join(store.read(key, start, stop))

    def check_info(self, info: ObjectInfo | None, key: str, data: bytes) -> ObjectInfo:
        """Assert that the store's information about an object is true."""
        assert info is not None
        assert (info.key, info.bytes) == (key, len(data))
        assert info.version
        assert info.sha256 in (None, sha256(data))
        assert info.md5 in (None, hashlib.md5(data).hexdigest())
        if info.crc32c is not None:
            import google_crc32c

            assert info.crc32c == google_crc32c.value(data)
        return info

    def upload(self, store: Store, folder: Path, key: str, data: bytes) -> ObjectInfo:
        path = folder / "to-upload"
        path.write_bytes(data)
        return store.upload(path, key, sha256=sha256(data))

    # --- single objects

    @pytest.mark.parametrize("key", KEYS)
    def test_any_sensible_key_is_read_back(self, store: Store, tmp_path: Path, key: str) -> None:
        data = content(1000, key)
        assert store.head(key) is None
        put = self.check_info(store.put(key, data), key, data)
        assert store.head(key) == put
        assert [info.key for info in store.list()] == [key]
        assert self.read(store, key) == data
        self.check_info(store.copy(key, f"copies/{key}"), f"copies/{key}", data)
        self.check_info(store.compose([key, f"copies/{key}"], f"twice/{key}"), f"twice/{key}", data + data)
        store.download(f"twice/{key}", tmp_path / "twice", sha256=sha256(data + data))
        assert (tmp_path / "twice").read_bytes() == data + data
        store.delete(key)
        assert store.head(key) is None
        assert {info.key for info in store.list()} == {f"copies/{key}", f"twice/{key}"}

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_a_key_that_some_store_cannot_hold_is_refused_by_all(self, store: Store, tmp_path: Path, key: str) -> None:
        store.put("good", b"x")
        for use in (
            lambda: store.put(key, b"x"),
            lambda: store.head(key),
            lambda: [*store.read(key)],
            lambda: store.delete(key),
            lambda: store.copy("good", key),
            lambda: store.copy(key, "good"),
            lambda: store.compose(["good"], key),
            lambda: self.upload(store, tmp_path, key, b"x"),
            lambda: store.download(key, tmp_path / "target"),
        ):
            with pytest.raises(ConfigError):
                use()
        assert [info.key for info in store.list()] == ["good"]

    def test_a_put_replaces_the_object_and_its_version(self, store: Store) -> None:
        versions = [store.put("key", data).version for data in (b"one", b"two", b"one")]
        assert len(set(versions[:2])) == 2
        assert self.read(store, "key") == b"one"

    def test_an_empty_object_is_an_object(self, store: Store, tmp_path: Path) -> None:
        self.check_info(store.put("empty", b""), "empty", b"")
        assert self.read(store, "empty") == b""
        assert self.read(store, "empty", 0, 0) == b""
        self.check_info(self.upload(store, tmp_path, "uploaded", b""), "uploaded", b"")
        store.download("uploaded", tmp_path / "target", sha256=sha256(b""))
        assert (tmp_path / "target").read_bytes() == b""
        assert [info.bytes for info in store.list()] == [0, 0]

    def test_deleting_a_missing_object_is_no_error(self, store: Store) -> None:
        store.delete("nothing")
        store.put("key", b"x")
        store.delete("key")
        store.delete("key")
        assert [*store.list()] == []

    def test_a_deleted_folder_does_not_block_others(self, store: Store) -> None:
        store.put("name/below/it", b"x")
        store.delete("name/below/it")
        store.put("name", b"y")
        assert [info.key for info in store.list()] == ["name"]

    # --- conditions

    def test_if_absent_writes_once(self, store: Store) -> None:
        first = store.put("lock", b"first", if_absent=True)
        with raises(ConflictError, "lock"):
            store.put("lock", b"second", if_absent=True)
        assert store.head("lock") == first
        assert self.read(store, "lock") == b"first"

    def test_if_version_exchanges_exactly_that_version(self, store: Store) -> None:
        first = store.put("key", b"first")
        second = store.put("key", b"second", if_version=first.version)
        with raises(ConflictError, "key"):
            store.put("key", b"third", if_version=first.version)
        assert self.read(store, "key") == b"second"
        store.delete("key")
        with pytest.raises(ConflictError):
            store.put("key", b"third", if_version=second.version)
        assert store.head("key") is None

    def test_both_conditions_at_once_are_refused(self, store: Store) -> None:
        version = store.put("key", b"x").version
        with pytest.raises(ConfigError):
            store.put("key", b"y", if_absent=True, if_version=version)

    def test_one_of_many_concurrent_writers_of_a_new_name_wins(self, store: Store) -> None:
        won, lost = self.race(lambda number: store.put("lock", b"%d" % number, if_absent=True), 12)
        assert (len(won), len(lost)) == (1, 11)
        assert self.read(store, "lock") == b"%d" % won[0]

    def test_of_many_who_race_for_an_exchange_one_wins(self, store: Store) -> None:
        version = store.put("counter", b"0").version
        # No writer writes the existing bytes, because in some stores equal bytes have equal versions.
        won, lost = self.race(lambda number: store.put("counter", b"by %d" % number, if_version=version), 12)
        assert (len(won), len(lost)) == (1, 11)
        assert self.read(store, "counter") == b"by %d" % won[0]

    def race(self, act: object, count: int) -> tuple[list[int], list[int]]:
        won: list[int] = []
        lost: list[int] = []
        start = threading.Barrier(count)

        def run(number: int) -> None:
            start.wait()
            try:
                act(number)  # type: ignore[operator]
                won.append(number)
            except ConflictError:
                lost.append(number)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return won, lost

    # --- listings

    def test_a_listing_is_sorted_by_the_bytes_of_keys(self, store: Store) -> None:
        keys = ["a", "a.txt", "a-b", "ab", "b/a", "b.c", "b/a.x/z", "b/a/z", "Z", "é", "z/é", "😀", "\uffee", "b/a-/z"]
        # Leave out keys below which other keys exist, because a folder, unlike a bucket, cannot contain both `a` and
        # `a/b`.
        keys = [key for key in keys if not any(other.startswith(f"{key}/") for other in keys)]
        for key in reversed(keys):
            store.put(key, key.encode())
        assert [info.key for info in store.list()] == sorted(keys, key=str.encode)
        for info in store.list():
            self.check_info(info, info.key, info.key.encode())

    def test_a_listing_has_exactly_the_keys_with_the_prefix(self, store: Store) -> None:
        keys = ["data/train/0", "data/train/1", "data/train-extra/0", "data/test/0", "database", "other"]
        for key in keys:
            store.put(key, b"x")
        for prefix in (
            "",
            "d",
            "data",
            "data/",
            "data/train",
            "data/train/",
            "data/train/1",
            "other",
            "none",
            "data/x/",
        ):
            assert [info.key for info in store.list(prefix)] == sorted(key for key in keys if key.startswith(prefix))

    def test_a_listing_continues_over_many_pages(self, store: Store) -> None:
        keys = [f"folder/{number:04d}" for number in range(57)]
        for key in keys:
            store.put(key, b"")
        assert [info.key for info in store.list("folder/")] == keys

    # --- ranges

    def test_ranges_are_half_open_and_exact(self, store: Store) -> None:
        data = content(3 * 1024 * 1024 + 77)
        store.put("key", data)
        for start, stop in [(0, 1), (5, 5), (1, 1000), (1 << 20, (2 << 20) + 1), (len(data) - 1, None), (0, None)]:
            assert self.read(store, "key", start, stop) == data[start:stop]
        assert self.read(store, "key", len(data), None) == b""
        assert self.read(store, "key", len(data), len(data)) == b""
        assert self.read(store, "key", 17, len(data)) == data[17:]

    def test_a_read_beyond_the_end_never_looks_complete(self, store: Store) -> None:
        store.put("key", b"12345")
        for start, stop in [(0, 6), (5, 6), (6, 7), (6, None), (9, 9)]:
            with raises(IntegrityError, "key", 5):
                self.read(store, "key", start, stop)
        for start, stop in [(-1, 2), (3, 2)]:
            with pytest.raises(ConfigError):
                self.read(store, "key", start, stop)

    def test_a_read_of_a_missing_object_is_reported(self, store: Store, tmp_path: Path) -> None:
        for start, stop in [(0, None), (0, 0), (3, 9)]:
            with raises(MissingArtifactError, "nothing"):
                self.read(store, "nothing", start, stop)
        with raises(MissingArtifactError, "nothing"):
            store.download("nothing", tmp_path / "target")
        with raises(MissingArtifactError, "nothing"):
            store.copy("nothing", "else")
        store.put("something", b"x")
        with raises(MissingArtifactError, "nothing"):
            store.compose(["something", "nothing"], "else")
        assert store.head("else") is None
        assert [*tmp_path.iterdir()] == []

    def test_a_pinned_read_refuses_another_version(self, store: Store) -> None:
        first = store.put("key", b"first").version
        assert b"".join(store.read("key", version=first)) == b"first"
        second = store.put("key", b"other").version
        with pytest.raises(ConflictError):
            b"".join(store.read("key", version=first))
        with pytest.raises(ConflictError):
            b"".join(store.read("key", 2, 2, version=first))
        assert b"".join(store.read("key", 1, 3, version=second)) == b"th"

    # --- files

    @pytest.mark.parametrize("parts", [0.5, 1, 2, 3.7])
    def test_a_file_is_uploaded_and_downloaded_unchanged(self, store: Store, tmp_path: Path, parts: float) -> None:
        data = content(int(parts * self.part_bytes))
        info = self.upload(store, tmp_path, "a/file.bin", data)
        self.check_info(info, "a/file.bin", data)
        assert store.head("a/file.bin") == info
        assert [found.key for found in store.list()] == ["a/file.bin"]
        assert self.read(store, "a/file.bin", len(data) // 3, len(data) // 2) == data[len(data) // 3 : len(data) // 2]
        target = tmp_path / "new" / "folder" / "file.bin"
        downloaded = store.download("a/file.bin", target, sha256=sha256(data))
        assert downloaded == replace(info, sha256=sha256(data))
        assert target.read_bytes() == data
        assert [path.name for path in target.parent.iterdir()] == ["file.bin"]
        assert store.sweep() == 0

    def test_progress_adds_up_to_the_file_size(self, store: Store, tmp_path: Path) -> None:
        data = content(3 * self.part_bytes + 1)
        path = tmp_path / "file"
        path.write_bytes(data)
        sent: list[int] = []
        store.upload(path, "key", sha256=sha256(data), progress=sent.append)
        received: list[int] = []
        store.download("key", tmp_path / "target", progress=received.append)
        assert (sum(sent), sum(received)) == (len(data), len(data))

    @pytest.mark.parametrize("parts", [0.5, 2.5])
    def test_a_file_that_differs_from_its_recorded_digest_is_not_stored(
        self, store: Store, tmp_path: Path, parts: float
    ) -> None:
        data = content(int(parts * self.part_bytes))
        path = tmp_path / "file"
        path.write_bytes(data)
        before = store.put("key", b"the old object")
        with raises(IntegrityError, path):
            store.upload(path, "key", sha256=sha256(b"other bytes"))
        assert store.head("key") == before
        assert [info.key for info in store.list()] == ["key"]
        assert store.sweep() == 0

    def test_a_download_with_another_digest_is_refused(self, store: Store, tmp_path: Path) -> None:
        store.put("key", content(1000))
        target = tmp_path / "target"
        target.write_bytes(b"what was there")
        with raises((CorruptSourceError, IntegrityError), "key", "sha256"):
            store.download("key", target, sha256=sha256(b"other bytes"))
        assert target.read_bytes() == b"what was there"
        assert [path.name for path in tmp_path.iterdir()] == ["target"]

    def test_an_upload_replaces_the_object(self, store: Store, tmp_path: Path) -> None:
        first, second = content(2 * self.part_bytes, "1"), content(2 * self.part_bytes, "2")
        self.upload(store, tmp_path, "key", first)
        self.upload(store, tmp_path, "key", second)
        self.upload(store, tmp_path, "key", second)
        assert self.read(store, "key") == second

    # --- objects composed of other objects

    def test_a_composition_is_the_concatenation_in_order(self, store: Store) -> None:
        parts = [content(size, str(size)) for size in (1, 0, 70_000, 3, 0, 5_000)]
        for number, part in enumerate(parts):
            store.put(f"parts/{number}", part)
        keys = [f"parts/{number}" for number in range(len(parts))]
        self.check_info(store.compose(keys, "whole"), "whole", b"".join(parts))
        self.check_info(store.compose(keys[::-1], "back"), "back", b"".join(parts[::-1]))
        self.check_info(store.compose(["parts/3"] * 3, "thrice"), "thrice", parts[3] * 3)
        self.check_info(store.compose(["parts/1", "parts/4"], "none"), "none", b"")
        assert self.read(store, "whole") == b"".join(parts)
        assert len([*store.list("parts/")]) == len(parts)
        assert store.sweep() == 0

    def test_a_composition_of_nothing_is_refused(self, store: Store) -> None:
        with raises(ConfigError):
            store.compose([], "whole")
        assert [*store.list()] == []

    def test_a_composition_may_have_many_sources_and_replace_one_of_them(self, store: Store) -> None:
        parts = [content(7 + number, str(number)) for number in range(70)]
        for number, part in enumerate(parts):
            store.put(f"parts/{number}", part)
        store.put("whole", b"head ")
        whole = b"head " + b"".join(parts)
        info = store.compose(["whole", *(f"parts/{number}" for number in range(len(parts)))], "whole")
        self.check_info(info, "whole", whole)
        assert self.read(store, "whole") == whole
        assert {found.key.partition("/")[0] for found in store.list()} == {"parts", "whole"}
        assert store.sweep() == 0

    def test_a_composition_of_every_kind_of_part_is_right(self, store: Store, tmp_path: Path) -> None:
        large, small = content(3 * self.part_bytes + 11, "large"), content(10, "small")
        self.upload(store, tmp_path, "large", large)
        store.put("small", small)
        self.check_info(
            store.compose(["small", "large", "small", "large"], "whole"), "whole", small + large + small + large
        )
        assert self.read(store, "whole") == small + large + small + large

    @pytest.mark.parametrize("parts", [0.1, 1.5])
    def test_a_composition_has_the_digest_given_by_its_creator(
        self, store: Store, tmp_path: Path, parts: float
    ) -> None:
        first, second = content(int(parts * self.part_bytes), "first"), content(70_001, "second")
        self.upload(store, tmp_path, "first", first)
        store.put("second", second)
        store.put("empty", b"")
        for keys, data in (
            (["first", "second"], first + second),
            (["second", "first", "empty"], second + first),
            (["first"], first),
            (["empty", "second"], second),
            (["empty", "empty"], b""),
        ):
            info = self.check_info(store.compose(keys, "whole", sha256=sha256(data)), "whole", data)
            assert info.sha256 == (sha256(data) if self.has_metadata else None)
            assert store.head("whole") == info
            assert store.copy("whole", "copy").sha256 == info.sha256
            assert self.read(store, "copy") == data
        store.compose(["first", "second"], "whole")
        named = store.compose(["whole"], "named", sha256=sha256(first + second))
        assert (self.check_info(named, "named", first + second).sha256 is not None) == self.has_metadata
        assert store.sweep() == 0

    def test_a_copy_is_an_independent_object(self, store: Store, tmp_path: Path) -> None:
        data = content(2 * self.part_bytes + 5)
        source = self.upload(store, tmp_path, "source", data)
        copied = self.check_info(store.copy("source", "a/copy"), "a/copy", data)
        assert copied.sha256 == source.sha256
        assert store.head("source") == source
        store.put("source", b"replaced")
        store.delete("source")
        assert self.read(store, "a/copy") == data

    def test_a_store_never_shows_its_credentials(self, store: Store) -> None:
        assert "://" in store.url
        assert "@" not in store.url
        assert store.url in repr(store) or store.url.removeprefix("file://") in repr(store)
