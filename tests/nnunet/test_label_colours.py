"""Names and colours of labels, as viewers read them."""

from __future__ import annotations

import re

from nnunet_labelset.cli import main
from nnunet_labelset.commands import predict
from nnunet_labelset.io.files import write_json
from nnunet_labelset.nnunet.label_colours import ITK_SNAP, SLICER, label_names, write_label_colours

# One line of a label description file, as ITK-SNAP documents it.
LINE = re.compile(r'(\d+) (\d+) (\d+) (\d+) ([01]) ([01]) ([01]) "([^"]*)"')


def test_every_value_has_a_name_and_a_colour(tmp_path):
    labels = {"background": 0, "liver": 2, 'left "big" kidney': 1, "ignore": 3}
    write_label_colours(tmp_path, {"labels": labels})
    title, *lines = (tmp_path / ITK_SNAP).read_text().splitlines()
    assert title == "# ITK-SnAP Label Description File"  # by which some viewers know the format
    rows = [LINE.fullmatch(line) for line in lines]
    assert all(rows)
    assert [(row[1], row[8]) for row in rows] == [
        ("0", "Clear Label"),
        ("1", "left 'big' kidney"),
        ("2", "liver"),
    ]
    comment, *lines = (tmp_path / SLICER).read_text().splitlines()
    assert comment.startswith("#")
    cells = [line.split() for line in lines]
    assert [row[0] for row in cells] == ["0", "1", "2"]
    assert [len(row) for row in cells] == [6, 6, 6]
    colours = {tuple(row[2:5]) for row in cells}
    assert len(colours) == 3
    assert all(0 <= int(number) <= 255 for colour in colours for number in colour)


def test_regions_have_the_names_of_what_they_write():
    plain = {"labels": {"background": 0, "whole": [1, 2], "core": 2}, "regions_class_order": [1, 2]}
    assert label_names(plain) == {1: "whole", 2: "core"}
    block = {
        "version": 2,
        "leaves": {"background": 0, "edema": 1, "core": 2},
        "protocols": {"full": {}},
        "cases": {"a": "full"},
    }
    assert label_names({**plain, "label_sets": block}) == {1: "edema", 2: "core"}


def test_predict_writes_them_beside_its_predictions(tmp_path, monkeypatch):
    def stand_in(command: str, typed: str, arguments: list[str]) -> None:
        write_json(tmp_path / "dataset.json", {"labels": {"background": 0, "liver": 1}})

    monkeypatch.setattr(predict, "forward", stand_in)
    monkeypatch.setattr(predict, "prediction_arguments", list)
    words = [
        "predict",
        "-i",
        "images",
        "-o",
        str(tmp_path),
        "-d",
        "1",
        "-c",
        "2d",
        "-device",
        "cpu",
    ]
    assert main(words) == 0
    assert "liver" in (tmp_path / ITK_SNAP).read_text()
    assert "liver" in (tmp_path / SLICER).read_text()
