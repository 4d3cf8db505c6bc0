"""The mixin that makes an nnU-Net trainer learn from label-sets.

nnU-Net keeps the network, the plans, the augmentation, the optimizer and the loops. The mixin turns
the values of each case into set indices, replaces the loss, samples cases and patches by what they
annotate, and scores what is known. Each duty has an object or a module of its own.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
from torch import nn

from nnunet_labelset.contract import Contract
from nnunet_labelset.contract.completed import check_split, whole_split
from nnunet_labelset.io.parallel import exit_when_terminated
from nnunet_labelset.losses import LabelSetLoss, RunningDice
from nnunet_labelset.losses.label_sets import LabelSets
from nnunet_labelset.nnunet.checkpoint_file import STATE
from nnunet_labelset.nnunet.export import without_cases
from nnunet_labelset.nnunet.extend import start_name
from nnunet_labelset.nnunet.names import REFERENCES, VALIDATION
from nnunet_labelset.training import checks
from nnunet_labelset.training.advice import Advice
from nnunet_labelset.training.checkpoints import (
    CheckpointGuard,
    TrainingState,
    as_file,
    read_whole_checkpoint,
    whole_checkpoint,
)
from nnunet_labelset.training.deep_supervision import DeepSupervision, by_scale
from nnunet_labelset.training.encoding import encode_target
from nnunet_labelset.training.pseudo_dice import PseudoDice, StepCounts, log_scores, sum_outputs
from nnunet_labelset.training.regions import Regions, without_regions
from nnunet_labelset.training.sampling import (
    BY_LEAF,
    SampledDataset,
    Sampling,
    chosen_sampling,
)
from nnunet_labelset.training.start import StartFile, plain_network
from nnunet_labelset.training.stopping import (
    global_rank,
    log_warnings,
    stopping,
    stopping_at_contract,
)
from nnunet_labelset.training.validation import FinalValidation, log_summary

if TYPE_CHECKING:  # what a mixin stands before: anything when it runs
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer as Trainer
else:
    Trainer = object


class LabelSetMixin(Trainer):
    """Put it before an nnU-Net trainer: `class T(LabelSetMixin, nnUNetTrainer)`."""

    loss_class: ClassVar[type[LabelSetLoss]]
    sampling: ClassVar[str] = BY_LEAF  # the default of `nnunet_labelset_sampling`
    takes_set_indices: ClassVar[bool] = False  # a train_step behind the mixin knows what it gets
    has_teacher: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

        checks.check_order(cls, LabelSetMixin, nnUNetTrainer)

    # nnU-Net reads the names of these parameters by inspection: they must be its own.
    def __init__(
        self,
        plans: dict,
        configuration: str,
        fold: int,
        dataset_json: dict,
        device: torch.device = torch.device("cuda"),  # noqa: B008  (nnU-Net's own signature)
    ) -> None:
        self.state = TrainingState()
        self.is_resuming = bool(plans.get("continue_training"))
        # before nnU-Net makes a folder or a log file
        with stopping_at_contract(plans["dataset_name"], dataset_json):
            self.label_sets = LabelSets.from_dataset_json(dataset_json)
        with stopping():
            self.sampling_mode = chosen_sampling(self.sampling)
            checks.check_train_step(type(self), LabelSetMixin)
        has_regions = self.contract.regions is not None
        self.regions = Regions(self.label_sets, self.contract) if has_regions else None
        self._coverage = (self.regions or self.contract).coverage  # of labels, or of regions
        # nnU-Net sends what it gets here to Weights & Biases, if that is switched on
        super().__init__(plans, configuration, fold, without_cases(dataset_json), device)
        self.dataset_json = self.my_init_kwargs["dataset_json"] = dataset_json
        log_warnings(self.print_to_log_file)
        self.advice = Advice(self.contract, type(self).__name__, self.print_to_log_file)

    @property
    def contract(self) -> Contract:
        assert self.label_sets.contract is not None
        return self.label_sets.contract

    @property
    def output_names(self) -> tuple[str, ...]:
        """The label of every output of the network."""
        return self.regions.names if self.regions else self.label_sets.leaf_names

    @property
    def inner_loss(self) -> Any:
        """The label-set loss, inside of nnU-Net's deep supervision."""
        return getattr(self.loss, "loss", self.loss)

    # --- start-up

    def do_split(self) -> tuple[list[str], list[str]]:
        """Return nnU-Net's split: every case has a protocol, no completed case is validated."""
        training, validation_cases = super().do_split()
        with stopping_at_contract(self.plans_manager.dataset_name, self.dataset_json):
            self.contract.require_cases([*training, *validation_cases])
        if self.fold == "all":
            return whole_split(self.dataset_json, training)
        with stopping():
            check_split(self.dataset_json, training, validation_cases)
        return training, validation_cases

    def initialize(self) -> None:
        """Check the cases of the fold before anything costs time, then continue as nnU-Net."""
        training, validation_cases = self.do_split()
        self.state.training_cases = sorted(map(str, training))
        self.state.validation_cases = sorted(map(str, validation_cases))
        coverage = self._coverage(validation_cases)
        self.advice.show_coverage(self._coverage(training), coverage, training, validation_cases)
        if not self.regions:
            del coverage[self.label_sets.leaf_names[0]]  # background has no score
        self.pseudo_dice = PseudoDice(coverage)
        self.pseudo_dice.describe(self.print_to_log_file)
        default_start = start_name(self.plans_manager.plans_name, self.configuration_name)
        folder = Path(self.preprocessed_dataset_folder_base)
        self.start_file = StartFile(folder / default_start, self.output_names)
        with stopping():
            super().initialize()
            if not self.is_resuming:
                self.start_file.check(plain_network(self.network))
            dataset = self.dataset_class(self.preprocessed_dataset_folder, training)
            checks.check_values(dataset, self.contract)
            checks.check_foreground(dataset, self.contract)
        exit_when_terminated()

    def on_train_start(self) -> None:
        """Do as nnU-Net; an extended network gets the outputs of the labels that it knows."""
        super().on_train_start()
        if not self.is_resuming and self.current_epoch == 0:
            with stopping():
                network = plain_network(self.network)
                self.state.new_labels = self.start_file.restore(network, self.print_to_log_file)
        training = self.state.training_cases or []
        coverage = self._coverage(training)
        if self.state.new_labels is not None:
            self.advice.recommend_extended(coverage, self.state.new_labels, self.has_teacher)
        else:
            self.advice.recommend(coverage, len(training), self.configuration_manager)
        self.advice.warn_of_missing_labels(coverage)
        self.advice.warn_of_mirroring(self.inference_allowed_mirroring_axes)

    # --- training

    def _build_loss(self) -> nn.Module:
        """Return our loss with nnU-Net's deep supervision weights."""
        warning = checks.check_loss(type(self), LabelSetMixin)
        if warning:
            self.print_to_log_file(f"WARNING: {warning}")
        nnunet_loss = super()._build_loss()
        loss: Any = self.loss_class(
            self.label_sets,
            batch_dice=self.configuration_manager.batch_dice,
            ddp=self.is_ddp,
            ignore_full_set=True,  # as nnU-Net does with its ignore label
        )
        loss.checks_target = False  # `encode_batch` has done so
        if self.regions:
            loss = self.regions.loss(loss, self.label_manager.has_ignore_label)
        if not isinstance(nnunet_loss, DeepSupervisionWrapper):
            return loss
        return DeepSupervision(loss, nnunet_loss.weight_factors)

    def get_training_transforms(self, *args: Any, **options: Any) -> Any:
        return super().get_training_transforms(*args, **without_regions(options))

    def get_validation_transforms(self, *args: Any, **options: Any) -> Any:
        return super().get_validation_transforms(*args, **without_regions(options))

    def get_tr_and_val_datasets(self) -> tuple[Any, Any]:
        """Return nnU-Net's data sets, sampled for what their cases annotate."""
        manager = self.label_manager
        sampling = Sampling(
            self.contract,
            patch_size=self.configuration_manager.patch_size,
            ignore_key=(-1, *manager.all_labels) if manager.has_ignore_label else None,
            mode=self.sampling_mode,
        )
        training, validation_dataset = super().get_tr_and_val_datasets()
        table = sampling.describe(list(training.identifiers))
        self.print_to_log_file(table, add_timestamp=False)
        return SampledDataset(training, sampling), SampledDataset(validation_dataset, sampling)

    def encode_batch(self, batch: dict) -> dict:
        """Return the batch with set indices in place of values, on the training device."""
        with stopping(": 'nnunet_labelset verify' finds such label maps"):
            target = encode_target(batch["target"], batch.get("keys"), self.label_sets, self.device)
        return {**batch, "target": target}

    def train_step(self, batch: dict) -> dict:
        return super().train_step(self.encode_batch(batch))

    # --- scores

    def validation_step(self, batch: dict) -> dict:
        """Return the loss, and counts of what is known."""
        batch = self.encode_batch(batch)
        data = batch["data"].to(self.device, non_blocking=True)
        target = batch["target"]
        with torch.autocast("cuda") if self.device.type == "cuda" else nullcontext():
            output = self.network(data)
            loss = self.loss(output, target)
        if self.enable_deep_supervision:
            output = output[0]
            target = target[0]
        return self._counts(output, target[:, 0].long()).to_output(loss)

    def _counts(self, output: torch.Tensor, target: torch.Tensor) -> StepCounts:
        if self.regions:
            return StepCounts.of_regions(self.regions.counts(output, target))
        return StepCounts.of_labels(output, target, self.label_sets.membership.numpy())

    def on_validation_epoch_end(self, val_outputs: list[dict]) -> None:
        totals, loss = sum_outputs(val_outputs, self.is_ddp)
        scores = self.pseudo_dice.update(totals.counts, self.state.pseudo_dice_counts)
        self.state.pseudo_dice_counts = scores.counts
        if scores.is_new_mean:
            self._best_ema = None
        log_scores(self.logger, self.current_epoch, scores)
        self.logger.log("val_losses", loss, self.current_epoch)
        self.print_to_log_file(totals.describe(self.pseudo_dice.names))

    def on_epoch_end(self) -> None:
        history = self.logger.get_value("dice_per_class_or_region", step=None)
        counts = self.state.pseudo_dice_counts
        names = self.pseudo_dice.names
        if counts is not None:
            self.advice.warn_of_dead_labels(names, history, counts[2], self.num_epochs)
        super().on_epoch_end()

    def perform_actual_validation(self, save_probabilities: bool = False) -> None:
        """Validate as nnU-Net, then replace its summary.json by one of what was annotated."""
        folder = Path(self.output_folder, VALIDATION)
        references = Path(self.preprocessed_dataset_folder_base, REFERENCES)
        final = FinalValidation(folder, references, self.contract, self.dataset_json)
        final.prepare(self.is_ddp)
        self._is_validating = True
        super().perform_actual_validation(save_probabilities)
        self._is_validating = False
        if global_rank() != 0 or not final.is_validated:  # some trainers validate nothing
            return
        with stopping():
            stages = self.configuration_manager.next_stage_names or ()
            final.link_completed_copies(self.output_folder_base, stages)
            summary = final.replace_summary(self.plans_manager.image_reader_writer_class())
        log_summary(summary, self.pseudo_dice.names, self.logger, self.print_to_log_file)

    _is_validating = False

    def print_to_log_file(
        self, *args: Any, also_print_to_console: bool = True, add_timestamp: bool = True
    ) -> None:
        """Leave out nnU-Net's mean Dice, which takes unannotated for absent: ours follows."""
        if self._is_validating and args and str(args[0]).startswith("Mean Validation Dice"):
            return
        super().print_to_log_file(
            *args, also_print_to_console=also_print_to_console, add_timestamp=add_timestamp
        )

    # --- checkpoints

    def save_checkpoint(self, filename: str) -> None:
        """Save with our state, whole or not at all: a killed training keeps its last checkpoint."""
        if global_rank() != 0 or self.disable_checkpointing:
            super().save_checkpoint(filename)  # writes nothing
            return
        if isinstance(self.inner_loss, RunningDice):
            self.state.running_dice = dict(self.inner_loss.running)
        options = self.optimizer.param_groups[0]
        options[STATE] = self.state.to_dict()
        with stopping(), whole_checkpoint(filename) as temporary:
            super().save_checkpoint(str(temporary))
        del options[STATE]

    def load_checkpoint(self, *args: Any, **options: Any) -> None:
        """Load a file or a dict, if it was trained with these cases and this contract.

        The name of nnU-Net's only argument depends on its version.
        """
        (source,) = (*args, *options.values())
        with stopping():
            checkpoint = source if isinstance(source, dict) else read_whole_checkpoint(Path(source))
            guard = CheckpointGuard(self.contract, *self.do_split())
            self.state = guard.admit(checkpoint, self.is_resuming, self.print_to_log_file)
        with as_file(source) as file:
            super().load_checkpoint(file)
        self.optimizer.param_groups[0].pop(STATE, None)
        if isinstance(self.inner_loss, RunningDice):
            self.inner_loss.running = by_scale(self.state.running_dice, self.loss)
