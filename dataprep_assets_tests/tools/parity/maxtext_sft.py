"""The view `messages` in MaxText's pipeline for SFT, next to the packed rows of the same run.

`make_hf_train_iterator` reads the Parquet files with the settings that the run prints, and with the defaults of
MaxText's `base.yml` and `sft.yml`. MaxText renders each question and its answer as a separate conversation, does not
pass tools to the template, and trains the text after the stop token of an answer. A conversation in which an answer
does not follow a question stops the training. Entry point: `compare`.

The interpreter needs no packages of MaxText, because jax is installed in a folder if it is missing.
"""

import importlib
import importlib.util
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as parquet
import yaml  # type: ignore[import-untyped]

from dataprep_assets_tests.pipelines.blend.dagster_blend import Blend
from dataprep_assets_tests.pipelines.blend.sft.equal_conversations import CALL, TEMPLATE, TOOL
from dataprep_assets_tests.tools.parity.absent import empty_module, stand_in
from dataprep_assets_tests.tools.parity.pinned import installed
from dataprep_assets_tests.tools.parity.sft_views import (
    ROWS,
    is_equal_but_newlines,
    sequences,
    their_tokenizer,
    views,
)
from dataprep_assets_tests.tools.parity.table import Row

AREA, PACKED = "messages in MaxText", "packed rows of MaxText"
STOP, SHORT = "<|im_end|>", 100
NO_QUESTION, LATE_SYSTEM = "empty conversation", "must be at index 0"
"""Parts of the errors with which MaxText refuses a conversation."""
WITH_SYSTEM = (
    "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nKeep watch.<|im_end|>\n' }}{% endif %}" + TEMPLATE
)
"""A template that adds a system text to a conversation without one, as Qwen2.5's does."""
LAST_THOUGHTS = (
    "{% set last = namespace(question=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set last.question = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{% generation %}"
    "{% if m.reasoning_content and loop.index0 > last.question %}"
    "{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}{{ m.content + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A template that omits the reasoning before the last question, as Qwen3's does."""
OTHERS = 20
"""Number of conversations of each kind that the shared conversations do not contain."""
DEFAULTS = {"use_tunix_gradient_accumulation": False, "formatting_func_path": None, "formatting_func_kwargs": None}
"""MaxText's defaults that are in its `types.py` only."""
SETTINGS = {"enable_data_shuffling": False, "global_batch_size_to_load": 1, "grain_worker_count": 0}
Messages = list[dict[str, Any]]
Batch = Mapping[str, np.ndarray[Any, Any]]
Tokens = tuple[list[int], list[int]]
"""Ids of a sequence with its labels, or with its mask."""


def compare(folder: Path) -> list[Row]:
    """Rows for each kind of conversation. `folder` is a clone of MaxText, or the folder of its installed package."""
    source = folder / "src" if (folder / "src").exists() else folder
    theirs = _modules(source)
    rows: list[Row] = []
    for make_rows in (_equal_conversations, _separate_rounds, _other_kinds):
        with tempfile.TemporaryDirectory() as scratch:
            rows += make_rows(source, theirs, Path(scratch))
    return rows


def _modules(source: Path) -> SimpleNamespace:
    # Use MaxText's own stand-ins for the libraries of Google Cloud.
    os.environ.update(JAX_PLATFORMS="cpu", DECOUPLE_GCLOUD="TRUE")
    if importlib.util.find_spec("jax") is None:
        sys.path.append(str(installed("jax")))
    stand_in("ml_collections")
    if importlib.util.find_spec("pathwaysutils") is None:
        # Only runs with `elastic_enabled` use this module.
        empty_module("maxtext.utils.elastic_utils")
    sys.path.insert(0, str(source))
    names = {"pipeline": "hf_data_processing", "steps": "input_pipeline_utils"}
    return SimpleNamespace(
        **{key: importlib.import_module(f"maxtext.input_pipeline.{name}") for key, name in names.items()}
    )


def _equal_conversations(source: Path, theirs: SimpleNamespace, home: Path) -> Iterator[Row]:
    """Yield a row for each kind of the shared conversations, for packing, and for other settings of MaxText."""
    with views(home, "messages", "sft_rows") as made:
        tokenizer, ours = their_tokenizer(made), _read_packed(made)
        refused = _find_refusals(theirs, made, tokenizer)
        settings = _settings(source, made, tokenizer, home)
        assert NO_QUESTION in _read_error(theirs, settings), "MaxText no longer stops at a refused conversation"
        settings["hf_train_files"] = _write_accepted(made, refused, home)
        accepted = {number: tokens for number, tokens in ours.items() if number not in refused}
        found, misplaced = _read(theirs, settings)
        for kind in dict.fromkeys(map(name_kind, ROWS)):
            numbers = [number for number, row in enumerate(ROWS) if name_kind(row) == kind]
            equal = _find_equal(found, {n: accepted[n] for n in numbers if n in accepted}, tokenizer)
            explained = sum(NO_QUESTION in refused.get(number, "") for number in numbers)
            newlines = sum(sum(found[tuple(ours[n][0])][1]) - _count_trained(ours[n]) for n in equal)
            notes = [f"{newlines} newlines after answers are trained"] if equal else []
            notes += ["refused: an answer follows a tool result; the training stops"] if explained else []
            yield Row(AREA, kind, len(numbers), len(equal), explained, "; ".join(notes))
        note = "each conversation once, with its own positions and targets"
        yield Row(PACKED, "packing=true", len(accepted), len(found) - misplaced, 0, note)
        found, misplaced = _read(theirs, settings | {"packing": False})
        equal = _find_equal(found, accepted, tokenizer)
        yield Row(PACKED, "packing=false", len(accepted), len(equal) - misplaced, 0, "one conversation per row")
        plain = _settings(source, made, tokenizer, home, "base.yml") | {"hf_train_files": settings["hf_train_files"]}
        equal = _find_equal(_read(theirs, plain)[0], accepted, tokenizer)
        yield Row(AREA, "only base.yml", len(accepted), len(equal), 0, "the printed settings without sft.yml")
        found, _ = _read(theirs, settings | {"max_target_length": SHORT})
        truncated = {number: (ids[:SHORT], labels[:SHORT]) for number, (ids, labels) in accepted.items()}
        equal = _find_equal(found, accepted, tokenizer)
        explained = len(_find_equal(found, truncated, tokenizer) - equal)
        note = "explained: MaxText truncates longer conversations"
        yield Row(AREA, f"max_target_length={SHORT}", len(accepted), len(equal), explained, note)
        tokenizer.pad_token = STOP
        settings["tokenizer_path"] = _save(tokenizer, home / "stop_as_pad")
        found, _ = _read(theirs, settings)
        stop = tokenizer.pad_token_id
        without_stop = {n: (ids, [-100 if i == stop else i for i in labels]) for n, (ids, labels) in accepted.items()}
        explained = len(_find_equal(found, without_stop, tokenizer))
        note = f"explained: MaxText does not train the pad token, which is {STOP} here"
        yield Row(AREA, "stop token as pad token", len(accepted), 0, explained, note)


def _separate_rounds(source: Path, theirs: SimpleNamespace, home: Path) -> Iterator[Row]:
    """Yield a row for each template that depends on other turns, next to sequences of one question and answer each."""
    plain = [row["messages"] for row in ROWS if "tools" not in row]
    thoughtful = [[_add_reasoning(message) for message in messages] for messages in plain]
    cases = (
        ("system text of the template", WITH_SYSTEM, plain, "adds the template's system text before each question"),
        ("reasoning", LAST_THOUGHTS, thoughtful, "trains the reasoning of all answers in one sequence"),
    )
    for number, (shape, template, conversations, cause) in enumerate(cases):
        whole, parts = home / str(number), home / f"{number}_parts"
        whole.mkdir()
        parts.mkdir()
        rounds = [(at, part) for at, messages in enumerate(conversations) for part in split_rounds(messages)]
        rows = [{"messages": part} for _, part in rounds]
        with views(parts, "sft_rows", template=template, rows=rows) as made:
            tokenizer, separate = their_tokenizer(made, template), sequences(made)
        joined: dict[int, Tokens] = {}
        for row, (at, _) in enumerate(rounds):
            ids, labels = joined.setdefault(at, ([], []))
            ids += separate[row][0]
            labels += separate[row][1]
        rows = [{"messages": messages} for messages in conversations]
        with views(whole, "messages", "sft_rows", template=template, rows=rows) as made:
            found, _ = _read(theirs, _settings(source, made, tokenizer, whole))
            equal = _find_equal(found, _read_packed(made), tokenizer)
        explained = _find_equal(found, joined, tokenizer) - equal
        yield Row(AREA, shape, len(rows), len(equal), len(explained), f"explained: MaxText {cause}")


def _other_kinds(source: Path, theirs: SimpleNamespace, home: Path) -> Iterator[Row]:
    """Yield a row for each kind of conversation that the shared conversations do not contain."""
    for number, kind in enumerate(OTHER_KINDS):
        place = home / str(number)
        place.mkdir()
        rows = [kind.change(row["messages"]) for row in ROWS if "tools" not in row][:OTHERS]
        with views(place, "messages", "sft_rows", rows=rows) as made:
            tokenizer, ours = their_tokenizer(made), _read_packed(made)
            refused = _find_refusals(theirs, made, tokenizer)
            equal, explained = set[int](), {row for row, error in refused.items() if kind.cause in error}
            if not refused:
                found, _ = _read(theirs, _settings(source, made, tokenizer, place))
                rendered = {row: kind.render(one["messages"], tokenizer) for row, one in _load_rows(made).items()}
                equal = _find_equal(found, ours, tokenizer)
                explained = _find_equal(found, rendered, tokenizer) - equal
            note = f"{'refused' if refused else 'explained'}: {kind.cause}" if explained else ""
            yield Row(AREA, kind.name, len(ours), len(equal), len(explained), note)


def name_kind(row: dict[str, Any]) -> str:
    """Return the kind of one of the shared conversations."""
    if "tools" in row:
        return "calls and results"
    roles = Counter(message["role"] for message in row["messages"])
    return ("system, " if roles["system"] else "") + ("several questions" if roles["user"] > 1 else "one question")


def split_rounds(messages: Messages) -> list[Messages]:
    """Return each question with its answer; the first also has the system text."""
    rounds: list[Messages] = [[]]
    for message in messages:
        rounds[-1].append(message)
        if message["role"] == "assistant":
            rounds.append([])
    return [messages for messages in rounds if messages]


def _add_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    return message | ({"reasoning_content": "First the tide."} if message["role"] == "assistant" else {})


def _end_with_call(messages: Messages) -> dict[str, Any]:
    call = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    return {"messages": [*messages[:-1], call], "tools": [TOOL]}


def _answer_twice(messages: Messages) -> dict[str, Any]:
    return {"messages": [*messages, messages[-1]]}


def _add_late_system(messages: Messages) -> dict[str, Any]:
    return {"messages": [*messages, {"role": "system", "content": "Be brief."}, *messages[-2:]]}


def _ask_twice(messages: Messages) -> dict[str, Any]:
    return {"messages": [*messages[:-1], {"role": "user", "content": "And then?"}, messages[-1]]}


def _untrained_answer(messages: Messages) -> dict[str, Any]:
    first, last = messages[:-1], messages[-1]
    return {"messages": [*first, last | {"train": False}, {"role": "user", "content": "And then?"}, last]}


def _render(messages: Messages, tokenizer: Any, **options: Any) -> Tokens:
    """Return ids and labels by transformers, without tools."""
    both = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True, **options)
    ids, masks = both["input_ids"], both["assistant_masks"]
    return ids, [i if mask else -100 for i, mask in zip(ids, masks, strict=True)]


def _render_each_question(messages: Messages, tokenizer: Any) -> Tokens:
    """Return ids and labels with the text before the second of two questions repeated, as MaxText 0.2.4 repeats it."""
    ids, labels = list[int](), list[int]()
    for one_round in split_rounds(messages):
        ends = [end for end, message in enumerate(one_round, 1) if message["role"] == "user"]
        parts = [_render(one_round[:end], tokenizer, add_generation_prompt=True) for end in ends[:-1]]
        for part in (*parts, _render(one_round, tokenizer)):
            ids += part[0]
            labels += part[1]
    return ids, labels


class OtherKind(NamedTuple):
    """A kind of conversation: how to make it, the cause of a difference or MaxText's error, and the expected tokens."""

    name: str
    change: Callable[[Messages], dict[str, Any]]
    cause: str
    render: Callable[[Messages, Any], Tokens] = _render


OTHER_KINDS = (
    OtherKind("a call at the end", _end_with_call, "no tools in the text, and arguments are JSON text in a string"),
    OtherKind("two questions", _ask_twice, "the first question is in the text twice", _render_each_question),
    OtherKind("an answer with train: false", _untrained_answer, "MaxText trains the answer"),
    OtherKind("two answers", _answer_twice, NO_QUESTION),
    OtherKind("a late system text", _add_late_system, LATE_SYSTEM),
)


def read_segments(batch: Batch) -> Iterator[tuple[Tokens, bool]]:
    """Yield ids and mask of each conversation of a batch, and whether its positions and targets are its own.

    A target is one position before its token, and is in the loss if its segment is not 0.
    """
    for row in range(len(batch["inputs"])):
        ids, segments, targets = (batch[name][row] for name in ("inputs", "inputs_segmentation", "targets"))
        for number in np.unique(segments[segments != 0]):
            (at,) = np.nonzero(segments == number)
            mask = batch["targets_segmentation"][row][at] != 0
            if len(set(ids[at])) == 1 and not mask.any():
                # Without packing, MaxText also sets the segments of the padding to the id of the pad token.
                continue
            is_own = (
                not mask[-1]
                and np.array_equal(batch["inputs_position"][row][at], np.arange(len(at)))
                and np.array_equal(targets[at][mask], ids[at][1:][mask[:-1]])
            )
            yield (ids[at].tolist(), [0, *mask[:-1].astype(int).tolist()]), bool(is_own)


def _read(theirs: SimpleNamespace, settings: Mapping[str, Any]) -> tuple[dict[tuple[int, ...], Tokens], int]:
    """Return MaxText's conversations by their ids, and the number of misplaced or repeated ones."""
    found: dict[tuple[int, ...], Tokens] = {}
    misplaced = 0
    for batch in _batches(theirs, settings):
        for tokens, is_own in read_segments(batch):
            key = tuple(tokens[0])
            misplaced += key in found or not is_own
            found[key] = tokens
    return found, misplaced


def _batches(theirs: SimpleNamespace, settings: Mapping[str, Any]) -> Iterator[Batch]:
    jax = importlib.import_module("jax")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    for batch in theirs.pipeline.make_hf_train_iterator(SimpleNamespace(**settings), mesh, [0]):
        yield {name: np.asarray(values) for name, values in batch.items()}


def _read_error(theirs: SimpleNamespace, settings: Mapping[str, Any]) -> str:
    """Return the error that stops MaxText's iterator; an empty text if there is none."""
    try:
        for _ in _batches(theirs, settings):
            pass
    except Exception as error:  # grain changes the class of errors
        return str(error)
    return ""


def _settings(source: Path, made: Blend, tokenizer: Any, home: Path, *files: str) -> dict[str, Any]:
    """Return MaxText's defaults in these files, or in those for SFT, with the settings that the run prints."""
    settings: dict[str, Any] = {**DEFAULTS}
    for name in files or ("base.yml", "post_train/sft.yml"):
        settings |= yaml.safe_load((source / "maxtext" / "configs" / name).read_text(encoding="utf-8"))
    (line,) = (line for line in made.component.describe_trainers(made.store) if line.startswith("MaxText: "))
    printed = dict(setting.split("=", 1) for setting in line.partition(": ")[2].split(" "))
    settings |= {name: yaml.safe_load(value) for name, value in printed.items()}
    return settings | SETTINGS | {"tokenizer_path": _save(tokenizer, home / "theirs")}


def _save(tokenizer: Any, folder: Path) -> str:
    tokenizer.save_pretrained(str(folder))
    return str(folder)


def _load_rows(made: Blend) -> dict[int, dict[str, Any]]:
    """Return the rows of the Parquet files as `datasets` loads them, by the number of the source row, from 0."""
    load_dataset = importlib.import_module("datasets").load_dataset
    files = str(made.directory("messages") / "train" / "*.parquet")
    loaded = load_dataset("parquet", data_files=files, split="train", streaming=True)
    return {row["extra_info"]["row"] - 1: row for row in loaded}


def _find_refusals(theirs: SimpleNamespace, made: Blend, tokenizer: Any) -> dict[int, str]:
    """Return MaxText's error for each row that it refuses."""
    refused = {}
    for number, row in _load_rows(made).items():
        try:
            theirs.steps.apply_chat_template(row, tokenizer, "messages")
        except ValueError as error:
            refused[number] = str(error)
    return refused


def _write_accepted(made: Blend, refused: Iterable[int], home: Path) -> str:
    """Write a copy of the Parquet files without the refused rows, and return its glob."""
    target = home / "accepted"
    target.mkdir()
    for path in sorted((made.directory("messages") / "train").glob("*.parquet")):
        table = parquet.read_table(path)
        accepted = [info["row"] - 1 not in refused for info in table["extra_info"].to_pylist()]
        parquet.write_table(table.filter(accepted), target / path.name)
    return str(target / "*.parquet")


def _read_packed(made: Blend) -> dict[int, Tokens]:
    """Return ids and labels of the packed rows by the number of the source row, from 0.

    Of a conversation with several sequences, only the last one is returned.
    """
    numbers = {tuple(ids): number for number, (ids, _) in sequences(made).items()}
    packed: dict[int, Tokens] = {}
    for path in sorted(made.run_directory.glob("splits/train/*.parquet")):
        for row in parquet.read_table(path).to_pylist():
            for start, end in pairwise([*row["seq_start_id"], len(row["input_ids"])]):
                ids, mask = row["input_ids"][start:end], [0, *row["loss_mask"][start : end - 1]]
                if (number := numbers.get(tuple(ids))) is not None:
                    packed[number] = ids, [i if m else -100 for i, m in zip(ids, mask, strict=True)]
    assert len(packed) == len(numbers)
    return packed


def _find_equal(found: Mapping[tuple[int, ...], Tokens], wanted: Mapping[int, Tokens], tokenizer: Any) -> set[int]:
    """Return the numbers of wanted sequences that MaxText has, except for newlines after answers."""
    return {
        number
        for number, (ids, labels) in wanted.items()
        if is_equal_but_newlines(*found.get(tuple(ids), ([], [])), ids, labels, tokenizer)
    }


def _count_trained(tokens: Tokens) -> int:
    return sum(label != -100 for label in tokens[1])
