"""A contender of `documents`: datatrove reads JSON lines, filters them, and writes those that are kept.

    python -m dataprep_assets_tests.tools.bench.datatrove_filters DATA OUT MODEL

DATA is a folder of `.jsonl` files, OUT a new one, MODEL the fastText model of languages. Datatrove fetches that one;
here a wheel brings it. Two tasks run on two cores, as its own examples have it: the language
first, then the repetitions and the quality of Gopher, then C4.
"""

import sys
from functools import cache
from pathlib import Path
from typing import Any

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import C4QualityFilter, GopherQualityFilter, GopherRepetitionFilter, LanguageFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter
from datatrove.utils import lid


@cache
def _model(path: str) -> Any:
    from fasttext.FastText import _FastText  # type: ignore[import-not-found]

    return _FastText(path)


def main(data: Path, out: Path, model: str) -> None:
    """Run the filters."""
    lid.FastTextLID.model = property(lambda _: _model(model))
    pipeline = [
        JsonlReader(str(data), glob_pattern="**/*.jsonl", compression=None),
        LanguageFilter(language_threshold=0.0, label_only=True),
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(),
        JsonlWriter(str(out / "kept"), compression="zstd"),
    ]
    # Fork the tasks, so that they share the loaded model.
    LocalPipelineExecutor(pipeline, tasks=2, workers=2, logging_dir=str(out / "logs"), start_method="fork").run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
