"""The proof that no retracted document is in a view: it is made of the combined bins, and these hold none.

That the view's tokens are those of the combined bins, every one, is what `same_stream` proves.
"""

from collections.abc import Iterator, Mapping

from dataprep_assets.graph.finding import Finding, judged, ledger_of, name_of, verdict
from dataprep_assets.graph.shown import number_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.ledger import RETRACTED
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.combined_bins import combined_without
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.retractions import retracted_ids

__all__ = ["no_retracted_document"]


@judged
def no_retracted_document(
    corpus: CorpusDeclaration, store: ArtifactStore, receipt: Receipt, combined: Mapping[str, Receipt]
) -> Finding:
    """The combined bins that a view is made of are those that are there, and none of their shards holds a listed id.

    Args:
        corpus: The dataset.
        store: Where its artifacts are.
        receipt: Of the view.
        combined: The receipts of the combined bins, by split.
    """
    listed = retracted_ids(corpus.retractions, corpus.document.ids(sensitive=corpus.sensitive))

    def defects() -> Iterator[str]:
        for split, of_split in combined.items():
            if receipt.inputs.get(split) != of_split.content:
                yield f"{name_of(receipt)}: made of other combined bins of {split} than are there now"
            # without a list no shard is looked at: there may be tens of thousands
            elif len(listed) and not (found := combined_without(corpus, store, split, listed)).passed:
                yield found.summary

    return verdict(
        defects(),
        f"No document of {number_of(len(combined), 'split')} is on the list of {number_of(len(listed), 'id')}."
        if len(listed)
        else "No document of this dataset is retracted.",
        "Materialize token_bins, then combined_bins, then the view",
        facts={"retracted": ledger_of(receipt).dropped.get(RETRACTED, 0)},
    )
