"""What lives inside nnU-Net's training."""
