"""Nothing that nobody declared is taken for annotated: what varies, structures by file, masks,
merged data sets.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from nnunet_labelset.cli import main
from tests.helpers.conversion import (
    contract_of,
    label_sets_of,
    random_image,
    slabs,
    write_case_folder,
    write_nnunet,
    write_volume,
)
from tests.helpers.conversion import convert_mine as convert
from tests.helpers.errors import check_facts

ORGANS = ("liver", "spleen", "kidney")


def write_manifest(
    folder: Path, extra: str = "", label: str = "{case}/label.nii.gz", labels: str = ""
) -> str:
    leaves = ", ".join(f'"{leaf}"' for leaf in ("background", *ORGANS))
    labels = labels or "\n".join(
        f'{value} = "{leaf}"' for value, leaf in enumerate(ORGANS, start=1)
    )
    (folder / "m.toml").write_text(
        f'leaves = [{leaves}]\n[sources.s]\nfolder = "s"\nimage = "{{case}}/ct.nii.gz"\nlabel = '
        f'"{label}"\n{extra}\n'
        f"[sources.s.labels]\n{labels}\n"
    )
    return str(folder / "m.toml")


def notes(dataset: Path) -> list[tuple[str, ...]]:
    with (dataset / "conversion_notes.csv").open() as file:
        return [tuple(row) for row in csv.reader(file)][1:]


def test_a_test_case_without_labels_needs_no_declaration(tmp_path):
    for case, array in {"a": slabs(1, 2, 3), "t": None}.items():
        write_volume(tmp_path / "s" / case / "ct.nii.gz", random_image())
        if array is not None:
            write_volume(tmp_path / "s" / case / "label.nii.gz", array)
    table = tmp_path / "list.csv"
    table.write_text("case,part,liver,spleen,kidney\na,,yes,no,yes\nt,test,,,\n")
    manifest = write_manifest(tmp_path, 'varies = ["spleen"]')
    assert convert(tmp_path / "raw", "-m", manifest, "--annotated", str(table)) == 1  # a has spleen
    table.write_text("case,part,liver,spleen,kidney\na,,yes,yes,yes\nt,test,,,\n")
    assert convert(tmp_path / "raw", "-m", manifest, "--annotated", str(table)) == 0
    dataset = tmp_path / "raw" / "Dataset030_Mine"
    assert [path.name for path in (dataset / "imagesTs").iterdir()] == ["t_0000.nii.gz"]
    assert set(contract_of(dataset).cases) == {"a"}


def test_what_varies_is_not_annotated_by_default(tmp_path):
    for case, array in {"a": slabs(1, 2, 3), "b": slabs(1, 0, 3)}.items():
        write_volume(tmp_path / "s" / case / "ct.nii.gz", random_image())
        write_volume(tmp_path / "s" / case / "label.nii.gz", array)
    manifest = write_manifest(tmp_path, 'varies = ["spleen"]')
    assert convert(tmp_path / "raw", "-m", manifest, "--infer-annotated") == 0
    contract = contract_of(tmp_path / "raw" / "Dataset030_Mine")
    assert contract.coverage() == {"background": 1, "liver": 2, "spleen": 1, "kidney": 2}
    assert set(label_sets_of(tmp_path / "raw" / "Dataset030_Mine", "b")[slabs(1, 0, 3) == 0]) == {
        frozenset({"background", "spleen"})
    }


@pytest.mark.parametrize("mask", [False, True])
def test_where_any_leaf_may_be_none_is_annotated(tmp_path, mask):
    """With two leaves, an unlabelled voxel of a case without the liver may be every leaf, as if it
    were ignored.
    """
    for case, array in {"a": slabs(1), "b": slabs(0)}.items():
        write_volume(tmp_path / "s" / case / "ct.nii.gz", random_image())
        write_volume(tmp_path / "s" / case / "label.nii.gz", array)
        write_volume(tmp_path / "s" / case / "mask.nii.gz", slabs(1, 2))
    (tmp_path / "m.toml").write_text(
        'leaves = ["background", "liver"]\n[sources.s]\nfolder = "s"\nimage = "{case}/ct.nii.gz"\n'
        f'label = "{{case}}/label.nii.gz"\nvaries = '
        f'["liver"]\n{"mask = " if mask else "#"}"{{case}}/mask.nii.gz"\n'
        '[sources.s.labels]\n1 = "liver"\n'
    )
    arguments = ["-m", str(tmp_path / "m.toml"), "--infer-annotated", "--fully-annotated", "a"]
    assert convert(tmp_path / "raw", *arguments) == 0
    contract = contract_of(tmp_path / "raw" / "Dataset030_Mine")
    assert contract.coverage()["liver"] == 1
    assert not contract.is_fully_annotated("b")
    assert (
        frozenset({"background"})
        in set(label_sets_of(tmp_path / "raw" / "Dataset030_Mine", "b").flat)
    ) == mask


def test_infer_where_nothing_varies(tmp_path, capsys):
    write_case_folder(tmp_path / "s", "x", slabs(*range(1, 9)))
    assert (
        convert(tmp_path / "raw", f"--source=case_folders={tmp_path / 's'}", "--infer-annotated")
        == 1
    )
    assert "--infer-annotated: " in capsys.readouterr().err


STRUCTURES = 'liver = "liver"\nspleen = "spleen"\nkidney_left = "kidney"\nkidney_right = "kidney"'


def write_structures(folder: Path, **voxels: int) -> None:
    write_volume(folder / "ct.nii.gz", random_image())
    for number, (structure, value) in enumerate(voxels.items(), start=1):
        write_volume(
            folder / f"{structure}.nii.gz", (slabs(*range(1, 5)) == number).astype(np.uint8) * value
        )


def test_a_structure_is_annotated_where_its_file_is(tmp_path, capsys):
    """Also when the file is empty, and without a flag; half of a leaf is none."""
    write_structures(tmp_path / "s" / "all", liver=1, spleen=1, kidney_left=1, kidney_right=1)
    write_structures(tmp_path / "s" / "empty", liver=1, spleen=0, kidney_left=1, kidney_right=1)
    write_structures(tmp_path / "s" / "few", liver=1)
    write_structures(tmp_path / "s" / "half", liver=1, spleen=1, kidney_left=1)
    extra = 'varies = ["spleen", "kidney"]'
    manifest = write_manifest(tmp_path, extra, "{case}/{structure}.nii.gz", STRUCTURES)
    assert convert(tmp_path / "raw", "-m", manifest) == 0
    dataset = tmp_path / "raw" / "Dataset030_Mine"
    contract = contract_of(dataset)
    everything = ("background", *ORGANS)
    assert {case: contract.annotated(case) for case in contract.cases} == {
        "all": everything, "empty": everything, "few": ("liver",), "half": ("liver", "spleen"),
    }  # fmt: skip
    assert set(label_sets_of(dataset, "few")[slabs(1) == 0]) == {
        frozenset({"background", "spleen", "kidney"})
    }
    assert set(label_sets_of(dataset, "half")[slabs(0, 0, 1) == 1]) == {
        frozenset({"background", "kidney"})
    }
    out = capsys.readouterr().out
    check_facts(out, "spleen: empty", "kidney: half")
    assert ("empty", "declared annotated, but without a voxel", "spleen", "") in notes(dataset)


def test_structures_that_do_not_vary_need_their_files(tmp_path, capsys):
    """However many cases lack a file: one line, with the line to put into the manifest."""
    for number in range(18):
        write_structures(tmp_path / "s" / f"few_{number:02d}", liver=1, spleen=1)
    manifest = write_manifest(tmp_path, "", "{case}/{structure}.nii.gz", STRUCTURES)
    assert convert(tmp_path / "raw", "-m", manifest) == 1
    error = capsys.readouterr().err
    assert "1 problem(s)" in error
    for fact in ("'kidney_left'", "'kidney_right'", "few_00", "18 in all", 'varies = ["kidney"]'):
        assert fact in error
    assert "'liver'" not in error


def test_protocols_are_named_after_what_was_not_drawn(tmp_path):
    write_structures(tmp_path / "s" / "all", liver=1, spleen=2, kidney_left=3, kidney_right=4)
    write_structures(tmp_path / "s" / "most", liver=1, kidney_left=3, kidney_right=4)
    varies = 'varies = ["spleen"]\n'
    manifest = write_manifest(tmp_path, varies, "{case}/{structure}.nii.gz", STRUCTURES)
    assert convert(tmp_path / "raw", "-m", manifest) == 0
    cases = contract_of(tmp_path / "raw" / "Dataset030_Mine").cases
    assert cases["all"].endswith("complete")
    assert cases["most"].endswith("without spleen")


def test_much_of_the_mask_unlabelled_is_not_complete(tmp_path, capsys):
    """40 % of the voxels inside a mask became certain background, without a word."""
    labels = slabs(*range(1, 9))
    folder = write_case_folder(tmp_path / "s", "x", labels)
    mask = labels > 0
    mask.reshape(-1)[np.flatnonzero(~mask)[: mask.sum() * 2 // 3]] = True
    write_volume(folder / "mask.nii.gz", mask.astype(np.uint8))
    source = f"--source=case_folders={tmp_path / 's'}"
    assert convert(tmp_path / "raw", source) == 1
    error = capsys.readouterr().err
    facts = ("parcellation.nii.gz", "40%", "'x'", "--annotated FILE.csv", "--fully-annotated")
    check_facts(error, *facts)
    assert convert(tmp_path / "raw", source, "--fully-annotated", "y") == 1
    check_facts(capsys.readouterr().err, "--fully-annotated y")
    # The two ways out.
    assert convert(tmp_path / "raw", source, "--fully-annotated", "x") == 0
    check_facts(capsys.readouterr().out, "inside the mask", "background", "40.00% in x")
    (tmp_path / "a.csv").write_text(
        "case,annotated\nx,white_matter;ventricles;cerebellum;external_csf\n"
    )
    write_volume(folder / "parcellation.nii.gz", np.where(labels <= 4, labels, 0).astype(np.uint8))
    assert (
        convert(tmp_path / "raw", source, "--annotated", str(tmp_path / "a.csv"), "--overwrite")
        == 0
    )


def test_merge_does_not_take_silence_for_complete(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("nnUNet_raw", str(tmp_path))
    arrays = {f"c{number}": slabs(1, 2) if number < 3 else slabs(1) for number in range(5)}
    write_nnunet(tmp_path, "Dataset003_Liver", {"background": 0, "liver": 1, "spleen": 2}, arrays)
    write_nnunet(tmp_path, "Dataset004_Other", {"background": 0, "liver": 1}, {"o": slabs(1)})
    arguments = ["merge", "-d", "50", "-n", "All", "-np", "1", "3", "4"]
    assert main(arguments) == 1
    check_facts(capsys.readouterr().err, "3, 4", "--annotated", "--fully-annotated")
    assert main([*arguments, "--fully-annotated", "3"]) == 1
    error = capsys.readouterr().err
    check_facts(error, "--annotated 4=", "--fully-annotated 4")
    assert "3" not in error
    assert main([*arguments, "--fully-annotated", "3", "5"]) == 1
    check_facts(capsys.readouterr().err, "--fully-annotated 5", "3, 4")

    assert main([*arguments, "--fully-annotated", "3", "4"]) == 0
    check_facts(capsys.readouterr().out, "without a voxel", "spleen: c3, c4")
    table = tmp_path / "drawn.csv"
    table.write_text(
        "case,annotated\n" + "".join(f"c{n},{'all' if n < 3 else 'liver'}\n" for n in range(5))
    )
    assert (
        main([*arguments, "--fully-annotated", "4", "--annotated", str(table), "--overwrite"]) == 0
    )
    dataset = tmp_path / "Dataset050_All"
    assert contract_of(dataset).coverage() == {"background": 3, "liver": 6, "spleen": 3}
    assert set(label_sets_of(dataset, "c4")[slabs(1) == 0]) == {frozenset({"background", "spleen"})}
    assert "without a voxel" not in capsys.readouterr().out

    table.write_text("case,annotated\nc0,all\n")
    assert (
        main([*arguments, "--fully-annotated", "4", "--annotated", f"3={table}", "--overwrite"])
        == 1
    )
    check_facts(capsys.readouterr().err, "drawn.csv", "c1, c2, c3, c4", "Dataset003_Liver")
    lines = "".join(f"{case},all\n" for case in ("c0", "c1", "c2", "c3", "c4", "pat_c1", "o"))
    table.write_text("case,annotated\n" + lines)
    assert (
        main([*arguments, "--fully-annotated", "4", "--annotated", f"3={table}", "--overwrite"])
        == 1
    )
    error = capsys.readouterr().err
    check_facts(error, "drawn.csv", "'pat_c1', 'o'", "Dataset003_Liver", "c0, c1, c2, c3, c4")
    table.write_text("case,annotated\n" + lines.replace("pat_c1,all\no,all\n", "c_1,all\n"))
    assert (
        main([*arguments, "--fully-annotated", "4", "--annotated", str(table), "--overwrite"]) == 1
    )
    check_facts(capsys.readouterr().err, "drawn.csv", "'c_1'", "Dataset003_Liver", "'c1'?")
    assert contract_of(dataset).coverage() == {"background": 3, "liver": 6, "spleen": 3}, (
        "the old one stays"
    )


def test_merge_looks_at_masks(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("nnUNet_raw", str(tmp_path))
    contract = {"version": 1, "protocols": {"p": {}}, "cases": {"c": "p"}}
    folder = write_nnunet(
        tmp_path,
        "Dataset003_Liver",
        {"background": 0, "liver": 1},
        {"c": slabs(1)},
        label_sets=contract,
    )
    write_volume(folder / "masksTr" / "c.nii.gz", np.ones_like(slabs()))
    arguments = ["merge", "-d", "50", "-n", "All", "-np", "1", "3"]
    assert main(arguments) == 1
    check_facts(capsys.readouterr().err, "%", "mask", "'c'", "--fully-annotated")
    assert main([*arguments, "--fully-annotated", "3"]) == 0


@pytest.mark.parametrize("arguments", [["--fully-annotated", "3"], ["--annotated", "3=x.csv"]])
def test_merge_does_not_overrule_a_contract(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.setenv("nnUNet_raw", str(tmp_path))
    block = {
        "version": 1,
        "protocols": {"p": {"background": ["background", "liver"]}},
        "cases": {"c": "p"},
    }
    write_nnunet(
        tmp_path,
        "Dataset003_Liver",
        {"background": 0, "liver": 1},
        {"c": slabs(1)},
        label_sets=block,
    )
    assert main(["merge", "-d", "50", "-n", "All", "-np", "1", "3", *arguments]) == 1
    error = capsys.readouterr().err
    assert "says that 'c' is not" in error or "is declared already" in error


def test_many_protocols_are_told_in_few_lines(tmp_path, monkeypatch, capsys):
    """Each case with a protocol of its own: a summary on screen, all of it in files."""
    monkeypatch.setenv("nnUNet_raw", str(tmp_path))
    leaves = ["background", *(f"organ_{number}" for number in range(1, 41))]
    protocols = {
        f"p{number}": {"background": ["background", leaves[number]]} for number in range(1, 41)
    }
    cases = {f"c{number}": f"p{number}" for number in range(1, 41)}
    block = {"version": 1, "protocols": protocols, "cases": cases}
    labels = {leaf: value for value, leaf in enumerate(leaves)}
    write_nnunet(
        tmp_path, "Dataset003_Many", labels, dict.fromkeys(cases, slabs(1)), label_sets=block
    )
    assert main(["merge", "-d", "50", "-n", "All", "-np", "1", "3"]) == 0
    out = capsys.readouterr().out
    assert len(out) < 10_000
    assert len(contract_of(tmp_path / "Dataset050_All").protocols) == 40
    # every leaf that is declared, but for organ_1
    assert len(notes(tmp_path / "Dataset050_All")) == 40 * 39 - 39


ODD_ROWS = {
    "two rows": ("001,all\ns_001,liver\n", ["line 2", "line 3", "s_001"]),
    "two ways": ("001,all\n", ["'annotated'", "liver"]),
    "zeros": ("1,all\n", ["line 2", "'001'", "--safe-names"]),
}


@pytest.mark.parametrize("kind", ODD_ROWS)
def test_rows_that_contradict_or_miss_their_case(tmp_path, capsys, kind):
    rows, facts = ODD_ROWS[kind]
    write_volume(tmp_path / "s" / "001" / "ct.nii.gz", random_image())
    write_volume(tmp_path / "s" / "001" / "label.nii.gz", slabs(1, 2))
    manifest = write_manifest(tmp_path, 'varies = ["spleen"]')
    header = "case,annotated,liver,spleen,kidney" if kind == "two ways" else "case,annotated"
    if kind == "two ways":
        rows = rows.replace("\n", ",yes,no,no\n")
    (tmp_path / "t.csv").write_text(f"{header}\n{rows}")
    words = ["-m", manifest, "--prefix", "--annotated", str(tmp_path / "t.csv")]
    assert convert(tmp_path / "raw", *words) == 1
    check_facts(capsys.readouterr().err, *facts)


def test_what_declared_a_case_is_told_before_and_after(tmp_path, capsys):
    for number, case in enumerate(("a", "b")):
        write_volume(tmp_path / "s" / case / "ct.nii.gz", random_image(number))
        write_volume(tmp_path / "s" / case / "label.nii.gz", slabs(1, 3))
    manifest = write_manifest(tmp_path, 'varies = ["spleen"]')
    (tmp_path / "t.csv").write_text("case,annotated\na,liver;kidney\nb,all\n")
    words = ["-m", manifest, "--annotated", str(tmp_path / "t.csv")]
    assert convert(tmp_path / "raw", *words, "--dry-run") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "t.csv" in line]
    check_facts(next(line for line in lines if "line 2" in line), "background or spleen", ": a ")
    check_facts(next(line for line in lines if "line 3" in line), "background", ": b ")
    assert convert(tmp_path / "raw", *words) == 0
    dataset = tmp_path / "raw" / "Dataset030_Mine"
    capsys.readouterr()
    assert main(["explain", "-d", str(dataset), "a"]) == 0
    check_facts(capsys.readouterr().out, "t.csv, line 2", "background or spleen")
    # Tables of version 0.3.0 do not say it, and another line of a table is no other rule.
    with (dataset / "provenance.csv").open() as file:
        rows = [row[:5] for row in csv.reader(file)]
    (dataset / "provenance.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    (tmp_path / "t.csv").write_text("case,annotated\nb,all\na,liver;kidney\n")
    assert convert(tmp_path / "raw", *words, "--add") == 0
    assert main(["explain", "-d", str(dataset), "a"]) == 0
