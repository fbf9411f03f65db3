"""Artifact of a mixture of datasets, such as `notes_replay_combined`: the datasets' shards, mixed and numbered.

Data are not copied: shards are linked in the order of the declared mode (`ordered`). Mode `virtual` writes only the
loader's mixture file (`virtual_mixture`).

Every source must have the same columns, row length, tokenizer, pad id and layout. `provenance.json` lists the source
dataset, partition and file of every shard, so that `replay` can be removed later. A shard in two sources is an error,
because it would be repeated by accident.

Entry points: `combined_directory_spec`, `build_replay`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.engine.artifact.build import WrittenFiles, ensure
from dataprep_assets.engine.artifact.losses import Loss
from dataprep_assets.engine.artifact.metadata_values import Markdown, Shown
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import (
    ArtifactSpec,
    DatasetInput,
    SourceIdentity,
    SourceWatch,
    identity_of,
    in_words,
)
from dataprep_assets.engine.checks.check import Check, Finding, Row, verdict
from dataprep_assets.engine.checks.scratch_rebuild import rebuilt_otherwise
from dataprep_assets.engine.checks.verdicts import WholeChecks
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
    in_split,
    packed_lines,
    read_patients,
)
from dataprep_assets.pipelines.notes.privacy import unquoting
from dataprep_assets.pipelines.notes.replay.replay_declaration import ReplayDeclaration, ReplaySource
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
    link_shards,
    split_counts,
    stored_length,
)
from dataprep_assets.pipelines.notes.tfds.maxtext import combined_line
from dataprep_assets.pipelines.notes.tfds.provenance import PROVENANCE, ShardOrigin, read_provenance, write_provenance
from dataprep_assets.pipelines.notes.tfds.virtual_mixture import for_hf, write_hf_card, write_mixture
from dataprep_assets.stores.files import digest_value


def replay_losses(replay: ReplayDeclaration, store: ArtifactStore, receipts: Sequence[Receipt]) -> Iterator[Loss]:
    """Yield the losses of a mixture.

    Args:
        replay: The mixture.
        store: Store of the mixture and its sources.
        receipts: Receipt of the mixture's directory.
    """
    splits = {source.dataset: directory_splits(replay, store, source.dataset) for source in replay.sources}
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
        yield from _weighed_out(replay, store, receipt, splits)


def directory_splits(replay: ReplayDeclaration, store: ArtifactStore, dataset: str) -> dict[str, int]:
    """Return the rows per split of a source's directory; empty if the directory is missing."""
    receipt = store.receipt(Artifact(dataset=dataset, name=DIRECTORIES[replay.format]))
    return (
        {}
        if receipt is None
        else {name: split_facts.rows for name, split_facts in DirectoryFacts.of(receipt).splits.items()}
    )


def _weighed_out(
    replay: ReplayDeclaration, store: ArtifactStore, receipt: Receipt, splits: dict[str, dict[str, int]]
) -> Iterator[Loss]:
    """Yield the rows of shards that `weighted` left out to meet the weights."""
    provenance = read_provenance(store.local(replay.artifact(receipt.artifact), [PROVENANCE]) / PROVENANCE)
    for split, shards in provenance.items():
        # a source may be a mixture, whose shards have the names of its own sources
        own = {source.dataset: _rows_by_digest(replay, store, source.dataset, split) for source in replay.sources}
        digests = {origin.sha256 for _, origin in shards}
        for dataset, rows in own.items():
            lost = sum(count for digest, count in rows.items() if digest not in digests)
            total = sum(splits[dataset].values())
            yield Loss(action="left out", reason="weight", count=lost, of=total, unit="row", part=dataset)


def _rows_by_digest(replay: ReplayDeclaration, store: ArtifactStore, dataset: str, split: str) -> dict[str, int]:
    """Return the rows of each shard in a split of a source, by the shard's digest."""
    artifact = Artifact(dataset=dataset, name=DIRECTORIES[replay.format])
    provenance = read_provenance(store.local(artifact, [PROVENANCE]) / PROVENANCE)
    return {origin.sha256: origin.rows for _, origin in provenance.get(split, ())}


# The mode decides the order of the shards of several datasets.
#
# ==============  =====================================================================================================
# mode            order of the shards
# ==============  =====================================================================================================
# concat          sources as declared, each in its own order, as the original `rename_records_combined` does
# interleave      each source's shards shuffled (seeded) and spread evenly by rows over all
# weighted        shards repeated or left out so that rows come to the declared shares, then interleaved
# ==============  =====================================================================================================

Shards = list[ShardOrigin]


def ordered(replay: ReplayDeclaration, split: str, shards: list[Shards]) -> tuple[Shards, dict[str, SourceShare]]:
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
    total_rows = sum(rows_of(s) for s in shards)
    target_shares = [rows_of(s) / total_rows for s in shards]
    if replay.mode == "weighted":
        weights = [source.weight or 0.0 for source in replay.sources]
        target_shares = [weight / sum(weights) for weight in weights]
    # The shuffle precedes `weighted`, which leaves out the last shards, so that they are not always the last months.
    # The seed includes the source's name, so that an additional source does not change the order of the others.
    if replay.mode != "concat":
        shards = [_shuffled(s, [replay.seed, name, split]) for s, name in zip(shards, names, strict=True)]
    if replay.mode == "weighted":
        shards = weighted(shards, target_shares)
    total = sum(rows_of(s) for s in shards)
    shares = {
        name: SourceShare(rows=rows_of(s), share=round(rows_of(s) / total, 6), wanted=round(want, 6))
        for name, s, want in zip(names, shards, target_shares, strict=True)
    }
    for name, s, want in zip(names, shards, target_shares, strict=True):
        # other modes use all shards, so their shares always match
        if not s or abs(rows_of(s) / total - want) > replay.tolerance:
            raise ConfigError(
                f"{replay.dataset}: split {split}: whole shards of {name} have a share of {rows_of(s) / total:.4f}, "
                f"not {want:.4f} (tolerance {replay.tolerance}). Make its shards smaller (rows_per_shard), or raise "
                "the tolerance"
            )
    origins = [origin for s in shards for origin in s] if replay.mode == "concat" else interleaved(shards)
    return list(_number_repeats(origins)), shares


def rows_of(shards: Shards) -> int:
    """Return the total number of rows in the shards."""
    return sum(origin.rows for origin in shards)


def _shuffled(shards: Shards, seed: Sequence[Any]) -> Shards:
    # NumPy guarantees the raw stream of PCG64 forever, but not the results of Generator.permutation.
    draws = np.random.PCG64(int(digest_value(list(seed))[:16], 16)).random_raw(len(shards))
    return [shards[index] for index in np.argsort(draws, kind="stable").tolist()]


def weighted(shards: Sequence[Shards], wanted: Sequence[float]) -> list[Shards]:
    """Return each source's shards in order, repeated or left out so that the rows approximate the wanted shares.

    `wanted` contains shares of 1. The total number of rows stays near the sources' total. Only whole shards are used.
    """
    total = sum(map(rows_of, shards))
    return [_about(source, want * total) for source, want in zip(shards, wanted, strict=True)]


def _about(shards: Shards, rows: float) -> Shards:
    # all shards are repeated as often as they fit; then single shards are added if they bring the sum closer
    times = int(rows // rows_of(shards))
    origins = list(shards) * times
    remaining = rows - times * rows_of(shards)
    for origin in shards:
        if abs(remaining - origin.rows) >= remaining:
            continue  # a shorter shard may still bring the sum closer
        origins.append(origin)
        remaining -= origin.rows
        if remaining <= 0:
            break
    return origins


def interleaved(shards: Sequence[Shards]) -> Shards:
    """Return the shards of all sources, with each source's shards in order and evenly spread by rows."""
    entries = []
    for source, origins in enumerate(shards):
        total, before = rows_of(origins), 0
        for index, origin in enumerate(origins):
            # the sort key is the shard's middle as a fraction of its source, so that all sources advance evenly
            entries.append(((2 * before + origin.rows) / (2 * total), source, index, origin))
            before += origin.rows
    # equal fractions are ordered by source and index, because origins cannot be compared
    return [origin for *_, origin in sorted(entries, key=lambda entry: entry[:3])]


def _number_repeats(shards: Shards) -> Iterator[ShardOrigin]:
    """Yield the shards, each with the number of its earlier occurrences."""
    counts: dict[str, int] = {}
    for origin in shards:
        repeat = counts.get(origin.sha256, 0)
        counts[origin.sha256] = repeat + 1
        yield replace(origin, repeat=repeat)


VERSION = 2
# these facts must be equal, because one loader reads all rows with the same options; tokenizers are compared by digest
_EQUAL = ("columns", "row_length", "pad_id", "layout", "pipeline", "rows", "format")


def combined_directory_spec(
    replay: ReplayDeclaration, *, tokenizer: Callable[[], str | None] = lambda: None
) -> ArtifactSpec:
    """Return the specification of a mixture's directory, which is built in one run from separate datasets.

    Args:
        replay: The mixture.
        tokenizer: Returns the location of the sources' tokenizer, for the trainer's settings.
    """
    name = DIRECTORIES[replay.format]
    return ArtifactSpec(
        declaration=replay,
        name=name,
        version=VERSION,
        description=f"Several datasets as one, by `{replay.mode}`; see provenance.json.",
        kinds={"tensorflow", "file"},
        inputs=tuple(DatasetInput(dataset=source.dataset, name=name) for source in replay.sources),
        watch=SourceWatch(identity=partial(_identity, replay), changes=partial(_changes, replay)),
        names_places=frozenset({"locations of the sources"}) if replay.mode == "virtual" else None,
        recipes=lambda store, _: [_recipe(replay, store, _sources(replay, store))],
        build=lambda request: [Outcome.from_receipt(*build_replay(replay, request.store))],
        metadata=partial(_metadata, replay, tokenizer),
        losses=lambda store, receipts: replay_losses(replay, store, receipts),
        check_groups=(
            WholeChecks(
                checks=VIRTUAL_CHECKS if replay.mode == "virtual" else COMBINED_CHECKS,
                open=partial(_open_directory, replay),
                guard=partial(unquoting, replay.dataset),
            ),
        ),
    )


def _metadata(
    replay: ReplayDeclaration, tokenizer: Callable[[], str | None], store: ArtifactStore, receipt: Receipt
) -> Mapping[str, Shown]:
    line = combined_line(replay, store, DirectoryFacts.of(receipt), tokenizer())
    return {**split_counts(receipt), "maxtext": Markdown("```\n" + line + "\n```")}


@dataclass(frozen=True, kw_only=True)
class _ReplaySource:
    declared: ReplaySource
    artifact: Artifact
    receipt: Receipt
    facts: DirectoryFacts

    @property
    def tokenizer(self) -> str:
        return self.receipt.inputs["tokenizer"]


def _sources(replay: ReplayDeclaration, store: ArtifactStore) -> list[_ReplaySource]:
    """Return the directories to mix, in declared order.

    Raises MissingArtifactError for a missing directory; ConfigError for a directory without a declared split;
    IntegrityError, naming the difference, if the directories are incompatible.
    """
    artifacts = [Artifact(dataset=source.dataset, name=DIRECTORIES[replay.format]) for source in replay.sources]
    receipts = store.receipts(artifacts)
    if missing := [str(a) for a, receipt in zip(artifacts, receipts, strict=True) if receipt is None]:
        raise MissingArtifactError(f"{replay.dataset}: not built yet: {', '.join(missing)}. Materialize them first")
    sources = [
        _ReplaySource(declared=declared_source, artifact=artifact, receipt=receipt, facts=DirectoryFacts.of(receipt))
        for declared_source, artifact, receipt in zip(replay.sources, artifacts, receipts, strict=True)
        if receipt is not None
    ]
    reference = sources[0]
    for source in sources:
        if source.facts.mode == "virtual":
            raise ConfigError(f"{replay.dataset}: {source.artifact} is virtual and has no shards to combine")
        wrong = [name for name in _EQUAL if getattr(source.facts, name) != getattr(reference.facts, name)]
        wrong += ["tokenizer"] if source.tokenizer != reference.tokenizer else []
        if wrong:
            mismatch = "; ".join(f"{name} {_value(source, name)}, not {_value(reference, name)}" for name in wrong)
            raise IntegrityError(
                f"{replay.dataset}: {source.artifact} cannot be combined with {reference.artifact}: it has {mismatch}. "
                "Build all sources with the same settings"
            )
        if lacking := [split for split in replay.splits if split not in source.facts.splits]:
            raise ConfigError(f"{replay.dataset}: {source.artifact} has no split {', '.join(lacking)}")
    return sources


def _value(source: _ReplaySource, name: str) -> str:
    return source.tokenizer[:12] if name == "tokenizer" else str(getattr(source.facts, name))


def _recipe(replay: ReplayDeclaration, store: ArtifactStore, sources: Sequence[_ReplaySource]) -> Recipe:
    # These keys do not affect the bytes. All other keys, including future keys, are part of the artifact's key.
    names = ("owners", "storage", "verify", "workers", "sensitive", "small_cell", "card", "automation", "prove")
    undecisive = dict.fromkeys(names, True)
    declared_settings = replay.model_dump(mode="json", exclude={**undecisive, "sources": {"__all__": set(ATTRIBUTION)}})
    # A virtual mixture contains locations, so the locations decide its bytes.
    locations = [store.location(source.artifact) for source in sources] if replay.mode == "virtual" else []
    if for_hf(replay, sources[0].facts.pipeline):
        # the card lists JSON Lines files, which are stored with the packed cohorts
        locations += [store.location(Artifact(dataset=s.declared.dataset, name=PACKED_COHORTS)) for s in sources]
    source_contents = [[source.receipt.key, source.receipt.content] for source in sources]
    return Recipe(
        artifact=replay.artifact(DIRECTORIES[replay.format]),
        key=digest_value(["notes_replay", VERSION, declared_settings, source_contents, locations]),
        version=VERSION,
        settings=declared_settings,
        # recipes and locations are listed, because sources with the same bytes may differ in both
        sources={"recipes of the sources": digest_value([source.receipt.key for source in sources])}
        | ({"locations of the sources": digest_value(locations)} if locations else {}),
        upstream={f"{s.artifact.dataset}:{s.artifact.name}": s.receipt.content for s in sources},
    )


def _identity(replay: ReplayDeclaration, store: ArtifactStore) -> SourceIdentity:
    """Return the present identity of the mixed datasets; raise MissingArtifactError if a dataset is missing."""
    return identity_of([str(s.artifact), s.receipt.key, s.receipt.content] for s in _sources(replay, store))


def _changes(replay: ReplayDeclaration, store: ArtifactStore) -> str:
    """Return the datasets that changed since the mixture was built."""
    receipt = store.intact_receipt(replay.artifact(DIRECTORIES[replay.format]))
    if receipt is None:
        return in_words([(len(replay.sources), "dataset", "not combined yet")])
    now, known_contents = _recipe(replay, store, _sources(replay, store)).upstream, receipt.recipe.get("upstream", {})
    return in_words([(sum(known_contents.get(name) != content for name, content in now.items()), "dataset", "changed")])


def build_replay(replay: ReplayDeclaration, store: ArtifactStore) -> tuple[Receipt, bool]:
    """Build the mixture unless it is up to date; return its receipt and whether it was reused.

    Errors of missing or incompatible sources name them. Raises ConfigError if whole shards cannot match the declared
    weights within the tolerance; IntegrityError if two sources share a shard.
    """
    sources = _sources(replay, store)

    def write(staged: Path) -> WrittenFiles:
        splits = {split: [_shards(store, source, split) for source in sources] for split in replay.splits}
        _require_distinct(replay, splits)
        return (_write_virtual if replay.mode == "virtual" else _write_shards)(replay, store, sources, splits, staged)

    return ensure(_recipe(replay, store, sources), store, write, replay.verify)


def _shards(store: ArtifactStore, source: _ReplaySource, split: str) -> Shards:
    """Return a source's shards of a split, in the source's order, as parts of its artifact."""
    # A source may be a mixture. Its entries then keep the names of the mixture's own sources.
    provenance = read_provenance(store.local(source.artifact, [PROVENANCE]) / PROVENANCE)
    return [
        replace(origin, part=FileRef(source.artifact, source.receipt.file(f"{source.facts.directory}/{name}")))
        for name, origin in provenance[split]
    ]


def _require_distinct(replay: ReplayDeclaration, splits: dict[str, list[Shards]]) -> None:
    # SHA-256 → source, over all splits, because one source's training shard must not be another's validation shard
    source_of_digest: dict[str, int] = {}
    for shards in splits.values():
        for source, origins in enumerate(shards):
            for digest in {origin.sha256 for origin in origins}:
                if source_of_digest.setdefault(digest, source) != source:
                    names = [replay.sources[source_of_digest[digest]].dataset, replay.sources[source].dataset]
                    raise IntegrityError(
                        f"{replay.dataset}: {' and '.join(names)} share a shard. Remove one of them, or raise its "
                        "weight in mode `weighted`"
                    )


def _write_shards(
    replay: ReplayDeclaration,
    store: ArtifactStore,
    sources: Sequence[_ReplaySource],
    splits: dict[str, list[Shards]],
    staged: Path,
) -> WrittenFiles:
    first_facts = sources[0].facts
    origins, shares = {}, {}
    for split, shards in splits.items():
        origins[split], shares[split] = ordered(replay, split, shards)
    directory = Directory(
        dataset=replay.dataset,
        description=replay.description,
        version=replay.tfds_version,
        format=replay.format,
        columns=tuple(FeatureColumn(name=name, length=stored_length(first_facts)) for name in first_facts.columns),
        splits=origins,
    )
    joined_files = link_shards(staged, store, directory)
    rows = sum(split.rows for split in directory.info().splits)
    return WrittenFiles(
        inputs=_inputs(sources),
        facts=CombinedFacts(
            **_shared(replay, sources),
            directory=directory.path,
            version=directory.version,
            splits=directory.counts(),
            shares=shares,
        ),
        ledger=Ledger(rows_in=rows, documents=rows),
        joined=joined_files,
    )


def _inputs(sources: Sequence[_ReplaySource]) -> dict[str, str]:
    return {s.declared.dataset: s.receipt.content for s in sources} | {"tokenizer": sources[0].tokenizer}


def _shared(replay: ReplayDeclaration, sources: Sequence[_ReplaySource]) -> dict[str, Any]:
    """Return the facts that all modes share."""
    rows = RowFacts.of(sources[0].receipt).to_json()
    names = [source.declared.dataset for source in sources]
    return rows | {"format": replay.format, "mode": replay.mode, "sources": names}


def _json_lines(store: ArtifactStore, split: str, sources: Sequence[Shards]) -> Iterator[str]:
    """Yield the JSON Lines files with the rows of shards: one file per cohort, in the order of the shards."""
    for dataset, month in dict.fromkeys((origin.dataset, origin.partition) for shards in sources for origin in shards):
        cohort = Artifact(dataset=dataset, name=PACKED_COHORTS, partition=month)
        splits = PackedCohortFacts.of(store.require(cohort)).splits
        yield f"{store.location(cohort)}/{packed_lines(tuple(splits), split, month)}"


def _write_virtual(
    replay: ReplayDeclaration,
    store: ArtifactStore,
    sources: Sequence[_ReplaySource],
    splits: dict[str, list[Shards]],
    staged: Path,
) -> WrittenFiles:
    locations = {s.declared.dataset: f"{store.location(s.artifact)}/{s.facts.directory}" for s in sources}
    # only the first split counts, because grain's mixture has one pattern and one weight per dataset
    first_split = splits[replay.splits[0]]
    rows_in_first = {s.declared.dataset: rows_of(shards) for s, shards in zip(sources, first_split, strict=True)}
    write_mixture(staged, replay, locations, rows_in_first)
    if for_hf(replay, sources[0].facts.pipeline):
        write_hf_card(staged, {split: list(_json_lines(store, split, shards)) for split, shards in splits.items()})
    # a virtual mixture has no shards of its own, so it lists the names in the sources' directories
    names = {
        split: [
            origin.to_json(Path(origin.part.record.path).name)
            for of_source in shards
            for origin in of_source
            if origin.part is not None
        ]
        for split, shards in splits.items()
    }
    write_provenance(staged, names)
    counts = {
        split: DirectorySplit(rows=sum(map(rows_of, shards)), shards=sum(map(len, shards)))
        for split, shards in splits.items()
    }
    rows = sum(count.rows for count in counts.values())
    return WrittenFiles(
        inputs=_inputs(sources),
        facts=CombinedFacts(**_shared(replay, sources), splits=counts),
        ledger=Ledger(rows_in=rows, documents=rows),
    )


# --- the checks


@dataclass(frozen=True)
class OpenedReplay(OpenedDirectory):
    """An opened mixture, the subject of the checks."""

    replay: ReplayDeclaration


def _open_directory(replay: ReplayDeclaration, store: ArtifactStore, _: Sequence[str] = ()) -> OpenedReplay:
    return OpenedReplay(replay.artifact(DIRECTORIES[replay.format]), store, replay, replay).with_files()


def provenance_complete(opened: OpenedReplay) -> Finding:
    """Return whether a rebuild from the present sources gives the same mixture.

    The comparison covers the shards, their order, and the loader's files with the sources' locations.
    """
    facts = CombinedFacts.of(opened.receipt)
    shards = sum(split.shards for split in facts.splits.values())
    return verdict(
        (
            f"{opened.name}: {defect}"
            for defect in rebuilt_otherwise(opened.artifact, opened.store, partial(build_replay, opened.replay))
        ),
        f"{count_of(shards, 'shard')} of {count_of(len(facts.sources), 'source')}, identical when rebuilt.",
        REBUILD_SOURCES,
        facts={"shards": shards, "sources": len(facts.sources)},
    )


def mixture_matches_weights(opened: OpenedReplay) -> Finding:
    """Return whether each source's share of a split's rows matches the wanted share within the tolerance.

    `provenance_complete` checks that the row counts match the shards.
    """
    replay, shares = opened.replay, CombinedFacts.of(opened.receipt).shares
    table: list[Row] = [
        {"split": split, "source": name, "rows": share.rows, "share": share.share, "wanted": share.wanted}
        for split, of_split in shares.items()
        for name, share in of_split.items()
    ]
    defects = [
        f"{opened.name}: {split}: {name} has a share of {share.share:.4f}, but {share.wanted:.4f} is declared"
        for split, of_split in shares.items()
        for name, share in of_split.items()
        if abs(share.share - share.wanted) > replay.tolerance
    ]
    return verdict(
        defects,
        "; ".join(f"{row['source']} {row['share']:.4f} of {row['split']}" for row in table) + ".",
        REBUILD,
        facts={"tolerance": str(replay.tolerance)},
        table=table,
    )


def splits_disjoint(directory: OpenedDirectory) -> Finding:
    """Return whether each patient is in only one split, over all sources.

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
            patient_digests.append(_patients(store, cohort, receipt, split))
        digests.append(np.unique(np.concatenate(patient_digests)))
    _, counts = np.unique(np.concatenate(digests), return_counts=True)
    leaked = int(np.count_nonzero(counts > 1))
    where = directory.name
    todo = "Use one `patient_key` and the same `splits` for all sources, and rebuild them"
    if not leaked and len(keys) > 1 and len(splits) > 1:
        unknown = "its sources have different patient keys, so patients in several splits cannot be detected"
        return verdict([f"{where}: {unknown}"], "", todo, warning=True)
    defects = (
        [f"{where}: {count_of(leaked, 'patient is', 'patients are')} in several of the splits {', '.join(splits)}"]
        if leaked
        else []
    )
    return verdict(
        defects,
        f"{count_of(int(counts.size), 'patient')}, none in several of {count_of(len(splits), 'split')}.",
        todo,
        facts={"patients": int(counts.size), "in_several_splits": leaked},
    )


def _patients(store: ArtifactStore, cohort: Artifact, receipt: Receipt, split: str) -> Any:
    path = in_split(list(PackedCohortFacts.of(receipt).splits), split, PATIENTS)
    return read_patients(store.local(cohort, [path]) / path)


_SOURCE_CHECKS: tuple[Check[OpenedReplay], ...] = (
    Check(
        "provenance_complete",
        "Rebuilding the mixture from its current sources gives the same shards in the same order and the same "
        "loader files.",
        provenance_complete,
        version=2,
    ),
    Check(
        "mixture_matches_weights",
        "Each source's share of the rows matches its weight within the tolerance.",
        mixture_matches_weights,
        version=2,
    ),
    Check("splits_disjoint", "No patient of any source is in two splits of the mixture.", splits_disjoint),
)
VIRTUAL_CHECKS: tuple[Check[OpenedReplay], ...] = (FILES_INTACT, *_SOURCE_CHECKS)
"""Checks of a virtual mixture, which has no shards of its own."""
COMBINED_CHECKS: tuple[Check[OpenedReplay], ...] = (*VIRTUAL_CHECKS, TFDS_READS)
