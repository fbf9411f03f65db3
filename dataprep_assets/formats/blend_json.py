"""`blend.json`, the file that Megatron reads with `--per-split-data-args-path`.

The file contains an object with the keys `train`, `valid` and `test`. Each value is a flat list of strings
`["<weight>", "<prefix>", …]`, or null for an absent split. `<prefix>.bin` and `<prefix>.idx` are an indexed dataset.
Megatron rejects an empty list or a list of pairs, and reads two prefixes that look like numbers as a weight and a
prefix. A file for `--data-args-path` contains the list of one split on one line. Source: Megatron-LM,
`megatron/training/utils.py`, `get_blend_and_blend_per_split`; `megatron/core/datasets/utils.py`, `get_blend_from_list`.

Entry points: `write_blend`, `read_blend`, `format_data_args`, `find_defects`.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import FormatError, count_of

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Entry:
    """One indexed dataset of a blend. Weights are relative to each other within a split."""

    weight: float
    prefix: str


def _flatten(entries: Sequence[Entry]) -> list[str]:
    # Use 15 digits, because a double preserves every decimal number of that length. With 17 digits, 0.1 + 0.2 would
    # become 0.30000000000000004.
    return [text for entry in entries for text in (f"{entry.weight:.15g}", entry.prefix)]


def write_blend(path: Path, splits: Mapping[str, Sequence[Entry]]) -> None:
    """Write the blend to the new file `path`. Raises FormatError if Megatron would refuse or misread it."""
    if unknown := set(splits) - set(SPLITS):
        raise FormatError(f"blend: unknown splits: {', '.join(sorted(unknown))}. Available: {', '.join(SPLITS)}")
    value = {split: _flatten(splits[split]) if split in splits else None for split in SPLITS}
    if mistakes := list(_find_defects(value)):
        raise FormatError(f"{path}: {mistakes[0]}")
    with open(path, "x", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def format_data_args(entries: Sequence[Entry]) -> str:
    """Return the line for `--data-args-path`.

    Raises FormatError if a prefix contains white space, because Megatron would split the prefix there.
    """
    if spaced := next((e.prefix for e in entries if e.prefix.split() != [e.prefix]), None):
        raise FormatError(
            f"blend: {spaced!r} contains white space, which --data-args-path cannot represent. Use blend.json"
        )
    return " ".join(_flatten(entries)) + "\n"


def read_blend(path: Path) -> dict[str, list[Entry]]:
    """Return the entries of each split in a file. Raises FormatError if Megatron would refuse or misread the file."""
    value = _load_json(path)
    if mistakes := list(_find_defects(value)):
        raise FormatError(f"{path}: {mistakes[0]}")
    return {
        split: [Entry(float(weight), prefix) for weight, prefix in zip(flat[::2], flat[1::2], strict=True)]
        for split, flat in value.items()
        if flat is not None
    }


def _load_json(path: Path) -> Any:
    try:
        return load_untrusted_json(path.read_bytes())
    except ValueError as error:
        raise FormatError(f"{path}: invalid JSON: {error}. Rebuild the blend") from error


def find_defects(path: Path, exists: Callable[[str], bool]) -> list[str]:
    """Return all defects of a blend, one sentence each. `exists` returns whether both files of a prefix exist."""
    value = _load_json(path)
    mistakes = list(_find_defects(value))
    if mistakes:
        return mistakes
    prefixes = [prefix for flat in value.values() if flat for prefix in flat[1::2]]
    return [f"{prefix}: listed, but its .bin or .idx is missing" for prefix in prefixes if not exists(prefix)]


def _find_defects(value: Any) -> Iterator[str]:
    if not isinstance(value, dict) or set(value) != set(SPLITS):
        yield f"must be an object with exactly the keys {', '.join(SPLITS)}"
        return
    if not any(value.values()):
        yield "all splits are empty. Add an entry to at least one split"
    split_of: dict[str, str] = {}
    for split in SPLITS:
        flat = value[split]
        if flat is None:
            continue
        if not isinstance(flat, list) or not all(isinstance(text, str) for text in flat):
            yield f"{split}: must be a flat list of strings that alternates between weights and prefixes"
        elif not flat:
            yield f"{split}: must not be empty, because Megatron rejects an empty list. Use null"
        elif len(flat) % 2:
            yield f"{split}: must have a prefix for every weight, but has {count_of(len(flat), 'string')}"
        else:
            yield from _find_pair_defects(split, flat, split_of)


def _find_pair_defects(split: str, flat: list[str], seen_prefixes: dict[str, str]) -> Iterator[str]:
    weights = [_parse_number(text) for text in flat[::2]]
    for text, weight in zip(flat[::2], weights, strict=True):
        if weight is None or weight < 0:
            yield f"{split}: a weight must be a finite number of at least 0, not {text!r}"
    if all(weight == 0 for weight in weights):
        yield f"{split}: at least one weight must be greater than 0"
    for prefix in flat[1::2]:
        if _parse_number(prefix) is not None:
            yield f"{split}: the prefix {prefix!r} looks like a number, which Megatron would read as a weight"
        if prefix in seen_prefixes:
            yield f"{split}: {prefix} is already listed in {seen_prefixes[prefix]}"
        seen_prefixes[prefix] = split


def _parse_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
