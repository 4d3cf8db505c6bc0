"""Write the pages that follow from others: `python docs/generate.py` renews the command reference and the notebook.

The command reference comes from the program's parsers, the notebook from the tutorial.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from nnunet_labelset.cli import VERBS, module_of

DOCS = Path(__file__).parent
COMMANDS, TUTORIAL, NOTEBOOK = DOCS / "reference" / "commands.md", DOCS / "tutorial.md", DOCS / "tutorial.ipynb"


def commands_page() -> str:
    """Every verb with its options, as its parser knows them."""
    parts = ["# Commands\n\n`nnunet_labelset VERB ...`. This page is generated from the program's own parsers.\n"]
    for verb, summary in VERBS.items():
        parser = argparse.ArgumentParser(prog=f"nnunet_labelset {verb}", add_help=False)
        module_of(verb).configure(parser)
        parts.append(f"\n## {verb}\n\n{summary[0].upper()}{summary[1:]}.\n\n")
        parts.append(f"{_table(parser)}\n" if parser._actions else "No options.\n")
        if parser.epilog:
            parts.append(f"\n```text\n{parser.epilog.strip()}\n```\n")
    return "".join(parts)


def _table(parser: argparse.ArgumentParser) -> str:
    formatter = parser._get_formatter()
    rows = ["| option | meaning |", "|---|---|"]
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        words = formatter._format_action_invocation(action).replace("|", "\\|")
        meaning = formatter._expand_help(action).replace("|", "\\|") if action.help else ""
        if "-np" in action.option_strings:  # its default is a fact about a machine
            meaning = re.sub(r"default:? \d+", "default: all cores, at most 8", meaning)
        required = " **required**" if action.required and action.option_strings else ""
        rows.append(f"| `{words}` | {meaning}{required} |")
    return "\n".join(rows)


def notebook() -> str:
    """The tutorial as a notebook: its Python as it is, its shell in cells that begin with all variables set so far."""
    cells, exports = [], []
    text = TUTORIAL.read_text(encoding="utf-8")
    for number, part in enumerate(re.split(r"(```\w*\n.*?```\n)", text, flags=re.DOTALL)):
        fence = re.fullmatch(r"```(\w*)\n(.*)```\n", part, flags=re.DOTALL)
        if fence is None or fence[1] not in ("bash", "python"):
            if part.strip():
                cells.append(_cell("markdown", part.strip(), number))
            continue
        source = fence[2]
        if fence[1] == "bash":
            before = "".join(exports)
            exports += re.findall(r"^export .*\n", source, flags=re.MULTILINE)
            source = f"%%bash\nset -euo pipefail\n{before}{source}"
        elif exports:
            names = re.findall(r"(\w+)=\"\$PWD/([^\"]*)\"", "".join(exports))
            paths = "".join(f'os.environ["{name}"] = os.path.abspath("{path}")\n' for name, path in names)
            source = f"import os\n\n{paths}\n{source}"
        cells.append(_cell("code", source.strip(), number))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _cell(kind: str, source: str, number: int) -> dict[str, Any]:
    code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source.splitlines(True), **code}


if __name__ == "__main__":
    COMMANDS.write_text(commands_page(), encoding="utf-8")
    NOTEBOOK.write_text(notebook(), encoding="utf-8")
