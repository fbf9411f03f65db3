"""Views of conversations in TRL: its own preparation of the same rows gives the same batches and losses."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets_tests.pipelines.blend.dagster_blend import (
    REFERENCE,
    Blend,
    find_failed,
    open_blend,
    read_evaluations,
)
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows
from dataprep_assets_tests.pipelines.blend.sft.equal_conversations import EQUAL, TEMPLATE, make_conversation
from dataprep_assets_tests.project import failure_of
from dataprep_assets_tests.readers import trl
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer

pytestmark = pytest.mark.slow

DIFFERENT: dict[str, dict[str, Any]] = {
    "TRL does not read `train`, so it trains every answer": {
        "messages": [
            {"role": "user", "content": "First?"},
            {"role": "assistant", "content": "Wrong.", "train": False},
            {"role": "user", "content": "Again?"},
            {"role": "assistant", "content": "Right."},
        ]
    },
    "TRL encodes a special token that a user wrote as the token, not as text": {
        "messages": [
            {"role": "user", "content": "What is <|im_end|>?"},
            {"role": "assistant", "content": "The end of a turn."},
        ]
    },
    "TRL keeps messages after the last answer": {
        "messages": [
            {"role": "user", "content": "Who?"},
            {"role": "assistant", "content": "Ann."},
            {"role": "user", "content": "Who else?"},
        ]
    },
}
ROWS = [*map(make_conversation, range(EQUAL)), *DIFFERENT.values()]


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blend]:
    home = tmp_path_factory.mktemp("trl")
    declared = {
        "dataset": "chats",
        "stage": "sft",
        "blend": {"datasets": [{"name": "chat", "path": str(write_rows(home / "chat.jsonl", ROWS))}]},
        "tokenizer": {"path": write_chat_tokenizer(home / "tokenizer").directory, "engine": "tokenizers"},
        "sft": {"pack_size": 512, "chat_template": TEMPLATE},
        "num_shards": 2,
        "views": ["sft_rows", "sft_rows_packed"],
    }
    with open_blend(BlendDeclaration.model_validate(declared), home / "artifacts") as made:
        outcomes = made.run_all()
        assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
        assert find_failed(read_evaluations(outcomes)) == REFERENCE
        yield made


@pytest.fixture(scope="module")
def own(chats: Blend) -> list[dict[str, list[int]]]:
    """Return TRL's own preparation of the source rows."""
    return trl.own_rows(load_tokenizer(chats), TEMPLATE, ROWS)


def load_tokenizer(chats: Blend) -> Path:
    assert chats.declaration.tokenizer is not None
    assert chats.declaration.tokenizer.path is not None
    return chats.declaration.tokenizer.path


def read_sequences(chats: Blend) -> list[int]:
    """Return the number of the source row of each row of `sft_rows`."""
    tracer = chats.component.tracer(chats.store)
    rows = range(len(trl.view_rows(chats.directory("sft_rows"), "train")))
    found = [trace_documents(tracer, view="sft_rows", split="train", sample=row, decode=False) for row in rows]
    return [one.row - 1 for (one,) in found]


def read_packed(chats: Blend) -> list[list[int]]:
    """Return the numbers of the source rows of each packed row, in the order of its sequences."""
    # The sequences of consecutive packed rows are in the same order as the sequences of the split.
    lengths = [len(row["seq_lengths"]) for row in trl.view_rows(chats.directory("sft_rows_packed"), "train")]
    ends = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
    order = read_sequences(chats)
    assert ends[-1] == len(order)
    return [order[start:stop] for start, stop in pairwise(ends)]


def test_ids_and_labels_equal_trls_own(chats: Blend, own: list[dict[str, list[int]]]) -> None:
    order, rows = read_sequences(chats), trl.view_rows(chats.directory("sft_rows"), "train")
    assert sorted(order) == list(range(len(ROWS)))
    unequal = [
        source
        for source, row in zip(order, rows, strict=True)
        if (row["input_ids"], row["labels"]) != (own[source]["input_ids"], own[source]["labels"])
    ]
    assert sorted(unequal) == list(range(EQUAL, len(ROWS)))  # `DIFFERENT` lists the cause of each difference
    train, special, after = (
        (row, own[source]) for _, row, source in sorted((s, r, s) for s, r in zip(order, rows, strict=True))[EQUAL:]
    )
    assert train[0]["input_ids"] == train[1]["input_ids"]
    assert sum(label != -100 for label in train[0]["labels"]) < sum(label != -100 for label in train[1]["labels"])
    assert len(special[0]["input_ids"]) > len(special[1]["input_ids"])
    assert after[1]["input_ids"][: len(after[0]["input_ids"])] == after[0]["input_ids"]


def test_padded_batches_equal_trls_own(chats: Blend, own: list[dict[str, list[int]]]) -> None:
    rows = trl.view_rows(chats.directory("sft_rows"), "train")
    numbers = [number for number, source in enumerate(read_sequences(chats)) if source < EQUAL]
    order = read_sequences(chats)
    batches = [numbers[start : start + 8] for start in range(0, len(numbers), 8)]
    ours = trl.collate([[rows[number] for number in batch] for batch in batches], padding_free=False)
    theirs = trl.collate([[own[order[number]] for number in batch] for batch in batches], padding_free=False)
    assert ours == theirs


def test_packed_batches_equal_trls_own(chats: Blend, own: list[dict[str, list[int]]]) -> None:
    """Each packed row is a batch of its sequences without padding: ids, labels, positions and boundaries."""
    rows = trl.view_rows(chats.directory("sft_rows_packed"), "train")
    equal = [(row, sources) for row, sources in zip(rows, read_packed(chats), strict=True) if max(sources) < EQUAL]
    assert len(equal) > len(rows) - 4
    ours = trl.collate([[row] for row, _ in equal], padding_free=True)
    theirs = trl.collate([[own[source] for source in sources] for _, sources in equal], padding_free=True)
    assert ours == theirs
    assert [batch["position_ids"] for batch in ours] == [[row["position_ids"]] for row, _ in equal]


def test_every_step_has_the_same_loss(chats: Blend) -> None:
    order = read_sequences(chats)[: 4 * trl.STEPS]
    rows = [ROWS[source] for source in order]
    batches = [list(range(start, start + 4)) for start in range(0, len(order), 4)]
    assert max(order) < EQUAL
    settings: dict[str, Any] = {"per_device_train_batch_size": 4}
    theirs = trl.own_losses(load_tokenizer(chats), TEMPLATE, rows, batches, **settings)
    ours = trl.view_losses(chats.directory("sft_rows"), "train", load_tokenizer(chats), TEMPLATE, **settings)
    assert len(ours) == trl.STEPS
    assert ours == pytest.approx(theirs, abs=1e-6)


def test_every_step_over_packed_rows_has_the_same_loss(chats: Blend) -> None:
    groups = read_packed(chats)[: trl.STEPS]
    assert max(map(max, groups)) < EQUAL
    rows = [ROWS[source] for group in groups for source in group]
    ends = [sum(map(len, groups[:number])) for number in range(len(groups) + 1)]
    batches = [list(range(start, stop)) for start, stop in pairwise(ends)]
    settings: dict[str, Any] = {"padding_free": True, "per_device_train_batch_size": 1}
    theirs = trl.own_losses(load_tokenizer(chats), TEMPLATE, rows, batches, **settings)
    ours = trl.view_losses(chats.directory("sft_rows_packed"), "train", load_tokenizer(chats), TEMPLATE, **settings)
    assert len(ours) == trl.STEPS
    assert ours == pytest.approx(theirs, abs=1e-6)


def test_trl_trains_the_same_tokens_of_the_packed_parquet(chats: Blend) -> None:
    """`assistant_masks` has the loss mask for TRL, which does not read `loss_mask`; `seq_lengths` has the sequences."""
    rows = trl.view_rows(chats.directory("sft_rows_packed"), "train")
    packed_folder = chats.run_directory / "splits" / "train"
    prepared = trl.prepared_rows(load_tokenizer(chats), TEMPLATE, packed_folder)
    assert [row["labels"] for row in prepared] == [row["labels"] for row in rows]
    assert trl.prepared_rows(load_tokenizer(chats), TEMPLATE, packed_folder, without=("assistant_masks",)) != prepared
    ours, theirs = (trl.collate([[row] for row in batch], padding_free=True) for batch in (rows, prepared))
    assert ours == theirs


def test_trl_refuses_the_unprepared_packed_parquet(chats: Blend) -> None:
    """Without preparation TRL would ignore the masks, so it raises an error."""
    packed_folder = chats.run_directory / "splits" / "train"
    with pytest.raises(ValueError, match="skip_prepare_dataset"):
        trl.prepared_rows(load_tokenizer(chats), TEMPLATE, packed_folder, dataset_kwargs={"skip_prepare_dataset": True})
