"""Every defect of a directory's shards that `test_tfds` lists fails the proof that is there for it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.formats import example, tfds, tfrecord
from dataprep_assets.graph.finding import Finding
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.cohort_shards import prove_cohort_shards, sharded_cohorts
from dataprep_assets.pipelines.notes.tfds_directory import prove_directory
from dataprep_assets_tests.pipelines.notes.directories import leave_tfds_out
from dataprep_assets_tests.pipelines.notes.pipeline import declaration, run_notes

NOTES = declaration()
READER = "tfds_reads"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("built")
    assert not run_notes(NOTES, root).failed
    return root


@pytest.fixture
def root(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    leave_tfds_out(monkeypatch)
    return Path(shutil.copytree(built, tmp_path / "root"))


def directory(root: Path) -> Path:
    return LocalArtifacts(root).directory(NOTES.artifact("tfds_directory")) / NOTES.dataset / "1.0.0"


def shards(where: Path) -> list[Path]:
    (train,) = tfds.read_metadata(where).splits
    return [where / name for name in tfds.read_metadata(where).shard_names(train)]


def prove(root: Path) -> dict[str, Finding]:
    found = dict(prove_directory(NOTES, LocalArtifacts(root), "tfrecord"))
    return {name: finding for name, finding in found.items() if name != READER and not finding.passed}


def _metadata(name: str, change: Callable[[Any], object]) -> Callable[[Path], object]:
    def damage(where: Path) -> None:
        value = json.loads((where / name).read_bytes())
        change(value)
        _put(where / name, json.dumps(value).encode())

    return damage


def _split(change: Callable[[Any], object]) -> Callable[[Path], object]:
    return _metadata(tfds.DATASET_INFO, lambda info: change(info["splits"][0]))


def _lengths(change: Callable[[list[int]], object]) -> Callable[[Path], object]:
    def edit(split: Any) -> None:
        lengths = [int(length) for length in split["shardLengths"]]
        change(lengths)
        split["shardLengths"] = [str(length) for length in lengths]

    return _split(edit)


def _features(change: Callable[[Any], object]) -> Callable[[Path], object]:
    return _metadata(tfds.FEATURES, lambda value: change(value["featuresDict"]["features"]))


def _put(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def _shift(lengths: list[int]) -> None:
    lengths[0], lengths[-1] = lengths[0] - 1, lengths[-1] + 1


def _grow(lengths: list[int]) -> None:
    lengths[-1] += 1


def _less(lengths: list[int]) -> None:
    lengths[-2:] = [sum(lengths[-2:])]


def _more(lengths: list[int]) -> None:
    lengths.append(1)


def _rename(to: str) -> Callable[[Path], object]:
    return lambda where: shards(where)[0].rename(where / to)


def _copy(to: str) -> Callable[[Path], object]:
    return lambda where: shutil.copy(shards(where)[0], where / to)


def _last(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda where: _put(shards(where)[-1], change(shards(where)[-1].read_bytes()))


def _without_last_record(raw: bytes) -> bytes:
    """Cut a shard exactly between two records: 16 bytes of frame around each payload."""
    starts = [0]
    while starts[-1] < len(raw):
        starts.append(starts[-1] + 16 + int.from_bytes(raw[starts[-1] : starts[-1] + 8], "little"))
    return raw[: starts[-2]]


def _exchange(where: Path) -> None:
    """The last shard is shorter than the others."""
    first, last = shards(where)[0], shards(where)[-1]
    first.rename(where / "aside")
    last.rename(first)
    (where / "aside").rename(last)


def _folder_for_a_shard(where: Path) -> None:
    shard = shards(where)[1]
    shard.unlink()
    shard.mkdir()


DEFECTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "wrong lengths, right sum": (_lengths(_shift), "shard_lengths_counted", "records, dataset_info.json says"),
    "wrong sum": (
        _lengths(_grow),
        "shard_lengths_counted",
        "records, dataset_info.json says",
    ),
    "a length less": (_lengths(_less), "names_complete", "shards are not there"),
    "a length more": (_lengths(_more), "names_complete", "shards are not there"),
    "wrong numBytes": (_split(lambda split: split.update(numBytes="7")), "num_bytes_counted", "numBytes 7, counted"),
    "no numBytes": (_split(lambda split: split.pop("numBytes")), "num_bytes_counted", "numBytes 0, counted"),
    "another name inside": (
        _metadata(tfds.DATASET_INFO, lambda info: info.update(name="replay")),
        "names_complete",
        "says name replay",
    ),
    "a shard missing": (lambda where: shards(where)[1].unlink(), "names_complete", "1 of "),
    "names from 1": (_rename("sample_notes-train.tfrecord-00099-of-00099"), "names_complete", "1 of "),
    "three digits": (_rename("sample_notes-train.tfrecord-000-of-003"), "names_complete", "-000-of-003"),
    "shards of two totals": (_copy("sample_notes-train.tfrecord-00000-of-00002"), "names_complete", "-of-00002"),
    "a shard of another split": (_copy("sample_notes-test.tfrecord-00000-of-00001"), "names_complete", "notes-test"),
    "a leftover": (_copy("notes.tmp"), "names_complete", "notes.tmp"),
    "a folder": (lambda where: (where / "1.0.0").mkdir(), "names_complete", "1.0.0"),
    "a folder for a shard": (_folder_for_a_shard, "shard_lengths_counted", "cannot be counted"),
    "cut between records": (_last(_without_last_record), "shard_lengths_counted", "records, dataset_info.json says"),
    "cut within a record": (_last(lambda raw: raw[:-1]), "shard_lengths_counted", "cannot be counted"),
    "cut within a header": (
        _last(lambda raw: _without_last_record(raw) + b"\0" * 11),
        "shard_lengths_counted",
        "within the header of record",
    ),
    "an empty shard": (_last(lambda raw: b""), "shard_lengths_counted", "0 records, dataset_info.json says"),
    "two shards exchanged": (_exchange, "shard_lengths_counted", "records, dataset_info.json says"),
    "a flipped bit": (_last(lambda raw: raw[:-40] + bytes([raw[-40] ^ 4]) + raw[-39:]), "files_intact", "sha256"),
    "a column not declared": (_features(lambda f: f.pop("inputs")), "features_match", "inputs is not in"),
    "a column too many": (_features(lambda f: f.update(more=f["inputs"])), "features_match", "more is not stored"),
    "another row length": (
        _features(lambda f: f["inputs"]["tensor"]["shape"].update(dimensions=["41"])),
        "features_match",
        "inputs is int32 of 41",
    ),
}


def test_nothing_fails_before_it_is_damaged(root: Path) -> None:
    assert prove(root) == {}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_fails_its_proof(root: Path, defect: str) -> None:
    damage, proof, said = DEFECTS[defect]
    damage(directory(root))
    finding = prove(root)[proof]
    assert said in f"{finding.summary} {finding.table}"


def test_a_cohorts_shards_are_full_but_for_the_last(root: Path) -> None:
    for month in NOTES.months.expected:
        folder = root / NOTES.dataset / "tfrecord_shards" / month
        counts = [tfrecord.count(path).records for path in sorted(folder.rglob("*.tfrecords"))]
        assert counts[:-1] == [NOTES.rows_per_shard] * (len(counts) - 1)
        assert 1 <= counts[-1] <= NOTES.rows_per_shard
        rows = json.loads((folder / "receipt.json").read_bytes())["facts"]["splits"]["train"]["shard_lengths"]
        assert counts == rows


def test_a_row_behind_the_first_that_is_no_such_row_is_told_by_the_cohorts_proof(root: Path) -> None:
    month = NOTES.months.expected[0]
    (cohort,) = sharded_cohorts(NOTES, LocalArtifacts(root), [month], "tfrecord")
    path = min((root / NOTES.dataset / "tfrecord_shards" / month).rglob("*.tfrecords"))
    payloads = [record.payload for record in tfrecord.records(path)]
    info = tfds.read_metadata(directory(root))
    columns = example.decode_rows(payloads, info.columns)
    payloads[1] = next(example.encode_rows({name: values[1:2, :-1] for name, values in columns.items()}))
    path.unlink()
    tfrecord.write(path, payloads)
    failed = {name: finding for name, finding in prove_cohort_shards(cohort).items() if not finding.passed}
    assert any("has 255 values, expected 256" in f"{f.summary} {f.table}" for f in failed.values())
