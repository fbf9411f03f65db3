"""Placeholders of RL blends: records with missing fields that refer to a row of another dataset.

NVIDIA's RL blends omit the questions of DAPO-Math-17k and Skywork-OR1. Instead, the records have an `_hf_placeholder`
with the number of the source row and the template around the question. Row numbers are valid for only one revision, so
a hub source must be pinned to a commit. The rules are the same as in Nemotron's `utils/hf_placeholder.py`
(docs/formats/rl-jsonl.md#placeholders).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.engine.yaml.declaration_model import DeclarationModel
from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.blend.data_blend import BlendDataset, Unit
from dataprep_assets.pipelines.blend.declaration import SourceAccessDeclaration
from dataprep_assets.pipelines.blend.plan.discovery import DiscoveredDataset, discover_dataset, open_place
from dataprep_assets.pipelines.blend.rl.options import OURS, RlRules
from dataprep_assets.sources.readers.rows import read_rows
from dataprep_assets.stores.files import PLAIN, SourceDigests, require_digest

_COMMIT = re.compile(r"hf://.*@[0-9a-f]{40}/?")


class PlaceholderSource(DeclarationModel):
    """A dataset whose rows replace placeholders."""

    path: str = Field(
        description="`hf://organization/name@<40-digit commit>`, or a file, folder or glob, relative to the YAML."
    )
    split: str | None = Field(None, description="Reads only files that this value selects, like `split` of a dataset.")
    kind: Literal["dapo", "skywork"] = Field(description="How the question and the template are combined.")


_DAPO, _SKYWORK = {"kind": "dapo"}, {"kind": "skywork", "split": "math"}
KNOWN: Mapping[str, dict[str, str]] = {
    "nano_v3_sft_profiled_dapo17k": _DAPO,
    "nano_v3_sft_profiled_skywork_no_omni": _SKYWORK,
    "super_v3_lcsft_step1000_dapo17k": _DAPO,
    "super_v3_lcsft_step1000_skyworks": _SKYWORK,
}
"""Names in NVIDIA's blends (`dataset` of a record) → the known keys of the source, without its path.

The first two names are from the blends of Nano (3.5 Lightning and Omni also use them), and the last two are from the
blend of Super. No blend of Ultra is published. Skywork's repository also has files with code, but row numbers count
only the rows of `math`.
"""


@dataclass(frozen=True, kw_only=True)
class PlaceholderFiles:
    """A placeholder source with its local files, in row order. Instances are picklable.

    A file is `(path, format, compression, digest)`. The digest is None for a mirrored file, which the download has
    verified. `identities` are the files' identities from `DiscoveredDataset`.
    """

    name: str
    kind: str
    files: tuple[tuple[Path, str, str | None, str | None], ...]
    identities: list[list[str | int | None]]
    digests: SourceDigests = PLAIN


def parse_sources(options: Mapping[str, Any]) -> dict[str, PlaceholderSource]:
    """Return the declared sources, by their name in records. Raises ConfigError for an invalid source."""
    if set(options) != {"sources"} or not isinstance(options["sources"], Mapping) or not options["sources"]:
        raise ConfigError(
            "transforms: resolve_hf_placeholders needs `sources`: name of the dataset → path with its commit, e.g., "
            f"{{{next(iter(KNOWN))}: hf://BytedTsinghua-SIA/DAPO-Math-17k@<commit>}}"
        )
    parsed_sources = {}
    for name, declaration in options["sources"].items():
        value = {"path": declaration} if isinstance(declaration, str) else declaration
        if name not in KNOWN and isinstance(value, Mapping) and "kind" not in value:
            raise ConfigError(
                f"transforms: resolve_hf_placeholders.sources.{name}: `kind` is missing. Set `kind: dapo` or `kind: "
                "skywork`, which determines how question and template are combined. Only the names "
                f"{', '.join(KNOWN)} need no `kind`"
            )
        try:
            parsed_sources[name] = PlaceholderSource.model_validate({**KNOWN.get(name, {}), **value})
        except (ValidationError, TypeError) as error:
            raise ConfigError(f"transforms: resolve_hf_placeholders.sources.{name}: {error}") from error
        path = parsed_sources[name].path
        if path.startswith("hf://") and not _COMMIT.fullmatch(path):
            raise ConfigError(
                f"transforms: resolve_hf_placeholders.sources.{name}: {path} is not pinned, so row numbers can "
                "change. Write hf://organization/name@<40-digit commit>"
            )
    return parsed_sources


def _discover_source(
    name: str, source: PlaceholderSource, access: SourceAccessDeclaration, digests: SourceDigests = PLAIN
) -> DiscoveredDataset:
    dataset = BlendDataset(name=re.sub(r"[^\w.-]", "_", name), path=source.path, split=source.split)
    return discover_dataset(Unit(name=dataset.name, dataset=dataset, split=None), access, digests)


def identify_sources(
    sources: Mapping[str, PlaceholderSource],
    access: SourceAccessDeclaration,
    digests: SourceDigests = PLAIN,
    placeholder_files: Sequence[PlaceholderFiles] = (),
) -> dict[str, Any]:
    """Return values that identify the sources' content, for artifact keys.

    A hub source is identified by its pinned path, and other sources by the digests of their files, which `digests`
    computes. Sources in `placeholder_files` are not listed again.
    """
    identity_of_source: dict[str, Any] = {}
    files_of_source = {files.name: files for files in placeholder_files}
    for name, source in sorted(sources.items()):
        content: Any = source.path
        if not source.path.startswith("hf://"):
            content = (files_of_source.get(name) or _discover_source(name, source, access, digests)).identities
        identity_of_source[name] = [source.kind, source.split, content]
    return identity_of_source


def fetch_sources(
    sources: Mapping[str, PlaceholderSource], access: SourceAccessDeclaration, digests: SourceDigests = PLAIN
) -> tuple[PlaceholderFiles, ...]:
    """Download the missing files of every source; return the sources with their local files.

    Raises SourceError or TransferError, with the name of the source or file.
    """
    source_files = []
    for name, source in sorted(sources.items()):
        dataset_files = _discover_source(name, source, access, digests)
        source_access = open_place(dataset_files.unit.dataset, access).access
        source_access.fetch(dataset_files.entries)
        files = tuple(
            (
                source_access.path(entry),
                entry.format,
                entry.compression,
                None if source_access.mirrored else entry.sha256,
            )
            for entry in dataset_files.entries
        )
        source_files.append(
            PlaceholderFiles(
                name=name, kind=source.kind, files=files, identities=dataset_files.identities, digests=digests
            )
        )
    return tuple(source_files)


@lru_cache(maxsize=4)
def _read_questions(
    files: tuple[tuple[Path, str, str | None, str | None], ...], digests: SourceDigests
) -> Sequence[tuple[Any, Any]]:
    """Return the question and the answer of every row, in order; a missing question or answer is None.

    Raises CorruptSourceError if a file has changed since it was listed.
    """
    pairs: list[tuple[Any, Any]] = []
    for path, kind, compression, digest in files:
        reader = read_rows(
            path, format=kind, compression=compression, label=path.name, columns=("prompt", "reward_model")
        )
        for block in reader:
            row_of_number = dict(zip(block.numbers, block.rows, strict=True))
            # Include rows that cannot be parsed, because the row numbers in placeholders count them.
            numbers = [*block.numbers, *(bad.row for bad in block.bad)]
            for number in sorted(numbers):
                row = row_of_number.get(number, {})
                pairs.append((_get_value(row, "prompt", 0, "content"), _get_value(row, "reward_model", "ground_truth")))
        if digest is not None:
            require_digest(path.name, digests.digest_of(reader.sha256), digest, "`blend_plan`")
    return pairs


def _get_value(value: Any, *path: str | int) -> Any:
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def has_placeholder(record: Mapping[str, Any], rules: RlRules) -> bool:
    """Return whether a record has a placeholder to fill in; the rules decide whether null is a placeholder."""
    if rules.null_placeholder == "unresolved":
        return "_hf_placeholder" in record
    return record.get("_hf_placeholder") is not None


def is_malformed(record: Mapping[str, Any], sources: Mapping[str, PlaceholderFiles]) -> bool:
    """Return whether a record's placeholder is malformed. `sources` maps names in records to sources.

    A placeholder without a row number, or with an unknown source or row, is not malformed, but cannot be filled in.
    """
    placeholder, source = record.get("_hf_placeholder"), record.get("dataset")
    if placeholder is None:
        return False
    # Check the type first, because a list or a dict is not hashable, so it cannot be looked up in `sources`.
    if isinstance(source, list | dict):
        return True
    if source not in sources:
        return False
    return not isinstance(placeholder, dict) or not isinstance(placeholder.get("row"), int | float | None)


def fill_placeholder(
    record: dict[str, Any], sources: Mapping[str, PlaceholderFiles], rules: RlRules = OURS
) -> dict[str, Any] | None:
    """Return the record with its question, answer and prompt filled in; a record without a placeholder is unchanged.

    `sources` maps names in records to sources. Returns None if the placeholder cannot be filled in because its source
    is unknown, its row does not exist, or the row has no question.
    """
    fields = {key: value for key, value in record.items() if key != "_hf_placeholder"}
    if not has_placeholder(record, rules):
        return fields
    placeholder = record["_hf_placeholder"]
    # Convert the dataset's name to text, because it may be a list or a dict, which is not hashable.
    source = sources.get(str(record.get("dataset")))
    row, template = _get_value(placeholder, "row"), _get_value(placeholder, "question_template")
    # Refuse a boolean unless the rules accept it, because in Python, True is an int and would be row 1.
    is_number = isinstance(row, int) and (rules.boolean_row == "number" or not isinstance(row, bool))
    if source is None or not is_number:
        return None
    # All questions of a source are read into memory once per process, because records refer to rows in any order.
    rows = _read_questions(source.files, source.digests)
    if not 0 <= row < len(rows) or not isinstance(rows[row][0], str):
        return None
    question, answer = rows[row]
    if source.kind == "dapo":
        prompt = question = _replace_dapo_paragraphs(question, template, rules)
    else:
        prompt = template.replace("{question}", question) if _has_question_field(template) else question
    params = record.get("responses_create_params") if rules.params == "merged" else None
    return fields | {
        "question": question,
        "expected_answer": _extract_answer(answer, rules),
        "responses_create_params": {
            **(params if isinstance(params, dict) else {}),
            "input": [{"role": "user", "content": prompt}],
        },
    }


def _has_question_field(template: Any) -> bool:
    return isinstance(template, str) and "{question}" in template


def _replace_dapo_paragraphs(question: str, template: Any, rules: RlRules) -> str:
    """Replace the first and last paragraph of a DAPO question with the template's prefix and suffix."""
    if rules.other_templates == "ignored" and not isinstance(template, dict):
        return question
    paragraphs = question.split("\n\n")
    text = "\n\n".join(paragraphs[1:-1]) if len(paragraphs) >= 3 else question
    if _has_question_field(template):
        return str(template.replace("{question}", text)).rstrip("\n")
    affixes = template if isinstance(template, dict) else {}
    prefix, suffix = (affixes.get(key, "") for key in ("prefix", "suffix"))
    if rules.null_affix == "empty":
        prefix, suffix = prefix or "", suffix or ""
    return f"{prefix}{text}{suffix}".rstrip("\n")


def _extract_answer(answer: Any, rules: RlRules) -> Any:
    """Return the expected answer in a source's answer: the first element of a list or object in JSON, else the answer.

    With `answers: parsed`, other JSON values are also parsed.
    """
    if not isinstance(answer, str):
        return answer
    try:
        value = load_untrusted_json(answer)
    except ValueError:
        return answer
    members = list(value.values()) if isinstance(value, dict) else value
    if isinstance(members, list) and members:
        return members[0]
    return value if rules.answers == "parsed" else answer
