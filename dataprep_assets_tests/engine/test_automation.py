"""The block `automation` in YAML, and invalid blocks, which are refused with the key, the value and the allowed
values.
"""

import json
import re
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.engine.yaml.automation import Automation, Email, EnvironmentVariable, parse_duration
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import ConfigError
from dataprep_assets.orchestration.sensors.automation import FailedCheck, Failure
from dataprep_assets_tests.messages import raises

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "automate.md").read_text()

EMAIL = {"host": "mail.example.org", "from": "data@example.org", "to": ["a@example.org"]}


def automation(**keys: Any) -> Automation:
    found = validate_declaration(
        DatasetDeclaration, {"dataset": "mine", "automation": keys}, Path("mine/defs.yaml")
    ).automation
    assert found is not None
    return found


def test_nothing_is_automated_by_default() -> None:
    assert DatasetDeclaration(dataset="mine").automation is None


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("36h", 129_600), ("2d", 172_800), ("45s", 45)])
def test_durations_are_parsed(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds
    assert automation(on_new_files=text).interval == seconds
    assert automation(on_new_files=text).crons == {}


def test_a_complete_block_is_parsed() -> None:
    found = automation(
        on_new_files="*/10  * * * *",
        schedule="0 3 * * 1",
        timezone="Europe/Berlin",
        freshness="36h",
        on_failure={"webhook": {"env": "HOOK"}, "email": {**EMAIL, "user": {"env": "U"}, "password": {"env": "P"}}},
    )
    assert found.crons == {"on_new_files": "*/10 * * * *", "schedule": "0 3 * * 1"}
    assert (found.interval, found.window) == (None, timedelta(hours=36))
    assert found.on_failure is not None
    assert found.on_failure.webhook == EnvironmentVariable(env="HOOK")


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        (
            {"on_new_files": "10 minutes"},
            ("automation.on_new_files", "10m", "36h", "'10 minutes'"),
        ),
        ({"on_new_files": "2s"}, ("automation.on_new_files", "5s", "'2s'")),
        ({"schedule": "10m"}, ("automation.schedule", "'10m'")),
        ({"freshness": "0 3 * * 1"}, ("automation.freshness", "'0 3 * * 1'")),
        ({"freshness": "30s"}, ("automation.freshness", "60s", "'30s'")),
        ({"timezone": "Berlin"}, ("automation.timezone", "Europe/Berlin", "'Berlin'")),
        ({"on_new_file": "10m"}, ("automation.on_new_file", "`on_new_files`")),
        ({"on_failure": {}}, ("automation.on_failure", "`webhook`", "`email`")),
        ({"on_failure": {"email": {**EMAIL, "to": ["nobody"]}}}, ("email.to", "'nobody'")),
        ({"on_failure": {"email": {**EMAIL, "user": {"env": "U"}}}}, ("user", "password")),
        (
            {"on_failure": {"email": {**EMAIL, "tls": "none", "user": {"env": "U"}, "password": {"env": "P"}}}},
            ("unencrypted",),
        ),
    ],
)
def test_an_invalid_block_is_refused(keys: dict[str, Any], values: tuple[str, ...]) -> None:
    with raises(ConfigError, *values) as refused:
        automation(**keys)
    assert str(refused.value).startswith("mine/defs.yaml: automation")


@pytest.mark.parametrize(
    "on_failure",
    [{"webhook": "hooks.example.org/S3CRET"}, {"email": {**EMAIL, "user": {"env": "U"}, "password": "S3CRET"}}],
)
def test_a_secret_in_a_wrong_form_is_not_repeated(on_failure: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        automation(on_failure=on_failure)
    assert "S3CRET" not in str(refused.value)


def test_the_page_shows_the_payload_of_a_webhook() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    shown = json.loads(block)
    assert list(shown) == ["text", *(field.name for field in fields(Failure))]
    assert [list(check) for check in shown["failed_checks"]] == [[field.name for field in fields(FailedCheck)]]


@pytest.mark.parametrize("scaffold", sorted((ROOT / "dataprep_assets" / "pipelines").glob("*/*.scaffold.yaml")))
def test_every_scaffold_lists_every_key_and_is_valid_without_its_comments(scaffold: Path) -> None:
    text = scaffold.read_text()
    block = re.search(r"^  # automation:.*?(?=^  # card:|\Z)", text, re.DOTALL | re.MULTILINE)
    assert block is not None
    plain = re.sub(r"^  # ?", "  ", block[0], flags=re.MULTILINE)
    found = Automation.model_validate(yaml.safe_load(plain)["automation"])
    # A training schedule has no source of its own to watch.
    unlisted = {"on_new_files"} if "TrainingSchedule" in text else set()
    assert found.model_fields_set == set(Automation.model_fields) - unlisted
    assert found.on_failure is not None
    assert found.on_failure.email is not None
    for name, field in Email.model_fields.items():
        assert f"{field.alias or name}:" in block[0]
