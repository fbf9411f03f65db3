"""Build of a shard's signatures in one pass over its source."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dataprep_assets.curation.duplicates.removed_file import SIGNATURES
from dataprep_assets.curation.duplicates.signatures import SignatureSettings, SignatureWriter, SignedShard
from dataprep_assets.curation.table import CarriedFields
from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.checks.check import SAMPLED
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.pipelines.corpus.curation.tagged_shard import read_shard_batches
from dataprep_assets.sources.readers.read_options import DrawnRows
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.token_stream import Fetch, SourcePart, fetch_missing

VERSION = 3


class SignaturesFacts(Facts):
    """Facts of a shard's signatures.

    Attributes:
        rows: Number of rows.
        documents: Number of compared rows.
        blank: Rows with only white space, which are not compared.
        bands: Number of bands per signature.
    """

    rows: int
    documents: int
    blank: int = 0
    bands: int


@dataclass(frozen=True, kw_only=True)
class SignatureShard:
    """Signatures of one shard, to be built or checked.

    Attributes:
        artifact: The artifact of the signatures.
        store: The artifact's store.
        files: The shard's source files, in order.
        fields: The settings for reading the rows' texts.
        settings: The settings that determine the signatures.
        source_bytes: Bytes of the files as stored.
        samples: Number of rows that the check rebuilds; None for all rows.
    """

    artifact: Artifact
    store: ArtifactStore
    files: tuple[SourcePart, ...]
    fields: CarriedFields
    settings: SignatureSettings
    source_bytes: int
    samples: int | None = SAMPLED

    def recipe(self) -> Recipe:
        """Return the recipe: the shard's key and the named values that determine it."""
        settings = {"text_field": self.fields.text, **self.settings.key_parts}
        settings |= {name: version for file in self.files for name, version in file.rewriting_settings.items()}
        files = [[f.label, f.sha256, f.format, f.compression, f.limits] for f in self.files]
        return Recipe(
            artifact=self.artifact,
            key=digest_value([SIGNATURES, VERSION, settings, self.fields.key_parts, files]),
            version=VERSION,
            settings=settings,
            sources={file.label: file.sha256 for file in self.files},
        )


def ensure_signatures(shard: SignatureShard, verification: Verification, fetch: Fetch | None) -> tuple[Receipt, bool]:
    """Build the signatures of a shard unless they are up to date; return the receipt and whether it was reused.

    Runs in a worker.
    """
    return ensure_built(shard.recipe(), shard.store, partial(_write, shard, fetch), verification)


def _write(shard: SignatureShard, fetch: Fetch | None, staged: Path) -> WrittenFiles:
    fetch_missing(shard.files, fetch)
    return write_signatures(shard, staged)


def write_signatures(shard: SignatureShard, staged: Path, drawn_rows: DrawnRows | None = None) -> WrittenFiles:
    """Read the source once and write the signatures of its rows; only of the rows in `drawn_rows` if given."""
    with SignatureWriter(staged, shard.settings) as writer:
        for batch in read_shard_batches(shard.files, shard.fields, drawn_rows):
            writer.add(len(batch), batch.good, batch.texts)
    return WrittenFiles(
        inputs={file.label: file.sha256 for file in shard.files},
        facts=SignaturesFacts(
            rows=writer.rows, documents=writer.documents, blank=writer.blank, bands=shard.settings.bands
        ),
    )


def open_signatures(store: ArtifactStore, artifact: Artifact) -> SignedShard:
    """Open the signatures of a shard; raise MissingArtifactError if they are missing."""
    facts = SignaturesFacts.from_receipt(store.require(artifact))
    return SignedShard(store.local(artifact), facts.rows, facts.documents, facts.bands)
