"""What of an accelerator a checkpoint holds, how it is written and loaded."""
