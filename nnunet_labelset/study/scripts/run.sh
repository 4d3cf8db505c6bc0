#!/usr/bin/env bash
# shellcheck disable=SC2016  # a $ in a folder name is meant literally
set -euo pipefail
# Steps of a study; each one skips what is finished, so the same command again goes on after an interruption.
# A MODEL is a trainer, or TRAINER__CONFIGURATION where the study has several configurations.
#
#   bash run.sh                          everything, one after the other (or one network on each GPU of --gpus)
#   bash run.sh prepare                  planning, preprocessing, splits
#   bash run.sh train [MODEL [FOLD]]     train the networks
#   bash run.sh predict [MODEL [FOLD]]   predict the test images with every network, with probabilities
#   bash run.sh ensemble [MODEL]         average the probabilities of the networks, then evaluate
#   bash run.sh finish                   compare the models, write the report; --cv: find the best configuration
#   bash run.sh status                   what is done
#   bash run.sh array STEP               the part of STEP that $SLURM_ARRAY_TASK_ID counts (see submit_slurm.sh)

# (settings)

say() { printf '[%s] %s\n' "$(date '+%F %T')" "$*"; }
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}
# Each command is shown as one would type it.
typed() {
    printf '+' && printf ' %q' "$@" && printf '\n'
    # Beside others it runs in the background, so that the signal that ends this script also ends it.
    if [[ -z "${worker:-}" ]]; then "$@"; else "$@" & running=$! && wait "$running"; fi
}

trainer_of() { printf '%s' "${1%%__*}"; }
configuration_of() { if [[ "$1" == *__* ]]; then printf '%s' "${1#*__}"; else printf '%s' "${configurations[0]}"; fi; }
model_folder() { printf '%s' "$nnUNet_results/$dataset/$(trainer_of "$1")__${plans}__$(configuration_of "$1")"; }
fold_folder() { printf '%s' "$(model_folder "$1")/fold_$2"; }
trained() {
    local folder file
    folder="$(fold_folder "$1" "$2")"
    [[ -f "$folder/$final_checkpoint" && -f "$folder/$validation/$summary" ]] || return 1
    # A cross-validation ends in ensembles, which need probabilities.
    if [[ "$crossvalidation" == 0 ]]; then return; fi
    for file in "$folder/$validation/"*.npz; do if [[ -f "$file" ]]; then return; fi; done
    return 1
}

prepare() {
    local preprocessed="$nnUNet_preprocessed/$dataset" number word
    if [[ -n "$completes" && ! -f "$nnUNet_raw/$dataset/dataset.json" ]]; then
        typed nnunet_labelset complete -d "$completes" -tr "${trainers[0]}" -c "${configurations[0]}" -p "$plans" \
            -o "$dataset_id" -n "${dataset#*_}"
    fi
    # What somebody else has planned and preprocessed is left alone; what this script began, it finishes.
    if [[ ! -f "$preprocessed/$plans.json" || -f "$study/preparing" ||
        -n "$completes" && ! -d "$preprocessed/$preprocessed_references" ]]; then
        if [[ -n "$completes" ]]; then # with the plans of the round before
            touch "$study/preparing"
            typed nnUNetv2_extract_fingerprint -d "$dataset_id" --verify_dataset_integrity
            typed nnUNetv2_preprocess -d "$dataset_id" -plans_name "$plans" -c "${preprocessed_configurations[@]}"
        else
            [[ -n "$planner" ]] || fail "$preprocessed/$plans.json is missing: run nnUNetv2_plan_and_preprocess first"
            touch "$study/preparing"
            typed nnUNetv2_plan_and_preprocess -d "$dataset_id" -pl "$planner" -c "${preprocessed_configurations[@]}" \
                --verify_dataset_integrity
        fi
        rm "$study/preparing"
    fi
    for word in "${configurations[@]}"; do
        grep -q "\"$word\":" "$preprocessed/$plans.json" ||
            fail "-c $word: the plans of nnU-Net for these images do not have it: leave it out"
    done
    if [[ ! -f "$preprocessed/$splits" ]]; then
        typed nnunet_labelset splits -d "$dataset" "${split_options[@]}"
    else
        say "folds: $preprocessed/$splits, which was there already"
        say "for new ones, before anything is trained: nnunet_labelset splits -d $dataset_id ${split_options[*]} --overwrite"
    fi
    # For a fold without a split nnU-Net would silently draw a random one.
    number="$({ grep -o '"train"' "$preprocessed/$splits" || true; } | wc -l)"
    for word in "${folds[@]}"; do
        if [[ "$word" != all && "$word" -ge "$number" ]]; then
            fail "fold $word: $preprocessed/$splits has $((number)) splits: see nnunet_labelset splits"
        fi
    done
    if [[ "$num_excluded" -gt 0 ]]; then
        for word in "${excluded[@]}"; do
            if grep -qF "\"$word\"" "$preprocessed/$splits"; then
                fail "--exclude $word: $preprocessed/$splits has it: write the splits again (nnunet_labelset splits)"
            fi
        done
    fi
}

train() {
    local folder
    folder="$(fold_folder "$1" "$2")"
    if trained "$1" "$2"; then say "$1 fold $2: already trained"; return; fi
    set -- nnUNetv2_train "$dataset" "$(configuration_of "$1")" "$2" -tr "$(trainer_of "$1")" -p "$plans" \
        -num_gpus "$num_gpus" -device "$device"
    if [[ "$crossvalidation" != 0 ]]; then set -- "$@" --npz; fi
    if [[ -f "$folder/$final_checkpoint" ]]; then
        set -- "$@" --val # only the validation is missing
    elif [[ -f "$folder/$latest_checkpoint" || -f "$folder/$best_checkpoint" ]]; then
        set -- "$@" --c
    fi
    typed "$@"
}

# The ensemble of a model is made from these folds and this checkpoint, and no network is newer.
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
    typed nnUNetv2_predict -i "$images" -o "$output" -d "$dataset" -c "$(configuration_of "$1")" \
        -tr "$(trainer_of "$1")" -p "$plans" -f "$2" -chk "$checkpoint" -device "$device" \
        --save_probabilities --continue_prediction
    touch "$output/done"
}

ensemble() {
    local predictions="$study/predictions/$1" evaluation="$study/evaluation/$1" fold
    if ! ensembled "$1"; then
        local model="$1"
        set --
        for fold in "${folds[@]}"; do
            [[ -f "$predictions/fold_$fold/done" ]] ||
                fail "$model fold $fold is not predicted yet: bash run.sh predict $model $fold"
            set -- "$@" "$predictions/fold_$fold"
        done
        rm -rf "$predictions/ensemble" "$predictions/ensemble.done" "$evaluation"
        typed nnUNetv2_ensemble -i "$@" -o "$predictions/ensemble"
        recipe >"$predictions/ensemble.done"
        # Probabilities are large and were needed for this only.
        if [[ "$keep_probabilities" != 1 ]]; then rm -rf "$@"; fi
        set -- "$model"
    fi
    if [[ -f "$evaluation/metrics.json" ]]; then say "$1: already evaluated"; return; fi
    evaluate "$references" "$predictions/ensemble" -o "$evaluation"
}

evaluate() {
    set -- nnunet_labelset evaluate "$@" -djfile "$nnUNet_raw/$dataset/dataset.json"
    if [[ -n "$cap" ]]; then set -- "$@" --cap "$cap"; fi
    typed "$@"
}

finish() {
    local model fold
    if [[ "$crossvalidation" != 0 ]]; then
        for model in "${models[@]}"; do
            for fold in "${folds[@]}"; do
                trained "$model" "$fold" || fail "$model fold $fold is not trained yet: bash run.sh train $model $fold"
            done
        done
        typed nnunet_labelset find_best_configuration "$dataset" -tr "${trainers[@]}" -c "${configurations[@]}" \
            -p "$plans" -f "${folds[@]}"
        for model in "${models[@]}"; do
            # --chill: a case may be in no validation, such as the only one that annotates a leaf
            evaluate "$nnUNet_preprocessed/$dataset/$preprocessed_references" \
                "$(model_folder "$model")/$crossvalidation_folder" -o "$study/evaluation/$model" --chill
        done
    else
        for model in "${models[@]}"; do
            # Scores of an ensemble that has to be renewed do not count.
            if ! ensembled "$model" || [[ ! -f "$study/evaluation/$model/metrics.json" ]]; then
                fail "$model is not evaluated yet: bash run.sh predict $model; bash run.sh ensemble $model"
            fi
        done
    fi
    set --
    for model in "${models[@]}"; do set -- "$@" "$model=$study/evaluation/$model"; done
    if [[ $# -gt 1 ]]; then typed nnunet_labelset compare "$@" -o "$study/comparison"; fi
    if [[ -n "$completes" ]]; then
        model="${models[0]}"
        typed nnunet_labelset compare "before=${study%/*}/evaluation/$model" "completed=$study/evaluation/$model" \
            -o "$study/comparison"
    fi
    set -- "$@" -m
    for model in "${models[@]}"; do set -- "$@" "$(model_folder "$model")"; done
    typed nnunet_labelset report "$@" -o "$study/report.html" --title "$dataset"
}

status() {
    local model fold word
    for model in "${models[@]}"; do
        for fold in "${folds[@]}"; do
            word=waiting
            if trained "$model" "$fold"; then
                word=trained
            elif [[ -d "$(fold_folder "$model" "$fold")" ]]; then
                word=started
            fi
            printf '%-40s fold %-4s %s\n' "$model" "$fold" "$word"
        done
        if [[ "$crossvalidation" != 0 ]]; then continue; fi
        word="no ensemble of these networks yet"
        if ensembled "$model"; then
            word="ensemble done"
            if [[ -f "$study/evaluation/$model/metrics.json" ]]; then word="ensemble done, evaluated"; fi
        fi
        printf '%-40s %s\n' "$model" "$word"
    done
}

# Is $1 among the words after it?
among() {
    local word="$1" known
    shift
    for known in "$@"; do if [[ "$known" == "$word" ]]; then return; fi; done
    fail "'$word' is not part of this study: $*"
}

# STEP FROM TO CLAIMS [MODEL [FOLD]]: a step of the networks with these numbers, unless another worker has claimed it.
each_network_of() {
    local index model fold
    for ((index = $2; index < $3; index++)); do
        model="${models[index / ${#folds[@]}]}" fold="${folds[index % ${#folds[@]}]}"
        if [[ -n "${5:-}" && "$5" != "$model" || -n "${6:-}" && "$6" != "$fold" ]]; then continue; fi
        if [[ -n "$4" ]] && ! mkdir "$4/$index" 2>/dev/null; then continue; fi
        "$1" "$model" "$fold"
    done
}

# The same, with one worker on each GPU; what one of them cannot do does not keep the others from their work.
side_by_side() {
    local gpu index claims pids=() failed=()
    claims="$(mktemp -d)"
    mkdir -p "$study/logs"
    for gpu in "${gpus[@]}"; do
        say "$1 on GPU $gpu: $study/logs/gpu_$gpu.txt"
        (
            worker=1 running=
            trap 'if [[ -n "$running" ]]; then kill "$running" 2>/dev/null; wait "$running"; fi; exit 143' TERM
            export CUDA_VISIBLE_DEVICES="$gpu"
            each_network_of "$1" "$2" "$3" "$claims" "${@:4}"
        ) >>"$study/logs/gpu_$gpu.txt" 2>&1 &
        pids+=("$!")
    done
    trap 'kill "${pids[@]}" 2>/dev/null; wait; rm -rf "$claims"; exit 143' INT TERM
    for index in "${!pids[@]}"; do wait "${pids[index]}" || failed+=("${gpus[index]}"); done
    trap - INT TERM
    rm -rf "$claims"
    [[ ${#failed[@]} -eq 0 ]] || fail "$1 stopped on GPU ${failed[*]}: see $study/logs"
}

each_network() {
    if [[ $# -gt 1 ]]; then among "$2" "${models[@]}"; fi
    if [[ $# -gt 2 ]]; then among "$3" "${folds[@]}"; fi
    # A cascade needs the validation of every fold of the stage before it, so its networks are the last.
    local bounds=(0 "$num_first_networks" "$num_networks") part
    for part in 0 1; do
        if [[ "${bounds[part]}" == "${bounds[part + 1]}" ]]; then continue; fi
        if [[ "$num_workers" -gt 0 ]]; then
            side_by_side "$1" "${bounds[part]}" "${bounds[part + 1]}" "${@:2}"
        else
            each_network_of "$1" "${bounds[part]}" "${bounds[part + 1]}" "" "${@:2}"
        fi
    done
}

each_model() {
    local step="$1" model
    if [[ $# -gt 1 ]]; then among "$2" "${models[@]}"; fi
    for model in "${models[@]}"; do
        if [[ $# -gt 1 && "$2" != "$model" ]]; then continue; fi
        "$step" "$model"
    done
}

array() {
    local index="${SLURM_ARRAY_TASK_ID:?is set by SLURM in an array job}"
    # As many workers as the job has processors: nnU-Net only looks at the whole machine.
    if [[ -n "${SLURM_CPUS_PER_TASK:-}" ]]; then
        export nnUNet_n_proc_DA="${nnUNet_n_proc_DA:-$(((SLURM_CPUS_PER_TASK + num_gpus - 1) / num_gpus))}"
    fi
    case "${1:-}" in
    train | predict) each_network_of "$1" "$index" "$((index + 1))" "" ;;
    ensemble) ensemble "${models[index]}" ;;
    *) fail "array: expected train, predict or ensemble" ;;
    esac
}

for command in nnUNetv2_train nnUNetv2_predict nnUNetv2_ensemble nnunet_labelset; do
    command -v "$command" >/dev/null || fail "$command is not on PATH: activate the environment of nnU-Net"
done
nnUNet_extTrainer="$(nnunet_labelset trainers)${nnUNet_extTrainer:+:$nnUNet_extTrainer}"
export nnUNet_extTrainer
if [[ "$crossvalidation" != 0 && " predict ensemble " == *" ${1:-all} "* ]]; then
    fail "$1: a cross-validation has no test images: finish scores what each network validated"
fi
case "${1:-all}" in
all)
    prepare
    each_network train
    if [[ "$crossvalidation" == 0 ]]; then
        each_network predict
        each_model ensemble
    fi
    finish
    if [[ -n "$next_round" ]]; then bash "$next_round/run.sh"; fi
    ;;
train | predict) each_network "$@" ;;
ensemble) each_model "$@" ;;
prepare | finish | status) "$1" ;;
array) array "${2:-}" ;;
*) fail "unknown step '$1': expected prepare, train, predict, ensemble, finish, status, array or nothing" ;;
esac
