"""Artifact `<dataset>/schedule`: the schedule, and the documents of every shard that it names.

The first revision is built from the declaration and the current sources. Later revisions are written only by
`dataprep schedule`, to a file next to the YAML. Therefore a run that finds different data cannot change the schedule.

`schedule.json` contains the schedule. `documents/<content>/` contains the document ends, ids and rows of a shard, which
are linked from the shard's artifact while it exists. The folder's `shard.json` lists the source files of the rows, and
the shard's files. The digest of that list of files is the shard's content, so the copies can be verified even after the
shard is removed. `packs/` contains the packs of whole documents.

Entry points: `build_schedule_spec`, `load_current_schedule`, `revise_schedule`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.losses import Loss, find_unbalanced_lines
from dataprep_assets.engine.artifact.metadata_values import ShownValue, Table
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, DatasetInput
from dataprep_assets.engine.checks.check import (
    Check,
    Finding,
    build_verdict,
    choose_sample_count,
    draw_documents,
    set_level,
)
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.errors import ConfigError, DataprepError, IntegrityError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats.document_index import ENDS, IDS, ROWS, TOKEN_BINS
from dataprep_assets.integrity.artifacts import ArtifactStore, FileRef, JoinedFile
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.schedule.declaration import ScheduleDeclaration
from dataprep_assets.pipelines.schedule.schedule_checks import (
    RESTORE_REMEDY,
    SCHEDULE_CHECKS,
    OpenedSchedule,
    check_documents,
    check_revisions,
)
from dataprep_assets.pipelines.schedule.schedule_sources import BLEND, ShardDocuments, find_sources
from dataprep_assets.serving.sampler.next_revision import RevisionRequest, add_revision
from dataprep_assets.serving.sampler.packs import encode_packs, pack_shard
from dataprep_assets.serving.sampler.sampler import Sampler
from dataprep_assets.serving.sampler.seen import SHARD
from dataprep_assets.serving.sampler.simulation import simulate_reads
from dataprep_assets.serving.sampler.training_data import (
    SCHEDULE_ARTIFACT,
    TrainingData,
    get_documents_folder,
    get_packs_file,
)
from dataprep_assets.serving.sampler.training_schedule import SCHEDULE, ScheduleHistory
from dataprep_assets.stores.files import digest_value

VERSION = 3
_COPIED_FILES = (ENDS, IDS, ROWS)
_IDENTIFYING_FACTS = ("document_ids", "id_field", "id_key")
"""Facts of a shard that identify its documents."""
_PACK_TABLES_PER_SAMPLE = 8
"""Number of pack tables per table that a sampling check rebuilds."""


class ScheduleFacts(Facts):
    """Facts of a schedule's receipt."""

    revisions: int
    steps: int
    digest: str
    sensitive: bool = False
    """Whether the copies that a trainer makes are private; omitted if they are not."""


def build_schedule_spec(declaration: ScheduleDeclaration) -> ArtifactSpec:
    """Return the spec of a schedule's artifact."""
    return ArtifactSpec(
        declaration=declaration,
        name=SCHEDULE_ARTIFACT,
        version=VERSION,
        description="The data that a training run reads at each step, with an index of its documents.",
        kinds={"json", "file"},
        inputs=tuple(
            DatasetInput(dataset=source.dataset, name=BLEND, advice="Remove `blend: true` from it")
            if source.blend
            else DatasetInput(
                dataset=source.dataset, name=TOKEN_BINS, split=source.split, advice="Set `blend: true` for a blend"
            )
            for source in declaration.sources
        ),
        recipes=lambda store, _: [_build_recipe(declaration, load_current_schedule(declaration, store))],
        build=lambda request: [Outcome.from_receipt(*build_schedule(declaration, request.store))],
        metadata=partial(_build_metadata, declaration),
        losses=lambda store, _: _find_losses(declaration, store),
        rows=lambda receipt: ScheduleFacts.from_receipt(receipt).steps,
        check_groups=(
            WholeArtifactChecks(
                checks=set_level(CHECKS, declaration.prove.level),
                open=lambda store, _: OpenedSchedule(declaration.artifact(SCHEDULE_ARTIFACT), store, declaration),
            ),
        ),
    )


def load_current_schedule(declaration: ScheduleDeclaration, store: ArtifactStore) -> ScheduleHistory:
    """Return the current schedule from the revisions file or, without it, the artifact; else a first revision.

    Raises MissingArtifactError for a source that was not built; FormatError, with the file's name, for a damaged file.
    """
    path = declaration.revisions
    if path is not None and path.exists():
        schedule = ScheduleHistory.read(path)
        if schedule.name != declaration.dataset:
            raise ConfigError(
                f"{path}: belongs to the schedule {schedule.name}, not to {declaration.dataset}. Move the file away"
            )
        return schedule
    if store.receipt(declaration.artifact(SCHEDULE_ARTIFACT)) is not None:
        return TrainingData(store, declaration.dataset).schedule
    return revise_schedule(declaration, store, None)


def revise_schedule(
    declaration: ScheduleDeclaration,
    store: ArtifactStore,
    history: ScheduleHistory | None,
    *,
    from_step: int = 0,
    trained: int | None = None,
) -> ScheduleHistory:
    """Return the schedule with a new revision from the current declaration.

    The new revision replaces later revisions that were never built. See `add_revision`.
    """
    kept_history = history and _drop_unread_revisions(declaration, store, history, from_step)
    sources, documents = find_sources(declaration, store)
    request = RevisionRequest(
        name=declaration.dataset,
        batch=declaration.batch,
        sequence_length=declaration.sequence_length,
        seed=declaration.seed,
        samples=declaration.samples,
        steps=_count_steps(declaration, kept_history, documents, from_step),
    )
    return add_revision(
        kept_history,
        request,
        sources,
        documents=documents,
        packs=documents.packs,
        from_step=from_step,
        trained=trained,
        unmade=history.revisions[len(kept_history.revisions) :] if history and kept_history else (),
    )


def _drop_unread_revisions(
    declaration: ScheduleDeclaration, store: ArtifactStore, schedule: ScheduleHistory, from_step: int
) -> ScheduleHistory:
    """Return the schedule without the unbuilt revisions that begin at `from_step` or later.

    Unbuilt revisions are not in the artifact, so no run can have read them. The documents that only these revisions
    name may no longer be stored.
    """
    if store.receipt(declaration.artifact(SCHEDULE_ARTIFACT)) is None:
        return schedule
    stored_history = TrainingData(store, declaration.dataset).schedule
    made_count = kept_count = len(stored_history.revisions)
    # Keep all revisions if the artifact has a different history, because that history does not show which of these
    # revisions are built.
    if schedule.take_first_revisions(made_count).digest != stored_history.digest:
        return schedule
    for number, revision in enumerate(schedule.revisions[made_count:], made_count + 1):
        if revision.first_step < from_step:
            kept_count = number
    return schedule.take_first_revisions(kept_count)


def _count_steps(
    declaration: ScheduleDeclaration, history: ScheduleHistory | None, documents: ShardDocuments, from_step: int
) -> int | None:
    """Return the run's total number of steps; with `tokens`, the tokens of earlier steps are subtracted first."""
    if declaration.tokens is None:
        return declaration.steps
    readings = [] if history is None else simulate_reads(Sampler(history, documents.packs), from_step)
    remaining = int(declaration.tokens) - sum(reading.tokens for reading in readings)
    return from_step + max(-(-remaining // (declaration.batch * declaration.sequence_length)), 0)


def write_revisions(declaration: ScheduleDeclaration, schedule: ScheduleHistory) -> Path:
    """Write the revisions file of a schedule atomically; return its path."""
    assert declaration.revisions is not None
    write_atomically(declaration.revisions, schedule.to_bytes())
    return declaration.revisions


def _build_recipe(declaration: ScheduleDeclaration, schedule: ScheduleHistory) -> Recipe:
    last_revision = schedule.revisions[-1]
    return Recipe(
        artifact=declaration.artifact(SCHEDULE_ARTIFACT),
        key=digest_value(["schedule", VERSION, schedule.digest, declaration.sensitive]),
        version=VERSION,
        settings={
            "revisions": len(schedule.revisions),
            "batch": last_revision.batch,
            "sequence_length": last_revision.sequence_length,
            "schedule": schedule.digest,
            "sensitive": declaration.sensitive,
        },
        # List no input artifacts, because a schedule stays valid when its shards change or are removed; the check
        # `sources_current` reports such changes.
        sources={
            f"{source.dataset}:{source.artifact}/{shard.name}": shard.content
            for source in last_revision.sources
            for shard in source.shards
        },
    )


def build_schedule(declaration: ScheduleDeclaration, store: ArtifactStore) -> tuple[Receipt, bool]:
    """Build the current schedule with the documents of its shards; return the receipt and whether it was reused.

    Raises IntegrityError if the documents of a shard are missing from both the shard and the current artifact.
    """
    schedule = load_current_schedule(declaration, store)

    def write(staged: Path) -> WrittenFiles:
        _, documents = find_sources(declaration, store)
        _require_valid(declaration, schedule, documents)
        (staged / SCHEDULE).write_bytes(schedule.to_bytes())
        joined_files: list[JoinedFile] = []
        contents: set[str] = set()
        for revision in schedule.revisions:
            for source in revision.sources:
                for shard in source.shards:
                    if shard.content not in contents:
                        joined_files += _link_documents(store, documents, staged, source.dataset, shard.content)
                        contents.add(shard.content)
                    name = get_packs_file(shard.content, revision.sequence_length)
                    if revision.samples == "documents" and not (staged / name).exists():
                        (staged / name).parent.mkdir(exist_ok=True)
                        (staged / name).write_bytes(encode_packs(documents.packs(shard, revision.sequence_length)))
        steps = Sampler(schedule, documents.packs).end
        facts = ScheduleFacts(revisions=len(schedule.revisions), steps=steps, digest=schedule.digest)
        return WrittenFiles(
            inputs={source.name: source.lock for source in schedule.revisions[-1].sources},
            facts=facts.model_copy(update={"sensitive": True}) if declaration.sensitive else facts,
            joined=tuple(joined_files),
        )

    return ensure_built(_build_recipe(declaration, schedule), store, write, declaration.verify)


def _require_valid(declaration: ScheduleDeclaration, schedule: ScheduleHistory, documents: ShardDocuments) -> None:
    """Raise ConfigError if the schedule fails its checks; called before it replaces the current artifact."""
    for check in (check_documents, check_revisions):
        finding = check(schedule, documents, documents.packs)
        if not finding.passed:
            raise ConfigError(
                f"{declaration.revisions}: {finding.summary}. If the file was edited by hand, undo the last change. "
                "Only `dataprep schedule` may write it"
            )


def _link_documents(
    store: ArtifactStore, documents: ShardDocuments, staged: Path, dataset: str, content: str
) -> Iterator[JoinedFile]:
    """Link the index of a shard's documents into the staging directory, and write its `shard.json`."""
    folder = get_documents_folder(content)
    if content in documents.found:
        artifact, receipt = documents.found[content]
        parts = {record.path: record for record in receipt.files if record.path in _COPIED_FILES}
        (staged / folder).mkdir(parents=True)
        (staged / folder / SHARD).write_bytes(_encode_shard(dataset, receipt))
    else:
        # The shard was removed or rebuilt, so copy its documents from the artifact that this build replaces.
        handle = documents.require_stored_artifact(content)
        artifact = handle.artifact
        parts = {r.path.rpartition("/")[2]: r for r in handle.files if r.path.startswith(f"{folder}/")}
        (staged / folder).mkdir(parents=True)
        (staged / folder / SHARD).write_bytes(handle.read(f"{folder}/{SHARD}"))
        del parts[SHARD]
    for name, record in sorted(parts.items()):
        yield store.join(staged, f"{folder}/{name}", [FileRef(artifact, record)], verify=False)


def _encode_shard(dataset: str, receipt: Receipt) -> bytes:
    """Return the bytes of a shard's `shard.json`."""
    return json.dumps(_describe_shard(dataset, receipt), sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _describe_shard(dataset: str, receipt: Receipt) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "shard": receipt.partition,
        **{name: receipt.facts.get(name) for name in _IDENTIFYING_FACTS},
        "sources": list(receipt.sources),
        # Do not change the form of this list, because its digest is the shard's content.
        "files": [[record.path, record.bytes, record.sha256] for record in receipt.files],
    }


def _check_rebuild(schedule: OpenedSchedule) -> Finding:
    declaration, store, data = schedule.declaration, schedule.store, schedule.data
    receipt, samples = data.handle.receipt, choose_sample_count(declaration.prove.level)
    defects = [*_find_schedule_differences(declaration, data), *_find_copy_differences(declaration, store, data)]
    pack_files = {
        get_packs_file(shard.content, revision.sequence_length): (shard, revision.sequence_length)
        for revision in data.schedule.revisions
        if revision.samples == "documents"
        for source in revision.sources
        for shard in source.shards
    }
    names = sorted(pack_files)
    for number in draw_documents(
        receipt.key, len(names), None if samples is None else -(-len(names) // _PACK_TABLES_PER_SAMPLE)
    ).tolist():
        name = names[number]
        shard, length = pack_files[name]
        ends = np.asarray(data.open_document_ends(shard), np.uint64)
        if encode_packs(pack_shard(ends, length)) != data.handle.read(name):
            defects.append(f"{name} differs from a new packing of its documents")
    return build_verdict(
        (f"{declaration.dataset}: {defect}" for defect in defects),
        f"The schedule matches its receipt, and its copies match the documents of "
        f"{count_of(len(_map_contents_to_datasets(data)), 'shard')}.",
        RESTORE_REMEDY,
        facts={"shards": len(_map_contents_to_datasets(data)), "packs": len(names)},
    )


def _map_contents_to_datasets(data: TrainingData) -> dict[str, str]:
    """Return content → dataset, for each shard that a schedule names."""
    sources = [source for revision in data.schedule.revisions for source in revision.sources]
    return {shard.content: source.dataset for source in sources for shard in source.shards}


def _find_schedule_differences(declaration: ScheduleDeclaration, data: TrainingData) -> Iterator[str]:
    """Yield a sentence if the stored schedule does not match its receipt."""
    receipt, facts = data.handle.receipt, ScheduleFacts.from_receipt(data.handle.receipt)
    # Use the stored schedule, because the file next to the YAML may have newer revisions.
    if (change := _build_recipe(declaration, data.schedule).find_change(receipt)) is not None:
        yield f"{SCHEDULE} does not match its receipt: {change.reason}"
    if data.handle.read(SCHEDULE) != data.schedule.to_bytes():
        yield f"{SCHEDULE} is not in canonical form"
    receipt_facts = (facts.revisions, facts.steps, facts.digest, facts.sensitive)
    if receipt_facts != (len(data.schedule.revisions), data.steps, data.schedule.digest, declaration.sensitive):
        yield "the facts in its receipt do not match the schedule"


def _find_copy_differences(declaration: ScheduleDeclaration, store: ArtifactStore, data: TrainingData) -> Iterator[str]:
    """Yield a sentence for each copy of a shard's documents that does not match the content in its folder's name."""
    records = {record.path: record for record in data.handle.files}
    try:
        found_shards = find_sources(declaration, store)[1].found
    except DataprepError:  # the copies can be compared with their content digests even without the sources
        found_shards = {}
    for content, dataset in _map_contents_to_datasets(data).items():
        folder = get_documents_folder(content)
        description = _parse_description(data.handle.read(f"{folder}/{SHARD}"))
        # Report only contradictions, because a later build may have the same content from different source files.
        if content in found_shards and _is_contradictory(
            description, _describe_shard(dataset, found_shards[content][1])
        ):
            yield f"{folder}/{SHARD}: contradicts the shard of {dataset} with the same content"
        ends = records.get(f"{folder}/{ENDS}")
        if ends is None or not _has_documents(data.handle.receipt, description, ends.bytes / 8):
            yield f"{folder}/{SHARD}: the document count does not match {ENDS} or the source rows"
        files = description.get("files", ())
        if digest_value(files) != content:
            yield f"{folder}/{SHARD}: the listed files do not match the digest in the folder's name"
            continue
        for name, size, sha256 in files:
            copy_record = records.get(f"{folder}/{name}")
            if name in _COPIED_FILES and (
                copy_record is None or (copy_record.bytes, copy_record.sha256) != (size, sha256)
            ):
                yield f"{folder}/{name}: is missing, or differs from its size or sha256 in {SHARD}"


def _parse_description(content: bytes) -> dict[str, Any]:
    """Parse the description in a `shard.json`; return an empty description if it is invalid."""
    try:
        value = load_untrusted_json(content)
    except ValueError:
        return {}
    if not isinstance(value, dict) or not isinstance(sources := value.get("sources"), list):
        return {}
    return value if all(isinstance(line, dict) for line in sources) else {}


def _is_contradictory(stored_values: Mapping[str, Any], rebuilt_values: Mapping[str, Any]) -> bool:
    """Return whether a stored description and the current shard's description cannot belong to the same content."""
    if any(stored_values.get(name) != rebuilt_values[name] for name in ("dataset", *_IDENTIFYING_FACTS)):
        return True
    counts = [
        [
            (line.get("sha256"), line.get("documents"), line.get("tokens"), line.get("rows_in"))
            for line in description.get("sources", ())
        ]
        for description in (stored_values, rebuilt_values)
    ]
    has_same_files = [row[0] for row in counts[0]] == [row[0] for row in counts[1]]
    return has_same_files and counts[0] != counts[1]


def _has_documents(receipt: Receipt, description: Mapping[str, Any], documents: float) -> bool:
    """Return whether a description's source files contain `documents` documents and its lines account for all rows."""
    lines = description.get("sources", ())
    try:
        unbalanced = any(find_unbalanced_lines(receipt, (line for line in lines if "dropped" in line)))
        return not unbalanced and sum(line["documents"] for line in lines) == documents
    except (TypeError, KeyError, AttributeError):
        return False


def _find_losses(declaration: ScheduleDeclaration, store: ArtifactStore) -> Iterator[Loss]:
    """Yield, per source, the number of tokens that no step reads."""
    data = TrainingData(store, declaration.dataset)
    readings = {reading.source: reading for reading in simulate_reads(data.sampler, data.steps)}
    for source in data.schedule.revisions[-1].sources:
        tokens = sum(shard.tokens for shard in source.shards)
        source_reading = readings.get(source.name)
        unread = (
            tokens
            if source_reading is None
            else max(0, tokens - source_reading.tokens)
            if source_reading.epochs < 1
            else 0
        )
        yield Loss(action="left out", reason="unread", count=unread, of=tokens, unit="token", part=source.name)


def _build_metadata(
    declaration: ScheduleDeclaration, store: ArtifactStore, receipt: Receipt
) -> Mapping[str, ShownValue]:
    data = TrainingData(store, declaration.dataset)
    # Compare the contents, because another run may have replaced the schedule since the build ended.
    if data.handle.receipt.content != receipt.content:
        raise IntegrityError(f"{declaration.dataset}: the schedule was replaced during the run. Run the dataset again")
    rows: Sequence[Mapping[str, str | int | float]] = [
        {
            "source": reading.source,
            "samples": reading.samples,
            "tokens": reading.tokens,
            "share": round(reading.share, 4),
            "epochs": round(reading.epochs, 3),
        }
        for reading in simulate_reads(data.sampler, data.steps)
    ]
    return {"steps": data.steps, "revisions": len(data.schedule.revisions), "sources": Table(tuple(rows))}


CHECKS = (
    *SCHEDULE_CHECKS,
    Check(
        "rebuild_matches",
        "The schedule matches its receipt, and its copies of documents match their shards. Packing a sample "
        "of packs (or all packs) again reproduces them.",
        _check_rebuild,
        samples=True,
    ),
)
