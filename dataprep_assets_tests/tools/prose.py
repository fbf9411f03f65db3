"""Count what makes pages, messages and names hard to read; each count has a budget that may only fall.

`python -m dataprep_assets_tests.tools.prose` fails when a count is above its budget (`prose_budget.json`), and lists
the places. `--write` lowers budgets to the counts, `--show KIND` lists all places of one kind. Part of `make lint`.
"""

import argparse
import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BUDGET = Path(__file__).with_name("prose_budget.json")
SOURCE, TESTS = ("dataprep_assets", "resources"), "dataprep_assets_tests"
BARE_NAMES = frozenset(Path(__file__).with_name("bare_names.txt").read_text(encoding="utf-8").split())
"""Participles, adverbs, prepositions and pronouns, none of which by itself says what a function does or a variable
contains."""
MAX_SENTENCE, MAX_PARAGRAPH, MAX_WORDS_PER_BLOCK, MAX_ENTRY, MAX_EXPECTED = 40, 100, 170, 25, 3
"""In words: a sentence, a paragraph, the text of a guide per code block, an entry of the changelog, and the prose in
a text that a test expects."""
HABITS = {
    "tell, told": r"\b(?:tells?|told)\b",
    "'what is' as a noun": r"\b[Ww]hat (?:is|was|are|were|has|had|it|they|there|no|a|the)\b(?![^.\n]{0,80}\?)",
    "that of, those of": r"\b(?:that|those|the ones?) of\b",
    "of which, of whom": r"\bof (?:which|whom)\b",
    "goes on, gone": r"\b(?:go(?:es)? on|went on|going on|gone)\b",
    "anew, made again": r"\banew\b|\bonce more\b|\bma(?:d|k)es? (?:it |them )?again\b",
    "alone": r"\balone\b",
    ", too": r", too\b",
    "beside": r"\bbeside\b",
    "lies, stands": r"\b(?:lies|lay|stands?|stood)\b",
    "nobody, whoever": r"\b(?:(?:no|some|any)body|[Ww]h(?:o|at|ich)ever)\b",
    "prove, proof": r"\bpro(?:ves?|ved|ven|ofs?)\b",
    "has to be": r"\bha(?:s|ve) to be\b",
    "is another": r"\b(?:is|are|of|by|under) another\b",
    "'a line' for 'per line'": r"\b(?:one|object|bytes|tokens|rows?|CPU-s|documents?) an? "
    r"(?:line|shard|row|run|second|document|file)\b",
}
"""Habits of this project that other projects do not have (`docs/contributing.md`), each with its pattern."""
_HABITS = {name: re.compile(pattern) for name, pattern in HABITS.items()}
_VERBS = """Add|Allow|Ask|Begin|Build|Change|Check|Choose|Clear|Close|Compare|Convert|Copy|Correct|Create|Decompress
    |Declare|Delete|Download|Drop|End|Export|Fetch|Fix|Free|Give|Install|Keep|Leave|List|Log|Look|Lower|Make|Materialize
    |Migrate|Mirror|Mount|Move|Name|Narrow|Omit|Open|Pass|Pull|Put|Raise|Rebuild|Remove|Rename|Replace|Report|Restore
    |Retry|Rewrite|Run|Save|Say|See|Set|Sort|Split|Start|Stop|Train|Try|Unpack|Update|Upgrade|Upload|Use|Wait|Write"""
_REMEDY = re.compile(
    r"(?:^|[.;:,(] ?|\b(?:or|and|to) )(?:" + re.sub(r"\s", "", _VERBS) + r")\b|pip install|instead|--\w|`dataprep "
    r"|must (?:not )?be|did you mean|available|allowed|expected|known are|at (?:least|most) |one of ",
    re.IGNORECASE,
)
"""An instruction, or the allowed values."""
_WORD = re.compile(r"(?<![\w`/.-])[a-z]{2,}(?![\w`/-]|\.\w)")
"""A word of prose: not a name, not part of a path, not in upper case."""
_DOCSTRING = re.compile(r"(?:What|Of|As|Which|How|Whose|The same|That)\b")


class Finding(NamedTuple):
    """A place that counts: its kind, the file with its line, and an excerpt."""

    kind: str
    place: str
    excerpt: str


def findings(root: Path = ROOT) -> Iterator[Finding]:
    """Yield every place of every kind in the pages and the source of a checkout."""
    for page in pages(root):
        yield from of_page(page, page.relative_to(root).as_posix())
    yield from of_changelog(root / "CHANGELOG.md")
    for folder in SOURCE:
        for path in sorted((root / folder).rglob("*.py")):
            if "project_template" not in path.parts and path.relative_to(root).parts[1] != "resources":
                yield from of_module(path.read_text(encoding="utf-8"), path.relative_to(root).as_posix())
    for path in sorted((root / TESTS).rglob("*.py")):
        yield from of_test(path.read_text(encoding="utf-8"), path.relative_to(root).as_posix())


def pages(root: Path) -> list[Path]:
    """Return the pages that users read, except the changelog."""
    return [root / "README.md", root / "deploy" / "README.md", *sorted((root / "docs").rglob("*.md"))]


def of_page(path: Path, name: str) -> Iterator[Finding]:
    """Yield the places of a page of Markdown."""
    text = path.read_text(encoding="utf-8")
    blocks = len(re.findall(r"^ *```", text, re.MULTILINE)) // 2
    text = _blank(r"^ *```.*?^ *```[^\n]*$|<!--.*?-->", text)
    words = 0
    for line, paragraph in _paragraphs(text):
        words += len(paragraph.split())
        if paragraph.startswith("|"):
            continue
        if len(paragraph.split()) > MAX_PARAGRAPH:
            yield Finding(f"docs: paragraphs over {MAX_PARAGRAPH} words", f"{name}:{line}", paragraph)
        for sentence in _sentences(paragraph):
            if len(sentence.split()) > MAX_SENTENCE:
                yield Finding(f"docs: sentences over {MAX_SENTENCE} words", f"{name}:{line}", sentence)
    if path.parent.name == "how-to" and words > MAX_WORDS_PER_BLOCK * max(blocks, 1):
        yield Finding(f"docs: guides with over {MAX_WORDS_PER_BLOCK} words per code block", f"{name}:1", f"{words}")
    yield from _habits("docs", _blank(r"`[^`\n]*`|\]\([^)\n]*\)", text), name)


def of_changelog(path: Path) -> Iterator[Finding]:
    """Yield the long entries of the unreleased version."""
    text = path.read_text(encoding="utf-8").partition("\n## Unreleased\n")[2].partition("\n## ")[0]
    for entry in re.findall(r"^- (.*?)(?=\n-|\n\n|\Z)", text, re.DOTALL | re.MULTILINE):
        if len(entry.split()) > MAX_ENTRY:
            yield Finding(f"changelog: entries over {MAX_ENTRY} words", path.name, entry)


def of_module(source: str, name: str) -> Iterator[Finding]:
    """Yield the places of a module: its names, docstrings, comments and messages."""
    comments = "\n".join(line[at:] if (at := _comment(line)) >= 0 else "" for line in source.split("\n"))
    yield from _habits("comments", comments, name)
    for node in ast.walk(ast.parse(source)):
        place = f"{name}:{getattr(node, 'lineno', 1)}"
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            yield from _habits("docstrings", text, place)
            if _DOCSTRING.match(text):
                yield Finding("docstrings: begin with What, Of, As", place, text)
        if (named := _name(node)) and named[1] != "__all__" and named[1].strip("_").lower() in BARE_NAMES:
            yield Finding(f"names: bare {named[0]}", place, named[1])
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            text = next((text for part in node.exc.args if " " in (text := _text(part))), "")
            yield from _habits("messages", text, place)
            # Check only ConfigError, because other errors are about data, and the checks of the data give the remedy.
            # Skip a message that ends with a value, because the value may contain the remedy.
            user = ast.unparse(node.exc.func) == "ConfigError"
            if user and text and not text.endswith("…") and not _REMEDY.search(text):
                yield Finding("messages: without a remedy", place, text)


def of_test(source: str, name: str) -> Iterator[Finding]:
    """Yield the sentences that a test expects of a message, an output or a summary: their wording may change."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            kind, expected = "messages", _expected_of_call(node)
        elif isinstance(node, ast.Assert):
            kind, expected = "texts", [part for test in ast.walk(node.test) for part in _compared(test)]
        else:
            continue
        for part in expected:
            text = _text(part)
            if len(_WORD.findall(re.sub(r"`[^`]*`", "`", text))) > MAX_EXPECTED:
                yield Finding(f"tests: {kind} by over {MAX_EXPECTED} words of prose", f"{name}:{part.lineno}", text)


def _expected_of_call(call: ast.Call) -> list[ast.expr]:
    """Return what a call expects of a message: `raises(error, *values)` and `pytest.raises(error, match=…)`."""
    match ast.unparse(call.func):
        case "raises" | "assert_names":
            return call.args[1:]
        case "pytest.raises" | "pytest.warns":
            return [word.value for word in call.keywords if word.arg == "match"]
    return []


def _compared(test: ast.AST) -> list[ast.expr]:
    """Return the operands of a comparison, and the pattern of a search."""
    match test:
        case ast.Compare(left=left, comparators=comparators):
            return [left, *comparators]
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=[pattern, *_]):
            return [pattern]
    return []


def _habits(kind: str, text: str, name: str) -> Iterator[Finding]:
    for habit, pattern in _HABITS.items():
        for match in pattern.finditer(text):
            place = name if ":" in name else f"{name}:{text.count(chr(10), 0, match.start()) + 1}"
            yield Finding(f"{kind}: {habit}", place, text[max(0, match.start() - 30) : match.end() + 30])


def _name(node: ast.AST) -> tuple[str, str] | None:
    """Return the kind of a name and the name that a node gives to something."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return "functions", name
        case ast.ClassDef(name=name):
            return "classes", name
        case ast.arg(arg=name):
            return "parameters", name
        case ast.Name(id=name, ctx=ast.Store()):
            return "variables", name
    return None


def _text(node: ast.expr) -> str:
    """Return the text of a message, with `…` for its values."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) if isinstance(part, ast.Constant) else "…" for part in parts)
        case ast.BinOp(left=left, right=right, op=ast.Add()):
            return (_text(left) or "…") + (_text(right) or "…")
    return ""


def _comment(line: str) -> int:
    """Return the start of the comment in a line, or -1; a comment inside a string counts only if it has its own
    line.
    """
    return line.index("#") if line.lstrip().startswith("#") else line.find("  # ")


def _blank(pattern: str, text: str) -> str:
    """Return a text with spaces in place of all matches, so that line numbers stay the same."""
    return re.sub(pattern, lambda match: re.sub(r"[^\n]", " ", match[0]), text, flags=re.DOTALL | re.MULTILINE)


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the words of each paragraph, item of a list and row of a table; no headings."""
    begun, lines = 0, list[str]()
    for number, line in enumerate([*text.split("\n"), ""], 1):
        stripped = line.strip()
        item = re.match(r"(?:[-*+]|\d+\.|>)\s+|\|", stripped)
        if lines and (not stripped or stripped.startswith("#") or item):
            yield begun, " ".join(lines)
            lines = []
        if stripped and not stripped.startswith("#") and not re.fullmatch(r"[|\s:-]+", stripped):
            begun = begun if lines else number
            lines.append(stripped if stripped.startswith("|") else re.sub(r"^(?:[-*+]|\d+\.|>)\s+", "", stripped))


def _sentences(paragraph: str) -> list[str]:
    whole = re.sub(r"`[^`]*`", lambda code: re.sub(r"[.?!]", "·", code[0]), paragraph)
    whole = re.sub(r"\]\([^)]*\)", "]", whole)
    return re.split(r"(?<=[.!?])[\"*_)]*\s+(?=[A-Z`*\[(\"0-9])", whole)


def judge(counts: dict[str, int], budgets: dict[str, int]) -> tuple[list[str], list[str]]:
    """Return the kinds above their budget, and those whose budget can be lowered. A kind without a budget has 0."""
    over = [kind for kind, count in sorted(counts.items()) if count > budgets.get(kind, 0)]
    return over, [kind for kind, budget in sorted(budgets.items()) if counts.get(kind, 0) < budget]


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the counts with their budgets; exit code 1 when one is above."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.prose", description=__doc__)
    parser.add_argument(
        "--write",
        action="store_true",
        help="lower the budgets to the counts, and set those that are missing; none is raised",
    )
    parser.add_argument("--show", metavar="KIND", help="list the places of the kinds whose name contains this")
    options = parser.parse_args(argv)
    by_kind = defaultdict[str, list[Finding]](list)
    for finding in findings():
        by_kind[finding.kind].append(finding)
    if options.show is not None:
        for kind, places in sorted(by_kind.items()):
            if options.show in kind:
                _print_places(kind, places, len(places))
        return 0
    budgets = json.loads(BUDGET.read_text(encoding="utf-8"))
    counts = {kind: len(places) for kind, places in by_kind.items()}
    over, under = judge(counts, budgets)
    if options.write:
        lower = counts | {kind: min(budget, counts.get(kind, 0)) for kind, budget in budgets.items()}
        BUDGET.write_text(json.dumps(lower, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"Lowered {len(under)} budgets in {BUDGET.relative_to(ROOT)}")
    elif under:
        changes = ", ".join(f"{kind} ({budgets[kind]} to {counts.get(kind, 0)})" for kind in under)
        print(f"Can be lowered with --write: {changes}")
    for kind in over:
        print(f"{kind}: {counts[kind]}, budget {budgets.get(kind, 0)}. Rewrite some of these, or list all with --show.")
        _print_places(kind, by_kind[kind], 5)
    return int(bool(over))


def _print_places(kind: str, places: list[Finding], most: int) -> None:
    for finding in places[:most]:
        print(f"  {finding.place}: {kind.partition(': ')[2]}: {' '.join(finding.excerpt.split())[:90]}")


if __name__ == "__main__":
    sys.exit(main())
