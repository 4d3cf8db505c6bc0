"""One self-contained HTML page about results."""
