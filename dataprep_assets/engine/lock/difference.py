"""Differences between two locks: documents and tokens by split and source file, and changed artifacts with reasons.

No data is read. Source files are compared by split and path, regardless of their shard. Two corpora with the same
documents in different shards therefore have no differing files.

Entry points: `compare_locks`, `LockDifference.lines`, `LockDifference.to_json`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dataprep_assets.engine.lock.lock import Lock, LockCounts, strip_row_range
from dataprep_assets.engine.privacy import OPEN, Privacy
from dataprep_assets.errors import count_of
from dataprep_assets.planning.manifest import split_name

_MAX_LINES = 20
"""Maximum number of lines of one kind in the text output; JSON has all lines."""

_Files = Mapping[tuple[str, str], tuple[frozenset[str], LockCounts]]
"""Split and path → digests and counts. A file has several digests if it changed between reads of its parts."""


@dataclass(frozen=True, kw_only=True)
class ChangedSource:
    """A source file that differs between two locks; its counts are None for a lock that lacks the file."""

    split: str
    file: str
    before: LockCounts | None
    after: LockCounts | None

    @property
    def kind(self) -> str:
        """`added`, `removed` or `changed`."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"


@dataclass(frozen=True, kw_only=True)
class LockDifference:
    """The differences between two locks.

    Attributes:
        names: Names of the two locks, for the output.
        totals: Split → number of source files and sum of their counts, in both locks.
        files: Source files that differ, ordered by split and path.
        added: Artifacts that only the second lock has.
        removed: Artifacts that only the first lock has.
        changed: Artifacts whose content or recipe differs → the difference.
        obsolete: Artifacts in one lock that no run would build. They do not count as a difference.
    """

    names: tuple[str, str]
    totals: Mapping[str, Sequence[tuple[int, LockCounts]]]
    files: Sequence[ChangedSource]
    added: Sequence[str]
    removed: Sequence[str]
    changed: Mapping[str, str]
    obsolete: Sequence[str]

    @property
    def is_empty(self) -> bool:
        """Whether the two locks are equal."""
        return not (self.files or self.added or self.removed or self.changed)

    def to_json(self, privacy: Privacy = OPEN) -> dict[str, Any]:
        """Return the differences as plain builtins, with counts in their public form."""

        def format_counts(counts: LockCounts | None) -> dict[str, Any] | None:
            return None if counts is None else privacy.public_row(asdict(counts))

        return {
            "a": self.names[0],
            "b": self.names[1],
            "same": self.is_empty,
            "splits": {
                split: {
                    side: privacy.public_row({"files": files, **asdict(total)})
                    for side, (files, total) in zip("ab", sides, strict=True)
                }
                for split, sides in self.totals.items()
            },
            "files": [
                {
                    "split": o.split,
                    "file": o.file,
                    "kind": o.kind,
                    "before": format_counts(o.before),
                    "after": format_counts(o.after),
                }
                for o in self.files
            ],
            "artifacts": {
                "added": [*self.added],
                "removed": [*self.removed],
                "changed": {name: privacy.public_text(reason, "differs") for name, reason in self.changed.items()},
                "obsolete": [*self.obsolete],
            },
        }

    def lines(self, privacy: Privacy = OPEN) -> Iterator[str]:
        """Yield the differences as lines of text, with counts in their public form."""
        yield from (f"{side}: {name}" for side, name in zip("ab", self.names, strict=True))
        if self.is_empty:
            first_totals = [side for side, _ in self.totals.values()]
            files, total = (
                sum(count for count, _ in first_totals),
                sum((counts for _, counts in first_totals), LockCounts()),
            )
            counts_text = (
                f"{count_of(files, 'source file')}, {count_of(total.documents, 'document')}, "
                f"{count_of(total.tokens, 'token')}"
            )
            yield "no differences" if privacy.closed else f"no differences: {counts_text}"
        for split, sides in self.totals.items():
            yield from self._describe_split(split, sides, privacy)
        yield from _format_section("artifacts only in b", self.added)
        yield from _format_section("artifacts only in a", self.removed)
        yield from _format_section(
            "artifacts that differ",
            group_reasons({name: privacy.public_text(reason, "differs") for name, reason in self.changed.items()}),
        )
        yield from _format_section("obsolete artifacts, not compared", self.obsolete)

    def _describe_split(self, split: str, sides: Sequence[tuple[int, LockCounts]], privacy: Privacy) -> Iterator[str]:
        split_sources = [source for source in self.files if source.split == split]
        if not split_sources:
            return
        kinds = [source.kind for source in split_sources]
        changes = ", ".join(
            f"{privacy.public_count(kinds.count(kind))} {kind}"
            for kind in ("added", "removed", "changed")
            if kind in kinds
        )
        yield f"{split or 'all'}: {changes}"
        for noun in ("documents", "tokens"):
            was, now = (getattr(counts, noun) for _, counts in sides)
            gains = [
                getattr(source.after or LockCounts(), noun) - getattr(source.before or LockCounts(), noun)
                for source in split_sources
            ]
            plus, minus = (privacy.public_count(sum(max(0, sign * gain) for gain in gains)) for sign in (1, -1))
            yield f"  {noun:<10}{privacy.public_count(was):>16} → {privacy.public_count(now):>16}  (+{plus} −{minus})"
        yield from _shorten_lines([f"  {_describe_file(source, privacy)}" for source in split_sources])


def group_reasons(reasons: Mapping[str, str]) -> list[str]:
    """Return one line per reason, with its first artifact and the number of its other artifacts."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        by_reason.setdefault(reason, []).append(name)
    return [
        f"{names[0]}{f' and {len(names) - 1:,} more' if len(names) > 1 else ''}: {reason}"
        for reason, names in by_reason.items()
    ]


def _describe_file(source: ChangedSource, privacy: Privacy) -> str:
    counts_before, counts_after = source.before or LockCounts(), source.after or LockCounts()
    gains = {noun: getattr(counts_after, noun) - getattr(counts_before, noun) for noun in ("documents", "tokens")}
    if privacy.hides(abs(gains["documents"])):  # the tokens would reveal how few documents were added or removed
        del gains["tokens"]
    texts = []
    for noun, gain in gains.items():
        # Use the plural for a hidden count, because the singular would reveal that the count is 1.
        amount = privacy.public_count(abs(gain))
        texts.append(f"{'-' if gain < 0 else '+'}{amount} {noun.removesuffix('s') if amount == '1' else noun}")
    return f"{source.kind:<8} {source.file}: {', '.join(texts)}"


def _format_section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"{title}: {len(lines):,}"
        yield from _shorten_lines([f"  {line}" for line in lines])


def _shorten_lines(lines: Sequence[str]) -> Sequence[str]:
    hidden_count = len(lines) - _MAX_LINES
    return (
        [*lines[:_MAX_LINES], f"  … and {hidden_count:,} more (use --json to print all)"] if hidden_count > 0 else lines
    )


def compare_locks(a: Lock, b: Lock, names: tuple[str, str]) -> LockDifference:
    """Return the differences of the second lock from the first.

    Args:
        a: The first lock.
        b: The second lock; its dataset may have a different name.
        names: Names of the two locks for the output.
    """
    # If one lock hides its names, hide the names of both locks, because hidden names can be compared only with hidden
    # names.
    if a.is_hidden or b.is_hidden:
        a, b = a.hide_names(), b.hide_names()
    sides = counts_before, counts_after = _count_files(a), _count_files(b)
    reasons = {name: a.describe_difference(name, entry) for name, entry in b.artifacts.items() if name in a.artifacts}
    added, removed_names = ([name for name in x.artifacts if name not in y.artifacts] for x, y in ((b, a), (a, b)))
    return LockDifference(
        names=names,
        totals={split: [_sum_counts(side, split) for side in sides] for split, _ in {**counts_before, **counts_after}},
        files=[
            ChangedSource(
                split=key[0],
                file=key[1],
                **{
                    when: side[key][1] if key in side else None
                    for when, side in zip(("before", "after"), sides, strict=True)
                },
            )
            for key in sorted({*counts_before, *counts_after})
            if counts_before.get(key) != counts_after.get(key)
        ],
        added=[name for name in added if name not in b.obsolete],
        removed=[name for name in removed_names if name not in a.obsolete],
        changed={name: reason for name, reason in reasons.items() if reason is not None},
        obsolete=sorted({*added, *removed_names} & (a.obsolete | b.obsolete)),
    )


def _count_files(lock: Lock) -> _Files:
    """Return the counted source files of artifacts that a run would build.

    If no source files are counted, return the partitions of each kind of artifact instead.
    """
    files: dict[tuple[str, str], tuple[frozenset[str], LockCounts]] = {}
    for name, entry in lock.artifacts.items():
        split = split_name(name.partition("/")[2])
        for file, line in entry.files.items() if name not in lock.obsolete else ():
            digests, counts = files.get((split, strip_row_range(file)), (frozenset(), LockCounts()))
            files[split, strip_row_range(file)] = digests | {line.sha256}, counts + line.counts
    if not files:
        for name, entry in lock.artifacts.items():
            kind, _, partition = name.partition("/")
            if entry.counts is not None and partition and name not in lock.obsolete:
                files[kind, partition] = frozenset({entry.key or ""}), entry.counts
    return files


def _sum_counts(files: _Files, split: str) -> tuple[int, LockCounts]:
    split_counts = [counts for (file_split, _), (_, counts) in files.items() if file_split == split]
    return len(split_counts), sum(split_counts, LockCounts())
