"""The trainer's loader, rule by rule: what the real one did on damaged files.

Source: docs/formats/task-folders.md#loader.

The rules were also compared with the loader's own code on tens of thousands of damaged folders; that code is not ours
to keep here, so these are its outcomes.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.pipelines.tasks.contract import shipped_contracts
from dataprep_assets.pipelines.tasks.loader import Act, Load, load_as_trainer
from dataprep_assets_tests.pipelines.tasks.trees import drop, edit, put
from dataprep_assets_tests.sample.make_sample_tasks import jsonl, task_rows

Rows = list[dict[str, Any]]


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., Load]:
    """Load a folder of six train and four validation rows after a change to its train file."""

    def load(task: str, change: Callable[[Path], object] = lambda path: None) -> Load:
        contract, folder = shipped_contracts()[task], tmp_path / task
        folder.mkdir()
        for split, count in (("train", 6), ("validation", 4)):
            (folder / contract.files[split].name).write_bytes(jsonl(task_rows(task, split, count)))  # type: ignore[arg-type,index]
        change(folder / contract.files["train"].name)
        return load_as_trainer(str(folder), contract)

    return load


def rows(change: Callable[[Rows], Any]) -> Callable[[Path], None]:
    return lambda path: edit(path, change)


def raw(change: Callable[[bytes], bytes]) -> Callable[[Path], int]:
    return lambda path: path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("task", shipped_contracts())
def test_good_files_are_all_samples(loaded: Callable[..., Load], task: str) -> None:
    assert loaded(task) == Load(samples={"train": 6, "validation": 4}, acts=())


@pytest.mark.parametrize(
    ("task", "error"),
    [
        ("Copa", "copa_train.jsonl is not there: Train or validation JSONL file is missing. Check the path."),
        ("CB", "cb_train.jsonl is not there: Training or validation JSONL file not found, please check the path and f"),
        ("BOOLQ", "boolq_train.jsonl is not there: No such file or directory"),
        ("RTE", "rte_train.jsonl is not there: No such file or directory"),
    ],
)
def test_a_missing_train_file_stops_four_loaders(loaded: Callable[..., Load], task: str, error: str) -> None:
    assert (loaded(task, Path.unlink).error or "").startswith(error)


@pytest.mark.parametrize("task", ["ArcC_Cloze", "ArcC_MC"])
def test_a_missing_arc_file_is_no_samples_and_no_error(loaded: Callable[..., Load], task: str) -> None:
    expected = Load(samples={"train": 0, "validation": 4}, acts=(Act("train", 0, "missing_file"),))
    assert loaded(task, Path.unlink) == expected


def test_a_broken_link_is_a_missing_file(loaded: Callable[..., Load]) -> None:
    def unlinked(path: Path) -> None:
        path.unlink()
        path.symlink_to("nowhere")

    assert loaded("ArcC_MC", unlinked).samples["train"] == 0
    assert "is not there" in (loaded("Copa", unlinked).error or "")


@pytest.mark.parametrize("task", shipped_contracts())
def test_an_empty_train_file_is_accepted_by_all_but_cb(loaded: Callable[..., Load], task: str) -> None:
    found = loaded(task, raw(lambda data: b""))
    assert found.samples["train"] == 0
    assert (found.error is not None) == (task == "CB")


@pytest.mark.parametrize("task", shipped_contracts())
@pytest.mark.parametrize("line", [b"\n", b"\xef\xbb\xbf{}\n", b"{torn\n"])
def test_lines_that_are_no_json_stop_arc_and_no_other(loaded: Callable[..., Load], task: str, line: bytes) -> None:
    found = loaded(task, raw(lambda data: line + data))
    if task.startswith("ArcC"):
        assert (found.error or "").startswith("ARC-Challenge_train.jsonl: line 1: JSONDecodeError")
    else:
        what = "blank_line_skipped" if line == b"\n" else "bad_line_skipped"
        assert found == Load(samples={"train": 6, "validation": 4}, acts=(Act("train", 1, what),))


@pytest.mark.parametrize("task", shipped_contracts())
def test_carriage_returns_end_lines(loaded: Callable[..., Load], task: str) -> None:
    assert loaded(task, raw(lambda data: data.replace(b"\n", b"\r\n"))).samples["train"] == 6


@pytest.mark.parametrize("task", shipped_contracts())
def test_bytes_that_are_not_utf8_stop_every_loader(loaded: Callable[..., Load], task: str) -> None:
    assert "UnicodeDecodeError" in (loaded(task, raw(lambda data: data + b"\xff\n")).error or "")


@pytest.mark.parametrize(
    ("task", "change", "samples", "act"),
    [
        ("Copa", put(2, label=2), 6, "empty_sample"),
        ("Copa", put(2, label=-1), 6, "empty_sample"),
        ("Copa", drop(2, "choice1"), 6, "empty_sample"),
        ("BOOLQ", put(2, answer="False"), 6, "truth_of_no_boolean"),
        ("BOOLQ", put(2, answer="no"), 6, "truth_of_no_boolean"),
        ("BOOLQ", drop(2, "answer"), 5, "row_dropped"),
        ("CB", put(2, label="maybe"), 5, "row_dropped"),
        ("CB", put(2, label=3), 5, "row_dropped"),
        ("CB", put(2, label=None), 5, "row_dropped"),
        ("CB", put(2, label="Entail"), 6, None),
        ("CB", put(2, label="NEUTRAL"), 6, None),
        ("RTE", put(2, label="1"), 5, "row_dropped"),
        ("RTE", put(2, label=-1), 5, "row_dropped"),
        ("ArcC_MC", put(2, answerKey="E9"), 6, "answer_not_a_choice"),
    ],
)
def test_a_row_with_a_wrong_label_is_not_an_error(
    loaded: Callable[..., Load], task: str, change: Callable[[Rows], Any], samples: int, act: str | None
) -> None:
    found = loaded(task, rows(change))
    assert found.error is None
    assert found.samples["train"] == samples
    assert [(a.line, a.act) for a in found.acts] == ([(2, act)] if act else [])


@pytest.mark.parametrize(
    ("task", "change", "error"),
    [
        ("Copa", put(2, label="1"), "TypeError"),
        ("Copa", put(2, label=None), "TypeError"),
        ("ArcC_Cloze", put(2, answerKey="E9"), "ValueError"),
        ("ArcC_Cloze", drop(2, "id"), "KeyError: 'id'"),
        ("ArcC_MC", lambda r: r[1]["choices"]["text"].clear(), "IndexError"),
        ("ArcC_MC", drop(2, "question"), "KeyError: 'question'"),
    ],
)
def test_a_row_that_stops_the_loader_is_named(
    loaded: Callable[..., Load], task: str, change: Callable[[Rows], Any], error: str
) -> None:
    contract = shipped_contracts()[task]
    assert loaded(task, rows(change)).error == f"{contract.files['train'].name}: line 2: {error}"


def test_the_task_is_the_last_component_in_lower_case(tmp_path: Path) -> None:
    contract = shipped_contracts()["Copa"]
    folder = tmp_path / "versions" / "version_1" / "Copa"
    folder.mkdir(parents=True)
    for split in ("train", "validation"):
        (folder / contract.files[split].name).write_bytes(jsonl(task_rows("Copa", split, 2)))  # type: ignore[arg-type,index]
    assert load_as_trainer(str(folder), contract).error is None
    named = tmp_path / "copa"
    named.symlink_to(folder)
    assert load_as_trainer(str(named), contract).error is None
    for wrong in (f"{folder}/", str(folder.parent), str(tmp_path / "nowhere" / "Copa")):
        assert "Unknown task name or path" in (load_as_trainer(wrong, contract).error or "")


def test_a_folder_in_a_files_place_stops_the_loader(loaded: Callable[..., Load]) -> None:
    def folder(path: Path) -> None:
        path.unlink()
        path.mkdir()

    assert "IsADirectoryError" in (loaded("RTE", folder).error or "")
