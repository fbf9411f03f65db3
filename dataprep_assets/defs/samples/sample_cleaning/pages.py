"""A user's own asset, which writes the source files of `sample_documents`. Any code that writes files can do this.

This one reads a part of the sample corpus, drops lines that repeat the previous line, and gives each text a URL.
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
    """Yield the cleaned records of a file."""
    with zstandard.open(path, "rb") as file:
        for number, line in enumerate(io.BytesIO(file.read()), 1):
            record = json.loads(line)
            lines = record["text"].split("\n")
            kept_lines = [one for one, _ in groupby(lines)]
            yield {
                "url": f"https://{host}.example.org/{path.name.partition('.')[0]}/{number}",
                "set": record["meta"]["redpajama_set_name"].removeprefix("RedPajama"),
                "text": "\n".join(kept_lines),
                "lines_dropped": len(lines) - len(kept_lines),
            }


@dg.asset(
    key=["sample_cleaning", "pages"],
    group_name="sample_documents",
    kinds={"python", "json"},
    tags={SHOWN_AS: "sample"},
    description="Cleaned texts of the sample corpus: an example of your own asset.",
)
def pages() -> dg.MaterializeResult[None]:
    """Write the files, and record their location in the metadata `path`, which the dataset reads."""
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
    """Return the asset if samples are shown; in your own project, define only the asset."""
    return dg.Definitions(assets=[pages] if is_shown("sample") else [])
