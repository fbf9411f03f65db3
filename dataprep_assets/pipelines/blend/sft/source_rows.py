"""Reading of the conversations or preferences in a source file of chat data, with a quarantine for dropped rows.

Entry points: `SourceRows`; `read_quarantine`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson

from dataprep_assets.curation.benchmarks.columns import BENCHMARK
from dataprep_assets.curation.rewriters.rewriting import RewritingError
from dataprep_assets.curation.selection import DUPLICATE
from dataprep_assets.errors import BadRecordError, FormatError
from dataprep_assets.integrity.receipt import RETRACTED
from dataprep_assets.pipelines.blend.removal.row_ids import ReadRows
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, ChatSource
from dataprep_assets.sources.readers.read_options import RowRange
from dataprep_assets.sources.readers.row_files import BadRecord
from dataprep_assets.sources.readers.rows import RowReader
from dataprep_assets.sources.readers.unreadable import ADVICE as ROW_ADVICE
from dataprep_assets.sources.readers.unreadable import describe_place
from dataprep_assets.stores.files import canonical_json, require_digest, sha256_file
from dataprep_assets.stream.token_stream import SourcePart, find_unreadable_error
from dataprep_assets.tokenization.chat.choices import ChatChoices
from dataprep_assets.tokenization.chat.messages import (
    ADVICE,
    NO_MESSAGES,
    OTHER_FORM,
    Conversation,
    ConversationFields,
    Preference,
    Refusal,
)
from dataprep_assets.tokenization.chat.row_forms import Form, count_keys, find_unread_keys

R = TypeVar("R", Conversation, Preference)
_Read = Callable[[Mapping[str, Any], ConversationFields, ChatChoices], R | Refusal]


class SourceRows(Generic[R]):
    """Reader of the rows of one file, which counts and quarantines dropped rows.

    Attributes:
        source: The file.
        form: The form of the file's rows, which its first conversation determines; None before it is read.
        dropped: Number of dropped rows, by reason.
        quarantine: A line for each dropped row that is not retracted, in the order of dropping.
        unread: Number of rows per key that is not read; the key is empty if names are hidden.
    """

    def __init__(
        self,
        plan: ChatPlan,
        source: ChatSource,
        read_row: _Read[R],
        ids: ReadRows,
    ) -> None:
        """Prepare to read a file, whose rows `read_row` parses.

        Rows that are dropped for reasons that the plan chooses never fail the build. `ids` records the ids of the rows.
        """
        self._plan, self.source = plan, source
        self._read_row: _Read[R] = read_row
        self._ids = ids
        self.dropped: Counter[str] = Counter()
        self.quarantine: list[bytes] = []
        self.unread: Counter[str] = Counter()
        # If no row of the file has messages, the error shows the place and reason of the first bad row.
        self._first_bad, self._has_read = "", False
        self.form: Form | None = self._find_form_before() if source.rows.first > 1 else None

    @contextmanager
    def open(self) -> Iterator[RowReader]:
        """Open a reader of the file's rows, and validate the file when the reader is closed.

        Raises CorruptSourceError if the file's digest has changed, and BadRecordError if no row has messages, even
        under the policy `drop`.
        """
        reader = self.source.read_rows(as_json=self._plan.choices.reads_json)
        try:
            yield reader
        except BadRecordError:
            # Verify the file first, because a damaged file must not be reported as bad rows.
            self._require_digest(sha256_file(self.source.path))
            self._require_readable()
            raise
        # Verify the bytes that were read, because the file may have been replaced during reading.
        self._require_digest(reader.sha256)
        self._require_readable()

    def read(self, rows: Sequence[Mapping[str, Any]], numbers: Sequence[int]) -> list[R | Refusal]:
        """Return the conversation or preference in each row, or a Refusal.

        A row is also refused if a rule drops it, if it contains a benchmark item, or if it is a duplicate. The rows'
        ids are recorded, and their unread keys are counted.
        """
        results = [self._read(row, number) for row, number in zip(rows, numbers, strict=True)]
        if (rules := self._plan.rules) is not None:
            read_rows, positions = _select_read_rows(results)
            reasons = rules.find_reasons(read_rows, self.source.label, [numbers[position] for position in positions])
            for position, reason in zip(positions, reasons, strict=True):
                results[position] = results[position] if reason is None else Refusal(reason)
        if (screen := self._plan.screen) is not None:
            read_rows, positions = _select_read_rows(results)
            for position, item in zip(positions, screen.find_leaks(read_rows), strict=True):
                results[position] = results[position] if item is None else Refusal(BENCHMARK, words=item)
        if (duplicates := self._plan.duplicates) is not None:
            for position, partner in enumerate(duplicates.find_partners(self.source.ordinal, numbers)):
                if partner is not None and not isinstance(results[position], Refusal):
                    results[position] = Refusal(DUPLICATE, words=partner.words)
        return results

    def _read(self, row: Mapping[str, Any], number: int) -> R | Refusal:
        plan = self._plan
        is_retracted = self._ids.is_retracted(row, self.source.ordinal, number)
        try:
            result = self._read_row(row, plan.fields, plan.choices)
        except RewritingError as error:
            raise RewritingError(f"{self.source.label}: row {number}: {error}") from error
        self._has_read |= result != NO_MESSAGES
        if not isinstance(result, Refusal):
            # A retracted row also determines the form, because its removal must not change how other rows are read.
            self.form = self.form or result.form
        if is_retracted:
            return Refusal(RETRACTED)
        if isinstance(result, Refusal):
            return result
        if result.form != self.form:
            return Refusal(OTHER_FORM)
        ids = plan.retractions.ids
        if keys := find_unread_keys(row, result.messages, result.form, plan.fields) - {ids and ids.id_field}:
            count_keys(self.unread, keys if plan.names_keys else {""})
        return result

    def drop(self, record: BadRecord, refusal: Refusal | None = None) -> None:
        """Count a dropped row, and quarantine it unless it is retracted.

        Raises BadRecordError for a bad row if the policy is `fail`.
        """
        if record.reason == RETRACTED:
            self.dropped[RETRACTED] += 1
            return
        self._first_bad = self._first_bad or describe_place(record)
        if self._plan.bad_rows == "fail" and self._plan.is_bad(record.reason):
            raise _build_bad_row_error(self.source.label, record, refusal)
        self.dropped[record.reason] += 1
        self.quarantine.append(_encode_quarantine_line(self.source.label, record, refusal))

    def _require_digest(self, sha256: str) -> None:
        source = self.source
        require_digest(source.label, source.digests.digest_of(sha256), source.sha256, "its snapshot")

    def _require_readable(self) -> None:
        """Raise BadRecordError if the file has bad rows and no row with messages, even if the policy is `drop`."""
        if self._has_read or not self._first_bad:
            return
        if (error := find_unreadable_error(self.source, self._first_bad, self._has_messages)) is not None:
            raise error from None

    def _has_messages(self, part: SourcePart) -> bool:
        return any(result != NO_MESSAGES for result in self._read_results(part))

    def _find_form_before(self) -> Form | None:
        """Return the form of the first conversation before the range of rows; None if there is no conversation."""
        earlier_rows = replace(self.source, rows=RowRange(1, self.source.rows.first))
        results = self._read_results(earlier_rows)
        return next((result.form for result in results if not isinstance(result, Refusal)), None)

    def _read_results(self, part: SourcePart) -> Iterator[R | Refusal]:
        for block in part.read_rows(as_json=self._plan.choices.reads_json):
            for row in block.rows:
                yield self._read_row(row, self._plan.fields, self._plan.choices)


def _select_read_rows(results: Sequence[R | Refusal]) -> tuple[list[R], list[int]]:
    """Return the results that are not refusals, and their positions."""
    read_rows = [(result, position) for position, result in enumerate(results) if not isinstance(result, Refusal)]
    return [result for result, _ in read_rows], [position for _, position in read_rows]


def _build_bad_row_error(label: str, record: BadRecord, refusal: Refusal | None) -> BadRecordError:
    """Return the error for a bad row of the file `label`, which names the invalid message and has advice."""
    byte = f", byte {record.byte}" if record.byte >= 0 else ""
    message_note = "" if refusal is None or refusal.message is None else f", message {refusal.message}"
    words = f" {refusal.words!r}" if refusal and refusal.words else ""
    advice = f" ({hint})" if (hint := ADVICE.get(record.reason.partition(":")[0])) else ""
    return BadRecordError(
        f"{label}: row {record.row}{byte}{message_note}: {record}{words}{advice}. {ROW_ADVICE}",
        file=label,
        **record.position,
    )


def _encode_quarantine_line(label: str, record: BadRecord, refusal: Refusal | None) -> bytes:
    """Return the line in the quarantine file for a dropped row of the source file `label`."""
    line = {
        "file": label,
        "row": record.row,
        "byte": record.byte,
        "reason": record.reason,
        "message": refusal.message if refusal else None,
    }
    if refusal and refusal.words:
        line["words"] = refusal.words
    return canonical_json(line) + b"\n"


def read_quarantine(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a quarantine file; no rows if the file does not exist.

    Raises FormatError for a line that is not a quarantined row.
    """
    if not path.exists():
        return
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = orjson.loads(line)
                # Records of RL have no messages.
                optional_values = {"message": row.get("message"), "words": row.get("words", "")}
                yield {name: row[name] for name in ("file", "row", "byte", "reason")} | optional_values
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise FormatError(
                    f"{path}: line {number}: not a quarantined row: {error}. Rebuild the artifact"
                ) from error
