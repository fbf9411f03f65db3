"""Samples, texts and histograms of `dataprep documents`, and `dataprep run --until`, in a `dataprep init` project."""

import csv
import json
import os
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets import open_project
from dataprep_assets_tests.cli.commands import dataprep, environment
from dataprep_assets_tests.cli.terminal import Terminal
from dataprep_assets_tests.docs import json_keys
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.coast import Coast, record, records, write_lines

LONG = "\n".join(f"Line {number} of the log\x1b[31m." for number in range(100))
DECLARED: dict[str, Any] = {
    "tag": ["gopher"],
    "splits": {"val": ["train/d.*"], "train": ["train/[abc].*"]},
    "keep": {"ours": "host == 'harbour.example'"},
    "drop": {"short": "words < 20"},
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Coast, dict[str, str]]:
    """A corpus of four shards, built up to its document table in two runs, and the outputs of the commands."""
    coast = Coast(tmp_path_factory.mktemp("documents") / "coast")
    write_lines(coast.folder / "data/train/d.jsonl", [record(301, "log") | {"text": LONG}])
    coast.declare(**DECLARED)
    outputs = {"selection": coast("run", "pages", "--until", "selection")}
    outputs["dry run"] = coast("run", "pages", "--until", "documents", "--dry-run", "--json", code=1)
    outputs["documents"] = coast("run", "pages", "--until", "documents")
    return coast, outputs


@pytest.fixture(scope="module")
def coast(built: tuple[Coast, dict[str, str]]) -> Coast:
    return built[0]


def read_rows(coast: Coast, *options: str) -> list[dict[str, Any]]:
    done = dataprep(coast.root.parent, "documents", "pages", "--json", *options, project=coast.root)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def find_texts(coast: Coast) -> dict[tuple[str, int], str]:
    """Return the texts of the source's good records by file and row."""
    texts: dict[tuple[str, int], str] = {}
    for path in sorted((coast.folder / "data").rglob("*.jsonl")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.startswith('{"text"'):
                texts[(path.relative_to(coast.folder / "data").as_posix(), number)] = json.loads(line)["text"]
    return texts


def test_a_run_until_an_artifact_builds_its_inputs_and_names_the_next_command(
    built: tuple[Coast, dict[str, str]],
) -> None:
    coast, outputs = built
    assert_names(outputs["selection"].splitlines()[-1], "`dataprep run pages`")
    assert "selection_train" in outputs["selection"]
    assert "token_bins" not in outputs["selection"]
    planned = {one["artifact"] for one in json.loads(outputs["dry run"])["rebuild"]}
    names = ("token_bins", "documents")
    assert planned == {"engine_certificate", *(f"{name}_{split}" for name in names for split in ("train", "val"))}
    *_, counted, following = outputs["documents"].splitlines()
    assert counted.startswith("checks: ")
    assert "not run" in counted
    assert_names(following, "`dataprep documents pages`", "`dataprep run pages`")
    assert [*coast.made("documents")] == ["train-00000", "train-00001", "train-00002", "val-00000"]
    assert not (coast.root.parent / "artifacts" / "pages" / "combined_bins").exists()
    assert_names(coast("run", "pages", "--until", "documents", "--dry-run"), "up to documents")
    coast("run", "pages", "--dry-run", code=1)
    whole_artifact = coast("run", "pages", "--until", "data_card", "--split", "val", code=2)
    assert_names(whole_artifact, "--until", "--split", "data_card", "all partitions")
    refused = coast("run", "pages", "--until", "selection", "--split", "val", "--dry-run", code=2)
    assert_names(refused, "--dry-run", "Remove --split\n")


def test_an_unknown_last_artifact_is_refused_with_the_known_ones(coast: Coast) -> None:
    for options in ([], ["--dry-run"], ["--split", "train"]):
        said = coast("run", "pages", "--until", "documets", *options, code=2)
        assert said.startswith("dataprep: unknown artifact 'documets'; did you mean 'documents'? Available: manifest, ")
        assert "selection, token_bins, documents, combined_bins" in said


def test_the_library_builds_and_plans_the_same_part(coast: Coast, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(coast.root.parent).items():
        monkeypatch.setenv(name, value)
    pages = open_project(coast.root).dataset("pages")
    assert pages.status(until="documents").works == ()
    assert {work.stale.asset for work in pages.status().works} == {
        *("combined_bins_train", "combined_bins_val", "nanogpt_bins", "data_card")
    }
    assert not pages.run(until="documents").ended


def test_a_sample_is_the_same_for_the_same_seed_and_consists_of_matching_rows(
    coast: Coast, monkeypatch: pytest.MonkeyPatch
) -> None:
    matching = read_rows(coast, "--reason", "short")
    drawn = read_rows(coast, "--reason", "short", "--sample", "4", "--seed", "5")
    assert read_rows(coast, "--reason", "short", "--sample", "4", "--seed", "5") == drawn
    assert len(drawn) == 4
    assert all(row in matching for row in drawn)
    assert drawn == sorted(drawn, key=lambda row: (row["file"], row["row"]))
    seeds = [read_rows(coast, "--reason", "short", "--sample", "4", "--seed", str(seed)) for seed in range(4)]
    assert any(rows != drawn for rows in seeds)
    assert read_rows(coast, "--reason", "short", "--sample", "4") == seeds[0]
    assert read_rows(coast, "--reason", "short", "--sample", "99") == matching
    kept = read_rows(coast, "--where", "kept", "--sample", "3")
    assert [row["kept"] for row in kept] == [True] * 3
    *_, last = coast("documents", "pages", "--reason", "short", "--sample", "4", "--seed", "5").splitlines()
    assert_names(last, f"4 of {len(matching)}", "seed 5")
    monkeypatch.setenv("DATAPREP_ROOT", str(coast.root.parent / "artifacts"))
    rows = open_project(coast.root).dataset("pages").documents(reason="short", split="train")
    assert rows.sample(4, 5) == drawn


def test_texts_of_kept_and_dropped_rows_are_those_of_the_source(coast: Coast) -> None:
    texts = find_texts(coast)
    rows = read_rows(coast, "--where", "row > 0", "--text")
    assert len(rows) > len(texts) > 50
    rejected = [row for row in rows if row["bytes"] is None]
    assert {(row["file"], row["row"]): row["text"] for row in rows if row["bytes"] is not None} == texts
    assert {row["reason"] for row in rejected} == {"bad_json", "missing_text"}
    for row in rejected:
        content = (coast.folder / "data" / row["file"]).read_bytes()
        line = content.splitlines()[row["row"] - 1].decode()
        assert content[row["text_byte"] :].startswith(line.encode())
        assert row["text"] == line if row["reason"] == "bad_json" else json.loads(row["text"]) == json.loads(line)
    (sampled,) = read_rows(coast, "--reason", "ours", "--sample", "1", "--text")
    assert sampled["text"] == texts[(sampled["file"], sampled["row"])]
    said = coast("documents", "pages", "--split", "train", "--text", "--csv", "--limit", "3")
    for row in csv.DictReader(said.splitlines()[:4]):
        assert row["text"] == texts[(row["file"], int(row["row"]))]


def test_a_long_text_is_shortened_and_its_control_characters_are_escaped(coast: Coast) -> None:
    first, _, *lines = coast("documents", "pages", "--where", "source = 'log'", "--text").splitlines()
    assert first.startswith("train/d.jsonl:1  kept")
    assert lines == [
        *(f"    | Line {number} of the log\\x1b[31m." for number in range(6)),
        f"    and {len(LONG[LONG.index('Line 6') :]):,} more characters: use --json to print the whole text",
    ]
    (row,) = read_rows(coast, "--reason", "bad_json", "--text")
    first, *_, text = coast("documents", "pages", "--reason", "bad_json", "--text").splitlines()
    assert first == f"{row['file']}:{row['row']}, byte {row['text_byte']:,}  dropped: bad_json"
    assert text.strip() == f"| {row['text']}"
    (row,) = read_rows(coast, "--where", "file = 'train/a.jsonl' and row = 1", "--text")
    *_, text, rest = coast("documents", "pages", "--where", "file = 'train/a.jsonl' and row = 1", "--text").splitlines()
    assert text == f"    | {row['text'][:160]} …"
    assert_names(rest, f"{len(row['text']) - 160:,} more characters", "--json")


def test_a_changed_or_missing_source_file_is_an_error(coast: Coast) -> None:
    path = coast.folder / "data/train/c.jsonl"
    before = path.read_text()
    question = ["documents", "pages", "--where", "file = 'train/c.jsonl'", "--text"]
    changed = "dataprep: train/c.jsonl: changed since the document table was built. Run `dataprep run pages`"
    try:
        path.write_text(before.replace("calm", "wild"))
        assert coast(*question, code=1).splitlines() == [changed]
        path.write_text(before + "\n")
        assert coast(*question, code=1).splitlines() == [changed]
        path.unlink()
        (said,) = coast(*question, code=1).splitlines()
        assert said.startswith("dataprep: train/c.jsonl: the text cannot be read: No such file or directory. Restore")
        assert len(read_rows(coast, *question[2:4])) == 20
    finally:
        path.write_text(before)


def test_a_histogram_has_the_counts_of_the_table_and_of_the_rules(coast: Coast) -> None:
    (plotted,) = read_rows(coast, "--plot", "words")
    rows = [row for row in read_rows(coast, "--where", "row > 0") if row["bytes"] is not None]
    assert (plotted["column"], plotted["documents"], plotted["missing"]) == ("words", len(rows), 0)
    assert sum(one["documents"] for one in plotted["bins"]) == len(rows)
    assert sum(one["documents"] for one in plotted["bins"] if one["to"] <= 50) == sum(row["words"] < 20 for row in rows)
    dropped = Counter(row["reason"] for row in rows)
    earlier = sum(row["words"] < 20 for row in rows) - dropped["short"]
    assert earlier > 0
    assert plotted["rules"] == [
        {
            "rule": "short",
            "drops": "words < 20",
            "thresholds": [20],
            "documents": dropped["short"],
            "dropped_earlier": earlier,
            "share": dropped["short"] / len(rows),
        }
    ]
    (sources,) = read_rows(coast, "--plot", "source")
    counts = Counter(row["source"] for row in rows)
    assert {one["value"]: one["documents"] for one in sources["values"]} == counts
    assert sources["values"] == sorted(sources["values"], key=lambda one: (-one["documents"], one["value"]))
    (hosts,) = read_rows(coast, "--plot", "host")
    assert [rule["rule"] for rule in hosts["rules"]] == ["ours"]
    paths = {path for plot in (plotted, sources) for path in json_keys.list_paths(plot, {"quantiles": ""})}
    assert paths == json_keys.PLOT.keys()
    (books,) = read_rows(coast, "--plot", "words", "--where", "source = 'books'", "--split", "train")
    assert books["documents"] == sum(row["source"] == "books" for row in rows)
    # The plot uses the rules of the declaration, so another threshold can be tried before a run.
    coast.declare(**DECLARED | {"drop": {"short": "words < 5", "long": "bytes / words > 100"}})
    try:
        said = coast("documents", "pages", "--plot", "words")
    finally:
        coast.declare(**DECLARED)
    assert " 5  short drops 0 documents (0.0%) ---" in said
    assert_names(said, "long drops 0", "bytes / words > 100")
    assert {len(line) for line in said.splitlines() if line.endswith(("#", "-"))} >= {80}


def test_a_histogram_fits_a_terminal_of_60_columns(coast: Coast) -> None:
    variables = environment(coast.root.parent) | {"PYTHONPATH": str(coast.root), "PATH": os.environ["PATH"]}
    variables.pop("COLUMNS", None)
    words = ["--project", str(coast.root), "documents", "pages", "--plot", "words"]
    with Terminal([sys.executable, "-m", "dataprep_assets.cli", *words], variables, 60) as terminal:
        assert terminal.end() == 0
        lines = terminal.seen.rpartition("\x1b[2K")[2].splitlines()
    assert {len(line) for line in lines if line.endswith(("█", "─"))} >= {60}
    assert all(len(line) <= 60 for line in lines)
    assert any(" 20  short drops " in line and line.endswith("─") for line in lines)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--plot wrds", "unknown column 'wrds'; did you mean 'words'? Available: file, row, "),
        ("--plot words --sample 3", "--plot cannot be combined with --sample. Remove one of them"),
        ("--plot words --csv", "--plot cannot be combined with --csv. Remove one of them"),
        ("--plot words --text", "--plot cannot be combined with --text. Remove one of them"),
        ("--plot words --limit 3", "--plot cannot be combined with --limit. Remove one of them"),
        ("--sample 3 --limit 3", "--sample cannot be combined with --limit. Remove one of them"),
        ("--json --csv", "--json cannot be combined with --csv. Remove one of them"),
        ("--seed 3", "--seed needs --sample. Add --sample N"),
        ("--sample 0", "Invalid value for '--sample'"),
        ("--sample 3 --reason shrt", "--reason: unknown reason 'shrt'"),
    ],
)
def test_options_that_do_not_fit_are_refused(coast: Coast, options: str, said: str) -> None:
    (line,) = coast("documents", "pages", *options.split(), code=2).splitlines()
    assert said in line


def test_a_sensitive_dataset_shows_no_row_no_text_and_no_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCUMENT_KEY", "k" * 40)
    coast = Coast(tmp_path / "coast")
    texts = [{"text": f"wellenbrecher {one['text']}"} for one in records(1, "books")]
    for name in ("b", "c"):
        (coast.folder / f"data/train/{name}.jsonl").unlink()
    write_lines(coast.folder / "data/train/a.jsonl", texts)
    document = {"separator": "<|endoftext|>", "id_key": {"env": "DOCUMENT_KEY"}}
    coast.declare(sensitive=True, document=document, tag=["gopher"], keep=None, drop=DECLARED["drop"])
    said = coast("run", "pages", "--until", "documents")
    for options in (["--sample", "3"], ["--text"], ["--plot", "words"], ["--sample", "3", "--text", "--json"]):
        refused = coast("documents", "pages", *options, code=2)
        shown = " and ".join(option for option in options if option in ("--sample", "--text", "--plot"))
        assert_names(refused, "pages is sensitive", f"Remove {shown}")
        assert refused.count("\n") == 1
        said += refused
    said += coast("documents", "pages", "--where", "kept")
    assert "matching rows: 20" in said
    assert "16" not in said, "the exact number of kept documents"
    assert "wellenbrecher" not in said


def test_the_trace_of_a_dropped_row_names_the_command_that_shows_its_text(coast: Coast) -> None:
    row = next(row for row in read_rows(coast, "--reason", "short") if row["file"])
    position = ("--file", row["file"], "--row", str(row["row"]))
    traced = dataprep(coast.root.parent, "trace", "pages", *position, project=coast.root)
    assert (traced.returncode, traced.stdout) == (1, "")
    assert_names(traced.stderr, "'short'")
    program, *arguments = shlex.split(traced.stderr.split("`")[1])
    assert program == "dataprep"
    shown = dataprep(coast.root.parent, *arguments, "--json", project=coast.root)
    assert json.loads(shown.stdout) == row | {"text": find_texts(coast)[row["file"], row["row"]]}
