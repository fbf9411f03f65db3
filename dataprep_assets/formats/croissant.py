"""Croissant 1.1, the JSON-LD description of a dataset for machines.

Properties, context and provenance follow the specification (mlcommons/croissant, page croissant-spec-1.1). The context
is from appendix 1, with the `https` spelling of schema.org that its example datasets and `mlcroissant` use. Provenance
uses PROV-O, as the specification recommends. None and empty values are omitted, because they were not declared. The
tests read the written files with `mlcroissant`.

Entry points: `encode_description`, and functions that build its nodes: `build_source_node`, `build_file_node`,
`build_file_set_node`, `build_records_node`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

NAME = "croissant.json"
CONFORMS_TO = "http://mlcommons.org/croissant/1.1"
_TERMS = (
    "annotation arrayShape citeAs column containedIn equivalentProperty excludes extract field fileProperty fileObject "
    "fileSet format includes isArray isLiveDataset jsonPath key md5 parentField path readLines recordSet references "
    "regex repeated replace samplingRate sdVersion separator source subField transform unArchive value"
)
CONTEXT: Mapping[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "prov": "http://www.w3.org/ns/prov#",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _TERMS.split()},
}
PARQUET = "application/x-parquet"
"""Media type for which `mlcroissant` reads a file as Parquet."""
_BYTES = "application/octet-stream"
_FORMATS = {
    ".csv": "text/csv",
    ".gz": "application/gzip",
    ".json": "application/json",
    ".jsonl": "application/jsonlines",
    ".md": "text/markdown",
    ".parquet": PARQUET,
    ".txt": "text/plain",
    ".zst": "application/zstd",
}

Node = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ParquetColumn:
    """A Parquet column. If `is_list` is true, every value is a list of any length."""

    name: str
    about: str
    data_type: str = "sc:Integer"
    is_list: bool = True


def encode_description(described: Node) -> bytes:
    """Serialize a dataset's properties and add its type and context. Equal properties give equal bytes."""
    value = _drop_empty({"@context": CONTEXT, "@type": "sc:Dataset", "conformsTo": CONFORMS_TO, **described})
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _drop_empty(value: Node) -> Node:
    return {name: inner for name, inner in value.items() if inner not in (None, [], "")}


def build_creator_node(kind: str, name: str, url: str | None) -> Node:
    """Return the node of the dataset's creator. `kind` is `Organization` or `Person`."""
    return _drop_empty({"@type": f"sc:{kind}", "name": name, "url": url})


def build_source_node(name: str, *, license: str | None, url: str | None, citation: str | None) -> Node:
    """Return the node of a source from which the dataset was derived."""
    node = {"@type": "prov:Entity", "prov:label": name, "license": license, "url": url, "citeAs": citation}
    return _drop_empty(node)


def build_file_node(id: str, url: str, *, size: int, sha256: str, made_by: str) -> Node:
    """Return the node of one file.

    `id` is unique, `url` is relative to the Croissant file, and `made_by` names the step that wrote the file.
    """
    return {
        "@type": "cr:FileObject",
        "@id": id,
        "name": id,
        "contentUrl": url,
        "contentSize": f"{size} B",
        "encodingFormat": _FORMATS.get(PurePosixPath(url).suffix, _BYTES),
        "sha256": sha256,
        "prov:wasGeneratedBy": {"@type": "prov:Activity", "prov:label": made_by},
    }


def build_file_set_node(
    id: str, includes: str, description: str, *, encoding: str = _BYTES, contained_in: Sequence[str] = ()
) -> Node:
    """Return the node of a set of files that share a description.

    The files match the glob `includes`, which is relative to the Croissant file. If they have their own nodes,
    `contained_in` are the ids of these nodes.
    """
    node = {"@type": "cr:FileSet", "@id": id, "name": id, "description": description}
    union = [{"@id": name} for name in contained_in]
    return _drop_empty({**node, "containedIn": union, "encodingFormat": encoding, "includes": includes})


def build_records_node(id: str, description: str, source: Node, columns: Sequence[ParquetColumn]) -> Node:
    """Return the node of a source's rows. `source` is `{"fileObject": {"@id": …}}`, or `fileSet` for several files."""
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"{id}/{column.name}",
            "name": column.name,
            "description": column.about,
            "dataType": column.data_type,
            **({"isArray": True, "arrayShape": "-1"} if column.is_list else {}),
            "source": {**source, "extract": {"column": column.name}},
        }
        for column in columns
    ]
    return {"@type": "cr:RecordSet", "@id": id, "name": id, "description": description, "field": fields}
