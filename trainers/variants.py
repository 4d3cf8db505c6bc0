"""Variants of every trainer, by one rule for their names:

    METHOD [_5epochs | _50epochs | _100epochs | _250epochs | _short] [_NoMirroring | _onlyMirror01]

Each METHOD is a class in another file of this folder. nnU-Net finds a trainer by its name as an
attribute of a module, so the classes need not be written out.
"""

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.training.nnUNetTrainer.variants.data_augmentation.nnUNetTrainerNoMirroring import (
    nnUNetTrainer_onlyMirror01,
    nnUNetTrainerNoMirroring,
)
from nnunetv2.training.nnUNetTrainer.variants.training_length.nnUNetTrainer_Xepochs import (
    nnUNetTrainer_5epochs,
    nnUNetTrainer_50epochs,
    nnUNetTrainer_100epochs,
    nnUNetTrainer_250epochs,
)

from nnunet_labelset.nnunet.discovery import variant_names
from nnunet_labelset.trainers import (
    baselines,
    label_set,
    leaf_dice,
    marginal,
    pretrained,
    sigmoid,
)
from nnunet_labelset.training.mixin import LabelSetMixin
from nnunet_labelset.training.short import ShortMixin

MIRRORING = {
    "NoMirroring": nnUNetTrainerNoMirroring,
    "onlyMirror01": nnUNetTrainer_onlyMirror01,
}
LENGTHS = {
    "5epochs": nnUNetTrainer_5epochs,
    "50epochs": nnUNetTrainer_50epochs,
    "100epochs": nnUNetTrainer_100epochs,
    "250epochs": nnUNetTrainer_250epochs,
}


def make_variant(method: type, name: str) -> type:
    """Return the trainer `method` with the length and the mirroring that `name` asks for."""
    words = name.removeprefix(method.__name__).split("_")
    bases = [method]
    bases += [base for word, base in MIRRORING.items() if word in words]
    bases += [base for word, base in LENGTHS.items() if word in words]
    if "short" in words:
        bases.insert(0, ShortMixin)
    return type(name, tuple(bases), {"__module__": __name__})


def is_method(candidate: object) -> bool:
    """Tell whether an attribute of a module is one of our trainers."""
    return (
        isinstance(candidate, type)
        and issubclass(candidate, LabelSetMixin)
        and issubclass(candidate, nnUNetTrainer)
    )


for module in (baselines, label_set, leaf_dice, marginal, pretrained, sigmoid):
    for method in filter(is_method, list(vars(module).values())):
        for name in variant_names(method.__name__):
            globals()[name] = make_variant(method, name)
