"""A corpus that gains a file: what is new is made, every check passes, and other splits are not touched."""

import shutil
from pathlib import Path

import zstandard

from dataprep_assets.graph.status import stale
from dataprep_assets.pipelines.corpus.component import corpus_specs
from dataprep_assets_tests.project import SAMPLE, Project, project, sample_attributes


def stamps(made: Project, split: str) -> dict[str, int]:
    """When each receipt of a split's token bins was written."""
    found = {p: made.directory("token_bins", p) / "receipt.json" for p in made.shards(split)}
    return {partition: path.stat().st_mtime_ns for partition, path in found.items()}


def test_a_new_file_in_train_leaves_the_other_splits_and_every_check_passes(tmp_path: Path) -> None:
    data = Path(shutil.copytree(SAMPLE / "data", tmp_path / "data"))
    attributes = sample_attributes(source={"kind": "local", "path": str(data)}, views=["nanogpt"])
    with project(attributes, tmp_path / "project") as made:
        made.run_all()
        before = {split: stamps(made, split) for split in ("val", "test")}
        last = max((data / "train").iterdir())
        (last / "example_train_99.jsonl.zst").write_bytes(zstandard.compress(b'{"text": "One more document."}\n'))
        assert next(one.name for one in stale(corpus_specs(made.corpus), made.store)) == "corpus/manifest"
        made.run_all()
        assert {split: stamps(made, split) for split in ("val", "test")} == before
        assert list(stale(corpus_specs(made.corpus), made.store)) == []
        outcome = made.run([made.key("combined_bins", split) for split in made.corpus.splits])
        checks = outcome.get_asset_check_evaluations()
        assert {(e.asset_key.path[1], e.check_name) for e in checks if not e.passed} == set()
        assert {e.asset_key.path[1] for e in checks if e.check_name == "sources_complete"} == {"train", "val", "test"}
