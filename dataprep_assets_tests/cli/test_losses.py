"""At the end of `dataprep run` and in `dataprep show`, every kind of dataset lists its losses."""

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.blend.pipeline import make_text, write_rows
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, written
from dataprep_assets_tests.samples import SAMPLE
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer
from dataprep_assets_tests.tokenization.chat.trap import QWEN
from dataprep_assets_tests.tokenization.families import save
from dataprep_assets_tests.tools.sample.make_sample_tasks import LAYOUT

TOKENIZER = {"path": str(SAMPLE / "tokenizer"), "engine": "tokenizers"}
STREAM = {"tokenizer": TOKENIZER, "document": {"separator": "<|endoftext|>"}}
DROP = {"policy": "drop", "budget": 0.9}


class Project:
    """A `dataprep init` project with the datasets that a test declares."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made = dataprep(folder.parent, "init", str(folder), project=folder.parent)
        assert made.returncode == 0, made.stderr

    def declare(self, component: str, name: str, **attributes: Any) -> None:
        declared = {"type": f"dataprep_assets.components.{component}", "attributes": {"dataset": name, **attributes}}
        path = self.folder / "harbour_lights" / "defs" / name / "defs.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(declared, sort_keys=False))

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return dataprep(self.folder.parent, *words, project=self.folder)

    def run(self, *names: str) -> str:
        """Run the project, which must succeed, and return its output."""
        ran = self.command("run", *names)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def losses(self, name: str) -> list[dict[str, Any]]:
        """Return the losses of a dataset from `show --json`."""
        shown = self.command("show", name, "--json")
        found: list[dict[str, Any]] = json.loads(shown.stdout)["losses"]
        return found


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("losses") / "harbour-lights")


def read_block(said: str) -> list[str]:
    """Return the lines about losses and changes."""
    found = re.search(r"^lost: .*(?:\n.+)*", said, re.MULTILINE)
    assert found is not None, said
    return found[0].splitlines()


def corpus(project: Project, name: str, files: Mapping[str, Sequence[Any]], **changes: Any) -> dict[str, Any]:
    for path, rows in files.items():
        write_rows(project.folder / "sources" / name / path, rows)
    source = {"kind": "local", "path": str(project.folder / "sources" / name)}
    base = {"source": source, "include": ["**/*.jsonl"], "splits": {"train": ["train/**"]}, **STREAM}
    return {**base, "bad_records": DROP, "views": [], **changes}


def texts(*words: str) -> list[dict[str, Any]]:
    return [{"text": word} for word in words]


def single_loss(losses: Sequence[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """Return the only loss with these values."""
    (found,) = [loss for loss in losses if wanted.items() <= loss.items()]
    return found


def test_a_corpus_lists_losses_by_file_rule_duplicate_and_split_and_what_changed(project: Project) -> None:
    rows = texts(*(f"page {i} of the harbour book, kept for its words" for i in range(40)))
    files: dict[str, list[Any]] = {
        "train/a.jsonl": [*rows[:20], b"{broken\n", b"[1]\n", rows[3], *texts("x", "y")],
        "train/b.jsonl": [*rows[20:], {"words": 1}, *texts("z")],
        "other/c.jsonl": rows[:2],
    }
    declared = corpus(
        project,
        "pages",
        files,
        tag=["gopher"],
        drop={"short": "words < 3"},
        duplicates={"kind": "exact"},
        views=["nanogpt", "mds"],
        mds_sequence_length=7,
    )
    project.declare("TokenizedCorpus", "pages", **declared)
    told = read_block(project.run("pages"))
    losses = project.losses("pages")
    bad = single_loss(losses, reason="bad_json")
    assert (bad["action"], bad["kind"], bad["unit"], bad["count"], bad["of"]) == ("dropped", "bad record", "row", 1, 47)
    assert bad["files"] == {"train/a.jsonl": 1}
    assert single_loss(losses, reason="missing_text")["files"] == {"train/b.jsonl": 1}
    assert single_loss(losses, reason="short")["kind"] == "rule"
    assert single_loss(losses, reason="short")["files"] == {"train/a.jsonl": 2, "train/b.jsonl": 1}
    assert single_loss(losses, reason="duplicate")["count"] == 1
    assert single_loss(losses, reason="no_split") == {
        "action": "left out",
        "reason": "no_split",
        "count": 1,
        "of": 3,
        "unit": "file",
        "part": "",
        "kind": "",
        "files": {"other/c.jsonl": 1},
    }
    assert single_loss(losses, reason="mds_tail")["count"] < 7
    assert told[0].startswith("lost: 1 of 3 files left out, 7 of 47 rows dropped, ")
    assert any("bad_json (bad record)" in line and "train: train/a.jsonl 1" in line for line in told)
    at = next(number for number, line in enumerate(told) if "short (rule)" in line)
    assert "train: train/a.jsonl 2, train/b.jsonl 1" in " ".join(told[at : at + 2])
    assert all(len(line) <= 80 for line in told[1:])
    assert "train/b.jsonl 1" in project.command("show", "pages").stdout
    # A run with nothing to do still lists the losses.
    again = project.run("pages")
    assert f"; {told[0]}" in next(line for line in again.splitlines() if "nothing to do" in line)
    write_rows(project.folder / "sources" / "pages" / "train" / "b.jsonl", rows[20:30])
    changed = read_block(project.run("pages"))
    at = next(at for at, line in enumerate(changed) if line.startswith("changed since the complete run of 20"))
    assert re.fullmatch(r"  train: 40 → 30 documents, \d+ → \d+ tokens", changed[at + 1])


def test_a_failed_run_lists_the_losses_of_finished_artifacts(project: Project) -> None:
    name = "halfway"
    files = {
        "train/a.jsonl": [*texts(*(f"page {i}" for i in range(20))), {"words": 1}],
        "train/b.jsonl": [*texts("one page"), *({"words": i} for i in range(30))],
    }
    project.declare("TokenizedCorpus", name, **corpus(project, name, files, shards={"count": 2}))
    ran = project.command("run", name, "--split", "train")
    assert ran.returncode == 1, ran.stdout
    told = read_block(ran.stdout)
    assert told[0].startswith("lost: 1 of 21 rows dropped")
    assert any("missing_text" in line and "train/a.jsonl 1" in line for line in told)
    shown = json.loads(project.command("show", name, "--json").stdout)
    assert single_loss(shown["losses"], reason="missing_text")["files"] == {"train/a.jsonl": 1}
    outcomes = {(one["artifact"], one["check"]): one["outcome"] for one in shown["checks"]}
    assert "passed" in outcomes.values()
    assert outcomes["combined_bins_train", "meta_matches"] == "not_run"


def test_a_release_lists_its_retracted_documents_and_its_tail(project: Project) -> None:
    rows = [{"text": f"entry {i} of the log, kept for its words", "key": f"k{i}"} for i in range(30)]
    document = {"separator": "<|endoftext|>", "id_field": "key"}
    declared = corpus(project, "logs", {"train/a.jsonl": [*rows, b"{\n"]}, document=document)
    declared |= {"release": {"sequence_length": 16, "tokens_per_shard": 64}}
    del declared["views"]
    project.declare("ShardRelease", "logs", **declared)
    project.run("logs")
    listed = project.folder / "ids.txt"
    listed.write_text("k4\n")
    assert project.command("retract", "logs", "--ids", str(listed)).returncode == 0
    told = read_block(project.run("logs"))
    losses = project.losses("logs")
    assert single_loss(losses, reason="retracted")["files"] == {"train/a.jsonl": 1}
    assert single_loss(losses, reason="bad_json")["files"] == {"train/a.jsonl": 1}
    assert 0 < single_loss(losses, reason="tail", part="train", unit="token")["count"] < 16
    assert any("retracted" in line and "train/a.jsonl 1" in line for line in told)
    removal = r"removed: 1 retracted row; the check no_retracted_document passed for [1-9] artifacts?"
    assert any(re.fullmatch(removal, line) for line in told)
    assert any(re.fullmatch(r"  train: 30 → 29 documents, .*", line) for line in told)


BAD_CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]},
    {"messages": [{"role": "user", "content": "a"}]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]},
]


def write_chats(name: str, count: int) -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "user", "content": f"{name} {i}?"},
                {"role": "assistant", "content": make_text(name, i)},
            ]
        }
        for i in range(count)
    ]


def declare_blend(project: Project, *names: str) -> dict[str, Any]:
    return {"datasets": [{"name": name, "path": str(project.folder / "sources" / f"{name}.jsonl")} for name in names]}


def test_a_chat_blend_lists_losses_of_rows_sequences_and_shards(project: Project) -> None:
    sources = project.folder / "sources"
    write_rows(sources / "big.jsonl", [*write_chats("big", 77), *BAD_CHATS])
    write_rows(sources / "small.jsonl", write_chats("small", 20))
    write_chat_tokenizer(project.folder / "tokenizer")
    (project.folder / "style.jinja").write_text(QWEN)
    project.declare(
        "TrainingBlend",
        "tides",
        stage="sft",
        blend=declare_blend(project, "big", "small"),
        tokenizer={"path": str(project.folder / "tokenizer"), "engine": "tokenizers"},
        sft={"pack_size": 96, "chat_template": str(project.folder / "style.jinja")},
        num_shards=8,
        tolerance=0.1,
        bad_records=DROP,
    )
    said = project.run("tides")
    told = read_block(said)
    losses = project.losses("tides")
    contents = re.search(
        r"^(\d+) conversations, (\d+) sequences, ([\d,]+) tokens, of which ([\d,]+) are in the loss", said, re.M
    )
    assert contents is not None, said
    conversations, sequences, tokens, trained = (int(number.replace(",", "")) for number in contents.groups())
    assert (conversations, sequences >= conversations) == (97, True)
    assert 0 < trained < tokens
    masked = single_loss(losses, reason="empty_after_masking")
    assert (masked["part"], masked["kind"], masked["count"], masked["of"]) == ("big", "filter", 2, 80)
    assert single_loss(losses, reason="empty_assistant")["files"] == {"big.jsonl": 1}
    assert single_loss(losses, reason="empty_assistant")["kind"] == "bad record"
    cut = [loss for loss in losses if loss["action"] == "cut"]
    assert {(loss["reason"], loss["unit"]) for loss in cut} == {("pack_size", "sequence")}
    assert {loss["part"]: loss["of"] for loss in cut} == {"big": 77, "small": 20}
    left = [loss for loss in losses if loss["reason"] == "weight"]
    assert left
    assert {(loss["action"], loss["unit"]) for loss in left} == {("left out", "packed row")}
    assert told[0].startswith("lost: 3 of 100 rows dropped, ")
    assert any("empty_assistant" in line and "big: big.jsonl 1" in line for line in told)


def test_truncated_texts_and_a_trial_on_some_shards_are_listed(project: Project) -> None:
    sources = project.folder / "sources"
    write_rows(sources / "long.jsonl", [*texts(*(make_text("long", i, words=30) for i in range(20))), b"{\n"])
    project.declare(
        "TrainingBlend",
        "waves",
        stage="pretrain",
        blend=declare_blend(project, "long"),
        tokenizer=TOKENIZER,
        pretrain={"sequence_length": 16, "max_doc_tokens": 8},
        bad_records=DROP,
    )
    told = read_block(project.run("waves"))
    losses = project.losses("waves")
    assert single_loss(losses, action="cut", reason="max_doc_tokens", unit="document")["count"] == 20
    assert single_loss(losses, reason="bad_json", part="long")["files"] == {"long.jsonl": 1}
    assert any("cut to max_doc_tokens" in line for line in told)


def test_documents_without_text_are_counted(project: Project) -> None:
    declared = corpus(project, "hollow", {"train/a.jsonl": texts("a page", "", "")})
    project.declare("TokenizedCorpus", "hollow", **declared)
    told = read_block(project.run("hollow"))
    (empty,) = project.losses("hollow")
    assert (empty["action"], empty["reason"], empty["count"], empty["of"]) == ("empty", "no_tokens", 2, 3)
    assert_names(told[0], "lost", 2, 3, "empty")
    assert told[1].split() == ["2", "empty:", "no_tokens", "66.7%", "of", "documents", "train"]


def test_records_are_counted_by_file_and_texts_without_losses_have_none(project: Project) -> None:
    sources = project.folder / "sources"
    write_rows(sources / "some.jsonl", [*({"prompt": f"{i}?"} for i in range(5)), b"{\n", {"text": "no prompt"}])
    write_rows(sources / "whole.jsonl", texts("one", "two"))
    train = {name: {"train": [{"name": name, "path": str(sources / f"{name}.jsonl")}]} for name in ("some", "whole")}
    project.declare(
        "TrainingBlend",
        "records",
        stage="rl",
        blend=train["some"],
        rl={"transforms": ["passthrough"], "prompt": "prompt"},
        bad_records=DROP,
    )
    project.declare("TrainingBlend", "kept", stage="rl", blend=train["whole"], rl={"transforms": ["passthrough"]})
    told = project.run("records", "kept")
    losses = project.losses("records")
    assert single_loss(losses, reason="bad_json")["files"] == {"some.jsonl": 1}
    assert single_loss(losses, reason="no_prompt") | {"kind": "bad record", "of": 7} == single_loss(
        losses, reason="no_prompt"
    )
    assert "bad_json (bad record)" in told
    assert project.losses("kept") == []
    assert told.count("\nlost: nothing\n") == 1


def write_patients(month: str, count: int, *more: dict[str, Any]) -> list[dict[str, Any]]:
    people = [patient(f"{month}-{i}", note(f"visit {i} of {month} " * 3)) for i in range(count)]
    return [*people, *more]


def declare_notes(source: Path, first: str, last: str, **changes: Any) -> dict[str, Any]:
    return {
        "sensitive": False,
        "source": {"kind": "local", "path": str(source)},
        "months": {"first": first, "last": last},
        "row_length": 64,
        "rows_per_shard": 4,
        "tokenizer": TOKENIZER,
        "document": {"separator": "<|endoftext|>"},
        "pad": {"token": "<|pad|>"},
        "patient_key": {"public": "a key for fictional data, known to everyone"},
        "bad_records": DROP,
    } | changes


def test_notes_list_losses_by_month_and_a_combination_by_split(project: Project) -> None:
    source = written(
        project.folder / "clinic",
        {
            "2010-01": write_patients("2010-01", 12, patient("p", note(None), note(""))),
            "2010-03": write_patients("2010-03", 12, patient("q", note("a word " * 90))),
        },
    )
    declared = declare_notes(
        source,
        "2010-01",
        "2010-03",
        months={"first": "2010-01", "last": "2010-03", "allow_missing": ["2010-02"]},
        splits={"train": 0.7, "val": 0.3},
        long_notes={"rule": "truncate"},
    )
    project.declare("PackedCohorts", "visits", **declared)
    project.declare("CombinedCohorts", "mixed", sensitive=False, sources=[{"dataset": "visits"}])
    checked = project.command("check", "mixed", "--json")
    hints = [json.loads(line) for line in checked.stdout.splitlines() if line.startswith("{")]
    assert checked.returncode == 0
    assert "val" in json.dumps(hints)
    told = project.run("visits", "mixed")
    losses = project.losses("visits")
    assert single_loss(losses, reason="empty_note")["files"] == {"2010-01": 1}
    assert single_loss(losses, action="cut", reason="long_notes", unit="note")["files"] == {"2010-03": 1}
    assert single_loss(losses, reason="allow_missing", unit="month")["files"] == {"2010-02": 1}
    left = single_loss(project.losses("mixed"), action="left out", reason="split val", part="visits", unit="row")
    assert 0 < left["count"] < left["of"]
    assert re.search(r"left out: split val +[\d.]+% of rows +visits", told)
    project.declare("CombinedCohorts", "mixed", sensitive=False, sources=[{"dataset": "visits"}], splits=["train"])
    assert "val" not in project.command("check", "mixed").stdout


def test_sensitive_notes_show_no_small_count(project: Project) -> None:
    source = written(project.folder / "ward", {"2010-01": write_patients("2010-01", 30, patient("p", note(None)))})
    declared = declare_notes(source, "2010-01", "2010-01", sensitive=True, patient_key={"env": "WARD_KEY"})
    project.declare("PackedCohorts", "ward", **declared)
    key = {"WARD_KEY": "a key that nobody knows, at least 32 characters"}
    ran = dataprep(project.folder.parent, "run", "ward", project=project.folder, **key)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    shown = dataprep(project.folder.parent, "show", "ward", "--json", project=project.folder, **key)
    (loss,) = json.loads(shown.stdout)["losses"]
    assert (loss["count"], loss["of"], loss["files"]) == ("< 11", "withheld", {"2010-01": "< 11"})
    assert not re.search(r"\b3[01]\b", "\n".join(read_block(ran.stdout)))


def test_tasks_list_files_and_folders_and_a_schedule_lists_unread_tokens(project: Project) -> None:
    old = project.folder / "old" / LAYOUT / "Copa"
    row = {"premise": "p", "choice1": "a", "choice2": "b", "question": "cause", "label": 0, "idx": 0}
    for folder in (old, old / "version_1", old / "version_x"):
        write_rows(folder / "copa_train.jsonl", [{**row, "idx": i} for i in range(4 if folder == old else 3)])
        write_rows(folder / "copa_validation.jsonl", [row])
    write_rows(old / "version_1" / "notes.jsonl", [row])
    contract = {"like": "Copa", "files": {name: {"rows": 3} for name in ("train", "validation")}}
    project.declare(
        "TaskMigration",
        "tasks",
        old_root=str(project.folder / "old"),
        new_root=str(project.folder / "new"),
        tasks={"Copa": {"version": "latest", "versions_in": "."}},
        contracts={"Copa": contract},
    )
    told = project.command("run", "tasks").stdout
    losses = project.losses("tasks")
    assert single_loss(losses, reason="not_a_version")["files"] == {"version_x": 1}
    assert single_loss(losses, reason="never_read")["files"] == {"notes.jsonl": 1}
    assert single_loss(losses, reason="no_row_of_its_id")["count"] == 1
    assert "left out: not_a_version" in told
    assert "notes.jsonl" in told
    files = {"train/a.jsonl": texts(*(make_text("s", i) for i in range(30)))}
    project.declare("TokenizedCorpus", "read", **corpus(project, "read", files, views=[]))
    project.declare("TrainingSchedule", "course", sources=[{"dataset": "read"}], sequence_length=16, batch=2, steps=3)
    told = project.run("read", "course")
    unread = single_loss(project.losses("course"), action="left out", reason="unread", unit="token", part="read")
    assert unread["of"] - unread["count"] == 96
    assert re.search(r"left out: unread +[\d.]+% of tokens +read", told)
    write_rows(
        project.folder / "sources" / "read" / "train" / "a.jsonl", texts(*(make_text("s", i) for i in range(20)))
    )
    project.run("read")
    assert "nothing to do" in project.run("course"), "the schedule is as it was"
    assert project.command("schedule", "course", "--from-step", "1").returncode == 0
    _, _, changed, source = read_block(project.run("course"))
    assert changed.startswith("changed since the complete run of 20")
    assert re.fullmatch(r"  read: 30 → 20 documents, [\d,]+ → [\d,]+ tokens", source)


def test_a_partial_run_lists_present_artifacts_then_changes_since_the_last_full_run(project: Project) -> None:
    rows = texts(*(f"leaf {i} of a book, kept for its words" for i in range(4)))
    files = {"train/a.jsonl": [*rows, b"{\n"], "val/b.jsonl": rows}
    splits = {"train": ["train/**"], "val": ["val/**"]}
    project.declare("TokenizedCorpus", "leaves", **corpus(project, "leaves", files, splits=splits))
    project.run("leaves")
    write_rows(project.folder / "sources" / "leaves" / "train" / "a.jsonl", [rows[0], b"{\n"])
    assert read_block(project.run("leaves", "--split", "train"))[0] == "lost: 1 of 6 rows dropped"
    # The next complete run is compared with the last complete run, although the partial run has already built the
    # artifacts. A killed run also leaves such artifacts.
    _, changed, *splits_changed = read_block(project.run("leaves"))[1:]
    assert changed.startswith("changed since the complete run of ")
    assert [line.partition(" documents")[0] for line in splits_changed] == ["  train: 4 → 1"]


def test_a_rule_that_drops_most_of_a_language_gives_a_warning_without_a_budget(project: Project) -> None:
    # Words are split at white space, so a minimum number of words drops text in languages that are written without
    # white space.
    chinese = texts(*(f"春天的港口有第{i}艘船，船长在码头上等待潮水。" for i in range(30)))
    english = texts(*(f"In spring the captain of ship {i} waits for the tide." for i in range(170)))
    declared = corpus(project, "ports", {"train/a.jsonl": [*english, *chinese]}, tag=["gopher", "language"], views=[])
    declared |= {"keep": {"enough": "words >= 5"}}
    project.declare("TokenizedCorpus", "ports", **declared)
    told = project.run("ports")
    assert re.search(
        "warning, not passed: .*sources_kept: the rule enough drops 30 of 30 documents in the language zh", told
    )
    project.declare("TokenizedCorpus", "ports", **declared, budget={"per_rule": {"enough": 0.2}})
    assert "sources_kept" not in project.run("ports")


def test_a_dataset_whose_rows_a_template_all_refuses_is_reported_by_file(project: Project) -> None:
    sources = project.folder / "sources"
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    (project.folder / "strict.jinja").write_text(refuses + QWEN)
    for name, count in (("one", 3), ("two", 2)):
        rows = [
            {"messages": [{"role": "system", "content": "s"}, *row["messages"]]} for row in write_chats(name, count)
        ]
        write_rows(sources / "many" / f"{name}.jsonl", rows)
    write_chat_tokenizer(project.folder / "tokenizer")
    project.declare(
        "TrainingBlend",
        "reefs",
        stage="sft",
        blend={"datasets": [{"name": "many", "path": str(sources / "many")}]},
        tokenizer={"path": str(project.folder / "tokenizer"), "engine": "tokenizers"},
        sft={"pack_size": 96, "chat_template": str(project.folder / "strict.jinja")},
        bad_records=DROP,
    )
    ran = project.command("run", "reefs")
    said = ran.stdout + ran.stderr
    assert ran.returncode
    assert "Raise the weight" not in said
    assert "5 template_refused (one.jsonl 3, two.jsonl 2)" in said, said


def test_characters_that_a_normalizer_changes_are_counted_by_file(project: Project, tmp_path: Path) -> None:
    tokenizer = {"path": str(save(tmp_path, "wordpiece_blanks")), "engine": "tokenizers"}
    files = {"train/a.jsonl": texts("The Quick brown fox"), "train/b.jsonl": texts("the FOX", "the fox")}
    declared = corpus(project, "lowered", files, tokenizer=tokenizer, document={"separator": "</s>"})
    project.declare("TokenizedCorpus", "lowered", **declared)
    assert "5 of 33 characters changed" in read_block(project.run("lowered"))[0]
    loss = single_loss(project.losses("lowered"), reason="changed_characters")
    assert loss["action"] == "changed"
    assert loss["files"] == {"train/b.jsonl": 3, "train/a.jsonl": 2}


def test_a_changed_loss_limit_is_checked_again_without_a_build(project: Project, tmp_path: Path) -> None:
    tokenizer = {"path": str(save(tmp_path, "wordlevel")), "engine": "tokenizers"}
    rows = texts("the quick brown fox", "the quick qwertz fox")
    declared = corpus(project, "words", {"train/a.jsonl": rows}, document={"separator": "</s>"})
    verdicts = []
    for limit in (1.0, 0.01):
        project.declare("TokenizedCorpus", "words", **declared | {"tokenizer": tokenizer | {"max_loss": limit}})
        verdicts.append("losses_within_limit" in project.run("words"))
    assert verdicts == [False, True]
