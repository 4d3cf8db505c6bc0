"""The text of the scripts that `nnunet_labelset experiment` writes: generated assignments, then a fixed body.

The bodies hold no placeholders, so what is tested is what every user gets; all that varies is quoted above them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

Setting = str | int | Sequence[str | int]


def assignments(settings: Mapping[str, Setting], export: bool = False) -> str:
    """Bash assignments of strings, numbers and arrays, quoted for the shell."""
    lines = []
    for name, value in settings.items():
        if isinstance(value, (str, int)):
            text = shlex.quote(str(value))
        else:
            text = "(" + " ".join(shlex.quote(str(item)) for item in value) + ")"
        lines.append(f"{'export ' if export else ''}{name}={text}")
    return "\n".join(lines) + "\n"


HEAD = """\
#!/usr/bin/env bash
# shellcheck disable=SC2016  # a $ in a folder name is meant literally
set -euo pipefail
"""

RUN_HELP = """\
# Steps of a study; each one skips what is finished, so the same command again goes on after an interruption.
#
#   bash run.sh                            everything, one after the other
#   bash run.sh prepare                    planning, preprocessing, splits
#   bash run.sh train [TRAINER [FOLD]]     train the networks
#   bash run.sh predict [TRAINER [FOLD]]   predict the test images with every network, with probabilities
#   bash run.sh ensemble [TRAINER]         average the probabilities of the networks, then evaluate
#   bash run.sh finish                     compare the trainers, write the report
#   bash run.sh status                     what is done
#   bash run.sh array STEP                 the part of STEP that $SLURM_ARRAY_TASK_ID counts (see submit_slurm.sh)
"""

RUN_BODY = r"""
say() { printf '[%s] %s\n' "$(date '+%F %T')" "$*"; }
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}
# Each command is shown as one would type it.
typed() {
    printf '+' && printf ' %q' "$@" && printf '\n'
    "$@"
}

fold_folder() { printf '%s' "$nnUNet_results/$dataset/${1}__${plans}__${configuration}/fold_$2"; }
trained() {
    local folder
    folder="$(fold_folder "$1" "$2")"
    [[ -f "$folder/checkpoint_final.pth" && -f "$folder/validation/summary.json" ]]
}

prepare() {
    local preprocessed="$nnUNet_preprocessed/$dataset" splits fold
    # What somebody else has planned and preprocessed is left alone; what this script began, it finishes.
    if [[ ! -f "$preprocessed/$plans.json" || -f "$study/preparing" ]]; then
        [[ -n "$planner" ]] || fail "$preprocessed/$plans.json is missing: run nnUNetv2_plan_and_preprocess first"
        touch "$study/preparing"
        typed nnUNetv2_plan_and_preprocess -d "$dataset_id" -pl "$planner" -c "$configuration" \
            --verify_dataset_integrity
        rm "$study/preparing"
    fi
    if [[ ! -f "$preprocessed/splits_final.json" ]]; then
        typed nnunet_labelset splits -d "$dataset" "${split_options[@]}"
    fi
    # For a fold without a split nnU-Net would silently draw a random one.
    splits="$({ grep -o '"train"' "$preprocessed/splits_final.json" || true; } | wc -l)"
    for fold in "${folds[@]}"; do
        if [[ "$fold" != all && "$fold" -ge "$splits" ]]; then
            fail "fold $fold: $preprocessed/splits_final.json has $((splits)) splits: see nnunet_labelset splits"
        fi
    done
}

train() {
    local folder
    folder="$(fold_folder "$1" "$2")"
    if trained "$1" "$2"; then say "$1 fold $2: already trained"; return; fi
    set -- nnUNetv2_train "$dataset" "$configuration" "$2" -tr "$1" -p "$plans" -num_gpus "$num_gpus" -device "$device"
    if [[ -f "$folder/checkpoint_final.pth" ]]; then
        set -- "$@" --val # only the validation is missing
    elif [[ -f "$folder/checkpoint_latest.pth" || -f "$folder/checkpoint_best.pth" ]]; then
        set -- "$@" --c
    fi
    typed "$@"
}

# The ensemble of a trainer is made from these folds and this checkpoint, and no network is newer.
ensembled() {
    local marker="$study/predictions/$1/ensemble.done" fold
    [[ -f "$marker" && "$(<"$marker")" == "$(recipe)" ]] || return 1
    for fold in "${folds[@]}"; do
        if [[ "$(fold_folder "$1" "$fold")/$checkpoint" -nt "$marker" ]]; then return 1; fi
    done
}
recipe() { printf '%s' "$checkpoint ${folds[*]} $images"; }

predict() {
    local output="$study/predictions/$1/fold_$2" model
    model="$(fold_folder "$1" "$2")/$checkpoint"
    if ensembled "$1"; then say "$1 fold $2: already part of the ensemble"; return; fi
    trained "$1" "$2" || fail "$1 fold $2 is not trained yet: bash run.sh train $1 $2"
    # Predictions of an older network or of other images must not be mixed with new ones.
    local origin="$checkpoint $images" started="$output/started"
    if [[ "$model" -nt "$started" || "$(<"$started")" != "$origin" ]]; then
        rm -rf "$output"
        mkdir -p "$output"
        printf '%s' "$origin" >"$started"
    fi
    if [[ -f "$output/done" ]]; then say "$1 fold $2: already predicted"; return; fi
    typed nnUNetv2_predict -i "$images" -o "$output" -d "$dataset" -c "$configuration" -tr "$1" -p "$plans" -f "$2" \
        -chk "$checkpoint" -device "$device" --save_probabilities --continue_prediction
    touch "$output/done"
}

ensemble() {
    local predictions="$study/predictions/$1" evaluation="$study/evaluation/$1" fold
    if ! ensembled "$1"; then
        local trainer="$1"
        set --
        for fold in "${folds[@]}"; do
            [[ -f "$predictions/fold_$fold/done" ]] ||
                fail "$trainer fold $fold is not predicted yet: bash run.sh predict $trainer $fold"
            set -- "$@" "$predictions/fold_$fold"
        done
        rm -rf "$predictions/ensemble" "$predictions/ensemble.done" "$evaluation"
        typed nnUNetv2_ensemble -i "$@" -o "$predictions/ensemble"
        recipe >"$predictions/ensemble.done"
        # Probabilities are large and were needed for this only.
        if [[ "$keep_probabilities" != 1 ]]; then rm -rf "$@"; fi
        set -- "$trainer"
    fi
    if [[ -f "$evaluation/metrics.json" ]]; then say "$1: already evaluated"; return; fi
    set -- nnunet_labelset evaluate "$references" "$predictions/ensemble" -djfile "$nnUNet_raw/$dataset/dataset.json" \
        -o "$evaluation"
    if [[ -n "$cap" ]]; then set -- "$@" --cap "$cap"; fi
    typed "$@"
}

finish() {
    local trainer
    for trainer in "${trainers[@]}"; do
        # Scores of an ensemble that has to be renewed do not count.
        if ! ensembled "$trainer" || [[ ! -f "$study/evaluation/$trainer/metrics.json" ]]; then
            fail "$trainer is not evaluated yet: bash run.sh predict $trainer; bash run.sh ensemble $trainer"
        fi
    done
    set --
    for trainer in "${trainers[@]}"; do set -- "$@" "$trainer=$study/evaluation/$trainer"; done
    typed nnunet_labelset compare "$@" -o "$study/comparison"
    set -- "$@" -m
    for trainer in "${trainers[@]}"; do set -- "$@" "$(dirname "$(fold_folder "$trainer" 0)")"; done
    typed nnunet_labelset report "$@" -o "$study/report.html" --title "$dataset"
}

status() {
    local trainer fold word
    for trainer in "${trainers[@]}"; do
        for fold in "${folds[@]}"; do
            word=waiting
            if trained "$trainer" "$fold"; then
                word=trained
            elif [[ -d "$(fold_folder "$trainer" "$fold")" ]]; then
                word=started
            fi
            printf '%-40s fold %-4s %s\n' "$trainer" "$fold" "$word"
        done
        word="no ensemble of these networks yet"
        if ensembled "$trainer"; then
            word="ensemble done"
            if [[ -f "$study/evaluation/$trainer/metrics.json" ]]; then word="ensemble done, evaluated"; fi
        fi
        printf '%-40s %s\n' "$trainer" "$word"
    done
}

# Is $1 among the words after it?
among() {
    local word="$1" known
    shift
    for known in "$@"; do if [[ "$known" == "$word" ]]; then return; fi; done
    fail "'$word' is not part of this study: $*"
}

each_network() {
    local step="$1" trainer fold
    if [[ $# -gt 1 ]]; then among "$2" "${trainers[@]}"; fi
    if [[ $# -gt 2 ]]; then among "$3" "${folds[@]}"; fi
    for trainer in "${trainers[@]}"; do
        if [[ $# -gt 1 && "$2" != "$trainer" ]]; then continue; fi
        for fold in "${folds[@]}"; do
            if [[ $# -gt 2 && "$3" != "$fold" ]]; then continue; fi
            "$step" "$trainer" "$fold"
        done
    done
}

each_trainer() {
    local step="$1" trainer
    if [[ $# -gt 1 ]]; then among "$2" "${trainers[@]}"; fi
    for trainer in "${trainers[@]}"; do
        if [[ $# -gt 1 && "$2" != "$trainer" ]]; then continue; fi
        "$step" "$trainer"
    done
}

array() {
    local index="${SLURM_ARRAY_TASK_ID:?is set by SLURM in an array job}"
    # As many workers as the job has processors: nnU-Net only looks at the whole machine.
    if [[ -n "${SLURM_CPUS_PER_TASK:-}" ]]; then
        export nnUNet_n_proc_DA="${nnUNet_n_proc_DA:-$(((SLURM_CPUS_PER_TASK + num_gpus - 1) / num_gpus))}"
    fi
    case "${1:-}" in
    train | predict) "$1" "${trainers[index / ${#folds[@]}]}" "${folds[index % ${#folds[@]}]}" ;;
    ensemble) ensemble "${trainers[index]}" ;;
    *) fail "array: expected train, predict or ensemble" ;;
    esac
}

for command in nnUNetv2_train nnUNetv2_predict nnUNetv2_ensemble nnunet_labelset; do
    command -v "$command" >/dev/null || fail "$command is not on PATH: activate the environment of nnU-Net"
done
nnUNet_extTrainer="$(nnunet_labelset trainers)${nnUNet_extTrainer:+:$nnUNet_extTrainer}"
export nnUNet_extTrainer
case "${1:-all}" in
all)
    prepare
    each_network train
    each_network predict
    each_trainer ensemble
    finish
    ;;
train | predict) each_network "$@" ;;
ensemble) each_trainer "$@" ;;
prepare | finish | status) "$1" ;;
array) array "${2:-}" ;;
*) fail "unknown step '$1': expected prepare, train, predict, ensemble, finish, status, array or nothing" ;;
esac
"""

SLURM_HELP = """\
# Submits the study to SLURM: every network is one job of an array, and each step waits for the one before.
# Arguments go to every sbatch:  bash submit_slurm.sh --partition=gpu --time=2-00:00:00 --mem=64G
# After a time limit or a failure, submit again: finished parts end at once, interrupted trainings go on.
"""

SLURM_BODY = r"""
submit() {
    sbatch --parsable --kill-on-invalid-dep=yes --output="$study/logs/%x_%j.txt" "$@" | cut -d ';' -f 1
}
submit_array() {
    submit --array="0-$(($1 - 1))" --output="$study/logs/%x_%A_%a.txt" "${@:2}"
}

mkdir -p "$study/logs"
prepare="$(submit --job-name=prepare --cpus-per-task=8 "$@" "$study/run.sh" prepare)"
train="$(submit_array "$num_networks" --job-name=train --gres="gpu:$num_gpus" \
    --cpus-per-task="$((12 * num_gpus))" --dependency="afterok:$prepare" "$@" "$study/run.sh" array train)"
# aftercorr: a network predicts as soon as it is trained, whatever the others do.
predict="$(submit_array "$num_networks" --job-name=predict --gres=gpu:1 \
    --cpus-per-task=8 --dependency="aftercorr:$train" "$@" "$study/run.sh" array predict)"
ensemble="$(submit_array "$num_trainers" --job-name=ensemble \
    --cpus-per-task=8 --dependency="afterok:$predict" "$@" "$study/run.sh" array ensemble)"
finish="$(submit --job-name=finish --cpus-per-task=2 --dependency="afterok:$ensemble" "$@" "$study/run.sh" finish)"
echo "submitted: prepare $prepare, train $train, predict $predict, ensemble $ensemble, finish $finish"
echo "logs in $study/logs; watch with: squeue --me"
"""
