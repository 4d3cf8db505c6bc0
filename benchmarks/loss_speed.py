"""Time and peak memory of every loss, beside softmax alone and nnU-Net's Dice + cross entropy, in
one run.

    python benchmarks/loss_speed.py                         # 2x9x96x96x96, float32, all losses
    python benchmarks/loss_speed.py --threads 1 2 --busy 2  # alone and beside two busy processes
    python benchmarks/loss_speed.py --label-sets 50 --json result.json
    python benchmarks/loss_speed.py --cpu-seconds --losses RunningLeafDiceCELoss  # busy machine
    python benchmarks/loss_speed.py --reference ~/label-set-loss-functions

All losses take turns, so that a busy machine slows all of them; a ratio is the median of the ratios
in the same turn, to softmax alone (forward and backward of its sum) and to nnU-Net's loss with
ignore label. Memory is the peak of what PyTorch allocates during forward and backward, beyond the
logits and the target, the gradient of the logits included: on the CPU with one thread, from the
allocations that torch.profiler records (the same in every run, blind to what the C library keeps,
and to other threads: each adds its chunk), on CUDA from torch.cuda.max_memory_allocated.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

BASE, SOFTMAX = "nnU-Net Dice+CE, ignore label", "softmax alone"
# until its parent is gone
SPIN = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(100000))"
Loss = Callable[[Tensor, Tensor], Tensor]


def make_supersets(leaves: int, number: int) -> list[list[int]]:
    """Distinct label-sets of two or more leaves, the full one first: it is nnU-Net's ignore
    label.
    """
    generator = torch.Generator().manual_seed(0)
    found = {tuple(range(leaves)): None}
    if number > 2**leaves - leaves - 1:
        raise SystemExit(
            f"--label-sets: {leaves} leaves have only {2**leaves - leaves - 1} larger label-sets"
        )
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
        losses.RunningLeafDiceCELoss,  # of the recommended trainer
        losses.LeafDiceFocalLoss,
        losses.MarginalDiceCELoss,
        losses.MarginalDiceFocalLoss,
    ]
    return {
        module.__name__: module(label_sets, **({"alpha": 2} if "Dice" in module.__name__ else {}))
        for module in modules
    }


def peer_losses(leaves: int) -> dict[str, Loss]:
    """nnU-Net's own; a label-set that is no singleton becomes its ignore label, or leaf 0 where it
    has none.
    """

    def nnunet(ignore: bool) -> Loss:
        dice = {"batch_dice": False, "smooth": 1e-5, "do_bg": False, "ddp": False}
        loss = DC_and_CE_loss(
            dice,
            {},
            ignore_label=leaves if ignore else None,
            dice_class=MemoryEfficientSoftDiceLoss,
        )
        return loss

    return {
        SOFTMAX: lambda logits, target: logits.softmax(1).sum(),
        BASE: nnunet(True),
        "nnU-Net Dice+CE": nnunet(False),
    }


def reference_losses(folder: Path, leaves: int, supersets: list[list[int]]) -> dict[str, Loss]:
    """The paper's authors' losses from a checkout of
    github.com/LucasFidon/label-set-loss-functions.
    """
    if not (folder / "label_set_loss_functions").is_dir():
        raise SystemExit(f"--reference: no folder label_set_loss_functions in {folder}")
    sys.path.insert(0, str(folder))
    import label_set_loss_functions.loss as reference

    superset_map = dict(enumerate(supersets, leaves))
    names = [
        "LeafDiceLoss",
        "MarginalizedDiceLoss",
        "MarginalizedCrossEntropyLoss",
        "LeafDiceCE",
        "MarginalizedDiceCE",
    ]
    available = [name for name in names if hasattr(reference, name)]
    return {
        f"authors' {name}": getattr(reference, name)(labels_superset_map=superset_map)
        for name in available
    }


def run_once(loss: Loss, logits: Tensor, target: Tensor) -> None:
    torch.autograd.grad(loss(logits, target), logits)


def seconds(loss: Loss, logits: Tensor, target: Tensor, clock: Callable[[], float]) -> float:
    wait = torch.cuda.synchronize if logits.is_cuda else lambda: None
    wait()
    start = clock()
    run_once(loss, logits, target)
    wait()
    return clock() - start


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Processes that do nothing but keep a core busy each."""
    command = [sys.executable, "-c", SPIN, str(os.getpid())]
    processes = [subprocess.Popen(command) for _ in range(number)]
    try:
        time.sleep(1 if number else 0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def prepare(args: argparse.Namespace) -> dict[str, tuple[Loss, Tensor, Tensor]]:
    """Every loss with its logits and target."""
    supersets = make_supersets(args.leaves, args.label_sets)
    label_sets = LabelSets.from_superset_map(args.leaves, dict(enumerate(supersets, args.leaves)))
    target = make_target(args, label_sets).to(args.device)
    generator = torch.Generator().manual_seed(2)
    logits = 2 * torch.randn(args.batch, args.leaves, *args.shape, generator=generator)
    logits = logits.to(args.device, getattr(torch, args.dtype)).requires_grad_()
    candidates: dict[str, tuple[Loss, Tensor, Tensor]] = {}
    for name, loss in peer_losses(args.leaves).items():
        candidates[name] = (
            loss,
            logits,
            target.clamp_max(args.leaves) if name == BASE else target % args.leaves,
        )
    found = our_losses(label_sets)
    if args.losses:
        found = {name: found[name] for name in args.losses}
    if args.reference:
        found |= reference_losses(args.reference, args.leaves, supersets)
    return candidates | {name: (loss, logits, target) for name, loss in found.items()}


def measure(
    args: argparse.Namespace, candidates: dict[str, tuple[Loss, Tensor, Tensor]]
) -> dict[str, dict]:
    times: dict[str, list[float]] = {name: [] for name in candidates}
    clock = time.process_time if args.cpu_seconds else time.perf_counter
    for turn in range(args.warm_up + args.repeats):
        for name, (loss, logits, indices) in candidates.items():
            taken = seconds(loss, logits, indices, clock)
            if turn >= args.warm_up:
                times[name].append(taken)
    rows = {}
    for name, mine in times.items():
        row = {"median_s": statistics.median(mine), "min_s": min(mine), "max_s": max(mine)}
        for peer, base in (("softmax", SOFTMAX), ("nnunet", BASE)):
            ratios = [one / other for one, other in zip(mine, times[base], strict=True)]
            row |= {f"of_{peer}": statistics.median(ratios), f"of_{peer}_min": min(ratios)}
            row[f"of_{peer}_max"] = max(ratios)
        rows[name] = row
    return rows


def print_rows(
    title: str, rows: dict[str, dict], memory: dict[str, float], quiet: dict[str, dict] | None
) -> None:
    last = "of nnU-Net, by that of the quiet run" if quiet else "memory / logits"
    print(
        f"\n{title}\n\n| {'loss':<30} | seconds (min-max)    | of softmax (min-max) | of nnU-Net "
        f"(min-max) | {last} |"
    )
    print(f"|{'-' * 32}|{'-' * 22}|{'-' * 22}|{'-' * 22}|{'-' * (len(last) + 2)}|")
    for name, row in rows.items():
        cells = [f"{row['median_s']:.3f} ({row['min_s']:.3f}-{row['max_s']:.3f})"]
        for peer in ("softmax", "nnunet"):
            cells.append(
                f"{row[f'of_{peer}']:.2f} ({row[f'of_{peer}_min']:.2f}-{row[f'of_{peer}_max']:.2f})"
            )
        cells.append(
            f"{row['of_nnunet'] / quiet[name]['of_nnunet'] if quiet else memory[name]:.2f}"
        )
        print(f"| {name:<30} | " + " | ".join(f"{cell:<20}" for cell in cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shape", type=int, nargs="+", default=[96, 96, 96], help="voxels (default: 96 96 96)"
    )
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--leaves", type=int, default=9)
    parser.add_argument(
        "--label-sets",
        type=int,
        default=1,
        help="number of larger label-sets (default: 1, full ignore)",
    )
    parser.add_argument(
        "--threads", type=int, nargs="+", help="numbers of threads, one after the other"
    )
    parser.add_argument(
        "--busy", type=int, default=0, help="measure beside so many busy processes too"
    )
    parser.add_argument(
        "--dtype", choices=["float32", "float16", "bfloat16", "float64"], default="float32"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--losses", nargs="+", metavar="CLASS", help="only these of ours (default: all)"
    )
    parser.add_argument(
        "--cpu-seconds",
        action="store_true",
        help="of the processor, on a machine that has other work; of all threads together",
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument(
        "--reference", type=Path, help="checkout of the authors' package, to measure it too"
    )
    parser.add_argument("--json", type=Path, help="write the result here too")
    args = parser.parse_args()
    machine = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "nnunetv2": version("nnunetv2"),
        "nnunet_labelset": version("nnunet_labelset"),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
    }
    size = "x".join(map(str, (args.batch, args.leaves, *args.shape)))
    print(
        f"{size} {args.dtype} on {args.device}, {args.label_sets} larger label-set(s), "
        f"{args.repeats} turns"
    )
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    candidates, results, memory = prepare(args), [], {}
    all_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name, (loss, logits, indices) in candidates.items():
        run_once(loss, logits, indices)  # tables are made once
        peak = peak_bytes(partial(run_once, loss, logits, indices), logits.is_cuda)
        memory[name] = peak / logits.nbytes
    for threads in args.threads or [all_threads]:
        torch.set_num_threads(threads)
        quiet: dict[str, dict] = {}
        for busy in (0, args.busy) if args.busy else (0,):
            with busy_processes(busy):
                rows = measure(args, candidates)
            title = f"{threads} thread(s)" + (f", beside {busy} busy processes" if busy else "")
            print_rows(title, rows, memory, quiet if busy else None)
            quiet = quiet or rows
            results.append({"threads": threads, "busy": busy, "losses": rows})
    if args.json:
        settings = {
            key: value for key, value in vars(args).items() if key not in ("json", "reference")
        }
        found = {
            "settings": settings,
            "versions": machine,
            "memory_per_logits": memory,
            "results": results,
        }
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
