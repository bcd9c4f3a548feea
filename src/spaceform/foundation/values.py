"""Frozen, validated values, and JSON that fits a schema. Errors are one sentence."""

import spaceform.foundation.lab  # noqa: F401 (names the extra where it is missing)

import reprlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from spaceform.foundation.messages import no_option, unknown

Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Width = Annotated[int, Field(gt=0, le=2**20)]
"""The width of a layer. A wider layer is a mistake, and refused before it fills the memory."""


class Value(BaseModel):
    """Base class: fields cannot be changed; unknown keys and numbers that are not finite are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


_Model = TypeVar("_Model", bound=BaseModel)


def validated(kind: type[_Model], values: Any, what: str = "") -> _Model:
    """The value, or a ValueError with one sentence; `what` is the key under which `values` stand."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ValueError(_sentence(error, kind, what)) from None


def tagged(kinds: Mapping[str, type[_Model]], default: type[_Model], values: Any, what: str) -> _Model:
    """The value of the kind that the key `name` chooses, so that options of another kind are refused."""
    if isinstance(values, BaseModel):
        values = values.model_dump()
    if not isinstance(values, Mapping):
        raise ValueError(f"{what} must be a table, got {values!r}")
    name = values.get("name")
    kind = kinds.get(name, default) if isinstance(name, str) else default
    for key in values:
        if key not in kind.model_fields:
            raise ValueError(no_option(what, _tag(kind, name), str(key), options_of(kind)))
    return validated(kind, values, what)


def parsed(text: str | bytes, schema: Any) -> Any:
    """JSON that fits the schema, or a ValueError that says where it does not."""
    try:
        return TypeAdapter(schema).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            deep = "recursion limit" in first["msg"]
            raise ValueError("it is nested too deep" if deep else first["msg"]) from None
        key = ".".join(str(part) for part in first["loc"])
        missing = f"the key {key!r} is missing"
        wrong = missing if first["type"] == "missing" else f"{key or 'it'} {said(first)}"
        raise ValueError(wrong) from None


def options_of(kind: type[BaseModel]) -> list[str]:
    """The keys of a tagged value, without `name`."""
    return [key for key in kind.model_fields if key != "name"]


def said(error: Any) -> str:
    """What is wrong with a value, as words that follow its key."""
    wrong = error["msg"].replace("Input should", "must", 1).removesuffix(".")
    return f"{wrong}, got {_short(error['input'])}"


def _short(value: Any) -> str:
    """A value as text, cut if it is long or deep."""
    writer = reprlib.Repr()
    writer.maxstring = writer.maxother = 60
    text = writer.repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _tag(kind: type[BaseModel], name: Any) -> str:
    return name if isinstance(name, str) else str(kind.model_fields["name"].default)


def _sentence(error: ValidationError, kind: type[BaseModel], what: str) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in (*filter(None, [what]), *first["loc"]))
    match first["type"]:
        case "extra_forbidden":
            return unknown("key", key, keys(kind, what))
        case "missing":
            return f"the key {key!r} is missing"
        case "value_error":
            return str(first["ctx"]["error"])
        case _:
            return f"{key} {said(first)}" if key else said(first)


def keys(kind: type[BaseModel], prefix: str = "") -> Iterable[str]:
    """The dotted keys of a value and of the values inside it."""
    start = f"{prefix}." if prefix else ""
    for name, field in kind.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from keys(inner, start + name)
        else:
            yield start + name
