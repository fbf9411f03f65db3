"""An old project is polled for changes: new versions and edited files."""

import os
import shutil

from dataprep_assets.engine.artifact.spec import EDITED, SourceWatch, poll_source
from dataprep_assets.pipelines.tasks.dataset import build_task_folder_spec
from dataprep_assets.pipelines.tasks.declaration import TaskMigrationDeclaration
from dataprep_assets_tests.pipelines.tasks.trees import TRAIN, Project


def watch_of(declared: TaskMigrationDeclaration) -> SourceWatch:
    watch = build_task_folder_spec(declared).watch
    assert watch is not None
    return watch


def test_new_versions_and_changed_files_are_reported(tree: Project) -> None:
    declared = tree.declared({"Copa": {"version": "latest"}, "BOOLQ": {}})
    watch = watch_of(declared)
    assert poll_source(watch, tree.store, None).change == "2 tasks new"
    tree.migrate(declared)
    made = poll_source(watch, tree.store, None)
    assert made.change == ""
    versions = tree.old / "Copa" / "mezo_gpt"
    shutil.copytree(versions / "version_1", versions / "version_99")
    newer = poll_source(watch, tree.store, made.identity)
    assert newer.change == "1 version new"
    tree.migrate(declared)
    built = poll_source(watch, tree.store, newer.identity)
    path = versions / "version_99" / TRAIN
    os.utime(path, ns=(10**9, 10**9))
    assert poll_source(watch, tree.store, built.identity).change == EDITED
    path.write_bytes(path.read_bytes() + b"\n")
    assert poll_source(watch, tree.store, built.identity).change == "1 task changed"


def test_the_original_data_of_a_comparison_also_counts(tree: Project) -> None:
    declared = tree.declared({"Copa": {}})
    watch = watch_of(declared)
    tree.migrate(declared)
    made = poll_source(watch, tree.store, None)
    os.utime(tree.home / "original" / "Copa" / TRAIN, ns=(10**9, 10**9))
    assert poll_source(watch, tree.store, made.identity).change == EDITED
