"""Declaration of cohorts of notes, validated once.

This is the schema of the YAML: its field descriptions are the YAML reference. Paths are resolved against the folder of
the YAML, and are not part of any artifact's key. Datasets of notes are sensitive unless declared otherwise.
"""

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from dataprep_assets.engine.yaml.declaration import WorkersDeclaration, resolve_path
from dataprep_assets.engine.yaml.declaration_model import DeclarationModel
from dataprep_assets.errors import ConfigError
from dataprep_assets.formats.tensorflow.tfrecord import ROWS_PER_SHARD
from dataprep_assets.packing.algorithms import Algorithm
from dataprep_assets.packing.bins import LARGEST_CAPACITY
from dataprep_assets.packing.rows import COLUMNS, TARGETS
from dataprep_assets.packing.splitting import Rule
from dataprep_assets.packing.stock_maxtext import Pipeline
from dataprep_assets.pipelines.notes.note_tokens import Encode
from dataprep_assets.pipelines.notes.patient_key import PatientKey
from dataprep_assets.pipelines.notes.rendering import HeaderTemplate
from dataprep_assets.sources.cohorts import CohortFormat, list_expected_months
from dataprep_assets.stores.files import SourceDigests
from dataprep_assets.stream.declaration import (
    RETRACTIONS,
    AssetSource,
    BadRecordPolicy,
    DocumentPolicy,
    LocalSource,
    ObjectStoreSource,
    TokenizerDeclaration,
)

FileFormat = Literal["tfrecord", "array_record"]
Layout = Literal["prepacked", "unpacked"]
Rows = Literal["notes", "stream"]
OBJECT_KEY = "$key"
"""Path for patient ids that are the keys of a JSON object of patients."""
TOKENS = "tokens"
"""The only column of unpacked rows."""

_MONTH = r"^[0-9]{4}-(0[1-9]|1[0-2])$"
_SNAKE_CASE = re.compile(r"[a-z][a-z0-9_]*")
Month = Annotated[str, Field(pattern=_MONTH)]
# TFDS requires x.y.z without leading zeros. `1.0` is also allowed, because the scripts of the upstream project use it.
TfdsVersion = Annotated[str, Field(pattern=r"^((0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)|1\.0)$")]
VERSION_HELP = (
    "Name of the version folder, as `x.y.z`. Unmodified MaxText (`tfds.builder`) ignores other names, "
    "such as `1.0`; `tfds.builder_from_directory` reads it."
)


class NoteFields(DeclarationModel):
    """Locations of values in a record: keys joined by dots."""

    patient_id: str = Field(
        "patient_id",
        description="Location of the patient's id in a record. `$key`: the record's key in the JSON object.",
    )
    notes: str | None = Field(
        "notes", description="Location of the list of notes in a record. `null`: each record is one note."
    )
    text: str = Field("text", description="Location of the text in a note.")
    date: str | None = Field("date", description="Location of the date in a note. `null`: notes have no date.")
    date_format: str | None = Field(
        None,
        description=(
            "Format of `date` and `birth_date` for Python's `strptime`, such as `%m/%d/%Y`. Default: ISO 8601."
        ),
    )
    birth_date: str | None = Field(
        None,
        description=(
            "Location of the birth date in a record. Its month must match the month of the cohort. Default: the "
            "month is not checked."
        ),
    )
    patient: dict[str, str] = Field(
        {}, description="Name in the template → location of the value in the patient's record. Default: no fields."
    )
    note: dict[str, str] = Field(
        {}, description="Name in the template → location of the value in the note. Default: no fields."
    )

    @model_validator(mode="after")
    def _require_distinct(self) -> Self:
        if common_fields := sorted(self.patient.keys() & self.note.keys()):
            raise ValueError(
                f"{', '.join(common_fields)}: must not be in both `patient` and `note`. Use different names"
            )
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields that the template may use, sorted."""
        return tuple(sorted({*self.patient, *self.note}))


class CohortFiles(DeclarationModel):
    """Names and format of the cohort files. Each file contains one month."""

    pattern: str = Field(
        r"(?P<year>\d{4})-(?P<month>\d{2})\.json",
        description=(
            "Regular expression for the path of a cohort file in the source. It needs the named groups `year` "
            "and `month`."
        ),
    )
    format: CohortFormat = Field(
        "json_array",
        description=(
            "Format of the files: a `json_array` or `json_object` of patients, or `jsonl`. Compressed files are "
            "also read."
        ),
    )
    fields: NoteFields = Field(
        NoteFields(), description="Locations of the patient's id, the notes and their dates in a record."
    )

    @field_validator("pattern")
    @classmethod
    def _require_groups(cls, pattern: str) -> str:
        try:
            groups = re.compile(pattern).groupindex
        except re.error as error:
            raise ValueError(f"invalid regular expression: {error}") from None
        if not {"year", "month"} <= groups.keys():
            raise ValueError("must contain the named groups (?P<year>...) and (?P<month>...)")
        return pattern

    @model_validator(mode="after")
    def _require_object_key(self) -> Self:
        if self.fields.patient_id == OBJECT_KEY and self.format != "json_object":
            raise ValueError(f"fields.patient_id: {OBJECT_KEY} needs `format: json_object`")
        return self


class Months(DeclarationModel):
    """Birth months, from `first` to `last`."""

    first: Month = Field(description="First month, as YYYY-MM.")
    last: Month = Field(description="Last month, as YYYY-MM.")
    allow_missing: tuple[Month, ...] = Field(
        (),
        description=(
            "Months between `first` and `last` that may have no file. Any other missing month is an error. "
            "Default: none."
        ),
    )
    allow_empty: tuple[Month, ...] = Field(
        (), description="Months whose file may contain no notes. Any other empty month is an error. Default: none."
    )

    @model_validator(mode="after")
    def _require_possible_months(self) -> Self:
        try:
            months = list_expected_months(self.first, self.last, self.allow_missing)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if not months:
            raise ValueError("all months are in `allow_missing`. Remove at least one")
        if unknown := sorted(set(self.allow_empty) - set(months)):
            raise ValueError(
                f"allow_empty: {', '.join(unknown)}: must be from {self.first} to {self.last}, and not in "
                "`allow_missing`"
            )
        return self

    @property
    def expected_keys(self) -> list[str]:
        """Partition keys of all months of the dataset, in order."""
        return list_expected_months(self.first, self.last, self.allow_missing)


class NoteTemplate(DeclarationModel):
    """The header before the text of each note."""

    header: str = Field(
        "",
        description=(
            "Text of the header, with `{name}` (or `{{ name }}` for jinja) for each declared field. Default: no header."
        ),
    )
    engine: Literal["format", "jinja"] = Field(
        "format", description="Syntax of the header: `format` (Python's `str.format`) or `jinja` (in a sandbox)."
    )
    missing: Literal["fail", "drop"] = Field(
        "fail",
        description=(
            "Action if a field is missing or null. `fail`: the build fails. `drop`: the note is dropped and counted."
        ),
    )
    defaults: dict[str, str] = Field(
        {}, description="Field → text that replaces a missing or null value. Default: no replacements."
    )
    encode: Encode = Field(
        "apart",
        description=(
            "How header and text are tokenized. `apart`: separately. `together`: as one text, so a token may "
            "span both; chunks of a long note then repeat only tokens entirely inside the header."
        ),
    )

    def key_parts(self) -> dict[str, Any]:
        """Return the values that are part of artifact keys: all fields."""
        return self.model_dump(mode="json")


class LongNotes(DeclarationModel):
    """Rules for splitting notes that are longer than a row."""

    rule: Rule = Field(
        "repeat_header",
        description=(
            "How a long note is divided. `repeat_header`: every chunk begins with the header. `header_once`: only "
            "the first chunk does. `truncate`: the note is truncated to one row."
        ),
    )
    overlap: int = Field(0, ge=0, description="Tokens at the end of a chunk that the next chunk repeats.")


class PackingDeclaration(DeclarationModel):
    """Settings for packing notes into rows."""

    algorithm: Algorithm | Literal["concat_then_split"] = Field(
        "first_fit_decreasing",
        description=(
            "Packing algorithm. `concat_then_split` concatenates notes and cuts them at row ends, so rows have "
            "no padding."
        ),
    )
    seed: int = Field(0, ge=0, description="Seed for the shuffle, only for `first_fit_shuffle`.")


class PadDeclaration(DeclarationModel):
    """The padding token of prepacked rows. Trainers recognize padding by the segmentation, not by this token."""

    token: str | None = Field(
        None, description="Text of the padding token, such as `<|finetune_right_pad_id|>`. Required without `id`."
    )
    id: int | None = Field(None, ge=0, description="Id of the padding token. Required without `token`.")
    may_occur: bool = Field(
        False,
        description=(
            "Whether documents may also contain this token. This is unsafe if a trainer masks padding with `!= pad`."
        ),
    )

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if (self.token is None) == (self.id is None):
            raise ValueError("exactly one of `token` and `id` is required")
        return self


class NotesDeclaration(WorkersDeclaration):
    """Packed notes, from cohort files to directories that trainers read."""

    # Hide the input, because a secret that was written into the YAML by mistake must not appear in an error.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    sensitive: bool = Field(
        True,
        description=(
            "With `true`, logs, events, metadata and plots contain no texts or identifiers, and local files are "
            "private."
        ),
    )
    source: Annotated[LocalSource | ObjectStoreSource | AssetSource, Field(discriminator="kind")] = Field(
        description="Where the cohort files are: a local folder, object storage, or the files of a Dagster asset."
    )
    cohorts: CohortFiles = Field(CohortFiles(), description="Names, format and fields of the cohort files.")
    months: Months = Field(description="The birth months of the dataset. Each month is a partition.")
    template: NoteTemplate = Field(
        NoteTemplate(), description="The header before the text of each note. Default: no header."
    )
    tokenizer: TokenizerDeclaration = Field(description="The tokenizer, and the engine that encodes text with it.")
    document: DocumentPolicy = Field(
        DocumentPolicy(), description="Tokens before and after each note, and special tokens in its text."
    )
    # Allow one token less than the limit, because rows for tfds are stored one token longer (`capacity`).
    row_length: int = Field(
        8192, ge=2, le=LARGEST_CAPACITY - 1, description="Tokens per row: `max_target_length` of MaxText."
    )
    long_notes: LongNotes = Field(
        LongNotes(), description="How notes that are longer than a row are split into chunks."
    )
    order: Literal["date", "source"] = Field(
        "date", description="Order of a patient's notes: by `date`, or as in the `source`."
    )
    packing: PackingDeclaration = Field(PackingDeclaration(), description="How notes are packed into rows.")
    pad: PadDeclaration | None = Field(
        None,
        description=(
            "The padding token of prepacked rows. Required for `layout: prepacked`, and not allowed for `unpacked`."
        ),
    )
    patient_key: PatientKey = Field(description="The secret key for digests of patient ids.")
    splits: dict[str, float] = Field(
        {"train": 1.0},
        description=(
            "Split → its share of the patients. The shares add up to 1. A keyed digest of the id assigns each "
            "patient to a split."
        ),
    )
    layout: Layout = Field(
        "prepacked",
        description=(
            "Columns of the rows. `prepacked`: the five columns of packed rows. `unpacked`: only the column "
            "`tokens`, for unmodified MaxText."
        ),
    )
    pipeline: Pipeline = Field(
        "tfds",
        description=(
            "MaxText pipeline that reads unpacked rows: `tfds`, `grain` or `hf`. For `tfds`, rows are stored one "
            "token longer."
        ),
    )
    rows: Rows = Field(
        "notes",
        description=(
            "Contents of an unpacked row. `notes`: one note, or one chunk of a long note. `stream`: consecutive "
            "notes, split where a row is full, so labels and attention cross note boundaries."
        ),
    )
    targets: bool = Field(False, description="Whether prepacked rows have a sixth column, `targets`.")
    formats: tuple[FileFormat, ...] = Field(
        ("tfrecord",), min_length=1, description="File formats to write: `tfrecord`, `array_record` or both."
    )
    rows_per_shard: int = Field(ROWS_PER_SHARD, ge=1, description="Maximum number of rows per shard.")
    tfds_version: TfdsVersion = Field("1.0.0", description=VERSION_HELP)
    bad_records: BadRecordPolicy = Field(
        BadRecordPolicy(),
        description="How records that cannot become notes are handled. By default, the build fails at the first one.",
    )
    retractions: Path | None = Field(
        None,
        description=(
            "Retraction list, which `dataprep retract` writes: keyed digests of the patients to remove. Default: "
            "`retracted.jsonl` next to this YAML."
        ),
    )
    duplicate_patients: Literal["fail", "allow"] = Field(
        "fail",
        description=(
            "Action if a patient is in several cohorts. `fail`: the build fails. `allow`: such patients are counted."
        ),
    )
    sample_rate: float = Field(
        0.0005, ge=0, le=1, description="Share of notes that the reference engine also encodes, to compare the ids."
    )

    @field_validator("dataset")
    @classmethod
    def _require_snake_case(cls, name: str) -> str:
        return require_tfds_name("dataset", name)

    @field_validator("splits")
    @classmethod
    def _validate_shares(cls, splits: dict[str, float]) -> dict[str, float]:
        for name, share in splits.items():
            require_tfds_name("split", name)
            if not 0 < share <= 1:
                raise ValueError(f"split {name!r}: the share must be greater than 0 and at most 1, not {share}")
        # Allow a small difference, because 0.7 + 0.2 + 0.1 is slightly less than 1 in floating point.
        if not math.isclose(sum(splits.values()), 1, abs_tol=1e-9):
            raise ValueError(f"the shares must add up to 1, not {sum(splits.values())}")
        return splits

    @field_validator("formats")
    @classmethod
    def _require_distinct_formats(cls, formats: tuple[FileFormat, ...]) -> tuple[FileFormat, ...]:
        if len(set(formats)) != len(formats):
            repeated_format = next(name for name in formats if formats.count(name) > 1)
            raise ValueError(f"{repeated_format} is listed twice. Remove one")
        return formats

    @model_validator(mode="after")
    def _require_consistency(self) -> Self:
        if self.sensitive and self.patient_key.public is not None:
            raise ValueError("patient_key.public is only for fictional data (`sensitive: false`). Use patient_key.env")
        if self.order == "date" and self.cohorts.fields.date is None:
            raise ValueError("`order: date` needs cohorts.fields.date. Set it, or set `order: source`")
        if self.long_notes.overlap >= self.row_length:
            raise ValueError(
                f"long_notes.overlap ({self.long_notes.overlap}) must be less than row_length ({self.row_length})"
            )
        if self.long_notes.rule == "truncate" and self.long_notes.overlap:
            raise ValueError("long_notes: a truncated note has one chunk, so `overlap` has no effect. Remove it")
        if self.targets and self.layout == "unpacked":
            raise ValueError("`targets` has no effect on unpacked rows, which have only `tokens`. Remove it")
        if self.layout == "unpacked" and self.pad is not None:
            raise ValueError("`pad` has no effect on unpacked rows, which the trainer pads itself. Remove it")
        if self.layout == "prepacked" and self.pad is None:
            raise ValueError("`layout: prepacked` needs `pad`, the padding token")
        if self.layout == "prepacked" and self.rows == "stream":
            raise ValueError(
                "`rows: stream` is for unpacked rows. For prepacked rows use `packing: {algorithm: concat_then_split}`"
            )
        if self.layout == "unpacked" and self.pipeline == "tfds" and "tfrecord" not in self.formats:
            raise ValueError("`pipeline: tfds` needs `tfrecord`: add it to `formats`, or set `pipeline: grain`")
        # Compile the header now, so that its errors appear when the declaration is loaded and not when a month is
        # packed.
        self.compile_header()
        return self

    def compile_header(self) -> HeaderTemplate:
        """Return the compiled template; raise ValueError if it does not compile or uses undeclared names."""
        template = self.template
        try:
            return HeaderTemplate(
                template.header, engine=template.engine, fields=self.cohorts.fields.names, defaults=template.defaults
            )
        except ConfigError as error:
            raise ValueError(str(error)) from None

    def source_digests(self, key: bytes) -> SourceDigests:
        """Return the settings for digests of cohort files: keyed with the patient key if the notes are sensitive."""
        return SourceDigests(key if self.sensitive else None)

    @property
    def capacity(self) -> int:
        """Maximum tokens of a stored row: one more than `row_length` if the tfds pipeline shifts unpacked rows."""
        return self.row_length + (self.layout == "unpacked" and self.pipeline == "tfds")

    @property
    def is_concatenated(self) -> bool:
        """Whether the rows are one stream of notes, cut at row ends."""
        if self.layout == "unpacked":
            return self.rows == "stream"
        return self.packing.algorithm == "concat_then_split"

    @property
    def pad_may_occur(self) -> bool:
        """Whether a note may contain the padding id; always true without padding."""
        return self.pad is None or self.pad.may_occur

    @property
    def stored_length(self) -> int | None:
        """Number of values per row in each stored column; None for unpacked rows, whose lengths differ."""
        return None if self.layout == "unpacked" else self.capacity

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the stored columns, each with `capacity` values; unpacked rows may have fewer."""
        if self.layout == "unpacked":
            return (TOKENS,)
        return (*COLUMNS, TARGETS) if self.targets else COLUMNS

    def resolve_paths(self, folder: Path) -> Self:
        source: Any = self.source
        if isinstance(source, LocalSource):
            source = source.model_copy(update={"path": resolve_path(source.path, folder)})
        elif isinstance(source, AssetSource):
            source = source.resolve_paths(folder)
        else:
            source = source.model_copy(update={"cache_dir": resolve_path(source.cache_dir, folder)})
        update = {
            "source": source,
            "tokenizer": self.tokenizer.resolve_paths(folder),
            "retractions": resolve_path(self.retractions or Path(RETRACTIONS), folder),
        }
        return super().resolve_paths(folder).model_copy(update=update)


def require_tfds_name(kind: str, name: str) -> str:
    """Return the name of a dataset or split (`kind`); raise ValueError for a name that TFDS would not find."""
    if not _SNAKE_CASE.fullmatch(name):
        raise ValueError(f"{kind} {name!r}: TFDS allows only lower-case letters, digits and _")
    return name
