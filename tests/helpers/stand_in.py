"""Stands for a command on PATH: records how it was called, and leaves the files that tell a script
what is done.
"""

import json
import os
import sys
import time
from pathlib import Path

name, words = Path(sys.argv[0]).name, sys.argv[1:]
with open(os.environ["RECORD"], "a") as record:
    record.write(json.dumps([name, *words]) + "\n")


def flag(word):
    return words[words.index(word) + 1]


def write(path, text="x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# A call that contains this text is interrupted.
broken = "BREAK" in os.environ and os.environ["BREAK"] in " ".join([name, *words])
raw, preprocessed, results = (
    Path(os.environ["nnUNet_" + n]) for n in ("raw", "preprocessed", "results")
)
if name == "nnUNetv2_plan_and_preprocess":
    (folder,) = raw.glob(f"Dataset{int(flag('-d')):03d}_*")
    planned = os.environ.get("PLANNED", "2d 3d_fullres 3d_lowres 3d_cascade_fullres").split()
    content = {"plans_name": "nnUNetPlans", "configurations": {key: {} for key in planned}}
    write(preprocessed / folder.name / "nnUNetPlans.json", json.dumps(content))
elif name == "nnUNetv2_extract_fingerprint":
    (folder,) = raw.glob(f"Dataset{int(flag('-d')):03d}_*")
    if not broken:
        write(preprocessed / folder.name / "dataset_fingerprint.json")
elif name == "nnUNetv2_preprocess":
    (folder,) = raw.glob(f"Dataset{int(flag('-d')):03d}_*")
    cases = sorted(path.name[:-12] for path in folder.glob("imagesTr/*_0000.nii.gz"))
    for configuration in words[words.index("-c") + 1 :]:
        for case in cases[: 1 if broken else None]:
            data = preprocessed / folder.name / f"nnUNetPlans_{configuration}"
            write(data / f"{case}.pkl")
elif name == "nnUNetv2_train":
    folder = results / words[0] / f"{flag('-tr')}__{flag('-p')}__{words[1]}" / f"fold_{words[2]}"
    write(folder / "gpu", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    write(folder / "pid", str(os.getpid()))
    if "LINGER" in os.environ:
        time.sleep(600)
    # side by side, or never
    while len(list(results.rglob("gpu"))) < int(os.environ.get("MEET", 0)):
        time.sleep(0.05)
    if broken:
        write(folder / "checkpoint_best.pth")
        sys.exit(1)
    if "--val" not in words:
        write(folder / "checkpoint_final.pth")
        write(folder / "checkpoint_best.pth")
    if "NO_VALIDATION" not in os.environ:
        write(folder / "validation" / "summary.json")
        if "--npz" in words:
            write(folder / "validation" / "a.npz")
elif name == "nnUNetv2_predict":
    cases = sorted(path.name[:-12] for path in Path(flag("-i")).glob("*_0000.nii.gz"))
    for case in cases[: 1 if broken else None]:
        write(Path(flag("-o")) / f"{case}.npz")
elif name == "nnUNetv2_ensemble":
    folders = [Path(word) for word in words[1 : words.index("-o")]]
    write(
        Path(flag("-o")) / "result.nii.gz",
        " ".join(str(len(list(folder.glob("*.npz")))) for folder in folders),
    )
elif name == "nnunet_labelset" and words[0] == "splits":
    splits = [{"train": [], "val": []}] * int(flag("--random" if "--random" in words else "-k"))
    write(preprocessed / flag("-d") / "splits_final.json", json.dumps(splits))
elif name == "nnunet_labelset" and words[0] == "complete":
    folder = f"Dataset{int(flag('--new-id')):03d}_{flag('-n')}"
    (source,) = raw.glob(flag("-d"))
    write(raw / folder / "dataset.json", (source / "dataset.json").read_text())
    for image in source.glob("imagesTr/*"):
        write(raw / folder / "imagesTr" / image.name)
    for file in ("splits_final.json", f"{flag('-p')}.json"):
        write(preprocessed / folder / file, (preprocessed / flag("-d") / file).read_text())
elif name == "nnunet_labelset" and words[0] == "evaluate":
    assert os.environ["nnUNet_extTrainer"].endswith("trainers")
    write(Path(flag("-o")) / "metrics.json")
elif name == "nnunet_labelset" and words[0] == "find_best_configuration":
    write(results / words[1] / "inference_instructions.txt")
elif name == "nnunet_labelset" and words[0] == "compare":
    write(Path(flag("-o")) / "comparison.json")
elif name == "nnunet_labelset" and words[0] == "report":
    write(Path(flag("-o")))
if broken:
    sys.exit(1)
