"""The artifact `<dataset>/megatron_indices`: a schedule as the index files that Megatron-Core keeps in its cache.

A `GPTDataset` for each source and the `BlendedDataset` over them find these files by their names and begin without
building any; their samples are those of the schedule, in its order (`formats/megatron_indices.py`). The tokens are
those of the sources' view `megatron`.

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
    """The indices of a schedule to check, and what the schedule reads now."""

    wanted: MegatronIndices

    @cached_property
    def indexed(self) -> Indexed:
        """The samples of the schedule, as Megatron looks for them."""
        return open_indexed(self.declaration, self.wanted, self.store)


def _files(indexed: Indexed) -> dict[str, str | None]:
    """Every file that Megatron looks for; of a description its text."""
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
    # those of the last revision: what earlier steps read may be gone, and is padding then
    rule = indexed.data.sampler.rules[-1]
    count = (rule.stop - rule.first) * rule.revision.batch
    draws = np.unique(np.random.default_rng(indices.seed).integers(0, count, min(count, _DRAWN)))
    first_number = indexed.data.sampler.number(rule.first)
    number, sample = _blended(folder, indexed, first_number + draws)
    spans = indexed.data.sampler.spans_of(rule, draws)
    defects: list[str] = []
    if samples_of(declaration.prove.level) is None:
        recipe = _recipe(declaration, options, store)
        defects += rebuilt(recipe, store, receipt, folder, partial(_write, declaration, options, store, recipe))
    for index, samples in enumerate(indexed.samples):
        tokens = np.array([shard.tokens for shard in samples.source.shards], np.int64)
        begins = np.cumsum(tokens) - tokens
        mine = spans.source == index
        # -1 for a sample of another source
        expected_tokens = np.full((len(draws), 2), -1, np.int64)
        # of several values for a row NumPy keeps the last: read backwards, the first span is what stays of its begin
        # in order, so the last span of a sample is what stays of its end
        rows, shards = spans.row[mine][::-1], spans.shard[mine][::-1]
        expected_tokens[rows, 0] = begins[shards] + spans.start[mine][::-1]
        rows, shards = spans.row[mine], spans.shard[mine]
        # the last label is the token after the sample, unless its shard ends there
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
    # the header is Python, which NumPy may parse by its tokenizer
    except (ValueError, SyntaxError, EOFError, TokenError) as error:
        raise FormatError(f"{folder / name}: not a Megatron index: {error}. {_AGAIN}") from error
    return array


def _blended(folder: Path, indexed: Indexed, numbers: Int64) -> tuple[Int64, Int64]:
    """The data set of each sample of the run, and which of its samples it is, as `BlendedDataset` looks it up."""
    if indexed.blend.is_one:
        return np.zeros_like(numbers), numbers
    base = indexed.blend.base()
    names = ("dataset_index", "dataset_sample_index")
    number, sample = (_read_entry(folder, f"{base}{name}.npy", numbers) for name in names)
    return number, sample


def _read_entry(folder: Path, name: str, places: Int64) -> NDArray[np.int64]:
    """Entries of an index; raises FormatError where there is none."""
    values = _array(folder, name)
    if places.size and not 0 <= int(places.min()) <= int(places.max()) < len(values):
        raise FormatError(
            f"{folder / name}: has {count_of(len(values), 'entry', 'entries')}, but another index refers to more. "
            f"{_AGAIN}"
        )
    return np.asarray(values[places], np.int64)


def _tokens(folder: Path, indexed: Indexed, at: int, samples: Int64) -> Int64:
    """First token of each sample, and the one that is its last label, in tokens of the split, as `GPTDataset` looks
    them up."""
    base, ends = indexed.blend.base(at), indexed.samples[at].ends
    sample_indexes = _read_entry(folder, f"{base}shuffle_index.npy", samples)
    pairs = np.stack([_read_entry(folder, f"{base}sample_index.npy", sample_indexes + add) for add in (0, 1)], axis=1)
    numbers = _read_entry(folder, f"{base}document_index.npy", pairs[:, :, 0])
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(ends):
        raise FormatError(f"{folder}/{base}document_index.npy: refers to a document that does not exist. {_AGAIN}")
    # of the first document `numbers - 1` is the last one's place, which `where` does not take
    begins = np.where(numbers > 0, ends[numbers - 1].astype(np.int64), 0)
    return begins + pairs[:, :, 1]


VERSION = 3


MEGATRON_CHECKS: tuple[Check[OpenedIndices], ...] = (
    Check(
        "files_intact",
        "Every file in the receipt exists with its size and SHA-256.",
        lambda indices: indices.intact(_AGAIN),
    ),
    Check(
        "index_file_names_valid",
        "The files have the names by which Megatron finds the indices of the current schedule.",
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
    """Facts of the indices' receipt: of the schedule, how many samples, and Megatron-LM's options for them."""

    digest: str
    samples: int
    arguments: str


def megatron_spec(declaration: ScheduleDeclaration, wanted: MegatronIndices, schedule: ArtifactSpec) -> ArtifactSpec:
    """The artifact of a schedule with the key `megatron`."""
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
    # as the options name them
    where = digest_value([shlex.quote(prefix) for prefix in prefixes(declaration, wanted, store)])
    settings = {
        "random_seed": wanted.random_seed,
        "tokenizer": dict(wanted.tokenizer),
        "sources": list(shards_of_source),
    }
    return Recipe(
        artifact=declaration.artifact(MEGATRON_INDICES),
        # of the tokenizer as JSON, because its order is part of the names
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
    """Commit the index files. Returns the receipt, and whether it was reused. Raises as `open_indexed` does."""
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
    # documents as they lie: the order is that of the shuffle index alone
    write_array(staged / f"{base}document_index.npy", [np.arange(len(samples.ends))], "int32")
    read = samples.sampler.samples if blend.is_one else samples.size
    # one more than are read: a blend takes the sample after the last one for padding
    least = max(read + 1, blend.requested_samples(number), samples.window_rows)

    def order() -> Iterator[NDArray[np.int64]]:
        yield from (samples.run_blocks if blend.is_one else samples.order_blocks)(other_blocks)
        # as long as the sample index, and as Megatron asks for; the padding comes after the last sample
        size = max(least, samples.window_rows + sum(map(len, other_blocks)) - 1)
        yield np.full(size - read, samples.padding)

    def rows() -> Iterator[NDArray[np.int64]]:
        yield from samples.window_blocks()
        yield from other_blocks
        # a sample ends where the next row begins, so there is one row more than samples
        yield np.tile(other_blocks[-1][-1:], (max(least + 1 - samples.window_rows - sum(map(len, other_blocks)), 0), 1))

    longest = int(np.diff(samples.ends, prepend=np.uint64(0)).max(initial=0))
    # samples are numbered by the rows, of which there are two at most to one that is read
    dtype = shuffle_dtype(2 * least + samples.window_rows)
    # the order first: making it finds the samples that are no windows, which `rows` writes after these
    write_array(staged / f"{base}shuffle_index.npy", order(), dtype)
    write_array(staged / f"{base}sample_index.npy", rows(), sample_dtype(len(samples.ends), longest), columns=2)


def _write_blended(staged: Path, indexed: Indexed) -> None:
    base, size = indexed.blend.base(), indexed.blend.size
    (staged / f"{base}description.txt").write_text(indexed.blend.description())
    for column, (name, dtype) in enumerate((("dataset_index", "int16"), ("dataset_sample_index", "int64"))):
        # made again for the second file, so that no more than a block is held
        blocks = (block[column] for block in blend_blocks(indexed.data.sampler, indexed.samples, size))
        write_array(staged / f"{base}{name}.npy", blocks, dtype)


def _metadata(_: ArtifactStore, receipt: Receipt) -> dict[str, Shown]:
    facts = MegatronFacts.of(receipt)
    return {"samples": facts.samples, "Megatron-LM": facts.arguments}
