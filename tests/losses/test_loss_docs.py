"""The snippets of the documentation run, and what their comments say is true."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError

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


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("label_sets"),
        lambda d: d["label_sets"]["cases"].update(c="atlsa"),
        lambda d: d["label_sets"]["protocols"]["basic"].update(ignore=["brain_stem"]),
        lambda d: d["label_sets"]["protocols"]["basic"].update(cortx=["cortex"]),
        lambda d: d["label_sets"]["protocols"]["basic"].update(ignore=[]),
        lambda d: d.update(labels={"background": 0, "brain": [1, 2]}),
    ],
)
def test_messages(change):
    """The messages in the table are those of the code."""
    dataset_json = json.loads(snippets("contract.md", "json")[0])
    change(dataset_json)
    with pytest.raises(LabelSetError) as error:
        Contract.from_dataset_json(dataset_json)
    page = (DOCS / "contract.md").read_text("utf-8")
    assert str(error.value)[:80] in page
