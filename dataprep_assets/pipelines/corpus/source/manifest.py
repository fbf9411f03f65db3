"""Manifest (`<dataset>/manifest`): all source files, and the shard plan, which registers the shards' partitions."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dataprep_assets.engine.artifact.build import WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.metadata_values import ShownValue
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, FindRetracted, Partitions, SourceWatch
from dataprep_assets.engine.checks.check import Check, Finding, build_verdict, join_first
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.errors import DataprepError, IntegrityError, TransferError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.declaration import COMBINED_BINS, CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest_changes import (
    ManifestChanges,
    ManifestFacts,
    ShardWork,
    build_change_metadata,
    build_no_split_facts,
    compare_manifests,
    find_left_out_files,
)
from dataprep_assets.planning.manifest import (
    SHARD_PLAN,
    ManifestEntry,
    ShardSizing,
    SourceFile,
    build_include_predicate,
    build_manifest,
    compile_glob,
    count_shards,
    describe_other_bytes,
    digest_listing,
    find_hidden_files,
    find_unassigned_files,
    format_plan,
    plan_shards,
    read_manifest,
    read_plan,
    read_summary,
    select_included_paths,
    split_name,
    summarize_manifest,
    write_manifest,
    write_plan,
)
from dataprep_assets.sources.access import SourceAccess
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.declaration import HubSource
from dataprep_assets.stream.source import is_mirrored, list_upstream_assets, open_source
from dataprep_assets.stream.token_shard import TOKEN_BINS

T = TypeVar("T")

MAX_TRIES = 5
"""Maximum number of tries; a try fails only if another run publishes the artifact in the same milliseconds."""


def read_whole(store: ArtifactStore, artifact: Artifact, read_file: Callable[[Path, Receipt], T]) -> T:
    """Call `read_file` with an artifact's directory and receipt; retry if they belong to different builds.

    Raises MissingArtifactError if the artifact is missing, the errors of `read_file`, and IntegrityError if other runs
    replace the artifact at every try.
    """
    for _ in range(MAX_TRIES):
        receipt, error = store.require(artifact), None
        try:
            content = read_file(store.local(artifact), receipt)
        except (DataprepError, OSError) as caught:
            error = caught
        # A directory is replaced as a whole, so if the receipt is unchanged, the content belongs to this receipt.
        if store.require(artifact).content == receipt.content:
            if error is not None:
                raise error
            return content
    raise build_replaced_error(store, artifact)


def build_replaced_error(store: ArtifactStore, artifact: Artifact) -> IntegrityError:
    """Return the error for an artifact that other runs keep replacing."""
    return IntegrityError(
        f"{store.location(artifact)}: replaced repeatedly by other runs. Wait until they have ended, then run the "
        "dataset again"
    )


def read_built_shards(corpus: CorpusDeclaration, store: ArtifactStore) -> Mapping[str, Collection[str]] | None:
    """Reconstruct the shards of a lost manifest from receipts; return None if they are ambiguous.

    If shards of several plans exist, only the shards in combined bins count.
    """
    artifacts = [corpus.artifact(TOKEN_BINS, p) for p in store.partitions(corpus.dataset, TOKEN_BINS)]
    combined = [corpus.artifact(COMBINED_BINS, split) for split in corpus.splits]
    try:
        shards = {str(r.partition): [line["file"] for line in r.sources] for r in store.receipts(artifacts) if r}
        input_names = {name for r in store.receipts(combined) if r for name in r.recipe.get("upstream", ())}
    except IntegrityError:
        return None
    # A file in two shards shows that some of the shards are obsolete, because a plan has each file in only one shard.
    for candidates in (shards, {key: files for key, files in shards.items() if f"{TOKEN_BINS}/{key}" in input_names}):
        if candidates and max(Counter(path for files in candidates.values() for path in files).values(), default=0) < 2:
            return candidates
    return None


logger = logging.getLogger(__name__)
_REBUILD = "If the source was meant to change, rebuild `manifest`"

VERSION = 2
MANIFEST = "manifest"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A finished manifest: its entries, and the ordinals of each shard's entries by partition key."""

    entries: tuple[ManifestEntry, ...]
    plan: dict[str, range]
    receipt: Receipt

    def shard(self, partition: str) -> tuple[ManifestEntry, ...]:
        """Return the entries of one shard, in order; raise KeyError for an unknown partition."""
        ordinals = self.plan[partition]
        return self.entries[ordinals.start : ordinals.stop]

    def partitions(self, split: str) -> list[str]:
        """Return the partition keys of a split, in order."""
        return [key for key in self.plan if split_name(key) == split]


@dataclass(frozen=True, kw_only=True)
class PlannedManifest:
    """A manifest of the current source that is not committed yet.

    `listed` is the digest of the listing, and `key` is the digest of the whole manifest. `left_out` is the number of
    files that match `include` but contain no data. `before` is the content of the previous manifest, and `changes` are
    the changes since then; both are None without a previous manifest. `no_split` lists the included files that match no
    split.
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
    kept_files: Mapping[str, Collection[str]] | None = None,
) -> PlannedManifest:
    """List the source and plan its shards; write nothing.

    Args:
        corpus: The dataset.
        store: The store of the previous manifest.
        patient: Whether to wait for an unreachable source.
        kept_files: The shards to keep, with the paths of their files; None for the shards of the current manifest.

    With `shards.on_change: append`, the shards of the current manifest keep their files, unless the declared shard size
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
    previous_manifest = load_manifest(corpus, store) if has_manifest(corpus, store) else None
    shards = _find_kept_shards(corpus, store, previous_manifest) if kept_files is None else kept_files
    entries, plan = plan_shards(listed_entries, corpus.shards.sizing, shards)
    listing_hash = digest_listing(entries)
    # Include only the first and last ordinals of each shard in the key, because a shard is a range of the listing.
    ends = {k: [o[0], o[-1]] for k, o in plan.items()}
    no_split = find_unassigned_files(listing.files, include=corpus.include, splits=corpus.splits)
    key = digest_value(["manifest", VERSION, listing_hash, ends, no_split])
    changes = None
    if previous_manifest is not None:
        facts = ManifestFacts.from_receipt(previous_manifest.receipt)
        # The receipt of a manifest names only the first few files without a split, so new files without a split can be
        # identified only if the previous receipt names all of them.
        is_listed = facts.no_split == len(facts.first_of_no_split)
        new_paths = [path for path in no_split if path not in facts.first_of_no_split] if is_listed else []
        changes = replace(
            compare_manifests(previous_manifest.entries, previous_manifest.plan, entries, plan),
            no_split=tuple(new_paths),
        )
    return PlannedManifest(
        entries=entries,
        plan=plan,
        commit=listing.commit,
        listed=listing_hash,
        key=key,
        before=None if previous_manifest is None else previous_manifest.receipt.content,
        changes=changes,
        no_split=no_split,
        left_out=len(select_included_paths(listing.left_out, corpus.include))
        + len(find_hidden_files(listing.files, include=corpus.include, splits=corpus.splits)),
    )


def _find_kept_shards(
    corpus: CorpusDeclaration, store: ArtifactStore, previous_manifest: Manifest | None
) -> Mapping[str, Collection[str]] | None:
    """Return the shards that keep their files, with the files' paths; None if all files are planned again."""
    if corpus.shards.on_change == "replan":
        return None
    if previous_manifest is None:
        return read_built_shards(corpus, store)
    old_sizing, sizing = ShardSizing(**previous_manifest.receipt.recipe["settings"]["shards"]), corpus.shards.sizing
    # Also compare the plans, because a receipt keeps the old sizes if the new sizes gave the same shards.
    same_sizes = old_sizing == sizing or _plan_shards(previous_manifest, old_sizing) == _plan_shards(
        previous_manifest, sizing
    )
    return (
        {key: [e.relpath for e in previous_manifest.shard(key)] for key in previous_manifest.plan}
        if same_sizes
        else None
    )


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
    for _ in range(MAX_TRIES):
        with suppress(_OvertakenError):
            return _commit_manifest(corpus, store, plan_manifest(corpus, store), warn)
    raise build_replaced_error(store, corpus.artifact(MANIFEST))


class _OvertakenError(Exception):
    """Error: another run has replaced the manifest on which the planned manifest is based."""


def adopt_manifest(
    corpus: CorpusDeclaration, store: ArtifactStore, shards: Mapping[str, Sequence[str]], key: str
) -> None:
    """Commit a manifest with the given shards if, for the current source, it has the expected key.

    A plan with appended files depends on earlier plans. A machine without these plans takes the shards from a lock.

    Args:
        corpus: The dataset.
        store: The store of its artifacts.
        shards: Partition key → paths of the shard's files.
        key: Expected key of the manifest.
    """
    plan = plan_manifest(corpus, store, kept_files=shards)
    if plan.key == key:
        with suppress(_OvertakenError):  # keep the manifest that another run has built in the meantime
            _commit_manifest(corpus, store, plan, lambda _: None)


def _commit_manifest(
    corpus: CorpusDeclaration, store: ArtifactStore, manifest: PlannedManifest, warn: Callable[[str], None]
) -> tuple[Receipt, bool]:
    def write(staged: Path) -> WrittenFiles:
        # Check under the lock that the manifest was not replaced, because a plan based on an older manifest could reuse
        # shard names for other files.
        present_receipt = store.intact_receipt(corpus.artifact(MANIFEST))
        if (None if present_receipt is None else present_receipt.content) != manifest.before:
            raise _OvertakenError
        if summary := str(manifest.changes or ""):
            warn("the source changed: " + summary)
        counts = count_shards(manifest.plan)
        write_manifest(staged, manifest.entries, counts)
        write_plan(staged, manifest.plan)
        return WrittenFiles(
            inputs={"listing": manifest.listed},
            facts=ManifestFacts(
                commit=manifest.commit,
                files=len(manifest.entries),
                shards=counts,
                source_bytes=sum(e.size_bytes for e in manifest.entries),
                **build_no_split_facts(manifest.no_split),
                **{"files_left_out": manifest.left_out} if manifest.left_out else {},
            ),
        )

    return ensure_built(_build_recipe(corpus, manifest), store, write)


def load_manifest(corpus: CorpusDeclaration, store: ArtifactStore) -> Manifest:
    """Read the committed manifest, with all files from the same build; raise MissingArtifactError if there is none."""

    def read(directory: Path, receipt: Receipt) -> Manifest:
        plan = read_plan(directory)
        return Manifest(entries=tuple(read_manifest(directory)), plan=plan, receipt=receipt)

    return read_whole(store, corpus.artifact(MANIFEST), read)


def has_manifest(corpus: CorpusDeclaration, store: ArtifactStore) -> bool:
    """Return whether there is an intact manifest; a damaged one must be rebuilt."""
    return store.intact_receipt(corpus.artifact(MANIFEST)) is not None


def _build_key_settings(corpus: CorpusDeclaration) -> dict[str, Any]:
    return {
        "include": list(corpus.include),
        "splits": {name: list(globs) for name, globs in corpus.splits.items()},
        "shards": {"target_bytes": corpus.shards.target_bytes, "count": corpus.shards.count},
    }


def _build_recipe(corpus: CorpusDeclaration, manifest: PlannedManifest) -> Recipe:
    return Recipe(
        artifact=corpus.artifact(MANIFEST),
        key=manifest.key,
        version=VERSION,
        settings=_build_key_settings(corpus),
        sources={
            "listing": manifest.listed,
            **({"files of no split": digest_value(manifest.no_split)} if manifest.no_split else {}),
        },
        source_changes=manifest.changes.lines if manifest.changes is not None else (),
    )


def _build_recipes(corpus: CorpusDeclaration, store: ArtifactStore, _: Sequence[str | None]) -> Iterator[Recipe]:
    """Yield the current recipe; a pinned source is not listed, and an unreachable source is assumed unchanged."""
    artifact = corpus.artifact(MANIFEST)
    receipt = store.intact_receipt(artifact) if is_mirrored(corpus.source) else None
    if receipt is None:
        yield _build_recipe(corpus, plan_manifest(corpus, store))
        return
    # If the source is pinned or cannot be reached, use the key of the current manifest, so that the manifest counts as
    # up to date.
    recipe = Recipe(artifact=artifact, key=receipt.key, version=VERSION)
    if not _is_pinned(corpus, receipt):
        try:
            recipe = _build_recipe(corpus, plan_manifest(corpus, store, patient=False))
        except TransferError as error:
            logger.warning("%s: the source cannot be checked for changes: %s", corpus.dataset, error)
    yield recipe


def _is_pinned(corpus: CorpusDeclaration, receipt: Receipt) -> bool:
    """Return whether the declaration pins the commit of the current manifest, with the same files and shards."""
    source = corpus.source
    if not isinstance(source, HubSource) or source.revision != ManifestFacts.from_receipt(receipt).commit:
        return False
    return bool(receipt.recipe["settings"] == _build_key_settings(corpus))


def _list_paths(corpus: CorpusDeclaration) -> list[str]:
    """Return the current paths of the source's files."""
    entries = build_manifest(open_source(corpus.source).list().files, include=corpus.include, splits=corpus.splits)
    return [entry.relpath for entry in entries]


def build_manifest_spec(
    corpus: CorpusDeclaration, *, plans: tuple[Partitions, ...], watch: SourceWatch, find_retracted: FindRetracted
) -> ArtifactSpec:
    """Return the spec of the manifest.

    Args:
        corpus: The dataset.
        plans: The shards of each split, which the manifest plans.
        watch: The method for detecting changes to the source.
        find_retracted: The function that finds unplanned artifacts with removed documents.
    """
    return ArtifactSpec(
        declaration=corpus,
        name=MANIFEST,
        version=VERSION,
        description="All source files in natural order, and the shard plan.",
        kinds={"json", corpus.source.kind},
        inputs=list_upstream_assets(corpus.source),
        plans=plans,
        watch=watch,
        find_retracted=find_retracted,
        adopt=partial(adopt_manifest, corpus),
        listed=partial(_list_paths, corpus),
        verification="full",
        records_source=True,
        recipes=partial(_build_recipes, corpus),
        build=partial(_build_manifest, corpus),
        foresee=lambda request: [Outcome.from_receipt(*build_manifest_artifact(corpus, request.store))],
        metadata=partial(_build_metadata, corpus),
        losses=lambda _, receipts: find_left_out_files(receipts),
        check_groups=(WholeArtifactChecks(checks=_CHECKS, open=partial(_open_manifest, corpus)),),
    )


def _build_manifest(corpus: CorpusDeclaration, request: BuildRequest) -> list[Outcome]:
    """Build the manifest and report the changes since the previous manifest, which are not known afterwards."""
    previous_manifest = load_manifest(corpus, request.store) if has_manifest(corpus, request.store) else None
    receipt, reused = build_manifest_artifact(corpus, request.store, request.warn)
    if previous_manifest is None or reused:
        return [Outcome.from_receipt(receipt, reused)]
    new = load_manifest(corpus, request.store)
    changes = compare_manifests(previous_manifest.entries, previous_manifest.plan, new.entries, new.plan)
    built_keys = [*changes.new_shards, *changes.edited_shards]
    amounts = ShardWork.from_entries([entry for key in built_keys for entry in new.shard(key)], corpus, request.store)
    return [Outcome(partition="", receipt=receipt, metadata=build_change_metadata(corpus, changes, amounts))]


def _build_metadata(corpus: CorpusDeclaration, store: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    manifest = load_manifest(corpus, store)
    metadata: dict[str, ShownValue] = {f"shards_{split}": len(manifest.partitions(split)) for split in corpus.splits}
    for split in corpus.splits:
        members = [entry for entry in manifest.entries if entry.split == split]
        metadata[f"files_{split}"] = len(members)
        metadata[f"source_bytes_{split}"] = sum(entry.size_bytes for entry in members)
    facts = ManifestFacts.from_receipt(receipt)
    if facts.commit:
        metadata["commit"] = facts.commit
    return metadata | ({"files_left_out": facts.files_left_out} if facts.files_left_out else {})


@dataclass(frozen=True)
class _OpenedManifest:
    """Manifest, opened for checks, and the current source."""

    corpus: CorpusDeclaration
    store: ArtifactStore
    manifest: Manifest
    access: SourceAccess

    @property
    def current_entries(self) -> list[ManifestEntry]:
        """Entries whose files can be checked; for a remote source, only the entries of mirrored files."""
        return [e for e in self.manifest.entries if not self.access.mirrored or self.access.path(e).exists()]


def _open_manifest(corpus: CorpusDeclaration, store: ArtifactStore, _: Sequence[str]) -> _OpenedManifest:
    return _OpenedManifest(corpus, store, load_manifest(corpus, store), open_source(corpus.source))


def check_listing(
    entries: Sequence[ManifestEntry],
    files: Sequence[SourceFile],
    include: Sequence[str],
    splits: Mapping[str, Sequence[str]],
) -> Finding:
    """Check that the manifest has exactly the files of a new listing that its globs match, with sizes and digests."""
    is_included = build_include_predicate(include, naming=[glob for globs in splits.values() for glob in globs])
    patterns = {name: [compile_glob(g) for g in globs] for name, globs in splits.items()}
    current_files: dict[str, tuple[SourceFile, str]] = {}
    for file in files:
        matching_splits = [name for name, globs in patterns.items() if any(p.fullmatch(file.relpath) for p in globs)]
        if matching_splits and is_included(file.relpath):
            current_files[file.relpath] = file, matching_splits[0]
    entry_by_path = {e.relpath: e for e in entries}
    missing = [path for path in entry_by_path if path not in current_files]
    extra = [path for path in current_files if path not in entry_by_path]
    repeated = [path for path, count in Counter(e.relpath for e in entries).items() if count > 1]
    changed = list(_describe_changes(entry_by_path, current_files))
    defects = []
    for paths, description in (
        (missing, "in the manifest, but not in the source"),
        (extra, "in the source, but not in the manifest"),
        (repeated, "in the manifest more than once"),
    ):
        if paths:
            defects.append(f"{count_of(len(paths), 'file is', 'files are')} {description}: {join_first(paths)}")
    return build_verdict(
        defects + changed,
        f"The manifest matches the source: {count_of(len(entries), 'file')} with their sizes and digests.",
        _REBUILD,
        facts={
            "files": len(entries),
            "files_in_source": len(current_files),
            "missing": len(missing),
            "extra": len(extra),
            "changed": len(changed),
            "bytes": sum(e.size_bytes for e in entries),
        },
    )


def _describe_changes(
    known_entries: Mapping[str, ManifestEntry], current_files: Mapping[str, tuple[SourceFile, str]]
) -> Iterator[str]:
    for path, entry in known_entries.items():
        if path not in current_files:
            continue
        file, split = current_files[path]
        if entry.size_bytes != file.size_bytes:
            yield (
                f"{path}: the manifest lists {count_of(entry.size_bytes, 'byte')}, but the source has "
                f"{file.size_bytes:,}"
            )
        elif entry.sha256 and file.sha256 and entry.sha256 != file.sha256:
            yield f"{path}: the manifest lists sha256 {entry.sha256}, but the source has {file.sha256}"
        # Compare the etags only if a digest is missing, because an etag can change without a change of the bytes.
        elif not (entry.sha256 and file.sha256) and entry.etag and file.etag and entry.etag != file.etag:
            yield f"{path}: the manifest lists etag {entry.etag}, but the source has {file.etag}"
        elif entry.split != split:
            yield f"{path}: the manifest lists split {entry.split}, but the globs assign the file to {split}"


def check_entries(
    entries: Sequence[ManifestEntry], resolve: Callable[[ManifestEntry], Path], *, seed: int, samples: int = 32
) -> Finding:
    """Check that the files of a sample of entries exist with the listed sizes, at the paths that `resolve` returns."""
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
    return build_verdict(
        defects,
        f"Checked {len(sample):,} of {count_of(len(entries), 'file')} at random: all exist with the expected size.",
        "Rebuild `snapshot`, or restore the files",
        facts={"sampled": len(sample), "files": len(entries)},
    )


def check_plan(
    entries: Sequence[ManifestEntry], plan: Mapping[str, range], other_defects: Iterable[str] = ()
) -> Finding:
    """Check that shards contain each ordinal exactly once, in order, and only files of their own splits.

    `other_defects` are defects that other checks of the plan found.
    """
    return build_verdict(
        [*_find_plan_defects(entries, plan), *other_defects],
        f"The plan has {count_of(len(plan), 'shard')} with the manifest's {count_of(len(entries), 'file')}, each once "
        "and in order.",
        "Rebuild `manifest` to make a new plan",
        facts={"shards": len(plan), "files": len(entries)},
    )


def _find_plan_defects(entries: Sequence[ManifestEntry], plan: Mapping[str, range]) -> Iterator[str]:
    for position, entry in enumerate(entries):
        if entry.ordinal != position:
            yield f"{entry.relpath}: line {position + 1} of the manifest has ordinal {entry.ordinal}, not {position}"
            # Report only the first wrong ordinal, because a missing or additional line changes all later ordinals.
            break
    next_ordinal = 0
    for key, ordinals in plan.items():
        if not len(ordinals) or ordinals.step != 1:
            yield f"shard {key}: contains no files, because its range of ordinals is empty"
            continue
        if ordinals.start > next_ordinal:
            skipped = join_first(e.relpath for e in entries[next_ordinal : ordinals.start])
            gap = f"ordinals {next_ordinal} to {ordinals.start - 1}"
            yield f"shard {key}: {gap} before this shard are in no shard: {skipped}"
        elif ordinals.start < next_ordinal:
            yield f"shard {key}: ordinals {ordinals.start} to {next_ordinal - 1} are already in an earlier shard"
        foreign = [e.relpath for e in entries[ordinals.start : ordinals.stop] if e.split != split_name(key)]
        if foreign:
            belong = count_of(len(foreign), "file belongs", "files belong")
            yield f"shard {key}: {belong} to a different split: {join_first(foreign)}"
        # After overlapping shards, continue at the furthest end, because all files before it are in a shard.
        next_ordinal = max(next_ordinal, ordinals.stop)
    if next_ordinal != len(entries):
        yield f"the plan has {count_of(next_ordinal, 'file')}, but the manifest has {len(entries):,}"


def _find_false_claims(corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest) -> Iterator[str]:
    """Yield a sentence for each claim of a manifest's summary or receipt that its lines contradict."""
    entries, counts = manifest.entries, count_shards(manifest.plan)
    facts, location = ManifestFacts.from_receipt(manifest.receipt), store.location(corpus.artifact(MANIFEST))
    if (facts.files, facts.source_bytes) != (len(entries), sum(entry.size_bytes for entry in entries)):
        yield f"{location}: the file or byte count in the receipt differs from the list of files"
    if facts.shards != counts:
        yield f"{location}: the shard counts in the receipt differ from the plan"
    # Look for splits without shards first, because `summarize_manifest` raises an error for such a split.
    if missing := sorted({entry.split for entry in entries} - {*counts}):
        yield f"{location}: the plan has no shard of {', '.join(missing)}"
    elif read_summary(store.local(corpus.artifact(MANIFEST))) != summarize_manifest(entries, counts):
        yield f"{location}: the summary does not match the list of files"
    folder = store.local(corpus.artifact(MANIFEST))
    if line_fault := describe_other_bytes(folder, entries):
        yield f"{location}: manifest.jsonl: {line_fault}"
    if (folder / SHARD_PLAN).read_bytes() != format_plan(manifest.plan):
        yield f"{location}: {SHARD_PLAN} is not in canonical form"
    listing_hash = digest_listing(entries)
    if manifest.receipt.inputs.get("listing") not in (None, listing_hash):
        yield f"{location}: the list of files does not match the listing's digest in the receipt"


# The first two checks do not block, because they read the current source. If it has changed since the manifest was
# built, they fail although the manifest is undamaged.
_CHECKS: tuple[Check[_OpenedManifest], ...] = (
    Check(
        "count_matches_source",
        "The manifest lists exactly the files that are now in the source.",
        lambda opened: check_listing(
            opened.manifest.entries, opened.access.list().files, opened.corpus.include, opened.corpus.splits
        ),
        blocking=False,
    ),
    Check(
        "entries_resolve",
        "Every file in a sample of the manifest exists and has the listed size.",
        # Use the key as the seed, so that every check of the same manifest gets the same sample.
        lambda opened: check_entries(
            opened.current_entries, opened.access.path, seed=int(opened.manifest.receipt.key[:8], 16)
        ),
        blocking=False,
    ),
    Check(
        "plan_covers_manifest",
        "Every file is in exactly one shard, and the manifest's summary matches its receipt.",
        lambda opened: check_plan(
            opened.manifest.entries,
            opened.manifest.plan,
            _find_false_claims(opened.corpus, opened.store, opened.manifest),
        ),
    ),
)
