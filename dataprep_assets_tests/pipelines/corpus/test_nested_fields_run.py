"""A corpus whose text and id are inside an object, in files of three formats: built, listed, traced and checked."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.coast import Coast, records


def test_a_corpus_of_three_formats_is_built_by_fields_inside_an_object(tmp_path: Path) -> None:
    coast = Coast(tmp_path / "coast")
    data = coast.folder / "data" / "train"
    for path in data.iterdir():
        path.unlink()
    rows = {
        first: [
            {"data": {"text": one["text"], "id": f"page-{first + at}", "lang": "en", "html": "<p>"}, "wide": "x"}
            for at, one in enumerate(records(first, "books", 8))
        ]
        for first in (1, 101, 201)
    }
    (data / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[1]))
    pq.write_table(pa.Table.from_pylist(rows[101]), data / "b.parquet")
    table = pa.Table.from_pylist(rows[201])
    with pa.OSFile(str(data / "c.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    policy = {"separator": "<|endoftext|>", "id_field": "data.id", "keep_fields": {"data.lang": "string"}}
    declared = {"include": ["**/*"], "document": policy, "tag": None, "keep": None, "drop": None}
    coast.declare(**declared, text_field="data.txt")
    told = coast("check", "pages", code=2)
    assert "b.parquet" in told
    assert_names(told, "'data'", "text", "id", "lang", "html")
    coast.declare(**declared, text_field="data.text")
    assert "no errors found" in coast("check", "pages")
    coast("run", "pages")
    listed = [json.loads(line) for line in coast("documents", "pages", "--where", "kept", "--json").splitlines()]
    assert [(one["file"][-7:].rpartition("/")[2], one["row"], one["data_lang"]) for one in listed] == [
        (name, row, "en") for name in ("a.jsonl", "parquet", "c.arrow") for row in range(1, 9)
    ]
    for id_, file in (("page-3", "a.jsonl"), ("page-104", "b.parquet"), ("page-208", "c.arrow")):
        (found,) = [json.loads(line) for line in coast("trace", "pages", "--id", id_, "--json").splitlines()]
        assert found["file"].endswith(file)
    # The bytes of the row are shown only if the nested id in the row equals the id in the index.
    assert "bytes" in coast("trace", "pages", "--id", "page-3")
