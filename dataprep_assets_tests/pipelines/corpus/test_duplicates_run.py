"""Deduplication in a `dataprep init` project: the commands' output, and the effects of a retraction."""

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets_tests.curation.signed import draw_page, replace_one
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.coast import Coast, write_lines

pytest.importorskip("rensa", reason="the extra `duplicates`")
pytestmark = pytest.mark.slow


class Pages(Coast):
    """A corpus of two files with one shard each: pages, and versions of ten of them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        shutil.rmtree(self.folder / "data")
        draw = random.Random(1)
        pages = [draw_page(draw) for _ in range(30)]
        write_lines(self.folder / "data/train/a.jsonl", [{"text": " ".join(one)} for one in pages])
        versions = [{"text": " ".join(replace_one(one, draw))} for one in pages[:10]]
        write_lines(self.folder / "data/train/b.jsonl", [*versions, "{no json"])
        self.declare()

    def declare(self, **changes: Any) -> None:
        nothing = {"tag": None, "keep": None, "drop": None, "document": {"separator": "<|endoftext|>"}}
        super().declare(**{**nothing, "duplicates": {}, **changes})


def test_a_run_drops_duplicates_and_a_retraction_reports_the_returning_ones(tmp_path: Path) -> None:
    pages = Pages(tmp_path / "coast")
    assert "no errors found" in pages("check", "pages")
    pages("run", "pages")
    rows = pages.table().to_pylist()
    assert Counter(row["reason"] for row in rows) == {None: 30, "duplicate": 10, "bad_json": 1}
    at = {f"{row['file']}:{row['row']}": row for row in rows}
    gone = [row for row in rows if row["reason"] == "duplicate"]
    assert all(at[row["representative"]]["kept"] and row["similarity"] > 0.9 for row in gone)
    assert all(row["representative"] is None for row in rows if row["reason"] != "duplicate")
    ledgers = [pages.receipt("token_bins", name).ledger for name in pages.made("token_bins")]
    assert sum(one.dropped.get("selection", 0) for one in ledgers if one is not None) == 10
    assert len(pages("documents", "pages", "--reason", "duplicate", "--csv").splitlines()) == 11
    (told,) = json.loads(pages("documents", "pages", "--json"))["rules"]
    assert (told["rule"], told["documents"], told["bytes"]) == ("duplicate", 10, sum(row["bytes"] for row in gone))
    assert told["examples"] == [f"{row['file']}:{row['row']}" for row in gone]
    said = pages("trace", "pages", "--file", gone[0]["file"], "--row", str(gone[0]["row"]), code=1)
    assert_names(said, gone[0]["representative"], f"{gone[0]['similarity']:.1%}")
    assert "everything is up to date" in pages("run", "pages")
    ids = pages.root / "ids.txt"
    ids.write_text(gone[0]["representative"] + "\n")
    said = pages("retract", "pages", "--ids", str(ids))
    assert_names(said, "1 document", "returns")
    pages("run", "pages")
    after = {f"{row['file']}:{row['row']}": row for row in pages.table().to_pylist()}
    assert after[f"{gone[0]['file']}:{gone[0]['row']}"]["kept"]
    assert after[gone[0]["representative"]]["reason"] == "retracted"
    assert (
        json.loads(pages("documents", "pages", "--reason", "retracted", "--json"))["row"]
        == at[gone[0]["representative"]]["row"]
    )
