"""Duplicates of a blend (`<dataset>/duplicates`): the rows of all shards that duplicate a kept row.

The artifact joins the signatures of all shards of all datasets and splits. Each shard has a file of its removed rows,
`<shard>.parquet`, and only shards whose removed rows change are rebuilt. The kept rows depend only on the contents of
the rows, not on the order of files, the number of shards, or the number of appends. Names of rows are `file:row`, with
`dataset/` before it if the blend has several datasets.

Entry points: `build_signatures_spec`, `build_duplicates_spec`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.duplicates.candidates import CandidateSet, Nodes
from dataprep_assets.curation.duplicates.declaration import RowDuplicatesDeclaration
from dataprep_assets.curation.duplicates.duplicates_checks import (
    MIN_WORDS,
    SAMPLED_SHARDS,
    SAMPLED_TEXTS,
    SearchedTexts,
    list_duplicates_checks,
)
from dataprep_assets.curation.duplicates.duplicates_files import (
    DuplicatesFacts,
    NodeNames,
    find_named_nodes,
    read_clusters,
    read_known_pairs,
    write_common_files,
)
from dataprep_assets.curation.duplicates.kept_set import (
    ComparedPairs,
    DuplicateDecisions,
    Priority,
    ShardOrder,
    choose_kept_documents,
)
from dataprep_assets.curation.duplicates.removed_file import DUPLICATES, SIGNATURES, name_removed_file
from dataprep_assets.curation.table import ParquetRowWriter
from dataprep_assets.engine.artifact.build import WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.metadata_values import ShownValue, Table
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, Partitions
from dataprep_assets.engine.checks.check import (
    FILES_INTACT,
    REBUILD,
    UNREPEATABLE,
    Check,
    Finding,
    OpenedPartition,
    build_verdict,
    choose_sample_count,
    draw_documents,
    set_level,
)
from dataprep_assets.engine.checks.comparison import compare_rebuild
from dataprep_assets.engine.checks.verdicts import PartitionChecks, WholeArtifactChecks
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats.row_origins import ORIGINS
from dataprep_assets.integrity.artifacts import ArtifactStore, find_missing_subjects
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.integrity.scratch import create_scratch
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.duplicates.duplicate_rows import REMOVED, REMOVED_DESCRIPTIONS
from dataprep_assets.pipelines.blend.duplicates.signed_rows import (
    PRIORITY,
    OpenedSignatures,
    SignedRows,
    SignedRowsFacts,
    ensure_signed_rows,
    open_signed_rows,
)
from dataprep_assets.pipelines.blend.duplicates.signed_rows import (
    VERSION as SIGNED_VERSION,
)
from dataprep_assets.pipelines.blend.duplicates.signing import load_signing
from dataprep_assets.pipelines.blend.plan.blend_snapshot import estimate_readings
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.removal.row_ids import (
    ReadRows,
    find_current_retractions,
    load_row_retractions,
)
from dataprep_assets.pipelines.blend.screening.row_rules import load_row_columns, load_row_rules
from dataprep_assets.pipelines.blend.stage_shards import (
    SHARDS,
    build_in_tasks,
    build_shared_preparation,
    choose_check_workers,
    list_known_recipes,
)
from dataprep_assets.planning.manifest import natural_key
from dataprep_assets.stores.files import digest_value

VERSION = 1


def build_signatures_spec(
    blend: BlendDeclaration, *, partitions: Partitions, inputs: tuple[ArtifactSpec, ...]
) -> ArtifactSpec:
    """Return the spec of the signatures of a blend's shards; `inputs` are the inputs of the shards themselves."""
    return ArtifactSpec(
        declaration=blend,
        name=SIGNATURES,
        version=SIGNED_VERSION,
        description="MinHash signatures of a shard's rows, for finding duplicates.",
        kinds={"numpy"},
        inputs=inputs,
        partitions=partitions,
        pool="cpu",
        recipes=partial(_build_signature_recipes, blend),
        build=partial(_build_signatures, blend),
        reads=partial(estimate_readings, blend, tokenized=True),
        metadata=_build_signature_metadata,
        rows=lambda receipt: SignedRowsFacts.from_receipt(receipt).rows,
        check_groups=(
            PartitionChecks(
                checks=set_level(SIGNATURES_CHECKS, blend.prove.level),
                planned=partial(prepare_signed_rows, blend),
                open=_OpenedSignedRows.open,
                workers=lambda *_: choose_check_workers(blend),
            ),
        ),
    )


def prepare_signed_rows(
    blend: BlendDeclaration, store: ArtifactStore, partitions: Sequence[str | None]
) -> list[SignedRows]:
    """Return the signatures of some shards, ready to build. Raises MissingArtifactError if an input is missing."""
    duplicates = blend.duplicates
    assert duplicates is not None
    plan, settings, retractions = load_blend_plan(blend, store), load_signing(blend), load_row_retractions(blend)
    # Prepare the shards without their duplicates, which are not known yet.
    whole_blend = blend.model_copy(update={"duplicates": None})
    priority, signed_rows = duplicates.priority, []
    for shard in SHARDS[blend.stage].shards(whole_blend, store, plan, [partition or "" for partition in partitions]):
        partition = str(shard.artifact.partition)
        artifact = blend.artifact(SIGNATURES, partition)
        dataset = plan.find_shard(partition)[0].dataset.name
        columns, rules = load_row_columns(blend, dataset), load_row_rules(blend, dataset)
        used = [tagger for tagger in columns.taggers if priority is not None and priority.column in tagger.columns]
        signed_rows.append(
            SignedRows(
                artifact=artifact,
                store=store,
                shard=shard,
                columns=replace(columns, taggers=tuple(used)),
                text=duplicates.text,
                priority=priority,
                settings=settings,
                may_vary=rules is not None and rules.repeatable.names != rules.names,
                level=blend.prove.level,
                retracted=find_current_retractions(store, artifact, retractions),
            )
        )
    return signed_rows


def _build_signature_recipes(
    blend: BlendDeclaration, store: ArtifactStore, partitions: Sequence[str | None]
) -> Iterator[Recipe]:
    yield from list_known_recipes(blend, store, prepare_signed_rows(blend, store, partitions))


def _build_signatures(blend: BlendDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    rows = prepare_signed_rows(blend, request.store, request.partitions)
    # Load the tools of the shards now, because the workers of all steps are forked from the process that is prepared
    # for the first step.
    prepare = build_shared_preparation(blend, [signed_rows.shard for signed_rows in find_missing_subjects(rows)])
    yield from build_in_tasks(blend, request, rows, ensure_signed_rows, prepare)


def _build_signature_metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    facts = SignedRowsFacts.from_receipt(receipt)
    return {"rows": facts.rows, "compared": facts.documents, "blank_rows": facts.blank, "bands": facts.bands}


class _OpenedSignedRows(OpenedPartition[SignedRows]):
    """Signatures of a shard, opened for checks."""


def _check_signatures(signatures: _OpenedSignedRows) -> Finding:
    rows, receipt, facts = signatures.planned, signatures.receipt, SignedRowsFacts.from_receipt(signatures.receipt)
    samples = choose_sample_count(rows.level)
    if samples is None:
        defects = list(compare_rebuild(rows.recipe, rows.store, receipt, signatures.directory, rows.write))
    else:
        defects = list(_find_drawn_differences(rows, receipt, draw_documents(receipt.key, facts.rows, samples)))
    compared_count = facts.rows if samples is None else min(samples, facts.rows)
    return build_verdict(
        (f"{signatures.name}: {defect}" for defect in defects),
        f"Recomputed the signatures of {compared_count:,} of {count_of(facts.rows, 'row')}: all match.",
        UNREPEATABLE if rows.may_vary else REBUILD,
        facts={"rows_compared": compared_count, "rows": facts.rows, "documents": facts.documents},
        warning=rows.may_vary,
    )


def _get_values(signatures: OpenedSignatures) -> NDArray[np.float64]:
    return np.zeros(len(signatures.origins)) if signatures.values is None else signatures.values


def _find_drawn_differences(rows: SignedRows, receipt: Receipt, positions: Nodes) -> Iterator[str]:
    """Yield a sentence for each array in which drawn rows differ from a rebuild."""
    stored_rows = open_signed_rows(rows)
    drawn_origins = stored_rows.origins[positions]
    with create_scratch(rows.store.root / receipt.dataset) as folder:
        facts = rows.write(folder, drawn_origins).facts
        assert isinstance(facts, SignedRowsFacts)
        rebuilt = rows.open_folder(folder, facts)
        if not np.array_equal(rebuilt.origins, drawn_origins):
            yield f"{ORIGINS}: the drawn rows differ from a rebuild"
            return
        yield from rebuilt.signatures.find_differences(stored_rows.signatures, positions)
        drawn_values = _get_values(stored_rows)[positions]
        if not np.array_equal(_get_values(rebuilt), drawn_values, equal_nan=True):
            yield f"{PRIORITY}: the drawn rows differ from a rebuild"


SIGNATURES_CHECKS: tuple[Check[_OpenedSignedRows], ...] = (
    FILES_INTACT,
    Check(
        "rebuild_matches",
        "Recomputing the MinHash signatures of a sample of source rows (or all rows) reproduces the stored signatures.",
        _check_signatures,
        samples=True,
    ),
)


def build_duplicates_spec(blend: BlendDeclaration, *, signatures: ArtifactSpec) -> ArtifactSpec:
    """Return the spec of a blend's duplicates, which are found by the `signatures` of its shards."""
    return ArtifactSpec(
        declaration=blend,
        name=DUPLICATES,
        version=VERSION,
        description="Near-duplicates in all shards and splits: every dropped row, and the row kept instead.",
        kinds={"parquet", "numpy"},
        inputs=(signatures,),
        pool="cpu",
        recipes=lambda store, _: [_JoinedRows.load(blend, store).recipe],
        build=partial(_build_duplicates, blend),
        foresee=partial(_build_duplicates, blend),
        metadata=partial(_build_metadata, blend),
        rows=lambda receipt: sum(DuplicatesFacts.from_receipt(receipt).removed.values()),
        columns=REMOVED,
        column_descriptions=REMOVED_DESCRIPTIONS,
        check_groups=(_build_checks(blend),),
    )


@dataclass(frozen=True, kw_only=True)
class _JoinedRows:
    """The signatures of all shards of a blend.

    Attributes:
        blend: The declaration.
        store: The store of the signatures.
        rows: The signatures of each shard, in the order of the plan.
        splits: The split of each shard.
        prefixes: The beginning of the names of each shard's rows.
    """

    blend: BlendDeclaration
    store: ArtifactStore
    rows: Sequence[SignedRows]
    splits: Sequence[str]
    prefixes: Sequence[str]

    @classmethod
    def load(cls, blend: BlendDeclaration, store: ArtifactStore) -> "_JoinedRows":
        """Return the signatures of all shards. Raises MissingArtifactError if an input is missing."""
        plan = load_blend_plan(blend, store)
        units = [plan.find_shard(partition)[0] for partition in plan.partitions]
        has_several = len({unit.dataset.name for unit in plan.units}) > 1
        return cls(
            blend=blend,
            store=store,
            rows=prepare_signed_rows(blend, store, plan.partitions),
            splits=[unit.home for unit in units],
            prefixes=[f"{unit.dataset.name}/" if has_several else "" for unit in units],
        )

    @property
    def search(self) -> RowDuplicatesDeclaration:
        """The declaration of the duplicates."""
        assert self.blend.duplicates is not None
        return self.blend.duplicates

    @property
    def split_names(self) -> list[str]:
        """The splits, in the order of the declaration."""
        return list(dict.fromkeys(self.splits))

    @cached_property
    def recipe(self) -> Recipe:
        """The named values that determine the duplicates. Raises MissingArtifactError for missing signatures."""
        priority = self.search.priority
        settings = {
            **load_signing(self.blend).key_parts,
            **self.search.key_parts(),
            "priority": None if priority is None else priority.model_dump(mode="json"),
            # List the splits in order, because their order decides which rows `across_splits: drop` keeps.
            "splits": self.split_names,
        }
        # Include the names of the files, which identify the kept rows.
        files = [
            [
                rows.artifact.partition,
                split,
                prefix,
                [[s.label, s.ordinal, s.rows and s.rows.first] for s in rows.sources],
            ]
            for rows, split, prefix in zip(self.rows, self.splits, self.prefixes, strict=True)
        ]
        upstream = {f"{SIGNATURES}/{r.artifact.partition}": self.store.require(r.artifact).content for r in self.rows}
        sources = {"files": digest_value(files)}
        return Recipe(
            artifact=self.blend.artifact(DUPLICATES),
            key=digest_value([DUPLICATES, VERSION, settings, sources, upstream]),
            version=VERSION,
            settings=settings,
            sources=sources,
            upstream=upstream,
        )

    def write(self, known_pairs: ComparedPairs, staged: Path) -> WrittenFiles:
        """Write the files of the duplicates; pairs in `known_pairs` are not compared again."""
        shards = [open_signed_rows(rows) for rows in self.rows]
        # Leave out blank texts, whose digests are zero, because they would all be duplicates of each other.
        masks = [np.asarray(shard.signatures.digests[:, :2].any(axis=1)) for shard in shards]
        documents = CandidateSet([shard.signatures for shard in shards], masks)
        across = self.search.across_splits
        kept_set = choose_kept_documents(
            documents,
            Priority(documents=documents, shards=self._build_orders(shards), by_split=across == "drop"),
            threshold=self.search.similarity,
            across=across,
            known_pairs=known_pairs,
        )
        names = self._read_names(documents, shards, find_named_nodes(kept_set))
        removed_counts = dict.fromkeys(self.split_names, 0)
        for number, (rows, split) in enumerate(zip(self.rows, self.splits, strict=True)):
            begin, end = documents.first[number : number + 2].tolist()
            part = slice(*np.searchsorted(kept_set.removed, [begin, end]).tolist())
            origins = shards[number].origins[kept_set.removed[part] - begin]
            removed_counts[split] += len(origins)
            with ParquetRowWriter(staged / name_removed_file(str(rows.artifact.partition)), REMOVED) as writer:
                writer.add(
                    {
                        "ordinal": origins[:, 0].tolist(),
                        "row": origins[:, 1].tolist(),
                        "representative": names.get_names(kept_set.representatives[part]),
                        "similarity": kept_set.similarities[part].tolist(),
                    }
                )
        write_common_files(staged, kept_set, names, self._list_across_splits(documents, kept_set))
        return WrittenFiles(
            inputs=dict(self.recipe.upstream),
            facts=DuplicatesFacts(
                documents=int(np.count_nonzero(documents.taken)),
                removed=removed_counts,
                equal=int(np.count_nonzero(kept_set.similarities == 1)),
                candidates=kept_set.candidates,
                compared=len(kept_set.compared.pairs),
                across=len(kept_set.across),
            ),
        )

    def _build_orders(self, shards: Sequence[OpenedSignatures]) -> list[ShardOrder]:
        # Rank the files by name and first row, because the ranks break ties between equal rows, and the kept rows must
        # not depend on the order of files in the plan or on the number of shards.
        keys = {
            (prefix, source.label, source.first_row)
            for rows, prefix in zip(self.rows, self.prefixes, strict=True)
            for source in rows.sources
        }
        ranked_keys = sorted(keys, key=lambda key: (key[0], natural_key(key[1]), key[2]))
        ranks = {key: rank for rank, key in enumerate(ranked_keys)}
        orders = []
        for rows, prefix, split, signatures in zip(self.rows, self.prefixes, self.splits, shards, strict=True):
            files = {source.ordinal: ranks[prefix, source.label, source.first_row] for source in rows.sources}
            ordinals, starts = np.unique(signatures.origins[:, 0], return_index=True)
            order = np.argsort(starts, kind="stable")
            orders.append(
                ShardOrder(
                    split=self.split_names.index(split),
                    starts=starts[order].astype(np.int64),
                    files=np.array([files[ordinal] for ordinal in ordinals[order].tolist()], np.int64),
                    ages=np.empty(0, np.int64),
                    values=signatures.values,
                )
            )
        return orders

    def _read_names(self, documents: CandidateSet, shards: Sequence[OpenedSignatures], nodes: Nodes) -> NodeNames:
        names = list[str]()
        for number, (rows, prefix) in enumerate(zip(self.rows, self.prefixes, strict=True)):
            begin, end = documents.first[number : number + 2].tolist()
            labels = {source.ordinal: source.label for source in rows.sources}
            positions = nodes[slice(*np.searchsorted(nodes, [begin, end]).tolist())] - begin
            names += [f"{prefix}{labels[ordinal]}:{row}" for ordinal, row in shards[number].origins[positions].tolist()]
        return NodeNames(nodes=nodes, names=names)

    def _list_across_splits(self, documents: CandidateSet, kept_set: DuplicateDecisions) -> list[tuple[str, str]]:
        pairs = documents.find_shards(kept_set.across.ravel()).reshape(-1, 2)
        return [(self.splits[shard], self.splits[other_shard]) for shard, other_shard in pairs.tolist()]


def _build_duplicates(blend: BlendDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    store, joined_rows = request.store, _JoinedRows.load(blend, request.store)
    known_pairs = read_known_pairs(store, blend.artifact(DUPLICATES), load_signing(blend))
    receipt, reused = ensure_built(joined_rows.recipe, store, partial(joined_rows.write, known_pairs), blend.verify)
    yield Outcome.from_receipt(receipt, reused)


def _build_metadata(blend: BlendDeclaration, store: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    metadata = DuplicatesFacts.from_receipt(receipt).metadata
    clusters: list[dict[str, Any]] = [] if blend.sensitive else read_clusters(store, blend.artifact(DUPLICATES))
    return {**metadata, **({"largest_clusters": Table(clusters)} if clusters else {})}


def _build_checks(blend: BlendDeclaration) -> WholeArtifactChecks[SearchedTexts]:
    assert blend.duplicates is not None
    return WholeArtifactChecks(
        checks=list_duplicates_checks(blend.duplicates, _list_declared_splits(blend), blend.prove.level),
        open=lambda store, _: _open_duplicates(blend, store).with_local_files(),
    )


def _list_declared_splits(blend: BlendDeclaration) -> list[str]:
    """Return the splits of the blend; none for a blend in a separate file that cannot be read."""
    try:
        return list(dict.fromkeys(unit.home for unit in blend.load_data_blend().list_units()))
    except ConfigError:
        return []


def _open_duplicates(blend: BlendDeclaration, store: ArtifactStore) -> SearchedTexts:
    joined_rows = _JoinedRows.load(blend, store)
    return SearchedTexts(
        blend.artifact(DUPLICATES),
        store,
        search=joined_rows.search,
        signing=load_signing(blend),
        splits=joined_rows.split_names,
        level=blend.prove.level,
        sensitive=blend.sensitive,
        noun="row",
        sample=partial(_draw_texts, joined_rows.rows),
        compare=partial(_compare_rebuilt_duplicates, joined_rows),
    )


def _compare_rebuilt_duplicates(joined_rows: _JoinedRows, pairs: ComparedPairs) -> Iterator[str]:
    store, artifact = joined_rows.store, joined_rows.blend.artifact(DUPLICATES)
    write = partial(joined_rows.write, pairs)
    return compare_rebuild(joined_rows.recipe, store, store.require(artifact), store.local(artifact), write)


def _draw_texts(signed_rows: Sequence[SignedRows]) -> Iterator[str]:
    """Yield compared texts of some rows of a few shards."""
    for rows in signed_rows[:: max(1, len(signed_rows) // SAMPLED_SHARDS)][:SAMPLED_SHARDS]:
        ids = ReadRows(rows.shard.retractions)
        # Read only the first block of each source, which has enough texts.
        blocks = (texts for source in rows.sources for _, texts in islice(rows.read_texts(source, ids), 1))
        long = (text for texts in blocks for text in texts if len(text.split()) >= MIN_WORDS)
        yield from islice(long, SAMPLED_TEXTS)
