"""Proofs of the duplicates of a dataset: every removal is verified, no two kept documents are alike, splits apart."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from dataprep_assets.documents.duplicates.candidates import Nodes, pairs_of, sharing
from dataprep_assets.documents.duplicates.kept_set import overlap, similarity
from dataprep_assets.documents.duplicates.planted import Planted, plant
from dataprep_assets.documents.table import side_by_side
from dataprep_assets.errors import IntegrityError
from dataprep_assets.graph.finding import SHOWN, Finding, files_intact, judged, verdict
from dataprep_assets.graph.spec import Proof, Proofs
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates import ACROSS, DuplicatesFacts
from dataprep_assets.pipelines.corpus.joined_documents import JoinedDocuments, joined
from dataprep_assets.pipelines.corpus.manifest import load_manifest
from dataprep_assets.pipelines.corpus.recall_plot import curve, points_of
from dataprep_assets.pipelines.corpus.removed_duplicates import DUPLICATES, kept_file, removed_rows
from dataprep_assets.pipelines.corpus.row_names import RowNames
from dataprep_assets.pipelines.corpus.signatures import signature_shards
from dataprep_assets.pipelines.corpus.snapshot import fetch_again
from dataprep_assets.pipelines.corpus.tagged_shard import ROWS, TAGS, batches_of
from dataprep_assets.plural import count_of

RECALL = Proof(
    "recall_as_promised",
    "Near-duplicates planted in a sample of the texts are found as often as the bands promise, and those at or above "
    "the threshold as often as `duplicates.recall` asks.",
)
_SHARDS, _TEXTS, _WORDS = 4, 24, 20
"""Shards that texts are taken from, texts of each, and fewest words of one: a shorter one has few shingles to lose."""
_SLACK, _DEVIATIONS, _BELOW = 0.01, 4.0, 0.05
"""What chance may take: a share of all pairs, and standard deviations; and how far the default floor is below what is
promised."""


@judged
def recall_as_promised(corpus: CorpusDeclaration, store: ArtifactStore, receipt: Receipt) -> Finding:
    """The proof itself."""
    assert corpus.duplicates is not None
    texts = _sample(corpus, store)
    if not texts:
        return Finding(passed=True, summary=f"No text of the sample has {_WORDS} words, so nothing could be planted.")
    planted = plant(texts, corpus.signing, int(receipt.key[:8], 16))
    alike = np.concatenate([one.similarities for one in planted])
    shared = np.concatenate([one.shared for one in planted])
    chance = corpus.duplicates.banding.chance(alike)
    above_from = corpus.duplicates.similarity
    above = alike >= above_from
    found, promised = float(shared.mean()), float(chance.mean())
    # each pair is found with a chance p of its own, so the variance of their sum is the sum of all p (1 - p)
    deviation = float(np.sqrt((chance * (1 - chance)).sum())) / len(alike)
    # nothing planted is that much alike: nothing was missed
    recall = float(shared[above].mean()) if above.any() else 1.0
    promised_above = float(chance[above].mean()) if above.any() else 1.0
    floor = corpus.duplicates.recall if corpus.duplicates.recall is not None else promised_above - _BELOW
    defects = []
    if recall < floor:
        defects.append(
            f"{recall:.2%} of the planted near-duplicates from the threshold on are found, {floor:.2%} are asked for"
        )
    if found < promised - _SLACK - _DEVIATIONS * deviation:
        defects.append(f"{found:.2%} of all planted pairs share a band, and {promised:.2%} should")
    finding = verdict(
        defects,
        f"{recall:.2%} of {int(above.sum()):,} planted near-duplicates at or above the threshold are found; the bands "
        f"promise {promised_above:.2%}. None below it is removed.",
        "Raise `duplicates.permutations`, or lower `duplicates.recall`",
        facts={
            "planted": len(alike),
            "recall_%": round(100 * recall, 3),
            "promised_%": round(100 * promised_above, 3),
            "share_a_band_%": round(100 * found, 3),
            "should_%": round(100 * promised, 3),
        },
        table=[_row(one, corpus) for one in planted],
    )
    plot = curve(corpus.duplicates.banding, above_from, points_of(alike, shared))
    return replace(finding, plot=plot)


def _row(one: Planted, corpus: CorpusDeclaration) -> dict[str, Any]:
    """What was found of one kind of edit."""
    assert corpus.duplicates is not None
    chance, above = corpus.duplicates.banding.chance(one.similarities), corpus.duplicates.similarity
    alike = one.similarities >= above
    share = float(one.shared.mean())
    return {
        "edit": one.edit,
        "words_%": round(100 * one.rate, 1),
        "similarity": round(float(one.similarities.mean()), 3),
        "share_a_band_%": round(100 * share, 1),
        "promised_%": round(100 * float(chance.mean()), 1),
        "removed_%": round(100 * float((one.shared & alike).mean()), 1),
        "above_threshold_%": round(100 * float(alike.mean()), 1),
    }


def _sample(corpus: CorpusDeclaration, store: ArtifactStore) -> Sequence[str]:
    manifest = load_manifest(corpus, store)
    keys = list(manifest.plan)
    chosen = keys[:: max(1, len(keys) // _SHARDS)][:_SHARDS]
    fetch_again(corpus, manifest, chosen)
    found: list[str] = []
    for shard in signature_shards(corpus, store, manifest, chosen):
        long = (
            text
            for part in shard.files
            for batch in islice(batches_of(part, shard.fields), 1)
            for text in batch.texts
            if len(text.split()) >= _WORDS
        )
        found += [text[:20_000] for text in islice(long, _TEXTS)]
    return found


_REBUILD = "Delete the artifact's directory and materialize it again"
_INTACT = Proof("files_intact", "Every file has the size and digest of the receipt, and no file is unlisted.")
_VERIFIED = Proof(
    "duplicates_verified",
    "Each document that goes is as like the one that stands for it as is said, which is kept, here or by a dataset of "
    "`against`; and no two kept documents that were candidates are alike. All are compared again.",
)
_DISJOINT = Proof("splits_disjoint", "No kept document of a split is like a kept document of another one.")
DUPLICATES_PROOFS = (_INTACT, _VERIFIED, RECALL, _DISJOINT)
"""All of them; where only equal texts go nothing is planted, and one split is like no other."""


def duplicates_proofs(corpus: CorpusDeclaration) -> Proofs:
    """The proofs of a dataset's duplicates."""
    assert corpus.duplicates is not None
    apart = (_DISJOINT,) if corpus.duplicates.across_splits != "ignore" and len(corpus.splits) > 1 else ()
    near = (RECALL,) if corpus.duplicates.kind == "near" else ()
    return Proofs(proofs=(_INTACT, _VERIFIED, *near, *apart), examine=partial(_examine, corpus, bool(apart)))


def _examine(
    corpus: CorpusDeclaration, apart: bool, store: ArtifactStore, _: Sequence[str]
) -> Iterator[tuple[str, Finding]]:
    artifact = corpus.artifact(DUPLICATES)
    receipt, directory = store.require(artifact), store.local(artifact)
    yield _INTACT.name, files_intact(directory, receipt, _REBUILD)
    yield _VERIFIED.name, _verified(corpus, store, receipt)
    assert corpus.duplicates is not None
    if corpus.duplicates.kind == "near":
        yield RECALL.name, recall_as_promised(corpus, store, receipt)
    if apart:
        yield _DISJOINT.name, _disjoint(corpus, store)


@judged
def _verified(corpus: CorpusDeclaration, store: ArtifactStore, receipt: Receipt) -> Finding:
    facts = DuplicatesFacts.of(receipt)
    found = _Removed(corpus, store)
    defects = [*found.wrong_removals(), *found.alike(), *found.wrong_bits()]
    total = sum(facts.removed.values())
    taken = found.joined.documents.taken[: found.joined.own]
    if total != len(found.nodes) or facts.documents != int(np.count_nonzero(taken)):
        defects.append("its receipt counts other documents than its files")
    return verdict(
        (f"{corpus.artifact(DUPLICATES)}: {one}" for one in defects),
        f"{count_of(total, 'document')} of {facts.documents:,} go, each verified against the one that stands for it.",
        _REBUILD,
        facts={"documents": facts.documents, "removed": total, "equal": facts.equal},
    )


class _Removed:
    """The documents that go by the files of the artifact, as numbers."""

    def __init__(self, corpus: CorpusDeclaration, store: ArtifactStore) -> None:
        self._corpus, self._store = corpus, store
        assert corpus.duplicates is not None
        self._declared = corpus.duplicates
        self.joined: JoinedDocuments = joined(corpus, store, load_manifest(corpus, store))
        nodes, self._names, self._similar = [np.empty(0, np.int64)], list[str](), list[float]()
        for first, partition in zip(self.joined.documents.first.tolist(), self.joined.partitions, strict=False):
            rows = removed_rows(corpus, store, partition)
            nodes.append(rows.positions + first)
            self._names += rows.representatives
            self._similar += rows.similarities
        self.nodes = np.concatenate(nodes)
        self._kept = self.joined.documents.taken.copy()
        self._kept[self.nodes] = False

    def wrong_removals(self) -> Iterator[str]:
        """A sentence for each document that should not go, or not for this one."""
        documents = self.joined.documents
        stands = self._numbers()
        if len(stray := self.nodes[~documents.taken[self.nodes]]):
            yield f"{count_of(len(stray), 'row')} go that a rule drops, or that hold no text"
        digests = documents.digests(self.nodes)[:, :2], documents.digests(stands)[:, :2]
        equal = (digests[0] == digests[1]).all(axis=1).tolist()
        told = zip(self.nodes.tolist(), stands.tolist(), self._names, self._similar, equal, strict=True)
        for node, other, name, similar, same in told:
            where = "a document" if self._corpus.sensitive else name
            if not self._kept[other]:
                yield f"{where} stands for others and is not kept itself"
                continue
            if same:
                found = 1.0
            # without shingles two texts are equal or not alike at all
            elif self._declared.kind == "exact":
                found = 0.0
            else:
                found = similarity(*overlap(documents.shingles(node), documents.shingles(other)))
            # the same function of the same counts as in the build, so equal to the last bit
            if found != similar or found < self._declared.similarity:
                yield f"a document that {where} stands for is {found:.4f} alike, and not {similar:.4f}"

    def _numbers(self) -> Nodes:
        """The documents that stand for others."""
        numbers = self._numbers_of_others()
        manifest = load_manifest(self._corpus, self._store)
        # a name has the file, and so the shard in which it is looked up
        home = {entry.relpath: key for key in manifest.plan for entry in manifest.shard(key)}
        place = {key: at for at, key in enumerate(self.joined.partitions)}
        wanted: dict[str, set[str]] = {}
        for name in self._names:
            if name in numbers:
                continue
            file = name.rpartition(":")[0]
            if file not in home:
                raise IntegrityError(f"{self._corpus.artifact(DUPLICATES)}: names a file that no shard has. {_REBUILD}")
            wanted.setdefault(home[file], set()).add(name)
        for key, names in wanted.items():
            start = int(self.joined.documents.first[place[key]])
            own = RowNames(rows=self._store.local(self._corpus.artifact(TAGS, key)) / ROWS)
            numbers |= {name: start + at for name, at in own.positions(names).items()}
        if not numbers.keys() >= set(self._names):
            raise IntegrityError(f"{self._corpus.artifact(DUPLICATES)}: names a row that is not there. {_REBUILD}")
        return np.array([numbers[name] for name in self._names], np.int64)

    def _numbers_of_others(self) -> dict[str, int]:
        """The documents of other datasets that stand for some, by name."""
        wanted = set(self._names)
        return {
            name: first + at
            for other, first, _ in self.joined.bounds_of_others()
            for name, at in other.names(self._store).positions(wanted).items()
        }

    def wrong_bits(self) -> Iterator[str]:
        """A sentence for each shard of which it is not said which rows are kept."""
        bounds = self.joined.documents.first.tolist()
        for partition, first, last in zip(self.joined.partitions, bounds, bounds[1:], strict=False):
            name = kept_file(partition)
            path = self._store.local(self._corpus.artifact(DUPLICATES), [name]) / name
            if path.read_bytes() != np.packbits(self._kept[first:last]).tobytes():
                yield f"{name} has other rows than those that are kept"

    def alike(self) -> Iterator[str]:
        """A sentence for each pair of kept documents that should not both be kept."""
        documents, together = self.joined.documents, self._declared.across_splits == "drop"
        order = self.joined.priority.order(self._declared.across_splits)
        leaders = documents.taken.copy()
        # equal documents first: the first one of each group leads, and only leaders are compared with others
        for _, nodes in sharing(documents, 0, documents.taken):
            digests = documents.digests(nodes)
            own = ~order.are_theirs(documents, nodes)
            kept, seen = (self._kept[nodes] & own).tolist(), dict[tuple[int, ...], int]()
            group = order.groups(documents, nodes, one_group=together)
            for at in np.argsort(order.ranks(nodes), kind="stable").tolist():
                key = (int(digests[at, 0]), int(digests[at, 1]), int(group[at]))
                if key in seen:
                    leaders[nodes[at]] = False
                    if kept[at]:
                        yield "two equal documents are kept"
                seen.setdefault(key, at)
        pairs = pairs_of(documents, leaders, order)
        # the candidates of the build: of those that are alike at most one may be kept
        pairs = pairs[self._kept[pairs].all(axis=1)]
        # documents of different splits may both stay then, unless one is of another dataset
        if not together:
            homes = order.split[documents.shard_of(pairs)]
            pairs = pairs[(homes[:, 0] == homes[:, 1]) | order.are_theirs(documents, pairs).any(axis=1)]
        sizes = documents.sizes(pairs.ravel()).reshape(-1, 2)
        # sets share at most the smaller one: where sizes are too far apart, shingles need not be compared
        near = sizes.min(axis=1) >= self._declared.similarity * sizes.max(axis=1)
        for one, other in pairs[near].tolist():
            if similarity(*overlap(documents.shingles(one), documents.shingles(other))) >= self._declared.similarity:
                yield "two documents that are alike are kept"


@judged
def _disjoint(corpus: CorpusDeclaration, store: ArtifactStore) -> Finding:
    directory = store.local(corpus.artifact(DUPLICATES), [ACROSS])
    pairs = [one for piece in side_by_side([directory / ACROSS]) for one in piece.to_pylist()]
    defects = [
        f"a document of {one['split']} is like one of {one['other']}"
        if corpus.sensitive
        else f"{one['row']} of {one['split']} is {one['similarity']:.1%} like {one['other_row']} of {one['other']}"
        for one in pairs
    ]
    return verdict(
        defects,
        f"No kept document of one of {count_of(len(corpus.splits), 'split')} is like one of another.",
        "Take them out of a split, or declare `duplicates.across_splits: drop`, which drops them from the split that "
        "is declared first",
        facts={"pairs": len(pairs)},
        table=[] if corpus.sensitive else pairs[:SHOWN],
    )
