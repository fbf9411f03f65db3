"""The picture of the architecture is current, and the artifacts in it are the product's."""

import xml.etree.ElementTree as ET

from dataprep_assets_tests.docs.architecture import BOXES, HEIGHT, PICTURE, WIDTH, artifact_names, drawing
from dataprep_assets_tests.docs.checks import samples

# a page about the dataset and the table of its documents: neither leads to the files of a trainer
LEFT_OUT = {"data_card", "documents"}


def test_the_picture_is_current() -> None:
    assert PICTURE.read_text(encoding="utf-8") == drawing(), "run `make docs-reference`"


def test_the_picture_has_every_artifact_of_the_sample_corpora() -> None:
    corpora = [dataset for dataset in samples() if dataset.component == "TokenizedCorpus"]
    assert len(corpora) >= 3
    names = {spec.name for dataset in corpora for spec in dataset.specs}
    assert artifact_names() == names - LEFT_OUT


def test_the_picture_is_an_svg_of_both_color_schemes_without_anything_outside_of_it() -> None:
    text = drawing()
    root = ET.fromstring(text)
    assert root.attrib["viewBox"] == f"0 0 {WIDTH} {HEIGHT}"
    style = root.findtext("{http://www.w3.org/2000/svg}style") or ""
    light, dark = style.split("prefers-color-scheme: dark")
    assert {kind for box in BOXES if f".{(kind := box.kind)} {{" not in light or f".{kind} {{" not in dark} == set()
    for box in BOXES:
        assert box.x >= 0
        assert box.y >= 0
        assert box.x + box.width <= WIDTH
        assert box.y + box.height <= HEIGHT
