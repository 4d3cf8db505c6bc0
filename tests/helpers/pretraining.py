"""An emulation of the nnU-Net that fine-tunes checkpoints of nnssl: no released nnU-Net does.

It is the installed nnU-Net, copied, with a command and trainers that do what matters to us of what
the development version does (November 2026). The code is our own.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

COMMAND = """
import argparse
from os.path import join

import nnunetv2
import torch
from batchgenerators.utilities.file_and_folder_operations import load_json
from nnunetv2.paths import nnUNet_preprocessed
from nnunetv2.run.run_training import maybe_load_checkpoint
from nnunetv2.utilities.dataset_name_id_conversion import maybe_convert_to_dataset_name
from nnunetv2.utilities.find_class_by_name import recursive_find_python_class


def entry():
    parser = argparse.ArgumentParser()
    for name in ("dataset", "configuration", "fold"):
        parser.add_argument(name)
    parser.add_argument("-tr", default="PretrainedTrainer")
    parser.add_argument("-p", required=True)
    parser.add_argument("-overwrite_ckpt_path")
    parser.add_argument("-num_gpus", type=int, default=1)
    parser.add_argument("-device", default="cuda")
    for flag in ("from_scratch", "npz", "c", "val", "val_best", "disable_checkpointing"):
        parser.add_argument(f"--{flag}", action="store_true")
    args = parser.parse_args()
    folder = join(nnunetv2.__path__[0], "training", "nnUNetTrainer")
    cls = recursive_find_python_class(folder, args.tr, "nnunetv2.training.nnUNetTrainer")
    if cls is None:
        raise RuntimeError(f"no trainer {args.tr}")
    dataset = maybe_convert_to_dataset_name(int(args.dataset))
    plans = load_json(join(nnUNet_preprocessed, dataset, f"{args.p}.json"))
    if args.from_scratch:
        plans["plans_name"] += "__from_scratch"
        plans["pretrain_info"]["checkpoint_path"] = None
    if args.overwrite_ckpt_path is not None:
        plans["pretrain_info"]["checkpoint_path"] = args.overwrite_ckpt_path
    plans["continue_training"] = args.c
    trainer = cls(
        plans=plans,
        configuration=args.configuration,
        fold=int(args.fold),
        dataset_json=load_json(join(nnUNet_preprocessed, dataset, "dataset.json")),
        device=torch.device(args.device),
    )
    trainer.use_pretrained_weights = not (args.c or args.from_scratch)
    maybe_load_checkpoint(trainer, args.c, args.val, None)
    if not args.val:
        trainer.run_training()
    if args.val_best:
        trainer.load_checkpoint(join(trainer.output_folder, "checkpoint_best.pth"))
    trainer.perform_actual_validation(args.npz)
"""

TRAINERS = """
import torch
from torch.optim.lr_scheduler import ConstantLR

from nnunetv2.training.dataloading.nnunet_dataset import infer_dataset_class
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.label_handling.label_handling import determine_num_input_channels


class PretrainedTrainer(nnUNetTrainer):
    def __init__(self, plans, configuration, fold, dataset_json, device=torch.device("cuda")):
        plans["configurations"][configuration]["batch_size"] = 2
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.initial_lr = 1e-3
        self.enable_deep_supervision = False
        self.use_pretrained_weights = True
        self.stage = None

    def initialize(self):
        if self.was_initialized:
            raise RuntimeError("initialized twice")
        self._set_batch_size_and_oversample()
        manager = self.configuration_manager
        self.num_input_channels = determine_num_input_channels(
            self.plans_manager, manager, self.dataset_json
        )
        self.network = self.build_network_architecture(
            self.plans_manager,
            manager,
            self.num_input_channels,
            self.label_manager.num_segmentation_heads,
            enable_deep_supervision=False,
        ).to(self.device)
        if self.use_pretrained_weights:
            path = self.plans_manager.plans["pretrain_info"]["checkpoint_path"]
            weights = torch.load(path, weights_only=True)["network_weights"]
            encoder = {
                key.removeprefix("encoder."): value
                for key, value in weights.items()
                if key.startswith("encoder.")
            }
            self.network.encoder.load_state_dict(encoder)
            self.print_to_log_file(f"Loaded Network from {path}")
        self.optimizer, self.lr_scheduler = self.configure_optimizers()
        self.loss = self._build_loss()
        self.dataset_class = infer_dataset_class(self.preprocessed_dataset_folder)
        self.was_initialized = True

    def configure_optimizers(self, stage="warmup_all"):
        if self.stage == stage:
            return self.optimizer, self.lr_scheduler
        self.stage = stage
        optimizer = torch.optim.SGD(self.network.parameters(), self.initial_lr, momentum=0.99)
        return optimizer, ConstantLR(optimizer)

    def set_deep_supervision_enabled(self, enabled):
        pass

    def on_train_epoch_start(self):
        if self.current_epoch == 0:
            self.optimizer, self.lr_scheduler = self.configure_optimizers("warmup_all")
        super().on_train_epoch_start()

    def load_checkpoint(self, filename_or_checkpoint):
        if not self.was_initialized:
            self.initialize()
        if isinstance(filename_or_checkpoint, str):
            checkpoint = torch.load(filename_or_checkpoint, map_location="cpu", weights_only=False)
        self.my_init_kwargs = checkpoint["init_args"]
        self.current_epoch = checkpoint["current_epoch"]
        self.logger.load_checkpoint(checkpoint["logging"])
        self._best_ema = checkpoint["_best_ema"]
        self.inference_allowed_mirroring_axes = checkpoint["inference_allowed_mirroring_axes"]
        self.network.load_state_dict(checkpoint["network_weights"])
        self.optimizer, self.lr_scheduler = self.configure_optimizers("warmup_all")
        self.optimizer.load_state_dict(checkpoint["optimizer_state"])


class PretrainedTrainer_Primus(PretrainedTrainer):
    def configure_optimizers(self, stage="warmup_all"):
        if self.stage == stage:
            return self.optimizer, self.lr_scheduler
        self.stage = stage
        optimizer = torch.optim.AdamW(self.network.parameters(), self.initial_lr)
        return optimizer, ConstantLR(optimizer)

    def train_step(self, batch):
        self.optimizer.zero_grad(set_to_none=True)
        target = batch["target"].to(self.device)
        loss = self.loss(self.network(batch["data"].to(self.device)), target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1)
        self.optimizer.step()
        return {"loss": loss.detach().cpu().numpy()}
"""

ENTRY_POINT = """[console_scripts]
nnUNetv2_train_pretrained = nnunetv2.run.run_training_from_pretrained:entry
"""


def write_nnunet(folder: Path) -> dict[str, str]:
    """Write the emulation into a folder; returns the environment in which Python takes it."""
    spec = find_spec("nnunetv2")
    assert spec is not None
    assert spec.submodule_search_locations
    package = folder / "nnunetv2"
    shutil.copytree(spec.submodule_search_locations[0], package)
    files = {
        package / "run" / "run_training_from_pretrained.py": COMMAND,
        package / "training" / "nnUNetTrainer" / "pretraining" / "__init__.py": "",
        package / "training" / "nnUNetTrainer" / "pretraining" / "pretrainedTrainer.py": TRAINERS,
        folder / "pretraining-0.dist-info" / "METADATA": "Name: pretraining\nVersion: 0\n",
        folder / "pretraining-0.dist-info" / "entry_points.txt": ENTRY_POINT,
    }
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    others = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), others]))}
