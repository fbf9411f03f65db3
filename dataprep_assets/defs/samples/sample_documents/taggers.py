"""A tagger of the user's own: `tag:` in the defs.yaml beside this file names its function."""

from collections.abc import Mapping, Sequence

import pyarrow as pa


def variety(documents: pa.Table) -> Mapping[str, Sequence[float | None]]:
    """The share of different words among the words of each text; null for a text without words."""
    texts = (text.split() for text in documents["text"].to_pylist())
    return {"variety": [len(set(words)) / len(words) if words else None for words in texts]}
