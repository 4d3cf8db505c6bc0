"""The mixin inside nnU-Net's trainer, in this process: loss, sampling, counts, start-up."""

from __future__ import annotations

import copy
import inspect
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from nnunetv2.training.dataloading.data_loader import nnUNetDataLoader
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.training.nnUNetTrainer.variants.benchmarking.nnUNetTrainerBenchmark_5epochs import (
    nnUNetTrainerBenchmark_5epochs,
)
from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerDA5 import (
    nnUNetTrainerDA5,
)
from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerNoMirroring import (
    nnUNetTrainerNoMirroring,
)
from nnunetv2.training.nnUNetTrainer.variants.loss.nnUNetTrainerDiceLoss import (
    nnUNetTrainerDiceLoss,
)
from nnunetv2.training.nnUNetTrainer.variants.loss.nnUNetTrainerTopkLoss import (
    nnUNetTrainerTopk10Loss,
)
from nnunetv2.training.nnUNetTrainer.variants.training_length.nnUNetTrainer_Xepochs import (
    nnUNetTrainer_5epochs,
)
from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.losses import LeafDiceLoss
from nnunet_labelset.losses.label_sets import LabelSets
from nnunet_labelset.nnunet.discovery import known_trainers
from nnunet_labelset.training.mixin import LabelSetMixin
from tests.helpers import tiny
from tests.helpers.errors import refusal
from tests.helpers.tiny import dataset_json, make
from tests.helpers.training import TRAINERS, all_full, batch

METHODS = (
    "LabelSet",
    "LabelSetTeacher",
    "LabelSetSigmoid",
    "LeafDice",
    "LeafDiceCE",
    "LeafDiceFocal",
    "MarginalDice",
    "MarginalDiceCE",
    "MarginalDiceFocal",
    "MarginalCE",
    "MarginalFocal",
    "SoftTargetDice",
    "FullySupervisedDice",
)
# the classes that are written out, but for sigmoids, whose outputs are others
WITHOUT_LENGTH = sorted(
    name for name in TRAINERS if "_" not in name and not name.endswith("Sigmoid")
)
LENGTHS = ("", "_5epochs", "_50epochs", "_100epochs", "_250epochs", "_short")


def test_the_names_that_users_type() -> None:
    names = {f"{method}{length}" for method in METHODS for length in LENGTHS}
    names |= {f"{name}{suffix}" for name in names for suffix in ("_NoMirroring", "_onlyMirror01")}
    assert set(TRAINERS) == {f"nnUNetTrainer{name}" for name in names}
    assert set(TRAINERS) <= known_trainers()


def test_nnunet_finds_every_trainer(in_process: tiny.NNUNet) -> None:
    methods = [name for name in TRAINERS if "_" not in name]
    for name in [*methods, "nnUNetTrainerLabelSetTeacher_short_NoMirroring"]:
        cls = TRAINERS[name]
        found = recursive_find_trainer_class_by_name(name)
        assert found.__name__ == name
        assert found.loss_class is cls.loss_class
        assert list(inspect.signature(found.__init__).parameters) == list(
            inspect.signature(nnUNetTrainer.__init__).parameters
        )


@pytest.mark.parametrize(
    "name",
    ["nnUNetTrainerLeafDice_5epochs", "nnUNetTrainerLabelSetTeacher_250epochs_NoMirroring"],
)
def test_lengths(in_process: tiny.NNUNet, name: str) -> None:
    assert make(in_process, TRAINERS[name]).num_epochs == int(
        name.split("_")[1].removesuffix("epochs")
    )


def test_mirroring_along_two_axes_only(in_process: tiny.NNUNet) -> None:
    trainer = make(in_process, TRAINERS["nnUNetTrainerLabelSet_100epochs_onlyMirror01"])
    assert trainer.num_epochs == 100
    axes = trainer.configure_rotation_dummyDA_mirroring_and_inital_patch_size()[3]
    assert axes == trainer.inference_allowed_mirroring_axes == (0, 1)


class PlainLoss(torch.nn.Module):
    """Mean-class Dice with squares plus cross entropy, straight from the definitions."""

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        p, one_hot = logits.softmax(1), F.one_hot(target[:, 0].long(), 4).movedim(-1, 1)
        axes = (2, 3, 4)
        dice = 2 * (p * one_hot).sum(axes) / (one_hot.sum(axes) + (p**2).sum(axes) + 1e-5)
        return 1 - dice.mean() + F.cross_entropy(logits, target[:, 0].long())


def test_fully_annotated_data_train_exactly_as_with_the_plain_loss(in_process: tiny.NNUNet) -> None:
    ours = make(in_process, TRAINERS["nnUNetTrainerLeafDiceCE_short"], all_full(in_process))
    plain = make(in_process, TRAINERS["nnUNetTrainerLeafDiceCE_short"], all_full(in_process))
    for trainer in (ours, plain):
        trainer.initialize()
    plain.network.load_state_dict(ours.network.state_dict())
    plain.loss.loss = PlainLoss()
    for step in range(3):
        example = batch(step, ["full_0", "part_0"])
        assert ours.train_step(copy.deepcopy(example))["loss"] == pytest.approx(
            plain.train_step(copy.deepcopy(example))["loss"], rel=1e-4
        )


def test_deep_supervision_weights_are_those_of_nnunet(in_process: tiny.NNUNet) -> None:
    ours, plain = (
        make(in_process, TRAINERS["nnUNetTrainerLeafDice"]),
        make(in_process, nnUNetTrainer),
    )
    ours.initialize()
    plain.initialize()
    assert ours.loss.weight_factors == plain.loss.weight_factors
    assert isinstance(ours.loss.loss, LeafDiceLoss)
    assert ours.loss.loss.batch_dice == ours.configuration_manager.batch_dice


@pytest.mark.parametrize("name", WITHOUT_LENGTH)
def test_voxels_that_may_be_anything_contribute_nothing(in_process: tiny.NNUNet, name: str) -> None:
    trainer = make(in_process, TRAINERS[name])
    trainer.initialize()
    example = trainer.encode_batch(batch(0, ["full_0", "full_1"], values=5))
    target = example["target"][0]
    # value 4 of a "full" case is every leaf
    ignored = (target == target.max()).expand(-1, 4, -1, -1, -1)
    assert trainer.label_sets.membership[int(target.max())].all()
    logits = torch.randn(2, 4, 16, 16, 16, requires_grad=True)
    other = torch.where(
        ignored, torch.randn(2, 4, 16, 16, 16), logits.detach()
    ).requires_grad_()  # both in training
    loss = trainer.loss.loss(logits, target)
    assert loss.item() == pytest.approx(trainer.loss.loss(other, target).item(), abs=1e-6)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[ignored].abs().max() == 0
    assert logits.grad[~ignored].abs().max() > 0


def test_an_unannotated_value_means_what_its_case_says(in_process: tiny.NNUNet) -> None:
    trainer = make(in_process, TRAINERS["nnUNetTrainerLeafDice"])
    example = batch(0, ["full_0", "part_0", "merged_0"], values=5)
    encoded = trainer.encode_batch(example)["target"][0].long()
    membership = trainer.label_sets.membership
    for b, sets in enumerate([{4: [0, 1, 2, 3]}, {4: [2, 3]}, {1: [1, 2, 3], 4: [0, 1, 2, 3]}]):
        for value in range(5):
            rows = encoded[b][example["target"][0][b] == value].unique()
            assert len(rows) == 1
            assert membership[rows[0]].nonzero().flatten().tolist() == sets.get(value, [value])


@pytest.mark.parametrize("base", [nnUNetTrainerNoMirroring, nnUNetTrainerDA5])
def test_the_mixin_goes_with_nnunets_variants(in_process: tiny.NNUNet, base: type) -> None:
    class Combined(LabelSetMixin, base):  # type: ignore[misc, valid-type]
        loss_class = LeafDiceLoss

    trainer = make(in_process, Combined)
    trainer.num_iterations_per_epoch = trainer.num_val_iterations_per_epoch = 1
    trainer.on_train_start()
    assert np.isfinite(trainer.train_step(next(trainer.dataloader_train))["loss"])


def test_a_base_trainer_may_validate_nothing(
    in_process: tiny.NNUNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Benchmark(LabelSetMixin, nnUNetTrainerBenchmark_5epochs):
        loss_class = LeafDiceLoss

    # it asks for a GPU when it is made
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    trainer = make(in_process, Benchmark)
    monkeypatch.undo()
    trainer.perform_actual_validation()
    assert not (Path(trainer.output_folder) / "validation" / "summary.json").exists()


def test_patches_are_centred_on_every_voxel_that_says_something(in_process: tiny.NNUNet) -> None:
    np.random.seed(0)
    trainer = make(in_process, TRAINERS["nnUNetTrainerLeafDice"], fold="all")
    trainer.configuration_manager.configuration["patch_size"] = [1, 1, 1]
    training, _ = trainer.get_tr_and_val_datasets()
    share = {}
    for case in ("part_0", "full_0"):
        data, seg, _, properties = training.load_case(case)
        loader = nnUNetDataLoader(training, 2, (1, 1, 1), (1, 1, 1), trainer.label_manager)
        values = np.asarray(seg[0])
        hits = []
        for _ in range(2000):
            lower, _ = loader.get_bbox(data.shape[1:], False, properties["class_locations"])
            hits.append(values[tuple(lower)] == 4)
        share[case] = np.mean(hits), (values == 4).mean()
    assert share["part_0"][0] == pytest.approx(share["part_0"][1], abs=0.03)  # like any other voxel
    assert share["full_0"][0] == 0 < share["full_0"][1]  # may be every leaf: nnU-Net's rule


def test_validation_step_counts_what_is_known(in_process: tiny.NNUNet) -> None:
    trainer = make(in_process, TRAINERS["nnUNetTrainerLeafDice"])
    trainer.initialize()
    trainer.network.eval()
    example = batch(3, ["full_0", "part_0"], values=5)
    outputs = trainer.validation_step(copy.deepcopy(example))
    with torch.no_grad():
        predicted = trainer.network(example["data"])[0].argmax(1)
    sets = [[{0}, {1}, {2}, {3}, {0, 1, 2, 3}], [{0}, {1}, {2}, {3}, {2, 3}]]
    expected = np.zeros((3, 4), int)
    for b in range(2):
        for value, leaf in zip(
            example["target"][0][b].flatten().tolist(), predicted[b].flatten().tolist(), strict=True
        ):
            for c in range(4):
                known = sets[b][value]
                expected[0, c] += known == {c} and leaf == c
                expected[1, c] += c not in known and leaf == c
                expected[2, c] += known == {c} and leaf != c
    for row, key in enumerate(("tp_hard", "fp_hard", "fn_hard")):
        assert outputs[key].tolist() == expected[row, 1:].tolist()


def test_fully_supervised_trains_on_complete_cases_only(
    in_process: tiny.NNUNet, capsys: pytest.CaptureFixture
) -> None:
    trainer = make(in_process, TRAINERS["nnUNetTrainerFullySupervisedDice"], fold="all")
    training, validation = trainer.do_split()
    assert set(training) == {f"full_{i}" for i in range(4)}
    assert set(validation) == set(tiny.CASES)
    assert "4 of 8" in capsys.readouterr().out
    dataset = dataset_json(in_process)
    dataset["label_sets"]["cases"] = dict.fromkeys(tiny.CASES, "no_core")
    with refusal(SystemExit, "fold 0", "nnUNetTrainerLabelSet", "nnunet_labelset splits"):
        make(in_process, TRAINERS["nnUNetTrainerFullySupervisedDice"], dataset).do_split()
    # not listed is not the same as partially annotated
    del dataset["label_sets"]["cases"]["full_0"]
    with refusal(SystemExit, "'full_0'", "label_sets.cases"):
        make(
            in_process, TRAINERS["nnUNetTrainerFullySupervisedDice"], dataset, fold="all"
        ).do_split()


def remove_block(dataset: dict) -> None:
    del dataset["label_sets"]


def add_region(dataset: dict) -> None:
    dataset["labels"]["shell"] = [1, 2]


def misspell(dataset: dict) -> None:
    dataset["label_sets"]["protocols"]["no_core"]["ignore"] = ["cor", "dot"]


def undeclare(dataset: dict) -> None:
    del dataset["labels"]["ignore"]


def forget_ignore(dataset: dict) -> None:
    """Nothing in dataset.json mentions `ignore`, but the label maps have it."""
    del dataset["labels"]["ignore"]
    dataset["label_sets"] |= {"protocols": {"full": {}}, "cases": dict.fromkeys(tiny.CASES, "full")}


def know_nothing(dataset: dict) -> None:
    """Every value may be background."""
    leaves = [name for name in dataset["labels"] if name not in ("background", "ignore")]
    protocols = {"none": {leaf: ["background", leaf] for leaf in leaves}}
    dataset["label_sets"] |= {"protocols": protocols, "cases": dict.fromkeys(tiny.CASES, "none")}


def unlist(dataset: dict) -> None:
    del dataset["label_sets"]["cases"]["full_0"]


@pytest.mark.parametrize(
    ("spoil", "facts"),
    [
        (remove_block, [f"{tiny.NAME}/dataset.json: ", "'label_sets'", "cp /"]),
        (add_region, ["'shell'", "region"]),
        (misspell, ["'cor'", "'core'"]),
        (undeclare, ["'ignore'"]),
        (know_nothing, ["background", "nnunet_labelset coverage"]),
        (unlist, ["'full_0'", "label_sets.cases"]),
        (forget_ignore, ["value 4", "0..3", "'ignore'"]),
    ],
)
def test_mistakes_stop_at_once(
    in_process: tiny.NNUNet, tmp_path: Path, spoil: Any, facts: list[str]
) -> None:
    dataset = dataset_json(in_process)
    spoil(dataset)
    with refusal(SystemExit, *facts):
        make(in_process, TRAINERS["nnUNetTrainerLeafDice"], dataset, fold="all").initialize()
    if spoil not in (unlist, forget_ignore, know_nothing):
        assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("base", [nnUNetTrainer, nnUNetTrainerDA5, nnUNetTrainer_5epochs])
def test_the_wrong_order_is_refused_when_the_class_is_made(base: type) -> None:
    with refusal(LabelSetError, "class Wrong", f"(LabelSetMixin, {base.__name__})"):

        class Wrong(base, LabelSetMixin):  # type: ignore[misc, valid-type]
            loss_class = LeafDiceLoss


def test_the_right_order_keeps_the_loss() -> None:
    ours = TRAINERS["nnUNetTrainerLeafDice"]
    with refusal(LabelSetError, "class Wrong(nnUNetTrainerLeafDice, nnUNetTrainerDA5)"):

        class Wrong(nnUNetTrainerDA5, ours):  # type: ignore[misc, valid-type]
            pass


def test_a_trainer_without_loss(in_process: tiny.NNUNet) -> None:
    class Nothing(LabelSetMixin, nnUNetTrainer):
        pass

    with refusal(SystemExit, "Nothing", "loss_class"):
        make(in_process, Nothing, fold="all").initialize()


def test_a_trainer_chooses_options_of_its_loss(in_process: tiny.NNUNet) -> None:
    class Linear(LabelSetMixin, nnUNetTrainer):
        loss_class = LeafDiceLoss
        loss_options: ClassVar = {"alpha": 1, "batch_dice": True}

    trainer = make(in_process, Linear, fold="all")
    trainer.initialize()
    assert (trainer.inner_loss.alpha, trainer.inner_loss.batch_dice) == (1, True)
    assert trainer.inner_loss.ignore_full_set


def test_batches_that_do_not_name_their_cases(in_process: tiny.NNUNet) -> None:
    """Such are the made-up batches of nnU-Net's benchmark without data loading."""
    trainer = make(in_process, TRAINERS["nnUNetTrainerLeafDice"], fold="all")
    with refusal(SystemExit, "batch", "cases"):
        trainer.train_step({"data": torch.zeros(1), "target": torch.zeros(1)})


def test_messages_fit_a_cuda_assertion_whatever_the_batch(
    in_process: tiny.NNUNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA refuses a message of 255 characters, fired or not; a 2D plan has batches of 14 cases and
    more.
    """
    cases = {f"a_case_with_a_long_name_{number:03d}": "full" for number in range(40)}
    dataset = dataset_json(in_process)
    dataset["label_sets"]["cases"] |= cases
    label_sets = LabelSets.from_dataset_json(dataset)
    messages = []
    monkeypatch.setattr(torch, "_assert_async", lambda condition, message: messages.append(message))
    target = torch.zeros(len(cases), 1, 8, 8, dtype=torch.int16, device="meta")
    label_sets.encode(target, list(cases))
    assert messages
    assert max(map(len, messages)) < 255


def test_coverage_is_logged_and_a_leaf_that_nobody_annotates(
    in_process: tiny.NNUNet, capsys: pytest.CaptureFixture
) -> None:
    dataset = dataset_json(in_process)
    dataset["label_sets"]["cases"] = dict.fromkeys(tiny.CASES, "no_core")
    make(in_process, TRAINERS["nnUNetTrainerLeafDice"], dataset, fold="all").on_train_start()
    printed = capsys.readouterr().out
    assert re.search("shell +8 of 8", printed)
    assert re.search("WARNING: .*'core'", printed)


class OwnStep(nnUNetTrainer):
    """A trainer of a user with a step of its own."""

    def train_step(self, batch: dict) -> dict:
        self.seen = batch["target"]
        return {"loss": 0.0}


def test_a_train_step_behind_the_mixin_must_know_what_it_gets(in_process: tiny.NNUNet) -> None:
    class Unaware(LabelSetMixin, OwnStep):
        loss_class = LeafDiceLoss

    class Aware(Unaware):
        takes_set_indices = True

    with refusal(SystemExit, "OwnStep.train_step", "takes_set_indices"):
        make(in_process, Unaware)
    trainer = make(in_process, Aware)
    example = batch(0, ["part_0"], values=5)
    trainer.train_step(example)
    is_ignored = example["target"][0] == 4
    rows = trainer.seen[0][is_ignored].unique().tolist()
    assert [trainer.label_sets.membership[row].tolist() for row in rows] == [
        [False, False, True, True]
    ]


def test_a_train_step_before_the_mixin_must_hand_the_batch_on(in_process: tiny.NNUNet) -> None:
    class Values(TRAINERS["nnUNetTrainerLeafDice"]):  # type: ignore[misc]
        def train_step(self, batch: dict) -> dict:
            return {"loss": self.loss(self.network(batch["data"]), batch["target"])}

    class Encoded(TRAINERS["nnUNetTrainerLeafDice"]):  # type: ignore[misc]
        def train_step(self, batch: dict) -> dict:
            batch = self.encode_batch(batch)
            return {"loss": self.loss(self.network(batch["data"]), batch["target"])}

    with refusal(SystemExit, "Values.train_step", "encode_batch"):
        make(in_process, Values)
    trainer = make(in_process, Encoded)
    trainer.initialize()
    assert torch.isfinite(trainer.train_step(batch(0, ["part_0", "full_0"], values=5))["loss"])


@pytest.mark.parametrize("base", [nnUNetTrainerDiceLoss, nnUNetTrainerTopk10Loss, nnUNetTrainer])
def test_a_loss_that_is_replaced_is_named(
    in_process: tiny.NNUNet, capsys: pytest.CaptureFixture, base: type
) -> None:
    class Combined(LabelSetMixin, base):  # type: ignore[misc, valid-type]
        loss_class = LeafDiceLoss

    trainer = make(in_process, Combined)
    trainer.initialize()
    assert isinstance(trainer.inner_loss, LeafDiceLoss)
    lines = [line for line in capsys.readouterr().out.splitlines() if "LeafDiceLoss" in line]
    assert [base.__name__ in line for line in lines] == [True] * (base is not nnUNetTrainer)
