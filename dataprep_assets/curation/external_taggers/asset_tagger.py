"""A tagger that is a Dagster asset, whose latest materialization wrote Parquet files with one row per document.

Its files are found like the files of a source asset (`sources.upstream`). The planning process looks them up, because
Dagster is available there, and passes the paths to the workers. The version for a shard is a digest of the values of
the shard's rows, so only shards whose values changed are tagged again.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

from dataprep_assets.curation.module_code import digest_file
from dataprep_assets.curation.table import ColumnType, build_schema, split_by_file
from dataprep_assets.curation.tagging import KEYS, ExternalTagger, TaggingError
from dataprep_assets.errors import ConfigError
from dataprep_assets.planning.manifest import is_hidden
from dataprep_assets.sources.access import LocalTree
from dataprep_assets.sources.upstream import UpstreamPartitions, open_asset
from dataprep_assets.stores.files import digest_value

_NUMBER = struct.Struct("<d")


@dataclass(frozen=True, kw_only=True)
class AssetTagger(ExternalTagger):
    """A tagger whose columns are in an asset's Parquet files, which identify each row by `file` and `row`.

    Attributes:
        key: The key of the asset.
        paths: Its files; None before `resolve_paths`.
        files_digest: Digest of its values for some source files (`limit_to_files`); None for all files.
    """

    by: ClassVar[str] = "the asset"
    key: tuple[str, ...]
    paths: tuple[Path, ...] | None = None
    files_digest: str | None = None

    @property
    def repeats(self) -> bool:
        return True

    @property
    def version(self) -> str:
        if self.files_digest is not None:
            return self.files_digest
        digests = self._read_digests()
        return digest_value(digests if isinstance(digests, str) else sorted(digests.items()))

    def limit_to_files(self, files: Sequence[str]) -> Self:
        tag_paths = self.resolve_paths()
        digests = tag_paths._read_digests()
        digest = digests if isinstance(digests, str) else digest_value([digests.get(file) for file in files])
        return replace(tag_paths, files_digest=digest)

    def _read_digests(self) -> Mapping[str, str] | str:
        """Return the digest of each source file's values, or a digest of the asset's files if they cannot be read."""
        paths = self.resolve_paths().paths or ()
        stats = [path.stat() for path in paths]
        times = tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)
        digests = _read_digests(paths, times, tuple(self.columns.items()))
        # If the files cannot be read, or a column does not match the declaration, raise no error here, because `write`
        # or the check of its output raises an error that names the shard.
        return digest_value([digest_file(path) for path in paths]) if digests is None else digests

    def resolve_paths(self) -> Self:
        """Return a copy with the paths of its files.

        Raises SourceError if the asset was never materialized, and ConfigError if it has no local Parquet files.
        """
        if self.paths is not None:
            return self
        access, name = open_asset(self.key), "/".join(self.key)
        if not isinstance(access, LocalTree | UpstreamPartitions) or access.mirrored:
            raise ConfigError(
                f"tag: {self.name}: {name}: the asset's files are in object storage. Write them to a local folder"
            )
        paths = [
            access.path(file)
            for file in access.list().files
            if file.relpath.endswith(".parquet") and not is_hidden(file.relpath)
        ]
        if not paths:
            raise ConfigError(
                f"tag: {self.name}: {name}: the asset has no .parquet files. Write Parquet files in the asset"
            )
        # Sort the paths, because digests depend on the order of rows.
        return replace(self, paths=tuple(sorted(paths)))

    def write(self, files: Sequence[str], output_path: Path, shard: str) -> None:
        """Write the asset's values for some source files to a Parquet file, in the same form as a command's output.

        Raises TaggingError if a file cannot be read or lacks a column.
        """
        import pyarrow as pa
        import pyarrow.dataset as ds
        import pyarrow.parquet as pq

        paths = [str(path) for path in self.resolve_paths().paths or ()]
        try:
            dataset = ds.dataset(paths, format="parquet")
            condition = ds.field("file").isin(list(files))
            pq.write_table(dataset.to_table(columns=[*KEYS, *self.columns], filter=condition), output_path)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise TaggingError(
                f"tag: {self.name}: {shard}: the files of {'/'.join(self.key)} cannot be read: {reason}. Write "
                f"Parquet files with the columns {', '.join((*KEYS, *self.columns))}"
            ) from error


@lru_cache(maxsize=64)
def _read_digests(
    paths: tuple[Path, ...], _times: tuple[tuple[int, int], ...], columns: tuple[tuple[str, ColumnType], ...]
) -> Mapping[str, str] | None:
    """Return the digest of each source file's rows, in file order, or None if a column does not match the declaration.

    The digest does not depend on row groups.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    schema = build_schema({"file": "string", "row": "integer", **dict(columns)})
    # Hash each column separately across all batches, so that the digest does not depend on row groups.
    hashers: dict[str, list[Any]] = {}
    try:
        for path in paths:
            for batch in pq.ParquetFile(path).iter_batches(columns=schema.names):
                table = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
                # Group the rows by file with a stable sort, because the digest of a file depends on the order of its
                # rows.
                table = table.take(pc.sort_indices(table["file"].cast("string")))
                for file, rows in split_by_file(table):
                    of_file = hashers.setdefault(file, [hashlib.sha256() for _ in schema.names])
                    for hasher, name in zip(of_file, schema.names, strict=True):
                        hasher.update(_serialize_column(rows[name]))
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError):
        return None
    return {
        file: digest_value([column_hasher.hexdigest() for column_hasher in of_file])
        for file, of_file in hashers.items()
    }


def _serialize_column(column: Any) -> bytes:
    """Serialize the values of a column.

    A marker before each value distinguishes nulls, and texts are preceded by their length.
    """
    column_bytes = bytearray()
    for value in column.to_pylist():
        if value is None:
            column_bytes += b"\0"
        elif isinstance(value, str):
            data = value.encode()
            column_bytes += b"\1" + len(data).to_bytes(8, "little") + data
        else:
            column_bytes += b"\1" + _NUMBER.pack(value) if isinstance(value, float) else b"\1%d;" % value
    return bytes(column_bytes)
