"""Which other datasets follow a change: by what their specs are made of, over several datasets."""

from dataprep_assets.engine.artifact.spec import ArtifactSpec, DatasetInput
from dataprep_assets.engine.staleness.downstream import AffectedArtifact, find_affected_artifacts
from dataprep_assets_tests.engine import specs


def spec(dataset: str, name: str, *inputs: ArtifactSpec | DatasetInput) -> ArtifactSpec:
    """An artifact of a dataset, made of others."""
    return specs.spec(dataset, name, inputs=inputs)


def told(names: list[str], others: dict[str, list[ArtifactSpec]]) -> list[AffectedArtifact]:
    return list(find_affected_artifacts("source", names, others))


def test_what_is_made_of_it_is_reached_and_what_is_made_of_that() -> None:
    mix = spec("mix", "mixture", DatasetInput(dataset="source", name="rows"))
    product = spec("mix", "product", mix)
    far = spec("far", "copy", DatasetInput(dataset="mix", name="product"))
    others = {"far": [far], "mix": [mix, product], "apart": [spec("apart", "rows")]}
    assert told(["rows"], others) == [
        AffectedArtifact(dataset="mix", artifact="mixture", through="source/rows"),
        AffectedArtifact(dataset="far", artifact="copy", through="mix/product"),
    ]


def test_another_artifact_of_the_same_name_elsewhere_is_not_reached() -> None:
    others = {"mix": [spec("mix", "mixture", DatasetInput(dataset="another", name="rows"))]}
    assert told(["rows"], others) == []
    assert told(["columns"], {"mix": [spec("mix", "mixture", DatasetInput(dataset="source", name="rows"))]}) == []


def test_datasets_that_are_made_of_each_other_are_told_once() -> None:
    one = spec("one", "a", DatasetInput(dataset="source", name="rows"), DatasetInput(dataset="two", name="b"))
    two = spec("two", "b", DatasetInput(dataset="one", name="a"))
    assert [found.dataset for found in told(["rows"], {"one": [one], "two": [two]})] == ["one", "two"]
