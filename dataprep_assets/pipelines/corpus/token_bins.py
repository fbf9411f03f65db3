"""Token bins (`<dataset>/token_bins_<split>`, one partition per shard): the token stream, tokenized once.

Each shard has flat ids, document ends, the quarantine of bad records and the receipt.

Repeated declared ids cause a warning, because a retracted id removes every document with this id. They are not an
error, because a crawl may contain the same address twice.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.dropped_rows import DroppedRows
from dataprep_assets.curation.retractions import find_listed, find_unplanned_retracted, read_retracted_ids
from dataprep_assets.curation.selection import is_bad_row
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, Partitions
from dataprep_assets.engine.checks.check import (
    Check,
    Finding,
    Row,
    build_verdict,
    count_documents,
    join_first,
    require_ledger,
)
from dataprep_assets.engine.checks.verdicts import (
    CheckedSpec,
    CheckGroup,
    CheckWorkers,
    PartitionChecks,
    WholeArtifactChecks,
)
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.execution.pool import WORKERS
from dataprep_assets.formats.document_index import IDS, open_ids
from dataprep_assets.formats.flat_bins import choose_dtype
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.declaration import COMBINED_BINS, CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import Manifest, load_manifest
from dataprep_assets.pipelines.corpus.source.snapshot import SNAPSHOT, estimate_readings, refetch_shards
from dataprep_assets.pipelines.corpus.source.source_parts import build_shard_fetches, load_source_parts
from dataprep_assets.stream.declaration import find_exceeded_budget
from dataprep_assets.stream.engine_certificate import load_certificate
from dataprep_assets.stream.reencoding import load_plan_encoder
from dataprep_assets.stream.stream_index import IndexedShard, describe_index, list_current_retractions
from dataprep_assets.stream.stream_losses import configure_checks, stream_losses
from dataprep_assets.stream.token_bins_checks import TOKEN_BINS_CHECKS, OpenedTokens
from dataprep_assets.stream.token_shard import TOKEN_BINS, VERSION, TokenBinsFacts, TokenShard
from dataprep_assets.stream.token_stream import StreamPlan
from dataprep_assets.stream.tokenizer import load_declared_tokenizer
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate
from dataprep_assets.tokenization.document_ids import DocumentIds


def choose_stream_dtype(corpus: CorpusDeclaration, bundle: TokenizerBundle) -> str:
    """Return the declared dtype; for `auto`, the narrowest dtype that fits every id.

    Raises ConfigError if the declared dtype does not fit every id.
    """
    fits = choose_dtype(bundle.vocab_size)
    if corpus.dtype == "auto":
        return fits
    if corpus.dtype == "uint16" and fits != "uint16":
        raise ConfigError(
            f"dtype: uint16 is too small for the {count_of(bundle.vocab_size, 'id')} of {bundle.name}. Use auto or "
            "uint32"
        )
    return corpus.dtype


def build_stream_plan(corpus: CorpusDeclaration, certificate: Certificate) -> StreamPlan:
    """Return all settings that determine the bytes of the dataset's token stream."""
    bundle = load_declared_tokenizer(corpus.tokenizer)
    bos = bundle.choose_bos(corpus.document.bos, corpus.document.special_tokens)
    ids = corpus.document.ids(sensitive=corpus.sensitive)
    return StreamPlan(
        tokenizer=bundle.directory,
        tokenizer_digest=bundle.digest,
        certificate=certificate.to_json(),
        special_tokens=corpus.document.special_tokens,
        separator_id=bundle.choose_separator(corpus.document.separator, corpus.document.special_tokens).id,
        bos_id=bos.id if bos else None,
        dtype=choose_stream_dtype(corpus, bundle),
        text_field=corpus.text_field,
        bad_records=corpus.bad_records.policy,
        sample_rate=corpus.sample_rate,
        level=corpus.prove.level,
        max_loss=corpus.tokenizer.max_loss,
        ids=ids,
        retracted=read_retracted_ids(corpus.retractions, ids).astype("<u8").tobytes(),
    )


def build_meta(corpus: CorpusDeclaration) -> dict[str, Any]:
    """Return the content of `meta.pkl`, read from the tokenizer (docs/formats/flat-bins.md#metapkl)."""
    bundle = load_declared_tokenizer(corpus.tokenizer)
    separator = bundle.choose_separator(corpus.document.separator, corpus.document.special_tokens)
    return {
        "tokenizer": bundle.name,
        "vocab_size": bundle.vocab_size,
        "eos_token_id": separator.id,
        "eos_token": separator.content,
        "dtype": choose_stream_dtype(corpus, bundle),
        "tokenizer_sha256": bundle.digest,
    }


_NO_RETRACTED = "no_retracted_document"
_IDS_PER_PASS = 1 << 24
"""Number of ids that are sorted at a time; they take 128 MiB."""
_MAX_SHOWN_IDS = 3
"""Maximum number of repeated ids whose documents are listed."""


def check_document_ids(corpus: CorpusDeclaration, split: str, store: ArtifactStore) -> Finding:
    """Check that all documents of the current shards have different ids."""
    manifest = load_manifest(corpus, store)
    splits = list(corpus.splits)
    previous_shards = [one for name in splits[: splits.index(split)] for one in manifest.partitions(name)]
    shards = _open_shards(corpus, store, manifest.partitions(split))
    earlier_shards = _open_shards(corpus, store, previous_shards)
    repeated = _find_repeated([one.hashes[:] for one in shards], [one.hashes[:] for one in earlier_shards])
    documents = sum(len(one.find_by_hashes(repeated)) for one in shards)
    locations = [
        *_locate_ids(earlier_shards, repeated[:_MAX_SHOWN_IDS]),
        *_locate_ids(shards, repeated[:_MAX_SHOWN_IDS]),
    ]
    rows: list[Row] = [{"file": file, "row": row} for _, file, row in sorted(locations)]
    examples = ", ".join([f"{file}: row {row}" for _, file, row in sorted(locations)[:_MAX_SHOWN_IDS]])
    message = (
        f"{count_of(documents, f'document of {split} shares its', f'documents of {split} share their')} id with "
        f"another document, e.g., {examples}"
    )
    return build_verdict(
        [message] if len(repeated) else [],
        f"Each of the {count_of(sum(one.documents for one in shards), 'document')} of {split} has a unique id.",
        "Removing such an id removes all of its documents. Give each document its own id, or accept the check",
        facts={"documents": sum(one.documents for one in shards), "repeated_ids": len(repeated)},
        table=rows,
        warning=True,
    )


def _open_shards(corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str]) -> list[IndexedShard]:
    artifacts = [corpus.artifact(TOKEN_BINS, partition) for partition in partitions]
    pairs = zip(artifacts, store.receipts(artifacts), strict=True)
    shards = [IndexedShard(store, artifact, receipt) for artifact, receipt in pairs if receipt is not None]
    return [shard for shard in shards if shard.facts.document_ids is not None]


def _find_repeated(shard_digests: Sequence[NDArray[Any]], other_digests: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """Return the ids in `shard_digests` that occur more than once in all arrays: sorted, uint64."""
    passes = max(1, -(-sum(map(len, [*shard_digests, *other_digests])) // _IDS_PER_PASS))
    # Divide the range of ids evenly, because ids are hashes and therefore evenly distributed.
    bounds = [(1 << 64) * number // passes for number in range(1, passes)]
    repeated_ids = []
    for low, high in zip([0, *bounds], [*bounds, 1 << 64], strict=True):
        own_ids = np.concatenate([np.empty(0, np.uint64), *_select_ids_between(shard_digests, low, high)])
        all_ids = np.concatenate([own_ids, *_select_ids_between(other_digests, low, high)])
        ids, counts = np.unique(all_ids, return_counts=True)
        repeated = ids[counts > 1]
        repeated_ids.append(repeated[np.isin(repeated, own_ids)])
    return np.concatenate(repeated_ids)


def _select_ids_between(digest_arrays: Sequence[NDArray[Any]], low: int, high: int) -> Iterator[NDArray[np.uint64]]:
    for ids in digest_arrays:
        yield ids[(ids >= np.uint64(low)) & (ids <= np.uint64(high - 1))]


def _locate_ids(shards: Sequence[IndexedShard], ids: NDArray[np.uint64]) -> Iterator[tuple[int, str, int]]:
    """Yield the id, file and row of the first documents in each shard that have one of these ids."""
    for shard in shards:
        for document in shard.find_by_hashes(ids)[:_MAX_SHOWN_IDS].tolist():
            file, row = shard.rows.locate(document)
            yield int(shard.hashes[document]), shard.files[file], row


DOCUMENT_IDS_UNIQUE: Check[tuple[CorpusDeclaration, str, ArtifactStore]] = Check(
    "document_ids_unique",
    "No two documents of the split, or of a split declared before it, have the same id.",
    lambda of_split: check_document_ids(*of_split),
    blocking=False,
)
SMALL_BYTES, FEW_SHARDS = 32 << 20, 16
"""Limits for building and checking shards in this process, without workers. Up to `SMALL_BYTES` of stored source files,
starting workers and loading the tokenizer in them takes longer. With more than `FEW_SHARDS` shards, workers are faster,
because they wait for the disk in parallel."""


def build_token_bins_spec(
    corpus: CorpusDeclaration,
    split: str,
    *,
    partitions: Partitions,
    snapshot: ArtifactSpec,
    certificate: ArtifactSpec,
    selection: ArtifactSpec | None = None,
) -> ArtifactSpec:
    """Return the spec of a split's token bins.

    Args:
        corpus: The dataset.
        split: One of its splits.
        partitions: The split's shards.
        snapshot: The snapshots of the shards.
        certificate: The engine certificate.
        selection: The selection, with the rows that rules drop; None if there are no rules.
    """
    return ArtifactSpec(
        declaration=corpus,
        name=TOKEN_BINS,
        split=split,
        version=VERSION,
        description="Token ids and document ends of each shard.",
        kinds={"numpy", "huggingface"},
        inputs=(snapshot, certificate, *(() if selection is None else (selection,))),
        partitions=partitions,
        pool="cpu",
        recipes=partial(_build_recipes, corpus),
        build=partial(_build_shards, corpus),
        reads=partial(estimate_readings, corpus, tokenized=True),
        metadata=describe_index,
        losses=lambda _, receipts: stream_losses(receipts, split),
        check_groups=_build_check_groups(corpus, split),
    )


def plan_token_shards(
    corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest, plan: StreamPlan, partitions: Iterable[str]
) -> list[TokenShard]:
    """Return the given shards, to be built or checked.

    Args:
        corpus: The dataset.
        store: The store of its artifacts.
        manifest: The manifest, which lists the files of each shard.
        plan: The settings that determine the bytes of the stream.
        partitions: The shards, in the order of the result.
    """
    shards = []
    for partition in partitions:
        artifact, ruled_out = corpus.artifact(TOKEN_BINS, partition), _find_ruled_out_rows(corpus, store, partition)
        shards.append(
            TokenShard(
                artifact=artifact,
                store=store,
                plan=plan,
                budget=corpus.bad_records.budget,
                files=load_source_parts(corpus, store, manifest, partition, ruled_out),
                sizes=tuple(entry.size_bytes for entry in manifest.shard(partition)),
                # Leave `retracted` empty if there is a selection, because the selection, which is part of the key,
                # already drops retracted rows.
                retracted=() if corpus.selects else list_current_retractions(store, artifact, plan.retracted_ids),
                ruled_out=ruled_out,
                exceeded_budget=find_exceeded_budget(
                    corpus.bad_records.policy, corpus.bad_records.budget, store, artifact, is_bad_row
                ),
            )
        )
    return shards


def _find_ruled_out_rows(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> DroppedRows | None:
    """Return the rows of a shard that the selection drops; None if neither rules nor duplicates are declared."""
    if not corpus.selects:
        return None
    from dataprep_assets.pipelines.corpus.curation.selection import find_ruled_out_rows

    return find_ruled_out_rows(corpus, store, partition)


def _build_recipes(
    corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str | None]
) -> Iterator[Recipe]:
    manifest, plan = load_manifest(corpus, store), build_stream_plan(corpus, load_certificate(corpus, store))
    # Plan one shard at a time, because an error ends the iteration. `status` then has the recipes of the shards before
    # the failed shard, and resumes after it.
    for partition in partitions:
        (shard,) = plan_token_shards(corpus, store, manifest, plan, [partition or ""])
        # If documents are retracted without a selection, leave the key of a missing shard empty, because the
        # retractions that apply to the shard are known only after it is built.
        is_known = corpus.selects or not plan.retracted or store.receipt(shard.artifact) is not None
        yield shard.recipe if is_known else replace(shard.recipe, key="")


def _build_shards(corpus: CorpusDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    from dataprep_assets.stream.shard_job import build_token_bins

    store = request.store
    plan, manifest = build_stream_plan(corpus, load_certificate(corpus, store)), load_manifest(corpus, store)
    refetch_shards(corpus, manifest, request.partitions)
    shards = plan_token_shards(corpus, store, manifest, plan, request.partitions)
    yield from build_token_bins(
        shards,
        workers=None if _is_small(corpus, manifest, request.partitions) else request.workers,
        engine=corpus.engine,
        verification=corpus.verify,
        fetches=None if corpus.engine.is_this_machine else build_shard_fetches(corpus, manifest, request.partitions),
        progress=request.progress,
    )


def _is_small(corpus: CorpusDeclaration, manifest: Manifest, partitions: Sequence[str]) -> bool:
    """Return whether this process builds and checks the shards: few, small shards, and no requested workers.

    Sensitive data always goes to workers, because a native library that panics would print it to this process's stderr.
    So do texts that a function of the user rewrites, because it may print, hang or exit its process.
    """
    if not corpus.engine.is_this_machine or corpus.sensitive or len(partitions) > FEW_SHARDS:
        return False
    if corpus.workers is not None or os.environ.get(WORKERS):
        return False
    if corpus.rewriting is not None and corpus.rewriting.functions:
        return False
    return sum(entry.size_bytes for partition in partitions for entry in manifest.shard(partition)) <= SMALL_BYTES


@dataclass(frozen=True, kw_only=True)
class _ShardChecks(PartitionChecks[TokenShard, OpenedTokens]):
    """Checks of shards; the check of retracted documents also warns of unplanned shards with such documents."""

    warn_of_unplanned: Callable[[ArtifactStore, Finding], Finding]

    def examine(
        self, spec: CheckedSpec, store: ArtifactStore, partitions: Sequence[str]
    ) -> Iterator[tuple[str, Finding]]:
        for name, finding in super().examine(spec, store, partitions):
            yield name, self.warn_of_unplanned(store, finding) if name == _NO_RETRACTED else finding


def _build_check_groups(corpus: CorpusDeclaration, split: str) -> tuple[CheckGroup, ...]:
    shard_checks = _ShardChecks(
        checks=configure_checks(TOKEN_BINS_CHECKS, corpus.prove.level, corpus.tokenizer),
        planned=partial(_open_planned_shards, corpus),
        open=OpenedTokens.open,
        workers=partial(_choose_workers, corpus),
        documents=count_documents,
        warn_of_unplanned=partial(_warn_of_unplanned, corpus, split),
    )
    if corpus.document.id_field is None:
        return (shard_checks,)
    # Check the whole split even if only some of its shards are checked now, because no two of its documents may have
    # the same id.
    return shard_checks, WholeArtifactChecks(
        checks=(DOCUMENT_IDS_UNIQUE,), open=lambda store, _: (corpus, split, store)
    )


def _build_plan(corpus: CorpusDeclaration, store: ArtifactStore) -> StreamPlan:
    return build_stream_plan(corpus, load_certificate(corpus, store))


def _open_planned_shards(
    corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str]
) -> list[TokenShard]:
    manifest = load_manifest(corpus, store)
    refetch_shards(corpus, manifest, partitions)
    return plan_token_shards(corpus, store, manifest, _build_plan(corpus, store), partitions)


def _choose_workers(corpus: CorpusDeclaration, store: ArtifactStore, partitions: Sequence[str]) -> CheckWorkers | None:
    if _is_small(corpus, load_manifest(corpus, store), partitions):
        return None
    # Load the tokenizer in the fork server, so that the workers inherit it and do not each load it.
    return CheckWorkers(
        engine=corpus.engine, declared=corpus.workers, prepare=partial(load_plan_encoder, _build_plan(corpus, store))
    )


def _warn_of_unplanned(corpus: CorpusDeclaration, split: str, store: ArtifactStore, finding: Finding) -> Finding:
    """Add a warning to the finding on retracted documents if unplanned shards of the split contain some.

    The warning does not block, because no key contains these shards, and a successful run removes them
    (`engine.staleness.status`).
    """
    # Keep a failure, because it is more important than the warning. Without retracted ids, there is nothing to warn
    # about.
    if not finding.passed or not _build_plan(corpus, store).retracted:
        return finding
    manifest = load_manifest(corpus, store)
    unplanned = (
        corpus.artifact(TOKEN_BINS, key)
        for key in store.partitions(corpus.dataset, TOKEN_BINS)
        if key not in manifest.plan and key.rpartition("-")[0] == split
    )
    artifacts = [
        artifact for artifact in find_retracted_artifacts(corpus, store, unplanned) if artifact.name == TOKEN_BINS
    ]
    if not artifacts:
        return finding
    return replace(
        finding,
        passed=False,
        warning=True,
        summary=f"{join_first(artifacts, 1)}: obsolete, and may contain removed documents. A successful "
        f"`dataprep run {corpus.dataset}` removes {'it' if len(artifacts) == 1 else 'them'} at its end",
    )


def find_retracted_artifacts(
    corpus: CorpusDeclaration, store: ArtifactStore, unplanned: Iterable[Artifact]
) -> list[Artifact]:
    """Return the unplanned artifacts that contain a retracted document or may contain one.

    Raises the errors of `find_unplanned_retracted`.
    """

    def contains(artifact: Artifact, receipt: Receipt, ids: DocumentIds, hashes: NDArray[np.uint64]) -> bool:
        facts = TokenBinsFacts.from_receipt(receipt)
        if facts.document_ids is None or (facts.id_field, facts.id_key) != (ids.id_field, ids.key_digest):
            return True
        shard_ids = open_ids(store.local(artifact, [IDS]) / IDS, require_ledger(receipt).documents)
        return bool(find_listed(shard_ids, hashes).any())

    return find_unplanned_retracted(
        store,
        unplanned,
        retractions=corpus.retractions,
        load_ids=lambda: corpus.document.ids(sensitive=corpus.sensitive),
        snapshots=SNAPSHOT,
        shards=TOKEN_BINS,
        # The receipts of views name their inputs by split, and the receipts of combined bins name theirs by shard.
        # Inputs with other names are not found, so artifacts with such inputs are assumed to contain a removed
        # document.
        source=lambda name: corpus.artifact(COMBINED_BINS if name in corpus.splits else TOKEN_BINS, name),
        contains=contains,
    )
