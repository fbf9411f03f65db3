"""A copy of the built sample corpus that a test may change: its source, its tokenizer, its artifacts, its YAML."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zstandard

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.staleness.decide import Decision
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets_tests.pipelines.corpus.pipeline import Outcome, run_pipeline, sample_declaration
from dataprep_assets_tests.samples import SAMPLE, SMALL

SENSITIVE: Mapping[str, Any] = {
    "sensitive": True,
    "document": {"separator": "<|endoftext|>", "id_key": {"env": "SOME_KEY"}},
}
"""What makes it a sensitive one, with SOME_KEY in the environment."""


class ChangedCorpus:
    """A copy of the sample that a test may change, built once, and what later runs do."""

    def __init__(self, folder: Path, built: Path) -> None:
        self.data = Path(shutil.copytree(SMALL, folder / "data"))
        self.tokenizer = Path(shutil.copytree(SAMPLE / "tokenizer", folder / "tokenizer"))
        self.root = Path(shutil.copytree(built, folder / "root"))
        self.store = LocalArtifacts(self.root)

    def declared(self, **changes: Any) -> CorpusDeclaration:
        """Its declaration, with other changes."""
        return sample_declaration(self.data, self.tokenizer, **changes)

    def specs(self, **changes: Any) -> list[ArtifactSpec]:
        """Its graph, as it is declared with these changes."""
        return corpus_specs(self.declared(**changes))

    def statuses(self, **changes: Any) -> list[Decision]:
        """What is stale, and why."""
        return list(find_stale(self.specs(**changes), self.store))

    def stale(self, **changes: Any) -> list[str]:
        """Names of what is stale, without the dataset's."""
        return [one.name.removeprefix("sample_corpus/") for one in self.statuses(**changes)]

    def run(self, **changes: Any) -> Outcome:
        """Build what is not current."""
        return run_pipeline(self.declared(**changes), self.root, 2)

    def rewrite(self, name: str, old: bytes, new: bytes) -> None:
        """Change bytes of a source file's text."""
        path = self.data / name
        raw = zstandard.ZstdDecompressor().decompress(path.read_bytes())
        assert old in raw
        path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(raw.replace(old, new, 1)))
