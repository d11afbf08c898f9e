"""A recipe: numbered stages, profiles and the command line of a `run.py`.

recipe = Recipe("librispeech", Path(__file__), profiles={"demo": demo, "mini": mini})

@recipe.stage(6, "Train the LSTM with cross entropy")
def train_ce(run: Run) -> dict[str, float]:
    ...

if __name__ == "__main__":
    recipe.main()

A recipe for another corpus reuses the stages: `recipe.for_corpus(Path(__file__), profiles).main()`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.stages.command_line import main
from toolkit.stages.declaration import Declaration


class Recipe(Declaration):
    """Numbered stages over typed configurations, with the command line of a `run.py`."""

    def for_corpus(
        self, file: Path, profiles: Mapping[str, Callable[[], Any]], title: str = ""
    ) -> "Recipe":
        """Return a recipe of these stages for another corpus, named after its own folder.

        Args:
          file: the `run.py` of the new recipe.
          profiles: its configurations, of the same class as this recipe's.
          title: what it does; by default this recipe's title.
        """
        name = Path(file).resolve().parent.name
        recipe = Recipe(name, file, profiles, title or self.title, self.prefix, self.show)
        recipe.stages = list(self.stages)
        return recipe

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Run the command line and exit."""
        main(self, arguments)
