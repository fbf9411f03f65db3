"""The datasets that follow a change in another dataset, found by the inputs of their specs."""

from dataprep_assets.engine.artifact.spec import ArtifactSpec, DatasetInput
from dataprep_assets.engine.staleness.downstream import AffectedArtifact, find_affected_artifacts
from dataprep_assets_tests.engine import specs


def make_spec(dataset: str, name: str, *inputs: ArtifactSpec | DatasetInput) -> ArtifactSpec:
    """Return an artifact of a dataset that is built from others."""
    return specs.make_spec(dataset, name, inputs=inputs)


def find_downstream(names: list[str], others: dict[str, list[ArtifactSpec]]) -> list[AffectedArtifact]:
    return list(find_affected_artifacts("source", names, others))


def test_direct_and_indirect_downstream_datasets_are_found() -> None:
    mix = make_spec("mix", "mixture", DatasetInput(dataset="source", name="rows"))
    product = make_spec("mix", "product", mix)
    far = make_spec("far", "copy", DatasetInput(dataset="mix", name="product"))
    others = {"far": [far], "mix": [mix, product], "apart": [make_spec("apart", "rows")]}
    assert find_downstream(["rows"], others) == [
        AffectedArtifact(dataset="mix", artifact="mixture", through="source/rows"),
        AffectedArtifact(dataset="far", artifact="copy", through="mix/product"),
    ]


def test_an_artifact_of_the_same_name_in_another_dataset_is_not_found() -> None:
    others = {"mix": [make_spec("mix", "mixture", DatasetInput(dataset="another", name="rows"))]}
    assert find_downstream(["rows"], others) == []
    assert (
        find_downstream(
            ["columns"], {"mix": [make_spec("mix", "mixture", DatasetInput(dataset="source", name="rows"))]}
        )
        == []
    )


def test_datasets_that_depend_on_each_other_are_listed_once() -> None:
    one = make_spec("one", "a", DatasetInput(dataset="source", name="rows"), DatasetInput(dataset="two", name="b"))
    two = make_spec("two", "b", DatasetInput(dataset="one", name="a"))
    assert [found.dataset for found in find_downstream(["rows"], {"one": [one], "two": [two]})] == ["one", "two"]
