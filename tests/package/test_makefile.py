"""The commands of the Makefile, where running them would take minutes: what can be told from their text."""

from __future__ import annotations

import re

from tests.package.environments import REPOSITORY

MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")


def shadowed(makefile: str) -> set[str]:
    """Modules that are run by name while a folder of that name, made by another target, may stand beside the Makefile.

    ``python -m build`` takes the folder ``build`` for the module, once the site has been built there.
    """
    (cleaned,) = re.findall(r"^clean:\n\trm -rf (.+)$", makefile, re.MULTILINE)
    return set(re.findall(r"^\t.*python -m (\w+)", makefile, re.MULTILINE)) & set(cleaned.split())


def test_no_module_is_hidden_by_a_folder_that_make_makes() -> None:
    assert not shadowed(MAKEFILE)
    assert shadowed(MAKEFILE + "\n\t$(BIN)/python -m build --outdir dist .\n") == {"build"}


def test_every_target_is_phony_and_a_release_makes_both_packages() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    assert set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE)) == set(phony.split())
    recipe = MAKEFILE.partition("\nrelease: setup\n")[2].partition("\n\n")[0]
    assert re.findall(r"pyproject-build --no-isolation --outdir dist (\S+)", recipe) == [".", "models"]
    assert "twine check --strict dist/*" in recipe


def test_what_one_of_the_two_commands_leaves_out_the_other_runs() -> None:
    recipes = {name: MAKEFILE.partition(f"\n{name}: setup\n")[2].partition("\n\n")[0] for name in ("test", "check")}
    assert "$(PYTEST) $(OF_CHECK:%=--ignore=%)" in recipes["test"]
    assert "$(PYTEST) $(OF_CHECK)" in recipes["check"]
    (others,) = re.findall(r"^OF_CHECK := (.+) \$\(IN_A_BROWSER\)$", MAKEFILE, re.MULTILINE)
    (driven,) = re.findall(r"^IN_A_BROWSER := (.+)$", MAKEFILE, re.MULTILINE)
    assert all((REPOSITORY / folder).is_dir() for folder in others.split())
    assert all((REPOSITORY / file).is_file() for file in driven.split())
