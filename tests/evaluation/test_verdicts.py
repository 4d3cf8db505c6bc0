"""Verdicts that once were wrong: each test has a prediction that looked better than it is."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nnunet_labelset.cli import main
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.compare import ComparisonOptions, comparison
from nnunet_labelset.evaluation.comparison_tables import markdown_tables
from nnunet_labelset.evaluation.read_results import load_results, read_evaluation
from nnunet_labelset.evaluation.scores import dice_bounds
from nnunet_labelset.evaluation.statistics import agreement, describe, mean_interval, wilcoxon_test
from nnunet_labelset.io.tables import column_of_cases, csv_text
from tests.helpers.evaluation import (
    PROTOCOLS,
    made_case,
    made_evaluation,
    made_score,
    row,
    save_evaluation,
    write_dataset,
    write_labels,
)
from tests.helpers.users import no_root

ENOUGH = ("-np", "1")


class Study:
    """A data set on disk, and methods that predict it."""

    def __init__(self, folder: Path, references: dict, protocol: str = "full", **geometry) -> None:
        self.folder = folder
        self.geometry = geometry
        write_dataset(folder / "data", dict.fromkeys(references, protocol))
        for case, array in references.items():
            write_labels(folder / "data" / "labelsTs" / f"{case}.nii.gz", array, **geometry)

    def predict(self, method: str, predictions: dict) -> None:
        for case, array in predictions.items():
            write_labels(self.folder / method / f"{case}.nii.gz", array, **self.geometry)

    def arguments(self, method: str) -> list[str]:
        return [
            "evaluate",
            str(self.folder / "data" / "labelsTs"),
            str(self.folder / method),
            *ENOUGH,
        ]

    def evaluate(self, method: str, *options: object):
        assert main([*self.arguments(method), *map(str, options)]) == 0
        return read_evaluation(self.folder / method / "evaluation" / "metrics.json")

    def error(self, capsys, method: str, *options: object) -> str:
        assert main([*self.arguments(method), *map(str, options)]) == 1
        text = capsys.readouterr().err
        assert text.count("\n") == 1, text
        return text

    def compare(self, *methods: str, **options):
        results, _ = load_results([str(self.folder / method) for method in methods])
        return comparison(results, ComparisonOptions(methods[0], **options))


@pytest.fixture
def lesions(tmp_path):
    """24 cases, 6 with a lesion; A invents one in all others, B finds most of each lesion."""
    present, empty = row(1, 1, 1, 0, 0, 0), row(0, 0, 0, 0, 0, 0)
    references = {f"{n:02d}": present if n < 6 else empty for n in range(24)}
    study = Study(tmp_path, references)
    study.predict("A", {c: row(1, 1, 1, 0, 0, 0) for c in references})
    study.predict("B", {c: row(1, 1, 0, 0, 0, 0) if int(c) < 6 else empty for c in references})
    return study


def test_inventing_costs_in_compare(lesions):
    own = {method: lesions.evaluate(method) for method in "AB"}
    dice = {m: result.averages.overall.leaves["white_matter"].metrics for m, result in own.items()}
    assert dice["A"]["dice"].mean == 6 / 24
    assert dice["A"]["fp_volume"].mean == pytest.approx(18 * 0.003 / 24)
    metrics = ["dice", "precision", "fp_volume"]
    compared = lesions.compare("A", "B", metrics=metrics)
    cells = {(m, name): compared.cell(m, "white_matter", name) for m in "AB" for name in metrics}
    assert {cell.n for cell in cells.values()} == {24}
    assert cells["A", "dice"].mean == 6 / 24
    assert cells["B", "dice"].mean == pytest.approx((6 * 4 / 5 + 18) / 24)
    assert not cells["A", "dice"].best
    assert cells["B", "dice"].best
    assert cells["A", "precision"].mean == 6 / 24
    assert cells["B", "precision"].mean == 1
    assert cells["A", "fp_volume"].mean == pytest.approx(18 * 0.003 / 24)
    assert cells["A", "fp_volume"].mark == ""  # the baseline
    assert cells["B", "dice"].mark == "better"
    assert cells["B", "dice"].n_absent == 18


def test_nothing_that_a_method_predicts_removes_a_case_for_the_others(lesions):
    """A third method predicts nothing at all, or lesions everywhere: the others keep their
    scores.
    """
    for method in "AB":
        lesions.evaluate(method)
    before = lesions.compare("A", "B").cell("A", "white_matter", "dice")
    for name, array in (("none", row(0, 0, 0, 0, 0, 0)), ("all", row(1, 1, 1, 1, 1, 1))):
        lesions.predict(name, {f"{n:02d}": array for n in range(24)})
        lesions.evaluate(name)
        compared = lesions.compare("A", "B", name)
        for metric in compared.metrics:
            assert compared.cell("A", "white_matter", metric).n == 24
        assert compared.cell("A", "white_matter", "dice").mean == before.mean


def test_a_tie_between_parts_of_a_case_name_names_both_ids(tmp_path, lesions, capsys):
    table = tmp_path / "people.csv"
    table.write_text("id,sex\n01,F\n28,M\n")
    with pytest.raises(LabelSetError, match=r"'01' and '28'.*'ct_01_28'"):
        column_of_cases(table, "sex", ["ct_01_28"])
    table.write_text("id,sex\n01,F\n28,M\nct_01_28,M\nsub-128,F\n")
    cases = ["ct_01_28", "x_sub-128_01"]
    assert column_of_cases(table, "sex", cases) == {"ct_01_28": "M", "x_sub-128_01": "F"}


def test_tolerance_of_nsd_is_not_the_diagonal(tmp_path, capsys):
    """0.7 x 0.7 x 5 mm: a prediction that is 7 pixels too wide is not perfect."""
    reference, prediction = np.zeros((8, 60, 60), int), np.zeros((8, 60, 60), int)
    reference[2:6, 20:40, 20:40] = 1
    prediction[2:6, 13:47, 13:47] = 1
    study = Study(tmp_path, {"a": reference}, spacing=(5, 0.7, 0.7))
    study.predict("x", {"a": prediction})
    score = study.evaluate("x").score("a", "white_matter")
    assert score.values["nsd"] < 0.6
    assert score.tolerance == 1
    assert "tolerance of NSD: 1 mm" in capsys.readouterr().out
    coarse = Study(tmp_path / "coarse", {"a": reference}, spacing=(5, 2.5, 3))
    coarse.predict("x", {"a": prediction})
    evaluation = coarse.evaluate("x")
    assert evaluation.score("a", "white_matter").tolerance == 2.5
    assert "2.5 mm" in capsys.readouterr().out
    with open(tmp_path / "coarse" / "x" / "evaluation" / "per_case.csv") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["tolerance"] == "2.5"
    assert float(rows[0]["worst_distance"]) == pytest.approx(evaluation.cases[0].worst_distance)


def test_regions_do_not_turn_the_ranking(tmp_path, capsys):
    rng = np.random.default_rng(0)
    references = {f"{n}": rng.integers(0, 4, (4, 4, 4)) for n in range(4)}
    study = Study(tmp_path, references)
    for number, method in enumerate("abc"):
        noisy = {}
        for case, array in references.items():
            wrong = rng.random(array.shape) < 0.2 + 0.1 * number
            noisy[case] = np.where(wrong, rng.integers(0, 4, array.shape), array)
        study.predict(method, noisy)
    regions = ["one=white_matter+ventricles", "two=white_matter+corpus_callosum"]
    for method in "abc":
        study.evaluate(method)
    before = study.compare(*"abc")
    for method in "abc":
        study.evaluate(method, "--regions", *regions)
    after = study.compare(*"abc")
    assert set(after.unions) == {"one", "two"}
    assert after.ranks == before.ranks
    for metric in before.metrics:
        for method in "abc":
            means = [each.cell(method, None, metric).mean for each in (before, after)]
            assert means[0] == means[1]
    for same in ("twin=ventricles+white_matter", "single=ventricles"):
        error = study.error(capsys, "a", "--regions", *regions, same)
        assert f"'{same}'" in error


def test_regions_of_one_name_and_other_labels_are_not_compared(tmp_path):
    """The label that makes the difference is in no reference: all counts agree."""
    study = Study(tmp_path, {"a": row(1, 1, 0, 0), "b": row(1, 0, 0, 0)})
    for method, region in (("x", "white_matter+ventricles"), ("y", "white_matter+corpus_callosum")):
        study.predict(method, {"a": row(1, 1, 2, 2), "b": row(1, 2, 2, 0)})
        study.evaluate(method, "--regions", f"own={region}")
    with pytest.raises(LabelSetError, match=r"'own'.*'y'"):
        study.compare("x", "y")


def test_found_needs_overlap(tmp_path):
    """One voxel far away has found nothing; its distances are what they are."""
    reference, prediction = np.zeros((3, 3, 30), int), np.zeros((3, 3, 30), int)
    reference[1, 1, 28] = prediction[1, 1, 1] = 1
    study = Study(tmp_path, {"a": reference, "b": reference})
    study.predict("x", {"a": prediction, "b": reference})
    study.predict("y", {"a": reference, "b": reference})
    for method in "xy":
        study.evaluate(method)
    compared = study.compare("x", "y")
    detection = {
        entry.method: entry for entry in compared.detection if entry.leaf == "white_matter"
    }
    assert (detection["x"].found, detection["x"].missed) == (1, 1)
    assert (detection["y"].found, detection["y"].missed) == (2, 0)


def test_a_prediction_without_known_surface_is_the_worst(tmp_path, monkeypatch):
    """All of its surface lies beside voxels that may be white matter or not."""
    monkeypatch.setitem(PROTOCOLS, "disputed", {"ignore": ["white_matter", "ventricles"],
                                                "white_matter": ["white_matter"]})  # fmt: skip
    reference = np.zeros((3, 3, 12), int)
    reference[1, 1, 1] = reference[1, 1, 8] = 1
    reference[0:3, 0:3, 7:10] = 4
    reference[1, 1, 8] = 1
    prediction = np.zeros_like(reference)
    prediction[1, 1, 8] = 1
    study = Study(tmp_path, {"a": reference, "b": reference}, protocol="disputed")
    for method, array in (("x", prediction), ("y", np.where(reference == 1, 1, 0))):
        study.predict(method, {"a": array, "b": array})
        study.evaluate(method)
    results, _ = load_results([str(tmp_path / method) for method in "xy"])
    score = results["x"].score("a", "white_matter")
    diagonal = math.hypot(3, 3, 12)
    assert (score.outcome, score.tp) == ("scored", 1)
    assert score.values["hd95"] == pytest.approx(diagonal, abs=1e-4)
    assert score.values["nsd"] == 0
    assert study.compare("x", "y").cell("y", "white_matter", "hd95").n == 2


def test_every_distance_is_capped_not_only_the_mean(tmp_path):
    """A lesion beside which one voxel is predicted 20 mm away: its distances count as 5 mm."""
    reference, prediction = np.zeros((3, 3, 40), int), np.zeros((3, 3, 40), int)
    reference[1, 1, 1] = prediction[1, 1, 1] = prediction[1, 1, 30] = 1
    study = Study(tmp_path, {"a": reference})
    study.predict("x", {"a": prediction})
    values = study.evaluate("x", "--cap", "5").score("a", "white_matter").values
    assert values["hd100"] == values["hd95"] == 5
    assert values["assd"] == pytest.approx(5 / 3, abs=1e-4)  # two surfaces of 0 mm, one of 5 mm


def test_volumes_of_a_label_that_is_not_annotated_are_no_part_of_its_average(tmp_path):
    study = Study(tmp_path, {"a": row(2, 2, 2, 0), "b": row(0, 0, 0, 4)})
    write_dataset(tmp_path / "data", {"a": "full", "b": "basic"})
    study.predict("x", {"a": row(2, 2, 0, 0), "b": row(2, 0, 0, 0)})
    metrics = study.evaluate("x").averages.overall.leaves["ventricles"].metrics
    assert (metrics["volume_ref"].n, metrics["volume_pred"].n) == (1, 1)
    assert metrics["volume_ref"].mean == pytest.approx(0.003)


def test_what_is_only_disputed_is_undecided(tmp_path, monkeypatch):
    """1,000 voxels may be one or the other; they are predicted exactly, and one voxel beside."""
    monkeypatch.setitem(PROTOCOLS, "disputed", {"ignore": ["white_matter", "ventricles"],
                                                "white_matter": ["white_matter"]})  # fmt: skip
    reference = np.zeros((12, 12, 12), int)
    reference[1:11, 1:11, 1:11] = 4
    prediction = np.where(reference == 4, 1, 0)
    prediction[0, 0, 0] = 1
    study = Study(tmp_path, {"a": reference}, protocol="disputed")
    study.predict("x", {"a": prediction})
    score = study.evaluate("x").score("a", "white_matter")
    assert score.outcome == "undecided"
    assert score.values["dice"] is None
    assert (score.dice_low, score.dice_high) == (0, pytest.approx(2000 / 2001))
    # plain ignore is masked out, as in nnU-Net: what is invented elsewhere costs
    study = Study(tmp_path / "plain", {"a": reference})
    study.predict("x", {"a": prediction})
    assert study.evaluate("x").score("a", "white_matter").outcome == "invented"


def test_one_mean_everywhere(tmp_path, capsys):
    """Dice of two labels; case b has one of them: 75 and 50, not the mean of all three or of the
    labels.
    """
    references = {"a": row(1, 1, 2, 0), "b": row(1, 1, 0, 0), "c": row(1, 1, 2, 0)}
    study = Study(tmp_path, references)
    predictions = {"a": row(1, 1, 2, 2), "b": row(1, 0, 0, 0), "c": row(1, 1, 2, 0)}
    study.predict("x", predictions)
    study.predict("y", references)
    expected = ((1 + 2 / 3) / 2 + 2 / 3 + 1) / 3
    own = study.evaluate("x")
    study.evaluate("y")
    assert own.averages.overall.mean["dice"].mean == pytest.approx(expected)
    assert f"{100 * expected:.1f}" in capsys.readouterr().out
    compared = study.compare("x", "y")
    assert compared.cell("x", None, "dice").mean == pytest.approx(expected)
    assert f"{100 * expected:.1f}" in markdown_tables(compared)
    for methods in (["x"], ["x", "y"]):
        page = tmp_path / "report.html"
        folders = [str(tmp_path / method) for method in methods]
        assert main(["report", *folders, "-o", str(page), "--worst", "0"]) == 0
        assert f"{100 * expected:.1f}" in page.read_text()


def test_origins_are_compared_along_each_axis(tmp_path, capsys):
    study = Study(tmp_path, {"a": np.ones((4, 20, 20), int)}, spacing=(1, 0.001, 0.001))
    study.geometry["origin"] = (0.009, 0, 0)  # nine voxels
    study.predict("x", {"a": np.ones((4, 20, 20), int)})
    assert "origin" in study.error(capsys, "x")


def test_mirrored_references_are_not_compared(tmp_path, capsys):
    array = np.zeros((4, 6, 8), int)
    array[1:3, 1:4, 1:4] = 1
    one = Study(tmp_path / "one", {"a": array, "b": array})
    two = Study(tmp_path / "two", {"a": array[..., ::-1], "b": array[..., ::-1]})
    for study in (one, two):
        study.predict("x", {"a": array, "b": array})
        study.evaluate("x")
    folders = [f"{name}={tmp_path / name / 'x'}" for name in ("one", "two")]
    capsys.readouterr()
    assert main(["compare", *folders, "-o", str(tmp_path / "out")]) == 1
    assert "case 'a'" in capsys.readouterr().err


def test_one_folder_twice_is_an_error(tmp_path, capsys):
    Study(tmp_path, {"a": row(0, 1)})
    folder = str(tmp_path / "data" / "labelsTs")
    os.symlink(folder, tmp_path / "link")
    for other in (folder, str(tmp_path / "link")):
        assert main(["evaluate", folder, other, *ENOUGH]) == 1
        assert "same folder" in capsys.readouterr().err


def test_one_run_at_a_time_writes_a_folder(tmp_path, capsys):
    study = Study(tmp_path, {"a": row(0, 1)})
    study.predict("x", {"a": row(0, 1)})
    output = tmp_path / "x" / "evaluation"
    code = (
        "import sys, time; from pathlib import Path\n"
        "from nnunet_labelset.evaluation.score_folder import locked_output\n"
        "with locked_output(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(output)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "held\n"
        assert str(output) in study.error(capsys, "x")
        assert not (output / "metrics.json").exists()
    finally:
        other.kill()
        other.wait()
    study.evaluate("x")


def test_bounds_are_the_extremes_over_all_references():
    """Against every reference that fits: each of the open voxels in it or not."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        tp, fp, fn, predicted, elsewhere = map(int, rng.integers(0, 3, 5))
        dice = []
        for inside in range(predicted + 1):
            for more in range(elsewhere + 1):
                hits = tp + inside
                size = (tp + fp + predicted) + (tp + fn + inside + more)
                dice.append(2 * hits / size if size else 1.0)  # rightly nothing
        low, high = dice_bounds(tp, fp, fn, predicted, elsewhere)
        if tp + fp + fn + predicted + elsewhere == 0:
            assert (low, high) == (None, None)
        else:
            assert (low, high) == (pytest.approx(min(dice)), pytest.approx(max(dice)))


def test_patients_with_several_cases(tmp_path, capsys):
    """Four cases of one patient are no four patients."""
    references = {f"s{n // 4}_{n}": row(1, 1, 1, 0) for n in range(12)}
    study = Study(tmp_path, references)
    study.predict("x", {case: row(1, 1, 0, 0) for case in references})
    study.predict("y", references)
    table = tmp_path / "people.csv"
    lines = [f"{case},{case.partition('_')[0]}" for case in references]
    table.write_text("\n".join(["case,patient", *lines]) + "\n")
    options = ("--table", table, "--subject", "patient")
    for method in "xy":
        study.evaluate(method, *options)
    compared = study.compare("x", "y")
    test = next(t for t in compared.tests if t.leaf == "white_matter" and t.metric == "dice")
    assert (test.n_pairs, test.p) == (3, 2 / 2**3)
    assert compared.n_subjects == 3
    assert "3 patients" in " ".join(compared.notes)
    study.evaluate("x")
    with pytest.raises(LabelSetError, match="--subject"):
        study.compare("x", "y")
    table.write_text("\n".join(["case,patient", *lines[1:]]) + "\n")
    assert "s0_0" in study.error(capsys, "x", *options)


def test_cluster_intervals_by_hand():
    """Two cases each of four patients: the t interval of the patients' means."""
    values = np.array([0.1, 0.3, 0.4, 0.6, 0.5, 0.9, 0.8, 1.0])
    patients = ["a", "a", "b", "b", "c", "c", "d", "d"]
    means = values.reshape(4, 2).mean(1)
    reach = 3.182446 * means.std(ddof=1) / 2  # t of 3 degrees of freedom
    expected = (means.mean() - reach, means.mean() + reach)
    assert mean_interval(values, patients) == pytest.approx(expected)
    many = [f"{n // 2}" for n in range(80)]
    spread = np.random.default_rng(0).normal(size=40).repeat(2)
    low, high = mean_interval(spread, many)
    single_low, single_high = mean_interval(spread[::2])
    assert (low, high) == pytest.approx((single_low, single_high), abs=0.02)
    naive_low, naive_high = mean_interval(spread)
    assert high - low > 1.3 * (naive_high - naive_low)
    assert wilcoxon_test([0] * 80, spread.tolist(), many).n_pairs == 40


def test_few_cases_have_students_interval():
    values = [0.5, 0.7, 0.9]
    description = describe(values, interval=True)
    reach = 4.302653 * 0.2 / math.sqrt(3)
    assert (description.low, description.high) == pytest.approx((0.7 - reach, 0.7 + reach))


def test_agreement_by_hand():
    found = agreement([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])
    assert (found.n, found.bias, found.low, found.high) == (3, 1.0, 1.0, 1.0)
    assert found.ccc == pytest.approx(2 * (2 / 3) / (2 / 3 + 2 / 3 + 1))
    assert agreement([], []) is None


def test_non_inferiority():
    def method(level):
        cases = [
            made_case(f"{n:02d}", {"liver": made_score({"dice": level + n / 1000})})
            for n in range(10)
        ]
        return made_evaluation(cases)

    results = {"base": method(0.8), "close": method(0.795), "far": method(0.7)}
    compared = comparison(results, ComparisonOptions("base", margins={"dice": 0.02}))
    verdicts = {test.b: test.non_inferior for test in compared.tests if test.baseline and test.leaf}
    assert verdicts == {"close": True, "far": False}
    with pytest.raises(LabelSetError, match="hd95"):
        comparison(results, ComparisonOptions("base", margins={"hd95": 1}))


def test_margin_is_read_in_the_unit_of_the_table(tmp_path, capsys):
    cases = [made_case(f"{n}", {"liver": made_score({"dice": 0.5 + n / 10})}) for n in range(3)]
    folders = [save_evaluation(tmp_path / name, made_evaluation(cases)) for name in "ab"]
    out = ("-o", str(tmp_path / "out"))
    assert main(["compare", *folders, *out, "--margin", "dice=2"]) == 0
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["margins"] == {
        "dice": 0.02
    }
    for bad in ("dice", "dice=-1", "dce=2", "volume_ref=1"):
        capsys.readouterr()
        assert main(["compare", *folders, *out, "--margin", bad]) == 1
        assert bad in capsys.readouterr().err


def test_failures_are_listed(lesions, capsys):
    lesions.evaluate("A", "--failures-below", 30)
    assert "Dice below 30 %: 18" in capsys.readouterr().out
    with open(lesions.folder / "A" / "evaluation" / "failures.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["outcome"] for row in rows} == {"invented"}
    assert len(rows) == 18


def test_broken_links_are_one_line(tmp_path, capsys):
    study = Study(tmp_path, {"a": row(0, 1), "b": row(0, 1)})
    study.predict("x", {"a": row(0, 1)})
    for target in ("nowhere.nii.gz", "b.nii.gz"):  # dangling; a loop
        link = tmp_path / "x" / "b.nii.gz"
        link.unlink(missing_ok=True)
        os.symlink(target, link)
        assert "b.nii.gz" in study.error(capsys, "x")


@pytest.mark.parametrize("closed", ["x", "x/evaluation", "x/evaluation/metrics.json"])
def test_folders_without_permission_are_one_line(tmp_path, capsys, closed):
    study = Study(tmp_path, {"a": row(0, 1)})
    study.predict("x", {"a": row(0, 1)})
    study.evaluate("x")
    path = str(tmp_path / "x")
    commands = [
        [verb, path, path, "-o", str(tmp_path / "o.html")] for verb in ("compare", "report")
    ]
    if closed == "x":
        commands.append(study.arguments("x"))
    for command in commands:
        main(command)  # imports what it needs while it may
    capsys.readouterr()
    (tmp_path / closed).chmod(0)
    try:
        with no_root(tmp_path):
            for command in commands:
                assert main(command) == 1
                (line,) = capsys.readouterr().err.splitlines()
                assert path in line
    finally:
        (tmp_path / closed).chmod(0o755)


def test_a_closed_folder_around_is_one_line(tmp_path, capsys):
    """Of the report to write, and of the predictions: these were called missing."""
    study = Study(tmp_path, {"a": row(0, 1)})
    study.predict("x", {"a": row(0, 1)})
    study.evaluate("x")
    closed = tmp_path / "closed"
    (closed / "y").mkdir(parents=True)
    commands = [
        ["report", str(tmp_path / "x"), "-o", str(closed / "o.html")],
        study.arguments("closed/y"),
    ]
    main(["report", str(tmp_path / "x"), "-o", str(tmp_path / "o.html")])  # imports what it needs
    main(commands[1])
    capsys.readouterr()
    closed.chmod(0)
    try:
        with no_root(tmp_path):
            for command in commands:
                assert main(command) == 1
                (line,) = capsys.readouterr().err.splitlines()
                assert str(closed) in line
                assert "Permission denied" in line
    finally:
        closed.chmod(0o755)


def test_a_report_without_permission_for_the_references_has_no_pictures(tmp_path, capsys):
    study = Study(tmp_path, {"a": row(0, 1), "b": row(0, 1)})
    study.predict("x", {"a": row(0, 1), "b": row(0, 1)})
    study.evaluate("x")
    references = study.folder / "data" / "labelsTs"
    target = tmp_path / "out" / "o.html"
    command = ["report", str(tmp_path / "x"), "-o", str(target)]
    assert main(command) == 0
    target.unlink()
    target.parent.chmod(0o777)
    references.chmod(0)
    try:
        with no_root(tmp_path):
            assert main(command) == 0
    finally:
        references.chmod(0o755)
    assert "No pictures" in target.read_text()


def test_a_cached_case_that_lacks_a_label_is_scored_again(tmp_path):
    study = Study(tmp_path, {"a": row(0, 1)})
    study.predict("x", {"a": row(0, 1)})
    before = study.evaluate("x")
    cached = tmp_path / "x" / "evaluation" / "cases" / "a.json"
    content = json.loads(cached.read_text())
    del content["result"]["leaves"]["ventricles"]
    cached.write_text(json.dumps(content))
    assert study.evaluate("x") == before


def test_leftovers_of_a_killed_run_are_removed(tmp_path):
    study = Study(tmp_path, {"a": row(0, 1)})
    study.predict("x", {"a": row(0, 1)})
    study.evaluate("x")
    output = tmp_path / "x" / "evaluation"
    left = [output / ".0123456789abcdef.json", output / "cases" / ".0123456789abcdef.json"]
    mine = output / ".mine.json"
    for path in (*left, mine):
        path.write_text("half")
    study.evaluate("x")
    assert [path.exists() for path in (*left, mine)] == [False, False, True]


def test_csv_cells_are_no_formulas():
    text = csv_text(["case"], [["=1+1"], ["@x"], ["-lead"], [-1.5], [None], ["good"]])
    assert text.splitlines() == ["case", "'=1+1", "'@x", "'-lead", "-1.5", '""', "good"]


def test_names_that_differ_by_an_underscore_stay_two():
    leaves = {name: made_score({"dice": 0.5}) for name in ("a_b", "a b", "c_d")}
    results = {m: made_evaluation([made_case(f"{n}", leaves) for n in range(2)]) for m in "xy"}
    head = markdown_tables(comparison(results, "x")).splitlines()[0]
    assert "| a\\_b | a b | c d |" in head


def test_old_spelling_works_with_a_note(tmp_path, capsys):
    study = Study(tmp_path, {"a": row(0, 1)})
    study.predict("x", {"a": row(0, 1)})
    metrics = study.evaluate("x", "--no_hd95").settings.metrics
    assert "--no-surfaces" in capsys.readouterr().err
    assert "hd95" not in metrics


def test_results_of_version_2_are_read(tmp_path):
    """A union under a label becomes a structure of its own; groups and tolerances are kept."""
    counts = {"tp": 9, "fp": 1, "fn": 1, "tn": 5, "n_ref": 10, "n_pred": 10}
    union = {"outcome": "scored", "union": ["liver", "spleen"], "dice": 0.9, **counts}
    hidden = {"outcome": "unannotated", "union": None, "dice": None, **counts}
    absent = {"outcome": "absent_in_both", "union": None, "dice": None, **counts}
    cases = [
        {
            "case": name,
            "protocol": "p",
            "reference_file": "r",
            "prediction_file": "p",
            "shape": [4, 4, 4],
            "spacing": [1.0, 1.0, 1.0],
            "known": 16,
            "known_wrong": 1,
            "known_wrong_volume": 0.001,
            "files": [],
            "meaning": "m",
            "groups": {"protocol": "p", "sex": "F"},
            "leaves": {"liver": first, "spleen": second},
        }
        for name, first, second in (("a", union, hidden), ("b", {**union, "union": None}, absent))
    ]
    settings = {
        "reference_folder": "r",
        "prediction_folder": "p",
        "dataset_json": "d",
        "annotated": None,
        "file_ending": ".nii.gz",
        "metrics": ["dice"],
        "cap": None,
        "tolerance": {"": 2.0, "liver": 1.0},
    }
    content = {
        "version": 2,
        "settings": settings,
        "labels": {"liver": 1, "spleen": 2},
        "leaves": ["liver", "spleen"],
        "unions": {},
        "group_columns": ["protocol", "sex"],
        "missing_predictions": [],
        "extra_predictions": [],
        "cases": cases,
        "averages": {},
    }
    save_evaluation(tmp_path, content)
    found = read_evaluation(tmp_path / "metrics.json")
    assert found.value("a", "liver+spleen", "dice") == 0.9
    assert found.score("a", "liver").outcome == "not annotated"
    assert found.score("b", "spleen").outcome == "absent"
    assert found.averages.overall.leaves["liver"].metrics["dice"].n == 1
    assert found.groups["sex"] == {"a": "F", "b": "F"}
    assert (found.settings.tolerance, found.settings.tolerances) == (2.0, {"liver": 1.0})
    del content["cases"][0]["leaves"]["liver"]["union"]
    save_evaluation(tmp_path, content)
    with pytest.raises(LabelSetError, match=r"metrics\.json"):
        read_evaluation(tmp_path / "metrics.json")
