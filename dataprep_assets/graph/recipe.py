"""A recipe: all that decides an artifact's bytes, with names, so that a change of one of them can be told.

The `key` is the digest that a finished artifact is compared by. The other parts say what went into it: they are kept in
the receipt, and when a later recipe has another key, `difference` names what changed. Nothing in a recipe is a path, a
host, a number of workers or a secret.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.receipt import Receipt

__all__ = ["Change", "Recipe"]

_SHOWN = 60
"""Characters of a value in a sentence."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """Why an artifact is not as its recipe asks: `kind` for a table, `reason` one sentence for a person."""

    kind: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one artifact, or one partition of one, is to be made now.

    Attributes:
        artifact: What is made.
        key: Digest (hex) of everything below and of nothing else.
        version: Version of the step that makes it.
        settings: Name → value of every setting that decides bytes; JSON values.
        sources: Name → digest of what it is made of and that is no artifact: files, a tokenizer, a listing.
        upstream: `name/partition` of each artifact that it is made of → that artifact's content digest.
        source_change: What changed in its sources since the artifact that is there, in words, where the step knows it
            better than their names say. No part of the key.
    """

    artifact: Artifact
    key: str
    version: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    upstream: Mapping[str, str] = field(default_factory=dict)
    source_change: str = ""

    def to_json(self) -> dict[str, Any]:
        """What a receipt keeps of it; the artifact and the key are in the receipt already."""
        value = asdict(self)
        del value["artifact"], value["key"], value["source_change"]
        return value

    def difference(self, receipt: Receipt) -> Change | None:
        """What of this recipe is not as in the receipt; None where the keys are equal.

        Settings come before sources: with other globs a listing is another because of them.
        """
        if receipt.key == self.key:
            return None
        made = receipt.recipe
        if not made:
            return Change(
                kind="recipe changed",
                reason="made from other inputs or settings than now (its receipt is from before these were recorded)",
            )
        if made["version"] != self.version:
            return Change(
                kind="older version",
                reason=f"made by version {made['version']} of this step, which is {self.version} now",
            )
        if changed := _changed(made["upstream"], self.upstream):
            return Change(kind="input changed", reason=f"its input changed: {_first(changed)}")
        # as a receipt holds them, where a tuple is a list
        before, now = flat(made["settings"]), flat(json.loads(json.dumps(self.settings)))
        if changed := _changed(before, now):
            name = changed[0]
            more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
            was, wanted = _shown(before.get(name)), _shown(now.get(name))
            return Change(kind="settings changed", reason=f"{name} was {was}, is {wanted} now{more}")
        if changed := _changed(made["sources"], self.sources):
            return Change(kind="input changed", reason=f"its source changed: {self.source_change or _first(changed)}")
        return Change(kind="recipe changed", reason="made from other inputs or settings than now")


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """A nested mapping as dotted names."""
    if not isinstance(value, Mapping):
        return {name: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= flat(inner, f"{name}.{key}" if name else str(key))
    return found


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = [*now, *(name for name in before if name not in now)]
    return [name for name in names if name not in before or name not in now or before[name] != now[name]]


def _first(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _shown(value: Any) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
