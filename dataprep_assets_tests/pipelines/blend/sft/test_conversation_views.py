"""Views of conversations in a blend: declared, built after the run, checked, traced, and rebuilt only when needed."""

import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from dataprep_assets.engine.artifact.summary import build_sections
from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets.errors import ConfigError, IntegrityError, NotFoundError
from dataprep_assets.formats.conversations import message_rows, sft_rows
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.component import TrainingBlend
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.sft.view import ConversationView
from dataprep_assets.pipelines.blend.sft.views import VIEWS
from dataprep_assets.pipelines.blend.sft.views import olmo_sft as olmo_view
from dataprep_assets.pipelines.blend.view import build_view
from dataprep_assets.screen import Section
from dataprep_assets_tests.faults.edits import edit_json
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.blend.dagster_blend import (
    REFERENCE,
    Blend,
    declare_chats,
    find_failed,
    open_blend,
    read_evaluations,
)
from dataprep_assets_tests.pipelines.blend.pipeline import declare_pretraining, write_small_sources
from dataprep_assets_tests.pipelines.blend.view_checks import assert_views_change_no_other_artifact, find_in_view
from dataprep_assets_tests.project import failure_of

NAMES = ["messages", "olmo_sft", "sft_rows", "sft_rows_packed"]


def build(made: Blend) -> list[str]:
    """Run all artifacts, and return the names of the materialized ones."""
    outcomes = made.run_all()
    assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
    assert find_failed(read_evaluations(outcomes)) == REFERENCE
    return [
        event.asset_key.path[-1]
        for outcome in outcomes
        for event in outcome.get_asset_materialization_events()
        if event.asset_key is not None
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blend]:
    home = tmp_path_factory.mktemp("views")
    with open_blend(declare_chats(home / "sources", views=NAMES, held_out={"valid": 1}), home / "artifacts") as made:
        build(made)
        yield made


@pytest.fixture
def store(finished: Blend, tmp_path: Path) -> LocalArtifacts:
    return LocalArtifacts(Path(shutil.copytree(finished.root, tmp_path / "root")))


def test_every_module_of_the_folder_is_a_view() -> None:
    assert list(VIEWS) == NAMES
    assert [ConversationView.load(name).name for name in VIEWS] == NAMES


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"views": ["sft_rwos"]}, ["views", "sft_rows"]),
        ({"views": ["nanogpt"]}, ["views", "sft_rows"]),
        ({"views": ["sft_rows", "sft_rows"]}, ["views", "`sft_rows`", "twice"]),
    ],
)
def test_a_view_that_does_not_exist_or_is_listed_twice_is_refused(
    changes: dict[str, Any], names: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ValidationError) as raised:
        declare_chats(tmp_path / "s", **changes)
    assert_names(str(raised.value), *names)


def test_only_conversations_have_these_views(tmp_path: Path) -> None:
    with pytest.raises(ValidationError) as raised:
        declare_pretraining(write_small_sources(tmp_path), views=["sft_rows"])
    assert_names(str(raised.value), "`views`", "`stage: sft`", "`stage: pretrain`")


def test_views_change_no_other_artifact(finished: Blend) -> None:
    assert_views_change_no_other_artifact(finished, NAMES)


def test_both_views_have_all_sequences_of_the_run(finished: Blend) -> None:
    assert finished.stale() == []
    assert find_failed(finished.check()) == REFERENCE
    for name in NAMES:
        facts = finished.store.require(finished.declaration.artifact(name)).facts
        assert list(facts["rows"]) == ["train", "valid"]
        shards = [
            finished.store.require(finished.declaration.artifact("packed_sft", p)) for p in finished.plan.partitions
        ]
        assert sum(facts["sequences"].values()) == sum(shard.facts["sequences"] for shard in shards)
        assert sum(facts["trained_tokens"].values()) == sum(shard.facts["trained_tokens"] for shard in shards)
        shown = finished.metadata(name)
        assert shown["sequences_train"] == facts["sequences"]["train"]
        assert shown["dagster/row_count"] == sum(facts["rows"].values())
    packed = finished.store.require(finished.declaration.artifact("sft_rows_packed")).facts
    assert sum(packed["rows"].values()) == sum(shard.facts["bins"] for shard in shards)
    card = json.loads((finished.directory("data_card") / "croissant.json").read_bytes())
    files = [entry["contentUrl"] for entry in card["distribution"] if "contentUrl" in entry]
    assert any(NAMES[0] in file for file in files)


def test_each_trainer_gets_its_line(finished: Blend) -> None:
    lines = finished.component.describe_trainers(finished.store)
    where = str(finished.directory("sft_rows").resolve())
    by_trainer = {line.partition(":")[0]: line for line in lines if where in line and f"{where}_packed" not in line}
    assert list(by_trainer) == ["TRL, unsloth", "axolotl", "LLaMA-Factory", "SkyRL"]
    olmo, script = (line for line in lines if line.startswith("OLMo-core"))
    assert_names(olmo, "expand_glob=True", "generate_doc_lengths=True", "eos_token_id=", "sequence_length=256")
    assert_names(script, str(finished.directory("olmo_sft").resolve() / "train"))
    folder = str(finished.directory("messages").resolve())
    messages = {line.partition(":")[0]: line for line in lines if folder in line}
    assert messages.keys() == {"verl", "NeMo-RL", "prime-rl", "MaxText", "ms-swift", "axolotl", "LLaMA-Factory"}
    assert_names(messages["prime-rl"], f'name = "{folder}"', 'splits = ["train"]')
    assert_names(
        messages["MaxText"],
        f"hf_train_files={folder}/train/*.parquet",
        "train_split=train",
        "sft_train_on_completion_only=true",
    )
    assert_names(messages["ms-swift"], f"--dataset {folder}/train")
    assert_names(
        messages["axolotl"],
        f'path: "{folder}", split: train',
        "message_field_training: train",
        "tool_calls: tool_calls",
    )
    assert_names(messages["LLaMA-Factory"], f'"file_name": "{folder}/train.jsonl"', '"tools": "tools"')
    assert_names(by_trainer["TRL, unsloth"], f"load_from_disk('{where}')['train']", "skip_prepare_dataset")
    assert_names(by_trainer["axolotl"], f'"{where}/train"')
    assert_names(by_trainer["LLaMA-Factory"], f"load_from_disk('{where}')", "tokenized_path: rows")
    (packed,) = (line for line in lines if f"{where}_packed" in line)
    assert_names(packed, "padding_free=True", "skip_prepare_dataset")


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_traced_to_its_conversations_and_back(finished: Blend, name: str) -> None:
    tracer = finished.component.tracer(finished.store)
    facts = finished.store.require(finished.declaration.artifact(name)).facts
    seen = []
    for split, count in facts["rows"].items():
        rows = _count_tokens(finished, name, split)
        assert len(rows) == count
        for number, tokens in enumerate(rows):
            found = trace_documents(tracer, view=name, split=split, sample=number)
            covered = 0
            for one in found:
                assert trace_documents(tracer, file=one.file, row=one.row) == [one]
                places = [p for p in one.places if p.artifact.endswith(f"/{name}") and p.at["sample"] == number]
                assert {place.file.partition("/")[0] for place in places} == {_folder(name, split)}
                assert all((finished.directory(name) / place.file).exists() for place in places)
                assert len(places) == 1 or name != "messages"
                covered += sum(place.stop - place.start for place in places)
                seen.append((one.file, one.row))
            assert covered == tokens
    assert len(set(seen)) == 48
    for question, error in (
        ({"view": name, "split": "train", "sample": facts["rows"]["train"]}, NotFoundError),
        ({"view": name, "sample": 0}, ConfigError),
        ({"view": "mds", "split": "train", "sample": 0}, NotFoundError),
    ):
        with raises(error, "trace"):
            trace_documents(tracer, **question)  # type: ignore[arg-type]


def _folder(name: str, split: str) -> str:
    return split if name == "olmo_sft" else sft_rows.split_name(split)


def _count_tokens(finished: Blend, name: str, split: str) -> list[int]:
    """Return the tokens of each row of a split; none for a row of messages."""
    folder = finished.directory(name) / _folder(name, split)
    if name == "messages":
        return [0 for path in sorted(folder.glob("*.parquet")) for _ in range(pq.read_metadata(path).num_rows)]
    if name == "olmo_sft":
        texts = [gzip.decompress(path.read_bytes()).decode() for path in sorted(folder.glob("*.csv.gz"))]
        bounds = [line for text in texts for line in text.splitlines()]
        # Subtract 1, because each document ends with a token that is not part of the sequence.
        return [int(stop) - int(start) - 1 for start, stop in (line.split(",") for line in bounds)]
    return [len(ids) for path in sorted(folder.glob("*.arrow")) for ids in _row_ids(path)]


def test_a_position_in_a_flat_file_has_the_tokens_of_its_sequence(finished: Blend) -> None:
    tracer = finished.component.tracer(finished.store)
    for sample in range(finished.store.require(finished.declaration.artifact("olmo_sft")).facts["rows"]["train"]):
        (found,) = trace_documents(tracer, view="olmo_sft", split="train", sample=sample)
        by_view = {place.artifact.rpartition("/")[2]: place for place in found.places}
        place, other = by_view["olmo_sft"], by_view["sft_rows"]
        ids = np.fromfile(finished.directory("olmo_sft") / place.file, f"<u{place.itemsize}")
        sample_row = other.at["sample"]
        assert isinstance(sample_row, int)
        rows = [row for path in sorted(finished.directory("sft_rows").glob("train/*.arrow")) for row in _row_ids(path)]
        assert ids[place.start : place.stop].tolist() == rows[sample_row].tolist()


def _row_ids(path: Path) -> Iterator[Any]:
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
        yield from (np.array(row.as_py()) for row in reader.read_all().column("input_ids"))


def _shift_labels(values: list[list[int]]) -> list[list[int]]:
    """Align the labels with the next token, as a bug would."""
    return [[*row[1:], -100] for row in values]


@pytest.mark.parametrize(
    ("name", "column", "change", "wrong"),
    [
        ("sft_rows", "labels", _shift_labels, {"matches_packed_rows", "layout_valid"}),
        ("sft_rows_packed", "labels", _shift_labels, {"matches_packed_rows", "layout_valid"}),
        ("sft_rows", "input_ids", lambda rows: [[*rows[0][:-1], 7], *rows[1:]], {"matches_packed_rows"}),
        (
            "sft_rows",
            "labels",
            lambda rows: [[-100] * len(row) for row in rows],
            {"matches_packed_rows", "layout_valid"},
        ),
        ("sft_rows", "loss_mask", lambda rows: [[1] * len(row) for row in rows], {"layout_valid"}),
        ("sft_rows_packed", "position_ids", lambda rows: [list(range(len(row))) for row in rows], {"layout_valid"}),
    ],
)
def test_rows_that_differ_from_the_packed_rows_fail(
    finished: Blend, store: LocalArtifacts, name: str, column: str, change: Any, wrong: set[str]
) -> None:
    path = min(store.directory(finished.declaration.artifact(name)).glob("train/*.arrow"))
    with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
        table = reader.read_all()
    index = table.column_names.index(column)
    values = pa.array(change(table.column(index).to_pylist()), table.schema.field(column).type)
    path.unlink()
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table.set_column(index, column, values).cast(table.schema))
    found = find_in_view(finished, store, name)
    # The check of the layout also fails, because the sidecar files contain a fingerprint of the changed files.
    assert {check for check, finding in found.items() if not finding.passed} == wrong | {"layout_valid"}


def _edit_lines(change: Callable[[list[dict[str, Any]]], None]) -> Callable[[Path], None]:
    """Return a change of the JSON lines of the train split and of its first Parquet file, as a bug would make it."""

    def edit(directory: Path) -> None:
        lines, path = directory / "train.jsonl", min(directory.glob("train/*.parquet"))
        rows, table = [json.loads(line) for line in lines.read_bytes().splitlines()], pq.read_table(path)
        count = len(table)
        first = rows[:count]
        change(first)
        lines.write_text("".join(json.dumps(row) + "\n" for row in [*first, *rows[count:]]))
        path.unlink()
        message_rows.write_parquet(path, iter(first), table.schema)

    return edit


def _edit_array(name: str, dtype: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        path = min(directory.glob(f"train/{name}"))
        values = change(np.fromfile(path, dtype))
        path.unlink()
        values.tofile(path)

    return edit


def _edit_settings(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    return lambda directory: edit_json(directory / "olmo_sft.json", change)


def _unknown_id(ids: Any) -> Any:
    return np.where(ids == ids[1], 60_000, ids)


def _shift_bounds(directory: Path) -> None:
    path = min(directory.glob("train/*.csv.gz"))
    first, *rest = gzip.decompress(path.read_bytes()).decode().splitlines()
    start, stop = first.split(",")
    second = rest[0].split(",")[1]
    bounds = [f"{start},{int(stop) - 1}", f"{int(stop) - 1},{second}", *rest[1:]]
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in bounds).encode(), mtime=0))


def _change_answer(rows: list[dict[str, Any]]) -> None:
    rows[0]["messages"][-1]["content"] += "!"


def _swap(rows: list[dict[str, Any]]) -> None:
    rows[0]["extra_info"], rows[1]["extra_info"] = rows[1]["extra_info"], rows[0]["extra_info"]


def _add_key(rows: list[dict[str, Any]]) -> None:
    rows[0]["messages"][0]["note"] = 1


def _drop_line(directory: Path) -> None:
    path = directory / "train.jsonl"
    path.write_bytes(path.read_bytes().partition(b"\n")[2])


# A fault in a Parquet file of `messages` also fails the check of the layout, because the card has the digests of these
# files.
MATCH, LAYOUT, CONVERSATIONS = {"matches_packed_rows"}, {"layout_valid"}, {"matches_conversations"}
FAULTS: dict[str, tuple[str, Callable[[Path], None], set[str]]] = {
    "an id": ("olmo_sft", _edit_array("token_ids*.npy", "<u2", lambda ids: np.where(ids == ids[1], 3, ids)), MATCH),
    "an unknown id": (
        "olmo_sft",
        _edit_array("token_ids*.npy", "<u2", _unknown_id),
        MATCH | LAYOUT,
    ),
    "all tokens trained": ("olmo_sft", _edit_array("labels*.npy", "u1", np.ones_like), MATCH | LAYOUT),
    "no token trained": ("olmo_sft", _edit_array("labels*.npy", "u1", np.zeros_like), MATCH),
    "a shifted mask": ("olmo_sft", _edit_array("labels*.npy", "u1", lambda mask: np.roll(mask, -1)), MATCH),
    "a mask of other values": ("olmo_sft", _edit_array("labels*.npy", "u1", lambda mask: mask * 2), MATCH | LAYOUT),
    "shifted bounds": ("olmo_sft", _shift_bounds, MATCH | LAYOUT),
    "another boundary": ("olmo_sft", _edit_settings(lambda s: s.update(eos_token_id=5)), LAYOUT),
    "an answer": ("messages", _edit_lines(_change_answer), CONVERSATIONS | LAYOUT),
    "another source row": ("messages", _edit_lines(_swap), CONVERSATIONS | LAYOUT),
    "rows twice": ("messages", _edit_lines(lambda rows: rows.append(rows[0])), CONVERSATIONS | LAYOUT),
    "a row less": ("messages", _edit_lines(lambda rows: rows.pop()), CONVERSATIONS | LAYOUT),
    "an added key": ("messages", _edit_lines(_add_key), CONVERSATIONS | LAYOUT),
    "a line less": ("messages", _drop_line, CONVERSATIONS),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_the_checks_of_its_view(finished: Blend, store: LocalArtifacts, fault: str) -> None:
    name, change, wrong = FAULTS[fault]
    change(store.directory(finished.declaration.artifact(name)))
    failed_checks = {check for check, finding in find_in_view(finished, store, name).items() if not finding.passed}
    assert failed_checks == wrong


@pytest.mark.parametrize("name", NAMES)
def test_every_check_of_every_view_can_fail(finished: Blend, store: LocalArtifacts, name: str) -> None:
    assert all(finding.passed for finding in find_in_view(finished, store, name).values())
    directory = store.directory(finished.declaration.artifact(name))
    (directory / "other").write_bytes(b"")
    assert {n for n, finding in find_in_view(finished, store, name).items() if not finding.passed} == {"layout_valid"}
    (directory / "other").unlink()
    path = min(path for suffix in ("arrow", "npy", "parquet") for path in directory.glob(f"train/*.{suffix}"))
    path.write_bytes(path.read_bytes()[:-3])
    assert {finding.passed for finding in find_in_view(finished, store, name).values()} == {False}


def test_damaged_files_fail(finished: Blend, store: LocalArtifacts) -> None:
    artifact = finished.declaration.artifact("sft_rows")
    path = max(store.directory(artifact).glob("train/*.arrow"))
    path.write_bytes(path.read_bytes()[:-40])
    assert {finding.passed for finding in find_in_view(finished, store, "sft_rows").values()} == {False}
    path.unlink()
    assert not find_in_view(finished, store, "sft_rows")["layout_valid"].passed


@pytest.mark.parametrize(
    ("name", "module", "last", "writers"),
    [
        ("sft_rows", sft_rows, "write_sidecars", ["write_file"]),
        ("olmo_sft", olmo_view, "canonical_json", ["olmo_sft.write_part"]),
        ("messages", message_rows, "encode_card", ["write_files", "write_parquet"]),
    ],
)
def test_a_killed_build_keeps_its_finished_files(
    finished: Blend, store: LocalArtifacts, name: str, module: Any, last: str, writers: list[str]
) -> None:
    artifact = finished.declaration.artifact(name)
    whole = store.require(artifact).content
    assert store.remove(artifact)
    with patch.object(module, last, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        build_view(finished.declaration, store, ConversationView.load(name))
    with ExitStack() as stack:
        for writer in writers:
            stack.enter_context(patch(f"{module.__name__}.{writer}", side_effect=AssertionError))
        receipt, reused = build_view(finished.declaration, store, ConversationView.load(name), threads=3)
    assert (receipt.content, reused) == (whole, False)
    assert build_view(finished.declaration, store, ConversationView.load(name))[1]
    assert all(finding.passed for finding in find_in_view(finished, store, name).values())


def test_a_different_folder_of_the_trainer_rebuilds_no_view(finished: Blend, store: LocalArtifacts) -> None:
    moved = finished.declaration.model_copy(update={"trainer_root": "/elsewhere"})
    specs = {spec.name: spec for spec in TrainingBlend(moved).specs}
    key = store.require(moved.artifact("sft_rows")).key
    assert [recipe.key for recipe in specs["sft_rows"].recipes(store, [None])] == [key]
    assert [recipe.key for recipe in specs["blend"].recipes(store, [None])] != [
        store.require(specs["blend"].locate_artifact(store)).key
    ]


def test_added_and_removed_conversations_reach_the_views(tmp_path: Path) -> None:
    """An untouched shard keeps its file; a removed conversation is in no view."""
    declaration = declare_chats(tmp_path / "sources", views=NAMES)
    with open_blend(declaration, tmp_path / "artifacts") as made:
        assert set(NAMES) <= set(build(made))
        path = tmp_path / "sources" / "first.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        removed = json.loads(lines[3])
        path.write_text("".join(lines[:3] + lines[4:]))
        other = {name: _files(made, name) for name in NAMES}
        assert {f"small_sft/{name}" for name in NAMES} <= set(made.stale())
        assert set(NAMES) <= set(build(made))
        for name in NAMES:
            # The files of the second source's shard do not change.
            assert len(set(_files(made, name)) & set(other[name])) >= 3, name
        assert find_failed(made.check()) == REFERENCE
        assert _lines_with(made, removed) == 0
        assert _count_texts(made, removed) == 0
        path.write_text("".join(lines))
        build(made)
        assert _count_texts(made, removed) == 1
        assert _lines_with(made, removed) == 1
        assert {name: _files(made, name) for name in NAMES} == other
        path.write_text("".join([*lines, lines[3].replace("?", "??")]))
        build(made)
        assert _count_texts(made, removed) >= 1
        facts = {name: made.store.require(made.declaration.artifact(name)).facts["rows"]["train"] for name in NAMES}
        assert facts["messages"] == facts["sft_rows"] == facts["olmo_sft"] == 49
        assert made.stale() == []


def _files(made: Blend, name: str) -> list[str]:
    receipt = made.store.require(made.declaration.artifact(name))
    return [record.sha256 for record in receipt.files if record.path.endswith((".arrow", ".npy", ".parquet"))]


def _lines_with(made: Blend, row: dict[str, Any]) -> int:
    lines = (made.directory("messages") / "train.jsonl").read_text().splitlines()
    return sum(json.loads(line)["messages"] == row["messages"] for line in lines)


def _count_texts(made: Blend, row: dict[str, Any]) -> int:
    """Return the number of rows of `sft_rows` that contain a conversation's last answer."""
    tracer = made.component.tracer(made.store)
    count = sum(made.store.require(made.declaration.artifact("sft_rows")).facts["rows"].values())
    found = [one for n in range(count) for one in trace_documents(tracer, view="sft_rows", split="train", sample=n)]
    question = next(message["content"] for message in row["messages"] if message["role"] == "user")
    return sum(one.text is not None and question in one.text for one in found)


def test_a_view_of_other_packed_rows_is_not_traced(finished: Blend, store: LocalArtifacts) -> None:
    declaration = BlendDeclaration.model_validate(finished.declaration.model_dump())
    path = store.directory(declaration.artifact("sft_rows")) / "receipt.json"
    path.write_text(path.read_text().replace(store.require(declaration.artifact("sft_rows")).key, "0" * 64))
    with raises(IntegrityError, "sft_rows"):
        trace_documents(TrainingBlend(declaration).tracer(store), view="sft_rows", split="train", sample=0)


def test_the_end_of_a_run_always_has_the_totals(finished: Blend) -> None:
    dataset, store = finished.component, finished.store
    (totals,) = dataset.describe_totals(store)
    section, *_ = build_sections(dataset, store, losses=Section(lines=[]))
    assert totals in section.end
    assert totals not in section.lines
    assert totals in dataset.summary(store)
