"""The contract in the file that ``accelerate config`` writes."""
