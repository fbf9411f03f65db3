"""The benchmark of a changing corpus changes every key of a declaration."""

from pathlib import Path

from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.tools.bench.changes.keys import LEFT_ALONE, keys, leaves
from dataprep_assets_tests.tools.bench.changes.project import Project


def test_every_key_of_a_declaration_is_changed_or_excluded_with_a_reason(tmp_path: Path) -> None:
    project = Project.made(tmp_path)
    with HubServer({"README.md": b""}, repo_id="org/imports") as hub:
        corpora = [project.corpus("harvest", tmp_path / "h", 1), project.corpus("imports", tmp_path / "i", 1, hub)]
        turned = {name for corpus in corpora for name in keys(corpus)}
    assert turned | LEFT_ALONE.keys() == set(leaves(CorpusDeclaration))
