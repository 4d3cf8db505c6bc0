"""Write the pages that follow from others: `python docs/generate.py` renews the command reference,
the list of files and the notebook.

The command reference comes from the program's parsers, the list of files from the first sentence of
each, the notebook from the tutorial. With
`--record` the tutorial is run first (some minutes), and what it prints and draws is put into the
page: every block of output keeps its lines, with the numbers of this run, and `...` keeps standing
    for lines that are left out.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from nnunet_labelset.cli import VERBS, module_of

DOCS = Path(__file__).parent
COMMANDS = DOCS / "reference" / "commands.md"
FILES = DOCS / "reference" / "files.md"
TUTORIAL = DOCS / "tutorial.md"
NOTEBOOK = DOCS / "tutorial.ipynb"
ROOMS = ("nnunet_labelset", "trainers", "dataset_conversion")
PICTURES = DOCS / "images" / "tutorial"


def commands_page() -> str:
    """Every verb with its options, as its parser knows them."""
    parts = [
        "# Commands\n\n`nnunet_labelset VERB ...`. This page is generated from the program's own "
        "parsers.\n"
    ]
    for verb, summary in VERBS.items():
        parser = argparse.ArgumentParser(prog=f"nnunet_labelset {verb}", add_help=False)
        module_of(verb).configure(parser)
        if not summary.startswith("nnUNet"):
            summary = summary[0].upper() + summary[1:]
        parts.append(f"\n## {verb}\n\n{summary}.\n\n")
        parts.append(f"{_table(parser)}\n" if parser._actions else "No options.\n")
        if parser.epilog:
            parts.append(f"\n```text\n{parser.epilog.strip()}\n```\n")
    return "".join(parts)


def files_page() -> str:
    """Every file of every room, with the first sentence of its docstring."""
    parts = [
        "# Files\n\nEvery file of every room, in its own words. This page is generated from the "
        "docstrings; [architecture](../architecture.md) explains the rooms.\n"
    ]
    root = DOCS.parent
    paths = [path for room in ROOMS for path in (root / room).rglob("*.py")]
    folders = sorted({path.parent for path in paths if not path.is_relative_to(DOCS)})
    for folder in folders:
        rows = [
            f"| `{path.name}` | {_first_sentence(path)} |"
            for path in sorted(folder.glob("*.py"))
            if path.name != "__init__.py"
        ]
        if rows:
            title = folder.relative_to(root).as_posix()
            parts.append(f"\n## {title}\n\n| file | what it is |\n|---|---|\n")
            parts.append("\n".join(rows) + "\n")
    return "".join(parts)


def _first_sentence(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=\.) ", paragraph)[0].replace("|", "\\|")


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


def blocks(text: str) -> list[tuple[str, str]]:
    """The tutorial in pieces: its language and its text for a fenced block, "" for what is between
    them.
    """
    pieces = []
    for part in re.split(r"(```\w*\n.*?```\n)", text, flags=re.DOTALL):
        fence = re.fullmatch(r"```(\w*)\n(.*)```\n", part, flags=re.DOTALL)
        pieces.append((fence[1], fence[2]) if fence else ("", part))
    return pieces


def notebook() -> str:
    """The tutorial as a notebook: its Python as it is, its shell in cells that begin with all
    variables set so far.

    What the page shows as output is the output of the cell before it.
    """
    cells: list[dict[str, Any]] = []
    exports: list[str] = []
    for number, (language, source) in enumerate(blocks(TUTORIAL.read_text(encoding="utf-8"))):
        if language == "text":
            lines = source.splitlines(True)
            cells[-1]["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}]
        elif language not in ("bash", "python"):
            if source.strip():
                cells.append(_cell("markdown", source.strip(), number))
        else:
            if language == "bash":
                before = "".join(exports)
                exports += re.findall(r"^export .*\n", source, flags=re.MULTILINE)
                source = f"%%bash\nset -euo pipefail\n{before}{source}"
            elif not any(
                cell["cell_type"] == "code" and "import os" in "".join(cell["source"])
                for cell in cells
            ):
                names = re.findall(r"(\w+)=\"\$PWD/([^\"]*)\"", "".join(exports))
                paths = "".join(
                    f'os.environ["{name}"] = os.path.abspath("{path}")\n' for name, path in names
                )
                source = f"import os\n\n{paths}\n{source}"
            cells.append(_cell("code", source.strip(), number))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {
        "cells": cells,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def execute(text: str, folder: Path) -> list[str]:
    """Run a notebook in a folder; returns what every cell of code has printed, without the folder
    and the time.
    """
    import nbformat
    from nbclient import NotebookClient

    content = nbformat.reads(text, 4)
    NotebookClient(content, timeout=3600, resources={"metadata": {"path": str(folder)}}).execute()
    printed = [
        "".join(output["text"] for output in cell["outputs"] if output.get("name") == "stdout")
        for cell in content["cells"]
        if cell["cell_type"] == "code"
    ]
    times = re.compile(r"^\d{4}-\d\d-\d\d [\d:.]+: ", re.MULTILINE)
    return [times.sub("", text.replace(f"{folder.resolve()}/", "")) for text in printed]


def shape(line: str) -> str:
    """A line without its numbers, and without what depends on them: the width of columns, marks of
    the best.
    """
    line = re.sub(r"[-+]?\d[\d.,:]*(e-?\d+)?|\bnan\b", "#", re.sub(r"\\?\*|†|<", "", line))
    return " ".join(re.sub(r"-{2,}", "--", line).split())


def renewed(recorded: str, printed: str) -> str:
    """A block of output with the lines of a new run; lines that are no longer printed like this are
    an error.

    Lines between two `...` follow each other; of what is printed several times (once an epoch), the
    last time counts.
    """
    groups = [group.splitlines() for group in re.split(r"^\.\.\.\n", recorded, flags=re.MULTILINE)]
    lines = printed.rstrip().splitlines()
    shapes, end, shown = list(map(shape, lines)), len(lines), []
    for number, group in reversed(list(enumerate(groups))):
        wanted = list(map(shape, group))
        starts = (
            range(end - len(group), -1, -1)
            if number < len(groups) - 1 or not group
            else [end - len(group)]
        )
        if number == 0 and group:
            starts = [0]
        start = next(
            (
                start
                for start in starts
                if start >= 0 and shapes[start : start + len(group)] == wanted
            ),
            None,
        )
        if start is None or (number == 0 and len(groups) == 1 and len(group) != len(lines)):
            raise ValueError(
                f"the tutorial shows\n{chr(10).join(group)}\nwhich is not in\n{printed}"
            )
        shown.append("".join(f"{line.rstrip()}\n" for line in lines[start : start + len(group)]))
        end = start
    return "...\n".join(reversed(shown))


def outputs() -> list[str | None]:
    """What the tutorial shows after each of its cells of code; None where it shows nothing."""
    found: list[str | None] = []
    for language, text in blocks(TUTORIAL.read_text(encoding="utf-8")):
        if language in ("bash", "python"):
            found.append(None)
        elif language == "text":
            found[-1] = text
    return found


def record(folder: Path) -> None:
    """Run the tutorial in a folder, and put what it prints and draws into the page."""
    printed = execute(notebook(), folder)
    (folder / "printed.json").write_text(json.dumps(printed, indent=1))
    text = TUTORIAL.read_text(encoding="utf-8")
    for shown, now in zip(outputs(), printed, strict=True):
        if shown is not None:
            text = text.replace(f"```text\n{shown}```", f"```text\n{renewed(shown, now)}```")
    TUTORIAL.write_text(text, encoding="utf-8")
    for picture in sorted(PICTURES.glob("*.png")):
        if (
            folder / "tutorial" / picture.name
        ).is_file():  # the report is a page, photographed by hand
            shutil.copy(folder / "tutorial" / picture.name, picture)


def _cell(kind: str, source: str, number: int) -> dict[str, Any]:
    code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {
        "cell_type": kind,
        "id": f"cell-{number}",
        "metadata": {},
        "source": source.splitlines(True),
        **code,
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        record(Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp()))
    COMMANDS.write_text(commands_page(), encoding="utf-8")
    FILES.write_text(files_page(), encoding="utf-8")
    NOTEBOOK.write_text(notebook(), encoding="utf-8")
