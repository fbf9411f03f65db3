"""Hugging Face `datasets`: `data/<split>-*.parquet`, a document a row, and the dataset card."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from dataprep_assets.formats import hf_parquet
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.view import CombinedSplit, CorpusView, UnderConstruction


def _write(splits: Sequence[CombinedSplit], view: UnderConstruction) -> None:
    written = {}
    for split in splits:
        tokens, ends = split.open_tokens(view.store), split.open_ends(view.store)
        written[split.split] = hf_parquet.write_split(
            view.target, split.split, tokens, ends, threads=view.threads, resume=True
        )
        view.digests.update(written[split.split].digests)
    about = f"Tokenizer: `{splits[0].facts.tokenizer}`. Separators are kept, as in the token bins."
    hf_parquet.write_card(view.target, view.corpus.dataset, written, about)


def _defects(directory: Path, _: Receipt, splits: Sequence[CombinedSplit]) -> Iterator[str]:
    wanted = {s.split: s.documents for s in splits}
    if (rows := hf_parquet.validate(directory)) != wanted:
        yield f"{directory}: {rows} rows for {wanted} documents"


VIEW = CorpusView(
    name="hf_parquet",
    description="`data/<split>-*.parquet`, a document a row, and the dataset card, for Hugging Face `datasets`.",
    kinds=frozenset({"parquet", "huggingface"}),
    version=2,
    copied=hf_parquet.read_blocks,
    keeps_documents=True,
    write=_write,
    defects=_defects,
)
