"""Kept documents of other datasets, for comparison with a corpus (`duplicates.against`).

The declarations of other datasets are not read. Their `duplicates` artifacts record the settings of the comparison, the
shards, and the kept rows of each shard. Documents of other datasets have priority over this one's, so they are never
removed.

Entry points: `open_other_documents`, `OtherShard`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.duplicates.kept_set import ShardOrder
from dataprep_assets.curation.duplicates.removed_file import DUPLICATES, SIGNATURES
from dataprep_assets.curation.duplicates.signatures import SignedShard
from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError, count_of
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Content, Receipt
from dataprep_assets.pipelines.corpus.curation.tagged_shard import ROWS, TAGS
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.removed_duplicates import name_kept_file
from dataprep_assets.pipelines.corpus.duplicates.row_names import RowNames
from dataprep_assets.pipelines.corpus.duplicates.signed_shard import open_signatures

_DECLARING_KEYS = {
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
        dataset: Name of the dataset.
        place: Position of the dataset in `duplicates.against`, which sets the priority among other datasets.
        partition: Partition key of the shard.
        signatures: Content of the shard's signatures.
        kept: Digest of the file with the shard's kept rows.
    """

    dataset: str
    place: int
    partition: str
    signatures: Content
    kept: str

    def open_signatures(self, store: ArtifactStore) -> tuple[SignedShard, NDArray[np.bool_]]:
        """Return the signatures and a mask of the kept rows, ``(rows,)``; raise IntegrityError if sizes differ."""
        signatures = open_signatures(store, Artifact(dataset=self.dataset, name=SIGNATURES, partition=self.partition))
        name = name_kept_file(self.partition)
        data = np.fromfile(store.local(self._duplicates, [name]) / name, np.uint8)
        # The file has one bit per row, padded to whole bytes.
        if len(data) != -(-signatures.rows // 8):
            raise IntegrityError(
                f"{self._duplicates}: the size of {name} does not match {count_of(signatures.rows, 'row')}. "
                "Rebuild `duplicates`"
            )
        return signatures, np.unpackbits(data, count=signatures.rows).astype(np.bool_)

    def build_order(self, split: int) -> ShardOrder:
        """Return the values that determine the priority of the shard's rows, which depends only on their dataset.

        `split` is a number that no split of the corpus has.
        """
        zero = np.zeros(1, np.int64)
        return ShardOrder(split=split, starts=zero, files=zero, ages=zero + self.place, theirs=True)

    def open_names(self, store: ArtifactStore) -> RowNames:
        """Return a reader of the names of the shard's rows: `dataset:file:row`."""
        tags = Artifact(dataset=self.dataset, name=TAGS, partition=self.partition)
        return RowNames(rows=store.local(tags, [ROWS]) / ROWS, prefix=f"{self.dataset}:")

    @property
    def _duplicates(self) -> Artifact:
        return Artifact(dataset=self.dataset, name=DUPLICATES)


@dataclass(frozen=True, kw_only=True)
class OtherDocuments:
    """Documents of all datasets with which a corpus is compared.

    Attributes:
        shards: The shards, in the order of the datasets and of their plans.
        files: Dataset → digest of its file names, which are part of its documents' names.
    """

    shards: Sequence[OtherShard]
    files: Mapping[str, str]

    @property
    def upstream(self) -> Mapping[str, Content]:
        """Entries for these documents in the inputs of artifacts that depend on them."""
        return {f"{shard.dataset}:{SIGNATURES}/{shard.partition}": shard.signatures for shard in self.shards}

    @property
    def sources(self) -> Mapping[str, str]:
        """Further inputs of a recipe: digests of file names, and of kept rows in the other datasets' duplicates."""
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
            raise _build_missing_error(corpus, name, f"missing: {artifact}")
        _require_same_settings(corpus, name, receipt.recipe["settings"])
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
    digests_by_path = {file.path: file.sha256 for file in receipt.files}
    artifacts = [Artifact(dataset=name, name=SIGNATURES, partition=partition) for partition in shards_with_signatures]
    for (partition, content), now in zip(shards_with_signatures.items(), store.receipts(artifacts), strict=True):
        # Kept rows are stored by position, so they are valid only for the signatures from which they were computed.
        if now is None or now.content != content:
            raise _build_missing_error(
                corpus, name, f"the signatures of {partition} changed after the duplicates were found"
            )
        if name_kept_file(partition) not in digests_by_path:
            raise _build_missing_error(
                corpus, name, f"{DUPLICATES} was built by an older version of dataprep-assets, without the kept rows"
            )
        yield OtherShard(
            dataset=name,
            place=place,
            partition=partition,
            signatures=content,
            kept=digests_by_path[name_kept_file(partition)],
        )


def _build_missing_error(corpus: CorpusDeclaration, name: str, noun: str) -> MissingArtifactError:
    return MissingArtifactError(f"{corpus.dataset}: duplicates.against: {name}: {noun}. Run `dataprep run {name}`")


def _require_same_settings(corpus: CorpusDeclaration, name: str, other_settings: Mapping[str, Any]) -> None:
    """Raise ConfigError if the texts of another dataset were compared in a different way."""
    own_settings = corpus.signing.key_parts
    names = ("kind", "normalization", "unicode", "words", "shingle", "bands", "rows", "rensa", "key")
    for setting in names:
        if own_settings.get(setting) == other_settings.get(setting):
            continue
        location = _DECLARING_KEYS.get(setting)
        text = (
            f"has a different `{location}`"
            if location
            else f"was built with a different version of {setting}: {other_settings.get(setting)}"
        )
        # Do not show the digests of keys, because keys are secret.
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
