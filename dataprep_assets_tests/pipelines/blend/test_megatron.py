"""A blend's run as Megatron-Core reads it: builder, `IndexedDataset`, `GPTDataset`, `BlendedDataset`."""

from pathlib import Path

import pytest

from dataprep_assets_tests.pipelines.blend.pipeline import (
    SEPARATOR,
    declare_pretraining,
    finish_blend,
    list_prefixes,
    make_text,
    write_small_sources,
)
from dataprep_assets_tests.pipelines.corpus.shards import bundle, reference_ids
from dataprep_assets_tests.readers.families import MEGATRON
from dataprep_assets_tests.readers.megatron import drawn_from_blend, indexed_documents, rewrite

pytestmark = pytest.mark.skipif(MEGATRON.missing is not None, reason=f"{MEGATRON.missing}")


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blend")
    held = {"valid": 1, "test": 1}
    return finish_blend(
        declare_pretraining(write_small_sources(folder / "s"), num_shards=4, held_out=held), folder / "out"
    )[0]


def test_every_shard_equals_the_output_of_megatrons_builder(run_directory: Path, tmp_path: Path) -> None:
    for number, prefix in enumerate(list_prefixes(run_directory)):
        rewrite(Path(prefix), tmp_path / f"{number}")
        for suffix in (".bin", ".idx"):
            assert (tmp_path / f"{number}{suffix}").read_bytes() == Path(prefix + suffix).read_bytes()


def test_indexed_datasets_contain_every_document_once(run_directory: Path) -> None:
    eos = bundle().find_token(SEPARATOR, key="separator").id
    stored = []
    for prefix in list_prefixes(run_directory):
        stored += [document.tolist() for document in indexed_documents(Path(prefix))[0]]
    wanted = reference_ids(
        [make_text(name, row) for name, count in (("code", 90), ("web", 60)) for row in range(count)]
    )
    assert sorted(stored) == sorted([*ids, eos] for ids in wanted)


def test_a_blended_dataset_draws_the_requested_shares(run_directory: Path, tmp_path: Path) -> None:
    found = drawn_from_blend(run_directory, 400, tmp_path / "cache")
    assert found["type"] == "BlendedDataset"
    assert found["counts"]["code"] / 400 == pytest.approx(0.75, abs=0.01)
    assert all(found["lengths"])
