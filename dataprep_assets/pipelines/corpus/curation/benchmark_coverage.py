"""Coverage of a corpus's benchmarks, from the receipts of its tags."""

from collections.abc import Iterator

from dataprep_assets.curation.benchmarks.coverage import RecordedCoverage, describe_recorded_coverage
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.curation.tagged_shard import TAGS, TagsFacts
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest


def read_coverage(corpus: CorpusDeclaration, store: ArtifactStore) -> RecordedCoverage:
    """Return the coverage recorded in the current tags; empty if there are no tags or benchmarks."""
    if corpus.decontaminate is None:
        return {}
    try:
        for partition in load_manifest(corpus, store).plan:
            if (receipt := store.receipt(corpus.artifact(TAGS, partition))) is not None:
                return TagsFacts.from_receipt(receipt).benchmarks
    except DataprepError:  # the coverage is only shown here, and a run reports the error
        pass
    return {}


def describe_coverage(corpus: CorpusDeclaration, store: ArtifactStore) -> Iterator[str]:
    """Yield a line for each set with items that are not searched for."""
    return describe_recorded_coverage(read_coverage(corpus, store))
