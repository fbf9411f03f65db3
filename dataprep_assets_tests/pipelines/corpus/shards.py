"""Build small shards of given lines with the real encoding and sealing tasks, in this process."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from dataprep_assets.execution.jobs import Outcome, run_jobs
from dataprep_assets.execution.progress import Progress
from dataprep_assets.execution.run_task import Pool
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.integrity.artifacts import Artifact, LocalArtifacts
from dataprep_assets.integrity.commit import open_staging
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.stores.files import sha256_file
from dataprep_assets.stream.shard_job import build_whole_shard_jobs, ensure_shard
from dataprep_assets.stream.token_shard import ENDS, QUARANTINE, TOKENS, TokenShard, encode_piece, seal_shard
from dataprep_assets.stream.token_stream import SourcePart, StreamPlan
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate, certify
from dataprep_assets.tokenization.engines import FastokensEngine, ReferenceEngine, SpecialTokens
from dataprep_assets_tests.samples import SAMPLE

SEPARATOR = "<|endoftext|>"


@lru_cache
def bundle(folder: Path = SAMPLE / "tokenizer") -> TokenizerBundle:
    """Return a tokenizer, by default the sample's."""
    return TokenizerBundle.load(folder)


@lru_cache
def certificate(mode: SpecialTokens = "text", folder: Path = SAMPLE / "tokenizer") -> Certificate:
    """Return the certificate that the fast engine gets on the adversarial set only."""
    return certify(bundle(folder), mode, FastokensEngine(bundle(folder), mode), [])


def stream_plan(mode: SpecialTokens = "text", folder: Path = SAMPLE / "tokenizer", **changes: Any) -> StreamPlan:
    """Return the plan of the sample corpus, with changes."""
    plan = StreamPlan(
        tokenizer=folder,
        tokenizer_digest=bundle(folder).digest,
        certificate=certificate(mode, folder).to_json(),
        special_tokens=mode,
        separator_id=bundle(folder).find_token(SEPARATOR, key="separator").id,
        bos_id=None,
        dtype=flat_bins.choose_dtype(bundle(folder).vocab_size),
        text_field="text",
        bad_records="fail",
        sample_rate=0.0,
    )
    return replace(plan, **changes)


def build_whole_shards(shards: Sequence[TokenShard], pool: Pool) -> Iterator[Outcome]:
    """Build the shards that are out of date, one task each, on an open pool."""
    yield from run_jobs(pool, build_whole_shard_jobs(shards, ensure_shard, "full", None), Progress())


def write_lines(path: Path, lines: Iterable[str | bytes]) -> Path:
    """Write a zstd file of JSON lines: texts become records, and bytes are written unchanged."""
    raw = [
        line if isinstance(line, bytes) else json.dumps({"text": line}, ensure_ascii=False).encode() for line in lines
    ]
    path.write_bytes(zstandard.compress(b"".join(line + b"\n" for line in raw)))
    return path


def source(path: Path, ordinal: int = 0, *, sha256: str | None = None) -> SourcePart:
    """Return a file as the snapshot describes it; its name determines its format."""
    compression = {".zst": "zstd", ".gz": "gzip"}.get(path.suffix)
    return SourcePart(
        label=f"train/{path.name}",
        path=path,
        format="parquet" if path.suffix == ".parquet" else "jsonl",
        compression=compression,
        sha256=sha256 or sha256_file(path),
        ordinal=ordinal,
    )


def shard_work(root: Path, plan: StreamPlan, files: Sequence[SourcePart], budget: float = 1.0) -> TokenShard:
    """Return the work of `train-00000`."""
    return TokenShard(
        artifact=Artifact(dataset="d", name="token_bins", partition="train-00000"),
        store=LocalArtifacts(root),
        files=tuple(files),
        plan=plan,
        budget=budget,
        sizes=tuple(f.path.stat().st_size for f in files),
    )


@dataclass(frozen=True)
class Shard:
    """A finished shard."""

    directory: Path
    receipt: Receipt

    @property
    def ledger(self) -> Ledger:
        """The ledger of the shard."""
        assert self.receipt.ledger is not None
        return self.receipt.ledger

    @property
    def ids(self) -> NDArray[Any]:
        """The whole stream of token ids."""
        return flat_bins.open_tokens(self.directory / TOKENS, self.receipt.facts["dtype"])

    @property
    def documents(self) -> list[list[int]]:
        """The ids of each document, including its separator."""
        ends = np.asarray(document_ends.open_ends(self.directory / ENDS)).tolist()
        return [self.ids[start:end].tolist() for start, end in zip([0, *ends], ends, strict=False)]

    @property
    def quarantine(self) -> list[dict[str, Any]]:
        """The positions of the dropped rows."""
        path = self.directory / QUARANTINE
        return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def build(work: TokenShard) -> Shard:
    """Encode every file and seal the shard."""
    with open_staging(work.directory, work.key) as staged:
        parts = {piece: encode_piece(work.plan, file, staged, piece) for piece, file in enumerate(work.files)}
        return Shard(work.directory, seal_shard(work, staged, parts))


def build_lines(root: Path, lines: Iterable[str | bytes], mode: SpecialTokens = "text", **changes: Any) -> Shard:
    """Build the shard of one file of lines; every drop is allowed."""
    path = write_lines(root / "lines.jsonl.zst", lines)
    return build(shard_work(root / "out", stream_plan(mode, **changes), [source(path)]))


def reference_ids(
    texts: Sequence[str], mode: SpecialTokens = "text", folder: Path = SAMPLE / "tokenizer"
) -> list[list[int]]:
    """Return the ids of each text by the reference engine, without separator."""
    ids, offsets = ReferenceEngine(bundle(folder), mode).encode(texts)
    bounds = offsets.tolist()
    return [ids[a:b].tolist() for a, b in itertools.pairwise(bounds)]
