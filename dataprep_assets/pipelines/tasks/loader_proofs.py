"""The trainer's own view of a task folder: the number of samples, and what its loader would do without stopping."""

from collections import Counter
from collections.abc import Sequence

from dataprep_assets.graph.finding import Finding, Row, judged, verdict
from dataprep_assets.pipelines.tasks.contract import Split
from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets.pipelines.tasks.loader import HARMLESS, LOADED, SilentAct
from dataprep_assets.plural import count_of


@judged
def loads_as_trainer(task: TaskFolder) -> Finding:
    """What `load_as_trainer` finds; fails for an error, for no samples, and for anything done silently."""
    load = task.load
    defects = [] if load.error is None else [f"the trainer's loader stops: {load.error}"]
    names = {split: task.contract.file(split).name for split in LOADED}
    lines: dict[tuple[Split, SilentAct], list[int]] = {}
    for act in load.acts:
        if act.act not in HARMLESS:
            lines.setdefault((act.split, act.act), []).append(act.line)
    for (split, what), where in lines.items():
        defects.append(f"{names[split]}: {_silently(what, where)}")
    for split, count in load.samples.items():
        if not count and load.error is None and (split, "missing_file") not in lines:
            defects.append(f"{names[split]}: 0 samples, and the loader says nothing")
    counts = Counter((act.split, act.act) for act in load.acts)
    table: list[Row] = [
        {
            "split": split,
            "samples": load.samples.get(split, 0),
            **{act: n for (s, act), n in counts.items() if s == split},
        }
        for split in LOADED
    ]
    samples = " and ".join(f"{load.samples.get(split, 0)} {split}" for split in LOADED)
    return verdict(
        defects,
        f"{samples} samples, every row as written.",
        f"A training run would have {samples} samples. The other checks of this folder name the file and the line",
        facts={f"{split}_samples": load.samples.get(split, 0) for split in LOADED},
        table=table,
    )


def _silently(act: SilentAct, lines: Sequence[int]) -> str:
    """A silent act of the loader, and where it happens first."""
    many = count_of(len(lines), "row")
    told = {
        "missing_file": "is missing, and the loader takes that for 0 samples without an error",
        "blank_line_skipped": many + " skipped as blank",
        "bad_line_skipped": many + " left out because they cannot be parsed",
        "row_dropped": many + " left out because the label or a key is wrong",
        "empty_sample": many + " kept as an empty sample, at which training fails",
        "truth_of_no_boolean": many + " whose answer is not a boolean: any string that is not empty counts as Yes",
        "answer_not_a_choice": many + " whose answer is none of the choices",
    }[act]
    return told if lines[0] == 0 else told + f" (first: line {lines[0]})"
