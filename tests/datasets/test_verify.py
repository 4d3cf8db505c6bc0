"""`verify`: every kind of mistake is found and named, a sound data set is left alone."""

from __future__ import annotations

import os
import shutil
import sys

import nibabel
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from nnunet_labelset.cli import main
from nnunet_labelset.datasets.verify.check import verify
from nnunet_labelset.datasets.verify.findings import screen_lines
from nnunet_labelset.io.files import read_json, write_json
from tests.helpers.small_dataset import LABELS, label_map, write_dataset, write_volume
from tests.helpers.users import no_root


@pytest.fixture(autouse=True)
def _no_folders(monkeypatch):
    monkeypatch.delenv("nnUNet_preprocessed", raising=False)


@pytest.fixture
def folder(tmp_path):
    return write_dataset(tmp_path)


def edit(folder, change):
    """Change dataset.json in place."""
    content = read_json(folder / "dataset.json")
    change(content)
    write_json(folder / "dataset.json", content)


def only(lines, *texts):
    """Exactly one line, and it has all the texts."""
    assert len(lines) == 1, lines
    for text in texts:
        assert text in lines[0]


@pytest.mark.parametrize("pairs", [[["liver", "nobody"]], [["liver"]], "liver"])
def test_pairs_of_labels_that_do_not_exist(folder, pairs):
    edit(folder, lambda content: content.update(mirrored_labels=pairs))
    only(verify(folder)[0], "dataset.json", "mirrored_labels")


@pytest.mark.parametrize("ending", [".nii.gz", ".nrrd", ".mha"])
def test_sound_data_set(tmp_path, ending):
    assert verify(write_dataset(tmp_path, ending)) == ([], [])


def test_two_processes_find_the_same_in_the_same_order(folder):
    for name in ("full_1", "merged_2"):
        write_volume(folder / "labelsTr" / f"{name}.nii.gz", label_map(1, 2, 9))
    assert verify(folder, processes=2) == verify(folder, processes=1)
    # value 9 twice, and the tumour where only liver+tumour was drawn
    assert len(verify(folder)[0]) == 3


def test_command_line(folder, capsys, monkeypatch):
    monkeypatch.setenv("nnUNet_raw", str(folder.parent))
    assert main(["verify", "-d", "27", "-np", "1"]) == 0
    assert "0 error(s), 0 warning(s)" in capsys.readouterr().out
    (folder / "imagesTr" / "full_1_0000.nii.gz").write_bytes(b"no image")
    (folder / "labelsTr" / "full_2.nii.gz").unlink()
    assert main(["verify", "-d", str(folder), "-np", "1"]) == 1
    captured = capsys.readouterr()
    assert "errors (2)" in captured.out
    assert "imagesTr/full_1_0000.nii.gz: not readable" in captured.out
    assert "labelsTr/full_2.nii.gz: no such file" in captured.out
    assert len(captured.err.strip().splitlines()) == 1
    assert "2 error(s)" in captured.err
    assert main(["verify", "-d", str(folder.parent)]) == 1
    assert "not a data set" in capsys.readouterr().err


def test_needs_no_torch(folder):
    import subprocess

    code = f"import sys; from nnunet_labelset.cli import main; main(['verify', '-d', {str(folder)!r}, '-np', '1'])"
    subprocess.run([sys.executable, "-c", code + "; sys.exit('torch' in sys.modules)"], check=True)


class TestContract:
    def test_all_mistakes_at_once(self, folder):
        def change(content):
            block = content["label_sets"]
            block["protocols"]["bad"] = {"ignore": [], "spleen": ["spleeen"], "lever": ["liver"]}
            block["cases"]["full_1"] = "ful"
            block["cases"]["ghost"] = "full"
            del block["cases"]["merged_1"]
            content["numTraining"] = 7

        edit(folder, change)
        errors, warnings = verify(folder)
        for text in (
            "protocol 'bad', value 'ignore': empty label-set",
            "unknown label 'spleeen'; did you mean 'spleen'?",
            "no such label; did you mean 'liver'?",
            "case 'full_1': unknown protocol 'ful'",
            "lists 'ghost', but there is no such case",
            "labelsTr/merged_1.nii.gz (case 'merged_1'): no protocol",
            "numTraining is 7, but there are 6",
        ):
            assert sum(text in line for line in errors) == 1, text
        assert len(errors) == 7
        only(warnings, "protocol 'bad'", "not used")

    def test_data_set_of_another_tool(self, folder):
        edit(folder, lambda content: content.pop("label_sets"))
        write_volume(folder / "labelsTr" / "full_1.nii.gz", label_map(1, 7))
        errors, _ = verify(folder)
        assert len(errors) == 2
        assert "no 'label_sets' block" in errors[0]
        assert "7 (30 voxels)" in errors[1]

    @pytest.mark.parametrize(
        "block", [{"version": 2, "protocols": {}, "cases": {}}, {"version": 1, "cases": {}}]
    )
    def test_broken_block(self, folder, block):
        edit(folder, lambda content: content.update(label_sets=block))
        assert any("label_sets." in line for line in verify(folder)[0])

    def test_regions(self, folder):
        edit(folder, lambda content: content["labels"].update(whole=[1, 2]))
        only(verify(folder)[0], "'whole' is a region")

    def test_a_leaf_that_no_segmentation_can_show(self, folder):
        """Regions that overlap without being nested: nnU-Net writes one value for each, and none
        for what both hold.
        """

        def change(content):
            leaves = {name: value for name, value in content["labels"].items() if name != "ignore"}
            first, *rest = [value for value in leaves.values() if value]
            ignore = {"ignore": len(leaves)} if "ignore" in content["labels"] else {}
            content["labels"] = {"background": 0, "one": [first, rest[0]], "other": rest, **ignore}
            content["regions_class_order"] = [first, rest[-1]]
            content["label_sets"] |= {"version": 2, "leaves": leaves}

        edit(folder, change)
        errors, warnings = verify(folder)
        assert errors == []
        assert [line for line in warnings if "regions_class_order" in line]

    def test_files_listed_in_place(self, folder):
        """nnU-Net's key `dataset`, with paths relative to the data set."""

        def change(content):
            names = [name for name in content["label_sets"]["cases"] if name != "test_1"]
            content["dataset"] = {
                name: {
                    "images": [f"../elsewhere/{name}_0000.nii.gz"],
                    "label": f"../elsewhere/{name}.nii.gz",
                }
                for name in names
            }

        edit(folder, change)
        elsewhere = folder.parent / "elsewhere"
        shutil.copytree(folder / "imagesTr", elsewhere)
        shutil.copytree(folder / "labelsTr", elsewhere, dirs_exist_ok=True)
        shutil.rmtree(folder / "imagesTr")
        shutil.rmtree(folder / "labelsTr")
        assert verify(folder) == ([], [])
        (elsewhere / "full_1.nii.gz").unlink()
        only(verify(folder)[0], "../elsewhere/full_1.nii.gz: no such file")


class TestAnnotations:
    def test_unannotated_leaf_occurs(self, folder):
        """The protocol leaves tumour and spleen out; one case has a spleen after all."""
        write_volume(folder / "labelsTr" / "no_spleen_2.nii.gz", label_map(1, 3, 4))
        only(
            verify(folder)[0],
            "labelsTr/no_spleen_2.nii.gz",
            "30 voxels",
            "are 'spleen'",
            "unannotated",
            "no_spleen",
        )

    def test_merged_leaf_occurs(self, folder):
        write_volume(folder / "labelsTr" / "merged_1.nii.gz", label_map(1, 2, 3))
        only(verify(folder)[0], "merged_1.nii.gz", "'tumour'", "'liver' may be {liver, tumour}")

    def test_disputed_structure_is_a_warning(self, folder):
        """Both leaves of the label-set occur by themselves: a structure between them whose label is
        disputed.
        """
        write_volume(folder / "labelsTr" / "no_spleen_2.nii.gz", label_map(1, 2, 3, 4))
        errors, warnings = verify(folder)
        assert not errors
        only(
            warnings,
            "protocol 'no_spleen'",
            "tumour, spleen also occur by themselves",
            "labelsTr/no_spleen_2.nii.gz",
        )

    def test_drawings_in_an_unannotated_brain_are_a_warning(self, folder):
        """Nothing is complete inside the mask, so that a few voxels of one leaf are scribbles."""
        edit(
            folder,
            lambda c: c["label_sets"]["protocols"].update(
                no_spleen={"ignore": ["liver", "tumour", "spleen"]}
            ),
        )
        errors, warnings = verify(folder)
        assert not errors
        only(
            screen_lines(warnings),
            "no_spleen_1.nii.gz (protocol 'no_spleen'), labelsTr/no_spleen_2",
            "liver also occur",
        )

    def test_background_in_a_label_set_is_no_conflict(self, folder):
        edit(
            folder,
            lambda c: c["label_sets"]["protocols"].update(
                no_spleen={"ignore": ["background", "spleen"]}
            ),
        )
        errors, warnings = verify(folder)
        assert not errors
        only(
            screen_lines(warnings),
            "no_spleen_1",
            "no_spleen_2",
            "'tumour'",
        )

    def test_reserved_value_that_the_protocol_does_not_use(self, folder):
        write_volume(folder / "labelsTr" / "full_1.nii.gz", label_map(1, 2, 3, 4))
        errors, warnings = verify(folder)
        assert not errors
        only(
            warnings,
            "protocol 'full'",
            "does not mention 'ignore'",
            "labelsTr/full_1.nii.gz",
            "12.5%",
        )

    def test_reserved_value_without_ignore_label(self, folder):
        def change(content):
            content["labels"] = {name: value for name, value in LABELS.items() if name != "ignore"}
            content["label_sets"]["protocols"]["no_spleen"] = {}

        edit(folder, change)
        errors, _ = verify(folder)
        assert len(errors) == 2
        assert all("4 (30 voxels)" in line and "declare 'ignore': 4" in line for line in errors)

    def test_case_without_information(self, folder):
        write_volume(folder / "labelsTr" / "full_1.nii.gz", np.full((8, 6, 5), 4, np.uint8))
        assert any("every voxel is ignored" in line for line in verify(folder)[1])

    @pytest.mark.parametrize("value", [0, 4])
    def test_nothing_known_at_all(self, folder, value):
        """All is background or ignored; one voxel of a merged structure is knowledge."""
        for path in (folder / "labelsTr").iterdir():
            write_volume(path, np.full((8, 6, 5), value, np.uint8))
        edit(folder, lambda c: c["label_sets"]["protocols"].update(no_spleen={}))
        only(
            verify(folder)[0],
            "dataset.json: nothing can be learnt: every voxel of every training case may be back",
        )
        write_volume(folder / "labelsTr" / "merged_1.nii.gz", label_map(1))
        assert verify(folder)[0] == []

    def test_leaf_that_no_case_annotates(self, folder):
        """Only the two full cases have a tumour; a label-set in their protocol takes it away."""
        edit(
            folder,
            lambda c: c["label_sets"]["protocols"].update(full={"tumour": ["liver", "tumour"]}),
        )
        assert any(
            "'tumour' is annotated in no training case" in line for line in verify(folder)[1]
        )

    def test_annotated_leaf_missing_in_one_case(self, folder):
        """Two of three cases of the protocol have a tumour: was it forgotten in the third?"""
        edit(folder, lambda content: content["label_sets"]["cases"].update(merged_1="full"))
        errors, warnings = verify(folder)
        assert not errors
        only(
            warnings,
            "labelsTr/merged_1.nii.gz (protocol 'full'): 'tumour' is declared annotated, but no "
            "voxel",
        )

    def test_annotated_leaf_missing_in_most_cases(self, folder):
        """What is missing in most of the cases is told as well."""
        write_volume(folder / "labelsTr" / "full_1.nii.gz", label_map(1, 3))
        edit(
            folder,
            lambda content: content["label_sets"]["cases"].update(merged_1="full", merged_2="full"),
        )
        errors, warnings = verify(folder)
        assert not errors
        assert [
            line.where.split()[0] for line in warnings if "'tumour' is declared annotated" in line
        ] == [f"labelsTr/{case}.nii.gz" for case in ("full_1", "merged_1", "merged_2")]

    def test_swapped_protocols(self, folder):
        """Two cases whose protocols were swapped: one has all that it should lack."""
        edit(
            folder,
            lambda c: c["label_sets"]["protocols"].update(
                no_spleen={"background": ["background", "spleen"]}
            ),
        )
        for case in ("no_spleen_1", "no_spleen_2"):
            write_volume(folder / "labelsTr" / f"{case}.nii.gz", label_map(1, 2))
        assert verify(folder) == ([], [])
        edit(
            folder,
            lambda c: c["label_sets"]["cases"].update(no_spleen_1="full", full_1="no_spleen"),
        )
        errors, warnings = verify(folder)
        only(
            errors,
            "labelsTr/full_1.nii.gz (protocol 'no_spleen')",
            "all that its protocol leaves out (spleen)",
        )
        only(
            warnings,
            "labelsTr/no_spleen_1.nii.gz (protocol 'full'): 'spleen' is declared annotated",
        )

    def test_a_second_wrong_case_does_not_excuse_the_first(self, folder):
        """Together they have all that the protocol leaves out; each of them is judged by itself."""
        protocol = {"background": ["background", "tumour", "spleen"]}
        edit(folder, lambda c: c["label_sets"]["protocols"].update(no_spleen=protocol))
        write_volume(folder / "labelsTr" / "no_spleen_1.nii.gz", label_map(1, 2))
        write_volume(folder / "labelsTr" / "no_spleen_2.nii.gz", label_map(1, 3))
        errors = verify(folder)[0]
        assert [error.where.split()[0] for error in errors] == [
            f"labelsTr/no_spleen_{i}.nii.gz" for i in (1, 2)
        ]

    def test_nothing_of_what_the_protocol_annotates(self, folder):
        """One organ drawn in each case, all else `ignore`: the protocols of two cases were
        swapped.
        """
        protocols = {
            "liver": {"ignore": ["background", "tumour", "spleen"]},
            "spleen": {"ignore": ["background", "liver", "tumour"]},
        }
        cases = {
            "full_1": "full",
            "full_2": "full",
            "no_spleen_1": "liver",
            "no_spleen_2": "spleen",
        }

        edit(folder, lambda c: c["label_sets"]["protocols"].update(protocols))
        edit(folder, lambda c: c["label_sets"]["cases"].update(cases))
        write_volume(folder / "labelsTr" / "no_spleen_1.nii.gz", label_map(3, 4))
        write_volume(folder / "labelsTr" / "no_spleen_2.nii.gz", label_map(1, 4))
        errors = verify(folder)[0]
        assert [error.where.split()[0] for error in errors] == [
            f"labelsTr/no_spleen_{i}.nii.gz" for i in (1, 2)
        ]
        assert (
            "what its protocol leaves out (spleen), and none of what it annotates (liver)"
            in errors[0]
        )

    def test_disputed_voxels_where_the_annotated_leaf_is_absent(self, folder):
        """Two leaves and disputed voxels between them, in a case without the third: a warning, as
        ever.
        """
        edit(
            folder,
            lambda c: c["label_sets"]["protocols"].update(
                no_spleen={"ignore": ["liver", "tumour"]}
            ),
        )
        for case in ("no_spleen_1", "no_spleen_2"):
            write_volume(folder / "labelsTr" / f"{case}.nii.gz", label_map(1, 2, 4))
        errors, warnings = verify(folder)
        assert not errors
        assert sum("also occur by themselves" in line for line in warnings) == 2

    def test_swapped_protocols_of_two_leaves(self, folder):
        """Background may be every leaf there is; that is no `ignore`."""

        def change(content):
            content["labels"] = {"background": 0, "liver": 1}
            protocols = {"drawn": {}, "not_drawn": {"background": ["background", "liver"]}}
            cases = dict.fromkeys(content["label_sets"]["cases"], "drawn") | {"full_1": "not_drawn"}
            content["label_sets"] |= {"protocols": protocols, "cases": cases}

        edit(folder, change)
        for path in (folder / "labelsTr").iterdir():
            write_volume(path, label_map(1))
        write_volume(folder / "labelsTs" / "test_1.nii.gz", label_map(1))
        only(
            verify(folder)[0],
            "labelsTr/full_1.nii.gz",
            "has voxels of all that its protocol leaves out (liver)",
        )

    def test_swapped_protocols_with_ignore(self, folder):
        """The same where what was not drawn is `ignore`."""
        edit(
            folder,
            lambda c: c["label_sets"]["cases"].update(no_spleen_1="full", full_1="no_spleen"),
        )
        only(
            verify(folder)[0],
            "labelsTr/full_1.nii.gz (protocol 'no_spleen')",
            "leaves out (tumour, spleen)",
        )

    def test_a_vouched_leaf_is_no_conflict(self, folder):
        itself = {"tumour": ["tumour"], "spleen": ["spleen"], "ignore": ["tumour", "spleen"]}
        edit(folder, lambda c: c["label_sets"]["protocols"].update(no_spleen=itself))
        for case in ("no_spleen_1", "no_spleen_2"):
            write_volume(folder / "labelsTr" / f"{case}.nii.gz", label_map(1, 2, 3, 4))
        assert verify(folder) == ([], [])

    def test_background_in_all_larger_label_sets_is_nothing_to_mend(self, folder):
        """Nobody can add cases that annotate the background, or remove it."""
        protocol = {"background": ["background", "spleen"]}
        edit(folder, lambda c: c["label_sets"].update(protocols={"p": protocol}))
        edit(
            folder,
            lambda c: c["label_sets"].update(cases=dict.fromkeys(c["label_sets"]["cases"], "p")),
        )
        assert not any("leaf 'background'" in line for line in verify(folder)[1])

    def test_annotated_leaf_without_voxels(self, folder):
        for number in (1, 2):
            write_volume(folder / "labelsTr" / f"full_{number}.nii.gz", label_map(1, 3))
        errors, warnings = verify(folder)
        assert not errors
        assert any("'tumour'" in line and "no voxel in any" in line for line in warnings)

    def test_one_of_two_sides_was_drawn(self, folder):
        """A sound merge: left and right are one label, and the left one is missing in a source."""
        protocol = {"background": ["background", "spleen"]}
        edit(folder, lambda c: c["label_sets"]["protocols"].update(no_spleen=protocol))
        for case in ("no_spleen_1", "no_spleen_2"):
            write_volume(folder / "labelsTr" / f"{case}.nii.gz", label_map(1, 2, 3))
        errors, warnings = verify(folder)
        assert errors == []
        only(screen_lines(warnings), "no_spleen_1", "no_spleen_2", "spleen", "partly drawn")

    def test_names_that_differ_by_capitals(self, folder):
        edit(folder, lambda c: c.update(labels={"background": 0, "liver": 1, "Liver ": 2}))
        block = {"version": 1, "protocols": {"full": {}}}
        edit(
            folder,
            lambda c: c.update(
                label_sets={**block, "cases": dict.fromkeys(c["label_sets"]["cases"], "full")}
            ),
        )
        assert any("'liver' and 'Liver '" in line for line in verify(folder)[1])

    def test_a_label_that_few_of_many_cases_annotate(self, folder):
        for number in range(3, 12):
            for part, ending in (("imagesTr", "_0000.nii.gz"), ("labelsTr", ".nii.gz")):
                source = folder / part / f"merged_1{ending}"
                shutil.copy(source, folder / part / f"merged_{number}{ending}")
            edit(
                folder,
                lambda c, n=number: c["label_sets"]["cases"].update({f"merged_{n}": "merged"}),
            )
        warnings = [line for line in verify(folder)[1] if "full_1, full_2" in line]
        only(warnings, "'tumour'", "2 of 15")


class TestFiles:
    @pytest.mark.parametrize(
        ("changed", "text"),
        [
            ({"spacing": (1.0, 1.0, 2.5)}, "spacing"),
            ({"origin": (0.0, 3.0, 0.0)}, "origin"),
            ({"array": np.zeros((8, 6, 4), np.uint8)}, "size"),
        ],
    )
    def test_geometry(self, folder, changed, text):
        changed = {"array": label_map(1, 2, 3), **changed}
        write_volume(folder / "labelsTr" / "full_1.nii.gz", **changed)
        only(
            verify(folder)[0],
            "labelsTr/full_1.nii.gz: other geometry than full_1_0000.nii.gz",
            text,
        )

    def test_direction_and_mask(self, folder):
        image = sitk.ReadImage(str(folder / "labelsTr" / "full_1.nii.gz"))
        image.SetDirection((-1, 0, 0, 0, -1, 0, 0, 0, 1))
        (folder / "masksTr").mkdir()
        sitk.WriteImage(image, str(folder / "masksTr" / "full_1.nii.gz"))
        only(
            verify(folder)[0],
            "masksTr/full_1.nii.gz: other geometry",
            "direction",
            "copy the header",
        )

    @pytest.mark.parametrize("ending", [".nrrd", ".nii.gz"])  # ITK hides NaN in NIfTI
    def test_bad_voxels(self, tmp_path, ending):
        folder = write_dataset(tmp_path, ending)
        label = label_map(1, 2, 3).astype(np.float32)
        label[0, 0, 0] = 1.5
        write_volume(folder / "labelsTr" / f"full_1{ending}", label)
        label[0, 0, 0] = np.nan
        write_volume(folder / "labelsTr" / f"full_2{ending}", label)
        image = np.arange(240, dtype=np.float32).reshape(8, 6, 5)
        image[0, 0, :2] = np.nan, np.inf
        write_volume(folder / "imagesTr" / f"merged_1_0000{ending}", image)
        write_volume(folder / "imagesTr" / f"merged_2_0000{ending}", np.zeros_like(image))
        errors, _ = verify(folder)
        for text in (
            f"full_1{ending}: 1 voxels of the label map have fractional",
            f"full_2{ending}: 1 voxels of the label map are NaN or infinite",
            f"merged_1_0000{ending}: 2 voxels are NaN or infinite",
            f"merged_2_0000{ending}: every voxel is 0",
        ):
            assert sum(text in line for line in errors) == 1, text
        assert len(errors) == 4

    def test_truncated(self, folder):
        for path in (
            folder / "imagesTr" / "full_1_0000.nii.gz",
            folder / "labelsTr" / "full_2.nii.gz",
        ):
            path.write_bytes(path.read_bytes()[: path.stat().st_size * 7 // 10])
        errors, _ = verify(folder)
        assert len(errors) == 2
        assert all("not readable as an image" in line for line in errors)

    def test_four_dimensions(self, folder):
        """nnU-Net reads the volumes of a 4D image as channels; a label map may not be 4D."""
        array = np.random.default_rng(1).normal(size=(2, 8, 6, 5)).astype(np.float32)
        image = sitk.GetImageFromArray(array, isVector=False)
        image.SetSpacing((1.0, 1.0, 2.0, 1.0))
        sitk.WriteImage(image, str(folder / "imagesTr" / "full_1_0000.nii.gz"))
        only(verify(folder)[0], "'full_1' has 2 channel(s)", "lists 1")
        sitk.WriteImage(image, str(folder / "labelsTr" / "full_1.nii.gz"))
        assert any("several volumes" in line for line in verify(folder)[0])

    def test_names(self, folder):
        write_volume(folder / "imagesTr" / "other.nii.gz", label_map(1))
        write_volume(folder / "labelsTr" / "lonely.nii.gz", label_map(1))
        (folder / "labelsTr" / "._full_1.nii.gz").write_bytes(b"left by a desktop")
        errors, warnings = verify(folder)
        only(errors, "imagesTr/other.nii.gz: not named {case}_XXXX")
        only(warnings, "labelsTr/lonely.nii.gz: label map without image")

    def test_incomplete(self, folder, capsys):
        (folder / ".nnunet_labelset_incomplete").touch()
        only(
            verify(folder)[0],
            "Dataset027_Small: incomplete",
            "run the same 'nnunet_labelset convert'",
        )
        (folder / "dataset.json").unlink()
        assert main(["verify", "-d", str(folder)]) == 1
        assert "incomplete: it has no dataset.json" in capsys.readouterr().out

    def test_contract_changed_after_preprocessing(self, folder, tmp_path, monkeypatch):
        monkeypatch.setenv("nnUNet_preprocessed", str(tmp_path / "preprocessed"))
        copy = tmp_path / "preprocessed" / folder.name / "dataset.json"
        copy.parent.mkdir(parents=True)
        shutil.copy(folder / "dataset.json", copy)
        assert verify(folder) == ([], [])
        edit(folder, lambda c: c["label_sets"]["cases"].update(merged_1="full"))
        only(verify(folder)[0], str(copy), "label_sets")
        write_json(copy, {"labels": read_json(folder / "dataset.json")["labels"]})
        assert verify(folder)[0] == []  # no training starts without a block
        assert any(str(copy) in line for line in verify(folder)[1])

    def test_headers_that_programs_read_differently(self, folder):
        path = folder / "imagesTr" / "full_1_0000.nii.gz"
        image = nibabel.load(path)
        moved = image.affine.copy()
        moved[0, 3] += 3
        image.header.set_sform(moved, 1)
        nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), None, image.header), path)
        label = nibabel.load(folder / "labelsTr" / "full_1.nii.gz")
        label.header.set_sform(moved, 1)
        nibabel.save(
            nibabel.Nifti1Image(np.asarray(label.dataobj), None, label.header), label.get_filename()
        )
        errors, warnings = verify(folder)
        assert not errors
        only(
            screen_lines(warnings),
            "full_1_0000.nii.gz",
            "full_1.nii.gz",
            "qform and sform in its header are up to 3 mm",
        )

    def test_what_nnunet_cannot_read(self, folder):
        path = folder / "imagesTr" / "full_1_0000.nii.gz"
        image = nibabel.load(path)
        nibabel.save(nibabel.Nifti2Image(np.asarray(image.dataobj), image.affine), path)
        only(
            verify(folder)[0],
            "full_1_0000.nii.gz: NIfTI-2: nnU-Net's reader (SimpleITK) refuses it",
        )

    @pytest.mark.parametrize(
        ("key", "value", "text"),
        [
            ("channel_names", 3, "'channel_names' in dataset.json to be as {'0': 'CT'}, but got 3"),
            ("channel_names", {"a": "CT"}, "'channel_names' in dataset.json to be as"),
            ("dataset", [1], "'dataset' in dataset.json to be an object of cases, but got [1]"),
            (
                "dataset",
                {"a": {"images": 3, "label": "x"}},
                "dataset.a: expected 'images' (a list of files)",
            ),
        ],
    )
    def test_bad_keys_are_lines_not_tracebacks(self, folder, key, value, text):
        edit(folder, lambda content: content.update({key: value}))
        assert any(text in line for line in verify(folder)[0])

    @pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
    def test_a_folder_that_cannot_be_read(self, folder, capsys):
        arguments = ["verify", "-d", str(folder), "-np", "1"]
        assert main(arguments) == 0
        (folder / "labelsTr").chmod(0o000)
        try:
            with no_root(folder):
                assert main(arguments) == 1
        finally:
            (folder / "labelsTr").chmod(0o755)
        assert "labelsTr: not readable: Permission denied" in capsys.readouterr().out

    def test_much_is_summarised_on_screen_and_whole_in_a_file(self, folder, tmp_path, capsys):
        block = {f"leaf_{i}": i for i in range(41)}

        def change(content):
            content["labels"] = block
            content["label_sets"]["protocols"] = {"full": {}}
            content["label_sets"]["cases"] = dict.fromkeys(content["label_sets"]["cases"], "full")

        edit(folder, change)
        write_volume(
            folder / "labelsTr" / "full_1.nii.gz",
            np.arange(240, dtype=np.uint8).reshape(8, 6, 5) % 41,
        )
        assert main(["verify", "-d", str(folder), "-np", "1", "-o", str(tmp_path / "all.txt")]) == 0
        out = capsys.readouterr().out
        assert "... and " in out
        assert len(out.splitlines()) < 50
        assert (
            sum(
                line.startswith("warning: ")
                for line in (tmp_path / "all.txt").read_text().splitlines()
            )
            > 150
        )


class TestDuplicates:
    def copy(self, folder, source, target):
        """The same voxels, written with another type."""
        image = sitk.ReadImage(str(folder / source))
        sitk.WriteImage(sitk.Cast(image, sitk.sitkFloat64), str(folder / target))

    def test_same_image_and_label_map(self, folder):
        self.copy(folder, "imagesTr/full_1_0000.nii.gz", "imagesTr/full_2_0000.nii.gz")
        only(
            verify(folder)[0],
            "imagesTr/full_1_0000.nii.gz: the same image and label map twice, as full_1, full_2",
        )

    def test_same_image_with_two_label_maps(self, folder):
        self.copy(folder, "imagesTr/full_1_0000.nii.gz", "imagesTr/merged_1_0000.nii.gz")
        errors, warnings = verify(folder)
        assert not errors
        only(warnings, "the same image with different label maps, as full_1, merged_1", "splits")

    def test_training_image_in_test(self, folder):
        self.copy(folder, "imagesTr/full_1_0000.nii.gz", "imagesTs/test_1_0000.nii.gz")
        only(verify(folder)[0], "the same image is in training and test: full_1, test_1")

    def test_training_name_in_test(self, folder):
        for part in ("images", "labels"):
            for path in (folder / f"{part}Ts").glob("test_1*"):
                path.rename(path.with_name(path.name.replace("test_1", "full_1")))
        edit(folder, lambda content: content["label_sets"]["cases"].pop("test_1"))
        only(
            verify(folder)[0],
            "case 'full_1'",
            "imagesTs/full_1_0000.nii.gz",
        )


def test_test_label_map_without_protocol(folder):
    edit(folder, lambda content: content["label_sets"]["cases"].pop("test_1"))
    errors, warnings = verify(folder)
    assert not errors
    only(warnings, "no protocol for test_1")


def test_values_that_nnunet_would_cut_off(folder):
    """Labels that are saved as floats with the header of integers get a scaling: 3 is 2.9999847."""
    path = folder / "labelsTr" / "full_1.nii.gz"
    image = sitk.Cast(sitk.ReadImage(str(path)), sitk.sitkFloat32)
    sitk.WriteImage(image, str(path))
    assert verify(folder)[0] == []
    sitk.WriteImage(image * 0.99999, str(path))
    only(verify(folder)[0], "full_1.nii.gz", "0.9999", "reads as 0", "integers")
