"""The proofs of a view: its tokens are those of the combined bins, its layout is the one that its trainer reads, and
it contains no retracted document."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from dataprep_assets.documents.retractions import retracted_ids
from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.finding import Finding, judged, name_of, verdict
from dataprep_assets.graph.spec import Proof
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt, damage
from dataprep_assets.pipelines.corpus.combined_bins import combined_without
from dataprep_assets.pipelines.corpus.corpus_view import (
    CombinedSplit,
    CorpusView,
    ViewFacts,
    artifact_name,
    combined_splits,
)
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.plural import count_of

PROOFS = (
    Proof("same_stream", "Its tokens are those of the combined bins, every one."),
    Proof("layout_valid", "Its sidecars describe its tokens exactly."),
    Proof("no_retracted_document", "It is made of the combined bins that are there, and these hold none."),
)
_REMEDY = "Materialize the view again"


def examine_view(
    corpus: CorpusDeclaration, view: CorpusView, store: ArtifactStore, _: Sequence[str]
) -> Iterator[tuple[str, Finding]]:
    """The findings of all proofs of a view, by name; raises MissingArtifactError if the view is not there."""
    artifact = corpus.artifact(artifact_name(view.name))
    receipt, directory, splits = store.require(artifact), store.local(artifact), combined_splits(corpus, store)
    yield "same_stream", same_stream(directory, receipt, view, splits, store)
    yield "layout_valid", layout_valid(directory, receipt, view, splits)
    combined = {split.split: split.receipt for split in splits}
    yield "no_retracted_document", no_retracted_document(corpus, store, receipt, combined)


@judged
def same_stream(
    directory: Path, receipt: Receipt, view: CorpusView, splits: Sequence[CombinedSplit], store: ArtifactStore
) -> Finding:
    """Every split's tokens in the view are those of the combined bins; all files match the receipt.

    Linked tokens are compared by digest; copied ones id by id, including document lengths if the view has any.
    """
    defects = [f"{name_of(receipt)}: {d}" for d in (*damage(directory, receipt), *_other_claims(receipt, view, splits))]
    tokens = sum(s.token_count for s in splits)
    if view.linked is None:
        if not defects:  # files with other bytes than were committed need not be readable
            defects += [f"{name_of(receipt)}: {d}" for s in splits for d in _other_ids(directory, view, s, store)]
        how = "id for id"
    else:
        how = "byte for byte"
        for split in splits:
            ours, theirs = receipt.file(view.linked(split.split)), split.tokens.record
            if ours.sha256 != theirs.sha256:
                defects.append(f"{name_of(receipt)}: {ours.path} is not the stream of combined_bins/{split.split}")
    return verdict(
        defects,
        f"{count_of(len(splits), 'split')}, {tokens} tokens, {how} the combined bins.",
        _REMEDY,
        facts={"tokens": tokens},
    )


def _other_claims(receipt: Receipt, view: CorpusView, splits: Sequence[CombinedSplit]) -> Iterator[str]:
    """Wrong claims of a view's receipt; a tokenizer may have been renamed, which changes no byte."""
    facts, stream = ViewFacts.of(receipt), splits[0].facts
    ledger = Ledger.total(s.receipt.ledger or Ledger() for s in splits)
    wanted = (
        view.name,
        {s.split: s.token_count for s in splits},
        stream.dtype,
        stream.eos_token_id,
        ledger.of_documents,
    )
    held = (receipt.ledger or Ledger()).of_documents
    if (facts.view, facts.splits, facts.dtype, facts.eos_token_id, held) != wanted:
        yield "its receipt tells of another stream than the combined bins"


def _other_ids(directory: Path, view: CorpusView, split: CombinedSplit, store: ArtifactStore) -> Iterator[str]:
    """The first difference between a copy and the combined bins, if there is one."""
    assert view.copied is not None
    wanted, ends = split.open_tokens(store), split.open_ends(store)
    token = document = 0
    try:
        for ids, lengths in view.copied(directory, split.split):
            same = wanted[token : token + len(ids)]
            if len(same) < len(ids) or (wrong := np.flatnonzero(ids != same)).size:
                at = len(same) if len(same) < len(ids) else int(wrong[0])
                yield f"{split.split}: token {token + at} is not that of combined_bins"
                return
            # a format without documents gives no lengths: then no ends are compared
            held = token + np.cumsum(lengths)
            if not np.array_equal(held, ends[document : document + len(held)].astype(np.int64)):
                yield (f"{split.split}: documents from number {document} on do not end where those of combined_bins do")
                return
            token, document = token + len(ids), document + len(held)
    except DataprepError as error:
        yield str(error)
        return
    except (ValueError, LookupError, TypeError) as error:  # of a reader in another package
        yield f"{split.split}: cannot be read back ({type(error).__name__}: {error})"
        return
    # other copies may leave out the tail
    if view.keeps_documents and (token, document) != (len(wanted), len(ends)):
        yield f"{split.split}: {document} documents, {token} tokens; combined_bins has {len(ends)}, {len(wanted)}"


@judged
def layout_valid(directory: Path, receipt: Receipt, view: CorpusView, splits: Sequence[CombinedSplit]) -> Finding:
    """The sidecars describe the token files exactly: every invariant of the format, recomputed.

    Args:
        directory: The view's directory.
        receipt: The view's receipt.
        view: Its format.
        splits: The combined bins that it was made of.
    """
    return verdict(
        _defects(directory, receipt, view, splits),
        f"The {view.name} layout is valid for {count_of(len(splits), 'split')}.",
        _REMEDY,
        facts={"files": len(receipt.files)},
    )


def _defects(directory: Path, receipt: Receipt, view: CorpusView, splits: Sequence[CombinedSplit]) -> Iterator[str]:
    """Check linked splits one at a time, so that an unreadable one hides no other; copies share a card or an index."""
    for together in [[split] for split in splits] if view.linked is not None else [splits]:
        try:
            yield from view.defects(directory, receipt, together)
        except (DataprepError, OSError, ValueError, LookupError, TypeError) as error:
            yield str(error)


@judged
def no_retracted_document(
    corpus: CorpusDeclaration, store: ArtifactStore, receipt: Receipt, combined: Mapping[str, Receipt]
) -> Finding:
    """The view is made of the present combined bins, and none of their shards holds a listed id.

    `same_stream` proves that every token of the view is that of the combined bins.

    Args:
        corpus: The dataset.
        store: Where its artifacts are.
        receipt: The view's receipt.
        combined: The receipts of the combined bins, by split.
    """
    listed = retracted_ids(corpus.retractions, corpus.document.ids(sensitive=corpus.sensitive))

    def defects() -> Iterator[str]:
        for split, of_split in combined.items():
            if receipt.inputs.get(split) != of_split.content:
                yield f"{name_of(receipt)}: made of other combined bins of {split} than are there now"
            # without a list no shard is opened: there may be tens of thousands
            elif len(listed) and not (found := combined_without(corpus, store, split, listed)).passed:
                yield found.summary

    return verdict(
        defects(),
        f"No document of {count_of(len(combined), 'split')} is on the list of {count_of(len(listed), 'id')}."
        if len(listed)
        else "No document of this dataset is retracted.",
        "Materialize token_bins, then combined_bins, then the view",
        facts={"listed": len(listed)},
    )
