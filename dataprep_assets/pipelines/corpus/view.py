"""The artifacts `<dataset>/<view>_bins`: the files that each trainer expects, over the same bytes as the combined bins.

A view that links token files (one inode, no second copy) and adds its sidecars costs seconds and no tokenization:
nanoGPT reads uint16 or uint32 ids, Megatron the same bytes as uint16 or int32, datatrove and OLMo as they are
(docs/formats/README.md#one-stream). Views with formats of their own, MDS and Parquet, copy the ids: one pass over the
stream in blocks, by as many threads as there are workers; files that a killed run finished are kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from dataprep_assets.errors import ConfigError, IntegrityError
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats import flat_bins
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.graph.losses import Loss
from dataprep_assets.graph.place import Locate, Place, Span
from dataprep_assets.graph.recipe import Recipe
from dataprep_assets.graph.spec import ArtifactSpec, Proofs
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.handle import ArtifactHandle
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.combined_bins import COMBINED_BINS, current_combined
from dataprep_assets.pipelines.corpus.corpus_view import (
    CombinedSplit,
    CorpusView,
    UnderConstruction,
    ViewFacts,
    artifact_name,
    combined_splits,
    view_named,
)
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.view_proofs import PROOFS, examine_view


def trainer_lines(corpus: CorpusDeclaration, store: ArtifactStore) -> Iterator[str]:
    """The lines with trainer settings for each present view."""
    for name in corpus.views:
        artifact = corpus.artifact(artifact_name(name))
        if (receipt := store.receipt(artifact)) is not None:
            facts = ViewFacts.of(receipt)
            splits = {split: facts.splits[split] for split in corpus.splits}  # as declared: a receipt sorts its keys
            yield view_named(name).trainer(store.location(artifact), facts.model_copy(update={"splits": splits}))


def view_spec(corpus: CorpusDeclaration, name: str, *, combined: tuple[ArtifactSpec, ...]) -> ArtifactSpec:
    """One view of a corpus.

    Args:
        corpus: The dataset.
        name: Name of the view's module.
        combined: The combined bins of every split.
    """
    view = view_named(name)
    return ArtifactSpec(
        declaration=corpus,
        name=artifact_name(name),
        version=view.version,
        columns=view.columns,
        description=view.description,
        kinds=view.kinds,
        inputs=combined,
        recipes=lambda store, _: [_recipe(corpus, view, combined_splits(corpus, store))],
        build=lambda request: [Outcome.of(*build_view(corpus, request.store, name, threads=request.workers))],
        places=partial(_places, corpus, view),
        losses=lambda _, receipts: _losses(receipts),
        proofs=Proofs(proofs=PROOFS, examine=partial(examine_view, corpus, view)),
    )


def _losses(receipts: Sequence[Receipt]) -> Iterator[Loss]:
    for receipt in receipts:
        facts = ViewFacts.of(receipt)
        for split, count in facts.tokens_left_out.items():
            of = facts.splits[split]
            yield Loss(action="left out", reason=f"{facts.view}_tail", count=count, of=of, unit="token", part=split)


def _places(corpus: CorpusDeclaration, view: CorpusView, store: ArtifactStore, shards: Mapping[str, Receipt]) -> Locate:
    """Open a view to say where documents are in it; raises IntegrityError if it was made of other shards."""
    handle = ArtifactHandle.of(store, corpus.artifact(artifact_name(view.name)))
    combined = {split: current_combined(corpus, store, split, shards).content for split in corpus.splits}
    if dict(handle.receipt.inputs) != combined:
        raise IntegrityError(f"{handle.artifact} was made of other combined bins than there are. Run the dataset first")
    if view.places is not None:
        return view.places(handle)
    linked, itemsize = view.linked, flat_bins.token_dtype(ViewFacts.of(handle.receipt).dtype).itemsize

    def locate(span: Span) -> Iterator[Place]:
        if linked is not None:
            file, at = linked(span.split), view.calls(span, handle.receipt)
            artifact = str(handle.artifact)
            yield Place(artifact=artifact, file=file, start=span.start, stop=span.stop, itemsize=itemsize, at=at)

    return locate


def _recipe(corpus: CorpusDeclaration, view: CorpusView, splits: Sequence[CombinedSplit]) -> Recipe:
    settings = {name: getattr(corpus, name) for name in view.settings}
    return Recipe(
        artifact=corpus.artifact(artifact_name(view.name)),
        key=digest_value(["view", view.version, view.name, settings, [[s.split, s.receipt.content] for s in splits]]),
        version=view.version,
        settings=settings,
        upstream={f"{COMBINED_BINS}/{s.split}": s.receipt.content for s in splits},
        ledger=Ledger.total(s.receipt.ledger or Ledger() for s in splits).of_documents,
    )


def build_view(corpus: CorpusDeclaration, store: ArtifactStore, name: str, *, threads: int = 1) -> tuple[Receipt, bool]:
    """Link the combined bins of every split into a view's layout and write its sidecars, or copy their ids into it.

    Args:
        corpus: The dataset.
        store: Where its artifacts are.
        name: Name of the view.
        threads: Number of threads of a copying view.

    Returns:
        The receipt, and whether the view was reused.

    Raises ConfigError for a split that is shorter than the view allows.
    """
    view, splits = view_named(name), combined_splits(corpus, store)
    recipe = _recipe(corpus, view, splits)

    def write(staged: Path) -> Written:
        if view.shortest is not None:
            least = view.shortest(corpus)
            for split in splits:
                if split.token_count < least.tokens:
                    raise ConfigError(least.refusal(split.split, split.token_count))
        made = UnderConstruction(corpus=corpus, store=store, target=staged, threads=threads)
        view.write(splits, made)
        return Written(
            inputs={s.split: s.receipt.content for s in splits},
            # those of any split: `combined_splits` refuses splits of another tokenizer or dtype
            facts=ViewFacts(
                view=name,
                splits={s.split: s.token_count for s in splits},
                **splits[0].facts.model_dump(include={"dtype", "tokenizer", "vocab_size", "eos_token_id"}),
                **made.facts,
            ),
            ledger=recipe.ledger,
            digests=made.digests,
            joined=tuple(made.joined),
        )

    # links cost nothing and are made anew; of a copy, files that a killed run finished are kept
    return ensure(recipe, store, write, corpus.verify, resumes=view.linked is None)
