"""Application of the declared transforms to a record.

Entry point: `apply_transforms`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dataprep_assets.curation.module_code import locate_in_project
from dataprep_assets.errors import BadRecordError, DataprepError
from dataprep_assets.pipelines.blend.rl.options import RlRules
from dataprep_assets.pipelines.blend.rl.transforms import Record, TransformStep
from dataprep_assets.pipelines.blend.screening.reasons import BAD_PLACEHOLDER, NO_PREFERENCE, NO_PROMPT


@dataclass(frozen=True)
class SkippedRecord:
    """Outcome for a record that is skipped and counted; `by` is the name of the transform that left it out."""

    by: str


@dataclass(frozen=True)
class RefusedRecord:
    """Outcome for a bad record, with the reason."""

    reason: str


def apply_transforms(
    record: Record,
    steps: Sequence[TransformStep],
    rules: RlRules,
    location: str,
    note_unread: Callable[[str], None] = lambda _: None,
) -> Record | SkippedRecord | RefusedRecord:
    """Apply the transforms to a record; return the new record, or the outcome if the record is left out.

    Args:
        record: A row of the source, which is not changed.
        steps: The declared transforms, from `compose_steps`.
        rules: The rules for records.
        location: The location of the row, for messages.
        note_unread: Called with the name of each field that a step leaves out although no option lists the field.

    Raises BadRecordError if a user's function raises an error, or returns neither a record nor None.
    """
    current_record = record
    for step in steps:
        if step.malformed(current_record):
            return RefusedRecord(BAD_PLACEHOLDER)
        # Check the prompt before the step. The step would also skip a record without the prompt's field, but would not
        # report that the prompt is missing.
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
    # Refuse pairs without a preference, except under Nemotron's rules (`without_prompt` is `left_out`), because
    # Nemotron writes such pairs.
    if rules.without_prompt == "bad_record" and _has_no_preference(current_record):
        return RefusedRecord(NO_PREFERENCE)
    return current_record


def _has_no_preference(record: Record) -> bool:
    """Return whether a record's chosen and rejected answers express no preference: they are equal, or one is empty."""
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
    # A list has messages or parts of a message. It is empty if all of them are empty.
    return answer is None or (isinstance(answer, list) and all(map(_is_empty, answer)))


def _apply_step(record: Record, step: TransformStep, location: str) -> Record | None:
    """Return the record after a step; None if the step leaves it out.

    Raises BadRecordError if the step's function raises an error, or returns neither a record nor None.
    """
    try:
        next_record: Any = step.transform(record)
    except KeyError as error:
        # Skip the record, because a KeyError in a built-in transform means that the record lacks a required field.
        if not step.is_user_function:
            return None
        raise _build_transform_error(location, step.name, error) from None
    except Exception as error:  # catch every error of a user's function, because the message must name the row
        # Raise an error about a placeholder's file unchanged, because the error already names the file.
        if isinstance(error, DataprepError) and not step.is_user_function:
            raise
        raise _build_transform_error(location, step.name, error) from None
    if next_record is not None and not isinstance(next_record, dict):
        raise BadRecordError(
            f"{location}: {step.name} returned a {type(next_record).__name__}, not a dict or None. Correct the function"
        )
    return next_record


def _build_transform_error(where: str, name: str, error: Exception) -> BadRecordError:
    # Omit the error's message, because it may quote the record.
    location = locate_in_project(error)
    error_name = type(error).__name__ + (f" ({location})" if location else "")
    text = f"{where}: {name} raised {error_name}. Correct the function, or return None to drop the record"
    return BadRecordError(text, code=location) if location else BadRecordError(text)


def _describe_missing_prompt(
    record: Record, paths: Sequence[tuple[str, ...]], rules: RlRules
) -> SkippedRecord | RefusedRecord | None:
    """Return the outcome for a record without a prompt at any of these paths; None if the record is kept."""
    states = {_find_state(record, path) for path in paths}
    if "there" in states or not rules.asks_for_prompts:
        return None
    if rules.without_prompt == "bad_record":
        return RefusedRecord(NO_PROMPT)
    # Follow Nemotron, which skips records with an absent prompt, and keeps records with an empty prompt.
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
