"""nnU-Net trainers with label-set losses; point `nnUNet_extTrainer` at this folder."""
