#!/usr/bin/env bash
# shellcheck disable=SC2016  # a $ in a folder name is meant literally
set -euo pipefail
# Submits the study to SLURM: every network is one job of an array, and each step waits for the one before.
# Arguments go to every sbatch:  bash submit_slurm.sh --partition=gpu --time=2-00:00:00 --mem=64G
# After a time limit or a failure, submit again: finished parts end at once, interrupted trainings go on.

# (settings)

submit() {
    sbatch --parsable --kill-on-invalid-dep=yes --output="$study/logs/%x_%j.txt" "$@" | cut -d ';' -f 1
}
submit_array() {
    submit --array="$1-$(($2 - 1))" --output="$study/logs/%x_%A_%a.txt" "${@:3}"
}
submit_training() {
    submit_array "$1" "$2" --job-name=train --gres="gpu:$num_gpus" --cpus-per-task="$((12 * num_gpus))" \
        --dependency="afterok:$3" "${@:4}" "$study/run.sh" array train
}

mkdir -p "$study/logs"
prepare="$(submit --job-name=prepare --cpus-per-task=8 "$@" "$study/run.sh" prepare)"
train="$(submit_training 0 "$num_first_networks" "$prepare" "$@")"
echo "submitted: prepare $prepare, train $train"
last="$train"
if [[ "$num_networks" -gt "$num_first_networks" ]]; then
    # A cascade needs the validation of every fold of the stage before it.
    last="$(submit_training "$num_first_networks" "$num_networks" "$train" "$@")"
    echo "submitted: train the cascade $last"
fi
if [[ "$crossvalidation" == 0 ]]; then
    # aftercorr: a network predicts as soon as it is trained, whatever the others do.
    predict="$(submit_array 0 "$num_networks" --job-name=predict --gres=gpu:1 \
        --cpus-per-task=8 --dependency="aftercorr:$train" "$@" "$study/run.sh" array predict)"
    last="$(submit_array 0 "$num_models" --job-name=ensemble \
        --cpus-per-task=8 --dependency="afterok:$predict" "$@" "$study/run.sh" array ensemble)"
    echo "submitted: predict $predict, ensemble $last"
fi
finish="$(submit --job-name=finish --cpus-per-task=8 --dependency="afterok:$last" "$@" "$study/run.sh" finish)"
echo "submitted: finish $finish"
if [[ -n "$next_round" ]]; then echo "when all of it is done: bash $next_round/submit_slurm.sh"; fi
echo "logs in $study/logs; watch with: squeue --me"
