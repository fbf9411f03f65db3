"""Signatures of a shard's documents: the data from which duplicates are found without reading the texts.

A folder of little-endian arrays (docs/formats/signatures.md). Rows are the rows of the document table:

- `digests.bin`, uint64 `(rows, 3)`: 128 bits of the compared form (shingles or words), and 64 bits of the text; zeros
  for a row that is not compared (a refused row, an empty text)
- `shingle_ends.bin` and `shingles.bin`, uint64: end of each row's shingles; the shingle hashes, sorted, each once
- `key_hashes.bin`, uint64 `(1 + bands, documents)` and `key_rows.bin`, uint32: for the first half of the digest and for
  each band, the hashes in increasing order, and the row of each

A merge of the shards' tables therefore puts possible duplicates next to each other, for any number of shards.

Entry points: `SignatureSettings`, `SignatureWriter`, `SignedShard`.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.duplicates.banding import Banding
from dataprep_assets.curation.duplicates.kinds import Kind, Normalization
from dataprep_assets.curation.duplicates.shingles import ShingleHashes
from dataprep_assets.curation.duplicates.words import (
    UNICODE,
    WORDS,
    split_compared_words,
)
from dataprep_assets.errors import FormatError, build_missing_extra_error, count_of
from dataprep_assets.formats import document_ends
from dataprep_assets.formats.flat_bins import map_file
from dataprep_assets.integrity.receipt import require_installed_version
from dataprep_assets.stores.files import create_file
from dataprep_assets.tokenization.document_ids import hash_texts, mix_bits

DIGESTS, ENDS, SHINGLES = "digests.bin", "shingle_ends.bin", "shingles.bin"
KEY_HASHES, KEY_ROWS = "key_hashes.bin", "key_rows.bin"
FILES = (DIGESTS, ENDS, SHINGLES, KEY_HASHES, KEY_ROWS)
SEED = 42
"""Seed for the permutations. A different seed would find different pairs among those below the S-curve's knee."""
_DTYPE, _ROW_DTYPE = np.dtype("<u8"), np.dtype("<u4")
_LIBRARY = ("duplicates", "rensa", "duplicates")


@dataclass(frozen=True, kw_only=True)
class SignatureSettings:
    """The values that determine the signatures of documents. Picklable; its `repr` never shows the key.

    Attributes:
        kind: `exact` uses only digests.
        normalization: Normalization before texts are compared.
        shingle: Words per shingle.
        banding: Split of signatures into bands.
        key: The secret of keyed hashes.
        key_digest: Digest that represents the secret in artifact keys.
    """

    kind: Kind
    normalization: Normalization
    shingle: int
    banding: Banding
    key: bytes | None = field(default=None, repr=False)
    key_digest: str | None = None

    @property
    def bands(self) -> int:
        """Number of bands of a signature; 0 for `exact`."""
        return self.banding.bands if self.kind == "near" else 0

    @property
    def key_parts(self) -> dict[str, Any]:
        """The settings in an artifact key. Raises ConfigError if the required library is not installed."""
        parts: dict[str, Any] = {"kind": self.kind, "normalization": self.normalization, "unicode": UNICODE}
        parts["words"] = WORDS
        if self.kind == "near":
            parts |= {"shingle": self.shingle, "bands": self.banding.bands, "rows": self.banding.rows}
            parts["rensa"] = read_library_version()
        return parts | ({} if self.key_digest is None else {"key": self.key_digest})


def read_library_version() -> str:
    """Return the version of the library that computes MinHash signatures. Raises ConfigError if it is not installed."""
    return require_installed_version(*_LIBRARY)


class Signer:
    """Algorithm that computes the signatures of texts."""

    def __init__(self, settings: SignatureSettings) -> None:
        """Store the settings. Raises ConfigError if the required library is not installed."""
        self._settings = settings
        self._shingles = ShingleHashes(settings.shingle, settings.normalization, settings.key)
        # Hash the key, because it may be longer than the 64 bytes that BLAKE2b accepts.
        self._key = b"" if settings.key is None else hashlib.sha256(settings.key).digest()
        if settings.kind == "near":
            try:
                from rensa import RMinHash
            except ImportError as error:
                raise build_missing_extra_error(*_LIBRARY) from error
            self._minhash: Any = RMinHash

    def compute_shingles(self, texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return the shingles of texts, as `ShingleHashes.hash_texts` does."""
        return self._shingles.hash_texts(texts)

    def compute_bands(self, hashes: NDArray[np.uint64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the band hashes of texts, given their shingles: ``(texts, bands)``, uint64."""
        banding = self._settings.banding
        used_hashes = banding.bands * banding.rows
        starts = np.concatenate([[0], ends]).astype(np.uint64)
        minhashes = self._minhash.digest_matrix_from_flat_token_hashes(hashes, starts, used_hashes, SEED)
        values = np.array(minhashes.to_rows(), np.uint64).reshape(len(ends), banding.bands, banding.rows)
        bands = np.zeros((len(ends), banding.bands), np.uint64)
        # Combine the MinHash values of each band into one hash. Each step adds one value of every band of every text,
        # so that NumPy does the work.
        for row in range(banding.rows):
            bands = mix_bits(bands * np.uint64(0x100000001B3) + values[:, :, row] + np.uint64(row + 1))
        return bands

    def compute_digests(
        self, texts: Sequence[str], contents: Sequence[str], hashes: NDArray[np.uint64], ends: NDArray[np.int64]
    ) -> NDArray[np.uint64]:
        """Return 128 bits of the compared form and 64 bits of the complete content: ``(texts, 3)``, uint64.

        Texts that are compared by shingles are equal if their shingles are equal.
        """
        if self._settings.kind == "near":
            starts = np.concatenate([[0], ends[:-1]]).tolist() if len(ends) else []
            data = hashes.astype(_DTYPE, copy=False)
            equal = [data[start:end].tobytes() for start, end in zip(starts, ends.tolist(), strict=True)]
        else:
            equal = [" ".join(split_compared_words(text, self._settings.normalization)).encode() for text in texts]
        digests = b"".join(hashlib.blake2b(content, digest_size=16, key=self._key).digest() for content in equal)
        halves = np.frombuffer(digests, _DTYPE).reshape(len(texts), 2)
        return np.column_stack([halves, hash_texts(contents, self._settings.key)]).astype(np.uint64)


class SignatureWriter:
    """Context manager that writes a shard's signatures, row by row, into an empty folder."""

    def __init__(self, directory: Path, settings: SignatureSettings) -> None:
        """Start without rows.

        Args:
            directory: The folder.
            settings: Settings of the signatures.
        """
        self.rows = self.documents = self.blank = 0
        self._directory, self._settings = directory, settings
        self._signer = Signer(settings)
        # Keep the keys in memory (8 bytes per key and document), because each table is sorted before it is written.
        self._keys: list[NDArray[np.uint64]] = []
        self._key_rows: list[NDArray[np.uint32]] = []
        self._ends: list[NDArray[np.uint64]] = []
        self._last = 0

    def __enter__(self) -> Self:
        self._opened = [create_file(self._directory / name) for name in (DIGESTS, SHINGLES)]
        self._digests, self._shingles = (file.__enter__() for file in self._opened)
        return self

    def add(self, rows: int, good: Sequence[int], texts: Sequence[str], contents: Sequence[str] | None = None) -> None:
        """Add the signatures of some rows.

        Args:
            rows: Number of rows.
            good: Positions of the rows that have a text.
            texts: The texts of these rows.
            contents: The complete contents of these rows, which include the texts. Default: the texts.
        """
        # Exclude empty texts and texts of only white space, because they would all be duplicates of each other.
        numbered_texts = [
            (position, text, content)
            for position, text, content in zip(good, texts, texts if contents is None else contents, strict=True)
            if text and not text.isspace()
        ]
        position = np.array([index for index, _, _ in numbered_texts], np.int64)
        counts, digests = np.zeros(rows, np.uint64), np.zeros((rows, 3), np.uint64)
        if numbered_texts:
            compared_texts = [text for _, text, _ in numbered_texts]
            compared_contents = [content for _, _, content in numbered_texts]
            is_near = self._settings.kind == "near"
            hashes, ends = (
                self._signer.compute_shingles(compared_texts)
                if is_near
                else (np.empty(0, np.uint64), np.empty(0, np.int64))
            )
            digests[position] = self._signer.compute_digests(compared_texts, compared_contents, hashes, ends)
            keys = digests[position, :1]
            if is_near:
                counts[position] = np.diff(ends, prepend=0)
                keys = np.concatenate([keys, self._signer.compute_bands(hashes, ends)], axis=1)
                _write(self._shingles, hashes)
            self._keys.append(keys)
            self._key_rows.append((position + self.rows).astype(np.uint32))
        _write(self._digests, digests)
        self._ends.append(self._last + np.cumsum(counts))
        self._last = int(self._ends[-1][-1]) if rows else self._last
        self.rows, self.documents = self.rows + rows, self.documents + len(numbered_texts)
        self.blank += len(texts) - len(numbered_texts)

    def __exit__(self, *error: Any) -> None:
        for file in self._opened:
            file.__exit__(*error)
        if error[0] is not None:
            return
        document_ends.write(self._directory / ENDS, self._ends)
        width = 1 + self._settings.bands
        keys = np.concatenate(self._keys) if self._keys else np.empty((0, width), np.uint64)
        rows = np.concatenate(self._key_rows) if self._key_rows else np.empty(0, np.uint32)
        with create_file(self._directory / KEY_HASHES) as hashes, create_file(self._directory / KEY_ROWS) as key_rows:
            for key in range(width):
                # Use a stable sort, so that the order of equal hashes, and thus the file, is reproducible.
                order = np.argsort(keys[:, key], kind="stable")
                _write(hashes, keys[order, key])
                key_rows.write(rows[order].astype(_ROW_DTYPE).tobytes())


def _write(file: BinaryIO, values: NDArray[np.uint64]) -> None:
    file.write(values.astype(_DTYPE, copy=False).tobytes())


@dataclass(frozen=True)
class SignedShard:
    """The signatures of a shard; files are mapped on first use.

    Attributes:
        directory: The folder with the files.
        rows: Rows of the shard.
        documents: Number of compared rows.
        bands: Number of bands per signature.

    Raises FormatError if the size of a file does not match these numbers.
    """

    directory: Path
    rows: int
    documents: int
    bands: int

    @cached_property
    def digests(self) -> NDArray[np.uint64]:
        """128 bits of each row's compared form, and 64 bits of its text: ``(rows, 3)``, uint64."""
        return self._map(DIGESTS, _DTYPE, 3 * self.rows).reshape(self.rows, 3)

    @cached_property
    def _ends(self) -> NDArray[np.uint64]:
        return self._map(ENDS, _DTYPE, self.rows)

    @cached_property
    def shingles(self) -> NDArray[np.uint64]:
        """The shingle hashes of all rows, row after row: uint64."""
        return self._map(SHINGLES, _DTYPE, int(self._ends[-1]) if self.rows else 0)

    def get_shingles(self, row: int) -> NDArray[np.uint64]:
        """Return the shingle hashes of a row, increasing: uint64."""
        start = int(self._ends[row - 1]) if row else 0
        return self.shingles[start : int(self._ends[row])]

    def locate_shingles(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the begins and ends of rows in `shingles`: each ``(rows,)``."""
        ends = self._ends
        begins = np.where(rows > 0, ends[np.maximum(rows - 1, 0)], 0).astype(np.int64)
        return begins, ends[rows].astype(np.int64)

    def count_shingles(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of shingles of each row: ``(rows,)``."""
        begins, ends = self.locate_shingles(rows)
        return ends - begins

    def read_keys(self, key: int, low: int, high: int) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Return the hashes of a key from `low` to below `high` (at most 2**64), increasing, and the row of each.

        They are read instead of mapped, because every used page of a map would count as memory of the process.
        """
        column = self.keys[0][key]
        start = int(column.searchsorted(np.uint64(low)))
        # 2**64 does not fit in uint64.
        count = (len(column) if high >> 64 else int(column.searchsorted(np.uint64(high)))) - start
        first_entry = key * self.documents + start
        return (
            np.fromfile(self.directory / KEY_HASHES, _DTYPE, count, offset=first_entry * _DTYPE.itemsize),
            np.fromfile(self.directory / KEY_ROWS, _ROW_DTYPE, count, offset=first_entry * _ROW_DTYPE.itemsize),
        )

    @cached_property
    def keys(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """The key tables, hashes and rows: each ``(1 + bands, documents)``, by increasing hash."""
        shape = 1 + self.bands, self.documents
        hashes = self._map(KEY_HASHES, _DTYPE, shape[0] * shape[1]).reshape(shape)
        rows = self._map(KEY_ROWS, _ROW_DTYPE, shape[0] * shape[1]).reshape(shape)
        return hashes, rows

    def find_differences(self, shard: "SignedShard", rows: NDArray[np.int64]) -> Iterator[str]:
        """Yield a sentence for each array of `shard` that differs from this shard in the rows `rows`.

        Args:
            shard: The other shard.
            rows: Ascending positions of all of this shard's rows in `shard`.
        """
        if len(rows) and rows[-1] >= shard.rows:
            yield f"has {count_of(shard.rows, 'row')}, but must have at least {int(rows[-1]) + 1:,}"
            return
        pairs = ((self.get_shingles(index), shard.get_shingles(row)) for index, row in enumerate(rows.tolist()))
        for name, differing_settings in (
            (DIGESTS, (self.digests != shard.digests[rows]).any(axis=1)),
            (ENDS, self.count_shingles(np.arange(len(rows))) != shard.count_shingles(rows)),
            (SHINGLES, np.array([not np.array_equal(own_set, stored_set) for own_set, stored_set in pairs], np.bool_)),
        ):
            if differing_settings.any():
                yield f"{name}: row {int(rows[np.argmax(differing_settings)]) + 1} differs from a rebuild"
        hashes, stored_rows = shard.keys
        if (hashes[:, 1:] < hashes[:, :-1]).any():
            yield f"{KEY_HASHES} is not sorted"
        for key, (own_hashes, index) in enumerate(zip(*self.keys, strict=True)):
            # Both tables were sorted with a stable sort, so the stored table's entries for the sampled rows must equal
            # the rebuilt table.
            is_sampled = np.isin(stored_rows[key], rows)
            if not (
                np.array_equal(hashes[key][is_sampled], own_hashes)
                and np.array_equal(stored_rows[key][is_sampled], rows[index])
            ):
                yield f"{KEY_HASHES}, {KEY_ROWS}: band {key} of the sampled rows differs from a rebuild"

    def _map(self, name: str, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        path = self.directory / name
        if (size := path.stat().st_size) != count * dtype.itemsize:
            raise FormatError(
                f"{path}: has {count_of(size, 'byte')}, expected {count * dtype.itemsize} for "
                f"{count_of(self.rows, 'row')}. Rebuild `signatures`"
            )
        # View the file as a plain array, because slicing a `memmap` takes several times as long.
        return np.asarray(map_file(path, dtype, count))
