"""A recipe: everything that decides an artifact's bytes, with names, so that a change can be described.

The `key` is the digest by which a finished artifact is compared. The other parts say what went into it: they are kept
in the receipt, and if a later recipe has another key, `difference` names what changed. A recipe holds no path, host,
number of workers or secret.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt

_SHOWN = 60
"""Most characters of a value in a sentence."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """Why an artifact does not match its recipe: `kind` is a keyword for tables, `reason` one sentence."""

    kind: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one artifact, or one partition of one, is to be made now.

    Attributes:
        artifact: The artifact to make.
        key: Digest (hex) of everything below and of nothing else.
        version: Version of the step that makes it.
        settings: Name → value of every setting that decides bytes; JSON values.
        sources: Name → digest of each input that is not an artifact: files, a tokenizer, a listing.
        upstream: `name/partition` of each input artifact → its content digest.
        ledger: The ledger that the artifact has to have, where those of its inputs decide it: their sum. Not part of
            the key, because it decides no byte, but an artifact that tells of other documents is out of date.
        source_change: A description of what changed in its sources since the present artifact was made, if the step
            knows more than their names say. Not part of the key.
    """

    artifact: Artifact
    key: str
    version: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    upstream: Mapping[str, str] = field(default_factory=dict)
    ledger: Ledger | None = None
    source_change: str = ""

    def to_json(self) -> dict[str, Any]:
        """The part of the recipe that a receipt keeps; the artifact and the key are in the receipt already."""
        value = asdict(replace(self, ledger=None))
        del value["artifact"], value["key"], value["ledger"], value["source_change"]
        return value

    def difference(self, receipt: Receipt) -> Change | None:
        """How this recipe differs from the one in the receipt; None if the keys are equal, and the ledger is as wanted.

        Settings are told before sources: a listing may differ because the globs do, or for both reasons.
        """
        if receipt.key == self.key:
            return self._other_ledger(receipt)
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
        # as in a receipt, whose JSON turns a tuple into a list
        before, now = flat(made["settings"]), flat(json.loads(json.dumps(self.settings)))
        sources = _changed(made["sources"], self.sources)
        source = f"its source changed: {self.source_change or _first(sources)}" if sources else ""
        if changed := _changed(before, now):
            name = changed[0]
            was, wanted = _shown(before.get(name)), _shown(now.get(name))
            told = f"{name} was {was}, is {wanted} now{_more(changed)}"
            return Change(kind="settings changed", reason=f"{told}; {source}" if source else told)
        if sources:
            return Change(kind="input changed", reason=source)
        return Change(kind="recipe changed", reason="made from other inputs or settings than now")

    def _other_ledger(self, receipt: Receipt) -> Change | None:
        if self.ledger is None:
            return None
        before, now = ({} if it is None else flat(it.of_documents.to_json()) for it in (receipt.ledger, self.ledger))
        # a reason that dropped nothing makes no difference
        before, now = ({name: count for name, count in counts.items() if count} for counts in (before, now))
        if not (changed := _changed(before, now)):
            return None
        name = changed[0]
        told = f"{name} was {before.get(name, 0)}, is {now.get(name, 0)} now"
        return Change(kind="input changed", reason=f"the ledger of its input changed: {told}{_more(changed)}")


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Flatten a nested mapping to dotted names."""
    if not isinstance(value, Mapping):
        return {name: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= flat(inner, f"{name}.{key}" if name else str(key))
    return found


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = [*now, *(name for name in before if name not in now)]
    return [name for name in names if name not in before or name not in now or before[name] != now[name]]


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _first(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _shown(value: Any) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
