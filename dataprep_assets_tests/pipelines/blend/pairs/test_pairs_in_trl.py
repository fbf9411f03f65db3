"""Pairs in TRL: `DPOTrainer` and `KTOTrainer` prepare the same ids from the source rows as the run has."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets_tests.pipelines.blend.dagster_blend import (
    REFERENCE,
    Blend,
    find_failed,
    open_blend,
    read_evaluations,
)
from dataprep_assets_tests.pipelines.blend.pairs.preference_rows import (
    declare_pairs,
    make_assistant,
    make_pair,
    make_user,
)
from dataprep_assets_tests.project import failure_of
from dataprep_assets_tests.readers import trl

pytestmark = pytest.mark.slow

TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
    "{% for call in m.tool_calls or [] %}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
EQUAL = 200
"""Rows that TRL and the run must encode equally; the rows after them differ for named reasons."""
DIFFERENT: dict[str, dict[str, Any]] = {
    "TRL encodes a special token that a user wrote as the token, not as text": {
        "prompt": [make_user("What is <|im_end|>?")],
        "chosen": [make_assistant("The end of a turn.")],
        "rejected": [make_assistant("The beginning.")],
    },
    "TRL merges an answer's first newline with the prompt's last one, and shortens the prompt": {
        "prompt": [make_user("Poem?")],
        "chosen": [make_assistant("\n\nThe tide")],
        "rejected": [make_assistant("\n\nA crab")],
    },
}
ROWS = [*map(make_pair, range(EQUAL)), *DIFFERENT.values()]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blend]:
    home = tmp_path_factory.mktemp("trl")
    options = {"max_length": 512, "chat_template": TEMPLATE}
    with open_blend(declare_pairs(home, {"pairs": ROWS}, pairs=options, views=["kto"]), home / "artifacts") as made:
        outcomes = made.run_all()
        assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
        assert find_failed(read_evaluations(outcomes)) == REFERENCE
        yield made


@pytest.fixture(scope="module")
def own(pairs: Blend) -> list[dict[str, list[int]]]:
    """Return TRL's own preparation of the source rows."""
    return trl.own_pairs(load_tokenizer(pairs), TEMPLATE, ROWS)


def load_tokenizer(pairs: Blend) -> Path:
    assert pairs.declaration.tokenizer is not None
    assert pairs.declaration.tokenizer.path is not None
    return pairs.declaration.tokenizer.path


def find_folder(pairs: Blend) -> Path:
    return pairs.run_directory / "splits" / "train"


@pytest.fixture(scope="module")
def order(pairs: Blend) -> list[int]:
    """Return the number of the source row of each row of the run."""
    tracer = pairs.component.tracer(pairs.store)
    samples = range(2 * len(ROWS))
    found = [trace_documents(tracer, view="kto", split="train", sample=sample, decode=False) for sample in samples]
    assert [one.row for (one,) in found[::2]] == [one.row for (one,) in found[1::2]]
    return [one.row - 1 for (one,) in found[::2]]


def test_ids_of_prompt_chosen_and_rejected_equal_trls_own(
    pairs: Blend, own: list[dict[str, list[int]]], order: list[int]
) -> None:
    stored = dict(zip(order, trl.stored_pairs(find_folder(pairs)), strict=True))
    assert [number for number in range(len(ROWS)) if stored[number] != own[number]] == [EQUAL, EQUAL + 1]
    # In the first of these pairs, the text of a special token is several ids in the view, but one id in TRL.
    assert len(stored[EQUAL]["prompt_ids"]) > len(own[EQUAL]["prompt_ids"])
    assert stored[EQUAL]["chosen_ids"] == own[EQUAL]["chosen_ids"]
    # In the second of these pairs, TRL drops the last token of the prompt.
    assert stored[EQUAL + 1]["prompt_ids"][:-1] == own[EQUAL + 1]["prompt_ids"]


def test_trls_preparation_of_the_parquet_equals_that_of_the_source(
    pairs: Blend, own: list[dict[str, list[int]]], order: list[int]
) -> None:
    prepared = trl.own_pairs_of_parquet(load_tokenizer(pairs), TEMPLATE, find_folder(pairs))
    assert prepared == [own[number] for number in order]


def test_answers_of_the_kto_view_equal_trls_own(
    pairs: Blend, own: list[dict[str, list[int]]], order: list[int]
) -> None:
    prepared = trl.own_answers_of_view(load_tokenizer(pairs), TEMPLATE, pairs.directory("kto"), "train")
    ids = [own[number] for number in order]
    assert [row["label"] for row in prepared] == [True, False] * len(ids)
    chosen = [(row["prompt_ids"], row["completion_ids"]) for row in prepared[::2]]
    rejected = [(row["prompt_ids"], row["completion_ids"]) for row in prepared[1::2]]
    assert chosen == [(row["prompt_ids"], row["chosen_ids"]) for row in ids]
    assert rejected == [(row["prompt_ids"], row["rejected_ids"]) for row in ids]


def test_every_step_has_the_same_loss(pairs: Blend, order: list[int]) -> None:
    trained = order[: 4 * trl.STEPS]
    rows = [ROWS[number] for number in trained]
    assert max(trained) < EQUAL
    theirs = trl.pair_losses(load_tokenizer(pairs), TEMPLATE, rows)
    assert len(theirs) == trl.STEPS
    for use_ids in (False, True):
        ours = trl.parquet_losses(load_tokenizer(pairs), TEMPLATE, find_folder(pairs), use_ids=use_ids)
        assert ours == pytest.approx(theirs, abs=1e-6)
