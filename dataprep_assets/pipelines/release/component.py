"""`dataprep_assets.components.ShardRelease`: a corpus as shared npy shards, published for many trainers."""

from pathlib import Path

import dagster as dg

from dataprep_assets.orchestration.component import DatasetComponent, build_scaffolder
from dataprep_assets.pipelines.release.dataset import ReleaseDataset


@dg.scaffold_with(build_scaffolder(Path(__file__).with_name("shard_release.scaffold.yaml")))
class ShardRelease(ReleaseDataset, DatasetComponent):
    """A tokenized corpus whose stream is cut into shards of whole samples, published with a manifest."""
