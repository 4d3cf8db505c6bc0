"""Mirrored patches exchange left and right: image, labels, label-sets, on the right axis."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.nnunet.swapped_prediction import (
    Mirror,
    announced_mirror,
    left_right_axis,
)
from nnunet_labelset.trainers.swap_mirroring import nnUNetTrainerLabelSet_SwapMirroring
from nnunet_labelset.training import swap_mirroring
from nnunet_labelset.training.swap_mirroring import (
    label_pairs,
    side_distances,
    swapped_leaves,
    swapped_sets,
    with_mirror_images,
)
from tests.helpers import tiny
from tests.helpers.errors import refusal
from tests.helpers.volumes import write_volume

TRAINER = "nnUNetTrainerLabelSet_SwapMirroring"
NAMES = ("background", "kidney_left", "kidney_right", "liver")
DATASET = {
    "labels": {**{name: value for value, name in enumerate(NAMES)}, "ignore": 4},
    "label_sets": {
        "version": 1,
        "protocols": {
            "no_left": {"background": ["background", "kidney_left"]},
            "merged": {"liver": ["liver", "kidney_right"]},
        },
        "cases": {"a": "no_left", "b": "merged"},
    },
}


def test_sets_are_exchanged_like_their_labels() -> None:
    contract = Contract.from_dataset_json(DATASET)
    swap = swapped_leaves(NAMES, label_pairs(NAMES, DATASET))
    assert swap.tolist() == [0, 2, 1, 3]
    label_sets = with_mirror_images(contract, swap)
    table = swapped_sets(label_sets.membership, swap)
    sets = [frozenset(np.flatnonzero(row).tolist()) for row in label_sets.membership.numpy()]
    for index, leaves in enumerate(sets):
        assert sets[table[index]] == {int(swap[leaf]) for leaf in leaves}
    assert table[table].tolist() == list(range(len(sets)))
    assert frozenset([0, 2]) in sets  # the mirror image of {background, left}


@pytest.mark.parametrize("pairs", [[["kidney_left", "liver"]], [["liver", "kidney_right"]]])
def test_pairs_may_be_listed(pairs: list[list[str]]) -> None:
    assert label_pairs(NAMES, {"mirrored_labels": pairs}) == [tuple(pairs[0])]


@pytest.mark.parametrize(
    "pairs",
    [
        "liver",
        [1],
        {"liver": "spleen"},
        [["liver"]],
        [["liver", "spleen"]],
        [["liver", "liver"]],
        [["background", "liver"]],
    ],
)
def test_listed_pairs_are_checked(pairs: list[list[str]]) -> None:
    with refusal(LabelSetError, "mirrored_labels"):
        label_pairs(NAMES, {"mirrored_labels": pairs})


@pytest.mark.parametrize(
    ("direction", "transpose", "axis"),
    [
        ([1, 0, 0, 0, 1, 0, 0, 0, 1], [0, 1, 2], 2),  # x of the image is left-right
        ([-1, 0, 0, 0, 1, 0, 0, 0, 1], [2, 0, 1], 0),
        ([0, 0, 1, 1, 0, 0, 0, 1, 0], [0, 1, 2], 0),  # sagittal slices: z of the image
        ([0, 1, 0, 1, 0, 0, 0, 0, 1], [1, 0, 2], 0),
    ],
)
def test_the_axis_follows_direction_and_transpose(
    direction: list[int], transpose: list[int], axis: int
) -> None:
    assert left_right_axis({"sitk_stuff": {"direction": direction}}, transpose) == axis


def test_a_reader_that_turns_images_counts_as_turned() -> None:
    turned = np.eye(4)
    stored = {"original_affine": np.eye(4)[[1, 2, 0, 3]], "reoriented_affine": turned}
    assert left_right_axis({"nibabel_stuff": stored}, [0, 1, 2]) == 2


def test_oblique_and_flat_images_are_refused() -> None:
    half = 0.5**0.5
    for direction in ([half, -half, 0, half, half, 0, 0, 0, 1], [1, 0, 0, 1]):
        with pytest.raises(LabelSetError):
            left_right_axis({"sitk_stuff": {"direction": direction}}, [0, 1, 2])


def sided_dataset(nnunet: tiny.NNUNet) -> dict:
    """The tiny data set with `shell` and `core` called left and right."""
    dataset = copy.deepcopy(tiny.dataset_json(nnunet))
    return {**dataset, "mirrored_labels": [["shell", "core"]]}


def test_a_mirrored_sample_is_mirrored_and_exchanged(in_process: tiny.NNUNet) -> None:
    trainer = tiny.make(
        in_process, nnUNetTrainerLabelSet_SwapMirroring, sided_dataset(in_process), fold="all"
    )
    trainer.initialize()
    values = torch.randint(4, (2, 1, 16, 16, 16), dtype=torch.int16)
    batch = {
        "data": torch.randn(2, 1, 16, 16, 16),
        "target": [values, values[..., ::2, ::2, ::2]],
        "keys": np.array(["full_0", "part_0"]),
    }
    plain = [trainer.label_sets.encode(scale, ["full_0", "part_0"]) for scale in batch["target"]]
    torch.manual_seed(0)
    kinds = set()
    for _ in range(8):
        encoded = trainer.encode_batch(batch)
        for sample in range(2):
            is_mirrored = not torch.equal(encoded["data"][sample], batch["data"][sample])
            kinds.add(is_mirrored)
            for scale, before in zip(encoded["target"], plain, strict=True):
                expected = before[sample]
                if is_mirrored:
                    expected = trainer._swap[expected].flip(-1)
                assert torch.equal(scale[sample].long(), expected)
            if is_mirrored:
                assert torch.equal(encoded["data"][sample], batch["data"][sample].flip(-1))
    assert kinds == {True, False}
    with torch.no_grad():
        assert torch.equal(trainer.encode_batch(batch)["data"], batch["data"])


def test_training_and_prediction_do_not_mirror_otherwise(in_process: tiny.NNUNet) -> None:
    trainer = tiny.make(
        in_process, nnUNetTrainerLabelSet_SwapMirroring, sided_dataset(in_process), fold="all"
    )
    trainer.initialize()
    trainer.on_train_start()
    assert not trainer.inference_allowed_mirroring_axes
    loss = trainer.train_step(next(trainer.dataloader_train))["loss"]
    assert np.isfinite(loss)


def test_a_network_that_mirrors_and_swaps_answers_the_mirror_image_alike() -> None:
    network = torch.nn.Conv3d(1, 4, 3, padding=1).double()
    names = list(network.state_dict())
    image = torch.randn(2, 1, 6, 7, 8, dtype=torch.float64)
    mirror = Mirror(axis=2, swap=(0, 2, 1, 3))
    plain = network(image)
    with mirror.announced():
        assert announced_mirror() == mirror
    assert announced_mirror() is None
    mirror.apply(network)
    assert torch.equal(network(image), plain)  # training is as before
    network.eval()
    prediction = network(image)
    expected = prediction[:, [0, 2, 1, 3]].flip(4)
    assert torch.allclose(network(image.flip(4)), expected, rtol=0, atol=1e-12)
    assert not torch.allclose(plain.flip(4), expected)
    assert list(network.state_dict()) == names


def test_a_list_that_leaves_a_pair_of_names_out_is_told(
    in_process: tiny.NNUNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = sided_dataset(in_process)
    names = ("background", "shell", "core", "ear_left", "ear_right", "ignore")
    dataset["labels"] = {name: value for value, name in enumerate(names)}
    dataset["label_sets"]["protocols"] = {name: {} for name in tiny.PROTOCOLS}
    trainer = tiny.make(in_process, nnUNetTrainerLabelSet_SwapMirroring, dataset, fold="all")
    lines: list[str] = []
    monkeypatch.setattr(trainer, "print_to_log_file", lambda *words, **_: lines.append(str(words)))
    trainer.initialize()
    (warning,) = [line for line in lines if "WARNING" in line and "mirrored_labels" in line]
    assert "ear_left" in warning
    assert "shell" not in warning


def test_labels_without_sides_are_refused(in_process: tiny.NNUNet) -> None:
    with pytest.raises(SystemExit):
        tiny.make(in_process, nnUNetTrainerLabelSet_SwapMirroring, fold="all")


def test_labels_tell_the_axis_along_which_sides_lie_apart() -> None:
    """OpenKBP's files call the axis from side to side y, although their headers say x."""
    left = np.array([[0, 5, 2, 7], [0, 6, 2, 7]])
    right = np.array([[0, 5, 20, 8]])
    swapped = np.array([0, 2, 1, 3])  # label 3 has no side
    locations = {1: left, 2: right, 3: np.array([[0, 50, 0, 0]])}
    assert [row.tolist() for row in side_distances(locations, swapped)] == [[0.5, 18, 1]]
    assert not list(side_distances({1: left, 2: []}, swapped))  # one side only


def test_headers_that_contradict_the_labels_stop_the_training(
    in_process: tiny.NNUNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = tiny.make(
        in_process, nnUNetTrainerLabelSet_SwapMirroring, sided_dataset(in_process), fold="all"
    )
    monkeypatch.setattr(swap_mirroring, "CLEAR_DISTANCE", 0)
    monkeypatch.setattr(swap_mirroring, "side_distances", lambda *_: [np.array([0.0, 18.0, 1.0])])
    with refusal(SystemExit, "axis 1"):
        trainer.initialize()


def trained_model(nnunet: tiny.NNUNet) -> None:
    """Train for some steps, so that the outputs of a patch and of its mirror image differ."""
    torch.manual_seed(0)
    np.random.seed(0)  # nnU-Net's augmentation
    trainer = tiny.make(
        nnunet, nnUNetTrainerLabelSet_SwapMirroring, sided_dataset(nnunet), fold="all"
    )
    trainer.initialize()
    trainer.on_train_start()
    for _ in range(20):
        trainer.train_step(next(trainer.dataloader_train))
    trainer.save_checkpoint(str(Path(trainer.output_folder, "checkpoint_final.pth")))


def predicted(nnunet: tiny.NNUNet, results: Path, command: str, *words: object) -> Path:
    output = results / f"{command} {len(words)}"
    nnunet.run(
        command,
        *(*words, "-i", results / "images", "-o", output, "-d", 901, "-c", "3d_fullres"),
        *("-f", "all", "-tr", TRAINER, "-device", "cpu", "-npp", 1, "-nps", 1),
        "--save_probabilities",
        nnUNet_results=str(results),
    )
    return output


def probabilities(folder: Path, case: str) -> np.ndarray:
    return np.load(folder / f"{case}.npz")["probabilities"].astype(float)  # (C, z, y, x)


def mean_of_logits(*probabilities: np.ndarray) -> np.ndarray:
    product = np.prod(probabilities, axis=0) ** (1 / len(probabilities))
    return product / product.sum(0)


# nnU-Net weights the voxels of a tile by a Gaussian in float16. In its corners the weight is
# subnormal, so that stored logits are rounded by up to 0.5: the border is left out. The Gaussian is
# not symmetric either, so that tiles that overlap weigh differently in an image and in its mirror
# image: one tile is compared more closely than several.
@pytest.mark.parametrize(("case", "tolerance"), [("patch", 2e-3), ("tiles", 0.03)])
def test_predict_averages_over_the_image_and_its_exchanged_mirror_image(
    case: str, tolerance: float, predictions: tuple[Path, Path]
) -> None:
    ours, stock = predictions
    plain = probabilities(stock, case)
    of_mirrored = probabilities(stock, f"{case}_mirrored")[..., ::-1]
    result = probabilities(ours, case)
    error = inner_difference(result, mean_of_logits(plain, of_mirrored[[0, 2, 1, 3]]))
    assert error.max() < tolerance
    assert error.mean() < 1e-3
    assert inner_difference(result, mean_of_logits(plain, of_mirrored)).mean() > 3e-3
    assert inner_difference(result, plain).mean() > 3e-3


def inner_difference(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.abs(first - second)[:, 4:-4, 4:-4, 4:-4]


@pytest.fixture(scope="module")
def predictions(
    prepared: tiny.NNUNet, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Predictions of `nnunet_labelset predict`, and of nnU-Net's own command."""
    results = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        trained_model(tiny.enter(prepared, patch, results))
    for case, shape in (("patch", (16, 16, 16)), ("tiles", tiny.SHAPE)):
        image = tiny.volume(100, shape=shape)[0]
        for name, array in ((case, image), (f"{case}_mirrored", image[..., ::-1])):
            write_volume(results / "images" / f"{name}_0000.nii.gz", array.copy())
    return (
        predicted(prepared, results, "nnunet_labelset", "predict"),
        predicted(prepared, results, "nnUNetv2_predict"),
    )
