"""Artifacts `<dataset>/tfds_directory` and `<dataset>/array_record_directory`: directories for a trainer's loader.

Each directory contains the shards of all cohorts, in month order, under their global names (`linked_directory`).

Missing months, shards with different settings or from older rows, and patients in several cohorts are errors.

Entry points: `build_tfds_directory_spec`, `build_tfds_directory`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.engine.artifact.build import WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.metadata_values import Markdown, ShownValue
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.checks.check import Check, Finding, build_verdict, join_first
from dataprep_assets.engine.checks.scratch_rebuild import find_claim_differences
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats.tensorflow.example import FeatureColumn
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore, FileRef
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.notes.cohorts.packed_files import (
    PACKED_COHORTS,
    RowFacts,
    list_packed_paths,
    read_patients,
)
from dataprep_assets.pipelines.notes.cohorts.sharded_cohort import (
    COHORT_SHARDS,
    CohortShardsFacts,
    build_row_ledger,
    list_shard_names,
)
from dataprep_assets.pipelines.notes.declaration import FileFormat, NotesDeclaration
from dataprep_assets.pipelines.notes.privacy import hide_quoted_data
from dataprep_assets.pipelines.notes.tfds.directory_checks import (
    FILES_INTACT,
    REBUILD_SOURCES,
    TFDS_READS,
    OpenedDirectory,
)
from dataprep_assets.pipelines.notes.tfds.linked_directory import (
    DIRECTORIES,
    Directory,
    DirectoryFacts,
    build_split_metadata,
    link_shards,
)
from dataprep_assets.pipelines.notes.tfds.maxtext import format_maxtext_line
from dataprep_assets.pipelines.notes.tfds.provenance import ShardOrigin
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.tokenizer import load_declared_tokenizer

VERSION = 2
_DESCRIPTIONS: dict[FileFormat, str] = {
    "tfrecord": "All cohorts under TFDS names, with `dataset_info.json` and `features.json`, for `tfds.builder`.",
    "array_record": "All cohorts as ArrayRecord files under TFDS names, for grain.",
}


class TfdsDirectoryFacts(DirectoryFacts):
    """Facts in the receipt of one dataset's directory."""

    directory: str
    version: str
    months: int
    patients: int
    patients_in_several_cohorts: int


def build_tfds_directory_spec(notes: NotesDeclaration, format: FileFormat, *, shards: ArtifactSpec) -> ArtifactSpec:
    """Return the spec of the directory in one format.

    Args:
        notes: The dataset.
        format: One of its formats.
        shards: The shards of every cohort in this format.
    """
    return ArtifactSpec(
        declaration=notes,
        name=DIRECTORIES[format],
        version=VERSION,
        description=_DESCRIPTIONS[format],
        kinds={"tensorflow", "file"},
        inputs=(shards,),
        recipes=lambda store, _: [_build_recipe(notes, _load_months(notes, store, format), format)],
        build=lambda request: [Outcome.from_receipt(*build_tfds_directory(notes, request.store, format))],
        metadata=partial(_build_metadata, notes, format),
        check_groups=(
            WholeArtifactChecks(
                checks=DIRECTORY_CHECKS,
                open=partial(_open_directory, notes, format),
                guard=partial(hide_quoted_data, notes.dataset),
            ),
        ),
    )


def _build_metadata(
    notes: NotesDeclaration, format: FileFormat, store: ArtifactStore, receipt: Receipt
) -> Mapping[str, ShownValue]:
    facts = TfdsDirectoryFacts.from_receipt(receipt)
    return {
        **build_split_metadata(receipt),
        "months": facts.months,
        "patients": facts.patients,
        "patients_in_several_cohorts": facts.patients_in_several_cohorts,
        "maxtext": Markdown("```\n" + format_maxtext_line(notes, store, format) + "\n```"),
    }


@dataclass(frozen=True, kw_only=True)
class _Month:
    """Month of a directory: its shards and its packed cohort, with their receipts."""

    month: str
    shards: Artifact
    receipt: Receipt
    facts: CohortShardsFacts
    packed: Artifact
    packed_receipt: Receipt


def _load_months(notes: NotesDeclaration, store: ArtifactStore, format: FileFormat) -> list[_Month]:
    """Return all declared months, in order; raise MissingArtifactError with the names of missing months."""
    months = notes.months.expected_keys
    shards = [notes.artifact(COHORT_SHARDS[format], month) for month in months]
    cohorts = [notes.artifact(PACKED_COHORTS, month) for month in months]
    month_artifacts = []
    missing = []
    receipts = zip(months, shards, store.receipts(shards), cohorts, store.receipts(cohorts), strict=True)
    for month, artifact, receipt, rows, rows_receipt in receipts:
        if receipt is None or rows_receipt is None:
            missing.append(month)
        else:
            month_artifacts.append(
                _Month(
                    month=month,
                    shards=artifact,
                    receipt=receipt,
                    facts=CohortShardsFacts.from_receipt(receipt),
                    packed=rows,
                    packed_receipt=rows_receipt,
                )
            )
    if missing:
        names = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
        raise MissingArtifactError(
            f"{notes.dataset}: {len(missing)} of {count_of(len(months), 'month')} "
            f"{'is' if len(missing) == 1 else 'are'} missing: {names}. Build packed_cohorts and "
            f"{COHORT_SHARDS[format]} for these months first"
        )
    _require_same(notes, month_artifacts)
    return month_artifacts


def _require_same(notes: NotesDeclaration, months: Sequence[_Month]) -> None:
    declared_settings = {
        "columns": list(notes.columns),
        "row_length": notes.capacity,
        "layout": notes.layout,
        "rows_per_shard": notes.rows_per_shard,
        "tokenizer": load_declared_tokenizer(notes.tokenizer).digest,
    }
    first_facts = RowFacts.from_receipt(months[0].receipt)
    for month in months:
        facts, receipt = month.facts, month.receipt
        if receipt.inputs[PACKED_COHORTS] != month.packed_receipt.content:
            raise IntegrityError(f"{month.shards}: was not built from the current rows of packed_cohorts. Rebuild it")
        stored_settings = facts.model_dump() | {"tokenizer": receipt.inputs["tokenizer"]}
        # Compare the declared settings with the declaration, but compare other settings, such as token ids, only
        # between the months.
        wrong_names = [name for name, value in declared_settings.items() if stored_settings[name] != value]
        # Ignore the tokenizer's name, because the tokenizers' digests are compared above.
        shared_keys = RowFacts.model_fields.keys() - {"tokenizer"}
        wrong_names += sorted(name for name in shared_keys if getattr(facts, name) != getattr(first_facts, name))
        if wrong_names or facts.splits.keys() != notes.splits.keys():
            raise IntegrityError(
                f"{month.shards}: differs from the declaration or from {months[0].month} in "
                f"{', '.join(wrong_names) or 'splits'}. Rebuild packed_cohorts and the shards: only stale "
                "ones are rebuilt"
            )


def _build_recipe(notes: NotesDeclaration, months: Sequence[_Month], format: FileFormat) -> Recipe:
    declared_settings = [notes.dataset, notes.description, notes.tfds_version, notes.duplicate_patients, format]
    contents = [[m.month, m.receipt.key, m.receipt.content, m.packed_receipt.content] for m in months]
    return Recipe(
        artifact=notes.artifact(DIRECTORIES[format]),
        key=digest_value(["tfds_directory", VERSION, declared_settings, contents]),
        version=VERSION,
        settings={
            "dataset": notes.dataset,
            "description": notes.description,
            "tfds_version": notes.tfds_version,
            "duplicate_patients": notes.duplicate_patients,
            "format": format,
        },
        # Include the recipes, because shards with the same bytes may have different recipes.
        sources={"recipes of the shards": digest_value([m.receipt.key for m in months])},
        upstream={f"{m.shards.name}/{m.month}": m.receipt.content for m in months}
        | {f"{m.packed.name}/{m.month}": m.packed_receipt.content for m in months},
    )


def build_tfds_directory(
    notes: NotesDeclaration, store: ArtifactStore, format: FileFormat = "tfrecord"
) -> tuple[Receipt, bool]:
    """Build the directory in ``format`` unless it is up to date; return its receipt and whether it was reused.

    Raises MissingArtifactError with the months that are missing from ``store``; IntegrityError for incompatible
    shards and, unless ``notes`` allow it, for patients in several cohorts; ConfigError for a split without rows and for
    an undeclared format.
    """
    if format not in notes.formats:
        raise ConfigError(f"{notes.dataset}: unknown format {format}. Available: {', '.join(notes.formats)}")
    months = _load_months(notes, store, format)

    def write(staged: Path) -> WrittenFiles:
        # Check the patients before linking, so that an invalid directory is not written.
        patients, several = _count_patients(notes, store, months)
        directory = _describe_directory(notes, months, format)
        joined_files = link_shards(staged, store, directory)
        rows = sum(split.rows for split in directory.build_info().splits)
        in_shards = sum(m.receipt.ledger.documents for m in months if m.receipt.ledger is not None)
        if rows != in_shards:
            raise IntegrityError(
                f"{notes.dataset}: the directory has {count_of(rows, 'row')}, but its shards have {in_shards}. This "
                "is a bug. Report it"
            )
        return WrittenFiles(
            inputs={m.month: m.receipt.content for m in months} | {"tokenizer": months[0].receipt.inputs["tokenizer"]},
            facts=TfdsDirectoryFacts(
                **RowFacts.from_receipt(months[0].receipt).to_json(),
                directory=directory.path,
                version=directory.version,
                format=format,
                splits=directory.count_splits(),
                months=len(months),
                patients=patients,
                patients_in_several_cohorts=several,
            ),
            ledger=build_row_ledger(rows, (m.receipt.ledger for m in months)),
            joined=joined_files,
        )

    with hide_quoted_data(notes.dataset):
        return ensure_built(_build_recipe(notes, months, format), store, write, notes.verify)


def _describe_directory(notes: NotesDeclaration, months: Sequence[_Month], format: FileFormat) -> Directory:
    splits = {split: [o for m in months for o in _list_origins(notes, m, split, format)] for split in notes.splits}
    # Reject a split without shards now, because TFDS would reject the written directory.
    if empty := [split for split, origins in splits.items() if not origins]:
        raise ConfigError(f"{notes.dataset}: no rows in splits {', '.join(empty)}. Raise their shares, or remove them")
    return Directory(
        dataset=notes.dataset,
        description=notes.description,
        version=notes.tfds_version,
        format=format,
        columns=tuple(FeatureColumn(name=name, length=notes.stored_length) for name in notes.columns),
        splits=splits,
    )


def _list_origins(notes: NotesDeclaration, month: _Month, split: str, format: FileFormat) -> list[ShardOrigin]:
    lengths, sizes = month.facts.splits[split].shard_lengths, month.facts.splits[split].payload_bytes
    origins = []
    for name, rows, payload_bytes in zip(
        list_shard_names(notes, split, month.month, len(lengths), format), lengths, sizes, strict=True
    ):
        record = month.receipt.file(name)
        origins.append(
            ShardOrigin(
                dataset=notes.dataset,
                partition=month.month,
                source_shard=name,
                rows=rows,
                payload_bytes=payload_bytes,
                sha256=record.sha256,
                part=FileRef(month.shards, record),
            )
        )
    return origins


def _count_patients(notes: NotesDeclaration, store: ArtifactStore, months: Sequence[_Month]) -> tuple[int, int]:
    """Count patients, and patients in several cohorts; raise IntegrityError if the latter are not allowed."""
    digests_by_month = []
    for month in months:
        paths = [path.patients for path in list_packed_paths(notes, month.month).values()]
        directory = store.local(month.packed, paths)
        digests_by_month.append(np.concatenate([read_patients(directory / path) for path in paths]))
    all_digests = np.concatenate(digests_by_month)
    distinct, counts = np.unique(all_digests.view("V16"), return_counts=True)
    repeated = distinct[counts > 1]
    if repeated.size and notes.duplicate_patients == "fail":
        among = [
            month.month
            for month, digests in zip(months, digests_by_month, strict=True)
            if np.isin(digests, repeated).any()
        ]
        raise IntegrityError(
            f"{notes.dataset}: {count_of(repeated.size, 'patient is', 'patients are')} in several cohorts, including "
            f"{join_first(among, 8)}. Correct the source, or declare `duplicate_patients: allow`"
        )
    return int(distinct.size), int(repeated.size)


@dataclass(frozen=True)
class OpenedNotes(OpenedDirectory):
    """Directory of one dataset in one format, opened for checks."""

    notes: NotesDeclaration
    format: FileFormat


def _open_directory(
    notes: NotesDeclaration, format: FileFormat, store: ArtifactStore, _: Sequence[str] = ()
) -> OpenedNotes:
    return OpenedNotes(notes.artifact(DIRECTORIES[format]), store, notes, notes, format).with_local_files()


def check_cohort_shards(opened_notes: OpenedNotes) -> Finding:
    """Check that a rebuild from the cohorts' current shards gives the same directory.

    The comparison covers the declared months and their order, the shards' bytes, and the metadata's names, lengths,
    sizes and features.
    """
    notes, format = opened_notes.notes, opened_notes.format
    facts = TfdsDirectoryFacts.from_receipt(opened_notes.receipt)
    rows = sum(split.rows for split in facts.splits.values())
    different = find_claim_differences(
        opened_notes.artifact,
        opened_notes.store,
        lambda store: build_tfds_directory(notes, store, format),
        # Ignore the tokenizer's name, because rebuilt months have the tokenizer's current name.
        names={"tokenizer"},
    )
    return build_verdict(
        (f"{opened_notes.name}: {d}" for d in different),
        f"{count_of(rows, 'row')} of {count_of(facts.months, 'month')}; every shard is identical to the cohort's "
        "shard.",
        REBUILD_SOURCES,
        facts={"rows": rows, "months": facts.months},
    )


def check_patients(opened_notes: OpenedNotes) -> Finding:
    """Check that each patient is in only one split and, unless the declaration allows several, in only one cohort."""
    notes, store = opened_notes.notes, opened_notes.store
    digests_by_split: dict[str, list[Any]] = {split: [] for split in notes.splits}
    for month in notes.months.expected_keys:
        paths = list_packed_paths(notes, month)
        folder = store.local(notes.artifact(PACKED_COHORTS, month), [path.patients for path in paths.values()])
        for split, path in paths.items():
            digests_by_split[split].append(read_patients(folder / path.patients))
    distinct, several, defects = 0, 0, list[str]()
    in_splits = []
    for split, month_digests in digests_by_split.items():
        distinct_digests, counts = np.unique(np.concatenate(month_digests), return_counts=True)
        # Store each digest once per split, so that a digest that occurs twice across all splits is in two splits.
        in_splits.append(distinct_digests)
        distinct += distinct_digests.size
        repeat_count = int(np.count_nonzero(counts > 1))
        several += repeat_count
        if repeat_count and notes.duplicate_patients == "fail":
            repeated = distinct_digests[counts > 1]
            months = [
                m for m, d in zip(notes.months.expected_keys, month_digests, strict=True) if np.isin(d, repeated).any()
            ]
            defects.append(
                f"{split}: {count_of(repeat_count, 'patient is', 'patients are')} in several cohorts, including "
                f"{join_first(months, 8)}"
            )
    _, counts = np.unique(np.concatenate(in_splits), return_counts=True)
    if leaked := int(np.count_nonzero(counts > 1)):
        defects.append(f"{count_of(leaked, 'patient is', 'patients are')} in several splits")
    return build_verdict(
        (f"{notes.dataset}: {d}" for d in defects),
        f"{count_of(distinct, 'patient')}, {several} of them in several cohorts"
        + (", as declared." if several else "."),
        "Correct the source, or declare `duplicate_patients: allow` if cohorts may share patients",
        facts={"patients": distinct, "patients_in_several_cohorts": several, "patients_in_several_splits": leaked},
    )


DIRECTORY_CHECKS: tuple[Check[OpenedNotes], ...] = (
    FILES_INTACT,
    Check(
        "matches_cohort_shards",
        "The directory has every declared month once and in order. Rebuilding it from the current cohort "
        "shards gives the same bytes, counts and TFDS metadata.",
        check_cohort_shards,
        version=2,
    ),
    Check(
        "patients_disjoint",
        "No patient is in two splits or, unless `duplicate_patients: allow` is set, in two cohorts.",
        check_patients,
    ),
    TFDS_READS,
)
