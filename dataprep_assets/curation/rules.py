"""The grammar of filter rules: named expressions over the columns of the document table, in a `defs.yaml`.

Python's parser reads an expression (`ast`, mode `eval`). The syntax listed here is translated to an Arrow expression;
any other syntax is refused with its position. Nothing is evaluated as code.

- names of columns, numbers, strings in quotes, `true`, `false`
- `==` (or `=`), `!=`, `<`, `<=`, `>`, `>=`, also chained: `0.1 < alpha_words <= 0.5`
- `in [...]` and `not in [...]` with numbers or strings; `is null`, `is not null`
- `startswith(host, 'blog.')`, `endswith`, `contains`; `matches(url, '/tag/[0-9]+')` with a regular expression of RE2,
  which takes linear time
- `and`, `or`, `not`, parentheses; `+`, `-`, `*`, `/` of numbers

A comparison with a missing value (null) is neither true nor false, as in SQL, and the same applies to its negation.

Entry points: `Rule`, `parse_rule`, `combine_by_source`; `match_rules`, `find_dropping_rules`.
"""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

NUMBERS = ("integer", "number")
SOURCE = "source"
"""The column with the name of a document's source."""
_WORDS = {"true": "True", "false": "False", "null": "None"}
_COMPARED: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
_ARITHMETIC: Mapping[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
}
_FUNCTIONS = {
    "startswith": "starts_with",
    "endswith": "ends_with",
    "contains": "match_substring",
    "matches": "match_substring_regex",
}
"""Function of a rule → the function of Arrow, whose arguments are a string column and a pattern."""
_MAX_CHARACTERS, _MAX_LEVELS = 4_000, 60
"""Maximum number of characters and of levels of an expression, within the limits of Python's stack."""


@dataclass(frozen=True)
class Rule:
    """A parsed expression: its text, its columns, and a function that builds the Arrow expression.

    `thresholds` has the numbers that each column is compared with, in the order of the text.
    """

    text: str
    columns: frozenset[str]
    thresholds: Mapping[str, tuple[float, ...]] = field(compare=False)
    # Build the expression only when it is needed, so that declarations can be parsed without loading pyarrow.
    _build: Callable[[], Any] = field(compare=False, repr=False)

    @property
    def expression(self) -> Any:
        """The `pyarrow.compute.Expression`, of type bool."""
        return self._build()


def parse_rule(text: str, columns: Mapping[str, str], location: str) -> Rule:
    """Parse an expression.

    Args:
        text: The expression.
        columns: Name → type of each column: `integer`, `number`, `string` or `boolean`.
        location: Name used in messages: `drop.short`.

    Raises ConfigError, with the position, for invalid syntax, an unknown column, or a comparison of different types.
    """
    return _Parser(text, columns, location).parse()


def combine_by_source(rules: Mapping[str, Rule], other_sources: Rule) -> Rule:
    """Return the rule that applies a different rule to each source.

    Its text is an expression of this grammar, which can be used in queries.

    Args:
        rules: Source → its rule; at least one.
        other_sources: The rule for all other sources.
    """
    all_rules = [*rules.values(), other_sources]
    texts = [f"source == {source!r} and ({rule.text})" for source, rule in rules.items()]
    if other_sources.text != "false":
        unlisted = f"source not in [{', '.join(map(repr, rules))}]"
        texts.append(unlisted if other_sources.text == "true" else f"{unlisted} and ({other_sources.text})")
    thresholds: dict[str, tuple[float, ...]] = {}
    for rule in all_rules:
        for column, numbers in rule.thresholds.items():
            thresholds[column] = (*thresholds.get(column, ()), *numbers)

    def build() -> Any:
        source = _build_string_column(SOURCE)
        conditions = [_call("equal", source, _build_scalar(name)) for name in rules]
        conditions.append(_call("invert", _fold_parts("or_kleene", conditions)))
        pairs = zip(conditions, all_rules, strict=True)
        return _fold_parts("or_kleene", [_call("and_kleene", condition, rule.expression) for condition, rule in pairs])

    columns = frozenset({SOURCE}.union(*(rule.columns for rule in all_rules)))
    return Rule(texts[0] if len(texts) == 1 else " or ".join(f"({text})" for text in texts), columns, thresholds, build)


@dataclass(frozen=True)
class _Part:
    """A part of an expression: its type (`null` for the literal), and a function that builds its Arrow expression."""

    type: str
    build: Callable[[], Any]


_LAYOUT = (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


class _TranslatedRule:
    """A rule translated to Python, on one line, and a mapping of positions back to the rule."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = text.splitlines(keepends=True) or [""]
        # For each token: its position in the translation, and its position in the text, both from 0.
        self._starts: list[tuple[int, int]] = []

    def to_python(self) -> str:
        """Return the text in Python's syntax, with `==` for `=`. Raises the errors of `tokenize`."""
        translation = ""
        # Tokenize the rule in parentheses, so that it may span several lines. The translation omits these parentheses.
        for token in tokenize.generate_tokens(io.StringIO(f"({self._text})").readline):
            offset = self._find_offset(*token.start)
            if token.type in _LAYOUT or not 0 <= offset < len(self._text):
                continue
            self._starts.append((len(translation), offset))
            translation += f"{_translate_token(token)} "
        return translation.rstrip()

    def locate_error(self, error: Exception) -> str:
        """Return the position in the text of an error of `to_python` or of Python's parser; empty if unknown."""
        if isinstance(error, tokenize.TokenError):
            message, (row, column) = error.args
            # Python versions report different positions for an unterminated token, so use the end of the text. The
            # columns of other errors count from 1.
            offset = len(self._text) if "EOF" in message else self._find_offset(row, column - 1)
        elif isinstance(error, SyntaxError) and error.lineno == 1 and not error.offset:
            offset = len(self._text)  # an error without an offset means that the expression is incomplete
        elif isinstance(error, SyntaxError) and error.lineno == 1 and error.offset:
            # Python reports two adjacent expressions at the start of the first, but the mistake is at the second.
            problem = "forgot a comma" in str(error.msg) and error.end_offset
            position = error.end_offset - 2 if problem and error.end_offset else error.offset - 1
            token_start, offset = max((start for start in self._starts if start[0] <= position), default=(0, 0))
            offset += 0 if problem else position - token_start
        else:
            return ""
        end = len(self._text.rstrip())
        leading_text = self._text[: min(max(offset, 0), end)].splitlines(keepends=True) or [""]
        line, column = (
            (len(leading_text) + 1, 1)
            if leading_text[-1].endswith("\n")
            else (len(leading_text), len(leading_text[-1]) + 1)
        )
        if len(self._lines) > 1:
            return f" at line {line}, character {column}"
        return f" at character {column}"

    def _find_offset(self, row: int, column: int) -> int:
        """Return the position in the text of a position in the tokenized text, which begins with a parenthesis."""
        return sum(map(len, self._lines[: row - 1])) + column - (row == 1)


def _translate_token(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.OP and token.string == "=":
        return "=="
    if token.type == tokenize.NAME:
        lower = token.string.lower()
        return _WORDS.get(lower, lower if lower in ("and", "or", "not", "in", "is") else token.string)
    return token.string


def _suggest_tagger(column: str) -> str:
    """Return advice to add the built-in tagger that has a column; empty if no tagger has it."""
    from dataprep_assets.curation.taggers import TAGGERS
    from dataprep_assets.curation.tagging import load_tagger

    names = [name for name in TAGGERS if column in load_tagger(name).columns]
    return f". Add its tagger: `tag: [{names[0]}]`." if names else ""


class _Parser:
    """Parser of one expression, over Python's syntax tree."""

    def __init__(self, text: str, columns: Mapping[str, str], location: str) -> None:
        self._text, self._columns, self._where = text, columns, location
        self._read: set[str] = set()
        self._thresholds: dict[str, tuple[float, ...]] = {}

    def parse(self) -> Rule:
        if not self._text.strip():
            raise ConfigError(
                f"{self._where}: the expression is empty. Write an expression, e.g., `words < 50 or language != 'en'`"
            )
        if len(self._text) > _MAX_CHARACTERS:
            raise ConfigError(
                f"{self._where}: the expression is longer than {_MAX_CHARACTERS:,} characters. Shorten the expression"
            )
        translated = _TranslatedRule(self._text)
        try:
            tree = ast.parse(translated.to_python(), mode="eval")
        # Also catch RecursionError and MemoryError, because Python's parser raises them for deeply nested text.
        except (SyntaxError, ValueError, tokenize.TokenError, RecursionError, MemoryError) as error:
            raise ConfigError(
                f"{self._where}: {self._text!r} is not a valid expression{translated.locate_error(error)}. Example: "
                "`words "
                "< 50 or language != 'en'`"
            ) from None
        part = self._parse_part(tree.body, 0)
        if part.type != "boolean":
            raise ConfigError(
                f"{self._where}: {self._text!r} is {_add_article(part.type)}, not true or false. Compare it "
                "with a value"
            )
        return Rule(self._text, frozenset(self._read), self._thresholds, part.build)

    def _build_error(self, node: ast.AST, reason: str) -> ConfigError:
        return ConfigError(f"{self._where}: {_format_node(node)}: {reason}")

    def _parse_part(self, node: ast.AST, depth: int) -> _Part:
        if depth > _MAX_LEVELS:
            raise ConfigError(
                f"{self._where}: the expression is nested too deeply (more than {_MAX_LEVELS} levels). Simplify the "
                "expression"
            )
        match node:
            case ast.BoolOp():
                parts = [self._parse_boolean(value, depth) for value in node.values]
                # Use Kleene logic, as SQL does: false `and` null is false, but null in Arrow's plain `and`.
                function = "and_kleene" if isinstance(node.op, ast.And) else "or_kleene"
                return _Part("boolean", lambda: _fold_parts(function, [part.build() for part in parts]))
            case ast.UnaryOp(op=ast.Not()):
                operand = self._parse_boolean(node.operand, depth)
                return _Part("boolean", lambda: _call("invert", operand.build()))
            case ast.UnaryOp(op=ast.USub()):
                operand = self._parse_number(node.operand, depth)
                return _Part(operand.type, lambda: _call("negate", operand.build()))
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                return self._parse_arithmetic(node, depth)
            case ast.Compare():
                return self._parse_comparison(node, depth)
            case ast.Name():
                return self._parse_column(node)
            case ast.Call(func=ast.Name(id=name)):
                return self._parse_function(node, name, depth)
            case ast.Constant():
                return self._parse_constant(node)
            case ast.Attribute() if (column := ast.unparse(node).replace(".", "_")) in self._columns:
                raise self._build_error(node, f"columns have no prefix. Write {column}")
        raise self._build_error(
            node, "not allowed in a rule. Use columns, numbers, strings, comparisons, in, and, or, not, functions"
        )

    def _parse_boolean(self, node: ast.AST, depth: int) -> _Part:
        part = self._parse_part(node, depth + 1)
        if part.type != "boolean":
            raise self._build_error(node, f"{_add_article(part.type)}, but true or false is required")
        return part

    def _parse_number(self, node: ast.AST, depth: int) -> _Part:
        part = self._parse_part(node, depth + 1)
        if part.type not in NUMBERS:
            raise self._build_error(node, f"{_add_article(part.type)}, but a number is required")
        return part

    def _parse_arithmetic(self, node: ast.BinOp, depth: int) -> _Part:
        left_side, right = self._parse_number(node.left, depth), self._parse_number(node.right, depth)
        name = _ARITHMETIC[type(node.op)]
        # Compute in floating point, where division by 0 gives infinity or NaN and integers cannot overflow.
        return _Part("number", lambda: _call(name, *(_cast_to_float(part) for part in (left_side, right))))

    def _parse_comparison(self, node: ast.Compare, depth: int) -> _Part:
        sides, comparisons = [node.left, *node.comparators], []
        for operator, left_side, right in zip(node.ops, sides[:-1], sides[1:], strict=True):
            comparisons.append(self._parse_comparison_chain(node, operator, left_side, right, depth))
        return _Part("boolean", lambda: _fold_parts("and_kleene", [build() for build in comparisons]))

    def _parse_comparison_chain(
        self, node: ast.AST, operator: ast.cmpop, left_side: ast.AST, right: ast.AST, depth: int
    ) -> Callable[[], Any]:
        left_part = self._parse_part(left_side, depth + 1)
        if isinstance(operator, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise self._build_error(node, "`is` must be followed by `null` or `not null`")
            name = "is_valid" if isinstance(operator, ast.IsNot) else "is_null"
            return lambda: _call(name, left_part.build())
        if isinstance(operator, ast.In | ast.NotIn):
            return self._parse_in(left_part, operator, right)
        right_part = self._parse_part(right, depth + 1)
        if "null" in (left_part.type, right_part.type):
            raise self._build_error(node, "comparisons with null are never true. Write `is null` or `is not null`")
        if left_part.type != right_part.type and not {left_part.type, right_part.type} <= set(NUMBERS):
            raise self._build_error(
                node, f"cannot compare {_add_article(left_part.type)} with {_add_article(right_part.type)}"
            )
        for side, other_side in ((left_side, right), (right, left_side)):
            if isinstance(side, ast.Name) and (number := _read_number(other_side)) is not None:
                self._thresholds[side.id] = (*self._thresholds.get(side.id, ()), number)
        comparison = _COMPARED[type(operator)]
        if left_part.type == "boolean" and comparison not in ("equal", "not_equal"):
            raise self._build_error(node, "true and false have no order. Use = or !=")
        return lambda: _call(comparison, *_unify_types(left_part, right_part))

    def _parse_in(self, operand: _Part, operator: ast.cmpop, right: ast.AST) -> Callable[[], Any]:
        if not isinstance(right, ast.List | ast.Tuple | ast.Set) or not right.elts:
            raise self._build_error(
                right, "`in` must be followed by a list with values, e.g., `language in ['en', 'de']`"
            )
        parts = [self._parse_part(value, 0) for value in right.elts]
        for value, part in zip(right.elts, parts, strict=True):
            if not isinstance(value, ast.Constant) or part.type == "null":
                raise self._build_error(value, "a list can contain only numbers or strings")
            if part.type != operand.type and not {part.type, operand.type} <= set(NUMBERS):
                raise self._build_error(
                    value, f"cannot compare {_add_article(operand.type)} with {_add_article(part.type)}"
                )
        negated = isinstance(operator, ast.NotIn)

        def build() -> Any:
            # Compare with each value separately, because `is_in` returns false, not null, if the operand is null.
            expression = _fold_parts("or_kleene", [_call("equal", *_unify_types(operand, part)) for part in parts])
            return _call("invert", expression) if negated else expression

        return build

    def _parse_function(self, node: ast.Call, name: str, depth: int) -> _Part:
        if name not in _FUNCTIONS:
            raise self._build_error(node, f"unknown function {name!r}. Available: {', '.join(_FUNCTIONS)}")
        match node.args:
            case [column_node, ast.Constant(value=str(pattern))] if not node.keywords:
                column = self._parse_part(column_node, depth + 1)
            case _:
                raise self._build_error(node, f"write a column and a string in quotes, e.g., `{name}(host, 'blog.')`")
        if column.type != "string":
            raise self._build_error(column_node, f"{_add_article(column.type)}, but a string is required")
        if name == "matches" and (reason := _explain_invalid_regex(pattern)) is not None:
            raise self._build_error(node, f"not a regular expression of RE2: {reason}. Correct the expression")
        return _Part("boolean", lambda: _call(_FUNCTIONS[name], column.build(), pattern=pattern))

    def _parse_column(self, node: ast.Name) -> _Part:
        if node.id not in self._columns:
            from dataprep_assets.engine.yaml.declared_keys import find_nearest

            nearest_name = find_nearest(node.id, list(self._columns))
            raise ConfigError(
                f"{self._where}: unknown column {node.id!r}"
                + (_suggest_tagger(node.id) or (f"; did you mean {nearest_name!r}?" if nearest_name else "."))
                + f" Available: {', '.join(self._columns)}"
            )
        self._read.add(node.id)
        name, kind = node.id, self._columns[node.id]

        def build() -> Any:
            import pyarrow.compute as pc

            return _build_string_column(name) if kind == "string" else pc.field(name)

        return _Part(kind, build)

    def _parse_constant(self, node: ast.Constant) -> _Part:
        value = node.value
        kinds = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
        # Look up the exact type, because True is also an int. Refuse integers beyond 64 bits, which no column can
        # contain.
        if (kind := kinds.get(type(value))) is None or (isinstance(value, int) and abs(value) >= 1 << 63):
            raise self._build_error(node, "not a value in a rule. Write a number, or a string in quotes")
        return _Part(kind, lambda: _build_scalar(value))


def _read_number(node: ast.AST) -> float | None:
    """Return the number that a part of an expression consists of; None for any other part."""
    try:
        value = ast.literal_eval(node) if isinstance(node, ast.Constant | ast.UnaryOp) else None
    except ValueError:
        return None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _explain_invalid_regex(pattern: str) -> str | None:
    """Return why a text is not a regular expression; None if it is one."""
    import pyarrow as pa

    try:
        _call("match_substring_regex", pa.array([""]), pattern=pattern)
    except pa.ArrowException as error:
        return str(error).partition(": ")[2].splitlines()[0]
    return None


def _call(name: str, *arguments: Any, **options: Any) -> Any:
    import pyarrow.compute as pc

    function = getattr(pc, name)
    return function(*arguments, **options)


def _build_string_column(name: str) -> Any:
    import pyarrow.compute as pc

    # Convert to plain strings, because a string column may be dictionary-encoded.
    return pc.field(name).cast("string")


def _build_scalar(value: Any) -> Any:
    import pyarrow.compute as pc

    return pc.scalar(value)


def _unify_types(part: _Part, other: _Part) -> tuple[Any, Any]:
    """Return the expressions of two parts of the same type, or of two numbers as floats."""
    if part.type == other.type:
        return part.build(), other.build()
    return _cast_to_float(part), _cast_to_float(other)


def _cast_to_float(part: _Part) -> Any:
    """Cast a number to the nearest 64-bit float.

    Without the cast, Arrow uses the literal's shortest type and raises on overflow.
    """
    return part.build().cast("double", safe=False)


def _fold_parts(name: str, parts: list[Any]) -> Any:
    expression = parts[0]
    for part in parts[1:]:
        expression = _call(name, expression, part)
    return expression


def _format_node(node: ast.AST) -> str:
    return re.sub(r"\bNone\b", "null", re.sub(r"\s+", " ", ast.unparse(node))[:60])


def _add_article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def match_rules(table: "pa.Table", rules: Mapping[str, Rule]) -> dict[str, NDArray[np.bool_]]:
    """Return rule → mask of the rows of a table for which its expression is true: shape `(rows,)`."""
    from pyarrow import acero

    # Null counts as false, so `keep` drops a row whose expression is null, and `drop` keeps it.
    expressions = [_call("coalesce", rule.expression, _build_scalar(False)) for rule in rules.values()]
    steps = [
        acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
        acero.Declaration("project", acero.ProjectNodeOptions(expressions, list(rules))),
    ]
    # Use one thread, because several threads could change the order of rows.
    matches = acero.Declaration.from_sequence(steps).to_table(use_threads=False)
    return {name: matches[name].to_numpy() for name in rules}


def find_dropping_rules(table: "pa.Table", rules: Mapping[str, tuple[bool, Rule]]) -> NDArray[np.int64]:
    """Return the number of the rule that drops each row of a table, -1 for kept rows; shape `(rows,)`.

    The first matching rule is the reason. A `keep` rule drops the rows for which it is not true.
    """
    rule_numbers = np.full(table.num_rows, -1)
    matches = match_rules(table, {name: rule for name, (_, rule) in rules.items()})
    for number, (name, (keeps, _)) in enumerate(rules.items()):
        drops = ~matches[name] if keeps else matches[name]
        rule_numbers[(rule_numbers < 0) & drops] = number
    return rule_numbers
