"""The view `olmo_sft` in OLMo-core: its own packing and collation of the files gives the run's sequences and labels."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
from dataprep_assets_tests.readers import olmo_core
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer

pytestmark = pytest.mark.slow

ONE_END = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{{ '<|endoftext|>' if loop.last and m.role == 'assistant' else '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A template like OLMo's own: EOS only at the end of a conversation."""
ROWS = [make_conversation(number) for number in range(EQUAL)]


def declared(home: Path, template: str, rows: list[dict[str, Any]], **config: Any) -> BlendDeclaration:
    tokenizer = write_chat_tokenizer(home / "tokenizer").directory
    path = tokenizer / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | config))
    return BlendDeclaration.model_validate(
        {
            "dataset": "chats",
            "stage": "sft",
            "blend": {"datasets": [{"name": "chat", "path": str(write_rows(home / "chat.jsonl", rows))}]},
            "tokenizer": {"path": tokenizer, "engine": "tokenizers"},
            "sft": {"pack_size": 512, "chat_template": template},
            "num_shards": 3,
            "held_out": {"valid": 1},
            "views": ["olmo_sft", "sft_rows"],
        }
    )


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blend]:
    home = tmp_path_factory.mktemp("olmo")
    with open_blend(declared(home, TEMPLATE, ROWS), home / "artifacts") as made:
        outcomes = made.run_all()
        assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
        assert find_failed(read_evaluations(outcomes)) == REFERENCE
        yield made


def read_lines(made: Blend) -> list[str]:
    return [line for line in made.component.describe_trainers(made.store) if line.startswith("OLMo-core")]


def read_sequences(made: Blend) -> list[tuple[list[int], list[int]]]:
    """Return ids and labels of the sequences of the train split, from the other view."""
    import pyarrow as pa

    found = []
    for path in sorted((made.directory("sft_rows") / "train").glob("*.arrow")):
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
            found += [(row["input_ids"], row["labels"]) for row in reader.read_all().to_pylist()]
    return found


def test_its_documents_are_the_sequences_with_their_labels(chats: Blend, tmp_path: Path) -> None:
    """The tokenizer's EOS ends each turn, so a different token ends documents, and it is not trained."""
    line = read_lines(chats)[0].removeprefix("OLMo-core: ")
    facts = chats.store.require(chats.declaration.artifact("olmo_sft")).facts
    assert facts["settings"]["is_appended"] == 1
    end = facts["settings"]["eos_token_id"]
    instances = olmo_core.documents(line, tmp_path)
    assert {sum(len(ids) for ids, _ in documents) for documents in instances} == {512}
    padding = {facts["settings"]["pad_token_id"]}
    found = [document for documents in instances for document in documents if set(document[0]) != padding]
    assert all((ids[-1], labels[-1]) == (end, -100) for ids, labels in found)
    assert sorted((ids[:-1], labels[:-1]) for ids, labels in found) == sorted(read_sequences(chats))


def test_the_tokenizers_own_eos_would_split_conversations(chats: Blend, tmp_path: Path) -> None:
    line = read_lines(chats)[0].removeprefix("OLMo-core: ")
    settings = chats.store.require(chats.declaration.artifact("olmo_sft")).facts["settings"]
    own = json.loads((chats.declaration.required_tokenizer.path / "tokenizer.json").read_bytes())["added_tokens"]
    (eos,) = (token["id"] for token in own if token["content"] == "<|im_end|>")
    cut = line.replace(f"eos_token_id={settings['eos_token_id']}", f"eos_token_id={eos}")
    assert cut != line
    assert len([d for ds in olmo_core.documents(cut, tmp_path) for d in ds]) > 2 * len(read_sequences(chats))


def test_a_template_that_ends_conversations_with_eos_needs_no_other_token(tmp_path: Path) -> None:
    rows = [row for row in ROWS if "tools" not in row][:60]
    with open_blend(declared(tmp_path, ONE_END, rows, eos_token="<|endoftext|>"), tmp_path / "artifacts") as made:
        outcomes = made.run_all()
        assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
        assert find_failed(read_evaluations(outcomes)) == REFERENCE
        settings = made.store.require(made.declaration.artifact("olmo_sft")).facts["settings"]
        assert settings["is_appended"] == 0
        line = read_lines(made)[0].removeprefix("OLMo-core: ")
        found = [document for documents in olmo_core.documents(line, tmp_path / "work") for document in documents]
        whole = [document for document in found if document[0][-1] == settings["eos_token_id"]]
        assert sorted(whole) == sorted(read_sequences(made))
        # The stop token of an answer is EOS, so EOS is in the loss.
        assert all(labels[-1] == settings["eos_token_id"] for _, labels in whole)
