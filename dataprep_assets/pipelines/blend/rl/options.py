"""The options of stage `rl`, and the resulting rules for records.

The preset `like` chooses between this project's rules and the different rules of Nemotron's data_prep.
docs/components/training-blend.md#rllike explains each difference.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from dataprep_assets.engine.yaml.declaration import resolve_path
from dataprep_assets.engine.yaml.declaration_model import DeclarationModel

RESOLVE = "resolve_hf_placeholders"
"""Name of the transform that reads other datasets."""
AUTO, NOWHERE = "auto", "none"


@dataclass(frozen=True, kw_only=True)
class RlRules:
    """Rules for the treatment of records. Instances are picklable.

    Attributes:
        other_records: Fields that `resolve_hf_placeholders` keeps in records without a placeholder. `whole`: all
            fields. `messages`: only messages and tools, like `nemotron_rl`.
        answers: Form of `expected_answer` if the text of a source's answer is a JSON value other than a nonempty list
            or object: its `text`, or the `parsed` value.
        params: Whether the prompt is `merged` into the `responses_create_params` of a record with a placeholder, or
            replaces them (`replaced`).
        null_placeholder: Meaning of a null `_hf_placeholder`. `none`: it counts as no placeholder. `unresolved`: it
            counts as an unresolved placeholder.
        other_templates: Treatment of a DAPO template that is not an object of prefix and suffix. `used`: text with
            `{question}` is the template, and other values count as no prefix and no suffix. `ignored`: the question
            stays unchanged.
        without_prompt: Treatment of a record without a prompt. `bad_record`: a record with an absent or empty prompt is
            a bad record, and so is a pair without a preference. `left_out`: a record with an absent prompt is omitted,
            but empty prompts and such pairs are accepted.
        null_affix: Form of a null prefix or suffix of DAPO: `empty`, or `printed` as "None".
        malformed: Treatment of a record with a malformed placeholder. `left_out`: it is omitted. `bad_record`: it is a
            bad record (`bad_placeholder`).
        boolean_row: Meaning of a placeholder whose `row` is true or false. `unresolved`: it cannot be resolved.
            `number`: it is row 1 or 0.
        column_nulls: Null fields that the schema of a Parquet or Arrow file adds to a row: `left_out` or `kept`. With
            `kept`, JSON columns also stay text.
        prompt: The key `prompt` of `RlOptions`.
    """

    other_records: Literal["whole", "messages"] = "whole"
    answers: Literal["text", "parsed"] = "text"
    params: Literal["merged", "replaced"] = "merged"
    null_placeholder: Literal["none", "unresolved"] = "none"
    other_templates: Literal["used", "ignored"] = "used"
    without_prompt: Literal["bad_record", "left_out"] = "bad_record"
    null_affix: Literal["empty", "printed"] = "empty"
    malformed: Literal["left_out", "bad_record"] = "left_out"
    boolean_row: Literal["unresolved", "number"] = "unresolved"
    column_nulls: Literal["left_out", "kept"] = "left_out"
    prompt: str = AUTO

    @property
    def changes(self) -> dict[str, str]:
        """The rules that differ from this project's defaults, for artifact keys; empty by default."""
        return {name: value for name, value in asdict(self).items() if value != getattr(OURS, name)}

    @property
    def prompt_keys(self) -> tuple[str, ...] | None:
        """The keys that lead to the prompt in every output record, outermost first; None if `prompt` names no field."""
        return None if self.prompt in (AUTO, NOWHERE) else tuple(self.prompt.split("."))

    @property
    def reads_json(self) -> bool:
        """Whether Parquet rows are read as JSON (see `InputFile`)."""
        return self.column_nulls == "left_out"

    @property
    def asks_for_prompts(self) -> bool:
        """Whether records must have a prompt."""
        return self.prompt != NOWHERE


OURS = RlRules()
PRESETS: Mapping[str, RlRules] = {
    "ours": OURS,
    "nemotron": RlRules(
        other_records="messages",
        answers="parsed",
        params="replaced",
        null_placeholder="unresolved",
        other_templates="ignored",
        without_prompt="left_out",
        null_affix="printed",
        malformed="bad_record",
        boolean_row="number",
        column_nulls="kept",
    ),
}


class RlOptions(DeclarationModel):
    """Settings of the stage `rl`, which writes JSON Lines."""

    transforms: tuple[str | dict[str, Any], ...] = Field(
        ("passthrough",),
        min_length=1,
        description=(
            "Transforms of the records, applied in order. Each is a name, `name: {options}`, or `module:function`."
        ),
    )
    compression: Literal["none", "zstd"] = Field("none", description="Compression of the output files.")
    like: Literal["ours", "nemotron"] = Field(
        "ours",
        description=(
            "Preset for unusual records. `ours`: dataprep's rules. `nemotron`: the rules of Nemotron's `data_prep`."
        ),
    )
    prompt: str = Field(
        AUTO,
        pattern=r"^[^.\s]+(\.[^.\s]+)*$",
        description=(
            "Field of the output records that contains the prompt: keys joined by dots "
            "(`responses_create_params.input`). `auto`: the field to which the transforms write it. `none`: "
            "records need no prompt."
        ),
    )
    answer: str = Field(
        AUTO,
        pattern=r"^[^.\s]+(\.[^.\s]+)*$",
        description=(
            "Field of the output records that contains the expected answer, for `views` and `decontaminate`. `auto`: "
            "`reward_model.ground_truth`, `expected_answer`, `ground_truth`, `solution` or `answer`. `none`: "
            "records have no answers."
        ),
    )

    @property
    def rules(self) -> RlRules:
        """The rules that result from these options."""
        return replace(PRESETS[self.like], prompt=self.prompt)

    @property
    def identity(self) -> dict[str, Any]:
        """The values that, together with the transforms, determine the shards' bytes, for artifact keys."""
        return {"compression": self.compression, **self.rules.changes}

    @property
    def placeholder_paths(self) -> list[str]:
        """The paths of the placeholder sources. Invalid declarations are reported only when they are used."""
        steps = [entry.get(RESOLVE) for entry in self.transforms if isinstance(entry, dict)]
        sources = [step.get("sources") for step in steps if isinstance(step, dict)]
        declared_sources = [
            source for named_sources in sources if isinstance(named_sources, dict) for source in named_sources.values()
        ]
        return [str(source.get("path", "")) if isinstance(source, dict) else str(source) for source in declared_sources]

    def resolve_paths(self, folder: Path) -> Self:
        """Return a copy of these options with the paths of placeholder sources resolved against `folder`."""
        return self.model_copy(update={"transforms": tuple(_resolve_paths(entry, folder) for entry in self.transforms)})


def _resolve_paths(entry: str | dict[str, Any], folder: Path) -> str | dict[str, Any]:
    """Return a transform with the paths of its placeholder sources resolved.

    An invalid transform is returned unchanged, because its error is reported when it is used.
    """
    if not isinstance(entry, dict) or not isinstance(options := entry.get(RESOLVE), dict):
        return entry
    if not isinstance(sources := options.get("sources"), dict):
        return entry
    return {
        RESOLVE: {
            **options,
            "sources": {name: _resolve_source_paths(source, folder) for name, source in sources.items()},
        }
    }


def _resolve_source_paths(setting: Any, folder: Path) -> Any:
    if isinstance(setting, dict) and "path" in setting:
        return {**setting, "path": _resolve_source_paths(setting["path"], folder)}
    if not isinstance(setting, str) or "://" in setting:
        return setting
    return str(resolve_path(Path(setting), folder))
