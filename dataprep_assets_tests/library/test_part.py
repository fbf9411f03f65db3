"""Parts of a dataset's partitions: each partition is in exactly one part, and unknown partitions are named."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dataprep_assets.cli import main
from dataprep_assets.engine.artifact.spec import ArtifactSpec, Partitions
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.library.part import PartitionSelection, parse_split_names
from dataprep_assets_tests.messages import raises

TRAIN = [f"train-{i:05d}" for i in range(10)]
VAL = ["val-00000", "val-00001"]
MONTHS = [f"{year}-{month:02d}" for year in (2010, 2011) for month in range(1, 13)]


def make_specs(*groups: tuple[str | None, Sequence[str]]) -> list[ArtifactSpec]:
    """Return a dataset of one unpartitioned artifact and one artifact of each group: its split and its partitions."""

    def spec(name: str, split: str | None, partitions: Partitions | None) -> ArtifactSpec:
        return ArtifactSpec(
            declaration=DatasetDeclaration(dataset="d"),
            name=name,
            description="",
            kinds=frozenset(),
            build=lambda request: (),
            recipes=lambda store, slots: (),
            split=split,
            partitions=partitions,
        )

    parts = [spec("token_bins", split, Partitions.from_keys(keys, "shard")) for split, keys in groups]
    return [spec("manifest", None, None), *parts]


def list_partitions(part: PartitionSelection, *groups: tuple[str | None, Sequence[str]]) -> list[Sequence[str]]:
    """Return the partitions of each artifact in a part."""
    return list(part.select_partitions(make_specs(*groups), LocalArtifacts(Path("nowhere"))).values())


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_the_parts_of_all_processes_cover_every_partition_once(count: int) -> None:
    parts = [
        list_partitions(PartitionSelection(count=count, index=i), ("train", TRAIN), ("val", VAL)) for i in range(count)
    ]
    assert sorted(key for part in parts for run in part for key in run) == TRAIN + VAL
    one_split = [
        list_partitions(PartitionSelection(splits=("train",), count=count, index=i), ("train", TRAIN), ("val", VAL))
        for i in range(count)
    ]
    assert [key for part in one_split for run in part for key in run] == TRAIN


def test_a_range_selects_within_the_split_that_has_it_and_within_months() -> None:
    assert list_partitions(PartitionSelection(bounds="val-00000...val-00001"), ("train", TRAIN), ("val", VAL)) == [VAL]
    assert list_partitions(PartitionSelection(bounds="train-00002"), ("train", TRAIN), ("val", VAL)) == [
        ["train-00002"]
    ]
    assert list_partitions(PartitionSelection(bounds="2010-11...2011-02"), (None, MONTHS)) == [MONTHS[10:14]]
    assert list_partitions(PartitionSelection(bounds="2010-11...2011-02", count=2, index=1), (None, MONTHS)) == [
        ["2011-01", "2011-02"]
    ]


def test_several_splits_are_selected_together() -> None:
    part = PartitionSelection(splits=parse_split_names("val,train"))
    assert list_partitions(part, ("train", TRAIN), ("val", VAL), ("test", ["test-00000"])) == [TRAIN, VAL]


def test_the_artifacts_up_to_one_are_its_inputs_of_all_splits_inputs_first() -> None:
    manifest, train, val = make_specs(("train", TRAIN), ("val", VAL))
    train, val = (replace(spec, inputs=(manifest,)) for spec in (train, val))
    table, unrelated, card = (
        replace(manifest, name=name, inputs=inputs)
        for name, inputs in (("table", (val,)), ("unrelated", ()), ("card", (train, val)))
    )
    specs = [manifest, train, val, table, unrelated, card]
    for until, expected in {
        None: specs,
        "manifest": [manifest],
        "token_bins": [manifest, train, val],
        "table": [manifest, val, table],
        "card": [manifest, train, val, card],
    }.items():
        assert PartitionSelection(until=until).select_specs(specs) == expected
    with raises(ConfigError, "unknown artifact 'crad'", "'card'", "manifest", "unrelated"):
        PartitionSelection(until="crad").select_specs(specs)


def test_an_artifact_limits_a_run_but_not_its_partitions() -> None:
    part = PartitionSelection(until="table")
    assert (part.is_limited, part.limits_partitions, str(part)) == (True, False, "--until")
    part = PartitionSelection(until="table", splits=("val",))
    assert (part.limits_partitions, str(part), part.arguments) == (
        True,
        "--until, --split",
        " --until table --split val",
    )


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, None),
        ([], None),
        ("val", ("val",)),
        ("val, test", ("val", "test")),
        (["val,test", "val", "train"], ("val", "test", "train")),
    ],
)
def test_splits_are_separated_by_commas_or_given_one_by_one(
    given: list[str] | str | None, names: tuple[str, ...] | None
) -> None:
    assert parse_split_names(given) == names


@pytest.mark.parametrize("given", ["", "val,", ["val", ""], ","])
def test_an_empty_split_name_is_refused(given: list[str] | str) -> None:
    with raises(ConfigError, "empty"):
        parse_split_names(given)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (
            PartitionSelection(bounds="train-00009...train-00001"),
            "--shards train-00009...train-00001: selects no partition. Write one name, or FIRST...LAST. Available: "
            "train-00000...train-00009, val-00000...val-00001",
        ),
        (
            PartitionSelection(bounds="2010-01", splits=("val",)),
            "--shards 2010-01: selects no partition. Write one name, or FIRST...LAST. Available: val-00000...val-00001",
        ),
        (
            PartitionSelection(bounds="val-00000...", splits=("val",)),
            "--shards val-00000...: selects no partition. Write one name, or FIRST...LAST. Available: "
            "val-00000...val-00001",
        ),
        (PartitionSelection(splits=("test",)), "unknown split 'test'. Available: train, val"),
        (PartitionSelection(splits=("train", "vl")), "unknown split 'vl'; did you mean 'val'? Available: train, val"),
    ],
)
def test_an_unknown_partition_is_named(part: PartitionSelection, told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        list_partitions(part, ("train", TRAIN), ("val", VAL))
    assert str(raised.value) == told


def test_a_dataset_without_partitions_has_no_part() -> None:
    with raises(ConfigError, "--process-count", "d"):
        list_partitions(PartitionSelection(count=2, index=0))
    with raises(ConfigError, "--process-count", "d/manifest"):
        list_partitions(PartitionSelection(until="manifest", count=2, index=0))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run"], "name a dataset, or pass --all"),
        (["rnu", "x"], "No such command 'rnu'. Did you mean 'run'?"),
        (["run", "x", "--spilt", "train"], "No such option: --spilt"),
        (["run", "x", "--process-count", "2"], "--process-count and --process-index must"),
        (["run", "x", "--process-count", "2", "--process-index", "2"], "--process-index 2: must be at least 0"),
        (["run", "x", "--process-count", "0", "--process-index", "0"], "Invalid value for '--process-count'"),
        (["run", "x", "y", "--shards", "a...b"], "--shards applies to a single dataset. Name exactly one"),
        (["run", "x", "--months", "a", "--shards", "b"], "--months cannot be combined with --shards"),
        (["run", "x", "--split", "train", "--dry-run"], "--dry-run applies only to whole datasets. Remove --split"),
        (["run", "x", "--until", "y", "--split", "z", "--dry-run"], "whole datasets. Remove --split"),
        (["run", "x", "--until", "y", "--locked"], "--locked applies only to whole datasets. Remove --until"),
        (["run", "x", "y", "--until", "z"], "--until applies to a single dataset. Name exactly one"),
        (["run", "x", "--split", "train", "--locked"], "--locked applies only to whole datasets. Remove --split"),
        (["run", "x", "--json"], "`dataprep show x --json`"),
        (["plan", "sample_corpus", "--cores", "many"], "Invalid value for '--cores': Input should be a valid integer"),
        (["status", "sample_corpu"], "unknown dataset 'sample_corpu'; did you mean 'sample_corpus'?"),
        (["verify", "--select", "x"], "--select needs --lock"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
