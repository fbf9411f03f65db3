"""Release manifest: the description of a published set of shards, in one small JSON file that is uploaded last.

A window takes all its information from the manifest: the number of shards, each file's size and SHA-256, the sequence
length, the dtype and the tokenizer. It contains no time, host or path, so the same shards always give the same
manifest. `digest` covers everything except the location of the files. The manifest of shards in another owner's bucket
is stored elsewhere and contains their location.

Entry points: `Release`, `ReleaseShard`, `ReleaseFile`, `read_release`, `locate_release`, `locate_files`.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from dataprep_assets.bounds import parse_json
from dataprep_assets.errors import ConfigError, FormatError, count_of
from dataprep_assets.formats import npy_shards
from dataprep_assets.formats.sample_ids import ID_BYTES
from dataprep_assets.stores.connect import parse_place
from dataprep_assets.stores.endpoints import allows_http
from dataprep_assets.stores.files import digest_value, expand_path, explain_invalid_name
from dataprep_assets.stores.local import LocalStore
from dataprep_assets.stores.store import Store

MANIFEST = "release.json"
SCHEMA_VERSION = 1
_KIND = "npy_shards"
# Maximum size of a manifest in bytes. It is generous, because a manifest of 14 shards takes only 10 kB, and one of
# 100,000 shards 60 MB.
_LARGEST = 96 << 20


@dataclass(frozen=True, kw_only=True)
class ReleaseFile:
    """An object of a release: its key relative to the release, its size in bytes and its SHA-256 (hex)."""

    key: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ReleaseShard:
    """A shard with its token file and its ids file. `tokens` is the length of the array, including padding."""

    index: int
    tokens: int
    token_file: ReleaseFile
    ids_file: ReleaseFile

    @property
    def files(self) -> tuple[ReleaseFile, ReleaseFile]:
        """Both files; the small ids file is first, so that a wrong shard is detected before the large download."""
        return self.ids_file, self.token_file

    @property
    def bytes(self) -> int:
        """Size of the shard on disk in bytes."""
        return self.token_file.bytes + self.ids_file.bytes


@dataclass(frozen=True, kw_only=True)
class Release:
    """Manifest of a release. `shards` maps a prefix (`train`, `val`) to its shards, numbered contiguously from 0.

    `separator_id` ends every document. `shuffle_seed` is None if the order of the source was kept. `tail` describes the
    treatment of the tokens after the last whole sequence of each prefix. For adopted shards (`dataprep release adopt`)
    these fields, the tokenizer and its size are None unless they were specified. If the data is `sensitive`, only the
    owner can read the files that a trainer downloads. `location` is the URL of files that are not next to the manifest.
    """

    dataset: str
    sequence_length: int
    tokens_per_shard: int
    dtype: str
    tokenizer: str | None
    tokenizer_sha256: str | None
    vocab_size: int | None
    separator_id: int | None
    shuffle_seed: int | None
    tail: str | None
    sensitive: bool = False
    location: str | None = None
    shards: Mapping[str, Sequence[ReleaseShard]] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if not isinstance(self.sensitive, bool):
            raise FormatError(f"release of {self.dataset}: sensitive must be true or false, not {self.sensitive!r}")
        if self.location is not None and not isinstance(self.location, str):
            raise FormatError(f"release of {self.dataset}: location must be a URL or a folder, not {self.location!r}")
        for prefix, shards in self.shards.items():
            # Validate the prefix, because it becomes a folder in the release and in every cache, and part of each
            # shard's name.
            reason = explain_invalid_name(prefix) or ("it has a '/'" if "/" in prefix else "")
            if reason:
                raise FormatError(f"release of {self.dataset}: invalid shard prefix {prefix!r}: {reason}")
            for index, shard in enumerate(shards):
                self._check(prefix, index, shard)

    def _check(self, prefix: str, index: int, shard: ReleaseShard) -> None:
        name = f"release of {self.dataset}: shard {index} of {prefix}"
        if shard.index != index:
            raise FormatError(f"{name}: its index is {shard.index}, not {index}. Publish the release again")
        keys = (shard.token_file.key, shard.ids_file.key)
        # Reject all other keys, because a manifest could use them to write outside of a trainer's cache.
        if keys != (
            expected_keys := (npy_shards.build_token_key(prefix, index), npy_shards.build_ids_key(prefix, index))
        ):
            raise FormatError(
                f"{name}: its files must be {' and '.join(expected_keys)}, not {' and '.join(keys)}. Publish the "
                "release again"
            )
        if self.sequence_length < 1 or shard.tokens % self.sequence_length or shard.tokens == 0:
            raise FormatError(
                f"{name}: has {count_of(shard.tokens, 'token')}, but must have whole sequences of "
                f"{self.sequence_length}. Publish the release again"
            )
        sizes = (shard.token_file.bytes, shard.ids_file.bytes)
        expected_sizes = (
            npy_shards.compute_shard_bytes(shard.tokens, self.dtype),
            shard.tokens // self.sequence_length * ID_BYTES,
        )
        if sizes != expected_sizes:
            raise FormatError(
                f"{name}: its files have {' and '.join(map(str, sizes))} bytes, but {shard.tokens} {self.dtype} tokens "
                f"need {' and '.join(map(str, expected_sizes))}. Publish the release again"
            )

    @property
    def files(self) -> tuple[ReleaseFile, ...]:
        """All files, ordered by prefix and shard."""
        return tuple(file for shards in self.shards.values() for shard in shards for file in reversed(shard.files))

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the manifest's content; it identifies the release at any location."""
        plain = self._to_plain_values()
        # Leave out the location, because a copy at a different location is the same release, and checkpoints must stay
        # valid for it.
        plain.pop("location", None)
        return digest_value(plain)

    def shards_of(self, prefix: str) -> Sequence[ReleaseShard]:
        """Return the shards of a prefix; raise ConfigError with the available prefixes if there are none."""
        shards = self.shards.get(prefix)
        if not shards:
            raise ConfigError(
                f"the release of {self.dataset} has no shards with the prefix {prefix!r}. Available: "
                f"{', '.join(sorted(self.shards))}"
            )
        return shards

    def _to_plain_values(self) -> dict[str, Any]:
        plain = {"kind": _KIND, **asdict(self)}
        # Leave out `sensitive` and `location` if they are empty, because these keys are optional in the format, and a
        # manifest without them must keep its digest.
        return {name: value for name, value in plain.items() if value or name not in ("sensitive", "location")}

    def to_bytes(self) -> bytes:
        """Return the manifest file's content; the same release always gives the same bytes."""
        value = {**self._to_plain_values(), "digest": self.digest}
        return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, location: str) -> Self:
        """Parse the content of a manifest file.

        Raises FormatError, naming `location`, for anything but a complete manifest.
        """
        try:
            value = parse_json(data, _LARGEST)
            digest, kind = value.pop("digest"), value.pop("kind")
            version = value["schema_version"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FormatError(f"{location}: not a release manifest ({error}). Publish the release again") from error
        if kind != _KIND or version != SCHEMA_VERSION:
            raise FormatError(
                f"{location}: {kind!r} of schema {version} is not supported (only {_KIND!r} of {SCHEMA_VERSION}). Use "
                "the version of dataprep-assets that published it, or publish it again"
            )
        try:
            value["shards"] = {
                prefix: tuple(
                    ReleaseShard(
                        index=shard["index"],
                        tokens=shard["tokens"],
                        token_file=ReleaseFile(**shard["token_file"]),
                        ids_file=ReleaseFile(**shard["ids_file"]),
                    )
                    for shard in shards
                )
                for prefix, shards in value["shards"].items()
            }
            release = cls(**value)
            # Compute the digest inside the `try`, because NaN and lone surrogates can be parsed but not digested.
            actual_digest = release.digest
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise FormatError(f"{location}: not a release manifest ({error}). Publish the release again") from error
        if actual_digest != digest:
            raise FormatError(
                f"{location}: changed or damaged: its digest is {actual_digest}, not {digest}. Publish the release "
                "again"
            )
        return release


@dataclass(frozen=True)
class ReleaseLocation:
    """Location of a release: a store, and the prefix of its keys, which is empty or ends in `/`."""

    store: Store
    base: str = ""

    def key(self, name: str) -> str:
        """Return the store's key for a file of the release."""
        return f"{self.base}{name}"

    def __str__(self) -> str:
        return f"{self.store.url}/{self.base}".rstrip("/")


def locate_release(release: str | Path | Store | ReleaseLocation) -> ReleaseLocation:
    """Return the location of a release for a folder, a URL, the path or URL of its manifest, or a store.

    URLs are `file:///…`, `s3://bucket/prefix`, `gs://bucket/prefix`, `https://host/folder` and, for the Hugging Face
    Hub, `hf://datasets/organization/name@revision/folder` (HF_ENDPOINT, HF_TOKEN). Credentials come from each client's
    own chain, or for S3 and R2 from the R2_DATASET_* variables (see `stores.connect`). Raises ConfigError for any other
    location.
    """
    if isinstance(release, ReleaseLocation):
        return release
    if isinstance(release, Store):
        return ReleaseLocation(release)
    text = str(release)
    if "://" not in text:
        path = expand_path(text)
        return ReleaseLocation(LocalStore(path.parent if path.name == MANIFEST or path.is_file() else path))
    text = text.removesuffix(f"/{MANIFEST}").rstrip("/")
    try:
        parts = urlsplit(text)
        _ = parts.port  # urlsplit parses the port only on access, and raises ValueError if the port is invalid
    except ValueError:  # the message omits the URL, which may contain a secret
        raise ConfigError(
            "the release's URL is invalid: a bracket is not closed, or the port is invalid. Correct the URL"
        ) from None
    if parts.username or parts.password:
        raise ConfigError(
            f"{parts.scheme}://{parts.hostname}: a URL must not contain credentials. Set them in the environment"
        )
    if parts.scheme in ("hf", "http", "https"):
        # Import this module only when it is needed, because httpx takes longer to import than the rest of the window.
        from dataprep_assets.stores.http import HttpStore, build_hub_url
    if parts.scheme == "hf":
        url, token = build_hub_url(text, os.environ), os.environ.get("HF_TOKEN")
        return ReleaseLocation(HttpStore(url, token=token, token_name="HF_TOKEN", allow_http=allows_http(os.environ)))
    if parts.scheme in ("http", "https"):
        return ReleaseLocation(HttpStore(text, allow_http=allows_http(os.environ)))
    return ReleaseLocation(parse_place(text, os.environ, reads=True)())


def locate_files(place: ReleaseLocation, release: Release) -> ReleaseLocation:
    """Return the location of a release's files, given the location of its manifest.

    Raises ConfigError if a manifest that is not on this machine names a different location, because its author could
    redirect a trainer to any server.
    """
    if release.location is None:
        return place
    if not isinstance(place.store, LocalStore):
        raise ConfigError(
            f"{place}/{MANIFEST}: names a different location for its files ({release.location}), which only a "
            "manifest in a local folder may do. Copy the manifest into a local folder, or pass that location"
        )
    return locate_release(release.location)


def read_release(place: ReleaseLocation) -> Release:
    """Read the manifest of a published release.

    Raises MissingArtifactError if there is none, FormatError if it is damaged, and TransferError.
    """
    location = f"{place}/{MANIFEST}"
    data = bytearray()
    # Limit the size while reading, because an object that is not a manifest could fill the memory.
    for block in place.store.read(place.key(MANIFEST)):
        data += block
        if len(data) > _LARGEST:
            raise FormatError(
                f"{location}: not a release manifest: the file has more than {_LARGEST:,} bytes. Correct the path"
            )
    return Release.from_bytes(bytes(data), location)
