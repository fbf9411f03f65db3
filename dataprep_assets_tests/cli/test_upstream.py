"""A corpus and a blend over the files of the user's own Dagster asset, in a project under another name."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from dataprep_assets_tests import forked
from dataprep_assets_tests.cli.commands import dataprep, environment
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.samples import SAMPLE

pytestmark = pytest.mark.slow
ASSETS = '''"""The team's own cleaning: an asset without partitions, and one with two."""

import json
import os
from pathlib import Path

import dagster as dg

OUT = Path(__file__).parents[2] / "cleaned"
TEXTS = OUT.with_name("texts.json")


def _write(folder: Path, texts: list[str]) -> dg.MaterializeResult:
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps({"text": text}) + "\\n" for text in texts)
    (folder / "part.jsonl").write_text(lines)
    return dg.MaterializeResult(metadata={"path": dg.MetadataValue.path(str(folder)), "documents": len(texts)})


@dg.asset(key=["team", "cleaned"])
def cleaned(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    return _write(OUT / context.run_id, json.loads(TEXTS.read_text()))


@dg.asset(key=["team", "by_part"], partitions_def=dg.StaticPartitionsDefinition(["train", "held-out"]))
def by_part(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    return _write(OUT / "parts" / context.partition_key, [f"{context.partition_key} {at}" for at in range(30)])


@dg.asset(key=["team", "silent"])
def silent() -> None:
    _write(OUT / "silent", [f"said {at}" for at in range(30)])
'''
TAIL = f"""  tokenizer: {{path: {SAMPLE / "tokenizer"}}}
  document: {{separator: "<|endoftext|>"}}
  views: [nanogpt]
"""
CORPUS = f"""type: dataprep_assets.components.TokenizedCorpus
attributes:
  dataset: NAME
  source: SOURCE
  include: ["**/*.jsonl"]
  splits: SPLITS
{TAIL}"""
BLEND = f"""type: dataprep_assets.components.TrainingBlend
attributes:
  dataset: mixed
  stage: pretrain
  blend: {{datasets: [{{name: own, path: "asset://team/cleaned", weight: 1.0}}]}}
  num_shards: 2
  tokenizer: {{path: {SAMPLE / "tokenizer"}}}
  pretrain: {{separator: "<|endoftext|>", sequence_length: 64}}
"""
LINEAGE = """
import json, sys
from pathlib import Path
from dataprep_assets.code_location import definitions_of
found = definitions_of(Path(sys.argv[1])).resolve_asset_graph()
print(json.dumps({key.to_user_string(): sorted(k.to_user_string() for k in found.get(key).parent_keys)
                  for key in found.get_all_asset_keys()}))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    done = dataprep(tmp_path, "init", str(tmp_path / "Our-Work"))
    assert done.returncode == 0, done.stderr
    found = tmp_path / "Our-Work"
    defs = found / "our_work" / "defs"
    shutil.rmtree(defs / "sample_corpus")
    (defs / "cleaning.py").write_text(ASSETS)
    _texts(found, [f"document {at} of the team" for at in range(40)])
    return found


def _texts(project: Path, texts: list[str]) -> None:
    (project / "texts.json").write_text(json.dumps(texts))


def _declare(project: Path, name: str, source: str, splits: str) -> Path:
    folder = project / "our_work" / "defs" / name
    folder.mkdir()
    yaml = CORPUS.replace("NAME", name).replace("SOURCE", source).replace("SPLITS", splits)
    (folder / "defs.yaml").write_text(yaml)
    return folder / "defs.yaml"


def _dagster(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of Dagster's own commands in the project, as a user types it."""
    env = environment(project) | {"PYTHONPATH": str(project)}
    Path(env["DAGSTER_HOME"]).mkdir(exist_ok=True)
    return forked.run(["-m", "dagster", *arguments], cwd=project, env=env)


def _materialize(project: Path, key: str, *more: str) -> None:
    done = _dagster(project, "asset", "materialize", "--select", key, "-m", "our_work.definitions", *more)
    assert done.returncode == 0, done.stderr[-3000:]


def _run(project: Path, *arguments: str, code: int = 0) -> str:
    done = dataprep(project, *arguments, project=project)
    assert done.returncode == code, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def _tokens(project: Path, dataset: str) -> bytes:
    return (project / "artifacts" / dataset / "combined_bins" / "train" / "train.bin").read_bytes()


def test_a_corpus_reads_an_assets_files_and_follows_its_changes(project: Path) -> None:
    _declare(project, "ours", "{kind: asset, key: [team, cleaned]}", '{train: ["**"]}')
    home = f"DAGSTER_HOME={environment(project)['DAGSTER_HOME']}"
    told = f"Run `{home} dg launch --assets team/cleaned` first"
    assert told in _run(project, "check", "ours", code=2)
    assert told in _run(project, "run", "ours", code=2), "nothing was made of it yet"

    _materialize(project, "team/cleaned")
    assert "no errors found" in _run(project, "check", "ours")
    _run(project, "run", "ours")
    before = _tokens(project, "ours")
    trace = _run(project, "trace", "ours", "--split", "train", "--document", "7")
    assert trace.startswith("part.jsonl:8\n")
    assert "everything is up to date" in _run(project, "status", "ours")

    # Rebuild the asset at a different location with the same files: no artifact is out of date.
    _materialize(project, "team/cleaned")
    assert "everything is up to date" in _run(project, "status", "ours")
    assert "nothing to do" in _run(project, "run", "ours")
    assert len(list((project / "cleaned").iterdir())) == 2

    # Rebuild the asset with different texts: downstream artifacts are out of date, and a run builds them.
    _texts(project, [f"another document {at}" for at in range(41)])
    _materialize(project, "team/cleaned")
    assert "token_bins" in _run(project, "status", "ours", code=1)
    _run(project, "run", "ours")
    assert _tokens(project, "ours") != before
    done = forked.run(["-c", LINEAGE, project], env={**environment(project), "PYTHONPATH": str(project)}, cwd=project)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ours/manifest"] == ["team/cleaned"]

    shutil.rmtree(project / "cleaned")
    assert_names(_run(project, "run", "ours", code=1), "exist")


def test_partitions_are_folders_that_splits_name(project: Path) -> None:
    splits = '{train: ["train/**"], val: ["held-out/**"]}'
    yaml = _declare(project, "parts", "{kind: asset, key: [team, by_part]}", splits)
    _materialize(project, "team/by_part", "--partition", "train")
    assert_names(_run(project, "check", "parts", code=2), "splits.val", "held-out/**")
    _materialize(project, "team/by_part", "--partition", "held-out")
    _run(project, "run", "parts")
    trace = _run(project, "trace", "parts", "--split", "val", "--document", "2")
    assert trace.startswith("held-out/part.jsonl:3\n")
    yaml.write_text(yaml.read_text().replace("by_part]}", 'by_part], path: "../../../cleaned/parts/{partition}"}'))
    # No shard is rebuilt, because the files are the same.
    assert "token_bins" not in _run(project, "run", "parts")


def test_an_asset_without_a_reported_location_uses_the_declared_one(project: Path) -> None:
    yaml = _declare(project, "silent", "{kind: asset, key: [team, silent]}", '{train: ["**"]}')
    _materialize(project, "team/silent")
    assert_names(_run(project, "run", "silent", code=2), "`path`", "`uri`")
    yaml.write_text(yaml.read_text().replace("silent]}", "silent], path: ../../../cleaned/silent}"))
    _run(project, "run", "silent")
    assert "silent]" in yaml.read_text()


def test_a_blend_reads_an_asset_by_its_path(project: Path) -> None:
    folder = project / "our_work" / "defs" / "mixed"
    folder.mkdir()
    (folder / "defs.yaml").write_text(BLEND)
    assert "team/cleaned was never materialized" in _run(project, "run", "mixed", code=2)
    _materialize(project, "team/cleaned")
    _run(project, "run", "mixed")
    _materialize(project, "team/cleaned")
    assert "nothing to do" in _run(project, "run", "mixed")


def test_another_datasets_artifact_works_as_an_upstream(project: Path) -> None:
    _declare(project, "ours", "{kind: asset, key: [team, cleaned]}", '{train: ["**"]}')
    _materialize(project, "team/cleaned")
    _run(project, "run", "ours")
    _declare(project, "after", "{kind: asset, key: [ours, manifest]}", '{train: ["manifest.jsonl"]}')
    path = project / "our_work" / "defs" / "after" / "defs.yaml"
    path.write_text(path.read_text() + "  text_field: relpath\n")
    _run(project, "run", "after")
    assert _run(project, "trace", "after", "--split", "train", "--document", "0").startswith("manifest.jsonl:1\n")
