"""Notes read from and written to a bucket equal those of a folder, and memory does not depend on the size of a
cohort.
"""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest

from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.errors import SourceError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.pipelines.notes.dataset import notes_engine, notes_specs
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.stores.local import LocalStore
from dataprep_assets.stream.engine_certificate import ensure_certificate
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files, receipts
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, written
from dataprep_assets_tests.pipelines.notes.pipeline import SAMPLE, SAMPLES, declaration, run_notes

CEILING = 1000 << 20
"""The maximum peak memory of a cohort's build, in bytes."""


def test_artifacts_in_a_bucket_equal_those_of_a_folder(tmp_path: Path) -> None:
    notes = declaration(splits={"train": 0.7, "val": 0.3})
    run_notes(notes, tmp_path / "folder")
    bucket = tmp_path / "bucket"
    store = BucketArtifacts(tmp_path / "cache", partial(LocalStore, bucket), "s3://bucket", 1 << 30)
    outcome = run_notes(notes, tmp_path, workers=1, kept=store)
    assert not outcome.failed
    kept = {name: data for name, data in data_files(bucket).items() if not name.startswith(".")}
    assert kept == {name: data for name, data in data_files(tmp_path / "folder").items() if ".staging/" not in name}
    assert receipts(bucket) == receipts(tmp_path / "folder")
    assert list(find_stale(notes_specs(notes), store)) == []


def test_cohorts_of_a_bucket_are_downloaded_and_packed(
    moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    run_notes(declaration(), tmp_path / "folder")
    client = boto3.client("s3", endpoint_url=moto, region_name="us-east-1")
    client.create_bucket(Bucket="clinic")
    for path in SAMPLE.iterdir():
        client.put_object(Bucket="clinic", Key=f"cohorts/{path.name}", Body=path.read_bytes())
    source = {"kind": "object_store", "url": "s3://clinic/cohorts", "cache_dir": tmp_path / "mirror"}
    notes = declaration().model_dump() | {"source": source | {"endpoint_url": moto, "region": "us-east-1"}}
    run_notes(type(declaration()).model_validate(notes), tmp_path / "fetched")
    broken: dict[str, Any] = source | {"endpoint_url": moto, "cache_dir": tmp_path / "other", "url": "s3://CANARY"}
    with raises(SourceError, "withheld") as raised:
        run_notes(type(declaration()).model_validate(notes | {"source": broken}), tmp_path / "broken")
    assert "CANARY" not in str(raised.value)
    assert data_files(tmp_path / "fetched") == data_files(tmp_path / "folder")


_PACK = r"""
import re, sys
from pathlib import Path
from dataprep_assets_tests.pipelines.notes.pipeline import run_notes
from dataprep_assets_tests.pipelines.notes.test_stores import large
outcome = run_notes(large(Path(sys.argv[1])), Path(sys.argv[2]))
assert not outcome.failed, outcome.failed
print(int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024)
"""


def large(source: Path) -> NotesDeclaration:
    """Return a declaration with rows of the usual length, encoded by the fast engine."""
    tokenizer = {"path": SAMPLES / "sample_corpus" / "tokenizer", "engine": "fastokens"}
    return plain(source, row_length=8192, rows_per_shard=256, tokenizer=tokenizer, sample_rate=0.0005)


@pytest.mark.slow
def test_peak_memory_does_not_depend_on_the_size_of_a_cohort(tmp_path: Path) -> None:
    text = "The same sentence of ordinary words, again and again. " * 40
    peaks = []
    for patients in (3_000, 12_000):  # 33 and 130 MB: both sizes give many blocks of text and several blocks of rows
        people = [patient(f"p{i}", *(note(f"{i} {text}") for _ in range(5))) for i in range(patients)]
        source = written(tmp_path / f"in{patients}", {"2010-01": people})
        # Start the reference engine first, because its threads take memory that does not belong to the cohort.
        ensure_certificate(notes_engine(large(source)), LocalArtifacts(tmp_path / f"out{patients}"))
        done = subprocess.run(
            [sys.executable, "-c", _PACK, source, tmp_path / f"out{patients}"],
            stdout=subprocess.PIPE,
            check=True,
            timeout=240,
            text=True,
            env={"FASTOKENS_BPE_THREADS": "1", "RAYON_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])},
        )
        peaks.append(int(done.stdout))
    assert max(peaks) < CEILING
    assert peaks[1] - peaks[0] < 80 << 20
