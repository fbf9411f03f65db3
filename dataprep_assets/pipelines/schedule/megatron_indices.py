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

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.metadata_values import ShownValue
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, DatasetInput
from dataprep_assets.engine.checks.check import Check, Finding, build_verdict, choose_sample_count, set_level
from dataprep_assets.engine.checks.comparison import compare_rebuild
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
    IndexInputs,
    find_view,
    list_prefixes,
    open_indexed,
)
from dataprep_assets.pipelines.schedule.schedule_checks import OpenedInPlaceArtifact
from dataprep_assets.serving.sampler.megatron_order import SourceSamples, blend_blocks
from dataprep_assets.serving.sampler.training_data import SCHEDULE_ARTIFACT
from dataprep_assets.stores.files import digest_value

Int64 = NDArray[np.int64]
_DRAWN = 4096
_AGAIN = "Run the dataset again to rebuild the index files"


@dataclass(frozen=True)
class OpenedIndices(OpenedInPlaceArtifact):
    """Opened indices of a schedule, with the current schedule for comparison."""

    wanted: MegatronIndices

    @cached_property
    def indexed(self) -> IndexInputs:
        """The schedule's samples and blend, as inputs of the index files."""
        return open_indexed(self.declaration, self.wanted, self.store)


def _list_files(indexed: IndexInputs) -> dict[str, str | None]:
    """Return every file that Megatron looks for, by name → its text if it is a description, otherwise None."""
    text_of_file: dict[str, str | None] = {}
    sets: list[int | None] = [*range(len(indexed.samples))]
    for number in sets if indexed.blend.is_one else [*sets, None]:
        base = indexed.blend.base(number)
        text_of_file[f"{base}description.txt"] = indexed.blend.description(number)
        kinds = ("dataset", "dataset_sample") if number is None else ("document", "sample", "shuffle")
        text_of_file |= dict.fromkeys(f"{base}{kind}_index.npy" for kind in kinds)
    return text_of_file


def _names_found(indices: OpenedIndices) -> Finding:
    expected_files, names = _list_files(indices.indexed), {record.path for record in indices.receipt.files}
    folder = indices.store.local(indices.artifact, [name for name in expected_files if name in names])
    defects = [f"{name} is missing" for name in expected_files.keys() - names]
    defects += [
        f"{name} has a different description"
        for name, text in expected_files.items()
        if text is not None and name in names and (folder / name).read_text() != text
    ]
    return build_verdict(sorted(defects), f"{count_of(len(expected_files), 'file')}.", _AGAIN)


def _same_samples(indices: OpenedIndices) -> Finding:
    declaration, options, store, receipt = indices.declaration, indices.wanted, indices.store, indices.receipt
    indexed, folder = indices.indexed, indices.directory
    # check only the last revision, because shards of earlier steps may be removed and replaced by padding
    rule = indexed.data.sampler.rules[-1]
    count = (rule.stop - rule.first) * rule.revision.batch
    draws = np.unique(np.random.default_rng(indices.seed).integers(0, count, min(count, _DRAWN)))
    first_number = indexed.data.sampler.number(rule.first)
    number, sample = _assign_samples(folder, indexed, first_number + draws)
    spans = indexed.data.sampler.spans_of(rule, draws)
    defects: list[str] = []
    if choose_sample_count(declaration.prove.level) is None:
        recipe = _build_recipe(declaration, options, store)
        defects += compare_rebuild(recipe, store, receipt, folder, partial(_write, declaration, options, store, recipe))
    for index, samples in enumerate(indexed.samples):
        tokens = np.array([shard.tokens for shard in samples.source.shards], np.int64)
        begins = np.cumsum(tokens) - tokens
        is_own_source = spans.source == index
        # -1 means that the sample belongs to a different source
        expected_tokens = np.full((len(draws), 2), -1, np.int64)
        # NumPy keeps the last of several values assigned to a row. The reversed order therefore keeps the beginning of
        # a sample's first span, and the normal order below keeps the end of its last span.
        rows, shards = spans.row[is_own_source][::-1], spans.shard[is_own_source][::-1]
        expected_tokens[rows, 0] = begins[shards] + spans.start[is_own_source][::-1]
        rows, shards = spans.row[is_own_source], spans.shard[is_own_source]
        # the last label is the token after the sample, or the shard's last token if the shard ends there
        expected_tokens[rows, 1] = begins[shards] + np.minimum(spans.stop[is_own_source], tokens[shards] - 1)
        is_own = number == index
        if not np.array_equal(is_own, expected_tokens[:, 0] >= 0):
            wrong_index = np.flatnonzero(is_own != (expected_tokens[:, 0] >= 0))[0]
            defects.append(
                f"sample {first_number + int(draws[wrong_index])} of the run is from a different source than in the "
                "schedule"
            )
            continue
        stored_tokens = _locate_tokens(folder, indexed, index, sample[is_own])
        for wrong_index in np.flatnonzero((stored_tokens != expected_tokens[is_own]).any(axis=1)):
            expected_text, stored_text = (
                expected_tokens[is_own][wrong_index].tolist(),
                stored_tokens[wrong_index].tolist(),
            )
            defects.append(
                f"sample {first_number + int(draws[is_own][wrong_index])} of the run has tokens {stored_text[0]} to "
                f"{stored_text[1]} of {samples.source.name}, but the schedule has {expected_text[0]} to "
                f"{expected_text[1]}"
            )
    holds = f"{count_of(len(draws), 'sample')} of {count}, each with the tokens in the schedule."
    return build_verdict(
        defects, holds, "Do not train on these index files, and report a bug", facts={"samples": len(draws)}
    )


def _open_array(folder: Path, name: str) -> NDArray[np.integer]:
    try:
        array: NDArray[np.integer] = np.load(folder / name, mmap_mode="r")
    # NumPy parses the header as Python source, so SyntaxError and TokenError are possible
    except (ValueError, SyntaxError, EOFError, TokenError) as error:
        raise FormatError(f"{folder / name}: not a Megatron index: {error}. {_AGAIN}") from error
    return array


def _assign_samples(folder: Path, indexed: IndexInputs, numbers: Int64) -> tuple[Int64, Int64]:
    """Return the dataset of each sample and the sample's number in it, as `BlendedDataset` looks them up."""
    if indexed.blend.is_one:
        return np.zeros_like(numbers), numbers
    base = indexed.blend.base()
    names = ("dataset_index", "dataset_sample_index")
    number, sample = (_read_entry(folder, f"{base}{name}.npy", numbers) for name in names)
    return number, sample


def _read_entry(folder: Path, name: str, positions: Int64) -> NDArray[np.int64]:
    """Return the entries of an index at the given positions; raise FormatError if a position is out of range."""
    values = _open_array(folder, name)
    if positions.size and not 0 <= int(positions.min()) <= int(positions.max()) < len(values):
        raise FormatError(
            f"{folder / name}: has {count_of(len(values), 'entry', 'entries')}, but another index refers to more. "
            f"{_AGAIN}"
        )
    return np.asarray(values[positions], np.int64)


def _locate_tokens(folder: Path, indexed: IndexInputs, position: int, samples: Int64) -> Int64:
    """Return the positions of each sample's first token and last label in the split, as `GPTDataset` looks them up."""
    base, ends = indexed.blend.base(position), indexed.samples[position].ends
    sample_indexes = _read_entry(folder, f"{base}shuffle_index.npy", samples)
    pairs = np.stack([_read_entry(folder, f"{base}sample_index.npy", sample_indexes + add) for add in (0, 1)], axis=1)
    numbers = _read_entry(folder, f"{base}document_index.npy", pairs[:, :, 0])
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(ends):
        raise FormatError(f"{folder}/{base}document_index.npy: refers to a document that does not exist. {_AGAIN}")
    # for the first document, index -1 reads the last document's end, which `where` then replaces with 0
    begins = np.where(numbers > 0, ends[numbers - 1].astype(np.int64), 0)
    return begins + pairs[:, :, 1]


VERSION = 3


MEGATRON_CHECKS: tuple[Check[OpenedIndices], ...] = (
    Check(
        "files_intact",
        "Every file in the receipt exists, with the recorded size and SHA-256.",
        lambda indices: indices.is_intact(_AGAIN),
    ),
    Check(
        "index_file_names_valid",
        "The file names match the names that Megatron derives from the current schedule.",
        _names_found,
    ),
    Check(
        "matches_schedule",
        "Samples from all steps, read as Megatron reads them, match the schedule. With `level: "
        "every_document`, a rebuild reproduces all files.",
        _same_samples,
        samples=True,
    ),
)


class MegatronFacts(Facts):
    """Facts of the indices' receipt: the schedule's digest, the number of samples, and Megatron-LM's options."""

    digest: str
    samples: int
    arguments: str


def megatron_spec(declaration: ScheduleDeclaration, indices: MegatronIndices, schedule: ArtifactSpec) -> ArtifactSpec:
    """Return the specification of the indices of a schedule that declares `megatron`."""
    views = sorted({source.dataset for source in declaration.sources})
    return ArtifactSpec(
        declaration=declaration,
        name=MEGATRON_INDICES,
        version=VERSION,
        description="The schedule as index files for Megatron-Core's GPTDataset and BlendedDataset.",
        kinds={"numpy", "megatron"},
        inputs=(schedule, *(DatasetInput(dataset=dataset, name=VIEW) for dataset in views)),
        recipes=lambda store, _: [_build_recipe(declaration, indices, store)],
        build=lambda request: [Outcome.from_receipt(*build_indices(declaration, indices, request.store))],
        metadata=_build_metadata,
        rows=lambda receipt: MegatronFacts.from_receipt(receipt).samples,
        check_groups=(
            WholeChecks(
                checks=set_level(MEGATRON_CHECKS, declaration.prove.level),
                open=lambda store, _: OpenedIndices(
                    declaration.artifact(MEGATRON_INDICES), store, declaration, indices
                ),
            ),
        ),
        names_places=frozenset({"prefixes"}),
    )


def _build_recipe(declaration: ScheduleDeclaration, indices: MegatronIndices, store: ArtifactStore) -> Recipe:
    schedule = store.require(declaration.artifact(SCHEDULE_ARTIFACT))
    upstream, shards_of_source = {SCHEDULE_ARTIFACT: schedule.content}, {}
    for source in declaration.sources:
        view, shards = find_view(declaration.dataset, source.called, source.dataset, source.split, store)
        upstream[f"{source.dataset}:{VIEW}"] = view.content
        shards_of_source[source.called] = shards
    # quote the prefixes as shell words, as in Megatron-LM's options
    prefixes_digest = digest_value([shlex.quote(prefix) for prefix in list_prefixes(declaration, indices, store)])
    settings = {
        "random_seed": indices.random_seed,
        "tokenizer": dict(indices.tokenizer),
        "sources": list(shards_of_source),
    }
    return Recipe(
        artifact=declaration.artifact(MEGATRON_INDICES),
        # add the tokenizer as JSON, because the order of its keys changes the files' names
        key=digest_value(
            [
                MEGATRON_INDICES,
                VERSION,
                upstream,
                shards_of_source,
                indices.random_seed,
                json.dumps(indices.tokenizer),
                prefixes_digest,
            ]
        ),
        version=VERSION,
        settings=settings,
        sources={"prefixes": prefixes_digest, "shards": digest_value(shards_of_source)},
        upstream=upstream,
    )


def build_indices(
    declaration: ScheduleDeclaration, indices: MegatronIndices, store: ArtifactStore
) -> tuple[Receipt, bool]:
    """Commit the index files; return the receipt and whether it was reused. Raises the errors of `open_indexed`."""
    recipe = _build_recipe(declaration, indices, store)

    return ensure_built(recipe, store, partial(_write, declaration, indices, store, recipe), declaration.verify)


def _write(
    declaration: ScheduleDeclaration, indices: MegatronIndices, store: ArtifactStore, recipe: Recipe, staged: Path
) -> WrittenFiles:
    indexed = open_indexed(declaration, indices, store)
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
    # list documents in stored order, because only the shuffle index defines the order of samples
    write_array(staged / f"{base}document_index.npy", [np.arange(len(samples.ends))], "int32")
    read_count = samples.sampler.samples if blend.is_one else samples.size
    # one sample more than the run reads, because a blend pads with the sample after the last one
    least = max(read_count + 1, blend.requested_samples(number), samples.window_rows)

    def order() -> Iterator[NDArray[np.int64]]:
        yield from (samples.run_blocks if blend.is_one else samples.order_blocks)(other_blocks)
        # the index must be as long as the sample index and as Megatron requests; padding follows the last sample
        size = max(least, samples.window_rows + sum(map(len, other_blocks)) - 1)
        yield np.full(size - read_count, samples.padding)

    def rows() -> Iterator[NDArray[np.int64]]:
        yield from samples.window_blocks()
        yield from other_blocks
        # one row more than samples, because a sample ends where the next row begins
        yield np.tile(other_blocks[-1][-1:], (max(least + 1 - samples.window_rows - sum(map(len, other_blocks)), 0), 1))

    longest = int(np.diff(samples.ends, prepend=np.uint64(0)).max(initial=0))
    # sample numbers are row numbers, and each sample that the run reads adds at most two rows
    dtype = shuffle_dtype(2 * least + samples.window_rows)
    # run `order` first, because it collects the samples that are not windows, which `rows` also writes
    write_array(staged / f"{base}shuffle_index.npy", order(), dtype)
    write_array(staged / f"{base}sample_index.npy", rows(), sample_dtype(len(samples.ends), longest), columns=2)


def _write_blended(staged: Path, indexed: IndexInputs) -> None:
    base, size = indexed.blend.base(), indexed.blend.size
    (staged / f"{base}description.txt").write_text(indexed.blend.description())
    for column, (name, dtype) in enumerate((("dataset_index", "int16"), ("dataset_sample_index", "int64"))):
        # compute the blocks once per file, so that only one block is in memory
        blocks = (block[column] for block in blend_blocks(indexed.data.sampler, indexed.samples, size))
        write_array(staged / f"{base}{name}.npy", blocks, dtype)


def _build_metadata(_: ArtifactStore, receipt: Receipt) -> dict[str, ShownValue]:
    facts = MegatronFacts.from_receipt(receipt)
    return {"samples": facts.samples, "megatron_lm_arguments": facts.arguments}
