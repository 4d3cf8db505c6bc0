"""A small study on disk, evaluated, and the elements of a page, for the tests of the report."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from nnunet_labelset.cli import main
from tests.helpers.volumes import write_volume

LABELS = {"background": 0, "left_part": 1, "right_part": 2, "ignore": 3}
PROTOCOLS = {
    "full": {},
    "left only": {"ignore": ["background", "right_part"]},
    "merged": {"left_part": ["left_part", "right_part"]},
}
EVIL = 'c<img src=x onerror="alert(1)">&'  # '/' cannot be in a file name, everything else can
VOID = {"meta", "img", "line", "rect", "br", "input"}


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
    write_volume(path, array, spacing)


def volume() -> np.ndarray:
    array = np.zeros((10, 16, 16), np.uint8)
    array[2:8, 3:13, 2:8] = 1
    array[2:8, 3:13, 8:14] = 2
    return array


def write_study(folder: Path) -> Path:
    """Two methods on four cases of three protocols, evaluated; the first one misses a part of case
    `d`.
    """
    raw = folder / "Dataset001_Tiny"
    cases = {"a": "full", "b": "left only", EVIL: "merged", "d": "full"}
    block = {
        "version": 1,
        "protocols": PROTOCOLS,
        "cases": {**cases, "train_1": "full", "train_2": "left only"},
    }
    raw.mkdir()
    (raw / "dataset.json").write_text(
        json.dumps({"labels": LABELS, "label_sets": block, "file_ending": ".nii.gz"})
    )
    rng = np.random.default_rng(0)
    for number, (case, protocol) in enumerate(cases.items()):
        truth = volume()
        reference = truth.copy()
        if protocol == "left only":
            reference[truth != 1] = 3
        if protocol == "merged":
            reference[truth == 2] = 1
        write(raw / "labelsTs" / f"{case}.nii.gz", reference)
        image = (truth * 50 + rng.normal(100, 5, truth.shape)).astype(np.float32)
        write(raw / "imagesTs" / f"{case}_0000.nii.gz", image)
        for method, shift in (("first", 2 + number), ("second", 1)):
            prediction = np.roll(truth, shift, axis=1)
            if (method, case) == ("first", "d"):
                prediction[prediction == 2] = 0
            write(folder / method / f"{case}.nii.gz", prediction)
    for method in ("first", "second"):
        assert main(["evaluate", str(raw / "labelsTs"), str(folder / method), "-np", "1"]) == 0
    return folder


def log(folder: Path, name: str, epochs: dict[int, float]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stamp = "2026-11-16 10:00:00.000000: "
    lines = ["#### header", ""]
    for epoch, value in epochs.items():
        lines += [
            f"{stamp} Epoch {epoch} ",
            f"{stamp} Current learning rate: 0.01 ",
            f"{stamp} train_loss {value} ",
        ]
        lines += [
            f"{stamp} val_loss nan ",
            f"{stamp} Pseudo dice [np.float32(0.5), nan, np.float64(0.25)] ",
        ]
    (folder / name).write_text("\n".join([*lines, f"{stamp} Epoch {max(epochs) + 1} "]) + "\n")
