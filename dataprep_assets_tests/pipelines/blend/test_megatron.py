"""A blend's run as Megatron-Core reads it: builder, `IndexedDataset`, `GPTDataset`, `BlendedDataset`."""

from pathlib import Path

import pytest

from dataprep_assets_tests.pipelines.blend.megatron_reader import TRAIN, megatron_datasets, prefixes
from dataprep_assets_tests.pipelines.blend.pipeline import SEPARATOR, finished, pretraining, small_sources, text_of
from dataprep_assets_tests.pipelines.corpus.shards import bundle, reference_ids
from dataprep_assets_tests.readers.families import MEGATRON
from dataprep_assets_tests.readers.megatron import drawn_from_blend, indexed_documents, rewrite


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    megatron_datasets()
    folder = tmp_path_factory.mktemp("blend")
    held = {"valid": 1, "test": 1}
    return finished(pretraining(small_sources(folder / "s"), num_shards=4, held_out=held), folder / "out")[0]


def test_every_shard_is_what_megatrons_builder_writes(run_directory: Path, tmp_path: Path) -> None:
    theirs = megatron_datasets()
    import torch

    for number, prefix in enumerate(prefixes(run_directory)):
        dataset = theirs.IndexedDataset(prefix)
        builder = theirs.IndexedDatasetBuilder(str(tmp_path / f"{number}.bin"), dtype=dataset.index.dtype)
        for at in range(len(dataset)):
            document = dataset[at]
            builder.add_document(torch.from_numpy(document.astype(np.int64)), [len(document)])
        builder.finalize(str(tmp_path / f"{number}.idx"))
        for suffix in (".bin", ".idx"):
            assert (tmp_path / f"{number}{suffix}").read_bytes() == Path(prefix + suffix).read_bytes()


def test_indexed_datasets_hold_every_document_once(run_directory: Path) -> None:
    theirs = megatron_datasets()
    eos = bundle().token(SEPARATOR, key="separator").id
    stored = []
    for prefix in prefixes(run_directory):
        dataset = theirs.IndexedDataset(prefix)
        stored += [dataset[at].tolist() for at in range(len(dataset))]
    wanted = reference_ids([text_of(name, row) for name, count in (("code", 90), ("web", 60)) for row in range(count)])
    assert sorted(stored) == sorted([*ids, eos] for ids in wanted)


def test_a_blended_dataset_draws_the_shares_that_were_asked(run_directory: Path, tmp_path: Path) -> None:
    """In a process of its own: Megatron wants a process group."""
    pytest.importorskip("megatron.core.datasets.blended_megatron_dataset_builder")
    eos = bundle().token(SEPARATOR, key="separator").id
    command = [sys.executable, "-c", TRAIN, str(run_directory), str(eos), str(tmp_path / "cache"), str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["type"] == "BlendedDataset"
    assert found["counts"]["code"] / 400 == pytest.approx(0.75, abs=0.01)
    assert all(found["lengths"])
