"""Traces a position in training data to its document and source row, and to every place of that document.

`trace(tracer, token=123, split="train")` answers a `TraceQuery` with a `Trace` for each matching document: one document
for a token, several for a training sample, all documents with the same hash for an id. A layer provides the `Tracer`
(`DatasetComponent.tracer`), and artifacts provide the positions of their documents (`ArtifactSpec.places`). Everything
is read from finished artifacts, by memory maps or byte ranges, so tracing needs neither the source nor a run.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import Any

from dataprep_assets.engine.trace.place import TokenRange
from dataprep_assets.engine.trace.sample import RowSample, SampledRow
from dataprep_assets.errors import ConfigError, count_of

_RESTRICTING_FIELDS = frozenset({"split", "shard", "file", "sample", "message"})
"""Fields of a query that restrict it; every other field is a kind of query."""
_MAX_SHOWN = 400
"""Maximum length of a document's text in the output, in characters; JSON has the whole text."""


@dataclass(frozen=True, kw_only=True)
class TraceQuery:
    """A query: exactly one field that identifies documents, restricted to a split, shard or file if given.

    Attributes:
        split: The split (in a blend, the dataset) that numbers refer to.
        shard: The partition of token bins that numbers refer to instead: `train-00003`.
        token: Position in the stream, from 0; with `sample` or `packed_row` of a chat blend, in that row.
        document: Number of a document in the stream, from 0.
        row: Row of the source file `file`, from 1; with `shard` instead, the number of a document in it, from 0.
        file: A source file, as named in the manifest.
        id: A document's id: the value of `document.id_field` or, in a blend, of `id_field`.
        text: A document's whole text.
        megatron_index: Number of a sequence in the split's (or shard's) Megatron index, from 0.
        view: A view that has samples: `mds`, `sft_rows`.
        npy_shard: An npy shard of a release: `train_000003`.
        sample: Number of a sample of the split in `view`, or in `npy_shard`, from 0.
        packed_row: Row of the packed file of `shard`, from 0, in a chat blend or a month of notes.
        tfrecord_row: For notes: record in the directory of `split`, from 0, in the order of its files, or with `shard`
            in that file only. The numbering is the same for TFRecord and ArrayRecord.
        message: Index of a message in the conversation, from 0, in a chat blend.
    """

    split: str | None = None
    shard: str | None = None
    file: str | None = None
    token: int | None = None
    document: int | None = None
    row: int | None = None
    # Exclude these fields from `repr`, which tracebacks and logs show, because a value may be from a sensitive dataset.
    id: str | int | None = field(default=None, repr=False)
    text: str | None = field(default=None, repr=False)
    megatron_index: int | None = None
    view: str | None = None
    npy_shard: str | None = None
    sample: int | None = None
    packed_row: int | None = None
    tfrecord_row: int | None = None
    message: int | None = None

    def __post_init__(self) -> None:
        is_part = self.view is not None or self.packed_row is not None
        field_names = [
            f.name for f in fields(self) if f.name not in _RESTRICTING_FIELDS and not (is_part and f.name == "token")
        ]
        if len(set_names := [name for name in field_names if getattr(self, name) is not None]) != 1:
            names = ["text (--text-file)" if field_name == "text" else field_name for field_name in field_names]
            raise ConfigError(
                f"trace: use exactly one of {', '.join(names)}"
                + (f", not {' and '.join(set_names)}" if set_names else "")
            )
        if (self.row is None and self.file is not None) or (self.row is not None and self.file is self.shard is None):
            raise ConfigError("trace: `file` and `row` must be used together. Set both")
        if (self.view is None and self.npy_shard is None) != (self.sample is None):
            raise ConfigError("trace: `sample` must be used with `view` or `npy_shard`. Set both")
        if self.message is not None and self.token is not None:
            raise ConfigError("trace: `token` and `message` cannot be used together. Remove one")
        if self.npy_shard is not None and (self.split, self.shard) != (None, None):
            raise ConfigError("trace: `npy_shard` cannot be combined with `split` or `shard`. Remove them")

    @property
    def field(self) -> str:
        """The name of the field that identifies the documents."""
        names = [
            f.name for f in fields(self) if f.name not in _RESTRICTING_FIELDS and getattr(self, f.name) is not None
        ]
        return next((name for name in names if name != "token"), names[0])

    def refuse_messages(self) -> None:
        """Raise ConfigError if the query is about a message, for a dataset without conversations."""
        if self.message is not None or (self.token is not None and self.field != "token"):
            name = "message" if self.message is not None else "token"
            raise ConfigError(
                f"trace: `{name}` within a row is supported only for packed conversations (`stage: sft`). Remove it"
            )


@dataclass(frozen=True, kw_only=True)
class SourceBytes:
    """Bytes `[start, stop)` of a row in its source file, without the line ending; or the reason if they are unknown."""

    start: int = 0
    stop: int = 0
    absent: str | None = None

    def __str__(self) -> str:
        return self.absent or f"bytes [{self.start}, {self.stop}) of the source file"

    def to_json(self) -> dict[str, Any]:
        """Return plain builtins: `source_bytes`, and `no_source_bytes` if it is null."""
        if self.absent is not None:
            return {"source_bytes": None, "no_source_bytes": self.absent}
        return {"source_bytes": [self.start, self.stop]}


@dataclass(frozen=True, kw_only=True)
class SourceText:
    """A document's text before rewriting, and the number of characters that each rewriter changed."""

    text: str = field(repr=False)
    changes: Mapping[str, int]

    def lines(self) -> Iterator[str]:
        """Yield the text and the changes as lines."""
        changes = [f"{name} changed {count_of(count, 'character')}" for name, count in self.changes.items() if count]
        yield f"  rewriting: {', '.join(changes) or 'changed nothing'}"
        if changes:
            yield _format_text("source text", self.text)

    def to_json(self) -> dict[str, Any]:
        """Return plain builtins: `source_text` and `rewritten`."""
        return {"source_text": self.text, "rewritten": dict(self.changes)}


@dataclass(frozen=True, kw_only=True)
class TracedMessage:
    """A message of the conversation: its index, from 0, and its role; both are None for the template's own text.

    `token` is the queried position in the row; None if the query was for a message.
    """

    index: int | None = None
    role: str | None = None
    token: int | None = None

    def __str__(self) -> str:
        subject = "" if self.token is None else f"token {self.token}: "
        return subject + ("the template's own text" if self.index is None else f"message {self.index} ({self.role})")

    def to_json(self) -> dict[str, Any]:
        """Return plain builtins: `message`, and `token` if a token was queried."""
        token = {} if self.token is None else {"token": self.token}
        return {**token, "message": {"index": self.index, "role": self.role}}


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One document: its source, and every place that contains it.

    Attributes:
        dataset: The dataset.
        split: Its split (in a blend, its dataset).
        document: Its number in the split, from 0.
        file: Its source file, as named in the manifest.
        row: Its row in this file, from 1.
        tokens: Number of its tokens.
        places: The places of these tokens; for a message, the places of the message's tokens.
        text: The decoded text of the document or message; None for sensitive data, or if not requested.
        source_bytes: The bytes of the row in the source file; None if not requested (`Tracer.source_bytes`).
        source_text: The text before rewriting; None if not requested (`Tracer.source_text`).
        message: The message of a query for a message, or for a token of a conversation's row.
    """

    dataset: str
    split: str
    document: int
    file: str
    row: int
    tokens: int
    places: tuple[TokenRange, ...]
    text: str | None = field(default=None, repr=False)
    source_bytes: SourceBytes | None = None
    source_text: SourceText | None = None
    message: TracedMessage | None = None

    @property
    def source(self) -> str:
        """`file:row`, the form that `dataprep retract` accepts."""
        return f"{self.file}:{self.row}"

    def to_json(self) -> dict[str, Any]:
        """Return the trace as plain builtins."""
        value = asdict(self) | {"source": self.source, "places": [_encode_place(place) for place in self.places]}
        del value["source_bytes"], value["source_text"], value["message"]
        if self.message is not None:
            value |= self.message.to_json()
        if self.source_bytes is not None:
            value |= self.source_bytes.to_json()
        if self.source_text is not None:
            value |= self.source_text.to_json()
        return value if self.text is not None else {k: v for k, v in value.items() if k != "text"}

    def lines(self) -> Iterator[str]:
        """Yield the trace as lines of text, the source first."""
        yield self.source
        if self.source_bytes is not None:
            yield f"  {self.source_bytes}"
        tokens = f", {count_of(self.tokens, 'token')}" if self.tokens else ""  # RL records have no tokens
        yield f"  {self.dataset}/{self.split}: document {self.document}{tokens}"
        if self.message is not None:
            yield f"  {self.message}"
        for place in self.places:
            details = [f"tokens [{place.start}, {place.stop})"] * (place.start < place.stop)
            if place.itemsize is not None:
                details.append(f"bytes [{place.start * place.itemsize}, {place.stop * place.itemsize})")
            details += [f"{name.replace('_', ' ')} {_format_number(value)}" for name, value in place.at.items()]
            yield f"  {place.artifact}: {place.file}: {', '.join(details)}"
        if self.source_text is not None:
            yield from self.source_text.lines()
        if self.text is not None:
            yield _format_text("text", self.text)


def _format_text(label: str, text: str) -> str:
    excerpt = text[:_MAX_SHOWN]
    return f"  {label}: {excerpt!r}" + (
        f" and {count_of(len(text) - _MAX_SHOWN, 'more character')}" if excerpt != text else ""
    )


def _encode_place(place: TokenRange) -> dict[str, Any]:
    value: dict[str, Any] = {"artifact": place.artifact, "file": place.file}
    if place.start < place.stop:
        value["tokens"] = [place.start, place.stop]
    if place.itemsize is not None:
        value["bytes"] = [place.start * place.itemsize, place.stop * place.itemsize]
    return value | dict(place.at)


def _format_number(value: int | list[int]) -> str:
    if isinstance(value, int):
        return str(value)
    # Compare neighbors instead of building the full range, because sample ids may be random 64-bit numbers.
    if len(value) > 1 and all(after - before == 1 for before, after in pairwise(value)):
        return f"{value[0]} to {value[-1]}"
    return ", ".join(map(str, value[:4])) + (f" and {len(value) - 4} more" if len(value) > 4 else "")


class Tracer(ABC):
    """Search for documents in one dataset. Opening it reads receipts; files are mapped when a query needs them.

    `notes` names the artifacts that contain documents but could not be opened, with the reasons.
    """

    notes: Sequence[str] = ()

    @abstractmethod
    def find(self, question: TraceQuery, *, decode: bool = True) -> list[Trace]:
        """Return the documents that match a query, in stream order, with their texts if `decode`.

        Raises NotFoundError if no document matches, and ConfigError for a query that this dataset does not support.
        """

    def sample(self, count: int, seed: str) -> RowSample:
        """Return about `count` random rows of the trainer's files; none of a sensitive dataset.

        The same artifacts and the same seed give the same rows.
        """
        return RowSample()

    def sample_rows(self, rows: Iterable[tuple[str, int]]) -> Iterator[SampledRow]:
        """Yield the given rows of source files (file, row) as in `sample`; those that are in no file are left out."""
        yield from ()

    def source_bytes(self, trace: Trace) -> SourceBytes | None:
        """Return the bytes of a trace's row in its source file; None if the pipeline does not support this.

        Separate from `find`, because only this method reads the source up to the row.
        """
        return None

    def source_text(self, trace: Trace) -> SourceText | None:
        """Return the text of a trace's row before rewriting, read from the source file.

        Returns None if texts are not rewritten, if the data are sensitive, or if the source file has changed.
        """
        return None


def trace_documents(tracer: Tracer, *, decode: bool = True, **question: Any) -> list[Trace]:
    """Return every document that matches a query: `trace_documents(tracer, token=123, split="train")`.

    Args:
        tracer: The tracer of the dataset.
        decode: Whether to decode the documents' texts. Texts of sensitive data are never decoded.
        question: The fields of `TraceQuery`.
    """
    return tracer.find(TraceQuery(**question), decode=decode)
