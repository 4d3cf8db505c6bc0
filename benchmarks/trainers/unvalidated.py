"""The short trainers without validation, since test cases count; for organs with sides, without
mirroring too.
"""

from typing import Any

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from nnunet_labelset.losses import LeafDiceCELoss
from nnunet_labelset.training.checkpoints import StartFile
from nnunet_labelset.training.mixin import LabelSetMixin, RecommendedMixin
from nnunet_labelset.training.short import ShortMixin
from nnunet_labelset.training.teacher import TeacherMixin


class Unvalidated(ShortMixin):
    def initialize(self) -> None:
        super().initialize()
        self.num_val_iterations_per_epoch = 1

    def perform_actual_validation(self, save_probabilities: bool = False) -> None:
        pass


class nnUNetTrainer_unvalidated(Unvalidated, nnUNetTrainer):
    pass


class nnUNetTrainerLeafDiceCE_unvalidated(Unvalidated, LabelSetMixin, nnUNetTrainer):
    loss_class = LeafDiceCELoss


class NoSides(Unvalidated):
    def configure_rotation_dummyDA_mirroring_and_inital_patch_size(self) -> tuple[Any, ...]:  # noqa: N802
        *rest, _ = super().configure_rotation_dummyDA_mirroring_and_inital_patch_size()
        self.inference_allowed_mirroring_axes = None
        return *rest, None


class nnUNetTrainer_noSides(NoSides, nnUNetTrainer):
    """Plain nnU-Net, which starts the outputs anew."""


class nnUNetTrainer_noSides_keepOutputs(NoSides, nnUNetTrainer):
    """Plain nnU-Net with the old outputs, as only our trainers have them: the strongest of the
    naive ways.
    """

    def on_train_start(self) -> None:
        super().on_train_start()
        names = [name for name in self.dataset_json["labels"] if name != "ignore"]
        start_file = StartFile("", "", "", names)  # the one on the command line
        start_file.restore(self.network, self.print_to_log_file)


class nnUNetTrainerLabelSet_noSides(NoSides, RecommendedMixin, nnUNetTrainer):
    pass


class nnUNetTrainerLabelSetTeacher_noSides(NoSides, RecommendedMixin, TeacherMixin, nnUNetTrainer):
    pass
