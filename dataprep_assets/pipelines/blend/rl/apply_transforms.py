"""Applies the transforms to a record.

Entry point: `apply_transforms`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dataprep_assets.curation.module_code import locate_in_project
from dataprep_assets.errors import BadRecordError, DataprepError
from dataprep_assets.pipelines.blend.rl.options import RlRules
from dataprep_assets.pipelines.blend.rl.transforms import Record, TransformStep

LEFT_OUT_BY = "left_out_by_"
"""Prefix of the drop reason for records that a transform left out."""
NO_PROMPT = "no_prompt"
"""Drop reason for a bad record without a prompt."""
NO_PREFERENCE = "no_preference"
"""Drop reason for a pair of answers with equal sides or an empty side."""
BAD_PLACEHOLDER = "bad_placeholder"
"""Drop reason for a record with a malformed placeholder."""


@dataclass(frozen=True)
class SkippedRecord:
    """A record that is skipped and counted, with the name of the transform that left it out."""

    by: str


@dataclass(frozen=True)
class RefusedRecord:
    """A bad record, with its reason."""

    reason: str


def apply_transforms(
    record: Record,
    steps: Sequence[TransformStep],
    rules: RlRules,
    location: str,
    note_unread: Callable[[str], None] = lambda _: None,
) -> Record | SkippedRecord | RefusedRecord:
    """Apply the steps to a record.

    Args:
        record: A row of the source; it is not changed.
        steps: The declared transforms, from `compose`.
        rules: The rules for records.
        location: The row, for messages.
        note_unread: Called with each field that a step leaves out although no option lists it.

    Raises BadRecordError if a user's function raises or does not return a record.
    """
    current_record = record
    for step in steps:
        if step.malformed(current_record):
            return RefusedRecord(BAD_PLACEHOLDER)
        # check this first, because the step would report a record without its prompt as one without a field
        if step.prompts and rules.prompt_keys is None and not step.brings_prompt(current_record):
            outcome = _describe_missing_prompt(current_record, step.prompts, rules)
            if outcome is not None:
                return outcome
        next_record = _apply_step(current_record, step, location)
        if next_record is None:
            return SkippedRecord(step.name)
        for field in step.find_unread(current_record):
            note_unread(field)
        current_record = next_record
    if (
        rules.prompt_keys is not None
        and (outcome := _describe_missing_prompt(current_record, [rules.prompt_keys], rules)) is not None
    ):
        return outcome
    # only for `bad_record`, because Nemotron writes such pairs
    if rules.without_prompt == "bad_record" and _prefers_nothing(current_record):
        return RefusedRecord(NO_PREFERENCE)
    return current_record


def _prefers_nothing(record: Record) -> bool:
    """Return whether a pair of answers is equal or has an empty side, so that a reward model would learn nothing."""
    if not {"chosen", "rejected"} <= record.keys():
        return False
    chosen_answer, rejected = record["chosen"], record["rejected"]
    return chosen_answer == rejected or _is_empty(chosen_answer) or _is_empty(rejected)


def _is_empty(answer: Any) -> bool:
    """Return whether an answer, as a text or a list of messages, has no text and no tool calls."""
    if isinstance(answer, str):
        return not answer.strip()
    if isinstance(answer, dict):
        return "content" in answer and not answer.get("tool_calls") and _is_empty(answer["content"])
    # a list of messages, or of parts of a message
    return answer is None or (isinstance(answer, list) and all(map(_is_empty, answer)))


def _apply_step(record: Record, step: TransformStep, location: str) -> Record | None:
    """Return the result of one step; raise BadRecordError if its function fails or returns no record."""
    try:
        next_record: Any = step.transform(record)
    except KeyError as error:
        # our transforms look up the fields that they need, so the KeyError's key is a field that this record lacks
        if not step.is_own:
            return None
        raise _transform_error(location, step.name, error) from None
    except Exception as error:  # a user function may raise anything, and the row must be named
        # the error is from reading a placeholder's file, and its message already names the file
        if isinstance(error, DataprepError) and not step.is_own:
            raise
        raise _transform_error(location, step.name, error) from None
    if next_record is not None and not isinstance(next_record, dict):
        raise BadRecordError(
            f"{location}: {step.name} returned a {type(next_record).__name__}, not a dict or None. Correct the function"
        )
    return next_record


def _transform_error(where: str, name: str, error: Exception) -> BadRecordError:
    # omit the error's message, because it may quote the record
    location = locate_in_project(error)
    error_name = type(error).__name__ + (f" ({location})" if location else "")
    text = f"{where}: {name} raised {error_name}. Correct the function, or return None to drop the record"
    return BadRecordError(text, code=location) if location else BadRecordError(text)


def _describe_missing_prompt(
    record: Record, paths: Sequence[tuple[str, ...]], rules: RlRules
) -> SkippedRecord | RefusedRecord | None:
    """Return the outcome for a record without a prompt at any of these paths; None if it has a prompt."""
    states = {_find_state(record, path) for path in paths}
    if "there" in states or not rules.asks_for_prompts:
        return None
    if rules.without_prompt == "bad_record":
        return RefusedRecord(NO_PROMPT)
    # Nemotron skips records with an absent prompt, and keeps records with an empty prompt
    return None if "empty" in states else SkippedRecord("prompt")


def _find_state(record: Any, path_keys: Sequence[str]) -> Literal["there", "empty", "absent"]:
    value = record
    for key in path_keys:
        if not isinstance(value, dict) or key not in value:
            return "absent"
        value = value[key]
    if isinstance(value, str):
        value = value.strip()
    return "there" if value else "empty"
