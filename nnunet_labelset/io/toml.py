"""Values of TOML tables, checked; errors say where they stand."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.io.files import read_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Rule = TypeVar("Rule", bound=Enum)


def read_toml(path: Path) -> dict[str, Any]:
    content = read_bytes(path)
    try:
        return tomllib.loads(content.decode("utf-8"))
    except RecursionError:
        raise LabelSetError(
            f"{path}: not readable as TOML: too many brackets inside brackets"
        ) from None
    except ValueError as error:  # not UTF-8, not TOML, a number of thousands of digits
        raise LabelSetError(f"{path}: not readable as TOML: {error}") from None


def check_keys(table: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise LabelSetError(f"{where}: unknown key '{key}'{did_you_mean(key, sorted(known))}")


def get_table(table: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    value = table.get(key)
    if not isinstance(value, dict) or not value:
        raise LabelSetError(
            f"{where}: {key}: expected a table [{where.rpartition(' ')[2]}.{key}], but got "
            f"{value!r}"
        )
    return value


def get_choice(table: Mapping[str, Any], key: str, where: str, choices: tuple[str, ...]) -> str:
    """One of the choices, by default the first."""
    value = table.get(key, choices[0])
    if value not in choices:
        raise LabelSetError(
            f"{where}: {key}: expected {' or '.join(map(repr, choices))}, but got {value!r}"
        )
    return value


def get_rule(table: Mapping[str, Any], key: str, where: str, rules: type[Rule]) -> Rule:
    """One of the rules, by default the first."""
    return rules(get_choice(table, key, where, tuple(rule.value for rule in rules)))


def get_regex(table: Mapping[str, Any], key: str, where: str, default: str) -> str:
    regex = get_text(table, key, where, default)
    try:
        named = re.compile(regex).groupindex
        re.compile(f"(?P<case>{'' if named else regex})")  # as it will be used
    except (re.error, RecursionError, OverflowError) as error:
        raise LabelSetError(f"{where}: {key}: not a regular expression: {error}") from None
    if named:
        raise LabelSetError(
            f"{where}: {key}: named groups such as '{next(iter(named))}' cannot be used here: "
            "(?:...)"
        )
    return regex


def get_text(table: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise LabelSetError(f"{where}: {key}: expected a text, but got {value!r}")
    return value


def get_flag(table: Mapping[str, Any], key: str, where: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise LabelSetError(f"{where}: {key}: expected true or false, but got {value!r}")
    return value


def get_texts(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = table.get(key)
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not value or not all(isinstance(text, str) for text in value):
        raise LabelSetError(
            f"{where}: {key}: expected a text or a list of texts, but got {value!r}"
        )
    return tuple(value)
