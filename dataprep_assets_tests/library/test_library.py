"""The public library of `import dataprep_assets`, in a project under another name with broken neighbors."""

import ast
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dataprep_assets
from dataprep_assets import ConfigError, OpenDataset, OpenProject, RunFailedError, open_project
from dataprep_assets.engine.staleness.step_times import RUN
from dataprep_assets.library.part import PartitionSelection
from dataprep_assets_tests.cli.nested_project import nested_project, write_corpus
from dataprep_assets_tests.messages import raises

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenProject]:
    """Return the project, without environment variables."""
    root = nested_project(tmp_path_factory.mktemp("library"))
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("DATAPREP_")]:
            patch.delenv(name)
        patch.delenv("DAGSTER_HOME", raising=False)
        yield open_project(root)


@pytest.fixture(scope="module")
def corpus(project: OpenProject) -> OpenDataset:
    """Return the project's built dataset d00."""
    dataset = project.dataset("d00")
    assert not dataset.run().ended
    return dataset


def test_importing_the_library_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import dataprep_assets; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    roots = {name.partition(".")[0] for name in done.stdout.split()}
    assert roots & {"dagster", "numpy", "pyarrow", "pydantic", "typer", "yaml"} == set()
    assert [name for name in done.stdout.split() if name.startswith("dataprep_assets.")] == []


def test_every_public_name_exists_and_is_documented_and_typed() -> None:
    source = ast.parse(Path(dataprep_assets.__file__).read_text())
    typed = {alias.asname for node in ast.walk(source) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(dataprep_assets.__all__) <= typed
    page = PAGE.read_text()
    for name in dataprep_assets.__all__:
        found = getattr(dataprep_assets, name)
        assert found.__doc__, name
        assert f"`{name}" in page, name
    with raises(AttributeError, "'open_projekt'"):
        dataprep_assets.open_projekt  # noqa: B018


@pytest.mark.parametrize("cls", [OpenProject, OpenDataset], ids=lambda cls: cls.__name__)
def test_every_public_method_is_documented_and_typed(cls: type) -> None:
    for name, found in vars(cls).items():
        if not name.startswith("_"):
            function = getattr(found, "fget", None) or getattr(found, "func", None) or found
            assert inspect.getdoc(function), name
            assert "return" in inspect.unwrap(function).__annotations__, name


def test_a_project_lists_its_datasets_and_broken_ones_do_not_affect_others(project: OpenProject) -> None:
    assert {"d00", "d01", "d02", "d03"} <= set(project.names)
    assert project.dataset("d01").name == "d01"
    with raises(ConfigError, "third/defs.yaml", "spilts", "`splits`"):
        project.dataset("d02")
    with raises(ConfigError, "'d0'", "mean"):
        project.dataset("d0")
    wrong = list(project.check())
    assert {mistake.file.parent.name for mistake in wrong} == {"third"}
    assert any(mistake.sentence.startswith("spilts: unknown key") and mistake.line == 6 for mistake in wrong)


def test_a_dataset_is_built_and_opened(project: OpenProject, corpus: OpenDataset) -> None:
    assert corpus.status().works == ()
    tokens = corpus.artifact().tokens("train.bin")
    assert tokens.dtype == np.uint16
    assert len(tokens) * 2 == corpus.artifact("combined_bins", "train").path("train.bin").stat().st_size
    assert {artifact.name for artifact in corpus.artifacts} >= {"manifest", "token_bins", "nanogpt_bins"}
    (found,) = corpus.trace(token=0, split="train")
    assert (found.source, found.text) == ("train.jsonl:1", "train 0: a document of d00")
    assert [verdict.defects for verdict in corpus.verify()] == [()] * len(corpus.artifacts)
    assert "DAGSTER_HOME" not in os.environ
    with project.instance() as instance:
        assert [run.tags["dataprep/dataset"] for run in instance.get_runs()] == ["d00"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("nanogpt_bin",), "unknown artifact 'nanogpt_bin'. Did you mean 'nanogpt_bins'?"),
        (("combined_bins",), "d00/combined_bins: partition is missing. Available: train"),
        (("token_bins", "train-9"), "unknown partition 'train-9'. Did you mean 'train-0000"),
    ],
)
def test_an_unknown_artifact_is_reported_with_the_available_ones(
    corpus: OpenDataset, asked: tuple[str, ...], told: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        corpus.artifact(*asked)
    assert told in str(refused.value)


def test_damage_is_named_reported_by_status_and_repaired(corpus: OpenDataset) -> None:
    path = corpus.artifact("nanogpt_bins").path("meta.json")
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    (bad,) = [verdict for verdict in corpus.verify() if verdict.defects]
    assert bad.name == "d00/nanogpt_bins"
    rebuild = corpus.status()
    assert rebuild.works[0].stale.kind == "damaged"
    # The estimate is one number and not a range, because the build recorded the time of each step and the overhead of
    # the run.
    assert (rebuild.untimed, rebuild.seconds[0]) == ([], rebuild.seconds[1])
    assert not corpus.run().ended
    assert corpus.status().works == ()


def test_a_command_is_timed_from_its_start_and_a_partial_run_without_overhead(project: OpenProject) -> None:
    write_corpus(project.project.defs / "team" / "timed", "timed")
    project._forget()
    dataset, part = project.dataset("timed"), PartitionSelection(splits=("train",), option="--split")
    declaration = dataset.component.declaration
    assert not dataset.build_part(part).ended
    kept = json.loads((project.home / "step_times.json").read_bytes())
    assert "CorpusDeclaration/timed/token_bins" in kept
    assert "CorpusDeclaration/timed/run" not in kept
    assert not dataset.build(start_time=time.monotonic() - 1000).ended
    assert (project.step_times().estimate_duration(declaration, RUN, 1.0) or (0.0, 0.0))[0] >= 1000


def test_a_failed_run_raises_an_error_with_the_failed_artifact(project: OpenProject) -> None:
    folder = project.project.defs / "team" / "cut"
    write_corpus(folder, "cut")
    project._forget()
    train = folder / "texts" / "train.jsonl"
    whole = train.read_text()
    train.write_text('{"text": "a whole line"}\n{"text": "cut of')
    with raises(ConfigError, "defs.yaml:4", "source", "train.jsonl", 2):
        project.dataset("cut").run()
    assert not project.dataset("cut").artifacts, "a first run begins with what `check` finds"
    train.write_text(whole)
    project.dataset("cut").run(split="val")
    train.write_text('{"text": "a whole line"}\n{"text": "cut of')
    with raises(RunFailedError, "cut/token_bins_train", "train.jsonl", 2):
        project.dataset("cut").run()


def test_a_part_is_built_and_an_invalid_one_is_refused(project: OpenProject) -> None:
    dataset = project.dataset("d01")
    assert not dataset.run(split="val").ended
    assert {artifact.partition for artifact in dataset.artifacts if artifact.name == "token_bins"} == {"val-00000"}
    with raises(ConfigError, "train-00009", "FIRST...LAST", "train-00000"):
        dataset.run(partitions="train-00009")


def test_a_declaration_is_written_completely_or_not_at_all(project: OpenProject) -> None:
    attributes = {
        "source": {"kind": "local", "path": "../team/first/texts"},
        "include": ["*.jsonl"],
        "splits": {"train": ["train*"]},
        "tokenizer": {"path": str(project.dataset("d00").component.declaration.tokenizer.path)},
        "document": {"separator": "<|endoftext|>"},
        "views": ["nanogpt"],
    }
    with raises(ConfigError, "viws", "`views`"):
        project.declare("written", "TokenizedCorpus", **attributes, viws=["nanogpt"])
    assert not (project.project.defs / "written").exists()
    assert "written" not in project.names
    dataset = project.declare("written", "TokenizedCorpus", **attributes)
    assert "written" in project.names
    assert not dataset.run().ended
    for taken in ("written", "d00"):
        with raises(ConfigError, taken):
            project.declare(taken, "TokenizedCorpus", **attributes)
    with raises(ConfigError, "'../d'"):
        project.declare("../d", "TokenizedCorpus", **attributes)
