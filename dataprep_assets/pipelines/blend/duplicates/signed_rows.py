"""Signatures of the rows of a shard (`<dataset>/signatures`), in one pass over its sources.

Only rows that the shard would keep are signed: no rule, benchmark item or retraction list drops them. Rows that do not
fit into a sequence are signed, because their length is known only after they are rendered.

- the arrays of `curation.duplicates.signatures`, with one row per signed row
- `origins.npy`: the ordinal of the source file, and the row in it, of each signed row
- `row_ids.npy`: the ids of all rows that were read (`removal/row_ids.py`)
- `priority.bin`, float64: the sort value of each signed row, if a column decides which row is kept

Entry points: `SignedRows`, `ensure_signed_rows`, `open_signed_rows`.
"""

import json
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.benchmarks.decontamination import TextChoice
from dataprep_assets.curation.duplicates.declaration import PriorityColumn
from dataprep_assets.curation.duplicates.kept_set import build_value_keys
from dataprep_assets.curation.duplicates.signatures import SignatureSettings, SignatureWriter, SignedShard
from dataprep_assets.curation.retractions import describe_ids
from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.checks.check import Level
from dataprep_assets.execution.run_task import report_work
from dataprep_assets.formats.flat_bins import map_file
from dataprep_assets.formats.row_origins import ORIGINS, Origins, read_origins, write_origins
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.pipelines.blend.removal.row_ids import ReadRows, RowRetractions, write_row_ids
from dataprep_assets.pipelines.blend.screening.conversation_columns import select_compared_text
from dataprep_assets.pipelines.blend.screening.row_rules import Row, RowColumns
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.token_stream import Fetch, SourcePart, fetch_missing
from dataprep_assets.tokenization.chat.messages import Preference

VERSION = 1
PRIORITY = "priority.bin"


class SignedRowsFacts(Facts):
    """Facts of the signatures of a shard: signed rows, rows with a text to compare, blank rows, and bands.

    `retracted` are the ids (16 hex digits) on the retraction list whose rows were left out.
    """

    rows: int
    documents: int
    blank: int
    bands: int
    retracted: tuple[str, ...] = ()


class SignableShard(Protocol):
    """A planned shard without its duplicates: `SftShard`, `PairsShard` or `RlShard`."""

    @property
    def sources(self) -> Sequence[SourcePart]: ...
    @property
    def source_bytes(self) -> int: ...
    @property
    def retractions(self) -> RowRetractions: ...
    @property
    def reading_key_parts(self) -> Mapping[str, Any]:
        """The values that decide which rows of the sources are read, and their contents."""
        ...

    def read_kept_rows(
        self, source: Any, ids: ReadRows, only: Collection[int] | None = None
    ) -> Iterator[Mapping[int, Row]]:
        """Yield the rows of a source that the shard would keep, in blocks, by number; record the ids of all rows."""
        ...


@dataclass(frozen=True, kw_only=True)
class OpenedSignatures:
    """The finished signatures of a shard.

    Attributes:
        signatures: The signatures.
        origins: The ordinal of the source file, and the row, of each signed row.
        values: The sort value of each row; None without a priority.
    """

    signatures: SignedShard
    origins: Origins
    values: NDArray[np.float64] | None


@dataclass(frozen=True, kw_only=True)
class SignedRows:
    """Signatures of the rows of one shard, to be built or checked. Instances are picklable.

    Attributes:
        artifact: The artifact of the signatures.
        store: The artifact's store.
        shard: The shard without its duplicates.
        columns: The columns of its rows, with the tagger that the priority needs.
        text: The compared texts of a row.
        priority: The column that decides which row is kept, if any.
        settings: The settings of the signatures.
        may_vary: Whether a rule uses a tagger that may return different values for the same row.
        level: The number of rows that checks rebuild.
        retracted: The listed ids that the existing signatures have read.
    """

    artifact: Artifact
    store: ArtifactStore
    shard: SignableShard
    columns: RowColumns
    text: TextChoice
    priority: PriorityColumn | None
    settings: SignatureSettings
    may_vary: bool
    level: Level
    retracted: tuple[str, ...] = field(default=())

    @property
    def sources(self) -> Sequence[SourcePart]:
        """The source files."""
        return self.shard.sources

    @property
    def source_bytes(self) -> int:
        """Total size of the sources in bytes."""
        return self.shard.source_bytes

    @property
    def recipe(self) -> Recipe:
        """The named values that determine the signatures."""
        settings = {
            **self.settings.key_parts,
            "text": self.text,
            **({} if self.priority is None else {"priority": self.priority.model_dump(mode="json")}),
            "reading": digest_value([dict(self.shard.reading_key_parts), self.columns.key_parts()]),
            **self.shard.retractions.key_parts(),
            **({"retracted": describe_ids(self.retracted)} if self.retracted else {}),
        }
        files = [
            [f.label, f.ordinal, f.sha256, f.format, f.compression, f.limits, f.rows and [f.rows.first, f.rows.stop]]
            for f in self.sources
        ]
        return Recipe(
            artifact=self.artifact,
            key=digest_value(["signed_rows", VERSION, settings, list(self.retracted), files]),
            version=VERSION,
            settings=settings,
            sources={source.label: source.sha256 for source in self.sources},
        )

    @property
    def key(self) -> str:
        """Digest of everything that determines the signatures."""
        return self.recipe.key

    def read_texts(
        self, source: SourcePart, ids: ReadRows, only: Collection[int] | None = None
    ) -> Iterator[tuple[Mapping[int, Row], list[str]]]:
        """Yield the rows of a source that the shard would keep, in blocks, and the compared text of each row."""
        for rows in self.shard.read_kept_rows(source, ids, only):
            yield rows, [select_compared_text(self.columns.read(row), self.text) for row in rows.values()]

    def open_folder(self, folder: Path, facts: SignedRowsFacts) -> OpenedSignatures:
        """Open signatures in a folder."""
        return OpenedSignatures(
            signatures=SignedShard(folder, facts.rows, facts.documents, facts.bands),
            origins=read_origins(folder / ORIGINS, 2),
            values=None if self.priority is None else map_file(folder / PRIORITY, np.dtype("<f8"), facts.rows),
        )

    def write(self, staged: Path, drawn_origins: Origins | None = None) -> WrittenFiles:
        """Write the signatures, only of the rows with the origins in `drawn_origins` if given; return the facts."""
        ids, ordinals, numbers = ReadRows(self.shard.retractions), array("q"), array("q")
        values = [np.zeros(0)]
        with SignatureWriter(staged, self.settings) as writer:
            for source in self.sources:
                only = None if drawn_origins is None else _select_numbers(drawn_origins, source.ordinal)
                for rows, texts in self.read_texts(source, ids, only):
                    writer.add(len(rows), range(len(rows)), texts, list(map(_format_content, rows.values())))
                    ordinals.extend([source.ordinal] * len(rows))
                    numbers.extend(rows)
                    if self.priority is not None and rows:
                        table = self.columns.compute([*rows.values()], source.label, [*rows])
                        values.append(build_value_keys(table[self.priority.column].to_pylist(), self.priority.order))
                    report_work(documents=len(rows))
        write_origins(staged / ORIGINS, [np.array(ordinals, np.int64), np.array(numbers, np.int64)])
        retracted = write_row_ids(staged, ids.table, self.shard.retractions)
        if self.priority is not None:
            np.concatenate(values).astype("<f8").tofile(staged / PRIORITY)
        return WrittenFiles(
            inputs={source.label: source.sha256 for source in self.sources},
            facts=SignedRowsFacts(
                rows=writer.rows,
                documents=writer.documents,
                blank=writer.blank,
                bands=self.settings.bands,
                **({"retracted": retracted} if retracted else {}),
            ),
            recipe=replace(self, retracted=retracted).recipe,
        )


def _select_numbers(origins: Origins, ordinal: int) -> set[int]:
    """Return the rows of a source file that are in the origins."""
    return set(origins[origins[:, 0] == ordinal, 1].tolist())


def _format_content(row: Row) -> str:
    """Return the complete content of a row as text, which does not depend on the order of keys."""
    if isinstance(row, dict):
        content: Any = row
    else:
        sides = row.sides if isinstance(row, Preference) else [row]
        content = [[side.messages, side.tools, side.kwargs] for side in sides]
    return json.dumps(content, sort_keys=True, default=str)


def ensure_signed_rows(rows: SignedRows, verification: Verification, fetch: Fetch | None) -> tuple[Receipt, bool]:
    """Build signatures unless they are up to date; return the receipt and whether it was reused. Runs in a worker."""
    return ensure_built(rows.recipe, rows.store, partial(_fetch_and_write, rows, fetch), verification)


def _fetch_and_write(rows: SignedRows, fetch: Fetch | None, staged: Path) -> WrittenFiles:
    fetch_missing(rows.sources, fetch)
    return rows.write(staged)


def open_signed_rows(rows: SignedRows) -> OpenedSignatures:
    """Open the finished signatures of a shard. Raises MissingArtifactError if they are missing."""
    facts = SignedRowsFacts.from_receipt(rows.store.require(rows.artifact))
    return rows.open_folder(rows.store.local(rows.artifact), facts)
