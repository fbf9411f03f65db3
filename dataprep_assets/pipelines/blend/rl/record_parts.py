"""The parts of an output record for which trainers have columns: prompt, expected answer, tools, and the rest.

Entry points: `PartPaths`, `PartPaths.split`, `RecordParts`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dataprep_assets.errors import BadRecordError
from dataprep_assets.formats.json_columns import ABSENT_VALUE, is_equal
from dataprep_assets.pipelines.blend.rl.options import AUTO, NOWHERE, RlOptions

Path = tuple[str, ...]
RESPONSE_INPUT: Path = ("responses_create_params", "input")
RESPONSE_TOOLS: Path = ("responses_create_params", "tools")
_PROMPTS: tuple[Path, ...] = (RESPONSE_INPUT, ("messages",), ("prompt",), ("conversations",), ("input",))
_ANSWERS: tuple[Path, ...] = (
    ("reward_model", "ground_truth"),
    ("expected_answer",),
    ("ground_truth",),
    ("solution",),
    ("answer",),
)
_TOOLS: tuple[Path, ...] = (RESPONSE_TOOLS, ("tools",))


@dataclass(frozen=True)
class RecordParts:
    """An output record and the locations of its parts.

    Attributes:
        record: The whole record.
        prompt: Location of the prompt.
        answer: Location of the expected answer; None if the record has none.
        tools: Location of the tools; None if the record has none.
    """

    record: dict[str, Any]
    prompt: Path
    answer: Path | None
    tools: Path | None

    def get_value(self, path: Path | None) -> Any:
        """Return the value at a location of the record; ABSENT_VALUE if there is no value, or `path` is None."""
        return ABSENT_VALUE if path is None else find_value(self.record, path)

    def get_text(self, name: str) -> str | None:
        """Return the text in a top-level field of the record; None if the field is absent or has a different type."""
        value = self.record.get(name)
        return value if isinstance(value, str) else None


@dataclass(frozen=True)
class PartPaths:
    """Declared locations of the prompt and the expected answer in output records: keys joined by dots, or `auto`."""

    prompt: str
    answer: str

    @classmethod
    def from_options(cls, options: RlOptions) -> "PartPaths":
        """Return the locations that the options declare."""
        return cls(options.prompt, options.answer)

    @cached_property
    def _prompt_paths(self) -> Sequence[Path]:
        return _PROMPTS if self.prompt in (AUTO, NOWHERE) else (tuple(self.prompt.split(".")),)

    @cached_property
    def _answer_paths(self) -> Sequence[Path]:
        return _ANSWERS if self.answer == AUTO else () if self.answer == NOWHERE else (tuple(self.answer.split(".")),)

    def split(self, record: Any) -> RecordParts:
        """Return the parts of a record. Raises BadRecordError if it has no prompt, or different prompts or answers."""
        if not isinstance(record, dict):
            raise BadRecordError(f"the record must be an object, not a {type(record).__name__}")
        prompt = _find_path(record, self._prompt_paths, "rl.prompt")
        if prompt is None:
            raise BadRecordError(
                f"no prompt found in {_join_paths(self._prompt_paths)}. Set its location in `rl.prompt`"
            )
        return RecordParts(
            record, prompt, _find_path(record, self._answer_paths, "rl.answer"), _find_path(record, _TOOLS, "")
        )

    def find_values(self, record: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        """Return the prompts and the expected answers of a record, at all declared or usual locations."""
        return _find_values(record, self._prompt_paths), _find_values(record, self._answer_paths)

    def find_tools(self, record: dict[str, Any]) -> Any:
        """Return the tools of a record; None if it has none."""
        return next(iter(_find_values(record, _TOOLS)), None)


def _find_path(record: dict[str, Any], paths: Sequence[Path], option: str) -> Path | None:
    found_paths = [path for path in paths if find_value(record, path) is not ABSENT_VALUE]
    if not found_paths:
        return None
    first_path, *other_paths = found_paths
    for other_path in other_paths:
        if option and not is_equal(find_value(record, first_path), find_value(record, other_path)):
            raise BadRecordError(f"{_join_paths([first_path, other_path])} differ. Set the location in `{option}`")
    return first_path


def _join_paths(paths: Sequence[Path]) -> str:
    return ", ".join(f"`{'.'.join(path)}`" for path in paths)


def find_value(record: Any, path: Path) -> Any:
    """Return the value at a location of a record; ABSENT_VALUE if there is no value."""
    value = record
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return ABSENT_VALUE
        value = value[key]
    return value


def _find_values(record: dict[str, Any], paths: Sequence[Path]) -> list[Any]:
    return [value for path in paths if (value := find_value(record, path)) is not ABSENT_VALUE]


def remove_paths(record: dict[str, Any], paths: Sequence[Path]) -> dict[str, Any]:
    """Return a copy of a record without the values at these locations, and without objects that become empty."""
    remaining = dict(record)
    for path in paths:
        _remove(remaining, path)
    return remaining


def _remove(record: dict[str, Any], path: Path) -> None:
    key, *inner = path
    if not inner:
        record.pop(key, None)
    elif isinstance(record.get(key), dict):
        child = dict(record[key])
        _remove(child, tuple(inner))
        if child:
            record[key] = child
        else:
            del record[key]
