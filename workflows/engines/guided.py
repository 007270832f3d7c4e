"""Guided decoding: which JSON schemas a mask can enforce, and the masks of the transformers engine.

xgrammar makes the masks, in vLLM too (workflows/engines/vllm_engine.py). It ignores keywords that it does not know, so
a schema with one is refused. Its time to compile a schema is quadratic in the optional properties of an object, cubic
in the texts with a length, and grows with nested repetitions in patterns; the limits below keep it within seconds.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from ouroboros.pipeline.store.errors import ConfigError, DataError

CHARACTERS = 1 << 15  # of a schema
LEVELS = 50  # of objects and lists within one another, also in annotations; vLLM takes 64
PROPERTIES = 200  # of one object
LENGTHS = 32  # texts with minLength or maxLength
REPETITIONS = 2000  # in all patterns, those of groups multiplied with those in them

ANNOTATIONS = {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly",
               "writeOnly", "discriminator", "$defs", "definitions"}
ALONE = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"}  # xgrammar ignores other keywords next to one of them
KNOWN = {"type", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems",
         "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
BOUNDS = {"minLength", "maxLength"}
IMPLY_TYPE = {"type", "properties", "required", "additionalProperties", "items"}  # others need a type
FORMATS = {"email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri",
           "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"}
MAPS, LISTS, SINGLE = ("properties", "$defs", "definitions"), ("anyOf", "oneOf", "allOf", "prefixItems"), (
    "items", "additionalProperties")  # keywords whose values hold schemas
COUNT = re.compile(r"(\)?)\{(\d*),?(\d*)\}")


def check_of(engine_type: str) -> Callable[[str], None]:
    """`check`, or nothing where a server of OpenAI's interface decides what it can enforce."""
    return (lambda text: None) if engine_type == "openai" else check


@lru_cache(maxsize=256)
def check(text: str) -> None:
    """Raises DataError for an invalid JSON schema, and for one that the mask cannot enforce in bounded time."""
    from jsonschema import Draft202012Validator, SchemaError

    if len(text) > CHARACTERS:
        raise _refused(f"it has {len(text)} characters; needed at most {CHARACTERS}")
    schema = json.loads(text)
    if _levels(schema) > LEVELS:
        raise _refused(f"it is nested deeper than {LEVELS} levels")
    schemas = list(_within(schema))
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise _refused(f"{error.json_path.removeprefix('$.')}: {error.message[:200]}") from error
    for one in schemas:
        if isinstance(one, dict) and (reason := _unenforced(one)):
            raise _refused(reason)
    if (lengths := sum(isinstance(one, dict) and not one.keys().isdisjoint(BOUNDS) for one in schemas)) > LENGTHS:
        raise _refused(f"{lengths} texts have a minLength or maxLength; needed at most {LENGTHS}")
    patterns = [one["pattern"] for one in schemas if isinstance(one, dict) and "pattern" in one]
    if sum(map(_repetitions, patterns)) > REPETITIONS:
        raise _refused(f"its patterns repeat more than {REPETITIONS} times")
    _compile(text)


def _refused(reason: str) -> DataError:
    return DataError(f"the JSON schema cannot be enforced: {reason}.")


def _levels(value: Any) -> int:
    """Levels of nested objects and lists."""
    levels, inner = 0, [value]
    while inner := [one for one in inner if isinstance(one, (dict, list))]:
        levels += 1
        inner = [part for one in inner for part in (one.values() if isinstance(one, dict) else one)]
    return levels


def _within(schema: Any) -> Iterator[Any]:
    """A schema and those in it."""
    yield schema
    for key, value in schema.items() if isinstance(schema, dict) else ():
        inner = (value.values() if key in MAPS and isinstance(value, dict) else
                 value if key in LISTS and isinstance(value, list) else [value] if key in SINGLE else ())
        for one in inner:
            yield from _within(one)


def _unenforced(schema: dict) -> str | None:
    """What of a valid schema, without those in it, a mask would ignore."""
    from jsonschema import Draft202012Validator

    keywords = schema.keys() - ANNOTATIONS
    alone, data = keywords & ALONE, [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]
    properties = schema.get("properties", {})
    if unknown := keywords - ALONE - KNOWN:
        return f"the keyword {min(unknown)} is not supported"
    if (alone and len(keywords - {"type"} if data else keywords) > 1) or len(schema.get("allOf", ())) > 1:
        return f"{min(alone)} is combined with other keywords"
    if not all(Draft202012Validator({"type": schema["type"]}).is_valid(one) for one in data if "type" in schema):
        return "a value of enum or const is not of the type"
    if ignored := keywords & KNOWN - IMPLY_TYPE if "type" not in schema else ():
        return f"{min(ignored)} needs a type with it"
    if not schema.get("$ref", "#/$defs/").startswith(("#/$defs/", "#/definitions/")):
        return f"the $ref {schema['$ref']} is not to $defs"
    if any(isinstance(one, (dict, list)) for one in data):
        return "enum and const may hold texts, numbers, booleans and null"
    if len(properties) > PROPERTIES:
        return f"an object has {len(properties)} properties; needed at most {PROPERTIES}"
    if missing := sorted({*schema.get("required", ())} - properties.keys()):
        return f"the required {missing[0]} is not among the properties"
    if {"pattern", "format"} & keywords and BOUNDS & keywords:
        return "pattern or format is combined with a length"
    if schema.get("format", "uuid") not in FORMATS:
        return f"the format {schema['format']} is not supported"
    return None


def _repetitions(pattern: str) -> int:
    """An upper bound of the copies that counted repetitions make: {n} of groups multiply what they may contain."""
    counts = [(bool(group), max(int(low or 0), int(high or 0))) for group, low, high in COUNT.findall(pattern)]
    return max(1, sum(n for group, n in counts if not group)) * math.prod(max(1, n) for group, n in counts if group)


@lru_cache(maxsize=1)
def _ascii_compiler():
    xgrammar = _xgrammar()
    letters = [chr(code) for code in range(32, 127)]
    return xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(["<end>", *letters], stop_token_ids=[0]), max_threads=1,
                                    cache_enabled=False)


def _compile(text: str) -> None:
    """Compiles a schema for a small vocabulary. Raises DataError where that fails, or where no text satisfies it."""
    xgrammar = _xgrammar()
    try:
        matcher = xgrammar.GrammarMatcher(_ascii_compiler().compile_json_schema(text, any_whitespace=False))
    except RuntimeError as error:  # its words follow time and place in its source
        raise _refused(str(error).split(": ", 1)[-1].strip()[:200]) from error
    mask = xgrammar.allocate_token_bitmask(1, 96)
    matcher.fill_next_token_bitmask(mask, 0)
    if not mask.any():
        raise _refused("no text satisfies it")


def _xgrammar():
    try:
        import xgrammar
    except ImportError as error:
        raise ConfigError("response_format, a forced tool_choice and a structured judge need xgrammar, which comes "
                          "with vLLM: pip install xgrammar") from error
    return xgrammar


class Masks:
    """The masks of one model's replies."""

    def __init__(self, tokenizer, size: int, ends: list[int]):
        """size: of the logits. ends: tokens that end a reply, allowed when the JSON is complete."""
        xgrammar = _xgrammar()
        vocabulary = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size, stop_token_ids=ends)
        self._compiler = xgrammar.GrammarCompiler(vocabulary)

    def of(self, schema: str) -> Callable:
        """The mask of one reply, called for each token: (the last one [1, 1], logits [1, V]) -> masked logits."""
        from xgrammar.contrib.hf import LogitsProcessor

        return LogitsProcessor(self._compiler.compile_json_schema(schema, any_whitespace=False))
