"""nanoGPT: `<split>.bin` and `meta.pkl` in one folder."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from dataprep_assets.formats import flat_bins
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.view import CombinedSplit, CorpusView, ViewFacts, ViewWriter


def _write_view(splits: Sequence[CombinedSplit], view: ViewWriter) -> None:
    for split in splits:
        view.link(split, f"{split.split}.bin")
    # Take `meta.json` from the first split, because `load_combined_splits` rejects splits with different tokenizers or
    # dtypes.
    flat_bins.write_meta(view.target, flat_bins.read_meta(view.store.local(splits[0].artifact, ["meta.json"])))


def _find_defects(directory: Path, _: Receipt, splits: Sequence[CombinedSplit]) -> Iterator[str]:
    for split in splits:
        flat_bins.validate_meta(directory)
        if flat_bins.read_meta(directory)["dtype"] != split.facts.dtype:
            yield f"{directory / 'meta.json'}: dtype must be {split.facts.dtype}, as in {split.split}"


def _format_trainer_lines(location: str, facts: ViewFacts) -> str:
    # nanoGPT's train.py reads 16-bit ids, so it would silently read wrong ids from a file with 32-bit ids.
    wide = "; in train.py, replace np.uint16 with np.uint32" if facts.dtype == "uint32" else ""
    return f"nanoGPT: data_dir = {location!r}{wide}"


VIEW = CorpusView(
    name="nanogpt",
    description="`<split>.bin` and `meta.pkl` in one folder, as nanoGPT-style trainers load them.",
    kinds=frozenset({"numpy", "nanogpt"}),
    linked=lambda split: f"{split}.bin",
    write=_write_view,
    defects=_find_defects,
    trainer=_format_trainer_lines,
)
