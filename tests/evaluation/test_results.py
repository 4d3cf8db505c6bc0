"""What evaluate hands to compare and report: read back as written, checked once, and not older than
its files.
"""

from __future__ import annotations

import copy
import json
import os

import numpy as np
import pytest

from nnunet_labelset.cli import main
from nnunet_labelset.evaluation.read_results import read_evaluation
from nnunet_labelset.io.records import to_json
from tests.helpers.evaluation import (
    made_case,
    made_evaluation,
    made_score,
    row,
    save_evaluation,
    write_dataset,
    write_labels,
)


def good() -> dict:
    cases = [
        made_case(f"case_{n}", {"liver": made_score({"dice": 0.5 + n / 10})}) for n in range(3)
    ]
    return json.loads(json.dumps(to_json(made_evaluation(cases))))


def test_read_back_as_written(tmp_path):
    cases = [
        made_case(f"case_{n}", {"liver": made_score({"dice": 0.5 + n / 10})}) for n in range(3)
    ]
    made = made_evaluation(cases)
    save_evaluation(tmp_path, made)
    assert read_evaluation(tmp_path / "metrics.json") == made


def test_a_metric_that_is_newer_than_the_file(tmp_path, capsys):
    """Results of many trainings stay readable when a metric is added; comparing by it asks for a
    new evaluation.
    """
    old = good()
    for case in old["cases"]:
        for score in case["leaves"].values():
            del score["assd"]
    arguments = [save_evaluation(tmp_path / name, old) for name in ("a", "b")]
    assert read_evaluation(arguments[0] + "/metrics.json").value("case_0", "liver", "assd") is None
    assert main(["compare", *arguments, "-o", str(tmp_path / "out")]) == 0
    assert main(["report", *arguments, "-o", str(tmp_path / "out.html")]) == 0
    assert main(["compare", *arguments, "-o", str(tmp_path / "out"), "--metrics", "assd"]) == 1
    assert (
        "'assd' was not computed for all result sets: evaluate them again with it"
        in capsys.readouterr().err
    )


def changed(path: str, value: object = None) -> dict:
    """A good metrics.json with one entry replaced, or removed for `...`."""
    content: dict = copy.deepcopy(good())
    keys = [int(key) if key.isdigit() else key for key in path.split("/")]
    place = content
    for key in keys[:-1]:
        place = place[key]
    if value is ...:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    return content


MALFORMED = {
    "no settings": (changed("settings", ...), "'settings' is missing"),
    "settings is a list": (changed("settings", []), "settings: expected an object, but got []"),
    "cases is a number": (changed("cases", 3), "cases: expected a list, but got 3"),
    "no cases": (changed("cases", []), "no cases"),
    "a case is a text": (
        changed("cases/1", "case_1"),
        "cases[1]: expected an object, but got 'case_1'",
    ),
    "a case twice": (changed("cases/1", good()["cases"][0]), "listed more than once: case_0"),
    "a leaf without scores": (
        changed("cases/2/leaves/liver", ...),
        "case 'case_2': no scores of liver",
    ),
    "a score is a text": (
        changed("cases/0/leaves/liver/dice", "0.5"),
        "leaves.liver.dice: expected a number",
    ),
    "a score is NaN": (
        changed("cases/0/leaves/liver/dice", float("nan")),
        "leaves.liver.dice: expected a number",
    ),
    "a metric is missing": (
        changed("cases/0/leaves/liver/dice", ...),
        "case 'case_0', liver: 'dice' is missing",
    ),
    "a count is true": (
        changed("cases/0/leaves/liver/tp", True),
        "leaves.liver.tp: expected an integer, but got True",
    ),
    "an unknown outcome": (
        changed("cases/0/leaves/liver/outcome", "good"),
        "but got 'good'",
    ),
    "an unknown leaf": (
        changed("cases/0/leaves/liver ", good()["cases"][0]["leaves"]["liver"]),
        "unknown labels",
    ),
    "leaves is a text": (changed("leaves", "liver"), "leaves: expected a list, but got 'liver'"),
    "no averages": (changed("averages/overall/leaves", {}), "averages: 'liver' is missing"),
    "a group is gone": (changed("groups", {}), "groups: 'protocol' is missing"),
    "another version": (changed("version", 1), "expected version 3, got 1"),
    "a version of many digits": (changed("version", 10**3000), "expected version 3, got 1000"),
    "unknown metrics": (changed("settings/metrics", ["dice", "speed"]), "unknown metrics speed"),
}


@pytest.mark.parametrize("kind", MALFORMED)
@pytest.mark.parametrize("verb", ["compare", "report"])
def test_malformed_is_one_line(tmp_path, capsys, kind, verb):
    content, message = MALFORMED[kind]
    arguments = [
        save_evaluation(tmp_path / "good", good()),
        save_evaluation(tmp_path / "bad", content),
    ]
    assert main([verb, *arguments, "-o", str(tmp_path / "out.html")]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "bad/metrics.json" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out.html").exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 100_000, '{"version": 2', "\udcff", '{"version": ' + "9" * 5000 + "}"]
)
def test_no_json_is_one_line(tmp_path, capsys, text):
    (tmp_path / "metrics.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert main(["compare", str(tmp_path), f"b={tmp_path}", "-o", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert "metrics.json" in error
    assert error.count("\n") == 1


def test_all_bad_result_sets_are_named(tmp_path, capsys):
    one = save_evaluation(tmp_path / "one", changed("cases", 3))
    assert main(["compare", one, str(tmp_path / "two"), "-o", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert "one/metrics.json: cases" in error
    assert "two: " in error


def test_names_may_hold_equal_signs(tmp_path, capsys):
    folder = tmp_path / "epochs=5"
    folder.mkdir()
    arguments = [
        f"alpha=2={save_evaluation(tmp_path / 'a', good())}",
        save_evaluation(folder, good()),
    ]
    assert main(["compare", *arguments, "-o", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["methods"] == [
        "alpha=2",
        "epochs=5",
    ]
    capsys.readouterr()


@pytest.fixture
def scored(tmp_path, capsys):
    write_dataset(tmp_path / "data", {"a": "full", "b": "full"})
    for case in "ab":
        write_labels(tmp_path / "data" / "labelsTs" / f"{case}.nii.gz", row(0, 1, 2, 3))
        for method in ("x", "y"):
            write_labels(tmp_path / method / f"{case}.nii.gz", row(0, 1, 2, 0))
    for method in ("x", "y"):
        assert (
            main(
                [
                    "evaluate",
                    str(tmp_path / "data" / "labelsTs"),
                    str(tmp_path / method),
                    "-np",
                    "1",
                ]
            )
            == 0
        )
    capsys.readouterr()
    return tmp_path


def compared(folder, capsys) -> tuple[int, str]:
    code = main(["compare", str(folder / "x"), str(folder / "y"), "-o", str(folder / "out")])
    return code, capsys.readouterr().err


def test_stale_scores_are_named(scored, capsys):
    assert compared(scored, capsys)[0] == 0
    write_labels(scored / "y" / "b.nii.gz", row(3, 3, 3, 3))
    os.utime(scored / "y" / "b.nii.gz", ns=(1, 1))
    code, error = compared(scored, capsys)
    assert code == 1
    assert "'y': changed prediction of b" in error
    assert main(["evaluate", str(scored / "data" / "labelsTs"), str(scored / "y"), "-np", "1"]) == 0
    assert compared(scored, capsys)[0] == 0
    write_dataset(scored / "data", {"a": "full", "b": "feta"})
    code, error = compared(scored, capsys)
    assert code == 1
    assert "'x': changed protocol of b; 'y': changed protocol of b" in error


def test_files_that_were_moved_cannot_be_asked(scored, capsys):
    (scored / "data").rename(scored / "elsewhere")
    assert compared(scored, capsys)[0] == 0


def test_many_methods_are_ranked(tmp_path, capsys):
    rng = np.random.default_rng(0)
    folders = []
    for method, level in (("good", 0.9), ("middle", 0.8), ("bad", 0.3)):
        cases = [
            made_case(
                f"case_{n}",
                {leaf: made_score({"dice": level + rng.uniform(0, 0.02)}) for leaf in "ab"},
            )
            for n in range(8)
        ]
        folders.append(save_evaluation(tmp_path / method, made_evaluation(cases)))
    assert main(["compare", *folders, "-o", str(tmp_path / "out")]) == 0
    assert "1.00 (100 %)" in capsys.readouterr().out
    content = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [rank["mean_rank"] for rank in content["ranks"]] == [1, 2, 3]
    assert [rank["first"] for rank in content["ranks"]] == [1, 0, 0]
