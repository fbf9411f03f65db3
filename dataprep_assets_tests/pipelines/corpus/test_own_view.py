"""A package with a view and a pipeline of its own, as its page has it: pip installs it, and all commands know them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.errors import ConfigError
from dataprep_assets.extensions import Extensions
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.pipelines.corpus.views import VIEWS
from dataprep_assets.project_template import write_project
from dataprep_assets_tests import forked
from dataprep_assets_tests.dg_command import DG
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.samples import shrink

pytestmark = pytest.mark.slow
PAGE = PROJECT_ROOT / "docs" / "how-to" / "own-view.md"
SAMPLE = "sample_corpus"
DECLARED = ("nanogpt", "id_lines")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's package as pip installed it; everything else is that of this environment."""
    folder = tmp_path_factory.mktemp("package")
    text = PAGE.read_text(encoding="utf-8")
    for name, block in re.findall(r"^```(?:toml|python)\n# (\S+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block, encoding="utf-8")
    (folder / "line-views" / "line_views" / "__init__.py").touch()
    installed = folder / "installed"
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-build-isolation", "--no-deps"]
    pip = [sys.executable, "-m", "pip", "install", *options, "--target", str(installed)]
    subprocess.run([*pip, str(folder / "line-views")], check=True)
    return installed


class Machine:
    """A project of `dataprep init` with the small corpus, and the commands of a person in it."""

    def __init__(self, root: Path, site: Path) -> None:
        self.root, self.site = root, site
        self.name = write_project(root)
        self.defs = root / self.name / "defs"
        self.declared = self.defs / SAMPLE / "defs.yaml"
        shrink(self.declared, DECLARED)
        self.artifacts = root / ".dataprep" / "artifacts"

    def try_(
        self, *arguments: str, site: Path | None = None, program: str = "", fresh: bool = False, often: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """A command that finds what is installed in `site`; a `program` of Python instead of ours.

        With another `site` than the project's, or `fresh`, Python is started for it, unless `often` says that several
        commands find that site.
        """
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DATAPREP_", "DAGSTER_"))}
        path = os.pathsep.join([str(site or self.site), str(self.root)])
        variables = {"PYTHONPATH": path, "DAGSTER_DISABLE_TELEMETRY": "yes", "COLUMNS": "200"}
        # Set VIRTUAL_ENV, because `dg` uses the Python of the active environment.
        variables["VIRTUAL_ENV"] = str(Path(sys.executable).parent.parent)
        command = [*(["-c", program] if program else ["-m", "dataprep_assets.cli"]), *arguments]
        if often or (site is None and not fresh):
            return forked.run(command, cwd=self.root, env=kept | variables, site=site or self.site)
        return subprocess.run(
            [sys.executable, *command], cwd=self.root, env=kept | variables, capture_output=True, text=True
        )

    def run(self, *arguments: str, program: str = "", fresh: bool = False) -> str:
        """What a command prints that must succeed."""
        done = self.try_(*arguments, program=program, fresh=fresh)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def machine(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The project after its first run."""
    made = Machine(tmp_path_factory.mktemp("project") / "my_data", site)
    out = made.run("run", SAMPLE, fresh=True)
    assert re.search(r"checks: (\d+) of \1 passed", out), out
    folder = made.artifacts.relative_to(made.root)
    assert f"  linear: --data {folder}/{SAMPLE}/id_lines_bins --vocab-size 4096" in out
    return made


def test_the_view_holds_the_documents_of_the_stream(machine: Machine) -> None:
    receipt = json.loads((machine.artifacts / SAMPLE / "id_lines_bins" / "receipt.json").read_bytes())
    assert {file["path"] for file in receipt["files"]} == {"train.jsonl", "val.jsonl", "test.jsonl"}
    for split in ("train", "val", "test"):
        combined = machine.artifacts / SAMPLE / "combined_bins" / split
        ids = flat_bins.open_tokens(combined / f"{split}.bin", "uint16")
        ends = document_ends.open_ends(combined / "document_ends.bin").astype(np.int64)
        wanted = [part.tolist() for part in np.split(ids, ends[:-1])]
        lines = (machine.artifacts / SAMPLE / "id_lines_bins" / f"{split}.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == wanted


def test_status_card_lock_and_verify_know_it(machine: Machine) -> None:
    assert machine.run("status", SAMPLE) == f"{SAMPLE}: everything is up to date\n"
    card = (machine.artifacts / SAMPLE / "data_card" / "dataset_card.md").read_text()
    assert "id_lines_bins" in card
    machine.run("lock", SAMPLE)
    lock = (machine.declared.parent / "dataset.lock").read_text()
    assert "id_lines_bins" in lock
    assert "everything is up to date" in machine.run("run", SAMPLE, "--locked")
    assert "all match their receipts" in machine.run("verify")
    shown = machine.run("show", SAMPLE)
    assert "linear: --data" in shown


def test_a_document_is_traced_to_its_line_and_back(machine: Machine) -> None:
    asked = ("trace", SAMPLE, "--split", "val", "--no-text", "--json")
    found = json.loads(machine.run(*asked, "--document", "3"))
    (place,) = [place for place in found["places"] if place["artifact"] == f"{SAMPLE}/id_lines_bins"]
    assert (place["file"], place["line"], place["tokens"]) == ("val.jsonl", 4, [0, found["tokens"]])
    assert json.loads(machine.run(*asked, "--view", "id_lines", "--sample", "3")) == found
    done = machine.try_(*asked, "--view", "nanogpt", "--sample", "3")
    assert (done.returncode, "trace: the view nanogpt has no samples. Use `document` or `token`" in done.stderr) == (
        2,
        True,
    )


def test_a_damaged_one_is_noticed_and_made_again(machine: Machine) -> None:
    path = machine.artifacts / SAMPLE / "id_lines_bins" / "val.jsonl"
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[:-1])
    assert machine.try_("verify").returncode == 1
    assert "id_lines_bins" in machine.try_("run", SAMPLE).stdout
    assert path.read_bytes() == whole


def test_dg_takes_it_and_refuses_what_is_not_installed(machine: Machine, tmp_path: Path) -> None:
    assert "All component YAML validated successfully" in machine.run("check", "yaml", program=DG)
    schema = machine.run("utils", "inspect-component", "dataprep_assets.components.TokenizedCorpus", program=DG)
    choices = re.findall(r'"views": \{.*?"enum": (\[.*?\])', schema, re.DOTALL)
    assert json.loads(choices[0]) == sorted([*VIEWS, "id_lines"])
    done = machine.try_("check", "yaml", program=DG, site=tmp_path)
    assert done.returncode == 1
    assert_names(done.stdout + done.stderr, "id_lines")
    done = machine.try_("run", SAMPLE, site=tmp_path)
    assert done.returncode == 2
    assert_names(done.stderr, "views.1", "'id_lines'", ", ".join(VIEWS))


def test_the_pipeline_of_the_package_is_a_component(machine: Machine) -> None:
    assert "dataprep_assets.components.LineCorpus" in machine.run("list", "components", program=DG)
    machine.run("scaffold", "defs", "dataprep_assets.components.LineCorpus", "lines", program=DG)
    text = machine.declared.read_text()
    text = re.sub(r"^  views: .*\n|^  card:\n(    .*\n)+", "", text, flags=re.MULTILINE)
    text = text.replace("TokenizedCorpus", "LineCorpus").replace(f"dataset: {SAMPLE}", "dataset: lines")
    text = text.replace("./tokenizer", str(machine.declared.parent / "tokenizer"))
    (machine.defs / "lines" / "defs.yaml").write_text(text)
    assert "All definitions loaded successfully" in machine.run("check", "defs", program=DG)
    machine.run("run", "lines")
    for split in ("train", "val", "test"):
        files = [machine.artifacts / name / "id_lines_bins" / f"{split}.jsonl" for name in ("lines", SAMPLE)]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert not (machine.artifacts / "lines" / "nanogpt_bins").exists()
    assert re.search(r"lines +LineCorpus", machine.run("list"))


def distribution(site: Path, name: str, entry_points: str, group: str = "views") -> Path:
    """What pip leaves of a package: its name, its version and its entry points."""
    folder = site / f"{name.replace('-', '_')}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[dataprep_assets.{group}]\n{entry_points}\n")
    return site


BROKEN = [
    ("id_lines = nowhere.at_all:VIEW", None, "nowhere.at_all:VIEW cannot be imported: ModuleNotFoundError: No mod"),
    ("id_lines = broken:VIEW", "import json\nVEIW = 1\n", "cannot be imported: AttributeError: module 'broken' "),
    ("id_lines = broken:VIEW", "1 / 0", "broken:VIEW cannot be imported: ZeroDivisionError: division by zero. "),
]


@pytest.mark.parametrize(("entry_point", "module", "told"), BROKEN)
def test_an_extension_that_cannot_be_imported_is_told_with_its_package(
    monkeypatch: pytest.MonkeyPatch, entry_point: str, module: str | None, told: str, tmp_path: Path
) -> None:
    site = distribution(tmp_path / "site", "broken-views", entry_point)
    if module is not None:
        (site / "broken.py").write_text(module)
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    views = Extensions("view", "dataprep_assets.views", own_modules={})
    with pytest.raises(ConfigError) as refused:
        views["id_lines"].load()
    assert str(refused.value).startswith("view 'id_lines' of the package broken-views 1.0: ")
    assert told in str(refused.value)
    monkeypatch.delitem(sys.modules, "broken", raising=False)


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("VIEW = 1", "broken:VIEW is not a CorpusView. Repair the package, or uninstall it"),
        ("from dataprep_assets.pipelines.corpus.views.nanogpt import VIEW", "broken:VIEW has the name 'nanogpt'. "),
    ],
)
def test_a_view_that_cannot_be_used_is_told_with_its_package_where_it_is_declared(
    machine: Machine, module: str, told: str, tmp_path: Path
) -> None:
    site = distribution(tmp_path / "site", "broken-views", "id_lines = broken:VIEW")
    (site / "broken.py").write_text(module)
    done = machine.try_("check", SAMPLE, site=site)
    assert done.returncode == 2
    lines = machine.declared.read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if line.startswith("  views:"))
    assert_names(done.stdout, f"{machine.declared}:{number}", "'id_lines'", "broken-views 1.0")
    assert told in done.stdout
    assert done.stderr == ""


def test_a_broken_package_is_in_nobodys_way_who_does_not_use_it(machine: Machine, tmp_path: Path) -> None:
    site = distribution(tmp_path / "site", "broken-views", "other = nowhere:VIEW")
    path = os.pathsep.join([str(machine.site), str(site)])
    done = machine.try_("status", SAMPLE, site=Path(path))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_that_two_packages_have_is_refused_with_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for package in ("more-views", "line-views"):
        monkeypatch.syspath_prepend(distribution(tmp_path / package, package, "id_lines = line_views.id_lines:VIEW"))
    views = Extensions("view", "dataprep_assets.views", own_modules={"nanogpt": "views.nanogpt:VIEW"})
    with pytest.raises(ConfigError) as refused:
        views["id_lines"]
    assert_names(str(refused.value), "'id_lines'", 2, "line-views 1.0", "more-views 1.0")
    monkeypatch.syspath_prepend(distribution(tmp_path / "third", "third-views", "nanogpt = somewhere:VIEW"))
    views = Extensions("view", "dataprep_assets.views", own_modules={"nanogpt": "views.nanogpt:VIEW"})
    with pytest.raises(ConfigError) as refused:
        views["nanogpt"]
    assert_names(str(refused.value), "'nanogpt'", 2, "dataprep-assets", "third-views 1.0")


def test_only_the_version_of_a_package_that_python_imports_extends_this_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(distribution(tmp_path / "old", "more-views", "old_lines = line_views.id_lines:VIEW"))
    assert [*Extensions("view", "dataprep_assets.views", own_modules={})] == ["old_lines"]
    monkeypatch.syspath_prepend(distribution(tmp_path / "new", "more-views", "other = json:loads", "pipelines"))
    assert [*Extensions("view", "dataprep_assets.views", own_modules={})] == []
    monkeypatch.syspath_prepend(distribution(tmp_path / "newest", "more-views", "command = json:loads", "others"))
    assert [*Extensions("pipeline", "dataprep_assets.pipelines", own_modules={})] == []


def test_a_pipeline_that_cannot_be_used_is_told_where_it_is_declared_and_stops_no_other(
    site: Path, tmp_path: Path
) -> None:
    machine = Machine(tmp_path / "my_data", site)
    entry_points = "LineCorpus = json.decoder:JSONDecoder"
    broken = distribution(tmp_path / "site", "more-pipelines", entry_points, "pipelines")
    beside = machine.defs / "beside"
    beside.mkdir()
    beside.joinpath("defs.yaml").write_text("type: dataprep_assets.components.LineCorpus\nattributes: {}\n")
    done = machine.try_("check", "beside", site=broken, often=True)
    where = f"{beside / 'defs.yaml'}:1: type: dataprep_assets.components.LineCorpus: "
    told = "pipeline 'LineCorpus' of the package more-pipelines 1.0: json.decoder:JSONDecoder is not a Dataset. Rep"
    assert (done.returncode, f"{where}{told}" in done.stdout + done.stderr) == (2, True), done
    shutil.rmtree(beside)
    machine.declared.write_text(machine.declared.read_text().replace(", id_lines", ""))
    for arguments in (("check", "defs"), ("list", "components")):
        done = machine.try_(*arguments, program=DG, site=broken, often=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "LineCorpus" not in done.stdout


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    with raises(ConfigError, "'x'", "a, b"):
        Extensions("view", "no.such.group", own_modules={"b": "m:B", "a": "m:A"})["x"]
