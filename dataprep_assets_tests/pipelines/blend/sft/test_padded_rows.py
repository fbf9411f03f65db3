"""Sequences padded for context parallelism: how they are stored, checked, traced and written to views."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets.formats.packed_rows import PackedRowBlock, open_packed_file, write_rows
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import record_files
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.sft.options import SftOptions
from dataprep_assets.pipelines.blend.sft.packed_sft import prepare_sft_shards
from dataprep_assets.pipelines.blend.sft.packed_sft_checks import PACKED_SFT_CHECKS, open_shard
from dataprep_assets_tests.faults.edits import edit_json
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.blend.dagster_blend import (
    REFERENCE,
    Blend,
    declare_chats,
    find_failed,
    open_blend,
    read_evaluations,
)
from dataprep_assets_tests.project import failure_of

MULTIPLE, PACK_SIZE = 8, 256
VIEWS = ["olmo_sft", "sft_rows", "sft_rows_packed"]


def built(home: Path, **sft: Any) -> Iterator[Blend]:
    options = {"pack_size": PACK_SIZE, "chat_template": "chatml_reasoning", **sft}
    declaration = declare_chats(home / "sources", views=VIEWS, sft=options)
    with open_blend(declaration, home / "artifacts") as made:
        outcomes = made.run_all()
        assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
        assert find_failed(read_evaluations(outcomes)) == REFERENCE
        yield made


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blend]:
    yield from built(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blend]:
    yield from built(tmp_path_factory.mktemp("padded"), pad_to_multiple=MULTIPLE)


def packed_rows(made: Blend) -> list[dict[str, list[int]]]:
    paths = sorted((made.run_directory / "splits" / "train").glob("*.parquet"))
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def test_each_sequence_has_a_multiple_of_labels(padded: Blend) -> None:
    """Megatron-Bridge removes the last token of each sequence, whose label would be missing."""
    seen = 0
    for row in packed_rows(padded):
        bounds = [*row["seq_start_id"], len(row["input_ids"])]
        lengths = np.diff(bounds).tolist()
        assert lengths == row["seq_lengths"]
        assert sum(length - 1 for length in lengths) <= PACK_SIZE
        for start, length, unpadded in zip(bounds[:-1], lengths, row["unpadded_lengths"], strict=True):
            assert (length - 1) % MULTIPLE == 0
            assert 0 <= length - unpadded < MULTIPLE
            assert len(set(row["input_ids"][start + unpadded : start + length])) <= 1
            assert not any(row["loss_mask"][start + unpadded - 1 : start + length])
            seen += length > unpadded
    assert seen > 10


def test_padding_is_not_counted_as_tokens_of_the_run_or_its_views(plain: Blend, padded: Blend) -> None:
    for name in ("sft_rows", "olmo_sft"):
        facts = [made.store.require(made.declaration.artifact(name)).facts for made in (plain, padded)]
        assert facts[0] == facts[1]
    assert sorted(read_sequences(padded, "sft_rows")) == sorted(read_sequences(plain, "sft_rows"))
    assert sorted(read_sequences(padded, "sft_rows_packed")) == sorted(read_sequences(plain, "sft_rows_packed"))


def read_sequences(made: Blend, name: str) -> list[tuple[list[int], list[int]]]:
    found = []
    for path in sorted(made.directory(name).glob("train/*.arrow")):
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
            for row in reader.read_all().to_pylist():
                start = 0
                for length in row.get("seq_lengths", [row["length"]]):
                    found.append((row["input_ids"][start : start + length], row["labels"][start : start + length]))
                    start += length
    return found


def test_keys_change_only_if_padding_is_set(plain: Blend, padded: Blend) -> None:
    for made, names in ((plain, set()), (padded, {"pad_to_multiple", "pad_id"})):
        plan = load_blend_plan(made.declaration, made.store)
        (first, *_) = prepare_sft_shards(made.declaration, made.store, plan, plan.partitions)
        assert {name for name in first.recipe.settings if name.startswith("pad")} == names
    options = {"pack_size": PACK_SIZE, "chat_template": "chatml_reasoning", "pad_to_multiple": 1}
    same = plain.declaration.model_copy(update={"sft": SftOptions.model_validate(options)})
    assert same.sft_options.identity() == plain.declaration.sft_options.identity()
    assert "pad_to_multiple" not in plain.declaration.sft_options.identity()
    assert padded.declaration.sft_options.identity()["pad_to_multiple"] == MULTIPLE


def test_the_multiple_is_passed_to_the_trainer(plain: Blend, padded: Blend) -> None:
    line = f"pad_seq_to_mult={MULTIPLE}"
    assert [line in made.component.describe_trainers(made.store) for made in (plain, padded)] == [False, True]


def test_traced_positions_contain_no_padding(padded: Blend) -> None:
    tracer = padded.component.tracer(padded.store)
    for sample in range(padded.store.require(padded.declaration.artifact("sft_rows")).facts["rows"]["train"]):
        (found,) = trace_documents(tracer, view="sft_rows", split="train", sample=sample)
        ids = []
        for place in found.places:
            name = place.artifact.removeprefix("small_sft/")
            directory = padded.store.root / place.artifact
            if name == "olmo_sft":
                ids.append(np.fromfile(directory / place.file, "<u2")[place.start : place.stop].tolist())
            elif name == "sft_rows_packed":
                row = place.at["sample"]
                assert isinstance(row, int)
                rows = [r for path in sorted(directory.glob("train/*.arrow")) for r in _rows(path)]
                ids.append(rows[row][place.start : place.stop])
            elif name.startswith("packed_sft"):
                row = place.at["row"]
                assert isinstance(row, int)
                stored = pq.read_table(directory / place.file).to_pylist()[row]
                ids.append(stored["input_ids"][place.start : place.stop])
        assert len(ids) == 3
        assert ids[0] == ids[1] == ids[2]


def _rows(path: Path) -> list[list[int]]:
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
        return reader.read_all().column("input_ids").to_pylist()


def _other_padding(block: PackedRowBlock) -> PackedRowBlock:
    tokens = block.tokens.copy()
    assert block.unpadded is not None
    begins, ends = block.bounds()
    index = int(np.argmax(ends - begins > block.unpadded))
    tokens[ends[index] - 1] = 1
    return replace(block, tokens=tokens)


def _trained_padding(block: PackedRowBlock) -> PackedRowBlock:
    assert block.unpadded is not None
    begins, ends = block.bounds()
    index, mask = int(np.argmax(ends - begins > block.unpadded + 1)), block.required_mask.copy()
    mask[ends[index] - 2] = 1
    return replace(block, mask=mask)


def _shorter_sequence(block: PackedRowBlock) -> PackedRowBlock:
    assert block.unpadded is not None
    unpadded = block.unpadded.copy()
    unpadded[0] -= MULTIPLE
    return replace(block, unpadded=unpadded)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (_other_padding, {"rows_valid"}),
        (_trained_padding, {"rows_valid"}),
        (_shorter_sequence, {"rows_valid"}),
        (lambda block: replace(block.without_padding(), unpadded=block.unpadded), {"rows_valid"}),
        (PackedRowBlock.without_padding, {"rows_valid"}),
    ],
)
def test_wrong_padding_fails_a_check(
    padded: Blend, tmp_path: Path, change: Callable[[PackedRowBlock], PackedRowBlock], wrong: set[str]
) -> None:
    declaration, store = padded.declaration, LocalArtifacts(padded.root)
    plan = load_blend_plan(declaration, store)
    (shard, *_) = prepare_sft_shards(declaration, store, plan, plan.partitions)
    opened = open_shard(shard)
    path = tmp_path / "packed.parquet"
    blocks = [change(block) for block in open_packed_file(opened.directory / "packed.parquet")]
    write_rows(path, blocks, padded=blocks[0].unpadded is not None)
    for name in ("origins.npy", "quarantine.jsonl"):
        if (opened.directory / name).exists():
            (tmp_path / name).write_bytes((opened.directory / name).read_bytes())
    opened = replace(opened, directory=tmp_path, receipt=replace(opened.receipt, files=record_files(tmp_path)))
    findings = {}
    for check in PACKED_SFT_CHECKS:
        try:
            findings[check.name] = check.run(opened).passed
        except Exception:
            findings[check.name] = False
    assert wrong <= {name for name, passed in findings.items() if not passed}


def test_incompatible_sizes_are_refused() -> None:
    with pytest.raises(ValidationError) as raised:
        SftOptions(pack_size=100, pad_to_multiple=8)
    assert_names(str(raised.value), "pack_size", 100, "pad_to_multiple", 8)


def test_a_tokenizer_without_eos_cannot_pad(tmp_path: Path) -> None:
    declaration = declare_chats(tmp_path / "sources", sft={"pack_size": 256, "chat_template": "chatml_reasoning"})
    edit_json(tmp_path / "sources" / "tokenizer" / "tokenizer_config.json", lambda config: config.pop("eos_token"))
    options = declaration.sft_options.model_copy(update={"pad_to_multiple": 8})
    with open_blend(declaration.model_copy(update={"sft": options}), tmp_path / "artifacts") as made:
        (outcome,) = made.run_all()
        assert not outcome.success
        assert_names(failure_of(outcome), "sft.pad_to_multiple", "eos_token")
