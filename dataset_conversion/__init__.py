"""From the data people have to nnU-Net raw data sets that carry the contract."""
