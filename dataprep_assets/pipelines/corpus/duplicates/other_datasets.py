"""The documents of other datasets with which a corpus is compared, `duplicates.against`: those that they keep.

Nothing of another dataset's declaration is read: its `duplicates` artifact says how its texts were compared, of which
shards, and which rows of each are kept. Its documents come before all of this one's, so none of them ever goes.

Entry points: `others_of`, `OtherShard`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.duplicates.kept_set import ShardOrder
from dataprep_assets.curation.duplicates.signatures import SignedShard
from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError, count_of
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Content, Receipt
from dataprep_assets.pipelines.corpus.curation.tagged_shard import ROWS, TAGS
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.removed_duplicates import DUPLICATES, kept_file
from dataprep_assets.pipelines.corpus.duplicates.row_names import RowNames
from dataprep_assets.pipelines.corpus.duplicates.signed_shard import SIGNATURES, open_signatures

_DECLARED = {
    "kind": "duplicates.kind",
    "normalization": "duplicates.normalize",
    "shingle": "duplicates.shingle",
    "bands": "duplicates.threshold and permutations",
    "rows": "duplicates.threshold and permutations",
    "key": "document.id_key",
}
"""What decides signatures → where a person says it."""


@dataclass(frozen=True, kw_only=True)
class OtherShard:
    """A shard of another dataset.

    Attributes:
        dataset: The dataset.
        place: Its place in `duplicates.against`, which decides between documents of two of them.
        partition: The shard.
        signatures: The content of its signatures.
        kept: The digest of the file that says which rows are kept.
    """

    dataset: str
    place: int
    partition: str
    signatures: Content
    kept: str

    def open_signatures(self, store: ArtifactStore) -> tuple[SignedShard, NDArray[np.bool_]]:
        """Its signatures, and which of its rows are kept: ``(rows,)``. Raises IntegrityError if both do not fit."""
        signed = open_signatures(store, Artifact(dataset=self.dataset, name=SIGNATURES, partition=self.partition))
        name = kept_file(self.partition)
        data = np.fromfile(store.local(self._duplicates, [name]) / name, np.uint8)
        # a bit a row, the last byte filled up
        if len(data) != -(-signed.rows // 8):
            raise IntegrityError(
                f"{self._duplicates}: {name} does not have {count_of(signed.rows, 'row')}. Materialize it again"
            )
        return signed, np.unpackbits(data, count=signed.rows).astype(np.bool_)

    def order(self, split: int) -> ShardOrder:
        """The values that determine the priority of its rows: its dataset alone. `split` is the number of a split that
        is no one's of this dataset."""
        zero = np.zeros(1, np.int64)
        return ShardOrder(split=split, starts=zero, files=zero, ages=zero + self.place, theirs=True)

    def names(self, store: ArtifactStore) -> RowNames:
        """Return how its rows are named: `dataset:file:row`."""
        tags = Artifact(dataset=self.dataset, name=TAGS, partition=self.partition)
        return RowNames(rows=store.local(tags, [ROWS]) / ROWS, prefix=f"{self.dataset}:")

    @property
    def _duplicates(self) -> Artifact:
        return Artifact(dataset=self.dataset, name=DUPLICATES)


@dataclass(frozen=True, kw_only=True)
class OtherDocuments:
    """The documents of all datasets with which a corpus is compared.

    Attributes:
        shards: Their shards, in the order of the datasets and of their plans.
        files: Dataset → digest of the names of its files, by which its documents are named.
    """

    shards: Sequence[OtherShard]
    files: Mapping[str, str]

    @property
    def upstream(self) -> Mapping[str, Content]:
        """The input artifacts of what is made of them."""
        return {f"{shard.dataset}:{SIGNATURES}/{shard.partition}": shard.signatures for shard in self.shards}

    @property
    def sources(self) -> Mapping[str, str]:
        """What else enters its recipe: names of files, and which rows are kept, a part of the others' duplicates."""
        kept_digests = {f"kept rows of {shard.dataset}/{shard.partition}": shard.kept for shard in self.shards}
        return {f"files of {name}": digest for name, digest in self.files.items()} | kept_digests


def others_of(corpus: CorpusDeclaration, store: ArtifactStore) -> OtherDocuments:
    """The documents of the datasets that `duplicates.against` names, as they are in the store now.

    Raises MissingArtifactError for one that was not made, or whose signatures are newer than its duplicates;
    ConfigError for one whose texts were compared in another way.
    """
    assert corpus.duplicates is not None
    shards: list[OtherShard] = []
    files = {}
    for number, name in enumerate(corpus.duplicates.against):
        artifact = Artifact(dataset=name, name=DUPLICATES)
        if (receipt := store.receipt(artifact)) is None:
            raise _missing_error(corpus, name, f"not there: {artifact}")
        _require_alike(corpus, name, receipt.recipe["settings"])
        files[name] = receipt.recipe["sources"]["files"]
        shards += _shards(corpus, store, name, number, receipt)
    return OtherDocuments(shards=shards, files=files)


def _shards(
    corpus: CorpusDeclaration, store: ArtifactStore, name: str, place: int, receipt: Receipt
) -> Iterator[OtherShard]:
    signed = {
        key.partition("/")[2]: content
        for key, content in receipt.recipe["upstream"].items()
        if key.startswith(f"{SIGNATURES}/")
    }
    digest_of = {file.path: file.sha256 for file in receipt.files}
    artifacts = [Artifact(dataset=name, name=SIGNATURES, partition=partition) for partition in signed]
    for (partition, content), now in zip(signed.items(), store.receipts(artifacts), strict=True):
        # which rows are kept is told by their positions in those signatures
        if now is None or now.content != content:
            raise _missing_error(
                corpus, name, f"signatures of {partition} differ from those used to find its duplicates"
            )
        if kept_file(partition) not in digest_of:
            raise _missing_error(
                corpus, name, f"{DUPLICATES} was built by an older version and does not record the kept rows"
            )
        yield OtherShard(
            dataset=name, place=place, partition=partition, signatures=content, kept=digest_of[kept_file(partition)]
        )


def _missing_error(corpus: CorpusDeclaration, name: str, what: str) -> MissingArtifactError:
    return MissingArtifactError(
        f"{corpus.dataset}: duplicates.against: {name}: {what}. Run it first: dataprep run {name}"
    )


def _require_alike(corpus: CorpusDeclaration, name: str, theirs: Mapping[str, Any]) -> None:
    """Raise ConfigError if the texts of another dataset were compared in another way."""
    own = corpus.signing.key_parts
    names = ("kind", "normalization", "unicode", "words", "shingle", "bands", "rows", "rensa", "key")
    for setting in names:
        if own.get(setting) == theirs.get(setting):
            continue
        where = _DECLARED.get(setting)
        text = (
            f"has a different `{where}`"
            if where
            else f"was built with a different version of {setting}: {theirs.get(setting)}"
        )
        # of a key not even its digest is shown
        detail = (
            "" if setting == "key" or where is None else f" ({setting} {theirs.get(setting)}, here {own.get(setting)})"
        )
        remedy = "Set the same in both" if where else f"Run it again: dataprep run {name}"
        raise ConfigError(
            f"{corpus.dataset}: duplicates.against: {name} {text}{detail}, so its texts cannot be compared with these. "
            f"{remedy}"
        )
