"""A recipe: everything that determines an artifact's bytes, with names, so that a change can be described.

The `key` is the digest by which a finished artifact is compared. The other parts are the named ingredients. They are
stored in the receipt, and if a later recipe has a different key, `difference` names the changes. A recipe contains no
path, host, number of workers or secret.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

from dataprep_assets.integrity.artifacts import Artifact
from dataprep_assets.integrity.receipt import Content, Ledger, Receipt
from dataprep_assets.stores.files import digest_value
from dataprep_assets.tokenization.reference import touched

_SHOWN = 60
"""Maximum length of a value in a sentence, in characters."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """The difference between an artifact and its recipe.

    Attributes:
        kind: Keyword for tables.
        reason: One sentence.
        changes: Each change of the step's version, of inputs and of settings; empty if only a digest differs.
        files: A line per changed source file, if the step can name them; otherwise empty.
    """

    kind: str
    reason: str
    changes: "tuple[Changed, ...]" = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Changed:
    """One entry that differs between two ingredients: its kind, its name, and its value before and now."""

    kind: Literal["version", "upstream", "settings", "sources"]
    name: str
    before: Any
    now: Any

    @property
    def consequence(self) -> str:
        """The consequence of the change, in brackets, if the values do not show it; otherwise empty."""
        texts = touched(self.name, self.before, self.now)
        return f" ({texts})" if texts else ""

    def __str__(self) -> str:
        """Return the change in one line, such as `rule short changed: words < 50 → words < 20`."""
        name = re.sub(r"^rules\.", "rule ", self.name)
        if self.before is None:
            return f"{name} added: {_format_value(self.now)}"
        if self.now is None:
            return f"{name} removed: {_format_value(self.before)}"
        if _is_digest(self.before) and _is_digest(self.now):
            return f"{name} changed"
        before, now = (_format_value(value) for value in (self.before, self.now))
        if (start := before.partition(": ")[:2]) == now.partition(": ")[:2] and start[1]:
            before, now = (value.removeprefix("".join(start)) for value in (before, now))
        return f"{name} changed: {before} → {now}{self.consequence}"


@dataclass(frozen=True, kw_only=True)
class RecipeInputs:
    """The named ingredients of an artifact. Recipes, receipts and locks have them and are compared by them.

    Attributes:
        version: Version of the step that builds it.
        settings: Name → value of every setting that affects bytes, as JSON values.
        sources: Name → digest of each input that is not an artifact: files, a tokenizer, a listing, a part of an
            artifact. These are never looked up in the store.
        upstream: `[dataset:]name[/partition]` of each input artifact → its content. `verify` looks it up in the store.
    """

    version: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    upstream: Mapping[str, Content] = field(default_factory=dict)

    @classmethod
    def of_receipt(cls, receipt: Receipt) -> "RecipeInputs":
        """Return the ingredients that the receipt records."""
        names = {one.name for one in fields(RecipeInputs)}
        return cls(**{name: value for name, value in receipt.recipe.items() if name in names})

    @property
    def ingredients(self) -> "RecipeInputs":
        """The ingredients, without the other fields of a recipe or a lock entry."""
        return RecipeInputs(version=self.version, settings=self.settings, sources=self.sources, upstream=self.upstream)

    def changes(self, now: "RecipeInputs") -> list[Changed]:
        """Return the changes from these ingredients to `now`, ordered: version, inputs, settings, sources.

        Settings have dotted names.
        """
        changes = []
        if self.version != now.version:
            changes.append(Changed(kind="version", name="version of the step", before=self.version, now=now.version))
        changes += _find_changes("upstream", self.upstream, now.upstream)
        if self.settings != now.settings:
            # a receipt's JSON turns tuples into lists, so the settings are converted in the same way
            before, after = (flat(json.loads(json.dumps(one.settings))) for one in (self, now))
            changes += _find_changes("settings", before, after)
        return changes + _find_changes("sources", self.sources, now.sources)

    def change(self, now: "RecipeInputs", source_changes: Sequence[str] = ()) -> Change | None:
        """Return the first change as a sentence; if changes name the texts they affect, all such changes.

        Returns None if there is no change. Settings come before sources, because a listing may differ only because the
        globs do. `source_changes`, if a step provides them, replace the names of the changed sources.
        """
        changes = self.changes(now)
        of = {kind: [one for one in changes if one.kind == kind] for kind in ("upstream", "settings", "sources")}
        if self.version != now.version:
            reason = f"built by version {self.version} of this step; the current version is {now.version}"
            return Change(kind="older version", reason=reason, changes=tuple(changes[:1]))
        named, files = (*of["upstream"], *of["settings"]), tuple(source_changes)
        if of["upstream"]:
            reason = f"its input changed: {_first_names(_names(of['upstream']))}"
            return Change(kind="input changed", reason=reason, changes=named, files=files)
        source = "its source changed: " + _first_names(list(files) or _names(of["sources"])) if of["sources"] else ""
        if settings := of["settings"]:
            reason = _describe_changes([one for one in settings if one.consequence] or settings[:1], settings)
            reason += "; " + source if source else ""
            return Change(kind="settings changed", reason=reason, changes=named, files=files)
        return Change(kind="input changed", reason=source, files=files) if source else None


@dataclass(frozen=True, kw_only=True)
class Recipe(RecipeInputs):
    """The current recipe for building an artifact or one of its partitions.

    Attributes:
        artifact: The artifact to build.
        key: Digest (hex) of its ingredients only.
        ledger: The ledger that the artifact must have, if its inputs determine it: their sum. Not part of the key,
            because it does not affect bytes, but an artifact with a different ledger is out of date.
        source_changes: A line for each change of its source files since the artifact was built, if the step can name
            them. Not part of the key.
    """

    artifact: Artifact
    key: str
    ledger: Ledger | None = None
    source_changes: tuple[str, ...] = ()

    @classmethod
    def made_of(
        cls,
        artifact: Artifact,
        version: int,
        *,
        settings: Mapping[str, Any],
        sources: Mapping[str, str],
        upstream: Mapping[str, Content] | None = None,
    ) -> Self:
        """Return the recipe whose key is the digest of these ingredients. The order of sources and inputs matters."""
        # a receipt's JSON turns tuples into lists, so the settings are converted in the same way
        settings = json.loads(json.dumps(settings))
        found = RecipeInputs(version=version, settings=settings, sources=sources, upstream=upstream or {})
        order = [list(found.sources.items()), list(found.upstream.items())]
        key = digest_value([artifact.name, version, settings, *order])
        return cls(artifact=artifact, key=key, **vars(found))

    def to_json(self) -> dict[str, Any]:
        """Return the part of the recipe that a receipt stores. Artifact and key are separate fields of the receipt."""
        return asdict(self.ingredients)

    def difference(self, receipt: Receipt) -> Change | None:
        """Return the difference from the receipt's recipe; None if the keys and the ledger match."""
        if receipt.key == self.key:
            return self._other_ledger(receipt)
        unnamed = Change(kind="recipe changed", reason="built from different inputs or settings")
        return RecipeInputs.of_receipt(receipt).change(self, self.source_changes) or unnamed

    def _other_ledger(self, receipt: Receipt) -> Change | None:
        if self.ledger is None:
            return None
        # counts of how documents were read are excluded, because they do not affect the documents
        before, now = ({} if it is None else flat(it.of_documents.to_json()) for it in (receipt.ledger, self.ledger))
        # a reason without drops is equivalent to a missing reason
        before, now = ({name: count for name, count in counts.items() if count} for counts in (before, now))
        if not (changed := _find_changes("sources", before, now)):
            return None
        first = changed[0]
        difference = f"{first.name} was {first.before or 0}, is {first.now or 0} now"
        return Change(
            kind="input changed", reason=f"the ledger of its input changed: {difference}{_count_rest(changed)}"
        )


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Flatten a nested mapping to dotted names."""
    if not isinstance(value, Mapping):
        return {name: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= flat(inner, f"{name}.{key}" if name else str(key))
    return found


def _find_changes(
    kind: Literal["upstream", "settings", "sources"], before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[Changed]:
    names = [*now, *(name for name in before if name not in now)]
    values = ((name, before.get(name), now.get(name)) for name in names)
    return [Changed(kind=kind, name=name, before=was, now=value) for name, was, value in values if was != value]


def _describe_changes(shown: list[Changed], of: list[Changed]) -> str:
    """Return a sentence for the shown changes, and the number of the remaining ones."""
    told = (
        f"{one.name} was {_format_value(one.before)}, is {_format_value(one.now)} now{one.consequence}" for one in shown
    )
    return "; ".join(told) + _count_rest(of, len(shown))


def _count_rest(changed: list[Changed], shown: int = 1) -> str:
    return f" (and {len(changed) - shown} more)" if len(changed) > shown else ""


def _names(changed: list[Changed]) -> list[str]:
    return [one.name for one in changed]


def _first_names(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        value = ", ".join(map(str, value)) or "empty"
    text = "not set" if value is None else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
