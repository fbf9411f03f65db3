"""The runs that make a dataset: consecutive specs with one step are one run, cut where their partitions say so."""

from dataclasses import replace
from pathlib import Path

import pytest

from dataprep_assets.errors import MissingArtifactError
from dataprep_assets.graph.runs import apart, planned_runs
from dataprep_assets.graph.shown import number_of
from dataprep_assets.graph.spec import Partitions
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.pipelines.corpus.manifest import build_manifest_artifact
from dataprep_assets_tests.graph.notices import KEYS, notices_specs, write_notices
from dataprep_assets_tests.pipelines.corpus.pipeline import sample_declaration


def test_a_corpus_is_made_in_the_runs_that_a_person_reads(tmp_path: Path) -> None:
    corpus, store = sample_declaration(), LocalArtifacts(tmp_path)
    runs = planned_runs(corpus_specs(corpus), store)
    first = next(runs)
    assert first.title == "manifest and engine certificate"
    assert [spec.name for spec in first.specs] == ["manifest", "engine_certificate"]
    build_manifest_artifact(corpus, store)  # the runs that follow are those of the plan that the first has made
    assert [(run.title, [spec.path[1:] for spec in run.specs], list(run.partitions)) for run in runs] == [
        *(
            (
                f"{split}: {number_of(count, 'shard')} mirrored and tokenized",
                [(f"snapshot_{split}",), (f"token_bins_{split}",)],
                [f"{split}-{n:05d}" for n in range(count)],
            )
            for split, count in (("train", 3), ("val", 1), ("test", 1))
        ),
        ("combined bins", [(f"combined_bins_{split}",) for split in ("train", "val", "test")], []),
        ("views", [(f"{view}_bins",) for view in ("nanogpt", "megatron", "datatrove", "olmo")], []),
    ]


def test_runs_of_a_plan_that_is_not_there_cannot_be_told(tmp_path: Path) -> None:
    runs = planned_runs(corpus_specs(sample_declaration()), LocalArtifacts(tmp_path))
    next(runs)
    with pytest.raises(MissingArtifactError, match="manifest"):
        next(runs)


def test_partitions_are_cut_into_runs_with_a_title_each(tmp_path: Path) -> None:
    notices, *others = notices_specs(write_notices(tmp_path / "words"))
    assert notices.partitions is not None
    cut = Partitions(keys=lambda _: KEYS, noun="notice", ranges=lambda _: [KEYS[:2], KEYS[2:]], fixed_keys=KEYS)
    runs = list(planned_runs([replace(notices, partitions=cut), *others], LocalArtifacts(tmp_path)))
    assert [(run.title, list(run.partitions)) for run in runs] == [
        ("2 of 3 notices", ["n-0", "n-1"]),
        ("1 of 3 notices", ["n-2"]),
        ("the board", []),
    ]
    assert [spec.name for spec in runs[-1].specs] == ["board", "report"]


def test_runs_taken_apart_make_nothing_of_an_artifact_of_their_own_run(tmp_path: Path) -> None:
    corpus, store = (
        sample_declaration(splits={"val": ["validation/**"]}, views=["olmo", "mds"]),
        LocalArtifacts(tmp_path),
    )
    build_manifest_artifact(corpus, store)
    assert [
        (run.title, [spec.name for spec in run.specs], list(run.partitions))
        for run in apart(planned_runs(corpus_specs(corpus), store))
    ] == [
        ("manifest and engine certificate: manifest", ["manifest"], []),
        ("manifest and engine certificate: engine_certificate", ["engine_certificate"], []),
        ("val: 1 shard mirrored and tokenized: snapshot", ["snapshot"], ["val-00000"]),
        ("val: 1 shard mirrored and tokenized: token_bins", ["token_bins"], ["val-00000"]),
        ("combined bins", ["combined_bins"], []),
        ("views", ["olmo_bins", "mds_bins"], []),
    ]
