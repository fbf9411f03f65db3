"""A recipe: the named ingredients that determine an artifact's bytes, so that a change can be described.

The `key` is a digest of the ingredients, by which a finished artifact is compared with its recipe. The receipt stores
the ingredients. If a later recipe has a different key, `find_change` names the changes. A recipe contains no path,
host, number of workers or secret.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import takewhile
from typing import Any, Literal, Self

from dataprep_assets.integrity.artifacts import Artifact
from dataprep_assets.integrity.receipt import Content, Ledger, Receipt
from dataprep_assets.stores.files import digest_value
from dataprep_assets.tokenization.reference import describe_affected_texts

_MAX_SHOWN = 60
"""Maximum length of a value in a sentence, in characters."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """The difference between an artifact and its recipe.

    Attributes:
        kind: Keyword for tables.
        reason: The difference in one sentence.
        changes: The changes to the step's version, inputs and settings; empty if only a digest differs.
        files: A line per changed source file, if the step can name them; otherwise empty.
    """

    kind: str
    reason: str
    changes: "tuple[IngredientChange, ...]" = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class IngredientChange:
    """One entry that differs between two ingredients: its kind, its name, and its value before and now."""

    kind: Literal["version", "upstream", "settings", "sources"]
    name: str
    before: Any
    now: Any

    @property
    def consequence(self) -> str:
        """The affected texts, in brackets, if the changed values do not show them; otherwise empty."""
        texts = describe_affected_texts(self.name, self.before, self.now)
        return f" ({texts})" if texts else ""

    def __str__(self) -> str:
        """Return the change on one line, such as `rule short changed: words < 50 → words < 20`."""
        name = re.sub(r"^rules\.", "rule ", self.name)
        if self.before is None:
            return f"{name} added: {_format_value(self.now)}"
        if self.now is None:
            return f"{name} removed: {_format_value(self.before)}"
        if _is_digest(self.before) and _is_digest(self.now):
            return f"{name} changed"
        before, now = (_write_value(value) for value in (self.before, self.now))
        if (start := before.partition(": ")[:2]) == now.partition(": ")[:2] and start[1]:
            before, now = (value.removeprefix("".join(start)) for value in (before, now))
        before, now = _shorten_pair(before, now)
        return f"{name} changed: {before} → {now}{self.consequence}"


@dataclass(frozen=True, kw_only=True)
class RecipeInputs:
    """The named ingredients of an artifact, by which recipes, receipts and locks are compared.

    Attributes:
        version: Version of the step that builds it.
        settings: Name → value of every setting that affects bytes, as JSON values.
        sources: Name → digest of each input that is not an artifact: files, a tokenizer, a listing, a part of an
            artifact. `verify` does not look these up in the store.
        upstream: `[dataset:]name[/partition]` of each input artifact → its content. `verify` looks these up in the
            store.
    """

    version: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    upstream: Mapping[str, Content] = field(default_factory=dict)

    @classmethod
    def extract_from(cls, receipt: Receipt) -> "RecipeInputs":
        """Return the ingredients that the receipt records."""
        names = {one.name for one in fields(RecipeInputs)}
        return cls(**{name: value for name, value in receipt.recipe.items() if name in names})

    @property
    def ingredients(self) -> "RecipeInputs":
        """The ingredients, without the other fields of a recipe or a lock entry."""
        return RecipeInputs(version=self.version, settings=self.settings, sources=self.sources, upstream=self.upstream)

    def list_changes(self, now: "RecipeInputs") -> list[IngredientChange]:
        """Return the changes from these ingredients to `now`, in the order: version, inputs, settings, sources.

        The names of nested settings are dotted.
        """
        changes = []
        if self.version != now.version:
            changes.append(
                IngredientChange(kind="version", name="version of the step", before=self.version, now=now.version)
            )
        changes += _find_changes("upstream", self.upstream, now.upstream)
        if self.settings != now.settings:
            # Convert both settings to JSON and back, because the receipt stores them as JSON, which turns tuples into
            # lists.
            old_settings, new_settings = (flatten(json.loads(json.dumps(one.settings))) for one in (self, now))
            changes += _find_changes("settings", old_settings, new_settings)
        return changes + _find_changes("sources", self.sources, now.sources)

    def describe_change(self, now: "RecipeInputs", source_changes: Sequence[str] = ()) -> Change | None:
        """Return the first change as a sentence, or all changes that name the texts they affect.

        Returns None if there is no change. Settings come before sources, because a changed glob also changes the
        listing. `source_changes`, if a step provides them, replace the names of the changed sources.
        """
        changes = self.list_changes(now)
        changes_by_kind = {
            kind: [one for one in changes if one.kind == kind] for kind in ("upstream", "settings", "sources")
        }
        if self.version != now.version:
            reason = f"built by version {self.version} of this step; the current version is {now.version}"
            return Change(kind="older version", reason=reason, changes=tuple(changes[:1]))
        names, files = (*changes_by_kind["upstream"], *changes_by_kind["settings"]), tuple(source_changes)
        if changes_by_kind["upstream"]:
            input_names = _list_names(changes_by_kind["upstream"])
            noun = "input" if len(input_names) == 1 else "inputs"
            reason = f"its {noun} changed: {_join_first_names(input_names)}"
            return Change(kind="input changed", reason=reason, changes=names, files=files)
        source = (
            "its source changed: " + _join_first_names(list(files) or _list_names(changes_by_kind["sources"]))
            if changes_by_kind["sources"]
            else ""
        )
        if settings := changes_by_kind["settings"]:
            reason = _describe_changes([one for one in settings if one.consequence] or settings[:1], settings)
            reason += "; " + source if source else ""
            return Change(kind="settings changed", reason=reason, changes=names, files=files)
        return Change(kind="input changed", reason=source, files=files) if source else None


@dataclass(frozen=True, kw_only=True)
class Recipe(RecipeInputs):
    """The current recipe for building an artifact or one of its partitions.

    Attributes:
        artifact: The artifact to build.
        key: Digest (hex) of its ingredients only.
        ledger: The ledger that the artifact must have, if its inputs determine it: their sum. Not part of the key,
            because it does not affect bytes, but an artifact with a different ledger is out of date.
        source_changes: A line for each change to its source files since the artifact was built, if the step can name
            them. Not part of the key.
    """

    artifact: Artifact
    key: str
    ledger: Ledger | None = None
    source_changes: tuple[str, ...] = ()

    @classmethod
    def from_ingredients(
        cls,
        artifact: Artifact,
        version: int,
        *,
        settings: Mapping[str, Any],
        sources: Mapping[str, str],
        upstream: Mapping[str, Content] | None = None,
    ) -> Self:
        """Return the recipe whose key is the digest of these ingredients. The order of sources and inputs matters."""
        # Convert the settings to JSON and back, because the receipt stores them as JSON, which turns tuples into lists.
        settings = json.loads(json.dumps(settings))
        inputs = RecipeInputs(version=version, settings=settings, sources=sources, upstream=upstream or {})
        order = [list(inputs.sources.items()), list(inputs.upstream.items())]
        key = digest_value([artifact.name, version, settings, *order])
        return cls(artifact=artifact, key=key, **vars(inputs))

    def to_json(self) -> dict[str, Any]:
        """Return the part of the recipe that a receipt stores. Artifact and key are separate fields of the receipt."""
        return asdict(self.ingredients)

    def find_change(self, receipt: Receipt) -> Change | None:
        """Return the difference from the receipt's recipe; None if the keys and the ledger match."""
        if receipt.key == self.key:
            return self._find_ledger_change(receipt)
        unnamed = Change(kind="recipe changed", reason="built from different inputs or settings")
        return RecipeInputs.extract_from(receipt).describe_change(self, self.source_changes) or unnamed

    def _find_ledger_change(self, receipt: Receipt) -> Change | None:
        if self.ledger is None or self.ledger == receipt.ledger:
            return None
        # Exclude the counts that describe only how the documents were read, because a change of these does not affect
        # the documents.
        old_counts, new_counts = (
            {} if it is None else flatten(it.of_documents.to_json()) for it in (receipt.ledger, self.ledger)
        )
        # Remove zero counts, because a drop reason with the count 0 is equivalent to a missing reason.
        old_counts, new_counts = (
            {name: count for name, count in counts.items() if count} for counts in (old_counts, new_counts)
        )
        if not (changed := _find_changes("sources", old_counts, new_counts)):
            return None
        first_change = changed[0]
        difference = f"{first_change.name} was {first_change.before or 0}, now {first_change.now or 0}"
        return Change(
            kind="input changed", reason=f"the ledger of its input changed: {difference}{_count_rest(changed)}"
        )


def flatten(value: Any, name: str = "") -> dict[str, Any]:
    """Flatten a nested mapping to dotted names."""
    if not isinstance(value, Mapping):
        return {name: value}
    flat_values: dict[str, Any] = {}
    for key, inner in value.items():
        flat_values |= flatten(inner, f"{name}.{key}" if name else str(key))
    return flat_values


def _find_changes(
    kind: Literal["upstream", "settings", "sources"], before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[IngredientChange]:
    names = [*now, *(name for name in before if name not in now)]
    values = ((name, before.get(name), now.get(name)) for name in names)
    return [
        IngredientChange(kind=kind, name=name, before=was, now=value) for name, was, value in values if was != value
    ]


def _describe_changes(shown_changes: list[IngredientChange], changes: list[IngredientChange]) -> str:
    """Return a sentence with the shown changes and the number of remaining changes."""
    sentences = (
        f"{one.name} was {_format_value(one.before)}, now {_format_value(one.now)}{one.consequence}"
        for one in shown_changes
    )
    return "; ".join(sentences) + _count_rest(changes, len(shown_changes))


def _count_rest(changed: list[IngredientChange], shown_changes: int = 1) -> str:
    return f" (and {len(changed) - shown_changes} more)" if len(changed) > shown_changes else ""


def _list_names(changed: list[IngredientChange]) -> list[str]:
    return [one.name for one in changed]


def _join_first_names(names: list[str], max_names: int = 3) -> str:
    return ", ".join(names[:max_names]) + (f" and {len(names) - max_names} more" if len(names) > max_names else "")


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def _format_value(value: Any) -> str:
    return _shorten_text(_write_value(value))


def _write_value(value: Any) -> str:
    if isinstance(value, list):
        value = ", ".join(map(str, value)) or "empty"
    return "not set" if value is None else str(value)


def _shorten_text(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _shorten_pair(text: str, other_text: str) -> tuple[str, str]:
    """Shorten two different texts so that their first difference is shown."""
    if max(len(text), len(other_text)) <= _MAX_SHOWN:
        return text, other_text
    common_count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other_text, strict=False)))
    start = max(common_count - _MAX_SHOWN // 3, 0)
    mark = "…" if start else ""
    return mark + _shorten_text(text[start:]), mark + _shorten_text(other_text[start:])
