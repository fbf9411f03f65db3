"""A publication is one private commit with a tag; only changed files are sent again, and nothing else is replaced."""

import hashlib
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.engine.artifact.spec import BuildRequest
from dataprep_assets.engine.artifact.summary import format_summary
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.errors import ConfigError, IntegrityError, SourceError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.project import read_project
from dataprep_assets.project_template import write_project
from dataprep_assets.stores.files import sha256_file
from dataprep_assets.stores.local import LocalStore
from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.engine.building import dump_declaration, find_sample, redeclare
from dataprep_assets_tests.engine.publishing.conftest import REPO, Published
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.project import sample_attributes

ID = '[tool.dataprep]\nid = "3f9c01ab"\n'
"""The table of a project's id in `pyproject.toml`."""


def test_a_corpus_is_published_in_one_private_commit_with_a_tag(corpus: Published) -> None:
    assert corpus.run() == ["published"]
    hub = corpus.hub
    assert hub.private
    assert len(hub.operations) == 1
    lock = hashlib.sha256(hub.tree["dataset.lock"]).hexdigest()
    assert hub.tags == {f"lock-{lock[:12]}": hub.commit}
    folder = corpus.store.root / "sample_corpus"
    for name in ("hf_parquet_bins/data/train-00000-of-00001.parquet", "data_card/croissant.json"):
        assert hub.tree[name] == (folder / name).read_bytes()
    marker = json.loads(hub.tree["publication.json"])
    assert (marker["dataset"], marker["project"], marker["lock"]) == ("sample_corpus", "fruit", lock)
    assert marker["files"].keys() == hub.tree.keys() - {".gitattributes", "publication.json"}
    assert all(finding.passed for finding in corpus.check().values())
    assert all(entry.authorization == "Bearer secret" for entry in hub.log if entry.name == "commit")


def test_an_unchanged_publication_sends_nothing(corpus: Published) -> None:
    corpus.run()
    since = len(corpus.hub.log)
    assert list(find_stale(corpus.dataset.specs, corpus.store)) == []
    assert corpus.run() == []
    assert {entry.method for entry in corpus.hub.log[since:]} == {"GET", "HEAD"}


def test_a_change_sends_only_the_changed_files(corpus: Published) -> None:
    corpus.run()
    hub, since = corpus.hub, len(corpus.hub.log)
    first, tags = hub.commit, dict(hub.tags)
    described = corpus.declare(attributes={"description": "More about the corpus."})
    assert described.run() == ["data_card", "published"]
    operations = hub.operations[1]
    # The card and its receipt change, and with them the page, the lock and the marker.
    assert {path for _, path in operations} == {
        "README.md",
        "data_card/croissant.json",
        "data_card/dataset_card.md",
        "data_card/receipt.json",
        "dataset.lock",
        "publication.json",
    }
    assert len(described.uploads(since)) == len([key for key, _ in operations if key == "lfsFile"])
    assert hub.tags.keys() > tags.keys()
    assert hub.tags[next(iter(hub.tags.keys() - tags.keys()))] == hub.commit
    assert next(iter(tags.values())) == first, "the earlier revision stays available"
    assert all(finding.passed for finding in described.check().values())


def test_files_that_are_no_longer_built_are_removed_and_other_files_are_kept(corpus: Published) -> None:
    both = corpus.declare(attributes={"views": ["hf_parquet", "nanogpt"]})
    both.run()
    hub = corpus.hub
    assert "nanogpt_bins/train.bin" in hub.tree
    hub.move_branch({**hub.tree, "LICENSE": b"CC0\n"}, parent=hub.commit)
    corpus.run()
    assert not [path for path in hub.tree if path.startswith("nanogpt_bins")]
    assert hub.tree["LICENSE"] == b"CC0\n"
    assert all(finding.passed for finding in corpus.check().values())


def test_a_repository_that_something_else_wrote_is_refused(corpus: Published) -> None:
    hub = corpus.hub
    hub.private = True
    hub.move_branch({".gitattributes": b"", "data.parquet": b"theirs"})
    with raises(IntegrityError, "hf://datasets/org/corpus", "data.parquet"):
        corpus.run()
    assert hub.operations == []
    assert hub.tree["data.parquet"] == b"theirs"


@pytest.mark.parametrize("changes", [{"project": "garden"}, {"attributes": {"dataset": "berries"}}])
def test_a_repository_of_another_dataset_or_project_is_refused(corpus: Published, changes: dict[str, object]) -> None:
    corpus.run()
    tree = corpus.hub.tree
    with raises(IntegrityError, "sample_corpus", "fruit"):
        corpus.declare(**changes).run()
    assert corpus.hub.tree == tree


@pytest.mark.parametrize("name", ["README.md", "hf_parquet_bins/data/train-00000-of-00001.parquet"])
def test_a_file_that_was_edited_on_the_hub_is_not_replaced(corpus: Published, name: str) -> None:
    corpus.run()
    hub = corpus.hub
    hub.move_branch({**hub.tree, name: b"edited on the website"}, parent=hub.commit)
    found = corpus.check()["hub_matches_receipts"]
    assert not found.passed
    assert_names(found.summary, name)
    (decision,) = find_stale(corpus.dataset.specs, corpus.store)
    assert decision.name == "sample_corpus/published"
    with raises(IntegrityError, f"hf://datasets/org/corpus/{name}") as refused:
        corpus.run()
    assert decision.reason == str(refused.value), "the status and the run give the same reason"
    assert found.summary == f"{refused.value}."
    assert hub.tree[name] == b"edited on the website"
    rest = {path: content for path, content in hub.tree.items() if path != name}
    hub.move_branch(rest, parent=hub.commit)
    since = len(hub.operations)
    corpus.run()
    assert hub.operations[since:] == [[("lfsFile", name)]], "only the deleted file is sent again"
    assert all(finding.passed for finding in corpus.check().values())


@pytest.mark.parametrize("private", [True, False])
def test_a_repository_of_the_other_visibility_is_refused(corpus: Published, private: bool) -> None:
    corpus.hub.private = not private
    corpus.hub.move_branch({".gitattributes": b""})
    with raises(ConfigError, "private", "public", "publish.private"):
        corpus.declare(private=private).run()
    assert corpus.hub.operations == []


@pytest.mark.parametrize("private", [True, False])
def test_a_repository_whose_visibility_changed_is_reported(corpus: Published, private: bool) -> None:
    published = corpus.declare(private=private)
    published.run()
    corpus.hub.private = not private
    since = len(corpus.hub.operations)
    finding = published.check()["hub_matches_receipts"]
    assert not finding.passed
    assert_names(finding.summary, REPO, "private", "public", "publish.private")
    (decision,) = find_stale(published.dataset.specs, published.store)
    assert_names(decision.reason, "private", "public", "publish.private")
    with raises(ConfigError, "private", "public", "publish.private"):
        published.run()
    assert corpus.hub.private is not private
    assert corpus.hub.operations[since:] == []


def test_a_public_repository_is_created_only_if_it_is_declared(corpus: Published) -> None:
    corpus.declare(private=False).run()
    assert not corpus.hub.private


def test_a_file_that_changed_after_its_build_is_not_sent(corpus: Published) -> None:
    path = corpus.store.root / "sample_corpus/hf_parquet_bins/data/train-00000-of-00001.parquet"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    (published,) = [spec for spec in corpus.dataset.specs if spec.name == "published"]
    with raises(IntegrityError, "hf_parquet_bins/data/train-00000-of-00001.parquet", sha256_file(path)[:12] + "…"):
        list(published.build(BuildRequest(store=corpus.store)))
    assert corpus.hub.operations == []


def test_a_missing_tag_is_found_and_set_again(corpus: Published) -> None:
    corpus.run()
    tags = dict(corpus.hub.tags)
    corpus.hub.tags.clear()
    assert not corpus.check()["revision_tagged"].passed
    list(corpus.spec.build(BuildRequest(store=corpus.store)))
    assert corpus.hub.tags == tags
    assert corpus.check()["revision_tagged"].passed


@pytest.mark.parametrize("other", ["unknown", "empty"])
def test_a_tag_of_another_commit_is_found(corpus: Published, other: str) -> None:
    corpus.run()
    (tag,) = corpus.hub.tags
    corpus.hub.tags[tag] = "0" * 40
    if other == "empty":
        corpus.hub.commits["0" * 40] = {}
    finding = corpus.check()["revision_tagged"]
    assert not finding.passed
    assert_names(finding.summary, tag, "0" * 12)


def test_the_hub_must_have_a_token_with_write_access(corpus: Published) -> None:
    corpus.hub.fail("create", "status", method="POST", status=403, times=None)
    with raises(SourceError, "HF_TOKEN", 403):
        corpus.run()


def test_a_wrong_token_is_reported_with_its_variable(corpus: Published) -> None:
    corpus.hub.fail("revision", "status", method="GET", status=401, times=None)
    with raises(SourceError, f"hf://datasets/{REPO}", "HF_TOKEN", 401):
        corpus.run()


def test_sensitive_data_is_never_published() -> None:
    with raises(ValidationError, "publish", "sensitive: true"):
        CorpusDeclaration.model_validate({**sample_attributes(), "sensitive": True, "publish": {"hub": REPO}})


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("sample_blend_pairs", "pairs_sharegpt"),
        ("sample_release", None),
    ],
)
def test_conversations_and_releases_are_published(
    corpus: Published, tmp_path: Path, name: str, config: str | None
) -> None:
    sample = find_sample(name)
    publish = {"hub": REPO, "endpoint": corpus.hub.endpoint, "project": "fruit"}
    dataset = redeclare(sample, {**dump_declaration(sample), "publish": publish})
    published = replace(corpus, dataset=dataset, store=LocalArtifacts(tmp_path / "sample"))
    assert "published" in published.run()
    page = published.hub.tree["README.md"].decode().split("---\n")[1]
    configs = yaml.safe_load(page).get("configs", [])
    assert [one["config_name"] for one in configs if one.get("default")] == [config] * len(configs[:1])
    assert all(finding.passed for finding in published.check().values())


def test_a_schedule_cannot_be_published() -> None:
    sample = find_sample("sample_schedule")
    with raises(ValidationError, "publish", "sources"):
        redeclare(sample, {**dump_declaration(sample), "publish": {"hub": REPO}})


def test_a_corpus_without_parquet_rows_has_a_remark(corpus: Published) -> None:
    assert not [one for one in corpus.dataset.remarks() if one.keys == ("publish",)]
    (remark,) = [one for one in corpus.declare(attributes={"views": []}).dataset.remarks() if one.keys == ("publish",)]
    assert remark.hint
    assert_names(remark.sentence, "hf_parquet", "views")


def test_the_project_of_a_declaration_owns_the_repository(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[tool.dg.project]\nroot_module = "fruit"\n{ID}')
    folder = tmp_path / "fruit" / "defs" / "corpus"
    folder.mkdir(parents=True)
    attributes = {**sample_attributes(), "publish": {"hub": REPO}}
    declared = validate_declaration(CorpusDeclaration, attributes, folder / "defs.yaml")
    assert declared.publish is not None
    assert declared.publish.project == f"{tmp_path.name}-3f9c01ab"
    named = {**attributes, "publish": {"hub": REPO, "project": "garden"}}
    declared = validate_declaration(CorpusDeclaration, named, folder / "defs.yaml")
    assert declared.publish is not None
    assert declared.publish.project == "garden"


def test_another_project_of_the_same_name_is_refused(corpus: Published) -> None:
    corpus.declare(project="my_data-3f9c01ab").run()
    tree = corpus.hub.tree
    with raises(IntegrityError, "my_data-3f9c01ab", "publish.project"):
        corpus.declare(project="my_data-00000000").run()
    assert corpus.hub.tree == tree


def test_a_project_without_an_id_publishes_nothing(corpus: Published) -> None:
    with raises(ConfigError, "[tool.dataprep]", "publish.project"):
        corpus.declare(project=None).run()
    assert corpus.hub.log == []


def test_each_new_project_has_an_id_of_its_own(tmp_path: Path) -> None:
    ids = []
    for parent in ("first", "second"):
        (tmp_path / parent).mkdir()
        write_project(tmp_path / parent / "my-data")
        project = read_project(tmp_path / parent / "my-data")
        assert project is not None
        assert project.id is not None
        ids.append(project.id)
    assert ids[0] != ids[1]


@pytest.mark.parametrize("invalid", ['"fruit"', "3", '"3F9C01AB"'])
def test_an_invalid_id_of_a_project_is_refused(tmp_path: Path, invalid: str) -> None:
    table = ID.replace('"3f9c01ab"', invalid)
    (tmp_path / "pyproject.toml").write_text(f'[tool.dg.project]\nroot_module = "fruit"\n{table}')
    with raises(ConfigError, str(tmp_path), "[tool.dataprep]", "id"):
        read_project(tmp_path)


def test_a_blend_has_a_remark_about_the_paths_in_its_run() -> None:
    sample = find_sample("sample_blend_pairs")
    dataset = redeclare(sample, {**dump_declaration(sample), "publish": {"hub": REPO}})
    (remark,) = [one for one in dataset.remarks() if one.keys == ("publish",)]
    assert remark.hint
    assert_names(remark.sentence, "plan.json")


def test_the_summary_names_the_published_revision(corpus: Published) -> None:
    corpus.run()
    (tag,) = corpus.hub.tags
    lines = format_summary(corpus.dataset, corpus.store, None).splitlines()
    assert f"published: hf://datasets/{REPO}, revision {tag}" in lines


def test_a_mixture_of_sensitive_notes_is_not_published(tmp_path: Path) -> None:
    project = tmp_path / "my-data"
    assert dataprep(tmp_path, "init", str(project), "--sample", "notes").returncode == 0
    notes = project / "my_data" / "defs" / "sample_notes" / "defs.yaml"
    text = notes.read_text().replace("sensitive: false", "sensitive: true")
    notes.write_text(re.sub(r"patient_key:\n +public: .*", "patient_key: {env: PATIENT_KEY}", text))
    mixed = project / "my_data" / "defs" / "mixed" / "defs.yaml"
    mixed.parent.mkdir()
    mixed.write_text(
        "type: dataprep_assets.components.CombinedCohorts\nattributes:\n  dataset: mixed\n  sensitive: false\n"
        f"  sources: [{{dataset: sample_notes}}]\n  publish: {{hub: {REPO}}}\n"
    )
    ended = dataprep(tmp_path, "check", "mixed", project=project, PATIENT_KEY="grape " * 8)
    assert ended.returncode == 2
    assert_names(ended.stdout, "defs.yaml:6", "sample_notes", "sensitive", "Remove `publish`")


def test_another_machine_publishes_from_the_same_bucket(corpus: Published, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    first, second = (
        replace(corpus, store=BucketArtifacts(tmp_path / name, partial(LocalStore, bucket), "s3://bucket", 1 << 30))
        for name in ("first", "second")
    )
    assert "published" in first.run()
    tree = corpus.hub.tree
    assert second.run() == []
    assert all(finding.passed for finding in second.check().values())
    described = second.declare(attributes={"description": "More about the corpus."})
    assert described.run() == ["data_card", "published"]
    assert corpus.hub.tree.keys() == tree.keys()
    assert all(finding.passed for finding in described.check().values())


def test_a_page_that_the_hub_refuses_is_reported(corpus: Published) -> None:
    with raises(SourceError, f"hf://datasets/{REPO}", "unknown license"):
        corpus.declare(attributes={"card": {"license": "refused"}}).run()
    assert corpus.hub.operations == []
