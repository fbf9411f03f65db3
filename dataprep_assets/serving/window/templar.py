"""Drop-in replacement for templar's manager and dataset of shared shards: a trainer changes one import.

`ShardedDatasetManager` has the arguments and methods of the original (tplr-ai/templar at c2397ac,
`src/tplr/sharded_dataset.py`) and uses a `ShardWindow`. The active dataset has the samples and ids of the original's
`SharedShardedDataset`. This module's own `SharedShardedDataset` reads one shard on this machine, as the evaluator does.

The differences fix the faults listed in docs/formats/shard-window.md. A start at any shard continues with the next one,
even at a step where shards change. Numbers are taken modulo the number of shards. Files are verified. Ranks share a
download through the cache and need no barrier.

The release is at the location that the original uses: the folder DATASET_BINS_PATH of the bucket
R2_DATASET_BUCKET_NAME, read with the keys of R2_DATASET_…, or of the buckets in R2_DATASET_BUCKET_LIST in turn. As in
the original, the shards on disk are in the folder DATASET_BINS_PATH. A `release.json` in that folder, for example from
`dataprep release adopt`, takes precedence over the bucket's.

Several buckets with the same objects are read as one: each read goes to the next bucket, and to the others if it fails.
So the readers of a swarm share the buckets' request limits, and an unreachable bucket stops no reader.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Never, Self, TypeVar

import numpy as np
import numpy.typing as npt

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import ConfigError, CorruptSourceError, MissingArtifactError, SourceError
from dataprep_assets.formats import sample_ids
from dataprep_assets.serving.window.cache import SAMPLED_IDS
from dataprep_assets.serving.window.keep_policy import Keep
from dataprep_assets.serving.window.readers import Shard, torch_dataset
from dataprep_assets.serving.window.release import MANIFEST, ReleaseLocation
from dataprep_assets.serving.window.shard_window import ShardWindow
from dataprep_assets.stores.connect import S3Address, find_s3_endpoint
from dataprep_assets.stores.endpoints import allows_http
from dataprep_assets.stores.retry import StoppedError
from dataprep_assets.stores.store import ObjectInfo, Progress, ReadOnlyStore, Store

T = TypeVar("T")


class MirrorStore(ReadOnlyStore):
    """Read-only store over several stores with the same objects under the same keys."""

    def __init__(self, stores: Sequence[Store]) -> None:
        if not stores:
            raise ConfigError("mirrors: no store was passed. Pass at least one")
        self._stores, self._next, self._lock = tuple(stores), 0, threading.Lock()

    @property
    def url(self) -> str:
        return self._stores[0].url

    def _read_from_first_available(self, read_store: Callable[[Store], T]) -> T:
        with self._lock:
            start = self._next
            self._next = (start + 1) % len(self._stores)
        # Try the last store outside of the loop, because its response or error is returned if all others fail.
        for store in (*self._stores[start:], *self._stores[:start])[:-1]:
            try:
                return read_store(store)
            # Handle StoppedError first, because it is also a SourceError, but no other store may be tried after the
            # caller requested a stop.
            except StoppedError:
                raise
            except (ConfigError, SourceError, MissingArtifactError):
                continue
        return read_store(self._stores[start - 1])

    def head(self, key: str) -> ObjectInfo | None:
        def query_store(store: Store) -> ObjectInfo:
            if (info := store.head(key)) is None:
                # Raise an error, so that the next mirror is tried, as after a failed connection.
                raise MissingArtifactError(key)
            return info

        try:
            return self._read_from_first_available(query_store)
        except MissingArtifactError:
            return None

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        # Complete the listing before returning it, because a store that fails halfway would otherwise already have
        # yielded some keys.
        return iter(self._read_from_first_available(lambda store: [*store.list(prefix)]))

    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str | None = None) -> Iterator[bytes]:
        """Return the blocks of a complete read; `version` must be a version of the store that answers."""
        return iter(self._read_from_first_available(lambda store: [*store.read(key, start, stop, version=version)]))

    def download(
        self, key: str, target: Path, *, sha256: str | None = None, progress: Progress | None = None
    ) -> ObjectInfo:
        return self._read_from_first_available(
            lambda store: store.download(key, target, sha256=sha256, progress=progress)
        )

    def _refuse(self) -> Never:
        raise ConfigError(f"{self.url} and its mirrors are read-only. Write to each store directly")


__all__ = ["ShardedDatasetManager", "SharedShardedDataset"]


class ShardedDatasetManager:
    """Manager of shards with templar's interface; the module docstring lists the differences.

    `active_dataset` is a `torch.utils.data.Dataset`, or None before `initialize_datasets`.

    Args:
        sequence_length: Tokens per sample; rejected if the release has a different length.
        rank: Rank of this process on its machine. As in the original, it does not affect the samples.
        world_size: Number of ranks.
        comms: Accepted for compatibility and ignored, because bucket and keys come from the environment.
        token_dtype: Must be uint32, the dtype of the original's samples.
        file_prefix: Prefix of the release's shards.
        release: Release, as for `ShardWindow`; default: the location that the original uses.
        cache_dir: Folder of the shards on disk; default: the original's folder.
        keep: Shards that stay on disk. The default of 2 matches the original, which deletes a shard after its turn. It
            is enough for ranks that synchronize after each swap, as templar's do. A rank that is a turn ahead would
            take the room of the others.
    """

    def __init__(
        self,
        sequence_length: int,
        rank: int,
        world_size: int,
        comms: object = None,
        token_dtype: npt.DTypeLike = np.uint32,
        file_prefix: str = "train",
        *,
        release: str | Path | Store | ReleaseLocation | None = None,
        cache_dir: str | Path | None = None,
        keep: Keep = 2,
    ) -> None:
        _require_samples(token_dtype, rank, world_size)
        self.sequence_length, self.rank, self.world_size = sequence_length, rank, world_size
        self.comms, self.token_dtype, self.file_prefix = comms, token_dtype, file_prefix
        self.shard_index = 0
        self.active_dataset: Any = None
        folder = cache_dir if cache_dir is not None else _find_shards_folder()
        # A step of this window is a shard's whole turn, because the trainer decides when the turn ends.
        self.window = ShardWindow(
            _find_release_location(Path(folder)) if release is None else release,
            folder,
            1,
            keep=keep,
            prefix=file_prefix,
            sequence_length=sequence_length,
        )

    @property
    def max_dataset_idx(self) -> int:
        """Number of shards in the release; the original has a fixed number of 10."""
        return self.window.schedule.shards

    async def initialize_datasets(self, current_shard_index: int) -> None:
        """Make this shard active and start downloading the next one.

        Numbers are taken modulo the number of shards.
        """
        self.shard_index = current_shard_index % self.max_dataset_idx
        await self._activate()

    async def swap_datasets(self) -> int:
        """Make the next shard active and return its number. Blocks only if it is not ready.

        A shard stays active until a sample of it is read. Extra swaps therefore skip no shard. A miner that starts
        where shards change swaps right after initializing, and one that skips a window swaps twice.
        """
        if self.active_dataset is None or self.active_dataset.was_read:
            self.shard_index = (self.shard_index + 1) % self.max_dataset_idx
            await self._activate()
        return self.shard_index

    async def _activate(self) -> None:
        shard = await self.window.swap_async(self.shard_index)
        # Only drop the reference to the old dataset, because the trainer's loader may still use it. The shard is freed
        # together with the dataset.
        self.active_dataset = torch_dataset(shard)

    def close(self) -> None:
        """Stop downloading. The original has no such method, and calling it before the process ends is optional."""
        self.window.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SharedShardedDataset:
    """One shard on this machine as a map-style torch dataset, as the original's evaluator opens it.

    Files are rejected if they are truncated, have a different sequence length, or have ids that do not match the
    tokens. The original warns and uses the smaller sample count.

    Args:
        shard_index: Number of the shard.
        sequence_length: Tokens per sample.
        rank: Accepted for compatibility; every rank has all samples, as in the original.
        world_size: Accepted for compatibility; no rank waits for another.
        token_dtype: Must be uint32, the dtype of the samples.
        file_prefix: Prefix of the shard. The folder is DATASET_BINS_PATH. This project's releases store prefixes other
            than `train` in a folder named after the prefix.
    """

    def __init__(
        self,
        shard_index: int,
        sequence_length: int,
        rank: int = 0,
        world_size: int = 1,
        *,
        token_dtype: npt.DTypeLike = np.uint32,
        file_prefix: str = "train",
    ) -> None:
        _require_samples(token_dtype, rank, world_size)
        self.seqlen, self.rank, self.world = sequence_length, rank, world_size
        self.tokens_file, self.ids_file = self.locate_shards(shard_index, file_prefix=file_prefix)
        for path in map(Path, (self.tokens_file, self.ids_file)):
            if not path.is_file():
                raise FileNotFoundError(
                    f"{path}: the file does not exist. Set DATASET_BINS_PATH to the folder of the shards"
                )
        shard = Shard(
            index=shard_index,
            token_path=Path(self.tokens_file),
            ids_path=Path(self.ids_file),
            sequence_length=sequence_length,
        )
        # Compare the ids with the tokens, because without a manifest nothing else shows whether both files belong
        # together.
        if wrong_samples := sample_ids.find_differing(
            shard.tokens, shard.sample_ids, sequence_length, sample=SAMPLED_IDS
        ):
            raise CorruptSourceError(
                f"{self.ids_file}: ids of samples {', '.join(map(str, wrong_samples[:4]))} do not match the tokens in "
                f"{self.tokens_file}: wrong sequence length, or ids of another shard. Download both again"
            )
        self.total_samples = len(shard)
        self._samples = torch_dataset(shard)

    @staticmethod
    def locate_shards(
        shard_index: int, custom_path: str | os.PathLike[str] | None = None, file_prefix: str = "train"
    ) -> tuple[str, str]:
        """Return the paths of a shard's tokens and ids in a folder, by default DATASET_BINS_PATH."""
        folder = Path(custom_path or _find_shards_folder())
        # The name of the ids file has no prefix, because templar's ids file has none.
        tokens, ids = f"{file_prefix}_{shard_index:06d}.npy", f"sample_ids_{shard_index:06d}.bin"
        return str(folder / tokens), str(folder / ids)

    def __len__(self) -> int:
        return self.total_samples

    def __getitem__(self, k: int) -> Any:
        return self._samples[k]

    def sample_id(self, k: int) -> int:
        """Return the id of sample `k`."""
        return int(self._samples.sample_id(k))


def _require_samples(token_dtype: npt.DTypeLike, rank: int, world_size: int) -> None:
    if np.dtype(token_dtype) != np.uint32:
        raise ConfigError(f"token_dtype must be uint32, the type of samples, not {np.dtype(token_dtype)}")
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} is out of range: must be from 0 to {world_size - 1}")


def _find_shards_folder() -> str:
    """Return DATASET_BINS_PATH: the folder of the shards on disk and in the bucket."""
    if not (folder := os.environ.get("DATASET_BINS_PATH")):
        raise ConfigError(
            "DATASET_BINS_PATH is not set. Set it to the location of the shards, or pass release and cache_dir"
        )
    return folder


def _find_release_location(on_disk: Path) -> Path | ReleaseLocation | str:
    """Return the manifest in the folder of the shards if it exists, else the location that the original uses.

    Raises ConfigError naming the variables that are not set.
    """
    if (manifest := on_disk / MANIFEST).is_file():
        return manifest
    # Strip the slashes, because DATASET_BINS_PATH, which may be an absolute path, is also the key prefix in the bucket,
    # and a key prefix has no slashes at its ends.
    prefix = _find_shards_folder().strip("/")
    if os.environ.get("R2_DATASET_BUCKET_LIST", "").strip():
        return ReleaseLocation(MirrorStore([bucket_place() for bucket_place in _list_buckets(prefix)]))
    if not (bucket := os.environ.get("R2_DATASET_BUCKET_NAME")):
        raise ConfigError(
            "R2_DATASET_BUCKET_NAME is not set. Set it to the bucket of the shards, or pass release and cache_dir"
        )
    return f"s3://{bucket}/{prefix}"


def _list_buckets(prefix: str) -> list[S3Address]:
    """Return the buckets of R2_DATASET_BUCKET_LIST, in the original's format (`src/tplr/config.py`).

    Raises ConfigError for an invalid value; the message repeats no secret.
    """
    bucket_places = []
    try:
        buckets = load_untrusted_json(os.environ["R2_DATASET_BUCKET_LIST"])
        for bucket in buckets:
            keys = bucket["credentials"]["read"]
            # Use the bucket's own account, because buckets may belong to different accounts. If DATAPREP_ENDPOINT_URL
            # is set, all buckets use that endpoint instead of the endpoint of their account.
            account = {"R2_DATASET_ACCOUNT_ID": str(bucket["account_id"])}
            bucket_places.append(
                S3Address(
                    bucket=bucket["name"],
                    prefix=prefix,
                    endpoint_url=find_s3_endpoint({**os.environ, **account}),
                    access_key_id=keys["access_key_id"],
                    secret_access_key=keys["secret_access_key"],
                    allow_http=allows_http(os.environ),
                )
            )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            "R2_DATASET_BUCKET_LIST: must be a JSON list of buckets, each with account_id, name, and credentials with "
            f"read: access_key_id and secret_access_key ({type(error).__name__} in bucket {len(bucket_places) + 1})"
        ) from None
    return bucket_places
