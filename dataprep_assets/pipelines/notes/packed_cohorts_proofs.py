"""Proofs on one packed cohort: its JSON lines, its columnar rows, the digests of its patients, and the receipt.

Each proof recomputes from the bytes what the receipt claims, or from the source what the bytes should be. Messages
name records, notes, rows and positions: no token, no text, no identifier, no name of a source file.

Entry points: `COHORT_PROOFS`, `prove_cohort`. The proofs on rows are in `packed_rows_proofs`, those that read the
source again in `cohort_source_proofs`.
"""

from collections import Counter
from dataclasses import replace

import orjson

from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.finding import Finding, files_intact, judged, ledger_of, name_of, verdict
from dataprep_assets.graph.spec import Proof
from dataprep_assets.integrity.ledger import RETRACTED
from dataprep_assets.pipelines.notes.cohort_source_proofs import notes_recounted, round_trip
from dataprep_assets.pipelines.notes.opened_cohort import REBUILD, OpenedCohort, load_tokenizer
from dataprep_assets.pipelines.notes.packed_cohort import PackedCohort
from dataprep_assets.pipelines.notes.packed_files import QUARANTINE, packed_paths, read_patients
from dataprep_assets.pipelines.notes.packed_rows_proofs import (
    ids_in_vocabulary,
    jsonl_equals_rows,
    labels_within_notes,
    rows_filled,
    rows_valid,
    separators_match_notes,
    tokens_conserved,
)
from dataprep_assets.pipelines.notes.privacy import unquoting
from dataprep_assets.pipelines.notes.reading import DEFECTS
from dataprep_assets.pipelines.notes.retraction_proofs import no_retracted_document
from dataprep_assets.pipelines.notes.spool import split_of
from dataprep_assets.stream import round_trip_proofs
from dataprep_assets.stream.losses_proof import LOSSES_PROOF, losses_within_limit
from dataprep_assets.stream.round_trip_proofs import encode_of
from dataprep_assets.stream.token_shard import TokenBinsFacts

COHORT_PROOFS = (
    Proof("files_intact", "Every file has the size and digest of the receipt, and no file is unlisted."),
    Proof(
        "ledger_balances",
        "Notes in = notes kept + notes dropped by reason; what was dropped for a defect has its place.",
    ),
    Proof(
        "rows_valid",
        "No row is empty or too long; sampled JSON lines have every column, segments, positions and labels.",
    ),
    Proof(
        "labels_within_notes",
        "In the batch that MaxText's loader makes of sampled rows no label is padding, and none leads into another "
        "note.",
    ),
    Proof("ids_in_vocabulary", "Every id is below len(tokenizer), and none is the pad id, recomputed from the file."),
    Proof(
        "tokens_conserved",
        "Tokens of the notes, less truncated, plus repeated headers and overlaps, are in the rows.",
    ),
    Proof("separators_match_notes", "One separator ends each note, and one BOS begins it; none is doubled or missing."),
    Proof("jsonl_equals_rows", "The JSON lines are as many as the columnar rows, and sampled ones are equal."),
    Proof("certificate_valid", "The engine that encoded the cohort was certified for it."),
    Proof(
        "notes_recounted", "Read again, the source has the notes, drops by reason, headers and patients of the receipt."
    ),
    Proof(
        "round_trip",
        "Sampled notes, or every one, rendered and encoded again, are in the rows of their split, where `origins.bin` "
        "says.",
        samples=True,
    ),
    Proof("patients_in_their_split", "Each patient is in the one split that the keyed digest of the id decides."),
    Proof(
        "no_retracted_document",
        "No patient or note on the retraction list is in the rows, by digest, by the source, and by a sample's tokens.",
    ),
    LOSSES_PROOF,
    # half-empty rows only cost time
    Proof(
        "rows_filled",
        "No two rows would fit into one: padding is what the packing algorithm cannot avoid.",
        blocking=False,
    ),
)
"""All others block: rows would be lost or read wrongly, teach across documents, or leak patients to another split."""


def prove_cohort(cohort: PackedCohort) -> dict[str, Finding]:
    """Every proof of one packed cohort, by name; a missing or unreadable cohort fails them all."""
    try:
        with unquoting(cohort.month):
            receipt, directory = cohort.store.require(cohort.artifact), cohort.store.local(cohort.artifact)
            bundle = load_tokenizer(cohort.plan.stream.tokenizer, cohort.plan.stream.tokenizer_digest)
    except DataprepError as error:  # an unreadable receipt is the finding
        return {proof.name: Finding(passed=False, summary=str(error)) for proof in COHORT_PROOFS}
    packed = OpenedCohort(
        directory=directory,
        receipt=receipt,
        notes=cohort.plan.notes,
        month=cohort.month,
        bundle=bundle,
        file=cohort.file,
        key=cohort.plan.key,
        retracted=cohort.plan.retracted,
        encode=encode_of(cohort.plan.stream),
        cohort=cohort,
    )
    with unquoting(cohort.month):
        return {
            "files_intact": files_intact(packed.directory, packed.receipt, REBUILD),
            "ledger_balances": ledger_balances(packed),
            "rows_valid": rows_valid(packed),
            "labels_within_notes": labels_within_notes(packed),
            "ids_in_vocabulary": ids_in_vocabulary(packed),
            "tokens_conserved": tokens_conserved(packed),
            "separators_match_notes": separators_match_notes(packed),
            "jsonl_equals_rows": jsonl_equals_rows(packed),
            "certificate_valid": certificate_valid(packed),
            "notes_recounted": notes_recounted(packed),
            "round_trip": round_trip(packed),
            "patients_in_their_split": patients_in_their_split(packed),
            "no_retracted_document": no_retracted_document(packed),
            LOSSES_PROOF.name: losses_within_limit(packed.receipt, cohort.plan.stream.max_loss),
            "rows_filled": rows_filled(packed),
        }


@judged
def ledger_balances(packed: OpenedCohort) -> Finding:
    """Notes in = kept + dropped; the quarantine has a place for every note that was dropped for a defect."""
    receipt, ledger = packed.receipt, ledger_of(packed.receipt)
    ledger.balance(name_of(receipt))
    in_splits = sum(of.documents for of in packed.splits.values())
    defective = {r: n for r, n in ledger.dropped.items() if r in DEFECTS}
    path = packed.directory / QUARANTINE
    quarantined: Counter[str] = Counter()
    for line in path.read_bytes().splitlines() if path.exists() else ():
        position = orjson.loads(line)
        quarantined[position["reason"]] += position["notes"]
    defects = []
    if in_splits != ledger.documents:
        defects.append(f"{name_of(receipt)}: its splits have {in_splits} notes, its ledger {ledger.documents}")
    if dict(quarantined) != defective:
        defects.append(f"{name_of(receipt)}: {QUARANTINE} has {dict(quarantined)}, the ledger {defective}")
    return verdict(
        defects,
        f"{ledger.rows_in} notes in, {ledger.documents} kept, {sum(ledger.dropped.values())} dropped.",
        REBUILD,
        facts={"rows_in": ledger.rows_in, "documents": ledger.documents, "dropped": sum(ledger.dropped.values())},
        table=[{"reason": reason, "notes": count} for reason, count in ledger.dropped.items()] or None,
    )


@judged
def certificate_valid(packed: OpenedCohort) -> Finding:
    """The proof of token bins, for a cohort: header and text of a note are two documents for an engine."""
    ledger, special_tokens = ledger_of(packed.receipt), packed.notes.document.special_tokens
    # notes that got into no row were encoded all the same
    encoded = 2 * (ledger.documents + ledger.dropped.get("header_too_long", 0) + ledger.dropped.get(RETRACTED, 0))
    facts = TokenBinsFacts(
        dtype="uint32",
        separator_id=packed.facts.separator_id,
        bos_id=packed.facts.bos_id,
        special_tokens=special_tokens,
        certificate=packed.facts.certificate,
    )
    receipt = replace(packed.receipt, ledger=replace(ledger, documents=encoded), facts=facts.to_json())
    return round_trip_proofs.certificate_valid(receipt, packed.bundle, special_tokens)


@judged
def patients_in_their_split(packed: OpenedCohort) -> Finding:
    """Digests are sorted, distinct and counted; each is in the split that it decides, so in no other."""
    defects, total = [], 0
    shares = list(packed.notes.splits.values())
    for index, (name, path) in enumerate(packed_paths(packed.notes, packed.month).items()):
        digests = [digest.tobytes() for digest in read_patients(packed.directory / path.patients)]
        total += len(digests)
        if digests != sorted(set(digests)):
            defects.append(f"{path.patients}: its digests are not sorted, or one occurs twice")
        if len(digests) != packed.splits[name].patients:
            defects.append(f"{path.patients}: {len(digests)} patients, the receipt says {packed.splits[name].patients}")
        if strays := sum(split_of(digest, shares) != index for digest in digests):
            defects.append(f"{path.patients}: {strays} patients are of another split than {name}")
    return verdict(
        (f"{name_of(packed.receipt)}: {d}" for d in defects),
        f"{total} patients, each in one of {len(shares)} splits.",
        REBUILD,
        facts={"patients": total, "splits": len(shares)},
    )
