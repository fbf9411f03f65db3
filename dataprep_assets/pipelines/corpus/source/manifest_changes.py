"""Differences between two manifests and their consequences, shown by `status`, in the log and in the UI."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dataprep_assets.engine.artifact.build import Facts
from dataprep_assets.engine.artifact.losses import Loss
from dataprep_assets.engine.artifact.metadata_values import Markdown, ShownValue, Table
from dataprep_assets.engine.artifact.spec import join_counts
from dataprep_assets.engine.checks.check import SHOWN
from dataprep_assets.errors import IntegrityError, count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.planning.manifest import ManifestEntry, split_name
from dataprep_assets.stream.token_shard import TOKEN_BINS


class ManifestFacts(Facts):
    """Facts of the manifest: `shards` has the number of shards per split, `commit` the commit of a Hub repository.

    `no_split` is the number of included source files that match no split, and `first_of_no_split` lists the first of
    them. `files_left_out` is the number of included files without data (`sources/access.py`).
    """

    commit: str | None
    files: int
    shards: dict[str, int]
    source_bytes: int
    no_split: int = 0
    first_of_no_split: tuple[str, ...] = ()
    files_left_out: int = 0


def build_no_split_facts(files: Sequence[str]) -> dict[str, Any]:
    """Return the facts about files that match no split; empty if every file matches a split."""
    return {"no_split": len(files), "first_of_no_split": tuple(files[:SHOWN])} if files else {}


def find_left_out_files(receipts: Sequence[Receipt]) -> Iterator[Loss]:
    """Yield the losses of a manifest: included source files that match no split or contain no data."""
    for receipt in receipts:
        facts = ManifestFacts.from_receipt(receipt)
        split = Loss(
            action="left out",
            reason="no_split",
            count=facts.no_split,
            of=facts.files + facts.no_split + facts.files_left_out,
            unit="file",
            files=dict.fromkeys(facts.first_of_no_split, 1),
        )
        yield from (split, replace(split, reason="no_data", count=facts.files_left_out, files={}))


_MAX_SHOWN_FILES = 50
_RATED_SHARDS = 16
"""Number of shards whose rates represent all shards."""

Plan = Mapping[str, Sequence[int]]
"""Partition key → manifest ordinals."""


@dataclass(frozen=True, kw_only=True)
class ManifestChanges:
    """Differences between a planned manifest and the previous one; lists of paths and partition keys are sorted.

    Attributes:
        added: New files.
        removed: Files that no longer exist.
        edited: Files whose size, digest or version changed.
        no_split: Included files that match no split, without the files that the previous manifest listed as such.
        new_shards: New shards.
        edited_shards: Shards with different or edited files.
        gone_shards: Shards that are no longer in the plan.
        commit: The previous and the current commit of the Hub repository, if it changed.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()
    no_split: tuple[str, ...] = ()
    new_shards: tuple[str, ...] = ()
    edited_shards: tuple[str, ...] = ()
    gone_shards: tuple[str, ...] = ()
    commit: tuple[str, str] | None = None

    @property
    def has_file_changes(self) -> bool:
        """Whether any file was added, removed or edited; false if only shards or the commit changed."""
        return bool(self.added or self.removed or self.edited)

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines that describe the changes: one for the revision, if it changed, and one per changed file."""
        changes = [f"revision changed: {self.commit[0][:12]} → {self.commit[1][:12]}"] if self.commit else []
        files = (("new file", self.added), ("removed file", self.removed), ("edited file", self.edited))
        lines = (f"file {path} is in no split and is not read. Widen a glob in `splits:`" for path in self.no_split)
        return (*changes, *(f"{what} {path}" for what, paths in files for path in paths), *lines)

    def __str__(self) -> str:
        """Return the changes in one sentence; "" if there are none."""
        counts = join_counts(
            (
                (len(self.added), "file", "added"),
                (len(self.removed), "file", "removed"),
                (len(self.edited), "file", "changed"),
                (len(self.no_split), "file", "in no split"),
                (len(self.new_shards), "shard", "new"),
                (len(self.gone_shards), "shard", "gone"),
            )
        )
        changes = [f"the revision changed from {self.commit[0][:12]} to {self.commit[1][:12]}"] if self.commit else []
        return "; ".join(filter(None, [*changes, counts]))


@dataclass(frozen=True, kw_only=True)
class ShardWork:
    """The work for new and changed shards; tokens and CPU seconds are estimates."""

    source_bytes: int
    tokens: int
    cpu_seconds: float

    @classmethod
    def from_entries(
        cls, entries: Sequence[ManifestEntry], corpus: CorpusDeclaration, store: ArtifactStore
    ) -> "ShardWork":
        """Estimate the work for these files, from the rates of finished shards or, without any, of the benchmark."""
        from dataprep_assets.planning.cost import Rates, measure_density

        artifacts = [
            corpus.artifact(TOKEN_BINS, key) for key in store.partitions(corpus.dataset, TOKEN_BINS)[:_RATED_SHARDS]
        ]
        try:
            receipts = [receipt for receipt in store.receipts(artifacts) if receipt is not None]
        except IntegrityError:  # a run reports damaged receipts
            receipts = []
        total = Ledger.total(receipt.ledger for receipt in receipts if receipt.ledger is not None)
        seconds = sum(float(receipt.measured.get("cpu_seconds", 0)) for receipt in receipts)
        source_bytes = sum(entry.size_bytes for entry in entries)
        rates = Rates.from_receipts(
            total.source_bytes,
            total.tokens,
            seconds,
            bytes_per_token=Rates.bytes_per_token,
            density=measure_density(entries),
        )
        return cls(
            source_bytes=source_bytes,
            tokens=round(source_bytes * rates.tokens_per_source_byte),
            cpu_seconds=source_bytes / rates.source_bytes_per_cpu_second,
        )

    def __str__(self) -> str:
        from dataprep_assets.planning.cost import format_bytes, format_seconds

        seconds = format_seconds(self.cpu_seconds).strip()
        return (
            f"{format_bytes(self.source_bytes)} of source, about {count_of(self.tokens, 'token')}, about {seconds} on "
            "one core"
        )


def compare_manifests(
    old_entries: Sequence[ManifestEntry], old_plan: Plan, entries: Sequence[ManifestEntry], plan: Plan
) -> ManifestChanges:
    """Return the differences between an old manifest and a new one (`entries` and `plan`)."""
    old, new = {e.relpath: e for e in old_entries}, {e.relpath: e for e in entries}
    # Take the first commit on each side, because all files of a listing have the same commit or none.
    commits = [next((e.commit for e in side if e.commit), None) for side in (old_entries, entries)]
    return ManifestChanges(
        added=tuple(path for path in new if path not in old),
        removed=tuple(path for path in old if path not in new),
        edited=tuple(p for p, e in new.items() if p in old and identify_entry(old[p]) != identify_entry(e)),
        new_shards=tuple(key for key in plan if key not in old_plan),
        # Compare names and identities, because ordinals also change when a different split gains files.
        edited_shards=tuple(
            key
            for key in plan
            if key in old_plan and _list_identities(entries, plan[key]) != _list_identities(old_entries, old_plan[key])
        ),
        gone_shards=tuple(key for key in old_plan if key not in plan),
        commit=(commits[0], commits[1]) if commits[0] and commits[1] and commits[0] != commits[1] else None,
    )


def _list_identities(entries: Sequence[ManifestEntry], ordinals: Iterable[int]) -> list[tuple[object, ...]]:
    return [(entries[ordinal].relpath, *identify_entry(entries[ordinal])) for ordinal in ordinals]


def identify_entry(entry: ManifestEntry) -> tuple[str, int, str | None]:
    """Return the values that identify a listed file's bytes: split, size, and SHA-256 or the source's version."""
    return entry.split, entry.size_bytes, entry.sha256 or entry.etag


def build_change_metadata(
    corpus: CorpusDeclaration, changes: ManifestChanges, amounts: ShardWork
) -> dict[str, ShownValue]:
    """Build the metadata of a manifest that replaced an earlier one: the changes, the files, and the resulting work.

    Args:
        corpus: The dataset; files of a sensitive dataset are not listed.
        changes: The changes.
        amounts: The work for new and changed shards.
    """
    if not (sentence := str(changes)):
        return {}
    metadata: dict[str, ShownValue] = {"changes": sentence}
    files = [
        {"file": path, "change": verb}
        for verb, paths in (("added", changes.added), ("removed", changes.removed), ("changed", changes.edited))
        for path in paths
    ]
    if files and not corpus.sensitive:
        last_line = (
            [{"file": f"and {len(files) - _MAX_SHOWN_FILES} more", "change": ""}]
            if len(files) > _MAX_SHOWN_FILES
            else []
        )
        metadata["changed_files"] = Table([*files[:_MAX_SHOWN_FILES], *last_line])
    if rows := [row for split in corpus.splits if (row := _count_split_changes(split, changes))]:
        metadata["changed_shards"] = Table(rows)
        metadata["effects"] = Markdown(_list_effects(corpus, [str(row["split"]) for row in rows], changes, amounts))
    return metadata


def _count_split_changes(split: str, changes: ManifestChanges) -> dict[str, int | str]:
    """Count a split's new, changed and removed shards, with the first and last of each kind; empty if unchanged."""
    row: dict[str, int | str] = {}
    kinds = {"new": changes.new_shards, "changed": changes.edited_shards, "gone": changes.gone_shards}
    for kind, shards in kinds.items():
        keys = [key for key in shards if split_name(key) == split]
        row[kind] = len(keys)
        row[f"{kind}_shards"] = "..".join(dict.fromkeys([keys[0], keys[-1]])) if keys else ""
    return {"split": split, **row} if any(row.values()) else {}


def _list_effects(
    corpus: CorpusDeclaration, splits: Sequence[str], changes: ManifestChanges, amounts: ShardWork
) -> str:
    shard_count = len(changes.new_shards) + len(changes.edited_shards)
    lines = []
    if shard_count:
        work = f"- `snapshot` and `token_bins` of {count_of(shard_count, 'shard')}, and of no other shard: "
        lines.append(work + str(amounts))
    if corpus.combines:
        views = f", then {count_of(len(corpus.views), 'view')}" if corpus.views else ""
        lines.append(f"- `combined_bins` of {', '.join(splits)}" + views)
    else:
        lines.append(f"- all artifacts built from {', '.join(splits)}")
    if changes.gone_shards:
        removal = f"- {count_of(len(changes.gone_shards), 'shard')}: kept until "
        lines.append(removal + f"`dataprep prune {corpus.dataset} --yes`")
    lines.append(f"- `dataprep status {corpus.dataset}` shows the whole list, with sizes and times")
    return "\n".join(lines)
