"""Several raters: what they agree on is the label, the rest what either of them said."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nnunet_labelset.cli import main
from nnunet_labelset.dataset_conversion.raters import combine_raters
from nnunet_labelset.io.files import read_json
from tests.helpers.conversion import (
    SHAPE,
    contract_of,
    convert,
    label_sets_of,
    random_image,
    write_volume,
)

MANIFEST = """
leaves = ["background", "artery", "vein", "nerve"]

[sources.study]
folder = "study"
image = "images/{case}.nii.gz"
raters = ["ann/{case}.nii.gz", "bob/{case}.nii.gz"]

[sources.study.labels]
1 = "artery"
2 = "vein"
3 = "nerve"
"""


def run(tmp_path: Path, *arguments: str) -> int:
    (tmp_path / "study.toml").write_text(MANIFEST)
    return convert(tmp_path / "raw", "-m", str(tmp_path / "study.toml"), *arguments)


def write_case(tmp_path: Path, ann: np.ndarray, bob: np.ndarray | None, case: str = "a") -> None:
    write_volume(tmp_path / "study" / "images" / f"{case}.nii.gz", random_image())
    write_volume(tmp_path / "study" / "ann" / f"{case}.nii.gz", ann)
    if bob is not None:
        write_volume(tmp_path / "study" / "bob" / f"{case}.nii.gz", bob)


def two_opinions() -> tuple[np.ndarray, np.ndarray]:
    ann = np.zeros(SHAPE, np.uint8)
    ann[1:3] = 1
    bob = ann.copy()
    bob[2, :3] = 2
    return ann, bob


def dataset(tmp_path: Path) -> Path:
    return tmp_path / "raw" / "Dataset027_Fetal"


def test_disputed_voxels_are_what_was_said(tmp_path, capsys):
    ann, bob = two_opinions()
    write_case(tmp_path, ann, bob)
    assert run(tmp_path) == 0
    assert "raters disagree" in capsys.readouterr().out
    sets = label_sets_of(dataset(tmp_path), "a")
    assert (sets[ann != bob] == {"artery", "vein"}).all()
    assert (sets[(ann == bob) & (ann == 1)] == {"artery"}).all()
    assert (sets[(ann == bob) & (ann == 0)] == {"background"}).all()
    coverage = contract_of(dataset(tmp_path)).coverage(["a"])
    assert all(coverage.values())  # both looked for everything


def test_more_sets_than_values_are_united_and_told(tmp_path, capsys):
    ann, bob = two_opinions()
    for row, (first, second) in enumerate([(0, 1), (0, 2), (0, 3), (1, 3), (2, 3), (3, 3), (2, 2)]):
        ann[4, row], bob[4, row] = first, second
    write_case(tmp_path, ann, bob)
    assert run(tmp_path) == 0
    assert "stored as a larger one" in capsys.readouterr().out
    sets = label_sets_of(dataset(tmp_path), "a")
    names = np.array(["background", "artery", "vein", "nerve"])
    for index in np.ndindex(*SHAPE):
        assert {names[ann[index]], names[bob[index]]} <= sets[index]
        if ann[index] == bob[index]:
            assert len(sets[index]) == 1


def test_rare_disputes_are_united_not_what_all_left_unlabelled(tmp_path):
    """A label that nobody drew is possible in most voxels, with background and nothing else."""
    ann, bob = two_opinions()
    ann[bob == 2], bob[bob == 2] = 0, 1  # no vein
    for column, (first, second) in enumerate([(0, 3), (1, 3), (0, 1)]):
        ann[4, 0, column], bob[4, 0, column] = first, second
    write_case(tmp_path, ann, bob)
    (tmp_path / "study.toml").write_text(MANIFEST.replace('2 = "vein"\n', ""))
    assert convert(tmp_path / "raw", "-m", str(tmp_path / "study.toml")) == 0
    sets = label_sets_of(dataset(tmp_path), "a")
    assert (sets[(ann == 0) & (bob == 0)] == {"background", "vein"}).all()
    assert {"artery", "nerve"} <= sets[4, 0, 1]


def test_a_case_of_one_rater_and_wrong_values(tmp_path, capsys):
    ann, bob = two_opinions()
    write_case(tmp_path, ann, None, "alone")
    wrong = bob.copy()
    wrong[0, 0, 0] = 9
    write_case(tmp_path, ann, wrong, "wrong")
    write_case(tmp_path, ann, bob[:, :-1], "size")
    assert run(tmp_path) == 1
    error = capsys.readouterr().err
    assert "undeclared values 9 (1 voxels)" in error
    assert "bob/size.nii.gz" in error
    assert run(tmp_path, "--skip-bad-cases") == 0
    assert "1 of 2" in capsys.readouterr().out
    assert set(contract_of(dataset(tmp_path)).cases) == {"alone"}


def test_evaluate_scores_what_is_agreed(tmp_path):
    """Either opinion is right where they differ; what neither said is wrong."""
    ann, bob = two_opinions()
    write_case(tmp_path, ann, bob)
    assert run(tmp_path) == 0
    disputed = ann != bob
    scores = {}
    for name, value in (("artery", 1), ("vein", 2), ("nerve", 3)):
        prediction = np.where(disputed, value, ann).astype(np.uint8)
        write_volume(tmp_path / name / "a.nii.gz", prediction)
        folders = [str(dataset(tmp_path) / "labelsTr"), str(tmp_path / name)]
        assert main(["evaluate", *folders, "-np", "1", "--no-surfaces"]) == 0
        content = read_json(tmp_path / name / "evaluation" / "metrics.json")
        scores[name] = content["cases"][0]
    for case in scores.values():
        artery = case["leaves"]["artery"]
        assert artery["dice"] == 1.0
        assert artery["dice_low"] < 1.0  # if all that is disputed were decided against it
        assert case["leaves"]["vein"]["outcome"] == "undecided"
    wrong = {name: case["known_wrong"] for name, case in scores.items()}
    assert wrong == {"artery": 0, "vein": 0, "nerve": np.count_nonzero(disputed)}
    assert scores["nerve"]["leaves"]["nerve"]["outcome"] == "invented"
    assert scores["vein"]["leaves"]["artery+vein"]["dice"] == 1.0


def test_three_raters():
    arrays = [np.array(values) for values in ([0, 1, 1, 2], [0, 1, 2, 1], [0, 1, 2, 0])]
    combined, disputed = combine_raters(arrays)
    assert combined[:2].tolist() == [0, 1]
    assert [disputed[number] for number in combined[2:].tolist()] == [(1, 2), (0, 1, 2)]


def test_what_only_one_rater_saw_is_undecided_where_values_ran_out(tmp_path):
    """All disputes are stored as `ignore`, which says so: nothing is absent, and all was drawn."""
    ann = np.zeros(SHAPE, np.uint8)
    ann[1, 1, 1] = 2
    bob = ann.copy()
    for row, (first, second) in enumerate([(1, 0), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]):
        ann[4, row], bob[4, row] = first, second
    write_case(tmp_path, ann, bob)
    assert run(tmp_path) == 0
    contract = contract_of(dataset(tmp_path))
    assert all(contract.coverage(["a"]).values())
    write_volume(tmp_path / "p" / "a.nii.gz", np.where(ann == bob, ann, 1).astype(np.uint8))
    folders = [str(dataset(tmp_path) / "labelsTr"), str(tmp_path / "p")]
    assert main(["evaluate", *folders, "-np", "1", "--no-surfaces"]) == 0
    content = read_json(tmp_path / "p" / "evaluation" / "metrics.json")
    outcomes = {name: leaf["outcome"] for name, leaf in content["cases"][0]["leaves"].items()}
    assert outcomes["vein"] == "scored"
    assert outcomes["artery"] == outcomes["nerve"] == "undecided"
    assert content["cases"][0]["known_wrong"] == 0
    assert main(["verify", "-d", str(dataset(tmp_path))]) == 0
