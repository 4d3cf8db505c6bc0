"""A complete data set as if some leaves had not been drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nnunet_labelset.cli import main
from nnunet_labelset.io.files import read_json
from tests.helpers.conversion import contract_of, label_sets_of, names, read_array
from tests.helpers.small_dataset import write_dataset


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("raw", "preprocessed", "results"):
        monkeypatch.setenv(f"nnUNet_{variable}", str(tmp_path / variable))
    return write_dataset(tmp_path / "raw")


def experiment(folder: Path, *options: str) -> int:
    return main(["experiment", "-d", "27", "-o", str(folder), "-np", "1", *options])


def test_what_is_withheld_may_be_any_of_the_withheld(raw: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("case,annotated\nfull_1,liver\nmerged_1,spleen\nno_spleen_1,\n")
    options = ("--cv", "2", "--withhold", str(table), "--into", "127")
    assert experiment(tmp_path / "study", *options) == 0
    new = tmp_path / "raw" / "Dataset127_SmallWithheld"
    for case, withheld in (
        ("full_1", {"tumour", "spleen"}),
        (
            "merged_1",
            {"liver", "tumour"},
        ),  # drawn as one before, so that withholding liver withholds nothing more
        ("no_spleen_1", {"liver", "tumour", "spleen"}),
    ):
        before, after = label_sets_of(raw, case), label_sets_of(new, case)
        for old, now in zip(before.flat, after.flat, strict=True):
            assert now == (old | withheld if old & withheld else old)
    for case in ("full_2", "merged_2", "no_spleen_2"):
        assert np.array_equal(label_sets_of(raw, case), label_sets_of(new, case))
    assert read_json(new / "dataset.json")["labels"]["ignore"] == 4
    for image in (raw / "imagesTr").iterdir():
        assert np.array_equal(read_array(image), read_array(new / "imagesTr" / image.name))
    assert names(contract_of(new), contract_of(new).protocol("full_1").annotated) == {
        "background",
        "liver",
    }
    assert not [path for path in (tmp_path / "raw").iterdir() if path.name.startswith(".")]
    assert "Dataset127_SmallWithheld" in (tmp_path / "study" / "config.yaml").read_text()


def test_one_leaf_alone_is_withheld_too(raw: Path, tmp_path: Path) -> None:
    """{spleen} would be as good as annotated: the spleen becomes one with the background, as where
    nobody drew it.
    """
    (tmp_path / "table.csv").write_text(
        "case;liver;tumour;spleen\nfull_1;1;1;0\nfull_2;1;1;1\nmerged_1;1;0;1\n"
    )
    assert (
        experiment(
            tmp_path / "study",
            "--cv",
            "2",
            "--withhold",
            str(tmp_path / "table.csv"),
            "--into",
            "127",
        )
        == 0
    )
    new = tmp_path / "raw" / "Dataset127_SmallWithheld"
    hidden = {"background", "spleen"}
    for old, now in zip(
        label_sets_of(raw, "full_1").flat, label_sets_of(new, "full_1").flat, strict=True
    ):
        assert now == (hidden if old & hidden else old)
    contract = contract_of(new)
    assert names(contract, contract.protocol("full_1").annotated) == {
        "liver",
        "tumour",
    }
    assert contract.cases["full_1"] == "without spleen"
    assert contract.cases["full_2"] == "full"
    assert contract.cases["merged_1"] == "without tumour"


def test_the_new_data_set_is_one_that_verify_accepts(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("case,annotated\nfull_1,liver;tumour\nfull_2,all\n")
    assert (
        experiment(
            tmp_path / "study",
            "--cv",
            "2",
            "--withhold",
            str(tmp_path / "table.csv"),
            "--into",
            "127",
        )
        == 0
    )
    assert main(["verify", "-d", "127", "-np", "1"]) == 0


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (
            "case,annotated\nful_1,liver\n",
            (),
            "no training case of Dataset027_Small; did you mean 'full_1'",
        ),
        ("case,annotated\nfull_1,livr\n", (), "did you mean 'liver'"),
        ("case,annotated\nfull_1,liver\n", ("--into", "27"), "exists: give another id"),
        ("case,annotated\nfull_1,liver\n", ("-tr", "nnUNetTrainerX"), "no such trainer"),
    ],
)
def test_mistakes_write_nothing(
    raw: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    table: str,
    options: tuple[str, ...],
    message: str,
) -> None:
    (tmp_path / "table.csv").write_text(table)
    code = experiment(
        tmp_path / "study",
        "--cv",
        "2",
        "--withhold",
        str(tmp_path / "table.csv"),
        "--into",
        "127",
        *options,
    )
    assert code == 1
    assert message in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "raw").iterdir()] == ["Dataset027_Small"]
    assert not (tmp_path / "study").exists()


def test_withholding_everything_leaves_nothing_annotated(raw: Path, tmp_path: Path) -> None:
    """Where `ignore` may be every label, no unused label may count as annotated."""
    (tmp_path / "table.csv").write_text("case,annotated\nno_spleen_1,\nfull_1,\n")
    table = ("--withhold", str(tmp_path / "table.csv"))
    assert experiment(tmp_path / "study", "--cv", "2", *table, "--into", "127") == 0
    before, after = contract_of(raw), contract_of(tmp_path / "raw" / "Dataset127_SmallWithheld")
    for case in ("no_spleen_1", "full_1"):
        assert set(after.annotated(case)) <= {"background"}
    for case in ("full_2", "merged_2", "no_spleen_2"):
        assert after.annotated(case) == before.annotated(case)
