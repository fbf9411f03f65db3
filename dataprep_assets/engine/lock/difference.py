"""Differences between two locks: documents and tokens by split and source file, and changed artifacts with reasons.

No data is read. Source files are compared by split and path, whichever shard they are in. So two corpora with
different shards but the same documents have no different files.

Entry points: `difference`, `LockDifference.lines`, `LockDifference.to_json`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dataprep_assets.engine.lock.lock import Lock, LockCounts, file_of
from dataprep_assets.engine.privacy import OPEN, Privacy
from dataprep_assets.errors import count_of
from dataprep_assets.planning.manifest import split_of

_SHOWN = 20
"""Maximum number of lines of one kind in the text output; the JSON has all."""

_Files = Mapping[tuple[str, str], tuple[frozenset[str], LockCounts]]
"""Split and path → digests and counts. A file has several digests if it changed between reads of its parts."""


@dataclass(frozen=True, kw_only=True)
class ChangedSource:
    """A source file that differs: its counts before and after, or None if that lock lacks the file."""

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
    def is_none(self) -> bool:
        """Whether the two locks are equal."""
        return not (self.files or self.added or self.removed or self.changed)

    def to_json(self, privacy: Privacy = OPEN) -> dict[str, Any]:
        """Return the differences as plain builtins, with counts in their public form."""

        def counts(found: LockCounts | None) -> dict[str, Any] | None:
            return None if found is None else privacy.row(asdict(found))

        return {
            "a": self.names[0],
            "b": self.names[1],
            "same": self.is_none,
            "splits": {
                split: {
                    side: privacy.row({"files": files, **asdict(total)})
                    for side, (files, total) in zip("ab", sides, strict=True)
                }
                for split, sides in self.totals.items()
            },
            "files": [
                {"split": o.split, "file": o.file, "kind": o.kind, "before": counts(o.before), "after": counts(o.after)}
                for o in self.files
            ],
            "artifacts": {
                "added": [*self.added],
                "removed": [*self.removed],
                "changed": {name: privacy.text(reason, "differs") for name, reason in self.changed.items()},
                "obsolete": [*self.obsolete],
            },
        }

    def lines(self, privacy: Privacy = OPEN) -> Iterator[str]:
        """Yield the differences as lines of text, with counts in their public form."""
        yield from (f"{side}: {name}" for side, name in zip("ab", self.names, strict=True))
        if self.is_none:
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
            yield from self._lines_of_split(split, sides, privacy)
        yield from _section("artifacts only in b", self.added)
        yield from _section("artifacts only in a", self.removed)
        yield from _section(
            "artifacts that differ",
            grouped({name: privacy.text(reason, "differs") for name, reason in self.changed.items()}),
        )
        yield from _section("obsolete artifacts, not compared", self.obsolete)

    def _lines_of_split(self, split: str, sides: Sequence[tuple[int, LockCounts]], privacy: Privacy) -> Iterator[str]:
        own = [source for source in self.files if source.split == split]
        if not own:
            return
        kinds = [source.kind for source in own]
        changes = ", ".join(
            f"{privacy.count(kinds.count(kind))} {kind}" for kind in ("added", "removed", "changed") if kind in kinds
        )
        yield f"{split or 'all'}: {changes}"
        for what in ("documents", "tokens"):
            was, now = (getattr(counts, what) for _, counts in sides)
            gains = [
                getattr(source.after or LockCounts(), what) - getattr(source.before or LockCounts(), what)
                for source in own
            ]
            plus, minus = (privacy.count(sum(max(0, sign * gain) for gain in gains)) for sign in (1, -1))
            yield f"  {what:<10}{privacy.count(was):>16} → {privacy.count(now):>16}  (+{plus} −{minus})"
        yield from _shorten_lines([f"  {_file_line(source, privacy)}" for source in own])


def grouped(reasons: Mapping[str, str]) -> list[str]:
    """Return one line per reason, with its first artifact and the number of its other artifacts."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        by_reason.setdefault(reason, []).append(name)
    return [
        f"{names[0]}{f' and {len(names) - 1:,} more' if len(names) > 1 else ''}: {reason}"
        for reason, names in by_reason.items()
    ]


def _file_line(one: ChangedSource, privacy: Privacy) -> str:
    before, after = one.before or LockCounts(), one.after or LockCounts()
    gains = {what: getattr(after, what) - getattr(before, what) for what in ("documents", "tokens")}
    if privacy.hides(abs(gains["documents"])):  # their tokens would reveal the number of documents
        del gains["tokens"]
    texts = []
    for what, gain in gains.items():
        # a hidden count keeps the plural noun
        amount = privacy.count(abs(gain))
        texts.append(f"{'-' if gain < 0 else '+'}{amount} {what.removesuffix('s') if amount == '1' else what}")
    return f"{one.kind:<8} {one.file}: {', '.join(texts)}"


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"{title}: {len(lines):,}"
        yield from _shorten_lines([f"  {line}" for line in lines])


def _shorten_lines(lines: Sequence[str]) -> Sequence[str]:
    hidden_count = len(lines) - _SHOWN
    return [*lines[:_SHOWN], f"  … and {hidden_count:,} more (use --json to print all)"] if hidden_count > 0 else lines


def difference(a: Lock, b: Lock, names: tuple[str, str]) -> LockDifference:
    """Return the differences of the second lock from the first.

    Args:
        a: The first lock.
        b: The second lock; its dataset may have a different name.
        names: Names of the two locks for the output.
    """
    # names can be compared only if both locks have them in the same form, which is digests if one lock hides them
    if a.is_hidden or b.is_hidden:
        a, b = a.hidden(), b.hidden()
    sides = before, after = _files_of(a), _files_of(b)
    reasons = {name: a.reason(name, entry) for name, entry in b.artifacts.items() if name in a.artifacts}
    added, removed = ([name for name in x.artifacts if name not in y.artifacts] for x, y in ((b, a), (a, b)))
    return LockDifference(
        names=names,
        totals={split: [_total(side, split) for side in sides] for split, _ in {**before, **after}},
        files=[
            ChangedSource(
                split=key[0],
                file=key[1],
                **{
                    when: side[key][1] if key in side else None
                    for when, side in zip(("before", "after"), sides, strict=True)
                },
            )
            for key in sorted({*before, *after})
            if before.get(key) != after.get(key)
        ],
        added=[name for name in added if name not in b.obsolete],
        removed=[name for name in removed if name not in a.obsolete],
        changed={name: reason for name, reason in reasons.items() if reason is not None},
        obsolete=sorted({*added, *removed} & (a.obsolete | b.obsolete)),
    )


def _files_of(lock: Lock) -> _Files:
    """Return the counted source files of artifacts that a run would build.

    If no source files are counted, return the partitions of each kind of artifact instead.
    """
    files: dict[tuple[str, str], tuple[frozenset[str], LockCounts]] = {}
    for name, entry in lock.artifacts.items():
        split = split_of(name.partition("/")[2])
        for file, line in entry.files.items() if name not in lock.obsolete else ():
            digests, counts = files.get((split, file_of(file)), (frozenset(), LockCounts()))
            files[split, file_of(file)] = digests | {line.sha256}, counts + line.counts
    if not files:
        for name, entry in lock.artifacts.items():
            kind, _, partition = name.partition("/")
            if entry.counts is not None and partition and name not in lock.obsolete:
                files[kind, partition] = frozenset({entry.key or ""}), entry.counts
    return files


def _total(files: _Files, split: str) -> tuple[int, LockCounts]:
    own = [counts for (file_split, _), (_, counts) in files.items() if file_split == split]
    return len(own), sum(own, LockCounts())
