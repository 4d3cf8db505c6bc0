"""The report of real evaluations of small volumes; its pictures and curves by hand-made examples."""

from __future__ import annotations

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from nnunet_labelset.cli import main
from nnunet_labelset.evaluation.compare import comparison
from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.evaluation.results import load_results
from nnunet_labelset.nnunet.logs import read_curves
from nnunet_labelset.report.overlays import ERROR_COLOURS, CaseSlices, leaf_colour
from nnunet_labelset.report.plots import line_plot, strip_plot, ticks
from nnunet_labelset.report.result import Result
from nnunet_labelset.report.sections.cases import choose_cases, rank_cases
from tests.helpers.evaluation import made_case, made_evaluation, made_score

LABELS = {"background": 0, "left_part": 1, "right_part": 2, "ignore": 3}
PROTOCOLS = {
    "full": {},
    "left only": {"ignore": ["background", "right_part"]},
    "merged": {"left_part": ["left_part", "right_part"]},
}
EVIL = 'c<img src=x onerror="alert(1)">&'  # '/' cannot be in a file name, everything else can
VOID = {"meta", "img", "line", "rect", "br"}


class Page(HTMLParser):
    """Elements of a page; fails where tags do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def write(path: Path, array: np.ndarray, spacing: tuple[float, ...] = (1, 1, 2)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = sitk.GetImageFromArray(array)
    image.SetSpacing(spacing[: image.GetDimension()])
    sitk.WriteImage(image, str(path))


def volume() -> np.ndarray:
    array = np.zeros((10, 16, 16), np.uint8)
    array[2:8, 3:13, 2:8] = 1
    array[2:8, 3:13, 8:14] = 2
    return array


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two methods on four cases of three protocols, evaluated."""
    raw = tmp_path / "Dataset001_Tiny"
    cases = {"a": "full", "b": "left only", EVIL: "merged", "d": "full"}
    block = {"version": 1, "protocols": PROTOCOLS, "cases": {**cases, "train_1": "full", "train_2": "left only"}}
    raw.mkdir()
    (raw / "dataset.json").write_text(json.dumps({"labels": LABELS, "label_sets": block, "file_ending": ".nii.gz"}))
    rng = np.random.default_rng(0)
    for number, (case, protocol) in enumerate(cases.items()):
        truth = volume()
        reference = truth.copy()
        if protocol == "left only":
            reference[truth != 1] = 3
        if protocol == "merged":
            reference[truth == 2] = 1
        write(raw / "labelsTs" / f"{case}.nii.gz", reference)
        write(
            raw / "imagesTs" / f"{case}_0000.nii.gz", (truth * 50 + rng.normal(100, 5, truth.shape)).astype(np.float32)
        )
        for method, shift in (("first", 2 + number), ("second", 1)):
            write(tmp_path / method / f"{case}.nii.gz", np.roll(truth, shift, axis=1))
    for method in ("first", "second"):
        assert main(["evaluate", str(raw / "labelsTs"), str(tmp_path / method), "-np", "1"]) == 0
    return tmp_path


def make(study: Path, *options: str) -> str:
    target = study / "out" / "report.html"
    names = [f"<script>alert(1)</script>={study / 'first'}", f"second={study / 'second'}"]
    assert main(["report", *names, "-o", str(target), *options]) == 0
    return target.read_text(encoding="utf-8")


def test_report_is_whole_escaped_offline_and_readable_aloud(study: Path) -> None:
    html = make(study, "--worst", "4")
    page = Page(html)
    assert len(page.all("script")) == 1, "names are text"
    assert not [image for image in page.all("img") if not image["src"].startswith("data:image/png;base64,")]
    assert all(image["alt"] for image in page.all("img"))
    assert sum(EVIL in (image["alt"] or "") for image in page.all("img")) == 2 + 2 * 2
    assert all(plot["role"] == "img" and plot["aria-label"] for plot in page.all("svg"))
    assert all(re.match(r"#|file:///", anchor["href"]) for anchor in page.all("a"))
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert not page.all("link")
    assert EVIL in "".join(page.text)
    # All four cases, the median one among the worst: reference, image, and two pictures per method.
    assert len(page.all("img")) == 4 * (2 + 2 * 2)
    anchors = {attributes["id"] for attributes in page.all("section")}
    assert {anchor["href"][1:] for anchor in page.all("a") if anchor["href"].startswith("#")} == anchors
    assert make(study, "--worst", "4") == html, "the same page every time"


def test_table_2_has_the_numbers_of_compare(study: Path) -> None:
    html = make(study)
    results, _ = load_results([f"x={study / 'first'}", f"second={study / 'second'}"])
    for cell in comparison(results, "x").cells:
        if not cell.leaf:
            continue
        metric = METRICS[cell.metric]
        mean, sd = metric.show(cell.mean), metric.show_sd(cell.description)
        shown = f'<span class="best">{mean}</span>{sd}' if cell.best else f"{mean}{sd}"
        assert f'<span title="n = {cell.n}">{shown}</span>' in html


def test_coverage_counts_evaluated_and_other_cases(study: Path) -> None:
    html = make(study, "--worst", "0")
    assert "<img" not in html
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", html[html.index('aria-label="Coverage"') :].split("</table>")[0])
    found = [[re.sub("<.*?>", "", cell) for cell in re.findall(r"<td.*?</td>", row)] for row in rows[1:]]
    other, evaluated = "not evaluated (training)", "evaluated"
    assert found == [
        [other, "full", "1", "1", "1"],
        [other, "left only", "1", "1", "0"],
        [other, "all", "2", "2", "1"],
        [evaluated, "full", "2", "2", "2"],
        [evaluated, "left only", "1", "1", "0"],
        [evaluated, "merged", "1", "0", "0"],
        [evaluated, "all", "4", "3", "2"],
    ]


def test_many_leaves_stand_in_rows(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cells(html: str, name: str) -> list[list[str]]:
        body = html[html.index(f'aria-label="{name}"') :].split("</table>")[0]
        rows = [re.findall(r"(?s)<t[hd].*?</t[hd]>", row) for row in re.findall(r"(?s)<tr.*?</tr>", body)]
        return [[re.sub("<.*?>", "", cell) for cell in row] for row in rows]

    columns = make(study)
    for module in ("comparison", "overview", "cases"):
        monkeypatch.setattr(f"nnunet_labelset.report.sections.{module}.WIDE", 1)
    rows = make(study)
    Page(rows)
    # Coverage without its first columns (part, group, n) is the transposed one without its first column.
    wide, long = cells(columns, "Coverage"), cells(rows, "Coverage")
    assert [row[3:] for row in wide[1:]] == [
        list(column) for column in zip(*[row[1:] for row in long[1:]], strict=True)
    ]
    wide, long = cells(columns, "Table 2"), cells(rows, "Table 2")
    assert {cell for row in wide[1:] for cell in row[2:]} == {cell for row in long[1:] for cell in row[2:]}
    assert [row[:2] for row in long[1:]] == [
        [leaf, metric] for leaf in ("left part", "right part") for metric in ("Dice %", "NSD %", "HD95 mm")
    ]
    wide, long = cells(columns, "By protocol"), cells(rows, "By protocol")
    assert sorted(cell for row in wide[1:] for cell in row[4:]) == sorted(cell for row in long[1:] for cell in row[2:])
    wide, long = cells(columns, "Dice of a"), cells(rows, "Dice of a")
    assert wide == [list(column) for column in zip(*long, strict=True)]


def test_one_result_of_one_case_is_enough(study: Path) -> None:
    for case in ("b", "d", EVIL):
        (study / "second" / f"{case}.nii.gz").unlink()
    evaluated = ["evaluate", str(study / "Dataset001_Tiny" / "labelsTs"), str(study / "second"), "--chill", "--no_hd95"]
    assert main([*evaluated, "-np", "1"]) == 0
    assert main(["report", str(study / "second"), "-o", str(study / "report.html")]) == 0
    html = (study / "report.html").read_text()
    page = Page(html)
    assert "HD95" not in html
    assert 'id="comparison"' not in html
    assert "3 case(s) without prediction" in html
    assert 'href="second/a.nii.gz"' in html, "links inside the folder of the report can be moved with it"
    assert len(page.all("img")) == 4


def test_fully_annotated_data_set(study: Path) -> None:
    description = study / "Dataset001_Tiny" / "dataset.json"
    content = json.loads(description.read_text())
    content["label_sets"] = {"version": 1, "protocols": {"full": {}}, "cases": dict.fromkeys("ad", "full")}
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
    assert "<img" not in html


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
    study: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    target = study / "out.html"
    assert main(["report", str(study / "first"), str(study / "second"), "-o", str(target), *options]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not target.exists()


def pixels(uri: str) -> np.ndarray:
    picture = imread(io.BytesIO(base64.b64decode(uri.split(",")[1])), format="png")
    return np.rint(picture[..., :3] * 255).astype(int)


def has(picture: np.ndarray, colour: str) -> bool:
    return bool((picture == list(bytes.fromhex(colour.removeprefix("#")))).all(-1).any())


def slices(tmp_path: Path, reference: np.ndarray, prediction: np.ndarray, sets: list[set[int]]) -> CaseSlices:
    write(tmp_path / "reference.nii.gz", reference)
    write(tmp_path / "prediction.nii.gz", prediction)
    files = str(tmp_path / "reference.nii.gz"), [str(tmp_path / "prediction.nii.gz")]
    return CaseSlices(*files, [frozenset(labels) for labels in sets], 3, None)


def test_errors_are_what_the_reference_excludes(tmp_path: Path) -> None:
    # values 0, 1, 2 stand for themselves, 3 for background or leaf 2; one voxel for every pair of value and prediction
    reference, prediction = np.meshgrid(np.arange(4), np.arange(3), indexing="ij")
    reference, prediction = (array.astype(np.uint8)[None] for array in (reference, prediction))
    found = slices(tmp_path, reference, prediction, [{0}, {1}, {2}, {0, 2}])
    missed, invented, wrong = 1, 2, 3
    expected = [[0, invented, invented], [missed, 0, wrong], [missed, wrong, 0], [0, wrong, 0]]
    assert found.errors[0][0].tolist() == expected
    assert found.error_counts(0) == {"missed": 2, "invented": 2, "wrong leaf": 3}


def test_unannotated_regions_are_hatched_and_never_errors(tmp_path: Path) -> None:
    truth = volume()
    reference = np.where(truth == 2, 3, truth).astype(np.uint8)
    prediction = np.where(truth == 2, 0, truth).astype(np.uint8)  # wrong, but nobody can know
    found = slices(tmp_path, reference, prediction, [{0}, {1}, {2}, {0, 1, 2}])
    assert not any(has(pixels(found.picture_of_errors(0)), colour) for colour in ERROR_COLOURS.values())
    hatched, plain = pixels(found.picture_of_errors(0)), pixels(found.picture_of_image())
    assert (hatched != plain).any()
    drawn = pixels(found.picture_of_reference())
    assert has(drawn, leaf_colour(1))
    assert not has(drawn, leaf_colour(2))
    complete = slices(tmp_path, truth, prediction, [{0}, {1}, {2}, {0, 1, 2}])
    assert has(pixels(complete.picture_of_errors(0)), ERROR_COLOURS["missed"])
    assert has(pixels(complete.picture_of_reference()), leaf_colour(2))


def test_views_pass_through_the_worst_slices_with_true_proportions(tmp_path: Path) -> None:
    truth = volume()
    prediction = truth.copy()
    prediction[6, 10:13, 2:8] = 0
    prediction[9] = 1  # many more errors, but beside everything that is drawn
    found = slices(tmp_path, truth, prediction, [{0}, {1}, {2}])
    assert found.views == ("axial", "coronal", "sagittal")
    # Everything is cropped to the labelled box and a margin, which here only z and y have room for.
    assert found.slices[0] == 6
    assert found.slices[1] in (10, 11, 12)
    assert found.slices[2] in range(2, 8)
    height, width = pixels(found.picture_of_image()).shape[:2]
    assert height == 230  # coronal and sagittal: 10 voxels of 2 mm are longer than 16 of 1 mm
    assert width == 230 + 2 * round(230 * 16 / 20) + 12


@pytest.mark.parametrize("axes", ["LPS", "RAI", "SAL"])
def test_patients_are_shown_upright_whatever_the_axes_of_the_file(tmp_path: Path, axes: str) -> None:
    head_first = np.zeros((10, 16, 16), np.uint8)
    head_first[1:8, 4:12, 4:12] = 1
    head_first[8:9, 4:12, 4:12] = 2  # the top slice: z grows towards the head
    image = sitk.GetImageFromArray(head_first)
    for name in ("reference", "prediction"):
        sitk.WriteImage(sitk.DICOMOrient(image, axes), str(tmp_path / f"{name}.nii.gz"))
    paths = [str(tmp_path / f"{name}.nii.gz") for name in ("reference", "prediction")]
    found = CaseSlices(paths[0], paths[1:], [frozenset([leaf]) for leaf in range(3)], 3, None)
    coronal = pixels(found.picture_of_prediction(0))[:, 240:460]
    top, rest = (np.nonzero((coronal == list(bytes.fromhex(leaf_colour(n)[1:]))).all(-1))[0] for n in (2, 1))
    assert top.max() < rest.min()


def test_2d_images(tmp_path: Path) -> None:
    reference = volume()[4]
    found = slices(tmp_path, reference, np.roll(reference, 1, axis=0), [{0}, {1}, {2}])
    assert found.views == ("axial",)
    assert has(pixels(found.picture_of_errors(0)), ERROR_COLOURS["missed"])


def result(scores: dict[str, dict[str, float | None]]) -> Result:
    cases = [
        made_case(case, {leaf: made_score({"dice": dice}) for leaf, dice in of.items()}) for case, of in scores.items()
    ]
    return Result("x", Path("x"), made_evaluation(cases))


def test_a_case_with_hard_leaves_only_is_not_worst_for_that() -> None:
    scores = {
        "easy": {"big": 0.90, "small": None},  # -0.04 from the median of big, 0.94
        "hard": {"big": None, "small": 0.50},  # +0.05 from the median of small, 0.45
        "both": {"big": 0.94, "small": 0.40},  # (0 - 0.05) / 2
        "good": {"big": 0.98, "small": None},  # +0.04
        "none": {"big": None, "small": None},
    }
    ranked = rank_cases(result(scores), list(scores))
    assert ranked == ["easy", "both", "good", "hard"]
    assert choose_cases(ranked, 1) == [("worst case", "easy"), ("median case", "good")]
    assert choose_cases(ranked, 3) == [("worst case", "easy"), ("worst case 2", "both"), ("worst case 3", "good")]
    assert choose_cases([], 3) == []


def log(folder: Path, name: str, epochs: dict[int, float]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stamp = "2026-11-16 10:00:00.000000: "
    lines = ["#### header", ""]
    for epoch, value in epochs.items():
        lines += [f"{stamp} Epoch {epoch} ", f"{stamp} Current learning rate: 0.01 ", f"{stamp} train_loss {value} "]
        lines += [f"{stamp} val_loss nan ", f"{stamp} Pseudo dice [np.float32(0.5), nan, np.float64(0.25)] "]
    (folder / name).write_text("\n".join([*lines, f"{stamp} Epoch {max(epochs) + 1} "]) + "\n")


def test_curves_of_interrupted_trainings(tmp_path: Path) -> None:
    fold = tmp_path / "fold_0"
    log(fold, "training_log_2026_9_30_10_00_00.txt", {0: -0.1, 1: -0.2, 2: -0.3, 3: -0.4})
    log(fold, "training_log_2026_10_1_09_00_00.txt", {2: -0.35})  # went on from a checkpoint after epoch 1
    log(tmp_path / "fold_10", "training_log_2026_10_1_09_00_00.txt", {0: 1e-05})
    log(tmp_path / "fold_2", "training_log_2026_10_1_09_00_00.txt", {0: -1})
    (tmp_path / "fold_3").mkdir()
    log(tmp_path / "fold_11", "training_log_2026_10_1_09_00_00.txt", {0: -1, 1: -2})
    (tmp_path / "fold_11" / "training_log_2026_10_1_10_00_00.txt").write_text("2026: Epoch 1 \n")  # has just begun
    curves = read_curves(tmp_path)
    assert [fold.fold for fold in curves] == ["0", "2", "10", "11"]
    assert curves[0].train_loss == {0: -0.1, 1: -0.2, 2: -0.35}
    assert curves[0].val_loss == {0: None, 1: None, 2: None}
    assert curves[0].pseudo_dice == {0: 0.375, 1: 0.375, 2: 0.375}
    assert curves[2].train_loss == {0: 1e-05}
    assert curves[3].train_loss == {0: -1}


def test_curves_of_what_nnunet_itself_logs(tmp_path: Path) -> None:
    from nnunetv2.training.logging.nnunet_logger import MetaLogger
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    logger = MetaLogger(str(tmp_path), False)
    logger.plot_progress_png = lambda folder: None
    (tmp_path / "fold_0").mkdir()
    trainer = SimpleNamespace(
        **{"local_rank": 0, "log_file": str(tmp_path / "fold_0" / "training_log_2026_1_2_03_04_05.txt")},
        **{"logger": logger, "current_epoch": 0, "num_epochs": 2, "save_every": 50, "_best_ema": None},
        **{"output_folder": str(tmp_path), "save_checkpoint": lambda file: None, "lr_scheduler": None},
    )
    trainer.print_to_log_file = lambda *words: nnUNetTrainer.print_to_log_file(
        trainer, *words, also_print_to_console=False
    )
    for epoch in range(2):
        trainer.print_to_log_file(f"Epoch {epoch}")
        logger.log("epoch_start_timestamps", 1.0, epoch)
        logger.log("train_losses", np.float64(-0.5 - epoch), epoch)
        logger.log("val_losses", np.float32(0.25), epoch)
        logger.log("dice_per_class_or_region", [np.float64(0.5), np.float64("nan"), np.float64(1.0)], epoch)
        logger.log("mean_fg_dice", 0.75, epoch)
        nnUNetTrainer.on_epoch_end(trainer)
    (curves,) = read_curves(tmp_path)
    assert curves.train_loss == {0: -0.5, 1: -1.5}
    assert curves.val_loss == {0: 0.25, 1: 0.25}
    assert curves.pseudo_dice == {0: 0.75, 1: 0.75}


def test_report_shows_the_curves(study: Path) -> None:
    for fold in (0, 1):
        log(study / "model" / f"fold_{fold}", "training_log_2026_9_30_10_00_00.txt", {0: -0.1, 1: -0.2})
    html = make(study, "-m", str(study / "model"))
    Page(html)
    assert html.count('<polyline points="') == 2 + 2  # a loss and a pseudo-Dice per fold; the validation loss is NaN


def test_plots_say_what_they_show() -> None:
    plot = strip_plot("a & b", {"m": {"one": 50.0, "two": 100.0, "three": 60.0}, "n": {}}, 0, 100, "%")
    Page(plot)
    assert 'aria-label="a &amp; b, %. m: median 60.0, quartiles 55.0 to 80.0; n: no scores"' in plot
    assert "<title>two: 100.0 %</title>" in plot
    assert line_plot("nothing", [("x", "train", {0: None})], "loss") == ""
    gap = line_plot("gap", [("x", "train", {0: 1.0, 1: None, 2: 1.0})], "loss")
    assert gap.count("<polyline") == 2
    long = line_plot("long", [("x", "train", dict.fromkeys(range(10_000), 1.0))], "loss")
    assert long.count(",", long.index("points"), long.index("</polyline>")) <= 250


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(3, 8))
def test_ticks_are_few_and_inside(low: float, span: float, about: int) -> None:
    found = ticks(low, low + span, about)
    slack = 1e-6 * (abs(low) + span)
    assert 1 <= len(found) <= about + 1
    assert found == sorted(set(found))
    assert all(low - slack <= tick <= low + span + slack for tick in found)
