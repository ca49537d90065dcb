"""The node's end of the line: a process that watches the ranks beside it."""
