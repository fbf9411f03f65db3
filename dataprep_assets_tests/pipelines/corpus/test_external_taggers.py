"""Taggers that are another tool: datatrove's filter and a Ray job as commands, and a Dagster asset, in one project."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dataprep_assets_tests import forked
from dataprep_assets_tests.cli.commands import environment
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.coast import Coast, records, write_lines

pytestmark = pytest.mark.slow
DATATROVE = '''"""Whether datatrove's C4 filter keeps a document: a command that reads and writes Parquet."""

import sys

import pyarrow.parquet as pq
from datatrove.data import Document
from datatrove.pipeline.filters import C4QualityFilter

table = pq.read_table(sys.argv[1])
judge = C4QualityFilter(min_num_sentences=-1)  # sentences would want spaCy
kept = [judge.filter(Document(text=text, id="0")) is True for text in table["text"].to_pylist()]
pq.write_table(table.select(["file", "row"]).append_column("c4_keeps", [kept]), sys.argv[2])
'''
RAY = '''"""The number of letters of each document, counted by tasks of a Ray cluster."""

import os
import sys

os.environ["RAY_raylet_start_wait_time_s"] = "300"  # on a busy machine

import pyarrow as pa
import pyarrow.parquet as pq
import ray


@ray.remote
def letters(texts):
    return [sum(map(str.isalpha, text)) for text in texts]


ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
table = pq.read_table(sys.argv[1])
texts = table["text"].to_pylist()
found = ray.get([letters.remote(texts[at : at + 8]) for at in range(0, len(texts), 8)])
column = pa.array([one for part in found for one in part], pa.int64())
pq.write_table(table.select(["row", "file"]).append_column("letters", column)[::-1], sys.argv[2])
'''
ASSET = '''"""An asset that scores documents: it reads what it likes, and leaves Parquet files by file and row."""

import json
import os
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq

DATA = Path(__file__).parent / "pages" / "data"


@dg.asset(key=["team", "scores"])
def scores(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    folder = DATA.parents[3] / "scores" / context.run_id
    folder.mkdir(parents=True)
    factor, only = (DATA.parents[3] / "factor.txt").read_text().split()
    for path in sorted(DATA.rglob("*.jsonl"))[: int(os.environ.get("FILES", "9"))]:
        lines = path.read_text().splitlines()
        rows = [number for number, line in enumerate(lines, 1) if line.startswith('{"text"')]
        times = float(factor) if path.stem in only else 1.0
        values = [times * json.loads(lines[row - 1])["meta"]["score"] for row in rows]
        file = path.relative_to(DATA).as_posix()
        table = pa.table({"file": [file] * len(rows), "row": rows, "score": values})
        pq.write_table(table, folder / f"{path.stem}.parquet")
    return dg.MaterializeResult(metadata={"path": dg.MetadataValue.path(str(folder))})
'''


def command(name: str, script: str, column: str, kind: str) -> dict[str, Any]:
    """A command that runs a script beside the declaration."""
    return {
        "name": name,
        "command": [sys.executable, script, "{input}", "{output}"],
        "columns": {column: kind},
        "version": "1",
    }


def materialize(coast: Coast, **variables: str) -> None:
    """Materialize the asset, as a person does."""
    env = {**os.environ, **environment(coast.root.parent), "PYTHONPATH": str(coast.root), **variables}
    Path(env["DAGSTER_HOME"]).mkdir(exist_ok=True)
    words = ["-m", "dagster", "asset", "materialize", "--select", "team/scores", "-m", "coast.definitions"]
    done = forked.run(words, cwd=coast.root, env=env)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture
def coast(tmp_path: Path) -> Coast:
    found = Coast(tmp_path / "coast")
    write_lines(found.folder / "data/train/b.jsonl", records(101, "news"))
    return found


def test_filters_of_datatrove_and_tasks_of_ray_give_columns_that_rules_read(coast: Coast) -> None:
    if missing := [name for name in ("datatrove", "ray") if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{missing[0]} is not installed")
    (coast.folder / "with_datatrove.py").write_text(DATATROVE)
    (coast.folder / "with_ray.py").write_text(RAY)
    tools = [
        command("datatrove", "with_datatrove.py", "c4_keeps", "boolean"),
        command("ray", "with_ray.py", "letters", "integer"),
    ]
    (coast.folder / "data/train/c.jsonl").unlink()
    write_lines(
        coast.folder / "data/train/a.jsonl", [*records(1, "books", 5), {"text": "A brace { is code. Not text."}]
    )
    coast.declare(
        tag=tools,
        keep={"clean": "c4_keeps"},
        drop={"short": "letters < 60"},
        document={"separator": "<|endoftext|>"},
        shards={"count": 1},  # use one shard, so that all tools run in the same cluster
    )
    coast("run", "pages")
    rows = coast.table().to_pylist()
    assert len(rows) == 26
    (braced,) = [row for row in rows if row["file"] == "train/a.jsonl" and row["row"] == 6]
    assert (braced["c4_keeps"], braced["letters"], braced["reason"]) == (False, 19, "clean")
    assert {row["reason"] for row in rows} == {None, "clean", "short"}


def test_the_files_of_an_asset_are_columns_and_only_other_values_tag_again(coast: Coast) -> None:
    (coast.root / "coast" / "defs" / "scoring.py").write_text(ASSET)
    factor = coast.root / "factor.txt"
    factor.write_text("1 abc")
    coast.declare(
        tag=[{"asset": ["team", "scores"], "columns": {"score": "number"}}], keep=None, drop={"low": "score < 1"}
    )
    assert "team/scores was never materialized" in coast("run", "pages", code=2)
    materialize(coast, FILES="2")
    said = coast("run", "pages", code=1)
    assert_names(said, "train/c.jsonl", "row 1")
    materialize(coast)
    coast("run", "pages")
    table = coast.table()
    assert table["score"].to_pylist() == table["meta_score"].to_pylist()
    assert table.filter(~table["kept"].to_numpy())["row"].to_pylist() == [*range(1, 10)]
    # Rebuilding the asset in another folder tags nothing. Changing the values of one file rebuilds the tags and the
    # stream of the file's shard.
    tags, bins = coast.made("tags"), coast.made("token_bins")
    materialize(coast)
    assert "everything is up to date" in coast("run", "pages")
    factor.write_text("2 a")
    materialize(coast)
    assert "tags_train" in coast("status", "pages", code=1)
    coast("run", "pages")
    assert [name for name, when in coast.made("tags").items() if tags[name] != when] == ["train-00000"]
    assert [name for name, when in coast.made("token_bins").items() if bins[name] != when] == ["train-00000"]
    found = pq.read_table(coast.root.parent / "artifacts/pages/documents/train-00000/documents.parquet")
    assert found["score"].to_pylist() == [2 * one for one in found["meta_score"].to_pylist()]
