"""A complete data set as if some leaves had not been drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nnunet_labelset.cli import main
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.files import read_json, write_json
from nnunet_labelset.study.withhold import withhold
from tests.helpers.conversion import (
    SHAPE,
    contract_of,
    label_sets_of,
    names,
    read_array,
    write_nnunet,
)
from tests.helpers.small_dataset import label_map, write_dataset, write_volume


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


class Random:
    """A random small data set with odd protocols, and a random table of what stays annotated."""

    def __init__(self, seed: int, root: Path) -> None:
        self.rng = np.random.default_rng(seed)
        self.names = ["background", *"abcd"[: self.rng.integers(1, 5)]]
        self.values = [*self.names, *(["ignore"] if self.rng.random() < 0.7 else [])]
        self.blocks = {f"case_{number}": self._block() for number in range(3)}
        self.stays = {case: self._some(self.names[1:]) for case in self._some(self.blocks, 1)}
        self.folder = write_nnunet(
            root / "raw",
            "Dataset027_Random",
            {name: value for value, name in enumerate(self.values)},
            {case: self._label_map() for case in self.blocks},
            label_sets={
                "version": 1,
                "protocols": {f"p_{case}": block for case, block in self.blocks.items()},
                "cases": {case: f"p_{case}" for case in self.blocks},
            },
        )
        rows = [f"{case},{';'.join(stays)}" for case, stays in self.stays.items()]
        self.table = root / "table.csv"
        self.table.write_text("\n".join(["case,annotated", *rows]) + "\n")

    def withheld(self, case: str) -> set[str]:
        return set(self.names[1:]).difference(self.stays.get(case, self.names))

    def _some(self, items, at_least: int = 0) -> list[str]:
        items = list(items)
        size = self.rng.integers(at_least, len(items) + 1)
        return [items[place] for place in self.rng.permutation(len(items))[:size]]

    def _block(self) -> dict[str, list[str]]:
        """A protocol: values of larger sets, values that are vouched for, values not mentioned."""
        block = {}
        for name in self._some(self.values):
            is_vouched = name != "ignore" and self.rng.random() < 0.4
            block[name] = [name] if is_vouched else self._some(self.names, at_least=1)
        return block

    def _label_map(self) -> np.ndarray:
        """A label map in which some values are absent."""
        present = self._some(range(len(self.values)), at_least=1)
        return self.rng.choice(present, SHAPE).astype(np.uint8)


def meanings(folder: Path, case: str) -> list[set[str]]:
    """What each value of a case may be, from the text of dataset.json alone."""
    content = read_json(folder / "dataset.json")
    block = content["label_sets"]["protocols"][content["label_sets"]["cases"][case]]
    everything = set(content["labels"]) - {"ignore"}
    unmentioned = {name: {name} for name in everything} | {"ignore": everything}
    return [set(block.get(name, unmentioned[name])) for name in content["labels"]]


def annotated_by_the_rules(folder: Path, case: str) -> set[str]:
    """The rule of docs/contract.md, from the text of dataset.json alone."""
    content = read_json(folder / "dataset.json")
    block = content["label_sets"]["protocols"][content["label_sets"]["cases"][case]]
    stated = dict(zip(content["labels"], meanings(folder, case), strict=True))
    alone = {min(labels) for labels in stated.values() if len(labels) == 1}
    if "ignore" not in block:
        stated.pop("ignore", None)
    in_doubt = set().union(*(labels for labels in stated.values() if len(labels) > 1))
    return {label for label in alone if label not in in_doubt or block.get(label) == [label]}


@pytest.mark.parametrize("seed", range(100))
def test_nothing_is_claimed_and_nothing_is_lost(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("nnUNet_raw", str(tmp_path / "raw"))
    data = Random(seed, tmp_path)
    new = withhold("27", data.table, 127, 1)
    before, after = contract_of(data.folder), contract_of(new)
    for case in data.blocks:
        withheld = data.withheld(case)
        if not withheld:
            assert after.protocol(case) == before.protocol(case).with_ignore()
        drawn = annotated_by_the_rules(data.folder, case)
        annotated = annotated_by_the_rules(new, case)
        assert annotated == set(after.annotated(case))
        assert annotated <= drawn - withheld
        assert annotated - {"background"} == drawn - withheld - {"background"}
        if len(withheld) != 1:  # one label alone is hidden in the background
            assert annotated == drawn - withheld
        check_voxels(data, new, case)


def check_voxels(data: Random, new: Path, case: str) -> None:
    """No voxel becomes more certain; those that cannot be what is withheld stay as they were."""
    withheld = data.withheld(case)
    hidden = withheld | ({"background"} if len(withheld) == 1 else set())
    old_sets, new_sets = meanings(data.folder, case), meanings(new, case)
    file = Path("labelsTr") / f"{case}.nii.gz"
    old_map, new_map = read_array(data.folder / file), read_array(new / file)
    for old_value, new_value in set(zip(old_map.flat, new_map.flat, strict=True)):
        old, now = old_sets[old_value], new_sets[new_value]
        assert now >= old
        if old & withheld:
            assert now >= old | withheld
            assert len(now) > 1
        if not old & hidden:
            assert now == old


def withhold_in_full_1(raw: Path, tmp_path: Path, stays: str) -> Path:
    table = tmp_path / "table.csv"
    table.write_text(f"case,annotated\nfull_1,{stays}\n")
    return withhold("27", table, 127, 1)


def test_ignored_voxels_do_not_make_what_is_withheld_anything(raw: Path, tmp_path: Path) -> None:
    write_volume(raw / "labelsTr" / "full_1.nii.gz", label_map(1, 2, 3, 4))
    new = withhold_in_full_1(raw, tmp_path, "liver")
    label_sets = label_sets_of(new, "full_1")[:, 0, 0].tolist()
    withheld = {"tumour", "spleen"}
    anything = withheld | {"background", "liver"}
    assert label_sets[:5] == [{"liver"}, withheld, withheld, anything, {"background"}]


def test_one_label_is_not_given_away_by_a_disputed_neighbour(raw: Path, tmp_path: Path) -> None:
    """The liver is drawn, so that what may be liver or tumour would be tumour nearly everywhere."""
    content = read_json(raw / "dataset.json")
    disputed = {"ignore": ["liver", "tumour"], "liver": ["liver"], "tumour": ["tumour"]}
    content["label_sets"]["protocols"]["full"] = disputed
    write_json(raw / "dataset.json", content)
    new = withhold_in_full_1(raw, tmp_path, "liver;spleen")
    label_sets = label_sets_of(new, "full_1")[:, 0, 0].tolist()
    hidden = {"background", "liver", "tumour"}
    assert label_sets[:4] == [{"liver"}, hidden, {"spleen"}, hidden]
    assert contract_of(new).annotated("full_1") == ("liver", "spleen")
    assert contract_of(new).protocol("full_2") == contract_of(raw).protocol("full_2")


def test_a_test_case_without_protocol_stays_without(raw: Path, tmp_path: Path) -> None:
    content = read_json(raw / "dataset.json")
    del content["label_sets"]["cases"]["test_1"]
    write_json(raw / "dataset.json", content)
    new = withhold_in_full_1(raw, tmp_path, "liver")
    assert "test_1" not in contract_of(new).cases
    file = Path("labelsTs") / "test_1.nii.gz"
    assert np.array_equal(read_array(raw / file), read_array(new / file))


@pytest.mark.parametrize("case", ["full_1", "full_2"])
def test_a_value_that_is_no_label_is_an_error(raw: Path, tmp_path: Path, case: str) -> None:
    write_volume(raw / "labelsTr" / f"{case}.nii.gz", label_map(1, 9))
    with pytest.raises(LabelSetError, match=f"{case}.nii.gz: value 9"):
        withhold_in_full_1(raw, tmp_path, "liver")
    assert not (tmp_path / "raw" / "Dataset127_SmallWithheld").exists()
