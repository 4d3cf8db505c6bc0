"""Time and peak memory of every loss, beside softmax alone and nnU-Net's Dice + cross entropy, in one run.

    python benchmarks/loss_speed.py                         # 2x9x96x96x96, float32, all losses
    python benchmarks/loss_speed.py --label-sets 50 --json result.json
    python benchmarks/loss_speed.py --reference ~/label-set-loss-functions

All losses take turns, so that a busy machine slows all of them; the ratio is the median of the ratios to nnU-Net's loss
with ignore label in the same turn. Memory is the peak of what PyTorch allocates during forward and backward, beyond the
logits and the target, the gradient of the logits included: on the CPU from the allocations that torch.profiler records
(the same in every run, blind to what the C library keeps), on CUDA from torch.cuda.max_memory_allocated.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
from memory import peak_bytes
from nnunetv2.training.loss.compound_losses import DC_and_CE_loss
from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss
from torch import Tensor

from nnunet_labelset import losses
from nnunet_labelset.losses.label_sets import LabelSets

BASE = "nnU-Net Dice+CE, ignore label"
Loss = Callable[[Tensor, Tensor], Tensor]


def make_supersets(leaves: int, number: int) -> list[list[int]]:
    """Distinct label-sets of two or more leaves, the full one first: it is nnU-Net's ignore label."""
    generator = torch.Generator().manual_seed(0)
    found = {tuple(range(leaves)): None}
    if number > 2**leaves - leaves - 1:
        raise SystemExit(f"--label-sets: {leaves} leaves have only {2**leaves - leaves - 1} larger label-sets")
    while len(found) < number:
        drawn = tuple(torch.rand(leaves, generator=generator).lt(0.5).nonzero().flatten().tolist())
        if len(drawn) > 1:
            found.setdefault(drawn)
    return [list(labels) for labels in found]


def make_target(args: argparse.Namespace, label_sets: LabelSets) -> Tensor:
    """Blocks of 8 voxels a side, as annotations come in regions; half of them singletons."""
    generator = torch.Generator().manual_seed(1)
    coarse_shape = (args.batch, 1, *(-(-size // 8) for size in args.shape))
    leaf = torch.randint(args.leaves, coarse_shape, generator=generator)
    larger = torch.randint(args.leaves, label_sets.num_sets, coarse_shape, generator=generator)
    target = torch.where(torch.rand(coarse_shape, generator=generator) < 0.5, leaf, larger)
    for axis, size in enumerate(args.shape, 2):
        target = target.repeat_interleave(8, axis).narrow(axis, 0, size)
    return target.contiguous()


def our_losses(label_sets: LabelSets) -> dict[str, Loss]:
    modules = [
        losses.LeafDiceLoss,
        losses.MarginalDiceLoss,
        losses.SoftTargetDiceLoss,
        losses.MeanDiceLoss,
        losses.MarginalCrossEntropyLoss,
        losses.MarginalFocalLoss,
        losses.LeafDiceCELoss,
        losses.LeafDiceFocalLoss,
        losses.MarginalDiceCELoss,
        losses.MarginalDiceFocalLoss,
    ]
    return {module.__name__: module(label_sets, **({"alpha": 2} if module.dice else {})) for module in modules}


def peer_losses(leaves: int) -> dict[str, Loss]:
    """nnU-Net's own; a label-set that is no singleton becomes its ignore label, or leaf 0 where it has none."""

    def nnunet(ignore: bool) -> Loss:
        dice = {"batch_dice": False, "smooth": 1e-5, "do_bg": False, "ddp": False}
        loss = DC_and_CE_loss(dice, {}, ignore_label=leaves if ignore else None, dice_class=MemoryEfficientSoftDiceLoss)
        return loss

    return {
        "softmax alone": lambda logits, target: logits.softmax(1).sum(),
        BASE: nnunet(True),
        "nnU-Net Dice+CE": nnunet(False),
    }


def reference_losses(folder: Path, leaves: int, supersets: list[list[int]]) -> dict[str, Loss]:
    """The paper's authors' losses from a checkout of github.com/LucasFidon/label-set-loss-functions."""
    if not (folder / "label_set_loss_functions").is_dir():
        raise SystemExit(f"--reference: no folder label_set_loss_functions in {folder}")
    sys.path.insert(0, str(folder))
    import label_set_loss_functions.loss as reference

    superset_map = dict(enumerate(supersets, leaves))
    names = ["LeafDiceLoss", "MarginalizedDiceLoss", "MarginalizedCrossEntropyLoss", "LeafDiceCE", "MarginalizedDiceCE"]
    available = [name for name in names if hasattr(reference, name)]
    return {f"authors' {name}": getattr(reference, name)(labels_superset_map=superset_map) for name in available}


def run_once(loss: Loss, logits: Tensor, target: Tensor) -> None:
    torch.autograd.grad(loss(logits, target), logits)


def seconds(loss: Loss, logits: Tensor, target: Tensor) -> float:
    wait = torch.cuda.synchronize if logits.is_cuda else lambda: None
    wait()
    start = time.perf_counter()
    run_once(loss, logits, target)
    wait()
    return time.perf_counter() - start


def measure(args: argparse.Namespace) -> list[dict[str, object]]:
    supersets = make_supersets(args.leaves, args.label_sets)
    label_sets = LabelSets.from_superset_map(args.leaves, dict(enumerate(supersets, args.leaves)))
    target = make_target(args, label_sets).to(args.device)
    generator = torch.Generator().manual_seed(2)
    logits = 2 * torch.randn(args.batch, args.leaves, *args.shape, generator=generator)
    logits = logits.to(args.device, getattr(torch, args.dtype)).requires_grad_()
    candidates: dict[str, tuple[Loss, Tensor]] = {}
    for name, loss in peer_losses(args.leaves).items():
        candidates[name] = (loss, target.clamp_max(args.leaves) if name == BASE else target % args.leaves)
    candidates |= {name: (loss, target) for name, loss in our_losses(label_sets).items()}
    if args.reference:
        authors = reference_losses(args.reference, args.leaves, supersets)
        candidates |= {name: (loss, target) for name, loss in authors.items()}
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(args.warm_up + args.repeats):
        for name, (loss, indices) in candidates.items():
            taken = seconds(loss, logits, indices)
            if turn >= args.warm_up:
                times[name].append(taken)
    rows = []
    for name, (loss, indices) in candidates.items():
        ratios = [mine / base for mine, base in zip(times[name], times[BASE], strict=True)]
        rows.append(
            {
                "loss": name,
                "median_s": statistics.median(times[name]),
                "min_s": min(times[name]),
                "max_s": max(times[name]),
                "ratio": statistics.median(ratios),
                "ratio_min": min(ratios),
                "ratio_max": max(ratios),
                "memory_per_logits": peak_bytes(partial(run_once, loss, logits, indices), logits.is_cuda)
                / logits.nbytes,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs="+", default=[96, 96, 96], help="voxels (default: 96 96 96)")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--leaves", type=int, default=9)
    parser.add_argument(
        "--label-sets", type=int, default=1, help="number of larger label-sets (default: 1, full ignore)"
    )
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16", "float64"], default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--reference", type=Path, help="checkout of the authors' package, to measure it too")
    parser.add_argument("--json", type=Path, help="write the result here too")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    rows = measure(args)
    settings = {key: value for key, value in vars(args).items() if key not in ("json", "reference")}
    machine = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "nnunetv2": version("nnunetv2"),
        "nnunet_labelset": version("nnunet_labelset"),
        "threads": torch.get_num_threads(),
        "processor": platform.processor() or platform.machine(),
        "load_before": round(load, 2),
    }
    size = "x".join(map(str, (args.batch, args.leaves, *args.shape)))
    print(f"\n{size} {args.dtype} on {args.device}, {args.label_sets} larger label-set(s), {args.repeats} turns")
    print(", ".join(f"{key} {value}" for key, value in machine.items()) + "\n")
    print(f"| {'loss':<38} | seconds (min-max)     | of nnU-Net (min-max) | memory / logits |")
    print(f"|{'-' * 40}|{'-' * 23}|{'-' * 22}|{'-' * 17}|")
    for row in rows:
        span = f"{row['median_s']:.3f} ({row['min_s']:.3f}-{row['max_s']:.3f})"
        ratio = f"{row['ratio']:.2f} ({row['ratio_min']:.2f}-{row['ratio_max']:.2f})"
        print(f"| {row['loss']:<38} | {span:<21} | {ratio:<20} | {row['memory_per_logits']:<15.2f} |")
    if args.json:
        args.json.write_text(json.dumps({"settings": settings, "versions": machine, "results": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
