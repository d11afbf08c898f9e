"""The limit on the size of a page."""


class Budget:
    """The number of bytes that may still be added to the page."""

    def __init__(self, left: int) -> None:
        self.left, self.refused = left, 0

    def take(self, text: str) -> str:
        """Return the text if there is room for it, otherwise an empty string."""
        size = len(text.encode("utf-8", "replace"))
        if size > self.left:
            self.refused += 1
            return ""
        self.left -= size
        return text
