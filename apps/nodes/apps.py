from django.apps import AppConfig


class NodesConfig(AppConfig):
    """The app nodes."""

    name = "apps.nodes"
    label = "nodes"
