"""Croissant 1.1, the JSON-LD that describes a dataset for machines: written, and read back for defects.

The facts are those of the specification (mlcommons/croissant, its page croissant-spec-1.1): its required properties,
its context (appendix 1, with the `https` spelling of schema.org that its example datasets and `mlcroissant` use), and
its advice to tell provenance with PROV-O. See docs/data-cards.md.

Entry points: `Description`, `to_bytes`, `defects`.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from dataprep_assets.bounds import json_of

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
"""What `mlcroissant` reads as Parquet."""
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
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class DescribedFile:
    """One file: `id` is unique, `url` relative to the Croissant file, `made_by` names the step that wrote it."""

    id: str
    url: str
    bytes: int
    sha256: str
    made_by: str


@dataclass(frozen=True, kw_only=True)
class DescribedFiles:
    """Files that are described together: those that the glob `includes` names, relative to the Croissant file.

    `contained_in` are the ids of single files whose union they are, where these are described as well.
    """

    id: str
    includes: str
    about: str
    encoding: str = "application/octet-stream"
    contained_in: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of Parquet. `is_list`: every value is a list, of any length."""

    name: str
    about: str
    data_type: str = "sc:Integer"
    is_list: bool = True


@dataclass(frozen=True, kw_only=True)
class DescribedRecords:
    """The rows of a file, or of a set of files (`several`), named `source`."""

    id: str
    about: str
    source: str
    several: bool
    columns: Sequence[Column]


@dataclass(frozen=True, kw_only=True)
class DescribedSource:
    """What the dataset was derived from."""

    name: str
    license: str | None = None
    url: str | None = None
    citation: str | None = None


@dataclass(frozen=True, kw_only=True)
class Description:
    """Everything that the file says. None and empty values were not declared, and are left out.

    `licenses` are URLs or words, `creators` triples of kind (`Organization` or `Person`), name and URL, `published` is
    an ISO date.
    """

    name: str
    description: str
    licenses: Sequence[str] = ()
    url: str | None = None
    creators: Sequence[tuple[str, str, str | None]] = ()
    published: str | None = None
    version: str | None = None
    cite_as: str | None = None
    sources: Sequence[DescribedSource] = ()
    files: Sequence[DescribedFile] = ()
    sets: Sequence[DescribedFiles] = ()
    records: Sequence[DescribedRecords] = ()


def encoding_format(path: str) -> str:
    """The media type of a file, by its name; bytes of a format of their own are `application/octet-stream`."""
    return _FORMATS.get(PurePosixPath(path).suffix, "application/octet-stream")


def to_bytes(described: Description) -> bytes:
    """Serialize a description; equal descriptions give equal bytes."""
    value = _set(
        {
            "@context": CONTEXT,
            "@type": "sc:Dataset",
            "name": described.name,
            "description": described.description,
            "conformsTo": CONFORMS_TO,
            "license": list(described.licenses),
            "url": described.url,
            "creator": [
                _set({"@type": f"sc:{kind}", "name": name, "url": url}) for kind, name, url in described.creators
            ],
            "datePublished": described.published,
            "version": described.version,
            "citeAs": described.cite_as,
            "prov:wasDerivedFrom": [_source(source) for source in described.sources],
            "distribution": [*map(_file, described.files), *map(_file_set, described.sets)],
            "recordSet": [_records(records) for records in described.records],
        }
    )
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _set(value: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping without None and empty values."""
    return {name: inner for name, inner in value.items() if inner not in (None, [], "")}


def _source(source: DescribedSource) -> dict[str, Any]:
    return _set(
        {
            "@type": "prov:Entity",
            "prov:label": source.name,
            "license": source.license,
            "url": source.url,
            "citeAs": source.citation,
        }
    )


def _file(file: DescribedFile) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": file.id,
        "name": file.id,
        "contentUrl": file.url,
        "contentSize": f"{file.bytes} B",
        "encodingFormat": encoding_format(file.url),
        "sha256": file.sha256,
        "prov:wasGeneratedBy": {"@type": "prov:Activity", "prov:label": file.made_by},
    }


def _file_set(files: DescribedFiles) -> dict[str, Any]:
    return _set(
        {
            "@type": "cr:FileSet",
            "@id": files.id,
            "name": files.id,
            "description": files.about,
            "containedIn": [{"@id": name} for name in files.contained_in],
            "encodingFormat": files.encoding,
            "includes": files.includes,
        }
    )


def _records(records: DescribedRecords) -> dict[str, Any]:
    origin = {"fileSet" if records.several else "fileObject": {"@id": records.source}}
    return {
        "@type": "cr:RecordSet",
        "@id": records.id,
        "name": records.id,
        "description": records.about,
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{records.id}/{column.name}",
                "name": column.name,
                "description": column.about,
                "dataType": column.data_type,
                **({"isArray": True, "arrayShape": "-1"} if column.is_list else {}),
                "source": {**origin, "extract": {"column": column.name}},
            }
            for column in records.columns
        ],
    }


def defects(data: bytes) -> Iterator[str]:
    """Why a file is not valid Croissant 1.1, one sentence for each defect.

    Properties that only the declaration can provide (license, creator, date, page) are not required.
    """
    try:
        value = json_of(data)
    except ValueError as error:
        yield f"{NAME}: not JSON: {error}"
        return
    if not isinstance(value, dict):
        yield f"{NAME}: not an object"
        return
    yield from _wrong_head(value)
    ids: set[str] = set()
    for node in [*value.get("distribution", ()), *value.get("recordSet", ())]:
        name = str(node.get("@id"))
        if name in ids:
            yield f"{NAME}: the id {name} occurs twice"
        ids.add(name)
        yield from _wrong_node(node, name)
    for name in sorted(_references(value) - ids):
        yield f"{NAME}: it refers to {name}, which it does not describe"


def _wrong_head(value: Mapping[str, Any]) -> Iterator[str]:
    if value.get("conformsTo") != CONFORMS_TO:
        yield f"{NAME}: it conforms to {value.get('conformsTo')}, not {CONFORMS_TO}"
    if value.get("@context") != CONTEXT:
        yield f"{NAME}: its context is not that of Croissant 1.1"
    for name in ("name", "description", "distribution"):
        if not value.get(name):
            yield f"{NAME}: without {name}"


def _wrong_node(node: Mapping[str, Any], name: str) -> Iterator[str]:
    kind = node.get("@type")
    needed = {
        "cr:FileObject": ("contentUrl", "contentSize", "encodingFormat", "sha256"),
        "cr:FileSet": ("includes", "encodingFormat"),
        "cr:RecordSet": ("field",),
    }.get(str(kind))
    if needed is None:
        yield f"{NAME}: {name} is a {kind}"
        return
    for key in needed:
        if not node.get(key):
            yield f"{NAME}: {name} has no {key}"
    if kind == "cr:FileObject" and not _SHA256.fullmatch(str(node.get("sha256"))):
        yield f"{NAME}: the sha256 of {name} is not 64 hex digits"
    if str(node.get("contentUrl", "")).startswith("/"):
        yield f"{NAME}: the place of {name} is absolute"


def _references(value: Any) -> set[str]:
    """The ids of all references: `{"@id": …}` without other keys."""
    if isinstance(value, dict):
        if set(value) == {"@id"}:
            return {str(value["@id"])}
        return set().union(*(_references(inner) for name, inner in value.items() if name != "@context"))
    if isinstance(value, list):
        return set().union(*(_references(inner) for inner in value))
    return set()
