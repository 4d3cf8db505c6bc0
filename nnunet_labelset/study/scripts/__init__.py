"""Bash scripts of a study: a fixed body, in which one line is replaced by quoted settings.

The bodies hold no placeholders, so what is tested is what every user gets.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files

Setting = str | int | Sequence[str | int]
MARK = "# (settings)\n"


def assignments(settings: Mapping[str, Setting]) -> str:
    """Bash assignments of strings, numbers and arrays, quoted for the shell; variables of nnU-Net
    are exported.
    """
    lines = []
    for name, value in settings.items():
        if isinstance(value, (str, int)):
            text = shlex.quote(str(value))
        else:
            text = "(" + " ".join(shlex.quote(str(item)) for item in value) + ")"
        lines.append(f"{'export ' if name.startswith('nnUNet_') else ''}{name}={text}")
    return "\n".join(lines) + "\n"


def script(name: str, settings: Mapping[str, Setting], command: str) -> str:
    """The text of a script with its settings; only those that its body names, so that shellcheck
    finds none unused.
    """
    body = files(__name__).joinpath(name).read_text(encoding="utf-8")
    used = {
        key: value for key, value in settings.items() if re.search(rf"\$(\{{[#!]?)?{key}\b", body)
    }
    # A line break in a name must not end the comment.
    return body.replace(MARK, f"# Written by: {' '.join(command.split())}\n{assignments(used)}")
