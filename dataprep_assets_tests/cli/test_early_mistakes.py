"""`dataprep check` and the start of `dataprep run` report every visible mistake with its file, line and key."""

import errno
import os
from pathlib import Path

import pytest

from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.cli.nested_project import nested_project, write_corpus
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.samples import SAMPLE

pytestmark = pytest.mark.slow

MISTAKES = {
    "text_name": ("  views", "  text_field: txt\n  views"),
    "text_type": ("  views", "  text_field: id\n  views"),
    "id_name": ("document: {", "document: {id_field: doc, "),
    "twice": ("[nanogpt]", "[nanogpt, nanogpt]"),
    "no_key": ("document: {", "document: {id_key: {env: SURELY_NOT_SET}, "),
    "storage": ("  views", "  storage: ./defs.yaml/below\n  views"),
    "two": ("  views: [nanogpt]\n", "  views: [nanogpt]\n---\ntype: dataprep_assets.components.TokenizedCorpus\n"),
    "no_parquet": ('["*.jsonl"]', '["*"]'),
    "empty": ("  views", "  views"),
    "mixed": ("document: {", "document: {id_field: id, "),
    "unset": ("path: ./texts", 'path: "{{ env.SURELY_NOT_SET }}"'),
    "unset_folder": ("path: ./texts", 'path: "{{ env.SURELY_NOT_SET }}/texts"'),
    "unset_call": ("  views", """  description: "{{ env('SURELY_NOT_SET') }}"\n  views"""),
    "no_variable": ("  views", '  description: "of {{ my_var }}"\n  views'),
    "near_variable": ("  views", '  description: "of {{ evn.HOME }}"\n  views'),
    "retracted": ("  views", "  retractions: ./defs.yaml\n  views"),
    "published": ("  views", "  publish: {hub: org/na--me}\n  views"),
    "no_filter": ("  views", '  description: "{{ env.HOME | lowre }}"\n  views'),
    "no_template": ("  views", '  description: "{{ (1 }}"\n  views'),
}
TOLD = {
    "text_name": "9: `text_field: txt`: split train (first file: train.jsonl): none of the first 20 rows has this "
    "field. Their fields: `text`, `id`",
    "text_type": "9: `text_field: id`: split train (first file: train.jsonl): none of the first 20 rows has this "
    "field as text",
    "id_name": "8: `document.id_field: doc`: split train (first file: train.jsonl): none of the first 20 rows has "
    "this field. Their fields: `text`, `id`",
    "twice": "9: views: `nanogpt` is listed twice. Remove one",
    "no_key": "8: document.id_key: the environment variable SURELY_NOT_SET is not set. Set it to a key",
    "storage": "9: storage: {folder}/defs.yaml/below: must be a folder, but {folder}/defs.yaml is not a folder",
    "two": "11: must not contain a second document",
    "no_parquet": "4: source: train_more.parquet: the file is text. Rename it after its format",
    "empty": "6: splits.val: 1 file has no records. Add a file with records, or remove the split",
    "mixed": "8: `document.id_field: id`: the files of split train of format txt: no row has this field",
    "unset": "4: source.path: the environment variable SURELY_NOT_SET is not set",
    "unset_folder": "4: source.path: the environment variable SURELY_NOT_SET is not set",
    "unset_call": "9: description: the environment variable SURELY_NOT_SET is not set",
    "no_variable": "9: description: unknown variable `my_var` in `{{{{ my_var }}}}`; available: ",
    "near_variable": "9: description: unknown variable `evn` in `{{{{ evn }}}}`; did you mean `env`?",
    "retracted": "9: {folder}/defs.yaml: line 1: must be a retraction",
    "published": "9: publish: Hub repository 'org/na--me': must be 'name' or 'organization/name'. Names have at most ",
    "no_filter": "9: description: invalid template: No filter named 'lowre'",
    "no_template": "9: description: invalid template: unexpected '}}', expected ')'. Correct the expression, or",
    "combined": "5: `sources`: d00: a TokenizedCorpus has no artifact `tfds_directory`",
}
COMBINED = """type: dataprep_assets.components.CombinedCohorts
attributes:
  dataset: combined
  mode: virtual
  sources: [{dataset: d00}]
"""
BLEND = """type: dataprep_assets.components.TrainingBlend
attributes:
  dataset: held
  stage: pretrain
  blend: {datasets: [{name: a, path: ./a.jsonl}]}
  tokenizer: {path: ./tokenizer}
  num_shards: 2
  held_out: {valid: 1, test: 1}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with one dataset per mistake."""
    found = nested_project(tmp_path_factory.mktemp("early"))
    defs = found / "my_texts" / "defs" / "wrong"
    for name, (right, wrong) in MISTAKES.items():
        path = write_corpus(defs / name, name)
        assert right in path.read_text()
        path.write_text(path.read_text().replace(right, wrong, 1))
    (defs / "no_parquet" / "texts" / "train_more.parquet").write_text("this is none")
    (defs / "empty" / "texts" / "val.jsonl").write_text("")
    mixed = defs / "mixed" / "defs.yaml"
    mixed.write_text(mixed.read_text().replace('["*.jsonl"]', '["*"]'))
    (defs / "mixed" / "texts" / "train_more.txt").write_text("a text without fields")
    torn = BLEND.replace("dataset: held", "dataset: torn").replace("a.jsonl", "a.parquet")
    torn = torn.replace("./tokenizer", f"{SAMPLE / 'tokenizer'}")
    for name, text in (
        ("combined", COMBINED),
        ("held", BLEND),
        ("torn", torn.replace("valid: 1, test: 1", "valid: 0")),
        ("gone", torn.replace("valid: 1, test: 1", "valid: 0").replace("dataset: torn", "dataset: gone")),
    ):
        (defs / name).mkdir()
        (defs / name / "defs.yaml").write_text(text)
    (defs / "torn" / "a.parquet").write_bytes(b"PAR1\x15\x04 and no end")
    return found


def test_check_reports_each_mistake_with_its_line(project: Path) -> None:
    done = dataprep(project, "check", project=project)
    assert done.returncode == 2, done.stderr
    for name, told in TOLD.items():
        folder = project / "my_texts" / "defs" / "wrong" / name
        assert f"{folder}/defs.yaml:{told.format(folder=folder)}" in done.stdout, done.stdout
    assert_names(done.stdout, "`held_out`", 1, 2, "valid", "test")
    assert_names(done.stdout, f"{project}/my_texts/defs/wrong/torn/defs.yaml:5", "a.parquet", 1)
    right = dataprep(project, "check", "d00", "d01", project=project)
    assert (right.returncode, right.stdout.splitlines()[-1]) == (0, "2 declarations: no errors found")


@pytest.mark.parametrize("name", sorted(TOLD))
def test_run_reports_a_mistake_before_it_builds_anything(project: Path, name: str) -> None:
    done = dataprep(project, "run", name, project=project)
    folder = project / "my_texts" / "defs" / "wrong" / name
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{folder}/defs.yaml:{TOLD[name].format(folder=folder)}" in done.stderr
    assert not (project / "artifacts" / name).exists()


def test_mistakes_in_several_datasets_are_all_reported(project: Path) -> None:
    done = dataprep(project, "run", "no_key", "d00", "storage", project=project)
    assert (done.returncode, done.stdout) == (2, "")
    for name in ("no_key", "storage"):
        assert f"/wrong/{name}/defs.yaml:" in done.stderr
    assert not (project / "artifacts" / "d00").exists()


def test_the_first_run_of_a_blend_without_its_file_exits_with_2_and_names_the_line(project: Path) -> None:
    done = dataprep(project, "run", "gone", project=project)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{project}/my_texts/defs/wrong/gone/defs.yaml:5: a: " in done.stderr
    assert os.strerror(errno.ENOENT) in done.stderr


def test_a_mistake_that_only_the_source_shows_is_named_with_dataset_and_artifact(project: Path) -> None:
    path = write_corpus(project / "my_texts" / "defs" / "damaged", "no_parquet_later")
    path.write_text(path.read_text().replace('["*.jsonl"]', '["*"]'))
    assert dataprep(project, "run", "no_parquet_later", project=project).returncode == 0
    (path.with_name("texts") / "train_more.parquet").write_text("this is none")
    done = dataprep(project, "run", "no_parquet_later", project=project)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "train-00001" in line]
    assert line.startswith("  no_parquet_later/token_bins_train: ")
    assert "train_more.parquet: " in line


def test_a_configuration_error_found_by_a_step_exits_with_2_and_names_the_line(project: Path) -> None:
    """The view `mds` needs at least one sample per split; if the source is compressed, only the last step knows its
    length.
    """
    path = write_corpus(project / "my_texts" / "defs" / "late", "late")
    path.write_text(path.read_text().replace("[nanogpt]", "[mds]\n  mds_sequence_length: 4096"))
    texts = path.with_name("texts")
    rows = '{"text": "a", "id": 1, "more": "%s"}\n' % ("x" * 40_000)  # each row has many bytes but few tokens
    for split in ("train", "val"):
        (texts / f"{split}.jsonl").write_text(rows)
    done = dataprep(project, "run", "late", project=project)
    assert done.returncode == 2, done.stdout + done.stderr
    assert_names(done.stderr, "late/mds_bins", f"{path}:10", 4096)
    assert "__" not in done.stderr
