"""Proofs that compare one packed cohort with its source as it is now.

The source is read, rendered and encoded again, by the reference engine. Messages name records, notes, chunks and
counts: no text, no identifier, no name of a source file.

Entry points: `notes_recounted`, `round_trip`.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dataprep_assets.graph.finding import Finding, judged, ledger_of, name_of, verdict
from dataprep_assets.packing.splitting import SplitRule, split
from dataprep_assets.pipelines.notes.opened_cohort import REBUILD, OpenedCohort
from dataprep_assets.pipelines.notes.packed_files import packed_paths, read_patients
from dataprep_assets.pipelines.notes.packed_rows import PackedRowsFile
from dataprep_assets.tokenization.engines import ReferenceEngine

__all__ = ["notes_recounted", "round_trip"]


@judged
def notes_recounted(packed: OpenedCohort) -> Finding:
    """The source as it is now: the same file, with the notes, drops, headers and patients that the receipt has."""
    receipt, ledger, source = packed.receipt, ledger_of(packed.receipt), packed.source
    where = name_of(receipt)
    late = ledger.dropped.get("header_too_long", 0)
    expected = {
        "sha256": (source.sha256, receipt.inputs["cohort"]),
        "notes that are kept": (source.notes, ledger.documents + late),
        "notes": (source.notes + sum(source.dropped.values()), ledger.rows_in),
        "patients": (source.patients, packed.facts.patients),
        "patients without notes": (source.patients_without_notes, packed.facts.patients_without_notes),
    }
    defects = [f"{where}: the source has {what} {a}, the receipt {b}" for what, (a, b) in expected.items() if a != b]
    dropped = {r: n for r, n in ledger.dropped.items() if r != "header_too_long"}
    if source.dropped != dropped:
        defects.append(f"{where}: the source has drops {dict(source.dropped)}, the receipt {dropped}")
    stored = _digests(packed)
    strangers = len(stored - source.digests)
    if strangers or (not late and len(stored) != len(source.digests)):
        defects.append(
            f"{where}: {len(stored)} patients are in the rows, {len(source.digests)} of the source have notes, "
            f"{strangers} of the former are not among the latter"
        )
    missing = source.dropped.get("missing_metadata", 0)
    return verdict(
        defects,
        f"{source.notes} notes of {source.patients} patients, {source.headers} with a header, {missing} dropped "
        "because a field of theirs is missing.",
        f"The source or the key changed since the cohort was packed. {REBUILD}",
        facts={
            "notes": source.notes,
            "with_header": source.headers,
            "without_header": source.notes - source.headers,
            "missing_metadata": missing,
            "patients": source.patients,
        },
    )


def _digests(packed: OpenedCohort) -> set[bytes]:
    """The keyed digests of all patients in the rows."""
    paths = packed_paths(packed.notes, packed.month).values()
    return {digest.tobytes() for path in paths for digest in read_patients(packed.directory / path.patients)}


@judged
def round_trip(packed: OpenedCohort) -> Finding:
    """Sampled notes, read again from the source, rendered and encoded by the reference, are in their split's rows.

    The sample is seeded by the receipt's key, so a failure repeats. Messages name record, note and chunk.
    """
    receipt, sampled = packed.receipt, packed.source.sampled
    reference = ReferenceEngine(packed.bundle, packed.notes.document.special_tokens)
    separator, bos = packed.facts.separator_id, packed.facts.bos_id
    defects, compared = [], 0
    names = list(packed.notes.splits)
    for index, name in enumerate(names):
        notes = [note for note in sampled if note.split == index]
        headers = [([] if bos is None else [bos]) + _ids(reference, note.header) for note in notes]
        bodies = [[*_ids(reference, note.text), separator] for note in notes]
        wanted, at_chunk = _pieces(packed, headers, bodies)
        path = packed.directory / packed_paths(packed.notes, packed.month)[name].rows
        found = _stream_has(path, wanted) if packed.concatenated else _segments_have(path, wanted)
        compared += len(notes)
        for (note, chunk), there in zip(at_chunk, found, strict=True):
            if not there:
                lost = notes[note]
                defects.append(
                    f"record {lost.record}, note {lost.number}: its chunk {chunk + 1} is not in the rows of {name}"
                )
    return verdict(
        (f"{name_of(receipt)}: {d}" for d in defects),
        f"{compared} notes, rendered and encoded again by the reference, are in the rows.",
        f"Source, template or tokenizer changed since it was packed. {REBUILD}",
        facts={"notes_compared": compared, "notes": packed.source.notes},
    )


def _ids(reference: ReferenceEngine, text: str) -> list[int]:
    ids: list[int] = reference.encode([text])[0].tolist()
    return ids


def _pieces(
    packed: OpenedCohort, headers: Sequence[list[int]], bodies: Sequence[list[int]]
) -> tuple[list[bytes], list[tuple[int, int]]]:
    """The bytes (int32) that rows must hold one after another, and the note and chunk of each."""
    if packed.concatenated:
        whole = [np.array(h + b, "<i4").tobytes() for h, b in zip(headers, bodies, strict=True)]
        return whole, [(note, 0) for note in range(len(whole))]
    rule = SplitRule(
        rule=packed.notes.long_notes.rule,
        row_length=packed.notes.capacity,
        overlap=packed.notes.long_notes.overlap,
    )
    chunks = split(np.array([len(h) for h in headers], np.int64), np.array([len(b) for b in bodies], np.int64), rule)
    pieces, chunk_of = [], []
    before: Counter[int] = Counter()
    for note, start, stop, header in zip(
        chunks.documents.tolist(), chunks.starts.tolist(), chunks.stops.tolist(), chunks.with_header, strict=True
    ):
        pieces.append(np.array([*(headers[note] if header else ()), *bodies[note][start:stop]], "<i4").tobytes())
        chunk_of.append((note, before[note]))
        before[note] += 1
    return pieces, chunk_of


def _segments_have(path: Path, wanted: Sequence[bytes]) -> list[bool]:
    """Which of these are whole segments of a file of packed rows."""
    file, missing = PackedRowsFile(path), set(wanted)
    lengths = np.unique(np.array([len(piece) // 4 for piece in wanted], np.int64))
    for block in file.blocks(file.shape.batch_rows) if wanted else ():
        stops = np.cumsum(block.segments)
        for at in np.flatnonzero(np.isin(block.segments, lengths)).tolist():
            piece = block.tokens[stops[at] - block.segments[at] : stops[at]].astype("<i4", copy=False)
            missing.discard(piece.tobytes())
    return [piece not in missing for piece in wanted]


def _stream_has(path: Path, wanted: Sequence[bytes]) -> list[bool]:
    """Which of these are in the tokens of all rows, read as one stream."""
    file, missing, carried = PackedRowsFile(path), set(wanted), b""
    keep = max((len(piece) for piece in wanted), default=4) - 4
    for block in file.blocks(file.shape.batch_rows) if wanted else ():
        stream = carried + block.tokens.astype("<i4", copy=False).tobytes()
        missing = {piece for piece in missing if not _aligned(stream, piece)}
        carried = stream[len(stream) - min(keep, len(stream)) :]
    return [piece not in missing for piece in wanted]


def _aligned(stream: bytes, piece: bytes) -> bool:
    at = stream.find(piece)
    while at >= 0 and at % 4:
        at = stream.find(piece, at + 1)
    return at >= 0
