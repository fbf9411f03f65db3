"""A reference with other Unicode tables: `status`, `diff` and `--locked` report the change, and no append mixes the
two.
"""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from dataprep_assets.integrity.verify import read_receipts_below
from dataprep_assets_tests import forked
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.tokenization import candidate

TOUCHED = (
    "reference.normalization was Unicode 9.0, now Unicode 17.0 (different ids for texts with combining marks and "
    "composed letters added between Unicode 9.0 and 17.0; all other ids are unchanged)"
)
DECLARED = """
type: dataprep_assets.components.TokenizedCorpus
attributes:
  dataset: marks
  source: {kind: local, path: ./texts}
  include: ["*.jsonl"]
  splits: {train: ["train*"]}
  tokenizer: {path: ../sample_corpus/tokenizer}
  views: [nanogpt]
"""


class Project:
    """A `dataprep init` project with one corpus, in which commands run with or without the candidate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "my-data"
        self._variables = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        self._dataprep(folder, "init", "my-data", with_candidate=False, code=0)
        self._dataset = self._folder / "my_data" / "defs" / "marks"
        (self._dataset / "texts").mkdir(parents=True)
        (self._dataset / "defs.yaml").write_text(DECLARED)

    def add(self, name: str, texts: list[str]) -> None:
        lines = (json.dumps({"text": text}) + "\n" for text in texts)
        (self._dataset / "texts" / name).write_text("".join(lines))

    def dataprep(self, *arguments: str, with_candidate: bool = False, code: int = 0) -> str:
        return self._dataprep(self._folder, *arguments, with_candidate=with_candidate, code=code)

    def _dataprep(self, folder: Path, *arguments: str, with_candidate: bool, code: int) -> str:
        site = candidate.FOLDER if with_candidate else None
        done = forked.run(["-m", "dataprep_assets.cli", *arguments], env=self._variables, cwd=folder, site=site)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def tables(self) -> dict[str, int]:
        """Return how many receipts of token bins name each normalization."""
        artifacts = self._folder / ".dataprep" / "artifacts"
        receipts = [one for _, one in read_receipts_below(artifacts) if one.artifact == "token_bins"]
        return Counter(one.recipe["settings"]["reference"]["normalization"] for one in receipts)


@pytest.mark.slow
@candidate.needed
def test_an_upgraded_reference_lists_affected_texts_and_no_stream_mixes_two_references(tmp_path: Path) -> None:
    project = Project(tmp_path)
    for name in ("train-0.jsonl", "train-1.jsonl"):
        project.add(name, [f"Document {row} of {name}, in plain words." for row in range(40)])
    project.dataprep("run", "marks")
    assert project.tables() == {"Unicode 9.0": 1}
    project.dataprep("lock", "marks", "--output", "before.lock")
    project.add("train-2.jsonl", ["One more document, with a mark of Unicode 16: a\u0897\u0316."])

    found = json.loads(project.dataprep("status", "marks", "--json", with_candidate=True, code=1))["rebuild"]
    shards = {one["partition"]: one for one in found if one["artifact"] == "token_bins_train"}
    assert TOUCHED in shards["train-00000"]["reason"]
    assert shards["train-00001"]["kind"] == "missing"
    assert TOUCHED in project.dataprep("run", "marks", "--lock", "before.lock", with_candidate=True, code=1)
    assert project.tables() == {"Unicode 9.0": 1}  # nothing was built

    said = project.dataprep("run", "marks", with_candidate=True)
    assert "engine: fastokens" in said
    assert "for documents of class unnormalized" in said  # fastokens has the older Unicode tables
    assert project.tables() == {"Unicode 17.0": 2}
    project.dataprep("lock", "marks", "--output", "after.lock", with_candidate=True)
    differences = project.dataprep("diff", "before.lock", "after.lock", code=1)
    assert "reference.normalization was Unicode 9.0, now Unicode 17.0" in differences
    assert_names(differences, "combining")
