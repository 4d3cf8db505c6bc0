"""The snippets of the documentation run, and what their comments say is true."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch

DOCS = Path(__file__).parents[2] / "docs"


def snippets(page: str, language: str) -> list[str]:
    found = re.findall(
        rf"^```{language}\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found
    return found


def test_losses(capsys):
    torch.manual_seed(0)
    scope: dict = {}
    for code in snippets("losses.md", "python"):
        exec(code, scope)
    assert scope["logits"].grad.any()
    assert scope["value"] > 0
    assert "have losses 0.631359 and 0.632303" in capsys.readouterr().out


def test_contract():
    scope: dict = {"dataset_json": json.loads(snippets("contract.md", "json")[0])}
    compared = 0
    for line in "".join(snippets("contract.md", "python")).splitlines():
        code, _, comment = line.partition("  # ")
        if comment:
            expected = re.match(r"True|\(.*?\)|\{.*\}", comment).group()
            assert eval(code, scope) == eval(expected), line
            compared += 1
        else:
            exec(code, scope)
    assert compared == 5
