"""`nnunet_labelset evaluate`: outcomes, unions, files, and what happens when something is wrong."""

from __future__ import annotations

import csv
import json
import os
import sys

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
from scipy.spatial.distance import dice as dissimilarity

from nnunet_labelset.cli import main
from nnunet_labelset.evaluation.instances import Instances, match_instances
from nnunet_labelset.evaluation.surface import surface_distances
from tests.helpers.commands import error_line
from tests.helpers.evaluation import LABELS, LEAVES, PROTOCOLS, row, write_dataset, write_labels


def setup(folder, references, predictions, protocols, **geometry):
    """A data set with references beside dataset.json, and predictions."""
    write_dataset(folder / "data", protocols)
    for case, array in references.items():
        write_labels(folder / "data" / "labelsTs" / f"{case}.nii.gz", array, **geometry)
    for case, array in predictions.items():
        write_labels(folder / "pred" / f"{case}.nii.gz", array, **geometry)
    return [str(folder / "data" / "labelsTs"), str(folder / "pred"), "-np", "1"]


def evaluate(arguments, *more):
    assert main(["evaluate", *arguments, *map(str, more)]) == 0
    return json.loads(open(os.path.join(arguments[1], "evaluation", "metrics.json")).read())


def error_of(capsys, arguments, *more):
    return error_line(capsys, "evaluate", *arguments, *more)


def scores(metrics, case=0):
    return metrics["cases"][case]["leaves"]


def test_four_outcomes_and_scores(tmp_path):
    references = {"a": row(1, 1, 0, 0, 0, 0), "b": row(1, 1, 4, 4, 4, 0)}
    predictions = {"a": row(0, 0, 2, 0, 0, 0), "b": row(1, 0, 2, 3, 0, 0)}
    metrics = evaluate(setup(tmp_path, references, predictions, {"a": "full", "b": "basic"}))
    assert [scores(metrics)[leaf]["outcome"] for leaf in LEAVES] == [
        "missed",
        "invented",
        "absent",
    ]
    assert [scores(metrics)[leaf]["dice"] for leaf in LEAVES] == [0, 0, None]
    assert [scores(metrics, 1)[leaf]["outcome"] for leaf in LEAVES] == [
        "scored",
        "not annotated",
        "not annotated",
    ]
    assert [scores(metrics, 1)[leaf]["dice"] for leaf in LEAVES] == [2 / 3, None, None]
    overall = metrics["averages"]["overall"]["leaves"]
    assert overall["white_matter"]["dice"] == {
        "n": 2, "mean": pytest.approx(1 / 3), "sd": pytest.approx(2**0.5 / 3), "median": pytest.approx(1 / 3),
        "low": None, "high": None,
    }  # fmt: skip
    assert overall["ventricles"]["outcomes"] == {
        "scored": 0, "missed": 0, "invented": 1, "absent": 0, "undecided": 0, "not annotated": 1
    }  # fmt: skip
    assert overall["corpus_callosum"]["dice"]["n"] == 0
    assert overall["corpus_callosum"]["dice"]["mean"] is None
    # over the labels of a case, then over the cases
    mean = metrics["averages"]["overall"]["mean"]["dice"]
    assert (mean["n"], mean["mean"]) == (2, pytest.approx(((0 + 0) / 2 + 2 / 3) / 2))


def test_a_union_is_never_the_score_of_a_label(tmp_path):
    """FeTA: white matter or corpus callosum, each predicted once, one voxel wrong; full ignore is
    free.
    """
    reference, prediction = row(0, 1, 1, 1, 2, 4), row(1, 1, 3, 2, 2, 3)
    metrics = evaluate(setup(tmp_path, {"c": reference}, {"c": prediction}, {"c": "feta"}))
    found = scores(metrics)
    white = found["white_matter+corpus_callosum"]
    assert (white["tp"], white["fp"], white["fn"], white["tn"]) == (2, 1, 1, 1)
    assert white["dice"] == 4 / 6
    assert white["volume_pred"] == pytest.approx(4e-3)  # all four voxels of 1 mm³, counted or not
    for label in ("white_matter", "corpus_callosum"):
        assert found[label]["outcome"] == "not annotated"
        assert found[label]["volume_difference"] is None
        assert found[label]["volume_pred"] is not None
        assert metrics["averages"]["overall"]["leaves"][label]["dice"]["n"] == 0
    assert found["ventricles"]["dice"] == 2 / 3
    assert metrics["averages"]["overall"]["mean"]["dice"]["mean"] == 2 / 3


def test_sets_under_ignore_or_a_foreign_leaf_stand_apart(tmp_path, monkeypatch):
    monkeypatch.setitem(PROTOCOLS, "foreign", {"ventricles": ["white_matter", "corpus_callosum"]})
    arguments = setup(tmp_path, {"c": row(0, 2, 1, 4)}, {"c": row(0, 1, 1, 0)}, {"c": "foreign"})
    metrics = evaluate(arguments)
    found = scores(metrics)
    assert [found[leaf]["outcome"] for leaf in LEAVES] == ["not annotated"] * 3
    assert found["white_matter+corpus_callosum"]["dice"] == 1  # the ignored voxel counts nowhere
    assert metrics["unions"] == {
        "white_matter+corpus_callosum": ["white_matter", "corpus_callosum"]
    }


@pytest.mark.parametrize("shape", [(9, 11, 10), (14, 15)])
def test_full_annotation_agrees_with_other_libraries(tmp_path, shape):
    rng = np.random.default_rng(3)
    reference, prediction = (rng.integers(0, 4, shape) for _ in range(2))
    spacing = (3.0, 0.5, 0.8)[: len(shape)]
    arguments = setup(tmp_path, {"x": reference}, {"x": prediction}, {"x": "full"}, spacing=spacing)
    metrics = evaluate(arguments)
    assert metrics["cases"][0]["spacing"] == pytest.approx(spacing)
    for value, leaf in enumerate(LEAVES, 1):
        a, b = reference == value, prediction == value
        assert scores(metrics)[leaf]["dice"] == pytest.approx(
            1 - dissimilarity(a.ravel(), b.ravel()), abs=1e-9
        )
        assert scores(metrics)[leaf]["hd95"] == pytest.approx(
            surface_distances(a, b, spacing).percentile(95), abs=1e-3
        )
        unit = np.prod(spacing) / (1000 if len(shape) == 3 else 100)
        assert scores(metrics)[leaf]["volume_ref"] == pytest.approx(a.sum() * unit)
    filter_ = sitk.LabelOverlapMeasuresImageFilter()
    filter_.Execute(
        *(sitk.GetImageFromArray(array.astype(np.uint8)) for array in (reference, prediction))
    )
    for value, leaf in enumerate(LEAVES, 1):
        assert scores(metrics)[leaf]["dice"] == pytest.approx(
            filter_.GetDiceCoefficient(value), abs=1e-6
        )


def test_hd95_leaves_uncertain_voxels_out_of_both_masks(tmp_path):
    """The prediction runs 6 mm into the ignored part: that is not known to be wrong."""
    reference, prediction = np.zeros((5, 5, 20), int), np.zeros((5, 5, 20), int)
    reference[1:4, 1:4, 2:6] = 1
    reference[:, :, 6:] = 4  # full ignore
    prediction[1:4, 1:4, 2:12] = 1
    metrics = evaluate(setup(tmp_path, {"x": reference}, {"x": prediction}, {"x": "full"}))
    assert scores(metrics)["white_matter"]["hd95"] == 0
    assert scores(metrics)["white_matter"]["dice"] == 1
    # where `ignore` excludes white matter, it is wrong
    metrics = evaluate(setup(tmp_path / "2", {"x": reference}, {"x": prediction}, {"x": "basic"}))
    assert scores(metrics)["white_matter"]["hd95"] == 6


def test_cap(tmp_path):
    far, near = np.zeros((3, 3, 30), int), np.zeros((3, 3, 30), int)
    far[1, 1, 28] = near[1, 1, 1] = 1
    far[1, 1, 10] = 2
    arguments = setup(tmp_path, {"x": far}, {"x": near}, {"x": "full"})
    diagonal = pytest.approx((9 + 9 + 900) ** 0.5)
    assert [scores(evaluate(arguments))[leaf]["hd95"] for leaf in LEAVES] == [27, diagonal, None]
    assert [scores(evaluate(arguments, "--cap", 20))[leaf]["hd95"] for leaf in LEAVES] == [
        20,
        20,
        None,
    ]
    assert [scores(evaluate(arguments, "--no-surfaces"))[leaf]["hd95"] for leaf in LEAVES] == [
        None,
        None,
        None,
    ]


def per_case(arguments):
    with open(os.path.join(arguments[1], "evaluation", "per_case.csv")) as file:
        return list(csv.DictReader(file))


def test_known_errors_are_counted(tmp_path):
    """4 is ventricles or corpus callosum: ventricles in the background, and background there, are
    known to be wrong.
    """
    reference = row(1, 1, 0, 0, 4, 4, 4, 4)
    flooded, empty, right = (
        row(1, 1, 2, 2, 2, 2, 3, 3),
        row(1, 1, 0, 0, 0, 0, 0, 3),
        row(1, 1, 0, 0, 2, 2, 3, 3),
    )
    predictions = {"flooded": flooded, "empty": empty, "right": right}
    arguments = setup(
        tmp_path, dict.fromkeys(predictions, reference), predictions, dict.fromkeys(predictions, "basic"),
        spacing=(1, 1, 10),
    )  # fmt: skip
    metrics = evaluate(arguments)
    found = {case["case"]: case for case in metrics["cases"]}
    assert {name: case["known_wrong"] for name, case in found.items()} == {
        "flooded": 2,
        "empty": 3,
        "right": 0,
    }
    assert found["empty"]["known"] == 8
    assert found["empty"]["known_wrong_volume"] == pytest.approx(0.03)
    union = {
        name: case["leaves"]["ventricles+corpus_callosum"]["dice"] for name, case in found.items()
    }
    assert union == {"flooded": 8 / 10, "empty": 2 / 5, "right": 1}
    assert {
        name: case["leaves"]["white_matter"]["dice"] for name, case in found.items()
    } == dict.fromkeys(found, 1)
    assert metrics["averages"]["overall"]["known_wrong"]["mean"] == pytest.approx(5 / 24)
    rows = [line for line in per_case(arguments) if line["case"] == "empty"]
    assert {line["known_wrong"] for line in rows} == {"3"}
    assert {line["known_wrong_share"] for line in rows} == {"0.375"}


def test_what_is_ignored_altogether_is_not_known(tmp_path):
    case = evaluate(setup(tmp_path, {"x": row(0, 1, 4, 4)}, {"x": row(0, 1, 2, 3)}, {"x": "full"}))[
        "cases"
    ][0]
    assert (case["known"], case["known_wrong"]) == (2, 0)


def test_the_same_union_is_scored_once(tmp_path, monkeypatch):
    merged = ["white_matter", "corpus_callosum"]
    monkeypatch.setitem(
        PROTOCOLS, "both", {"white_matter": merged, "corpus_callosum": merged, "ignore": merged}
    )
    metrics = evaluate(
        setup(tmp_path, {"x": row(0, 1, 3, 4)}, {"x": row(0, 3, 1, 0)}, {"x": "both"})
    )
    found = scores(metrics)
    assert [found[leaf]["outcome"] for leaf in LEAVES] == [
        "not annotated",
        "absent",
        "not annotated",
    ]
    assert found["white_matter+corpus_callosum"]["dice"] == 4 / 5
    assert set(found) == {*LEAVES, "white_matter+corpus_callosum"}


def test_missed_and_invented_get_the_worst_values(tmp_path):
    arguments = setup(
        tmp_path, {"x": row(1, 1, 0, 0)}, {"x": row(0, 0, 2, 0)}, {"x": "full"}, spacing=(3, 4, 1)
    )
    found = scores(evaluate(arguments))
    diagonal = pytest.approx((9 + 16 + 16) ** 0.5, abs=1e-4)
    for leaf in ("white_matter", "ventricles"):
        assert [found[leaf][name] for name in ("dice", "nsd", "hd95", "hd100", "assd")] == [
            0,
            0,
            *[diagonal] * 3,
        ]
        assert [found[leaf][name] for name in ("iou", "precision", "recall")] == [0, 0, 0]
    assert found["ventricles"]["relative_volume_difference"] is None  # there is no reference
    absent = found["corpus_callosum"]
    assert [absent[name] for name in ("hd95", "dice", "precision")] == [None] * 3
    volumes = ("volume_ref", "volume_pred", "fp_volume", "fn_volume", "absolute_volume_difference")
    assert [absent[name] for name in volumes] == [0] * 5


def test_metrics_by_hand(tmp_path):
    """tp 2, fp 1, fn 2 in voxels of 1 mm; borders after 4 and after 2, and around the false
    positive.
    """
    found = scores(
        evaluate(
            setup(
                tmp_path, {"x": row(1, 1, 1, 1, 0, 0)}, {"x": row(1, 1, 0, 0, 0, 1)}, {"x": "full"}
            ),
            "--tolerance",
            1,
        )
    )["white_matter"]
    assert (found["precision"], found["recall"], found["iou"]) == (2 / 3, 2 / 4, 2 / 5)
    assert (found["fp_volume"], found["fn_volume"]) == (pytest.approx(0.001), pytest.approx(0.002))
    assert found["volume_difference"] == pytest.approx(-0.001)
    assert found["absolute_volume_difference"] == pytest.approx(0.001)
    assert found["relative_volume_difference"] == 1 / 4
    # elements of the reference at 0, 4; of the prediction at 0, 2, 5, 6: distances 0, 1 and 0, 2,
    # 1, 2
    assert (found["hd100"], found["hd95"], found["assd"]) == (2, 2, 1)
    assert found["nsd"] == 4 / 6


def test_tolerance(tmp_path, capsys):
    reference, prediction = np.zeros((6, 6, 6), int), np.zeros((6, 6, 6), int)
    reference[1:5, 1:5, 1:4] = prediction[1:5, 1:5, 1:5] = 1
    arguments = setup(
        tmp_path, {"x": reference}, {"x": prediction}, {"x": "full"}, spacing=(0.4, 0.4, 0.4)
    )
    # 1 mm by default, more than a voxel
    assert scores(evaluate(arguments))["white_matter"]["nsd"] == 1
    assert scores(evaluate(arguments, "--tolerance", 0.3))["white_matter"]["nsd"] < 1
    table = tmp_path / "tolerance.csv"
    table.write_text("label,tolerance\nwhite_matter,0.4\n")
    metrics = evaluate(arguments, "--tolerance", table)
    assert scores(metrics)["white_matter"]["nsd"] == 1
    assert metrics["settings"]["tolerances"] == {"white_matter": 0.4}
    table.write_text("label,tolerance\nwhite_mater,0.4\n")
    assert "did you mean 'white_matter'" in error_of(capsys, arguments, "--tolerance", table)
    table.write_text("label,tolerance\nwhite_matter,0.4\nwhite_matter,4\n")
    assert "'white_matter'" in error_of(capsys, arguments, "--tolerance", table)
    table.write_text("label,tolerance\nwhite_matter,\n")
    assert f"'' of 'white_matter' in {table}" in error_of(capsys, arguments, "--tolerance", table)
    for bad in ("-1", "nan", "inf", "wide"):
        assert f"'{bad}'" in error_of(capsys, arguments, f"--tolerance={bad}")


def test_tolerance_of_a_union(tmp_path, monkeypatch):
    monkeypatch.setitem(PROTOCOLS, "stem", {"ignore": ["white_matter", "ventricles"]})
    ignore = len(LEAVES) + 1
    reference, prediction = np.zeros((6, 6, 6), int), np.zeros((6, 6, 6), int)
    reference[1:5, 1:5, 1:4], prediction[1:5, 1:5, 1:5] = ignore, 1
    arguments = setup(
        tmp_path, {"x": reference}, {"x": prediction}, {"x": "stem"}, spacing=(0.4, 0.4, 0.4)
    )
    table = tmp_path / "tolerance.csv"
    table.write_text("label,tolerance\nwhite_matter+ventricles,0.3\n")
    found = scores(evaluate(arguments, "--tolerance", table))["white_matter+ventricles"]
    assert found["outcome"] == "scored"
    assert 0 < found["nsd"] < 1


def test_regions(tmp_path, capsys):
    """As BraTS is scored: leaves as one, known where their label-sets do not reach across its
    border.
    """
    arguments = setup(
        tmp_path, {"a": row(1, 2, 3, 0, 0), "b": row(1, 4, 4, 0, 0)},
        {"a": row(2, 1, 3, 3, 0), "b": row(0, 3, 2, 0, 0)}, {"a": "full", "b": "basic"},
    )  # fmt: skip
    regions = ("--regions", "inner = ventricles + corpus_callosum", "all=white_matter+ventricles+corpus_callosum",
               "mixed=white_matter+ventricles")  # fmt: skip
    metrics = evaluate(arguments, *regions)
    assert metrics["unions"]["inner"] == ["ventricles", "corpus_callosum"]
    assert [scores(metrics, case)["inner"]["dice"] for case in (0, 1)] == [2 / 5, 1]
    assert [scores(metrics, case)["all"]["dice"] for case in (0, 1)] == [6 / 7, 4 / 5]
    assert [scores(metrics, case)["mixed"]["outcome"] for case in (0, 1)] == [
        "scored",
        "not annotated",
    ]
    for bad in (
        "x=",
        "=liver",
        "white_matter=ventricles",
        "x=background+ventricles",
        "x=ventrcles",
    ):
        assert f"--regions '{bad}'" in error_of(capsys, arguments, "--regions", bad)


def test_a_data_set_with_regions_is_scored_by_region(tmp_path, capsys):
    """Whole contains core; case b has the outer contour only: what is inside may be either leaf."""
    block = {
        "version": 2, "leaves": {"background": 0, "edema": 1, "core": 2}, "cases": {"a": "full", "b": "outer"},
        "protocols": {"full": {}, "outer": {"edema": ["edema", "core"]}},
    }  # fmt: skip
    labels = {"background": 0, "whole": [1, 2], "core": [2], "ignore": 3}
    content = {
        "labels": labels,
        "regions_class_order": [1, 2],
        "label_sets": block,
        "file_ending": ".nii.gz",
    }
    arguments = setup(
        tmp_path,
        {"a": row(0, 1, 2, 2), "b": row(0, 1, 1, 1)},
        {"a": row(0, 2, 2, 1), "b": row(1, 1, 2, 0)},
        {},
    )
    (tmp_path / "data" / "dataset.json").write_text(json.dumps(content))
    metrics = evaluate(arguments)
    assert metrics["leaves"] == ["whole", "core"]
    assert capsys.readouterr().out.startswith("region ")
    assert [scores(metrics, case)["whole"]["dice"] for case in (0, 1)] == [1, 4 / 6]
    assert [scores(metrics, case)["core"]["dice"] for case in (0, 1)] == [2 / 4, None]
    assert scores(metrics, 1)["core"]["outcome"] == "not annotated"
    assert [case["known_wrong"] for case in metrics["cases"]] == [2, 2]
    summary = json.loads((tmp_path / "pred" / "evaluation" / "summary.json").read_text())
    assert set(summary["mean"]) == {"(1, 2)", "2"}


def test_instances(tmp_path, capsys):
    pytest.importorskip("panoptica")
    reference, prediction = np.zeros((12, 12, 12), int), np.zeros((12, 12, 12), int)
    reference[1:4, 1:4, 1:4] = reference[7:10, 7:10, 7:10] = 1
    prediction[1:4, 1:4, 1:3] = prediction[1:2, 9:11, 1:3] = 1
    arguments = setup(
        tmp_path,
        {"x": reference, "y": reference},
        {"x": prediction, "y": 0 * prediction},
        dict.fromkeys("xy", "full"),
    )
    metrics = evaluate(arguments, "--instances", "white_matter")
    found = scores(metrics)["white_matter"]
    assert [found[f"instances_{what}"] for what in ("ref", "pred", "found")] == [2, 2, 1]
    assert found["instance_f1"] == 1 / 2
    assert found["instance_pq"] == pytest.approx(1 / 2 * 18 / 27)
    assert scores(metrics, 1)["white_matter"]["instance_f1"] == 0
    assert scores(metrics)["ventricles"]["instance_f1"] is None
    assert "instance_f1" in metrics["settings"]["metrics"]
    assert "'lesion'" in error_of(capsys, arguments, "--instances", "lesion")


def test_instances_touch_at_corners_in_2d_too():
    pytest.importorskip("panoptica")
    stairs = np.eye(4, dtype=bool)
    for mask in (stairs, stairs[None], stairs[0]):
        assert match_instances(mask, mask) == Instances(1, 1, 1, 1.0)


def test_instances_without_panoptica(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "panoptica", None)
    arguments = setup(tmp_path, {"x": row(0, 1)}, {"x": row(0, 1)}, {"x": "full"})
    assert "panoptica" in error_of(capsys, arguments, "--instances", "white_matter")


def test_all_bad_files_are_named(tmp_path, capsys):
    arrays = {case: row(0, 1, 2, 3) for case in "abc"}
    arguments = setup(tmp_path, arrays, arrays, dict.fromkeys("abc", "full"))
    write_labels(tmp_path / "pred" / "a.nii.gz", row(0, 9, 2, 3))
    (tmp_path / "pred" / "c.nii.gz").write_bytes(b"no image")
    error = error_of(capsys, arguments)
    assert "2 of 3" in error
    assert "a.nii.gz: values 9" in error
    assert "c.nii.gz" in error


def test_without_protocols_a_table_is_offered(tmp_path, capsys):
    arguments = setup(tmp_path, {"a": row(0, 1)}, {"a": row(0, 1)}, {})
    assert "--annotated" in error_of(capsys, arguments)
    (tmp_path / "data" / "dataset.json").write_text(
        json.dumps({"labels": LABELS, "file_ending": ".nii.gz"})
    )
    assert "--annotated" in error_of(capsys, arguments)


def test_a_data_set_must_name_its_file_ending(tmp_path, capsys):
    arguments = setup(tmp_path, {"a": row(0, 1)}, {"a": row(0, 1)}, {"a": "full"})
    file = tmp_path / "data" / "dataset.json"
    content = json.loads(file.read_text())
    del content["file_ending"]
    file.write_text(json.dumps(content))
    assert "'file_ending'" in error_of(capsys, arguments)


def test_full_disk_is_one_line(tmp_path, capsys):
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    arguments = setup(tmp_path, {"a": row(0, 1)}, {"a": row(0, 1)}, {"a": "full"})
    resource = pytest.importorskip("resource")
    import signal

    before, handler = (
        resource.getrlimit(resource.RLIMIT_FSIZE),
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))  # writing fails as on a full disk
    try:
        assert "a.json" in error_of(capsys, arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list((tmp_path / "pred" / "evaluation").rglob("*.json"))


def test_files(tmp_path, capsys):
    from nnunetv2.evaluation.evaluate_predictions import load_summary_json

    references = {"a": row(1, 1, 0, 2), "c": row(1, 1, 0, 2)}
    predictions = {"a": row(1, 0, 0, 2), "c": row(1, 3, 0, 2)}
    arguments = setup(tmp_path, references, predictions, {"a": "full", "c": "feta"})
    (tmp_path / "participants.tsv").write_text("participant_id\tPathology\na\tControl\n")
    metrics = evaluate(
        arguments, "--table", tmp_path / "participants.tsv", "--group-by", "Pathology"
    )
    assert "Pathology: Control, 1 case(s)" in capsys.readouterr().out
    assert metrics["groups"] == {
        "protocol": {"a": "full", "c": "feta"},
        "Pathology": {"a": "Control"},
    }
    groups = metrics["averages"]["groups"]
    assert groups["Pathology"]["Control"]["leaves"]["white_matter"]["dice"]["mean"] == 2 / 3
    assert groups["Pathology"][""]["n_cases"] == 1
    output = tmp_path / "pred" / "evaluation"
    with open(output / "per_case.csv") as file:
        rows = list(csv.DictReader(file))
    union = "white_matter+corpus_callosum"
    assert [row["label"] for row in rows] == [*LEAVES, *LEAVES, union]
    assert (rows[6]["dice"], rows[6]["tolerance"], rows[6]["dice_low"]) == ("1", "1", "1")
    assert rows[5]["dice"] == ""
    with open(output / "averages.csv") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {
        "group_column": "", "group": "", "label": "white_matter", "metric": "dice", "n": "1", "mean": "0.6666667",
        "sd": "", "median": "0.6666667", "low": "", "high": "", "scored": "1", "missed": "0",
        "invented": "0", "absent": "0", "undecided": "0", "not annotated": "1",
    }  # fmt: skip
    summary = load_summary_json(str(output / "summary.json"))
    assert summary["mean"][1]["Dice"] == pytest.approx(2 / 3)
    assert np.isnan(summary["metric_per_case"][1]["metrics"][3]["Dice"])


def test_second_run_continues(tmp_path, capsys):
    predictions = {"a": row(1, 1, 0, 2), "b": row(1, 0, 0, 2)}
    arguments = setup(
        tmp_path,
        {"a": row(1, 1, 0, 2)} | {"b": row(1, 1, 0, 2)},
        predictions,
        {"a": "full", "b": "full"},
    )
    broken = tmp_path / "pred" / "b.nii.gz"
    whole = broken.read_bytes()
    broken.write_bytes(b"no image")
    assert "b.nii.gz" in error_of(capsys, arguments)
    output = tmp_path / "pred" / "evaluation"
    assert [path.name for path in sorted(output.rglob("*"))] == ["cases", "a.json"]
    broken.write_bytes(whole)
    first = evaluate(arguments)
    assert "1 of 2 cases are already scored" in capsys.readouterr().out
    files = {path: path.read_bytes() for path in output.iterdir() if path.is_file()}
    assert evaluate(arguments) == first
    assert "2 of 2" in capsys.readouterr().out
    assert files == {path: path.read_bytes() for path in output.iterdir() if path.is_file()}
    # a changed prediction is scored again
    write_labels(broken, row(0, 0, 0, 2))
    os.utime(broken, ns=(1, 1))
    assert scores(evaluate(arguments), 1)["white_matter"]["outcome"] == "missed"


def test_two_processes_give_the_same(tmp_path):
    rng = np.random.default_rng(0)
    arrays = [{case: rng.integers(0, 4, (4, 5, 6)) for case in "abc"} for _ in range(2)]
    arguments = setup(tmp_path, *arrays, dict.fromkeys("abc", "full"))
    one = evaluate(arguments, "-o", tmp_path / "pred" / "evaluation")
    for file in (tmp_path / "pred" / "evaluation" / "cases").iterdir():
        file.unlink()
    assert evaluate(arguments, "-np", 2) == one


def test_annotated_from_a_table(tmp_path, capsys):
    arguments = setup(
        tmp_path,
        {"a": row(0, 1, 0, 2), "b": row(0, 1, 0, 0)},
        {"a": row(3, 1, 0, 2), "b": row(2, 1, 1, 0)},
        {},
    )
    assert ": 'a', 'b'" in error_of(capsys, arguments)
    table = tmp_path / "annotated.csv"
    table.write_text("case,annotated\na,all\nb,white_matter\n")
    metrics = evaluate(arguments, "--annotated", table)
    assert [scores(metrics)[leaf]["dice"] for leaf in LEAVES] == [1, 1, 0]
    assert [scores(metrics, 1)[leaf]["dice"] for leaf in LEAVES] == [2 / 3, None, None]
    table.write_text("case,protocol\na,full\nb,basic\n")
    assert [case["protocol"] for case in evaluate(arguments, "--annotated", table)["cases"]] == [
        "full",
        "basic",
    ]
    table.write_text("case,annotated\na,all\nb,white_mater\n")
    assert "case 'b'" in error_of(capsys, arguments, "--annotated", table)
    table.write_text("case,protocol\na,fll\n")
    assert "did you mean 'full'" in error_of(capsys, arguments, "--annotated", table)
    for doubled in (
        "case,annotated\na,all\nb,all\na,white_matter\n",
        "case,protocol\na,full\nb,full\na,full\n",
    ):
        table.write_text(doubled)
        assert ": a" in error_of(capsys, arguments, "--annotated", table)
    table.write_text("case,annotated\na,all\nb\n")
    assert "annotated.csv, line 3" in error_of(capsys, arguments, "--annotated", table)
    table.write_text("case,leaves\na,all\n")
    assert "'annotated'" in error_of(capsys, arguments, "--annotated", table)


def test_what_a_table_does_not_list_is_not_scored(tmp_path):
    """Though somebody drew a bit of it: nobody vouches for the rest."""
    arguments = setup(tmp_path, {"a": row(0, 1, 2, 3)}, {"a": row(0, 1, 1, 3)}, {})
    (tmp_path / "annotated.csv").write_text("case,annotated\na,white_matter;corpus_callosum\n")
    found = scores(evaluate(arguments, "--annotated", tmp_path / "annotated.csv"))
    assert found["ventricles"]["outcome"] == "not annotated"
    assert [found[leaf]["dice"] for leaf in LEAVES] == [2 / 3, None, 1]


def test_annotated_from_a_table_needs_no_contract(tmp_path):
    """Labels in any order, no label_sets, and `ignore`, which stays "anything"."""
    arrays = {"a": row(0, 1, 4, 0), "b": row(0, 1, 4, 0)}
    arguments = setup(tmp_path, arrays, {"a": row(0, 1, 1, 2), "b": row(0, 1, 1, 2)}, {})
    content = {"labels": dict(reversed(LABELS.items())), "file_ending": ".nii.gz"}
    (tmp_path / "data" / "dataset.json").write_text(json.dumps(content))
    (tmp_path / "annotated.csv").write_text("case,annotated\na, ventricles ; white_matter\nb,all\n")
    metrics = evaluate(arguments, "--annotated", tmp_path / "annotated.csv")
    assert metrics["cases"][0]["protocol"] == "white_matter;ventricles"
    assert [scores(metrics)[leaf]["dice"] for leaf in LEAVES] == [1, 0, None]
    assert [scores(metrics, 1)[leaf]["dice"] for leaf in LEAVES] == [1, 0, None]
    assert [scores(metrics, n)["corpus_callosum"]["outcome"] for n in (0, 1)] == [
        "not annotated",
        "absent",
    ]


@pytest.mark.parametrize(
    ("geometry", "text"),
    [
        ({"origin": (1.0, 0.0, 0.0)}, "differ in origin"),
        ({"direction": (-1, 0, 0, 0, -1, 0, 0, 0, 1)}, "differ in direction"),
        ({"spacing": (1, 1, 2)}, "differ in spacing"),
    ],
)
def test_other_geometry_is_an_error_that_names_both_files(tmp_path, capsys, geometry, text):
    arguments = setup(tmp_path, {"a": row(0, 1, 0, 2)}, {}, {"a": "full"})
    write_labels(tmp_path / "pred" / "a.nii.gz", row(0, 1, 0, 2), **geometry)
    message = error_of(capsys, arguments)
    assert text in message
    assert str(tmp_path / "data" / "labelsTs" / "a.nii.gz") in message
    assert str(tmp_path / "pred" / "a.nii.gz") in message


def test_other_shape_or_dimension(tmp_path, capsys):
    arguments = setup(tmp_path, {"a": row(0, 1, 0, 2)}, {"a": row(0, 1, 0)}, {"a": "full"})
    assert "size" in error_of(capsys, arguments)


def test_unexpected_values(tmp_path, capsys):
    arguments = setup(tmp_path, {"a": row(0, 1)}, {"a": row(4, 1)}, {"a": "full"})
    assert "a.nii.gz: values 4" in error_of(capsys, arguments)
    write_labels(tmp_path / "data" / "labelsTs" / "a.nii.gz", row(0, 7))
    assert "values 7" in error_of(capsys, arguments)
    write_labels(tmp_path / "data" / "labelsTs" / "a.nii.gz", row(0, 1).astype(np.float32) + 0.25)
    assert "fractional values" in error_of(capsys, arguments)


def test_broken_predictions_are_never_scored(tmp_path, capsys):
    arguments = setup(tmp_path, {"a": np.tile(row(0, 1, 2, 3), (9, 9, 1))}, {}, {"a": "full"})
    prediction = write_labels(tmp_path / "pred" / "a.nii.gz", np.tile(row(0, 1, 2, 3), (9, 9, 1)))
    prediction.write_bytes(prediction.read_bytes()[:-20])
    assert "a.nii.gz" in error_of(capsys, arguments)
    for bad in (np.nan, np.inf):
        write_labels(
            prediction, np.where(row(0, 1, 2, 3) == 2, np.float32(bad), 0).repeat(9, 0).repeat(9, 1)
        )
        assert "a.nii.gz: 81 voxels" in error_of(capsys, arguments)


def test_missing_and_extra_predictions(tmp_path, capsys):
    references = {"a": row(0, 1), "b": row(0, 1)}
    arguments = setup(
        tmp_path, references, {"a": row(0, 1), "z": row(0, 1)}, {"a": "full", "b": "full"}
    )
    assert "--chill" in error_of(capsys, arguments)
    metrics = evaluate(arguments, "--chill")
    assert [case["case"] for case in metrics["cases"]] == ["a"]
    assert (metrics["missing_predictions"], metrics["extra_predictions"]) == (["b"], ["z"])
    write_labels(tmp_path / "pred" / "b.nii.gz", row(0, 1))
    assert ": z" in error_of(capsys, arguments)


def test_bad_arguments(tmp_path, capsys):
    arguments = setup(tmp_path, {"a": row(0, 1)}, {"b": row(0, 1)}, {"a": "full"})
    assert "no case in common" in error_of(capsys, arguments)
    assert "no such folder" in error_of(capsys, [arguments[0], str(tmp_path / "nowhere")])
    assert "no *.nii.gz files" in error_of(capsys, [arguments[0], str(tmp_path)])
    for bad in ("-1", "0", "inf", "nan"):
        assert "--cap" in error_of(capsys, arguments, f"--cap={bad}")
    assert "belong together" in error_of(capsys, arguments, "--group-by", "centre")
    people = tmp_path / "people.csv"
    people.write_text("case,dice,centre\na,8,Leuven\na,8,Zurich\n")
    (tmp_path / "pred" / "b.nii.gz").rename(tmp_path / "pred" / "a.nii.gz")
    grouped = [*arguments, "--table", str(people), "--group-by"]
    assert "--group-by dice" in error_of(capsys, grouped, "dice")
    assert "'Leuven' and 'Zurich'" in error_of(capsys, grouped, "centre")
    write_labels(tmp_path / "pred" / "a.nii.gz", row(0, 1))
    (tmp_path / "file").write_text("")
    assert "Not a directory" in error_of(capsys, arguments, "--chill", "-o", tmp_path / "file")
    (tmp_path / "data" / "dataset.json").unlink()
    assert "-djfile" in error_of(capsys, arguments)
