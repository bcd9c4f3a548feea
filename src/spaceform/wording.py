"""Words of sentences for people."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """1 item, 2 items, 1,000 items."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
