"""The shard plan of a manifest that was lost: what was made by it says which files each shard had."""

from collections import Counter
from collections.abc import Collection, Mapping

from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.stream.token_shard import TOKEN_BINS


def built_shards(corpus: CorpusDeclaration, store: ArtifactStore) -> Mapping[str, Collection[str]] | None:
    """The shards of a lost manifest, by receipts: of several plans those that combined bins are made of; or None."""
    artifacts = [corpus.artifact(TOKEN_BINS, p) for p in store.partitions(corpus.dataset, TOKEN_BINS)]
    # by its name, because its module imports that of the manifest
    combined = [corpus.artifact("combined_bins", split) for split in corpus.splits]
    try:
        shards = {str(r.partition): [line["file"] for line in r.sources] for r in store.receipts(artifacts) if r}
        made_of = {name for r in store.receipts(combined) if r for name in r.recipe.get("upstream", ())}
    except IntegrityError:
        return None
    # Shards that an earlier plan left behind may hold the same files: in one plan no file is in two shards.
    for found in (shards, {key: files for key, files in shards.items() if f"{TOKEN_BINS}/{key}" in made_of}):
        if found and max(Counter(path for files in found.values() for path in files).values(), default=0) < 2:
            return found
    return None
