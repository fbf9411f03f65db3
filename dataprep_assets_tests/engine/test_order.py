"""The build order of a dataset: artifact by artifact, or range by range if a source is streamed."""

from dataclasses import replace
from pathlib import Path

from dataprep_assets.engine.artifact.build import find_ancestors, group_by_build, iterate_builds
from dataprep_assets.engine.artifact.spec import Partitions
from dataprep_assets.errors import MissingArtifactError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.pipelines.corpus.source.manifest import build_manifest_artifact
from dataprep_assets_tests.engine.notices import KEYS, make_notices_specs, write_notices
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.corpus.pipeline import sample_declaration


def test_a_corpus_is_built_artifact_by_artifact_as_its_manifest_plans(tmp_path: Path) -> None:
    corpus, store = sample_declaration(), LocalArtifacts(tmp_path)
    order = iterate_builds(corpus_specs(corpus), store)
    assert [(spec.name, partitions) for spec, partitions in (next(order), next(order))] == [
        ("manifest", ()),
        ("engine_certificate", ()),
    ]
    with raises(MissingArtifactError, "manifest"):
        next(iterate_builds(corpus_specs(corpus)[2:], store))
    build_manifest_artifact(corpus, store)
    assert [(spec.path[1], list(partitions)) for spec, partitions in order] == [
        *(
            (f"{name}_{split}", [f"{split}-{n:05d}" for n in range(count)])
            for split, count in (("train", 3), ("val", 1), ("test", 1))
            for name in ("snapshot", "token_bins")
        ),
        *((f"combined_bins_{split}", []) for split in ("train", "val", "test")),
        *((f"{view}_bins", []) for view in ("nanogpt", "megatron", "datatrove", "olmo")),
    ]


def test_an_artifact_that_is_split_into_ranges_is_built_range_by_range(tmp_path: Path) -> None:
    notices, board, report = make_notices_specs(write_notices(tmp_path / "words"))
    cut = Partitions(keys=lambda _: KEYS, noun="notice", ranges=lambda _: [KEYS[:2], KEYS[2:]], fixed_keys=KEYS)
    copies = replace(notices, name="copies", partitions=cut)
    specs = [replace(notices, partitions=cut), copies, board, report]
    assert [[spec.name for spec in members] for members in group_by_build(specs)] == [
        ["notices", "copies"],
        ["board"],
        ["report"],
    ]
    assert [(spec.name, list(partitions)) for spec, partitions in iterate_builds(specs, LocalArtifacts(tmp_path))] == [
        ("notices", ["n-0", "n-1"]),
        ("copies", ["n-0", "n-1"]),
        ("notices", ["n-2"]),
        ("copies", ["n-2"]),
        ("board", []),
        ("report", []),
    ]


def test_ancestors_are_all_direct_and_indirect_inputs(tmp_path: Path) -> None:
    notices, board, report = make_notices_specs(write_notices(tmp_path / "words"))
    assert find_ancestors([report]) == {board, notices}
    assert find_ancestors([notices]) == set()
