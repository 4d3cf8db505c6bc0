"""`nnunet_labelset trainers`: where nnU-Net finds our trainers, and which there are."""

from __future__ import annotations

import argparse

from nnunet_labelset.nnunet.discovery import (
    LENGTHS,
    NO_MIRRORING,
    ONLY_MIRROR_01,
    described_trainers,
    trainers_folder,
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--list", action="store_true", help="list the trainers instead of printing their folder"
    )
    parser.epilog = 'usage: export nnUNet_extTrainer="$(nnunet_labelset trainers)"'


def run(args: argparse.Namespace) -> None:
    if not args.list:
        print(trainers_folder())
        return
    lines = described_trainers()
    for name, words in lines.items():
        print(f"{name:<{max(map(len, lines))}}  {words}")
    print(
        f"Append a length ({', '.join(LENGTHS)}), then {NO_MIRRORING} for labels that differ by "
        f"side, or {ONLY_MIRROR_01} to mirror along the first two axes only"
    )
