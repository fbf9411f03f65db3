"""Write the pictures of the pages, `docs/pictures/*.svg`, for `make docs-reference`.

`python -m dataprep_assets_tests.docs.pictures --record` first runs the commands of the recordings in a new project, and
stores their output in `docs/recordings/` next to this module. With `--screenshot`, it only writes the picture of the
site, `docs/pictures/site.png`, in a browser with simulated records.

Entry points: `drawings` (the whole texts), `record`, `write_screenshot`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dataprep_assets.planning.manifest import format_shard_key
from dataprep_assets_tests.docs import architecture
from dataprep_assets_tests.docs.drawing import PICTURES, Box, arrows, framed, terminal

SCREENSHOT = PICTURES / "site.png"
RECORDINGS = Path(__file__).with_name("recordings")
TITLES = {
    "failing-check": "A check fails, the rule is corrected, and the next run passes",
    "kill-and-resume": "A run is killed, and the same command resumes it",
}
_NEEDS = {
    "text documents": {
        "token files for your trainer": "TokenizedCorpus",
        "shards that many machines download": "ShardRelease",
        "several sources, mixed by weight": "TrainingBlend",
    },
    "conversations, RL prompts": {"packed rows with a loss mask, or prompts": "TrainingBlend"},
    "datasets of this project": {"the samples of each training step": "TrainingSchedule"},
    "clinical notes": {
        "packed rows, month by month": "PackedCohorts",
        "a mixture of several cohorts": "CombinedCohorts",
    },
    "task folders": {"a copy for a new project": "TaskMigration"},
}
"""Your data → the result that you need → the component."""
_RULE = """\
type: dataprep_assets.components.TokenizedCorpus
attributes:
  dataset: books
  source: {kind: local, path: ./texts}
  include: ["*.jsonl"]
  splits: {train: ["*"]}
  tokenizer: {path: ../sample_corpus/tokenizer}
  tag: [gopher]
  drop: {short: words < 90}
  views: [nanogpt]
"""


def drawings() -> dict[Path, str]:
    """Return the whole text of each picture, by its file."""
    texts = {"architecture": architecture.drawing(), "components": components(), "partitions": partitions()}
    recordings = {name: (RECORDINGS / f"{name}.txt").read_text(encoding="utf-8") for name in TITLES}
    texts |= {name: terminal(TITLES[name], text.splitlines()) for name, text in recordings.items()}
    return {PICTURES / f"{name}.svg": text for name, text in texts.items()}


def component_names() -> set[str]:
    """Return the components in the picture of them."""
    return {name for needs in _NEEDS.values() for name in needs.values()}


def components() -> str:
    """Return the picture that helps users to choose a component."""
    boxes, paths, top, blend = list[Box](), list[str](), 56, 0
    for data, needs in _NEEDS.items():
        middle = top + 48 * len(needs) // 2 - 6
        boxes.append(Box(data, 20, middle - 18, 190, 36, kind="outside"))
        for need, name in needs.items():
            y = top + 18
            boxes.append(Box(need, 270, top, 320, 36, kind="evidence"))
            paths += [f"M210 {middle} H240 V{y} H268", f"M590 {y} H648"]
            if name != "TrainingBlend":
                boxes.append(Box(name, 650, top, 230, 36))
            elif not blend:
                blend = top
                boxes.append(Box(name, 650, top, 230, 84))
            top += 48
    titles = ("your data", 115), ("the result that you need", 430), ("the component", 765)
    heads = (f'<text class="title" x="{x}" y="46">{title}</text>' for title, x in titles)
    body = (*heads, *(element for box in boxes for element in box.draw()), *arrows(paths))
    return framed("Which component you need", "", 900, top + 8, body)


def partitions() -> str:
    """Return the picture of shards as partitions, and of a backfill of the missing ones."""
    boxes = [*_panel(20, "after a killed run", built=1), *_panel(510, "after the backfill", built=3)]
    command = ("or, in Dagster: Materialize, Backfill only failed and missing partitions",)
    boxes.append(Box("dataprep run NAME", 20, 340, 900, 54, command, "outside"))
    body = (*(element for box in boxes for element in box.draw()), *arrows(["M430 198 H508"]))
    return framed("Partitions and a backfill", "a shard is a partition; a backfill builds missing ones", 940, 414, body)


def _panel(x: int, title: str, *, built: int) -> Iterator[Box]:
    yield Box(title, x, 50, 410, 272, kind="group")
    yield Box("manifest", x + 20, 82, 370, 50, ("assigns source files to three shards",))
    yield Box("token_bins_train", x + 10, 146, 390, 100, kind="group")
    for number in range(3):
        kind, line = ("box", "built") if number < built else ("missing", "missing")
        yield Box(format_shard_key("train", number), x + 20 + 126 * number, 176, 118, 56, (line,), kind)
    kind, line = ("box", "built from all shards") if built == 3 else ("missing", "waits for all shards")
    yield Box("combined_bins_train", x + 20, 256, 370, 50, (line,), kind)


def record() -> dict[str, str]:
    """Run the commands of the recordings in a new project and return what a terminal shows, by recording."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "my-data"
        _run("init", str(project), folder=Path(folder))
        killed = _run("run", "sample_corpus", folder=project, until="token_bins_train")
        resumed = _run("run", "sample_corpus", folder=project)
        books = project / "my_data" / "defs" / "books"
        (books / "texts").mkdir(parents=True)
        text = "The river was high that spring, and the boats stayed at home. " * 6
        pages = [f"Page {number} of the book. {text}" for number in range(180)] + ["An empty page."] * 20
        rows = "".join(json.dumps({"text": page}) + "\n" for page in pages)
        (books / "texts" / "a.jsonl").write_text(rows, encoding="utf-8")
        (books / "defs.yaml").write_text(_RULE, encoding="utf-8")
        failed = _run("run", "books", folder=project)
        (books / "defs.yaml").write_text(_RULE.replace("< 90", "< 50"), encoding="utf-8")
        repaired = _run("run", "books", folder=project)
    command, edit = "$ dataprep run ", "$ sed -i 's/words < 90/words < 50/' my_data/defs/books/defs.yaml"
    scenes = {
        "failing-check": [f"{command}books", *failed, "", edit, f"{command}books", *repaired],
        "kill-and-resume": [f"{command}sample_corpus", *killed, "Killed", "", f"{command}sample_corpus", *resumed],
    }
    return {name: "\n".join(lines) + "\n" for name, lines in scenes.items()}


def _run(*arguments: str, folder: Path, until: str = "") -> list[str]:
    """Run the command up to its end, or kill it at a line; return its steps, and the number of checks or a failure."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DATAPREP_", "DAGSTER_"))}
    process = subprocess.Popen(
        [sys.executable, "-m", "dataprep_assets.cli", *arguments],
        cwd=folder,
        env=environment | {"DAGSTER_DISABLE_TELEMETRY": "yes", "COLUMNS": "96"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    lines = list[str]()
    for line in process.stdout or ():
        lines.append(line.rstrip())
        if until and until in line:
            os.killpg(process.pid, signal.SIGKILL)
            break
    process.communicate()
    steps = [line for line in lines if not line.startswith("note: ")]
    end = steps.index("") if "" in steps else len(steps)
    checks = [line for line in steps[end:] if line.startswith("checks: ")]
    return [*steps[:end], "…", *checks] if checks else steps


def write_screenshot() -> None:
    """Write the screenshot of the site's overview."""
    from dataprep_assets.site.overview import describe_overview
    from dataprep_assets.site.pages import STATIC, Link, PageEnvironment
    from dataprep_assets_tests.site.records import make_states
    from dataprep_assets_tests.ui.browser import Browser

    page = describe_overview(list(make_states(7, 60)), {})
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shutil.copytree(STATIC, folder / "static")
        environment = PageEnvironment(navigation=(Link("Overview", "index.html", current=True),))
        (folder / "index.html").write_text(page.render(environment), encoding="utf-8")
        browser = Browser(folder / "profile")
        try:
            size = {"width": 1280, "height": 720, "deviceScaleFactor": 1, "mobile": False}
            browser.call("Emulation.setDeviceMetricsOverride", **size)
            browser.open((folder / "index.html").as_uri(), "All datasets")
            browser.picture(SCREENSHOT)
        finally:
            browser.close()


if __name__ == "__main__":
    if "--record" in sys.argv:
        RECORDINGS.mkdir(exist_ok=True)
        for name, text in record().items():
            (RECORDINGS / f"{name}.txt").write_text(text, encoding="utf-8")
    if "--screenshot" in sys.argv:
        write_screenshot()
    else:
        for path, text in drawings().items():
            path.write_text(text, encoding="utf-8")
            print(f"{path.name}: written")
