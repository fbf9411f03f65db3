"""Replaces templar's own manager of shared shards, and its dataset of one: a trainer changes one import.

`ShardedDatasetManager` takes the arguments of the original and has its methods (tplr-ai/templar at c2397ac,
`src/tplr/sharded_dataset.py`) and uses a `ShardWindow`; the active dataset has the samples and ids of the original's
`SharedShardedDataset`, whose counterpart here reads a shard that is on this machine, as the evaluator does. The
differences are corrections of the faults listed in docs/formats/shard-window.md: a start at any shard continues with
the one after it, at a step where shards change, too; numbers are taken modulo the release's shards, files are verified,
ranks share a download through the cache and need no barrier.

The release is where the original expects it: in the folder DATASET_BINS_PATH of the bucket R2_DATASET_BUCKET_NAME, read
with the keys of R2_DATASET_…, or in the buckets of R2_DATASET_BUCKET_LIST in turn; and as in the original the shards
are in the folder DATASET_BINS_PATH on disk. A `release.json` in that folder, which `dataprep release adopt` can keep
there, is taken instead of the bucket's.

Several buckets that have the same objects are read as one: each read goes to the next of them, then to the others. So
the readers of a swarm share the buckets' limits of requests, and one bucket that cannot be reached stops nobody.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Never, Self, TypeVar

import numpy as np
import numpy.typing as npt

from dataprep_assets.bounds import json_of
from dataprep_assets.errors import ConfigError, CorruptSourceError, MissingArtifactError, SourceError
from dataprep_assets.formats import sample_ids
from dataprep_assets.serving.window.cache import SAMPLED_IDS
from dataprep_assets.serving.window.keep_policy import Keep
from dataprep_assets.serving.window.readers import Shard, torch_dataset
from dataprep_assets.serving.window.release import MANIFEST, ReleaseLocation
from dataprep_assets.serving.window.shard_window import ShardWindow
from dataprep_assets.stores.connect import S3Place, s3_endpoint
from dataprep_assets.stores.endpoints import allows_http
from dataprep_assets.stores.retry import StoppedError
from dataprep_assets.stores.store import ObjectInfo, Progress, ReadOnlyStore, Store

T = TypeVar("T")


class Mirrors(ReadOnlyStore):
    """See the module. `stores` have the same objects under the same keys; nothing is written to them."""

    def __init__(self, stores: Sequence[Store]) -> None:
        if not stores:
            raise ConfigError("mirrors: at least one store is needed")
        self._stores, self._next, self._lock = tuple(stores), 0, threading.Lock()

    @property
    def url(self) -> str:
        return self._stores[0].url

    def _first_that_can(self, ask: Callable[[Store], T]) -> T:
        with self._lock:
            start = self._next
            self._next = (start + 1) % len(self._stores)
        # The last of them is asked outside of the loop: its answer, or its error, is that of all.
        for store in (*self._stores[start:], *self._stores[:start])[:-1]:
            try:
                return ask(store)
            # a TransferError by its class, but its caller's wish: no other store may begin the transfer again
            except StoppedError:
                raise
            except (ConfigError, SourceError, MissingArtifactError):
                continue
        return ask(self._stores[start - 1])

    def head(self, key: str) -> ObjectInfo | None:
        def ask(store: Store) -> ObjectInfo:
            if (info := store.head(key)) is None:
                # a mirror that lacks the object is passed over like one that cannot be reached
                raise MissingArtifactError(key)
            return info

        try:
            return self._first_that_can(ask)
        except MissingArtifactError:
            return None

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        # Listed to the end first: a store that fails halfway would else have given some keys before another begins.
        return iter(self._first_that_can(lambda store: [*store.list(prefix)]))

    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str | None = None) -> Iterator[bytes]:
        """As of any store; `version` is that of one of them. What is read is kept until all of it is there."""
        return iter(self._first_that_can(lambda store: [*store.read(key, start, stop, version=version)]))

    def download(
        self, key: str, target: Path, *, sha256: str | None = None, progress: Progress | None = None
    ) -> ObjectInfo:
        return self._first_that_can(lambda store: store.download(key, target, sha256=sha256, progress=progress))

    def _refuse(self) -> Never:
        raise ConfigError(f"{self.url} and its mirrors can only be read. Write to each of them")


__all__ = ["ShardedDatasetManager", "SharedShardedDataset"]


class ShardedDatasetManager:
    """See the module. `active_dataset` is a `torch.utils.data.Dataset`, None before `initialize_datasets`.

    Args:
        sequence_length: Tokens of a sample; refused if the release has another length.
        rank: Rank of this process on its machine; as in the original it does not affect the samples.
        world_size: Number of ranks.
        comms: Accepted for compatibility and not used: bucket and keys come from the environment.
        token_dtype: Refused unless it is uint32, the dtype of the samples as in the original.
        file_prefix: Prefix of the release's shards.
        release: The release, as for `ShardWindow`; default: where the original expects it.
        cache_dir: Folder of the shards on disk; default: that of the original.
        keep: Which shards stay on disk. The default 2 is what the original keeps, which deletes a shard after its turn.
            It is enough for ranks that synchronize after each swap, as templar's do: a rank that is a turn ahead would
            take the others' room.
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
        folder = cache_dir if cache_dir is not None else _folder()
        # A step of this window is a shard's whole turn: the trainer decides when it ends.
        self.window = ShardWindow(
            _from_environment(Path(folder)) if release is None else release,
            folder,
            1,
            keep=keep,
            prefix=file_prefix,
            sequence_length=sequence_length,
        )

    @property
    def max_dataset_idx(self) -> int:
        """Number of shards of the release; fixed at 10 in the original."""
        return self.window.schedule.shards

    async def initialize_datasets(self, current_shard_index: int) -> None:
        """Make this shard the active one, and start fetching the next.

        Numbers are taken modulo the number of shards.
        """
        self.shard_index = current_shard_index % self.max_dataset_idx
        await self._activate()

    async def swap_datasets(self) -> int:
        """Make the next shard the active one, and return its number. Blocks only if it is not ready.

        A shard of which no sample was read stays: its turn has not begun. A miner or validator that starts at a step
        where shards change initializes that step's shard and swaps at once, and one that skips a window swaps again.
        """
        if self.active_dataset is None or self.active_dataset.was_read:
            self.shard_index = (self.shard_index + 1) % self.max_dataset_idx
            await self._activate()
        return self.shard_index

    async def _activate(self) -> None:
        shard = await self.window.aswap(self.shard_index)
        # the old dataset and its shard are freed when the trainer's loader drops them
        self.active_dataset = torch_dataset(shard)

    def close(self) -> None:
        """Stop fetching. The original has no such method; a process that ends needs none."""
        self.window.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SharedShardedDataset:
    """One shard that is on this machine, as the original's evaluator opens it: a map-style dataset of torch.

    Where the original takes the smaller count and warns, files that are cut, of another sequence length, or whose ids
    are not those of their tokens are refused.

    Args:
        shard_index: Number of the shard.
        sequence_length: Tokens of a sample.
        rank: Accepted for compatibility: every rank has all samples, as in the original.
        world_size: The same; no rank waits for another.
        token_dtype: Refused unless it is uint32, the dtype of the samples.
        file_prefix: Prefix of the shard. The folder is DATASET_BINS_PATH; our releases have those of another prefix
            than `train` in a folder of its name.
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
        # There is no manifest to compare with here: the ids alone tell whether the two files belong together.
        if wrong := sample_ids.differing(shard.tokens, shard.sample_ids, sequence_length, sample=SAMPLED_IDS):
            raise CorruptSourceError(
                f"{self.ids_file}: ids of samples {', '.join(map(str, wrong[:4]))} do not match the tokens in "
                f"{self.tokens_file}: wrong sequence length, or ids of another shard. Download both again"
            )
        self.total_samples = len(shard)
        self._samples = torch_dataset(shard)

    @staticmethod
    def locate_shards(
        shard_index: int, custom_path: str | os.PathLike[str] | None = None, file_prefix: str = "train"
    ) -> tuple[str, str]:
        """The paths of a shard's tokens and ids in a folder, by default DATASET_BINS_PATH."""
        folder = Path(custom_path or _folder())
        # the original's names: that of the ids has no prefix
        tokens, ids = f"{file_prefix}_{shard_index:06d}.npy", f"sample_ids_{shard_index:06d}.bin"
        return str(folder / tokens), str(folder / ids)

    def __len__(self) -> int:
        return self.total_samples

    def __getitem__(self, k: int) -> Any:
        return self._samples[k]

    def sample_id(self, k: int) -> int:
        """The id of sample `k`."""
        return int(self._samples.sample_id(k))


def _require_samples(token_dtype: npt.DTypeLike, rank: int, world_size: int) -> None:
    if np.dtype(token_dtype) != np.uint32:
        raise ConfigError(f"token_dtype must be uint32, the type of samples, not {np.dtype(token_dtype)}")
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} is out of range: {world_size} ranks are counted from 0")


def _folder() -> str:
    """DATASET_BINS_PATH: the folder of the shards on disk, and in the bucket."""
    if not (folder := os.environ.get("DATASET_BINS_PATH")):
        raise ConfigError(
            "DATASET_BINS_PATH is not set. Set it to the location of the shards, or pass release and cache_dir"
        )
    return folder


def _from_environment(on_disk: Path) -> Path | ReleaseLocation | str:
    """The release: the manifest in the folder of the shards, else where the original expects it.

    Raises ConfigError, naming the variables that are not set.
    """
    if (manifest := on_disk / MANIFEST).is_file():
        return manifest
    # one variable is both a folder of this machine and the beginning of the keys, which have no outer slashes
    prefix = _folder().strip("/")
    if os.environ.get("R2_DATASET_BUCKET_LIST", "").strip():
        return ReleaseLocation(Mirrors([bucket_place() for bucket_place in _list_buckets(prefix)]))
    if not (bucket := os.environ.get("R2_DATASET_BUCKET_NAME")):
        raise ConfigError(
            "R2_DATASET_BUCKET_NAME is not set. Set it to the bucket of the shards, or pass release and cache_dir"
        )
    return f"s3://{bucket}/{prefix}"


def _list_buckets(prefix: str) -> list[S3Place]:
    """The buckets of R2_DATASET_BUCKET_LIST, as the original's configuration has them (`src/tplr/config.py`).

    Raises ConfigError, without repeating a secret.
    """
    bucket_places = []
    try:
        buckets = json_of(os.environ["R2_DATASET_BUCKET_LIST"])
        for bucket in buckets:
            keys = bucket["credentials"]["read"]
            # each bucket is of an account of its own, unless DATAPREP_ENDPOINT_URL names one endpoint for all
            account = {"R2_DATASET_ACCOUNT_ID": str(bucket["account_id"])}
            bucket_places.append(
                S3Place(
                    bucket=bucket["name"],
                    prefix=prefix,
                    endpoint_url=s3_endpoint({**os.environ, **account}),
                    access_key_id=keys["access_key_id"],
                    secret_access_key=keys["secret_access_key"],
                    allow_http=allows_http(os.environ),
                )
            )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            "R2_DATASET_BUCKET_LIST: must be a JSON list of buckets, each with account_id, name, and credentials with "
            f"read: access_key_id and secret_access_key ({type(error).__name__} in number {len(bucket_places) + 1})"
        ) from None
    return bucket_places
