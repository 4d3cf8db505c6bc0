"""Completing label-sets: what is excluded stays excluded, what is unsure stays open, and validation
stays as it was.
"""

from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
from hypothesis import given, settings
from hypothesis import strategies as st

from nnunet_labelset import Contract, LabelSetError
from nnunet_labelset.cli import main
from nnunet_labelset.contract import Protocol
from nnunet_labelset.contract.completed import check_split, refuse_completed, whole_split
from nnunet_labelset.dataset_conversion import complete
from nnunet_labelset.dataset_conversion.complete import complete_values
from nnunet_labelset.io import npz
from nnunet_labelset.io.npz import read_slabs, slabs_of
from nnunet_labelset.nnunet.raw import read_dataset
from tests.helpers import tiny
from tests.helpers.errors import check_facts, refusal

SETS = [frozenset(labels) for labels in ({0}, {1, 2, 3}, {2}, {3}, {1, 2}, {0, 1, 2, 3})]


@given(st.integers(0, 10_000), st.sampled_from([0.5, 0.9, 1.0]))
@settings(max_examples=60)
def test_every_voxel_keeps_its_label_set_or_a_sure_leaf_of_it(seed: int, threshold: float) -> None:
    rng = np.random.default_rng(seed)
    sets = tuple(SETS[i] for i in rng.integers(0, len(SETS), 5))
    values = rng.integers(0, 5, (3, 4, 5))
    probabilities = (
        rng.dirichlet(np.full(4, 0.2), (3, 4, 5)).transpose(3, 0, 1, 2).astype(np.float32)
    )
    result, completed = complete_values(
        values, slabs_of(probabilities), Protocol(sets, 4), threshold
    )
    decided = 0
    for voxel in np.ndindex(values.shape):
        before, after = sets[values[voxel]], completed.protocol.sets[result[voxel]]
        p = np.array([probabilities[(leaf, *voxel)] for leaf in sorted(before)], float)
        if len(before) == 1:
            assert after == before
        elif len(after) == 1:
            (leaf,) = after
            assert leaf in before
            assert probabilities[(leaf, *voxel)] >= threshold * p.sum() * (1 - 1e-6)
            decided += 1
        else:
            assert after >= before
            assert p.max() < threshold * p.sum() * (1 + 1e-6)
            assert after == before or completed.enlarged
    assert decided == completed.completed
    assert completed.open_before == sum(len(sets[value]) > 1 for value in values.ravel())


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_probabilities_are_read_in_slabs(tmp_path, monkeypatch, save, dtype, order) -> None:
    monkeypatch.setattr(npz, "SLAB", 7)
    array = np.random.default_rng(0).random((3, 4, 5, 6)).astype(dtype, order=order)
    save(tmp_path / "p.npz", probabilities=array)
    result = np.zeros((3, 120))
    for slab in read_slabs(tmp_path / "p.npz", "probabilities", array.shape):
        assert slab.voxels.size <= 7
        result[slab.channel, slab.part] = slab.voxels
    assert np.array_equal(result.reshape(array.shape), array)
    content = bytearray((tmp_path / "p.npz").read_bytes())
    content[len(content) // 2] ^= 255
    (tmp_path / "p.npz").write_bytes(content)
    with pytest.raises(LabelSetError, match=r"p\.npz"):
        list(read_slabs(tmp_path / "p.npz", "probabilities", array.shape))


def test_completing_needs_less_memory_than_the_probabilities(tmp_path) -> None:
    shape = (12, 48, 48, 48)
    rng = np.random.default_rng(0)
    np.savez_compressed(tmp_path / "p.npz", probabilities=rng.random(shape, np.float32))
    everything = frozenset(range(12))
    protocol = Protocol((everything, *(frozenset([leaf]) for leaf in range(1, 12))), 12)
    values = rng.integers(0, 2, shape[1:], np.uint8)
    tracemalloc.start()
    complete_values(values, read_slabs(tmp_path / "p.npz", "probabilities", shape), protocol, 0.9)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * np.prod(shape)


def test_no_probability_at_all_in_the_set_decides_nothing() -> None:
    probabilities = np.zeros((3, 1, 1, 1), np.float32)
    probabilities[0] = 1
    _, completed = complete_values(
        np.full((1, 1, 1), 1),
        slabs_of(probabilities),
        Protocol((frozenset([0]), frozenset([1, 2]), frozenset([2])), 3),
        0.5,
    )
    assert completed.completed == 0


PLANS = {
    "image_reader_writer": "SimpleITKIO",
    "plans_name": "nnUNetPlans",
    "dataset_name": tiny.NAME,
}


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny data set, two folds, and a model whose validation left probabilities: right, but
    unsure of a slab.
    """
    nnunet = tiny.NNUNet(tmp_path)
    for name, value in nnunet.environment.items():
        if name.lower().startswith("nnunet"):
            monkeypatch.setenv(name, value)
    tiny.write_raw(nnunet.raw)
    cases = list(tiny.CASES)
    folds = [{"train": cases[i::2], "val": cases[1 - i :: 2]} for i in (0, 1)]
    (nnunet.preprocessed / tiny.NAME).mkdir()
    (nnunet.preprocessed / tiny.NAME / "splits_final.json").write_text(json.dumps(folds))
    model = nnunet.model_folder("nnUNetTrainerLeafDice")
    model.mkdir(parents=True)
    (model / "plans.json").write_text(json.dumps(PLANS))
    (model / "dataset.json").write_text((nnunet.raw / tiny.NAME / "dataset.json").read_text())
    for fold, split in enumerate(folds):
        (model / f"fold_{fold}" / "validation").mkdir(parents=True)
        for case in split["val"]:
            _, labels = tiny.volume(cases.index(case), tiny.CASES[case])
            probabilities = np.full((4, *labels.shape), 0.01, np.float32)
            np.put_along_axis(probabilities, labels[None].astype(int), 0.97, 0)
            probabilities[:, :, :, :12] = 0.25  # unsure
            np.savez(
                model / f"fold_{fold}" / "validation" / f"{case}.npz", probabilities=probabilities
            )
    return tmp_path


COMMAND = [
    "complete",
    "-d",
    "901",
    "-tr",
    "nnUNetTrainerLeafDice",
    "--new-id",
    "902",
    "-n",
    "Sure",
    "-np",
    "1",
]


MODEL = Path("results") / tiny.NAME / "nnUNetTrainerLeafDice__nnUNetPlans__3d_fullres"


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def array(path: Path) -> np.ndarray:
    return sitk.GetArrayFromImage(sitk.ReadImage(str(path)))


def test_a_data_set_is_completed(trained: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(COMMAND) == 0
    folder = trained / "raw" / "Dataset902_Sure"
    dataset = json.loads((folder / "dataset.json").read_text())
    contract = Contract.from_dataset_json(dataset)
    old = Contract.from_dataset_json(
        json.loads((trained / "raw" / tiny.NAME / "dataset.json").read_text())
    )
    seeds = {case: seed for seed, case in enumerate(tiny.CASES)}
    for case, protocol in tiny.CASES.items():
        assert contract.cases[case] == protocol  # as people annotated it
        copy = f"{case}__completed"
        _, truth = tiny.volume(seeds[case], protocol)
        before = array(trained / "raw" / tiny.NAME / "labelsTr" / f"{case}.nii.gz")
        after = array(folder / dataset["dataset"][copy]["label"])
        mask = array(folder / "completedTr" / f"{copy}.nii.gz").astype(bool)
        was_open = np.array([len(labels) > 1 for labels in old.protocol(case).sets])[before]
        sets = contract.protocol(copy).sets
        assert mask[:, :, 12:].sum() == was_open[:, :, 12:].sum() == mask.sum() > 0
        assert all(
            sets[value] == {leaf} for value, leaf in zip(after[mask], truth[mask], strict=True)
        )
        for value, original in zip(after[was_open & ~mask], before[was_open & ~mask], strict=True):
            assert sets[value] >= old.protocol(case).sets[original]
        assert dataset["completed"]["cases"][copy]["completed_voxels"] == mask.sum()
    splits = json.loads(
        (trained / "preprocessed" / "Dataset902_Sure" / "splits_final.json").read_text()
    )
    for split in splits:
        check_split(dataset, split["train"], split["val"])
        assert all(case.endswith("__completed") for case in split["train"])
        assert set(split["val"]) <= set(tiny.CASES)
    plans = json.loads(
        (trained / "preprocessed" / "Dataset902_Sure" / "nnUNetPlans.json").read_text()
    )
    assert plans == {**PLANS, "dataset_name": "Dataset902_Sure"}
    output = capsys.readouterr().out
    assert "open voxels completed" in output
    assert "nnUNetv2_preprocess -d 902 -plans_name nnUNetPlans -c 3d_fullres\n" in output
    assert (
        "nnunet_labelset train 902 3d_fullres 0 -tr nnUNetTrainerLeafDice -p nnUNetPlans\n"
        in output
    )
    assert main(["coverage", "-d", "902"]) == 0


def test_completed_cases_are_not_scored_against(
    trained: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(COMMAND) == 0
    folder = trained / "raw" / "Dataset902_Sure"
    assert not (
        folder / "labelsTr"
    ).exists()  # or nnU-Net looks there for the cases that are listed in place
    labels = str(folder / "labelsCompleted")
    predictions = shutil.copytree(labels, trained / "predictions")
    assert main(["evaluate", labels, str(predictions), "-o", str(trained / "scores")]) == 1
    check_facts(capsys.readouterr().err, "8 case", "full_0__completed")
    dataset = json.loads((trained / "raw" / "Dataset902_Sure" / "dataset.json").read_text())
    refuse_completed(dataset, ["full_0"])
    with refusal(LabelSetError, "1 case", "full_0__completed"):
        refuse_completed(dataset, ["full_0", "full_0__completed"])
    with refusal(LabelSetError, "full_1"):
        check_split(dataset, ["full_0__completed", "full_1__completed"], ["full_1"])
    training, validation = whole_split(dataset, dataset["dataset"])
    assert sorted(training) == sorted(f"{case}__completed" for case in tiny.CASES)
    assert sorted(validation) == sorted(tiny.CASES)
    assert whole_split({}, ["a", "b"]) == (["a", "b"], ["a", "b"])


def test_mistakes_are_one_line_and_leave_nothing(
    trained: Path, capsys: pytest.CaptureFixture
) -> None:
    model = trained / MODEL
    missing = model / "fold_1" / "validation" / "full_0.npz"

    def fails(*arguments: str) -> str:
        assert main([*COMMAND, *arguments]) == 1
        assert sorted(path.name for path in (trained / "raw").iterdir()) == [tiny.NAME]
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    assert "no model nnUNetTrainerLeafDic__" in fails("-tr", "nnUNetTrainerLeafDic")
    assert "threshold 1" in fails("--threshold", "1")
    assert "between 0.5 and 1" in fails("--threshold", "90")
    assert "id 901 belongs to" in fails("--new-id", "901")
    kept = missing.read_bytes()
    missing.unlink()
    check_facts(fails(), "full_0", "1 case", "fold(s) 1", "--npz")
    missing.write_bytes(kept[:200])
    assert "full_0.npz" in fails()
    np.savez(missing, probabilities=np.zeros((4, 3, 3, 3), np.float32))
    check_facts(fails(), "full_0.npz", "--val --npz")
    np.savez(missing, probabilities=np.zeros((3, *tiny.SHAPE), np.float32))
    error = fails()
    assert "case 'full_0'" in error
    assert "shape (3, 24, 28, 24), expected (4, 24, 28, 24)" in error
    missing.write_bytes(kept)
    swapped = {"background": 0, "shell": 1, "dot": 2, "core": 3, "ignore": 4}
    labels = json.loads((model / "dataset.json").read_text())["labels"]
    change(model / "dataset.json", labels=swapped)
    check_facts(fails(), "core, dot", tiny.NAME)
    change(model / "dataset.json", labels=labels)
    for plans in ({}, {**PLANS, "plans_name": None}, {**PLANS, "image_reader_writer": "NoIO"}):
        (model / "plans.json").write_text(json.dumps(plans))
        assert "plans.json" in fails()
    (model / "plans.json").write_text(json.dumps(PLANS))
    splits = trained / "preprocessed" / tiny.NAME / "splits_final.json"
    fold = {"train": ["full_0"], "val": ["full_1"]}
    for folds in ([], [{"train": 3, "val": []}], [{**fold, "val": [7]}], [{**fold, "val": ["x"]}]):
        splits.write_text(json.dumps(folds))
        assert "splits_final.json" in fails()


@pytest.mark.parametrize("taken", ["preprocessed/Dataset902_Other", "results/Dataset902_Sure"])
def test_what_another_data_set_has_left_is_not_taken_for_new(
    trained: Path, taken: str, capsys: Any
) -> None:
    (trained / taken).mkdir(parents=True)
    assert main(COMMAND) == 1
    assert (
        f"{trained / taken} exists: remove it, or choose another id than 902\n"
        in capsys.readouterr().err
    )
    assert not (trained / "raw" / "Dataset902_Sure").exists()


def test_preprocessed_files_are_not_overwritten(
    trained: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = trained / "preprocessed" / "Dataset902_Sure"
    (folder / "nnUNetPlans_3d_fullres").mkdir(parents=True)
    (folder / "splits_final.json").write_text("mine")
    assert main(COMMAND) == 1
    assert f"{folder} exists: remove it" in capsys.readouterr().err
    assert (folder / "splits_final.json").read_text() == "mine"
    shutil.rmtree(folder)
    folder.write_text("mine")
    assert main(COMMAND) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert folder.read_text() == "mine"


def test_a_run_that_ended_early_is_done_again(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folds and plans come before the data set, so that one that is there can be trained on."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    folder = trained / "preprocessed" / "Dataset902_Sure"
    splits = json.loads((trained / "preprocessed" / tiny.NAME / "splits_final.json").read_text())
    folders = [
        trained / "raw" / tiny.NAME,
        trained / "raw" / "Dataset902_Sure",
        folder,
        trained / MODEL,
    ]
    publish = complete.publish
    monkeypatch.setattr(complete, "publish", killed)
    with pytest.raises(KeyboardInterrupt):
        complete.write_completed(*folders, splits, 0.9, 1)
    monkeypatch.setattr(complete, "publish", publish)
    assert (folder / "splits_final.json").is_file()
    assert not (trained / "raw" / "Dataset902_Sure").exists()
    assert main(COMMAND) == 0
    assert (trained / "raw" / "Dataset902_Sure" / "dataset.json").is_file()


def test_only_copies_are_taken_for_copies() -> None:
    """A case of the user's may be called like one."""
    after = {"completed": {"cases": {"a__completed": {"of": "a"}}}}
    splits = [{"train": ["a", "b__completed"], "val": ["b", "c"]}]
    assert complete.completed_splits(splits, {}, after) == [
        {"train": ["a__completed", "b__completed"], "val": ["b", "c"]}
    ]


def test_verify_knows_copies(trained: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(COMMAND) == 0
    main(["verify", "-d", "902", "-np", "1"])
    assert "the same image" not in capsys.readouterr().out


def test_a_case_in_no_validation_stays_as_annotated(
    trained: Path, capsys: pytest.CaptureFixture
) -> None:
    file = trained / "preprocessed" / tiny.NAME / "splits_final.json"
    folds = json.loads(file.read_text())
    folds[0]["val"].remove("full_1")
    folds[0]["train"].append("full_1")
    file.write_text(json.dumps(folds))
    assert main(COMMAND) == 0
    out = capsys.readouterr().out
    check_facts(out, "full_1: in no", "7 completed case(s)")
    dataset = json.loads((trained / "raw" / "Dataset902_Sure" / "dataset.json").read_text())
    assert "full_1" in dataset["dataset"]
    assert "full_1__completed" not in dataset["dataset"]
    for split in json.loads(
        (trained / "preprocessed" / "Dataset902_Sure" / "splits_final.json").read_text()
    ):
        assert "full_1" in split["train"]


def test_what_a_protocol_vouches_for_stays_vouched(trained: Path) -> None:
    vouching = {**tiny.PROTOCOLS, "merged": {"shell": ["shell", "core", "dot"], "core": ["core"]}}
    block = {"version": 1, "protocols": vouching, "cases": tiny.CASES}
    change(trained / "raw" / tiny.NAME / "dataset.json", label_sets=block)
    assert main(COMMAND) == 0
    _, contract = read_dataset(trained / "raw" / "Dataset902_Sure")
    assert contract.annotated("merged_0") == ("background", "core")
    assert "core" in contract.annotated("merged_0__completed")
    assert not contract.is_fully_annotated("merged_0__completed")  # the unsure slab is open still


def test_a_second_round_needs_folds_that_do_not_leak(
    trained: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main(COMMAND) == 0
    again = [
        "complete",
        "-d",
        "902",
        "-tr",
        "nnUNetTrainerLeafDice",
        "--new-id",
        "903",
        "-n",
        "Twice",
        "-np",
        "1",
    ]
    shutil.copytree(trained / MODEL, trained / "results" / "Dataset902_Sure" / MODEL.name)
    assert main(again) == 0
    splits = [
        json.loads((trained / "preprocessed" / name / "splits_final.json").read_text())
        for name in ("Dataset902_Sure", "Dataset903_Twice")
    ]
    assert splits[0] == splits[1]  # copies of the annotated cases again
    shutil.rmtree(trained / "raw" / "Dataset903_Twice")
    file = trained / "preprocessed" / "Dataset902_Sure" / "splits_final.json"
    folds = json.loads(file.read_text())
    folds[1]["train"] += [f"{case}__completed" for case in folds[1]["val"]]
    file.write_text(json.dumps(folds))
    capsys.readouterr()
    assert main(again) == 1
    assert (
        "fold 1: the fold trains on completed copies of its own validation cases"
        in capsys.readouterr().err
    )
    assert not (trained / "raw" / "Dataset903_Twice").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["merge", "-d", "950", "-n", "All", "902", "-np", "1"],
            "merge first, complete afterwards",
        ),
        (["splits", "-d", "902", "-k", "2", "--overwrite"], "keep the splits_final.json that"),
    ],
)
def test_other_verbs_do_not_take_copies_for_annotation(
    trained: Path, capsys: pytest.CaptureFixture, arguments: list[str], text: str
) -> None:
    assert main(COMMAND) == 0
    file = trained / "preprocessed" / "Dataset902_Sure" / "splits_final.json"
    folds = file.read_bytes()
    capsys.readouterr()
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1
    assert file.read_bytes() == folds
    assert not (trained / "raw" / "Dataset950_All").exists()


@pytest.mark.slow
def test_a_cascade_trains_on_copies(trained: Path) -> None:
    """nnU-Net predicts for the next stage what a fold validates, and copies are never validated."""
    nnunet, trainer = tiny.NNUNet(trained), "nnUNetTrainerLabelSet_short"
    nnunet.run("nnUNetv2_plan_and_preprocess", "-d", 901, "--no_pp", "-npfp", 1)
    plans = nnunet.preprocessed / tiny.NAME / "nnUNetPlans.json"
    tiny.shrink_plans(plans)
    shutil.copy(plans, trained / MODEL / "plans.json")
    assert main(COMMAND) == 0
    nnunet.run("nnUNetv2_extract_fingerprint", "-d", 902, "-np", 1)
    nnunet.run(
        "nnUNetv2_preprocess",
        "-d",
        902,
        "-plans_name",
        "nnUNetPlans",
        "-c",
        "3d_lowres",
        "3d_fullres",
        "-np",
        1,
    )
    words = ["-tr", trainer, "-device", "cpu"]
    for fold in (0, 1):  # the cascade of a fold trains on what the other one has validated
        nnunet.run("nnUNetv2_train", 902, "3d_lowres", fold, *words, nnUNet_n_proc_DA="0")
    # a second validation finds the links of the first
    nnunet.run("nnUNetv2_train", 902, "3d_lowres", 1, *words, "--val", nnUNet_n_proc_DA="0")
    nnunet.run("nnUNetv2_train", 902, "3d_cascade_fullres", 0, *words, nnUNet_n_proc_DA="0")
    models = nnunet.results / "Dataset902_Sure"
    shown = (
        models
        / f"{trainer}__nnUNetPlans__3d_lowres"
        / "predicted_next_stage"
        / "3d_cascade_fullres"
    )
    for case in tiny.CASES:
        copy, original = (shown / f"{name}.b2nd" for name in (f"{case}__completed", case))
        assert copy.read_bytes() == original.read_bytes()
    validation = models / f"{trainer}__nnUNetPlans__3d_cascade_fullres" / "fold_0" / "validation"
    assert (validation / "summary.json").is_file()


def test_the_old_spelling_of_the_new_id(trained: Path, capsys: pytest.CaptureFixture) -> None:
    old = ["-o" if word == "--new-id" else word for word in COMMAND]
    assert main(old) == 0
    assert "--new-id" in capsys.readouterr().err
    assert (trained / "raw" / "Dataset902_Sure" / "dataset.json").is_file()
    without = [word for word in COMMAND if word not in ("--new-id", "902")]
    assert main(without) == 1
    assert "--new-id" in capsys.readouterr().err


def test_fractions_in_a_label_map_are_not_rounded(
    trained: Path, capsys: pytest.CaptureFixture
) -> None:
    path = trained / "raw" / tiny.NAME / "labelsTr" / "full_0.nii.gz"
    image = sitk.ReadImage(str(path))
    halves = sitk.GetImageFromArray(sitk.GetArrayFromImage(image) * np.float32(0.5))
    halves.CopyInformation(image)
    sitk.WriteImage(halves, str(path))
    assert main(COMMAND) == 1
    assert "full_0.nii.gz" in capsys.readouterr().err
    assert not (trained / "raw" / "Dataset902_Sure").exists()


def test_verify_accepts_what_a_model_has_decided(trained: Path) -> None:
    """The dot was drawn nowhere in a case; the model is sure of the dot only."""
    raw = trained / "raw" / tiny.NAME
    content = json.loads((raw / "dataset.json").read_text())
    content["label_sets"]["protocols"]["no dot"] = {"background": ["background", "dot"]}
    content["label_sets"]["cases"]["full_0"] = "no dot"
    (raw / "dataset.json").write_text(json.dumps(content))
    path = raw / "labelsTr" / "full_0.nii.gz"
    truth = sitk.ReadImage(str(path))
    sitk.WriteImage(sitk.ChangeLabel(truth, {3: 0}), str(path))
    probabilities = np.full((4, *tiny.SHAPE), 0.25, np.float32)
    probabilities[3][sitk.GetArrayFromImage(truth) == 3] = 97
    np.savez(trained / MODEL / "fold_1/validation/full_0.npz", probabilities=probabilities)
    assert main(COMMAND) == 0
    for number in ("901", "902"):
        assert main(["verify", "-d", number, "-np", "1"]) == 0


def test_a_data_set_that_was_not_published_leaves_no_folds(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device", "somewhere")

    before = set(trained.rglob("*"))
    monkeypatch.setattr(complete, "publish", no_space)
    assert main(COMMAND) == 1
    assert "No space left" in capsys.readouterr().err
    assert set(trained.rglob("*")) == before
