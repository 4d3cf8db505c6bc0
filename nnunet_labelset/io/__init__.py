"""Input and output: files written whole or not at all, volumes, tables, text, work side by side."""
