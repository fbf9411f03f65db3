"""A copy of the built sample corpus whose source, tokenizer, artifacts and YAML a test may change."""

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
"""Keys that make the corpus sensitive, with SOME_KEY in the environment."""


class ChangedCorpus:
    """A copy of the sample that a test may change, built once, with the results of later runs."""

    def __init__(self, folder: Path, built: Path) -> None:
        self.data = Path(shutil.copytree(SMALL, folder / "data"))
        self.tokenizer = Path(shutil.copytree(SAMPLE / "tokenizer", folder / "tokenizer"))
        self.root = Path(shutil.copytree(built, folder / "root"))
        self.store = LocalArtifacts(self.root)

    def declared(self, **changes: Any) -> CorpusDeclaration:
        """Return its declaration with further changes."""
        return sample_declaration(self.data, self.tokenizer, **changes)

    def specs(self, **changes: Any) -> list[ArtifactSpec]:
        """Return its graph as declared with these changes."""
        return corpus_specs(self.declared(**changes))

    def statuses(self, **changes: Any) -> list[Decision]:
        """Return the stale artifacts with their reasons."""
        return list(find_stale(self.specs(**changes), self.store))

    def stale(self, **changes: Any) -> list[str]:
        """Return the names of stale artifacts, without the dataset."""
        return [one.name.removeprefix("sample_corpus/") for one in self.statuses(**changes)]

    def run(self, **changes: Any) -> Outcome:
        """Build everything that is out of date."""
        return run_pipeline(self.declared(**changes), self.root, 2)

    def rewrite(self, name: str, old: bytes, new: bytes) -> None:
        """Replace bytes in the text of a source file."""
        path = self.data / name
        raw = zstandard.ZstdDecompressor().decompress(path.read_bytes())
        assert old in raw
        path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(raw.replace(old, new, 1)))
