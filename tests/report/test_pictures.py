"""Slices of cases: what is drawn, where, and which cases."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
from PIL import Image

from nnunet_labelset.contract import Protocol
from nnunet_labelset.report.cases import choose_cases, most_disputed, rank_cases
from nnunet_labelset.report.page import Report
from nnunet_labelset.report.painting import FILL, STRIPE, DrawnCase, Painter, _dark_parts, _dashes
from nnunet_labelset.report.plots import (
    ERROR_COLOUR,
    REFERENCE_COLOUR,
    label_colour,
    method_colour,
    rgb,
)
from tests.helpers.evaluation import made_case, made_evaluation, made_score
from tests.helpers.report import volume, write


def layer(painter: Painter, name: str) -> np.ndarray:
    """A painted layer, (frames, height, width, 4)."""
    text = next(found for found in painter.layers if f'id="{name}"' in found)
    picture = Image.open(io.BytesIO(base64.b64decode(re.search('base64,([^"]+)', text)[1])))
    return np.asarray(picture.convert("RGBA")).reshape(-1, painter.height, painter.width, 4)


def has(picture: np.ndarray, colour: str) -> np.ndarray:
    """Where a picture has exactly this colour, on any opacity but none."""
    return (picture[..., :3] == rgb(colour)).all(-1) & (picture[..., 3] > 0)


def drawn(
    tmp_path: Path, reference: np.ndarray, prediction: np.ndarray, sets: list[set[int]], **more
) -> DrawnCase:
    write(tmp_path / "reference.nii.gz", reference)
    write(tmp_path / "prediction.nii.gz", prediction)
    files = str(tmp_path / "reference.nii.gz"), [str(tmp_path / "prediction.nii.gz")]
    leaves = more.pop("leaves", 3)
    return DrawnCase(*files, Protocol(tuple(map(frozenset, sets)), leaves), more.pop("image", None))


PLAIN = [{0}, {1}, {2}]


def test_errors_are_what_the_reference_excludes(tmp_path: Path) -> None:
    # values 0, 1, 2 stand for themselves, 3 for background or leaf 2; one voxel for every pair of
    # value and prediction
    reference, prediction = np.meshgrid(np.arange(4), np.arange(3), indexing="ij")
    reference, prediction = (array.astype(np.uint8)[None] for array in (reference, prediction))
    found = drawn(tmp_path, reference, prediction, [*PLAIN, {0, 2}])
    missed, invented, wrong = 1, 2, 3
    expected = [[0, invented, invented], [missed, 0, wrong], [missed, wrong, 0], [0, wrong, 0]]
    assert found.errors[0][0].tolist() == expected
    assert found.error_counts == [{"missed": 2, "invented": 2, "wrong label": 3}]


def test_unannotated_regions_are_hatched_and_never_errors(tmp_path: Path) -> None:
    truth = volume()
    reference = np.where(truth == 2, 3, truth).astype(np.uint8)
    prediction = np.where(truth == 2, 0, truth).astype(np.uint8)  # wrong, but nobody can know
    painter = Painter(drawn(tmp_path, reference, prediction, [*PLAIN, {0, 1, 2}]), "x")
    errors = layer(painter, painter.errors(0))
    assert not has(errors, ERROR_COLOUR).any()
    assert errors[..., 3].any(), "stripes"
    picture = layer(painter, painter.reference())
    assert has(picture, label_colour(1)).any()
    assert not has(picture, label_colour(2)).any()
    complete = Painter(drawn(tmp_path, truth, prediction, [*PLAIN, {0, 1, 2}]), "x")
    assert has(layer(complete, complete.errors(0)), ERROR_COLOUR).any()
    assert has(layer(complete, complete.reference()), label_colour(2)).any()


def test_contours_tell_reference_and_prediction(tmp_path: Path) -> None:
    """A solid line, and a dashed one in the colour of its method where the two differ."""
    same = Painter(drawn(tmp_path, volume(), volume(), PLAIN), "x")
    picture = layer(same, same.contours(0))
    assert has(picture, REFERENCE_COLOUR).any()
    assert not has(picture, method_colour(0)).any()
    moved = Painter(drawn(tmp_path, volume(), np.roll(volume(), 2, axis=1), PLAIN), "x")
    picture = layer(moved, moved.contours(0))
    assert has(picture, REFERENCE_COLOUR).any()
    assert has(picture, method_colour(0)).any()
    assert not has(picture, method_colour(1)).any()


def test_stray_voxels_of_a_prediction_do_not_shrink_the_pictures(tmp_path: Path) -> None:
    truth = np.zeros((40, 60, 60), np.uint8)
    truth[15:25, 20:40, 20:40] = 1
    prediction = truth.copy()
    prediction[0, 0, 0] = prediction[-1, -1, -1] = 2
    found = drawn(tmp_path, truth, prediction, PLAIN)
    assert found.reference.shape == (18, 28, 28)  # 4 voxels around what the reference labels
    assert found.error_counts == [{"missed": 0, "invented": 2, "wrong label": 0}]
    assert found.errors_outside == [2]


def test_the_grey_window_is_that_of_what_is_labelled(tmp_path: Path) -> None:
    truth = volume()
    image = np.where(truth > 0, 100.0 + 20 * truth, 0.0).astype(np.float32)  # 120 and 140
    image[0, 0, 0], image[0, 0, 1] = -3000.0, 30000.0  # air and metal
    write(tmp_path / "image.nii.gz", image)
    found = drawn(tmp_path, truth, truth, PLAIN, image=tmp_path / "image.nii.gz")
    one, two = (found.image[found.reference == leaf].mean() for leaf in (1, 2))
    assert two - one > 100, "most of the grey values are for what is labelled"


def test_views_pass_through_the_worst_slices_with_true_proportions(tmp_path: Path) -> None:
    truth = volume()
    prediction = truth.copy()
    prediction[6, 10:13, 2:8] = 0
    prediction[9] = 1  # many more errors, but beside everything that is drawn
    found = drawn(tmp_path, truth, prediction, PLAIN)
    assert found.views == ("axial", "coronal", "sagittal")
    assert found.telling[0] == 6
    assert found.telling[1] in (10, 11, 12)
    assert found.telling[2] in range(2, 8)
    painter = Painter(found, "x")
    # coronal and sagittal: 10 voxels of 2 mm are longer than 16 of 1 mm
    assert painter.shapes.tolist()[-3:] == [[176, 176], [220, 176], [220, 176]]


def test_slices_to_choose_from_hold_the_telling_one(tmp_path: Path) -> None:
    truth = np.zeros((60, 16, 16), np.uint8)
    truth[4:57, 3:13, 3:13] = 1
    prediction = truth.copy()
    prediction[33, 5:9] = 0
    found = drawn(tmp_path, truth, prediction, PLAIN)
    assert found.telling[0] == 33
    assert 33 in found.axial
    assert len(found.axial) == 10
    assert found.axial[0] == 0
    assert found.axial[-1] == 59
    painter = Painter(found, "x")
    assert len(layer(painter, painter.errors(0))) == 10 + 2
    assert 'max="9"' in painter.slider()
    position = found.axial.index(33)
    assert f'viewBox="0 {position * painter.height} ' in painter.picture("text")


@pytest.mark.parametrize("axes", ["LPS", "RAI", "SAL"])
def test_patients_are_shown_upright_whatever_the_axes_of_the_file(
    tmp_path: Path, axes: str
) -> None:
    head_first = np.zeros((10, 16, 16), np.uint8)
    head_first[1:8, 4:12, 4:12] = 1
    head_first[8:9, 4:12, 4:12] = 2  # the top slice: z grows towards the head
    image = sitk.GetImageFromArray(head_first)
    for name in ("reference", "prediction"):
        sitk.WriteImage(sitk.DICOMOrient(image, axes), str(tmp_path / f"{name}.nii.gz"))
    paths = [str(tmp_path / f"{name}.nii.gz") for name in ("reference", "prediction")]
    painter = Painter(
        DrawnCase(paths[0], paths[1:], Protocol.complete(3, has_ignore=False), None), "x"
    )
    coronal = layer(painter, painter.prediction(0))[-2]
    top, rest = (np.nonzero(has(coronal, label_colour(leaf)))[0] for leaf in (2, 1))
    assert top.max() < rest.min()


def test_2d_images(tmp_path: Path) -> None:
    reference = volume()[4]
    painter = Painter(drawn(tmp_path, reference, np.roll(reference, 1, axis=0), PLAIN), "x")
    assert painter.case.views == ("axial",)
    assert painter.slider() == ""
    assert has(layer(painter, painter.errors(0)), ERROR_COLOUR).any()


def test_labels_carry_numbers_and_outlines(tmp_path: Path) -> None:
    """Readers who see no colours tell labels apart, however many there are."""
    truth = volume()
    for n in (2, 9, 117):
        case = drawn(tmp_path, truth, truth, [{leaf} for leaf in range(n + 1)], leaves=n + 1)
        painter = Painter(case, "x")
        picture = layer(painter, painter.prediction(0))
        assert has(picture, "#FFFFFF").any(), "numbers"
        opacity = picture[has(picture, label_colour(1))][:, 3]
        assert set(opacity.tolist()) == {FILL, 255}, "a pale filling inside of an outline"


def made_report(**scores: dict[str, dict[str, float | None]]) -> Report:
    """Dice by method, case and leaf."""
    results = {}
    for method, of_method in scores.items():
        cases = [
            made_case(case, {leaf: made_score({"dice": dice}) for leaf, dice in of.items()})
            for case, of in of_method.items()
        ]
        results[method] = made_evaluation(cases)
    return Report(results, {}, Path(), worst=1)


def test_a_case_with_hard_leaves_only_is_not_worst_for_that() -> None:
    scores = {
        "easy": {"big": 0.90, "small": None},  # -0.04 from the median of big, 0.94
        "hard": {"big": None, "small": 0.50},  # +0.05 from the median of small, 0.45
        "both": {"big": 0.94, "small": 0.40},  # (0 - 0.05) / 2
        "good": {"big": 0.98, "small": None},  # +0.04
        "none": {"big": None, "small": None},
    }
    report = made_report(x=scores)
    assert rank_cases(report, "x") == ["easy", "both", "good", "hard"]
    assert choose_cases(report) == {"easy": ["worst case"], "good": ["median case"]}


def test_the_largest_disagreement_is_drawn() -> None:
    one = {case: {"leaf": dice} for case, dice in (("a", 0.9), ("b", 0.8), ("c", 0.7), ("d", 0.85))}
    other = {
        case: {"leaf": dice} for case, dice in (("a", 0.3), ("b", 0.7), ("c", 0.6), ("d", 0.75))
    }
    report = made_report(one=one, other=other)
    assert most_disputed(report) == "a"
    assert choose_cases(report) == {
        "c": ["worst case"],
        "d": ["median case"],
        "a": ["largest disagreement between methods"],
    }
    assert most_disputed(made_report(one=one)) is None
    assert most_disputed(made_report(one=one, other=one)) is None


def test_a_missed_union_makes_a_case_worst_and_disputed() -> None:
    """A part that the reference does not tell apart is a part of the case, too."""
    reports = []
    for union in (0.8, 0.0):
        scores = {"a": (0.9, union), "b": (0.8, 0.9), "c": (0.85, 0.9)}
        cases = [
            made_case(
                case, {"leaf": made_score({"dice": leaf}), "leaf+other": made_score({"dice": both})}
            )
            for case, (leaf, both) in scores.items()
        ]
        made = made_evaluation(cases)
        reports.append(replace(made, leaves=("leaf",), unions={"leaf+other": ("leaf", "other")}))
    report = Report({"one": reports[0], "other": reports[1]}, {}, Path(), worst=1)
    assert rank_cases(report, "other")[0] == "a"
    assert most_disputed(report) == "a"


def test_the_best_method_is_that_of_the_overview() -> None:
    """By the mean over the cases: y is better in the mean of the leaves, because one case alone has
    the small one.
    """
    x = {**{case: {"big": 0.9, "small": None} for case in "abc"}, "d": {"big": None, "small": 0.1}}
    y = {**{case: {"big": 0.8, "small": None} for case in "abc"}, "d": {"big": None, "small": 0.3}}
    assert made_report(x=x, y=y).best_method == "x"


def test_kinds_of_errors_differ_without_colour() -> None:
    """Rows, columns and squares: a reader who sees no colours tells them apart."""
    side = 4 * STRIPE
    dark = [_dark_parts(np.full((side, side), kind)) for kind in (1, 2, 3)]
    assert not _dark_parts(np.zeros((side, side), int)).any()
    assert all(2 * lines.sum() == lines.size for lines in dark)
    assert (dark[0] == dark[0][:, :1]).all()
    assert (dark[1] == dark[1][:1]).all()
    assert not (dark[2] == dark[2][:, :1]).all()
    assert not (dark[2] == dark[2][:1]).all()


def test_thin_errors_are_seen(tmp_path: Path) -> None:
    """One row of voxels has no room for a pattern, but an outline."""
    truth = volume()
    prediction = truth.copy()
    prediction[:, 3] = 0
    painter = Painter(drawn(tmp_path, truth, prediction, PLAIN), "x")
    errors = layer(painter, painter.errors(0))
    assert has(errors, ERROR_COLOUR).sum() > (errors[..., 3] > 0).sum() / 2


def test_prediction_lines_are_dashed_in_every_direction() -> None:
    dashes = _dashes((60, 60))
    diagonal = np.arange(60)
    for line in (dashes[7], dashes[:, 7], dashes[diagonal, diagonal], dashes[diagonal, -diagonal]):
        assert 0.2 < line.mean() < 1.0
