"""A ``transformers.Trainer`` under the contract."""
