"""Faults of receipts: one claim is changed and the receipt's digest updated; the files are unchanged."""

from collections.abc import Iterator
from random import Random
from typing import Any

from dataprep_assets_tests.tools.drill.box import Box, Target, edit_receipt
from dataprep_assets_tests.tools.drill.faults import Apply, Fault, InapplicableError

CLAIMS = {
    "whose it is": ("artifact", "partition"),
    "inputs": ("inputs",),
    "facts": ("facts",),
    "ledger": ("ledger",),
    "sources": ("sources",),
}
"""The parts of a receipt that describe the artifact. Not included: the name of the dataset, because its folder may be
renamed; key and recipe, which `status` compares with the expected ones; and `measured`, which claims nothing."""
_NAMES = ("tokenizer", "vocab_size")
"""Facts that may change without changing a byte: the tokenizer's name, and its current size."""


def leaves_of(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key in sorted(value):
            yield from leaves_of(value[key], (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves_of(item, (*path, index))
    elif value is not None:
        yield path


def otherwise(value: Any, random: Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + random.choice((-1, 1, 7))
    if isinstance(value, float):
        return value + 0.25
    text = str(value)
    if len(text) == 64 and set(text) <= set("0123456789abcdef"):
        return text[:-1] + ("0" if text[-1] != "0" else "1")
    return {"uint16": "uint32", "uint32": "uint16"}.get(text, f"other_{text}")


def _claim(part: tuple[str, ...]) -> Apply:
    def apply(box: Box, target: Target, random: Random) -> str:
        said = ""

        def change(value: dict[str, Any]) -> None:
            nonlocal said
            leaves = [leaf for name in part for leaf in leaves_of(value.get(name), (name,))]
            leaves = [leaf for leaf in leaves if leaf[0] != "facts" or leaf[-1] not in _NAMES]
            if not leaves:
                raise InapplicableError
            *way, last = random.choice(leaves)
            inner = value
            for step in way:
                inner = inner[step]
            inner[last] = otherwise(inner[last], random)
            said = ".".join(map(str, (*way, last)))

        edit_receipt(box.folder(target), change)
        return said

    return apply


def claim_faults(box: Box, places: int) -> Iterator[Fault]:
    """Yield a fault for every part of every receipt."""
    for target in box.targets():
        for name, part in CLAIMS.items():
            for place in range(places):
                yield Fault(kind="receipt says otherwise", name=name, target=target, apply=_claim(part), place=place)
