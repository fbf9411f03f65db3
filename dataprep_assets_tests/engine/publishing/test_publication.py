"""A publication is one private commit with a tag; only changed files are sent again, and nothing else is replaced."""

import hashlib
import json

from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets_tests.engine.publishing.conftest import Published


def test_a_corpus_is_published_in_one_private_commit_with_a_tag(corpus: Published) -> None:
    assert corpus.run() == ["published"]
    hub = corpus.hub
    assert hub.private
    assert len(hub.operations) == 1
    lock = hashlib.sha256(hub.tree["dataset.lock"]).hexdigest()
    assert hub.tags == {f"lock-{lock[:12]}": hub.commit}
    folder = corpus.store.root / "sample_corpus"
    for name in ("hf_parquet_bins/data/train-00000-of-00001.parquet", "data_card/croissant.json"):
        assert hub.tree[name] == (folder / name).read_bytes()
    marker = json.loads(hub.tree["publication.json"])
    assert (marker["dataset"], marker["project"], marker["lock"]) == ("sample_corpus", "fruit", lock)
    assert marker["files"].keys() == hub.tree.keys() - {".gitattributes", "publication.json"}
    assert all(finding.passed for finding in corpus.check().values())
    assert all(entry.authorization == "Bearer secret" for entry in hub.log if entry.name == "commit")


def test_an_unchanged_publication_sends_nothing(corpus: Published) -> None:
    corpus.run()
    since = len(corpus.hub.log)
    assert list(find_stale(corpus.dataset.specs, corpus.store)) == []
    assert corpus.run() == []
    assert {entry.method for entry in corpus.hub.log[since:]} == {"GET", "HEAD"}
