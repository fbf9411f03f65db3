"""Training blends in Dagster: ordered partitions, tables, rebuilt artifacts, and failures that stay local."""

import json
from base64 import b64decode
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import dagster as dg
import orjson
import pytest

from dataprep_assets.engine.artifact.build import iterate_builds
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.orchestration.build import StepResult, build_job
from dataprep_assets.orchestration.partitions import register_in_order
from dataprep_assets.pipelines.blend.plan.planner import plan_blend
from dataprep_assets.resources import create_resources
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.blend.dagster_blend import (
    QUIET,
    REFERENCE,
    Blend,
    declare_chats,
    declare_tasks,
    find_failed,
    open_blend,
    read_evaluations,
    read_rows,
)
from dataprep_assets_tests.pipelines.blend.pipeline import (
    declare_pretraining,
    make_texts,
    write_rows,
    write_small_sources,
)
from dataprep_assets_tests.project import differing_versions, failure_of
from dataprep_assets_tests.tools.sample.make_sample_blends import task


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blend]:
    home = tmp_path_factory.mktemp("pretrain")
    declaration = declare_pretraining(write_small_sources(home / "sources"), held_out={"valid": 1}, workers=1)
    with open_blend(declaration, home / "artifacts") as made:
        outcomes = made.run_all()
        assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
        assert find_failed(read_evaluations(outcomes)) == REFERENCE
        yield made


def test_the_shards_are_partitions_in_the_order_of_the_plan(finished: Blend) -> None:
    wanted = [f"{name}-{index:05d}" for name in ("code", "web") for index in range(3)]
    assert finished.plan.partitions == wanted
    assert list(finished.instance.get_dynamic_partitions("small_blend_shards")) == wanted
    for asset in ("blend_snapshot", "indexed_bins"):
        assert finished.instance.get_materialized_partitions(finished.key(asset)) == set(wanted)


def test_new_shards_of_a_dataset_are_registered_before_those_of_the_next() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        for wanted in (["a-0", "b-0", "b-1"], ["a-0", "a-1", "b-0", "b-1"], ["a-0", "b-0"], ["b-0", "a-0", "c-0"], []):
            register_in_order(instance, "shards", wanted)
            assert list(instance.get_dynamic_partitions("shards")) == wanted


def test_the_three_tables_and_both_shares_are_shown(finished: Blend) -> None:
    plan = read_rows(finished.metadata("blend_plan")["plan_table"])
    assert [(r["dataset_name"], r["weight"], r["num_shards"], r["status"]) for r in plan] == [
        ("code", 3.0, 3, "planned"),
        ("web", 1.0, 3, "planned"),
    ]
    assert {"path", "size", "split", "subset", "dtype", "min_doc_chars", "max_doc_tokens", "max_rows", "sample"} <= set(
        plan[0]
    )
    preview = read_rows(finished.metadata("blend_preview")["preview"])
    assert [(r["name"], r["rows"], r["requested"]) for r in preview] == [("code", 90, 0.75), ("web", 60, 0.25)]
    shown = finished.metadata("blend")
    progress = read_rows(shown["progress_table"])
    assert [(r["dataset_name"], r["total_shards"], r["downloaded"], r["processed"], r["status"]) for r in progress] == [
        ("code", 3, 3, 3, "completed"),
        ("web", 3, 3, 3, "completed"),
    ]
    assert sum(r["total_sequences"] for r in progress) == 150
    stages = {r["stage"]: r for r in read_rows(shown["stage_table"])}
    assert {name: (r["tasks"], r["queue_in"], r["queue_out"]) for name, r in stages.items()} == {
        "blend_plan": (1, 0, 0),
        "blend_preview": (1, 0, 0),
        "blend_snapshot": (6, 0, 0),
        "engine_certificate": (1, 0, 0),
        "indexed_bins": (6, 0, 0),
        "blend": (1, 0, 0),
    }
    assert (stages["indexed_bins"]["rows"], stages["blend"]["rows"]) == (150, 150)
    assert stages["indexed_bins"]["tokens"] == stages["blend"]["tokens"] == sum(r["total_tokens"] for r in progress)
    receipts = finished.store.receipts(
        [finished.declaration.artifact("indexed_bins", p) for p in finished.plan.partitions]
    )
    assert stages["indexed_bins"]["bytes"] == sum(r.total_bytes for r in receipts if r)
    assert stages["indexed_bins"]["cpu_seconds"] == round(sum(r.measured["cpu_seconds"] for r in receipts if r), 1)
    assert all(r["first"] and r["first"] <= r["last"] for r in stages.values())
    assert {(r["split"], r["name"], round(r["realized"], 6)) for r in read_rows(shown["shares_table"])} == {
        ("train", "code", 0.75),
        ("train", "web", 0.25),
        ("valid", "code", 0.75),
        ("valid", "web", 0.25),
    }
    assert shown["realized_share_train_code"] == pytest.approx(0.75)
    for asset, entry in (
        ("blend", "requested_and_realized_shares"),
        ("blend_preview", "requested_and_realizable_shares"),
    ):
        alt, _, picture = finished.metadata(asset)[entry].removesuffix(")").partition("](data:image/svg+xml;base64,")
        assert alt.startswith("![requested and realiz")
        drawn = b64decode(picture).decode()
        assert {"train code", "train web", "0.7500"} <= {e.text for e in ElementTree.fromstring(drawn).iter()}
    assert f"--per-split-data-args-path {finished.run_directory}/blend.json" in shown["how_to_train"]


def test_a_second_run_rebuilds_nothing(finished: Blend) -> None:
    before = {p: p.stat().st_mtime_ns for p in finished.root.rglob("*") if p.is_file() and ".findings" not in p.parts}
    assert finished.stale() == []
    assert finished.component.product(finished.store) == finished.declaration.artifact("runs", finished.plan.run_hash)
    (outcome,) = finished.run_all()
    assert outcome.success
    assert list(outcome.get_asset_materialization_events()) == []
    assert before == {
        p: p.stat().st_mtime_ns for p in finished.root.rglob("*") if p.is_file() and ".findings" not in p.parts
    }


def test_a_grown_source_rebuilds_only_its_own_shards(tmp_path: Path) -> None:
    sources = write_small_sources(tmp_path / "sources")
    with open_blend(declare_pretraining(sources, workers=1), tmp_path / "artifacts") as made:
        made.run_all()
        first = made.run_directory
        web = made.directory("indexed_bins", "web-00000")
        stamp = (web / "receipt.json").stat().st_mtime_ns
        write_rows(sources / "code" / "part-3.jsonl", make_texts("code", 10, 90))
        assert made.stale()[0] == "small_blend/blend_plan"
        outcomes = made.run_all()
        assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
        assert find_failed(read_evaluations(outcomes)) == REFERENCE
        assert made.run_directory != first
        assert (web / "receipt.json").stat().st_mtime_ns == stamp
        events = [event.materialization for event in outcomes[0].get_asset_materialization_events()]
        of_bins = {
            one.partition: one.metadata["reused"].value for one in events if one.asset_key.path[-1] == "indexed_bins"
        }
        assert of_bins["code-00000"] is False
        assert of_bins.get("web-00000", True) is True


def test_a_source_that_rounds_to_zero_stops_the_run_before_tokenization(tmp_path: Path) -> None:
    declaration = declare_pretraining(write_small_sources(tmp_path / "sources"), train_tokens=100)
    with open_blend(declaration, tmp_path / "artifacts") as made:
        (outcome,) = made.run_all()
        assert not outcome.success
        found = read_evaluations([outcome])
        assert find_failed(found) == {"blend_preview.every_dataset_sampled"}
        assert_names(str(found["blend_preview.every_dataset_sampled"].description), "web", "0.250000", 0)
        assert read_rows(made.metadata("blend_preview")["preview"])[1]["samples"] == 0
        made_of = {p.name for p in (made.root / "small_blend").iterdir() if not p.name.startswith(".")}
        assert made_of == {"blend_plan", "blend_preview"}


def test_a_failed_shard_is_named_the_others_are_kept_and_the_blend_is_refused(tmp_path: Path) -> None:
    sources = write_small_sources(tmp_path / "sources")
    write_rows(sources / "web" / "train-00000.parquet", [{"text": "one"}, {"text": None}, {"text": "three"}])
    with open_blend(declare_pretraining(sources, num_shards=1, workers=1), tmp_path / "artifacts") as made:
        outcomes = made.run_all()
        assert not outcomes[-1].success
        assert "web-00000" in failure_of(outcomes[-1])
        key = made.key("indexed_bins")
        assert made.instance.get_materialized_partitions(key) == {"code-00000"}
        job = made.definitions.resolve_implicit_global_asset_job_def()
        last = job.execute_in_process(
            asset_selection=[made.key("blend")],
            instance=made.instance,
            raise_on_error=False,
            run_config=QUIET,
        )
        assert_names(failure_of(last), 1, 2, "web-00000")
        assert not made.run_directory.exists()


def test_packed_sft_shows_its_mask_unless_it_is_sensitive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "k" * 32)
    for sensitive in (False, True):
        keyed = {"sensitive": True, "source_key": {"env": "SOME_KEY"}} if sensitive else {}
        declaration = declare_chats(tmp_path / "sources", workers=1, **keyed)
        with open_blend(declaration, tmp_path / f"artifacts {sensitive}") as made:
            outcomes = made.run_all()
            assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
            found = read_evaluations(outcomes)
            assert find_failed(found) == REFERENCE
            shown = read_rows(found["packed_sft.sampled_sequences_trained"].metadata["table"].value)
            assert all((row["text"] == "withheld") == sensitive for row in shown)
            assert sensitive or all("⟦" in row["text"] and "<|im_end|>⟧" in row["text"] for row in shown)
            everything = str([(e.description, e.metadata) for e in found.values()])
            assert ("FICTION" in everything) != sensitive
            assert made.metadata("packed_sft", "first-00000")["stop_token"] == "<|im_end|>"
            # The metadata of a sensitive dataset omits these lines, because they contain counts. `dataprep show
            # --private` prints them.
            lines = made.metadata("blend").get("how_to_train", "")
            assert (f"packed_train_data_path={made.run_directory}/splits/train/" in lines) != sensitive


def test_rl_lists_every_shard_of_every_split(tmp_path: Path) -> None:
    with open_blend(declare_tasks(tmp_path / "sources", workers=1), tmp_path / "artifacts") as made:
        outcomes = made.run_all()
        assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
        found = read_evaluations(outcomes)
        assert find_failed(found) == set()
        assert found["blend.mixture_matches_weights"].passed
        listed = json.loads((made.run_directory / "shards.json").read_bytes())
        assert {split: len(listed[split]) for split in ("train", "val", "test")} == {"train": 2, "val": 2, "test": 0}
        manifest = json.loads((made.root / "small_rl" / "rl_manifest" / "manifest.json").read_bytes())
        assert manifest["test"] == ""
        lines = Path(manifest["train"]).read_bytes().splitlines()
        assert b"".join(Path(path).read_bytes() for path in listed["train"]).splitlines() == lines
        assert len(lines) == 20
        assert all(set(json.loads(line)) == {"messages"} for line in lines)


def read_ranges(made: Blend) -> list[int]:
    """Return the number of shards that are built at a time."""
    return [
        len(chosen)
        for spec, chosen in iterate_builds(made.component.specs, made.store)
        if spec.name == "blend_snapshot"
    ]


class Sources:
    """An attendant of a build that counts the downloaded sources and the shards after each range of shards."""

    def __init__(self, sources: Path, shards: Path) -> None:
        self._sources, self._shards = sources, shards
        self.here: list[tuple[int, int]] = []

    def before(self, spec: ArtifactSpec, partitions: Sequence[str], *, current: bool) -> None:
        pass

    def checking(self, spec: ArtifactSpec) -> None:
        pass

    def after(self, spec: ArtifactSpec, partitions: Sequence[str], result: StepResult) -> None:
        if spec.name == "rl_jsonl":
            sources = len(list(self._sources.glob("datasets--*/snapshots/*/*.jsonl")))
            self.here.append((sources, len(list(self._shards.glob("*/receipt.json")))))

    def failed(self, spec: ArtifactSpec, why: str) -> None:
        raise AssertionError(why)

    def report_line(self, sentence: str) -> None:
        raise AssertionError(sentence)


@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_batch_downloads_every_source_first_and_streaming_only_those_of_its_shards(tmp_path: Path, mode: str) -> None:
    files = {
        f"train-{i:05d}.jsonl": b"".join(orjson.dumps(task(Random(n), n)) + b"\n" for n in range(5)) for i in range(6)
    }
    with HubServer(files, repo_id="org/tasks") as hub:
        access = {"hub_endpoint": hub.endpoint, "hub_cache": tmp_path / "cache"}
        entry = {"name": "knots", "path": "hf://org/tasks", "split": "train"}
        settings = {"blend": {"datasets": [entry]}, "sources": access, "num_shards": 6, "workers": 1}
        declaration = declare_tasks(tmp_path / "unused", execution_mode=mode, **settings)
        with open_blend(declaration, tmp_path / "artifacts") as made:
            sources = Sources(tmp_path / "cache", made.root / "small_rl" / "rl_jsonl")
            job = build_job(made.component.specs, listeners=[sources])
            bound = dg.Definitions(jobs=[job], resources=create_resources(made.storage)).resolve_job_def(job.name)
            assert bound.execute_in_process(instance=made.instance, run_config=QUIET).success
            assert sources.here == {"batch": [(6, 6)], "streaming": [(4, 4), (6, 6)]}[mode]
            assert made.stale() == []
            assert read_ranges(made) == ([6] if mode == "batch" else [4, 2])
            other = declaration.model_copy(update={"execution_mode": "auto"})
            assert plan_blend(other, made.plan).run_hash == made.plan.run_hash
            again = Blend(other, made.root, made.instance)
            assert again.stale() == []
            assert read_ranges(again) == [4, 2]


def test_local_sources_are_one_run_unless_streaming_is_declared(finished: Blend) -> None:
    assert read_ranges(finished) == [len(finished.plan.partitions)]
    streaming = finished.declaration.model_copy(update={"execution_mode": "streaming"})
    assert read_ranges(Blend(streaming, finished.root, finished.instance)) == [4, 2]


def test_the_code_versions_of_its_assets_are_the_versions_that_built_its_artifacts(finished: Blend) -> None:
    assert differing_versions(finished.component.specs, finished.store) == {}
