"""What is said of declared transforms before anything is built: that each is known, can be made and is pinned.

Entry point: `transform_remarks`.
"""

from collections.abc import Iterator

from dataprep_assets.errors import ConfigError
from dataprep_assets.graph.remark import Remark
from dataprep_assets.pipelines.blend.declaration import RlOptions
from dataprep_assets.pipelines.blend.rl.transforms import compose, declared_sources

__all__ = ["transform_remarks"]


def transform_remarks(options: RlOptions) -> Iterator[Remark]:
    """Of the transforms that `options` name; functions of the user's are imported, no source is read."""
    try:
        declared_sources(options.transforms)
        compose(options.transforms)
    except ConfigError as error:
        yield Remark(keys=("rl", "transforms"), sentence=str(error))
