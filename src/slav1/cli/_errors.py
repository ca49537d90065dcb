"""What a user got wrong on the command line, and how it is said."""


class CommandLineError(ValueError):
    """The command can't do what was asked: one line on stderr, exit status 2."""


def one_line(text: str) -> str:
    """Returns ``text`` on one line and without characters that steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
