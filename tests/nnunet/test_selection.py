"""`nnunet_labelset find_best_configuration` on result folders laid out as nnU-Net leaves them."""

from __future__ import annotations

import json
import pickle
import re

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
import torch

from nnunet_labelset import Contract
from nnunet_labelset.cli import main
from nnunet_labelset.nnunet.checkpoint_file import STATE
from nnunet_labelset.nnunet.selection import Candidate, choose, describe_choice
from nnunet_labelset.nnunet.summary import label_set_summary
from tests.helpers.commands import error_line
from tests.helpers.errors import refusal
from tests.helpers.evaluation import dataset, write_labels

CASES = {"a0": "full", "f0": "feta", "a1": "full", "f1": "feta"}
FOLDS = [["a0", "f0"], ["a1", "f1"]]
LEAF, MARGINAL = "nnUNetTrainerLeafDice", "nnUNetTrainerMarginalDice"


def truth(case):
    """White matter with ventricles in it and the corpus callosum on top: one component."""
    array = np.zeros((6, 10, 10), int)
    array[1:5, 2:8, 2:8] = 1
    array[2:4, 4:6, 4:6] = 2
    array[1:5, 2:3, 2 : 7 + int(case[1])] = 3
    return array


def reference(case):
    array = truth(case)
    return np.where(array == 3, 1, array) if CASES[case] == "feta" else array


def exact(case):
    """Every leaf right, and one stray voxel far away."""
    array = truth(case)
    array[5, 9, 9] = 1
    return array


def follows_values(case):
    """What the label files say: in FeTA no corpus callosum, and elsewhere only half of it."""
    array = reference(case)
    array[1:3][array[1:3] == 3] = 1
    return array


def write_model(results, plans, trainer, configuration, predict, npz=True):
    folder = results / "Dataset901_Toy" / f"{trainer}__nnUNetPlans__{configuration}"
    for fold, cases in enumerate(FOLDS):
        for case in cases:
            file = folder / f"fold_{fold}" / "validation" / f"{case}.nii.gz"
            array = predict(case)
            write_labels(file, array)
            image = sitk.ReadImage(str(file))
            geometry = {
                "spacing": image.GetSpacing(),
                "origin": image.GetOrigin(),
                "direction": image.GetDirection(),
            }
            if npz:
                probabilities = np.stack(
                    [(array == leaf) * 0.9 + 0.02 for leaf in range(4)]
                ).astype(np.float32)
                np.savez_compressed(file.with_name(f"{case}.npz"), probabilities=probabilities)
                file.with_name(f"{case}.pkl").write_bytes(pickle.dumps({"sitk_stuff": geometry}))
    (folder / "dataset.json").write_text(json.dumps(dataset(CASES)))
    (folder / "plans.json").write_text(json.dumps(plans))


def write_study(root, npz=True):
    configuration = {"architecture": {}, "data_identifier": "x", "spacing": [1, 1, 1]}
    plans = {
        "dataset_name": "Dataset901_Toy",
        "plans_name": "nnUNetPlans",
        "image_reader_writer": "SimpleITKIO",
        "label_manager": "LabelManager",
        "configurations": {"2d": configuration, "3d_fullres": configuration},
    }
    preprocessed = root / "preprocessed" / "Dataset901_Toy"
    for case in CASES:
        for folder in (
            preprocessed / "gt_segmentations",
            root / "raw" / "Dataset901_Toy" / "labelsTr",
        ):
            write_labels(folder / f"{case}.nii.gz", reference(case))
    (preprocessed / "nnUNetPlans.json").write_text(json.dumps(plans))
    for file in (preprocessed / "dataset.json", root / "raw" / "Dataset901_Toy" / "dataset.json"):
        file.write_text(json.dumps(dataset(CASES)))
    write_model(root / "results", plans, LEAF, "2d", follows_values, npz)
    write_model(root / "results", plans, LEAF, "3d_fullres", exact, npz)
    return root


@pytest.fixture
def environment(monkeypatch):
    def use(root):
        for name in ("raw", "preprocessed", "results"):
            monkeypatch.setenv(f"nnUNet_{name}", str(root / name))
        return root / "results" / "Dataset901_Toy"

    return use


def error_of(capsys, *arguments):
    return error_line(capsys, "find_best_configuration", *arguments)


@pytest.mark.slow
def test_chooses_what_the_annotation_supports(tmp_path, environment, capsys):
    results = environment(write_study(tmp_path))
    assert main(["find_best_configuration", "901", "-f", "0", "1", "-np", "1", "-tr", LEAF]) == 0
    output = capsys.readouterr().out
    best, other = f"{LEAF}__nnUNetPlans__3d_fullres", f"{LEAF}__nnUNetPlans__2d"

    information = json.loads((results / "inference_information.json").read_text())
    found, theirs = information["all_results"], information["all_results_of_nnunet"]
    assert len(found) == 3  # two models and their ensemble
    # by hand: white matter of the two full cases, one stray voxel each; ventricles and corpus
    # callosum are right
    sizes = [(truth(case) == 1).sum() for case in ("a0", "a1")]
    white = np.mean([2 * size / (2 * size + 1) for size in sizes])
    # FeTA's union of white matter and corpus callosum counts as a fourth
    sizes = [np.isin(truth(case), (1, 3)).sum() for case in ("f0", "f1")]
    union = np.mean([2 * size / (2 * size + 1) for size in sizes])
    assert found[best] == pytest.approx((white + 1 + 1 + union) / 4)
    assert found[other] < found[best]
    assert theirs[other] > theirs[best]
    assert information["choice_of_nnunet"] == other
    assert re.search(rf"^Best .*: {re.escape(best)}", output, re.MULTILINE)
    assert re.search(rf"nnUNetv2_find_best_configuration .*{re.escape(other)}", output)

    # the stray voxels go, so that nothing is wrong any more
    assert information["best_model_or_ensemble"]["result_on_crossval_post_pp"] == 1
    merged = results / best / "crossval_results_folds_0_1"
    with open(merged / "postprocessing.pkl", "rb") as file:
        functions, options = pickle.load(file)
    assert [function.__name__ for function in functions] == [
        "remove_all_but_largest_component_from_segmentation"
    ]
    assert options == [{"labels_or_regions": [1, 2, 3]}]
    assert sorted(file.name for file in (merged / "postprocessed").glob("*.nii.gz")) == sorted(
        f"{case}.nii.gz" for case in CASES
    )
    assert not list(merged.glob(".postprocessing_*"))
    assert "annotated_cases" in json.loads((merged / "summary.json").read_text())
    assert "annotated_cases" not in json.loads((merged / "summary_nnunet.json").read_text())

    instructions = (results / "inference_instructions.txt").read_text()
    typed = f"nnunet_labelset predict -d Dataset901_Toy -i INPUT_FOLDER -o OUTPUT_FOLDER -f  0 1 -tr {LEAF} -c 3d_fullres"
    assert typed in instructions  # which finds our trainers, as nnUNetv2_predict alone does not
    assert f"-pp_pkl_file {merged / 'postprocessing.pkl'}" in instructions

    # a second run that keeps what is there comes to the same end
    assert (
        main(
            [
                "find_best_configuration",
                "901",
                "-f",
                "0",
                "1",
                "-np",
                "1",
                "--no_overwrite",
                "-tr",
                LEAF,
            ]
        )
        == 0
    )
    assert json.loads((results / "inference_information.json").read_text()) == information

    from nnunetv2.postprocessing.remove_connected_components import apply_postprocessing

    processed = apply_postprocessing(exact("a0"), functions, options)
    assert (processed == truth("a0")).all()


@pytest.mark.slow
def test_agrees_with_nnunet_where_everything_is_annotated(tmp_path, environment, monkeypatch):
    """The same scores and the same choice, postprocessing included. One leaf, to keep nnU-Net's
    part short.
    """
    monkeypatch.setattr("tests.nnunet.test_selection.CASES", dict.fromkeys(CASES, "full"))
    monkeypatch.setattr(
        "tests.nnunet.test_selection.truth",
        lambda case, all_leaves=truth: np.minimum(all_leaves(case), 1),
    )
    monkeypatch.setattr(
        "tests.helpers.evaluation.LABELS", {"background": 0, "white_matter": 1, "ignore": 2}
    )
    monkeypatch.setattr("tests.helpers.evaluation.PROTOCOLS", {"full": {}})
    results = environment(write_study(tmp_path))
    assert (
        main(
            [
                "find_best_configuration",
                "901",
                "-f",
                "0",
                "1",
                "-np",
                "1",
                "-tr",
                LEAF,
                "-c",
                "3d_fullres",
            ]
        )
        == 0
    )
    ours = json.loads((results / "inference_information.json").read_text())
    text = (results / "inference_instructions.txt").read_text()
    from nnunetv2.evaluation.find_best_configuration import find_best_configuration

    models = [{"plans": "nnUNetPlans", "configuration": "3d_fullres", "trainer": LEAF}]
    find_best_configuration("Dataset901_Toy", models, num_processes=1, folds=[0, 1])
    theirs = json.loads((results / "inference_information.json").read_text())
    for key, value in theirs.items():
        assert ours[key] == value
    before, after = (
        ours["best_model_or_ensemble"][f"result_on_crossval_{when}_pp"] for when in ("pre", "post")
    )
    assert before < after == 1
    theirs = (results / "inference_instructions.txt").read_text()
    assert theirs.replace("nnUNetv2_predict ", "nnunet_labelset predict ") == text


def test_choice_sees_known_errors(tmp_path):
    """Ventricles all over the background: no annotated leaf has a lower score, but they are known
    to be wrong.
    """
    found = {}
    reference = np.zeros((4, 6, 6), int)
    reference[1:3, 1:3, 1:5], reference[1:3, 3:5, 1:5] = 1, 4  # 4 is ventricles or corpus callosum
    for name, background in (("flooded", 2), ("careful", 0)):
        prediction = np.where(reference == 4, 2, np.where(reference == 1, 1, background))
        write_labels(tmp_path / "ref" / "b.nii.gz", reference)
        write_labels(tmp_path / name / "b.nii.gz", prediction)
        contract = Contract.from_dataset_json(dataset({"b": "basic"}))
        found[name] = label_set_summary(tmp_path / "ref", tmp_path / name, contract, ".nii.gz", 1)
    assert (
        found["careful"]["foreground_mean"]["Dice"]
        == found["flooded"]["foreground_mean"]["Dice"]
        == 1
    )

    def candidate(name, dice, wrong):
        return Candidate(name, (), tmp_path, dice, dice, wrong)

    candidates = [
        candidate(name, of["label_set_dice"], of["known_wrong"]) for name, of in found.items()
    ]
    assert choose(candidates).name == "careful"
    more, fewer, best = (
        candidate("more", 0.5, 0.2),
        candidate("fewer", 0.5, 0.1),
        candidate("best", 0.9, 0.3),
    )
    assert choose([more, fewer]) is fewer
    assert describe_choice([more, fewer, best], best).count("fewer") == 2  # table and advice


def test_bad_input(tmp_path, environment, capsys, monkeypatch):
    for name in ("raw", "preprocessed", "results"):
        monkeypatch.delenv(f"nnUNet_{name}", raising=False)
    assert "nnUNet_raw" in error_of(capsys, "901", "-tr", LEAF)
    environment(write_study(tmp_path, npz=False))
    assert " 902 " in error_of(capsys, "902")
    assert "nnUNetResEncUNetMPlans.json" in error_of(
        capsys, "901", "-p", "nnUNetResEncUNetMPlans", "-tr", LEAF
    )
    assert "does not have an output folder" in error_of(capsys, "901", "-tr", MARGINAL)
    assert "3d_lowres" in error_of(capsys, "901", "-c", "3d_lowres", "-tr", LEAF)
    assert "fold 2" in error_of(capsys, "901", "-c", "2d", "-f", "0", "2", "-np", "1", "-tr", LEAF)
    message = error_of(capsys, "901", "-f", "0", "1", "-np", "1", "-tr", LEAF)
    assert "fold_0/validation" in message
    assert ".npz" in message
    assert "--disable_ensembling" in message


def test_what_the_references_mean_now_decides(tmp_path, environment, capsys):
    """A protocol that was corrected after the training counts; other labels are an error."""
    results = environment(write_study(tmp_path, npz=False))
    preprocessed = tmp_path / "preprocessed" / "Dataset901_Toy" / "dataset.json"
    arguments = ["find_best_configuration", "901", "-tr", LEAF, "-f", "0", "1", "-np", "1"]
    arguments += ["-c", "2d", "--disable_ensembling"]
    changed = dataset(dict.fromkeys(CASES, "full"))
    preprocessed.write_text(json.dumps(changed))
    assert main(arguments) == 0
    folder = results / f"{LEAF}__nnUNetPlans__2d" / "crossval_results_folds_0_1"
    summary = json.loads((folder / "summary.json").read_text())
    assert set(summary["annotated_cases"].values()) == {4}
    changed["labels"] = {"background": 0, "liver": 1, "ventricles": 2, "corpus_callosum": 3}
    changed["label_sets"] = {
        "version": 1,
        "protocols": {"full": {}},
        "cases": dict.fromkeys(CASES, "full"),
    }
    preprocessed.write_text(json.dumps(changed))
    message = error_of(capsys, *arguments[1:])
    assert f"{LEAF}__nnUNetPlans__2d" in message
    assert str(preprocessed) in message


def test_models_that_were_validated_on_other_cases_are_not_compared(tmp_path, environment, capsys):
    results = environment(write_study(tmp_path, npz=False))
    model = results / f"{LEAF}__nnUNetPlans__3d_fullres"
    (model / "fold_1" / "validation" / "f1.nii.gz").unlink()
    message = error_of(
        capsys, "901", "-tr", LEAF, "-f", "0", "1", "-np", "1", "--disable_ensembling",
        "-c", "2d", "3d_fullres",
    )  # fmt: skip
    assert model.name in message
    assert "f1" in message


def test_a_fold_is_not_scored_on_other_cases_than_its_own(tmp_path, environment, capsys):
    """`splits --overwrite`, `--val`, and predictions of both splits lie in one folder."""
    results = environment(write_study(tmp_path, npz=False))
    fold = results / f"{LEAF}__nnUNetPlans__2d" / "fold_0"
    splits = tmp_path / "preprocessed" / results.name / "splits_final.json"
    others = [{"train": FOLDS[0], "val": FOLDS[1]}, {"train": FOLDS[1], "val": FOLDS[0]}]
    splits.write_text(json.dumps(others))
    arguments = ("901", "-tr", LEAF, "-f", "0", "-c", "2d", "-np", "1")
    message = error_of(capsys, *arguments)
    assert str(fold / "validation") in message
    assert "a0, f0" in message
    assert str(splits) in message
    # the splits agree with the predictions, but the network was trained on one of the cases
    splits.write_text(json.dumps(others[::-1]))
    state = {STATE: {"training_cases": ["f0", "a1"]}}
    checkpoint = {"optimizer_state": {"param_groups": [state]}}
    torch.save(checkpoint, fold / "checkpoint_final.pth")
    message = error_of(capsys, *arguments)
    assert str(fold / "validation") in message
    assert "f0" in message
    assert "a0" not in message


def test_choice_with_undefined_scores(tmp_path):
    def candidate(name, dice, theirs):
        return Candidate(name, (), tmp_path, dice, theirs)

    nan = float("nan")
    first, second, third = (
        candidate("1", nan, 0.5),
        candidate("2", 0.7, 0.4),
        candidate("3", 0.7, nan),
    )
    assert choose([first, second, third]) is second
    choices = ([first, second], [first, second, third], [second])
    last_lines = [describe_choice(choice, second).splitlines()[-1] for choice in choices]
    facts = ("choose 1:", "NaN", "the same")
    assert [fact in line for fact, line in zip(facts, last_lines, strict=True)] == [True] * 3
    with refusal(ValueError, "annotated"):
        choose([first])
