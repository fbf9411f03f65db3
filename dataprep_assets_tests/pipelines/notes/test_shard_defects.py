"""Every defect of a directory's shards in `test_tfds` is found, even if the receipt was written for the defective
files.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.checks.verdicts import find_all
from dataprep_assets.formats.tensorflow import example, tfds, tfrecord
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.cohorts.cohort_shards import SHARD_CHECKS, open_shards, plan_sharded_cohorts
from dataprep_assets_tests.pipelines.notes.directories import failed, leave_tfds_out, prove, sealed
from dataprep_assets_tests.pipelines.notes.pipeline import declaration, run_notes

NOTES = declaration()


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
    return [where / name for name in tfds.read_metadata(where).list_shard_names(train)]


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
    """Truncate a shard exactly between two records; each payload has 16 bytes of framing."""
    starts = [0]
    while starts[-1] < len(raw):
        starts.append(starts[-1] + 16 + int.from_bytes(raw[starts[-1] : starts[-1] + 8], "little"))
    return raw[: starts[-2]]


def _exchange(where: Path) -> None:
    """Exchange two shards; the last shard is shorter than the others."""
    first, last = shards(where)[0], shards(where)[-1]
    first.rename(where / "aside")
    last.rename(first)
    (where / "aside").rename(last)


def _folder_for_a_shard(where: Path) -> None:
    shard = shards(where)[1]
    shard.unlink()
    shard.mkdir()


DEFECTS: dict[str, Callable[[Path], object]] = {
    "wrong lengths, right sum": _lengths(_shift),
    "wrong sum": _lengths(_grow),
    "a length less": _lengths(_less),
    "a length more": _lengths(_more),
    "wrong numBytes": _split(lambda split: split.update(numBytes="7")),
    "no numBytes": _split(lambda split: split.pop("numBytes")),
    "another name inside": _metadata(tfds.DATASET_INFO, lambda info: info.update(name="replay")),
    "a shard missing": lambda where: shards(where)[1].unlink(),
    "names from 1": _rename("sample_notes-train.tfrecord-00099-of-00099"),
    "three digits": _rename("sample_notes-train.tfrecord-000-of-003"),
    "shards of two totals": _copy("sample_notes-train.tfrecord-00000-of-00002"),
    "a shard of another split": _copy("sample_notes-test.tfrecord-00000-of-00001"),
    "a leftover": _copy("notes.tmp"),
    "a folder for a shard": _folder_for_a_shard,
    "cut between records": _last(_without_last_record),
    "cut within a record": _last(lambda raw: raw[:-1]),
    "cut within a header": _last(lambda raw: _without_last_record(raw) + b"\0" * 11),
    "an empty shard": _last(lambda raw: b""),
    "two shards exchanged": _exchange,
    "a flipped bit": _last(lambda raw: raw[:-40] + bytes([raw[-40] ^ 4]) + raw[-39:]),
    "a column not declared": _features(lambda f: f.pop("inputs")),
    "a column too many": _features(lambda f: f.update(more=f["inputs"])),
    "another row length": _features(lambda f: f["inputs"]["tensor"]["shape"].update(dimensions=["41"])),
}


def test_nothing_fails_without_damage(root: Path) -> None:
    assert failed(prove(root, NOTES)) == set()


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found_with_its_old_receipt_and_with_a_matching_one(root: Path, defect: str) -> None:
    where = directory(root)
    DEFECTS[defect](where)
    assert "files_intact" in failed(prove(root, NOTES))
    sealed(where.parents[1])
    assert "matches_cohort_shards" in failed(prove(root, NOTES))


def test_all_shards_of_a_cohort_except_the_last_are_full(root: Path) -> None:
    for month in NOTES.months.expected_keys:
        folder = root / NOTES.dataset / "tfrecord_shards" / month
        counts = [tfrecord.count(path).records for path in sorted(folder.rglob("*.tfrecords"))]
        assert counts[:-1] == [NOTES.rows_per_shard] * (len(counts) - 1)
        assert 1 <= counts[-1] <= NOTES.rows_per_shard
        rows = json.loads((folder / "receipt.json").read_bytes())["facts"]["splits"]["train"]["shard_lengths"]
        assert counts == rows


def test_an_invalid_row_after_the_first_is_reported_by_the_cohorts_check(root: Path) -> None:
    month = NOTES.months.expected_keys[0]
    (cohort,) = plan_sharded_cohorts(NOTES, LocalArtifacts(root), [month], "tfrecord")
    path = min((root / NOTES.dataset / "tfrecord_shards" / month).rglob("*.tfrecords"))
    payloads = [record.payload for record in tfrecord.read_records(path)]
    info = tfds.read_metadata(directory(root))
    columns = example.decode_rows(payloads, info.columns)
    payloads[1] = next(example.encode_rows({name: values[1:2, :-1] for name, values in columns.items()}))
    path.unlink()
    tfrecord.write(path, payloads)
    wrong = {
        name: finding
        for name, finding in find_all(SHARD_CHECKS, open_shards, None, cohort).items()
        if not finding.passed
    }
    assert any("has 255 values, expected 256" in f"{f.summary} {f.table}" for f in wrong.values())
