"""The newest release of `tokenizers`, candidates included, beside the installed one: its ids and its speed.

`make bench` installs it into a folder of its own, because transformers does not allow it yet; it is imported only in
processes that import nothing else of ours. `python -m dataprep_assets_tests.bench.newest_tokenizers` says on how many
documents of the adversarial set and of a corpus its ids differ from those of the installed reference, and how long it
and the fast engine take.
"""

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_NAME = "dataprep_assets_tests.bench.newest_tokenizers"
FOLDER = Path(__file__).resolve().parents[2] / "build" / "tokenizers-newest"


def version() -> str:
    """Its version, which is in the name of the folder of its metadata."""
    (found,) = FOLDER.glob("tokenizers-*.dist-info")
    return found.name.removesuffix(".dist-info").partition("-")[2]


def absent() -> str | None:
    """Why it cannot be compared; None when it can."""
    if (FOLDER / "tokenizers").exists():
        return None
    return f"no {FOLDER.relative_to(FOLDER.parents[1])} (pip install --pre --no-deps --target it tokenizers)"


def encode_in_this_process(texts: Path, tokenizer: Path, out: Path) -> None:
    """Encode pickled texts twice: version, ids of each text, CPU seconds of both passes."""
    sys.path.insert(0, str(FOLDER))
    import tokenizers

    documents = pickle.loads(texts.read_bytes())
    loaded: Any = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    seconds = []
    for _ in range(2):
        started = time.process_time()
        found = []
        for start in range(0, len(documents), 500):
            batch = documents[start : start + 500]
            found += [e.ids_array for e in loaded.encode_batch(batch, add_special_tokens=False, **_AS_TEXT)]
        seconds.append(time.process_time() - started)
    out.write_bytes(pickle.dumps((tokenizers.__version__, found, seconds)))


_AS_TEXT = {"encode_special_tokens": True}


def main(argv: Sequence[str] | None = None) -> int:
    """Compare and print; 1 if an id differs in a document without characters of newer Unicode."""
    from dataprep_assets_tests.bench.__main__ import CORPUS, TOKENIZER

    parser = argparse.ArgumentParser(
        prog="python -m dataprep_assets_tests.bench.newest_tokenizers", description=__doc__
    )
    parser.add_argument("--data", type=Path, default=CORPUS, help="folder with .jsonl.zst files")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    parser.add_argument("--encode", nargs=2, type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    if asked.encode is not None:
        encode_in_this_process(asked.encode[0], asked.tokenizer, asked.encode[1])
        return 0
    if (why := absent()) is not None:
        raise SystemExit(why)
    import numpy as np

    from dataprep_assets.execution.processes import ONE_THREAD
    from dataprep_assets.sources.records import read_records
    from dataprep_assets.tokenization.adversarial import adversarial_documents
    from dataprep_assets.tokenization.bundle import TokenizerBundle
    from dataprep_assets.tokenization.engines import Engine, FastokensEngine, ReferenceEngine
    from dataprep_assets.tokenization.unicode_versions import has_new_characters

    os.environ.update(ONE_THREAD)  # before an engine is loaded
    bundle = TokenizerBundle.load(asked.tokenizer)
    adversarial = list(adversarial_documents([token.content for token in bundle.special_tokens]))
    corpus: list[str] = []
    for path in sorted(asked.data.rglob("*.jsonl.zst")):
        for block in read_records(path, format="jsonl", compression="zstd", text_field="text", label=path.name):
            corpus += block.texts
    fast, reference = FastokensEngine(bundle, "text"), ReferenceEngine(bundle, "text")
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        texts, out = Path(folder, "texts"), Path(folder, "ids")
        judges: list[tuple[str, list[str], Engine]] = [
            ("adversarial documents", adversarial, reference),
            ("documents of the corpus", corpus, fast),
        ]
        for name, documents, judge in judges:
            texts.write_bytes(pickle.dumps(documents))
            command = [sys.executable, "-m", "dataprep_assets_tests.bench.newest_tokenizers"]
            environment = {**os.environ, **ONE_THREAD}
            subprocess.run(
                [*command, "--tokenizer", asked.tokenizer, "--encode", texts, out], check=True, env=environment
            )
            version, found, seconds = pickle.loads(out.read_bytes())
            started = time.process_time()
            ids, offsets = judge.encode(documents)
            first = time.process_time() - started
            judge.encode(documents)
            second = time.process_time() - started - first
            wrong = [i for i, one in enumerate(found) if not np.array_equal(ids[offsets[i] : offsets[i + 1]], one)]
            newer = sum(has_new_characters(documents[i]) for i in wrong)
            differing += len(wrong) - newer
            print(
                f"{len(documents):,} {name}: tokenizers {version} differs from {judge.name} {judge.version} on "
                f"{len(wrong)}, {newer} of them with characters of newer Unicode; "
                f"CPU-s of two passes {seconds[0]:.2f}, {seconds[1]:.2f} and {first:.2f}, {second:.2f}"
            )
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
