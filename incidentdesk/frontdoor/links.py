"""Links in our documents: the files they name exist, and so do the headings."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`\n]*`")
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def documents(root: Path) -> list[Path]:
    """List our Markdown files: those at the top and all below `docs/`, `docker/` and `static/`."""
    return [
        *sorted(root.glob("*.md")),
        *(path for d in ("docs", "docker") for path in sorted((root / d).rglob("*.md"))),
    ]


def anchors(text: str) -> set[str]:
    """Give the anchors of a document's headings, made as GitHub makes them."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found


def broken_links(root: Path) -> Iterator[str]:
    """List each relative link whose file or heading is not there."""
    for document in documents(root):
        text = document.read_text()
        for target in LINK.findall(INLINE_CODE.sub("", FENCE.sub("", text))):
            if ELSEWHERE.match(target):
                continue
            name, _, anchor = unquote(target).partition("#")
            path = (document.parent / name).resolve() if name else document
            where = document.relative_to(root)
            if not path.exists():
                yield f"{where}: {target} does not exist"
            elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text()):
                yield f"{where}: {target}: there is no such heading"
