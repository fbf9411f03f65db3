"""Plan of a dataset's packed rows: the declaration, the tokenizer and the engine's certificate.

Entry points: `NotesPlan`, `build_notes_plan`.
"""

from dataclasses import dataclass, field
from typing import Any

from dataprep_assets.errors import ConfigError
from dataprep_assets.formats.tensorflow.example import ABSENT
from dataprep_assets.integrity.receipt import RETRACTED
from dataprep_assets.pipelines.notes.cohorts.row_shape import RowShape
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.patient_key import digest_key
from dataprep_assets.pipelines.notes.reading import EMPTY, MISSING_METADATA
from dataprep_assets.pipelines.notes.retractions import read_entries
from dataprep_assets.stream.token_stream import StreamPlan
from dataprep_assets.stream.tokenizer import load_declared_tokenizer
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate


@dataclass(frozen=True, kw_only=True)
class NotesPlan:
    """All inputs that determine the bytes of packed cohorts, except the source; picklable and equal for all workers.

    `retracted` contains the digests of the patients and notes on the retraction list. A cohort's key contains the
    entries that apply to the cohort.
    """

    notes: NotesDeclaration
    stream: StreamPlan
    shape: RowShape
    tokenizer: str
    vocab_size: int
    # Exclude the key and the digests from `repr`, because an error or a log may show a plan.
    key: bytes = field(repr=False)
    retracted: frozenset[bytes] = field(default=frozenset(), repr=False)

    def is_bad(self, reason: str) -> bool:
        """Return whether notes that are dropped for a reason use up the budget of bad records."""
        return reason not in (EMPTY, RETRACTED) and (
            reason != MISSING_METADATA or self.notes.template.missing != "drop"
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that determine the bytes of a cohort, by readable names."""
        notes, shape, stream = self.notes, self.shape, self.stream.key_parts()
        # Include only settings that determine the rows. The formats, names and sizes of shards affect only later
        # artifacts.
        declared_settings = notes.model_dump(
            mode="json",
            include={"row_length", "long_notes", "order", "packing", "splits", "layout", "bad_records"},
            # Leave out the budget, because it does not change the rows.
            exclude={"bad_records": {"budget"}},
        )
        return declared_settings | {
            "template": notes.template.key_parts(),
            # Use a list, because it keeps the declared order of the splits, which decides each patient's split.
            "splits": list(notes.splits.items()),
            "format": notes.cohorts.format,
            "fields": notes.cohorts.fields.model_dump(mode="json"),
            "document": {name: stream[name] for name in ("separator", "bos", "special_tokens")},
            "engine_refuses": stream["refused"],
            "reference": stream["reference"],
            "stream_version": stream["stream"],
            "stored_row": {"columns": shape.columns, "length": shape.row_length, "pad_id": shape.pad_id},
            "pad_may_occur": notes.pad_may_occur,
            # Include these settings only for unpacked rows, because they do not affect prepacked rows.
            **({"rows": notes.rows, "pipeline": notes.pipeline} if notes.layout == "unpacked" else {}),
        }

    @property
    def sources(self) -> dict[str, str]:
        """Digests of the inputs that determine the bytes, except the settings and the cohort's file."""
        # Include the key, because it determines the patients' digests and therefore their splits.
        return {"tokenizer": self.stream.tokenizer_digest, "patient_key": digest_key(self.key)}


def build_notes_plan(notes: NotesDeclaration, certificate: Certificate) -> NotesPlan:
    """Build the plan of a dataset of notes.

    Raises ConfigError for a pad id that occurs in documents, a missing patient key, or an invalid retraction list.
    """
    bundle = load_declared_tokenizer(notes.tokenizer)
    bos = bundle.choose_bos(notes.document.bos, notes.document.special_tokens)
    separator = bundle.choose_separator(notes.document.separator, notes.document.special_tokens).id
    stream = StreamPlan(
        tokenizer=bundle.directory,
        tokenizer_digest=bundle.digest,
        certificate=certificate.to_json(),
        special_tokens=notes.document.special_tokens,
        separator_id=separator,
        bos_id=bos.id if bos else None,
        dtype="uint32",
        # Leave this field empty, because `reading` extracts the texts of notes, and the stream's own reader is not
        # used.
        text_field="",
        bad_records=notes.bad_records.policy,
        sample_rate=notes.sample_rate,
        level=notes.prove.level,
        max_loss=notes.tokenizer.max_loss,
    )
    pad_id = find_pad_id(notes, bundle, separator_id=stream.separator_id, bos_id=stream.bos_id)
    key = notes.patient_key.load()
    return NotesPlan(
        notes=notes,
        stream=stream,
        shape=RowShape(columns=notes.columns, row_length=notes.capacity, pad_id=pad_id),
        tokenizer=bundle.name,
        vocab_size=bundle.vocab_size,
        key=key,
        retracted=read_entries(notes.retractions, key),
    )


def find_pad_id(
    notes: NotesDeclaration, bundle: TokenizerBundle, *, separator_id: int | None, bos_id: int | None
) -> int:
    """Find the pad id that ``notes`` declare in the tokenizer ``bundle``; return `ABSENT` for rows without padding.

    Raises ConfigError if the id is not in the vocabulary or, unless `may_occur` is declared, if it can occur in
    documents. Documents begin with ``bos_id`` and end with ``separator_id``.
    """
    pad = notes.pad
    if pad is None:
        return ABSENT
    pad_id = bundle.find_token(pad.token, key="pad.token").id if pad.token is not None else pad.id
    assert pad_id is not None
    if pad_id >= bundle.vocab_size:
        raise ConfigError(
            f"pad.id must be less than {bundle.vocab_size}, the vocabulary size of {bundle.name}, not {pad_id}"
        )
    if pad.may_occur:
        return pad_id
    special = {token.id for token in bundle.special_tokens}
    reason = None
    if pad_id in (separator_id, bos_id):
        reason = "ends or begins every document"
    elif pad_id not in special:
        reason = "is an ordinary token, which documents contain"
    elif notes.document.special_tokens == "match":
        reason = "can be encoded from text with `special_tokens: match`"
    if reason is not None:
        raise ConfigError(
            f"pad: id {pad_id} {reason}, so a reader that masks by `!= pad` would lose real tokens. Choose an unused "
            "special token, or declare `may_occur: true`"
        )
    return pad_id
