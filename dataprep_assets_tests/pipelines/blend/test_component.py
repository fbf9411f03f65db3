"""The YAML of a training blend: valid declarations, messages about mistakes, and shipped blends."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
import yaml  # type: ignore[import-untyped]

import dataprep_assets
from dataprep_assets.cli.support.project import use_dataset as dataset_named
from dataprep_assets.code_location import bind_resources
from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.errors import ConfigError, MissingArtifactError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.orchestration.component import build_dataset_definitions
from dataprep_assets.pipelines.blend.component import TrainingBlend
from dataprep_assets.pipelines.blend.dataset import count_shards_per_run
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.rl.transforms import list_declared_sources
from dataprep_assets.tokenization.chat.choices import NEMOTRON
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.blend.blend_project import read_declaration
from dataprep_assets_tests.project import scaffold

EXAMPLES = Path(dataprep_assets.__file__).parent / "defs" / "examples"
STAGES = {"pretrain": "indexed_bins", "sft": "packed_sft", "rl": "rl_jsonl"}


def attributes(**changes: Any) -> dict[str, Any]:
    return {
        "dataset": "mixed",
        "stage": "pretrain",
        "blend": {"datasets": [{"name": "code", "path": "code"}]},
        "tokenizer": {"path": "tokenizer"},
        **changes,
    }


def entry(**changes: Any) -> dict[str, Any]:
    return {"datasets": [{"name": "code", "path": "code", **changes}]}


@pytest.mark.parametrize(
    ("change", "key", "told"),
    [
        ({"blend": {"datasets": []}}, "blend", "`datasets` is empty"),
        (
            {"blend": {"datasets": [{"name": "a", "path": "x"}], "train": []}},
            "blend",
            "`datasets` cannot be combined with",
        ),
        ({"blend": {"datasets": [{"name": "a", "path": "x"}] * 2}}, "blend", "lists a twice"),
        ({"blend": entry(weight=-1)}, "blend.datasets.0.weight", "at least 0"),
        ({"blend": entry(weight=0)}, "blend", "every weight is 0"),
        ({"blend": entry(wieght=1)}, "blend.datasets.0.wieght", "unknown key; "),
        ({"stage": "dpo"}, "stage", "one of pretrain, sft, pairs, rl"),
        (
            {"stage": "rl"},
            "attributes",
            "`tokenizer` has no effect with `stage: rl`. Remove it",
        ),
        (
            {"stage": "rl", "tokenizer": None, "train_tokens": 9},
            "attributes",
            "`train_tokens` has no effect with `stage: rl`, whose records have no tokens",
        ),
        ({"sft": {"pack_size": 64}}, "attributes", "` has no effect with `stage"),
        ({"pretrain": {"dtype": "uint32"}}, "pretrain.dtype", "one of auto, int32, uint16"),
        ({"num_shards": 0}, "num_shards", "at least 1"),
        ({"sample": {"count": 1, "percent": 5}}, "sample", "exactly one of `count`"),
        ({"tolerance": 2}, "tolerance", "at most 1"),
        ({"sample": 1000}, "sample", "`sample: 1000` limits rows only in Nemotron's data_prep"),
    ],
)
def test_a_wrong_declaration_names_file_key_and_what_is_allowed(
    change: dict[str, Any], key: str, told: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as raised:
        validate_declaration(BlendDeclaration, attributes(**change), tmp_path / "defs.yaml")
    message = str(raised.value)
    assert message.startswith(f"{tmp_path / 'defs.yaml'}: ")
    assert key == "attributes" or f"{key}: " in message
    assert told in message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"datasets": [{"name": "a", "path": "x", "weight": 1, "weight": 2}]}', "the key 'weight' occurs twice"),
        ('{"datasets": [{"name": "a", "path": "x", "weight": NaN}]}', "NaN is not a valid JSON number"),
        ('{"datasets": [{"name": "a"}]}', "blend.json:1: datasets.0.path: missing"),
        ("[]", "blend.json"),
        ("{", "not a blend file"),
    ],
)
def test_an_invalid_blend_file_is_named(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "blend.json").write_text(text)
    made = validate_declaration(BlendDeclaration, attributes(blend="blend.json"), tmp_path / "defs.yaml")
    with pytest.raises(ConfigError) as raised:
        made.load_data_blend()
    assert str(tmp_path / "blend.json") in str(raised.value)
    assert told in str(raised.value)


@pytest.mark.parametrize("written", ["{% for m in messages %}{{ m.content }}\n{% endfor %}\n", "{{ messages[0] }}"])
def test_jinja_in_the_yaml_is_kept_unchanged(written: str) -> None:
    folder = EXAMPLES.parent / "samples" / "sample_blend_sft"
    given = yaml.safe_load((folder / "defs.yaml").read_text())["attributes"]
    given["sft"]["chat_template"] = written
    context = SimpleNamespace(path=folder, resolution_context=dg.ResolutionContext.default())
    loaded = TrainingBlend.load(TrainingBlend.get_model_cls().model_validate(given), context)  # type: ignore[arg-type]
    assert loaded.declaration.sft_options.chat_template == written


def test_a_blend_is_equal_inline_and_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "blend.json").write_text(json.dumps(entry(weight=2)))
    inline, in_file = (
        validate_declaration(BlendDeclaration, attributes(blend=b), tmp_path / "defs.yaml").load_data_blend()
        for b in (entry(weight=2), "blend.json")
    )
    assert inline == in_file
    assert inline.list_units()[0].dataset.path == str(tmp_path / "code")


def test_every_path_is_relative_to_the_folder_of_the_yaml(tmp_path: Path) -> None:
    """This holds in any working folder: `data/code` is next to its declaration."""
    home = tmp_path / "defs" / "mixed"
    paths = [
        "data/code",
        "data/*.jsonl",
        "../shared/a.parquet",
        "/absolute/b",
        "hf://org/d@main",
        "s3://b/p",
        "gs://b/p",
    ]
    blend = {"train": [{"name": f"d{i}", "path": path} for i, path in enumerate(paths)]}
    sources = {"hub_cache": "hub", "object_cache": "objects"}
    made = validate_declaration(
        BlendDeclaration, attributes(blend=blend, sources=sources, storage="out"), home / "defs.yaml"
    )
    found = [unit.dataset.path for unit in made.load_data_blend().list_units()]
    local = [f"{home}/data/code", f"{home}/data/*.jsonl", f"{tmp_path}/defs/shared/a.parquet", "/absolute/b"]
    assert found == [*local, "hf://org/d@main", "s3://b/p", "gs://b/p"]
    assert made.required_tokenizer.path == home / "tokenizer"
    assert (made.sources.hub_cache, made.sources.object_cache) == (home / "hub", home / "objects")
    assert made.storage == str(home / "out")


def test_placeholder_sources_are_relative_to_the_folder_of_the_yaml(tmp_path: Path) -> None:
    sources = {
        "a": {"path": "data/a.parquet", "kind": "dapo"},
        "b": {"path": "data/b", "split": "math", "kind": "skywork"},
        "nano_v3_sft_profiled_dapo17k": f"hf://org/c@{'0' * 40}",
    }
    transforms = ["nemotron_rl", {"resolve_hf_placeholders": {"sources": sources}}, {"select": ["messages"]}]
    yaml_path = tmp_path / "mixed" / "defs.yaml"
    rl = attributes(stage="rl", rl={"transforms": transforms})
    rl.pop("tokenizer")
    made = validate_declaration(BlendDeclaration, rl, yaml_path).rl_options.transforms
    found = {name: source.path for name, source in list_declared_sources(made).items()}
    local = {"a": f"{tmp_path}/mixed/data/a.parquet", "b": f"{tmp_path}/mixed/data/b"}
    assert found == local | {"nano_v3_sft_profiled_dapo17k": f"hf://org/c@{'0' * 40}"}
    assert (made[0], made[2]) == (transforms[0], transforms[2])


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("chat.jinja", "{folder}/chat.jinja"),
        ("chatml_reasoning", "chatml_reasoning"),
        ("{{ messages }}", "{{ messages }}"),
    ],
)
def test_a_template_file_is_found_next_to_the_yaml_even_before_it_exists(
    template: str, found: str, tmp_path: Path
) -> None:
    sft = attributes(stage="sft", sft={"chat_template": template})
    made = validate_declaration(BlendDeclaration, sft, tmp_path / "defs.yaml")
    assert made.sft_options.chat_template == found.replace("{folder}", str(tmp_path))


# --- what ships


@pytest.mark.parametrize("family", ["sample_blend", "nano3"])
def test_the_shipped_blends_load_as_assets_with_their_checks(family: str) -> None:
    for stage, shards in STAGES.items():
        name = f"{family}_{stage}"
        graph = bind_resources(build_dataset_definitions(dataset_named(name)), PROJECT_ROOT).resolve_asset_graph()
        keys = {k for k in graph.get_all_asset_keys() if k.path[0] == name}
        views = dataset_named(name).declaration.views
        expected = {"blend_plan", "blend_preview", "blend_snapshot", shards, "blend", "data_card"} | {*views}
        assert {k.path[-1] for k in keys} == expected | {"engine_certificate" if stage != "rl" else "rl_manifest"}
        for key in keys:
            assert graph.get(key).group_name == name
            assert graph.get(key).description
            assert [c for c in graph.asset_check_keys if c.asset_key == key]


def test_the_nano3_blends_equal_the_upstream_ones_with_pinned_sources() -> None:
    sizes = {stage: len(read_declaration(f"nano3_{stage}").load_data_blend().list_units()) for stage in STAGES}
    assert sizes == {"pretrain": 23, "sft": 12, "rl": 1}
    for stage in ("pretrain", "sft"):
        tokenizer = read_declaration(f"nano3_{stage}").required_tokenizer
        assert tokenizer.repo == "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-Base-BF16"
        assert len(tokenizer.revision or "") == 40
    for stage in STAGES:
        told = (EXAMPLES / f"nano3_{stage}" / "defs.yaml").read_text(encoding="utf-8")
        assert "e27b371" in told
        assert "2026-08-21" in told
    assert read_declaration("nano3_sft").sft_options.choices == NEMOTRON
    rl = read_declaration("nano3_rl")
    assert rl.rl_options.rules.changes["other_records"] == "messages"
    sources = list_declared_sources(rl.rl_options.transforms)
    assert {source.kind for source in sources.values()} == {"dapo", "skywork"}
    assert all("@" in source.path for source in sources.values())
    assert "@" in rl.load_data_blend().list_units()[0].dataset.path


def test_before_a_build_the_plan_is_stale_and_has_no_run(tmp_path: Path) -> None:
    made, store = TrainingBlend(read_declaration("sample_blend_rl")), LocalArtifacts(tmp_path)
    first, *others = find_stale(made.specs, store)
    assert (first.name, first.kind) == ("sample_blend_rl/blend_plan", "missing")
    assert [one.name.split("/")[1] for one in others] == [
        "blend_preview",
        "blend_snapshot",
        "rl_jsonl",
        "blend",
        "rl_manifest",
        "verl",
        "grpo",
        "nemo_gym",
        "data_card",
    ]
    assert list(tmp_path.iterdir()) == []
    with raises(MissingArtifactError, "blend_plan"):
        made.product(store)


def test_a_streaming_blend_keeps_its_workers_busy_with_few_runs() -> None:
    blend = read_declaration("nano3_pretrain").model_copy(update={"workers": 8})
    assert count_shards_per_run(blend, 40) == count_shards_per_run(blend, 2048) == 32
    assert count_shards_per_run(blend, 23 * 128) == 46


def test_the_scaffold_is_a_declaration_that_loads(tmp_path: Path) -> None:
    path = scaffold(TrainingBlend, tmp_path / "my_blend")
    made = validate_declaration(BlendDeclaration, yaml.safe_load(path.read_text())["attributes"], path)
    assert made.dataset == "my_blend"
    assert made.load_data_blend().list_units()[0].name == "code"
