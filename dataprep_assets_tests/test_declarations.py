"""The messages about mistakes in a `defs.yaml`, and their effect on other datasets."""

import errno
import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster.components.scaffold.scaffold import Scaffolder, ScaffoldRequest, get_scaffolder

from dataprep_assets.cli import main
from dataprep_assets.code_location import bind_resources, merge_definitions
from dataprep_assets.declarations import Declarations, find_files_below, open_declarations, read_component
from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.errors import ConfigError
from dataprep_assets.extensions import Extension
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.pipelines.corpus.views import VIEWS
from dataprep_assets.project import read_project
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.samples import SAMPLE, SMALL

GOOD = f"""type: dataprep_assets.components.TokenizedCorpus
attributes:
  dataset: mine
  owners: ["team:data"]
  description: text
  source:
    kind: local
    path: {SMALL}
  splits:
    train: ["train/**"]
    val: ["validation/**"]
  tokenizer:
    path: {SAMPLE / "tokenizer"}
  document: {{separator: "<|endoftext|>"}}
  shards:
    count: 3
  views: [nanogpt, megatron]
"""
LAUGHS = "card:\n" + "".join(
    f"    a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9 if i else ['lol'] * 9)}]\n" for i in range(30)
)
"""Each line has nine times the values of the line before: 10^28 in total."""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Declarations]:
    """Return a project with two datasets, `mine` and `other`."""
    package = tmp_path / f"project_{tmp_path.name}"
    for name in ("mine", "other"):
        (package / "defs" / name).mkdir(parents=True)
        (package / "defs" / name / "defs.yaml").write_text(GOOD.replace("mine", name))
    (package / "__init__.py").touch()
    (package / "defs" / "__init__.py").touch()
    sys.path.insert(0, str(tmp_path))
    try:
        yield Declarations(importlib.import_module(f"{package.name}.defs"), tmp_path)
    finally:
        sys.path.remove(str(tmp_path))


def told(project: Declarations, text: str) -> list[str]:
    """Return the lines of the error about `mine`, without the folder."""
    path = project.folder / "mine" / "defs.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        project.load(path)
    return str(raised.value).replace(f"{path}:", "").splitlines()


def test_a_file_without_a_mistake_loads(project: Declarations) -> None:
    assert project.load(project.files["mine"]).declaration.dataset == "mine"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [
        ("splits:", "spilts:", "9: spilts: unknown key; did you mean `splits`?"),
        ("count: 3", "cuont: 3", "16: shards.cuont: unknown key; did you mean `count`?"),
        ("description: text", "zzz: text", "5: zzz: unknown key; available: dataset, description, owners,"),
        (
            "nanogpt,",
            "nanogtp,",
            f"17: views.0: unknown value 'nanogtp'; one of {', '.join(VIEWS)}. Did you mean `nanogpt`?",
        ),
        (
            "kind: local",
            "kind: lcoal",
            "7: source.kind: unknown value 'lcoal'; one of local, hub, hf_cache, obj",
        ),
        ("    kind: local\n", "", "6: source: `kind` is missing. Must be one of local, hub, hf_cache, object_store"),
        (f"    path: {SMALL}\n", "", "6: source.path: missing: Folder with the files"),
        ("count: 3", "count: three", "16: shards.count: must be a whole number, not 'three'"),
        ("count: 3", "count: 0", "16: shards.count: must be at least 1, not 0"),
        ("count: 3", "count: 3\n    count: 4", "17: duplicate key `count`, first set in line 16"),
        ('train: ["train/**"]', "train: train/**", "10: splits.train: must be a list, not 'train/**'"),
        (
            "train: [",
            "tr-ain: [",
            "9: splits: split name 'tr-ain': must be letters, digits and `_`, and must not begin with a digit, e.g., "
            "train",
        ),
        (
            "train: [",
            "数学: [",
            "9: splits: split name '数学': must be letters, digits and `_`, and must not begin",
        ),
        (
            "train: [",
            "короткий: [",
            "9: splits: split name 'короткий': must be letters, digits and `_`, and must not begin with a digit, "
            "e.g., train",
        ),
        ('["team:data"]', '["data"]', "4: owners: 'data' is not an owner. Use an e-mail address, or a team as"),
        ("description: text", "description: [1]", "5: description: must be text, not [1]"),
        *(
            (
                "description: text",
                f"card: {{published: {value}}}",
                f"5: card.published: must be a date as YYYY-MM-DD, not {shown}",
            )
            for value, shown in (
                ("01.02.2024", "'01.02.2024'"),
                ("soon", "'soon'"),
                ("[2024]", "[2024]"),
                ("2024-01-01 05:00:00", "2024-01-01 05:00:00"),
            )
        ),
        ("description: text", "description: a: b", "5: invalid YAML: unexpected colon"),
        ("  views", "\tviews", "17: invalid YAML: found a tab"),
        ("[nanogpt, megatron]", "[nanogpt, megatron", "17: invalid YAML: unclosed `[`"),
        ('["train/**"]', "[train/**, **/x]", "10: invalid YAML: a value begins with `*`"),
        ("description: text", 'description: "text', "5: invalid YAML: unclosed quote"),
        ("description: text", "description: 'text", "5: invalid YAML: unclosed quote"),
        ("description: text", "description: @text", "5: invalid YAML: a value begins with `@`"),
        ("description: text", 'description: "a\\path"', "5: invalid YAML: invalid escape"),
        ("    count: 3", "   count: 3\n    every: 1", "17: invalid YAML: "),
        ("description: text", "description: {{ env.TEXT }}", "5: a value begins with `{`"),
        ("description: text", "description: 2023-02-29", "5: `2023-02-29` looks like a date or number"),
        ("description: text", "card: {2024-02-30: a}", "5: the key `2024-02-30` is not text in YAML"),
        ("description: text", "description: !!int text", "5: `text` looks like a date or number"),
        ("description: text", "description: !note text", "5: invalid YAML: unknown tag '!note'"),
        ("description: text", "sample_rate: no", "5: sample_rate: must be a number, not no"),
        ("description: text", "sample_rate: .nan", "5: sample_rate: must be "),
        ("description: text", "tag: no", "5: tag: must be a list, not no"),
        ("description: text", "workers: yes", "5: workers: must be a number, not yes"),
        (
            "description: text",
            "bad_records: {policy: drop, budget: yes}",
            "5: bad_records.budget: must be a number, not yes",
        ),
        ("description: text", "workers: 010", "5: `010` means 8 in YAML. Write 8, or put it in quotes"),
        ("description: text", "workers: 1:30", "5: `1:30` means 90 in YAML. Write 90, or put it in quotes"),
        ("description: text", "keep: {no: bytes > 0}", "5: the key `no` is not text in YAML"),
        ("description: text", "card: {<<: [a]}", "5: merging blocks with `<<` is not supported"),
        ("description: text", "description: &a [*a]", "5: the alias `*a` contains itself."),
        (
            "description: text",
            "description: " + "[" * 50_000,
            "5: blocks and lists are nested more than 64 levels deep",
        ),
        (
            "description: text",
            "description: " + "{a: " * 50_000,
            "5: blocks and lists are nested more than 64 levels deep",
        ),
        (
            "description: text",
            "description:\n    " + "- " * 50_000,
            "6: blocks and lists are nested more than 64 levels deep",
        ),
        ("description: text", LAUGHS, "11: aliases expand to more than 100,000 values."),
        (
            "document: {",
            "document: {text_field: a, ",
            "14: document.text_field: unknown key; it belongs at `text_field` at",
        ),
        (
            "document: {",
            "document: {text_feild: a, ",
            "14: document.text_feild: unknown key; did you mean `text_field` at the top level?",
        ),
        ("document: {", "document: {drop_fraction: 1, ", "14: document.drop_fraction: unknown key; available: "),
        ("description: text", "separator: a", "5: separator: unknown key; it belongs at `document.separator`"),
        (
            "kind: local",
            "kind: local\n    cache_dir: ./a",
            "8: source.cache_dir: unknown key; not a key of `kind: local`; available: ",
        ),
        ("attributes:", "atributes:", "1: `attributes` is missing (found `atributes`; did you mean `attributes`?)"),
        (
            "views: [",
            "accept: {looks}\n  views: [",
            "17: accept.looks: no value; must be text: Non-blocking checks",
        ),
        ("dataset: mine", "dataset: other", "3: dataset: other is also declared in "),
        ("dataset: mine", "dataset: my-data", "3: dataset: invalid value 'my-data': Name of the dataset, and of its"),
        ("  dataset: mine\n", "", "3: dataset: missing: Name of the dataset"),
        (
            "TokenizedCorpus",
            "TokenisedCorpus",
            "1: type: dataprep_assets.components.TokenisedCorpus: unknown component",
        ),
        ("dataprep_assets.components.Tok", "Tok", "1: type: TokenizedCorpus: unknown component; did you mean data"),
        ("dataprep_assets.components.Tok", "nowhere.Tok", "1: type: nowhere.TokenizedCorpus: cannot be imported: "),
        ("type: ", "typ: ", "1: `type` is missing. Add the component, for example "),
        (
            "views: [",
            "accept: {looks_like_txet: fine}\n  views: [",
            "17: accept.looks_like_txet: unknown check of this dataset; did you mean `looks_like_text`",
        ),
        ("views: [", "sample_rate: 2\n  views: [", "17: sample_rate: must be at most 1, not 2"),
        ("views: [", "dtype: uint8\n  views: [", "17: dtype: unknown value 'uint8'; one of auto, uint16, uint32."),
        ("views: [", "sensitive: maybe\n  views: [", "17: sensitive: must be true or false, not 'maybe'"),
        (
            "views: [",
            "sensitive: true\n  views: [",
            "17: `sensitive: true` with local files needs `document.id_key: {env: DOCUMENT_KEY}`, a variable",
        ),
        ("views: [", "shards: 3\n  views: [", "17: duplicate key `shards`, first set in line 15"),
        ("  shards:\n    count: 3", "  shards: 3", "15: shards: must be a block of keys, not 3"),
        (GOOD, "- type: x\n", "1: must be a block with the keys `type` and `attributes`"),
        (GOOD, "type: dataprep_assets.components.TokenizedCorpus\n", "1: `attributes` is missing"),
    ],
)
def test_a_mistake_is_reported_in_one_line(project: Declarations, right: str, wrong: str, line: str) -> None:
    assert GOOD.count(right) >= 1
    (said,) = told(project, GOOD.replace(right, wrong, 1))
    assert line in said


RECORDS = """type: dataprep_assets.components.TrainingBlend
attributes:
  dataset: mine
  stage: rl
  blend: {datasets: [{name: a, path: ./a.jsonl}]}
  views: [verl]
"""


@pytest.mark.parametrize(
    ("text", "line", "name", "kind"), [(GOOD, 17, "nanogpt", "CorpusView"), (RECORDS, 6, "verl", "RecordView")]
)
def test_a_view_of_the_wrong_kind_is_reported_with_its_line(
    project: Declarations, monkeypatch: pytest.MonkeyPatch, text: str, line: int, name: str, kind: str
) -> None:
    load = Extension.load
    monkeypatch.setattr(Extension, "load", lambda extension: extension.kind != "view" and load(extension))
    (said,) = told(project, text)
    assert said.startswith(f"{line}: views: view '{name}' of the package dataprep-assets: ")
    assert f":VIEW is not a {kind}. " in said


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (
            "~no_such_user/data",
            "the home folder of `~no_such_user` is unknown",
        ),
        ("da\\0ta", "a path cannot contain NUL"),
    ],
)
@pytest.mark.parametrize("key", [f"path: {SMALL}", f"path: {SAMPLE / 'tokenizer'}", "retractions: r", "storage: s"])
def test_an_invalid_path_is_reported_with_its_file(project: Declarations, key: str, wrong: str, why: str) -> None:
    good = f"{GOOD}  retractions: r\n  storage: s\n"
    (said,) = told(project, good.replace(key, f'{key.split()[0]} "{wrong}"', 1))
    assert why in said


def test_a_number_of_a_schedule_that_is_not_finite_is_a_mistake(project: Declarations) -> None:
    source = "{dataset: a, weight: 1}, {dataset: b, weight: .inf}"
    text = f"attributes: {{dataset: mine, sources: [{source}], sequence_length: 8, batch: 1, tokens: .inf}}\n"
    said = told(project, f"type: dataprep_assets.components.TrainingSchedule\n{text}")
    assert [line.split(": ")[1] for line in said] == ["sources.1.weight", "tokens"]
    said = told(
        project,
        f"type: dataprep_assets.components.CombinedCohorts\nattributes: {{dataset: mine, sources: [{source}]}}\n",
    )
    assert [line.split(": ")[1] for line in said if "finite" in line] == ["sources.1.weight"]


def test_many_mistakes_are_reported_together_in_the_order_of_the_file(project: Declarations) -> None:
    text = GOOD.replace("count: 3", "count: x").replace("views:", "veiws:").replace("kind: local", "kind: loc")
    assert [line.split(":")[0] for line in told(project, text)] == ["7", "16", "17"]
    unknown = "".join(f"  unknown_{i}: 1\n" for i in range(9))
    lines = told(project, GOOD + unknown)
    assert (len(lines), lines[-1]) == (6, "… and 4 more")


def test_invalid_utf8_and_an_empty_file_are_reported(project: Declarations) -> None:
    path = project.folder / "mine" / "defs.yaml"
    path.write_bytes(b"type: x\xff\n")
    with raises(ConfigError, path, 7):
        project.load(path)
    path.write_bytes(b"# nothing\n")
    with raises(ConfigError, path, "`dg scaffold defs`"):
        project.load(path)


def test_an_unreadable_file_is_reported_and_keeps_the_others(
    project: Declarations, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = project.folder / "other" / "defs.yaml"
    (project.project_root / "pyproject.toml").write_text(
        f'[tool.dg.project]\nroot_module = "{project.module.__name__.split(".")[0]}"\n'
    )
    read_text = Path.read_text

    def refuse(path: Path, *arguments: Any, **named: Any) -> str:
        # Do not change the mode of the file, because root may read every file.
        if path == other:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read_text(path, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", refuse)
    with raises(ConfigError, other, "Permission denied"):
        project.load(other)
    for command in (["check", "mine"], ["list"], ["status", "mine"]):
        main(["--project", str(project.project_root), *command])
    printed = capsys.readouterr()
    assert_names(printed.out, "mine", f"{other}: cannot be read")
    assert printed.err == ""


def load_assets(project: Declarations) -> dict[str, dg.AssetSpec]:
    """Return the assets of the code location, by key."""
    whole = dg.ComponentTree.from_module(project.module, project.project_root)
    found = bind_resources(merge_definitions(project, whole), project.project_root)
    specs = found.resolve_all_asset_specs()
    return {spec.key.to_user_string(): spec for spec in specs if spec.group_name != "overview"}


@pytest.mark.parametrize("text", [GOOD.replace("splits:", "spilts:"), "type: [", GOOD + "  accept: {eye_tset: x}\n"])
def test_a_broken_file_keeps_the_other_datasets_in_the_code_location(project: Declarations, text: str) -> None:
    (project.folder / "mine" / "defs.yaml").write_text(text)
    (project.folder / "own.py").write_text("import dagster as dg\n\n@dg.asset\ndef own() -> None: ...\n")
    third = project.folder / "more" / "third"
    third.mkdir(parents=True)
    (third / "defs.yaml").write_text(GOOD.replace("dataset: mine", "dataset: third"))
    specs = load_assets(project)
    assert {"other/manifest", "third/manifest", "own"} <= set(specs)
    (broken,) = (spec for key, spec in specs.items() if key.startswith("mine/"))
    assert (broken.key.path[-1], broken.group_name) == ("cannot_be_loaded", "mine")
    assert f"{project.folder / 'mine' / 'defs.yaml'}:" in (broken.description or "")


def test_a_broken_file_in_a_folder_of_any_name_keeps_the_others_in_the_code_location(project: Declarations) -> None:
    (folder := project.folder / "Müller corpus").mkdir()
    (folder / "defs.yaml").write_text("type: [")
    specs = load_assets(project)
    assert {"mine/manifest", "other/manifest", "M_ller_corpus/cannot_be_loaded"} <= set(specs)
    request = ScaffoldRequest(
        type_name="", target_path=folder, scaffold_format="yaml", project_root=folder, params=None
    )
    scaffolder = get_scaffolder(TokenizedCorpus)
    assert isinstance(scaffolder, Scaffolder)
    scaffolder.scaffold(request)
    assert "dataset: M_ller_corpus\n" in (folder / "defs.yaml").read_text()


def test_a_folder_without_a_dataset_is_skipped_and_one_with_a_dot_must_be_renamed(project: Declarations) -> None:
    for path in (".ipynb_checkpoints/defs-checkpoint.yaml", ".hidden/left.py", "texts.v1/train.jsonl", "not.es/a.md"):
        (project.folder / path).parent.mkdir()
        (project.folder / path).touch()
    (dotted := project.folder / "corpus.v2").mkdir()
    (dotted / "defs.yaml").write_text(GOOD.replace("mine", "second"))
    values = ("defs.yaml", "corpus.v2", "'.'")
    with raises(ConfigError, *values):
        project.load(dotted / "defs.yaml")
    specs = load_assets(project)
    assert {"mine/manifest", "other/manifest"} <= set(specs)
    assert_names(specs["second/cannot_be_loaded"].description or "", *values)


def test_datasets_that_depend_on_each_other_keep_the_others_in_the_code_location(project: Declarations) -> None:
    names = ["mine", "other", "third", "fourth"]
    for name, others in zip(names, (["other"], ["third"], ["mine"], ["third"]), strict=True):
        (folder := project.folder / name).mkdir(exist_ok=True)
        text = GOOD.replace("mine", name) + f"  duplicates: {{kind: exact, against: {others}}}\n"
        (folder / "defs.yaml").write_text(text)
    specs = load_assets(project)
    broken = {key.partition("/")[0]: spec for key, spec in specs.items() if key.endswith("/cannot_be_loaded")}
    assert sorted(broken) == ["mine", "other", "third"]
    assert_names(broken["other"].description or "", "other")
    # `fourth` depends on one of the broken datasets, but is still loaded.
    assert "fourth/duplicates" in specs


def test_two_datasets_with_one_name_are_both_named(project: Declarations) -> None:
    (project.folder / "mine" / "defs.yaml").write_text(GOOD.replace("mine", "other"))
    assert set(load_assets(project)) == {"mine/cannot_be_loaded", "other/cannot_be_loaded"}


def test_without_a_broken_file_the_location_is_the_whole_tree(project: Declarations) -> None:
    shutil.rmtree(project.folder / "other")
    assert {key.partition("/")[0] for key in load_assets(project)} == {"mine"}


def test_every_shipped_file_is_loaded() -> None:
    shipped = open_declarations(read_project(PROJECT_ROOT))  # type: ignore[arg-type]
    assert len(shipped.paths) >= 14
    for path in shipped.paths:
        found = shipped.load(path)
        assert isinstance(found, Dataset), path
        assert found.folder == path.parent
        # Also load the dataset in Dagster's own way, as the code location does.
        by_dagster = shipped.tree(path.parent).load_component(Path())
        assert isinstance(by_dagster, Dataset)
        assert found.declaration == by_dagster.declaration


def test_a_date_in_a_template_variable_is_text_as_in_dagster(project: Declarations) -> None:
    path = project.files["mine"]
    shipped = PROJECT_ROOT / "dataprep_assets" / "defs" / "samples" / "sample_blend_sft"
    shutil.copytree(shipped, path.parent, dirs_exist_ok=True)
    path.write_text((shipped / "defs.yaml").read_text() + "  sft: {template_kwargs: {date_string: 2024-07-26}}\n")
    path.write_text(re.sub(r"(?m)^  sft:\n(    .*\n)+", "", path.read_text()))
    found = project.load(path)
    assert isinstance(found, Dataset)
    assert found.declaration.model_dump()["sft"]["template_kwargs"] == {"date_string": "2024-07-26"}


def test_a_project_whose_package_is_installed_from_another_folder_is_refused(
    project: Declarations, tmp_path: Path
) -> None:
    package, second = project.module.__name__.partition(".")[0], tmp_path / "second"
    shutil.copytree(tmp_path / package, second / package)
    for root in (tmp_path, second):
        (root / "pyproject.toml").write_text(f'[tool.dg.project]\nroot_module = "{package}"\n')
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    for root in (tmp_path, link):
        assert set(open_declarations(read_project(root)).files) == {"mine", "other"}  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as raised:
        open_declarations(read_project(second))  # type: ignore[arg-type]
    for named in (second / package / "defs", project.folder, f"pip install -e {second}"):
        assert str(named) in str(raised.value)


def test_templates_are_rendered(project: Declarations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOLD", "from the environment")
    path = project.files["mine"]
    path.write_text(GOOD.replace("description: text", 'description: "{{ env.TOLD }}"'))
    found = project.load(path)
    assert isinstance(found, Dataset)
    assert found.declaration.description == "from the environment"


def test_dagsters_own_keys_are_accepted_but_a_cron_that_never_matches_is_not(project: Declarations) -> None:
    path = project.files["mine"]
    for more in ("requirements: {env: [HOME]}\n", "  automation: {schedule: '0 3 * * 1'}\n"):
        path.write_text(GOOD + more)
        assert isinstance(project.load(path), Dataset)
    path.write_text(GOOD + "  automation: {schedule: '0 3 31 2 *'}\n")
    with raises(ConfigError, "automation.schedule", "'0 3 31 2 *'"):
        project.load(path)


@pytest.mark.parametrize(
    "name", ["defs.yml", "def.yaml", "defs.YAML", "Defs.yaml", "definitions.yaml", "component.yaml", "defs.yaml.txt"]
)
def test_a_declaration_with_a_file_name_that_is_not_loaded_is_an_error(project: Declarations, name: str) -> None:
    misnamed = project.folder / "late" / name
    misnamed.parent.mkdir()
    misnamed.write_text(GOOD.replace("mine", "late"))
    (project.folder / "mine" / "defs.yml").write_text(GOOD)  # this file is misnamed, but next to a valid declaration
    (project.folder / "late" / "dataset.yaml").write_text("rows: 3\n")  # this is not a declaration, despite its name
    assert {path for path in project.paths if path.name != "defs.yaml"} == {
        misnamed,
        misnamed.parents[1] / "mine/defs.yml",
    }
    assert find_files_below(project.folder)["late"] == misnamed
    assert find_files_below(project.folder)["mine"] == project.folder / "mine" / "defs.yaml"
    with raises(ConfigError, misnamed, "defs.yaml"):
        project.load(misnamed)
    assert isinstance(project.load(project.files["mine"]), Dataset)
    loaded = bind_resources(merge_definitions(project, project.tree(project.folder)), project.project_root)
    keys = {key.to_user_string() for key in loaded.resolve_all_asset_keys()}
    assert {"late/cannot_be_loaded", "mine/manifest", "other/manifest"} <= keys


def test_check_reports_the_file_and_continues(project: Declarations, capsys: pytest.CaptureFixture[str]) -> None:
    root = project.project_root
    (root / "pyproject.toml").write_text(
        f'[tool.dg.project]\nroot_module = "{project.module.__name__.split(".")[0]}"\n'
    )
    (project.folder / "mine" / "defs.yaml").rename(project.folder / "mine" / "defs.yml")
    (project.folder / "other" / "defs.yaml").write_text("type: " + "[" * 50_000)
    assert main(["--project", str(root), "check"]) == 2
    told = capsys.readouterr()
    assert f"{project.folder}/mine/defs.yml: files" in told.out + told.err
    assert f"{project.folder}/other/defs.yaml:1: blocks and lists" in told.out + told.err


@pytest.mark.parametrize(
    ("text", "component"),
    [
        ("{type: a.b.TokenizedCorpus, attributes: {dataset: mine}}", "TokenizedCorpus"),
        ('{"type": "a.TrainingBlend",\n "attributes": {"dataset": "mine"}}', "TrainingBlend"),
        ("? type\n: !!str a.Notes\n", "Notes"),
        ("attributes: {}\ntype:\n  a.Notes\n", "Notes"),
        ("type: a.Notes\n  dataset: [", "Notes"),
        ("- 1", None),
    ],
)
def test_the_component_of_a_file_is_found_in_any_style(text: str, component: str | None, tmp_path: Path) -> None:
    (tmp_path / "defs.yaml").write_text(text)
    assert read_component(tmp_path / "defs.yaml") == component
