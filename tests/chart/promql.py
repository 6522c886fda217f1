"""As much of PromQL as the dashboards use, read strictly: what is not in here is a fault.

expression := term (OPERATOR term)*
term       := NUMBER | selector | call | aggregation | "(" expression ")"
call       := FUNCTION "(" expression ("," expression)* ")"
aggregation:= AGGREGATION ["by" "(" labels ")"] "(" expression ")"
selector   := METRIC ["{" label MATCH string, … "}"] ["[" DURATION "]"]
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

TOKEN = re.compile(
    r'\s*(?:(\d+(?:\.\d+)?(?![\w.]))|([A-Za-z_:][\w:]*)|("[^"\\]*")|(\[[^\]]*\])|(=~|!~|!=|[-+*/(){},=<>]))'
)
DURATION = re.compile(r"\[(\d+(ms|s|m|h|d)|\$__rate_interval|\$__range|\$__interval)\]")
AGGREGATIONS = {"sum", "max", "min", "avg", "count"}
FUNCTIONS = {
    "rate": ("range",),
    "increase": ("range",),
    "histogram_quantile": ("scalar", "vector"),
    "time": (),
    "abs": ("vector",),
    "clamp_min": ("vector", "scalar"),
}


class PromQLError(ValueError):
    """The text is not an expression; the message says where."""


@dataclass(frozen=True, slots=True)
class Use:
    """A metric as an expression names it, with every label that is asked of it: matched, or grouped by around it."""

    name: str
    labels: frozenset[str]


@dataclass(frozen=True, slots=True)
class Parsed:
    """What an expression is (scalar, vector or range) and which metrics it uses."""

    kind: str
    uses: tuple[Use, ...] = ()


def parse(text: str) -> tuple[Use, ...]:
    """The metrics that the expression uses. Raises PromQLError."""
    reader = _Reader(text)
    parsed = reader.expression()
    reader.end()
    if parsed.kind == "range":
        raise PromQLError(f"{text}: a range cannot be drawn; take its rate")
    return parsed.uses


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._tokens, place = text, list[str](), 0
        while text[place:].strip():
            found = TOKEN.match(text, place)
            if found is None:
                raise PromQLError(f"{text}: not understood from {text[place:].strip()!r}")
            self._tokens.append(found[0].strip())
            place = found.end()

    def _next(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _take(self, *wanted: str) -> str:
        if not self._tokens or (wanted and self._tokens[0] not in wanted):
            raise PromQLError(
                f"{self._text}: {' or '.join(wanted) or 'more'} wanted before {self._next() or 'the end'!r}"
            )
        return self._tokens.pop(0)

    def _word(self) -> str:
        word = self._take()
        if not re.fullmatch(r"[A-Za-z_:][\w:]*", word):
            raise PromQLError(f"{self._text}: a name wanted, not {word!r}")
        return word

    def end(self) -> None:
        if self._tokens:
            raise PromQLError(f"{self._text}: {self._next()!r} is too much")

    def expression(self) -> Parsed:
        left = self._term()
        while self._next() in {"+", "-", "*", "/", "<", ">"}:
            self._take()
            right = self._term()
            if "range" in {left.kind, right.kind}:
                raise PromQLError(f"{self._text}: a range cannot be reckoned with")
            kind = "vector" if "vector" in {left.kind, right.kind} else "scalar"
            left = Parsed(kind, left.uses + right.uses)
        return left

    def _term(self) -> Parsed:
        if self._next() == "(":
            self._take("(")
            inner = self.expression()
            self._take(")")
            return inner
        if self._next()[:1].isdigit():
            self._take()
            return Parsed("scalar")
        word = self._word()
        if word in AGGREGATIONS:
            return self._aggregation()
        return self._call(word) if self._next() == "(" else self._selector(word)

    def _aggregation(self) -> Parsed:
        by: frozenset[str] = frozenset()
        if self._next() == "by":
            self._take("by")
            by = frozenset(self._list(self._word))
        self._take("(")
        inner = self.expression()
        self._take(")")
        if inner.kind != "vector":
            raise PromQLError(f"{self._text}: only a vector can be aggregated")
        return Parsed("vector", tuple(Use(use.name, use.labels | by) for use in inner.uses))

    def _call(self, name: str) -> Parsed:
        if name not in FUNCTIONS:
            raise PromQLError(f"{self._text}: no function {name}")
        arguments = self._list(self.expression)
        if FUNCTIONS[name] != tuple(argument.kind for argument in arguments):
            raise PromQLError(f"{self._text}: {name} takes {FUNCTIONS[name]}, not {[a.kind for a in arguments]}")
        uses = tuple(use for argument in arguments for use in argument.uses)
        if name == "histogram_quantile" and [use for use in uses if "le" not in use.labels]:
            raise PromQLError(f"{self._text}: histogram_quantile needs the label le")
        return Parsed("vector" if arguments else "scalar", uses)

    def _selector(self, name: str) -> Parsed:
        labels = frozenset(self._list(self._matcher, "{", "}")) if self._next() == "{" else frozenset[str]()
        if self._next().startswith("["):
            if not DURATION.fullmatch(duration := self._take()):
                raise PromQLError(f"{self._text}: {duration} is no duration")
            return Parsed("range", (Use(name, labels),))
        return Parsed("vector", (Use(name, labels),))

    def _matcher(self) -> str:
        label = self._word()
        self._take("=", "!=", "=~", "!~")
        value = self._take()
        if not value.startswith('"'):
            raise PromQLError(f"{self._text}: a string wanted, not {value!r}")
        return label

    def _list(self, item: Callable[[], T], begin: str = "(", end: str = ")") -> list[T]:
        """Items between brackets, with commas between them."""
        self._take(begin)
        items: list[T] = []
        while self._next() != end:
            items.append(item())
            if self._next() != end:
                self._take(",")
        self._take(end)
        return items
