"""Proofs on a schedule's Megatron indices: found under their names, and their samples are those of the schedule.

Entry points: `MEGATRON_PROOFS`, `prove_megatron`.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError
from dataprep_assets.graph.finding import Finding, judged, verdict
from dataprep_assets.graph.spec import Proof
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.schedule.declaration import MegatronIndices, ScheduleDeclaration
from dataprep_assets.pipelines.schedule.megatron_sources import MEGATRON_INDICES, Indexed, opened
from dataprep_assets.plural import count_of

Int64 = NDArray[np.int64]
_DRAWN = 4096
_AGAIN = "`dataprep run NAME` makes them again"

MEGATRON_PROOFS = (
    Proof("files_intact", "Every file that the receipt lists is there with its size and SHA-256."),
    Proof("names_found", "The files have the names under which Megatron looks for what the schedule reads now."),
    Proof("same_samples", "Samples drawn from all steps are, looked up as Megatron does, those of the schedule."),
)


def prove_megatron(
    declaration: ScheduleDeclaration, wanted: MegatronIndices, store: ArtifactStore
) -> Iterator[tuple[str, Finding]]:
    """All proofs of the indices of a schedule."""
    artifact = declaration.artifact(MEGATRON_INDICES)
    receipt = store.require(artifact)
    holds = f"{count_of(len(receipt.files), 'file')}, {receipt.total_bytes} bytes, with the digests of the receipt."
    yield "files_intact", verdict(store.damage(artifact, receipt), holds, _AGAIN)
    names = {record.path for record in receipt.files}
    yield "names_found", _names_found(declaration, wanted, store, names)
    seed = int(receipt.key[:8], 16)
    yield "same_samples", _same_samples(declaration, wanted, store, seed)


def _files(indexed: Indexed) -> dict[str, str | None]:
    """Every file that Megatron looks for; of a description its text."""
    found: dict[str, str | None] = {}
    sets: list[int | None] = [*range(len(indexed.samples))]
    for number in sets if indexed.blend.is_one else [*sets, None]:
        base = indexed.blend.base(number)
        found[f"{base}description.txt"] = indexed.blend.description(number)
        kinds = ("dataset", "dataset_sample") if number is None else ("document", "sample", "shuffle")
        found |= dict.fromkeys(f"{base}{kind}_index.npy" for kind in kinds)
    return found


@judged
def _names_found(
    declaration: ScheduleDeclaration, wanted: MegatronIndices, store: ArtifactStore, names: set[str]
) -> Finding:
    expected = _files(opened(declaration, wanted, store))
    folder = store.local(declaration.artifact(MEGATRON_INDICES), [name for name in expected if name in names])
    defects = [f"{name} is not there" for name in expected.keys() - names]
    defects += [
        f"{name} describes something else"
        for name, text in expected.items()
        if text is not None and name in names and (folder / name).read_text() != text
    ]
    return verdict(sorted(defects), f"{count_of(len(expected), 'file')}.", _AGAIN)


@judged
def _same_samples(
    declaration: ScheduleDeclaration, wanted: MegatronIndices, store: ArtifactStore, seed: int
) -> Finding:
    indexed = opened(declaration, wanted, store)
    folder = store.local(declaration.artifact(MEGATRON_INDICES))
    # those of the last revision: what earlier steps read may be gone, and is padding then
    rule = indexed.data.sampler.rules[-1]
    count = (rule.stop - rule.first) * rule.revision.batch
    drawn = np.unique(np.random.default_rng(seed).integers(0, count, min(count, _DRAWN)))
    first = indexed.data.sampler.number(rule.first)
    number, sample = _blended(folder, indexed, first + drawn)
    spans = indexed.data.sampler.spans_of(rule, drawn)
    defects = []
    for at, samples in enumerate(indexed.samples):
        tokens = np.array([shard.tokens for shard in samples.source.shards], np.int64)
        begins = np.cumsum(tokens) - tokens
        mine = spans.source == at
        # -1 for a sample of another source
        expected = np.full((len(drawn), 2), -1, np.int64)
        # of several values for a row NumPy keeps the last: read backwards, the first span is what stays of its begin
        # in order, so the last span of a sample is what stays of its end
        rows, shards = spans.row[mine][::-1], spans.shard[mine][::-1]
        expected[rows, 0] = begins[shards] + spans.start[mine][::-1]
        rows, shards = spans.row[mine], spans.shard[mine]
        # the last label is the token after the sample, unless its shard ends there
        expected[rows, 1] = begins[shards] + np.minimum(spans.stop[mine], tokens[shards] - 1)
        here = number == at
        if not np.array_equal(here, expected[:, 0] >= 0):
            wrong = np.flatnonzero(here != (expected[:, 0] >= 0))[0]
            defects.append(f"sample {first + int(drawn[wrong])} of the run is of another source than the schedule's")
            continue
        found = _tokens(folder, indexed, at, sample[here])
        for wrong in np.flatnonzero((found != expected[here]).any(axis=1)):
            ours, theirs = expected[here][wrong].tolist(), found[wrong].tolist()
            defects.append(
                f"sample {first + int(drawn[here][wrong])} of the run is tokens {theirs[0]} to {theirs[1]} of "
                f"{samples.source.name}, the schedule has {ours[0]} to {ours[1]}"
            )
    holds = f"{count_of(len(drawn), 'sample')} drawn from {count}, each the tokens that the schedule reads."
    return verdict(defects, holds, "Do not train on them, and report a bug", facts={"samples": len(drawn)})


def _array(folder: Path, name: str) -> NDArray[np.integer]:
    try:
        found: NDArray[np.integer] = np.load(folder / name, mmap_mode="r")
    except ValueError as error:
        raise FormatError(f"{folder / name}: not an index of Megatron's: {error}. {_AGAIN}") from error
    return found


def _blended(folder: Path, indexed: Indexed, numbers: Int64) -> tuple[Int64, Int64]:
    """The data set of each sample of the run, and which of its samples it is, as `BlendedDataset` looks it up."""
    if indexed.blend.is_one:
        return np.zeros_like(numbers), numbers
    base = indexed.blend.base()
    names = ("dataset_index", "dataset_sample_index")
    number, sample = (np.asarray(_array(folder, f"{base}{name}.npy")[numbers], np.int64) for name in names)
    return number, sample


def _tokens(folder: Path, indexed: Indexed, at: int, samples: Int64) -> Int64:
    """First token of each sample, and the one that is its last label, in tokens of the split, as `GPTDataset` looks
    them up."""
    base, ends = indexed.blend.base(at), indexed.samples[at].ends
    documents, rows, order = (_array(folder, f"{base}{name}_index.npy") for name in ("document", "sample", "shuffle"))
    chosen = np.asarray(order[samples], np.int64)
    pairs = np.stack([rows[chosen], rows[chosen + 1]], axis=1).astype(np.int64)
    numbers = np.asarray(documents, np.int64)[pairs[:, :, 0]]
    # of the first document `numbers - 1` is the last one's place, which `where` does not take
    begins = np.where(numbers > 0, ends[numbers - 1].astype(np.int64), 0)
    return begins + pairs[:, :, 1]
