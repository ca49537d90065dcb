"""The job's end of the line: all nodes' findings in, one decision out."""
