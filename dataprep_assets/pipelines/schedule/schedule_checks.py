"""Checks of a schedule: consistent revisions, complete documents, and samples that are read once per epoch.

Entry points: `SCHEDULE_CHECKS`, `OpenedSchedule`.
"""

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from dataprep_assets.engine.checks.check import Check, Finding, OpenedArtifact, build_verdict, fail_on_errors
from dataprep_assets.errors import DataprepError, count_of
from dataprep_assets.formats.document_index import ENDS, IDS
from dataprep_assets.pipelines.schedule.declaration import ScheduleDeclaration
from dataprep_assets.pipelines.schedule.pending_changes import describe_revise_command, find_changed_sources
from dataprep_assets.pipelines.schedule.schedule_sources import find_sources
from dataprep_assets.serving.sampler.next_revision import DocumentEnds, DocumentsOf, find_changed_ranges
from dataprep_assets.serving.sampler.sampler import Sampler
from dataprep_assets.serving.sampler.simulation import simulate_reads
from dataprep_assets.serving.sampler.source_order import Packs
from dataprep_assets.serving.sampler.training_data import TrainingData, get_documents_folder
from dataprep_assets.serving.sampler.training_schedule import Ranges, ScheduleHistory

_MAX_SAMPLES = 400
"""Maximum number of samples that the check looks up in all steps; each lookup takes a millisecond."""
RESTORE_REMEDY = (
    "Run `dataprep verify` to see the damage, then restore the artifact `schedule` from a backup, because it "
    "cannot be rebuilt"
)


@dataclass(frozen=True)
class OpenedInPlaceArtifact(OpenedArtifact):
    """An artifact of a schedule, opened for checks, whose files are read in place."""

    declaration: ScheduleDeclaration

    def check_files(self, remedy: str) -> Finding:
        """Check that every file in the receipt exists with the listed size and SHA-256."""
        receipt = self.receipt
        success_text = (
            f"{count_of(len(receipt.files), 'file')} ({count_of(receipt.total_bytes, 'byte')}): all digests match "
            "the receipt."
        )
        return build_verdict(self.store.damage(self.artifact, receipt), success_text, remedy)


class OpenedSchedule(OpenedInPlaceArtifact):
    """A schedule, opened for checks."""

    @cached_property
    def data(self) -> TrainingData:
        """The schedule and its documents."""
        return TrainingData(self.store, self.declaration.dataset)


def _open_documents(data: TrainingData, content: str) -> DocumentEnds:
    folder = get_documents_folder(content)
    has_ids = any(record.path == f"{folder}/{IDS}" for record in data.handle.files)
    ends = np.asarray(data.handle.numbers(f"{folder}/{ENDS}", "uint64")[:], np.uint64)
    ids = np.asarray(data.handle.numbers(f"{folder}/{IDS}", "uint64")[:], np.uint64) if has_ids else None
    return DocumentEnds(ends=ends, ids=ids)


@fail_on_errors
def check_documents(schedule: ScheduleHistory, documents_of: DocumentsOf, packs: Packs) -> Finding:
    """Check that each shard's documents have the number of tokens and samples in the schedule."""
    defects, shards = [], 0
    for number, revision in enumerate(schedule.revisions):
        for source in revision.sources:
            for shard in source.shards:
                shards += 1
                documents = documents_of(shard.content)
                tokens = int(documents.ends[-1]) if len(documents.ends) else 0
                location = f"revision {number}: {source.name}/{shard.name}"
                # Compare the ends, because a negative difference of uint64 would wrap to a large number.
                if tokens != shard.tokens or np.any(documents.ends[1:] < documents.ends[:-1]):
                    defects.append(
                        f"{location}: its documents have {count_of(tokens, 'token')}, but the schedule has "
                        f"{shard.tokens}"
                    )
                if documents.ids is not None and len(documents.ids) != len(documents.ends):
                    defects.append(
                        f"{location}: has {count_of(len(documents.ids), 'id')}, but "
                        f"{count_of(len(documents.ends), 'document')}"
                    )
                samples = -(-shard.tokens // revision.sequence_length)
                if revision.samples == "documents":
                    table = packs(shard, revision.sequence_length)
                    samples = len(table.ends)
                    pack_tokens = int((table.stops - table.starts).sum()) if samples else 0
                    if pack_tokens != shard.tokens:
                        defects.append(
                            f"{location}: its packs have {count_of(pack_tokens, 'token')}, but the schedule has "
                            f"{shard.tokens}"
                        )
                if samples != shard.samples:
                    defects.append(
                        f"{location}: has {count_of(samples, 'sample')}, but the schedule has {shard.samples}"
                    )
    return build_verdict(
        defects,
        f"The documents of {count_of(shards, 'shard')} add up to the counts in the schedule.",
        RESTORE_REMEDY,
        facts={"shards": shards},
    )


@fail_on_errors
def check_revisions(schedule: ScheduleHistory, documents_of: DocumentsOf, packs: Packs) -> Finding:
    """Check that each revision continues the previous revision, and records the changes that the documents show."""
    defects = []
    for number, revision in enumerate(schedule.revisions):
        try:
            # Construct a sampler only for its checks, because its constructor rejects a revision that begins after the
            # end of the earlier revisions.
            Sampler(schedule.take_first_revisions(number + 1), packs)
        except DataprepError as error:
            defects.append(f"revision {number}: {error}")
            continue
        for source in revision.sources:
            old_source = schedule.take_first_revisions(number).source_before(revision.first_step, source.name)
            old_shards = {shard.name: shard for shard in old_source.shards} if old_source is not None else {}
            for shard in source.shards:
                old_shard = old_shards.get(shard.name)
                expected_changes: tuple[Ranges, Ranges] | None = (), ()
                if old_shard is not None and old_shard.content != shard.content:
                    expected_changes = find_changed_ranges(documents_of(old_shard.content), documents_of(shard.content))
                if (shard.removed, shard.added) != expected_changes:
                    sentence = (
                        "that its documents cannot be identified"
                        if expected_changes is None
                        else _describe_ranges(*expected_changes)
                    )
                    defects.append(
                        f"revision {number}: {source.name}/{shard.name}: lists "
                        f"{_describe_ranges(shard.removed, shard.added)}, but its documents show {sentence}"
                    )
    count = len(schedule.revisions)
    return build_verdict(
        defects,
        f"{count_of(count, 'revision')}, each continuing the previous one.",
        RESTORE_REMEDY,
        facts={"revisions": count},
    )


def _describe_ranges(removed_ranges: Ranges, added: Ranges) -> str:
    return f"{count_of(len(removed_ranges), 'removed range')} and {count_of(len(added), 'added range')} of tokens"


def check_samples(sampler: Sampler, seed: int) -> Finding:
    """Check that samples drawn with `seed` are read once per epoch, at the step from which they were drawn."""
    random, defects, checked_count = np.random.default_rng(seed), [], 0
    for step in np.unique(random.integers(0, sampler.end, _MAX_SAMPLES)).tolist():
        rule = sampler.find_rule(step)
        position = int(random.integers(rule.revision.batch))
        spans = sampler.find_step_spans(step, [position])
        if not len(spans.row):
            defects.append(f"step {step} reads no tokens at position {position}")
        for _, number, epoch, shard, start, stop in zip(*(column.tolist() for column in spans), strict=True):
            checked_count += 1
            source = rule.revision.sources[number]
            content = source.shards[shard].content
            readings = list(sampler.find_readings(content, start, stop, within=(source.name, epoch)))
            location = f"tokens [{start}, {stop}) of {source.name}/{source.shards[shard].name}, read by step {step}"
            # Compare the total length of the readings with the length of the span, because a span may be read in
            # several pieces. The lengths are equal if each token is read once.
            if sum(reading.stop - reading.start for reading in readings) != stop - start:
                defects.append(f"{location}, are read {count_of(len(readings), 'time')} in epoch {epoch}")
            elif (step, position) not in {(reading.step, reading.position) for reading in readings}:
                defects.append(f"{location}, are not found at that step when looked up by document")
    success_text = (
        f"{count_of(checked_count, 'span')} of tokens from {count_of(sampler.end, 'step')}, each read once per epoch."
    )
    return build_verdict(
        defects, success_text, "Do not train on the schedule, and report a bug", facts={"token_spans": checked_count}
    )


def _check_sources(schedule: OpenedSchedule) -> Finding:
    declaration, store, last_revision = schedule.declaration, schedule.store, schedule.data.schedule.revisions[-1]
    return build_verdict(
        list(find_changed_sources(last_revision, find_sources(declaration, store)[0])),
        f"{count_of(len(last_revision.sources), 'source is', 'sources are')} unchanged since the last revision.",
        describe_revise_command(declaration.dataset),
        warning=True,
    )


def _check_epochs(schedule: OpenedSchedule) -> Finding:
    declaration, data = schedule.declaration, schedule.data
    readings = simulate_reads(data.sampler, data.steps)
    repeated_readings = [reading for reading in readings if reading.epochs > declaration.most_epochs]
    return build_verdict(
        [
            f"source {reading.source} is read {reading.epochs:.1f} times by step {data.steps}"
            for reading in repeated_readings
        ],
        f"No source is read more than {max((reading.epochs for reading in readings), default=0):.2f} times.",
        "Lower its weight, or raise `most_epochs`",
        facts={f"epochs of {reading.source}": round(reading.epochs, 4) for reading in readings},
        warning=True,
    )


SCHEDULE_CHECKS: tuple[Check[OpenedSchedule], ...] = (
    Check(
        "files_intact",
        "Every file in the receipt exists, with the recorded size and SHA-256.",
        lambda opened: opened.check_files(RESTORE_REMEDY),
    ),
    Check(
        "documents_complete",
        "In every shard, the recorded documents add up to the recorded token and sample counts.",
        lambda opened: check_documents(opened.data.schedule, partial(_open_documents, opened.data), opened.data.packs),
    ),
    Check(
        "revisions_consistent",
        "Recomputing every shard shows that each revision continues exactly where the previous one ended.",
        lambda opened: check_revisions(opened.data.schedule, partial(_open_documents, opened.data), opened.data.packs),
    ),
    Check(
        "samples_read_once",
        "No sample is read twice in an epoch (tested on samples from all steps, identified by their documents).",
        lambda opened: check_samples(opened.data.sampler, opened.seed),
    ),
    # These two checks do not block, because they depend on the current declaration and sources, which are not part of
    # the schedule's key.
    Check("sources_current", "The sources have not changed since the last revision.", _check_sources, blocking=False),
    Check(
        "epochs_within_limit",
        "No source is read more than `most_epochs` times by the end of the run.",
        _check_epochs,
        blocking=False,
    ),
)
