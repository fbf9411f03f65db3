"""Every Python block of a page is run by a test; here those that need no dataset."""

import re
import sys
import types
from pathlib import Path

import pytest

from dataprep_assets.serving.release import Place
from dataprep_assets.stores.local import LocalStore
from dataprep_assets_tests.docs.run_blocks import block
from dataprep_assets_tests.serving.releases import make_release, publish

DOCS = Path(__file__).resolve().parents[2] / "docs"
INSTALLED = "dataprep_assets_tests/cli/test_installed.py"
RUN_BY = {
    "tutorial.md": INSTALLED,
    "installation.md": INSTALLED,
    "dagster.md": INSTALLED,
    "storage.md": INSTALLED,
    "trace.md": INSTALLED,
    "pipelines/notes.md": "this file",
    "pipelines/release.md": "this file",
}


def test_no_page_has_python_that_nobody_runs() -> None:
    pages = {
        page.relative_to(DOCS).as_posix()
        for page in DOCS.rglob("*.md")
        if re.search(r"^ *```py", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert pages == set(RUN_BY)


def test_maxtext_is_started_with_the_loader_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """MaxText is not installed where this runs: modules of its names, with the functions that are replaced in them."""
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
        exec(compile(block(DOCS / "pipelines" / "notes.md"), "notes.md", "exec"), {"__name__": "block"})
    assert started == [["train", "base.yml", "packing=True"]]
    assert all(callable(getattr(interface, name)) for name in replaced)
    assert callable(pipeline.make_tfds_train_iterator)
    assert callable(pipeline.make_tfds_eval_iterator)


def test_a_release_is_read_as_its_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    release = make_release(tmp_path / "built", (8,) * 5)
    publish(release, tmp_path / "built", Place(LocalStore(tmp_path / ".dataprep" / "sample_release_published")))
    names: dict[str, object] = {"__name__": "block"}
    exec(compile(block(DOCS / "pipelines" / "release.md"), "release.md", "exec"), names)
    assert names["steps"] == 455
    assert getattr(names["tokens"], "shape", None) is not None
    assert isinstance(names["name"], int)
    assert names["ready"]
    assert names["step"] == 455 * 5 - 91 + 1
    assert capsys.readouterr().out
