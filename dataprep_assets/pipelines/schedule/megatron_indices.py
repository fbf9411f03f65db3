"""Artifact `<dataset>/megatron_indices`: a schedule as the index files of Megatron-Core's cache.

Each source's `GPTDataset` and the `BlendedDataset` over them find these files by name, so they build no index
themselves. They return the schedule's samples in the schedule's order (`formats/megatron_indices.py`). The tokens are
read from the sources' view `megatron`.

Entry point: `megatron_spec`.
"""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tokenize import TokenError

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure
from dataprep_assets.engine.artifact.metadata_values import Shown
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, DatasetInput
from dataprep_assets.engine.checks.check import Check, Finding, at_level, samples_of, verdict
from dataprep_assets.engine.checks.comparison import rebuilt
from dataprep_assets.engine.checks.verdicts import WholeChecks
from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats.megatron_indices import TrainBlend, sample_dtype, shuffle_dtype, write_array
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.schedule.declaration import MegatronIndices, ScheduleDeclaration
from dataprep_assets.pipelines.schedule.megatron_sources import (
    MEGATRON_INDICES,
    VIEW,
    Indexed,
    open_indexed,
    prefixes,
    view_of,
)
from dataprep_assets.pipelines.schedule.schedule_checks import OpenedInPlace
from dataprep_assets.serving.sampler.megatron_order import SourceSamples, blend_blocks
from dataprep_assets.serving.sampler.training_data import SCHEDULE_ARTIFACT
from dataprep_assets.stores.files import digest_value

Int64 = NDArray[np.int64]
_DRAWN = 4096
_AGAIN = "Run `dataprep run NAME` to rebuild them"


@dataclass(frozen=True)
class OpenedIndices(OpenedInPlace):
    """Opened indices of a schedule, with the present schedule for comparison."""

    wanted: MegatronIndices

    @cached_property
    def indexed(self) -> Indexed:
        """Samples of the schedule and its blend in Megatron's terms."""
        return open_indexed(self.declaration, self.wanted, self.store)


def _files(indexed: Indexed) -> dict[str, str | None]:
    """Return the name of every file that Megatron searches for → the text of a description, None for other files."""
    text_of_file: dict[str, str | None] = {}
    sets: list[int | None] = [*range(len(indexed.samples))]
    for number in sets if indexed.blend.is_one else [*sets, None]:
        base = indexed.blend.base(number)
        text_of_file[f"{base}description.txt"] = indexed.blend.description(number)
        kinds = ("dataset", "dataset_sample") if number is None else ("document", "sample", "shuffle")
        text_of_file |= dict.fromkeys(f"{base}{kind}_index.npy" for kind in kinds)
    return text_of_file


def _names_found(indices: OpenedIndices) -> Finding:
    expected_files, names = _files(indices.indexed), {record.path for record in indices.receipt.files}
    folder = indices.store.local(indices.artifact, [name for name in expected_files if name in names])
    defects = [f"{name} is missing" for name in expected_files.keys() - names]
    defects += [
        f"{name} has a different description"
        for name, text in expected_files.items()
        if text is not None and name in names and (folder / name).read_text() != text
    ]
    return verdict(sorted(defects), f"{count_of(len(expected_files), 'file')}.", _AGAIN)


def _same_samples(indices: OpenedIndices) -> Finding:
    declaration, options, store, receipt = indices.declaration, indices.wanted, indices.store, indices.receipt
    indexed, folder = indices.indexed, indices.directory
    # only the last revision is checked, because shards of earlier steps may be removed and replaced by padding
    rule = indexed.data.sampler.rules[-1]
    count = (rule.stop - rule.first) * rule.revision.batch
    draws = np.unique(np.random.default_rng(indices.seed).integers(0, count, min(count, _DRAWN)))
    first_number = indexed.data.sampler.number(rule.first)
    number, sample = _assign_samples(folder, indexed, first_number + draws)
    spans = indexed.data.sampler.spans_of(rule, draws)
    defects: list[str] = []
    if samples_of(declaration.prove.level) is None:
        recipe = _recipe(declaration, options, store)
        defects += rebuilt(recipe, store, receipt, folder, partial(_write, declaration, options, store, recipe))
    for index, samples in enumerate(indexed.samples):
        tokens = np.array([shard.tokens for shard in samples.source.shards], np.int64)
        begins = np.cumsum(tokens) - tokens
        mine = spans.source == index
        # -1 marks a sample of a different source
        expected_tokens = np.full((len(draws), 2), -1, np.int64)
        # NumPy keeps the last of several values assigned to a row. The reversed order therefore keeps the begin of a
        # sample's first span, and the normal order below keeps the end of its last span.
        rows, shards = spans.row[mine][::-1], spans.shard[mine][::-1]
        expected_tokens[rows, 0] = begins[shards] + spans.start[mine][::-1]
        rows, shards = spans.row[mine], spans.shard[mine]
        # the last label is the token after the sample, or the shard's last token if the shard ends there
        expected_tokens[rows, 1] = begins[shards] + np.minimum(spans.stop[mine], tokens[shards] - 1)
        is_own = number == index
        if not np.array_equal(is_own, expected_tokens[:, 0] >= 0):
            wrong = np.flatnonzero(is_own != (expected_tokens[:, 0] >= 0))[0]
            defects.append(
                f"sample {first_number + int(draws[wrong])} of the run is from a different source than in the schedule"
            )
            continue
        stored_tokens = _tokens(folder, indexed, index, sample[is_own])
        for wrong in np.flatnonzero((stored_tokens != expected_tokens[is_own]).any(axis=1)):
            ours, theirs = expected_tokens[is_own][wrong].tolist(), stored_tokens[wrong].tolist()
            defects.append(
                f"sample {first_number + int(draws[is_own][wrong])} of the run is tokens {theirs[0]} to {theirs[1]} of "
                f"{samples.source.name}, but the schedule has {ours[0]} to {ours[1]}"
            )
    holds = f"{count_of(len(draws), 'sample')} of {count}, each with the tokens in the schedule."
    return verdict(defects, holds, "Do not train on them, and report a bug", facts={"samples": len(draws)})


def _array(folder: Path, name: str) -> NDArray[np.integer]:
    try:
        array: NDArray[np.integer] = np.load(folder / name, mmap_mode="r")
    # SyntaxError and TokenError are possible, because NumPy parses the header as Python source
    except (ValueError, SyntaxError, EOFError, TokenError) as error:
        raise FormatError(f"{folder / name}: not a Megatron index: {error}. {_AGAIN}") from error
    return array


def _assign_samples(folder: Path, indexed: Indexed, numbers: Int64) -> tuple[Int64, Int64]:
    """Return each sample's data set and its number in that data set, as `BlendedDataset` looks them up."""
    if indexed.blend.is_one:
        return np.zeros_like(numbers), numbers
    base = indexed.blend.base()
    names = ("dataset_index", "dataset_sample_index")
    number, sample = (_read_entry(folder, f"{base}{name}.npy", numbers) for name in names)
    return number, sample


def _read_entry(folder: Path, name: str, places: Int64) -> NDArray[np.int64]:
    """Return the entries of an index at the given places; raise FormatError if a place is out of range."""
    values = _array(folder, name)
    if places.size and not 0 <= int(places.min()) <= int(places.max()) < len(values):
        raise FormatError(
            f"{folder / name}: has {count_of(len(values), 'entry', 'entries')}, but another index refers to more. "
            f"{_AGAIN}"
        )
    return np.asarray(values[places], np.int64)


def _tokens(folder: Path, indexed: Indexed, at: int, samples: Int64) -> Int64:
    """Return the positions of each sample's first token and last label in the split, as `GPTDataset` looks them up."""
    base, ends = indexed.blend.base(at), indexed.samples[at].ends
    sample_indexes = _read_entry(folder, f"{base}shuffle_index.npy", samples)
    pairs = np.stack([_read_entry(folder, f"{base}sample_index.npy", sample_indexes + add) for add in (0, 1)], axis=1)
    numbers = _read_entry(folder, f"{base}document_index.npy", pairs[:, :, 0])
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(ends):
        raise FormatError(f"{folder}/{base}document_index.npy: refers to a document that does not exist. {_AGAIN}")
    # for the first document, the index -1 reads the last document's end, which `where` then replaces by 0
    begins = np.where(numbers > 0, ends[numbers - 1].astype(np.int64), 0)
    return begins + pairs[:, :, 1]


VERSION = 3


MEGATRON_CHECKS: tuple[Check[OpenedIndices], ...] = (
    Check(
        "files_intact",
        "Every file in the receipt exists with its size and SHA-256.",
        lambda indices: indices.is_intact(_AGAIN),
    ),
    Check(
        "index_file_names_valid",
        "The file names match the names that Megatron derives from the current schedule.",
        _names_found,
    ),
    Check(
        "matches_schedule",
        "Samples of all steps, looked up as Megatron does, match the schedule. With `every_document` all files are "
        "also rebuilt and compared.",
        _same_samples,
        samples=True,
    ),
)


class MegatronFacts(Facts):
    """Facts of the indices' receipt: the schedule's digest, the number of samples, and Megatron-LM's options."""

    digest: str
    samples: int
    arguments: str


def megatron_spec(declaration: ScheduleDeclaration, wanted: MegatronIndices, schedule: ArtifactSpec) -> ArtifactSpec:
    """Return the specification of the indices of a schedule that declares `megatron`."""
    views = sorted({source.dataset for source in declaration.sources})
    return ArtifactSpec(
        declaration=declaration,
        name=MEGATRON_INDICES,
        version=VERSION,
        description="The schedule as the index files of Megatron-Core's GPTDataset and BlendedDataset.",
        kinds={"numpy", "megatron"},
        inputs=(schedule, *(DatasetInput(dataset=dataset, name=VIEW) for dataset in views)),
        recipes=lambda store, _: [_recipe(declaration, wanted, store)],
        build=lambda request: [Outcome.from_receipt(*build_indices(declaration, wanted, request.store))],
        metadata=_metadata,
        rows=lambda receipt: MegatronFacts.of(receipt).samples,
        check_groups=(
            WholeChecks(
                checks=at_level(MEGATRON_CHECKS, declaration.prove.level),
                open=lambda store, _: OpenedIndices(declaration.artifact(MEGATRON_INDICES), store, declaration, wanted),
            ),
        ),
        names_places=frozenset({"prefixes"}),
    )


def _recipe(declaration: ScheduleDeclaration, wanted: MegatronIndices, store: ArtifactStore) -> Recipe:
    schedule = store.require(declaration.artifact(SCHEDULE_ARTIFACT))
    upstream, shards_of_source = {SCHEDULE_ARTIFACT: schedule.content}, {}
    for source in declaration.sources:
        view, shards = view_of(declaration.dataset, source.called, source.dataset, source.split, store)
        upstream[f"{source.dataset}:{VIEW}"] = view.content
        shards_of_source[source.called] = shards
    # the prefixes are shell-quoted, as in Megatron-LM's options
    where = digest_value([shlex.quote(prefix) for prefix in prefixes(declaration, wanted, store)])
    settings = {
        "random_seed": wanted.random_seed,
        "tokenizer": dict(wanted.tokenizer),
        "sources": list(shards_of_source),
    }
    return Recipe(
        artifact=declaration.artifact(MEGATRON_INDICES),
        # the tokenizer is part of the key as JSON, because the order of its keys changes the files' names
        key=digest_value(
            [
                MEGATRON_INDICES,
                VERSION,
                upstream,
                shards_of_source,
                wanted.random_seed,
                json.dumps(wanted.tokenizer),
                where,
            ]
        ),
        version=VERSION,
        settings=settings,
        sources={"prefixes": where, "shards": digest_value(shards_of_source)},
        upstream=upstream,
    )


def build_indices(
    declaration: ScheduleDeclaration, wanted: MegatronIndices, store: ArtifactStore
) -> tuple[Receipt, bool]:
    """Commit the index files; return the receipt and whether it was reused. Raises the errors of `open_indexed`."""
    recipe = _recipe(declaration, wanted, store)

    return ensure(recipe, store, partial(_write, declaration, wanted, store, recipe), declaration.verify)


def _write(
    declaration: ScheduleDeclaration, wanted: MegatronIndices, store: ArtifactStore, recipe: Recipe, staged: Path
) -> WrittenFiles:
    indexed = open_indexed(declaration, wanted, store)
    for number, samples in enumerate(indexed.samples):
        _write_gpt(staged, indexed.blend, number, samples)
    if not indexed.blend.is_one:
        _write_blended(staged, indexed)
    return WrittenFiles(
        inputs=dict(recipe.upstream),
        facts=MegatronFacts(
            digest=indexed.data.schedule.digest,
            samples=indexed.blend.samples,
            arguments=indexed.blend.arguments,
        ),
    )


def _write_gpt(staged: Path, blend: TrainBlend, number: int, samples: SourceSamples) -> None:
    base, other_blocks = blend.base(number), list[NDArray[np.int64]]()
    (staged / f"{base}description.txt").write_text(blend.description(number))
    # documents are listed in stored order, because only the shuffle index defines the order of samples
    write_array(staged / f"{base}document_index.npy", [np.arange(len(samples.ends))], "int32")
    read = samples.sampler.samples if blend.is_one else samples.size
    # one more sample than the run reads, because a blend uses the sample after the last one as padding
    least = max(read + 1, blend.requested_samples(number), samples.window_rows)

    def order() -> Iterator[NDArray[np.int64]]:
        yield from (samples.run_blocks if blend.is_one else samples.order_blocks)(other_blocks)
        # the index must be as long as the sample index and as Megatron requests; padding follows the last sample
        size = max(least, samples.window_rows + sum(map(len, other_blocks)) - 1)
        yield np.full(size - read, samples.padding)

    def rows() -> Iterator[NDArray[np.int64]]:
        yield from samples.window_blocks()
        yield from other_blocks
        # the index has one more row than samples, because a sample ends where the next row begins
        yield np.tile(other_blocks[-1][-1:], (max(least + 1 - samples.window_rows - sum(map(len, other_blocks)), 0), 1))

    longest = int(np.diff(samples.ends, prepend=np.uint64(0)).max(initial=0))
    # sample numbers are row numbers, and each sample that the run reads adds at most two rows
    dtype = shuffle_dtype(2 * least + samples.window_rows)
    # `order` must run first, because it collects the samples that are not windows, which `rows` also writes
    write_array(staged / f"{base}shuffle_index.npy", order(), dtype)
    write_array(staged / f"{base}sample_index.npy", rows(), sample_dtype(len(samples.ends), longest), columns=2)


def _write_blended(staged: Path, indexed: Indexed) -> None:
    base, size = indexed.blend.base(), indexed.blend.size
    (staged / f"{base}description.txt").write_text(indexed.blend.description())
    for column, (name, dtype) in enumerate((("dataset_index", "int16"), ("dataset_sample_index", "int64"))):
        # the blocks are computed once per file, so that only one block is in memory
        blocks = (block[column] for block in blend_blocks(indexed.data.sampler, indexed.samples, size))
        write_array(staged / f"{base}{name}.npy", blocks, dtype)


def _metadata(_: ArtifactStore, receipt: Receipt) -> dict[str, Shown]:
    facts = MegatronFacts.of(receipt)
    return {"samples": facts.samples, "Megatron-LM": facts.arguments}
