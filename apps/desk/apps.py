from django.apps import AppConfig


class DeskConfig(AppConfig):
    """The app desk."""

    name = "apps.desk"
    label = "desk"
