"""The pictures are up to date, and the names in them exist in the product."""

import re
import xml.etree.ElementTree as ET

import pytest

from dataprep_assets import components
from dataprep_assets.planning.manifest import format_shard_key
from dataprep_assets_tests.docs import pictures
from dataprep_assets_tests.docs.architecture import BOXES, HEIGHT, WIDTH, artifact_names
from dataprep_assets_tests.docs.checks import samples
from dataprep_assets_tests.docs.drawing import PICTURES

# Leave out the dataset page and the document table, because they lead to no trainer files.
LEFT_OUT = {"data_card", "documents"}
STEP = re.compile(r"([✓✗]) (\w+) +(?:\d+ shards? )?(.*?)(?:  [\d.]+ s)?$")


def corpora_specs() -> dict[str, set[str]]:
    """Return the steps of the sample corpora with the names of their checks."""
    datasets = [dataset for dataset in samples() if dataset.component == "TokenizedCorpus"]
    assert len(datasets) >= 3
    found: dict[str, set[str]] = {}
    for spec in (spec for dataset in datasets for spec in dataset.specs):
        step = f"{spec.name}_{spec.split}" if spec.split else spec.name
        found.setdefault(step, set()).update(check.name for group in spec.check_groups for check in group.checks)
    return found


def recorded() -> dict[str, str]:
    return {name: (pictures.RECORDINGS / f"{name}.txt").read_text(encoding="utf-8") for name in pictures.TITLES}


def steps(text: str) -> list[tuple[str, ...]]:
    """Return the mark, the name and the outcome of each step of a recording."""
    return [match.groups() for line in text.splitlines() if (match := STEP.match(line))]


def test_every_picture_is_up_to_date_and_no_other_file_exists() -> None:
    drawings = pictures.drawings()
    written = {path: path.read_text(encoding="utf-8") for path in PICTURES.iterdir() if path != pictures.SCREENSHOT}
    assert written == drawings, "run `make docs-reference`"


def test_the_screenshot_is_small() -> None:
    content = pictures.SCREENSHOT.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) <= 150_000


def test_the_architecture_has_every_artifact_of_the_sample_corpora() -> None:
    names = {spec.name for dataset in samples() if dataset.component == "TokenizedCorpus" for spec in dataset.specs}
    assert artifact_names() == names - LEFT_OUT


def test_the_picture_of_components_has_all_of_them() -> None:
    assert pictures.component_names() == set(components.__all__)


def test_the_picture_of_partitions_has_steps_of_the_product() -> None:
    text = pictures.partitions()
    names = set(re.findall(r">(\w+_train|manifest)<", text))
    assert names == {"manifest", "token_bins_train", "combined_bins_train"}
    assert names <= corpora_specs().keys()
    assert f">{format_shard_key('train', 2)}<" in text


def test_recordings_have_steps_and_checks_of_the_product() -> None:
    specs = corpora_specs()
    for name, text in recorded().items():
        assert len(steps(text)) > 10, name
        assert {step for _, step, _ in steps(text)} <= specs.keys()
        for check in re.findall(r"check (\w+)(?::| failed)", text):
            assert any(check in checks for checks in specs.values()), check
    failed = [(step, outcome) for mark, step, outcome in steps(recorded()["failing-check"]) if mark == "✗"]
    assert [step for step, _ in failed] == ["selection_train"]


@pytest.mark.slow
def test_recordings_equal_the_current_output_of_the_commands() -> None:
    now, before = pictures.record(), recorded()
    assert now.keys() == before.keys()
    for name, text in before.items():
        assert steps(now[name]) == steps(text), "run `python -m dataprep_assets_tests.docs.pictures --record`"
        assert now[name].splitlines()[-1] == text.splitlines()[-1]


def test_pictures_are_svg_without_external_references() -> None:
    for path, text in pictures.drawings().items():
        root = ET.fromstring(text)
        width, height = (int(size) for size in root.attrib["viewBox"].split()[2:])
        for box in root.iter("{http://www.w3.org/2000/svg}rect"):
            x, y, across, down = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
            assert x >= 0, path
            assert y >= 0, path
            assert x + across <= width, path
            assert y + down <= height, path
        assert not re.search(r"href|url\((?!#)", text), path
    assert all(box.x + box.width <= WIDTH and box.y + box.height <= HEIGHT for box in BOXES)


def test_diagrams_have_the_colors_of_both_schemes() -> None:
    for name in ("architecture", "components", "partitions"):
        text = pictures.drawings()[PICTURES / f"{name}.svg"]
        light, dark = re.split(r"prefers-color-scheme: dark", text.partition("</style>")[0])
        kinds = set(re.findall(r'class="(\w+)"', text)) - {"artifact", "title"}
        assert {kind for kind in kinds if f".{kind} {{" not in light or f".{kind} {{" not in dark} == set()
