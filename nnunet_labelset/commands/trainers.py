"""`nnunet_labelset trainers`: where nnU-Net finds our trainers."""

from __future__ import annotations

import argparse

from nnunet_labelset.nnunet.discovery import trainers_folder


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = 'usage: export nnUNet_extTrainer="$(nnunet_labelset trainers)"'


def run(args: argparse.Namespace) -> None:
    print(trainers_folder())
