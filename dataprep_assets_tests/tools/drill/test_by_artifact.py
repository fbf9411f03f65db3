"""Changed values in every artifact of the dataset with every feature are reported, even with a matching receipt."""

from collections.abc import Iterator

import pyarrow.parquet as pq
import pytest

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.checks.check import SAMPLE
from dataprep_assets_tests.tools.drill.box import Box, Target, reseal, write
from dataprep_assets_tests.tools.drill.by_artifact import Named, of_box, table
from dataprep_assets_tests.tools.drill.datasets import bench_of, curated
from dataprep_assets_tests.tools.drill.real_size import LEVELS, said_at

SEED = 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Box:
    home = tmp_path_factory.mktemp("curated")
    return Box(bench_of("curated", home / "curated", lambda folder: curated(folder, "", documents=24)))


@pytest.fixture
def made(finished: Box) -> Iterator[Box]:
    yield finished
    finished.restore()


def spec_of(box: Box, name: str) -> ArtifactSpec:
    return next(one for one in box.specs if one.name == name)


def test_a_fault_in_every_artifact_is_reported_at_both_levels(made: Box) -> None:
    found = list(of_box(made, 1, SEED))
    assert {one.artifact.partition("/")[2] for one in found} == {one.name for one in made.specs if one.kept}
    assert [one for one in found if not (one.damage and one.every_document)] == []
    assert f"| all | {len(found)} of {len(found)} |" in table(found)


def test_a_changed_value_of_a_custom_tagger_is_reported_if_every_document_is_checked(made: Box) -> None:
    target = Target(spec_of(made, "tags"), "train-00000")
    path = made.folder(target) / "stops.parquet"
    values = [None if one is None else one + 1 for one in pq.read_table(path)["stops"].to_pylist()]
    stored = pq.read_table(path)
    path.unlink()
    pq.write_table(stored.set_column(0, stored.schema.field(0), [values]), path)
    reseal(made.folder(target))
    sample, every = (dict(said_at(made, target, level)) for level in LEVELS)
    assert "rebuild_matches" not in sample
    assert "stops.parquet: row 1: column stops" in every["rebuild_matches"]


def test_a_copy_of_a_schedule_is_compared_with_the_content_of_its_shard(made: Box) -> None:
    target = Target(spec_of(made, "schedule"), None)
    for name in ("document_ids.bin", "document_rows.bin", "shard.json"):
        path = next(made.folder(target).glob(f"documents/*/{name}"))
        data = path.read_bytes()
        write(path, data[:-1] + bytes([data[-1] ^ 1]))
        reseal(made.folder(target))
        assert "rebuild_matches" in dict(said_at(made, target, SAMPLE)), name
        made.restore()


def test_the_table_counts_each_artifact() -> None:
    one = Named(artifact="a/tags", fault="one value", where="", damage=True, sample="", every_document="tags")
    assert "| a/tags | 1 of 1 | 0 of 1 | 1 of 1 |" in table([one])
