"""What people write for numbers, switches and nothing: plain YAML as Kubernetes reads it, and Python's own numbers.

Kubernetes reads YAML with a library of Go, which differs from PyYAML: `y` is true, `089` is 89, `0o17` is 15, `1e3` is
1000, and a date is text. It then writes JSON, in which 32.0 is 32.

A decimal of the manifest is a text: `DECIMAL` in batchgrowth/schema.py says what it may look like.
"""

import math
import re
from decimal import Decimal
from enum import StrEnum
from numbers import Integral, Real
from typing import Any

import yaml

from batchgrowth.schema import MOST_AFTER_THE_POINT, MOST_BEFORE_THE_POINT

LEAST_WHOLE = -(2**63)
LARGEST_WHOLE = 2**63 - 1
"""The bounds of the whole numbers of Kubernetes' JSON; others are floats."""
LARGEST_UNSIGNED = 2**64 - 1
"""The largest whole number that its YAML knows; a larger one is a float if it is decimal, or else text."""
MOST_DIGITS = 400
"""The most characters of a number that is worth reading."""

NOTHING = frozenset({"", "~", "null", "Null", "NULL"})
TRUE = frozenset({"y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})
FALSE = frozenset({"n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})
SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
WHOLE = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|[1-9][0-9]*|0)")
OLD_OCTAL = re.compile(r"0[0-7]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


class ScalarTag(StrEnum):
    """YAML's tags of scalars."""

    nothing = "tag:yaml.org,2002:null"
    switch = "tag:yaml.org,2002:bool"
    whole = "tag:yaml.org,2002:int"
    float = "tag:yaml.org,2002:float"
    text = "tag:yaml.org,2002:str"
    merge = "tag:yaml.org,2002:merge"


class ManifestLoader(yaml.SafeLoader):
    """PyYAML's loader with Kubernetes' reading of plain scalars."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Return the tag of a node that has none."""
        if kind is yaml.ScalarNode and implicit[0]:
            return str(kind_of(value))
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]

    def scan_to_next_token(self) -> None:
        """Skip spaces, line breaks and comments, and tabs too except at the beginning of a block's line."""
        super().scan_to_next_token()
        while self.peek() == "\t" and (self.flow_level or not self.allow_simple_key):
            self.forward()
            super().scan_to_next_token()

    def scan_flow_scalar(self, style: str) -> Any:
        """Return the token of a text in quotes, with each pair of surrogates as the one character that JSON means."""
        token = super().scan_flow_scalar(style)
        token.value = token.value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        return token


class ManifestDumper(yaml.SafeDumper):
    """PyYAML's dumper, which also puts texts in quotes that only Kubernetes reads as something else, such as 1e-3."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Return the tag that a node would have without one."""
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        if kind is yaml.ScalarNode and implicit[0] and tag == ScalarTag.text:
            return str(kind_of(value))
        return tag


def as_yaml(document: Any) -> str:
    """Return a document as YAML from which `read_document` and Kubernetes read the same data."""
    text: str = yaml.dump(document, Dumper=ManifestDumper, sort_keys=False, allow_unicode=True)
    return text


def kind_of(text: str) -> ScalarTag:
    """Return the kind of a plain scalar: one without quotes and without a tag."""
    kind, _ = _read(text)
    return kind


def value_of(tag: str, text: str) -> Any:
    """Return the value of a scalar with a tag, as JSON has it. Raises ValueError if the tag does not fit the text."""
    if tag not in (ScalarTag.nothing, ScalarTag.switch, ScalarTag.whole, ScalarTag.float):
        return text  # dates are text, too
    kind, value = _read(text)
    if tag != kind and (tag, kind) != (ScalarTag.float, ScalarTag.whole):
        raise ValueError(f"{tag} does not fit {kind}")
    return value


def _read(text: str) -> tuple[ScalarTag, Any]:
    """Return the kind and the value of a plain scalar. A number too large for a float is text."""
    if text in NOTHING:
        return ScalarTag.nothing, None
    if text in TRUE | FALSE:
        return ScalarTag.switch, text in TRUE
    if text == "<<":
        return ScalarTag.merge, text
    if SPECIAL.fullmatch(text):
        return ScalarTag.float, float(text.replace(".", ""))
    plain = text
    if text[0] in "+-0123456789":
        plain = text.replace("_", "")  # underscores may group digits
    if len(plain) > MOST_DIGITS:
        return ScalarTag.text, text
    if WHOLE.fullmatch(plain):
        number = _whole_number(plain)
        if LEAST_WHOLE <= number <= LARGEST_WHOLE:
            return ScalarTag.whole, number
        if number <= LARGEST_UNSIGNED and plain[0] not in "+-":
            return ScalarTag.whole, float(number)
    if FLOAT.fullmatch(plain) and math.isfinite(float(plain)):
        return ScalarTag.float, _as_json(float(plain))
    return ScalarTag.text, text


def _whole_number(plain: str) -> int:
    digits = plain.lstrip("+-")
    base = 0
    if OLD_OCTAL.fullmatch(digits):
        base = 8
    number = int(digits, base)
    if plain[0] == "-":
        return -number
    return number


def _as_json(number: float) -> int | float:
    if number.is_integer() and LEAST_WHOLE <= number <= LARGEST_WHOLE:
        return int(number)
    return number


# From here on: numbers of Python, which a keyword may have in place of the manifest's.


def plain_value(value: Any) -> Any:
    """Return a number or an array of NumPy, torch and the like as Python's own; anything else as it is."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    return value


def whole_if_it_is(value: Any) -> Any:
    """Return a float without a fraction as a whole number, which it is in JSON; anything else as it is."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def decimal_text(value: Any) -> Any:
    """Return a number as the manifest spells decimals, without rounding; anything else as it is."""
    number = value
    if isinstance(value, float):
        number = Decimal(float.__repr__(value))
    elif isinstance(value, int) and not isinstance(value, bool):
        number = Decimal(value)
    if not isinstance(number, Decimal) or not number.is_finite():
        return value
    text = f"{number:f}"
    if "." in text:
        text = text.rstrip("0").removesuffix(".")
    before, _, after = text.removeprefix("-").partition(".")
    if len(before) <= MOST_BEFORE_THE_POINT and len(after) <= MOST_AFTER_THE_POINT:
        return text
    digits, _, exponent = f"{number:e}".partition("e")
    if "." in digits:
        digits = digits.rstrip("0").removesuffix(".")
    return f"{digits}e{exponent}"
