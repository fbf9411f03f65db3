"""Ages of source files, for the priority `oldest`: the number of the build that first saw the file.

Ages never change, and files that are new in a build get the next number. Ages are stored in `ages.json` of the current
duplicates. Each selection's receipt also has the ages of its shard's files, so that ages, and therefore kept documents,
survive the loss of the duplicates. If both are lost, all files get the same age.

Entry points: `compute_ages`, `read_shard_ages`, `write_ages`.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from pydantic import NonNegativeInt

from dataprep_assets.curation.duplicates.removed_file import DUPLICATES
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.curation.selection_counts import SELECTION, SelectionFacts
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import Manifest, load_manifest
from dataprep_assets.project import read_state
from dataprep_assets.stores.files import canonical_json

AGES = "ages.json"


def compute_ages(corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest) -> dict[str, int]:
    """Return source file → age (from 0), sorted by name; empty if the priority does not use ages.

    Args:
        corpus: The dataset.
        store: The store of its duplicates and selections.
        manifest: The manifest that lists its files.
    """
    assert corpus.duplicates is not None
    if corpus.duplicates.priority != "oldest":
        return {}
    stored_ages = _read_stored_ages(corpus, store)
    # Test for None, because an empty mapping is valid: duplicates with a different priority store no ages, so all files
    # get the same age.
    if stored_ages is None:
        stored_ages = _read_selected_ages(corpus, store)
    new_age = max(stored_ages.values(), default=-1) + 1
    return {name: stored_ages.get(name, new_age) for name in sorted(entry.relpath for entry in manifest.entries)}


def read_shard_ages(corpus: CorpusDeclaration, store: ArtifactStore, partition: str) -> dict[str, int]:
    """Return the ages of a shard's files in the current duplicates; empty if the priority does not use ages."""
    if corpus.duplicates is None or corpus.duplicates.priority != "oldest":
        return {}
    ages = _read_stored_ages(corpus, store) or {}
    files = [entry.relpath for entry in load_manifest(corpus, store).shard(partition)]
    return {name: ages[name] for name in files if name in ages}


def write_ages(directory: Path, ages: Mapping[str, int]) -> None:
    """Write `ages.json` into a directory."""
    (directory / AGES).write_bytes(canonical_json(dict(ages)) + b"\n")


def _read_stored_ages(corpus: CorpusDeclaration, store: ArtifactStore) -> Mapping[str, int] | None:
    """Return the ages in the current duplicates; None if they cannot be read."""
    artifact = corpus.artifact(DUPLICATES)
    try:
        if (receipt := store.receipt(artifact)) is None:
            return None
        return _read_ages(store.local(artifact, [AGES]) / AGES, receipt.content)
    except DataprepError:
        return None


# The second argument, the content digest, is part of the cache key, because the path stays the same when the duplicates
# are replaced.
@lru_cache(maxsize=4)
def _read_ages(path: Path, _: str) -> Mapping[str, int] | None:
    """Return the ages in a file, cached for all shards while the duplicates have the same content."""
    return read_state(path, dict[str, NonNegativeInt])


def _read_selected_ages(corpus: CorpusDeclaration, store: ArtifactStore) -> dict[str, int]:
    """Return the highest age of each file in the receipts of selections; empty if a receipt is unreadable."""
    artifacts = [corpus.artifact(SELECTION, partition) for partition in store.partitions(corpus.dataset, SELECTION)]
    ages: dict[str, int] = {}
    try:
        for receipt in store.receipts(artifacts):
            for name, age in {} if receipt is None else SelectionFacts.from_receipt(receipt).ages.items():
                ages[name] = max(age, ages.get(name, 0))
    except DataprepError:
        return {}
    return ages
