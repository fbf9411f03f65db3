"""An asset of the user's own, of whose files `sample_documents` is made: any code that leaves files somewhere.

Here it reads a part of the sample corpus, leaves out lines that repeat the line before, and gives each text a URL.
"""

import io
import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import dagster as dg
import zstandard

from dataprep_assets.project import SHOWN_AS, is_shown

TEXTS = Path(__file__).parents[1] / "sample_corpus" / "data"
CLEANED = Path(__file__).parents[4] / ".dataprep" / "sample_cleaning"


def cleaned(path: Path, host: str) -> Iterator[dict[str, object]]:
    """The records of a file, cleaned."""
    with zstandard.open(path, "rb") as file:
        for number, line in enumerate(io.BytesIO(file.read()), 1):
            record = json.loads(line)
            lines = record["text"].split("\n")
            kept = [one for one, _ in groupby(lines)]
            yield {
                "url": f"https://{host}.example.org/{path.name.partition('.')[0]}/{number}",
                "set": record["meta"]["redpajama_set_name"].removeprefix("RedPajama"),
                "text": "\n".join(kept),
                "lines_dropped": len(lines) - len(kept),
            }


@dg.asset(
    key=["sample_cleaning", "pages"],
    group_name="sample_documents",
    kinds={"python", "json"},
    tags={SHOWN_AS: "sample"},
    description="Texts of the sample corpus, cleaned: an asset of the user's own.",
)
def pages() -> dg.MaterializeResult[None]:
    """Write the files, and say where they are: the dataset reads `path`."""
    documents = 0
    for split, folder in (("train", "train/chunk1"), ("val", "validation/chunk1")):
        for source in sorted((TEXTS / folder).iterdir()):
            target = CLEANED / split / f"{source.name.partition('.')[0]}.jsonl"
            target.parent.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(one, ensure_ascii=False) + "\n" for one in cleaned(source, split)]
            target.write_text("".join(lines), encoding="utf-8", newline="\n")
            documents += len(lines)
    return dg.MaterializeResult(metadata={"path": dg.MetadataValue.path(str(CLEANED)), "documents": documents})


@dg.definitions
def defs() -> dg.Definitions:
    """The asset where samples are shown; in a project of one's own the asset alone is enough."""
    return dg.Definitions(assets=[pages] if is_shown("sample") else [])
