"""No digest of a sensitive source appears in artifacts, in the instance's folder, in logs or in command output.

This holds for sensitive corpora, releases, blends and task folders, whether a command succeeds or fails.
"""

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.database_cells import read_cells
from dataprep_assets_tests.plain_digests import PlainDigests, contents_of
from dataprep_assets_tests.samples import SAMPLE
from dataprep_assets_tests.tools.drill.datasets import PIPELINES

pytestmark = pytest.mark.slow
SOURCES = ("source", "old", "original")
KEYS: Mapping[str, Any] = {
    "TokenizedCorpus": {"document": {"separator": "<|endoftext|>", "id_key": {"env": "SOME_KEY"}}},
    "ShardRelease": {"document": {"separator": "<|endoftext|>", "id_key": {"env": "SOME_KEY"}}},
    "TrainingBlend": {"source_key": {"env": "SOME_KEY"}},
    "TaskMigration": {"source_key": {"env": "SOME_KEY"}},
}


@dataclass(frozen=True)
class Hospital:
    """A project, the output of its commands, and the digests of all sources that it reads."""

    folder: Path
    said: Mapping[str, str]
    digests: PlainDigests

    def left(self) -> Iterator[Path]:
        """Return every file below artifacts, instance and home."""
        for name in ("artifacts", "home", "cache"):
            yield from (path for path in (self.folder / name).rglob("*") if path.is_file())


def declare(folder: Path, pipelines: tuple[str, ...]) -> list[str]:
    """Write the sources and declarations of the drill's datasets as sensitive ones, and return their names."""
    names = []
    for pipeline in pipelines:
        (place := folder / pipeline).mkdir()
        shutil.copytree(SAMPLE / "tokenizer", place / "tokenizer")
        for kind, attributes in PIPELINES[pipeline](place, ""):
            given = {**attributes, "sensitive": True, **KEYS[kind.__name__]}
            declared = folder / "project" / "project" / "defs" / given["dataset"]
            declared.mkdir(parents=True)
            text = yaml.safe_dump({"type": f"dataprep_assets.components.{kind.__name__}", "attributes": given})
            (declared / "defs.yaml").write_text(text)
            names.append(str(given["dataset"]))
    return names


def read_contents(folder: Path) -> Iterator[bytes]:
    """Return the contents of the source files."""
    return contents_of(p for name in SOURCES for p in folder.glob(f"*/{name}/**/*") if p.is_file())


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Hospital:
    """Return a project that was built, inspected, damaged, and rebuilt without success."""
    folder = tmp_path_factory.mktemp("hospital")
    root, said = folder / "project", dict[str, str]()

    def run(step: str, *arguments: str) -> int:
        variables = {"SOME_KEY": "k" * 32, "HOME": str(folder / "home"), "DATAPREP_CACHE": str(folder / "cache")}
        of_project = () if step == "init" else ("--project", str(root))
        done = dataprep(folder, *of_project, *arguments, **variables)
        said[step] = done.stdout + done.stderr
        return done.returncode

    assert run("init", "init", str(root)) == 0, said["init"]
    shutil.rmtree(root / "project" / "defs" / "sample_corpus")
    names = declare(folder, ("corpus", "release", "blend", "tasks"))
    assert run("check", "check") == 0, said["check"]
    assert run("run", "run", *names) == 0, said["run"][-3000:]
    assert run("status", "status", *names) == 0, said["status"]
    assert run("verify", "verify") == 0, said["verify"]
    assert run("lock", "lock", names[0]) == 0, said["lock"]
    digests = [*read_contents(folder)]
    sources = ("corpus/source/train/part-0*", "release/source/train/part-0*", "blend/source/first*")
    for pattern in (*sources, "tasks/new/**/*.jsonl"):
        path = next(p for p in sorted(folder.glob(pattern)) if p.is_file() and not p.is_symlink())
        path.write_bytes(path.read_bytes()[:-9])
        digests.append(path.read_bytes())
    assert run("run of damage", "run", *names) != 0
    assert run("status of damage", "status", *names) != 2
    return Hospital(folder, said, PlainDigests(digests))


def test_no_digest_is_in_command_output(hospital: Hospital) -> None:
    found = {step: hospital.digests.found(text.encode()) for step, text in hospital.said.items()}
    assert found == dict.fromkeys(hospital.said)


def test_no_digest_is_in_a_file_of_artifacts_instance_or_logs(hospital: Hospital) -> None:
    files = list(hospital.left())
    assert {"receipt.json", "files.jsonl", "dagster.yaml"} <= {path.name for path in files}
    assert {path.suffix for path in files} >= {".db", ".err"}
    assert [(str(p), found) for p in files if (found := hospital.digests.found(p.read_bytes()))] == []


def test_no_digest_is_in_a_cell_of_a_database(hospital: Hospital) -> None:
    seen = 0
    for database in (path for path in hospital.left() if path.read_bytes()[:15] == b"SQLite format 3"):
        with contextlib.suppress(sqlite3.OperationalError):
            values = [value for _, value in read_cells(database)]
            seen += len(values)
            assert hospital.digests.found(b"\n".join(values)) is None, database
    assert seen > 1000
