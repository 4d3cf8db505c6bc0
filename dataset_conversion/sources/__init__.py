"""Where the cases of a source lie: manifests, presets, patterns of paths, case lists."""
