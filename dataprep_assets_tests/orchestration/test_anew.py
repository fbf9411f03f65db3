"""A failure caused by the source is repaired by re-executing it, although the records of the source were up to date."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dataprep_assets.engine.artifact.spec import BuildRequest
from dataprep_assets.errors import SourceError
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.orchestration.runs.step_build import build_partitions
from dataprep_assets_tests.engine.notices import make_notices_specs, write_notices
from dataprep_assets_tests.project import Project, failure_of, project, sample_attributes
from dataprep_assets_tests.samples import SAMPLE


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Project]:
    """Return three files in three shards, with built manifest and certificate."""
    source = Path(shutil.copytree(SAMPLE / "data" / "train" / "chunk1", tmp_path / "source" / "train"))
    attributes = sample_attributes(
        source={"kind": "local", "path": str(source.parent)}, splits={"train": ["train/**"]}, views=[]
    )
    with project(attributes, tmp_path / "project") as found:
        assert found.run([found.key("manifest"), found.key("engine_certificate")]).success
        yield found


def find_source_file(made: Project, shard: int) -> Path:
    """Return the file of a shard."""
    return sorted(Path(made.corpus.source.path).rglob("*.zst"))[shard]  # type: ignore[union-attr]


def select_bins(made: Project) -> bool:
    """Return the step that "Re-execute from failure" runs: token bins, without the up-to-date snapshot."""
    shards = made.shards("train")
    outcome = made.run([made.key("token_bins", "train")], (shards[0], shards[-1]))
    if not outcome.success:
        print(failure_of(outcome))
    return bool(outcome.success)


def test_a_file_repaired_after_its_snapshot_is_read_again(made: Project, capsys: pytest.CaptureFixture[str]) -> None:
    path = find_source_file(made, 1)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + bytes(40) + content[len(content) // 2 + 40 :])
    assert not made.tokenize("train").success
    damaged = (made.directory("snapshot", "train-00001") / "files.jsonl").read_text()
    assert not select_bins(made)
    assert "zstd data is damaged" in capsys.readouterr().out
    path.write_bytes(content)
    assert select_bins(made)
    assert (made.directory("snapshot", "train-00001") / "files.jsonl").read_text() != damaged
    shown = made.instance.get_latest_materialization_event(made.key("snapshot", "train"))
    assert shown is not None
    assert shown.asset_materialization is not None
    assert shown.asset_materialization.partition == "train-00001", "Dagster is told of what was made anew"


def test_a_file_truncated_while_it_was_listed_is_listed_again(made: Project) -> None:
    path = find_source_file(made, 2)
    content = path.read_bytes()
    path.write_bytes(content[:-200])
    assert made.run([made.key("manifest")]).success
    assert not made.tokenize("train").success
    path.write_bytes(content)
    assert select_bins(made)


def test_for_sensitive_data_a_repeated_failure_is_logged_only_by_its_class(tmp_path: Path) -> None:
    def refused(_: BuildRequest) -> Iterator[Outcome]:
        yield Outcome(partition="n-0", error=SourceError("cohort: 3 patients are not there"))

    declaration = write_notices(tmp_path).model_copy(update={"sensitive": True})
    notices = make_notices_specs(declaration)[0]
    record = replace(notices, name="snapshot", records_source=True, build=refused)
    logged: list[str] = []
    run = SimpleNamespace(asset_selection=[], step_keys_to_execute=None)
    context: Any = SimpleNamespace(run=run, log=SimpleNamespace(warning=logged.append))
    request = BuildRequest(store=LocalArtifacts(tmp_path), partitions=["n-0"])
    assert list(build_partitions(context, replace(notices, inputs=(record,), build=refused), request, lambda *_: None))
    assert logged == ["notices/snapshot: n-0: SourceError. Run `dataprep show --private notices`"]
