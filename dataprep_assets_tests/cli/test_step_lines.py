"""The line that a run prints per finished step fits one row of a narrow terminal."""

import io

import pytest
from rich.console import Console

from dataprep_assets.cli.support.steps import StepPrinter
from dataprep_assets.execution.progress import Progress
from dataprep_assets.orchestration.build import StepResult
from dataprep_assets.orchestration.runs.terminal import StepLine, TerminalSink
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets_tests.pipelines.corpus.pipeline import sample_declaration
from dataprep_assets_tests.samples import SAMPLE, SMALL

COLUMNS = 60
SHARDS = [f"train-{number:05d}" for number in range(1234)]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (StepResult(built_slots=SHARDS, reused=0), "1,234 shards built"),
        (StepResult(built_slots=SHARDS[:12], reused=1222), "1,234 shards, 12 built"),
        (StepResult(built_slots=[], reused=1234), "1,234 shards checked again"),
        (StepResult(built_slots=SHARDS, reused=0, warned=["looks_like_text"]), "warning"),
        (StepResult(built_slots=SHARDS, reused=0, warned=["looks_like_text", "round_trip"]), "warnings"),
    ],
)
def test_a_step_fits_one_row_of_sixty_columns(
    result: StepResult, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = corpus_specs(sample_declaration(SMALL, SAMPLE / "tokenizer"))
    spec = next(spec for spec in specs if spec.path[-1] == "token_bins_train")
    steps = StepPrinter(specs)
    steps.before(spec, SHARDS, current=False)
    steps.after(spec, SHARDS, result)
    line = capsys.readouterr().out.rstrip("\n")
    assert words in line
    assert len(line) <= COLUMNS
    assert line[0] == ("!" if result.warned else "✓")


@pytest.mark.parametrize("columns", range(40, 130, 10))
def test_the_live_line_never_truncates_a_value(columns: int) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=columns, color_system=None)
    progress = Progress(source_bytes=200, clock=iter([0.0, *[10.0] * 9]).__next__)
    progress.add({"source_bytes": 100, "tokens": 1_234_567_890})
    console.print(TerminalSink(StepLine(console), "token_bins_train")._build_row(progress))
    values = ["50.0%", "ETA 10.0 s", "1,234,567,890 of ~2,469,135,780 tokens", "123.46 M tokens/s"]
    expected = ["  ".join(values[:count]) for count in range(1, 5)]
    (line,) = shown.getvalue().splitlines()
    assert line.partition("train")[2].replace("━", "").strip() in expected
