"""A tagger that is a Dagster asset: whatever it ran, its latest materialization left Parquet files with columns by row.

Its files are found as those of an asset that is a source (`sources.upstream`). They are looked for where Dagster is
known, in the process that plans; the workers are given their paths. Their digests are its version, so an asset that was
materialized again and left the same files tags nothing again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from dataprep_assets.documents.module_code import file_digest
from dataprep_assets.documents.tagging import KEYS, ExternalTagger, TaggingError
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.sources.access import LocalTree
from dataprep_assets.sources.upstream import Partitions, open_asset


@dataclass(frozen=True, kw_only=True)
class AssetTagger(ExternalTagger):
    """The columns that an asset's Parquet files say of each row, which they name by `file` and `row`.

    Attributes:
        key: The key of the asset.
        paths: Its files, and the digest of each; None before they were looked for (`located`).
    """

    by: ClassVar[str] = "the asset"
    key: tuple[str, ...]
    paths: tuple[tuple[Path, str], ...] | None = None

    @property
    def version(self) -> str:
        return digest_value([digest for _, digest in self.located().paths or ()])

    def located(self) -> Self:
        """The same with its files.

        Raises SourceError if it was never materialized, and ConfigError if it has no Parquet files here.
        """
        if self.paths is not None:
            return self
        access, name = open_asset(self.key), "/".join(self.key)
        if not isinstance(access, LocalTree | Partitions) or access.mirrored:
            raise ConfigError(f"tag: {self.name}: {name}: its files are in a bucket. Let it leave them in a folder")
        paths = [access.path(file) for file in access.list().files if file.relpath.endswith(".parquet")]
        if not paths:
            raise ConfigError(f"tag: {self.name}: {name}: there is no .parquet file where it says that its files are")
        # sorted, because the version is a digest of all of them, in their order
        return replace(self, paths=tuple((path, file_digest(path)) for path in sorted(paths)))

    def write(self, files: Sequence[str], made: Path, shard: str) -> None:
        """Write a Parquet file of what they say of some source files, as a command writes it.

        Raises TaggingError if one cannot be read, or lacks a column.
        """
        import pyarrow as pa
        import pyarrow.dataset as ds
        import pyarrow.parquet as pq

        paths = [str(path) for path, _ in self.located().paths or ()]
        try:
            found = ds.dataset(paths, format="parquet")
            wanted = ds.field("file").isin(list(files))
            pq.write_table(found.to_table(columns=[*KEYS, *self.columns], filter=wanted), made)
        except (pa.ArrowException, OSError) as error:
            told = str(error).splitlines()[0]
            raise TaggingError(
                f"tag: {self.name}: {shard}: the files of {'/'.join(self.key)} cannot be read: {told}. They have to "
                f"have the columns {', '.join((*KEYS, *self.columns))}"
            ) from error
