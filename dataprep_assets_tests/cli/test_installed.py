"""Install the wheel with pip in a fresh environment without the checkout, create a project and run it."""

import json
import os
import re
import subprocess
import zipfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.serving.sampler.seen import SeenLedger, documents_of_step
from dataprep_assets.serving.sampler.training_data import TrainingData
from dataprep_assets_tests import fresh_environment
from dataprep_assets_tests.messages import raises

pytestmark = pytest.mark.slow
ENVIRONMENT = "environment"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this checkout."""
    return fresh_environment.build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project that `dataprep init` of the installed wheel created."""
    folder = tmp_path_factory.mktemp("installed")
    fresh_environment.install(wheel, folder / ENVIRONMENT)
    done = run_program(folder, "dataprep", "init", "my-data")
    assert "dataprep run sample_corpus" in done
    return folder / "my-data"


IN_ONE_PROCESS = """
import shlex, sys
from dataprep_assets.cli import main
for line in sys.argv[1:]:
    print(f"$ {line}", flush=True)
    if (code := main(shlex.split(line)[1:])) != 0:
        sys.exit(f"{line}: exit code {code}")
"""


def check_posts(project: Path, fields: str) -> str:
    """Declare a corpus of two CSV files with some keys of the quickstart, and return the output of `dataprep check`."""
    defs = project / "my_data" / "defs"
    declared = yaml.safe_load((defs / "my_corpus" / "defs.yaml").read_text(encoding="utf-8"))
    declared["attributes"] |= yaml.safe_load(fields) | {"dataset": "my_posts"}
    (defs / "my_posts" / "texts").mkdir(parents=True)
    for name in ("part_00", "part_10"):
        (defs / "my_posts" / "texts" / f"{name}.csv").write_text("id,body\n1,a text of some words\n")
    (defs / "my_posts" / "defs.yaml").write_text(yaml.safe_dump(declared), encoding="utf-8")
    return run_each_command(project, "dataprep check my_posts")["dataprep check my_posts"]


def run_each_command(folder: Path, *lines: str) -> dict[str, str]:
    """Return the output of each of our command lines in a folder, in order."""
    told = run_program(folder, "python", "-c", IN_ONE_PROCESS, *lines)
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in told.split("$ ")[1:]}


def run_program(folder: Path, program: str, *arguments: str) -> str:
    """Return the output of a program of the environment that is installed below the folder."""
    (environment,) = (found for parent in (folder, *folder.parents) if (found := parent / ENVIRONMENT).is_dir())
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("DATAPREP_", "PYTHON"))}
    variables |= {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}", "DAGSTER_HOME": str(folder / ".dagster")}
    variables["OMP_NUM_THREADS"] = "1"  # threads slow a tiny model down
    command = [environment / "bin" / program, *arguments]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_contains_only_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (metadata,) = (packed.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"dataprep_assets"}
    assert not [name for name in names if name.endswith(".pyc") or Path(name).name.startswith("test_")]
    for wanted in (
        "py.typed",
        "resources/io_manager.py",
        "resources/r2.py",
        "project_template/dagster.yaml",
        "docs/pictures/architecture.svg",
    ):
        assert f"dataprep_assets/{wanted}" in names
    for told in (
        "Author: ",
        "License-Expression: Apache-2.0",
        "Requires-Python: <3.14,>=3.11",
        "Classifier: Typing :: Typed",
    ):
        assert f"\n{told}" in metadata
    pages = {path.relative_to(PROJECT_ROOT).as_posix() for path in (PROJECT_ROOT / "docs").rglob("*.md")}
    assert {f"dataprep_assets/{page}" for page in pages} <= set(names)


def test_the_installed_command_runs_the_sample_and_verifies_it(project: Path) -> None:
    assert ENVIRONMENT in run_program(
        project, "python", "-c", "import dataprep_assets; print(dataprep_assets.__file__)"
    )
    out = run_program(project, "dataprep", "run", "sample_corpus")
    assert "checks: 88 of 88 passed" in out
    assert float(re.findall(r"^built in ([0-9.]+) s", out, re.MULTILINE)[0]) < 90
    told = run_each_command(project, "dataprep verify", "dataprep run sample_corpus")
    assert "all match their receipts" in told["dataprep verify"]
    assert "everything is up to date" in told["dataprep run sample_corpus"]
    found = run_program(project.parent, "dataprep", "--project", str(project), "status", "sample_corpus")
    assert found == "sample_corpus: everything is up to date\n"


def test_deployment_files_include_the_wheel_that_no_index_has(project: Path, wheel: Path) -> None:
    brought = project.parent / "deployed" / "deploy" / "wheels" / wheel.name
    told = run_program(project.parent, "dataprep", "init", "deployed", "--deploy", "compose")
    assert brought.read_bytes() == wheel.read_bytes()
    assert "not installed from an index" not in told
    brought.unlink()
    told = run_program(project.parent / "deployed", "dataprep", "init", ".", "--deploy", "kubernetes")
    assert brought.read_bytes() == wheel.read_bytes(), "each file that is not there"
    assert "not installed from an index" not in told
    elsewhere = wheel.rename(wheel.with_name("elsewhere.whl"))
    try:
        told = run_program(project.parent, "dataprep", "init", "later", "--deploy", "compose")
    finally:
        elsewhere.rename(wheel)
    assert f"pip wheel --no-deps -w later/deploy/wheels {wheel}" in told


GONE = "train.jsonl:14"
NOT_RUN = {
    "python -m venv .venv && source .venv/bin/activate": "the fixture has made an environment",
    "pip install dataprep-assets": "the fixture has installed the wheel",
    "pip install torch": "that of the tests is linked, or that part is skipped",
    "dataprep init my-data": "the fixture has done it",
    "cd my-data": "every line runs there",
    "dataprep ui": "it runs until Ctrl-C; the tests of the UI start it",
}


def test_the_quickstart_and_its_training_loops_run(project: Path) -> None:
    """The lines run in the order of the pages."""
    docs = PROJECT_ROOT / "docs"
    page = "\n".join((docs / name).read_text(encoding="utf-8") for name in ("quickstart.md", "train.md"))
    commands: list[str] = []
    outs: dict[str, str] = {}

    def run_commands() -> None:
        if commands:
            outs.update(run_each_command(project, *commands) | outs)  # keep a repeated command's first output
        commands.clear()

    readme, own_files = (PROJECT_ROOT / "README.md").read_text(encoding="utf-8"), list[str]()
    for language, block in re.findall(r"^```(python|yaml|bash)\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        if language != "bash" and not block.startswith("# "):
            if block not in readme:  # test_readme.py builds the README's blocks
                own_files.append(block)
            continue
        if language != "bash":
            run_commands()
            name = block.partition("\n")[0].removeprefix("# ")
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(block, encoding="utf-8")
            continue
        for line in (line.partition("  #")[0].strip() for line in block.splitlines()):
            if line in NOT_RUN:
                continue
            if line.startswith("dataprep "):
                commands.append(line)
                continue
            run_commands()
            program, script, *arguments = line.split()
            assert program == "python"
            if script == "gpt.py" and find_spec("torch") is None:
                continue
            if script == "gpt.py":
                fresh_environment.link_distributions(
                    project.parent / ENVIRONMENT, fresh_environment.find_distributions(["torch"])
                )
            outs[line] = run_program(project, program, script, *(["20"] if script == "gpt.py" else arguments))
    run_commands()
    (fields,) = own_files
    assert "1 declaration: no errors found" in check_posts(project, fields)

    assert "1 declaration: no errors found" in outs["dataprep check my_corpus"]
    made, shown = outs["dataprep run my_corpus"], outs["dataprep show my_corpus"]
    passed, every = re.findall(r"checks: (\d+) of (\d+) passed", made)[0]
    assert passed == every, made
    assert f"checks: {passed} of {every} passed" in page, "the page's output is that of its commands"
    assert made.splitlines()[-1].startswith("in the browser: ")
    assert made[made.index("split ") : made.index("built in ")] in shown
    assert (project / ".dataprep" / "artifacts" / "my_corpus" / "megatron_bins" / "train.idx").exists()
    for line in ("python bigram.py", "python gpt.py"):
        if line in outs:
            losses = [float(loss) for loss in re.findall(r"loss on val ([0-9.]+)", outs[line])]
            assert losses[-1] < losses[0] - 1, outs[line]
    compare_with_the_loop(project, outs)
    for line in ("dataprep verify", "dataprep verify my_corpus"):
        assert "all match their receipts" in outs[line]
    assert outs["dataprep trace my_corpus --split train --token 1000"].startswith("train.jsonl:")
    assert "everything is up to date" in outs["dataprep status my_corpus"]


def compare_with_the_loop(project: Path, outs: dict[str, str]) -> None:
    """Assert that the loop's log equals the ledger of its schedule, sample by sample."""
    folder = project / "my_data" / "defs" / "my_corpus" / "texts"
    texts = {
        f"{path.name}:{row}": json.loads(line)["text"]
        for path in folder.iterdir()
        for row, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    }
    ledger = SeenLedger(TrainingData(project / ".dataprep" / "artifacts", "my_run"))
    seen = {step: documents_of_step(ledger, step) for step in range(200)}
    wrote = [json.loads(line) for line in (project / "read.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(wrote) == 100 * 8 + 100 * 12
    sources = Counter[str]()
    for one in wrote:
        told = [document for document in seen[one["step"]] if document.position == one["sample"]]
        assert len(told) == len(one["texts"]), one
        for document, part in zip(told, one["texts"], strict=True):
            sources[document.source] += one["step"] >= 100
            # A sample may end within a character, which is then decoded as a replacement character.
            if document.source == "my_corpus":
                assert part.strip("\N{REPLACEMENT CHARACTER}") in texts[f"{document.file}:{document.row}"], one
    assert abs(sources["my_corpus"] - sources["sample_corpus"]) < 300
    retracted = outs["dataprep retract my_corpus --ids gone.txt"]
    read = [int(step) for step in re.findall(r"^  step (\d+), ", outs[f"dataprep seen my_run --document {GONE}"], re.M)]
    assert read
    assert max(read) < 100
    assert all(re.search(rf"\b{step}\b", retracted.partition("reads these documents at")[2]) for step in read[:10])
    assert any("train_more.jsonl" in document.file for step in range(100, 200) for document in seen[step])


def test_the_examples_of_the_concepts_match_the_sample(project: Path) -> None:
    """The commands run; the JSON is part of the file that the text before it names."""
    # Build the sample, because this test may run without the others.
    if not (project / ".dataprep" / "artifacts" / "sample_corpus" / "data_card").is_dir():
        run_program(project, "dataprep", "run", "sample_corpus")
    page = (PROJECT_ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    lines = [
        line
        for block in re.findall(r"^```bash\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]
    assert len(run_each_command(project, *lines)) == len(lines) >= 6
    (project / "my_data" / "defs" / "sample_corpus" / "dataset.lock").unlink()
    examples = re.findall(r"`(sample_corpus/\S+\.jsonl?)`[^`]*```json\n(.*?)\n```", page, re.DOTALL)
    assert len(examples) == page.count("```json") >= 5
    for file, example in examples:
        text = (project / ".dataprep" / "artifacts" / file).read_text(encoding="utf-8")
        values = [json.loads(line) for line in text.splitlines()] if file.endswith("l") else [json.loads(text)]
        assert any(contains(value, json.loads(example)) for value in values), f"{file}: {example}"


def contains(value: object, part: object) -> bool:
    """Return whether a JSON value equals `part`, or is an object that contains every key and value of `part`."""
    if isinstance(value, dict) and isinstance(part, dict) and part:
        return all(key in value and contains(value[key], wanted) for key, wanted in part.items())
    return value == part


def test_the_python_blocks_of_the_pages_run_on_the_sample(project: Path) -> None:
    # Build the sample, because this test may run without the others.
    if not (project / ".dataprep" / "artifacts" / "sample_corpus" / "data_card").is_dir():
        run_program(project, "dataprep", "run", "sample_corpus")
    docs = PROJECT_ROOT / "docs"
    out = run_program(
        project, "python", str(PROJECT_ROOT / "dataprep_assets_tests" / "docs" / "run_blocks.py"), str(docs)
    )
    assert [line for line in out.splitlines() if line.startswith("ran ")] == ["ran installation.md", "ran a cell"]


def test_the_wheel_deploys_the_project(project: Path) -> None:
    """The wheel contains the files of deploy/; in the checkout, their folder is a link."""
    files = {"compose": "docker-compose.yaml", "kubernetes": "values.yaml", "slurm": "run.sbatch"}
    run_each_command(project, *(f"dataprep init . --deploy {place}" for place in files))
    for place, file in files.items():
        assert (project / "deploy" / place / file).is_file()
    assert "my-data" in (project / "deploy" / "kubernetes" / "values.yaml").read_text(encoding="utf-8")
    assert (project / "deploy" / "Dockerfile").is_file()


def test_dagsters_own_command_accepts_the_project(project: Path) -> None:
    run_program(project, "dg", "scaffold", "defs", "dataprep_assets.components.TokenizedCorpus", "mine")
    assert (project / "my_data" / "defs" / "mine" / "defs.yaml").exists()
    assert "All definitions loaded successfully" in run_program(project, "dg", "check", "defs")
    listed = run_program(project, "dg", "list", "defs", "--json")
    assert '"sample_corpus/manifest"' in listed
    assert '"mine/manifest"' in listed


def test_the_command_prints_the_address_of_the_documentation(project: Path) -> None:
    told = run_program(project, "dataprep", "--help").split()
    assert Path(told[told.index("Documentation:") + 1]).read_text(encoding="utf-8").startswith("# Documentation")


def test_outside_of_any_project_the_command_prints_the_remedy(project: Path) -> None:
    with raises(AssertionError, "no project"):
        run_program(project.parent, "dataprep", "status", "sample_corpus")


def test_a_folder_that_is_not_empty_is_left_unchanged(project: Path) -> None:
    with raises(AssertionError, "my-data", "empty"):
        run_program(project.parent, "dataprep", "init", "my-data")
