"""The formats of source files, by file extension, in this package and in installed ones.

No format is imported here. A format is a module of `sources/` with an `InputFormat`
(`sources/readers/input_format.py`). A package registers its own format by an entry point in the group
`dataprep_assets.inputs`: `tei = "my_package.tei:FORMAT"` reads the files named `….tei`, `….tei.gz`, `….tei.zst` and so
on.
"""

from dataprep_assets.extensions import Extensions

_ROOM = "dataprep_assets.sources.readers"
INPUTS = Extensions(
    "input format",
    "dataprep_assets.inputs",
    own_modules={
        "jsonl": f"{_ROOM}.rows:JSON",
        "json": f"{_ROOM}.rows:JSON",
        "parquet": f"{_ROOM}.rows:PARQUET",
        "txt": f"{_ROOM}.plain_text:FORMAT",
        "csv": f"{_ROOM}.csv_rows:FORMAT",
        "tsv": f"{_ROOM}.csv_rows:FORMAT",
        "arrow": f"{_ROOM}.arrow_rows:FORMAT",
        "warc": f"{_ROOM}.warc:FORMAT",
        "wet": f"{_ROOM}.warc:FORMAT",
    },
)
"""Input formats by name, which is the file extension."""
