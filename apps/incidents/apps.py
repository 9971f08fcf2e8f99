from django.apps import AppConfig


class IncidentsConfig(AppConfig):
    """The app incidents."""

    name = "apps.incidents"
    label = "incidents"
