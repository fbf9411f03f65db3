"""The manifest (`<dataset>/manifest`): every source file, and the shard plan, which registers the shards'
partitions."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dataprep_assets.engine.artifact.build import WrittenFiles, ensure
from dataprep_assets.engine.artifact.metadata_values import Shown
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, Partitions, SourceWatch
from dataprep_assets.engine.checks.check import Check, Finding, first_of, verdict
from dataprep_assets.engine.checks.verdicts import WholeChecks
from dataprep_assets.errors import DataprepError, IntegrityError, TransferError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest_changes import (
    Amounts,
    ManifestChanges,
    ManifestFacts,
    changes_between,
    changes_shown,
    facts_of_no_split,
    left_out_files,
)
from dataprep_assets.planning.manifest import (
    SHARD_PLAN,
    ManifestEntry,
    ShardSizing,
    SourceFile,
    build_manifest,
    describe_other_bytes,
    files_of_no_split,
    glob_pattern,
    hidden_files,
    include_predicate,
    included_paths,
    listing_digest,
    plan_bytes,
    plan_shards,
    read_manifest,
    read_plan,
    read_summary,
    shard_counts,
    split_of,
    summarize,
    write_manifest,
    write_plan,
)
from dataprep_assets.sources.access import SourceAccess
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.declaration import HubSource
from dataprep_assets.stream.source import is_mirrored, open_source, upstream_of
from dataprep_assets.stream.token_shard import TOKEN_BINS

T = TypeVar("T")

TRIES = 5
"""Maximum tries. One fails only if another run publishes the artifact in the milliseconds that a try takes."""


def read_whole(store: ArtifactStore, artifact: Artifact, read: Callable[[Path, Receipt], T]) -> T:
    """Return the result of `read` for an artifact's directory and receipt; retry if these belong to different builds.

    Raises MissingArtifactError if the artifact is missing, the errors of `read`, and IntegrityError if other runs
    replace the artifact at every try.
    """
    for _ in range(TRIES):
        receipt, error = store.require(artifact), None
        try:
            content = read(store.local(artifact), receipt)
        except (DataprepError, OSError) as caught:
            error = caught
        # The directory is replaced as a whole, so with the same receipt before and after, all content belongs to it.
        if store.require(artifact).content == receipt.content:
            if error is not None:
                raise error
            return content
    raise replaced_error(store, artifact)


def replaced_error(store: ArtifactStore, artifact: Artifact) -> IntegrityError:
    """Return the error for an artifact that other runs keep replacing."""
    return IntegrityError(
        f"{store.location(artifact)}: replaced repeatedly by other runs. Wait for them, then run again"
    )


def built_shards(corpus: CorpusDeclaration, store: ArtifactStore) -> Mapping[str, Collection[str]] | None:
    """Return the shards of a lost manifest, from receipts; None if they are ambiguous.

    If several plans left shards, only the shards in combined bins count.
    """
    artifacts = [corpus.artifact(TOKEN_BINS, p) for p in store.partitions(corpus.dataset, TOKEN_BINS)]
    # the literal name avoids a circular import, because that module imports this one
    combined = [corpus.artifact("combined_bins", split) for split in corpus.splits]
    try:
        shards = {str(r.partition): [line["file"] for line in r.sources] for r in store.receipts(artifacts) if r}
        made_of = {name for r in store.receipts(combined) if r for name in r.recipe.get("upstream", ())}
    except IntegrityError:
        return None
    # Obsolete shards of an earlier plan may contain the same files, but within a plan a file is in one shard only.
    for files_of in (shards, {key: files for key, files in shards.items() if f"{TOKEN_BINS}/{key}" in made_of}):
        if files_of and max(Counter(path for files in files_of.values() for path in files).values(), default=0) < 2:
            return files_of
    return None


logger = logging.getLogger(__name__)
_AGAIN = "If the source was meant to change, materialize `manifest` again"

VERSION = 2
MANIFEST = "manifest"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A finished manifest: its entries, and the entries of each shard by partition key."""

    entries: tuple[ManifestEntry, ...]
    plan: dict[str, range]
    receipt: Receipt

    def shard(self, partition: str) -> tuple[ManifestEntry, ...]:
        """Return the entries of one shard, in order; raise KeyError for an unknown partition."""
        ordinals = self.plan[partition]
        return self.entries[ordinals.start : ordinals.stop]

    def partitions(self, split: str) -> list[str]:
        """Return the partition keys of a split, in order."""
        return [key for key in self.plan if split_of(key) == split]


@dataclass(frozen=True, kw_only=True)
class PlannedManifest:
    """A manifest of the present source that is not committed yet.

    `listed` is the digest of the listing, `key` the digest of the whole manifest. `left_out` counts files that match
    `include` but contain no data. `before` is the content of the previous manifest and `changes` the changes since
    then; both are None without one. `no_split` lists the included files that match no split.
    """

    entries: list[ManifestEntry]
    plan: dict[str, list[int]]
    commit: str | None
    listed: str
    key: str
    before: str | None
    changes: ManifestChanges | None
    no_split: list[str]
    left_out: int = 0


def plan_manifest(
    corpus: CorpusDeclaration,
    store: ArtifactStore,
    *,
    patient: bool = True,
    kept: Mapping[str, Collection[str]] | None = None,
) -> PlannedManifest:
    """List the source and plan its shards; write nothing.

    Args:
        corpus: The dataset.
        store: The store of the previous manifest.
        patient: Whether to wait for an unreachable hub.
        kept: The shards to keep, with the paths of their files; None for the shards of the present manifest.

    With `shards.on_change: append`, the shards of the present manifest keep their files, unless the declared shard size
    has changed.
    """
    listing = open_source(corpus.source, patient=patient).list()
    listed_entries = build_manifest(
        listing.files,
        include=corpus.include,
        splits=corpus.splits,
        commit=listing.commit,
        url_prefix=listing.url_prefix,
    )
    before = load_manifest(corpus, store) if has_manifest(corpus, store) else None
    shards = _kept_shards(corpus, store, before) if kept is None else kept
    entries, plan = plan_shards(listed_entries, corpus.shards.sizing, shards)
    listing_hash = listing_digest(entries)
    # a shard is a range of the listing, so its first and last ordinals determine its files
    ends = {k: [o[0], o[-1]] for k, o in plan.items()}
    no_split = files_of_no_split(listing.files, include=corpus.include, splits=corpus.splits)
    key = digest_value(["manifest", VERSION, listing_hash, ends, no_split])
    changes = changes_between(before.entries, before.plan, entries, plan) if before is not None else None
    return PlannedManifest(
        entries=entries,
        plan=plan,
        commit=listing.commit,
        listed=listing_hash,
        key=key,
        before=None if before is None else before.receipt.content,
        changes=changes,
        no_split=no_split,
        left_out=len(included_paths(listing.left_out, corpus.include))
        + len(hidden_files(listing.files, include=corpus.include, splits=corpus.splits)),
    )


def _kept_shards(
    corpus: CorpusDeclaration, store: ArtifactStore, before: Manifest | None
) -> Mapping[str, Collection[str]] | None:
    """Return the shards that keep their files, with the paths; None to plan all files again."""
    if corpus.shards.on_change == "replan":
        return None
    if before is None:
        return built_shards(corpus, store)
    old_sizing, sizing = ShardSizing(**before.receipt.recipe["settings"]["shards"]), corpus.shards.sizing
    # sizes that give the same shards do not change the manifest, so its receipt may have earlier sizes
    same_sizes = old_sizing == sizing or _plan_shards(before, old_sizing) == _plan_shards(before, sizing)
    return {key: [e.relpath for e in before.shard(key)] for key in before.plan} if same_sizes else None


def _plan_shards(manifest: Manifest, sizing: ShardSizing) -> Mapping[str, Sequence[int]]:
    return plan_shards(manifest.entries, sizing)[1]


def build_manifest_artifact(
    corpus: CorpusDeclaration, store: ArtifactStore, warn: Callable[[str], None] = lambda _: None
) -> tuple[Receipt, bool]:
    """List the source and commit `manifest.jsonl`, `manifest_summary.json` and `shard_plan.json`.

    Args:
        corpus: The dataset.
        store: The store of its artifacts.
        warn: Called with a description of the changes since the previous manifest.

    Returns:
        The receipt, and whether the manifest was reused because it is unchanged.

    Raises IntegrityError if other runs keep replacing it.
    """
    for _ in range(TRIES):
        with suppress(_OvertakenError):
            return _commit(corpus, store, plan_manifest(corpus, store), warn)
    raise replaced_error(store, corpus.artifact(MANIFEST))


class _OvertakenError(Exception):
    """Another run has replaced the manifest that the planned one follows."""


def adopt_manifest(
    corpus: CorpusDeclaration, store: ArtifactStore, shards: Mapping[str, Sequence[str]], key: str
) -> None:
    """Commit the manifest with these shards, if it has the given key for the present source.

    A plan with appended files depends on earlier plans. A machine without these takes the shards from a lock.

    Args:
        corpus: The dataset.
        store: The store of its artifacts.
        shards: Partition key → paths of the shard's files.
        key: Expected key of the manifest.
    """
    plan = plan_manifest(corpus, store, kept=shards)
    if plan.key == key:
        with suppress(_OvertakenError):  # another run's manifest is kept
            _commit(corpus, store, plan, lambda _: None)


def _commit(
    corpus: CorpusDeclaration, store: ArtifactStore, planned: PlannedManifest, warn: Callable[[str], None]
) -> tuple[Receipt, bool]:
    def write(staged: Path) -> WrittenFiles:
        # checked under the lock, because a plan for an older manifest would reuse names of shards for other files
        present_receipt = store.intact_receipt(corpus.artifact(MANIFEST))
        if (None if present_receipt is None else present_receipt.content) != planned.before:
            raise _OvertakenError
        if summary := str(planned.changes or ""):
            warn("the source changed: " + summary)
        counts = shard_counts(planned.plan)
        write_manifest(staged, planned.entries, counts)
        write_plan(staged, planned.plan)
        return WrittenFiles(
            inputs={"listing": planned.listed},
            facts=ManifestFacts(
                commit=planned.commit,
                files=len(planned.entries),
                shards=counts,
                source_bytes=sum(e.size_bytes for e in planned.entries),
                **facts_of_no_split(planned.no_split),
                **{"files_left_out": planned.left_out} if planned.left_out else {},
            ),
        )

    return ensure(_recipe(corpus, planned), store, write)


def load_manifest(corpus: CorpusDeclaration, store: ArtifactStore) -> Manifest:
    """Return the committed manifest, with files of a single build; raise MissingArtifactError if there is none."""

    def read(directory: Path, receipt: Receipt) -> Manifest:
        plan = read_plan(directory)
        return Manifest(entries=tuple(read_manifest(directory)), plan=plan, receipt=receipt)

    return read_whole(store, corpus.artifact(MANIFEST), read)


def has_manifest(corpus: CorpusDeclaration, store: ArtifactStore) -> bool:
    """Return whether there is an intact manifest; a damaged one must be rebuilt."""
    return store.intact_receipt(corpus.artifact(MANIFEST)) is not None


def _settings(corpus: CorpusDeclaration) -> dict[str, Any]:
    return {
        "include": list(corpus.include),
        "splits": {name: list(globs) for name, globs in corpus.splits.items()},
        "shards": {"target_bytes": corpus.shards.target_bytes, "count": corpus.shards.count},
    }


def _recipe(corpus: CorpusDeclaration, planned: PlannedManifest) -> Recipe:
    return Recipe(
        artifact=corpus.artifact(MANIFEST),
        key=planned.key,
        version=VERSION,
        settings=_settings(corpus),
        sources={
            "listing": planned.listed,
            **({"files of no split": digest_value(planned.no_split)} if planned.no_split else {}),
        },
        source_changes=planned.changes.lines if planned.changes is not None else (),
    )


def _recipes(corpus: CorpusDeclaration, store: ArtifactStore, _: Sequence[str | None]) -> Iterator[Recipe]:
    """Yield the present recipe; a pinned source is not listed again, and an unreachable one is assumed unchanged."""
    artifact = corpus.artifact(MANIFEST)
    receipt = store.intact_receipt(artifact) if is_mirrored(corpus.source) else None
    if receipt is None:
        yield _recipe(corpus, plan_manifest(corpus, store))
        return
    # the present manifest's key stays valid unless the source has changed
    recipe = Recipe(artifact=artifact, key=receipt.key, version=VERSION)
    if not _is_pinned(corpus, receipt):
        try:
            recipe = _recipe(corpus, plan_manifest(corpus, store, patient=False))
        except TransferError as error:
            logger.warning("%s: the source cannot be checked for changes: %s", corpus.dataset, error)
    yield recipe


def _is_pinned(corpus: CorpusDeclaration, receipt: Receipt) -> bool:
    """Return whether the declaration pins the commit of the present manifest, with the same files and shards."""
    source = corpus.source
    if not isinstance(source, HubSource) or source.revision != ManifestFacts.of(receipt).commit:
        return False
    return bool(receipt.recipe["settings"] == _settings(corpus))


def _list_paths(corpus: CorpusDeclaration) -> list[str]:
    """Return the present paths of the source's files."""
    entries = build_manifest(open_source(corpus.source).list().files, include=corpus.include, splits=corpus.splits)
    return [entry.relpath for entry in entries]


def manifest_spec(corpus: CorpusDeclaration, *, plans: tuple[Partitions, ...], watch: SourceWatch) -> ArtifactSpec:
    """Return the spec of the manifest.

    Args:
        corpus: The dataset.
        plans: The shards of each split, which the manifest plans.
        watch: How to detect changes of the source.
    """
    return ArtifactSpec(
        declaration=corpus,
        name=MANIFEST,
        version=VERSION,
        description="Every source file in natural order, and the shard plan.",
        kinds={"json", corpus.source.kind},
        inputs=upstream_of(corpus.source),
        plans=plans,
        watch=watch,
        adopt=partial(adopt_manifest, corpus),
        listed=partial(_list_paths, corpus),
        verification="full",
        records_source=True,
        recipes=partial(_recipes, corpus),
        build=partial(_build, corpus),
        foresee=lambda request: [Outcome.from_receipt(*build_manifest_artifact(corpus, request.store))],
        metadata=partial(_metadata, corpus),
        losses=lambda _, receipts: left_out_files(receipts),
        check_groups=(WholeChecks(checks=_CHECKS, open=partial(_open, corpus)),),
    )


def _build(corpus: CorpusDeclaration, request: BuildRequest) -> list[Outcome]:
    """Build the manifest, and report the changes since the previous one, which are not known afterwards."""
    before = load_manifest(corpus, request.store) if has_manifest(corpus, request.store) else None
    receipt, reused = build_manifest_artifact(corpus, request.store, request.warn)
    if before is None or reused:
        return [Outcome.from_receipt(receipt, reused)]
    now = load_manifest(corpus, request.store)
    changes = changes_between(before.entries, before.plan, now.entries, now.plan)
    built_keys = [*changes.new_shards, *changes.edited_shards]
    amounts = Amounts.from_entries([entry for key in built_keys for entry in now.shard(key)], corpus, request.store)
    return [Outcome(partition="", receipt=receipt, metadata=changes_shown(corpus, changes, amounts))]


def _metadata(corpus: CorpusDeclaration, store: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    manifest = load_manifest(corpus, store)
    metadata: dict[str, Shown] = {f"shards_{split}": len(manifest.partitions(split)) for split in corpus.splits}
    for split in corpus.splits:
        members = [entry for entry in manifest.entries if entry.split == split]
        metadata[f"files_{split}"] = len(members)
        metadata[f"source_bytes_{split}"] = sum(entry.size_bytes for entry in members)
    facts = ManifestFacts.of(receipt)
    if facts.commit:
        metadata["commit"] = facts.commit
    return metadata | ({"files_left_out": facts.files_left_out} if facts.files_left_out else {})


@dataclass(frozen=True)
class _OpenedManifest:
    """A manifest, opened for checks, and the present source."""

    corpus: CorpusDeclaration
    store: ArtifactStore
    manifest: Manifest
    access: SourceAccess

    @property
    def present_entries(self) -> list[ManifestEntry]:
        """The entries that can be checked: of a hub's files, only the mirrored ones."""
        return [e for e in self.manifest.entries if not self.access.mirrored or self.access.path(e).exists()]


def _open(corpus: CorpusDeclaration, store: ArtifactStore, _: Sequence[str]) -> _OpenedManifest:
    return _OpenedManifest(corpus, store, load_manifest(corpus, store), open_source(corpus.source))


def count_matches(
    entries: Sequence[ManifestEntry],
    listed: Sequence[SourceFile],
    include: Sequence[str],
    splits: Mapping[str, Sequence[str]],
) -> Finding:
    """Check that the manifest lists exactly the files of a fresh listing for its globs, with sizes and digests."""
    is_included = include_predicate(include, naming=[glob for globs in splits.values() for glob in globs])
    patterns = {name: [glob_pattern(g) for g in globs] for name, globs in splits.items()}
    fresh: dict[str, tuple[SourceFile, str]] = {}
    for file in listed:
        homes = [name for name, globs in patterns.items() if any(p.fullmatch(file.relpath) for p in globs)]
        if homes and is_included(file.relpath):
            fresh[file.relpath] = file, homes[0]
    entry_of = {e.relpath: e for e in entries}
    missing = [path for path in entry_of if path not in fresh]
    extra = [path for path in fresh if path not in entry_of]
    repeated = [path for path, count in Counter(e.relpath for e in entries).items() if count > 1]
    changed = list(_describe_changes(entry_of, fresh))
    defects = []
    for paths, what in (
        (missing, "in the manifest, but not in the source"),
        (extra, "in the source, but not in the manifest"),
        (repeated, "in the manifest more than once"),
    ):
        if paths:
            defects.append(f"{count_of(len(paths), 'file')} {what}: {first_of(paths)}")
    return verdict(
        defects + changed,
        f"The manifest matches the source: {count_of(len(entries), 'file')} with their sizes and digests.",
        _AGAIN,
        facts={
            "files": len(entries),
            "files_in_source": len(fresh),
            "missing": len(missing),
            "extra": len(extra),
            "changed": len(changed),
            "bytes": sum(e.size_bytes for e in entries),
        },
    )


def _describe_changes(known: Mapping[str, ManifestEntry], fresh: Mapping[str, tuple[SourceFile, str]]) -> Iterator[str]:
    for path, entry in known.items():
        if path not in fresh:
            continue
        file, split = fresh[path]
        if entry.size_bytes != file.size_bytes:
            yield (
                f"{path}: the manifest lists {count_of(entry.size_bytes, 'byte')}, but the source has {file.size_bytes}"
            )
        elif entry.sha256 and file.sha256 and entry.sha256 != file.sha256:
            yield f"{path}: the manifest lists sha256 {entry.sha256}, but the source has {file.sha256}"
        # etags are compared only without digests, because a source with digests may change its etags
        elif not (entry.sha256 and file.sha256) and entry.etag and file.etag and entry.etag != file.etag:
            yield f"{path}: the manifest lists etag {entry.etag}, but the source has {file.etag}"
        elif entry.split != split:
            yield f"{path}: the manifest has it in split {entry.split}, but the globs match {split}"


def entries_resolve(
    entries: Sequence[ManifestEntry], resolve: Callable[[ManifestEntry], Path], *, seed: int, samples: int = 32
) -> Finding:
    """Check that a sample of entries exists with the manifest's sizes, at the paths that `resolve` returns."""
    rng = np.random.default_rng(seed)
    sample = sorted(rng.choice(len(entries), min(samples, len(entries)), replace=False).tolist()) if entries else []
    defects = []
    for entry in (entries[i] for i in sample):
        try:
            path = resolve(entry)
            size = path.stat().st_size
            if not path.is_file():
                defects.append(f"{entry.relpath}: {path} is not a file")
            elif size != entry.size_bytes:
                defects.append(
                    f"{entry.relpath}: {path} has {count_of(size, 'byte')}, but the manifest lists {entry.size_bytes}"
                )
        except OSError as error:
            defects.append(f"{entry.relpath}: {error.filename}: {error.strerror or error}")
        except DataprepError as error:
            defects.append(f"{entry.relpath}: {error}")
    return verdict(
        defects,
        f"Checked {len(sample):,} of {count_of(len(entries), 'file')} at random: all exist with the expected size.",
        "Materialize `snapshot` again, or restore the files",
        facts={"sampled": len(sample), "files": len(entries)},
    )


def plan_covers(entries: Sequence[ManifestEntry], plan: Mapping[str, range], others: Iterable[str] = ()) -> Finding:
    """Check that shards contain each ordinal exactly once, in order, and only files of their own splits.

    `others` are defects found by other checks of the plan.
    """
    return verdict(
        [*_uncovered(entries, plan), *others],
        f"{count_of(len(entries), 'file')} in the manifest, in {count_of(len(plan), 'shard')}: each once, in order.",
        "Materialize `manifest` again to make a new plan",
        facts={"shards": len(plan), "files": len(entries)},
    )


def _uncovered(entries: Sequence[ManifestEntry], plan: Mapping[str, range]) -> Iterator[str]:
    for position, entry in enumerate(entries):
        if entry.ordinal != position:
            yield f"{entry.relpath}: line {position + 1} of the manifest has ordinal {entry.ordinal}"
            # only the first one is reported, because all later ones are shifted as well
            break
    next_ordinal = 0
    for key, ordinals in plan.items():
        if not len(ordinals) or ordinals.step != 1:
            yield f"shard {key}: {ordinals} are not consecutive files"
            continue
        if ordinals.start > next_ordinal:
            skipped = first_of(e.relpath for e in entries[next_ordinal : ordinals.start])
            yield f"shard {key}: ordinals {next_ordinal} to {ordinals.start - 1} before it are in no shard: {skipped}"
        elif ordinals.start < next_ordinal:
            yield f"shard {key}: ordinals {ordinals.start} to {next_ordinal - 1} are in an earlier shard already"
        foreign = [e.relpath for e in entries[ordinals.start : ordinals.stop] if e.split != split_of(key)]
        if foreign:
            yield f"shard {key}: {count_of(len(foreign), 'file is', 'files are')} of another split: {first_of(foreign)}"
        # after an overlap the furthest end counts, because the files up to it are covered
        next_ordinal = max(next_ordinal, ordinals.stop)
    if next_ordinal != len(entries):
        yield f"the plan ends at ordinal {next_ordinal}, but the manifest has {count_of(len(entries), 'file')}"


def _other_claims(corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest) -> Iterator[str]:
    """Yield the claims of a manifest's summary and receipt that its lines contradict."""
    entries, counts = manifest.entries, shard_counts(manifest.plan)
    facts, where = ManifestFacts.of(manifest.receipt), store.location(corpus.artifact(MANIFEST))
    if (facts.files, facts.source_bytes) != (len(entries), sum(entry.size_bytes for entry in entries)):
        yield f"{where}: its receipt has other file or byte counts than its list"
    if facts.shards != counts:
        yield f"{where}: its receipt has other shard counts than its plan"
    # checked first, because `summarize` looks up the shards of every split
    if missing := sorted({entry.split for entry in entries} - {*counts}):
        yield f"{where}: its plan has no shard of {', '.join(missing)}"
    elif read_summary(store.local(corpus.artifact(MANIFEST))) != summarize(entries, counts):
        yield f"{where}: its summary does not match its list"
    folder = store.local(corpus.artifact(MANIFEST))
    if line_fault := describe_other_bytes(folder, entries):
        yield f"{where}: among its lines, {line_fault}"
    if (folder / SHARD_PLAN).read_bytes() != plan_bytes(manifest.plan):
        yield f"{where}: {SHARD_PLAN} is formatted differently"
    listing_hash = listing_digest(entries)
    if manifest.receipt.inputs.get("listing") not in (None, listing_hash):
        yield f"{where}: its lines do not match the listing in its receipt"


# The first two checks do not block. They read the present source, which is not part of the key, so a manifest that is
# up to date could stay blocked.
_CHECKS: tuple[Check[_OpenedManifest], ...] = (
    Check(
        "count_matches_source",
        "The manifest lists exactly the files that the source has now.",
        lambda opened: count_matches(
            opened.manifest.entries, opened.access.list().files, opened.corpus.include, opened.corpus.splits
        ),
        blocking=False,
    ),
    Check(
        "entries_resolve",
        "A sample of the listed files exists with the listed sizes.",
        # seeded by the key, so that the same manifest always gets the same sample
        lambda opened: entries_resolve(
            opened.present_entries, opened.access.path, seed=int(opened.manifest.receipt.key[:8], 16)
        ),
        blocking=False,
    ),
    Check(
        "plan_covers_manifest",
        "Every file is in exactly one shard, and the summary and the receipt agree.",
        lambda opened: plan_covers(
            opened.manifest.entries,
            opened.manifest.plan,
            _other_claims(opened.corpus, opened.store, opened.manifest),
        ),
    ),
)
