"""What is wrong with a manifest and what would do: a fault for each of pydantic's errors.

The schema of a field says what a person may have meant: `learningRate.initial: 0,05` is "0.05", `entrypoint:
my_model.py:workload` is my_model:workload, `optimizer: Adam` is {type: Adam}. These are guesses, so a remedy that names
a value is tried before it is printed: in a copy of the manifest, the value leaves no fault at its field.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from itertools import islice
from typing import Any
from unicodedata import normalize

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel

from batchgrowth.choices import CHOICES
from batchgrowth.errors import Fault, redacted
from batchgrowth.manifest.documents import (
    FALSE,
    TRUE,
    Document,
    KeyPath,
    ScalarTag,
    decimal_text,
    dotted,
    job_schema,
    kind_of,
    printable,
    schema_at,
    without_nulls,
)
from batchgrowth.schema import (
    DECIMAL,
    ENTRYPOINT,
    JOB_NAME,
    MOUNT_PATH,
    NAMESPACE,
    OBJECT_NAME,
    QUANTITY,
    RULES_BROKEN,
    STORAGE_SIZE,
    VOLUME_NAME,
    WORDS,
    Schema,
)
from batchgrowth.spec import BatchGrowthJob

# --- What may have been meant ---

LONGEST_GUESS = 253
"""The most characters of a text that is worth a guess."""
LIKE_A_CHOICE = 0.7
"""The least likeness of a typo to the name that was meant, from 0 to 1: GPU is no typo for CPU."""
SHORTEST_BEGINNING = 3
"""The fewest characters of a name's beginning that stand for the name: min for minimum."""
_WHOLE = re.compile(r"[-+]?\d{1,19}")


def meant(value: Any, text: str, node: Schema) -> Iterator[Any]:
    """Yield what a value may have been meant to be, first itself if its type fits. `text` is the value as written."""
    kind = node.get("type")
    if kind == "string" or "x-kubernetes-int-or-string" in node:
        yield from _texts(text, node)
    elif kind == "integer":
        yield from _whole_numbers(value, text)
    elif kind == "boolean":
        if isinstance(value, bool):
            yield value
        elif text.strip() in TRUE:
            yield True
        elif text.strip() in FALSE:
            yield False
    elif kind == "array" and not isinstance(value, list):
        yield from ([each] for each in meant(value, text, node["items"]))
    elif kind == "object" and "properties" in node and not isinstance(value, dict | list):
        yield from _blocks(value, text, node)


def choice_with_example(path: KeyPath, name: str) -> dict[str, Any] | None:
    """Return the block at `path` that chooses entry `name`, with example settings; None if no such entry has any."""
    for registry in CHOICES:
        *parents, chooser = registry.field_path.split(".")
        if path == ("spec", *parents) and name in registry and registry[name].block is not None:
            return {chooser: name, registry[name].block_name: dict(registry[name].example)}
    return None


def close_name(name: str, known: list[str], likeness: float) -> str | None:
    """Return the known name that is closest to a given one, in snake_case or in another case too; None if none is.

    `likeness` is how much of two names must be alike, from 0 to 1.
    """
    folded = {_folded(each): each for each in known}
    begun = [each for each in folded if len(name) >= SHORTEST_BEGINNING and each.startswith(_folded(name))]
    if len(begun) == 1:
        return folded[begun[0]]
    close = get_close_matches(_folded(name), folded, n=1, cutoff=likeness)
    if not close:
        return None
    return folded[close[0]]


def _folded(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _texts(text: str, node: Schema) -> Iterator[str]:
    if len(text) > LONGEST_GUESS:
        return
    yield text
    if "enum" in node:
        close = close_name(text, [str(name) for name in node["enum"]], LIKE_A_CHOICE)
        if close is not None:
            yield close
        return
    usual = normalize("NFKC", text).strip()
    yield usual
    mends = _MENDS.get(node.get("pattern", ""))
    if mends is not None:
        yield from (mended[: node["maxLength"]] for mended in mends(usual))


def _whole_numbers(value: Any, text: str) -> Iterator[int]:
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, str):
        plain = text.replace(",", "").replace("_", "").replace(" ", "")
        if _WHOLE.fullmatch(plain):
            yield int(plain)


def _blocks(value: Any, text: str, node: Schema) -> Iterator[dict[str, Any]]:
    """Yield the block with the value in one of its fields, for each field; then with it in all required fields."""
    fields = node["properties"]
    scalars = {name: field for name, field in fields.items() if field.get("type") in ("string", "integer", "boolean")}
    for name, field in scalars.items():
        as_it_is = 1  # only names of choices are mended here: with more mending, too many fields fit
        guesses = islice(meant(value, text, field), None if "enum" in field else as_it_is)
        yield from ({name: each} for each in guesses)
    required = node.get("required", ())
    if len(required) > 1 and scalars.keys() >= set(required):
        each = {name: next(meant(value, text, fields[name]), None) for name in required}
        if None not in each.values():
            yield each


# How texts are mended, by the pattern that they should have.


def _decimals(text: str) -> Iterator[str]:
    plain = text.replace(" ", "").replace("_", "")
    for spelling in (plain, plain.replace(",", ".")):
        try:
            number = Decimal(spelling.removesuffix("%"))
        except InvalidOperation:
            continue
        if spelling.endswith("%"):
            number = number.scaleb(-2)
        yield str(decimal_text(number))


def _entrypoints(text: str) -> Iterator[str]:
    """Yield the path of a file as the name of a module, and a dot before the function as a colon."""
    module, _, function = text.removeprefix("./").removesuffix("()").partition(":")
    module = module.removesuffix(".py").replace("/", ".").replace("\\", ".").replace("-", "_")
    function = function.strip().replace("-", "_")
    if function:
        yield f"{module.strip()}:{function}"
        return
    before, _, last = module.rpartition(".")
    if before and not text.endswith(".py"):
        yield f"{before}:{last}"
    yield f"{module}:workload"


def _names(text: str) -> Iterator[str]:
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    yield name
    yield f"job-{name}"


def _amounts(text: str) -> Iterator[str]:
    plain = text.replace(" ", "").removesuffix("B").removesuffix("b")
    yield plain
    yield re.sub(r"[kmgtpe]i?$", lambda unit: unit[0].capitalize(), plain)


def _folders(text: str) -> Iterator[str]:
    yield "/" + re.sub(r"/+", "/", text).strip("/")


_MENDS: dict[str, Callable[[str], Iterator[str]]] = {
    DECIMAL: _decimals,
    ENTRYPOINT: _entrypoints,
    JOB_NAME: _names,
    MOUNT_PATH: _folders,
    NAMESPACE: _names,
    OBJECT_NAME: _names,
    QUANTITY: _amounts,
    STORAGE_SIZE: _amounts,
    VOLUME_NAME: _names,
}


def flow(value: Any) -> str:
    """Return a value as YAML's short form: {type: Adam}, with quotes around texts that YAML would read otherwise."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {flow(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(each) for each in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and (
        kind_of(value) is not ScalarTag.text or not re.fullmatch(r"[\w./-][\w./:-]*", value)
    ):
        return f'"{value}"'
    return str(value)


# --- Faults and their remedies ---

MOST_TRIALS = 200
"""The most values that are tried for one manifest; after that, its messages name no more values."""
LIKE_A_FIELD = 0.7
"""The least likeness of an unknown field's name to the name that was meant, from 0 to 1."""
EXAMPLES = ("0.05", "2", "0.5", "1", "0")
"""Decimals, of which each field of that type takes at least one."""


def validated(tree: Any) -> BatchGrowthJob:
    """Return the job that plain data describes, in the manifest's spelling. Raises pydantic's ValidationError."""
    return BatchGrowthJob.model_validate(without_nulls(tree, job_schema()), by_alias=True, by_name=False)


def faults_of(error: ValidationError, document: Document) -> Iterator[Fault]:
    """Yield a fault for each of pydantic's errors and each broken rule, in the order of the fields."""
    trials = Trials(document)
    for found in error.errors(include_url=False):
        path: KeyPath = found["loc"]
        if found["type"] == "too_short" and len(found["input"]) >= found["ctx"]["min_length"]:
            continue  # pydantic counts only the valid entries, and has already reported the others
        if found["type"] == RULES_BROKEN:
            for field, value, remedy in found["ctx"]["broken"]:
                at = (*path, *filter(None, field.split(".")))
                if schema_at(at).get("pattern") == ENTRYPOINT:
                    remedy = next((f"did you mean {guess}?" for guess in trials.guesses(at, value)), remedy)
                yield Fault(dotted(at), _given(at, value, document), remedy)
        elif found["type"] == "missing":
            yield Fault(dotted(path), "missing", "give " + trials.wanted(path))
        elif found["type"] == "extra_forbidden":
            yield Fault(dotted(path), "no such field", _remedy_of_unknown_field(path, document))
        else:
            given = _given(path, found["input"], document)
            yield Fault(dotted(path) or "manifest", given, _remedy(path, found["input"], document, trials))


def _given(path: KeyPath, value: Any, document: Document) -> str:
    """Return the value as the manifest spells it, shortened if long; text that looks like a password is removed."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list | tuple):
        kind = "a map" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(value)}"
    if isinstance(value, BaseModel):
        return "a block"
    text = redacted(spelled(path, value, document))
    if isinstance(value, str):
        text = f'"{text}"'
    return printable(text)


def spelled(path: KeyPath, value: Any, document: Document) -> str:
    """Return the text of a value: as the manifest has it, or else as Python writes it."""
    if path in document.written:
        return document.written[path]
    try:
        return str(value)
    except ValueError:  # a number of thousands of digits
        return "a number with thousands of digits"


@dataclass(slots=True)
class Trials:
    """Values that are tried in place of a manifest's faulty ones."""

    document: Document
    left: int = MOST_TRIALS

    def helps(self, path: KeyPath, value: Any) -> bool:
        """Return True if a value leaves no fault at its path or below; False once MOST_TRIALS values were tried."""
        if self.left == 0:
            return False
        self.left -= 1
        try:
            validated(_replaced(self.document.tree, path, value))
        except ValidationError as error:
            return not any(place[: len(path)] == path for place in _places(error))
        return True

    def guesses(self, path: KeyPath, value: Any) -> Iterator[Any]:
        """Yield what was probably meant by a value, each once, if it helps."""
        tried: list[Any] = []
        for guess in meant(value, spelled(path, value, self.document), schema_at(path)):
            if guess not in tried:
                tried.append(guess)
                if self.helps(path, guess):
                    yield guess

    def wanted(self, path: KeyPath) -> str:
        """Say what the value at a path must be, with an example that is valid there."""
        node = schema_at(path)
        text = wanted(node)
        if node.get("pattern") == DECIMAL:
            example = next((each for each in EXAMPLES if self.helps(path, each)), EXAMPLES[0])
            text = text.replace(EXAMPLES[0], example)
        return text


def _replaced(tree: Any, path: KeyPath, value: Any) -> Any:
    """Return a copy of the tree with another value at a path."""
    if not path:
        return value
    first, *rest = path
    copy: Any = list(tree) if isinstance(tree, list) else dict(tree or {})
    before = copy[first] if isinstance(first, int) else copy.get(first)
    copy[first] = _replaced(before, tuple(rest), value)
    return copy


def _places(error: ValidationError) -> Iterator[KeyPath]:
    """Yield the paths of pydantic's errors, and of the fields whose rules are broken."""
    for found in error.errors(include_url=False):
        if found["type"] == RULES_BROKEN:
            yield from ((*found["loc"], *filter(None, field.split("."))) for field, _, _ in found["ctx"]["broken"])
        else:
            yield found["loc"]


def _remedy(path: KeyPath, value: Any, document: Document, trials: Trials) -> str:
    """Return what would do in the place of a value: what was probably meant, if that helps, or what the field takes."""
    node = schema_at(path)
    if isinstance(value, dict | list) or value is None:
        return f"give {trials.wanted(path)}"
    text = spelled(path, value, document)
    guesses = list(islice(trials.guesses(path, value), 2))
    if node.get("type") != "object":
        guesses = guesses[:1]
    elif isinstance(value, str) and not guesses:
        guesses = [guess for guess in _by_example(path, value, node) if trials.helps(path, guess)]
    if (
        len(guesses) != 1 or len(node.get("enum", ())) == 1
    ):  # of two fields that a value fits, nobody knows which is meant
        return f"give {trials.wanted(path)}"
    [guess] = guesses
    if guess == text and not isinstance(value, str):
        kept = ", so that YAML keeps it as written" if path in document.written else ""
        return f'put it in quotes, "{printable(text)}"{kept}'
    if isinstance(value, str) and isinstance(guess, bool | int):
        return f"give {flow(guess)}, without quotes"
    if "enum" in node:
        return f"did you mean {guess}? Give {wanted(node)}"
    return f"did you mean {flow(guess)}?"


def _by_example(path: KeyPath, value: str, node: Schema) -> Iterator[dict[str, Any]]:
    """Yield the block that chooses what a word names, with settings, since some choices need settings."""
    for field in node.get("properties", {}).values():
        name = close_name(value, [str(each) for each in field.get("enum", ())], LIKE_A_CHOICE)
        block = choice_with_example(path, name) if name else None
        if block is not None:
            yield block


def _remedy_of_unknown_field(path: KeyPath, document: Document) -> str:
    """Return the remedy for an unknown field: the name that was probably meant, or all that there are."""
    *parents, last = path
    name = str(last)
    node = schema_at(tuple(parents))
    names = sorted(node.get("properties", ()))
    close = to_camel(name) if to_camel(name) in names else close_name(name, names, LIKE_A_FIELD)
    if close is None:
        return f"give one of {', '.join(names)}, or leave it out"
    siblings: Any = document.tree
    for part in parents:
        siblings = siblings[part]
    if siblings.get(close) is not None:
        return f"did you mean {close}? It is given already, so leave this one out"
    return f"did you mean {close}?"


def wanted(node: Schema) -> str:
    """Say what a value must be, derived from the schema that enforces it."""
    kind = node.get("type")
    if "enum" in node:
        names = ", ".join(map(str, node["enum"]))
        if len(node["enum"]) == 1:
            return names
        return f"one of {names}"
    if kind == "integer":
        return f"a whole number from {node['minimum']} to {node['maximum']}"
    if kind == "boolean":
        return "true or false"
    if kind == "array":
        return f"a list of {node.get('minItems', 0)} to {node['maxItems']} entries"
    if kind == "object" and "properties" in node:
        return "a block with " + ", ".join(node.get("required") or node["properties"])
    if kind == "object":
        return f"a map of at most {node['maxProperties']} entries"
    if "pattern" not in node and node.get("minLength"):
        return f"a string of {node['minLength']} to {node['maxLength']} characters"
    words = WORDS.get(node.get("pattern", ""), "a string")
    if node.get("pattern") == DECIMAL:
        return words
    return f"{words}, at most {node['maxLength']} characters"
