"""The YAML that users write: valid declarations, and messages about mistakes."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from dataprep_assets.definitions import PROJECT_ROOT, defs
from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.errors import ConfigError, TokenizerError
from dataprep_assets.orchestration.checks import build_checks
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.views import VIEWS
from dataprep_assets.project_template import TEMPLATE
from dataprep_assets_tests import forked
from dataprep_assets_tests.dg_command import run_dg
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.corpus.corpus_source import source_texts
from dataprep_assets_tests.project import sample_attributes, scaffold


@pytest.mark.parametrize(
    ("change", "key", "told"),
    [
        ({"dtype": "int16"}, "dtype", "one of auto, uint16, uint32"),
        ({"source": {"kind": "ftp", "path": "x"}}, "source", "one of local, hub, hf_cache"),
        ({"source": {"kind": "hub", "repo": "no-slash", "revision": "main"}}, "source.repo", "no-slash"),
        ({"source": {"kind": "hub", "repo": "a/b"}}, "source.revision", "missing: "),
        ({"splits": {}}, "splits", "must not be empty"),
        ({"splits": {"train split": ["**"]}}, "splits", "'train split'"),
        ({"splits": {"train": []}}, "splits", "no globs"),
        ({"shards": {"count": 2, "target_bytes": 5}}, "shards", "cannot be combined with `count`"),
        ({"shards": {"count": 0}}, "shards.count", "at least 1"),
        ({"bad_records": {"policy": "ignore"}}, "bad_records.policy", "one of fail, drop"),
        ({"bad_records": {"budget": 2}}, "bad_records.budget", "at most 1"),
        ({"bad_records": {"budget": 0.1}}, "bad_records", "`budget` has no effect with `policy: fail`. Remove it"),
        ({"views": ["tfds"]}, "views.0", f"one of {', '.join(VIEWS)}"),
        ({"tokenizer": {}}, "tokenizer", "exactly one of `path`"),
        ({"tokenizer": {"repo": "Qwen/Qwen3-0.6B"}}, "tokenizer", "Pin the commit"),
        ({"document": {"special_tokens": "yes"}}, "document.special_tokens", "one of text, match"),
        ({"tokeniser": {}}, "tokeniser", "unknown key; "),
        ({"dataset": "has space"}, "dataset", "has space"),
        ({"workers": 0}, "workers", "at least 1"),
    ],
)
def test_a_wrong_declaration_names_file_key_value_and_what_is_allowed(
    change: dict[str, object], key: str, told: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as raised:
        validate_declaration(CorpusDeclaration, sample_attributes(**change), tmp_path / "defs.yaml")
    message = str(raised.value)
    assert f"{tmp_path / 'defs.yaml'}: {key}" in message
    assert told in message


def test_relative_paths_are_relative_to_the_yaml(tmp_path: Path) -> None:
    corpus = validate_declaration(
        CorpusDeclaration,
        sample_attributes(source={"kind": "local", "path": "./data"}, tokenizer={"path": "../tok"}),
        tmp_path / "d" / "defs.yaml",
    )
    assert corpus.source.path == tmp_path / "d" / "data"  # type: ignore[union-attr]
    assert corpus.tokenizer.path == tmp_path / "tok"


def test_auto_separator_refuses_a_chat_turn_token(shared: Path, tmp_path: Path) -> None:
    from dataprep_assets.pipelines.corpus.token_bins import build_meta

    corpus = validate_declaration(
        CorpusDeclaration,
        sample_attributes(tokenizer={"path": str(shared / "tokenizers" / "qwen3")}, document={}),
        tmp_path / "defs.yaml",
    )
    with raises(TokenizerError, "document.separator", "<|im_end|>", "<|endoftext|>"):
        build_meta(corpus)


def test_the_shipped_definitions_load_with_their_groups() -> None:
    loaded = defs()
    groups = {spec.group_name for spec in loaded.resolve_all_asset_specs()}
    assert {"sample_corpus", "sample_notes", "sample_blend_rl"} <= groups
    for spec in loaded.resolve_all_asset_specs():
        assert spec.description
        assert spec.kinds


def test_the_graph_leads_from_manifest_to_views() -> None:
    graph = defs().resolve_asset_graph()
    names = {
        key.to_user_string(): {p.to_user_string() for p in graph.get(key).parent_keys}
        for key in graph.get_all_asset_keys()
    }
    assert names["sample_corpus/snapshot_train"] == {"sample_corpus/manifest"}
    assert names["sample_corpus/token_bins_train"] == {
        "sample_corpus/snapshot_train",
        "sample_corpus/engine_certificate",
    }
    assert names["sample_corpus/combined_bins_train"] == {"sample_corpus/token_bins_train"}
    assert names["sample_corpus/nanogpt_bins"] == {f"sample_corpus/combined_bins_{s}" for s in ("train", "val", "test")}
    assert names["sample_corpus/data_card"] == {f"sample_corpus/{view}_bins" for view in VIEWS}


def test_the_code_location_has_one_name_everywhere() -> None:
    import tomllib

    project = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text())["tool"]["dg"]["project"]
    (location,) = yaml.safe_load((PROJECT_ROOT / "workspace.yaml").read_text())["load_from"]
    assert location["python_module"]["location_name"] == project["code_location_name"]
    assert location["python_module"]["module_name"] == project["code_location_target_module"]
    deploy = PROJECT_ROOT / "deploy"
    (compose,) = yaml.safe_load((deploy / "compose" / "workspace.yaml").read_text())["load_from"]
    values = yaml.safe_load((deploy / "kubernetes" / "values.yaml").read_text())
    (server,) = values["dagsterWebserver"]["workspace"]["servers"]
    (deployment,) = values["dagster-user-deployments"]["deployments"]
    assert (server["host"], server["port"]) == (deployment["name"], deployment["port"])
    names = {project["code_location_name"], compose["grpc_server"]["location_name"], server["name"]}
    assert names == {"dataprep_assets"}


def test_the_scaffold_is_a_commented_declaration_that_validates(tmp_path: Path) -> None:
    written = scaffold(TokenizedCorpus, tmp_path / "my_corpus")
    assert "# or a branch, whose data can change" in written.read_text()
    attributes = yaml.safe_load(written.read_text())["attributes"]
    assert validate_declaration(CorpusDeclaration, attributes, written).dataset == "my_corpus"


@pytest.mark.slow
def test_dg_names_the_line_of_a_wrong_key_and_loads_the_others(cloned: Path) -> None:
    path = cloned / "dataprep_assets" / "defs" / "samples" / "sample_corpus" / "defs.yaml"
    path.write_text(path.read_text().replace("sample_rate: 0.05", "sample_rat: 0.05"))
    # `dg check yaml` checks only one file per component type (dagster-dg-core 1.13.27); `check defs` checks all.
    checked = run_dg(cloned, "check", "defs")
    told = checked.stdout + checked.stderr
    assert checked.returncode == 0, told
    assert_names(told, "sample_corpus")
    assert re.search(r"sample_corpus/defs\.yaml:\d+: sample_rat: unknown key; did you mean `sample_rate`", told)


@pytest.mark.slow
def test_dg_launch_materializes_a_declared_corpus(cloned: Path) -> None:
    home = cloned / "home"
    home.mkdir()
    shutil.copy(TEMPLATE / "dagster.yaml", home)
    (cloned / ".env").write_text(f"DAGSTER_HOME={home}\n")
    for assets, partition in (
        ('key:"sample_corpus/manifest" or key:"sample_corpus/engine_certificate"', None),
        ('key:"sample_corpus/snapshot_val" or key:"sample_corpus/token_bins_val"', "val-00000"),
    ):
        arguments = ["launch", "--assets", assets, *(["--partition", partition] if partition else [])]
        launched = run_dg(cloned, *arguments)
        assert launched.returncode == 0, launched.stdout[-3000:] + launched.stderr[-3000:]
    assert (cloned / "artifacts" / "sample_corpus" / "token_bins" / "val-00000" / "tokens.bin").stat().st_size > 0


@pytest.mark.slow
def test_dg_launch_does_not_publish_what_is_built_from_a_sensitive_dataset(
    cloned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATIENT_KEY", "0123456789abcdef" * 3)
    name = "sample_notes_replay_combined"
    notes = {"sensitive": True, "patient_key": {"env": "PATIENT_KEY"}}
    for dataset, changes in (("sample_notes", notes), (name, {"publish": {"hub": "a/b"}})):
        path = cloned / "dataprep_assets" / "defs" / "samples" / dataset / "defs.yaml"
        value = yaml.safe_load(path.read_text())
        value["attributes"] |= changes
        path.write_text(yaml.safe_dump(value))
    launched = run_dg(cloned, "launch", "--assets", f'key:"{name}/published"')
    assert launched.returncode != 0
    assert_names(launched.stdout + launched.stderr, "publish: ", "sample_notes, which is sensitive")


@pytest.mark.slow
@pytest.mark.shared
def test_real_text_declared_only_in_yaml_equals_the_reference_and_passes_every_check(
    cloned: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dagster as dagster_api
    import numpy as np
    from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
    from tokenizers import Tokenizer

    home = cloned / "home"
    folder = cloned / "dataprep_assets" / "defs" / "real_text"
    folder.mkdir()
    declaration = sample_attributes(
        dataset="real_text",
        source={"kind": "local", "path": str(shared / "data" / "corpus")},
        splits={"train": ["train/chunk10/**"], "val": ["validation/**"], "test": ["test/**"]},
        tokenizer={"path": str(shared / "tokenizers" / "qwen3"), "name": "qwen3"},
        shards={"count": 1},
        workers=1,  # each worker loads the tokenizer, which takes longer than tokenizing so little text
    )
    text = yaml.safe_dump({"type": "dataprep_assets.components.TokenizedCorpus", "attributes": declaration})
    (folder / "defs.yaml").write_text(text)
    environment = {
        **os.environ,
        "PYTHONPATH": str(cloned),
        "DAGSTER_HOME": str(home),
        "DATAPREP_ROOT": str(cloned / "artifacts"),
    }
    forked.run(["-m", "dataprep_assets.cli", "run", "real_text"], cwd=cloned, env=environment, check=True)
    specs = corpus_specs(validate_declaration(CorpusDeclaration, declaration, folder / "defs.yaml"))
    keys = [key for spec in specs if spec.checks for key in build_checks(spec).check_keys]
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dagster_api.DagsterInstance.get() as instance:
        records = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    passed = [k for k, record in records.items() if record.status == AssetCheckExecutionRecordStatus.SUCCEEDED]
    assert set(passed) == set(keys)
    reference = Tokenizer.from_file(str(shared / "tokenizers" / "qwen3" / "tokenizer.json"))
    reference.encode_special_tokens = True
    for split, source in (("val", "validation"), ("test", "test")):
        expected: list[int] = []
        for encoding in reference.encode_batch(
            source_texts(shared / "data" / "corpus" / source), add_special_tokens=False
        ):
            expected += [*encoding.ids, 151643]
        written = np.fromfile(cloned / "artifacts" / "real_text" / "nanogpt_bins" / f"{split}.bin", "<u4")
        assert np.array_equal(written, expected)
    meta = json.loads((cloned / "artifacts" / "real_text" / "nanogpt_bins" / "meta.json").read_bytes())
    assert meta | {"tokenizer_sha256": ""} == {
        "tokenizer": "qwen3",
        "vocab_size": 151669,
        "eos_token_id": 151643,
        "eos_token": "<|endoftext|>",
        "dtype": "uint32",  # `dtype: auto` gives uint32, because the ids do not fit into uint16
        "tokenizer_sha256": "",
    }
