"""Manifest proofs: what the source lost, gained or changed is named, and so is a hole or an overlap of the plan."""

from pathlib import Path

from dataprep_assets.errors import SourceError
from dataprep_assets.pipelines.corpus.source.manifest import check_entries, check_listing, check_plan
from dataprep_assets.planning.manifest import ManifestEntry, SourceFile
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.sample_shards import INCLUDE, SPLITS, Sample
from dataprep_assets_tests.samples import SMALL

ONE = "train/chunk1/example_train_10.jsonl.zst"


def resolve(entry: ManifestEntry) -> Path:
    return SMALL / entry.relpath


def relisted(sample: Sample, **changes: object) -> list[SourceFile]:
    return [f._replace(**changes) if f.relpath == ONE else f for f in sample.listed]


def test_the_same_listing_in_another_order_matches(sample: Sample) -> None:
    found = check_listing(sample.entries, sample.listed[::-1], INCLUDE, SPLITS)
    assert found.passed
    assert found.facts["files"] == found.facts["files_in_source"] == len(sample.listed)


def test_a_lost_file_is_named(sample: Sample) -> None:
    found = check_listing(sample.entries, [f for f in sample.listed if f.relpath != ONE], INCLUDE, SPLITS)
    assert not found.passed
    assert_names(found.summary, "1 file", ONE)


def test_a_new_file_is_named_if_the_globs_want_it(sample: Sample) -> None:
    readme = SourceFile(relpath="README.md", size_bytes=1)
    assert check_listing(sample.entries, [*sample.listed, readme], INCLUDE, SPLITS).passed
    new = SourceFile(relpath="train/chunk3/new.jsonl.zst", size_bytes=1)
    found = check_listing(sample.entries, [*sample.listed, new], INCLUDE, SPLITS)
    assert not found.passed
    assert_names(found.summary, "1 file", "train/chunk3/new.jsonl.zst")


def test_a_changed_size_digest_or_etag_is_named(sample: Sample) -> None:
    for changes, said in (
        ({"size_bytes": 7}, "but the source has 7"),
        ({"sha256": "f" * 64}, "the source has " + "f" * 64),
    ):
        found = check_listing(sample.entries, relisted(sample, **changes), INCLUDE, SPLITS)
        assert not found.passed
        assert found.summary.startswith(f"{ONE}: the manifest lists")
        assert said in found.summary
    tagged = [e._replace(sha256=None, etag="old") for e in sample.entries]
    assert_names(
        check_listing(tagged, relisted(sample, sha256=None, etag="new"), INCLUDE, SPLITS).summary, "old", "new"
    )


def test_an_entry_listed_twice_or_in_another_split_is_named(sample: Sample) -> None:
    found = check_listing([*sample.entries, sample.entries[0]], sample.listed, INCLUDE, SPLITS)
    assert_names(found.summary, "1 file", sample.entries[0].relpath, "once")
    moved = [e._replace(split="val") if e.relpath == ONE else e for e in sample.entries]
    assert_names(check_listing(moved, sample.listed, INCLUDE, SPLITS).summary, "val", "train")


def test_entries_resolve_to_files_of_their_size(sample: Sample) -> None:
    found = check_entries(sample.entries, resolve, seed=1)
    assert found.passed
    assert found.facts["sampled"] == len(sample.entries)
    assert check_entries([], resolve, seed=1).passed


def test_an_entry_that_does_not_resolve_is_named(sample: Sample, tmp_path: Path) -> None:
    short = tmp_path / "short.zst"
    short.write_bytes(b"x")

    def unlucky(entry: ManifestEntry) -> Path:
        if entry.ordinal == 0:
            return tmp_path / "gone.zst"
        if entry.ordinal == 1:
            return short
        if entry.ordinal == 2:
            raise SourceError("the cache is gone")
        return resolve(entry)

    found = check_entries(sample.entries, unlucky, seed=1)
    assert not found.passed
    names = [e.relpath for e in sample.entries[:3]]
    said = [str(row["defect"]) for row in found.table]
    assert [s.split(":")[0] for s in said] == names
    assert "No such file" in said[0]
    assert "has 1 byte" in said[1]
    assert "the cache is gone" in said[2]


def test_the_frozen_plan_covers_the_manifest(sample: Sample) -> None:
    found = check_plan(sample.entries, sample.plan)
    assert found.passed
    assert found.facts["shards"] == len(sample.plan)


def test_a_hole_an_overlap_a_foreign_file_and_a_short_plan_are_named(sample: Sample) -> None:
    first, second = list(sample.plan)[:2]
    cut = sample.plan[second].start
    stop = sample.plan[second].stop
    for changes, said in (
        ({second: range(cut + 1, stop)}, f"{second}: ordinals {cut} to {cut} before this shard are in no shard"),
        ({second: range(cut - 1, stop)}, f"{second}: ordinals {cut - 1} to {cut - 1} are already in an earlier"),
        ({first: range(0)}, f"{first}: contains no files"),
        ({second: range(cut, stop + 1)}, f"{second}: 1 file belongs to a different split: validation/"),
    ):
        found = check_plan(sample.entries, sample.plan | changes)
        assert not found.passed
        assert said in found.summary
    last = list(sample.plan)[-1]
    found = check_plan(sample.entries, {k: r for k, r in sample.plan.items() if k != last})
    assert_names(found.summary, len(sample.entries))
    swapped = [sample.entries[1], sample.entries[0], *sample.entries[2:]]
    assert_names(check_plan(swapped, sample.plan).summary, "line 1", "ordinal 1")
