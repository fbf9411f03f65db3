"""Formats of source files by file extension, from this package and from installed packages.

No format is imported here. A format is a module in `sources/` with an `InputFormat`
(`sources/readers/input_format.py`). A package registers its own format by an entry point in the group
`dataprep_assets.inputs`: `tei = "my_package.tei:FORMAT"` reads the files named `….tei`, `….tei.gz`, `….tei.zst` and so
on.
"""

from dataprep_assets.extensions import Extensions

_READERS = "dataprep_assets.sources.readers"
INPUTS = Extensions(
    "input format",
    "dataprep_assets.inputs",
    own_modules={
        "jsonl": f"{_READERS}.rows:JSON",
        "json": f"{_READERS}.rows:JSON",
        "parquet": f"{_READERS}.rows:PARQUET",
        "txt": f"{_READERS}.plain_text:FORMAT",
        "csv": f"{_READERS}.csv_rows:FORMAT",
        "tsv": f"{_READERS}.csv_rows:FORMAT",
        "arrow": f"{_READERS}.arrow_rows:FORMAT",
        "warc": f"{_READERS}.warc:FORMAT",
        "wet": f"{_READERS}.warc:FORMAT",
    },
)
"""Input formats by name, which is the file extension."""
