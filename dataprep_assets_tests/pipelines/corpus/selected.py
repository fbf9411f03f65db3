"""A corpus with deduplication, built up to its selection in this process, to test the effects of source changes."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest
from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.integrity.artifacts import ArtifactStore, LocalArtifacts
from dataprep_assets.pipelines.corpus.curation.tagged_shard import ensure_tags
from dataprep_assets.pipelines.corpus.curation.tags import plan_tagged_shards
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.signatures import plan_signature_shards
from dataprep_assets.pipelines.corpus.duplicates.signed_shard import ensure_signatures
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest
from dataprep_assets_tests.samples import SAMPLE


class Selected:
    """A corpus of JSON lines files in a folder, with its artifacts up to the selection."""

    def __init__(self, folder: Path, **declared: Any) -> None:
        self.folder, self._declared = folder, declared
        self.store: ArtifactStore = LocalArtifacts(folder / "artifacts")
        self.built: list[str] = []
        self.warnings: list[str] = []

    def write(self, files: Mapping[str, Sequence[Any]]) -> None:
        """Write source files: path below the source → texts, or records."""
        for name, rows in files.items():
            path = self.folder / "data" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps({"text": r} if isinstance(r, str) else r) + "\n" for r in rows))

    @property
    def corpus(self) -> CorpusDeclaration:
        """The declaration of the corpus."""
        declared = {
            "dataset": "pages",
            "source": {"kind": "local", "path": self.folder / "data"},
            "include": ["**/*.jsonl"],
            "splits": {"train": ["train/**"]},
            "tokenizer": {"path": SAMPLE / "tokenizer", "name": "sample"},
            "document": {"separator": "<|endoftext|>"},
            "shards": {"target_bytes": 1},
            "duplicates": {},
        }
        return CorpusDeclaration.model_validate(declared | self._declared).resolve_paths(self.folder)

    def specs(self) -> dict[tuple[str, str | None], ArtifactSpec]:
        """Return its artifacts by name and split."""
        return {(one.name, one.split): one for one in corpus_specs(self.corpus)}

    def build(self, workers: int | None = None) -> list[str]:
        """Build everything out of date up to the selection; return the built artifacts with their partitions.

        Without a number of workers this process builds the shards, which avoids starting others.
        """
        self.built, corpus, specs = [], self.corpus, self.specs()
        self._run(specs["manifest", None])
        for split in corpus.splits:
            self._run(specs["snapshot", split])
        if workers is None:
            self._make_here(corpus)
        else:
            for name in ("tags", "signatures"):
                for split in corpus.splits:
                    self._run(specs[name, split], workers)
        self._run(specs["duplicates", None])
        for split in corpus.splits:
            self._run(specs["selection", split])
        return self.built

    def _make_here(self, corpus: CorpusDeclaration) -> None:
        """Build the tags and signatures of all shards in this process."""
        manifest = load_manifest(corpus, self.store)
        keys = list(manifest.plan)
        for tagged in plan_tagged_shards(corpus, self.store, manifest, keys):
            self._note(Outcome.from_receipt(*ensure_tags(tagged, "full", None)), "tags")
        for signed in plan_signature_shards(corpus, self.store, manifest, keys):
            self._note(Outcome.from_receipt(*ensure_signatures(signed, "full", None)), "signatures")

    def _run(self, spec: ArtifactSpec, workers: int = 1) -> None:
        partitions = [] if spec.partitions is None else list(spec.partitions.keys(self.store))
        request = BuildRequest(store=self.store, partitions=partitions, workers=workers, warn=self.warnings.append)
        for outcome in spec.build(request):
            self._note(outcome, spec.name)

    def _note(self, outcome: Outcome, name: str) -> None:
        if outcome.error is not None:
            raise outcome.error
        if not outcome.reused:
            self.built.append(f"{name}/{outcome.partition}" if outcome.partition else name)

    def findings(self, name: str = "duplicates", split: str | None = None) -> dict[str, Finding]:
        """Return the findings of an artifact's checks."""
        spec = self.specs()[name, split]
        partitions = [] if spec.partitions is None else list(spec.partitions.keys(self.store))
        return dict(spec.examine(self.store, partitions))

    def dropped(self, *, planned: bool = False) -> list[dict[str, Any]]:
        """Return the dropped rows of all shards, with `planned` only of planned ones."""
        folder = self.store.directory(self.corpus.artifact("selection"))
        keys = load_manifest(self.corpus, self.store).plan if planned else None
        paths = [one for one in sorted(folder.glob("*/dropped.parquet")) if keys is None or one.parent.name in keys]
        return [row for path in paths for row in pq.read_table(path).to_pylist()]

    def kept(self) -> list[str]:
        """Return the texts of the rows that are not dropped, sorted."""
        gone = {(one["file"], one["row"]) for one in self.dropped()}
        found = []
        for path in sorted((self.folder / "data").rglob("*.jsonl")):
            file = path.relative_to(self.folder / "data").as_posix()
            for row, line in enumerate(path.read_text().splitlines(), 1):
                if (file, row) not in gone:
                    found.append(json.loads(line)["text"])
        return sorted(found)

    def bytes(self, names: Iterable[str] = ("duplicates", "selection")) -> dict[str, str]:
        """Return the digests of the files of some artifacts, except receipts."""
        folder = self.store.directory(self.corpus.artifact("selection")).parent
        paths = sorted(path for name in names for path in (folder / name).rglob("*") if path.is_file())
        return {
            path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in paths
            if path.name != "receipt.json" and ".staging" not in path.as_posix()
        }
