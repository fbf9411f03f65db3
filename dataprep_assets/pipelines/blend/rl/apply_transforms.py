"""Application of the transforms to a record, with a result or the reason why there is none.

Entry point: `apply_transforms`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dataprep_assets.curation.module_code import place_in_project
from dataprep_assets.errors import BadRecordError, DataprepError
from dataprep_assets.pipelines.blend.rl.options import RlRules
from dataprep_assets.pipelines.blend.rl.transforms import Record, TransformStep

LEFT_OUT_BY = "left_out_by_"
"""Prefix of the drop reason for records that a transform left out."""
NO_PROMPT = "no_prompt"
"""Drop reason for a bad record without a prompt."""
NO_PREFERENCE = "no_preference"
"""Drop reason for a pair of answers with equal sides, or with an empty one."""
BAD_PLACEHOLDER = "bad_placeholder"
"""Drop reason for a record with a malformed placeholder."""


@dataclass(frozen=True)
class SkippedRecord:
    """A record that is skipped and counted, with the name of the transform that left it out."""

    by: str


@dataclass(frozen=True)
class Refused:
    """A bad record, with its reason."""

    reason: str


def apply_transforms(
    record: Record, steps: Sequence[TransformStep], rules: RlRules, where: str
) -> Record | SkippedRecord | Refused:
    """Apply the steps to a record.

    Args:
        record: A row of the source; it is not changed.
        steps: The declared transforms, from `compose`.
        rules: The rules for records.
        where: The row, for messages.

    Raises BadRecordError if a user's function raises or does not return a record.
    """
    current_record = record
    for step in steps:
        if step.malformed(current_record):
            return Refused(BAD_PLACEHOLDER)
        # this check comes first, because the step would leave out a record without its prompt as one without a field
        if step.prompts and rules.prompt_keys is None and not step.brings_prompt(current_record):
            lacking = _missing_prompt_outcome(current_record, step.prompts, rules)
            if lacking is not None:
                return lacking
        next_record = _apply_step(current_record, step, where)
        if next_record is None:
            return SkippedRecord(step.name)
        current_record = next_record
    if (
        rules.prompt_keys is not None
        and (lacking := _missing_prompt_outcome(current_record, [rules.prompt_keys], rules)) is not None
    ):
        return lacking
    # only for `bad_record`, because Nemotron writes such pairs
    if rules.without_prompt == "bad_record" and _prefers_nothing(current_record):
        return Refused(NO_PREFERENCE)
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
    # this is a list of messages, or of the parts of a message
    return answer is None or (isinstance(answer, list) and all(map(_is_empty, answer)))


def _apply_step(record: Record, step: TransformStep, where: str) -> Record | None:
    try:
        next_record: Any = step.transform(record)
    except KeyError as error:
        # our transforms look up the fields that they need, so the key is a field that this record lacks
        if not step.is_own:
            return None
        raise _transform_error(where, step.name, error) from None
    except Exception as error:  # a user function may raise anything, and the row must be named
        # reading a placeholder's file raised this error, whose message already names the file
        if isinstance(error, DataprepError) and not step.is_own:
            raise
        raise _transform_error(where, step.name, error) from None
    if next_record is not None and not isinstance(next_record, dict):
        raise BadRecordError(f"{where}: {step.name} returned a {type(next_record).__name__}, not a dict or None")
    return next_record


def _transform_error(where: str, name: str, error: Exception) -> BadRecordError:
    # without the error's message, because it may quote the record
    location = place_in_project(error)
    error_name = type(error).__name__ + (f" ({location})" if location else "")
    text = f"{where}: {name} raised {error_name}. Correct it, or return None to drop the record"
    return BadRecordError(text, code=location) if location else BadRecordError(text)


def _missing_prompt_outcome(
    record: Record, places: Sequence[tuple[str, ...]], rules: RlRules
) -> SkippedRecord | Refused | None:
    """Return the outcome for a record without a prompt at any of these places; None if it has one."""
    states = {_state(record, path) for path in places}
    if "there" in states or not rules.asks_for_prompts:
        return None
    if rules.without_prompt == "bad_record":
        return Refused(NO_PROMPT)
    # Nemotron skips records with an absent prompt, and keeps records with an empty one
    return None if "empty" in states else SkippedRecord("prompt")


def _state(record: Any, place: Sequence[str]) -> Literal["there", "empty", "absent"]:
    value = record
    for key in place:
        if not isinstance(value, dict) or key not in value:
            return "absent"
        value = value[key]
    if isinstance(value, str):
        value = value.strip()
    return "there" if value else "empty"
