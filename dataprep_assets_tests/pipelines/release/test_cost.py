"""The cost of a release is that of its corpus plus writing its shards once more and uploading them to its location."""

import pytest

from dataprep_assets.pipelines.corpus.source.cost import count_corpus_products
from dataprep_assets.pipelines.release.dataset import count_release_products
from dataprep_assets_tests.pipelines.release.conftest import Bins


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize(
    ("publish", "copied", "sent"), [(None, 0, 0), ("/mnt/public", 1, 0), ("s3://bucket/tokenized", 0, 1)]
)
def test_shards_are_written_once_and_uploaded_to_their_location(
    bins: Bins, local: bool, publish: str | None, copied: int, sent: int
) -> None:
    release = bins.declare(publish=publish)
    corpus, found = count_corpus_products(release, local=local), count_release_products(release, local=local)
    assert found.copies == corpus.copies + (1 if local else 0) + copied
    assert found.uploads == corpus.uploads + (0 if local else 1) + sent
    assert found.joined == corpus.joined
    assert (corpus.tokens_per_shard, found.tokens_per_shard) == (None, release.release.tokens_per_shard)
