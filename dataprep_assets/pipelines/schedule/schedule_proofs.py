"""Proofs on a schedule: its revisions follow from one another, its documents are those of its shards, nothing repeats.

Entry points: `SCHEDULE_PROOFS`, `prove_schedule`.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np

from dataprep_assets.errors import DataprepError
from dataprep_assets.formats.document_index import ENDS, IDS
from dataprep_assets.graph.finding import Finding, judged, verdict
from dataprep_assets.graph.spec import Proof
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.schedule.declaration import ScheduleDeclaration
from dataprep_assets.pipelines.schedule.found_sources import found_sources
from dataprep_assets.pipelines.schedule.pending import changed_sources, revise_line
from dataprep_assets.plural import count_of
from dataprep_assets.serving.revise import DocumentEnds, DocumentsOf, changed_between
from dataprep_assets.serving.sampler import Sampler
from dataprep_assets.serving.simulation import simulated
from dataprep_assets.serving.source_order import Packs
from dataprep_assets.serving.training_data import SCHEDULE_ARTIFACT, TrainingData, documents_folder
from dataprep_assets.serving.training_schedule import Ranges, TrainingSchedule

_DRAWN = 400
"""Samples that are looked for again among all steps; each costs a millisecond."""
AGAIN = "`dataprep verify` says what is damaged; restore the artifact `schedule` from a copy, it cannot be made again"

SCHEDULE_PROOFS = (
    Proof("files_intact", "Every file that the receipt lists is there with its size and SHA-256."),
    Proof("documents_complete", "The documents that it keeps of each shard are as many tokens and samples as it says."),
    Proof(
        "revisions_follow",
        "Each revision goes on from the one before: what has become of each shard is recomputed.",
    ),
    Proof(
        "read_once", "Samples drawn from all steps are read once in their epoch: looked for again by their documents."
    ),
    Proof(
        "rebuild_matches",
        "The schedule is that of its receipt, copies of documents are those of their shards, and packs, some or all "
        "packed again, are as stored.",
        samples=True,
    ),
    # These two do not block: they ask what is declared and found now, which the key of the schedule does not decide.
    Proof("sources_current", "The sources are as the last revision has them.", blocking=False),
    Proof("repeats", "No source is read more often than `most_epochs` by the end of the run.", blocking=False),
)


def prove_schedule(declaration: ScheduleDeclaration, store: ArtifactStore) -> Iterator[tuple[str, Finding]]:
    """All proofs of a schedule."""
    artifact = declaration.artifact(SCHEDULE_ARTIFACT)
    receipt = store.require(artifact)
    holds = f"{count_of(len(receipt.files), 'file')}, {receipt.total_bytes} bytes, with the digests of the receipt."
    yield "files_intact", verdict(store.damage(artifact, receipt), holds, AGAIN)
    try:
        data = TrainingData(store, declaration.dataset)
    except DataprepError as error:
        for proof in SCHEDULE_PROOFS[1:]:
            yield proof.name, Finding(passed=False, summary=str(error), facts={"unreadable": 1})
        return
    yield "documents_complete", documents_complete(data.schedule, partial(_documents, data), data.packs)
    yield "revisions_follow", revisions_follow(data.schedule, partial(_documents, data), data.packs)
    yield "read_once", read_once(data.sampler, int(receipt.key[:8], 16))
    yield "sources_current", _sources_current(declaration, store, data.schedule)
    yield "repeats", _repeats(declaration, data)


def _documents(data: TrainingData, content: str) -> DocumentEnds:
    folder = documents_folder(content)
    listed = any(record.path == f"{folder}/{IDS}" for record in data.handle.files)
    ends = np.asarray(data.handle.numbers(f"{folder}/{ENDS}", "uint64")[:], np.uint64)
    ids = np.asarray(data.handle.numbers(f"{folder}/{IDS}", "uint64")[:], np.uint64) if listed else None
    return DocumentEnds(ends=ends, ids=ids)


@judged
def documents_complete(schedule: TrainingSchedule, documents_of: DocumentsOf, packs: Packs) -> Finding:
    """Whether the documents of each shard are as many tokens and samples as a schedule says."""
    defects, shards = [], 0
    for number, revision in enumerate(schedule.revisions):
        for source in revision.sources:
            for shard in source.shards:
                shards += 1
                documents = documents_of(shard.content)
                tokens = int(documents.ends[-1]) if len(documents.ends) else 0
                where = f"revision {number}: {source.name}/{shard.name}"
                # compared, not subtracted: a negative difference of uint64 would be a large number
                if tokens != shard.tokens or np.any(documents.ends[1:] < documents.ends[:-1]):
                    defects.append(f"{where}: its documents have {tokens} tokens, the schedule {shard.tokens}")
                if documents.ids is not None and len(documents.ids) != len(documents.ends):
                    defects.append(f"{where}: {len(documents.ids)} ids of {len(documents.ends)} documents")
                samples = -(-shard.tokens // revision.sequence_length)
                if revision.samples == "documents":
                    table = packs(shard, revision.sequence_length)
                    samples = len(table.ends)
                    held = int((table.stops - table.starts).sum()) if samples else 0
                    if held != shard.tokens:
                        defects.append(f"{where}: its packs hold {held} tokens of {shard.tokens}")
                if samples != shard.samples:
                    defects.append(f"{where}: is {samples} samples, the schedule says {shard.samples}")
    return verdict(defects, f"{count_of(shards, 'shard')} with their documents.", AGAIN, facts={"shards": shards})


@judged
def revisions_follow(schedule: TrainingSchedule, documents_of: DocumentsOf, packs: Packs) -> Finding:
    """Whether each revision of a schedule goes on from the one before, by the documents of their shards."""
    defects = []
    for number, revision in enumerate(schedule.revisions):
        try:
            # raises if it begins at a step that those before it do not reach
            Sampler(schedule.upto(number + 1), packs)
        except DataprepError as error:
            defects.append(f"revision {number}: {error}")
            continue
        for source in revision.sources:
            before = schedule.upto(number).source_before(revision.first_step, source.name)
            old = {shard.name: shard for shard in before.shards} if before is not None else {}
            for shard in source.shards:
                then = old.get(shard.name)
                wanted: tuple[Ranges, Ranges] | None = (), ()
                if then is not None and then.content != shard.content:
                    wanted = changed_between(documents_of(then.content), documents_of(shard.content))
                if (shard.removed, shard.added) != wanted:
                    told = "that its documents cannot be told apart" if wanted is None else _counted(*wanted)
                    defects.append(
                        f"revision {number}: {source.name}/{shard.name}: says that "
                        f"{_counted(shard.removed, shard.added)}; its documents say {told}"
                    )
    count = len(schedule.revisions)
    return verdict(
        defects, f"{count_of(count, 'revision')}, each from the one before.", AGAIN, facts={"revisions": count}
    )


def _counted(removed: Ranges, added: Ranges) -> str:
    return f"{len(removed)} ranges of tokens are gone and {len(added)} are new"


@judged
def read_once(sampler: Sampler, seed: int) -> Finding:
    """Whether samples that are drawn by `seed` are read once in their epoch, at the step from which they were drawn."""
    random, defects, looked = np.random.default_rng(seed), [], 0
    for step in np.unique(random.integers(0, sampler.end, _DRAWN)).tolist():
        rule = sampler.rule(step)
        position = int(random.integers(rule.revision.batch))
        spans = sampler.spans(step, [position])
        if not len(spans.row):
            defects.append(f"step {step}, position {position}: reads nothing")
        for _, number, epoch, shard, start, stop in zip(*(column.tolist() for column in spans), strict=True):
            looked += 1
            source = rule.revision.sources[number]
            content = source.shards[shard].content
            found = list(sampler.readings(content, start, stop, within=(source.name, epoch)))
            where = f"tokens [{start}, {stop}) of {source.name}/{source.shards[shard].name}, read by step {step}"
            # a span may be found in pieces, which add up to it if each token is read once
            if sum(one.stop - one.start for one in found) != stop - start:
                defects.append(f"{where}: are read {len(found)} times in epoch {epoch}")
            elif (step, position) not in {(one.step, one.position) for one in found}:
                defects.append(f"{where}: are not found at that step by their document")
    holds = f"{count_of(looked, 'span')} of tokens drawn from {count_of(sampler.end, 'step')}, each read once an epoch."
    return verdict(defects, holds, "Do not train on it, and report a bug", facts={"spans": looked})


@judged
def _sources_current(declaration: ScheduleDeclaration, store: ArtifactStore, schedule: TrainingSchedule) -> Finding:
    last = schedule.revisions[-1]
    return verdict(
        list(changed_sources(last, found_sources(declaration, store)[0])),
        f"{count_of(len(last.sources), 'source')}, as the last revision has them.",
        revise_line(declaration.dataset),
        warning=True,
    )


@judged
def _repeats(declaration: ScheduleDeclaration, data: TrainingData) -> Finding:
    read = simulated(data.sampler, data.steps)
    often = [one for one in read if one.epochs > declaration.most_epochs]
    return verdict(
        [f"source {one.source} is read {one.epochs:.1f} times by step {data.steps}" for one in often],
        f"No source is read more than {max((one.epochs for one in read), default=0):.2f} times.",
        "Lower its weight, or raise `most_epochs`",
        facts={f"epochs of {one.source}": round(one.epochs, 4) for one in read},
        warning=True,
    )
