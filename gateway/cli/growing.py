"""What is shown of an answer while it is written: over crashes and late looks each piece once."""

from __future__ import annotations

from gateway.turns.event import Event


class GrowingAnswer:
    """Follows one answer from its events; ``shown`` is what the reader has of it."""

    def __init__(self) -> None:
        self.shown = ""
        # What came of it in the try that runs now, since after a crash the answer is written anew.
        self._came = ""

    def forget(self) -> None:
        """Begin another answer: a further one, or what follows a call of a tool."""
        self.shown = self._came = ""

    def see(self, event: Event) -> tuple[bool, str]:
        """Take an event; say whether it is another answer than the one shown, and what the reader lacks."""
        match event.kind:
            case "started":
                self._came = ""
                return False, ""
            case "draft":
                self._came = event.text
            case "delta":
                self._came += event.text
            case _:
                return False, ""
        if self.shown.startswith(self._came):
            return False, ""
        anew = not self._came.startswith(self.shown)
        lacking = self._came if anew else self._came[len(self.shown) :]
        self.shown = self._came
        return anew, lacking
