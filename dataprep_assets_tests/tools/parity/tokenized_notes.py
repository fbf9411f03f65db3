"""Tokenize the sample's notes for rows with only transformers: no code of ours makes a token here.

MaxText's labels are compared with the result. The header is copied from the declaration.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

SEPARATOR = "<|endoftext|>"
Chunk = tuple[int, ...]


def tokenized(files: Iterator[Path], tokenizer: Path, capacity: int) -> Counter[Chunk]:
    """Return how often each note, or chunk of a longer one, is in cohort files; a chunk has at most `capacity` tokens.

    A note ends with the separator; every chunk of a longer one starts with its header again.
    """
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(tokenizer))
    end = theirs.convert_tokens_to_ids(SEPARATOR)
    found: Counter[Chunk] = Counter()
    for path in files:
        for patient in json.loads(path.read_text(encoding="utf-8")):
            for note in patient["notes"]:
                if not note["text"].strip():
                    continue
                header = theirs(_header(patient, note), add_special_tokens=False).input_ids
                body = [*theirs(note["text"], add_special_tokens=False).input_ids, end]
                room = capacity - len(header)
                found.update(tuple(header + body[at : at + room]) for at in range(0, len(body), room))
    return found


def labels(chunks: Mapping[Chunk, int]) -> Counter[tuple[int, int]]:
    """Return the number of every pair of input and label within the chunks."""
    found: Counter[tuple[int, int]] = Counter()
    for chunk, times in chunks.items():
        for pair in pairwise(chunk):
            found[pair] += times
    return found


def _header(patient: Mapping[str, Any], note: Mapping[str, Any]) -> str:
    colour = patient["favourite_colour"]
    return f"{note['type']}, {note['date']}, {note['author']}, likes {'no colour' if colour is None else colour}\n"
