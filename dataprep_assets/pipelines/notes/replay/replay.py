"""Directory of a mixture of datasets, such as `notes_replay_combined`: the datasets' shards, mixed and numbered.

No data is copied: shards are linked in the order of the declared mode (`order_shards`). Mode `virtual` writes only the
loader's mixture file (`virtual_mixture`).

Every source must have the same columns, row length, tokenizer, pad id and layout. `provenance.json` lists the source
dataset, partition and file of every shard, so that `replay` can be removed later. A shard in two sources is an error,
because it would be repeated by accident.

Entry points: `build_combined_directory_spec`, `build_replay`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.engine.artifact.build import WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.losses import Loss
from dataprep_assets.engine.artifact.metadata_values import Markdown, ShownValue
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import (
    ArtifactSpec,
    DatasetInput,
    SourceIdentity,
    SourceWatch,
    identify_listing,
    join_counts,
)
from dataprep_assets.engine.checks.check import Check, Finding, Row, build_verdict
from dataprep_assets.engine.checks.scratch_rebuild import find_claim_differences
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.engine.yaml.declaration import ATTRIBUTION
from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats.tensorflow.example import FeatureColumn
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore, FileRef
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.pipelines.notes.cohorts.packed_files import (
    PACKED_COHORTS,
    PATIENTS,
    PackedCohortFacts,
    RowFacts,
    build_lines_path,
    build_split_path,
    read_patients,
)
from dataprep_assets.pipelines.notes.privacy import hide_quoted_data
from dataprep_assets.pipelines.notes.replay.replay_declaration import MixtureDeclaration, MixtureSource
from dataprep_assets.pipelines.notes.tfds.directory_checks import (
    FILES_INTACT,
    REBUILD,
    REBUILD_SOURCES,
    TFDS_READS,
    OpenedDirectory,
)
from dataprep_assets.pipelines.notes.tfds.linked_directory import (
    DIRECTORIES,
    CombinedFacts,
    Directory,
    DirectoryFacts,
    DirectorySplit,
    SourceShare,
    build_split_metadata,
    find_stored_length,
    link_shards,
)
from dataprep_assets.pipelines.notes.tfds.maxtext import format_combined_line
from dataprep_assets.pipelines.notes.tfds.provenance import PROVENANCE, ShardOrigin, read_provenance, write_provenance
from dataprep_assets.pipelines.notes.tfds.virtual_mixture import is_for_hf, write_hf_card, write_mixture
from dataprep_assets.stores.files import digest_value


def find_mixture_losses(
    replay: MixtureDeclaration, store: ArtifactStore, receipts: Sequence[Receipt]
) -> Iterator[Loss]:
    """Yield the losses of a mixture.

    Args:
        replay: The mixture.
        store: Store of the mixture and its sources.
        receipts: Receipt of the mixture's directory.
    """
    splits = {source.dataset: count_directory_rows(replay, store, source.dataset) for source in replay.sources}
    for dataset, rows in splits.items():
        for split, count in rows.items():
            if split not in replay.splits:
                yield Loss(
                    action="left out",
                    reason=f"split {split}",
                    count=count,
                    of=sum(rows.values()),
                    unit="row",
                    part=dataset,
                )
    for receipt in receipts if replay.mode == "weighted" else ():
        yield from _find_weighed_out(replay, store, receipt, splits)


def count_directory_rows(replay: MixtureDeclaration, store: ArtifactStore, dataset: str) -> dict[str, int]:
    """Return the number of rows per split of a source's directory; empty if the directory is missing."""
    receipt = store.receipt(Artifact(dataset=dataset, name=DIRECTORIES[replay.format]))
    return (
        {}
        if receipt is None
        else {name: split_facts.rows for name, split_facts in DirectoryFacts.from_receipt(receipt).splits.items()}
    )


def _find_weighed_out(
    replay: MixtureDeclaration, store: ArtifactStore, receipt: Receipt, splits: dict[str, dict[str, int]]
) -> Iterator[Loss]:
    """Yield the rows of shards that `weighted` left out to meet the weights."""
    provenance = read_provenance(store.local(replay.artifact(receipt.artifact), [PROVENANCE]) / PROVENANCE)
    for split, shards in provenance.items():
        # Identify shards by digest, because a source may be a mixture, and a mixture's shards are named after its own
        # sources.
        own_rows = {
            source.dataset: _count_rows_by_digest(replay, store, source.dataset, split) for source in replay.sources
        }
        digests = {origin.sha256 for _, origin in shards}
        for dataset, rows in own_rows.items():
            lost = sum(count for digest, count in rows.items() if digest not in digests)
            total = sum(splits[dataset].values())
            yield Loss(action="left out", reason="weight", count=lost, of=total, unit="row", part=dataset)


def _count_rows_by_digest(replay: MixtureDeclaration, store: ArtifactStore, dataset: str, split: str) -> dict[str, int]:
    """Return shard digest → number of rows, for the shards in a split of a source."""
    artifact = Artifact(dataset=dataset, name=DIRECTORIES[replay.format])
    provenance = read_provenance(store.local(artifact, [PROVENANCE]) / PROVENANCE)
    return {origin.sha256: origin.rows for _, origin in provenance.get(split, ())}


# The mode determines the order of the shards of several datasets.
#
# ==============  =====================================================================================================
# mode            order of the shards
# ==============  =====================================================================================================
# concat          sources as declared, each in its own order, as upstream's `rename_records_combined` does
# interleave      each source's shards shuffled (seeded) and spread evenly over the mixture by rows
# weighted        shards repeated or left out to meet the declared shares of rows, then interleaved
# ==============  =====================================================================================================

Shards = list[ShardOrigin]


def order_shards(replay: MixtureDeclaration, split: str, shards: list[Shards]) -> tuple[Shards, dict[str, SourceShare]]:
    """Order the shards of a split.

    Args:
        replay: The mixture; its mode, seed, weights and tolerance decide the order.
        split: One of the mixture's splits.
        shards: Shards of each source, in declared order.

    Returns:
        The shards, each with the number of its earlier occurrences, and the share of each source.

    Raises:
        ConfigError: Whole shards cannot come within the tolerance of the declared weights.
    """
    names = [source.dataset for source in replay.sources]
    total_rows = sum(count_rows(s) for s in shards)
    target_shares = [count_rows(s) / total_rows for s in shards]
    if replay.mode == "weighted":
        weights = [source.weight or 0.0 for source in replay.sources]
        target_shares = [weight / sum(weights) for weight in weights]
    # Shuffle before `weighted` leaves out the last shards, because otherwise the mode would always leave out the last
    # months. The seed includes the source's name, so that an additional source does not change the order of other
    # sources.
    if replay.mode != "concat":
        shards = [_shuffle(s, [replay.seed, name, split]) for s, name in zip(shards, names, strict=True)]
    if replay.mode == "weighted":
        shards = repeat_to_weights(shards, target_shares)
    total = sum(count_rows(s) for s in shards)
    shares = {
        name: SourceShare(rows=count_rows(s), share=round(count_rows(s) / total, 6), wanted=round(want, 6))
        for name, s, want in zip(names, shards, target_shares, strict=True)
    }
    for name, s, want in zip(names, shards, target_shares, strict=True):
        # This test fails only in the mode `weighted`, because the other modes use all shards.
        if not s or abs(count_rows(s) / total - want) > replay.tolerance:
            raise ConfigError(
                f"{replay.dataset}: split {split}: with whole shards, {name} has a share of "
                f"{count_rows(s) / total:.4f}, "
                f"not {want:.4f} (tolerance {replay.tolerance}). Lower `rows_per_shard` of {name}, or raise "
                "`tolerance`"
            )
    origins = [origin for s in shards for origin in s] if replay.mode == "concat" else interleave_shards(shards)
    return list(_number_repeats(origins)), shares


def count_rows(shards: Shards) -> int:
    """Return the total number of rows in the shards."""
    return sum(origin.rows for origin in shards)


def _shuffle(shards: Shards, seed: Sequence[Any]) -> Shards:
    # Sort by raw draws from PCG64 instead of calling `Generator.permutation`, because NumPy guarantees that the raw
    # draws of a seed never change, but does not guarantee this for permutations.
    draws = np.random.PCG64(int(digest_value(list(seed))[:16], 16)).random_raw(len(shards))
    return [shards[index] for index in np.argsort(draws, kind="stable").tolist()]


def repeat_to_weights(shards: Sequence[Shards], weights: Sequence[float]) -> list[Shards]:
    """Repeat or leave out whole shards of each source so that the rows approximate the wanted shares.

    `weights` are shares, which sum to 1. The total number of rows stays near the sources' total.
    """
    total = sum(map(count_rows, shards))
    return [_repeat_to_row_count(source, want * total) for source, want in zip(shards, weights, strict=True)]


def _repeat_to_row_count(shards: Shards, rows: float) -> Shards:
    # Repeat all shards as often as they fit, then add single shards that bring the sum closer to the number of rows.
    times = int(rows // count_rows(shards))
    origins = list(shards) * times
    remaining = rows - times * count_rows(shards)
    for origin in shards:
        if abs(remaining - origin.rows) >= remaining:
            continue  # a shorter shard may still bring the sum closer
        origins.append(origin)
        remaining -= origin.rows
        if remaining <= 0:
            break
    return origins


def interleave_shards(shards: Sequence[Shards]) -> Shards:
    """Interleave the shards of all sources, with each source's shards in order and evenly spread by rows."""
    entries = []
    for source, origins in enumerate(shards):
        total, rows_before = count_rows(origins), 0
        for index, origin in enumerate(origins):
            # Sort by the shard's middle as a fraction of its source, so that all sources advance evenly.
            entries.append(((2 * rows_before + origin.rows) / (2 * total), source, index, origin))
            rows_before += origin.rows
    # Break ties by source and index, because origins cannot be compared.
    return [origin for *_, origin in sorted(entries, key=lambda entry: entry[:3])]


def _number_repeats(shards: Shards) -> Iterator[ShardOrigin]:
    """Yield the shards, each with the number of its earlier occurrences."""
    counts: dict[str, int] = {}
    for origin in shards:
        repeat = counts.get(origin.sha256, 0)
        counts[origin.sha256] = repeat + 1
        yield replace(origin, repeat=repeat)


VERSION = 2
# These facts must be equal, because one loader reads all rows with the same options. Tokenizers are compared by digest.
_COMMON_FACTS = ("columns", "row_length", "pad_id", "layout", "pipeline", "rows", "format")


def build_combined_directory_spec(
    replay: MixtureDeclaration, *, tokenizer: Callable[[], str | None] = lambda: None
) -> ArtifactSpec:
    """Return the spec of a mixture's directory, which is built in one run from separate datasets.

    Args:
        replay: The mixture.
        tokenizer: Returns the location of the sources' tokenizer, for the trainer's settings.
    """
    name = DIRECTORIES[replay.format]
    return ArtifactSpec(
        declaration=replay,
        name=name,
        version=VERSION,
        description=f"Several datasets combined (`mode: {replay.mode}`). `provenance.json` lists their shards.",
        kinds={"tensorflow", "file"},
        inputs=tuple(DatasetInput(dataset=source.dataset, name=name) for source in replay.sources),
        watch=SourceWatch(identity=partial(_compute_identity, replay), changes=partial(_describe_changes, replay)),
        names_places=frozenset({"locations of the sources"}) if replay.mode == "virtual" else None,
        recipes=lambda store, _: [_build_recipe(replay, store, _list_sources(replay, store))],
        build=lambda request: [Outcome.from_receipt(*build_replay(replay, request.store))],
        metadata=partial(_build_metadata, replay, tokenizer),
        losses=lambda store, receipts: find_mixture_losses(replay, store, receipts),
        check_groups=(
            WholeArtifactChecks(
                checks=VIRTUAL_CHECKS if replay.mode == "virtual" else COMBINED_CHECKS,
                open=partial(_open_directory, replay),
                guard=partial(hide_quoted_data, replay.dataset),
            ),
        ),
    )


def _build_metadata(
    replay: MixtureDeclaration, tokenizer: Callable[[], str | None], store: ArtifactStore, receipt: Receipt
) -> Mapping[str, ShownValue]:
    line = format_combined_line(replay, store, DirectoryFacts.from_receipt(receipt), tokenizer())
    return {**build_split_metadata(receipt), "maxtext": Markdown("```\n" + line + "\n```")}


@dataclass(frozen=True, kw_only=True)
class _SourceDirectory:
    """Source of a mixture, with the receipt and the facts of its directory."""

    declared: MixtureSource
    artifact: Artifact
    receipt: Receipt
    facts: DirectoryFacts

    @property
    def tokenizer(self) -> str:
        return self.receipt.inputs["tokenizer"]


def _list_sources(replay: MixtureDeclaration, store: ArtifactStore) -> list[_SourceDirectory]:
    """Return the directories to mix, in declared order.

    Raises MissingArtifactError for a missing directory; ConfigError for a directory without a declared split;
    IntegrityError, with the difference, if the directories are incompatible.
    """
    artifacts = [Artifact(dataset=source.dataset, name=DIRECTORIES[replay.format]) for source in replay.sources]
    receipts = store.receipts(artifacts)
    if missing := [str(a) for a, receipt in zip(artifacts, receipts, strict=True) if receipt is None]:
        raise MissingArtifactError(f"{replay.dataset}: not built yet: {', '.join(missing)}. Build them first")
    sources = [
        _SourceDirectory(
            declared=declared_source, artifact=artifact, receipt=receipt, facts=DirectoryFacts.from_receipt(receipt)
        )
        for declared_source, artifact, receipt in zip(replay.sources, artifacts, receipts, strict=True)
        if receipt is not None
    ]
    reference = sources[0]
    for source in sources:
        if source.facts.mode == "virtual":
            raise ConfigError(
                f"{replay.dataset}: {source.artifact} is virtual and has no shards to combine. Remove the source"
            )
        wrong_names = [name for name in _COMMON_FACTS if getattr(source.facts, name) != getattr(reference.facts, name)]
        wrong_names += ["tokenizer"] if source.tokenizer != reference.tokenizer else []
        if wrong_names:
            mismatch = "; ".join(
                f"{name} {_format_common_value(source, name)}, not {_format_common_value(reference, name)}"
                for name in wrong_names
            )
            raise IntegrityError(
                f"{replay.dataset}: {source.artifact} cannot be combined with {reference.artifact}: it has {mismatch}. "
                "Build all sources with the same settings"
            )
        if lacking := [split for split in replay.splits if split not in source.facts.splits]:
            raise ConfigError(
                f"{replay.dataset}: {source.artifact} has no split {', '.join(lacking)}. Correct `splits`"
            )
    return sources


def _format_common_value(source: _SourceDirectory, name: str) -> str:
    return source.tokenizer[:12] if name == "tokenizer" else str(getattr(source.facts, name))


def _build_recipe(replay: MixtureDeclaration, store: ArtifactStore, sources: Sequence[_SourceDirectory]) -> Recipe:
    # Exclude keys that do not affect the bytes. All other keys, including keys that are added later, are part of the
    # artifact's key.
    names = (
        "owners",
        "storage",
        "verify",
        "workers",
        "sensitive",
        "small_cell",
        "card",
        "publish",
        "automation",
        "prove",
    )
    excluded_keys = dict.fromkeys(names, True)
    declared_settings = replay.model_dump(
        mode="json", exclude={**excluded_keys, "sources": {"__all__": set(ATTRIBUTION)}}
    )
    # Include the locations for a virtual mixture, because its files contain them.
    locations = [store.location(source.artifact) for source in sources] if replay.mode == "virtual" else []
    if is_for_hf(replay, sources[0].facts.pipeline):
        # Include the locations of packed cohorts, because the card lists their JSON Lines files.
        locations += [store.location(Artifact(dataset=s.declared.dataset, name=PACKED_COHORTS)) for s in sources]
    source_contents = [[source.receipt.key, source.receipt.content] for source in sources]
    return Recipe(
        artifact=replay.artifact(DIRECTORIES[replay.format]),
        key=digest_value(["notes_replay", VERSION, declared_settings, source_contents, locations]),
        version=VERSION,
        settings=declared_settings,
        # Include the recipes and the locations, because sources with the same bytes may have different recipes and
        # locations.
        sources={"recipes of the sources": digest_value([source.receipt.key for source in sources])}
        | ({"locations of the sources": digest_value(locations)} if locations else {}),
        upstream={f"{s.artifact.dataset}:{s.artifact.name}": s.receipt.content for s in sources},
    )


def _compute_identity(replay: MixtureDeclaration, store: ArtifactStore) -> SourceIdentity:
    """Return the current identity of the mixed datasets; raise MissingArtifactError if a dataset is missing."""
    return identify_listing([str(s.artifact), s.receipt.key, s.receipt.content] for s in _list_sources(replay, store))


def _describe_changes(replay: MixtureDeclaration, store: ArtifactStore) -> str:
    """Describe how many datasets changed since the mixture was built."""
    receipt = store.intact_receipt(replay.artifact(DIRECTORIES[replay.format]))
    if receipt is None:
        return join_counts([(len(replay.sources), "dataset", "not combined yet")])
    now, known_contents = (
        _build_recipe(replay, store, _list_sources(replay, store)).upstream,
        receipt.recipe.get("upstream", {}),
    )
    return join_counts(
        [(sum(known_contents.get(name) != content for name, content in now.items()), "dataset", "changed")]
    )


def build_replay(replay: MixtureDeclaration, store: ArtifactStore) -> tuple[Receipt, bool]:
    """Build the mixture unless it is up to date; return its receipt and whether it was reused.

    Raises the errors of `_list_sources` for missing or incompatible sources; ConfigError if whole shards cannot match
    the declared weights within the tolerance; IntegrityError if two sources have a shard in common.
    """
    sources = _list_sources(replay, store)

    def write(staged: Path) -> WrittenFiles:
        splits = {split: [_list_shards(store, source, split) for source in sources] for split in replay.splits}
        _require_distinct(replay, splits)
        return (_write_virtual if replay.mode == "virtual" else _write_shards)(replay, store, sources, splits, staged)

    return ensure_built(_build_recipe(replay, store, sources), store, write, replay.verify)


def _list_shards(store: ArtifactStore, source: _SourceDirectory, split: str) -> Shards:
    """Return the shards of a source's split, in the source's order, as parts of its artifact."""
    # Replace only `part`, so that each origin keeps its dataset: a source may be a mixture of other datasets.
    provenance = read_provenance(store.local(source.artifact, [PROVENANCE]) / PROVENANCE)
    return [
        replace(origin, part=FileRef(source.artifact, source.receipt.file(f"{source.facts.directory}/{name}")))
        for name, origin in provenance[split]
    ]


def _require_distinct(replay: MixtureDeclaration, splits: dict[str, list[Shards]]) -> None:
    # Compare digests across all splits, because a training shard of one source must not be a validation shard of
    # another source.
    source_by_digest: dict[str, int] = {}
    for shards in splits.values():
        for source, origins in enumerate(shards):
            for digest in {origin.sha256 for origin in origins}:
                if source_by_digest.setdefault(digest, source) != source:
                    names = [replay.sources[source_by_digest[digest]].dataset, replay.sources[source].dataset]
                    raise IntegrityError(
                        f"{replay.dataset}: {' and '.join(names)} contain the same shard. Remove one of them, and "
                        "raise the weight of the other in mode `weighted`"
                    )


def _write_shards(
    replay: MixtureDeclaration,
    store: ArtifactStore,
    sources: Sequence[_SourceDirectory],
    splits: dict[str, list[Shards]],
    staged: Path,
) -> WrittenFiles:
    first_facts = sources[0].facts
    origins, shares = {}, {}
    for split, shards in splits.items():
        origins[split], shares[split] = order_shards(replay, split, shards)
    directory = Directory(
        dataset=replay.dataset,
        description=replay.description,
        version=replay.tfds_version,
        format=replay.format,
        columns=tuple(FeatureColumn(name=name, length=find_stored_length(first_facts)) for name in first_facts.columns),
        splits=origins,
    )
    joined_files = link_shards(staged, store, directory)
    rows = sum(split.rows for split in directory.build_info().splits)
    return WrittenFiles(
        inputs=_list_inputs(sources),
        facts=CombinedFacts(
            **_build_common_facts(replay, sources),
            directory=directory.path,
            version=directory.version,
            splits=directory.count_splits(),
            shares=shares,
        ),
        ledger=Ledger(rows_in=rows, documents=rows),
        joined=joined_files,
    )


def _list_inputs(sources: Sequence[_SourceDirectory]) -> dict[str, str]:
    return {s.declared.dataset: s.receipt.content for s in sources} | {"tokenizer": sources[0].tokenizer}


def _build_common_facts(replay: MixtureDeclaration, sources: Sequence[_SourceDirectory]) -> dict[str, Any]:
    """Return the facts that all modes have in common."""
    rows = RowFacts.from_receipt(sources[0].receipt).to_json()
    names = [source.declared.dataset for source in sources]
    return rows | {"format": replay.format, "mode": replay.mode, "sources": names}


def _list_json_lines(store: ArtifactStore, split: str, sources: Sequence[Shards]) -> Iterator[str]:
    """Yield the JSON Lines files that contain the shards' rows: one file per cohort, in the order of the shards."""
    for dataset, month in dict.fromkeys((origin.dataset, origin.partition) for shards in sources for origin in shards):
        cohort = Artifact(dataset=dataset, name=PACKED_COHORTS, partition=month)
        splits = PackedCohortFacts.from_receipt(store.require(cohort)).splits
        yield f"{store.location(cohort)}/{build_lines_path(tuple(splits), split, month)}"


def _write_virtual(
    replay: MixtureDeclaration,
    store: ArtifactStore,
    sources: Sequence[_SourceDirectory],
    splits: dict[str, list[Shards]],
    staged: Path,
) -> WrittenFiles:
    locations = {s.declared.dataset: f"{store.location(s.artifact)}/{s.facts.directory}" for s in sources}
    # Use only the first split, because grain's mixture has one pattern and one weight per dataset.
    first_split = splits[replay.splits[0]]
    rows_in_first = {s.declared.dataset: count_rows(shards) for s, shards in zip(sources, first_split, strict=True)}
    write_mixture(staged, replay, locations, rows_in_first)
    if is_for_hf(replay, sources[0].facts.pipeline):
        write_hf_card(staged, {split: list(_list_json_lines(store, split, shards)) for split, shards in splits.items()})
    # List the names in the directories of the sources, because a virtual mixture has no shards of its own.
    names = {
        split: [
            origin.to_json(Path(origin.part.record.path).name)
            for source_shards in shards
            for origin in source_shards
            if origin.part is not None
        ]
        for split, shards in splits.items()
    }
    write_provenance(staged, names)
    counts = {
        split: DirectorySplit(rows=sum(map(count_rows, shards)), shards=sum(map(len, shards)))
        for split, shards in splits.items()
    }
    rows = sum(count.rows for count in counts.values())
    return WrittenFiles(
        inputs=_list_inputs(sources),
        facts=CombinedFacts(**_build_common_facts(replay, sources), splits=counts),
        ledger=Ledger(rows_in=rows, documents=rows),
    )


@dataclass(frozen=True)
class OpenedMixture(OpenedDirectory):
    """A mixture, opened for checks."""

    replay: MixtureDeclaration


def _open_directory(replay: MixtureDeclaration, store: ArtifactStore, _: Sequence[str] = ()) -> OpenedMixture:
    return OpenedMixture(replay.artifact(DIRECTORIES[replay.format]), store, replay, replay).with_local_files()


def check_provenance(mixture: OpenedMixture) -> Finding:
    """Check that a rebuild from the current sources gives the same mixture.

    The comparison covers the shards, their order, and the loader's files with the sources' locations.
    """
    facts = CombinedFacts.from_receipt(mixture.receipt)
    shards = sum(split.shards for split in facts.splits.values())
    return build_verdict(
        (
            f"{mixture.name}: {defect}"
            for defect in find_claim_differences(mixture.artifact, mixture.store, partial(build_replay, mixture.replay))
        ),
        f"Rebuilding reproduces the {count_of(shards, 'shard')} of {count_of(len(facts.sources), 'source')}.",
        REBUILD_SOURCES,
        facts={"shards": shards, "sources": len(facts.sources)},
    )


def check_weights(mixture: OpenedMixture) -> Finding:
    """Check that each source's share of a split's rows matches the wanted share within the tolerance.

    `provenance_complete` checks that the row counts match the shards.
    """
    replay, shares = mixture.replay, CombinedFacts.from_receipt(mixture.receipt).shares
    table: list[Row] = [
        {"split": split, "source": name, "rows": share.rows, "share": share.share, "declared_share": share.wanted}
        for split, shares_by_source in shares.items()
        for name, share in shares_by_source.items()
    ]
    defects = [
        f"{mixture.name}: {split}: {name} has a share of {share.share:.4f}, but {share.wanted:.4f} is declared"
        for split, shares_by_source in shares.items()
        for name, share in shares_by_source.items()
        if abs(share.share - share.wanted) > replay.tolerance
    ]
    return build_verdict(
        defects,
        "; ".join(f"{row['source']} has a share of {row['share']:.4f} in {row['split']}" for row in table) + ".",
        REBUILD,
        facts={"tolerance": str(replay.tolerance)},
        table=table,
    )


def check_splits(directory: OpenedDirectory) -> Finding:
    """Check that each patient is in only one split, across all sources.

    The check warns if the sources have different patient keys, because their digests cannot be compared.
    """
    store = directory.store
    splits = list(directory.provenance)
    digests, keys = [], set()
    for split in splits:
        patient_digests = [np.zeros(0, "V16")]
        for dataset, month in sorted({(origin.dataset, origin.partition) for _, origin in directory.provenance[split]}):
            cohort = Artifact(dataset=dataset, name=PACKED_COHORTS, partition=month)
            receipt = store.require(cohort)
            keys.add(receipt.recipe.get("sources", {}).get("patient_key"))
            patient_digests.append(_read_patients(store, cohort, receipt, split))
        digests.append(np.unique(np.concatenate(patient_digests)))
    _, counts = np.unique(np.concatenate(digests), return_counts=True)
    leaked = int(np.count_nonzero(counts > 1))
    location = directory.name
    remedy = "Use one `patient_key` and the same `splits` for all sources, and rebuild them"
    if not leaked and len(keys) > 1 and len(splits) > 1:
        unknown = "its sources have different patient keys, so patients in several splits cannot be detected"
        return build_verdict([f"{location}: {unknown}"], "", remedy, warning=True)
    defects = (
        [f"{location}: {count_of(leaked, 'patient is', 'patients are')} in several of the splits {', '.join(splits)}"]
        if leaked
        else []
    )
    return build_verdict(
        defects,
        f"{count_of(int(counts.size), 'patient')}, each in only one of {count_of(len(splits), 'split')}.",
        remedy,
        facts={"patients": int(counts.size), "patients_in_several_splits": leaked},
    )


def _read_patients(store: ArtifactStore, cohort: Artifact, receipt: Receipt, split: str) -> Any:
    path = build_split_path(list(PackedCohortFacts.from_receipt(receipt).splits), split, PATIENTS)
    return read_patients(store.local(cohort, [path]) / path)


_SOURCE_CHECKS: tuple[Check[OpenedMixture], ...] = (
    Check(
        "provenance_complete",
        "Rebuilding the mixture from its current sources gives the same shards in the same order and the same "
        "loader files.",
        check_provenance,
        version=2,
    ),
    Check(
        "mixture_matches_weights",
        "Each source's share of the rows matches its weight within the tolerance.",
        check_weights,
        version=2,
    ),
    Check("splits_disjoint", "No patient is in two splits of the mixture.", check_splits),
)
VIRTUAL_CHECKS: tuple[Check[OpenedMixture], ...] = (FILES_INTACT, *_SOURCE_CHECKS)
"""Checks of a virtual mixture, which has no shards of its own."""
COMBINED_CHECKS: tuple[Check[OpenedMixture], ...] = (*VIRTUAL_CHECKS, TFDS_READS)
