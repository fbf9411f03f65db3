"""Where the files of each partition come from and where they go, for every way to choose a version."""

import shlex
import shutil
import subprocess

import pytest

from dataprep_assets.errors import ConfigError, SourceError
from dataprep_assets.pipelines.tasks.migration import migrate_task
from dataprep_assets.pipelines.tasks.routes import partitions, route_of, task_line
from dataprep_assets_tests.pipelines.tasks.trees import TRAIN, Project
from dataprep_assets_tests.tools.sample.make_sample_tasks import VERSIONS


def test_all_puts_every_version_where_the_loader_accepts_it(tree: Project) -> None:
    declaration = tree.declared({"Copa": {"version": "all"}, "RTE": {}})
    assert partitions(declaration) == [*(f"Copa.{v}" for v in VERSIONS), "RTE"]
    tree.migrate(declaration)
    for version in VERSIONS:
        folder = tree.new / "versions" / version / "Copa"
        assert route_of(declaration, f"Copa.{version}").target == folder
        assert tree.faults(declaration, f"Copa.{version}") == {}
        train = tree.old / "Copa/mezo_gpt" / version / TRAIN
        assert (folder / TRAIN).read_bytes() == train.read_bytes()


def test_the_task_line_is_what_a_shell_reads(tree: Project) -> None:
    plain = route_of(tree.declared(), "CB")
    assert task_line(plain.target) == f"TASK={tree.new}/CB"
    spaced = route_of(tree.declared(new_root="new one's"), "CB")
    read = subprocess.run(
        ["sh", "-c", f'{task_line(spaced.target)}; printf %s "$TASK"'], capture_output=True, check=True
    )
    assert read.stdout.decode() == str(spaced.target)
    assert not str(spaced.target).endswith("/")
    assert shlex.split(task_line(spaced.target)) == [f"TASK={spaced.target!s}"]


def test_an_old_folder_of_another_name_and_versions_beside_it(tree: Project) -> None:
    (tree.old / "Copa").rename(tree.old / "COPA_old")
    (tree.old / "COPA_old/main_exp").mkdir()
    shutil.copy(tree.old / "COPA_old" / TRAIN, tree.old / "COPA_old/main_exp")
    task = {"old_folder": "COPA_old", "versions_in": ".", "version": "main_exp"}
    record = tree.migrate(tree.declared({"Copa": task}))["Copa"].record
    assert record.files[0].source.endswith("COPA_old/main_exp/copa_train.jsonl")
    assert (tree.new / "Copa" / TRAIN).is_file()


def test_a_version_that_is_not_there_is_told_with_those_that_are(tree: Project) -> None:
    with pytest.raises(
        ConfigError, match=r"tasks.Copa.version: version_3: unknown version. Available: version_1, version_9-2, v"
    ):
        tree.migrate(tree.declared({"Copa": {"version": "version_3"}}))
    with pytest.raises(SourceError, match=r"tasks\.CB\.version: latest: .*mezo_gpt does not exist; .*CB has no folder"):
        tree.migrate(tree.declared({"CB": {"version": "latest"}}))
    with pytest.raises(ConfigError, match=r"unknown task .*Available: CB"):
        route_of(tree.declared({"CB": {}}), "Copa")


def test_a_task_without_versions_holds_up_no_other(tree: Project) -> None:
    declaration = tree.declared({"CB": {"version": "all"}, "Copa": {"version": "all"}})
    assert partitions(declaration) == ["CB", *(f"Copa.{v}" for v in VERSIONS)]
    with pytest.raises(SourceError, match=r"tasks.CB.version: all"):
        migrate_task(declaration, tree.store, "CB")
    assert migrate_task(declaration, tree.store, "Copa.version_1").placed
    with pytest.raises(
        ConfigError, match=r"Copa.version_77: the versions of Copa are now version_1, .*Reload the definitions"
    ):
        migrate_task(declaration, tree.store, "Copa.version_77")
