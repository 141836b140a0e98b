"""Tokens to a syntax tree, by recursive descent.

The grammar needs no backtracking: what an opening parenthesis starts is decided by the token after the one that closes
it, so parsing takes linear time and an error is reported where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tracecore.ottl.errors import OttlSyntaxError
from tracecore.ottl.lexer import Token, lex, unquote
from tracecore.ottl.tree import (
    And,
    Argument,
    Binary,
    Call,
    Comparison,
    Condition,
    Expression,
    FunctionName,
    ListLiteral,
    Literal,
    MapLiteral,
    Not,
    Or,
    Path,
    Segment,
    Statement,
    Symbol,
    Unary,
)
from tracecore.ottl.values import INT64_MAX

#: How deep expressions may nest, and how many operators one arithmetic expression may have. Trees are walked by
#: recursion, and nothing a person writes comes near.
MAX_DEPTH: Final = 64
MAX_OPERATORS: Final = 200

_MATH: Final = (Path, Call, Unary, Binary)
_AFTER_VALUE: Final = ("OpComparison", "OpAddSub", "OpMultDiv")


def parse(statement: str) -> Statement:
    """The tree of a statement: an editor call, and optionally `where` and a condition.

    Raises:
        OttlSyntaxError: with the line and column of the first token that does not fit.
    """
    parser = _Parser(statement, "statement")
    editor = parser.statement_call()
    where = None
    if parser.at_word("where"):
        parser.index += 1
        where = parser.condition()
    parser.finish()
    return Statement(editor, where, statement)


def parse_condition(condition: str) -> Condition:
    """The tree of a condition, such as stands behind `where`."""
    parser = _Parser(condition, "condition")
    node = parser.condition()
    parser.finish()
    return node


def parse_value_expression(expression: str) -> Expression:
    """The tree of a value: a literal, a path, a call, arithmetic."""
    parser = _Parser(expression, "expression")
    node = parser.value()
    parser.finish()
    return node


class _Parser:
    def __init__(self, source: str, kind: str) -> None:
        self.source = source
        self.kind = kind
        self.tokens = lex(source)
        self.tokens.append(Token("EOF", "", len(source)))
        self.index = 0
        self.depth = 0
        self.closing = self._match_parentheses()
        # Well-formed text with a wrong name is only reported when nothing worse is wrong with it.
        self.misnamed: OttlSyntaxError | None = None

    # Tokens.

    def _match_parentheses(self) -> dict[int, int]:
        closing: dict[int, int] = {}
        open_at: list[int] = []
        for index, token in enumerate(self.tokens):
            if token.kind == "LParen":
                open_at.append(index)
            elif token.kind == "RParen" and open_at:
                closing[open_at.pop()] = index
        return closing

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    def kind_at(self, index: int) -> str:
        return self.tokens[min(index, len(self.tokens) - 1)].kind

    def at(self, kind: str, text: str = "") -> bool:
        token = self.token
        return token.kind == kind and (not text or token.text == text)

    def at_word(self, word: str) -> bool:
        return self.at("Lowercase", word)

    def take(self, kind: str, text: str = "", wanted: str = "") -> Token:
        token = self.token
        if not self.at(kind, text):
            raise self.unexpected(wanted or f'"{text}"')
        self.index += 1
        return token

    def unexpected(self, wanted: str) -> OttlSyntaxError:
        token = self.token
        found = "the end" if token.kind == "EOF" else f'"{token.text}"'
        return self.error(f"unexpected {found}, expected {wanted}", token.offset)

    def error(self, message: str, offset: int) -> OttlSyntaxError:
        return OttlSyntaxError(f"{self.kind} has invalid syntax: {message}", self.source, offset)

    def finish(self) -> None:
        if not self.at("EOF"):
            raise self.unexpected("the end of the statement")
        if self.misnamed is not None:
            raise self.misnamed

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"nested deeper than {MAX_DEPTH} levels", self.token.offset)

    def leave(self) -> None:
        self.depth -= 1

    # Statements and calls.

    def statement_call(self) -> Call:
        start = self.token
        if start.kind not in ("Lowercase", "Uppercase"):
            raise self.unexpected("an editor")
        call = self.call()
        if start.kind == "Uppercase":
            self.blame(f"editor names must start with a lowercase letter but got '{call.name}'", start.offset)
        if call.keys:
            self.blame(f"only paths and converters may be indexed, not editors, but got {call.name}", start.offset)
        return call

    def blame(self, message: str, offset: int) -> None:
        if self.misnamed is None:
            self.misnamed = OttlSyntaxError(message, self.source, offset)

    def name_end(self) -> int:
        """The index after the tokens that form one name: capitals and small letters are separate tokens."""
        index = self.index
        while self.kind_at(index) in ("Lowercase", "Uppercase"):
            index += 1
        return index

    def name(self) -> str:
        end = self.name_end()
        text = "".join(token.text for token in self.tokens[self.index : end])
        self.index = end
        return text

    def at_call(self) -> bool:
        return self.kind_at(self.name_end()) == "LParen"

    def call(self) -> Call:
        start = self.token
        name = self.name()
        self.take("LParen", "(")
        self.enter()
        arguments: list[Argument] = []
        if not self.at("RParen"):
            arguments.append(self.argument())
            while self.at("Punct", ","):
                self.index += 1
                arguments.append(self.argument())
        self.take("RParen", ")", '"," or ")"')
        self.leave()
        return Call(name, tuple(arguments), self.keys(), start.offset)

    def argument(self) -> Argument:
        start = self.token
        name = ""
        if start.kind == "Lowercase" and self.kind_at(self.name_end()) == "Equal":
            name = self.name()
            self.index += 1
        if self.token.kind == "Uppercase" and not self.at_call():
            first, end = self.token, self.name_end()
            if end > self.index + 1:
                return Argument(name, FunctionName(self.name(), first.offset), start.offset)
        return Argument(name, self.value(), start.offset)

    def keys(self) -> tuple[Expression, ...]:
        keys: list[Expression] = []
        while self.at("Punct", "["):
            self.index += 1
            self.enter()
            token = self.token
            if token.kind in ("String", "Int"):
                self.index += 1
                keys.append(self.literal(token))
            else:
                keys.append(self.sum())
            self.take("Punct", "]")
            self.leave()
        return tuple(keys)

    # Values.

    def value(self) -> Expression:
        token = self.token
        self.enter()
        try:
            match token.kind:
                case "Nil" | "String" | "Bytes" | "Boolean":
                    self.index += 1
                    return self.literal(token)
                case "LBrace":
                    return self.map()
                case "Punct" if token.text == "[":
                    return self.list()
                case "Uppercase" if not self.at_call():
                    self.index += 1
                    if self.at("Lowercase"):
                        raise self.unexpected("arguments in parentheses")
                    return Symbol(token.text, token.offset)
            return self.sum()
        finally:
            self.leave()

    def literal(self, token: Token) -> Literal:
        match token.kind:
            case "Nil":
                return Literal(None, token.offset)
            case "String":
                return Literal(unquote(token, self.source), token.offset)
            case "Boolean":
                return Literal(token.text == "true", token.offset)
            case "Bytes":
                if len(token.text) % 2:
                    raise self.error("bytes need an even number of hex digits", token.offset)
                return Literal(bytes.fromhex(token.text[2:]), token.offset)
            case "Float":
                number = float(token.text)
                if number in (float("inf"), float("-inf")):
                    raise self.error(f"{token.text} is out of range", token.offset)
                return Literal(number, token.offset)
        if len(token.text.lstrip("0")) > 19 or int(token.text) > INT64_MAX:
            raise self.error(f"{token.text} does not fit 64 bits", token.offset)
        return Literal(int(token.text), token.offset)

    def list(self) -> ListLiteral:
        start = self.take("Punct", "[")
        items: list[Expression] = []
        if not self.at("Punct", "]"):
            items.append(self.value())
            while self.at("Punct", ","):
                self.index += 1
                items.append(self.value())
        self.take("Punct", "]", '"," or "]"')
        return ListLiteral(tuple(items), start.offset)

    def map(self) -> MapLiteral:
        start = self.take("LBrace", "{")
        entries: list[tuple[str, Expression]] = []
        while not self.at("RBrace"):
            key = self.take("String", wanted='a string key or "}"')
            self.take("Colon", ":")
            entries.append((unquote(key, self.source), self.value()))
            if self.at("Punct", ","):
                self.index += 1
        self.index += 1
        return MapLiteral(tuple(entries), start.offset)

    # Arithmetic.

    def sum(self) -> Expression:
        return self.chain("OpAddSub", self.product)

    def product(self) -> Expression:
        return self.chain("OpMultDiv", self.factor)

    def chain(self, kind: str, parse_operand: Callable[[], Expression]) -> Expression:
        node = parse_operand()
        count = 0
        while self.at(kind):
            count += 1
            if count > MAX_OPERATORS:
                raise self.error(f"more than {MAX_OPERATORS} operators", self.token.offset)
            operator = self.token
            self.index += 1
            node = Binary(operator.text, node, parse_operand(), operator.offset)
        return node

    def factor(self) -> Expression:
        token = self.token
        if token.kind == "OpAddSub":
            self.index += 1
            return Unary(token.text, self.operand(), token.offset)
        return self.operand()

    def operand(self) -> Expression:
        token = self.token
        if token.kind == "LParen":
            self.enter()
            self.index += 1
            node = self.sum()
            self.take("RParen", ")", 'an operator or ")"')
            self.leave()
            return node
        if token.kind in ("Int", "Float"):
            self.index += 1
            return self.literal(token)
        if token.kind in ("Lowercase", "Uppercase") and self.at_call():
            call = self.call()
            if token.kind == "Lowercase":
                if call.keys:
                    self.blame(
                        f"only paths and converters may be indexed, not editors, but got {call.name}", token.offset
                    )
                self.blame(f"converter names must start with an uppercase letter but got '{call.name}'", token.offset)
            return call
        if token.kind == "Lowercase":
            return self.path()
        raise self.unexpected("a value")

    def path(self) -> Path:
        start = self.token
        segments = [self.segment()]
        while self.at("Punct", "."):
            self.index += 1
            segments.append(self.segment())
        return Path(tuple(segments), start.offset)

    def segment(self) -> Segment:
        token = self.take("Lowercase", wanted="a name of small letters")
        return Segment(token.text, self.keys(), token.offset)

    # Conditions.

    def condition(self) -> Condition:
        return self.require_condition(self.condition_or_value())

    def condition_or_value(self) -> Condition | Expression:
        """A condition; or a value, where what is read is only that."""
        self.enter()
        node = self.junction("OpOr")
        self.leave()
        return node

    def conjunction(self) -> Condition | Expression:
        return self.junction("OpAnd")

    def junction(self, kind: str) -> Condition | Expression:
        inner = self.conjunction if kind == "OpOr" else self.negation
        start = self.token
        first = inner()
        if not self.at(kind):
            return first
        operands = [self.require_condition(first)]
        while self.at(kind):
            self.index += 1
            operands.append(self.require_condition(inner()))
        return (Or if kind == "OpOr" else And)(tuple(operands), start.offset)

    def require_condition(self, node: Condition | Expression) -> Condition:
        """Return what was just read must be a condition; otherwise a comparison operator is missing behind it."""
        match node:
            case Comparison() | Not() | And() | Or():
                return node
            case Literal(value) if isinstance(value, bool):
                return node
            case Call(name) if name[0].isupper():
                return node
        raise self.unexpected("a comparison such as ==")

    def negation(self) -> Condition | Expression:
        token = self.token
        if token.kind != "OpNot":
            return self.comparison()
        self.index += 1
        return Not(self.require_condition(self.comparison()), token.offset)

    def comparison(self) -> Condition | Expression:
        start = self.token
        if start.kind == "LParen" and not self.at_parenthesised_value():
            return self.group()
        left = self.value()
        if not self.at("OpComparison"):
            return left
        operator = self.token
        self.index += 1
        return Comparison(operator.text, left, self.value(), start.offset)

    def at_parenthesised_value(self) -> bool:
        """The parentheses that open here can only be part of a value: an operator follows them."""
        close = self.closing.get(self.index)
        return close is not None and self.kind_at(close + 1) in _AFTER_VALUE

    def group(self) -> Condition | Expression:
        """Parentheses that no operator follows: around a condition, or around arithmetic where a value may stand."""
        self.take("LParen", "(")
        node = self.condition_or_value()
        number = isinstance(node, Literal) and type(node.value) in (int, float)
        if not number and not isinstance(node, (Comparison, Not, And, Or, *_MATH)):
            node = self.require_condition(node)
        self.take("RParen", ")", '"and", "or" or ")"')
        return node
