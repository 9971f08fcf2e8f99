"""Compile every template of ours: a wrong tag, filter or parent is found without opening the page."""

import sys
from pathlib import Path

import django
from django.conf import settings
from django.template import TemplateDoesNotExist, TemplateSyntaxError, engines
from django.template.backends.django import DjangoTemplates
from django.template.loader_tags import ExtendsNode, IncludeNode


def faults(directory: Path) -> list[str]:
    """List what does not compile below a template directory, or names a template that is not there."""
    engine = engines["django"]
    assert isinstance(engine, DjangoTemplates)
    found = []
    for path in sorted(directory.rglob("*.html")):
        name = path.relative_to(directory).as_posix()
        try:
            template = engine.get_template(name).template
        except (TemplateSyntaxError, TemplateDoesNotExist) as error:
            found.append(f"{name}: {error}")
            continue
        for node in template.nodelist.get_nodes_by_type((ExtendsNode, IncludeNode)):  # type: ignore[arg-type]
            target = node.parent_name if isinstance(node, ExtendsNode) else node.template  # type: ignore[attr-defined]
            wanted = getattr(target, "var", target)
            if isinstance(wanted, str):
                try:
                    engine.get_template(wanted)
                except TemplateDoesNotExist:
                    found.append(f"{name}: there is no template {wanted}")
                except TemplateSyntaxError:
                    pass  # said for that file itself
    return found


def main() -> int:
    django.setup()
    directories: list[Path] = settings.TEMPLATES[0]["DIRS"]  # type: ignore[assignment]
    found = [fault for directory in directories for fault in faults(directory)]
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
