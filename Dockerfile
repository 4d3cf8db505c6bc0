# nnU-Net with label-set losses in a container. Not built here: the machine that this was written on has no Docker.
#
#   docker build -t nnunet_labelset:cuda .
#   docker build -t nnunet_labelset:cpu --build-arg TORCH_INDEX=... .    (PyTorch's list of wheels for the CPU)
#   docker run --rm --gpus all --shm-size=8g -v /your/data:/data nnunet_labelset:cuda train 27 3d_fullres 0 -tr nnUNetTrainerLabelSet
#
# --shm-size: the workers of nnU-Net hand over batches through shared memory, and Docker allows 64 MB.
FROM python:3.12-slim
# Empty: the usual wheels, which bring CUDA along. Else a list of wheels for the CPU, or for the CUDA of your driver.
ARG TORCH_INDEX=""
# torch.compile, which nnU-Net uses on GPUs, needs a compiler.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir torch torchvision ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
COPY . /source
RUN pip install --no-cache-dir /source && rm -rf /source
ENV nnUNet_raw=/data/nnUNet_raw nnUNet_preprocessed=/data/nnUNet_preprocessed nnUNet_results=/data/nnUNet_results
# For nnU-Net's own commands: docker run --entrypoint nnUNetv2_train ...
ENV nnUNet_extTrainer=/usr/local/lib/python3.12/site-packages/nnunet_labelset/trainers
WORKDIR /data
ENTRYPOINT ["nnunet_labelset"]
CMD ["--help"]
