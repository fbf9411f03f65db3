"""Counts with their noun, for messages."""


def count_of(count: int, noun: str) -> str:
    """Return a count with its noun: `1 note`, `2 notes`, `1,000 notes`; `noun` is in the singular, and takes an `s`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
