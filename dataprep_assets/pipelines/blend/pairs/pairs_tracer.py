"""Tracing of preference pairs: from a row of a shard or view to its source row, and back.

Entry point: `PairsTracer`.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dataprep_assets.engine.trace.place import TokenRange
from dataprep_assets.engine.trace.sample import SampledRow, build_part
from dataprep_assets.engine.trace.trace import Trace
from dataprep_assets.errors import NotFoundError
from dataprep_assets.formats.conversations.preference_rows import SIDES, PreferenceRow, read_preferences
from dataprep_assets.formats.row_origins import Origins
from dataprep_assets.integrity.artifacts import ArtifactHandle
from dataprep_assets.pipelines.blend.pairs.shard import PAIRS_FILE, PairsFacts
from dataprep_assets.pipelines.blend.pairs.view import PairsSplit, PreferenceView
from dataprep_assets.pipelines.blend.shard_tracer import ShardTracer, TracedShard
from dataprep_assets.stream.tokenizer import load_declared_tokenizer, require_same_tokenizer
from dataprep_assets.tokenization.token_texts import TokenTexts


class _PairsShard(TracedShard):
    """A finished shard of preference pairs, opened for tracing."""

    def __init__(self, handle: ArtifactHandle, unit: str) -> None:
        self.facts = PairsFacts.from_receipt(handle.receipt)
        super().__init__(handle, unit, self.facts.sources)

    @property
    def count(self) -> int:
        return self.facts.pairs

    @cached_property
    def origins(self) -> Origins:
        return np.empty((0, 2), np.int64) if self.facts.empty else super().origins


class PairsTracer(ShardTracer[_PairsShard, PreferenceView]):
    """Tracer of preference pairs."""

    view_kind = PreferenceView
    field = "packed_row"
    noun = "pair"
    subject = "pair"

    def _open(self, handle: ArtifactHandle, unit: str) -> _PairsShard:
        return _PairsShard(handle, unit)

    def _trace_row(self, shard: _PairsShard, number: int, *, is_shown: bool) -> Trace:
        file, source_row = shard.find_source(number)
        row = self._read_row(shard, number)
        return Trace(
            dataset=self._blend.dataset,
            split=shard.unit,
            document=number,
            file=file,
            row=source_row,
            tokens=row.tokens,
            places=tuple(self._find_places(shard, number, row)),
            text=self._format_text(row) if is_shown else None,
        )

    def _sample_rows(
        self, split: PairsSplit, shard: _PairsShard, index: int, numbers: Sequence[int]
    ) -> Iterator[SampledRow]:
        require_same_tokenizer(shard.handle.receipt, load_declared_tokenizer(self._blend.required_tokenizer))
        split_tokens, record = self._token_texts.split, split.shards[index].file
        remaining_numbers, first_row = iter(numbers), 0
        number = next(remaining_numbers, None)
        for rows in read_preferences(split.shards[index].fetch_file(self._store)):
            while number is not None and number < first_row + len(rows):
                row, (file, source_row) = rows[number - first_row], shard.find_source(number)
                answers = [(name, answer) for name in SIDES if (answer := row.get_side(name)) is not None]
                yield SampledRow(
                    split=shard.unit,
                    file=file,
                    row=source_row,
                    partition=shard.partition,
                    locations=(_build_place(str(record.artifact), record.record.path, row, {"row": number}),),
                    parts=(
                        build_part("prompt", row.prompt_ids, split_tokens),
                        *(
                            build_part(name, answer.ids, split_tokens, trained_mask=answer.mask == 1)
                            for name, answer in answers
                        ),
                    ),
                )
                number = next(remaining_numbers, None)
            if number is None:
                return
            first_row += len(rows)

    @cached_property
    def _token_texts(self) -> TokenTexts:
        return TokenTexts(load_declared_tokenizer(self._blend.required_tokenizer).decode)

    def _read_row(self, shard: _PairsShard, number: int) -> PreferenceRow:
        row_count = 0
        folder = self._store.local(shard.handle.artifact, [PAIRS_FILE])
        for rows in read_preferences(folder / PAIRS_FILE):
            if number < row_count + len(rows):
                return rows[number - row_count]
            row_count += len(rows)
        raise NotFoundError(f"trace: {shard.partition} has no row {number}. Rebuild the shard")

    def _find_places(self, shard: _PairsShard, number: int, row: PreferenceRow) -> Iterator[TokenRange]:
        """Yield the locations of a pair in its shard and in each view."""
        artifact = str(shard.handle.artifact)
        yield _build_place(artifact, PAIRS_FILE, row, {"row": number})
        for view in self._views:
            for place in view.find(shard.partition, number):
                yield _build_place(str(view.artifact), place.file, row, {"sample": place.sample})

    def _format_text(self, row: PreferenceRow) -> str:
        decode: Any = load_declared_tokenizer(self._blend.required_tokenizer).decode
        answers = [(name, answer.ids) for name in SIDES if (answer := row.get_side(name)) is not None]
        return "\n".join(f"[{name}] {decode(ids)}" for name, ids in [("prompt", row.prompt_ids), *answers])


def _build_place(artifact: str, file: str, row: PreferenceRow, position: dict[str, int | list[int]]) -> TokenRange:
    return TokenRange(artifact=artifact, file=file, start=0, stop=row.tokens, at=position)
