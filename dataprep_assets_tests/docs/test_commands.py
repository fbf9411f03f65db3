"""`docs/commands.md` matches the command's current help completely."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from typer.main import get_command

from dataprep_assets import cli
from dataprep_assets.engine.artifact.losses import Action, Loss, LossTable
from dataprep_assets.engine.privacy import OPEN
from dataprep_assets.engine.staleness.downstream import AffectedArtifact
from dataprep_assets.engine.staleness.rebuild import RemainingRetractions
from dataprep_assets_tests.docs import commands, json_keys

GROUP: Any = get_command(cli.create_app())
# `dataprep` sets these variables only for its own processes.
INTERNAL = {"DATAPREP_PRELOAD"}


def test_the_page_is_up_to_date() -> None:
    assert commands.PAGE.read_text(encoding="utf-8") == commands.page(), "run `make docs-reference`"


def test_every_command_argument_and_option_is_on_the_page() -> None:
    text = commands.page()
    for name, command in GROUP.commands.items():
        section = text.partition(f"\n## dataprep {name}\n")[2].partition("\n## ")[0]
        options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
        assert options - set(re.findall(r"^\| `(--[\w-]+)", section, re.MULTILINE)) == set(), name
        assert section.count("\n| `") == len(command.params), name
        assert "```bash\ndataprep " in section, name
    assert {option for parameter in GROUP.params for option in parameter.opts if f"| `{option}" not in text} == set()


def test_the_documented_keys_of_losses_and_status_are_exactly_their_keys() -> None:
    loss = Loss(action="dropped", reason="short", count=1, of=2, unit="row", files={"a.jsonl": 1})
    (row,) = LossTable([loss], OPEN).to_json()
    assert row.keys() == json_keys.LOSSES.keys()
    assert all(f"`{action}`" in json_keys.LOSSES["action"] for action in get_args(Action))
    for path, writer in {"reaches[].": AffectedArtifact, "still_held[].": RemainingRetractions}.items():
        documented = {key.removeprefix(path) for key in json_keys.STATUS if key.startswith(path)}
        assert documented == {field.name for field in fields(writer)}


def test_every_environment_variable_of_the_source_is_on_the_page() -> None:
    source = [path for folder in ("dataprep_assets", "resources") for path in (commands.ROOT / folder).rglob("*.py")]
    names = {name for path in source for name in re.findall(r'"(DATAPREP_[A-Z_]+)"', Path(path).read_text("utf-8"))}
    text = commands.page().partition("## Environment")[2]
    assert len(names) > 10
    assert {name for name in names - INTERNAL if f"`{name}`" not in text} == set()
