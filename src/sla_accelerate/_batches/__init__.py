"""Where a loop is in its data, and how it comes back to it."""
