"""A manifest lists every file once, in an order that depends only on the names."""

import random
import re
import time
from pathlib import Path

import pytest

from dataprep_assets.errors import ConfigError, FormatError, SourceError
from dataprep_assets.planning.manifest import (
    MANIFEST,
    ManifestEntry,
    ShardSizing,
    SourceFile,
    build_manifest,
    compile_glob,
    count_shards,
    digest_listing,
    file_format,
    natural_key,
    plan_shards,
    read_manifest,
    read_plan,
    summarize_manifest,
    write_manifest,
    write_plan,
)
from dataprep_assets.stores.files import canonical_json, digest_value
from dataprep_assets_tests.messages import raises

SPLITS = {"train": ["train/**"], "val": ["validation/**"]}
INCLUDE = ["**/*.jsonl.zst"]


def listed(*names: str) -> list[SourceFile]:
    return [SourceFile(relpath=name, size_bytes=len(name)) for name in names]


def test_sixty_thousand_files_are_planned_in_seconds_in_natural_order(tmp_path: Path) -> None:
    files = [
        SourceFile(relpath=f"train/chunk{c}/example_train_{i}.jsonl.zst", size_bytes=1000 + (i * 7919) % 5000)
        for c in range(1, 11)
        for i in range(6000)
    ]
    expected = [f.relpath for f in files]
    random.Random(3).shuffle(files)
    started = time.process_time()
    entries = build_manifest(files, include=INCLUDE, splits={"train": ["train/**"]})
    ordered, plan = plan_shards(entries, ShardSizing(target_bytes=1 << 20))
    assert time.process_time() - started < 30  # takes about 2 s of CPU time, and hours if it is quadratic
    write_manifest(tmp_path, entries, count_shards(plan))
    write_plan(tmp_path, plan)
    assert ordered == entries
    assert read_manifest(tmp_path) == entries
    assert [e.relpath for e in entries] == expected
    assert [e.ordinal for e in entries] == list(range(60_000))
    assert [o for bounds in read_plan(tmp_path).values() for o in bounds] == list(range(60_000))


def test_two_listings_of_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    files = listed(
        *(f"train/chunk{c}/f_{i}.jsonl.zst" for c in (1, 2, 10) for i in (0, 1, 2, 10, 11)), "validation/a.jsonl.zst"
    )
    written = set()
    for seed in range(5):
        random.Random(seed).shuffle(files)
        (folder := tmp_path / str(seed)).mkdir()
        write_manifest(folder, build_manifest(files, include=INCLUDE, splits=SPLITS), {"train": 1, "val": 1})
        written.add(b"".join(p.read_bytes() for p in sorted(folder.iterdir())))
    assert len(written) == 1


@pytest.mark.parametrize(
    "ordered",
    [["a1", "a2", "a10"], ["a/2/b", "a/10/b"], ["1", "2", "11"], ["a9b9", "a9b10", "a10b1"], ["a1", "a02", "a3"]],
    ids=str,
)
def test_numbers_in_names_are_ordered_by_value(ordered: list[str]) -> None:
    shuffled = ordered[1:] + ordered[:1]
    assert sorted(shuffled, key=natural_key) == ordered


def test_the_order_alternates_between_texts_and_numbers() -> None:
    def parts(text: str) -> list[tuple[int, int | str]]:
        found = [part for part in re.split(r"(\d+)", text) if part]
        return [*((1, int(p)) if p.isdecimal() and p.isascii() else (0, p) for p in found), (2, text)]

    rng = random.Random(8)
    names = {"".join(rng.choices("ab/0019._-Zé٣٠ ~", k=rng.randint(0, 9))) for _ in range(5000)}
    assert sorted(names, key=natural_key) == sorted(names, key=parts)


def test_files_of_many_folders_are_in_the_order_of_their_natural_keys() -> None:
    """A folder's part of the key is computed once; the order is that of each path's own key."""
    folders = ["", "a/", "a1/", "a01/", "a/1/", "a-1/2b/", "1/", "10/2/", "é٣/", "é٣9/x/", "a1b/c/"]
    names = ["1", "2", "10", "01", "x1", "x10", "x2y", "٣", "-", "1-1", "b٣3", "x"]
    files = [SourceFile(relpath=f"{folder}{name}.jsonl", size_bytes=1) for folder in folders for name in names]
    random.Random(5).shuffle(files)
    entries = build_manifest(files, include=["**"], splits={"all": ["**"]})
    assert [e.relpath for e in entries] == sorted((f.relpath for f in files), key=natural_key)


def test_a_line_is_the_canonical_json_of_its_fields() -> None:
    values = dict.fromkeys(ManifestEntry._fields) | {
        "chunk": 'a"\\é\x7f\u2028',
        "size_bytes": 1 << 62,
        "etag": "\t",
    }
    assert ManifestEntry(**values).line == canonical_json(values)
    entries = build_manifest(listed("train/a.jsonl.zst", "validation/b.jsonl.zst"), include=INCLUDE, splits=SPLITS)
    rows = [[e.split, e.path, e.size_bytes, e.sha256, e.etag] for e in entries]
    assert digest_listing(entries) == digest_value(rows)
    counts = {"train": 1, "val": 1}
    assert summarize_manifest(entries, counts)["_manifest"]["sha256"] == digest_value([e._asdict() for e in entries])


def test_names_that_differ_only_in_leading_zeros_still_have_one_order() -> None:
    assert len({natural_key(name) for name in ("a1", "a01", "a001")}) == 3


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("**/*.jsonl", "a/b/c.jsonl", "a/b/c.jsonl.zst"),
        ("**/*.jsonl", "c.jsonl", "c.json"),
        ("train/**", "train/a/b", "train2/a"),
        ("*/x", "a/x", "a/b/x"),
        ("a?c", "abc", "a/c"),
        ("[ab]x", "ax", "cx"),
        ("a.b", "a.b", "axb"),
        ("a[!b]", "ac", "ab"),
        ("a[!b]c", "axc", "a/c"),
        ("a[.-9]c", "a.c", "a/c"),
        ("a[/_]c", "a/c", "a.c"),
        ("[!]a]x", "bx", "]x"),
        ("[!]a]x", "[x", "ax"),
        ("[]a]x", "]x", "[]x"),
        ("[!]x", "[!]x", "ax"),
        ("[]x", "[]x", "x"),
        ("[!]a]/[!]]/x", "b/c/x", "b/]/x"),
        ("[^a]x", "^x", "bx"),
    ],
)
def test_globs_match_within_path_components(glob: str, yes: str, no: str) -> None:
    assert compile_glob(glob).fullmatch(yes)
    assert not compile_glob(glob).fullmatch(no)


def test_a_split_without_matches_is_an_error_with_the_available_files() -> None:
    with raises(ConfigError, "splits.val", "train/a.jsonl.zst"):
        build_manifest(listed("train/a.jsonl.zst"), include=INCLUDE, splits=SPLITS)


@pytest.mark.parametrize("paths", [["train/a.jsonl.zst"], []])
def test_an_include_pattern_without_matches_is_reported_with_its_key(paths: list[str]) -> None:
    with raises(ConfigError, "include", "**/*.arrow") as raised:
        build_manifest(listed(*paths), include=["**/*.arrow"], splits=SPLITS)
    assert all(path in str(raised.value) for path in paths)


@pytest.mark.parametrize(
    ("glob", "values"),
    [
        ("train/b.jsonl", ("train/b.jsonl",)),
        ("train/é.jsonl", ("train/é.jsonl", "Unicode")),
        ("train/a[1].jsonl", ("train/a[[]1].jsonl",)),
    ],
)
@pytest.mark.parametrize("key", ["include", "splits.train"])
def test_a_named_file_that_is_not_used_is_an_error(key: str, glob: str, values: tuple[str, ...]) -> None:
    paths = ["train/a.jsonl", "train/e\u0301.jsonl", "train/a[1].jsonl", "train/a1.jsonl"]
    globs = {"include": ["train/*"], "splits.train": ["train/*"]}
    assert len(build_manifest(listed(*paths), include=globs["include"], splits={"train": globs["splits.train"]})) == 4
    globs[key] = ["train/a.jsonl", glob]
    with raises(ConfigError, key, *values):
        build_manifest(listed(*paths), include=globs["include"], splits={"train": globs["splits.train"]})


def test_a_file_in_two_splits_is_an_error() -> None:
    with raises(ConfigError, "train/a.jsonl.zst", "x", "y"):
        build_manifest(listed("train/a.jsonl.zst"), include=INCLUDE, splits={"x": ["train/**"], "y": ["**"]})


def test_a_file_listed_twice_is_an_error() -> None:
    with raises(SourceError, "train/a.jsonl.zst"):
        build_manifest(
            listed("train/a.jsonl.zst", "train/a.jsonl.zst"), include=INCLUDE, splits={"train": ["train/**"]}
        )


@pytest.mark.parametrize("name", ["a.xlsx", "a.zst", "a", "a.parquet.zst", "a.jsonl.lz4", "a.xz"])
def test_an_unknown_format_is_refused_by_name(name: str) -> None:
    with raises(SourceError, f"train/{name}"):
        file_format(f"train/{name}")


def test_a_damaged_manifest_names_the_line(tmp_path: Path) -> None:
    entries = build_manifest(
        listed("train/a.jsonl.zst", "train/b.jsonl.zst"), include=INCLUDE, splits={"train": ["**"]}
    )
    write_manifest(tmp_path, entries, {"train": 1})
    path = tmp_path / MANIFEST
    path.write_bytes(path.read_bytes()[:-20])
    with raises(FormatError, 2):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "sizing",
    [ShardSizing(), ShardSizing(count=1), ShardSizing(count=7), ShardSizing(count=99), ShardSizing(target_bytes=50)],
)
@pytest.mark.parametrize(
    "sizes", [[0], [0, 0, 0], [1], [5] * 20, [1000, 1, 1, 1], [1, 1, 1, 1000], list(range(30))], ids=str
)
def test_a_plan_has_every_file_once_in_order_and_no_empty_shard(sizing: ShardSizing, sizes: list[int]) -> None:
    files = [SourceFile(relpath=f"train/{i}.jsonl", size_bytes=size) for i, size in enumerate(sizes)]
    entries = build_manifest(files, include=["**"], splits={"train": ["**"]})
    _, plan = plan_shards(entries, sizing)
    assert [o for ordinals in plan.values() for o in ordinals] == list(range(len(sizes)))
    assert all(plan.values())
    assert len(plan) == (min(sizing.count, len(sizes)) if sizing.count else len(plan)) <= len(sizes)
    assert list(plan) == sorted(plan)
