"""How two locks differ: documents and tokens by split and source file, settings, artifacts. Reads no data.

Source files are compared by their path in a split, whatever shard they are in: a corpus that was cut into other shards
has the same documents. A file of which only the path changed is reported as renamed.

Entry points: `difference`, `LockDifference.lines`, `LockDifference.to_json`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from dataprep_assets.graph.lock import Counts, Lock, Locked
from dataprep_assets.graph.privacy import OPEN, Privacy
from dataprep_assets.graph.recipe import Changed
from dataprep_assets.planning.shard_plan import split_of

_SHOWN = 20
"""Most lines of one kind in the text output; the JSON has all."""


@dataclass(frozen=True, kw_only=True)
class ChangedSource:
    """A source file that differs: its counts before and after, None on the side that lacks it.

    `renamed_from` is its former path if it was renamed.
    """

    split: str
    file: str
    kind: Literal["added", "removed", "changed", "renamed"]
    before: Counts | None
    after: Counts | None
    renamed_from: str | None = None


@dataclass(frozen=True, kw_only=True)
class SplitTotals:
    """Files and counts of a split in one lock."""

    files: int = 0
    counts: Counts = field(default_factory=Counts)


@dataclass(frozen=True, kw_only=True)
class ChangedSetting:
    """A setting, a source that is not a counted file, or a step's version that differs, and in which artifacts."""

    name: str
    before: Any
    after: Any
    artifacts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LockDifference:
    """The differences between two locks.

    Attributes:
        a: Name of the first lock, for the output.
        b: Name of the second lock.
        totals: Split → totals in both locks.
        files: Source files that differ, ordered by split and path.
        settings: Settings, sources and step versions that differ.
        added: Artifacts that only the second lock has.
        removed: Artifacts that only the first lock has.
        changed: Artifacts whose content or recipe differs.
        libraries: Libraries whose versions differ; that alone does not count as a difference.
    """

    a: str
    b: str
    totals: Mapping[str, tuple[SplitTotals, SplitTotals]]
    files: Sequence[ChangedSource]
    settings: Sequence[ChangedSetting]
    added: Sequence[str]
    removed: Sequence[str]
    changed: Sequence[str]
    libraries: Mapping[str, tuple[str | None, str | None]]

    @property
    def is_none(self) -> bool:
        """Whether the two locks are the same."""
        return not (self.files or self.settings or self.added or self.removed or self.changed)

    def to_json(self, privacy: Privacy = OPEN) -> dict[str, Any]:
        """Plain builtins, with the counts that leave."""
        return {
            "a": self.a,
            "b": self.b,
            "same": self.is_none,
            "splits": {
                split: {"a": _totals_json(before, privacy), "b": _totals_json(after, privacy)}
                for split, (before, after) in self.totals.items()
            },
            "files": [
                {**asdict(one), "before": _counts_json(one.before, privacy), "after": _counts_json(one.after, privacy)}
                for one in self.files
            ],
            "settings": [
                {**asdict(one), "before": _setting(one.before, privacy), "after": _setting(one.after, privacy)}
                for one in self.settings
            ],
            "artifacts": {"added": [*self.added], "removed": [*self.removed], "changed": [*self.changed]},
            "libraries": {name: list(versions) for name, versions in self.libraries.items()},
        }

    def lines(self, privacy: Privacy = OPEN) -> Iterator[str]:
        """The differences as lines of text, with the counts that leave."""
        yield f"a: {self.a}"
        yield f"b: {self.b}"
        if self.is_none:
            yield "the same" if privacy.closed else f"the same: {_summary(self.totals.values(), 0)}"
            return
        yield from self._lines_of_files(privacy)
        yield from _section("settings and sources that differ", [_setting_line(one, privacy) for one in self.settings])
        for what, names in (
            ("artifacts in b alone", self.added),
            ("artifacts in a alone", self.removed),
            ("artifacts that differ", self.changed),
        ):
            yield from _section(what, names)
        yield from _section(
            "libraries of other versions", [f"{name}: {was} → {now}" for name, (was, now) in self.libraries.items()]
        )

    def _lines_of_files(self, privacy: Privacy) -> Iterator[str]:
        for split, (before, after) in self.totals.items():
            own = [one for one in self.files if one.split == split]
            if not own and before == after:
                continue
            kinds = [
                (kind, sum(one.kind == kind for one in own)) for kind in ("added", "removed", "changed", "renamed")
            ]
            files = ", ".join(f"{privacy.count(count)} {kind}" for kind, count in kinds if count) or "no file differs"
            yield f"{split or 'all'}: {files}"
            for what in ("documents", "tokens"):
                was, now = getattr(before.counts, what), getattr(after.counts, what)
                added, removed = map(privacy.count, _gained(own, what))
                yield f"  {what:<10}{privacy.count(was):>16} → {privacy.count(now):>16}  (+{added} −{removed})"
            yield from _cut([f"  {_file_line(one, privacy)}" for one in own])


def _summary(totals: Collection[tuple[SplitTotals, SplitTotals]], side: int) -> str:
    sides = [pair[side] for pair in totals]
    documents, tokens = (sum(getattr(one.counts, what) for one in sides) for what in ("documents", "tokens"))
    files = sum(one.files for one in sides)
    return f"{files:,} source files, {documents:,} documents, {tokens:,} tokens"


def _totals_json(totals: SplitTotals, privacy: Privacy) -> dict[str, Any]:
    return privacy.row({"files": totals.files, **asdict(totals.counts)})


def _counts_json(counts: Counts | None, privacy: Privacy) -> dict[str, Any] | None:
    return None if counts is None else privacy.row(asdict(counts))


def _setting(value: Any, privacy: Privacy) -> Any:
    return value if value is None else privacy.value(value)


def _gained(files: Sequence[ChangedSource], what: str) -> tuple[int, int]:
    """What was added and what was removed, summed over files: a changed file counts with its increase or decrease."""
    changes = [getattr(one.after or Counts(), what) - getattr(one.before or Counts(), what) for one in files]
    return sum(change for change in changes if change > 0), -sum(change for change in changes if change < 0)


def _file_line(one: ChangedSource, privacy: Privacy) -> str:
    before, after = one.before or Counts(), one.after or Counts()
    documents, tokens = after.documents - before.documents, after.tokens - before.tokens
    was = f" (was {one.renamed_from})" if one.renamed_from else ""
    told = f"{one.kind:<8} {one.file}{was}: {_gain(documents, privacy)} documents"
    return told if privacy.hides(abs(documents)) else f"{told}, {_gain(tokens, privacy)} tokens"


def _gain(number: int, privacy: Privacy) -> str:
    return f"{'-' if number < 0 else '+'}{privacy.count(abs(number))}"


def _setting_line(one: ChangedSetting, privacy: Privacy) -> str:
    where = one.artifacts[0] + (f" and {len(one.artifacts) - 1:,} more" if len(one.artifacts) > 1 else "")
    was, now = ("not set" if value is None else str(_setting(value, privacy)) for value in (one.before, one.after))
    follows = Changed(kind="settings", name=one.name, before=one.before, now=one.after).consequence
    return f"{one.name}: {was[:80]} → {now[:80]} ({where}){follows}"


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"{title}: {len(lines):,}"
        yield from _cut([f"  {line}" for line in lines])


def _cut(lines: Sequence[str]) -> Sequence[str]:
    return (
        lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"  … and {len(lines) - _SHOWN:,} more (--json has all)"]
    )


def difference(a: Lock, b: Lock, names: tuple[str, str]) -> LockDifference:
    """How the second lock differs from the first.

    Args:
        a: The first lock.
        b: The second lock; its dataset may have another name.
        names: Names of the two locks for the output.
    """
    # names can be compared only where both sides have digests of them
    if a.is_hidden or b.is_hidden:
        a, b = a.hidden(), b.hidden()
    before, after = _files_of(a), _files_of(b)
    was, now = _totals(before), _totals(after)
    shared = [name for name in a.artifacts if name in b.artifacts]
    return LockDifference(
        a=names[0],
        b=names[1],
        totals={s: (was.get(s, SplitTotals()), now.get(s, SplitTotals())) for s in dict.fromkeys([*was, *now])},
        files=_changed_files(before, after),
        settings=_changed_settings(a, b, shared),
        added=[name for name in b.artifacts if name not in a.artifacts],
        removed=[name for name in a.artifacts if name not in b.artifacts],
        changed=[name for name in shared if _is_changed(a.artifacts[name], b.artifacts[name])],
        libraries=_changed_libraries(a, b),
    )


@dataclass(frozen=True)
class _File:
    """A source file in one lock; it has several `digests` if parts of it were read before and after it changed."""

    digests: frozenset[str]
    counts: Counts


_Files = Mapping[tuple[str, str], _File]
"""Split and path → file."""


def _files_of(lock: Lock) -> _Files:
    """The counted source files of a lock; if the dataset counts none, its partitions that are made of sources."""
    found: dict[tuple[str, str], _File] = {}

    def add(split: str, file: str, digest: str, counts: Counts) -> None:
        other = found.get((split, file))
        if other is not None:
            found[split, file] = _File(other.digests | {digest}, other.counts + counts)
        else:
            found[split, file] = _File(frozenset({digest}), counts)

    for name, one in lock.artifacts.items():
        split = split_of(name.partition("/")[2])
        for line in one.files:
            add(split, line.file, line.sha256, line.counts)
    if not found:
        # of one kind, and made of sources alone: other artifacts count the same documents again
        first = {name: one for name, one in lock.artifacts.items() if one.counts is not None and not one.is_derived}
        kind = min((name.partition("/")[0] for name in first if "/" in name), default=None)
        for name, one in first.items():
            if one.counts is not None and name.partition("/")[0] == kind:
                add("", name.partition("/")[2], str(sorted(one.sources.items())), one.counts)
    return found


def _totals(files: _Files) -> dict[str, SplitTotals]:
    by_split: dict[str, list[Counts]] = {}
    for (split, _), file in files.items():
        by_split.setdefault(split, []).append(file.counts)
    return {
        split: SplitTotals(
            files=len(every),
            counts=Counts(
                rows=sum(one.rows for one in every),
                documents=sum(one.documents for one in every),
                tokens=sum(one.tokens for one in every),
            ),
        )
        for split, every in by_split.items()
    }


def _changed_files(before: _Files, after: _Files) -> list[ChangedSource]:
    gone = {(split, file.digests): path for (split, path), file in before.items() if (split, path) not in after}
    found = []
    renamed = set()
    for (split, path), file in after.items():
        was = before.get((split, path))
        # taken out, because a path that is gone is the former one of a single file
        if was is None and (old := gone.pop((split, file.digests), None)) is not None:
            renamed.add((split, old))
            found.append(_changed("renamed", split, path, before[split, old], file, renamed_from=old))
        elif was is None:
            found.append(_changed("added", split, path, None, file))
        elif was != file:
            found.append(_changed("changed", split, path, was, file))
    found += [
        _changed("removed", split, path, file, None)
        for (split, path), file in before.items()
        if (split, path) not in after and (split, path) not in renamed
    ]
    return sorted(found, key=lambda one: (one.split, one.file))


def _changed(
    kind: Literal["added", "removed", "changed", "renamed"],
    split: str,
    path: str,
    before: _File | None,
    after: _File | None,
    *,
    renamed_from: str | None = None,
) -> ChangedSource:
    return ChangedSource(
        split=split,
        file=path,
        kind=kind,
        before=before.counts if before else None,
        after=after.counts if after else None,
        renamed_from=renamed_from,
    )


def _changed_settings(a: Lock, b: Lock, shared: Sequence[str]) -> list[ChangedSetting]:
    """The changed settings, one entry for each however many artifacts share it."""
    found: dict[tuple[str, str], tuple[Changed, list[str]]] = {}
    # files that are told one by one are not told as settings, too
    counted = {
        name for lock in (a, b) for one in lock.artifacts.values() for f in one.files for name in (f.name, f.file)
    }
    for name in shared:
        for change in a.artifacts[name].changes(b.artifacts[name]):
            if change.kind == "sources" and change.name in counted:
                continue
            entry = (name.partition("/")[0], f"{change.name} {change.before} {change.now}")
            found.setdefault(entry, (change, []))[1].append(name)
    return [
        ChangedSetting(name=change.name, before=change.before, after=change.now, artifacts=tuple(names))
        for change, names in found.values()
    ]


def _is_changed(one: Locked, other: Locked) -> bool:
    if one.is_placed or other.is_placed:
        return any(change.kind in ("version", "settings") for change in one.changes(other))
    return (one.content, one.key) != (other.content, other.key)


def _changed_libraries(a: Lock, b: Lock) -> dict[str, tuple[str | None, str | None]]:
    versions: list[dict[str, set[str]]] = []
    for lock in (a, b):
        found: dict[str, set[str]] = {}
        for one in lock.artifacts.values():
            for name, version in one.libraries.items():
                found.setdefault(name, set()).add(version)
        versions.append(found)
    before, after = versions
    shown = [{name: ", ".join(sorted(each)) for name, each in side.items()} for side in versions]
    return {
        name: (shown[0].get(name), shown[1].get(name))
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    }
