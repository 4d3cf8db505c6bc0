"""What a loss costs on a GPU: launches and bytes, counted without one; with --gpu, time and memory,
measured on one.

    python benchmarks/device_cost.py                  # counts, and times estimated from them
    (roofline of an A100) python benchmarks/device_cost.py --compile        # registers and spills
    of the Triton kernels, from the compiler python benchmarks/device_cost.py --gpu            #
    nothing estimated: times, peak memory and agreement on this GPU

Counted: every ATen operator, forward and backward over all scales of deep supervision, that is no
    view and no mere
allocation, run on PyTorch's meta device, as one launch; the bytes of the tensors that it reads and
writes (an expanded tensor once); and every Triton kernel with the tensors that it is given, each of
which it touches once. Some operators launch more than one kernel; the reductions of nnU-Net and of
ours alike. Estimated: for every launch the longer of its launch time and its bytes over the
bandwidth. nnU-Net's question whether any voxel is annotated makes the host wait for the device,
which is not in the estimate.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
from loss_speed import make_supersets
from memory import peak_bytes
from nnunetv2.training.loss.compound_losses import DC_and_CE_loss
from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nnunet_labelset import losses
from nnunet_labelset.losses import engine
from nnunet_labelset.losses.engine import fused
from nnunet_labelset.losses.label_sets import LabelSets

WORKLOADS = {  # batch, leaves, shape, scales
    "3D, 2x9x128^3, 5 scales": (2, 9, (128, 128, 128), 5),
    "2D, 49x9x256^2, 6 scales": (49, 9, (256, 256), 6),
    "2x117x64^3, 5 scales": (2, 117, (64, 64, 64), 5),
}
NO_LAUNCH = {
    "detach",
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "scalar_tensor",
}
CHOSEN = ("LeafDiceLoss", "LeafDiceCELoss", "MarginalDiceCELoss")
Loss = Callable[[Tensor, Tensor], Tensor]


class Count(TorchDispatchMode):
    """Launches, and the bytes of each; and all bytes that are allocated, as if nothing were ever
    freed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[int] = []
        self.allocated = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and all(not a.alias_info for a in function._schema.returns):
            self.allocated += result.nbytes
        if not function.is_view and function._schema.name.removeprefix("aten::") not in NO_LAUNCH:
            self.launches.append(touched((args, kwargs, result)))
        return result

    def kernel(self, name: str, grid: tuple, *arguments: object, **options: object) -> None:
        self.launches.append(touched(arguments))

    def seconds(self, bandwidth: float, launch: float) -> float:
        return sum(max(launch, size / bandwidth) for size in self.launches)


def touched(tree: object) -> int:
    """Bytes of all tensors, once each; what is expanded is not there twice."""
    tensors = {id(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}
    total = 0
    for tensor in tensors.values():
        elements = 1
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            elements *= size if stride else 1
        total += elements * tensor.element_size()
    return total


@contextmanager
def road(triton: bool, count: Count | None = None) -> Iterator[None]:
    """Take the Triton kernels or plain PyTorch; with `count`, kernels are counted and not run."""
    with mock.patch.dict(os.environ, {fused.SWITCH: "1" if triton else "0"}):
        if count is None:
            yield
            return
        fits = mock.patch.object(fused, "_device_fits", return_value=True)
        with fits, mock.patch.object(fused, "_launch", count.kernel):
            yield


def nnunet(leaves: int) -> Loss:
    dice = {"batch_dice": False, "smooth": 1e-5, "do_bg": False, "ddp": False}
    return DC_and_CE_loss(dice, {}, ignore_label=leaves, dice_class=MemoryEfficientSoftDiceLoss)


def ours(name: str, leaves: int, sets: int) -> Loss:
    supersets = make_supersets(leaves, sets)
    return getattr(losses, name)(
        LabelSets.from_superset_map(leaves, dict(enumerate(supersets, leaves)))
    )


def scales_of(
    workload: tuple, device: str, dtype: torch.dtype, target_dtype: torch.dtype, sets: int = 1
) -> list[tuple]:
    batch, leaves, shape, number = workload
    pairs = []
    for scale in range(number):
        size = [max(1, axis >> scale) for axis in shape]
        logits = torch.empty(batch, leaves, *size, device=device, dtype=dtype)
        target = torch.zeros(batch, 1, *size, device=device, dtype=target_dtype)
        if device != "meta":
            logits.normal_()
            target.copy_(torch.randint(leaves + sets, target.shape, device=device))
        pairs.append((logits.requires_grad_(), target))
    return pairs


def step(loss: Loss, pairs: list[tuple[Tensor, Tensor]]) -> None:
    """As nnU-Net's deep supervision: a weighted sum over the scales."""
    total = sum(loss(logits, target) / 2**i for i, (logits, target) in enumerate(pairs))
    torch.autograd.grad(total, [logits for logits, _ in pairs])


def counted(
    loss: Loss, workload: tuple, dtype: torch.dtype, triton: bool | None, target_dtype: torch.dtype
) -> Count:
    pairs = scales_of(workload, "meta", dtype, target_dtype)
    count = Count()
    asked = mock.patch.object(
        torch.Tensor, "__bool__", return_value=True
    )  # "is any voxel annotated?": yes
    if triton is None:
        with asked, count:
            step(loss, pairs)
        return count
    asserted = mock.patch.object(engine, "require", side_effect=lambda *_: count.launches.append(1))
    with road(triton, count), asserted:
        step(loss, pairs)  # tables are made once
        count.launches.clear()
        count.allocated = 0
        with count:
            step(loss, pairs)
    return count


def limit(workload: tuple, dtype: torch.dtype, target_dtype: torch.dtype) -> int:
    """Bytes that nobody can do without: logits and target twice, the gradient once."""
    pairs = scales_of(workload, "meta", dtype, target_dtype)
    return sum(3 * touched(logits) + 2 * touched(target) for logits, target in pairs)


def print_counts(args: argparse.Namespace) -> None:
    dtype = getattr(torch, args.dtype)
    print(
        f"{args.dtype} logits, counted; ms estimated at {args.bandwidth} GB/s and {args.launch} us "
        "a launch\n"
    )
    for title, workload in WORKLOADS.items():
        base = counted(nnunet(workload[1]), workload, dtype, None, torch.float32)
        least = limit(workload, dtype, torch.int16)
        print(
            f"| {title} | launches | of nnU-Net | GB | of nnU-Net | of the limit | ms "
            "|\n|---|---|---|---|---|---|---|"
        )
        rows = {"nnU-Net Dice + CE": base}
        for name in CHOSEN:
            for triton in (False, True):
                loss = ours(name, workload[1], args.label_sets)
                rows[f"{name}, {'Triton' if triton else 'torch'}"] = counted(
                    loss, workload, dtype, triton, torch.int16
                )
        for name, count in rows.items():
            size, number = sum(count.launches), len(count.launches)
            time_ms = 1e3 * count.seconds(args.bandwidth * 1e9, args.launch * 1e-6)
            print(
                f"| {name} | {number} | {number / len(base.launches):.2f} | {size / 1e9:.2f} | "
                f"{size / sum(base.launches):.2f} | {size / least:.2f} | {time_ms:.2f} |"
            )
        print()
    print(
        "| leaves (2 x leaves x 64^3, LeafDiceCELoss) | label-sets | torch: launches, GB | Triton: "
        "launches, GB |"
    )
    print("|---|---|---|---|")
    for leaves in (9, 33, 117):
        for sets in (1, 10, 100):
            loss = ours("LeafDiceCELoss", leaves, sets)
            cells = []
            for triton in (False, True):
                found = counted(
                    loss, (2, leaves, (64, 64, 64), 5), dtype, triton, torch.int16
                ).launches
                cells.append(f"{len(found)}, {sum(found) / 1e9:.3f}")
            print(f"| {leaves} | {sets} | {cells[0]} | {cells[1]} |")
    print(
        "\npeak memory beyond logits and gradient, in sizes of the logits; 2x9x96^3, the torch "
        "road run on the CPU"
    )
    for name in CHOSEN:
        pairs = scales_of((2, 9, (96, 96, 96), 1), "cpu", dtype, torch.int16)
        with road(False), mock.patch.object(engine, "_on_cpu", return_value=False):
            peak = peak_bytes(lambda name=name, pairs=pairs: step(ours(name, 9, 1), pairs), False)
        print(f"  {name}: {peak / pairs[0][0].nbytes - 1:.2f}")
    print("the same of the Triton road, at most: all that it allocates, whether or not it is freed")
    for title, workload in WORKLOADS.items():
        size = sum(logits.nbytes for logits, _ in scales_of(workload, "meta", dtype, torch.int16))
        for name in CHOSEN:
            count = counted(
                ours(name, workload[1], args.label_sets), workload, dtype, True, torch.int16
            )
            print(f"  {title}, {name}: {count.allocated / size - 1:.4f}")


def print_measured(args: argparse.Namespace) -> None:
    print(
        f"measured on {torch.cuda.get_device_name()}, torch {torch.__version__}, {args.dtype} "
        "logits\n"
    )
    print(
        "| workload | loss | ms (median of 20) | peak memory / logits | loss value | largest "
        "difference of gradients |"
    )
    print("|---|---|---|---|---|---|")
    for title, workload in WORKLOADS.items():
        pairs = scales_of(
            workload, "cuda", getattr(torch, args.dtype), torch.int16, args.label_sets
        )
        size = sum(logits.nbytes for logits, _ in pairs)
        plain = [(logits, target.clamp_max(workload[1]).float()) for logits, target in pairs]
        candidates: list[tuple] = [("nnU-Net Dice + CE", nnunet(workload[1]), plain, None)]
        for name in CHOSEN:
            loss = ours(name, workload[1], args.label_sets)
            candidates += [
                (f"{name}, {'Triton' if t else 'torch'}", loss, pairs, t) for t in (False, True)
            ]
        reference: list[Tensor] = []
        for name, loss, inputs, triton in candidates:
            with road(bool(triton)):
                times = []
                for _ in range(25):
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    step(loss, inputs)
                    torch.cuda.synchronize()
                    times.append(time.perf_counter() - start)
                peak = peak_bytes(lambda loss=loss, inputs=inputs: step(loss, inputs), True) / size
                value = loss(*inputs[0])
                gradient = torch.autograd.grad(value, inputs[0][0])[0].float()
            if triton and fused._broken:
                name += " (kernels failed: torch)"
            difference = (
                ""
                if not triton
                else f"{(gradient - reference[-1]).abs().max() / gradient.abs().max():.1e}"
            )
            reference.append(gradient)
            median = 1e3 * sorted(times[5:])[10]
            print(
                f"| {title} | {name} | {median:.2f} | {peak:.2f} | {float(value):.6f} | "
                f"{difference} |"
            )


def compiled(
    capability: int, leaves: int, name: str, dtype: str, sets: int = 1
) -> dict[str, dict[str, int]]:
    """Compile the kernels of a loss for a GPU that need not be there: size, registers and spilled
    bytes of each.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from nnunet_labelset.losses.engine import kernels

    found: dict[str, dict[str, int]] = {}
    pointers = {
        "logits": f"*{dtype}",
        "gradient": f"*{dtype}",
        "target": "*i16",
        "outside": "*i1",
        "fine": "*i1",
    }

    def compile_it(kernel: str, grid: tuple, *arguments: object, **constants: object) -> None:
        function = getattr(kernels, kernel)
        signature, fixed = {}, dict(constants)
        for parameter, value in zip(function.arg_names, arguments, strict=False):
            if isinstance(value, Tensor):
                signature[parameter] = pointers.get(parameter, "*fp32")
            elif isinstance(value, float):
                signature[parameter] = "fp32"
            elif value == 1:  # as Triton itself does
                signature[parameter], fixed[parameter] = "constexpr", 1
            else:
                signature[parameter] = "i32"
        signature |= dict.fromkeys(constants, "constexpr")
        source = ASTSource(function, {n: signature[n] for n in function.arg_names}, fixed)
        binary = triton.compile(
            source, GPUTarget("cuda", capability, 32), {"num_warps": fused.WARPS}
        ).asm["cubin"]
        found[kernel] = {"bytes": len(binary), **resources(binary)}

    loss = ours(name, leaves, sets)
    pairs = scales_of((2, leaves, (32, 32, 32), 1), "meta", torch.float32, torch.int16)
    with (
        road(True, Count()),
        mock.patch.object(fused, "_launch", compile_it),
        mock.patch.object(engine, "require"),
    ):
        step(loss, pairs)
    return found


def resources(binary: bytes) -> dict[str, int]:
    """Registers of a thread, and bytes that do not fit them, as the compiler's own tool reads them
    from a cubin.
    """
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        text = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack = re.search(r"REG:(\d+)", text), re.search(r"STACK:(\d+)", text)
    if not registers or not stack:
        raise SystemExit(f"cannot read {text!r}")
    return {"registers": int(registers.group(1)), "spills": int(stack.group(1))}


def print_compiled() -> None:
    print("| capability | leaves | loss | logits | kernel | bytes | registers | spilled bytes |")
    print("|---|---|---|---|---|---|---|---|")
    for capability in (75, 80, 90):
        for leaves in (9, 33, 117):
            for name, dtype in (
                ("LeafDiceLoss", "fp32"),
                ("LeafDiceCELoss", "fp16"),
                ("MarginalDiceFocalLoss", "bf16"),
            ):
                for kernel, facts in compiled(capability, leaves, name, dtype).items():
                    cells = (capability, leaves, name, dtype, kernel, *facts.values())
                    print(f"| {' | '.join(map(str, cells))} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", action="store_true", help="measure on the GPU of this machine")
    parser.add_argument(
        "--compile", action="store_true", help="compile the Triton kernels for sm_75, 80 and 90"
    )
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    parser.add_argument(
        "--label-sets",
        type=int,
        default=1,
        help="number of larger label-sets (default: 1, full ignore)",
    )
    parser.add_argument(
        "--bandwidth",
        type=float,
        default=1555,
        help="peak bandwidth in GB/s (default: 1555, A100 40 GB)",
    )
    parser.add_argument(
        "--launch", type=float, default=4, help="microseconds of a launch (default: 4)"
    )
    args = parser.parse_args()
    if args.compile:
        print_compiled()
    elif args.gpu:
        print_measured(args)
    else:
        print_counts(args)


if __name__ == "__main__":
    main()
