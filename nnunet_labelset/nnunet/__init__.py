"""All that knows nnU-Net's insides and files."""
