"""The age of each source file: which of the builds that found new files brought it, by which `oldest` decides.

An age is given once and never changes: a new file gets the next one. Ages are in `ages.json` of the present duplicates,
and those of a shard's files in the receipt of its selection, too: so they outlive the loss of the duplicates, and what
stands stays. Only where both are gone do all files count as of one age.

Entry points: `ages_of`, `ages_in_shard`, `write_ages`.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from pydantic import NonNegativeInt

from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.curation.selection_counts import SELECTION, SelectionFacts
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.removed_duplicates import DUPLICATES
from dataprep_assets.pipelines.corpus.source.manifest import Manifest, load_manifest
from dataprep_assets.project import read_state
from dataprep_assets.stores.files import canonical_json

AGES = "ages.json"


def ages_of(corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest) -> dict[str, int]:
    """Source file → its age, from 0, by name; empty if ages do not count.

    Args:
        corpus: The dataset.
        store: Where its duplicates and selections are.
        manifest: Its files.
    """
    assert corpus.duplicates is not None
    if corpus.duplicates.priority != "oldest":
        return {}
    before = _stored_ages(corpus, store)
    # `{}` is an answer: a column has decided so far, and all files are of one age
    if before is None:
        before = _selected(corpus, store)
    new = max(before.values(), default=-1) + 1
    return {name: before.get(name, new) for name in sorted(entry.relpath for entry in manifest.entries)}


def ages_in_shard(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> dict[str, int]:
    """The ages of a shard's files by the present duplicates; empty if ages do not count."""
    if corpus.duplicates is None or corpus.duplicates.priority != "oldest":
        return {}
    ages = _stored_ages(corpus, store) or {}
    files = [entry.relpath for entry in load_manifest(corpus, store).shard(partition)]
    return {name: ages[name] for name in files if name in ages}


def write_ages(directory: Path, ages: Mapping[str, int]) -> None:
    """Write `ages.json` into a folder."""
    (directory / AGES).write_bytes(canonical_json(dict(ages)) + b"\n")


def _stored_ages(corpus: CorpusDeclaration, store: ArtifactStore) -> Mapping[str, int] | None:
    """The ages of the present duplicates; None if they cannot be read."""
    artifact = corpus.artifact(DUPLICATES)
    try:
        if (receipt := store.receipt(artifact)) is None:
            return None
        return _read_ages(store.local(artifact, [AGES]) / AGES, receipt.content)
    except DataprepError:
        return None


# The second argument is there for the cache: the path stays the same when the duplicates are replaced.
@lru_cache(maxsize=4)
def _read_ages(path: Path, _: str) -> Mapping[str, int] | None:
    """The ages of a file; read once for all shards while the duplicates have the same content."""
    return read_state(path, dict[str, NonNegativeInt])


def _selected(corpus: CorpusDeclaration, store: ArtifactStore) -> dict[str, int]:
    """The ages by the receipts of selections; of a file that came twice the last one."""
    artifacts = [corpus.artifact(SELECTION, partition) for partition in store.partitions(corpus.dataset, SELECTION)]
    age_of: dict[str, int] = {}
    try:
        for receipt in store.receipts(artifacts):
            for name, age in {} if receipt is None else SelectionFacts.of(receipt).ages.items():
                age_of[name] = max(age, age_of.get(name, 0))
    except DataprepError:
        return {}
    return age_of
