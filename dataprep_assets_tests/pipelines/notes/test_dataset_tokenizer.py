"""The tokenizer of a mixture's sources is found wherever in the project they are declared."""

from pathlib import Path

from dataprep_assets.pipelines.notes.dataset import find_tokenizer_of_dataset
from dataprep_assets.project_template import write_project


def test_it_is_found_anywhere_in_the_project_and_broken_neighbors_do_not_matter(tmp_path: Path) -> None:
    write_project(tmp_path / "cellar")
    defs = tmp_path / "cellar" / "cellar" / "defs"
    mixture, source = defs / "mixtures" / "all", defs / "wards" / "north" / "first"
    for folder in (mixture, source, defs / "broken"):
        folder.mkdir(parents=True)
    (defs / "broken" / "defs.yaml").write_text("type: [")
    attributes = "attributes:\n  dataset: first\n  tokenizer: {path: ../tokenizer}\n"
    (source / "defs.yaml").write_text(f"type: dataprep_assets.components.PackedCohorts\n{attributes}")
    assert find_tokenizer_of_dataset(mixture, "first") == str(defs / "wards" / "north" / "tokenizer")
    assert find_tokenizer_of_dataset(mixture, "sample_corpus") == str(defs / "sample_corpus" / "tokenizer")
    assert find_tokenizer_of_dataset(mixture, "elsewhere") is None
    assert find_tokenizer_of_dataset(None, "first") is None
