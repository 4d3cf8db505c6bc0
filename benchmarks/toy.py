"""Sparse labels in two dimensions: which Dice reaches the plateau with nnU-Net's own optimiser?

    python -m benchmarks.toy --steps 1000 --seeds 0 1 2
    python -m benchmarks.toy --steps 3000 --complete 0.1 --methods running leaf-dice-ce

Images of 32 x 32 with ellipses of eleven colours, heavy noise and a small network. A sample
annotates one of the twelve labels, or with `--complete` all of them: a label then stands alone in
about every sixth batch of two. SGD, schedule, weight decay and clipping are nnU-Net's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from nnunet_labelset.io.files import write_json
from nnunet_labelset.losses import LabelSetLoss, LeafDiceCELoss, RunningLeafDiceCELoss
from nnunet_labelset.losses.label_sets import LabelSets

LABELS = 12
SIZE = 32
CHANNELS = 3
COLOURS = [[r, g, b] for r in (-1.0, 1.0) for g in (-1.0, 1.0) for b in (-1.0, 0.0, 1.0)]
OBJECTS = 7
NOISE = 0.25
FEATURES = 24
BATCH = 2
RAMP = 0.5  # the recommended trainer's: share of the steps in which cross entropy grows

# value c is label c alone, value LABELS + c is "any label but c"
LABEL_SETS = LabelSets.from_superset_map(
    LABELS, {LABELS + c: [d for d in range(LABELS) if d != c] for c in range(LABELS)}
)


@dataclass(frozen=True)
class Method:
    """A loss, and the share of the steps after which its cross entropy has its full weight."""

    loss: Callable[[], LabelSetLoss]
    ramp: float = 0.0


METHODS = {
    "running": Method(lambda: RunningLeafDiceCELoss(LABEL_SETS), RAMP),
    "running, CE from the start": Method(lambda: RunningLeafDiceCELoss(LABEL_SETS)),
    "leaf-dice-ce": Method(lambda: LeafDiceCELoss(LABEL_SETS, batch_dice=True)),
    "leaf-dice-ce, CE grows": Method(lambda: LeafDiceCELoss(LABEL_SETS, batch_dice=True), RAMP),
}


def images_and_labels(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return images `(count, CHANNELS, SIZE, SIZE)` and labels `(count, SIZE, SIZE)`."""
    colours = torch.tensor(COLOURS)
    grid = torch.stack(torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij"))
    labels = torch.zeros(count, SIZE, SIZE, dtype=torch.long)
    for _ in range(OBJECTS):
        centre = torch.rand(count, 2, 1, 1, generator=generator) * SIZE
        radius = 3 + 4 * torch.rand(count, 2, 1, 1, generator=generator)
        label = torch.randint(1, LABELS, (count, 1, 1), generator=generator)
        inside = (((grid - centre) / radius) ** 2).sum(1) < 1
        labels = torch.where(inside, label, labels)
    images = colours[labels].movedim(-1, 1)
    return images + NOISE * torch.randn(images.shape, generator=generator), labels


def small_network() -> nn.Module:
    """Return four convolutions that see 21 x 21 pixels, with nnU-Net's normalisation."""
    layers: list[nn.Module] = []
    features = CHANNELS
    for dilation in (1, 2, 4, 2):
        layers += [
            nn.Conv2d(features, FEATURES, 3, padding=dilation, dilation=dilation),
            nn.InstanceNorm2d(FEATURES, affine=True),
            nn.LeakyReLU(0.01),
        ]
        features = FEATURES
    return nn.Sequential(*layers, nn.Conv2d(features, LABELS, 1))


def annotated(labels: Tensor, complete: float, generator: torch.Generator) -> Tensor:
    """Return set indices `(B, 1, SIZE, SIZE)`: one label of each sample, or all of them."""
    label = torch.randint(LABELS, (len(labels), 1, 1), generator=generator)
    is_complete = torch.rand(len(labels), 1, 1, generator=generator) < complete
    known = is_complete | (labels == label)
    return torch.where(known, labels, LABELS + label)[:, None]


def train(method: Method, steps: int, complete: float, seed: int, adamw: bool = False) -> nn.Module:
    """Return a network after so many steps of nnU-Net's SGD, or of AdamW."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    images, labels = images_and_labels(400, generator)
    network = small_network()
    if adamw:
        rate = 1e-3
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            network.parameters(), rate, weight_decay=3e-5
        )
    else:
        rate = 1e-2
        optimizer = torch.optim.SGD(
            network.parameters(), rate, momentum=0.99, nesterov=True, weight_decay=3e-5
        )
    loss = method.loss()
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps) ** 0.9
        if method.ramp:
            loss.ce_share = min(1.0, step / (method.ramp * steps))
        batch = torch.randint(len(images), (BATCH,), generator=generator)
        target = annotated(labels[batch], complete, generator)
        optimizer.zero_grad()
        loss(network(images[batch]), target).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 12)
        optimizer.step()
    return network


def mean_dice(network: nn.Module, count: int = 100) -> list[float]:
    """Return the Dice of every label over images that no training has seen."""
    images, labels = images_and_labels(count, torch.Generator().manual_seed(10**6))
    with torch.no_grad():
        predicted = torch.cat([network(chunk).argmax(1) for chunk in images.split(50)])
    values = []
    for label in range(LABELS):
        p = predicted == label
        r = labels == label
        values.append(float(2 * (p & r).sum() / (p.sum() + r.sum())))
    return values


def run(
    methods: Iterable[str], steps: int, complete: float, seeds: Iterable[int], adamw: bool
) -> list[dict]:
    """Train and score every method with every seed."""
    rows = []
    for seed in seeds:
        for name in methods:
            begin = time.perf_counter()
            dice = mean_dice(train(METHODS[name], steps, complete, seed, adamw))
            rows.append(
                {
                    "method": name,
                    "steps": steps,
                    "complete": complete,
                    "optimizer": "AdamW" if adamw else "SGD",
                    "seed": seed,
                    "mean_dice": round(sum(dice) / LABELS, 4),
                    "worst_label": round(min(dice), 4),
                    "seconds": round(time.perf_counter() - begin, 1),
                }
            )
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--complete", type=float, default=0.0, help="share of complete samples")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--adamw", action="store_true", help="AdamW instead of nnU-Net's SGD")
    parser.add_argument("-o", type=Path, help="write the rows to this JSON file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = run(args.methods, args.steps, args.complete, args.seeds, args.adamw)
    if args.o:
        args.o.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.o, rows)


if __name__ == "__main__":
    main()
