from django.apps import AppConfig


class JobsConfig(AppConfig):
    """The app jobs."""

    name = "apps.jobs"
    label = "jobs"
