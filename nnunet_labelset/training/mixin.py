"""The mixin that makes an nnU-Net trainer learn from label-sets.

nnU-Net keeps the network, the plans, the augmentation, the optimizer and the loops. The mixin turns
the values of each case into set indices, replaces the loss, samples cases and patches by what they
annotate, and scores what is known. Each duty has an object or a module of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from nnunet_labelset.contract import Contract
from nnunet_labelset.contract.completed import COMPLETED, split_with_completed
from nnunet_labelset.io.parallel import exit_when_terminated
from nnunet_labelset.losses import LabelSetLoss, RunningLeafDiceCELoss
from nnunet_labelset.losses.label_sets import LabelSets
from nnunet_labelset.nnunet.checkpoint_file import STATE
from nnunet_labelset.nnunet.raw import without_cases
from nnunet_labelset.training import checkpoints, checks, outputs
from nnunet_labelset.training.checks import Advice, stopping, stopping_at_contract
from nnunet_labelset.training.sampling import BY_LEAF, SampledDataset, Sampling, read_sampling_mode

if TYPE_CHECKING:  # at run time a mixin has no base of its own
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer as Trainer
else:
    Trainer = object


class LabelSetMixin(Trainer):
    """Put it before an nnU-Net trainer: `class T(LabelSetMixin, nnUNetTrainer)`."""

    loss_class: ClassVar[type[LabelSetLoss]]
    loss_options: ClassVar[Mapping[str, Any]] = {}  # of its constructor, such as {"alpha": 1}
    sampling: ClassVar[str] = BY_LEAF  # the default of `nnunet_labelset_sampling`
    takes_set_indices: ClassVar[bool] = False  # a train_step behind the mixin knows what it gets
    has_teacher: ClassVar[bool] = False
    _is_validating = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        checks.check_order(cls, LabelSetMixin)

    # nnU-Net reads the names of these parameters by inspection: they must be its own.
    def __init__(
        self,
        plans: dict,
        configuration: str,
        fold: int,
        dataset_json: dict,
        device: torch.device = torch.device("cuda"),  # noqa: B008  (nnU-Net's own signature)
    ) -> None:
        self.state = checkpoints.TrainingState()
        self.is_resuming = bool(plans.get("continue_training"))
        # before nnU-Net makes a folder or a log file
        with stopping_at_contract(plans["dataset_name"], dataset_json):
            self.contract = Contract.from_dataset_json(dataset_json)
            self.label_sets = LabelSets.of_contract(self.contract)
        with stopping():
            self.sampling_mode = read_sampling_mode(self.sampling)
            checks.check_train_step(type(self), LabelSetMixin)
        self.outputs = outputs.outputs_of(self.label_sets, self.contract)
        # nnU-Net sends what it gets here to Weights & Biases, if that is switched on
        super().__init__(plans, configuration, fold, without_cases(dataset_json), device)
        self.dataset_json = self.my_init_kwargs["dataset_json"] = dataset_json
        checks.log_warnings(self.print_to_log_file)
        with stopping():
            self.advice = Advice(
                self.contract, type(self).__name__, self.print_to_log_file, dataset_json
            )

    @property
    def inner_loss(self) -> Any:
        """The label-set loss, inside of nnU-Net's deep supervision."""
        return outputs.inner_loss(self.loss)

    # --- start-up

    def do_split(self) -> tuple[list[str], list[str]]:
        """Return nnU-Net's split: every case has a protocol, no completed case is validated."""
        training, validation_cases = super().do_split()
        with stopping_at_contract(self.plans_manager.dataset_name, self.dataset_json):
            self.contract.require_cases([*training, *validation_cases])
        if COMPLETED not in self.dataset_json:
            return training, validation_cases
        with stopping():
            return split_with_completed(self.dataset_json, self.fold, training, validation_cases)

    def initialize(self) -> None:
        """Check the cases of the fold before anything costs time, then continue as nnU-Net."""
        training, validation_cases = self.do_split()
        self.state.set_cases(training, validation_cases)
        self.advice.show_coverage(self.outputs.coverage, training, validation_cases)
        self.pseudo_dice = outputs.PseudoDice(self.outputs.scored_coverage(validation_cases))
        self.pseudo_dice.describe(self.print_to_log_file)
        self.start_file = checkpoints.StartFile(
            self.preprocessed_dataset_folder_base,
            self.plans_manager.plans_name,
            self.configuration_name,
            self.outputs.names,
        )
        with stopping():
            super().initialize()
            if not self.is_resuming:
                self.start_file.check(self.network)
            dataset = self.dataset_class(self.preprocessed_dataset_folder, training)
            checks.check_cases(dataset, self.contract)
        exit_when_terminated()

    def on_train_start(self) -> None:
        """Do as nnU-Net; an extended network gets the outputs of the labels that it knows."""
        super().on_train_start()
        if self.current_epoch == 0:  # also with --c, if no checkpoint was written before
            with stopping():
                new_labels = self.start_file.restore(self.network, self.print_to_log_file)
            self.state.new_labels = new_labels
        training = self.state.training_cases or []
        coverage = self.outputs.coverage(training)
        if self.state.new_labels is None:
            self.advice.recommend(coverage, len(training), self.configuration_manager)
        else:
            self.advice.recommend_extended(coverage, self.state.new_labels, self.has_teacher)
        self.advice.warn_of_missing_labels(coverage)
        self.advice.warn_of_mirroring(self.inference_allowed_mirroring_axes)

    # --- training

    def _build_loss(self) -> nn.Module:
        """Return our loss with nnU-Net's deep supervision weights."""
        checks.check_loss(type(self), LabelSetMixin, self.print_to_log_file)
        nnunet_loss = super()._build_loss()
        options = {
            "batch_dice": self.configuration_manager.batch_dice,
            "ddp": self.is_ddp,
            "ignore_full_set": True,  # as nnU-Net does with its ignore label
            **self.loss_options,
        }
        label_loss = self.loss_class(self.label_sets, **options)
        label_loss.checks_target = False  # `encode_batch` has done so
        loss = self.outputs.loss(label_loss, self.label_manager.has_ignore_label)
        return outputs.supervised_like(nnunet_loss, loss)

    def get_training_transforms(self, *args: Any, **options: Any) -> Any:
        """Return nnU-Net's, which leave values as they are, also in a data set with regions."""
        return super().get_training_transforms(*args, **{**options, "regions": None})

    def get_validation_transforms(self, *args: Any, **options: Any) -> Any:
        return super().get_validation_transforms(*args, **{**options, "regions": None})

    def get_tr_and_val_datasets(self) -> tuple[Any, Any]:
        """Return nnU-Net's data sets, sampled for what their cases annotate."""
        manager = self.label_manager
        sampling = Sampling(
            self.contract,
            patch_size=self.configuration_manager.patch_size,
            ignore_key=(-1, *manager.all_labels) if manager.has_ignore_label else None,
            mode=self.sampling_mode,
        )
        training, validated = super().get_tr_and_val_datasets()
        table = sampling.describe(list(training.identifiers))
        self.print_to_log_file(table, add_timestamp=False)
        return SampledDataset(training, sampling), SampledDataset(validated, sampling)

    def encode_batch(self, batch: dict) -> dict:
        """Return the batch with set indices in place of values, on the training device."""
        cases = batch.get("keys")
        with stopping(": 'nnunet_labelset verify' finds such label maps"):
            target = outputs.encode_target(batch["target"], cases, self.label_sets, self.device)
        return {**batch, "target": target}

    def train_step(self, batch: dict) -> dict:
        return super().train_step(self.encode_batch(batch))

    # --- scores

    def validation_step(self, batch: dict) -> dict:
        """Return the loss, and counts of what is known."""
        batch = self.encode_batch(batch)
        data = batch["data"].to(self.device, non_blocking=True)
        target = batch["target"]
        with outputs.autocast(self.device):
            output = self.network(data)
            loss = self.loss(output, target)
        if self.enable_deep_supervision:
            output = output[0]
            target = target[0]
        return self.outputs.counts(output, target[:, 0].long()).to_output(loss)

    def on_validation_epoch_end(self, val_outputs: list[dict]) -> None:
        totals, loss = outputs.sum_outputs(val_outputs, self.is_ddp)
        scores = self.pseudo_dice.update(totals.counts, self.state.pseudo_dice_counts)
        self.state.pseudo_dice_counts = scores.counts
        if scores.is_new_mean:
            self._best_ema = None
        outputs.log_epoch(self.logger, self.current_epoch, scores, loss)
        names = self.pseudo_dice.names
        self.print_to_log_file(totals.describe(names))
        history = self.logger.get_value("dice_per_class_or_region", step=None)
        self.advice.warn_of_dead_labels(names, history, scores.counts, self.num_epochs)

    def perform_actual_validation(self, save_probabilities: bool = False) -> None:
        """Validate as nnU-Net, then replace its summary.json by one of what was annotated."""
        final = outputs.FinalValidation(
            self.output_folder,
            self.preprocessed_dataset_folder_base,
            self.contract,
            self.dataset_json,
        )
        final.prepare(self.is_ddp)
        self._is_validating = True
        super().perform_actual_validation(save_probabilities)
        self._is_validating = False
        if checks.global_rank() != 0 or not final.is_validated:  # some trainers validate nothing
            return
        with stopping():
            for stage in self.configuration_manager.next_stage_names or ():
                final.link_completed_copies(stage)
            summary = final.replace_summary(self.plans_manager.image_reader_writer_class())
        outputs.log_summary(summary, self.pseudo_dice.names, self.logger, self.print_to_log_file)

    def print_to_log_file(self, *args: Any, **options: Any) -> None:
        """Leave out nnU-Net's mean Dice, which takes unannotated for absent: ours follows."""
        text = str(args[0]) if args else ""
        if not (self._is_validating and text.startswith("Mean Validation Dice")):
            super().print_to_log_file(*args, **options)

    # --- checkpoints

    def save_checkpoint(self, filename: str) -> None:
        """Save with our state, whole or not at all: a killed training keeps its last checkpoint."""
        if checks.global_rank() != 0 or self.disable_checkpointing:
            super().save_checkpoint(filename)  # writes nothing
            return
        self.state.running_dice = outputs.running_dice(self.loss)
        stored = self.state.stored_in(self.optimizer)
        with stopping(), checkpoints.whole_checkpoint(filename) as temporary, stored:
            super().save_checkpoint(str(temporary))

    def load_checkpoint(self, *args: Any, **options: Any) -> None:
        """Load a file or a dict, if it was trained with these cases and this contract.

        The name of nnU-Net's only argument depends on its version.
        """
        (source,) = (*args, *options.values())
        with stopping():
            checkpoint = checkpoints.read_whole_checkpoint(source)
            guard = checkpoints.CheckpointGuard(self.contract, *self.do_split())
            self.state = guard.admit(checkpoint, self.is_resuming, self.print_to_log_file)
        with checkpoints.as_file(source) as file:
            super().load_checkpoint(file)
        self.optimizer.param_groups[0].pop(STATE, None)
        outputs.restore_running_dice(self.loss, self.state.running_dice)


class RecommendedMixin(LabelSetMixin):
    """The recommended combination: running Leaf-Dice, and marginal cross entropy that grows.

    Put it before a trainer as `LabelSetMixin`.

    At full weight from the first step, cross entropy can suppress a small or merged label for good:
    nearly all voxels are evidence against it before Dice has found it. Its gradient therefore grows
    from 0 to full size in the first half of the training. The logged losses include cross entropy
    in full from the start, so that training and validation show the same function in every epoch.
    """

    loss_class = RunningLeafDiceCELoss
    cross_entropy_ramp: ClassVar[float] = 0.5  # share of the epochs after which it counts in full

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self.inner_loss.ce_share = min(
            1.0, self.current_epoch / (self.cross_entropy_ramp * self.num_epochs)
        )
