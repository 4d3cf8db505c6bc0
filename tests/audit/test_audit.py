"""`audit`: planted faults are found in generated volumes, with the right reason; the table that the
page saves is one that `annotate` takes.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from nnunet_labelset.audit.evidence import gather
from nnunet_labelset.audit.findings import Reason, find
from nnunet_labelset.audit.page import CaseRow, DecisionPage, State, decision_page
from nnunet_labelset.audit.pictures import Shown, draw_sprites
from nnunet_labelset.cli import main
from nnunet_labelset.contract import Contract, Protocol
from nnunet_labelset.datasets.annotate.declaration import Declaration, declaration_of
from nnunet_labelset.datasets.verify.check import verify
from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.training.sigmoid import one_region_per_label
from tests.helpers import audited
from tests.helpers.browser import CHROMIUM, press
from tests.helpers.conversion import slabs, write_nnunet
from tests.helpers.volumes import read_array, write_volume

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.chdir(tmp_path)
    return audited.write(tmp_path)


def audit(*arguments: object) -> int:
    return main(["audit", "-d", "44", "-np", "1", *map(str, arguments)])


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def page_data(page: Path) -> dict:
    found = re.search(r'id="decide-data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found
    return json.loads(found[1])


def test_every_planted_fault_is_listed_with_its_reason(raw: Path, tmp_path: Path) -> None:
    before = (raw / "dataset.json").read_bytes()
    assert audit("-o", tmp_path / "out") == 0
    listed = {
        row["case"]: (tuple(row["labels"].split(";")), row["why"])
        for row in rows(tmp_path / "out" / "audit.csv")
        if row["why"] != Reason.GAP.value
    }
    assert listed == audited.FAULTS
    assert (raw / "dataset.json").read_bytes() == before


def test_a_gap_is_information_and_stands_last(raw: Path, tmp_path: Path) -> None:
    assert audit("-o", tmp_path / "out", "--no-page") == 0
    last = rows(tmp_path / "out" / "audit.csv")[-1]
    assert (last["case"], last["labels"]) == (audited.WITHOUT_LIVER, "liver")
    assert last["why"] == Reason.GAP.value
    assert not (tmp_path / "out" / "audit.html").exists()


def test_predictions_without_probabilities_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    audited.write(tmp_path, npz=False)
    assert audit("-o", tmp_path / "out", "--no-page") == 0
    listed = rows(tmp_path / "out" / "audit.csv")
    assert {row["case"] for row in listed} >= set(audited.FAULTS)
    assert {row["confidence"] for row in listed} == {""}
    assert "--npz" in capsys.readouterr().out


def test_case_that_its_fold_trained_on_is_not_judged(raw: Path, tmp_path: Path, capsys) -> None:
    splits = tmp_path / "nnUNet_preprocessed" / audited.NAME / "splits_final.json"
    content = json.loads(splits.read_text())
    content[0]["train"].append("case_00")
    splits.write_text(json.dumps(content))
    assert audit("-o", tmp_path / "out", "--no-page") == 0
    assert "case_00" not in {row["case"] for row in rows(tmp_path / "out" / "audit.csv")}
    assert "case_00" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spoil", "facts"),
    [
        ("shape", ["case_05", "--npz"]),
        ("broken", ["case_05.npz"]),
        ("nan", ["case_05.npz", "NaN"]),
        ("labels", ["labels"]),
        ("value", ["case_05", "7"]),
        ("none", ["validation"]),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    raw: Path, tmp_path: Path, capsys, spoil: str, facts: list[str]
) -> None:
    model = tmp_path / "nnUNet_results" / audited.NAME / audited.MODEL
    validation = model / "fold_0" / "validation"
    if spoil == "shape":
        small = np.ones((4, 2, 2, 2), np.float16)
        np.savez_compressed(validation / "case_05.npz", probabilities=small)
    elif spoil == "nan":
        nothing = np.full((4, *audited.SHAPE), np.nan, np.float16)
        np.savez_compressed(validation / "case_05.npz", probabilities=nothing)
    elif spoil == "labels":
        write_json(model / "dataset.json", {"labels": ["background", "liver"]})
    elif spoil == "broken":
        (validation / "case_05.npz").write_bytes(b"PK")
    elif spoil == "value":
        write_volume(raw / "labelsTr" / "case_05.nii.gz", np.full(audited.SHAPE, 7, np.uint8))
    else:
        for path in model.glob("fold_*/validation/*.nii.gz"):
            path.unlink()
    assert audit("-o", tmp_path / "out") == 1
    message = capsys.readouterr().err
    assert len(message.strip().splitlines()) == 1
    assert all(fact in message for fact in facts)
    assert not (tmp_path / "out").exists()


def test_an_earlier_audit_is_not_replaced_unasked(raw: Path, tmp_path: Path, capsys) -> None:
    assert audit("-o", tmp_path / "out", "--no-page") == 0
    assert audit("-o", tmp_path / "out", "--no-page") == 1
    assert "--overwrite" in capsys.readouterr().err
    assert audit("-o", tmp_path / "out", "--no-page", "--overwrite") == 0


def test_page_fetches_nothing_and_escapes_names(raw: Path, tmp_path: Path) -> None:
    for name in ("imagesTr/case_13_0000", "labelsTr/case_13"):
        old = raw / f"{name}.nii.gz"
        old.rename(raw / f"{name.replace('case_13', '<img src=x onerror=alert(1)>')}.nii.gz")
    content = read_json(raw / "dataset.json")
    content["labels"] = {"background": 0, "</script><b>": 1, "kidney_left": 2, "kidney_right": 3}
    del content["label_sets"]
    write_json(raw / "dataset.json", content)
    assert main(["annotate", "-d", "44", "--suggest", "--page", "-np", "1", "-o", "t.csv"]) == 0
    text = (tmp_path / "t.html").read_text()
    assert "<img src=x" not in text
    assert "</script><b>" not in text
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)
    data = page_data(tmp_path / "t.html")
    assert "<img src=x onerror=alert(1)>" in [case["name"] for case in data["cases"]]
    if CHROMIUM is not None:
        told = press(tmp_path / "t.html", ["s"], tmp_path)
        assert (told["alerts"], told["errors"], told["fetched"]) == (0, [], [])
        assert "<img src=x onerror=alert(1)>" in told["files"][0]


@needs_browser
def test_decisions_by_keyboard_become_a_table_that_annotate_takes(
    raw: Path, tmp_path: Path
) -> None:
    assert audit("-o", tmp_path / "out") == 0
    page = tmp_path / "out" / "audit.html"
    findings = page_data(page)["findings"]
    keys = []
    for finding in findings:
        keys += ["x" if finding["isFault"] else "f", "n"]
    told = press(page, [*keys, "s"], tmp_path)
    assert (told["errors"], told["fetched"]) == ([], [])
    (tmp_path / "decided.csv").write_text(told["files"][0])
    arguments = ["annotate", "-d", "44", "--annotated", "decided.csv", "--add", "-np", "1"]
    assert main(arguments) == 0
    contract = Contract.from_dataset_json(read_json(raw / "dataset.json"))
    for case in audited.CASES:
        wrong = set(audited.FAULTS[case][0]) if case in audited.FAULTS else set()
        wrong |= {"liver"} if case == audited.WITHOUT_LIVER else set()
        annotated = set(contract.annotated(case)) - {"background"}
        assert annotated == set(audited.LABELS) - {"background"} - wrong
    assert verify(raw)[0] == []


@needs_browser
def test_filter_shows_what_is_absent_here_and_present_elsewhere(raw: Path, tmp_path: Path) -> None:
    assert main(["annotate", "-d", "44", "--suggest", "--page", "-np", "1", "-o", "t.csv"]) == 0
    told = press(tmp_path / "t.html", ["#show=absent", "#share=80", "n"], tmp_path)
    assert told["rows"] == 2
    assert told["focus"].startswith("case_14, liver") or told["focus"].startswith("case_00, liver")


@needs_browser
def test_case_names_with_quotes_blanks_and_formulas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.chdir(tmp_path)
    names = ["Größe, äöü ß", 'He said "hi"', "=SUM(A1)", "'-minus", "+1", "a; b", "O'Brien", "001"]
    labels = {"background": 0, "Leber": 1, '"rechte" Niere': 2}
    raw = write_nnunet(
        tmp_path / "nnUNet_raw", "Dataset007_Names", labels, {name: slabs(1, 2) for name in names}
    )
    assert main(["annotate", "-d", "7", "--suggest", "--page", "-np", "1", "-o", "t.csv"]) == 0
    told = press(tmp_path / "t.html", ["x", "s"], tmp_path)
    assert told["errors"] == []
    (tmp_path / "t.csv").write_text(told["files"][0])
    assert main(["annotate", "-d", "7", "--annotated", "t.csv", "-np", "1"]) == 0
    contract = Contract.from_dataset_json(read_json(raw / "dataset.json"))
    assert set(contract.cases) == set(names)
    incomplete = [name for name in names if not contract.is_fully_annotated(name)]
    assert incomplete == [min(names)]
    assert contract.annotated(min(names)) == ('"rechte" Niere',)


@pytest.mark.slow
def test_page_of_200_cases_and_20_labels(tmp_path: Path) -> None:
    """Noise is the worst that a picture can show; real images take a fifth of it."""
    labels = np.arange(4 * 40 * 40).reshape(4, 40, 40) // 40 % 21  # 20 labels in stripes
    cases = []
    for number in range(200):
        image = np.random.default_rng(number).normal(size=labels.shape).astype(np.float32)
        write_volume(tmp_path / f"{number}_0000.nii.gz", image)
        shown = np.where(labels == 1 + number % 20, 0, labels).astype(np.uint8)
        write_volume(tmp_path / f"{number}.nii.gz", shown)
        files = (tmp_path / f"{number}_0000.nii.gz", tmp_path / f"{number}.nii.gz")
        cases.append(Shown(f"case_{number:03d}", *files))
    sprites = draw_sprites(cases, 21, processes=1)
    rows = []
    for number, case in enumerate(cases):
        drawn = tuple(label != number % 20 for label in range(20))
        states = tuple(State.YES if is_drawn else State.NO for is_drawn in drawn)
        rows.append(CaseRow(case.name, states, drawn, sprites[case.name]))
    page = tmp_path / "page.html"
    names = ("background", *(f"organ_{number:02d}" for number in range(20)))
    content = DecisionPage("Many", (), names, tuple(rows), "FILE", "t.csv", saves_all=True)
    page.write_text(decision_page(content))
    assert page.stat().st_size < 15e6
    if CHROMIUM is not None:
        keys = ["#show=absent", "#search=case_01", "n", "x", "ArrowDown", "ArrowLeft", "x", "s"]
        told = press(page, keys, tmp_path)
        assert (told["errors"], told["fetched"], told["rows"]) == ([], [], 10)
        assert len(told["files"][0].splitlines()) == 201
        assert "2 changed" in told["count"]


def test_slices_and_regions_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two-dimensional images; labels of regions, whose predictions have no probabilities."""
    for variable in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    raw = audited.write(tmp_path)
    model = tmp_path / "nnUNet_results" / audited.NAME / audited.MODEL
    content = read_json(raw / "dataset.json")
    block = {**content["label_sets"], "version": 2, "leaves": audited.LABELS}
    labels = {"background": 0, "kidneys": [2, 3], "liver": 1}
    regions = {"labels": labels, "regions_class_order": [2, 1], "label_sets": block}
    for folder in (raw, model):
        write_json(folder / "dataset.json", {**content, **regions})
    for path in [*raw.glob("*Tr/*.nii.gz"), *model.glob("*/validation/*.nii.gz")]:
        write_volume(path, read_array(path)[8])
    assert audit("-o", tmp_path / "out") == 0
    listed = {row["case"] for row in rows(tmp_path / "out" / "audit.csv")}
    assert {"case_00", "case_01", "case_02"} <= listed


def test_a_model_with_a_sigmoid_per_label_counts_without_probabilities(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "nnUNet_results" / audited.NAME / audited.MODEL
    for path in model.glob("*/validation/*.npz"):
        np.savez_compressed(path, probabilities=np.load(path)["probabilities"][1:])
    write_json(model / "dataset.json", one_region_per_label(read_json(model / "dataset.json")))
    assert audit("-o", tmp_path / "out", "--no-page") == 0
    listed = {row["case"] for row in rows(tmp_path / "out" / "audit.csv")}
    assert listed >= set(audited.FAULTS)
    write_json(model / "dataset.json", {"labels": {"background": 0, "spleen": 1}})
    assert audit("-o", tmp_path / "other", "--no-page") == 1
    assert "spleen" in capsys.readouterr().err


def never_sure(probabilities: np.ndarray) -> np.ndarray:
    return np.full_like(probabilities, 0.25)


def without_liver(probabilities: np.ndarray) -> np.ndarray:
    probabilities[0] += probabilities[1]
    probabilities[1] = 0
    return probabilities


@pytest.mark.parametrize(
    ("change", "blind"),
    [
        (None, ()),
        (never_sure, ("liver", "kidney_left", "kidney_right")),
        (without_liver, ("liver",)),
    ],
)
def test_labels_that_cannot_be_judged_are_told(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change, blind: tuple[str, ...]
) -> None:
    """Otherwise an empty list of a model that knows nothing would look like sound data."""
    model = tmp_path / "nnUNet_results" / audited.NAME / audited.MODEL
    for path in model.glob("*/validation/*.npz") if change else ():
        probabilities = change(np.load(path)["probabilities"])
        np.savez_compressed(path, probabilities=probabilities)
        label_map = path.with_name(f"{path.stem}.nii.gz")
        write_volume(label_map, probabilities.argmax(0).astype(np.uint8))
    assert audit("-o", tmp_path / "out", "--no-page") == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if "WARNING" in line]
    assert len(warnings) == bool(blind)
    told = {name for name in audited.LABELS if any(f"'{name}'" in line for line in warnings)}
    assert told == set(blind)


def test_wrong_labels_of_a_table(raw: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "t.csv").write_text(
        "case,annotated,wrong\ncase_03,liver;kidney_left,kidney_right\n"
    )
    assert main(["annotate", "-d", "44", "--annotated", "t.csv", "--add", "-np", "1"]) == 0
    block = read_json(raw / "dataset.json")["label_sets"]
    protocol = block["protocols"][block["cases"]["case_03"]]
    assert set(protocol["kidney_right"]) == set(protocol["background"])
    assert set(protocol["background"]) == {"background", "kidney_right"}
    (tmp_path / "t.csv").write_text("case,annotated,wrong\ncase_03,liver,liver\n")
    assert main(["annotate", "-d", "44", "--annotated", "t.csv", "--add", "-np", "1"]) == 1
    assert "liver" in capsys.readouterr().err


@pytest.mark.parametrize("has_ignore", [False, True])
def test_a_declaration_can_be_read_back(has_ignore: bool) -> None:
    for missing, wrong in ((set(), {1}), ({2}, {1, 3}), ({1, 2}, set()), (set(), {1, 2, 3})):
        declaration = Declaration(missing=frozenset(missing), wrong=frozenset(wrong))
        assert declaration_of(declaration.protocol(4, has_ignore)) == declaration


def test_unsure_voxels_do_not_contradict() -> None:
    """4 of 8 voxels of a drawn label are predicted as background, 2 of them with certainty."""
    values = np.array([[1] * 8 + [0] * 8])
    predicted = np.array([[1] * 4 + [0] * 12])
    probability = np.array([[0.9] * 6 + [0.5] * 2 + [0.9] * 8])
    evidence = gather(values, predicted, probability, Protocol.complete(2, False), 1.0)
    assert evidence.counts.fn[1] == 2
    assert evidence.drawn[1] == 8
    assert evidence.confidence is not None
    assert evidence.confidence[1] == pytest.approx(0.9)


def test_too_few_cases_say_nothing_about_what_is_usual() -> None:
    values = np.zeros((4, 4), int)
    evidence = gather(values, values + 1, None, Protocol.complete(2, False), 1.0)
    assert find({"only": evidence}) == []
