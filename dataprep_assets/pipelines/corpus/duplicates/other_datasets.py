"""Kept documents of other datasets, for comparison with a corpus (`duplicates.against`).

The declarations of other datasets are not read. Their `duplicates` artifacts record how their texts were compared, the
shards, and the kept rows of each. Documents of other datasets have priority over this one's, so they are never removed.

Entry points: `open_other_documents`, `OtherShard`.
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
    "bands": "duplicates.threshold` or `duplicates.permutations",
    "rows": "duplicates.threshold` or `duplicates.permutations",
    "key": "document.id_key",
}
"""Setting of signatures → the key that declares it."""


@dataclass(frozen=True, kw_only=True)
class OtherShard:
    """A shard of another dataset.

    Attributes:
        dataset: The dataset.
        place: Position in `duplicates.against`; it sets the priority between documents of two other datasets.
        partition: The shard.
        signatures: The content of its signatures.
        kept: The digest of the file with its kept rows.
    """

    dataset: str
    place: int
    partition: str
    signatures: Content
    kept: str

    def open_signatures(self, store: ArtifactStore) -> tuple[SignedShard, NDArray[np.bool_]]:
        """Return its signatures and the mask of its kept rows, ``(rows,)``; raise IntegrityError if sizes differ."""
        signatures = open_signatures(store, Artifact(dataset=self.dataset, name=SIGNATURES, partition=self.partition))
        name = kept_file(self.partition)
        data = np.fromfile(store.local(self._duplicates, [name]) / name, np.uint8)
        # the file has one bit per row, padded to whole bytes
        if len(data) != -(-signatures.rows // 8):
            raise IntegrityError(
                f"{self._duplicates}: the size of {name} does not match {count_of(signatures.rows, 'row')}. "
                "Rebuild `duplicates`"
            )
        return signatures, np.unpackbits(data, count=signatures.rows).astype(np.bool_)

    def order(self, split: int) -> ShardOrder:
        """Return the values that determine the priority of its rows, which depends only on its dataset.

        `split` is a number that no split of this dataset has.
        """
        zero = np.zeros(1, np.int64)
        return ShardOrder(split=split, starts=zero, files=zero, ages=zero + self.place, theirs=True)

    def names(self, store: ArtifactStore) -> RowNames:
        """Return the names of its rows: `dataset:file:row`."""
        tags = Artifact(dataset=self.dataset, name=TAGS, partition=self.partition)
        return RowNames(rows=store.local(tags, [ROWS]) / ROWS, prefix=f"{self.dataset}:")

    @property
    def _duplicates(self) -> Artifact:
        return Artifact(dataset=self.dataset, name=DUPLICATES)


@dataclass(frozen=True, kw_only=True)
class OtherDocuments:
    """The documents of all datasets that a corpus is compared with.

    Attributes:
        shards: Their shards, in the order of the datasets and of their plans.
        files: Dataset → digest of the names of its files, which are part of its documents' names.
    """

    shards: Sequence[OtherShard]
    files: Mapping[str, str]

    @property
    def upstream(self) -> Mapping[str, Content]:
        """Entries for these documents in the inputs of artifacts that depend on them."""
        return {f"{shard.dataset}:{SIGNATURES}/{shard.partition}": shard.signatures for shard in self.shards}

    @property
    def sources(self) -> Mapping[str, str]:
        """Further inputs of a recipe: digests of file names, and of the kept rows in the other datasets' duplicates."""
        kept_digests = {f"kept rows of {shard.dataset}/{shard.partition}": shard.kept for shard in self.shards}
        return {f"files of {name}": digest for name, digest in self.files.items()} | kept_digests


def open_other_documents(corpus: CorpusDeclaration, store: ArtifactStore) -> OtherDocuments:
    """Return the documents of the datasets in `duplicates.against` that are in the store now.

    Raises MissingArtifactError if a dataset has no duplicates, or its signatures are newer than its duplicates. Raises
    ConfigError if its texts were compared in a different way.
    """
    assert corpus.duplicates is not None
    shards: list[OtherShard] = []
    files = {}
    for number, name in enumerate(corpus.duplicates.against):
        artifact = Artifact(dataset=name, name=DUPLICATES)
        if (receipt := store.receipt(artifact)) is None:
            raise _missing_error(corpus, name, f"missing: {artifact}")
        _require_alike(corpus, name, receipt.recipe["settings"])
        files[name] = receipt.recipe["sources"]["files"]
        shards += _find_shards(corpus, store, name, number, receipt)
    return OtherDocuments(shards=shards, files=files)


def _find_shards(
    corpus: CorpusDeclaration, store: ArtifactStore, name: str, place: int, receipt: Receipt
) -> Iterator[OtherShard]:
    shards_with_signatures = {
        key.partition("/")[2]: content
        for key, content in receipt.recipe["upstream"].items()
        if key.startswith(f"{SIGNATURES}/")
    }
    digest_of = {file.path: file.sha256 for file in receipt.files}
    artifacts = [Artifact(dataset=name, name=SIGNATURES, partition=partition) for partition in shards_with_signatures]
    for (partition, content), now in zip(shards_with_signatures.items(), store.receipts(artifacts), strict=True):
        # kept rows are stored by position, so they require the same signatures
        if now is None or now.content != content:
            raise _missing_error(corpus, name, f"the signatures of {partition} changed after the duplicates were found")
        if kept_file(partition) not in digest_of:
            raise _missing_error(
                corpus, name, f"{DUPLICATES} was built by an older version of dataprep-assets, without the kept rows"
            )
        yield OtherShard(
            dataset=name, place=place, partition=partition, signatures=content, kept=digest_of[kept_file(partition)]
        )


def _missing_error(corpus: CorpusDeclaration, name: str, noun: str) -> MissingArtifactError:
    return MissingArtifactError(f"{corpus.dataset}: duplicates.against: {name}: {noun}. Run `dataprep run {name}`")


def _require_alike(corpus: CorpusDeclaration, name: str, other_settings: Mapping[str, Any]) -> None:
    """Raise ConfigError if the texts of another dataset were compared in a different way."""
    own_settings = corpus.signing.key_parts
    names = ("kind", "normalization", "unicode", "words", "shingle", "bands", "rows", "rensa", "key")
    for setting in names:
        if own_settings.get(setting) == other_settings.get(setting):
            continue
        location = _DECLARED.get(setting)
        text = (
            f"has a different `{location}`"
            if location
            else f"was built with a different version of {setting}: {other_settings.get(setting)}"
        )
        # do not even show the digest of a key
        detail = (
            ""
            if setting == "key" or location is None
            else f" ({setting} {other_settings.get(setting)}, here {own_settings.get(setting)})"
        )
        remedy = "Set the same values in both datasets" if location else f"Run `dataprep run {name}`"
        raise ConfigError(
            f"{corpus.dataset}: duplicates.against: {name} {text}{detail}, so the two datasets cannot be compared. "
            f"{remedy}"
        )
