"""A file that changed after its migration is found, a copy and (behind a link) its source."""

import re
from dataclasses import replace
from pathlib import Path

from dataprep_assets_tests.pipelines.tasks.trees import edit, project, prove, put


def test_a_change_after_the_migration_is_found(tmp_path: Path) -> None:
    old = project(tmp_path)
    declaration = old.declared({"Copa": {"mode": "symlink", "version": "latest"}, "CB": {}})
    done = old.migrate(declaration)
    copa, cb = (old.folder(declaration, done[task]) for task in ("Copa", "CB"))
    assert prove(copa) == {}
    assert prove(cb) == {}
    edit(old.old / "Copa/mezo_gpt/version_10-1/copa_train.jsonl", put(1, premise="Another premise."))
    found = prove(replace(copa))
    assert set(found) == {"as_migrated"}
    assert re.search(r"sha256 \w{12}…, linked from .*/version_10-1/copa_train.jsonl was \w{12}…", found["as_migrated"])
    train = cb.folder / "cb_train.jsonl"
    kept = train.rename(train.with_name("kept"))
    train.symlink_to("kept")
    assert "cb_train.jsonl: was copied, and is a link now" in prove(replace(cb))["as_migrated"]
    kept.unlink()
    assert "and is not a file now" in prove(replace(cb))["as_migrated"]
