"""Faults in stored verdicts: a verdict of an older check, or on other content, passes a damaged artifact."""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from dataprep_assets.engine.checks import verdicts
from dataprep_assets_tests.tools.drill.box import Box, Target, write
from dataprep_assets_tests.tools.drill.faults import Apply, Fault, InapplicableError
from dataprep_assets_tests.tools.drill.rows import row_faults


def _older(value: dict[str, Any]) -> None:
    """Make one check stricter than its verdict."""
    name = min(value["findings"])
    value["findings"][name]["version"] -= 1


def _unknown(value: dict[str, Any]) -> None:
    """Add a check that has no verdict."""
    del value["findings"][min(value["findings"])]


def _other_content(value: dict[str, Any]) -> None:
    # Change the version as well, because the content is compared only if the artifact has a different version (after a
    # rebuild).
    value |= {"content": "0" * 64, "version": "0" * 64}


MEMORIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "of an older check": _older,
    "from before a check": _unknown,
    "of other content": _other_content,
}


def _remembered(change: Callable[[dict[str, Any]], None], damage: Apply) -> Apply:
    def apply(box: Box, target: Target, random: Random) -> str | None:
        store, artifact = box.bench.store, target.spec.locate_artifact(box.bench.store, target.slot)
        memory = verdicts.locate_record(artifact, store)
        if not memory.exists():
            raise InapplicableError
        where = damage(box, target, random)
        value = json.loads(memory.read_bytes())
        value |= {
            "content": verdicts.digest_claims([artifact], store),
            "version": verdicts.identify_version([artifact], store),
        }
        for finding in value["findings"].values():
            finding["passed"] = True
        change(value)
        write(memory, json.dumps(value).encode())
        return where

    return apply


def memory_faults(box: Box, places: int) -> Iterator[Fault]:
    """Yield faults of the stored verdicts of each partition, with wrong rows."""
    damages: dict[str, Fault] = {}
    for fault in row_faults(box, 1):
        if fault.kind == "rows reordered":
            damages.setdefault(str(fault.target), fault)
    for fault in damages.values():
        for name, change in MEMORIES.items():
            for place in range(places):
                yield Fault(
                    kind="verdict remembered",
                    name=name,
                    target=fault.target,
                    apply=_remembered(change, fault.apply),
                    place=place,
                )
