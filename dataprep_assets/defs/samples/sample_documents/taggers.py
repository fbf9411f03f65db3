"""A custom tagger: `tag:` in the defs.yaml next to this file names its function."""

from collections.abc import Mapping, Sequence

import pyarrow as pa


def variety(documents: pa.Table) -> Mapping[str, Sequence[float | None]]:
    """Return the share of distinct words in each text; null for a text without words."""
    texts = (text.split() for text in documents["text"].to_pylist())
    return {"variety": [len(set(words)) / len(words) if words else None for words in texts]}
