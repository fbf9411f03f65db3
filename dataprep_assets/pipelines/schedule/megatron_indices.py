"""Artifact `<dataset>/megatron_indices`: a schedule as the index files of Megatron-Core's cache.

Each source's `GPTDataset` and the `BlendedDataset` over them find these files by name, so they build no index
themselves. They return the schedule's samples in the schedule's order (`formats/megatron_indices.py`). The tokens are
read from the sources' view `megatron`.

Entry point: `build_megatron_spec`.
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
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats.megatron_indices import TrainBlend, choose_sample_dtype, choose_shuffle_dtype, write_array
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.schedule.declaration import MegatronIndices, ScheduleDeclaration
from dataprep_assets.pipelines.schedule.megatron_sources import (
    MEGATRON_INDICES,
    VIEW,
    IndexInputs,
    find_view,
    list_prefixes,
    open_inputs,
)
from dataprep_assets.pipelines.schedule.schedule_checks import OpenedInPlaceArtifact
from dataprep_assets.serving.sampler.megatron_order import SourceSamples, iterate_blend_blocks
from dataprep_assets.serving.sampler.training_data import SCHEDULE_ARTIFACT
from dataprep_assets.stores.files import digest_value

Int64 = NDArray[np.int64]
_MAX_SAMPLES = 4096
_REBUILD = "Run the dataset again to rebuild the index files"


@dataclass(frozen=True)
class OpenedIndices(OpenedInPlaceArtifact):
    """Indices of a schedule, opened for checks, with the current schedule for comparison."""

    options: MegatronIndices

    @cached_property
    def inputs(self) -> IndexInputs:
        """The schedule's samples and blend, as inputs of the index files."""
        return open_inputs(self.declaration, self.options, self.store)


def _list_files(inputs: IndexInputs) -> dict[str, str | None]:
    """Return the name of each file that Megatron reads → its text if it is a description, otherwise None."""
    text_by_file: dict[str, str | None] = {}
    sets: list[int | None] = [*range(len(inputs.samples))]
    for number in sets if inputs.blend.is_one else [*sets, None]:
        base = inputs.blend.build_name_prefix(number)
        text_by_file[f"{base}description.txt"] = inputs.blend.build_description(number)
        kinds = ("dataset", "dataset_sample") if number is None else ("document", "sample", "shuffle")
        text_by_file |= dict.fromkeys(f"{base}{kind}_index.npy" for kind in kinds)
    return text_by_file


def _check_names(indices: OpenedIndices) -> Finding:
    expected_files, names = _list_files(indices.inputs), {record.path for record in indices.receipt.files}
    folder = indices.store.local(indices.artifact, [name for name in expected_files if name in names])
    defects = [f"{name} is missing" for name in expected_files.keys() - names]
    defects += [
        f"{name} has a different description"
        for name, text in expected_files.items()
        if text is not None and name in names and (folder / name).read_text() != text
    ]
    return build_verdict(
        sorted(defects),
        f"{count_of(len(expected_files), 'file has', 'files have')} the name that Megatron expects.",
        _REBUILD,
    )


def _check_samples(indices: OpenedIndices) -> Finding:
    declaration, options, store, receipt = indices.declaration, indices.options, indices.store, indices.receipt
    inputs, folder = indices.inputs, indices.directory
    # Check only the last revision, because samples of earlier revisions contain only padding if their shard has since
    # been replaced.
    rule = inputs.data.sampler.rules[-1]
    count = (rule.stop - rule.first) * rule.revision.batch
    draws = np.unique(np.random.default_rng(indices.seed).integers(0, count, min(count, _MAX_SAMPLES)))
    first_number = inputs.data.sampler.find_first_sample(rule.first)
    number, sample = _assign_samples(folder, inputs, first_number + draws)
    spans = inputs.data.sampler.find_spans(rule, draws)
    defects: list[str] = []
    if choose_sample_count(declaration.prove.level) is None:
        recipe = _build_recipe(declaration, options, store)
        defects += compare_rebuild(recipe, store, receipt, folder, partial(_write, declaration, options, store, recipe))
    for index, samples in enumerate(inputs.samples):
        tokens = np.array([shard.tokens for shard in samples.source.shards], np.int64)
        begins = np.cumsum(tokens) - tokens
        is_own_source = spans.source == index
        # Start with -1, which means that the sample belongs to a different source.
        expected_tokens = np.full((len(draws), 2), -1, np.int64)
        # Reverse the order here to keep the beginning of a sample's first span, because NumPy keeps the last of several
        # values assigned to the same row. The normal order below keeps the end of the sample's last span.
        rows, shards = spans.row[is_own_source][::-1], spans.shard[is_own_source][::-1]
        expected_tokens[rows, 0] = begins[shards] + spans.start[is_own_source][::-1]
        rows, shards = spans.row[is_own_source], spans.shard[is_own_source]
        # The last label is the token after the sample, or the shard's last token if the shard ends there.
        expected_tokens[rows, 1] = begins[shards] + np.minimum(spans.stop[is_own_source], tokens[shards] - 1)
        is_own = number == index
        if not np.array_equal(is_own, expected_tokens[:, 0] >= 0):
            wrong_index = np.flatnonzero(is_own != (expected_tokens[:, 0] >= 0))[0]
            defects.append(
                f"sample {first_number + int(draws[wrong_index])} of the run is from a different source than the "
                "schedule lists"
            )
            continue
        stored_tokens = _locate_tokens(folder, inputs, index, sample[is_own])
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
    success_text = f"{len(draws)} of {count_of(count, 'sample')} were read, and have the tokens listed in the schedule."
    return build_verdict(
        defects, success_text, "Do not train on these index files, and report a bug", facts={"samples": len(draws)}
    )


def _open_array(folder: Path, name: str) -> NDArray[np.integer]:
    try:
        array: NDArray[np.integer] = np.load(folder / name, mmap_mode="r")
    # Also catch SyntaxError and TokenError, because NumPy parses the header as Python source.
    except (ValueError, SyntaxError, EOFError, TokenError) as error:
        raise FormatError(f"{folder / name}: not a Megatron index: {error}. {_REBUILD}") from error
    return array


def _assign_samples(folder: Path, inputs: IndexInputs, numbers: Int64) -> tuple[Int64, Int64]:
    """Return the dataset of each sample and the sample's number in the dataset, as `BlendedDataset` finds them."""
    if inputs.blend.is_one:
        return np.zeros_like(numbers), numbers
    base = inputs.blend.build_name_prefix()
    names = ("dataset_index", "dataset_sample_index")
    number, sample = (_read_entry(folder, f"{base}{name}.npy", numbers) for name in names)
    return number, sample


def _read_entry(folder: Path, name: str, positions: Int64) -> NDArray[np.int64]:
    """Return the entries of an index at the given positions; raise FormatError if a position is out of range."""
    values = _open_array(folder, name)
    if positions.size and not 0 <= int(positions.min()) <= int(positions.max()) < len(values):
        raise FormatError(
            f"{folder / name}: has {count_of(len(values), 'entry', 'entries')}, but another index refers to more. "
            f"{_REBUILD}"
        )
    return np.asarray(values[positions], np.int64)


def _locate_tokens(folder: Path, inputs: IndexInputs, position: int, samples: Int64) -> Int64:
    """Return the positions of each sample's first token and last label in the split, as `GPTDataset` finds them."""
    base, ends = inputs.blend.build_name_prefix(position), inputs.samples[position].ends
    sample_indexes = _read_entry(folder, f"{base}shuffle_index.npy", samples)
    pairs = np.stack([_read_entry(folder, f"{base}sample_index.npy", sample_indexes + add) for add in (0, 1)], axis=1)
    numbers = _read_entry(folder, f"{base}document_index.npy", pairs[:, :, 0])
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(ends):
        raise FormatError(f"{folder}/{base}document_index.npy: refers to a document that does not exist. {_REBUILD}")
    # Set the start of document 0 to 0, because for this document `numbers - 1` is -1, which selects the end of the last
    # document.
    begins = np.where(numbers > 0, ends[numbers - 1].astype(np.int64), 0)
    return begins + pairs[:, :, 1]


VERSION = 3


MEGATRON_CHECKS: tuple[Check[OpenedIndices], ...] = (
    Check(
        "files_intact",
        "Every file in the receipt exists, with the recorded size and SHA-256.",
        lambda indices: indices.check_files(_REBUILD),
    ),
    Check(
        "index_file_names_valid",
        "The file names match the names that Megatron derives from the current schedule.",
        _check_names,
    ),
    Check(
        "matches_schedule",
        "Samples from all steps, read as Megatron reads them, match the schedule. With `level: "
        "every_document`, a rebuild reproduces all files.",
        _check_samples,
        samples=True,
    ),
)


class MegatronFacts(Facts):
    """Facts of the indices' receipt: the schedule's digest, the number of samples, and Megatron-LM's options."""

    digest: str
    samples: int
    arguments: str


def build_megatron_spec(
    declaration: ScheduleDeclaration, indices: MegatronIndices, schedule: ArtifactSpec
) -> ArtifactSpec:
    """Return the spec of the indices of a schedule that declares `megatron`."""
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
            WholeArtifactChecks(
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
    upstream, shards_by_source = {SCHEDULE_ARTIFACT: schedule.content}, {}
    for source in declaration.sources:
        view, shards = find_view(declaration.dataset, source.schedule_name, source.dataset, source.split, store)
        upstream[f"{source.dataset}:{VIEW}"] = view.content
        shards_by_source[source.schedule_name] = shards
    # Quote the prefixes, because the receipt has Megatron-LM's options, which contain the quoted prefixes.
    prefixes_digest = digest_value([shlex.quote(prefix) for prefix in list_prefixes(declaration, indices, store)])
    settings = {
        "random_seed": indices.random_seed,
        "tokenizer": dict(indices.tokenizer),
        "sources": list(shards_by_source),
    }
    return Recipe(
        artifact=declaration.artifact(MEGATRON_INDICES),
        # Encode the tokenizer as JSON text, because a digest of the mapping would ignore the order of its keys, which
        # determines the names of the files.
        key=digest_value(
            [
                MEGATRON_INDICES,
                VERSION,
                upstream,
                shards_by_source,
                indices.random_seed,
                json.dumps(indices.tokenizer),
                prefixes_digest,
            ]
        ),
        version=VERSION,
        settings=settings,
        sources={"prefixes": prefixes_digest, "shards": digest_value(shards_by_source)},
        upstream=upstream,
    )


def build_indices(
    declaration: ScheduleDeclaration, indices: MegatronIndices, store: ArtifactStore
) -> tuple[Receipt, bool]:
    """Build the index files; return the receipt and whether it was reused. Raises the errors of `open_inputs`."""
    recipe = _build_recipe(declaration, indices, store)

    return ensure_built(recipe, store, partial(_write, declaration, indices, store, recipe), declaration.verify)


def _write(
    declaration: ScheduleDeclaration, indices: MegatronIndices, store: ArtifactStore, recipe: Recipe, staged: Path
) -> WrittenFiles:
    inputs = open_inputs(declaration, indices, store)
    for number, samples in enumerate(inputs.samples):
        _write_gpt(staged, inputs.blend, number, samples)
    if not inputs.blend.is_one:
        _write_blended(staged, inputs)
    return WrittenFiles(
        inputs=dict(recipe.upstream),
        facts=MegatronFacts(
            digest=inputs.data.schedule.digest,
            samples=inputs.blend.samples,
            arguments=inputs.blend.arguments,
        ),
    )


def _write_gpt(staged: Path, blend: TrainBlend, number: int, samples: SourceSamples) -> None:
    base, other_blocks = blend.build_name_prefix(number), list[NDArray[np.int64]]()
    (staged / f"{base}description.txt").write_text(blend.build_description(number))
    # List the documents in stored order, because only the shuffle index determines the order of the samples.
    write_array(staged / f"{base}document_index.npy", [np.arange(len(samples.ends))], "int32")
    read_count = samples.sampler.samples if blend.is_one else samples.size
    # Add one to the number of samples that the run reads, because the padding of a blend is the sample after the last
    # one that is read.
    min_samples = max(read_count + 1, blend.count_requested_samples(number), samples.window_rows)

    def list_order() -> Iterator[NDArray[np.int64]]:
        yield from (samples.iterate_run_blocks if blend.is_one else samples.iterate_order_blocks)(other_blocks)
        # Pad the shuffle index to the number of samples in the sample index, which is at least the number that Megatron
        # requests.
        size = max(min_samples, samples.window_rows + sum(map(len, other_blocks)) - 1)
        yield np.full(size - read_count, samples.padding)

    def list_rows() -> Iterator[NDArray[np.int64]]:
        yield from samples.iterate_window_blocks()
        yield from other_blocks
        # Write one row more than there are samples, because a sample ends where the next row begins.
        yield np.tile(
            other_blocks[-1][-1:], (max(min_samples + 1 - samples.window_rows - sum(map(len, other_blocks)), 0), 1)
        )

    longest = int(np.diff(samples.ends, prepend=np.uint64(0)).max(initial=0))
    # The dtype must hold every row number; each sample that the run reads adds at most two rows.
    dtype = choose_shuffle_dtype(2 * min_samples + samples.window_rows)
    # Write the shuffle index first, because `list_order` collects in `other_blocks` the rows that `list_rows` then
    # yields.
    write_array(staged / f"{base}shuffle_index.npy", list_order(), dtype)
    sample_dtype = choose_sample_dtype(len(samples.ends), longest)
    write_array(staged / f"{base}sample_index.npy", list_rows(), sample_dtype, columns=2)


def _write_blended(staged: Path, inputs: IndexInputs) -> None:
    base, size = inputs.blend.build_name_prefix(), inputs.blend.size
    (staged / f"{base}description.txt").write_text(inputs.blend.build_description())
    for column, (name, dtype) in enumerate((("dataset_index", "int16"), ("dataset_sample_index", "int64"))):
        # Compute the blocks again for each file instead of keeping them, so that only one block is in memory.
        blocks = (block[column] for block in iterate_blend_blocks(inputs.data.sampler, inputs.samples, size))
        write_array(staged / f"{base}{name}.npy", blocks, dtype)


def _build_metadata(_: ArtifactStore, receipt: Receipt) -> dict[str, ShownValue]:
    facts = MegatronFacts.from_receipt(receipt)
    return {"samples": facts.samples, "megatron_lm_arguments": facts.arguments}
