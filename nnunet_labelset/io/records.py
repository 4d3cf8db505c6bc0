"""Dataclasses to JSON and back; what does not fit is named with its place, so that nobody checks it
again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from nnunet_labelset.errors import LabelSetError

Record = TypeVar("Record")
# Metadata of a field whose entries stand in JSON beside the other fields, not in an object of their
# own.
FLAT = {"flat": True}
WORDS = {
    str: "a text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def to_json(record: Any) -> Any:
    """Dataclasses become objects, tuples and sets lists; what JSON knows stays."""
    if dataclasses.is_dataclass(record):
        content: dict[str, Any] = {}
        for field in dataclasses.fields(record):
            value = to_json(getattr(record, field.name))
            content.update(value if field.metadata.get("flat") else {field.name: value})
        return content
    if isinstance(record, Mapping):
        return {str(key): to_json(value) for key, value in record.items()}
    if isinstance(record, (list, tuple)):
        return [to_json(value) for value in record]
    if isinstance(record, frozenset):
        return sorted(record)
    return record.value if isinstance(record, Enum) else record


def from_json(kind: type[Record], content: Any, where: str) -> Record:
    """The dataclass that `to_json` wrote; `where` begins the message about what does not fit.
    Unknown keys are left.
    """
    return _read(kind, content, where)


def _read(kind: Any, content: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _read_record(kind, content, where)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:  # `X | None`
        return None if content is None else _read(arguments[0], content, where)
    if origin is tuple:
        return _read_tuple(arguments[0], _expect(list, content, where), where)
    if origin is dict:
        return _read_table(arguments[1], _expect(dict, content, where), where)
    if kind is float and _is_exact_number(content):
        return float(content)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _read_word(kind, content, where)
    return _expect(kind, content, where)


def _is_exact_number(content: Any) -> bool:
    """Tell whether this is an integer that a float can hold."""
    return isinstance(content, int) and not isinstance(content, bool) and abs(content) < 2**53


def _read_tuple(kind: Any, entries: list[Any], where: str) -> tuple[Any, ...]:
    return tuple(_read(kind, entry, f"{where}[{number}]") for number, entry in enumerate(entries))


def _read_table(kind: Any, entries: dict[str, Any], where: str) -> dict[str, Any]:
    return {key: _read(kind, entry, _inside(where, key)) for key, entry in entries.items()}


def _read_word(kind: type[Enum], content: Any, where: str) -> Enum:
    try:
        return kind(content)
    except ValueError:
        words = ", ".join(str(word.value) for word in kind)
        raise LabelSetError(
            f"{where.rstrip(':')}: expected one of {words}, but got {str(content)[:40]!r}"
        ) from None


def _inside(where: str, name: str) -> str:
    return f"{where} {name}" if where.endswith(":") else f"{where}.{name}"


def _read_record(kind: Any, content: Any, where: str) -> Any:
    entries = _expect(dict, content, where)
    hints, flat_field = _fields(kind)
    for name in hints:
        if name != flat_field and name not in entries:
            raise LabelSetError(f"{where.rstrip(':')}: '{name}' is missing")
    found = {
        name: _read(hint, entries[name], _inside(where, name))
        for name, hint in hints.items()
        if name != flat_field
    }
    if flat_field:
        rest = {key: entry for key, entry in entries.items() if key not in hints}
        found[flat_field] = _read(hints[flat_field], rest, where)
    return kind(**found)


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], str | None]:
    hints, fields = get_type_hints(kind), dataclasses.fields(kind)
    flat_field = next((field.name for field in fields if field.metadata.get("flat")), None)
    return {field.name: hints[field.name] for field in fields}, flat_field


def _expect(kind: Any, content: Any, where: str) -> Any:
    good = isinstance(content, kind) and (kind is bool or not isinstance(content, bool))
    if not good or (kind is float and not math.isfinite(content)):
        shown = repr(content)
        raise LabelSetError(
            f"{where.rstrip(':')}: expected {WORDS[kind]}, but got "
            f"{shown[:40]}{'...' if len(shown) > 40 else ''}"
        )
    return content
