"""OLMo-core and MaxText's olmo_grain: `<split>.npy`, headerless, with an index."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dataprep_assets.formats import olmo
from dataprep_assets.graph.place import Span
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.view import CombinedSplit, CorpusView, UnderConstruction, ViewFacts


def _write(splits: Sequence[CombinedSplit], view: UnderConstruction) -> None:
    for split in splits:
        name = f"{split.split}.npy"
        view.link(split, name)
        index = olmo.build_index(
            [(name, split.split, split.token_count)],
            view.corpus.olmo_sequence_length,
            split.facts.dtype,
            split.facts.tokenizer,
        )
        olmo.write_index(view.target / f"{split.split}_index.json", index)


def _defects(directory: Path, _: Receipt, splits: Sequence[CombinedSplit]) -> Iterator[str]:
    for split in splits:
        olmo.validate(directory / f"{split.split}_index.json", directory)
    yield from ()


def _instances(span: Span, receipt: Receipt) -> Mapping[str, int | list[int]]:
    """OLMo-core's instances are windows of the declared length that do not overlap."""
    length = receipt.recipe.get("settings", {}).get("olmo_sequence_length")
    return {"instances": list(range(span.start // length, (span.stop - 1) // length + 1))} if length else {}


def _trainer(where: str, facts: ViewFacts) -> str:
    paths = [f"{where}/{next(iter(facts.splits))}.npy"]
    return f"OLMo-core: NumpyFSLDatasetConfig(paths={paths}, dtype=NumpyDatasetDType.{facts.dtype}, …)"


VIEW = CorpusView(
    name="olmo",
    description="`<split>.npy` (headerless) with an index for OLMo-core and MaxText's olmo_grain.",
    kinds=frozenset({"numpy", "olmo"}),
    settings=("olmo_sequence_length",),
    linked=lambda split: f"{split}.npy",
    calls=_instances,
    write=_write,
    defects=_defects,
    trainer=_trainer,
)
