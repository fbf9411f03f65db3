"""Benchmark items in a corpus are dropped, block the build or are tagged, are named, and every threshold has an
effect.
"""

import json
import os
import random
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from dataprep_assets.curation.benchmarks.benchmarks import Benchmarks, BenchmarkTagger, Coverage
from dataprep_assets.curation.benchmarks.columns import COLUMNS, OVERLAP
from dataprep_assets.curation.benchmarks.files import fetch_file
from dataprep_assets.curation.benchmarks.items import BenchmarkSet
from dataprep_assets.curation.planted.benchmarks import rewrite_text
from dataprep_assets.curation.table import DocumentBatch
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.corpus.curation.benchmark_coverage import read_coverage
from dataprep_assets.pipelines.corpus.curation.corpus_documents import CorpusDocuments
from dataprep_assets.pipelines.corpus.remarks import find_corpus_remarks
from dataprep_assets_tests.curation.signed import draw_page
from dataprep_assets_tests.fakes.buckets import new_bucket, new_client
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.opened import count_opens
from dataprep_assets_tests.pipelines.corpus.selected import Selected


def make_words(draw: random.Random, count: int) -> str:
    """Return a text of this many words."""
    return " ".join(draw_page(draw, count))


class Leaky(Selected):
    """A corpus of twenty pages, one of which contains a question, and one of which is an answer."""

    def __init__(self, folder: Path, *, duplicates: Any = None, **asked: Any) -> None:
        found = {"sets": {"quiz": "quiz.jsonl"}, **asked}
        super().__init__(folder, decontaminate=found, duplicates=duplicates)
        draw = random.Random(1)
        self.items = [
            {
                "question": make_words(draw, 30),
                "answer": make_words(draw, 20),
                "choices": [make_words(draw, 6) for _ in range(4)],
            }
            for _ in range(20)
        ]
        (folder / "quiz.jsonl").write_text("".join(json.dumps(one) + "\n" for one in self.items))
        self.pages = [make_words(draw, 80) for _ in range(20)]
        self.pages[3] += " " + self.items[4]["question"].upper()
        self.pages[5] = self.items[7]["answer"].replace(" ", ",\n")
        # This page contains only one phrase of an item.
        self.pages[6] += " " + " ".join(self.items[2]["question"].split()[:9])
        self.write({"train/a.jsonl": self.pages})

    def build(self) -> list[str]:
        """Build like `Selected.build`, for a corpus without deduplication."""
        self.built, specs, corpus = [], self.specs(), self.corpus
        for name in ("manifest", "snapshot", "tags", "selection"):
            for split in [None] if name == "manifest" else corpus.splits:
                if (name, split) in specs:
                    self._run(specs[name, split])
        return self.built


def test_documents_with_items_are_dropped_under_that_reason(tmp_path: Path) -> None:
    leaky = Leaky(tmp_path)
    leaky.build()
    assert [(one["row"], one["reason"]) for one in leaky.dropped()] == [(4, "benchmark"), (6, "benchmark")]
    found = leaky.findings("selection", "train")
    assert all(one.passed for one in found.values())
    facts = found["no_benchmark_contamination"].facts
    assert (facts["dropped"], facts["contaminated_kept"], facts["common_phrases_only"]) == (2, 0, 1)
    ways = ("case", "punctuation", "white_space", "line_breaks", "embedded", "Unicode")
    forms = ("plain", "lettered", "bracketed", "numbered", "bulleted", "question_and_answer", "choices_shuffled")
    assert {name: value for name, value in facts.items() if name.startswith("detected_")} == {
        f"detected_{form}_%": 100.0 for form in (*ways, *forms)
    }
    assert {name: value for name, value in facts.items() if name.startswith("false_matches_")} == {
        f"false_matches_{kind}_%": 0.0 for kind in ("shuffled", "one_text", "scattered")
    }
    assert (facts["items_quiz"], facts["not_searched_quiz"]) == (20, 0)
    # A change of `containment` rebuilds the selection, but runs no tagger.
    stricter = Leaky(tmp_path, containment=0.02)
    assert stricter.build() == ["selection/train-00000"]
    assert [one["row"] for one in stricter.dropped()] == [4, 6, 7]


def test_items_block_with_their_pairs_or_are_only_tagged(tmp_path: Path) -> None:
    blocked = Leaky(tmp_path, action="block")
    blocked.build()
    assert blocked.dropped() == []
    found = blocked.findings("selection", "train")["no_benchmark_contamination"]
    assert not found.passed
    assert not found.warning
    assert [row["defect"] for row in found.table] == [
        "train/a.jsonl: row 4 contains 100.0% of quiz:5:question",
        "train/a.jsonl: row 6 contains 100.0% of quiz:8:answer",
    ]
    tagged = Leaky(tmp_path, action="tag")
    tagged.build()
    assert ("selection", "train") not in tagged.specs()
    rows = pq.read_table(tmp_path / "artifacts/pages/tags/train-00000/benchmark.parquet").to_pylist()
    assert rows[3] == {"benchmark": "quiz:5:question", "benchmark_overlap": 1.0}
    assert 0 < rows[6]["benchmark_overlap"] < 0.2
    assert rows[0] == {"benchmark": None, "benchmark_overlap": 0.0}


def test_a_set_is_read_once_for_all_batches_and_again_after_a_change(tmp_path: Path) -> None:
    path = tmp_path / "quiz.jsonl"
    tagger = BenchmarkTagger(
        name="benchmark", columns=COLUMNS, sets=(BenchmarkSet(name="quiz", path=path),), ngram=5, min_words=5
    )

    def asked(text: str) -> DocumentBatch:
        path.write_text(json.dumps({"question": text}) + "\n")
        # Backdate the file, because a file that was just written is read every time: it may change again within the
        # resolution of its time stamp.
        os.utime(path, (1, 1))
        return DocumentBatch(rows={"row": [1]}, good=[0], texts=[text], label="a.jsonl")

    for text in ("one two three four five six", "seven eight nine ten eleven twelve more"):
        batch = asked(text)
        with count_opens(tmp_path) as opened:
            for _ in range(10):
                assert tagger.tag_batch(batch)[OVERLAP] == [1.0]
        assert opened == {path.name: 3}  # the file is read once each for its digest, its format and its items


def test_an_item_that_cannot_be_found_fails_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaky = Leaky(tmp_path)
    leaky.build()
    monkeypatch.setattr(
        "dataprep_assets.curation.benchmarks.verdict.rewrite_text",
        lambda text: {"case": text[: len(text) // 3]},
    )
    found = leaky.findings("selection", "train")["no_benchmark_contamination"]
    assert_names(found.summary, "'case'")


def test_planted_texts_come_from_all_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaky, planted = Leaky(tmp_path), list[str]()
    leaky.build()
    checks = "dataprep_assets.curation.benchmarks.verdict"

    def record(text: str) -> dict[str, str]:
        planted.append(text)
        return rewrite_text(text)

    monkeypatch.setattr(f"{checks}.rewrite_text", record)
    # Plant 30 of fewer than 60 texts, because planting every n-th text, with n rounded down to 1, would plant only the
    # first 30.
    monkeypatch.setattr(f"{checks}._MAX_PLANTED", 30)
    assert leaky.findings("selection", "train")["no_benchmark_contamination"].passed
    texts = [item[key] for item in leaky.items for key in ("question", "answer")]
    assert planted == [texts[len(texts) * number // 30] for number in range(30)]


def test_a_changed_set_runs_its_tagger_again(tmp_path: Path) -> None:
    leaky = Leaky(tmp_path)
    leaky.build()
    assert leaky.build() == []
    (tmp_path / "quiz.jsonl").write_text(json.dumps({"text": leaky.pages[0]}) + "\n")
    assert leaky.build() == ["tags/train-00000", "selection/train-00000"]
    assert [one["row"] for one in leaky.dropped()] == [1]


@pytest.mark.parametrize(
    ("asked", "values"),
    [
        ({"min_words": 5}, ("`min_words: 5`",)),
        ({"action": "tag", "containment": 0.9}, ("containment", "action: tag")),
        ({"action": "tag", "coverage": 0.9}, ("coverage", "action: tag")),
        ({"sets": {}}, ("sets", 1)),
        ({"sets": {"quiz": "s3://bucket/quiz.jsonl"}}, ("`cache_dir`", "required")),
        ({"sets": {"quiz": "hf://org/quiz"}}, ("hf://org/quiz",)),
        ({"sets": {"quiz": {"path": "quiz.jsonl", "cache_dir": "cache"}}}, ("`cache_dir`", "effect")),
    ],
)
def test_a_declaration_without_effect_is_refused(
    tmp_path: Path, asked: dict[str, Any], values: tuple[object, ...]
) -> None:
    with raises(ValidationError, *values):
        _ = Leaky(tmp_path, **asked).corpus


@pytest.mark.parametrize(
    ("asked", "values"),
    [
        (
            {"min_words": 500, "sets": {"quiz": {"path": "quiz.jsonl", "fields": ["question"]}}},
            ("quiz", 500, 8),
        ),
        ({"sets": {"quiz": {"path": "quiz.jsonl", "fields": ["quest"]}}}, ("quiz", "'quest'")),
        ({"sets": {"quiz": "none.jsonl"}}, ("decontaminate.sets.quiz", "none.jsonl")),
    ],
)
def test_a_set_of_which_no_item_can_be_found_is_an_error(
    tmp_path: Path, asked: dict[str, Any], values: tuple[object, ...]
) -> None:
    leaky = Leaky(tmp_path, **asked)
    with raises(ConfigError, *values):
        leaky.build()


def test_short_texts_and_common_phrases_flag_nothing(tmp_path: Path) -> None:
    draw = random.Random(2)
    instruction = make_words(draw, 25)
    items = [{"prompt": f"{instruction} {make_words(draw, 20)}", "answer": "yes"} for _ in range(10)]
    pq.write_table(pa.Table.from_pylist(items), tmp_path / "set.parquet")
    benchmarks = Benchmarks([BenchmarkSet(name="set", path=tmp_path / "set.parquet")], 8, 13)
    assert benchmarks.coverage == {"set": Coverage(items=10)}
    assert benchmarks.common > 0
    names, shares = benchmarks.find_best_matches([instruction, "yes", items[3]["prompt"], make_words(draw, 100)])
    assert names == [None, None, "set:4:prompt", None]
    assert shares == [0, 0, 1, 0]
    assert set(rewrite_text("a b")) == {"case", "punctuation", "white space", "line breaks", "embedded", "Unicode"}


def partly_short(leaky: Leaky) -> None:
    """Make 15 of 20 items too short, and one more empty."""
    items = [{"question": one["question"] if at < 5 else f"What is {at}?"} for at, one in enumerate(leaky.items)]
    path = leaky.folder / "quiz.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in [*items, {"question": None}]))


@pytest.mark.parametrize(("floor", "passed"), [({}, False), ({"coverage": 0.2}, True), ({"coverage": 0.3}, False)])
def test_skipped_items_are_reported_and_too_many_of_them_block(
    tmp_path: Path, floor: dict[str, float], passed: bool
) -> None:
    leaky = Leaky(tmp_path, **floor)
    partly_short(leaky)
    leaky.build()
    found = leaky.findings("selection", "train")["no_benchmark_contamination"]
    assert (found.passed, found.warning) == (passed, False)
    assert (found.facts["items_quiz"], found.facts["not_searched_quiz"]) == (20, 15)
    why = "15 too short, 1 empty"
    assert why in found.summary
    assert {"benchmark": "quiz", "items": 20, "searched": 5, "too_short": 15, "common": 0, "empty": 1} in found.table
    # The commands also report the unsearched items, without reading the set again.
    (tmp_path / "quiz.jsonl").unlink()
    assert all(why in line for line in CorpusDocuments(leaky.corpus, leaky.store).unprotected())
    assert read_coverage(leaky.corpus, leaky.store) == {"quiz": asdict(Coverage(items=20, short=15, empty=1))}
    # `dataprep check` reports the unsearched items before a build.
    partly_short(leaky)
    (remark,) = check_sets(leaky)
    assert (remark.keys, remark.hint) == (("decontaminate", "sets", "quiz"), passed)
    assert why in remark.sentence


def check_sets(leaky: Leaky) -> list[Remark]:
    """Return the remarks of `dataprep check` on its sets."""
    return [one for one in find_corpus_remarks(leaky.corpus) if one.keys[0] == "decontaminate"]


@pytest.mark.parametrize(
    ("content", "asked", "said"),
    [
        (
            b'{"question": "How many?"}\n' * 12,
            {},
            "all texts in .* are too short: no item has a text of at least 13 words",
        ),
        (
            b'{"question": "How many?"}\n',
            {"action": "tag"},
            "all texts in .* are too short: no item has a text of at least 13 words",
        ),
        (b"\x89PNG\r\n\x1a\n", {}, "quiz.jsonl: row 1 is not an item"),
        (b'{"answer": "x"}\n', {"sets": {"quiz": {"path": "quiz.jsonl", "fields": ["q"]}}}, "has the field 'q'"),
        (b"", {}, "has text. Correct `path` or `fields`"),
    ],
)
def test_check_reports_mistakes_in_a_set(tmp_path: Path, content: bytes, asked: dict[str, Any], said: str) -> None:
    leaky = Leaky(tmp_path, **asked)
    (tmp_path / "quiz.jsonl").write_bytes(content)
    (remark,) = check_sets(leaky)
    assert not remark.hint
    assert remark.keys == ("decontaminate", "sets", "quiz")
    assert re.search(said, remark.sentence)


def test_check_notes_skipped_items_and_nothing_about_a_complete_set(tmp_path: Path) -> None:
    assert check_sets(Leaky(tmp_path)) == []
    tagged = Leaky(tmp_path, action="tag")
    partly_short(tagged)
    (remark,) = check_sets(tagged)
    assert remark.hint
    assert "15 too short, 1 empty" in remark.sentence


def test_a_passage_with_several_questions_is_searched_once_and_an_instruction_never(tmp_path: Path) -> None:
    draw = random.Random(3)
    passages, instruction = [make_words(draw, 40) for _ in range(20)], make_words(draw, 20)
    items = [
        {"prompt": instruction, "context": one, "question": make_words(draw, 14)} for one in passages for _ in range(4)
    ]
    path = tmp_path / "set.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in items))
    benchmarks = Benchmarks([BenchmarkSet(name="set", path=path)], 8, 13)
    assert len(benchmarks.items) == 20 + 80
    assert benchmarks.coverage == {"set": Coverage(items=80)}
    assert benchmarks.find_best_matches([passages[2], instruction, items[9]["question"]]) == (
        ["set:9:context", None, "set:10:question"],
        [1, 0, 1],
    )
    # If the same set is listed twice, its items are found under the first of the two names.
    again = Benchmarks([BenchmarkSet(name=name, path=path) for name in ("set", "again", "more")], 8, 13)
    assert again.find_best_matches([passages[2]]) == (["set:9:context"], [1])
    # A text that more than a tenth of one set's items share is never searched, even if a larger set has it in only a
    # few items.
    (tmp_path / "large.jsonl").write_text(
        "".join(json.dumps({"prompt": instruction if n < 3 else make_words(draw, 20)}) + "\n" for n in range(1000))
    )
    sets = [BenchmarkSet(name=name, path=tmp_path / f"{name}.jsonl") for name in ("set", "large")]
    assert Benchmarks(sets, 8, 13).find_best_matches([instruction]) == ([None], [0])
    with raises(ConfigError, "sets.set", 3):
        Benchmarks([BenchmarkSet(name="set", path=path, fields=("prompt",))], 8, 13)


@pytest.mark.parametrize(
    "item",
    [
        "下列关于长江流域水资源开发利用的说法中正确的是哪一项请根据材料选择最合适的答案",
        "ข้อใดต่อไปนี้เป็นผลลัพธ์ของการเปลี่ยนแปลงสภาพภูมิอากาศที่มีต่อระบบนิเวศทางทะเลในประเทศไทย",
        "Aşağıdakilerden hangisi Osmanlı Beyliği'nin kuruluş döneminde Anadolu'da yaşanan gelişmelerin sonuçlarından "
        "biri olarak kabul edilmez ve neden böyle olduğu açıklanmalıdır?",
    ],
    ids=["Chinese", "Thai", "Turkish"],
)
def test_items_of_any_language_are_planted_and_found(tmp_path: Path, item: str) -> None:
    leaky = Leaky(tmp_path)
    (tmp_path / "quiz.jsonl").write_text(json.dumps({"question": item}) + "\n")
    leaky.write({"train/a.jsonl": [*leaky.pages, f"Before it. {item} After it."]})
    leaky.build()
    assert [(one["row"], one["reason"]) for one in leaky.dropped()] == [(21, "benchmark")]
    found = leaky.findings("selection", "train")["no_benchmark_contamination"]
    assert found.passed, found.summary
    assert found.facts["false_matches_shuffled_%"] == 0
    assert found.facts["detected_embedded_%"] == 100


def find_dropped(tmp_path: Path, quiz: dict[str, Any]) -> list[tuple[int, str]]:
    """Return the rows dropped from the usual corpus with the benchmark at an address."""
    fetch_file.cache_clear()
    leaky = Leaky(tmp_path, sets={"quiz": quiz})
    (tmp_path / "quiz.jsonl").unlink()
    leaky.build()
    found = leaky.findings("selection", "train")
    assert {name: one.summary for name, one in found.items() if not one.passed} == {}
    return [(one["row"], one["reason"]) for one in leaky.dropped()]


WITH_ITEMS = [(4, "benchmark"), (6, "benchmark")]


def test_a_benchmark_may_be_on_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Leaky(tmp_path)
    data = (tmp_path / "quiz.jsonl").read_bytes()
    with HubServer({"test/quiz.jsonl": data, "README.md": b"# quiz\n"}, repo_id="org/quiz") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        # Patch the constant, because the library reads the variable only once, when the first test of a process imports
        # the library.
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        quiz = {"path": f"hf://datasets/org/quiz@{hub.commit}/test/quiz.jsonl", "cache_dir": "cache"}
        assert find_dropped(tmp_path, quiz) == WITH_ITEMS
        fetch_file.cache_clear()
        with raises(ConfigError, "sets.quiz", "hf://datasets/org/quiz/other.jsonl"):
            Leaky(tmp_path, sets={"quiz": "hf://datasets/org/quiz/other.jsonl"}).build()


def test_a_benchmark_may_be_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moto: str) -> None:
    Leaky(tmp_path)
    bucket = new_bucket(moto)
    new_client(moto).put_object(Bucket=bucket, Key="quizzes/a.jsonl", Body=(tmp_path / "quiz.jsonl").read_bytes())
    monkeypatch.setenv("DATAPREP_ENDPOINT_URL", moto)
    for name in ("R2_DATASET_WRITE_ACCESS_KEY_ID", "R2_DATASET_WRITE_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    quiz = {"path": f"s3://{bucket}/quizzes/a.jsonl", "cache_dir": "cache"}
    assert find_dropped(tmp_path, quiz) == WITH_ITEMS
    assert (tmp_path / "cache" / bucket / "quizzes" / "a.jsonl").exists()
