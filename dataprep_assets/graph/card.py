"""The artifact `<dataset>/data_card`: what a dataset is, for people and for machines, beside its products.

It is made of receipts and the declaration only. Its key is a digest of everything that the card says, so it is made
again exactly when one of these things has changed, and its bytes are the same wherever it is made.

Entry point: `data_card_spec`, one line of a wing's `component.py`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats import croissant
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.graph.card_contents import Card, CardSubject, SplitCounts, gathered
from dataprep_assets.graph.card_page import PAGE, card_files
from dataprep_assets.graph.facts import Facts
from dataprep_assets.graph.finding import Finding, judged, verdict
from dataprep_assets.graph.proof_level import SAMPLE, Level
from dataprep_assets.graph.recipe import Recipe
from dataprep_assets.graph.shown import Markdown, Shown
from dataprep_assets.graph.spec import ArtifactSpec, Proof, Proofs
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.receipt import Receipt

VERSION = 6
DATA_CARD = "data_card"
PRODUCT_BYTES = "product_bytes"
"""The entry of a card's metadata that counts the bytes of the dataset's products."""
BUILD_SECONDS = "build_seconds"
"""The entry of a card's metadata with the total build time of the present artifacts: CPU seconds if they were measured
(tokenizing), else the seconds that the step took."""
PROOF_LEVEL, MADE_AGAIN = "proof_level", "made_again"
"""The entries with the level of proof, and the share of the documents that the checks make again from the source."""
_TODO = "Delete the artifact's directory and materialize data_card again"


class CardFacts(Facts):
    """Counts of what a card describes. `undeclared` lists what Croissant asks for and the declaration does not say.

    `proof_level` is the declared one, `made_again` the share of the documents that the checks make again from the
    source; None where they make none. `splits` has the counts of each split.
    """

    rows: int
    documents: int
    tokens: int
    dropped: int
    retracted: int
    described_files: int
    undeclared: tuple[str, ...]
    proof_level: Level = SAMPLE
    made_again: float | None = None
    splits: tuple[SplitCounts, ...] = ()


def data_card_spec(subject: CardSubject) -> ArtifactSpec:
    """The spec of a dataset's card, made after all other artifacts."""
    # in the graph it follows the ends alone, through which it follows all
    used = {source for spec in subject.specs for source in spec.inputs}
    # it has digest and size of every artifact
    placed = {f"receipts of {spec.path[-1]}" for spec in subject.specs if spec.kept and spec.names_places is not None}
    return ArtifactSpec(
        declaration=subject.declaration,
        name=DATA_CARD,
        version=VERSION,
        description="What the dataset is: `dataset_card.md` for people, `croissant.json` (Croissant 1.1) for machines.",
        kinds={"json", "file"},
        inputs=tuple(spec for spec in subject.specs if spec not in used),
        verification="full",
        names_places=frozenset(placed) if placed else None,
        recipes=lambda store, _: [_recipe(gathered(subject, store))],
        build=lambda request: [_build(subject, request.store)],
        metadata=_metadata,
        proofs=Proofs(proofs=_PROOFS, examine=_examined(subject)),
    )


def _recipe(card: Card) -> Recipe:
    """The recipe of the card: what it will say, under the names that a reported change uses."""
    settings: dict[str, Any] = {
        "description": card.description,
        "sensitive": card.sensitive,
        "card": card.declared.model_dump(mode="json", exclude_defaults=True),
        "sources": {s.name: {k: v for k, v in asdict(s).items() if v is not None} for s in card.sources},
    }
    if card.sensitive:
        settings["small_cell"] = card.privacy.below
    sources = {
        "counts": digest_value([[asdict(split) for split in card.splits], *_totals(card).values()]),
        "tokenizer": digest_value(asdict(card.tokenizer) if card.tokenizer is not None else None),
        "checks": digest_value([asdict(check) for check in card.checks]),
        "columns": digest_value([asdict(records) for records in card.records]),
        "proof": digest_value(None if card.again is None else asdict(card.again)),
        **({"sections": digest_value([asdict(one) for one in card.sections])} if card.sections else {}),
        **{f"receipts of {artifact.name}": digest_value(asdict(artifact)) for artifact in card.artifacts},
    }
    upstream = dict(content for artifact in card.artifacts for content in artifact.contents)
    return Recipe(
        artifact=Artifact(dataset=card.dataset, name=DATA_CARD),
        key=digest_value([DATA_CARD, VERSION, settings, sources, upstream]),
        version=VERSION,
        settings=settings,
        sources=sources,
        upstream=upstream,
    )


def _totals(card: Card) -> dict[str, Any]:
    """The ledger's totals that a card shows."""
    return {name: getattr(card.ledger, name) for name in ("rows_in", "documents", "tokens", "dropped")}


def _build(subject: CardSubject, store: ArtifactStore) -> Outcome:
    card = gathered(subject, store)
    recipe = _recipe(card)

    def write(staged: Path) -> Written:
        for name, data in card_files(card).items():
            (staged / name).write_bytes(data)
        return Written(inputs=recipe.sources, facts=_facts(card))

    outcome = Outcome.of(*ensure(recipe, store, write))
    products = sum(artifact.bytes for artifact in card.artifacts if artifact.product)
    return replace(outcome, metadata={PRODUCT_BYTES: products, BUILD_SECONDS: round(card.build_seconds, 1)})


def _facts(card: Card) -> CardFacts:
    total = card.ledger
    return CardFacts(
        rows=total.rows_in,
        documents=total.documents,
        tokens=total.tokens,
        dropped=sum(total.dropped.values()),
        retracted=card.retracted,
        described_files=sum(len(artifact.described) for artifact in card.artifacts),
        undeclared=tuple(_undeclared(card)),
        splits=card.splits,
        **{} if card.again is None else {"proof_level": card.again.level, "made_again": round(card.again.share, 4)},
    )


def _undeclared(card: Card) -> Iterator[str]:
    declared = card.declared
    for name, there in {
        "card.license": bool(card.licenses),
        "card.homepage": declared.homepage is not None,
        "card.creators": bool(declared.creators),
        "card.published": declared.published is not None,
    }.items():
        if not there:
            yield name
    yield from (f"license of {source.name}" for source in card.sources if source.license is None)


def _metadata(store: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    facts = CardFacts.of(receipt)
    artifact = Artifact(dataset=receipt.dataset, name=DATA_CARD)
    page = (store.local(artifact, [PAGE]) / PAGE).read_text(encoding="utf-8")
    return {
        "card": Markdown(page, ready=True),
        "rows": facts.rows,
        "documents": facts.documents,
        "tokens": facts.tokens,
        "dropped": facts.dropped,
        "retracted": facts.retracted,
        "undeclared": ", ".join(facts.undeclared) or "nothing",
        **({} if facts.made_again is None else {PROOF_LEVEL: facts.proof_level, MADE_AGAIN: facts.made_again}),
    }


_PROOFS = (
    Proof("card_matches_receipts", "Counts, digests and lineage of the card are those of the receipts now.", version=2),
    Proof("croissant_valid", "croissant.json is Croissant 1.1: its properties, ids, references and digests."),
)


def _examined(subject: CardSubject) -> Callable[[ArtifactStore, Sequence[str]], Iterator[tuple[str, Finding]]]:
    def examine(store: ArtifactStore, _: Sequence[str]) -> Iterator[tuple[str, Finding]]:
        artifact = subject.declaration.artifact(DATA_CARD)
        directory, receipt = store.local(artifact), store.require(artifact)
        yield "card_matches_receipts", card_matches_receipts(directory, gathered(subject, store), receipt)
        yield "croissant_valid", croissant_valid(directory)

    return examine


@judged
def card_matches_receipts(directory: Path, card: Card, receipt: Receipt) -> Finding:
    """Every line of the two files in `directory` equals what the receipts, gathered into `card`, say now, and so do the
    counts in the card's own `receipt`."""
    wanted = card_files(card)
    lines = sum(len(data.splitlines()) for data in wanted.values())
    same = CardFacts.of(receipt) == _facts(card)
    counted = [] if same else ["its own receipt: its counts are not those of the other receipts"]
    return verdict(
        [*(d for name, data in wanted.items() for d in _differing(directory / name, data, card.sensitive)), *counted],
        f"{lines:,} lines are what the receipts say.",
        _TODO,
    )


def _differing(path: Path, wanted: bytes, sensitive: bool) -> Iterator[str]:
    found = path.read_bytes()
    lines = zip_longest(found.splitlines(), wanted.splitlines())
    for number, (there, said) in enumerate(lines, 1):
        if there != said:
            told = "" if sensitive else f" {_shown(there)}, the receipts say {_shown(said)}"
            yield f"{path.name} line {number}:{told or ' not what the receipts say'}"


def _shown(line: bytes | None) -> str:
    return "nothing" if line is None else f"{line.decode(errors='replace').strip()!r:.160}"


@judged
def croissant_valid(directory: Path) -> Finding:
    """The Croissant file in `directory` has what the specification asks for."""
    data = (directory / croissant.NAME).read_bytes()
    return verdict(croissant.defects(data), f"{croissant.NAME} conforms to {croissant.CONFORMS_TO}.", _TODO)
