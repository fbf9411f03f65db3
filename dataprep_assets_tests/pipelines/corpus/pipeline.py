"""Run the whole pipeline over a folder in the sample corpus's layout without Dagster, as a function and as a command to
kill.

`python -m dataprep_assets_tests.pipelines.corpus.pipeline SOURCE TOKENIZER ROOT WORKERS` runs it with the defaults.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dataprep_assets.integrity.artifacts import ArtifactStore, LocalArtifacts
from dataprep_assets.integrity.commit import SPOOLS, STAGING
from dataprep_assets.integrity.receipt import NAME, Receipt
from dataprep_assets.pipelines.corpus.combined_bins import build_combined_bins
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import build_manifest_artifact, load_manifest
from dataprep_assets.pipelines.corpus.source.snapshot import build_snapshot
from dataprep_assets.pipelines.corpus.source.source_parts import build_corpus_engine
from dataprep_assets.pipelines.corpus.token_bins import build_stream_plan, plan_token_shards
from dataprep_assets.pipelines.corpus.view import build_view
from dataprep_assets.stream.engine_certificate import ensure_certificate, load_certificate
from dataprep_assets.stream.shard_job import build_token_bins
from dataprep_assets_tests.samples import SAMPLE, SMALL


def sample_declaration(
    source: Path = SMALL, tokenizer: Path = SAMPLE / "tokenizer", **changes: Any
) -> CorpusDeclaration:
    """Return the declaration of the sample corpus, but small, at other paths and with any other changes."""
    declared: dict[str, Any] = {
        "dataset": "sample_corpus",
        "source": {"kind": "local", "path": source},
        "splits": {"train": ["train/**"], "val": ["validation/**"], "test": ["test/**"]},
        "tokenizer": {"path": tokenizer, "name": "sample-bpe-4096"},
        "document": {"separator": "<|endoftext|>"},
        "shards": {"count": 3},
        "views": ["nanogpt", "megatron", "datatrove", "olmo"],
        "olmo_sequence_length": 512,
        "sample_rate": 0.01,
    }
    return CorpusDeclaration.model_validate(declared | changes)


@dataclass
class Outcome:
    """The result of a run: names of built and up-to-date artifacts, and failed shards."""

    built: list[str] = field(default_factory=list)
    reused: list[str] = field(default_factory=list)
    failed: dict[str, Exception] = field(default_factory=dict)

    def add(self, receipt: Receipt, reused: bool) -> None:
        """Record one artifact."""
        name = "/".join(filter(None, (receipt.artifact, receipt.partition)))
        (self.reused if reused else self.built).append(name)


def run_pipeline(corpus: CorpusDeclaration, root: Path | ArtifactStore, workers: int | None = 1) -> Outcome:
    """Build manifest, snapshots, certificate and token bins, and if no shard failed, combined bins and views."""
    outcome = Outcome()
    store = LocalArtifacts(root) if isinstance(root, Path) else root
    outcome.add(*build_manifest_artifact(corpus, store))
    manifest = load_manifest(corpus, store)
    for partition in manifest.plan:
        outcome.add(*build_snapshot(corpus, store, manifest, partition))
    outcome.add(*ensure_certificate(build_corpus_engine(corpus), store))
    plan = build_stream_plan(corpus, load_certificate(corpus, store))
    works = plan_token_shards(corpus, store, manifest, plan, manifest.plan)
    for result in build_token_bins(works, workers=workers, verification=corpus.verify):
        if result.receipt is not None:
            outcome.add(result.receipt, result.reused)
        elif result.error is not None:
            outcome.failed[result.partition] = result.error
    if outcome.failed:
        return outcome
    for split in corpus.splits:
        outcome.add(*build_combined_bins(corpus, store, manifest, split))
    for view in corpus.views:
        outcome.add(*build_view(corpus, store, view))
    return outcome


def data_files(root: Path) -> dict[str, bytes]:
    """Return path below the root → bytes, for every file except receipts and locks."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != NAME and path.suffix != ".lock"
    }


def products(root: Path) -> dict[str, bytes]:
    """Return path → bytes of every artifact's files, without the records next to them."""
    return {name: data for name, data in data_files(root).items() if "/." not in f"/{name}"}


def receipts(root: Path) -> dict[str, dict[str, Any]]:
    """Return artifact → its receipt as JSON, without the measured block and the digest that covers it."""
    found = {}
    for path in sorted(root.rglob(NAME)):
        value = json.loads(path.read_bytes())
        del value["measured"], value["digest"]
        found[path.parent.relative_to(root).as_posix()] = value
    return found


def debris(root: Path, *, after_a_kill: bool = False) -> list[str]:
    """Return the files that a finished run should not leave: staging except locks, drafts, set-aside folders, temporary
    files.

    With `after_a_kill`, drafts of verdicts are allowed: only old ones are deleted, because another process may be
    writing them.
    """
    return sorted(name for name in set(_debris(root)) if not (after_a_kill and ".findings/" in name))


def _debris(root: Path) -> Iterator[str]:
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        is_area = path.is_dir() and (SPOOLS in name or name.endswith(f"{STAGING}/scratch"))
        if f"{STAGING}/" in name and not path.name.endswith(".lock") and not is_area:
            yield name
        if path.name.startswith(".aside-") or path.suffix in (".draft", ".tmp"):
            yield name


def main(arguments: list[str]) -> int:
    """Run the pipeline; the exit code is 1 when a shard failed."""
    source, tokenizer, root, workers = arguments
    outcome = run_pipeline(sample_declaration(Path(source), Path(tokenizer)), Path(root), int(workers))
    print(json.dumps({"built": outcome.built, "reused": outcome.reused}))
    return int(bool(outcome.failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
