"""Header and text encoded as one: the rows hold what the reference makes of both joined, long notes too."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.cohorts.cohort_tracer import build_notes_tracer
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.note_tokens import split_header_and_body
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, rows, segments, written
from dataprep_assets_tests.pipelines.notes.packed_months import BOS, failed, packed, prove_cohort
from dataprep_assets_tests.pipelines.notes.pipeline import SAMPLES

MONTH = "2010-01"
HEADER = "A letter of {kind}"
NOTES = {"t": "he garden and the kite.", "tea": ", and cake.", "w": "hat the goat counts, twice. " * 9}
"""By the header's last word, with which the text begins in one token: "the", "what"."""
TOKENIZER = Tokenizer.from_file(str(SAMPLES / "sample_corpus" / "tokenizer" / "tokenizer.json"))


def ids(text: str) -> list[int]:
    """As the reference encodes a text."""
    found: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return found


def declared(folder: Path, encode: str = "together", **changes: Any) -> NotesDeclaration:
    """A month of one patient with `NOTES`."""
    source = folder / "in"
    written(source, {MONTH: [patient("P", *(note(text, kind=kind) for kind, text in NOTES.items()))]})
    cohorts = {"fields": {"note": {"kind": "kind"}}}
    base: dict[str, Any] = {"cohorts": cohorts, "order": "source", "row_length": 64, "sample_rate": 1.0}
    return plain(source, (MONTH, MONTH), **base, template={"header": HEADER, "encode": encode}, **changes)


def test_the_rows_hold_what_the_reference_makes_of_header_and_text_together(tmp_path: Path) -> None:
    notes = declared(tmp_path, layout="unpacked", rows="stream", pipeline="grain", formats=["array_record"])
    cohort = packed(tmp_path / "out", notes, MONTH)
    found = [token for row in rows(notes, tmp_path / "out", MONTH) for token in row["tokens"]]
    end = TOKENIZER.token_to_id("<|endoftext|>")
    together = [[*ids(HEADER.format(kind=kind) + text), end] for kind, text in NOTES.items()]
    apart = [[*ids(HEADER.format(kind=kind)), *ids(text), end] for kind, text in NOTES.items()]
    assert [one == other for one, other in zip(together, apart, strict=True)] == [False, True, False]
    assert found == [token for note_ids in together for token in note_ids]
    assert set(failed(prove_cohort(cohort))) == {"labels_within_notes"}, "a stream crosses notes"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layout": "unpacked"},
        {"long_notes": {"rule": "header_once", "overlap": 8}},
        {"long_notes": {"rule": "truncate"}},
        BOS,
    ],
    ids=["prepacked", "unpacked", "header_once", "truncated", "bos"],
)
def test_every_proof_passes_and_knows_rows_that_were_encoded_otherwise(changes: dict[str, Any], tmp_path: Path) -> None:
    found = prove_cohort(packed(tmp_path / "out", declared(tmp_path, **changes), MONTH))
    assert failed(found) == {}
    assert found["labels_within_notes"].facts["labels_across_notes"] == 0
    assert found["round_trip"].facts["documents_compared"] == 3


def test_rows_of_the_other_encoding_are_found(tmp_path: Path) -> None:
    cohort = packed(tmp_path / "out", declared(tmp_path), MONTH)
    other = replace(cohort.plan, notes=declared(tmp_path, encode="apart"))
    wrong = failed(prove_cohort(replace(cohort, plan=other)))
    assert_names(wrong["round_trip"], "record 1", "note 1", "chunk 1")


def test_what_a_long_note_repeats_is_the_headers_alone(tmp_path: Path) -> None:
    notes = declared(tmp_path)
    packed(tmp_path / "out", notes, MONTH)
    whole, header = ids(HEADER.format(kind="w") + NOTES["w"]), ids(HEADER.format(kind="w"))
    shared = header[: len(header) - 1]
    assert whole[: len(header)] != header, "a token spans both"
    assert whole[: len(shared)] == shared
    body = [*whole[len(shared) :], TOKENIZER.token_to_id("<|endoftext|>")]
    room = notes.row_length - len(shared)
    chunks = [[*shared, *body[at : at + room]] for at in range(0, len(body), room)]
    assert len(chunks) == 2
    every = [piece for row in rows(notes, tmp_path / "out", MONTH) for piece in segments(row)]
    assert [chunk in every for chunk in chunks] == [True, True]


def test_rows_lead_back_to_their_notes(tmp_path: Path) -> None:
    notes = declared(tmp_path)
    packed(tmp_path / "out", notes, MONTH)
    tracer, held = build_notes_tracer(notes, LocalArtifacts(tmp_path / "out")), rows(notes, tmp_path / "out", MONTH)
    found = [trace_documents(tracer, packed_row=at, shard=MONTH) for at in range(len(held))]
    assert [len(of_row) for of_row in found] == [len(segments(row)) for row in held]
    short = {HEADER.format(kind=kind) + NOTES[kind] for kind in ("t", "tea")}
    assert short < {of.text for of_row in found for of in of_row}


def test_the_header_is_what_both_encodings_begin_with() -> None:
    header, whole = np.array([4, 5, 6], np.uint32), np.array([4, 5, 9, 7], np.uint32)
    cut = [part.tolist() for part in split_header_and_body(header, whole, "together")]
    assert cut == [[4, 5], [9, 7]]
    assert [part.tolist() for part in split_header_and_body(header, whole, "apart")] == [[4, 5, 6], [4, 5, 9, 7]]
    assert [part.tolist() for part in split_header_and_body(header[:0], whole, "together")] == [[], [4, 5, 9, 7]]
    assert [part.tolist() for part in split_header_and_body(whole, header[:2], "together")] == [[4, 5], []]
