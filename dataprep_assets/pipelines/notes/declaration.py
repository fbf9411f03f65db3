"""The declaration of cohorts of notes, validated once.

This is the schema of the YAML: its field descriptions are the YAML reference. Paths are resolved against the folder of
the YAML, and no key contains one. Datasets of notes are sensitive unless declared otherwise.
"""

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from dataprep_assets.engine.yaml.declaration import MadeByEngine, resolve_path
from dataprep_assets.engine.yaml.declared_model import Declared
from dataprep_assets.errors import ConfigError
from dataprep_assets.formats.tensorflow.tfrecord import ROWS_PER_SHARD
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.packing.algorithms import Algorithm
from dataprep_assets.packing.bins import LARGEST_CAPACITY
from dataprep_assets.packing.rows import COLUMNS, TARGETS
from dataprep_assets.packing.splitting import Rule
from dataprep_assets.packing.stock_maxtext import Pipeline
from dataprep_assets.pipelines.notes.note_tokens import Encode
from dataprep_assets.pipelines.notes.patient_key import PatientKey
from dataprep_assets.pipelines.notes.rendering import HeaderTemplate
from dataprep_assets.sources.cohorts import CohortFormat, expected_months
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
"""Path of a patient's id that is the key in a JSON object of patients."""
TOKENS = "tokens"
"""The only column of unpacked rows."""

_MONTH = r"^[0-9]{4}-(0[1-9]|1[0-2])$"
_SNAKE_CASE = re.compile(r"[a-z][a-z0-9_]*")
Month = Annotated[str, Field(pattern=_MONTH)]
# TFDS requires x.y.z without leading zeros; `1.0` is from the original scripts
TfdsVersion = Annotated[str, Field(pattern=r"^((0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)|1\.0)$")]
VERSION_HELP = (
    "Name of the version folder, `x.y.z`. The seed's `1.0` is also possible, but stock MaxText does not find it: it "
    "calls tfds.builder, which ignores folders that are not x.y.z; only tfds.builder_from_directory reads it."
)


class NoteFields(Declared):
    """Paths of the parts of a record. A path is keys joined by `.`."""

    patient_id: str = Field("patient_id", description="Path of the patient's id; `$key`: the key of the JSON object.")
    notes: str | None = Field("notes", description="Path of the list of notes; null: each record is one note.")
    text: str = Field("text", description="Path of the text in a note.")
    date: str | None = Field("date", description="Path of the date in a note; null: notes have none.")
    date_format: str | None = Field(
        None, description="Format of `date` and `birth_date` for strptime, e.g., %m/%d/%Y; null: ISO 8601."
    )
    birth_date: str | None = Field(
        None, description="Path of the birth date in a record. If set, its month must match the cohort."
    )
    patient: dict[str, str] = Field({}, description="Name in the template → path in the patient's record.")
    note: dict[str, str] = Field({}, description="Name in the template → path in the note.")

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if common_fields := sorted(self.patient.keys() & self.note.keys()):
            raise ValueError(f"{common_fields} are fields of both the patient and the note. Use different names")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields that the template may use, sorted."""
        return tuple(sorted({*self.patient, *self.note}))


class CohortFiles(Declared):
    """The files of the source that are cohorts, and their format."""

    pattern: str = Field(
        r"(?P<year>\d{4})-(?P<month>\d{2})\.json",
        description="Regular expression for a cohort's whole path in the source, with the groups `year` and `month`.",
    )
    format: CohortFormat = Field(
        "json_array",
        description="`json_array` or `json_object` of patients, or `jsonl`. May be compressed.",
    )
    fields: NoteFields = Field(NoteFields(), description="Keys or columns of a note's text, patient and date.")

    @field_validator("pattern")
    @classmethod
    def _has_groups(cls, pattern: str) -> str:
        try:
            groups = re.compile(pattern).groupindex
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        if not {"year", "month"} <= groups.keys():
            raise ValueError("needs the named groups (?P<year>...) and (?P<month>...)")
        return pattern

    @model_validator(mode="after")
    def _key_of_an_object(self) -> Self:
        if self.fields.patient_id == OBJECT_KEY and self.format != "json_object":
            raise ValueError(f"fields.patient_id: {OBJECT_KEY} needs `format: json_object`")
        return self


class Months(Declared):
    """The months that the dataset must have, which are its partitions."""

    first: Month = Field(description="First month, YYYY-MM.")
    last: Month = Field(description="Last month, YYYY-MM.")
    allow_missing: tuple[Month, ...] = Field((), description="Months between `first` and `last` that have no file.")
    allow_empty: tuple[Month, ...] = Field((), description="Months whose file may have no notes.")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        try:
            months = expected_months(self.first, self.last, self.allow_missing)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if not months:
            raise ValueError("all months are in allow_missing")
        if unknown := sorted(set(self.allow_empty) - set(months)):
            raise ValueError(f"allow_empty: {unknown} are not months of the dataset")
        return self

    @property
    def expected_keys(self) -> list[str]:
        """Every month of the dataset, in order, as partition keys."""
        return expected_months(self.first, self.last, self.allow_missing)


class NoteTemplate(Declared):
    """The header template of each note."""

    header: str = Field("", description="Text with `{name}` (format) or `{{ name }}` (jinja) for declared fields.")
    engine: Literal["format", "jinja"] = Field("format", description="`jinja` runs in a sandbox.")
    missing: Literal["fail", "drop"] = Field(
        "fail", description="How a missing or null field is handled: `fail`, or `drop` the note and count it."
    )
    defaults: dict[str, str] = Field({}, description="Field → text to use if it is missing or null.")
    encode: Encode = Field(
        "apart",
        description="`apart`: header and text are tokenized separately. `together`: as one text, so that a token may "
        "span both; the chunks of a long note then repeat only the tokens that belong entirely to the "
        "header.",
    )

    def key_parts(self) -> dict[str, Any]:
        """Return the values that enter keys, which are all of them."""
        return self.model_dump(mode="json")


class LongNotes(Declared):
    """Action for notes that are longer than a row."""

    rule: Rule = Field(
        "repeat_header",
        description="`repeat_header` before every chunk, `header_once` before the first, or `truncate` to one row.",
    )
    overlap: int = Field(0, ge=0, description="Tokens of a note that a chunk repeats from the previous one.")


class PackingDeclaration(Declared):
    """How chunks are packed into rows."""

    algorithm: Algorithm | Literal["concat_then_split"] = Field(
        "first_fit_decreasing",
        description="How notes are packed. `concat_then_split` leaves no padding, and splits notes at row ends.",
    )
    seed: int = Field(0, ge=0, description="Used by first_fit_shuffle.")


class PadDeclaration(Declared):
    """The id that fills prepacked rows. Padding is recognized by the segmentation, never by this id."""

    token: str | None = Field(None, description="A token by its content, e.g., <|finetune_right_pad_id|>.")
    id: int | None = Field(None, ge=0, description="A token by its id, instead of `token`.")
    may_occur: bool = Field(
        False, description="Allow an id that documents may contain. Unsafe if a reader masks by `!= pad`."
    )

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if (self.token is None) == (self.id is None):
            raise ValueError("exactly one of `token` and `id` is required")
        return self


class NotesDeclaration(MadeByEngine):
    """Packed notes, from cohort files to directories that trainers read."""

    # a secret written into the YAML by mistake must not appear in an error
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    sensitive: bool = Field(True, description="No text and no identifier in any log, event, metadata or plot.")
    source: Annotated[LocalSource | ObjectStoreSource | AssetSource, Field(discriminator="kind")] = Field(
        description="The folder or storage prefix that contains the cohort files."
    )
    cohorts: CohortFiles = Field(CohortFiles(), description="The cohort files: their names, format and fields.")
    months: Months = Field(description="The birth months, one partition each.")
    template: NoteTemplate = Field(NoteTemplate(), description="The header before each note.")
    tokenizer: TokenizerDeclaration = Field(description="The tokenizer, and the engine that runs it.")
    document: DocumentPolicy = Field(
        DocumentPolicy(), description="Token after each note (`separator`) and before each header (`bos`)."
    )
    # one below the limit, because rows for tfds are stored one token longer (`capacity`)
    row_length: int = Field(8192, ge=2, le=LARGEST_CAPACITY - 1, description="Tokens per row: max_target_length.")
    long_notes: LongNotes = Field(LongNotes(), description="How a note longer than a row is handled.")
    order: Literal["date", "source"] = Field("date", description="Order of the notes of a patient.")
    packing: PackingDeclaration = Field(PackingDeclaration(), description="How notes are packed into rows.")
    pad: PadDeclaration | None = Field(
        None, description="The padding token of prepacked rows, required for them; unpacked rows are never padded."
    )
    patient_key: PatientKey = Field(description="The secret key for hashing patients' ids.")
    splits: dict[str, float] = Field(
        {"train": 1.0}, description="Split → share of the patients, selected by the keyed digest of their ids."
    )
    layout: Layout = Field(
        "prepacked",
        description="`prepacked`: the five columns of packed rows. `unpacked`: one column `tokens` for stock MaxText.",
    )
    pipeline: Pipeline = Field(
        "tfds", description="The stock pipeline that reads unpacked rows; tfds needs them one token longer."
    )
    rows: Rows = Field(
        "notes",
        description="For unpacked rows. `notes`: a row is one note, or one chunk of a long one, so no label crosses "
        "notes. `stream`: notes are concatenated and cut at full rows, so labels and attention cross notes.",
    )
    targets: bool = Field(False, description="Store the sixth column, `targets`, of prepacked rows.")
    formats: tuple[FileFormat, ...] = Field(("tfrecord",), min_length=1, description="`tfrecord`, `array_record`.")
    rows_per_shard: int = Field(ROWS_PER_SHARD, ge=1, description="Maximum number of rows per shard.")
    tfds_version: TfdsVersion = Field("1.0.0", description=VERSION_HELP)
    bad_records: BadRecordPolicy = Field(BadRecordPolicy(), description="How a record without a note is handled.")
    retractions: Path | None = Field(
        None,
        description="Retraction list (patients to remove, only as keyed digests), written by `dataprep retract`; "
        "default: `retracted.jsonl` next to this YAML.",
    )
    duplicate_patients: Literal["fail", "allow"] = Field(
        "fail", description="A patient in several cohorts: refuse to pack, or count and continue."
    )
    sample_rate: float = Field(0.0005, ge=0, le=1, description="Share of notes re-encoded by the reference engine.")

    @field_validator("dataset")
    @classmethod
    def _snake_case(cls, name: str) -> str:
        return tfds_name("dataset", name)

    @field_validator("splits")
    @classmethod
    def _shares(cls, splits: dict[str, float]) -> dict[str, float]:
        for name, share in splits.items():
            tfds_name("split", name)
            if not 0 < share <= 1:
                raise ValueError(f"split {name!r}: its share must be above 0 and at most 1")
        # 0.7 + 0.2 + 0.1 is slightly less than 1 in floating point
        if not math.isclose(sum(splits.values()), 1, abs_tol=1e-9):
            raise ValueError(f"the shares add up to {sum(splits.values())}, but must add up to 1")
        return splits

    @field_validator("formats")
    @classmethod
    def _formats_once(cls, formats: tuple[FileFormat, ...]) -> tuple[FileFormat, ...]:
        if len(set(formats)) != len(formats):
            raise ValueError("a format is listed twice")
        return formats

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.sensitive and self.patient_key.public is not None:
            raise ValueError("patient_key.public is only for fictional data (`sensitive: false`). Use patient_key.env")
        if self.order == "date" and self.cohorts.fields.date is None:
            raise ValueError("`order: date` needs cohorts.fields.date. Set it, or set `order: source`")
        if self.long_notes.overlap >= self.row_length:
            raise ValueError("long_notes.overlap must be below row_length")
        if self.long_notes.rule == "truncate" and self.long_notes.overlap:
            raise ValueError("long_notes: a truncated note has one chunk, so `overlap` has no effect. Remove it")
        if self.targets and self.layout == "unpacked":
            raise ValueError("`targets` is a column of prepacked rows; unpacked rows have only `tokens`")
        if self.layout == "unpacked" and self.pad is not None:
            raise ValueError("`pad` has no effect on unpacked rows, which the trainer pads itself. Remove it")
        if self.layout == "prepacked" and self.pad is None:
            raise ValueError("prepacked rows need `pad`, the padding token")
        if self.layout == "prepacked" and self.rows == "stream":
            raise ValueError(
                "`rows: stream` is for unpacked rows. For prepacked rows use `packing: {algorithm: concat_then_split}`"
            )
        if self.layout == "unpacked" and self.pipeline == "tfds" and "tfrecord" not in self.formats:
            raise ValueError("`pipeline: tfds` needs `tfrecord`: add it to `formats`, or set `pipeline: grain`")
        # compiled here, so that errors appear with the declaration and not when a month is packed
        self.header_template()
        return self

    def header_template(self) -> HeaderTemplate:
        """Return the compiled template; raise ValueError if it does not compile or uses undeclared names."""
        template = self.template
        try:
            return HeaderTemplate(
                template.header, engine=template.engine, fields=self.cohorts.fields.names, defaults=template.defaults
            )
        except ConfigError as error:
            raise ValueError(str(error)) from None

    def source_digests(self, key: bytes) -> SourceDigests:
        """Return how cohort files are digested: with the patient key `key` if the notes are sensitive."""
        return SourceDigests(key if self.sensitive else None)

    @property
    def capacity(self) -> int:
        """Maximum tokens of a stored row: one more than `row_length` if the tfds pipeline shifts unpacked rows."""
        return self.row_length + (self.layout == "unpacked" and self.pipeline == "tfds")

    @property
    def concatenated(self) -> bool:
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
        """Number of values of a stored column in every row; None for unpacked rows, whose lengths differ."""
        return None if self.layout == "unpacked" else self.capacity

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the stored columns, each with `capacity` values; unpacked rows may have fewer."""
        if self.layout == "unpacked":
            return (TOKENS,)
        return (*COLUMNS, TARGETS) if self.targets else COLUMNS

    def holding_retracted(self, store: ArtifactStore, unplanned: Iterable[Artifact]) -> list[Artifact]:
        # imported here, because that module imports this one
        from dataprep_assets.pipelines.notes.retractions import months_left

        if self.retractions is None or not self.retractions.exists():
            return []
        artifacts = list(unplanned)  # without artifacts, the key is not needed
        return months_left(self.retractions, self.patient_key.load(), store, artifacts) if artifacts else []

    def located(self, folder: Path) -> Self:
        source: Any = self.source
        if isinstance(source, LocalSource):
            source = source.model_copy(update={"path": resolve_path(source.path, folder)})
        elif isinstance(source, AssetSource):
            source = source.located(folder)
        else:
            source = source.model_copy(update={"cache_dir": resolve_path(source.cache_dir, folder)})
        update = {
            "source": source,
            "tokenizer": self.tokenizer.located(folder),
            "retractions": resolve_path(self.retractions or Path(RETRACTIONS), folder),
        }
        return super().located(folder).model_copy(update=update)


def tfds_name(kind: str, name: str) -> str:
    """Check the name of a dataset or split (`kind`); raise ValueError for a name that TFDS would not find."""
    if not _SNAKE_CASE.fullmatch(name):
        raise ValueError(f"{kind} {name!r}: TFDS allows only lower-case letters, digits and _")
    return name
