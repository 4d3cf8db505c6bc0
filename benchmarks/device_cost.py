"""What the loss of a trainer costs on a GPU: launches and bytes, counted without one.

    python benchmarks/device_cost.py            # counts, and times estimated from them (A100)
    python benchmarks/device_cost.py --compile  # registers and spills of the Triton kernels
    python benchmarks/device_cost.py --gpu      # measured on this GPU: time, memory, agreement

Counted: every ATen operator, forward and backward over the scales of deep supervision and from
values to set indices, that is no view and no mere allocation, run on PyTorch's meta device, as one
launch; the bytes of the tensors that it reads and writes (an expanded tensor once); and every
Triton kernel with the tensors that it is given, each of which it touches once. `half` is nnU-Net's
automatic mixed precision: half-precision logits, which its own loss casts to float32 twice, as
autocast does. Not counted: the copy of the target to the device, and nnU-Net's question whether any
voxel is annotated, which makes the host wait. nnU-Net compiles its Dice where torch.compile works;
its loss is counted without.

Estimated: for every launch the longest of its launch time, its bytes over the bandwidth and, in the
network, its operations over the peak. Real steps take longer, so that the estimated share of a
loss is an upper bound.
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
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F  # noqa: N812
from dynamic_network_architectures.architectures.unet import PlainConvUNet, ResidualEncoderUNet
from loss_speed import make_supersets
from memory import peak_bytes
from nnunetv2.training.loss.compound_losses import DC_and_CE_loss
from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from nnunet_labelset import losses
from nnunet_labelset.contract import Protocol
from nnunet_labelset.losses import engine
from nnunet_labelset.losses.engine import fused
from nnunet_labelset.losses.label_sets import LabelSets
from nnunet_labelset.training.outputs import DeepSupervision

WORKLOADS = {  # batch, leaves, shape, scales
    "3D, 2x9x128^3, 5 scales": (2, 9, (128, 128, 128), 5),
    "2D, 49x9x256^2, 6 scales": (49, 9, (256, 256), 6),
    "2D, 366x3x56x40, 4 scales": (366, 3, (56, 40), 4),
    "2x117x64^3, 5 scales": (2, 117, (64, 64, 64), 5),
}
RECOMMENDED = "RunningLeafDiceCELoss"
NO_LAUNCH = {
    "detach",
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "scalar_tensor",
}
CHOSEN = (RECOMMENDED, "LeafDiceLoss", "LeafDiceCELoss", "MarginalDiceCELoss")
Loss = Callable[[Tensor, Tensor], Tensor]


class Count(TorchDispatchMode):
    """Launches, the bytes and the operations of each; and all bytes that are allocated, as if
    nothing were ever freed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[int] = []
        self.operations: list[float] = []
        self.allocated = 0

    def clear(self) -> None:
        self.launches.clear()
        self.operations.clear()
        self.allocated = 0

    def add(self, size: int, operations: float = 0.0) -> None:
        self.launches.append(size)
        self.operations.append(operations)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and all(not a.alias_info for a in function._schema.returns):
            self.allocated += result.nbytes
        if not function.is_view and function._schema.name.removeprefix("aten::") not in NO_LAUNCH:
            formula = flop_registry.get(function._overloadpacket)
            operations = formula(*args, **(kwargs or {}), out_val=result) if formula else 0.0
            self.add(touched((args, kwargs, result)), operations)
        return result

    def kernel(self, name: str, grid: tuple, *arguments: object, **options: object) -> None:
        self.add(touched(arguments))

    def seconds(self, args: argparse.Namespace) -> float:
        """Return the time by the roofline."""
        total = 0.0
        for size, operations in zip(self.launches, self.operations, strict=True):
            by_memory = size / (args.bandwidth * 1e9)
            total += max(args.launch * 1e-6, by_memory, operations / (args.peak * 1e12))
        return total


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
        fits = mock.patch.object(engine, "_has_kernels", return_value=True)
        unchecked = mock.patch.object(engine, "check_kernels")  # at first use only
        with fits, unchecked, mock.patch.object(fused, "_launch", count.kernel):
            yield


class AutocastCrossEntropy(nn.Module):
    """Cross entropy as autocast runs it: float32 from half-precision logits in one operator."""

    def __init__(self, ignore_index: int) -> None:
        super().__init__()
        self.ignore_index = ignore_index

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        log_p = torch._log_softmax(logits, 1, logits.dtype == torch.float16)
        return F.nll_loss(log_p, target.long(), ignore_index=self.ignore_index)


def autocast_softmax(logits: Tensor, dim: int = 1, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax as CUDA runs it, float32 from half precision in one operator."""
    if logits.dtype == torch.float16 and logits.device.type == "meta":
        return torch._softmax(logits, dim, True)
    return torch.softmax(logits, dim, dtype=torch.float32 if dtype is None else dtype)


def nnunet(leaves: int) -> Loss:
    """nnU-Net's Dice + CE with ignore label, casting as autocast does."""
    dice = {"batch_dice": False, "smooth": 1e-5, "do_bg": False, "ddp": False}
    loss = DC_and_CE_loss(dice, {}, ignore_label=leaves, dice_class=MemoryEfficientSoftDiceLoss)
    loss.dc.apply_nonlin = autocast_softmax
    loss.ce = AutocastCrossEntropy(leaves)
    return loss


def ours(name: str, leaves: int, sets: int) -> losses.LabelSetLoss:
    label_sets = make_label_sets(leaves, sets)
    loss = getattr(losses, name)(label_sets)
    loss.label_sets = label_sets
    return loss


def make_label_sets(leaves: int, sets: int) -> LabelSets:
    """Two protocols, so that batches mix them: everything annotated, and some larger label-sets."""
    supersets = [frozenset(leaves) for leaves in make_supersets(leaves, sets)]
    singletons = [frozenset([leaf]) for leaf in range(leaves)]
    everything = frozenset(range(leaves))
    protocols = {
        "complete": Protocol((*singletons, *[everything] * sets), leaves),
        "partial": Protocol((*singletons, *supersets), leaves),
    }
    cases = {"a": "complete", "b": "partial"}
    return LabelSets([str(leaf) for leaf in range(leaves)], protocols, cases)


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
    weights = [1 / 2**scale for scale in range(len(pairs))]
    logits = [one for one, _ in pairs]
    targets = [target for _, target in pairs]
    if isinstance(loss, losses.LabelSetLoss):
        total = DeepSupervision(loss, weights)(logits, targets)
    else:
        total = DeepSupervisionWrapper(loss, weights)(logits, targets)
    torch.autograd.grad(total, logits)


def train_on(loss: losses.LabelSetLoss, pairs: list[tuple[Tensor, Tensor]]) -> None:
    """As a trainer of ours: values become set indices, checked on the host, then the loss."""
    cases = [("a", "b")[sample % 2] for sample in range(len(pairs[0][0]))]
    label_sets: LabelSets = loss.label_sets  # type: ignore[assignment]
    rows = label_sets.rows_of(cases, pairs[0][1], pairs[0][1].device)
    encoded = []
    for logits, target in pairs:
        encoded.append((logits, label_sets.look_up(target, rows, torch.int16)))
    step(loss, encoded)


def counted(
    loss: Loss, workload: tuple, dtype: torch.dtype, triton: bool | None, target_dtype: torch.dtype
) -> Count:
    """Return the count of a step, with `LabelSets.encode` for a loss of ours."""
    pairs = scales_of(workload, "meta", dtype, target_dtype)
    count = Count()
    if triton is None:
        asked = mock.patch.object(torch.Tensor, "__bool__", return_value=True)
        with asked, count:  # "is any voxel annotated?": yes
            step(loss, pairs)
        return count
    assert isinstance(loss, losses.LabelSetLoss)
    loss.checks_target = False
    loss.ce_share = 0.5  # in the first half of a training
    with road(triton, count), mock.patch.object(torch.Tensor, "softmax", autocast_softmax):
        train_on(loss, pairs)  # tables are made once
        count.clear()
        with count:
            train_on(loss, pairs)
    return count


def limit(workload: tuple, dtype: torch.dtype, target_dtype: torch.dtype) -> int:
    """Bytes that nobody can do without: logits and target twice, the gradient once."""
    pairs = scales_of(workload, "meta", dtype, target_dtype)
    return sum(3 * touched(logits) + 2 * touched(target) for logits, target in pairs)


def print_counts(args: argparse.Namespace) -> None:
    print(f"counted; ms by roofline: {args.bandwidth} GB/s, {args.launch} us a launch\n")
    for dtype in (torch.float16, torch.float32):
        for title, workload in WORKLOADS.items():
            print_workload(args, title, workload, dtype)
    print_label_sets()
    print_memory()


def print_workload(
    args: argparse.Namespace, title: str, workload: tuple, dtype: torch.dtype
) -> None:
    base = counted(nnunet(workload[1]), workload, dtype, None, torch.int16)
    least = limit(workload, dtype, torch.int16)
    title = f"{str(dtype).removeprefix('torch.')}, {title}"
    print(f"| {title} | launches | of nnU-Net | GB | of nnU-Net | of the limit | ms |")
    print("|---|---|---|---|---|---|---|")
    rows = {"nnU-Net Dice + CE": base}
    for name in CHOSEN:
        for triton in (False, True):
            loss = ours(name, workload[1], args.label_sets)
            road_name = "Triton" if triton else "torch"
            rows[f"{name}, {road_name}"] = counted(loss, workload, dtype, triton, torch.int16)
    for name, count in rows.items():
        size = sum(count.launches)
        number = len(count.launches)
        print(
            f"| {name} | {number} | {number / len(base.launches):.2f} | {size / 1e9:.2f} | "
            f"{size / sum(base.launches):.2f} | {size / least:.2f} | "
            f"{1e3 * count.seconds(args):.2f} |"
        )
    print()


def print_label_sets() -> None:
    print(f"| leaves (2 x leaves x 64^3, {RECOMMENDED}) | label-sets | torch | Triton |")
    print("|---|---|---|---|")
    for leaves in (9, 33, 117):
        for sets in (1, 10, 100):
            workload = (2, leaves, (64, 64, 64), 5)
            cells = []
            for triton in (False, True):
                loss = ours(RECOMMENDED, leaves, sets)
                launches = counted(loss, workload, torch.float16, triton, torch.int16).launches
                cells.append(f"{len(launches)}, {sum(launches) / 1e9:.3f} GB")
            print(f"| {leaves} | {sets} | {cells[0]} | {cells[1]} |")


def print_memory() -> None:
    print("\npeak memory beyond logits, in sizes of the float32 logits, gradient included;")
    print("2x9x96^3, the torch road run on the CPU")
    pairs = scales_of((2, 9, (96, 96, 96), 1), "cpu", torch.float32, torch.int16)
    size = pairs[0][0].nbytes
    peak = peak_bytes(lambda: step(nnunet(9), pairs), False)
    print(f"  nnU-Net Dice + CE: {peak / size:.2f}")
    for name in CHOSEN:
        with road(False), mock.patch.object(engine, "_on_cpu", return_value=False):
            peak = peak_bytes(lambda name=name: step(ours(name, 9, 1), pairs), False)
        print(f"  {name}: {peak / size:.2f}")
    print("the same of the Triton road, at most: all that it allocates, whether or not it is freed")
    for title, workload in WORKLOADS.items():
        pairs = scales_of(workload, "meta", torch.float32, torch.int16)
        size = sum(logits.nbytes for logits, _ in pairs)
        loss = ours(RECOMMENDED, workload[1], 1)
        count = counted(loss, workload, torch.float32, True, torch.int16)
        print(f"  {title}: {count.allocated / size:.4f}")


def print_shares(args: argparse.Namespace) -> None:
    """Which share of a training step the loss takes, with and without the kernels."""
    print("| preset | step, ms | nnU-Net's loss, % | torch, % | Triton, % | kernels save, % |")
    print("|---|---|---|---|---|---|")
    for name, preset in PRESETS.items():
        network, scales = step_of_network(preset)
        workload = (preset.batch, 9, preset.patch, scales)
        total = network.seconds(args)
        base = counted(nnunet(9), workload, torch.float16, None, torch.int16).seconds(args)
        parts = [base]
        for triton in (False, True):
            loss = ours(RECOMMENDED, 9, 1)
            count = counted(loss, workload, torch.float16, triton, torch.int16)
            parts.append(count.seconds(args))
        shares = [100 * part / (total + base) for part in parts]
        cells = " | ".join(f"{share:.1f}" for share in shares)
        print(f"| {name} | {1e3 * (total + base):.0f} | {cells} | {shares[1] - shares[2]:.1f} |")


@dataclass(frozen=True)
class Preset:
    """A configuration as nnU-Net plans it for images of isotropic voxels and nine labels."""

    batch: int
    patch: tuple[int, ...]
    features: tuple[int, ...]
    blocks: tuple[int, ...] | None = None  # of a residual encoder


FEATURES_3D = (32, 64, 128, 256, 320, 320)
BLOCKS = (1, 3, 4, 6, 6, 6)
PRESETS = {
    "standard 3D, 2 x 128^3": Preset(2, (128,) * 3, FEATURES_3D),
    "ResEnc M, 2 x 128^3": Preset(2, (128,) * 3, FEATURES_3D, BLOCKS),
    "ResEnc L, 2 x 160^3": Preset(2, (160,) * 3, FEATURES_3D, BLOCKS),
    "ResEnc XL, 2 x 192^3": Preset(2, (192,) * 3, FEATURES_3D, BLOCKS),
    "standard 2D, 49 x 256^2": Preset(49, (256,) * 2, (32, 64, 128, 256, 512, 512, 512)),
}


def step_of_network(preset: Preset) -> tuple[Count, int]:
    """Return the count of forward and backward in half precision, and how many scales have a
    loss.
    """
    is_3d = len(preset.patch) == 3
    stages = len(preset.features)
    options = {
        "input_channels": 1,
        "n_stages": stages,
        "features_per_stage": preset.features,
        "conv_op": nn.Conv3d if is_3d else nn.Conv2d,
        "kernel_sizes": 3,
        "strides": [1] + [2] * (stages - 1),
        "num_classes": 9,
        "conv_bias": True,
        "norm_op": nn.InstanceNorm3d if is_3d else nn.InstanceNorm2d,
        "norm_op_kwargs": {"eps": 1e-5, "affine": True},
        "nonlin": nn.LeakyReLU,
        "nonlin_kwargs": {"inplace": True},
        "deep_supervision": True,
    }
    with torch.device("meta"):
        if preset.blocks is None:
            network = PlainConvUNet(n_conv_per_stage=2, n_conv_per_stage_decoder=2, **options)
        else:
            blocks = {"n_blocks_per_stage": preset.blocks, "n_conv_per_stage_decoder": 1}
            network = ResidualEncoderUNet(**blocks, **options)
        network = network.half()
        images = torch.empty(preset.batch, 1, *preset.patch, dtype=torch.float16)
    count = Count()
    with count:
        outputs = network(images)
        torch.autograd.backward(outputs, [torch.empty_like(output) for output in outputs])
    return count, len(outputs) - 1  # nnU-Net gives the coarsest no weight


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
            for triton in (False, True):
                loss = ours(name, workload[1], args.label_sets)  # running Dice remembers
                road_name = "Triton" if triton else "torch"
                candidates.append((f"{name}, {road_name}", loss, pairs, triton))
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
    parser.add_argument(
        "--peak", type=float, default=312, help="peak TFLOP/s (default: 312, A100, half precision)"
    )
    parser.add_argument(
        "--presets", action="store_true", help="share of the loss in a step, by preset of nnU-Net"
    )
    args = parser.parse_args()
    if args.presets:
        print_shares(args)
    elif args.compile:
        print_compiled()
    elif args.gpu:
        print_measured(args)
    else:
        print_counts(args)


if __name__ == "__main__":
    main()
