"""A `dataprep init` project under another name, as a user may have it.

Its folders are nested and named differently from their datasets. Two declarations are broken, and a third-party asset
and component are in the same folders.
"""

import json
import shutil
from pathlib import Path

from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.samples import SAMPLE

CORPUS = f"""type: dataprep_assets.components.TokenizedCorpus
attributes:
  dataset: NAME
  source: {{kind: local, path: ./texts}}
  include: ["*.jsonl"]
  splits: {{train: ["train*"], val: ["val*"]}}
  tokenizer: {{path: {SAMPLE / "tokenizer"}}}
  document: {{separator: "<|endoftext|>"}}
  views: [nanogpt]
"""
FOREIGN = '''"""Somebody else's: an asset, and a component whose attributes have a key `dataset`, too."""

import dagster as dg


@dg.asset
def somebody_elses() -> int:
    return 1


class Table(dg.Component, dg.Model, dg.Resolvable):
    dataset: str

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        @dg.asset(key=[self.dataset, "table"])
        def table() -> None: ...

        return dg.Definitions(assets=[table])
'''


def write_corpus(folder: Path, dataset: str, template: str = CORPUS) -> Path:
    """Declare a dataset in a folder, write a few texts next to its `defs.yaml`, and return the path of that file."""
    texts = folder / "texts"
    texts.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val"):
        rows = [{"text": f"{split} {i}: a document of {dataset}", "id": i} for i in range(20)]
        (texts / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "defs.yaml"
    path.write_text(template.replace("NAME", dataset))
    return path


def nested_project(root: Path) -> Path:
    """Create the project `my_texts` in a folder: d00 and d01 are valid; d02 and a file that is not YAML are broken."""
    done = dataprep(root, "init", str(root / "My-Texts"))
    assert done.returncode == 0, done.stderr
    project = root / "My-Texts"
    defs = project / "my_texts" / "defs"
    shutil.rmtree(defs / "sample_corpus")
    write_corpus(defs / "team" / "first", "d00")
    write_corpus(defs / "team" / "eu" / "second", "d01")
    broken = write_corpus(defs / "team" / "eu" / "third", "d02")
    broken.write_text(broken.read_text().replace("splits:", "spilts:"))
    write_corpus(defs / "other" / "third", "d03").write_text("type: [\n  dataset: d03\n")
    (defs / "own.py").write_text(FOREIGN)
    (defs / "theirs" / "table").mkdir(parents=True)
    (defs / "theirs" / "table" / "defs.yaml").write_text(
        "type: my_texts.defs.own.Table\nattributes:\n  dataset: d00_rows\n"
    )
    return project
