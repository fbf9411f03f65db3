"""Real artifacts for checks: the sample corpus as token bins, built once per session, and its combined train split."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import pytest
import zstandard

from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.integrity.artifacts import Artifact, LocalArtifacts
from dataprep_assets.integrity.receipt import Ledger, Receipt, record_files
from dataprep_assets.planning.manifest import ManifestEntry, ShardSizing, SourceFile, build_manifest, plan_shards
from dataprep_assets.stores.files import sha256_file
from dataprep_assets.stream.shard_job import build_token_bins
from dataprep_assets.stream.token_shard import ENDS, TOKENS, TokenShard
from dataprep_assets.stream.token_stream import SourcePart, StreamPlan
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate, certify
from dataprep_assets.tokenization.engines import FastokensEngine
from dataprep_assets_tests.samples import SAMPLE, SMALL

INCLUDE = ["**/*.jsonl.zst"]
SPLITS = {"train": ["train/**"], "val": ["validation/**"], "test": ["test/**"]}


@dataclass(frozen=True)
class Shard:
    """A built shard with its inputs."""

    directory: Path
    receipt: Receipt
    sources: dict[str, SourcePart]

    def copied(self, target: Path) -> "Shard":
        """Return a copy that a test may damage."""
        return replace(self, directory=Path(shutil.copytree(self.directory, target / "shard")))


@dataclass(frozen=True)
class Sample:
    """The sample corpus: manifest, plan, bundle, and its shards by partition."""

    bundle: TokenizerBundle
    listed: list[SourceFile]
    entries: list[ManifestEntry]
    plan: dict[str, range]
    shards: dict[str, Shard]

    @property
    def train(self) -> list[tuple[Path, Receipt]]:
        """The train split's shards, as `combined_bins` takes them."""
        return [(s.directory, s.receipt) for key, s in self.shards.items() if key.startswith("train")]

    def receipts(self, split: str = "train") -> list[Receipt]:
        """Return the receipts of a split's shards, in order."""
        return [s.receipt for key, s in self.shards.items() if key.startswith(split)]


@dataclass(frozen=True)
class Combined:
    """The combined bins of the train split."""

    directory: Path
    receipt: Receipt

    @property
    def tokens(self) -> Path:
        """The token file of the split."""
        return self.directory / "train.bin"

    @property
    def ends(self) -> Path:
        """The document ends of the split."""
        return self.directory / ENDS

    def copied(self, target: Path) -> "Combined":
        """Return a copy that a test may damage."""
        return replace(self, directory=Path(shutil.copytree(self.directory, target / "combined")))


@lru_cache
def _certificate(mode: Literal["text", "match"]) -> Certificate:
    bundle = TokenizerBundle.load(SAMPLE / "tokenizer")
    return certify(bundle, mode, FastokensEngine(bundle, mode), [])


def make_plan(bundle: TokenizerBundle, **changes: Any) -> StreamPlan:
    """Return the plan of the sample corpus, with changes."""
    mode: Literal["text", "match"] = changes.pop("special_tokens", "text")
    plan = StreamPlan(
        tokenizer=bundle.directory,
        tokenizer_digest=bundle.digest,
        certificate=_certificate(mode).to_json(),
        special_tokens=mode,
        separator_id=bundle.find_token("<|endoftext|>", key="separator").id,
        bos_id=None,
        dtype="uint16",
        text_field="text",
        bad_records="fail",
        sample_rate=0.0,
    )
    return replace(plan, **changes)


def source_part(path: Path, label: str, ordinal: int) -> SourcePart:
    """Return a zstd JSONL file as a source."""
    return SourcePart(
        label=label, path=path, format="jsonl", compression="zstd", sha256=sha256_file(path), ordinal=ordinal
    )


def build(root: Path, plan: StreamPlan, shards: Mapping[str, Sequence[SourcePart]]) -> dict[str, Shard]:
    """Build shards, and return them by partition in the given order."""
    works = {
        partition: TokenShard(
            artifact=Artifact(dataset="sample", name="token_bins", partition=partition),
            store=LocalArtifacts(root),
            files=tuple(parts),
            plan=plan,
            budget=1.0,
            sizes=tuple(p.path.stat().st_size for p in parts),
        )
        for partition, parts in shards.items()
    }
    built: dict[str, Receipt] = {}
    for result in build_token_bins(list(works.values()), workers=1):
        if result.error is not None:
            raise result.error
        assert result.receipt is not None
        built[result.partition] = result.receipt
    return {
        partition: Shard(work.directory, built[partition], {f.label: f for f in work.files})
        for partition, work in works.items()
    }


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """Build each split of the sample corpus in up to two shards, in text mode, without BOS, as uint16."""
    bundle = TokenizerBundle.load(SAMPLE / "tokenizer", name="sample")
    data = SMALL
    listed = [
        SourceFile(relpath=p.relative_to(data).as_posix(), size_bytes=p.stat().st_size, sha256=sha256_file(p))
        for p in data.rglob("*.zst")
    ]
    entries = build_manifest(listed, include=INCLUDE, splits=SPLITS)
    _, planned = plan_shards(entries, ShardSizing(count=2))
    parts = {
        key: [source_part(data / entries[o].relpath, entries[o].relpath, o) for o in ordinals]
        for key, ordinals in planned.items()
    }
    shards = build(tmp_path_factory.mktemp("sample"), make_plan(bundle), parts)
    return Sample(bundle, listed, entries, {k: range(o[0], o[-1] + 1) for k, o in planned.items()}, shards)


@pytest.fixture(scope="session")
def combined(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> Combined:
    """Join the train split as `combined_bins` does."""
    directory = tmp_path_factory.mktemp("combined")
    shards = sample.train
    ledgers = [r.ledger for _, r in shards if r.ledger]
    flat_bins.concatenate([d / TOKENS for d, _ in shards], directory / "train.bin")
    document_ends.concatenate(
        [(d / ENDS, ledger.tokens) for (d, _), ledger in zip(shards, ledgers, strict=True)], directory / ENDS
    )
    separator = int(shards[0][1].facts["separator_id"])
    size = sample.bundle.vocab_size
    values = {"tokenizer": "sample", "vocab_size": size, "eos_token_id": separator, "dtype": "uint16"}
    flat_bins.write_meta(directory, values)
    receipt = Receipt(
        dataset="sample",
        artifact="combined_bins",
        partition="train",
        key="0" * 64,
        inputs={},
        files=record_files(directory),
        facts=values,
        ledger=Ledger.total(ledgers),
    )
    receipt.write(directory)
    return Combined(directory, receipt)


Special = Callable[..., Shard]


@pytest.fixture(scope="session")
def special(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> Special:
    """Builds a shard of given lines (texts, or raw bytes) under a changed plan."""

    def make(lines: Iterable[str | bytes], **changes: Any) -> Shard:
        root = tmp_path_factory.mktemp("special")
        raw = [line if isinstance(line, bytes) else json.dumps({"text": line}).encode() for line in lines]
        path = root / "lines.jsonl.zst"
        path.write_bytes(zstandard.compress(b"\n".join(raw) + b"\n"))
        plan = make_plan(sample.bundle, **changes)
        return build(root, plan, {"train-00000": [source_part(path, "train/lines.jsonl.zst", 0)]})["train-00000"]

    return make
