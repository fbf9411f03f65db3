"""mosaicml-streaming: shards of fixed-length samples, with `index.json`, one folder per split."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path

import numpy as np

from dataprep_assets.engine.trace.place import DocumentSpan, Locate, TokenRange
from dataprep_assets.errors import count_of
from dataprep_assets.formats import mds
from dataprep_assets.integrity.artifacts import ArtifactHandle
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.view import (
    CombinedSplit,
    CopiedBlocks,
    CorpusView,
    MinimumLength,
    ViewFacts,
    ViewWriter,
)


class MdsFacts(ViewFacts):
    """Facts of the view, with the number of tokens per sample."""

    sequence_length: int


def _write_view(splits: Sequence[CombinedSplit], view: ViewWriter) -> None:
    length = view.corpus.mds_sequence_length
    left_out = {}
    for split in splits:
        tokens = split.open_tokens(view.store)
        shards = mds.write_mds(view.target / split.split, tokens, length=length, threads=view.threads, resume=True)
        view.digests.update({f"{split.split}/{name}": digest for name, digest in shards.digests.items()})
        left_out[split.split] = shards.tokens_left_out
    view.facts.update(sequence_length=length, tokens_left_out=left_out)


def _read_copies(directory: Path, split: str) -> CopiedBlocks:
    for samples in mds.read_blocks(directory / split):
        yield samples.reshape(-1), np.zeros(0, np.int64)


def _find_defects(directory: Path, receipt: Receipt, splits: Sequence[CombinedSplit]) -> Iterator[str]:
    for split in splits:
        facts = MdsFacts.from_receipt(receipt)
        length, left_out = facts.sequence_length, facts.tokens_left_out[split.split]
        samples = mds.validate(directory / split.split)
        if samples * length + left_out != split.token_count or left_out >= length:
            yield (
                f"{directory / split.split}: {count_of(samples, 'sample')} of {count_of(length, 'token')} "
                f"and {count_of(left_out, 'left-out token')} must add up to {count_of(split.token_count, 'token')}, "
                f"and fewer than {length:,} tokens may be left out"
            )


def _open_locator(handle: ArtifactHandle) -> Locate:
    length = MdsFacts.from_receipt(handle.receipt).sequence_length

    @cache
    def list_shards(split: str) -> tuple[list[str], list[int]]:
        """Return the names of a split's shards, and their first samples followed by the total number of samples."""
        samples = mds.read_shard_samples(handle.read(f"{split}/{mds.INDEX}"), f"{handle.location}/{split}/{mds.INDEX}")
        return [name for name, _ in samples], list(accumulate((count for _, count in samples), initial=0))

    def locate(span: DocumentSpan) -> Iterator[TokenRange]:
        names, firsts = list_shards(span.split)
        # `firsts` ends with the number of samples, so no shard is found for a span in the stream's tail, whose tokens
        # are in no sample.
        for number in range(max(bisect_right(firsts, span.start // length) - 1, 0), len(names)):
            begin, end = firsts[number] * length, firsts[number + 1] * length
            start, stop = max(span.start, begin), min(span.stop, end)
            # Stop at the first shard without tokens of the span, because later shards have none either.
            if start >= stop:
                return
            yield TokenRange(
                artifact=str(handle.artifact),
                file=f"{span.split}/{names[number]}",
                start=start - begin,
                stop=stop - begin,
                at={"samples": list(range(start // length, (stop - 1) // length + 1))},
            )

    return locate


def _find_sample_ends(handle: ArtifactHandle, split: str) -> range:
    facts = MdsFacts.from_receipt(handle.receipt)
    return range(facts.sequence_length, facts.splits[split] + 1, facts.sequence_length)


def _find_minimum_length(corpus: CorpusDeclaration) -> MinimumLength:
    length = corpus.mds_sequence_length
    return MinimumLength(
        tokens=length,
        key="mds_sequence_length",
        refusal=lambda split, _: (
            f"{split}: has fewer tokens than one sample of {length}, and StreamingDataset cannot open an empty "
            "dataset. Lower `mds_sequence_length`, or remove the view mds"
        ),
    )


def _format_trainer_lines(location: str, facts: ViewFacts) -> str:
    return f"mosaicml-streaming: StreamingDataset(local={location!r}, split={next(iter(facts.splits))!r}, batch_size=…)"


VIEW = CorpusView(
    name="mds",
    description="`<split>/index.json` and shards of fixed-length samples, for mosaicml-streaming's StreamingDataset.",
    kinds=frozenset({"numpy", "mds"}),
    settings=("mds_sequence_length",),
    version=3,
    copied=_read_copies,
    places=_open_locator,
    samples=_find_sample_ends,
    shortest=_find_minimum_length,
    write=_write_view,
    defects=_find_defects,
    trainer=_format_trainer_lines,
)
