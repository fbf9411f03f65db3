"""Hugging Face `datasets`: `data/<split>-*.parquet`, one row per document, and the dataset card."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path

from dataprep_assets.engine.artifact.view import Rows
from dataprep_assets.engine.trace.place import DocumentSpan, Locate, TokenRange
from dataprep_assets.formats import hf_parquet
from dataprep_assets.formats.croissant import ParquetColumn
from dataprep_assets.integrity.artifacts import ArtifactHandle
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.view import CombinedSplit, CorpusView, ViewFacts, ViewWriter


def _write_view(splits: Sequence[CombinedSplit], view: ViewWriter) -> None:
    summaries = {}
    for split in splits:
        tokens, ends = split.open_tokens(view.store), split.open_ends(view.store)
        summaries[split.split] = hf_parquet.write_split(
            view.target, split.split, tokens, ends, threads=view.threads, resume=True
        )
        view.digests.update(summaries[split.split].digests)
    hf_parquet.write_card(view.target, view.corpus.dataset, summaries, _describe_dataset(splits[0].facts.tokenizer))


def _describe_dataset(tokenizer: str) -> str:
    return f"Tokenizer: `{tokenizer}`. Separators are kept, as in the token bins."


def _find_defects(directory: Path, receipt: Receipt, splits: Sequence[CombinedSplit]) -> Iterator[str]:
    summaries = {
        s.split: hf_parquet.SplitSummary(
            rows=s.documents,
            tokens=s.token_count,
            digests={f.path: f.sha256 for f in receipt.files if f.path.startswith(f"data/{s.split}-")},
        )
        for s in splits
    }
    hf_parquet.validate(directory, summaries)
    tokenizer_text = _describe_dataset(ViewFacts.from_receipt(receipt).tokenizer)
    if (directory / hf_parquet.CARD).read_bytes() != hf_parquet.encode_card(receipt.dataset, summaries, tokenizer_text):
        yield f"{directory / hf_parquet.CARD}: does not match the data files in this folder"


def _open_locator(handle: ArtifactHandle) -> Locate:
    @cache
    def list_files(split: str) -> tuple[list[str], list[int]]:
        """Return a split's files in order, and their first documents followed by the total number of documents."""
        # Sort the files by name, which is also their numeric order, because the numbers are padded to five digits.
        names = sorted(f.path for f in handle.files if f.path.startswith(f"data/{split}-"))
        return names, list(accumulate((_count_rows(handle, name) for name in names), initial=0))

    def locate(span: DocumentSpan) -> Iterator[TokenRange]:
        names, firsts = list_files(span.split)
        number = bisect_right(firsts, span.document) - 1
        row = span.document - firsts[number]
        yield TokenRange(artifact=str(handle.artifact), file=names[number], start=0, stop=span.tokens, at={"row": row})

    return locate


def _count_rows(handle: ArtifactHandle, name: str) -> int:
    import pyarrow.parquet as pq

    # Parquet metadata is at the end of a file, so only the end is downloaded from object storage.
    with handle.open(name) as file:
        return int(pq.read_metadata(file).num_rows)


def _format_trainer_lines(location: str, facts: ViewFacts) -> list[str]:
    split = next(iter(facts.splits))
    return [
        f"datasets: load_dataset({location!r})",
        f"torchtitan: HuggingFaceRandomAccessSource.Config(path={location!r}, split={split!r})",
    ]


_DESCRIPTIONS = {hf_parquet.COLUMN: "Token ids of a document, including its separator."}
VIEW = CorpusView(
    name="hf_parquet",
    description="`data/<split>-*.parquet`, one document per row, and the dataset card, for Hugging Face `datasets`.",
    columns=hf_parquet.COLUMN_TYPES,
    column_descriptions=_DESCRIPTIONS,
    kinds=frozenset({"parquet", "huggingface"}),
    version=4,
    copied=hf_parquet.read_blocks,
    places=_open_locator,
    rows=Rows(
        prefix=lambda split: f"data/{split}-",
        columns=tuple(ParquetColumn(name=name, about=about) for name, about in _DESCRIPTIONS.items()),
    ),
    keeps_documents=True,
    write=_write_view,
    defects=_find_defects,
    trainer=_format_trainer_lines,
)
