"""One sigmoid per label, for structures that overlap, and as a rival of the label-set losses."""

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from nnunet_labelset.training.sigmoid import SigmoidMixin


class nnUNetTrainerLabelSetSigmoid(SigmoidMixin, nnUNetTrainer):
    """One sigmoid per label with Dice + binary cross entropy where the label is known."""
