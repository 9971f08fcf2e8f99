from django.apps import AppConfig


class AccessConfig(AppConfig):
    """The app access."""

    name = "apps.access"
    label = "access"
