"""The report of real evaluations of small volumes: whole, escaped, offline, readable aloud, and
small at any size.
"""

from __future__ import annotations

import json
import re
import resource
from pathlib import Path

import numpy as np
import pytest

from nnunet_labelset.cli import main
from nnunet_labelset.evaluation.compare import comparison
from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.evaluation.read_results import load_results
from nnunet_labelset.evaluation.score_folder import measurement_notes
from nnunet_labelset.report.build import build_report
from nnunet_labelset.report.labels import strips_section
from nnunet_labelset.report.page import Report, asset
from tests.helpers.evaluation import made_case, made_evaluation, made_score
from tests.helpers.report import EVIL, Page, log, write_study


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A study that no test changes, and its report."""
    study = write_study(tmp_path_factory.mktemp("study"))
    return study, make(study)


def make(study: Path, *options: str) -> str:
    target = study / "out" / "report.html"
    names = [f"<script>alert(1)</script>={study / 'first'}", f"second={study / 'second'}"]
    assert main(["report", *names, "-o", str(target), *options]) == 0
    return target.read_text(encoding="utf-8")


def cells(html: str, name: str) -> list[list[str]]:
    """The text of a table."""
    body = html[html.index(f'aria-label="Table: {name}"') :].split("</table>")[0]
    rows = [
        re.findall(r"(?s)<t[hd][ >].*?</t[hd]>", row)
        for row in re.findall(r"(?s)<tr.*?</tr>", body)
    ]
    return [[re.sub("<.*?>", "", cell) for cell in row] for row in rows]


def scores_data(html: str) -> dict:
    return json.loads(re.search('id="scores-data">(.*?)</script>', html)[1])


def test_report_is_whole_escaped_offline_and_readable_aloud(made: tuple[Path, str]) -> None:
    study, _ = made
    html = make(study, "--worst", "4")
    page = Page(html)
    assert [script.get("type") for script in page.all("script")] == ["application/json", None], (
        "names are text"
    )
    assert EVIL in "".join(page.text)
    assert EVIL in scores_data(html)["cases"]
    layers = page.all("image")
    assert all(image["href"].startswith("data:image/webp;base64,") for image in layers)
    assert len(layers) == 4 * (1 + 1 + 2 * 3), (
        "image, reference, and per method a prediction, contours and errors"
    )
    assert {use["href"][1:] for use in page.all("use")} == {image["id"] for image in layers}
    assert len({image["id"] for image in layers}) == len(layers)
    assert all(
        plot.get("aria-hidden") or (plot["role"] == "img" and plot["aria-label"])
        for plot in page.all("svg")
    )
    assert all(figure["data-name"] for figure in page.all("figure"))
    assert all(re.match(r"#|file:///", anchor["href"]) for anchor in page.all("a"))
    assert not [
        name for _, attributes in page.elements for name in attributes if name.startswith("on")
    ]
    assert not page.all("link")
    assert not page.all("img")
    anchors = {attributes["id"] for attributes in page.all("section")} | {"main"}
    links = {anchor["href"][1:] for anchor in page.all("a") if anchor["href"].startswith("#")}
    drawn = {area["id"] for area in page.all("div") if area.get("class") == "case"}
    assert anchors <= links <= anchors | drawn
    assert page.all("a")[0]["class"] == "skip"
    areas = [area for area in page.all("div") if area.get("class") == "scroll"]
    assert all(
        area["tabindex"] == "0" and area["role"] == "region" and area["aria-label"]
        for area in areas
    )
    assert html.count("<tbody") >= len(areas)
    assert html.count('<th scope="row"') >= html.count("<tr>") - html.count("<thead>")
    assert make(study, "--worst", "4") == html, "the same page every time"


def test_the_answer_stands_first(made: tuple[Path, str]) -> None:
    study, html = made
    titles = re.findall('<h2 id="(.*?)-title">', html)
    assert titles[:4] == ["answer", "headline", "all_scores", "comparison"]
    (sentence,) = re.findall('<ul class="answer"><li>(.*?)</li>', html)
    assert re.search(r"Dice \+31\.7 \[.*\], higher in 3 of 3 cases, p = 0\.25", sentence)
    assert sentence.startswith("Nothing can be said about second")  # three cases prove nothing
    found = {row[0]: row[1:] for row in cells(html, "Overview")}
    assert re.fullmatch(r"[\d.]+ \[[\d.]+, [\d.]+\]", found["Dice %"][0])
    # annotated: both parts in a and d, the left one in b, in the third case nothing but a union of
    # both
    results, _ = load_results([str(study / "first"), str(study / "second")])
    what = "Labels and unions" if results["first"].unions else "Labels"
    for column, result in enumerate(results.values()):
        for outcome, word in (
            ("scored", "found"),
            ("missed", "missed"),
            ("invented", "invented"),
        ):
            counted = sum(
                score.outcome == outcome for case in result.cases for score in case.leaves.values()
            )
            assert found[f"{what} {word}"][column] == str(counted)
        shares = [case.known_wrong_share for case in result.cases]
        assert found["Known wrong %"][column].startswith(f"{100 * np.mean(shares):.2f}")
    assert found[f"{what} missed"] == ["1", "0"]


def test_comparison_has_the_numbers_and_the_notes_of_compare(made: tuple[Path, str]) -> None:
    study, html = made
    results, _ = load_results(
        [f"<script>alert(1)</script>={study / 'first'}", f"second={study / 'second'}"]
    )
    compared = comparison(results, "<script>alert(1)</script>")
    text = "".join(Page(html).text)
    for note in compared.notes:
        assert note in text
    for cell in compared.cells:
        if cell.leaf in compared.leaves and cell.mean is not None:
            metric = METRICS[cell.metric]
            mean = (
                f'<span class="best">{metric.show(cell.mean)}</span>'
                if cell.best
                else metric.show(cell.mean)
            )
            assert f"{mean}{metric.show_sd(cell)}" in html


def test_marks_are_of_the_cases_that_the_mean_counts(tmp_path: Path) -> None:
    """A invents a lesion where B rightly predicts nothing: marks and median of B left that out."""
    found, invented = (
        made_score({"dice": 0.8}),
        made_score({"dice": 0.0}, n_ref=0, outcome="invented"),
    )
    absent = made_score({}, n_ref=0, outcome="absent")
    results = {}
    for method, elsewhere in (("A", invented), ("B", absent)):
        scores = [found, found, elsewhere, elsewhere, elsewhere]
        cases = [made_case(f"{n}", {"lesion": score}) for n, score in enumerate(scores)]
        results[method] = made_evaluation(cases)
    compared = comparison(results, "A")
    report = Report(results, {}, tmp_path, compared=compared)
    html = strips_section(report)
    assert re.findall(r">([AB]) \(n = (\d+)", html) == [("A", "5"), ("B", "5")]
    assert re.findall(r"([AB]): median ([\d.]+)", html) == [("A", "0.0"), ("B", "100.0")]
    assert compared.cell("B", "lesion", "dice").n == 5


def test_unions_have_their_own_rows(made: tuple[Path, str]) -> None:
    """The merged protocol does not tell left from right."""
    _, html = made
    data = scores_data(html)
    union = data["structures"].index("left part+right part")
    values = data["metrics"][0]["values"][0].split(",")
    scored = [
        case
        for number, case in enumerate(data["cases"])
        if values[number * len(data["structures"]) + union]
    ]
    assert scored == [EVIL]


def test_all_scores_are_in_the_page(made: tuple[Path, str]) -> None:
    study, html = made
    data = scores_data(html)
    results, _ = load_results(
        [f"<script>alert(1)</script>={study / 'first'}", f"second={study / 'second'}"]
    )
    assert data["methods"] == list(results)
    for metric, of_metric in zip(("dice", "nsd", "hd95"), data["metrics"], strict=True):
        for result, text in zip(results.values(), of_metric["values"], strict=True):
            expected = [
                result.value(case, leaf, metric)
                for case in data["cases"]
                for leaf in result.structures
            ]
            found = [float(number) / 100 if number else None for number in text.split(",")]
            scaled = [
                None if value is None else round(METRICS[metric].scale * value, 2)
                for value in expected
            ]
            assert found == pytest.approx(scaled, abs=0.011)
    missed = data["words"].index("missed")
    place = data["cases"].index("d") * len(data["structures"]) + data["structures"].index(
        "right part"
    )
    assert data["outcomes"][0][place] == str(missed)
    # Without scripts: the worst rows, that one first.
    first = cells(html, "All scores")[1]
    assert first[:3] == ["d", "right part", "0.0 missed"]
    assert "<noscript>" in html


def test_missed_is_a_cross(made: tuple[Path, str]) -> None:
    assert made[1].count('class="crosses m0"') == 3, "one in each of dice, nsd and hd95"


def test_failures_link_to_the_pictures(made: tuple[Path, str]) -> None:
    """The missed part of case d is the first failure; its case is drawn, and the link leads there."""
    study, _ = made
    html = make(study, "--cases", "d")
    failures = cells(html, "Failures")
    assert failures[1][0] == "d"
    assert failures[1][3:] == ["missed", "0.0"]
    (target,) = set(re.findall('<a href="#(case[0-9]+)">d</a>', html))
    assert f'<div class="case" id="{target}"><h3>d ' in html
    other = make(study, "--cases", "a")
    assert cells(other, "Failures")[1][0] == "d", "listed, but not drawn"
    assert ">d</a>" not in other.split('id="failures"')[1].split("</section>")[0]


def test_groups_have_intervals_and_tests(study: Path) -> None:
    """By hand: site x has the cases a, b and d, site y one case without an interval."""
    (study / "sites.csv").write_text("case,site\na,x\nb,x\nd,x\n")
    references = study / "Dataset001_Tiny" / "labelsTs"
    options = ["--table", str(study / "sites.csv"), "--group-by", "site", "-np", "1"]
    for method in ("first", "second"):
        assert main(["evaluate", str(references), str(study / method), *options]) == 0
    rows = [
        row for row in cells(make(study, "--worst", "0"), "Means by site") if row[2] == "Dice %"
    ]
    by_group = {(row[0], row[1]): row[3:] for row in rows}
    results, _ = load_results([f"one={study / 'first'}", f"two={study / 'second'}"])
    compared = comparison(results, "one")
    (score,) = [
        score
        for score in compared.groups
        if (score.column, score.group, score.metric, score.method) == ("site", "x", "dice", "two")
    ]
    n, mean, difference, p = by_group["x", "second"]
    assert int(n) == score.n == 3
    assert score.difference is not None
    assert mean.startswith(f"{100 * score.mean:.1f} [")
    assert difference.startswith(f"{100 * score.difference.mean_difference:+.1f} [")
    assert float(p) == score.difference.p == 0.25, "three differences on one side: 2 / 2**3"
    assert by_group["x", "&lt;script&gt;alert(1)&lt;/script&gt;"][2:] == ["&ndash;", "&ndash;"]
    assert "[" not in by_group["(not known)", "second"][1], "one case has no interval"


def test_coverage_counts_evaluated_and_other_cases(made: tuple[Path, str]) -> None:
    _, html = made
    other, evaluated = "not evaluated (training)", "evaluated"
    assert cells(html, "Coverage")[1:] == [
        [other, "full", "1", "1", "1"],
        [other, "left only", "1", "1", "0"],
        [other, "all", "2", "2", "1"],
        [evaluated, "full", "2", "2", "2"],
        [evaluated, "left only", "1", "1", "0"],
        [evaluated, "merged", "1", "0", "0"],
        [evaluated, "all", "4", "3", "2"],
    ]


def test_many_leaves_stand_in_rows(made: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    study, columns = made
    for module in ("cases", "labels", "overview"):
        monkeypatch.setattr(f"nnunet_labelset.report.{module}.WIDE", 1)
    rows = make(study)
    Page(rows)
    # Coverage without its first columns (part, group, n) is the transposed one without its first
    # column.
    wide, long = cells(columns, "Coverage"), cells(rows, "Coverage")
    assert [row[3:] for row in wide[1:]] == [
        list(column) for column in zip(*[row[1:] for row in long[1:]], strict=True)
    ]
    wide, long = cells(columns, "Comparison"), cells(rows, "Comparison")
    assert {cell for row in wide[1:] for cell in row[2:] if cell} == {
        cell for row in long[1:] for cell in row[2:]
    }
    assert [row[1] for row in long[1:4]] == ["Dice %", "NSD %", "HD95 mm"]
    assert "n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}" in long[1][0]
    assert rows.count("<details>") > columns.count("<details>"), "long tables are folded"
    wide, long = cells(columns, "Labels by protocol"), cells(rows, "Labels by protocol")
    assert sorted(cell for row in wide[1:] for cell in row[4:]) == sorted(
        cell for row in long[1:] for cell in row[2:]
    )
    wide, long = cells(columns, "Dice of a"), cells(rows, "Dice of a")
    assert wide == [list(column) for column in zip(*long, strict=True)]


def test_what_distances_depend_on_is_told_of_a_single_result(study: Path) -> None:
    """The tolerance of NSD and the distance of a missed label stood in comparisons only."""
    assert main(["report", str(study / "first"), "-o", str(study / "one.html")]) == 0
    evaluation = load_results([str(study / "first")])[0]["first"]
    html = (study / "one.html").read_text()
    assert 'id="comparison"' not in html
    for note in measurement_notes(evaluation.cases):
        assert note in html
    assert re.search(r"NSD: [\d.]+ mm", html)
    assert f"{evaluation.cases[0].worst_distance:.3g} mm" in html


def test_one_result_of_one_case_is_enough(study: Path) -> None:
    for case in ("b", "d", EVIL):
        (study / "second" / f"{case}.nii.gz").unlink()
    evaluated = [
        "evaluate",
        str(study / "Dataset001_Tiny" / "labelsTs"),
        str(study / "second"),
        "--chill",
        "--no-surfaces",
    ]
    assert main([*evaluated, "-np", "1"]) == 0
    assert main(["report", str(study / "second"), "-o", str(study / "report.html")]) == 0
    html = (study / "report.html").read_text()
    page = Page(html)
    assert "HD95" not in html
    assert 'id="comparison"' not in html
    assert "3 case(s) without prediction" in html
    assert 'href="second/a.nii.gz"' in html, (
        "links inside the folder of the report can be moved with it"
    )
    assert len(page.all("image")) == 1 + 1 + 3


def test_chosen_cases_are_drawn(made: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    study, _ = made
    assert "<image" not in make(study, "--worst", "0")
    html = make(study, "--cases", "b", "a")
    assert re.findall("<h3>(.) &ndash; asked for</h3>", html) == ["b", "a"]
    names = [str(study / "first"), str(study / "second")]
    assert main(["report", *names, "-o", str(study / "x.html"), "--cases", "aa"]) == 1
    assert "--cases aa: not in all result sets" in capsys.readouterr().err


def test_fully_annotated_data_set(study: Path) -> None:
    description = study / "Dataset001_Tiny" / "dataset.json"
    content = json.loads(description.read_text())
    content["label_sets"] = {
        "version": 1,
        "protocols": {"full": {}},
        "cases": dict.fromkeys("ad", "full"),
    }
    description.write_text(json.dumps(content))
    references = study / "Dataset001_Tiny" / "labelsTs"
    for case in ("b", EVIL):
        (references / f"{case}.nii.gz").unlink()
    assert main(["evaluate", str(references), str(study / "first"), "--chill", "-np", "1"]) == 0
    assert main(["report", str(study / "first"), "-o", str(study / "report.html")]) == 0
    assert "label-sets (their leaves" not in (study / "report.html").read_text()


def test_moved_files_cost_the_pictures_only(study: Path) -> None:
    (study / "first" / "a.nii.gz").unlink()
    html = make(study)
    assert "No pictures:" in html
    assert "first/a.nii.gz: no such file" in html
    (study / "Dataset001_Tiny" / "dataset.json").unlink()
    html = make(study)
    assert "dataset.json: no such file" in html
    assert "<image" not in html


def test_stale_scores_are_named_first(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "out of date" not in make(study, "--worst", "0")
    file = study / "second" / "a.nii.gz"
    file.write_bytes(file.read_bytes() + b"0")
    capsys.readouterr()
    html = make(study, "--worst", "0")
    warning = html.index(
        "Scores are out of date:</strong> &#39;second&#39;: changed prediction of a"
    )
    assert warning < html.index("<main"), "before any number"
    assert "changed prediction of a" in capsys.readouterr().err


def test_regions_stand_beside_the_leaves(study: Path) -> None:
    references = study / "Dataset001_Tiny" / "labelsTs"
    for method in ("first", "second"):
        scored = [
            "evaluate",
            str(references),
            str(study / method),
            "--regions",
            "both=left_part+right_part",
        ]
        assert main([*scored, "-np", "1"]) == 0
    html = make(study, "--worst", "0")
    Page(html)
    assert "both" in scores_data(html)["structures"]
    assert any(cell.startswith("both") for cell in cells(html, "Comparison")[0])
    assert "both (left part + right part)" in html
    assert '<figure data-name="dice both">' in html


def test_a_data_set_with_regions_is_reported_by_region(study: Path) -> None:
    description = study / "Dataset001_Tiny" / "dataset.json"
    content = json.loads(description.read_text())
    content["labels"] = {"background": 0, "whole": [1, 2], "core": 2, "ignore": 3}
    content["regions_class_order"] = [1, 2]
    protocols = {"full": {}, "left only": {"ignore": ["background", "right_part"]}}
    protocols["merged"] = {"left_part": ["left_part", "right_part"]}
    leaves = {"background": 0, "left_part": 1, "right_part": 2}
    content["label_sets"] |= {"version": 2, "leaves": leaves, "protocols": protocols}
    description.write_text(json.dumps(content))
    for method in ("first", "second"):
        assert (
            main(
                [
                    "evaluate",
                    str(study / "Dataset001_Tiny" / "labelsTs"),
                    str(study / method),
                    "-np",
                    "1",
                ]
            )
            == 0
        )
    html = make(study, "--worst", "1")
    page = Page(html)
    assert scores_data(html)["structures"] == ["whole", "core"]
    assert cells(html, "Coverage")[0][3:] == ["left part", "right part", "whole", "core"]
    assert "whole (union)" not in html
    assert not any("u = " in cell for cell in cells(html, "Comparison")[0])
    assert page.all("image"), "pictures show leaves"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "report.txt"], "expected the name of an .html file"),
        (["--baseline", "secnd"], "did you mean 'second'"),
        (["-m", "."], "no fold_*/training_log_*.txt"),
        (["--worst", "-1"], "--worst"),
        (["--alpha", "1"], "--alpha"),
    ],
)
def test_bad_input_is_one_line(
    made: tuple[Path, str], capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    study, _ = made
    target = study / "out.html"
    assert (
        main(["report", str(study / "first"), str(study / "second"), "-o", str(target), *options])
        == 1
    )
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not target.exists()


def broken(content: dict, kind: str) -> object:
    """A metrics.json that somebody or something has spoiled."""
    if kind == "list":
        return [content]
    if kind == "cases is a number":
        return {**content, "cases": 3}
    if kind == "no cases":
        return {**content, "cases": []}
    if kind == "a case is text":
        return {**content, "cases": ["a"]}
    if kind == "a case without leaves":
        return {**content, "cases": [{"case": "a"}]}
    if kind == "leaves is null":
        return {**content, "leaves": None}
    if kind == "settings is empty":
        return {**content, "settings": {}}
    if kind == "averages are text":
        return {**content, "averages": "x"}
    if kind == "a score is text":
        content["cases"][0]["leaves"]["left_part"]["dice"] = "good"
        return content
    if kind == "an unknown outcome":
        content["cases"][0]["leaves"]["left_part"]["outcome"] = "fine"
        return content
    return {**content, "version": 99}


KINDS = [
    "list",
    "cases is a number",
    "no cases",
    "a case is text",
    "a case without leaves",
    "leaves is null",
]
KINDS += [
    "settings is empty",
    "averages are text",
    "a score is text",
    "an unknown outcome",
    "another version",
]


def test_malformed_results_are_one_line_each(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = study / "first" / "evaluation" / "metrics.json"
    whole = file.read_text()
    texts = [json.dumps(broken(json.loads(whole), kind)) for kind in KINDS] + [
        whole[:500],
        "",
        "\x00",
    ]
    for text in texts:
        file.write_text(text)
        capsys.readouterr()
        code = main(
            ["report", str(study / "first"), str(study / "second"), "-o", str(study / "r.html")]
        )
        error = capsys.readouterr().err
        assert code == 1, text[:80]
        assert error.count("\n") == 1, text[:80]
        assert str(file) in error
    assert not (study / "r.html").exists()


def test_a_full_disk_is_one_line_and_leaves_nothing(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit on the size of files acts in the middle of writing, as a full disk does."""
    names = [str(study / "first"), str(study / "second")]
    target = study / "out" / "report.html"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        code = main(["report", *names, "-o", str(target), "--worst", "0"])  # no pictures
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 1
    error = capsys.readouterr().err
    assert str(target) in error
    assert error.count("\n") == 1
    assert list(target.parent.iterdir()) == []


def test_report_shows_the_curves(made: tuple[Path, str]) -> None:
    study, _ = made
    for fold in (0, 1):
        log(
            study / "model" / f"fold_{fold}",
            "training_log_2026_9_30_10_00_00.txt",
            {0: -0.1, 1: -0.2},
        )
    html = make(study, "-m", str(study / "model"))
    Page(html)
    # a loss and a pseudo-Dice per fold; the validation loss is NaN
    assert html.count('<polyline points="') == 2 + 2


def test_size_grows_with_numbers_not_with_elements() -> None:
    """75 more cases of 20 leaves: ten elements a case, its row in the table of files, and 20 bytes
    a score.
    """
    rng = np.random.default_rng(0)
    leaves = [f"leaf_{number}" for number in range(20)]

    def html(cases: int) -> str:
        made = []
        for case in range(cases):
            scores = zip(leaves, rng.random(20), strict=True)
            made.append(
                made_case(
                    f"c{case}", {leaf: made_score({"dice": float(dice)}) for leaf, dice in scores}
                )
            )
        report = Report({"x": made_evaluation(made)}, {"x": "metrics.json"}, Path("/"), worst=0)
        return build_report(report, "Big")

    small, large = html(25), html(100)
    assert len(Page(large).elements) - len(Page(small).elements) <= 75 * 10
    assert len(large) - len(small) < 75 * (20 * 20 + 500)


def test_assets_are_for_every_reader() -> None:
    style, script = asset("page.css"), asset("page.js")
    assert "prefers-color-scheme: dark" in style
    assert "@media print" in style
    assert "break-inside: avoid" in style
    assert "flex-wrap: wrap" in style
    assert "</script" not in script
    assert not re.search(
        r"https?://(?!www\.w3\.org/)", style + script + asset("figures.css") + asset("page.html")
    )
