"""A test runs every Python block of a page; this file runs those that need no dataset.

Every public entry point is in a block.
"""

import ast
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import dataprep_assets
from dataprep_assets import components, resources, serving
from dataprep_assets.serving.sampler import maxtext
from dataprep_assets.serving.window import templar
from dataprep_assets.serving.window.release import ReleaseLocation
from dataprep_assets.sources.readers.input_format import InputFile
from dataprep_assets.stores.local import LocalStore
from dataprep_assets_tests.docs.run_blocks import find_blocks, read_block
from dataprep_assets_tests.readers.pytorch import block_of_loader, block_of_manager
from dataprep_assets_tests.serving.releases import make_release, publish

DOCS = Path(__file__).resolve().parents[2] / "docs"
HERE = "dataprep_assets_tests/docs/test_python_blocks.py"
INSTALLED = "dataprep_assets_tests/cli/test_installed.py"
CONSUMERS = "dataprep_assets_tests/pipelines/notes/test_notes_consumers.py"
RUN_BY = {
    "quickstart.md": [INSTALLED],
    "train.md": [INSTALLED] * 4,
    "installation.md": [INSTALLED],
    "inputs.md": [HERE],
    "formats/preference-pairs.md": ["dataprep_assets_tests/pipelines/blend/pairs/test_pairs_in_trl.py"],
    "pipelines/notes.md": [HERE, CONSUMERS],
    "pipelines/release.md": [HERE] * 3,
    "pipelines/schedule.md": ["dataprep_assets_tests/pipelines/schedule/test_training_run.py"] * 2,
}
"""Page → the test of each of its Python blocks, in order."""


def test_every_python_block_is_run_by_a_test() -> None:
    pages = {
        page.relative_to(DOCS).as_posix(): len(re.findall(r"^ *```py", page.read_text(encoding="utf-8"), re.MULTILINE))
        for page in DOCS.rglob("*.md")
        if page.parent.name != "how-to"  # excluded, because test_how_to.py runs every block of a guide
    }
    assert {page: count for page, count in pages.items() if count} == {page: len(by) for page, by in RUN_BY.items()}


def test_maxtext_starts_with_the_loader_as_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """MaxText is not installed here: modules with its names contain the functions that the loader replaces."""
    pytest.importorskip("absl")
    replaced = ("make_grain_train_iterator", "make_grain_eval_iterator")
    interface = types.SimpleNamespace(**dict.fromkeys(replaced))
    pipeline = types.SimpleNamespace(make_tfds_train_iterator=None, make_tfds_eval_iterator=None)
    started: list[list[str]] = []
    train = types.ModuleType("maxtext.trainers.pre_train.train")
    train.main = started.append  # type: ignore[attr-defined]
    for name in ("maxtext", "maxtext.trainers", "maxtext.input_pipeline"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    trainer = types.ModuleType("maxtext.trainers.pre_train")
    trainer.train = train  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, trainer.__name__, trainer)
    monkeypatch.setitem(sys.modules, "maxtext.input_pipeline.input_pipeline_interface", interface)
    monkeypatch.setitem(sys.modules, "maxtext.input_pipeline.tfds_data_processing", pipeline)
    monkeypatch.setattr(sys, "argv", ["train.py", "base.yml", "packing=True"])
    with pytest.raises(SystemExit):
        exec(compile(find_blocks(DOCS / "pipelines" / "notes.md")[0], "notes.md", "exec"), {"__name__": "block"})
    assert started == [["train", "base.yml", "packing=True"]]
    assert all(callable(getattr(interface, name)) for name in replaced)
    assert callable(pipeline.make_tfds_train_iterator)
    assert callable(pipeline.make_tfds_eval_iterator)


def test_a_custom_format_is_read_as_on_its_page(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "my_package.poems"}
    exec(compile(read_block(DOCS / "inputs.md"), "inputs.md", "exec"), names)
    (tmp_path / "my.poem").write_bytes(b"Roses\nred\n*\nViolets\n*\n\xff")
    (found,) = names["FORMAT"].rows(InputFile(path=tmp_path / "my.poem", label="my.poem", format="poem"))
    assert [row["text"] for row in found.rows] == ["Roses\nred", "Violets"]
    assert [(bad.row, bad.byte, bad.reason) for bad in found.bad] == [(3, 22, "invalid_utf8")]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project in which a release of five shards was published at the page's location."""
    folder = tmp_path_factory.mktemp("project")
    release = make_release(folder / "built", (8,) * 5, length=64)
    publish(release, folder / "built", ReleaseLocation(LocalStore(folder / ".dataprep" / "sample_release_published")))
    return folder


def test_a_release_is_read_as_on_its_page(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    names: dict[str, object] = {"__name__": "block"}
    exec(compile(find_blocks(DOCS / "pipelines" / "release.md")[0], "release.md", "exec"), names)
    assert names["steps"] == 455
    assert getattr(names["tokens"], "shape", None) is not None
    assert isinstance(names["name"], int)
    assert names["ready"]
    assert names["step"] == 455 * 5 - 91 + 1
    assert capsys.readouterr().out


def test_pytorch_reads_a_shard_as_on_its_page(project: Path) -> None:
    left = block_of_loader(find_blocks(DOCS / "pipelines" / "release.md")[1], project)
    assert left == {"samples": 8, "inputs": ((4, 63), "torch.int64"), "labels_follow": True}


def test_templars_trainer_reads_a_release_as_on_its_page(project: Path) -> None:
    said = block_of_manager(find_blocks(DOCS / "pipelines" / "release.md")[2], project)
    assert re.fullmatch(r"sample \d+ came first; now shard 1 of 5\n", said)


GIVEN = {
    "Release": "`window.release`",
    "Schedule": "`window.schedule`",
    "Shard": "`window.swap` gives one",
    "WindowEvent": "`on_event` gets them",
    "WindowPlan": "`plan_window` gives one",
    "WindowStatus": "`window.status` gives one",
    "ArtifactIOManager": "`build_resources` gives one",
    "StorageResource": "`build_resources` gives one",
    "create_resources": "`build_resources` calls it",
}
"""Objects that an example's functions return or receive, so that users need not call or construct them."""


@pytest.mark.parametrize("module", [serving, maxtext, templar, resources], ids=lambda module: module.__name__)
def test_every_public_entry_point_is_in_a_block_that_runs(module: types.ModuleType) -> None:
    used = {
        node.id if isinstance(node, ast.Name) else node.attr
        for page in [*(DOCS / name for name in RUN_BY), *(DOCS / "how-to").glob("*.md")]
        for text in find_blocks(page)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name | ast.Attribute)
    }
    assert set(module.__all__) - used - set(GIVEN) == set()


def test_every_component_is_in_a_declaration_that_a_test_reads() -> None:
    """docs/test_pages.py reads the whole declarations of the pages; the declarations of the samples are run."""
    samples = Path(dataprep_assets.__file__).parent / "defs" / "samples"
    pages = [*DOCS.rglob("*.md"), *samples.rglob("defs.yaml")]
    types = re.findall(r"^ *type: (\S+)$", "\n".join(page.read_text("utf-8") for page in pages), re.MULTILINE)
    assert {f"dataprep_assets.components.{name}" for name in components.__all__} <= set(types)
