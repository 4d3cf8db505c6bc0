"""One thin file per verb: its options and a call into a room."""
