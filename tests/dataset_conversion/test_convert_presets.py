"""`nnunet_labelset convert` with the presets, on small files in the layouts that people have."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from nnunet_labelset.cli import main
from nnunet_labelset.io.files import read_json
from tests.helpers.conversion import (
    LEAVES,
    SHAPE,
    contract_of,
    label_sets_of,
    names,
    random_image,
    read_array,
    slabs,
    write_case_folder,
    write_volume,
)
from tests.helpers.errors import check_facts

FETA_TARGET = {1: "external_csf", 2: "cortical_gray_matter", 4: "ventricles", 5: "cerebellum", 6: "deep_gray_matter",
               7: "brainstem"}  # fmt: skip
OBLIQUE = (0.8, 0.6, 0.0, -0.6, 0.8, 0.0, 0.0, 0.0, 1.0)


def convert(out: Path, *arguments: str) -> Path:
    assert main(["convert", "-d", "27", "-n", "Fetal", "-o", str(out), "-np", "1", *arguments]) == 0
    return out / "Dataset027_Fetal"


def write_feta_case(folder: Path, stem: str, ending: str = ".nii.gz", **geometry) -> None:
    image, labels = random_image(), slabs(*range(1, 8), dtype=np.float32)
    write_volume(folder / f"{stem}_T2w{ending}", image, **geometry)
    write_volume(folder / f"{stem}_dseg{ending}", labels, **geometry)


def test_full_case_folders(tmp_path, capsys):
    labels = slabs(*range(1, 9))
    write_case_folder(tmp_path / "atlas", "HarvardSTA21_Study1", labels, direction=OBLIQUE)
    write_case_folder(tmp_path / "atlas", "HarvardSTA22_Study1", labels, seed=1)
    write_volume(tmp_path / "atlas" / "HarvardSTA21_Study1" / "lmks.nii.gz", labels)  # no role here
    dataset = convert(tmp_path / "raw", "--source", f"atlas={tmp_path / 'atlas'}")
    content = read_json(dataset / "dataset.json")
    assert content["labels"] == {
        name: value for value, name in enumerate(LEAVES)
    }  # nothing is unannotated: no ignore
    assert content["numTraining"] == 2
    assert content["channel_names"] == {"0": "T2w"}
    assert content["label_sets"]["protocols"] == {"atlas": {}}
    case = "HarvardSTA21_Study1"
    source = tmp_path / "atlas" / case
    assert (dataset / "imagesTr" / f"{case}_0000.nii.gz").read_bytes() == (
        source / "srr.nii.gz"
    ).read_bytes()
    assert np.array_equal(read_array(dataset / "labelsTr" / f"{case}.nii.gz"), labels)
    before, after = (
        sitk.ReadImage(str(p))
        for p in (source / "srr.nii.gz", dataset / "labelsTr" / f"{case}.nii.gz")
    )
    for part in ("Size", "Spacing", "Origin", "Direction"):
        assert getattr(before, f"Get{part}")() == pytest.approx(
            getattr(after, f"Get{part}")(), abs=1e-6
        )
    assert sorted(path.name for path in dataset.iterdir()) == [
        "dataset.json",
        "imagesTr",
        "labelsTr",
        "provenance.csv",
    ]
    assert os.listdir(tmp_path / "raw") == [dataset.name]
    out = capsys.readouterr().out
    check_facts(out, "2 training", "0 test", "nnUNetv2_plan_and_preprocess -d 27")


def test_leuven_needs_to_know_what_is_annotated(tmp_path, capsys):
    leuven = tmp_path / "leuven"
    write_case_folder(leuven, "a", slabs(1, 2, 3))
    write_case_folder(leuven, "b", slabs(1, 2, 3, 4, 8))
    arguments = ["--source", f"leuven_controls={leuven}"]
    code = main(["convert", "-d", "27", "-n", "Fetal", "-o", str(tmp_path / "raw"), *arguments])
    assert code == 1
    error = capsys.readouterr().err
    assert (
        "nothing says whether external_csf, corpus_callosum is annotated in a, b: list the cases"
        in error
    )
    assert os.listdir(tmp_path / "raw") == []

    dataset = convert(tmp_path / "raw", *arguments, "--infer-annotated")
    contract = contract_of(dataset)
    assert contract.annotated("a") == ("background", "white_matter", "ventricles", "cerebellum")
    assert set(contract.annotated("b")) == {
        *contract.annotated("a"),
        "external_csf",
        "corpus_callosum",
    }
    sets, labels = label_sets_of(dataset, "a"), slabs(1, 2, 3)
    rest = frozenset(LEAVES[4:])
    assert set(sets[..., :-1][labels[..., :-1] == 0]) == {rest}  # inside the mask
    assert set(sets[..., -1].ravel()) == {frozenset({"background"})}  # outside
    for value in (1, 2, 3):
        assert set(sets[labels == value]) == {frozenset({LEAVES[value]})}


def test_annotated_csv_decides(tmp_path, capsys):
    """In case a the external CSF is annotated, though there is none in the file."""
    leuven = tmp_path / "leuven"
    write_case_folder(leuven, "a", slabs(1, 2, 3))
    write_case_folder(leuven, "b", slabs(1, 2, 3, 4, 8))
    table = tmp_path / "annotated.csv"
    table.write_text(
        "case,annotated,part\na,white_matter;ventricles;cerebellum;external_csf,\n"
        "b,white_matter; ventricles; cerebellum; external_csf; corpus_callosum,test\n"
    )
    dataset = convert(
        tmp_path / "raw", "--source", f"leuven_controls={leuven}", "--annotated", str(table)
    )
    contract = contract_of(dataset)
    assert "external_csf" in contract.annotated("a")
    assert (dataset / "labelsTs" / "b.nii.gz").is_file()
    assert (dataset / "imagesTs" / "b_0000.nii.gz").is_file()
    assert read_json(dataset / "dataset.json")["numTraining"] == 1

    table.write_text("case,annotated\na,white_matter\nb,all\n")
    arguments = ["--source", f"leuven_controls={leuven}", "--annotated", str(table), "--overwrite"]
    assert (
        main(["convert", "-d", "27", "-n", "Fetal", "-o", str(tmp_path / "raw"), *arguments]) == 1
    )
    error = capsys.readouterr().err
    check_facts(error, "ventricles", "parcellation.nii.gz", "voxels")
    assert (dataset / "imagesTs" / "b_0000.nii.gz").is_file()  # the old data set is untouched


def test_spina_bifida_test_part_stores_corpus_callosum_as_5(tmp_path):
    write_case_folder(tmp_path / "train", "t1", slabs(1, 2, 3))
    write_case_folder(tmp_path / "test", "t2", slabs(1, 2, 3, 4, 5))
    dataset = convert(
        tmp_path / "raw",
        f"--source=leuven_spina_bifida={tmp_path / 'train'}",
        f"--test-source=leuven_spina_bifida_test={tmp_path / 'test'}",
    )
    labels = slabs(1, 2, 3, 4, 5)
    assert set(read_array(dataset / "labelsTs" / "t2.nii.gz")[labels == 5]) == {8}
    assert set(label_sets_of(dataset, "t2", "Ts")[labels == 5]) == {frozenset({"corpus_callosum"})}


def test_quirks_of_case_folders(tmp_path, capsys):
    """Fallback names, 4D image and mask, a mask that reads 1.00000006, labels outside the mask."""
    folder = tmp_path / "c" / "case"
    labels = slabs(1, 2, 3)
    labels[0, 0, -1] = 3  # outside the mask
    mask = np.ones(SHAPE, np.float32) * np.float32(1.00000006)
    mask[..., -1] = 0
    write_volume(folder / "srr_template.nii.gz", np.stack([random_image(0), random_image(1)]))
    write_volume(folder / "srr_template_mask.nii.gz", mask[None])
    write_volume(folder / "parcellation.nii.gz", labels)
    dataset = convert(tmp_path / "raw", f"--source=leuven_spina_bifida={tmp_path / 'c'}")
    assert np.array_equal(read_array(dataset / "imagesTr" / "case_0000.nii.gz"), random_image(0))
    assert label_sets_of(dataset, "case")[0, 0, -1] == {"cerebellum"}
    out = capsys.readouterr().out
    check_facts(out, "outside the mask", "1 in case", "4D", "volume 0")


def test_corrected_feta_counts_corpus_callosum_as_white_matter(tmp_path):
    for case, labels in {
        "sub-feta001": slabs(*range(1, 8)),
        "sub-041": slabs(*range(1, 9)),
    }.items():
        folder = write_case_folder(tmp_path / "feta", case, labels)
        write_volume(folder / "mask.nii.gz", (labels > 0).astype(np.uint8))
    dataset = convert(
        tmp_path / "raw", f"--source=feta_corrected={tmp_path / 'feta'}", "--infer-annotated"
    )
    contract = contract_of(dataset)
    assert contract.is_fully_annotated("sub-041")
    assert names(contract, contract.protocol("sub-feta001").sets[1]) == {
        "white_matter",
        "corpus_callosum",
    }
    assert set(label_sets_of(dataset, "sub-feta001")[slabs(*range(1, 8)) == 0]) == {
        frozenset({"background"})
    }


LAYOUTS = {
    "bids": ("feta_2.2/sub-001/anat/sub-001_rec-mial", ".nii.gz"),
    "nested": ("feta_2.4/feta_2.4/sub-001/anat/sub-001_rec-irtk", ".nii.gz"),
    "vienna": ("sub-001/anat/sub-001_rec-nmic", ".nii.gz"),
    "flat": ("sub-001_rec-mial", ".nii.gz"),
    "flat_nii": ("sub-001_rec-mial", ".nii"),
    "release_1_flat": ("sub-feta001", ".nii.gz"),
    "release_1_folders": ("sub-feta001/anat/sub-feta001", ".nii"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_feta_as_released(tmp_path, layout):
    stem, ending = LAYOUTS[layout]
    feta = tmp_path / "feta"
    write_feta_case(
        (feta / stem).parent, Path(stem).name, ending, direction=OBLIQUE, spacing=(0.43, 0.43, 0.5)
    )
    write_volume(feta / "derivatives/biometry/sub-001/anat/sub-001_rec-mial_meas.nii.gz", slabs(1))
    write_volume(
        feta / "derivatives/other/sub-009/anat/sub-009_rec-mial_T2w.nii.gz", random_image()
    )
    (feta / "participants.tsv").write_text(
        "participant_id\tPathology\tGestational age\nsub-001\tNeurotypical\t27.9\n"
    )
    dataset = convert(tmp_path / "raw", f"--source=feta={feta}")
    (case,) = contract_of(dataset).cases
    assert case == ("sub-feta001" if "release_1" in layout else "sub-001")
    labels, sets = slabs(*range(1, 8)), label_sets_of(dataset, case)
    assert set(sets[labels == 0]) == {frozenset({"background"})}
    assert set(sets[labels == 3]) == {frozenset({"white_matter", "corpus_callosum"})}
    for value, leaf in FETA_TARGET.items():
        assert set(sets[labels == value]) == {frozenset({leaf})}
    assert read_json(dataset / "dataset.json")["label_sets"]["protocols"] == {
        "feta": {"white_matter": ["white_matter", "corpus_callosum"]}
    }
    assert np.array_equal(read_array(dataset / "imagesTr" / f"{case}_0000.nii.gz"), random_image())


def test_feta_twice_with_nan(tmp_path, capsys):
    """`.nii` and `.nii.gz` of one case; NaN in image and labels."""
    image, labels = random_image(), slabs(*range(1, 8), dtype=np.float32)
    image[0, 0, 0] = labels[0, 0, 0] = np.nan
    for ending in (".nii", ".nii.gz"):
        write_volume(tmp_path / "feta" / f"sub-002_rec-mial_T2w{ending}", image)
        write_volume(tmp_path / "feta" / f"sub-002_rec-mial_dseg{ending}", labels)
    dataset = convert(tmp_path / "raw", f"--source=feta={tmp_path / 'feta'}")
    out = capsys.readouterr().out
    check_facts(out, "several files", "image: sub-002", "NaN in the image", "0: sub-002")
    assert read_array(dataset / "imagesTr" / "sub-002_0000.nii.gz")[0, 0, 0] == 0
    assert label_sets_of(dataset, "sub-002")[0, 0, 0] == {"background"}


CRL = (37, 42, 71, 78, 91, 92, 94, 101, 108, 110, 111, 112, 114, 121, 123, 124, 125)


@pytest.mark.parametrize(
    ("preset", "image", "label", "case"),
    [
        ("crl_atlas", "STA21.nii.gz", "STA21_tissue.nii.gz", "STA21"),
        ("crl_atlas", "v3/STA36exp.nii.gz", "v3/STA36exp_tissue.nii.gz", "STA36exp"),
        ("crl_atlas", "STA30.nii.gz", "STA30_WMZparc.nii.gz", "STA30"),
        ("crl_atlas", "STA35.nii.gz", "STA35_parc.nii.gz", "STA35"),
        ("wu_atlas", "atlas/22w.nii.gz", "Tissue label/22w_tissue.nii.gz", "Chinese_22w"),
    ],
)
def test_native_atlases(tmp_path, capsys, preset, image, label, case):
    labels = slabs(*CRL, dtype=np.float64)
    lps = (-1.0, 0, 0, 0, -1.0, 0, 0, 0, 1.0)
    write_volume(tmp_path / "atlas_data" / image, random_image().astype(np.float64), direction=lps)
    write_volume(tmp_path / "atlas_data" / label, labels, direction=lps)
    if "STA30" in image:
        write_volume(tmp_path / "atlas_data" / "STA30_parc.nii.gz", labels)
    if "STA21" in image:
        write_volume(tmp_path / "atlas_data" / "STA21_regional.nii.gz", labels)
    dataset = convert(tmp_path / "raw", f"--source={preset}={tmp_path / 'atlas_data'}")
    sets = label_sets_of(dataset, case)
    expected = {
        71: "deep_gray_matter",
        91: "corpus_callosum",
        92: "ventricles",
        94: "brainstem",
        101: "cerebellum",
    }
    expected |= {
        112: "cortical_gray_matter",
        114: "white_matter",
        123: "deep_gray_matter",
        124: "external_csf",
    }
    for value, leaf in expected.items():
        assert set(sets[labels == value]) == {frozenset({leaf})}
    truth = {37: {"white_matter", "cortical_gray_matter"}, 110: {"white_matter", "ventricles", "external_csf"},
             111: {"white_matter", "deep_gray_matter"}}  # fmt: skip
    for value, leaves in truth.items():
        (stored,) = set(sets[labels == value])
        assert (
            stored > leaves
        )  # four label-sets share the one value that is free, and that is announced
    out = capsys.readouterr().out
    assert (
        "label-set stored as a larger one: {white_matter, cortical_gray_matter} as {white_matter, "
        in out
    )
    assert set(sets[labels == 0]) == {frozenset({"background"})}
    contract = contract_of(dataset)
    assert (
        contract.annotated(case) == contract.leaf_names
    )  # disputed voxels do not make a leaf unannotated ...
    assert not contract.is_fully_annotated(case)  # ... but the case is not complete
    assert main(["verify", "-d", str(dataset), "-np", "1"]) == 0
    merged = [
        "merge",
        "-d",
        "31",
        "-n",
        "Again",
        "-np",
        "1",
        "-o",
        str(dataset.parent),
        str(dataset),
    ]
    assert main(merged) == 0
    again = contract_of(dataset.parent / "Dataset031_Again")
    assert again.annotated(case) == again.leaf_names


def test_disputed_set_alone_is_kept_exactly(tmp_path):
    labels = slabs(37, 91, 112)
    write_volume(tmp_path / "a" / "STA21.nii.gz", random_image())
    write_volume(tmp_path / "a" / "STA21_tissue.nii.gz", labels)
    dataset = convert(tmp_path / "raw", f"--source=crl_atlas={tmp_path / 'a'}")
    assert set(label_sets_of(dataset, "STA21")[labels == 37]) == {
        frozenset({"white_matter", "cortical_gray_matter"})
    }


def test_all_presets_in_one_call(tmp_path):
    write_case_folder(tmp_path / "atlas", "HarvardSTA21_Study1", slabs(*range(1, 9)))
    write_case_folder(tmp_path / "wu", "Chinese22_Study1", slabs(*range(1, 9)), seed=1)
    write_case_folder(tmp_path / "leuven", "c1", slabs(1, 2, 3, 4), seed=2)
    write_case_folder(tmp_path / "sb", "s1", slabs(1, 2, 3), seed=3)
    write_feta_case(tmp_path / "feta", "sub-001")
    sources = {
        "atlas": "atlas",
        "wu_atlas_refined": "wu",
        "leuven_controls": "leuven",
        "leuven_spina_bifida": "sb",
    }
    dataset = convert(
        tmp_path / "raw",
        *(f"--source={name}={tmp_path / folder}" for name, folder in sources.items()),
        f"--test-source=feta={tmp_path / 'feta'}",
        "--infer-annotated",
        "--link",
    )
    contract = contract_of(dataset)
    assert len(contract.cases) == 5
    assert contract.coverage()["external_csf"] == 4
    assert contract.coverage()["corpus_callosum"] == 2
    assert (dataset / "imagesTr" / "c1_0000.nii.gz").is_symlink()


def test_withhold_and_mask_images(tmp_path):
    labels = np.where(np.arange(SHAPE[2]) < SHAPE[2] - 1, slabs(*range(1, 9)), 0).astype(np.uint8)
    labels[..., 2:-1][labels[..., 2:-1] == 0] = 1  # all of the mask but for its rim
    labels[:, :, 1][labels[:, :, 1] == 0] = 1
    for case in ("a", "b"):
        folder = write_case_folder(tmp_path / "full", case, labels)
        mask = np.ones(SHAPE, np.uint8)
        mask[..., -1] = 0
        write_volume(folder / "mask.nii.gz", mask)
    dataset = convert(
        tmp_path / "raw", f"--source=case_folders={tmp_path / 'full'}", "--fully-annotated", "case_folders",
        "--withhold", "corpus_callosum", "brainstem", "--withhold-in", "a", "--mask-images", "0",
    )  # fmt: skip
    contract = contract_of(dataset)
    assert contract.is_fully_annotated("b")
    assert set(contract.leaf_names) - set(contract.annotated("a")) == {
        "brainstem",
        "corpus_callosum",
    }
    sets = label_sets_of(dataset, "a")
    assert set(sets[labels >= 7]) == {frozenset({"brainstem", "corpus_callosum"})}
    assert set(sets[..., :-1][labels[..., :-1] == 0]) == {
        frozenset({"background"})
    }  # all was drawn: known
    assert set(sets[..., -1].ravel()) == {frozenset({"background"})}
    image = read_array(dataset / "imagesTr" / "a_0000.nii.gz")
    assert (image[..., -1] == 0).all()
    assert np.array_equal(image[..., :-1], random_image()[..., :-1])


def test_presets_are_listed(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["convert", "--presets"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "leuven_controls" in out
    assert "FeTA as released" in out
