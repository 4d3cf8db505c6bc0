"""Generated fetal brains."""
