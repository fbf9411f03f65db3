"""Every file that a migration replaces is kept in its artifact, whatever happens to either later."""

import pytest

from dataprep_assets.errors import ConfigError, IntegrityError
from dataprep_assets.integrity.digest import sha256_file
from dataprep_assets.integrity.verify import verify
from dataprep_assets.pipelines.tasks.declaration import TASK_FOLDER
from dataprep_assets.pipelines.tasks.migration import migrate_task
from dataprep_assets.pipelines.tasks.record import NAME, REPLACED
from dataprep_assets_tests.pipelines.tasks.trees import TRAIN, Project, foreign


@pytest.mark.parametrize("mode", ["copy", "symlink"])
def test_overwrite_keeps_the_old_file_in_the_artifact(tree: Project, mode: str) -> None:
    path = foreign(tree)
    declaration = tree.declared({"Copa": {"mode": mode}}, overwrite=True)
    done = tree.migrate(declaration)["Copa"]
    assert path.read_bytes() == (tree.old / "Copa" / TRAIN).read_bytes()
    [entry] = done.record.history
    assert (entry.number, entry.name, entry.kind, entry.kept) == (1, TRAIN, "file", True)
    kept = tree.store.local(declaration.artifact(TASK_FOLDER, "Copa")) / REPLACED / str(entry.sha256)
    assert kept.read_bytes() == b'{"mine": 1}\n'
    assert done.receipt.facts["history"] == [entry.model_dump(mode="json")]
    assert not (tree.store.root / "tasks/task_folder/.kept/Copa").exists()
    again = tree.migrate(declaration)["Copa"]
    assert again.reused
    assert again.placed == ()


def test_the_history_grows_and_keeps_every_file(tree: Project) -> None:
    written = [b'{"mine": %d}\n' % n for n in range(3)]
    for data in [*written, written[0]]:
        foreign(tree, data)
        done = tree.migrate(tree.declared({"Copa": {}}, overwrite=True))["Copa"]
    assert [e.number for e in done.record.history] == [1, 2, 3, 4]
    assert all(e.kept for e in done.record.history)
    folder = tree.store.root / "tasks/task_folder/Copa" / REPLACED
    assert {p.read_bytes() for p in folder.iterdir()} == set(written)
    assert not [v.defects for v in verify(tree.store.root) if v.defects]


def test_what_was_replaced_outlives_a_build_that_a_failed_check_asks_for(tree: Project) -> None:
    """So a run says which artifacts to build again, and does not remove them first."""
    foreign(tree)
    declaration = tree.declared({"Copa": {}}, overwrite=True)
    before = tree.migrate(declaration)["Copa"]
    artifact = declaration.artifact(TASK_FOLDER, "Copa")
    after = migrate_task(declaration, tree.store.rebuilding([artifact]), "Copa")
    assert not after.reused
    assert after.record.history == before.record.history
    kept = tree.store.local(artifact) / REPLACED / str(after.record.history[0].sha256)
    assert kept.read_bytes() == b'{"mine": 1}\n'


def test_another_version_replaces_the_first_only_when_asked(tree: Project) -> None:
    tree.migrate(tree.declared({"Copa": {}}))
    with pytest.raises(ConfigError, match="overwrite: true"):
        tree.migrate(tree.declared({"Copa": {"version": "latest"}}))
    done = tree.migrate(tree.declared({"Copa": {"version": "latest"}}, overwrite=True))["Copa"]
    assert done.placed == (TRAIN,)
    assert done.record.history[0].sha256 == sha256_file(tree.old / "Copa" / TRAIN)


def test_a_damaged_artifact_is_made_again_with_its_history(tree: Project) -> None:
    foreign(tree)
    declaration = tree.declared({"Copa": {}}, overwrite=True)
    first = tree.migrate(declaration)["Copa"]
    folder = tree.store.root / "tasks/task_folder/Copa"
    (folder / "receipt.json").unlink()
    assert tree.store.receipt(declaration.artifact(TASK_FOLDER, "Copa")) is None
    again = tree.migrate(declaration)["Copa"]
    assert not again.reused
    assert again.record == first.record
    [kept] = (folder / REPLACED).iterdir()
    kept.write_bytes(b"rotten")
    assert not tree.is_current(declaration, "Copa")
    assert [e.kept for e in tree.migrate(declaration)["Copa"].record.history] == [False]


def test_replaced_files_are_not_dropped_with_an_unreadable_record(tree: Project) -> None:
    foreign(tree)
    declaration = tree.declared({"Copa": {}}, overwrite=True)
    tree.migrate(declaration)
    record = tree.store.root / "tasks/task_folder/Copa" / NAME
    record.write_text("{}")
    with pytest.raises(
        IntegrityError, match=r"migration.json: not a migration record .*save that folder if you need it"
    ):
        tree.migrate(declaration)
    record.unlink()
    with pytest.raises(IntegrityError, match=r"migration.json: is lost, and replaced/ beside it holds replaced files"):
        tree.migrate(declaration)
