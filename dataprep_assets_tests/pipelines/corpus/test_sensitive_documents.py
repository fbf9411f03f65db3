"""Taggers of sensitive documents: what they print or give, and the counts of what rules drop, tell nothing."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.privacy import OPEN, Privacy
from dataprep_assets.engine.trace.document_table import Drops, RuleDrops
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.coast import Coast, records, write_lines

pytestmark = pytest.mark.slow
MARK = "wellenbrecher"
PRINTS = f"""
import os
import sys

def quality(documents):
    texts = documents["text"].to_pylist()
    print(texts[0], flush=True)
    print(texts[0], file=sys.stderr)
    os.write(1, texts[0].encode())
    assert {MARK!r} in texts[0]
    return {{"quality": [float(len(text)) for text in texts]}}
"""
OTHER_COLUMNS = """
def quality(documents):
    return {text: [1.0] for text in documents["text"].to_pylist()}
"""
COPIES = """
import shutil, sys
shutil.copyfile(sys.argv[1], sys.argv[2])
print(open(sys.argv[1], "rb").read())
sys.exit(3)
"""
COMMAND: dict[str, Any] = {
    "name": "copies",
    "command": [sys.executable, "copies.py", "{input}", "{output}"],
    "columns": {"copied": "number"},
    "version": "1",
}


@pytest.fixture
def coast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Coast:
    monkeypatch.setenv("DOCUMENT_KEY", "k" * 40)
    coast = Coast(tmp_path / "coast")
    for name, first in (("a", 1), ("b", 101), ("c", 201)):
        lines = [{"text": f"{MARK} {one['text']}", "score": one["meta"]["score"]} for one in records(first, "books")]
        write_lines(coast.folder / f"data/train/{name}.jsonl", lines)
    return coast


def declare(coast: Coast, **changes: Any) -> None:
    document = {"separator": "<|endoftext|>", "id_key": {"env": "DOCUMENT_KEY"}, "keep_fields": {"score": "number"}}
    coast.declare(**{"sensitive": True, "document": document, "keep": None, **changes})


def test_nothing_that_a_tagger_prints_gives_or_leaves_is_a_text(coast: Coast) -> None:
    said = []
    coast.tagger(PRINTS)
    declare(coast)
    said.append(coast("run", "pages"))
    coast.tagger(OTHER_COLUMNS)
    said.append(coast("run", "pages", code=1))
    assert "TaggingError. Run `dataprep show --private pages`" in said[-1]
    (coast.folder / "copies.py").write_text(COPIES)
    declare(coast, tag=[COMMAND], drop=None)
    said.append(coast("run", "pages", code=1))
    assert "TaggingError. Run `dataprep show --private pages`" in said[-1]
    assert MARK not in "".join(said)
    of_source = {path.read_bytes() for path in coast.folder.rglob("*.jsonl")}
    files = (path for path in coast.root.parent.rglob("*") if path.is_file())
    holding = {path: data for path in files if MARK.encode() in (data := path.read_bytes())}
    assert [path for path, data in holding.items() if data not in of_source] == []
    assert not [*coast.root.parent.rglob("given-*"), *coast.root.parent.rglob("made-*")]


def test_a_tagger_may_have_any_name_beside_a_command(coast: Coast) -> None:
    coast.tagger("def made(documents):\n    return {'quality': [1.0] * documents.num_rows}\n")
    (coast.folder / "copies.py").write_text(COPIES.replace("sys.exit(3)", ""))
    tag = [{"function": "coast.taggers:made", "columns": {"quality": "number"}}]
    declare(coast, tag=[*tag, {**COMMAND, "columns": {"score": "number"}, "name": "given"}], drop=None)
    assert_names(coast("run", "pages", code=2), "'score'")
    document = {"separator": "<|endoftext|>", "id_key": {"env": "DOCUMENT_KEY"}}
    declare(
        coast, tag=[*tag, {**COMMAND, "columns": {"bytes_": "integer"}, "name": "given"}], document=document, drop=None
    )
    (coast.folder / "copies.py").write_text(
        "import sys\nimport pyarrow.parquet as pq\n"
        "t = pq.read_table(sys.argv[1])\n"
        "pq.write_table(t.select(['file', 'row']).append_column('bytes_', t['bytes']), sys.argv[2])\n"
    )
    coast("run", "pages")
    assert coast.table().column_names[-6:-4] == ["quality", "bytes_"]
    assert coast.table()["bytes_"].to_pylist() == coast.table()["bytes"].to_pylist()


def test_no_share_tells_a_count_that_is_not_shown(coast: Coast) -> None:
    coast.tagger("def quality(documents):\n    return {'quality': [1.0] * documents.num_rows}\n")
    declare(coast, drop={"few": "score < 0.5", "many": "score < 11"})
    coast("run", "pages")
    lines = coast("documents", "pages").splitlines()
    row = next(line.split() for line in lines if line.startswith("few"))
    assert row == ["few", "<", "11", "score", "<", "0.5"], "neither its share, nor bytes"
    assert "few: by source: train < 11" in lines
    assert next(line.split() for line in lines if line.startswith("many"))[:2] == ["many", "30"]
    asked = json.loads(coast("documents", "pages", "--json"))
    few, many = asked["rules"]
    assert (few["documents"], few["bytes"], few["by_source"]) == ("< 11", "withheld", {"train": "< 11"})
    assert (many["documents"], many["by_source"]) == (30, {"train": 30})
    assert "few" in coast("run", "pages", "--dry-run")


def test_a_small_count_hides_those_that_would_tell_it_as_a_difference() -> None:
    one = RuleDrops(rule="r", drops="x", documents=20, bytes=9, by_source={"files": 17, "row": 3})
    drops = Drops(documents=95, bytes=99, sources={"files": 95, "row": 30}, rules=[one])
    cells = Privacy(closed=True, dataset="d")
    assert "r: by source: files withheld, row < 11" in list(drops.lines(cells))
    assert drops.to_json(cells)["rules"][0]["by_source"] == {"files": "withheld", "row": "< 11"}
    assert "r: by source: files 17 (17.9%), row 3 (10.0%)" in list(drops.lines(OPEN))
    assert drops.to_json(OPEN)["rules"][0]["by_source"] == {"files": 17, "row": 3}
