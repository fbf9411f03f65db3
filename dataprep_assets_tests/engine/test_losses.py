"""The table of losses: small counts and everything that would reveal them are hidden, and lines fit a terminal."""

from dataprep_assets.engine.artifact.losses import Loss, LossTable
from dataprep_assets.engine.privacy import OPEN, Privacy
from dataprep_assets.screen import LAYOUT_COLUMNS

CLOSED = Privacy(closed=True, dataset="d")


def loss(reason: str, count: int, of: int = 1000, **more: object) -> Loss:
    return Loss(action="dropped", reason=reason, count=count, of=of, **({"unit": "note", "part": "train"} | more))  # type: ignore[arg-type]


def test_next_to_a_small_count_no_other_count_total_share_or_file_is_shown() -> None:
    small, large = loss("empty", 3, files={"2010-01": 3}), loss("bad_json", 300, files={"2010-01": 200, "2010-02": 100})
    table = LossTable([small, large], CLOSED)
    shown = {one["reason"]: (one["count"], one["of"], one["files"]) for one in table.to_json()}
    assert shown == {
        "bad_json": ("withheld", "withheld", {"2010-01": "withheld", "2010-02": "withheld"}),
        "empty": ("< 11", "withheld", {"2010-01": "< 11"}),
    }
    assert table.headline == "lost: notes dropped"
    text = "\n".join(table.lines())
    assert not any(number in text for number in ("300", "200", "100", "303", "1,000", "%"))


def test_the_total_does_not_reveal_that_few_are_left() -> None:
    table = LossTable([loss("bad_json", 995)], CLOSED)
    assert table.headline == "lost: notes dropped"
    assert table.to_json()[0]["of"] == "withheld"


def test_a_part_without_losses_counts_in_the_sum() -> None:
    whole = loss("", 0, of=500, part="val")
    table = LossTable([whole, loss("bad_json", 100), loss("no_split", 1, of=3, unit="file", part="")], OPEN)
    assert table.headline == "lost: 100 of 1,500 notes dropped, 1 of 3 files dropped"
    assert [one["reason"] for one in table.to_json()] == ["bad_json", "no_split"]


def test_losses_are_grouped_by_split_and_then_by_count() -> None:
    parts = [loss("a", 1, part="train"), loss("b", 900, part="val"), loss("c", 5, part="train"), loss("d", 2)]
    shown = LossTable(parts, OPEN).losses
    assert [(one.part, one.count) for one in shown] == [("train", 5), ("train", 2), ("train", 1), ("val", 900)]


def test_a_small_share_is_not_rounded_to_zero_and_a_long_name_has_its_own_line() -> None:
    name = f"{'f' * 70}.jsonl"
    _, item = LossTable([loss("bad_json", 1, of=9_999_999, files={name: 1}, unit="row")], OPEN).lines(10)
    row, files = item.split("\n")
    assert row.split() == ["1", "bad_json", "<", "0.1%", "of", "rows"]
    assert files.split() == ["train:", name, "1"]


def test_every_line_fits_a_terminal_and_the_summary_of_a_run_is_short() -> None:
    files = {f"f/file-{number:03}.jsonl": 10 for number in range(30)}
    losses = [loss(f"reason_{number}", 300, files=files, kind="rule", unit="row") for number in range(14)]
    table = LossTable(losses, OPEN)
    end = list(table.lines(10, "dataprep show pages"))
    assert len(end) == 12
    assert end[-1] == "  and 4 more: dataprep show pages"
    assert max(map(len, [*end, *table.lines()])) <= LAYOUT_COLUMNS
    for width in (60, 80, 120):
        rows = [row for limit in (None, 10) for item in table.lines(limit, width=width) for row in item.split("\n")]
        assert max(map(len, rows)) <= width
    assert all("f/file-000.jsonl 10 and 29 more" in line for line in end[1:-1])
    assert sum("f/file-019.jsonl" in line for line in table.lines()) == 14
    assert not any("f/file-020.jsonl" in line for line in table.lines())
