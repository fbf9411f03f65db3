"""Lines on a terminal are wrapped at words, the end of a run is short, and paths are short."""

import re
import sys
from io import StringIO
from pathlib import Path

import pytest

from dataprep_assets.screen import (
    MAX_LINES,
    Section,
    count_rows,
    is_waited_for,
    list_named_datasets,
    shorten_paths,
    shorten_sections,
    wrap_line,
    wrap_output,
)
from dataprep_assets.table import fit_columns


@pytest.mark.parametrize("sizes", [(3, 2, 1, 4), (9, 12, 20, 6), (200, 3, 1, 0), (40, 40, 40, 40), (0, 0, 1, 70)])
def test_the_longest_sections_are_truncated_with_the_number_of_omitted_lines(sizes: tuple[int, ...]) -> None:
    sections = [[f"{at}.{line}" for line in range(size)] for at, size in enumerate(sizes)]
    kept = shorten_sections([Section(lines=lines) for lines in sections], "dataprep show pages")
    assert sum(map(len, kept)) + len([lines for lines in kept if lines]) <= 30
    for before, after in zip(sections, kept, strict=True):
        if before != after:
            cut = re.fullmatch(r"  and (\d+) more: dataprep show pages", after[-1])
            assert cut is not None
            assert after[:-1] == before[: len(after) - 1]
            assert len(after) - 1 + int(cut[1]) == len(before)
    longest = max(map(len, kept))
    assert all(len(after) >= longest - 1 for before, after in zip(sections, kept, strict=True) if before != after)


LINE = "  Megatron-LM: --train-data-path /work/my-data/.dataprep/artifacts/pages/megatron_bins/train --seed 1 ✓"


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_lines_break_only_at_spaces_and_a_long_word_has_its_own_row(width: int) -> None:
    rows = wrap_line(LINE, width)
    assert " ".join(" ".join(rows).split()) == " ".join(LINE.split())
    assert all(len(row) <= width or len(row.split()) == 1 for row in rows)
    assert all(row.startswith("    ") for row in rows[1:])
    assert count_rows(LINE, width) == sum(max(1, -(-len(row) // width)) for row in rows)
    assert wrap_line(LINE, None) == [LINE]


def test_a_wide_character_takes_two_columns() -> None:
    assert wrap_line("漢字漢字 漢字漢字", 10) == ["漢字漢字", "    漢字漢字"]
    assert count_rows("漢字漢字", 4) == 2


def test_long_lines_count_as_several_rows() -> None:
    sections = [["a " * 300], [f"line {number}" for number in range(20)], ["one", "two"]]
    kept = shorten_sections([Section(lines=lines) for lines in sections], "dataprep show pages", width=60)
    assert kept[0] == sections[0], "a section keeps its first line"
    assert kept[1][-1] == f"  and {20 - len(kept[1]) + 1} more: dataprep show pages"
    assert sum(count_rows(line, 60) for lines in kept for line in lines) + len(kept) <= MAX_LINES


def test_the_end_of_a_section_is_never_truncated() -> None:
    lines, end = [f"line {number}" for number in range(40)], ["changed since:", "  train: 1 → 2 rows"]
    (shown, other) = shorten_sections([Section(lines=lines, end=end), Section(lines=["one"])], "dataprep show pages")
    assert shown[-2:] == end
    assert shown[-3] == f"  and {len(lines) - len(shown) + 3} more: dataprep show pages"
    assert len(shown) + len(other) + 2 == MAX_LINES


def test_a_number_keeps_its_unit_and_a_location_its_dots() -> None:
    line = "✓ snapshot_train       2 shards, 1 built  0.4 s"
    assert wrap_line(line, len(line) - 1)[-1].strip() == "0.4 s"
    assert wrap_line("  tokens in 1,234.5 MB", 19) == ["  tokens in", "      1,234.5 MB"]
    assert wrap_line("  selection  2 of 2 shards  selection/train-00000 …", 50)[-1].strip() == "selection/train-00000 …"


@pytest.mark.parametrize(
    ("words", "is_terminal", "expected"),
    [
        ("show pages", True, True),
        ("show pages", False, False),
        ("run pages", False, True),
        ("--project x run pages", False, True),
        ("run pages --quiet", True, False),
        ("documents pages --csv", True, False),
        ("status --help", True, False),
        ("init here", True, False),
        ("", True, False),
    ],
)
def test_a_line_is_shown_while_a_command_loads(
    words: str, is_terminal: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", _Terminal() if is_terminal else StringIO())
    monkeypatch.setenv("COLUMNS", "80")
    assert is_waited_for(words.split()) is expected


def test_paths_are_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "my-data"
    (project / "notes").mkdir(parents=True)
    text = f"a = '{project}/bins' --b={project}/bins /copy{project}/bins s3:/{project}/bins {project}s/bins"
    kept = f"/copy{project}/bins s3:/{project}/bins {project}s/bins"
    monkeypatch.chdir(project)
    assert shorten_paths(text, project) == f"a = 'bins' --b=bins {kept}"
    monkeypatch.chdir(project / "notes")
    assert shorten_paths(text, project) == f"a = '../bins' --b=../bins {kept}"
    monkeypatch.chdir(tmp_path.parent)
    outside = tmp_path / "other"
    outside.mkdir()
    monkeypatch.chdir(outside)
    assert shorten_paths(text, project) == text


def test_the_names_after_run_are_the_datasets() -> None:
    assert list_named_datasets(["run", "pages", "--split", "train"]) == "pages"
    assert list_named_datasets(["--project", "x", "run", "a", "b", "c", "d"]) == "a, b, c and 1 more"
    assert list_named_datasets(["run", "--all"]) == ""


PATH = "/home/somebody/projects/my_data/.dataprep/artifacts/my_corpus/nanogpt_bins"
PROSE = f"dataprep: {PATH}: not writable. Correct its permissions, then run `dataprep run my_corpus --dry-run` again"


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_line_is_wrapped_at_words_and_keeps_its_paths_and_commands(width: int) -> None:
    lines = wrap_line(PROSE, width)
    assert " ".join(line.strip() for line in lines) == PROSE
    assert sum(PATH in line for line in lines) == 1
    assert sum("`dataprep run my_corpus --dry-run`" in line for line in lines) == 1
    assert all(len(line) <= width or PATH in line for line in lines)
    assert all(line.startswith("    ") for line in lines[1:])


def test_the_last_column_of_a_row_is_wrapped_with_indentation() -> None:
    row = "on ray            16.8 s   overhead: 4.1 s per run, 18 ms of CPU time per shard"
    first, *others = wrap_line(row, 60)
    column = first.index("overhead")
    assert others
    assert {len(line) - len(line.lstrip()) for line in others} == {column}
    # A path that does not fit in the column gets its own line, which is indented like a continued line.
    assert [len(line) - len(line.lstrip()) for line in wrap_line(f"  manifest    yes  {PATH}", 60)] == [2, 6]


def test_lines_that_fit_and_lines_with_control_codes_are_unchanged() -> None:
    for line in ("", "short", "x" * 60, "\x1b[31m" + "word " * 40, "word " * 40 + "\r"):
        assert wrap_line(line, 60) == [line]


class _Terminal(StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("words", "is_wrapped"),
    [
        (["status", "a"], True),
        (["status", "a", "--json"], False),
        (["run", "a"], False),
        (["documents", "--csv"], False),
    ],
)
def test_a_terminal_gets_wrapped_lines_unless_they_are_data(
    words: list[str], is_wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = _Terminal(), StringIO()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with wrap_output(words):
        print(PROSE)
        print("no newline", end="", flush=True)
        print(PROSE, file=sys.stderr)
    expected = wrap_line(PROSE, 60) if is_wrapped else [PROSE]
    assert out.getvalue().splitlines() == [*expected, "no newline"]
    assert err.getvalue() == f"{PROSE}\n", "a file is not wrapped"


def test_columns_are_dropped_in_order_until_the_table_fits() -> None:
    rows = [("name", "partitions", "source", "time"), ("a" * 20, "b" * 27, "c" * 8, "d" * 7)]
    assert fit_columns(rows, (1, 2), None) == ([0, 1, 2, 3], [])
    assert fit_columns(rows, (1, 2), 68) == ([0, 1, 2, 3], [])
    assert fit_columns(rows, (1, 2), 67) == ([0, 2, 3], ["partitions"])
    assert fit_columns(rows, (1, 2), 30) == ([0, 3], ["partitions", "source"])
