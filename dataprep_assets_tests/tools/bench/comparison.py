"""Run the contenders in turn on the same files and cores, several times, and keep the medians.

Every run is a new process with a new folder, and its output is verified. Each contender also runs on one tiny document
per worker: that is its start-up, which is reported and subtracted from the rates. Contenders that take minutes process
the files once; ours and the floor process them several times, so that their start-up matters less. Repeated files favor
an engine that caches words, so ours is also measured over the files once, as `d1`.
"""

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dataprep_assets.integrity.receipt import find_installed_version
from dataprep_assets_tests.tools.bench.contenders import NEXT, Spec
from dataprep_assets_tests.tools.bench.runner import Measurement, measure
from dataprep_assets_tests.tools.bench.verdict import Judge

REPOSITORY = Path(__file__).resolve().parents[3]
NAMES = {
    "a": "(a) research script",
    "s": "(s) script, tokenizers",
    "b": "(b) datatrove",
    "c": "(c) Megatron's pattern",
    "d1": "(d) ours, files once",
    "d": "(d) ours",
    "e": "(e) ours, a blend",
    "f": "(f) a blend, Parquet",
    "r": "(r) ours, tokenizers",
    "n": "(n) tokenizers, batches",
    "k": "(k) fastokens alone",
    "floor": "floor: no tokenizing",
    "bare": "floor, simdjson",
}
FLOORS = frozenset({"floor", "bare"})
BLENDS = frozenset({"e", "f"})
"""Contenders that `pretrain` prepares, and that only it runs."""
REPEATED = frozenset({"d", "e", "f", "k"}) | FLOORS
_REPEATED_BYTES = 150_000_000
"""The stored bytes that the repeated contenders process by default."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The input: files, their stored and text sizes, and the tokens of each."""

    paths: tuple[str, ...]
    sha256: tuple[str, ...]
    stored_bytes: int
    text_bytes: int
    tokens: tuple[int, ...] = ()


@dataclass
class Result:
    """All measurements of a contender, and the mistakes in its output."""

    name: str
    passes: int
    tokens: int
    text_bytes: int
    full: list[Measurement] = field(default_factory=list)
    tiny: list[Measurement] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def seconds(self, kind: str, *, startup: bool = False) -> float | None:
        """Return the median `wall` or `cpu` seconds, minus start-up unless requested; None if nothing is left."""
        spent = statistics.median(getattr(m, kind) for m in self.full)
        spent -= 0.0 if startup else self.startup(kind)
        return spent if spent > 0 else None

    def startup(self, kind: str) -> float:
        """Return the median `wall` or `cpu` seconds on the tiny input."""
        return statistics.median(getattr(m, kind) for m in self.tiny)

    def rate(self, kind: str, *, startup: bool = False) -> float | None:
        """Return tokens per second of `wall` or `cpu`."""
        spent = self.seconds(kind, startup=startup)
        return self.tokens / spent if spent else None

    @property
    def peak_rss(self) -> int:
        """The memory of the largest process in any run, in bytes."""
        return max(m.peak_rss for m in [*self.full, *self.tiny])


def find_corpus(folder: Path, below: Sequence[str] = ("",)) -> Corpus:
    """Return the `.jsonl.zst` files below a folder (or only `below` these in it), by path."""
    import zstandard

    from dataprep_assets.stores.files import sha256_file

    paths = sorted(path for name in below for path in (folder / name).rglob("*.jsonl.zst"))
    if not paths:
        raise SystemExit(f"--data {folder}: no *.jsonl.zst files below it")
    text_bytes = 0
    for path in paths:
        with path.open("rb") as file:
            reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
            while data := reader.read(4 << 20):
                text_bytes += len(data)
    return Corpus(
        paths=tuple(map(str, paths)),
        sha256=tuple(map(sha256_file, paths)),
        stored_bytes=sum(path.stat().st_size for path in paths),
        text_bytes=text_bytes,
    )


def default_repeat(corpus: Corpus) -> int:
    """Return how often ours and the floor process the files, so that start-up is a small part."""
    return max(1, -(-_REPEATED_BYTES // corpus.stored_bytes))


class Comparison:
    """The runs. `results` is by contender, in the order of `NAMES`; `spec` is the input of ours."""

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Path,
        *,
        workers: int,
        repeat: int,
        sample_rate: float,
        of_floor: float,
        scratch: Path,
        say: Callable[[str], None] = print,
    ) -> None:
        self.workers, self.repeat = workers, repeat
        self.of_floor = of_floor
        self._scratch, self._say = scratch, say
        self.spec = self._template(corpus, tokenizer, sample_rate)
        self._tiny = self._tiny_spec()
        self.corpus = replace(corpus, tokens=self._count())
        self.spec = replace(self.spec, tokens=self.corpus.tokens)
        self._judge = Judge(self.corpus.tokens, self.spec.dtype)
        self.results: dict[str, Result] = {}

    def _template(self, corpus: Corpus, tokenizer: Path, sample_rate: float) -> Spec:
        from dataprep_assets.formats.flat_bins import choose_dtype
        from dataprep_assets.tokenization.bundle import TokenizerBundle
        from dataprep_assets.tokenization.certificate import certify
        from dataprep_assets.tokenization.engines import FastokensEngine

        bundle = TokenizerBundle.load(tokenizer)
        separator = bundle.choose_separator("auto" if (_is_document_end(bundle)) else "<|endoftext|>", "text")
        started = time.monotonic()
        certificate = certify(bundle, "text", FastokensEngine(bundle, "text"), [])
        self.certificate_seconds = time.monotonic() - started
        return Spec(
            contender="d",
            paths=corpus.paths,
            files=tuple(range(len(corpus.paths))),
            tokens=(),
            sha256=corpus.sha256,
            text_field="text",
            tokenizer=str(tokenizer.resolve()),
            tokenizer_digest=bundle.digest,
            certificate=certificate.to_json(),
            separator=separator.content,
            separator_id=separator.id,
            dtype=choose_dtype(bundle.vocab_size),
            sample_rate=sample_rate,
            workers=self.workers,
            out="",
        )

    def _tiny_spec(self) -> Spec:
        import zstandard

        from dataprep_assets.stores.files import sha256_file

        folder = self._scratch / "tiny"
        folder.mkdir()
        paths = [folder / f"{at}.jsonl.zst" for at in range(self.workers)]
        for path in paths:
            path.write_bytes(zstandard.compress(b'{"text":"One."}\n'))
        return replace(
            self.spec,
            paths=tuple(map(str, paths)),
            files=tuple(range(len(paths))),
            tokens=(0,) * len(paths),
            sha256=tuple(map(sha256_file, paths)),
        )

    def _count(self) -> tuple[int, ...]:
        """Count the tokens of each file in an untimed pass, which also warms the page cache."""
        counted: list[int] = []
        self._run("d", self.spec, lambda out: counted.extend(json.loads((out / "tokens.json").read_text())))
        return tuple(counted)

    def _run(self, name: str, spec: Spec, look: Callable[[Path], None] | None = None) -> Measurement:
        contender = "d" if name == "d1" else name
        out = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._scratch))
        spec = replace(spec, contender=contender, out=str(out))
        spec.write(out / "spec.json")
        module = "dataprep_assets_tests.tools.bench.contenders"
        environment = {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(REPOSITORY)}
        try:
            measured = measure([sys.executable, "-m", module, str(out / "spec.json")], environment)
            if look is not None:
                look(out)
        finally:
            shutil.rmtree(out)
        return measured

    def run(self, names: Sequence[str], runs: int) -> None:
        """Run interleaved: every contender once, `runs` times."""
        for name in names:
            passes = self.repeat if name in REPEATED else 1
            self.results[name] = Result(
                name=name,
                passes=passes,
                tokens=passes * sum(self.corpus.tokens),
                text_bytes=passes * self.corpus.text_bytes,
            )
        for turn in range(runs):
            for name, result in self.results.items():
                self._say(f"run {turn + 1} of {runs}: {NAMES[name]}")
                result.tiny.append(self._run(name, self.spec_of(name, self._tiny)))
                spec = replace(self.spec, files=self.spec.files * result.passes)
                judge = self._judgment(name, result)
                result.full.append(self._run(name, self.spec_of(name, spec), judge))

    def spec_of(self, name: str, spec: Spec) -> Spec:
        """Return the input of a contender; a comparison with its own contenders prepares it here."""
        return spec

    def _judgment(self, name: str, result: Result) -> Callable[[Path], None]:
        def judge(out: Path) -> None:
            result.faults += self._judge.faults(name, out, ids=name not in FLOORS)

        return judge

    def facts(self) -> dict[str, Any]:
        """Return the programs and inputs, for the table's header and the JSON."""
        return {
            "files": len(self.corpus.paths),
            "stored_bytes": self.corpus.stored_bytes,
            "text_bytes": self.corpus.text_bytes,
            "tokens": sum(self.corpus.tokens),
            "workers": self.workers,
            "repeat": self.repeat,
            "tokenizer": self.spec.tokenizer,
            "dtype": self.spec.dtype,
            "sample_rate": self.spec.sample_rate,
            "certificate_seconds": self.certificate_seconds,
            "of_floor": self.of_floor,
            "date": datetime.now(UTC).date().isoformat(),
            "versions": baselines(),
        }


def baselines() -> dict[str, str]:
    """Return contender → the installed versions of the packages that it uses."""
    of = {
        "a": ("transformers", "tokenizers"),
        "b": ("datatrove", "tokenizers"),
        "c": ("transformers", "tokenizers"),
        "d": ("fastokens",),
        "k": ("fastokens",),
    }
    found = {
        name: ", ".join(f"{one} {version}" for one in packages if (version := find_installed_version(one)) is not None)
        for name, packages in of.items()
    }
    for folder in NEXT.glob("tokenizers-*.dist-info"):
        found |= dict.fromkeys(("s", "n"), folder.name.removesuffix(".dist-info").replace("-", " "))
    return {name: versions for name, versions in found.items() if versions}


def add_arguments(parser: argparse.ArgumentParser, only: str) -> None:
    """Add the options of every comparison; ``only`` names its contenders."""
    parser.add_argument("--data", type=Path, help="folder with .jsonl.zst files")
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json and its configuration")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=min(2, len(os.sched_getaffinity(0))))
    parser.add_argument("--repeat", type=int, help="passes of ours and the floor over the files")
    parser.add_argument("--only", default=only, help=f"contenders, of {only}")
    parser.add_argument("--sample-rate", type=float, default=0.0005, help="share re-encoded by the reference")
    parser.add_argument("--of-floor", type=float, default=0.35, help="the target for ours over the floor")
    parser.add_argument("--json", type=Path, help="also write all measurements here")
    parser.add_argument("--scratch", type=Path, help="where the streams are written and removed again")


def compare(arguments: argparse.Namespace, only: str, kind: type[Comparison] = Comparison) -> Comparison:
    """Run the requested contenders; name and skip those that cannot run here."""
    asked = [name.strip() for name in arguments.only.split(",") if name.strip()]
    if unknown := sorted({*asked} - {*only.split(",")}):
        raise SystemExit(f"--only {arguments.only}: unknown {unknown}; choose of {only}")
    corpus = find_corpus(arguments.data)
    repeat = arguments.repeat or default_repeat(corpus)
    wanted = {*asked} | ({"d1"} if "d" in asked and repeat > 1 else set())
    names = []
    for name in NAMES:
        if name not in wanted:
            continue
        if why := available(name):
            print(why)
        else:
            names.append(name)
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-", dir=arguments.scratch) as scratch:
        compared = kind(
            corpus,
            arguments.tokenizer,
            workers=arguments.workers,
            repeat=repeat,
            sample_rate=arguments.sample_rate,
            of_floor=arguments.of_floor,
            scratch=Path(scratch),
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )
        compared.run(names, arguments.runs)
    return compared


def _is_document_end(bundle: Any) -> bool:
    from dataprep_assets.errors import TokenizerError

    try:
        bundle.choose_separator("auto", "text")
    except TokenizerError:
        return False
    return True


def available(name: str) -> str | None:
    """Return the reason why a contender cannot run here; None if it can."""
    if name == "b" and importlib.util.find_spec("datatrove") is None:
        return "datatrove is not installed: (b) is skipped (pip install datatrove==0.10.1)"
    if name in ("n", "s") and not (NEXT / "tokenizers").exists():
        return f"tokenizers 1.0 is not in build/{NEXT.name}: ({name}) is skipped (make candidate)"
    if name == "bare" and importlib.util.find_spec("simdjson") is None:
        return "pysimdjson is not installed: the floor with it is skipped"
    return None
