"""The README's length, words and links, and the two declarations that it links to.

Both declarations are built as printed, with the page's commands; the hub is a server on this machine with the
repository and the commit that they name.
"""

import json
import os
import random
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import yaml
from tokenizers import Tokenizer

from dataprep_assets_tests.cli.commands import run_line
from dataprep_assets_tests.docs.run_blocks import find_blocks
from dataprep_assets_tests.fakes.hub_server import HubServer

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
SFT = DOCS / "how-to" / "sft.md"
CHAT = ROOT / "dataprep_assets" / "defs" / "samples" / "sample_blend_sft"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QUESTIONS = {
    "tokenize with Qwen3": ("README.md", "#your-text-your-tokenizer", "yaml"),
    "use a tokenizer": ("docs/how-to/tokenizer.md", "", "yaml"),
    "train with nanoGPT": ("docs/how-to/nanogpt.md", "", "yaml"),
    "train with Megatron": ("docs/how-to/megatron.md", "", "yaml"),
    "prepare SFT data": ("docs/how-to/sft.md", "", "yaml"),
    "add a filter": ("docs/how-to/filter.md", "", "yaml"),
    "write a filter": ("docs/how-to/own-filter.md", "", "python"),
    "run on Slurm": ("docs/how-to/slurm.md", "", "bash"),
    "run on Kubernetes": ("docs/how-to/kubernetes.md", "", "yaml"),
    "understand an error": ("docs/troubleshooting.md", "", "bash"),
}
"""The first questions of a newcomer: the page, the heading that the README links, and the language of its block.
test_how_to.py runs the blocks of guides, this file those of the README."""


def test_the_readme_is_short_and_has_the_words_that_people_search_for() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    for word in ("filter", "deduplicate", "Slurm", "Kubernetes", "SFT", "Hugging Face Hub"):
        assert word in text, word


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_readme_links_to_a_block_that_answers(question: str) -> None:
    page, heading, language = QUESTIONS[question]
    text = README.read_text(encoding="utf-8")
    assert page == README.name or f"]({page}{heading})" in text
    sections = re.split(r"^##+ ", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    slugs = {
        re.sub(r"[^\w\- ]", "", section.partition("\n")[0].lower()).replace(" ", "-"): section for section in sections
    }
    section = slugs[heading[1:]] if heading else "".join(sections)
    assert f"```{language}\n" in section


def test_every_figure_of_the_readme_is_on_the_benchmark_page() -> None:
    table = README.read_text(encoding="utf-8").partition("## Measured")[2].partition("\n## ")[0]
    known = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    ratios = re.findall(r"\| ([0-9.]+) × \|", table)
    assert len(ratios) >= 5
    # Compute the ratio for near-deduplication here, because the page has only the two times.
    assert f"{1013 / 194:.1f}" in ratios
    assert [ratio for ratio in ratios if ratio not in known and ratio != f"{1013 / 194:.1f}"] == []
    rows = [row for row in table.splitlines() if " × " in row and row.startswith("|")]
    assert [row for row in rows if not re.search(r"\| 20\d\d-\d\d-\d\d \|$", row)] == []


@pytest.fixture
def hub(request: pytest.FixtureRequest) -> Iterator[HubServer]:
    """Run a hub with the README's tokenizer: Qwen3's own or, without the shared data, a small one with its special
    tokens.
    """
    (named,) = set(re.findall(r"repo: (\S+), revision: (\w{40})", README.read_text() + SFT.read_text()))
    folder = CHAT / "tokenizer"
    with suppress(pytest.skip.Exception):
        folder = request.getfixturevalue("shared") / "tokenizers" / "qwen3"
    config = json.loads((folder / "tokenizer_config.json").read_bytes())
    config.setdefault("chat_template", TEMPLATE)
    assert config["eos_token"] == "<|im_end|>"
    files = {
        "tokenizer.json": (folder / "tokenizer.json").read_bytes(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }
    with HubServer(files, repo_id=named[0], repo_type="model") as server:
        server.commits[named[1]] = server.commits[server.commit]
        yield server


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home with a user's texts and conversations: one text is short, one repeats itself, one is a copy."""
    draw = random.Random(7)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 9))) for _ in range(900)]
    texts = [" ".join(draw.choices(words, k=120)) for _ in range(46)]
    planted = ["Too short.", "\n".join(["the same line again"] * 40), f"{texts[0]} Edited."]
    for name, part in (("train", [*texts[:40], *planted]), ("val", texts[40:])):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in part)
        (tmp_path / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return tmp_path


@pytest.fixture
def environment(hub: HubServer, home: Path) -> dict[str, str]:
    """Return the environment of that user, whose hub is the server."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "HF_ENDPOINT": hub.endpoint,
        "HF_HUB_DISABLE_XET": "1",
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }


def run_lines(lines: Iterable[str], folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """Run shell lines in a folder and return the output of each; an exit code other than 0 fails the test."""
    outputs = {}
    for line in lines:
        done = run_line(line, folder, environment)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        outputs[line] = done.stdout
    return outputs


def read_shell_lines(page: Path, first: str) -> list[str]:
    """Return the lines of the first shell block with this beginning, without comments and pip installations."""
    (block,) = [block for block in find_blocks(page, "bash") if block.startswith(first)]
    lines = (line.partition("  #")[0].strip() for line in block.splitlines())
    return [line for line in lines if not line.startswith("pip install ")]


def read_documents(bins: Path, split: str, tokenizer: Tokenizer) -> list[str]:
    """Return the texts of a split's token file, which are separated by the separator token."""
    meta = json.loads((bins / "meta.json").read_bytes())
    ids = np.fromfile(bins / f"{split}.bin", dtype=meta["dtype"])
    ends = np.flatnonzero(ids == tokenizer.token_to_id("<|endoftext|>"))
    assert ends[-1] == ids.size - 1
    return [tokenizer.decode(part[:-1].tolist()) for part in np.split(ids, ends + 1)[:-1]]


@pytest.mark.slow
def test_the_declarations_are_built_as_printed(home: Path, hub: HubServer, environment: dict[str, str]) -> None:
    run_lines(["dataprep init my-data"], home, environment)
    project = home / "my-data"
    run_lines(read_shell_lines(README, "mkdir -p"), project, environment)
    corpus = project / "my_data" / "defs" / "my_corpus" / "defs.yaml"
    declaration, rules = find_blocks(README, "yaml")
    assert len(declaration.splitlines()) <= 10
    corpus.write_text(declaration, encoding="utf-8")
    outputs = run_lines(read_shell_lines(README, "dataprep check my_corpus"), project, environment)
    assert "no errors found" in outputs["dataprep check my_corpus"]
    bins = project / ".dataprep" / "artifacts" / "my_corpus" / "nanogpt_bins"
    edit = "; in train.py, replace np.uint16 with np.uint32"  # printed only for vocabularies that need 32 bits
    setting = f"nanoGPT: data_dir = '{bins.relative_to(project)}'"
    assert f"{setting}{edit}" in README.read_text(encoding="utf-8")
    wide = json.loads((bins / "meta.json").read_bytes())["dtype"] == "uint32"
    assert f"{setting}{edit * wide}\n" in outputs["dataprep run my_corpus"]
    assert (bins.parent / "megatron_bins" / "train.idx").is_file()
    tokenizer = Tokenizer.from_str(hub.commits[hub.commit]["tokenizer.json"].content.decode())
    for split in ("train", "val"):
        lines = (home / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        assert read_documents(bins, split, tokenizer) == [json.loads(line)["text"] for line in lines]

    corpus.write_text(declaration + rules, encoding="utf-8")
    outputs = run_lines(read_shell_lines(README, "pip install 'dataprep-assets["), project, environment)
    kept = read_documents(bins, "train", tokenizer)
    assert len(kept) == 40
    assert not [text for text in kept if text.startswith(("Too short", "the same line"))]
    for rule in ("short", "repeated", "duplicate"):
        assert re.search(rf"^{rule} +1 ", outputs["dataprep documents my_corpus"], re.MULTILINE)

    line = find_blocks(SFT, "json")[0]
    chat = project / "my_data" / "defs" / "my_chat"
    chat.mkdir()
    # Copy the data of the sample `chats`, because the guide's project has it.
    data = chat.parent / CHAT.name / "data"
    data.mkdir(parents=True)
    (data / "chat.jsonl").write_text(line + (CHAT / "data" / "chat.jsonl").read_text(encoding="utf-8"))
    of_the_guide, of_the_model = map(yaml.safe_load, find_blocks(SFT, "yaml"))
    of_the_guide["attributes"] |= of_the_model
    (chat / "defs.yaml").write_text(yaml.safe_dump(of_the_guide), encoding="utf-8")
    outputs = run_lines(read_shell_lines(SFT, "dataprep check my_chat"), project, environment)
    (folder,) = re.findall(r"packed_train_data_path=(\S+)", outputs["dataprep run my_chat"])
    assert list((project / folder).iterdir())
