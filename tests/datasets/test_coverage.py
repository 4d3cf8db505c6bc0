"""`coverage`: Table 1 of the paper from the contract alone, in every form."""

from __future__ import annotations

import csv
import os
import subprocess
import sys

import pytest

from nnunet_labelset import Contract, LabelSetError
from nnunet_labelset.cli import main
from nnunet_labelset.datasets.coverage import (
    CoverageRow,
    coverage_table,
    describe_label_sets,
    format_table,
)
from nnunet_labelset.datasets.coverage_picture import draw_coverage
from nnunet_labelset.io.files import read_json, write_json
from tests.helpers.conversion import LEAVES
from tests.helpers.small_dataset import write_dataset

# The training part of the paper's Table 1; the controls differ case by case.
NUMBERS = {
    "atlas": 18,
    "controls": 62,
    "controls_csf": 36,
    "controls_csf_cc": 18,
    "spina_bifida": 30,
}
PROTOCOLS = {
    "atlas": {},
    "controls": {"ignore": LEAVES[4:]},
    "controls_csf": {"ignore": LEAVES[5:]},
    "controls_csf_cc": {"ignore": LEAVES[5:8]},
    "spina_bifida": {"ignore": LEAVES[4:]},
}


@pytest.fixture
def paper():
    cases = {
        f"{protocol}_{i}": protocol for protocol, number in NUMBERS.items() for i in range(number)
    }
    labels = {**{leaf: value for value, leaf in enumerate(LEAVES)}, "ignore": 9}
    block = {"version": 1, "protocols": PROTOCOLS, "cases": cases}
    return Contract.from_dataset_json({"labels": labels, "label_sets": block})


def test_table_1_of_the_paper(paper):
    groups = {case: protocol.split("_")[0] for case, protocol in paper.cases.items()}
    rows = coverage_table(paper, groups=groups)
    assert [(row.group, row.cases, *row.counts.values()) for row in rows] == [
        ("atlas", 18, 18, 18, 18, 18, 18, 18, 18, 18),
        ("controls", 116, 116, 116, 116, 54, 0, 0, 0, 18),
        ("spina", 30, 30, 30, 30, 0, 0, 0, 0, 0),
        ("all", 164, 164, 164, 164, 72, 18, 18, 18, 36),
    ]
    assert [row.cases for row in coverage_table(paper)] == [*NUMBERS.values(), 164]


def test_chosen_cases(paper):
    (row,) = coverage_table(paper, cases=["atlas_0", "atlas_1"])
    assert (row.group, row.cases, row.counts["brainstem"]) == ("atlas", 2, 2)
    with pytest.raises(LabelSetError, match="atlas_99"):
        coverage_table(paper, cases=["atlas_99"])


def test_text(paper):
    assert format_table(coverage_table(paper, cases=["atlas_0", "controls_csf_1"])) == (
        "                                                               cortical    deep\n"
        "                      white                          external      gray    gray           "
        "    corpus\n"
        "group         cases  matter  ventricles  cerebellum       csf    matter  matter  "
        "brainstem  callosum\n"
        "------------  -----  ------  ----------  ----------  --------  --------  ------  "
        "---------  --------\n"
        "atlas             1       1           1           1         1         1       1          "
        "1         1\n"
        "controls_csf      1       1           1           1         1         0       0          "
        "0         0\n"
        "all               2       2           2           2         2         1       1          "
        "1         1\n"
    )
    line = "  controls_csf_cc: 'ignore' voxels may be cortical_gray_matter or deep_gray_matter or brainstem\n"
    assert line in describe_label_sets(paper)


def test_many_leaves_go_into_rows():
    labels = {"background": 0, **{f"organ_{i}": i for i in range(1, 60)}}
    block = {"version": 1, "protocols": {"p": {}}, "cases": {"a": "p"}}
    text = format_table(
        coverage_table(Contract.from_dataset_json({"labels": labels, "label_sets": block}))
    )
    assert ["organ_59", "1"] in [line.split() for line in text.splitlines()]
    assert max(map(len, text.splitlines())) < 40


def test_markdown_and_csv_have_the_same_cells(paper):
    rows = coverage_table(paper)
    markdown = [
        line.strip("| ").split(" | ") for line in format_table(rows, "markdown").splitlines()
    ]
    assert markdown.pop(1) == ["---", *["---:"] * 9]
    assert markdown == list(csv.reader(format_table(rows, "csv").splitlines()))
    assert len(markdown) == 1 + len(rows)
    with pytest.raises(LabelSetError, match=r"text, markdown, csv.*html"):
        format_table(rows, "html")


@pytest.mark.parametrize("name", ["deep/coverage.png", "coverage.svg"])
def test_picture(paper, tmp_path, name):
    draw_coverage(coverage_table(paper), tmp_path / name, "Paper")
    content = (tmp_path / name).read_bytes()
    assert content.startswith(b"\x89PNG") if name.endswith("png") else b"<svg" in content
    assert [path.name for path in (tmp_path / name).parent.iterdir()] == [name.split("/")[-1]]


class TestCommand:
    def test_on_screen(self, tmp_path, capsys):
        folder = write_dataset(tmp_path)
        assert main(["coverage", "-d", str(folder)]) == 0
        out = capsys.readouterr().out
        lines = [line.split() for line in out.splitlines()]
        assert ["training", "no_spleen", "2", "2", "0", "0"] in lines
        assert ["training", "merged", "2", "0", "0", "2"] in lines
        assert ["training", "all", "6", "4", "2", "4"] in lines
        assert ["test", "full", "1", "1", "1", "1"] in lines
        assert "merged: 'liver' voxels may be liver or tumour" in out

    def test_groups_from_a_table(self, tmp_path, capsys):
        """Lines name a case, or the part of it that is the participant; a case without a line is
        counted apart.
        """
        folder = write_dataset(tmp_path)
        table = tmp_path / "participants.tsv"
        table.write_text(
            "\ufeffparticipant_id\tPathology\nfull\tnormal\nno_spleen_1\tnormal\nmerged\tother\ntest_1\t\n"
        )
        arguments = [
            "coverage",
            "-d",
            str(folder),
            "--table",
            str(table),
            "--format",
            "csv",
            "--group-by",
        ]
        assert main([*arguments, "Pathology"]) == 0
        assert capsys.readouterr().out.splitlines()[1:] == [
            "training,normal,3,3,2,2",
            "training,other,2,0,0,2",
            "training,(no entry),1,1,0,0",
            "training,all,6,4,2,4",
            "test,(no entry),1,1,1,1",
        ]
        assert main([*arguments, "pathology"]) == 1
        assert "no column 'pathology'; did you mean 'Pathology'?" in capsys.readouterr().err
        table.write_text("participant_id\tPathology\nsub-001\tnormal\n")
        assert main([*arguments, "Pathology"]) == 1
        assert "no line is about any case" in capsys.readouterr().err
        assert main(["coverage", "-d", str(folder), "--table", str(table)]) == 1
        assert "belong together" in capsys.readouterr().err

    def test_files(self, tmp_path, capsys):
        folder = write_dataset(tmp_path)
        for name, start in (
            ("t.md", b"| part"),
            ("t.csv", b"part,"),
            ("t.txt", b"part "),
            ("t.png", b"\x89PNG"),
        ):
            assert main(["coverage", "-d", str(folder), "-o", str(tmp_path / name)]) == 0
            assert (tmp_path / name).read_bytes().startswith(start)
        capsys.readouterr()
        assert main(["coverage", "-d", str(folder), "-o", str(tmp_path / "t.xls")]) == 1
        assert "t.xls: expected an ending of" in capsys.readouterr().err

    def test_needs_neither_torch_nor_matplotlib(self, tmp_path):
        folder = write_dataset(tmp_path)
        code = f"import sys; from nnunet_labelset.cli import main; main(['coverage', '-d', {str(folder)!r}]); "
        code += "sys.exit(bool({'torch', 'matplotlib'} & set(sys.modules)))"
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

    def test_thousands_of_protocols_are_summed_on_screen(self, tmp_path, capsys):
        """Each case its own protocol: the whole stands in the file."""
        folder = write_dataset(tmp_path)
        content = read_json(folder / "dataset.json")
        content["labels"] = {"background": 0, **{f"organ_{i}": i for i in range(1, 60)}}
        sets = {f"p{i}": {"background": ["background", f"organ_{1 + i % 59}"]} for i in range(500)}
        content["label_sets"] = {
            "version": 1,
            "protocols": sets,
            "cases": {f"c{i}": f"p{i}" for i in range(500)},
        }
        content["dataset"] = {f"c{i}": {"images": ["x"], "label": "y"} for i in range(500)}
        write_json(folder / "dataset.json", content)
        assert main(["coverage", "-d", str(folder)]) == 0
        out = capsys.readouterr().out
        assert len(out) < 10_000
        assert "500 groups are not shown: -o FILE writes all of them" in out
        assert "... 460 more" in out
        assert main(["coverage", "-d", str(folder), "-o", str(tmp_path / "all.csv")]) == 0
        assert len((tmp_path / "all.csv").read_text().splitlines()) == 502

    @pytest.mark.skipif(
        not os.path.isdir("/proc/self"), reason="a folder in which nobody can make files"
    )
    def test_a_folder_that_cannot_be_written(self, tmp_path, capsys):
        folder = write_dataset(tmp_path)
        for name in ("t.csv", "t.png"):
            assert main(["coverage", "-d", str(folder), "-o", f"/proc/self/{name}"]) == 1
            error = capsys.readouterr().err
            assert f"/proc/self/{name}: cannot be written" in error
            assert error.count("\n") == 1


def test_regions_are_counted_beside_their_leaves():
    """The outline of the whole tumour annotates the region, though none of its leaves."""
    labels = {"background": 0, "whole": [1, 2], "core": 2}
    block = {
        "version": 2,
        "leaves": {"background": 0, "edema": 1, "core": 2},
        "protocols": {
            "full": {},
            "outline": {"edema": ["edema", "core"]},
            "no_core": {"background": ["background", "core"]},
        },
        "cases": {"a": "full", "b": "outline", "c": "no_core"},
    }
    contract = Contract.from_dataset_json(
        {"labels": labels, "regions_class_order": [1, 2], "label_sets": block}
    )
    (*_, row) = coverage_table(contract)
    assert row.counts == {"edema": 2, "core": 1, "whole": 2}


def test_a_wide_table_has_labels_in_rows_and_groups_whole():
    labels = [f"left_{organ}" for organ in ("parotid_gland", "optic_nerve", "cochlea", "lens")]
    group = f"without {'+'.join(labels[:3])}"
    counts = dict.fromkeys([*labels, *(f"right_{label}" for label in labels)], 3)
    rows = [CoverageRow("training", name, 3, counts) for name in ("complete", group, "all")]
    lines = format_table(rows).splitlines()
    assert max(map(len, lines)) <= 100
    headings = "\n".join(lines[: lines.index(next(line for line in lines if "---" in line))])
    assert all(label in headings for label in labels[:3])  # not broken
    assert [line for line in lines if line.startswith("left_lens ")]
