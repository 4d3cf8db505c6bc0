"""What makes an nnU-Net trainer learn from label-sets: a mixin in front of nnU-Net's own trainer
classes.

nnU-Net keeps the network, the plans, the augmentation, the optimiser and the loops. The mixin
encodes the target by case, swaps the loss, samples patches around unannotated voxels that say
something, and counts in validation only what is known.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
from torch import nn

from nnunet_labelset.contract import Contract
from nnunet_labelset.contract.completed import check_split, whole_split
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.io.parallel import exit_when_terminated
from nnunet_labelset.losses import LabelSetLoss, RunningDice
from nnunet_labelset.losses.label_sets import LabelSets
from nnunet_labelset.nnunet.discovery import DEFAULT_TRAINER
from nnunet_labelset.nnunet.recommendation import TEACHER_TRAINER
from nnunet_labelset.training.advice import AdviceMixin
from nnunet_labelset.training.checkpoints import CheckpointMixin
from nnunet_labelset.training.regions import Regions, without_regions
from nnunet_labelset.training.sampling import (
    BY_LEAF,
    UNIFORM,
    VARIABLE,
    SampledDataset,
    chosen_sampling,
    probabilities,
    shares,
)
from nnunet_labelset.training.start import (
    plain_network,
    pretrained_file,
    read_start,
    restore_outputs,
)
from nnunet_labelset.training.stopping import stop, stop_at_contract
from nnunet_labelset.training.validation import ValidationMixin


class LabelSetMixin(ValidationMixin, CheckpointMixin, AdviceMixin):
    """Put it before an nnU-Net trainer: `class nnUNetTrainerLeafDice(LabelSetMixin,
    nnUNetTrainer)`.
    """

    loss_class: ClassVar[type[LabelSetLoss]]
    sampling: ClassVar[str] = BY_LEAF  # the default of `nnunet_labelset_sampling`

    def __init_subclass__(cls, **options: Any) -> None:
        """In the other order nnU-Net's methods win, and plain nnU-Net is trained without a word."""
        super().__init_subclass__(**options)
        from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

        for ancestor in cls.__mro__[: cls.__mro__.index(LabelSetMixin)]:
            if issubclass(ancestor, nnUNetTrainer) and not issubclass(ancestor, LabelSetMixin):
                ours = next(
                    (base for base in cls.__bases__ if issubclass(base, LabelSetMixin)),
                    LabelSetMixin,
                )
                raise LabelSetError(
                    f"class {cls.__name__}: {ancestor.__name__} comes before LabelSetMixin and would switch it off: "
                    f"write class {cls.__name__}({ours.__name__}, {ancestor.__name__})"
                )

    # nnU-Net reads the names of these parameters by inspection: they must be its own.
    def __init__(
        self,
        plans: dict,
        configuration: str,
        fold: int,
        dataset_json: dict,
        device: torch.device = torch.device("cuda"),  # noqa: B008  (nnU-Net's own signature)
    ) -> None:
        self._resuming = bool(plans.get("continue_training"))
        try:  # before nnU-Net makes a folder or a log file
            self.label_sets = LabelSets.from_dataset_json(dataset_json)
        except LabelSetError as error:
            stop_at_contract(error, plans["dataset_name"], dataset_json)
        self.regions = (
            Regions(self.label_sets, self.contract) if self.contract.regions is not None else None
        )
        try:
            self._sampling = chosen_sampling(self.sampling)
        except LabelSetError as error:
            stop(error)
        super().__init__(plans, configuration, fold, dataset_json, device)

    @property
    def contract(self) -> Contract:  # type: ignore[override]
        assert self.label_sets.contract is not None
        return self.label_sets.contract

    @property
    def output_names(self) -> tuple[str, ...]:
        """The label of every output of the network."""
        return self.regions.names if self.regions else self.label_sets.leaf_names

    # ------------------------------------------------------------------------------------------------
    # start-up

    def initialize(self) -> None:
        """Check the cases of the fold before anything costs time, then go on as nnU-Net."""
        training, validation = self.do_split()
        self._log_coverage(training, validation)
        super().initialize()
        if self._start_file is not None:
            read_start(self._start_file, plain_network(self.network), self.output_names)
        self._check_values(training)
        self._check_knowledge(training)
        exit_when_terminated()

    def do_split(self) -> tuple[list[str], list[str]]:
        """nnU-Net's split; every case of it must have a protocol, and no completed case is for
        validation.
        """
        training, validation = super().do_split()
        try:
            self.contract.require_cases([*training, *validation])
        except LabelSetError as error:
            stop_at_contract(error, self.plans_manager.dataset_name, self.dataset_json)
        if self.fold == "all":
            return whole_split(self.dataset_json, training)
        try:
            check_split(self.dataset_json, training, validation)
        except LabelSetError as error:
            stop(error)
        return training, validation

    def _check_values(self, cases: list[str]) -> None:
        """An undeclared value would stop the first batch that has it: look at one case of every
        protocol before.
        """
        first = {self.contract.protocol_name(case): case for case in reversed(cases)}
        dataset = self.dataset_class(self.preprocessed_dataset_folder, list(first.values()))
        known = len(self.contract.value_names)
        for case in first.values():
            highest = int(np.max(dataset.load_case(case)[1][:]))
            if highest >= known:
                stop(
                    f"case '{case}' has the value {highest}, but 'labels' in dataset.json declares 0..{known - 1}: "
                    "declare it ('ignore' takes the highest value), or correct the label maps and preprocess again"
                )

    def _check_knowledge(self, cases: list[str]) -> None:
        """Somewhere a voxel is known not to be background; usually the first case has one."""
        dataset = self.dataset_class(self.preprocessed_dataset_folder, cases)
        for case in cases:
            known = [
                value
                for value, labels in enumerate(self.contract.protocol(case).sets)
                if 0 not in labels
            ]
            if known and np.isin(dataset.load_case(case)[1][:], known).any():
                return
        stop(
            "nothing can be learnt: every voxel of every training case may be background; 'nnunet_labelset coverage' "
            "shows what is annotated: add annotated cases to this fold, or correct the protocols in dataset.json"
        )

    def _log_coverage(self, training: list[str], validation: list[str]) -> None:
        coverage = self.regions.coverage if self.regions else self.contract.coverage
        counts = coverage(training), coverage(validation)
        width = max(map(len, counts[0]))
        lines = [
            f"  {name:{width}}  {counts[0][name]:5d} of {len(training)}  {counts[1][name]:5d} of {len(validation)}"
            for name in counts[0]
        ]
        what = "region" if self.regions else "leaf"
        self.print_to_log_file(
            f"Cases in which a {what} is annotated (training, validation):\n" + "\n".join(lines),
            add_timestamp=False,
        )
        self._log_recommendation(counts[0], training)
        for leaf, number in counts[0].items():
            if number == 0 and leaf != "background":  # that is known from what is excluded
                self.print_to_log_file(
                    f"WARNING: no training case annotates '{leaf}': it cannot be learnt well"
                )

    # ------------------------------------------------------------------------------------------------
    # training

    def _build_loss(self) -> nn.Module:
        """nnU-Net's deep supervision weights around our loss."""
        if not hasattr(self, "loss_class"):
            stop(
                f"{type(self).__name__} has no loss: give the class a loss_class, for example LeafDiceCELoss"
            )
        plain = super()._build_loss()
        loss: Any = self.loss_class(
            self.label_sets,
            batch_dice=self.configuration_manager.batch_dice,
            ddp=self.is_ddp,
            ignore_full_set=True,  # as nnU-Net does with its ignore label
        )
        if self.regions:
            try:
                loss = self.regions.loss(loss, self.label_manager.has_ignore_label)
            except LabelSetError as error:
                stop(error)
        if not isinstance(plain, DeepSupervisionWrapper):
            return loss
        plain.loss = loss
        return plain

    def save_checkpoint(self, filename: str) -> None:
        """With what a running Dice remembers."""
        loss = getattr(self.loss, "loss", self.loss)  # inside of deep supervision
        if isinstance(loss, RunningDice):
            self.training_state["running_dice"] = dict(loss.running)
        super().save_checkpoint(filename)

    def load_checkpoint(self, filename_or_checkpoint: Any) -> None:
        super().load_checkpoint(filename_or_checkpoint)
        loss = getattr(self.loss, "loss", self.loss)
        if isinstance(loss, RunningDice):
            loss.running = dict(self.training_state.get("running_dice", {}))

    def get_training_transforms(self, *args: Any, **options: Any) -> Any:
        return super().get_training_transforms(*args, **without_regions(options))

    def get_validation_transforms(self, *args: Any, **options: Any) -> Any:
        return super().get_validation_transforms(*args, **without_regions(options))

    def get_tr_and_val_datasets(self) -> tuple[Any, Any]:
        """nnU-Net's data sets, sampled for what their cases annotate."""
        training, validation = super().get_tr_and_val_datasets()
        by_leaf = self._sampling == BY_LEAF
        ignore_key = (
            (-1, *self.label_manager.all_labels) if self.label_manager.has_ignore_label else None
        )
        self._log_sampling(list(training.identifiers))
        patch = self.configuration_manager.patch_size
        return (
            SampledDataset(training, self.contract, ignore_key, patch, by_leaf),
            SampledDataset(validation, self.contract, ignore_key, patch, by_leaf),
        )

    def _log_sampling(self, cases: list[str]) -> None:
        uniform = np.full(len(cases), 1 / len(cases))
        chance = probabilities(self.contract, cases) if self._sampling == BY_LEAF else uniform
        found = shares(self.contract, cases, chance).items()
        width = max(map(len, self.label_sets.leaf_names))
        lines = "\n".join(f"  {leaf:{width}}  {share:6.1%}" for leaf, share in found)
        self.print_to_log_file(
            f"Sampling '{self._sampling}' ({VARIABLE}): share of samples in which a leaf is annotated:\n{lines}",
            add_timestamp=False,
        )

    def on_train_start(self) -> None:
        """As nnU-Net; a network that was extended keeps the outputs of the labels that it knows."""
        super().on_train_start()
        if self._start_file is not None:
            names = self.output_names
            new = restore_outputs(plain_network(self.network), self._start_file, names)
            if new is not None:
                self.training_state["new_labels"] = (
                    new  # also the mark of a training that was extended
                )
                self.print_to_log_file(
                    f"Output layers of {len(names)} labels restored from {self._start_file}"
                )
                self._warn_of_forgetting()

    def _warn_of_forgetting(self) -> None:
        training, _ = self.do_split()
        if not self.regions and not self.contract.coverage(training)[self.label_sets.leaf_names[0]]:
            self.print_to_log_file(
                "WARNING: no training case tells background from the old labels, and the network will forget them: "
                f"train with {TEACHER_TRAINER}, or add cases that annotate them"
            )

    @property
    def _start_file(self) -> str | None:
        return None if self._resuming else pretrained_file()

    def _encoded(self, batch: dict) -> dict:
        """The batch with set indices for values, on the training device."""
        if "keys" not in batch:
            stop(
                "a batch does not say which cases it shows: this loader of nnU-Net cannot be combined with label-sets"
            )
        target = batch["target"]
        if isinstance(target, list):
            target = [scale.to(self.device, non_blocking=True) for scale in target]
        else:
            target = target.to(self.device, non_blocking=True)
        try:
            encoded = self.label_sets.encode(target, batch["keys"])
        except LabelSetError as error:
            stop(f"{error}: 'nnunet_labelset verify' finds such label maps")
        # as small as nnU-Net's own target: it stays in memory for the whole step
        dtype = torch.int16 if len(self.label_sets.membership) <= 2**15 else torch.int32
        small = (
            [scale.to(dtype) for scale in encoded]
            if isinstance(encoded, list)
            else encoded.to(dtype)
        )
        return {**batch, "target": small}

    def train_step(self, batch: dict) -> dict:
        return super().train_step(self._encoded(batch))


class FullySupervisedMixin(LabelSetMixin):
    """Train on the fully annotated cases only; validation keeps all of its cases."""

    sampling = UNIFORM  # a baseline: as nnU-Net

    def do_split(self) -> tuple[list[str], list[str]]:
        training, validation = super().do_split()
        complete = [case for case in training if self.contract.is_fully_annotated(case)]
        self.print_to_log_file(
            f"Fully supervised: {len(complete)} of {len(training)} training cases are complete"
        )
        if not complete:
            stop(
                f"fold {self.fold} has no fully annotated training case: use a label-set loss "
                f"({DEFAULT_TRAINER}), or other splits ('nnunet_labelset splits')"
            )
        return complete, validation
