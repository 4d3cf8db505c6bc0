"""Logits of a model for random voxels: python predict_logits.py MODEL_FOLDER FOLDS OUTPUT.npy

Runs in a process of its own and imports nothing of this package, so that nnU-Net finds an exported
model without us.
"""

import sys

import numpy
import torch
from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

folder, folds, output = sys.argv[1], sys.argv[2].split(","), sys.argv[3]
predictor = nnUNetPredictor(device=torch.device("cpu"), allow_tqdm=False, use_mirroring=False)
predictor.initialize_from_trained_model_folder(folder, folds)
channels = next(p for p in predictor.network.parameters() if p.ndim > 2).shape[1]
shape = [max(size, 8) for size in predictor.configuration_manager.patch_size]
shape = [2, *shape] if len(shape) == 2 else shape
image = torch.randn(channels, *shape, generator=torch.Generator().manual_seed(0))
numpy.save(output, predictor.predict_logits_from_preprocessed_data(image).float().numpy())
