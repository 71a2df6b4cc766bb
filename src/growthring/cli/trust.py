"""Whose code a resumed run may run: that of growthring, or what the user names; never what the folder names alone.

The folder of a run says which recipe it was trained with, and a recipe of one's own is a Python file. To resume
a run that came from somebody else must not run a file that they chose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from growthring.errors import InputError
from growthring.files.foreign import read_plain
from growthring.train import RECIPES, how_to_resume

_MOST = 1 << 26  # bytes of a recipe


def is_file(recipe: str) -> bool:
    """Whether a recipe is FILE.py:function, and not a name.

    >>> is_file("my_file.py:mine"), is_file("demo")
    (True, False)
    """
    path, separator, function = recipe.rpartition(":")
    return bool(separator and function) and path.endswith(".py")


def recipe_source(recipe: str) -> dict[str, Any]:
    """How to find a recipe again from anywhere, and what its file holds now."""
    if not is_file(recipe):
        return {"recipe": recipe}
    path, _, function = recipe.rpartition(":")
    return {"recipe": f"{Path(path).resolve()}:{function}", "sha256": _digest(Path(path))}


def trusted_recipe(
    folder: Path, source: Mapping[str, Any], given: str | None, is_trusted: bool
) -> tuple[str, list[str]]:
    """The recipe that a run is resumed with, and notes for the user; nothing of it is run here.

    Args:
        folder: of the run.
        source: from its config.json.
        given: --recipe.
        is_trusted: --trust.

    Raises:
        InputError: it would run a file that the user has not named, or not the one that the run began with.
    """
    recorded = str(source["recipe"])
    if recorded in RECIPES:
        if given is not None and given != recorded:
            raise InputError(
                f"'{folder}' was trained with the recipe '{recorded}', not with '{given}'."
            )
        return recorded, []
    if not is_file(recorded):
        raise InputError(
            f"'{folder / 'config.json'}': 'source.recipe' is {recorded!r}; allowed is one of {', '.join(RECIPES)}, "
            "or FILE.py:function."
        )
    if given is None and not is_trusted:
        raise InputError(
            f"'{folder}' was trained with a recipe from a file, and to resume it runs that file. Name it again if "
            f"you know what it does: `{how_to_resume(folder, source)}`; or add --trust to run whatever the folder "
            "names. Do neither with a run from a stranger before you have read the file."
        )
    recipe = recorded if given is None else given
    if not is_file(recipe) or Path(recipe).name != Path(recorded).name:
        raise InputError(
            f"'{folder}' was trained with the recipe '{Path(recorded).name}', not with '{recipe}'."
        )
    return recipe, _changes(folder, source, recipe, is_trusted)


def _changes(folder: Path, source: Mapping[str, Any], recipe: str, is_trusted: bool) -> list[str]:
    """A note where the file is another one than when the run began; without --trust that is an error."""
    file = Path(recipe.rpartition(":")[0])
    digest = _digest(file)  # also says that there is no such file
    if source.get("sha256") in (None, digest):
        return []
    if not is_trusted:
        raise InputError(
            f"'{file}' has changed since the run '{folder}' began (its SHA-256 was {source['sha256'][:12]}…, it is "
            f"{digest[:12]}…). Put it back as it was; or add --trust to go on with what it is now."
        )
    return [f"'{file}' has changed since the run began; going on with what it is now"]


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(read_plain(file, _MOST)).hexdigest()
    except FileNotFoundError:
        raise InputError(f"there is no file '{file}'.") from None
    except OSError as error:
        raise InputError(f"cannot read '{file}': {error.strerror or error}.") from error
