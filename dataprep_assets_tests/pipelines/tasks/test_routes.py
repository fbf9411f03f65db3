"""The source and destination of each partition's files, for every way to select a version."""

import shlex
import shutil
import subprocess

from dataprep_assets.errors import ConfigError, SourceError
from dataprep_assets.pipelines.tasks.migration import migrate_task
from dataprep_assets.pipelines.tasks.routes import find_route, format_task_line, list_partitions
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.tasks.trees import TRAIN, Project
from dataprep_assets_tests.tools.sample.make_sample_tasks import VERSIONS


def test_all_puts_every_version_where_the_loader_accepts_it(tree: Project) -> None:
    declaration = tree.declared({"Copa": {"version": "all"}, "RTE": {}})
    assert list_partitions(declaration) == [*(f"Copa.{v}" for v in VERSIONS), "RTE"]
    tree.migrate(declaration)
    for version in VERSIONS:
        folder = tree.new / "versions" / version / "Copa"
        assert find_route(declaration, f"Copa.{version}").target == folder
        assert tree.faults(declaration, f"Copa.{version}") == {}
        train = tree.old / "Copa/mezo_gpt" / version / TRAIN
        assert (folder / TRAIN).read_bytes() == train.read_bytes()


def test_the_task_line_can_be_parsed_by_a_shell(tree: Project) -> None:
    plain = find_route(tree.declared(), "CB")
    assert format_task_line(plain.target) == f"TASK={tree.new}/CB"
    spaced = find_route(tree.declared(new_root="new one's"), "CB")
    read = subprocess.run(
        ["sh", "-c", f'{format_task_line(spaced.target)}; printf %s "$TASK"'], capture_output=True, check=True
    )
    assert read.stdout.decode() == str(spaced.target)
    assert not str(spaced.target).endswith("/")
    assert shlex.split(format_task_line(spaced.target)) == [f"TASK={spaced.target!s}"]


def test_an_old_folder_may_have_another_name_with_versions_next_to_it(tree: Project) -> None:
    (tree.old / "Copa").rename(tree.old / "COPA_old")
    (tree.old / "COPA_old/main_exp").mkdir()
    shutil.copy(tree.old / "COPA_old" / TRAIN, tree.old / "COPA_old/main_exp")
    task = {"old_folder": "COPA_old", "versions_in": ".", "version": "main_exp"}
    record = tree.migrate(tree.declared({"Copa": task}))["Copa"].record
    assert record.files[0].source.endswith("COPA_old/main_exp/copa_train.jsonl")
    assert (tree.new / "Copa" / TRAIN).is_file()


def test_a_missing_version_is_reported_with_the_available_ones(tree: Project) -> None:
    with raises(ConfigError, "tasks.Copa.version", "version_3", "version_1, version_9-2"):
        tree.migrate(tree.declared({"Copa": {"version": "version_3"}}))
    with raises(SourceError, "tasks.CB.version", "latest", "mezo_gpt"):
        tree.migrate(tree.declared({"CB": {"version": "latest"}}))
    with raises(ConfigError, "CB"):
        find_route(tree.declared({"CB": {}}), "Copa")


def test_a_task_without_versions_does_not_block_others(tree: Project) -> None:
    declaration = tree.declared({"CB": {"version": "all"}, "Copa": {"version": "all"}})
    assert list_partitions(declaration) == ["CB", *(f"Copa.{v}" for v in VERSIONS)]
    with raises(SourceError, "tasks.CB.version", "all"):
        migrate_task(declaration, tree.store, "CB")
    assert migrate_task(declaration, tree.store, "Copa.version_1").placed
    with raises(ConfigError, "Copa.version_77", "version_1"):
        migrate_task(declaration, tree.store, "Copa.version_77")
