"""What is wrong with a policy."""


class PolicyError(ValueError):
    """A policy can't be used, or could not answer. The text is one line."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))
