"""The artifact `<dataset>/megatron_indices`: a schedule as the index files that Megatron-Core keeps in its cache.

A `GPTDataset` for each source and the `BlendedDataset` over them find these files by their names and begin without
building any; their samples are those of the schedule, in its order (`formats/megatron_indices.py`). The tokens are
those of the sources' view `megatron`.

Entry point: `megatron_spec`.
"""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats.megatron_indices import Blend, sample_dtype, shuffle_dtype, write_array
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.graph.facts import Facts
from dataprep_assets.graph.recipe import Recipe
from dataprep_assets.graph.shown import Shown
from dataprep_assets.graph.spec import ArtifactSpec, OtherDataset, Proofs
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.schedule.declaration import MegatronIndices, ScheduleDeclaration
from dataprep_assets.pipelines.schedule.megatron_proofs import MEGATRON_PROOFS, prove_megatron
from dataprep_assets.pipelines.schedule.megatron_sources import (
    MEGATRON_INDICES,
    VIEW,
    Indexed,
    opened,
    prefixes,
    view_of,
)
from dataprep_assets.serving.megatron_order import SourceSamples, blend_blocks
from dataprep_assets.serving.training_data import SCHEDULE_ARTIFACT

VERSION = 3


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
        description="The schedule as the index files for which Megatron-Core's GPTDataset and BlendedDataset look.",
        kinds={"numpy", "megatron"},
        inputs=(schedule, *(OtherDataset(dataset=dataset, name=VIEW) for dataset in views)),
        recipes=lambda store, _: [_recipe(declaration, wanted, store)],
        build=lambda request: [Outcome.of(*build_indices(declaration, wanted, request.store))],
        metadata=_metadata,
        rows=lambda receipt: MegatronFacts.of(receipt).samples,
        proofs=Proofs(proofs=MEGATRON_PROOFS, examine=lambda store, _: prove_megatron(declaration, wanted, store)),
        names_places=frozenset({"prefixes"}),
    )


def _recipe(declaration: ScheduleDeclaration, wanted: MegatronIndices, store: ArtifactStore) -> Recipe:
    schedule = store.require(declaration.artifact(SCHEDULE_ARTIFACT))
    upstream, made = {SCHEDULE_ARTIFACT: schedule.content}, {}
    for source in declaration.sources:
        view, shards = view_of(declaration.dataset, source.called, source.dataset, source.split, store)
        upstream[f"{source.dataset}:{VIEW}"] = view.content
        made[source.called] = shards
    # as the options name them
    where = digest_value([shlex.quote(prefix) for prefix in prefixes(declaration, wanted, store)])
    settings = {"random_seed": wanted.random_seed, "tokenizer": dict(wanted.tokenizer), "sources": list(made)}
    return Recipe(
        artifact=declaration.artifact(MEGATRON_INDICES),
        # of the tokenizer as JSON, because its order is part of the names
        key=digest_value(
            [MEGATRON_INDICES, VERSION, upstream, made, wanted.random_seed, json.dumps(wanted.tokenizer), where]
        ),
        version=VERSION,
        settings=settings,
        sources={"prefixes": where, "shards": digest_value(made)},
        upstream=upstream,
    )


def build_indices(
    declaration: ScheduleDeclaration, wanted: MegatronIndices, store: ArtifactStore
) -> tuple[Receipt, bool]:
    """Commit the index files. Returns the receipt, and whether it was reused. Raises as `opened` does."""
    recipe = _recipe(declaration, wanted, store)

    def write(staged: Path) -> Written:
        indexed = opened(declaration, wanted, store)
        for number, samples in enumerate(indexed.samples):
            _write_gpt(staged, indexed.blend, number, samples)
        if not indexed.blend.is_one:
            _write_blended(staged, indexed)
        return Written(
            inputs=dict(recipe.upstream),
            facts=MegatronFacts(
                digest=indexed.data.schedule.digest,
                samples=indexed.blend.samples,
                arguments=indexed.blend.arguments,
            ),
        )

    return ensure(recipe, store, write, declaration.verify)


def _write_gpt(staged: Path, blend: Blend, number: int, samples: SourceSamples) -> None:
    base, others = blend.base(number), list[NDArray[np.int64]]()
    (staged / f"{base}description.txt").write_text(blend.description(number))
    # documents as they lie: the order is that of the shuffle index alone
    write_array(staged / f"{base}document_index.npy", [np.arange(len(samples.ends))], "int32")
    read = samples.sampler.samples if blend.is_one else samples.size
    # one more than are read: a blend takes the sample after the last one for padding
    least = max(read + 1, blend.asked(number), samples.window_rows)

    def order() -> Iterator[NDArray[np.int64]]:
        yield from (samples.run_blocks if blend.is_one else samples.order_blocks)(others)
        # as long as the sample index, and as Megatron asks for; the padding comes after the last sample
        size = max(least, samples.window_rows + sum(map(len, others)) - 1)
        yield np.full(size - read, samples.padding)

    def rows() -> Iterator[NDArray[np.int64]]:
        yield from samples.window_blocks()
        yield from others
        # a sample ends where the next row begins, so there is one row more than samples
        yield np.tile(others[-1][-1:], (max(least + 1 - samples.window_rows - sum(map(len, others)), 0), 1))

    longest = int(np.diff(samples.ends, prepend=np.uint64(0)).max(initial=0))
    # samples are numbered by the rows, of which there are two at most to one that is read
    dtype = shuffle_dtype(2 * least + samples.window_rows)
    # the order first: making it finds the samples that are no windows, which `rows` writes after these
    write_array(staged / f"{base}shuffle_index.npy", order(), dtype)
    write_array(staged / f"{base}sample_index.npy", rows(), sample_dtype(len(samples.ends), longest), columns=2)


def _write_blended(staged: Path, indexed: Indexed) -> None:
    base, size = indexed.blend.base(), indexed.blend.size
    (staged / f"{base}description.txt").write_text(indexed.blend.description())
    for at, (name, dtype) in enumerate((("dataset_index", "int16"), ("dataset_sample_index", "int64"))):
        # made again for the second file, so that no more than a block is held
        blocks = (block[at] for block in blend_blocks(indexed.data.sampler, indexed.samples, size))
        write_array(staged / f"{base}{name}.npy", blocks, dtype)


def _metadata(_: ArtifactStore, receipt: Receipt) -> dict[str, Shown]:
    facts = MegatronFacts.of(receipt)
    return {"samples": facts.samples, "Megatron-LM": facts.arguments}
