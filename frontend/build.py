"""The pages' scripts: modules of ``frontend/src`` in one file each, in the package. Needs nothing but Python.

python frontend/build.py            # write them
python frontend/build.py --check    # are they what the sources give?
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
PACKAGE = Path(__file__).parents[1] / "src" / "whyformer"
BUNDLES = {"main.js": PACKAGE / "views" / "html" / "whyformer.js", "serve.js": PACKAGE / "serve" / "serve.js"}
IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
COMMENT = re.compile(r"^[ \t]*(?:/\*\*.*?\*/|//[^\n]*)[ \t]*\n", re.MULTILINE | re.DOTALL)
TYPE = re.compile(r"/\*\* @type [^\n]*?\*/ ?")
NAMED = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+|[\[{])", re.MULTILINE)


def ordered(entry: str, before: tuple[str, ...] = ()) -> list[str]:
    """Modules, each after those that it imports."""
    if entry in before:
        raise SystemExit(f"frontend/src: {' → '.join((*before, entry))} go in a circle.")
    needed = IMPORT.findall((SOURCES / entry).read_text(encoding="utf-8"))
    modules = [name for part in needed for name in ordered(part, (*before, entry))]
    return list(dict.fromkeys([*modules, entry]))


def bundle(entry: str) -> str:
    """All modules that an entry needs in one scope: their names must differ, which is checked."""
    owners: dict[str, str] = {}
    parts = ["// Made by frontend/build.py from frontend/src: change those.\n"]
    for module in ordered(entry):
        source = (SOURCES / module).read_text(encoding="utf-8")
        for name in NAMED.findall(source):
            if name in "[{":
                raise SystemExit(f"frontend/src: {module} takes names apart at its top: give each a line of its own.")
            if name in owners:
                raise SystemExit(f"frontend/src: {name} stands in {owners[name]} and in {module}: rename one.")
            owners[name] = module
        plain = TYPE.sub("", COMMENT.sub("", IMPORT.sub("", source)))
        parts.append(re.sub(r"^export ", "", plain, flags=re.MULTILINE).strip() + "\n")
    text = "\n".join(parts)
    if "</script" in text.lower():
        raise SystemExit("frontend/src: '</script' would end the page's script.")
    return text


def main() -> None:
    for entry, path in BUNDLES.items():
        text = bundle(entry)
        if "--check" not in sys.argv[1:]:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            raise SystemExit(f"{path} is not what frontend/src gives: run python frontend/build.py")


if __name__ == "__main__":
    main()
