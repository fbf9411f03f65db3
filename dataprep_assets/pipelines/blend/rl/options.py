"""The options of stage `rl`, and the rules for records that follow from them.

If this project and Nemotron's data_prep treat a record differently, an option chooses between them. `like` sets the
defaults of all of them; an explicit option takes precedence. docs/formats/rl-jsonl.md explains the differences.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from dataprep_assets.graph.declaration import resolved
from dataprep_assets.graph.declared import Declared

__all__ = ["OURS", "RESOLVE", "RlOptions", "RlRules"]

RESOLVE = "resolve_hf_placeholders"
"""The transform that reads other datasets."""
AUTO, NOWHERE = "auto", "none"


@dataclass(frozen=True, kw_only=True)
class RlRules:
    """How a record is treated; the attributes are keys of `RlOptions` and are described there. Picklable."""

    other_records: Literal["whole", "messages"] = "whole"
    answers: Literal["text", "parsed"] = "text"
    params: Literal["merged", "replaced"] = "merged"
    null_placeholder: Literal["none", "unresolved"] = "none"
    other_templates: Literal["used", "ignored"] = "used"
    without_prompt: Literal["bad_record", "left_out"] = "bad_record"
    null_affix: Literal["empty", "printed"] = "empty"
    malformed: Literal["left_out", "bad_record"] = "left_out"
    boolean_row: Literal["unresolved", "number"] = "unresolved"
    prompt: str = AUTO

    @property
    def changes(self) -> dict[str, str]:
        """The rules that differ from this project's defaults, for keys: without a difference a key stays as it was."""
        return {name: value for name, value in asdict(self).items() if value != getattr(OURS, name)}

    @property
    def prompt_keys(self) -> tuple[str, ...] | None:
        """The keys at which every finished record must have its prompt, outermost first; None: transforms decide."""
        return None if self.prompt in (AUTO, NOWHERE) else tuple(self.prompt.split("."))

    @property
    def asks_for_prompts(self) -> bool:
        """Whether a record must have a prompt at all."""
        return self.prompt != NOWHERE


OURS = RlRules()
_LIKE: Mapping[str, RlRules] = {
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
    ),
}


class RlOptions(Declared):
    """JSON lines."""

    transforms: tuple[str | dict[str, Any], ...] = Field(
        ("passthrough",),
        min_length=1,
        description="Applied in order: a name, `name: {options}`, or `module:function`.",
    )
    compression: Literal["none", "zstd"] = Field("none", description="Compression of the output files.")
    like: Literal["ours", "nemotron"] = Field(
        "ours",
        description="Sets the defaults of the keys below; `nemotron`: lines as Nemotron's data_prep writes them.",
    )
    other_records: Literal["whole", "messages"] | None = Field(
        None,
        description="Records without a placeholder, in `resolve_hf_placeholders`: `whole` as they are; `messages` "
        "and tools only, as `nemotron_rl` gives them. `ours`: `whole`; `nemotron`: `messages`.",
    )
    answers: Literal["text", "parsed"] | None = Field(
        None,
        description="`expected_answer` where a source's answer is a number, a truth value, an empty list or an empty "
        "object in JSON: its `text`, or the value `parsed`. `ours`: `text`; `nemotron`: `parsed`.",
    )
    params: Literal["merged", "replaced"] | None = Field(
        None,
        description="`responses_create_params` of a record with a placeholder: the prompt is `merged` into them, or "
        "they are `replaced` by the prompt alone. `ours`: `merged`; `nemotron`: `replaced`.",
    )
    null_placeholder: Literal["none", "unresolved"] | None = Field(
        None,
        description="A record whose `_hf_placeholder` is null has `none`, or one that is `unresolved` and is left out. "
        "`ours`: `none`; `nemotron`: `unresolved`.",
    )
    other_templates: Literal["used", "ignored"] | None = Field(
        None,
        description="DAPO, where the template is not an object of prefix and suffix: it is `used` (`{question}`), and "
        "the source's wrapper goes; or `ignored`, and the wrapper stays. `ours`: `used`; `nemotron`: `ignored`.",
    )
    without_prompt: Literal["bad_record", "left_out"] | None = Field(
        None,
        description="A record without a prompt: a `bad_record` (`no_prompt`), also where it is empty; or `left_out`, "
        "counted, where it is absent. `ours`: `bad_record`; `nemotron`: `left_out`.",
    )
    null_affix: Literal["empty", "printed"] | None = Field(
        None,
        description="A prefix or suffix of DAPO that is null: `empty`, or `printed` as Python does, None. `ours`: "
        "`empty`; `nemotron`: `printed`.",
    )
    malformed: Literal["left_out", "bad_record"] | None = Field(
        None,
        description="A placeholder that is not an object, or whose row is not a number, or a source that is a list or "
        "an object: the record is `left_out`, counted, or a `bad_record` (`bad_placeholder`). `ours`: `left_out`; "
        "`nemotron`: `bad_record`, because that stops it.",
    )
    boolean_row: Literal["unresolved", "number"] | None = Field(
        None,
        description="A row that is true or false: `unresolved`, and the record is left out; or the `number` 1 or 0. "
        "`ours`: `unresolved`; `nemotron`: `number`.",
    )
    prompt: str = Field(
        AUTO,
        pattern=r"^[^.\s]+(\.[^.\s]+)*$",
        description="Where finished records have their prompt: keys joined by dots (`responses_create_params.input`); "
        "`auto`: where the transforms look for it, if they do; `none`: it is not asked for.",
    )

    @property
    def rules(self) -> RlRules:
        """The rules that follow from these options."""
        preset = asdict(_LIKE[self.like])
        given = {name: value for name in preset if (value := getattr(self, name)) is not None}
        return RlRules(**{**preset, **given})

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the bytes of a shard besides its transforms, for keys."""
        return {"compression": self.compression, **self.rules.changes}

    @property
    def placeholder_paths(self) -> list[str]:
        """Where the placeholder sources are; what is wrong with one is told when it is used."""
        steps = [entry.get(RESOLVE) for entry in self.transforms if isinstance(entry, dict)]
        sources = [step.get("sources") for step in steps if isinstance(step, dict)]
        given = [one for found in sources if isinstance(found, dict) for one in found.values()]
        return [str(one.get("path", "")) if isinstance(one, dict) else str(one) for one in given]

    def located(self, folder: Path) -> Self:
        """The same options with the paths of placeholder sources resolved against `folder`."""
        return self.model_copy(update={"transforms": tuple(_located(entry, folder) for entry in self.transforms)})


def _located(entry: str | dict[str, Any], folder: Path) -> str | dict[str, Any]:
    """A transform with located paths of its placeholder sources; mistakes in it are reported when it is used."""
    if not isinstance(entry, dict) or not isinstance(options := entry.get(RESOLVE), dict):
        return entry
    if not isinstance(sources := options.get("sources"), dict):
        return entry
    return {RESOLVE: {**options, "sources": {name: _located_source(given, folder) for name, given in sources.items()}}}


def _located_source(given: Any, folder: Path) -> Any:
    if isinstance(given, dict) and "path" in given:
        return {**given, "path": _located_source(given["path"], folder)}
    if not isinstance(given, str) or "://" in given:
        return given
    return str(resolved(Path(given), folder))
