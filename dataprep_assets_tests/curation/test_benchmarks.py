"""Benchmark items are found in every form in which they leak, and unrelated texts are not."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.curation.benchmarks.benchmarks import Benchmarks, Coverage
from dataprep_assets.curation.benchmarks.items import MAX_BYTES, BenchmarkSet
from dataprep_assets.curation.duplicates.words import split_words
from dataprep_assets.curation.planted.benchmarks import build_look_alikes, render_item
from dataprep_assets.curation.text_arrays.word_runs import WORD, count_words, hash_split_texts, hash_texts
from dataprep_assets.errors import ConfigError
from dataprep_assets_tests.messages import raises

LEAKED = 0.5
FILLER = "The keeper of the lighthouse wrote a letter about the weather, the price of rope and the two dogs. " * 3


def open_items(folder: Path, items: Sequence[Any], ngram: int = 8, least: int = 13, **more: Any) -> Benchmarks:
    """Return the benchmark items of one set, which is a file."""
    path = folder / "quiz.jsonl"
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in items), encoding="utf-8")
    return Benchmarks([BenchmarkSet(name="quiz", path=path, **more)], ngram, least)


def find_leaks(benchmarks: Benchmarks, texts: Sequence[str]) -> list[str | None]:
    """Return, per text, the item that it contains, or None."""
    return [name if share >= LEAKED else None for name, share in zip(*benchmarks.find_best_matches(texts), strict=True)]


def exam() -> list[dict[str, Any]]:
    """Return items of short questions with four short choices, which share no phrase."""
    draw = random.Random(5)
    names = [f"{a}{b}" for a in ("kel", "mor", "tan", "vis", "dro", "pla") for b in ("bek", "dun", "fir", "gos", "hul")]
    return [
        {
            "id": f"quiz_{number}",
            "question": f"Which {draw.choice(names)} carries the {draw.choice(names)} of {draw.choice(names)} now?",
            "choices": [f"The {' '.join(draw.sample(names, 3))}" for _ in range(4)],
            "answer": draw.choice("ABCD"),
        }
        for number in range(40)
    ]


def test_an_item_of_short_texts_is_found_as_a_whole_in_every_form(tmp_path: Path) -> None:
    items = exam()
    benchmarks = open_items(tmp_path, items)
    assert benchmarks.coverage == {"quiz": Coverage(items=40)}
    assert [whole.name for whole in benchmarks.whole_items] == [f"quiz:{row}" for row in range(1, 41)]
    for whole in benchmarks.whole_items:
        forms = render_item(whole.parts, whole.name)
        pages = [f"{FILLER}\n\n{text}\n\n{FILLER}" for text in forms.values()]
        assert find_leaks(benchmarks, [*forms.values(), *pages]) == [whole.name] * 14
        assert find_leaks(benchmarks, list(build_look_alikes(whole.parts, whole.name).values())) == [None] * 3
        # None of these texts is an item on its own: the question, a choice, two choices.
        question, *choices = (part.text for part in whole.parts)
        assert find_leaks(benchmarks, [question, *choices, " ".join(choices[:2])]) == [None] * 6
    # The first text has an explanation between the question and the choices. The second text has a reworded question.
    # The last text has too few choices.
    question, choices = items[3]["question"], items[3]["choices"]
    assert find_leaks(benchmarks, [
        f"{question} Think of it step by step.\n* {choices[2]}\n* {choices[0]}\n* {choices[1]}\nThe last one is right.",
        "What is it?\n" + "\n".join(f"{at}) {one}" for at, one in enumerate(choices)),
        f"{question}\n{choices[1]}",
    ]) == ["quiz:4", "quiz:4", None]  # fmt: skip


def test_two_part_items_are_found_verbatim_but_single_parts_are_not(tmp_path: Path) -> None:
    things = ["jar", "orange", "wet boot", "oven", "kitchen knife", "wooden fence", "rope", "shirt", "heavy box"]
    items = [
        {"goal": f"How do you {verb} the {thing}?", "sol1": first, "sol2": second, "label": 0}
        for thing in things
        for verb, first, second in (
            ("clean", "With a spoon.", "Leave it."),
            ("paint", "Use vinegar.", "With your hands."),
            ("carry", "With a spoon.", "With your hands."),
        )
    ]
    benchmarks = open_items(tmp_path, items)
    assert benchmarks.coverage == {"quiz": Coverage(items=27)}
    pages = [f"{one['goal']} {one['sol1']} {one['sol2']}" for one in items]
    assert find_leaks(benchmarks, pages) == [f"quiz:{row}" for row in range(1, 28)]
    assert find_leaks(benchmarks, [
        *(one["goal"] for one in items),
        "Use vinegar. How to clean the oven is a matter of patience, said my aunt. How do you clean the oven?",
        "With a spoon. Leave it. Use vinegar. With your hands. With a spoon.",
    ]) == [None] * 29  # fmt: skip


CEVAL = [
    {
        "question": "下列哪个机关负责全国的经济和社会发展规划工作？",
        "A": "中华人民共和国国家发展和改革委员会",
        "B": "中华人民共和国工业和信息化部",
        "C": "中华人民共和国国务院新闻办公室",
        "D": "最高人民法院",
    },
    {
        "question": "公民的个人信息主要受下列哪部法律的保护？",
        "A": "中华人民共和国个人信息保护法",
        "B": "中华人民共和国香港特别行政区维护国家安全法",
        "C": "中华人民共和国全国人民代表大会常务委员会",
        "D": "刑法",
    },
    {
        "question": "中华人民共和国国家发展和改革委员会成立于哪一年？",
        "A": "一九九八年",
        "B": "二〇〇三年",
        "C": "二〇〇八年",
        "D": "二〇一三年",
    },
    {
        "question": "次のうち、国の予算を作成する機関はどれですか。",
        "A": "独立行政法人情報処理推進機構",
        "B": "国立研究開発法人新エネルギー産業技術総合開発機構",
        "C": "財務省",
        "D": "会計検査院",
    },
    {
        "question": "ข้อใดเป็นหน่วยงานที่มีหน้าที่จัดทำแผนพัฒนาเศรษฐกิจและสังคมของประเทศไทยตามกฎหมายในปัจจุบัน",
        "A": "สำนักงานสภาพัฒนาการเศรษฐกิจและสังคมแห่งชาติ",
        "B": "สำนักงานคณะกรรมการกฤษฎีกา",
        "C": "กระทรวงการอุดมศึกษาวิทยาศาสตร์วิจัยและนวัตกรรม",
        "D": "ศาลฎีกา",
    },
]


def test_a_name_in_a_script_without_spaces_is_not_an_item(tmp_path: Path) -> None:
    benchmarks = open_items(tmp_path, CEVAL)
    assert benchmarks.coverage["quiz"].looked_for == 5
    names = [one[key] for one in CEVAL for key in "ABCD"]
    assert (
        find_leaks(benchmarks, [f"昨天，{name}发布了一份报告，指出今年产量继续增长。" for name in names]) == [None] * 20
    )
    listed = "、".join(names[:3])
    assert (
        find_leaks(
            benchmarks, [f"会议由{listed}等部门联合举行。", "本网站根据《中华人民共和国个人信息保护法》处理数据。"]
        )
        == [None] * 2
    )
    asked = [f"练习题：{one['question']}答案见后页。" for one in CEVAL]
    assert find_leaks(benchmarks, asked) == [f"quiz:{row}:question" for row in range(1, 6)]
    wholes = [f"{one['question']}\n" + "\n".join(f"{key}. {one[key]}" for key in "ABCD") for one in CEVAL]
    assert all(find_leaks(benchmarks, wholes))


@pytest.mark.parametrize(
    "text",
    [
        "0 0 0 0 0 3 0 0 0 0 0 0 0 7 0 0 0 0 0 0",
        "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16",
        "It is to be or not to be and it is what it is to me and to you",
        "That which they would have been with them and that which there were from these to those",
        "哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈",
    ],
    ids=["grid", "numbers", "short words", "stop words", "one sign"],
)
def test_an_item_without_information_is_counted_but_not_searched(tmp_path: Path, text: str) -> None:
    item = {"question": "How many of the brass lamps of the harbour were lit by the keeper on that night?"}
    benchmarks = open_items(tmp_path, [item, {"question": text}, {"question": " "}, {"question": None}, {}, item])
    assert benchmarks.coverage == {"quiz": Coverage(items=3, common=1, empty=3)}
    assert find_leaks(benchmarks, [f"A table: {text}.", item["question"]]) == [None, "quiz:1:question"]
    with raises(ConfigError, "decontaminate.sets.quiz", 3):
        open_items(tmp_path, [{"question": text}])
    with raises(ConfigError, "decontaminate.sets.quiz", "text"):
        open_items(tmp_path, [{"question": None}, {}])


def test_labels_and_identifiers_are_not_searched(tmp_path: Path) -> None:
    items = [
        {**one, "url": f"https://example.org/a/b/c/d/e/f/g/h/i/j/k/l/m/{number}", "subject": "high_school_physics"}
        for number, one in enumerate(exam())
    ]
    benchmarks = open_items(tmp_path, items)
    assert {part.place for whole in benchmarks.whole_items for part in whole.parts} == {"question", "choices"}
    assert find_leaks(benchmarks, [items[0]["url"]]) == [None]
    # Choices that consist only of symbols are ignored, so the question and `eq` are enough.
    asked = {"question": "In Lua, which operator compares two values for equality?", "choices": ["eq", "==", "="]}
    other = {"question": "In C, which one is it?", "choices": ["an equals sign", "two of them"]}
    assert find_leaks(open_items(tmp_path, [asked, other]), [f"{asked['question']}\nA. =\nB. ==\nC. eq"]) == ["quiz:1"]
    # A list of words, as in datasets with a tag for each word, is searched as one text.
    tokens = "The brass lamps of the old harbour were lit by the keeper on that night".split(" ")  # noqa: SIM905
    benchmarks = open_items(tmp_path, [{"tokens": tokens, "tags": ["O"] * len(tokens)}])
    assert find_leaks(benchmarks, [" ".join(tokens)]) == ["quiz:1:tokens"]


@pytest.mark.parametrize(
    ("name", "content", "values"),
    [
        (
            "a.jsonl",
            b'{"q": "x"}\n{"q": "' + b"word " * (MAX_BYTES // 5) + b'"}\n',
            ("a.jsonl", 2),
        ),
        ("a.jsonl", b'{"q": "x"}\n[1]\n', ("a.jsonl", 2, "not_an_object")),
        ("a.jsonl", b'{"q": "x"}\n{"q": \n', ("a.jsonl", 2, "bad_json")),
        ("a.jsonl", b"\x89PNG\r\n\x1a\n\x00", ("a.jsonl", 1)),
        ("a.parquet", b"question,answer\n", ("a.parquet",)),
        ("a.xlsx", b"PK", ("a.xlsx",)),
        ("a.csv", b"question\nx\n", ("a.csv", "'q'")),
    ],
)
def test_a_file_or_row_without_an_item_is_named(
    tmp_path: Path, name: str, content: bytes, values: tuple[object, ...]
) -> None:
    (tmp_path / name).write_bytes(content)
    with raises(ConfigError, "decontaminate.sets.quiz", *values):
        Benchmarks([BenchmarkSet(name="quiz", path=tmp_path / name, fields=("q",))], 8, 13)


def test_a_set_can_have_any_source_format(tmp_path: Path) -> None:
    question = "How many of the brass lamps of the harbour, old or new, were lit by the keeper?"
    (tmp_path / "a.csv").write_text(f'id,question\n1,"{question}"\n')
    (tmp_path / "a.json").write_text(json.dumps([{"question": question}]))
    for name in ("a.csv", "a.json"):
        benchmarks = Benchmarks([BenchmarkSet(name="quiz", path=tmp_path / name)], 8, 13)
        assert find_leaks(benchmarks, [question]) == ["quiz:1:question"]


def test_ngrams_have_equal_weight_in_every_script_and_never_cross_texts() -> None:
    draw = random.Random(2)
    letters = ["ab", "cd", "ef", "gh", *"中国人กขのカé"]
    texts = [[draw.choice(letters) for _ in range(draw.randrange(40))] for _ in range(30)]
    weights = {"中": 4, "国": 4, "人": 4, "の": 4, "カ": 4, "ก": 2, "ข": 2}
    for some in (texts, [[word for word in words if word not in weights] for words in texts]):
        runs, runs_of_texts = hash_split_texts(some), hash_texts([" ".join(words) for words in some])
        assert runs.ends.tolist() == runs_of_texts.ends.tolist()
        assert runs.hashes.tolist() == runs_of_texts.hashes.tolist()
        assert runs.weight_before.tolist() == runs_of_texts.weight_before.tolist()
        flat = [word for words in some for word in words]
        starts, stops = runs.find_runs_of_weight(5 * WORD)
        wanted = []
        for words, end in zip(some, runs.ends.tolist(), strict=True):
            for at in range(len(words)):
                stop = next((s for s in range(at, len(words) + 1)
                             if sum(weights.get(w, WORD) for w in words[at:s]) >= 5 * WORD), None)  # fmt: skip
                wanted += [(end - len(words) + at, end - len(words) + stop)] if stop is not None else []
        assert list(zip(starts.tolist(), stops.tolist(), strict=True)) == wanted
        hashes = dict(zip([tuple(flat[a:b]) for a, b in wanted], runs.hash_runs(starts, stops).tolist(), strict=True))
        # Equal n-grams have equal hashes at any position, and different n-grams have different hashes.
        assert [hashes[tuple(flat[a:b])] for a, b in wanted] == runs.hash_runs(starts, stops).tolist()
        assert len(set(hashes.values())) == len(hashes)
    assert count_words(sum(4 for _ in split_words("公民的个人信息主要受下列哪部法律的保护"))) == 13


def test_results_do_not_depend_on_the_other_items_in_the_query(tmp_path: Path) -> None:
    benchmarks = open_items(tmp_path, [*exam(), *CEVAL])
    draw = random.Random(4)
    texts = [text for whole in benchmarks.whole_items for text in render_item(whole.parts, whole.name).values()]
    texts += [FILLER, "", "中国"]
    together = dict(zip(texts, zip(*benchmarks.find_best_matches(texts), strict=True), strict=True))
    draw.shuffle(texts)
    for part in np.array_split(np.array(texts, object), 7):
        assert list(zip(*benchmarks.find_best_matches(part.tolist()), strict=True)) == [
            together[text] for text in part.tolist()
        ]
