"""What a command shows of the datasets that it has loaded."""

from itertools import permutations
from pathlib import Path

from dataprep_assets.cli import project
from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.plural import count_of


class Listing(DatasetDeclaration):
    """A dataset with a retraction list."""

    retractions: Path


def test_a_command_with_several_datasets_shows_what_all_of_them_allow(tmp_path: Path) -> None:
    (listing := tmp_path / "retracted.jsonl").write_text("{}\n")
    short = Listing(dataset="short_list", sensitive=True, retractions=listing)
    others = DatasetDeclaration(dataset="no_list", sensitive=True), DatasetDeclaration(dataset="public")
    for loaded in permutations((short, *others)):
        with project.one_command():
            for declaration in loaded:
                project._running[-1].take(declaration)
            assert project.shown(f"{count_of(2059, 'note')} of {count_of(3, 'patient')}") == (
                "about 2,000 notes of < 11 patients"
            )
