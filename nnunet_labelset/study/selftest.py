"""A test of this machine, with a GPU or without: losses, a short training, a prediction, times.

Every loss is compared with a plain reference: the paper's formulas, a line each, in float64 on the
CPU, with gradients by autograd.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from nnunet_labelset import losses
from nnunet_labelset.losses.engine import fused
from nnunet_labelset.losses.label_sets import LabelSets
from nnunet_labelset.nnunet import names
from nnunet_labelset.nnunet.discovery import DEFAULT_TRAINER
from nnunet_labelset.nnunet.logs import LOGS
from nnunet_labelset.nnunet.plain_loss import nnunet_loss
from nnunet_labelset.study.demo import CONFIGURATION, DEMO_DATASET, Demo, Size
from nnunet_labelset.study.phantom.data import write_demo_data

EPSILON = 1e-5
LEAVES = 9
LABEL_SETS = LabelSets.from_superset_map(LEAVES, {9: [4, 5, 6, 7, 8], 10: range(LEAVES)})
# of value and gradient, in parts of the largest number
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True)
class Check:
    """A line of the table."""

    what: str
    result: str
    is_right: bool = True


@dataclass(frozen=True)
class Extent:
    """How much is computed."""

    shape: tuple[int, ...]
    repeats: int
    training: Size

    @classmethod
    def for_device(cls, device: torch.device) -> Extent:
        """Return about two minutes of work."""
        training = Size("small", 1, 100, ("0",), (64, 64, 64), (32, 64, 128))
        if device.type != "cpu":
            return cls((128, 128, 128), 20, training)
        return cls(
            (32, 32, 32),
            5,
            replace(training, iterations=20, patch=(24, 32, 24), features=(8, 16, 32)),
        )


def membership_of(target: Tensor) -> Tensor:
    """Return which labels each voxel may be: `(B, C, *S)`."""
    return LABEL_SETS.membership[target[:, 0]].movedim(-1, 1).double()


def dice_loss(p: Tensor, target: Tensor, prediction_weight: Tensor, over_batch: bool) -> Tensor:
    """Return `1 - mean 2 I / (R + P + epsilon)`."""
    axes = (0, 2, 3, 4) if over_batch else (2, 3, 4)
    intersection = (p * target).sum(axes)
    sizes = (target.square() if prediction_weight.dim() == 0 else target).sum(axes)
    prediction = (p.square() * prediction_weight).sum(axes)
    return 1 - (2 * intersection / (sizes + prediction + EPSILON)).mean()


def leaf_dice_reference(logits: Tensor, target: Tensor) -> Tensor:
    member = membership_of(target)
    annotated = member * (member.sum(1, keepdim=True) == 1)
    p = logits.softmax(1)
    return dice_loss(p, annotated, annotated + 1 - member, over_batch=False)


def marginal_dice_reference(logits: Tensor, target: Tensor) -> Tensor:
    p = losses.marginalize(logits.softmax(1), target, LABEL_SETS)
    soft = losses.soft_target(target, LABEL_SETS, torch.float64)
    return dice_loss(p, soft, torch.tensor(1.0), over_batch=False)


def cross_entropy_reference(logits: Tensor, target: Tensor) -> Tensor:
    member = membership_of(target)
    log_mass = (logits.softmax(1) * member).sum(1).log()
    is_known = member.sum(1) < LEAVES
    return -log_mass[is_known].mean()


def running_reference(logits: Tensor, target: Tensor) -> Tensor:
    """Return a loss with the gradient of the first batch: its Dice with the logarithmic tail."""
    member = membership_of(target)
    annotated = member * (member.sum(1, keepdim=True) == 1)
    p = logits.softmax(1)
    axes = (0, 2, 3, 4)
    reference = annotated.sum(axes)
    prediction = (p.square() * (annotated + 1 - member)).sum(axes)
    dice = 2 * (p * annotated).sum(axes) / (reference + prediction + EPSILON)
    curve = dice + (dice / (dice + 0.1)).log() / 2
    dice = dice.detach() + curve - curve.detach()
    return 1 - dice.mean() + cross_entropy_reference(logits, target)


Loss = Callable[[Tensor, Tensor], Tensor]


def pairs_of_losses() -> dict[str, tuple[Callable[[], Loss], Loss]]:
    """Return every loss with its reference."""
    return {
        "Leaf-Dice": (lambda: losses.LeafDiceLoss(LABEL_SETS), leaf_dice_reference),
        "marginal Dice": (lambda: losses.MarginalDiceLoss(LABEL_SETS), marginal_dice_reference),
        "marginal cross entropy": (
            lambda: losses.MarginalCrossEntropyLoss(LABEL_SETS),
            cross_entropy_reference,
        ),
        "loss of nnUNetTrainerLabelSet": (
            lambda: losses.RunningLeafDiceCELoss(LABEL_SETS),
            running_reference,
        ),
    }


def example(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2, LEAVES, *shape, generator=generator, dtype=torch.float64)
    target = torch.randint(LABEL_SETS.num_sets, (2, 1, *shape), generator=generator)
    return logits, target


def with_gradient(loss: Loss, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.detach().requires_grad_()
    value = loss(logits, target)
    return value.detach(), torch.autograd.grad(value, logits)[0]


def check_losses(device: torch.device) -> Iterator[Check]:
    """Yield how much each loss and its gradient differ from the reference."""
    dtypes = [torch.float32] if device.type == "cpu" else list(TOLERANCE)
    logits, target = example((12, 13, 14))
    for name, (make, reference) in pairs_of_losses().items():
        for dtype in dtypes:
            rounded = logits.to(dtype)
            expected = with_gradient(reference, rounded.double(), target)
            results = with_gradient(make(), rounded.to(device), target.to(device))
            difference = max(map(_difference, results, expected))
            yield Check(
                f"{name}, {str(dtype).removeprefix('torch.')}",
                f"differs by {difference:.1e}",
                difference <= TOLERANCE[dtype],
            )


def _difference(result: Tensor, expected: Tensor) -> float:
    result = result.cpu().double()
    return float((result - expected).abs().max() / expected.abs().max())


def measure_losses(device: torch.device, extent: Extent) -> Iterator[Check]:
    """Yield the time of the recommended loss and of nnU-Net's own, forward and backward."""
    logits, target = example(extent.shape)
    dtype = torch.float32 if device.type == "cpu" else torch.float16
    logits = logits.to(device, dtype)
    target = target.to(device, torch.int16)
    plain = target.clamp(max=LEAVES)
    candidates: dict[str, tuple[Loss, Tensor]] = {
        "nnU-Net Dice + CE": (nnunet_loss(LEAVES), plain),
        "recommended loss": (losses.RunningLeafDiceCELoss(LABEL_SETS), target),
    }
    base = None
    for name, (loss, values) in candidates.items():
        seconds = _seconds(loss, logits, values, extent.repeats)
        base = base or seconds
        kernels = _launches(loss, logits, values) if device.type == "cuda" else ""
        yield Check(
            f"time of {name}", f"{1e3 * seconds:.2f} ms, ratio {seconds / base:.2f}{kernels}"
        )


def _seconds(loss: Loss, logits: Tensor, target: Tensor, repeats: int) -> float:
    wait = torch.cuda.synchronize if logits.is_cuda else lambda: None
    times = []
    for _ in range(repeats + 2):
        wait()
        begin = time.perf_counter()
        with torch.autocast(logits.device.type, enabled=logits.is_cuda):
            with_gradient(loss, logits, target)
        wait()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


def _launches(loss: Loss, logits: Tensor, target: Tensor) -> str:
    activities = [torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.profiler.profile(activities=activities) as profile, torch.autocast("cuda"):
        with_gradient(loss, logits, target)
        torch.cuda.synchronize()
    launches = sum(event.count for event in profile.key_averages())
    memory = (torch.cuda.max_memory_allocated() - before) / 2**20
    return f", {launches} launches, {memory:.0f} MB"


@contextmanager
def quiet() -> Iterator[None]:
    """Drop what this process and its commands print: the table is to be sent."""
    sys.stdout.flush()
    before = os.dup(1)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(before, 1)
            os.close(before)


def check_training(device: torch.device, extent: Extent, folder: Path) -> Iterator[Check]:
    """Yield what a training and a prediction through nnU-Net's commands give."""
    demo = Demo(folder, extent.training, full=False, device=device.type, seed=0)
    trainer = f"{DEFAULT_TRAINER}_short"
    begin = time.monotonic()
    with quiet():
        write_demo_data(folder / "data")
        demo.prepare()
    yield Check("conversion and preprocessing", f"{time.monotonic() - begin:.0f} s")
    model = [DEMO_DATASET[0], CONFIGURATION, "0", "-tr", trainer, "-device", device.type]
    yield _timed(demo, f"training, {extent.training.iterations} steps", [names.TRAIN, *model])
    images = folder / names.RAW / DEMO_DATASET[1] / names.IMAGES_TEST
    predictions = demo.predictions(trainer)
    options: list[object] = ["-d", DEMO_DATASET[0], "-c", CONFIGURATION, "-tr", trainer, "-f", "0"]
    options += ["-device", device.type, "-npp", 0, "-nps", 0, "--disable_tta"]
    yield _timed(demo, "prediction", [names.PREDICT, "-i", images, "-o", predictions, *options])
    number = len(list(predictions.glob("*.nii.gz")))
    expected = len(list(images.glob("*.nii.gz")))
    yield Check("predicted cases", f"{number} of {expected}", number == expected > 0)
    for log in sorted((folder / names.RESULTS).rglob(LOGS)):
        if "Triton kernels were switched off" in log.read_text():
            yield Check("kernels in the training", "switched off: see the log", is_right=False)


def _timed(demo: Demo, what: str, command: list[object]) -> Check:
    begin = time.monotonic()
    try:
        with quiet():
            demo.commands.run([command], environment={names.AUGMENTATION_PROCESSES: "0"})
    except SystemExit as error:
        return Check(what, f"failed: {error}", is_right=False)
    return Check(what, f"{time.monotonic() - begin:.0f} s")


def machine(device: torch.device) -> str:
    parts = [platform.platform(), f"Python {platform.python_version()}"]
    parts.append(f"torch {torch.__version__}")
    parts += [f"{name} {version(name)}" for name in ("nnunetv2", "nnunet_labelset")]
    if device.type == "cuda":
        parts.append(torch.cuda.get_device_name(device))
    return ", ".join(parts)


def run(device: torch.device, extent: Extent, trains: bool) -> bool:
    """Print a table of all checks; return whether everything is right."""
    print(f"{machine(device)}\n\n| what | result | |\n|---|---|---|")
    is_right = True
    with tempfile.TemporaryDirectory() as folder:
        for check in _checks(device, extent, trains, Path(folder)):
            is_right = is_right and check.is_right
            state = "ok" if check.is_right else "WRONG"
            print(f"| {check.what} | {check.result} | {state} |", flush=True)
    return is_right


def _checks(device: torch.device, extent: Extent, trains: bool, folder: Path) -> Iterator[Check]:
    yield from check_losses(device)
    if device.type == "cuda":
        is_used = not fused._broken
        yield Check("Triton kernels", "used" if is_used else "switched off", is_used)
    yield from measure_losses(device, extent)
    if trains:
        yield from check_training(device, extent, folder)
