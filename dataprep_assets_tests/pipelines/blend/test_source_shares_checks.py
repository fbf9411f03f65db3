"""The check that a blend's sources are the planned ones, with its message for each change of files and of a hub."""

from pathlib import Path

import pytest

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.engine.staleness.rebuild import count_retracted_documents, find_remaining_retractions
from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets.errors import NotFoundError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.blend_checks import blend_sources_unchanged
from dataprep_assets.pipelines.blend.blend_tracer import build_blend_tracer
from dataprep_assets.pipelines.blend.dataset import build_blend_specs
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.retract import retract_documents
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.blend.finished_blend import FinishedBlend, finish
from dataprep_assets_tests.pipelines.blend.pipeline import (
    SEPARATOR,
    declare_pretraining,
    make_text,
    make_texts,
    write_blend_json,
    write_rows,
    write_small_sources,
)
from dataprep_assets_tests.pipelines.blend.rl.records import declare_weighted_records
from dataprep_assets_tests.pipelines.corpus.pipeline import run_pipeline
from dataprep_assets_tests.samples import SAMPLE


def judge(good: FinishedBlend) -> Finding:
    return blend_sources_unchanged(good.run)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return write_small_sources(tmp_path / "sources")


@pytest.fixture
def grown(sources: Path, tmp_path: Path) -> FinishedBlend:
    """Return a finished blend whose `code` has since gained documents in a new file."""
    found = finish(declare_pretraining(sources), tmp_path / "out")
    assert judge(found).passed
    write_rows(sources / "code" / "part-11.jsonl.gz", make_texts("code", 90, 90))
    return found


def test_a_grown_source_is_reported_with_its_old_and_new_shares(grown: FinishedBlend) -> None:
    finding = judge(grown)
    assert not finding.passed
    assert finding.warning, "the run is right; its owner may want to know"
    rows = {row["dataset"]: row for row in finding.table}
    code, web = rows["code"], rows["web"]
    assert (code["files_added"], code["files_removed"], code["files_changed"]) == (1, 0, 0)
    assert web["changed_files"] == 0
    before, now = float(code["planned_share_of_data"]), float(code["current_share_of_data"])
    tokens = {row.name: row.tokens for row in grown.run.facts.realised}
    assert before == pytest.approx(tokens["code"] / sum(tokens.values()), abs=1e-6)
    assert now > before + 0.03
    assert float(web["current_share_of_data"]) == pytest.approx(1 - now, abs=1e-5)
    assert float(code["current_epochs"]) < float(code["planned_epochs"])
    assert web["current_epochs"] == web["planned_epochs"], "its data is the same, and so is the budget"
    assert finding.summary.startswith(
        f"code: 1 file added since the plan was built. The dataset's share of the tokens in train was {before:.1%} "
        f"and is now about {now:.1%}"
    )


def test_a_source_with_a_declared_license_is_also_checked(sources: Path, tmp_path: Path) -> None:
    entries = write_blend_json(sources)
    entries["datasets"][0] |= {"license": "CC-BY-4.0", "category": "source code"}
    good = finish(declare_pretraining(sources, blend=entries), tmp_path / "out")
    assert judge(good).passed
    write_rows(sources / "code" / "part-11.jsonl.gz", make_texts("code", 90, 90))
    assert judge(good).summary.startswith("code: 1 file added")


def test_a_changed_byte_and_a_lost_file_are_changes(sources: Path, tmp_path: Path) -> None:
    good = finish(declare_pretraining(sources), tmp_path / "out")
    path = sources / "code" / "part-10.jsonl.gz"
    raw = bytearray(path.read_bytes())
    raw[5] ^= 1
    path.write_bytes(raw)
    assert_names(judge(good).summary, "code", "1 file changed")
    path.unlink()
    assert_names(judge(good).summary, "code", "1 file removed")
    (sources / "web" / "train-00000.parquet").unlink()
    finding = judge(good)
    assert {row["dataset"]: row["current_share_of_data"] for row in finding.table} == {"code": 1.0, "web": 0.0}


def test_shares_of_records_equal_those_of_rows(tmp_path: Path) -> None:
    good = finish(declare_weighted_records(tmp_path / "s", (1.0, 1.0)), tmp_path / "out")
    assert judge(good).passed
    write_rows(tmp_path / "s" / "web" / "train-00000.parquet", make_texts("web", 120))
    summary = judge(good).summary
    assert_names(summary, "web__train", "1 file changed", "train", "40.0%")
    assert "it is read" not in summary


def test_a_moved_branch_is_a_change_and_a_missing_one_is_reported(tmp_path: Path) -> None:
    files = {"train-00000.jsonl": b'{"text": "one two three"}\n' * 40}
    sources = write_small_sources(tmp_path / "sources")
    with HubServer(files, repo_id="org/more") as hub:
        access = {"hub_endpoint": hub.endpoint, "hub_cache": str(tmp_path / "cache")}
        datasets = [
            {"name": "more", "path": "hf://org/more@main", "weight": 1.0},
            {"name": "web", "path": str(sources / "web"), "weight": 1.0},
        ]
        blend = declare_pretraining(sources, blend={"datasets": datasets}, sources=access, num_shards=1)
        good = finish(blend, tmp_path / "out")
        assert judge(good).passed
        hub.move_branch({**files, "train-00001.jsonl": b'{"text": "four five six"}\n' * 40})
        assert_names(judge(good).summary, "more", "1 file added")
        hub.fail("revision", "missing", times=None)
        finding = judge(good)
    assert finding.passed
    assert finding.facts["unlisted_datasets"] == 1
    assert finding.summary.endswith("1 dataset could not be checked: more.")


def test_a_document_that_a_corpus_retracted_is_reported_for_a_blend_until_it_is_deleted(
    sources: Path, tmp_path: Path
) -> None:
    corpus = CorpusDeclaration.model_validate(
        {
            "dataset": "same_files",
            "source": {"kind": "local", "path": sources / "code"},
            "splits": {"train": ["**"]},
            "tokenizer": {"path": SAMPLE / "tokenizer", "engine": "tokenizers"},
            "document": {"separator": SEPARATOR},
            "shards": {"count": 1},
            "views": [],
            "retractions": tmp_path / "retracted.jsonl",
        }
    )
    store, good = LocalArtifacts(tmp_path / "corpus"), finish(declare_pretraining(sources), tmp_path / "out")
    assert not run_pipeline(corpus, store).failed
    (tmp_path / "ids").write_text("part-2.jsonl.zst:7\n")
    assert retract_documents(corpus, store, tmp_path / "ids").found == 1
    assert not run_pipeline(corpus, store).failed
    retracted = count_retracted_documents(corpus_specs(corpus), store)

    def held(found: FinishedBlend) -> list[str]:
        others = [(build_blend_specs(found.blend), found.store)]
        return [one.artifact for one in find_remaining_retractions(corpus.dataset, retracted, others)]

    def traced(found: FinishedBlend) -> list[str]:
        tracer = build_blend_tracer(found.blend, found.store, build_blend_specs(found.blend))
        return [one.source for one in trace_documents(tracer, text=make_text("code", 6), decode=False)]

    assert held(good) == ["indexed_bins"]
    assert len(traced(good)) == 1
    write_rows(sources / "code" / "part-2.jsonl.zst", [row for at, row in enumerate(make_texts("code", 40)) if at != 6])
    assert_names(judge(good).summary, "code", "1 file changed")
    again = finish(declare_pretraining(sources), tmp_path / "out")
    assert judge(again).passed
    assert held(again) == []
    with raises(NotFoundError, "text"):
        traced(again)
