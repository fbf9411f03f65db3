"""Personal data planted into each location of a message that is rewritten, to measure the recall of the rewriters.

Entry point: `open_planted_rewriting`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

import orjson

from dataprep_assets.curation.rewriters.recall import PlantedRewriting
from dataprep_assets.curation.rewriters.rewriting import Rewriting
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.screening.conversation_columns import list_messages
from dataprep_assets.pipelines.blend.table.row_table import TabledShard, open_source_reader, prepare_row_tables
from dataprep_assets.tokenization.chat.rewritten_messages import list_rewritable_texts, rewrite_messages

_MAX_TEXTS = 32
"""Maximum number of texts of the dataset into which cases are planted."""
Message = dict[str, Any]


def _build_call(text: str) -> Message:
    call = {"type": "function", "function": {"name": "look_up", "arguments": {"query": [text]}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


LOCATIONS: Mapping[str, Callable[[str], Message]] = {
    "content": lambda text: {"role": "user", "content": text},
    "reasoning": lambda text: {"role": "assistant", "reasoning_content": text, "content": "Yes."},
    "call arguments": _build_call,
    "tool results": lambda text: {"role": "tool", "content": [{"type": "text", "text": text}]},
}
"""Location of a text → function that returns a message with the text."""


def open_planted_rewriting(
    blend: BlendDeclaration, store: ArtifactStore, partitions: Sequence[str]
) -> PlantedRewriting:
    """Return the rewriters, and the first texts of a shard, which get the planted personal data."""
    assert blend.rewriting is not None
    texts: list[str] = []
    for table in prepare_row_tables(blend, store, partitions[:1]):
        # Use a text of this package if the source is missing or has changed.
        with suppress(DataprepError, OSError):
            texts = list(islice(_iterate_texts(table), _MAX_TEXTS))
    return PlantedRewriting(
        rewriting=blend.rewriting,
        locations={location: partial(_rewrite_at, build, blend.rewriting) for location, build in LOCATIONS.items()},
        documents=texts,
    )


def _iterate_texts(table: TabledShard) -> Iterator[str]:
    """Yield the texts of a shard's messages before rewriting, from the first block of each source."""
    read_row = open_source_reader(table.shard)
    for source in table.shard.sources:
        for block in islice(source.read_rows(as_json=table.shard.reads_json), 1):
            for number, values in zip(block.numbers, block.rows, strict=True):
                row = read_row(values, f"{source.label}: row {number}")
                yield from () if isinstance(row, str) else list_rewritable_texts(list_messages(row))


def _rewrite_at(build: Callable[[str], Message], rewriting: Rewriting, texts: Sequence[str]) -> list[str]:
    # Return the whole messages, because data that is left anywhere in a message would be trained.
    return [orjson.dumps(rewrite_messages([build(text)], rewriting)).decode() for text in texts]
